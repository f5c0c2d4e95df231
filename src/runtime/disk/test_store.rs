//! A store in memory that records its calls, and refuses some.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Receiver;

use crate::machine::snapshot::ChunkWriter;
use crate::node::stored::{Boot, HardState, Identity, LogWrite, SnapshotMeta};
use crate::storage::{
    CheckpointKind, Checkpointer, ChunkSink, LogAfter, LogStore, MemoryDisk, MemoryStore, ReadDone,
    Result, ScrubDone, Space, StorageError,
};
use crate::types::membership::Promise;

/// What happens to the store. A clone is the same.
#[derive(Clone, Default)]
pub(super) struct Script {
    shared: Arc<Mutex<TestStoreState>>,
    /// Each chunk waits for one message; none waits if there is no channel, or it is closed.
    proceed: Option<Receiver<()>>,
}

#[derive(Default)]
struct TestStoreState {
    calls: Vec<&'static str>,
    /// How often each call fails harmlessly before it succeeds.
    refused: BTreeMap<&'static str, usize>,
    /// This call fails for good.
    broken: Option<&'static str>,
    /// How many pieces can be verified.
    pieces: u64,
    space: Option<Space>,
}

impl Script {
    pub(super) fn delayed(proceed: Receiver<()>) -> Script {
        Script { proceed: Some(proceed), ..Script::default() }
    }

    fn change<T>(&self, change: impl FnOnce(&mut TestStoreState) -> T) -> T {
        change(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The next calls of this name fail harmlessly.
    pub(super) fn refuse(self, call: &'static str, times: usize) -> Script {
        self.change(|shared| shared.refused.insert(call, times));
        self
    }

    /// The next call of this name breaks the store.
    pub(super) fn fail(self, call: &'static str) -> Script {
        self.change(|shared| shared.broken = Some(call));
        self
    }

    pub(super) fn set_pieces(&self, pieces: u64) {
        self.change(|shared| shared.pieces = pieces);
    }

    pub(super) fn set_space(&self, free: u64, total: u64) {
        self.change(|shared| shared.space = Some(Space { free, total }));
    }

    /// The names of the calls since the last time.
    pub(super) fn calls(&self) -> Vec<&'static str> {
        self.change(|shared| std::mem::take(&mut shared.calls))
    }

    fn call(&self, call: &'static str) -> Result<()> {
        self.change(|shared| {
            shared.calls.push(call);
            if shared.broken == Some(call) {
                let (what, reason) = (call.to_owned(), "no such device".to_owned());
                return Err(StorageError::Io { what, reason });
            }
            match shared.refused.get_mut(call) {
                None | Some(0) => Ok(()),
                Some(times) => {
                    *times -= 1;
                    let (what, reason) = (call.to_owned(), "too many open files".to_owned());
                    Err(StorageError::Again { what, reason })
                }
            }
        })
    }

    /// A disk with a store of member 1, on which this happens.
    pub(super) fn founded(&self) -> (MemoryDisk, Box<dyn LogStore>) {
        let disk = MemoryDisk::new();
        let mut inner = disk.open();
        let address = "127.0.0.1:7400";
        let members = vec![crate::types::membership::Member::new(1, address)];
        let founding = crate::types::membership::Genesis { cluster: 1, members };
        let (hard_state, meta, state) = founding.start();
        let node = founding.members[0].node;
        let identity =
            Identity { cluster: 1, node, incarnation: 1, address: address.to_owned(), uid: 1 };
        inner.found(&identity, hard_state, &meta, &mut ChunkWriter::full(state)).unwrap();
        (disk, Box::new(TestStore { inner, script: self.clone() }))
    }
}

/// A store, or its checkpointer.
struct TestStore<T> {
    inner: T,
    script: Script,
}

impl Checkpointer for TestStore<Box<dyn Checkpointer>> {
    fn begin(&mut self, full: bool, bytes: u64) -> Result<CheckpointKind> {
        self.script.call("begin")?;
        self.inner.begin(full, bytes)
    }

    fn put_chunk(&mut self, chunk: &[u8]) -> Result<()> {
        if let Some(proceed) = &self.script.proceed {
            let _ = proceed.recv();
        }
        self.script.call("chunk")?;
        self.inner.put_chunk(chunk)
    }

    fn finish(&mut self) -> Result<()> {
        self.script.call("finish")?;
        self.inner.finish()
    }
}

impl LogStore for TestStore<MemoryStore> {
    fn identity(&self) -> Option<&Identity> {
        self.inner.identity()
    }

    fn promise(&self) -> &Promise {
        self.inner.promise()
    }

    fn set_identity(&mut self, identity: &Identity) -> Result<()> {
        self.script.call("identity")?;
        self.inner.set_identity(identity)
    }

    fn set_promise(&mut self, promise: &Promise) -> Result<()> {
        self.script.call("promise")?;
        self.inner.set_promise(promise)
    }

    fn mark_removed(&mut self) -> Result<()> {
        self.script.call("removed")?;
        self.inner.mark_removed()
    }

    fn found(
        &mut self,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<()> {
        self.inner.found(identity, hard_state, meta, chunks)
    }

    fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot> {
        self.inner.load(sink)
    }

    fn append(&mut self, write: &LogWrite) -> Result<()> {
        self.script.call("append")?;
        self.inner.append(write)
    }

    fn read(&mut self, from: u64, bytes: u64, done: ReadDone) -> Result<()> {
        self.script.call("read")?;
        self.inner.read(from, bytes, done)
    }

    fn idle(&mut self) -> Result<()> {
        self.script.call("idle")
    }

    fn scrub(&mut self, done: ScrubDone) -> Result<u64> {
        self.script.call("scrub")?;
        done(None);
        Ok(self.script.change(|shared| shared.pieces))
    }

    fn log_space(&self) -> Option<Space> {
        self.inner.log_space()
    }

    fn space(&self) -> Option<Space> {
        self.script.change(|shared| shared.space)
    }

    fn checkpointer(&mut self) -> Result<Box<dyn Checkpointer>> {
        let (inner, script) = (self.inner.checkpointer()?, self.script.clone());
        Ok(Box::new(TestStore { inner, script }))
    }

    fn commit_checkpoint(&mut self, meta: &SnapshotMeta, log: LogAfter) -> Result<u64> {
        self.script.call("commit")?;
        self.inner.commit_checkpoint(meta, log)
    }
}
