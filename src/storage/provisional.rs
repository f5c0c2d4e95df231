//! The store of an instance whose data directory is damaged, until a leader admits the instance.
//!
//! The instance runs as a new member without data. It makes no promise, and its first write comes
//! from a leader. A leader sends it only after its cluster has committed the new member, so a
//! majority of the voters is alive then, with everything that was acknowledged. This first
//! write replaces the damaged directory by a new one. Before it, nothing on the disk changes.
//!
//! After a crash before the first write, the next start draws another id. The former id has
//! acknowledged nothing, and the cluster replaces it by the new one.

use super::error::refuse;
use crate::machine::snapshot::ChunkWriter;
use crate::node::bootstrap::genesis::nothing;
use crate::node::stored::{Boot, HardState, Identity, LogWrite, SnapshotMeta};
use crate::storage::contract::{Checkpointer, ChunkSink, LogAfter, LogStore, ReadDone, ScrubDone};
use crate::storage::error::{Result, StorageError};
use crate::storage::file_system::Space;
use crate::storage::memory::{MemoryDisk, MemoryStore};
use crate::types::membership::Promise;

/// Replaces the damaged directory by a store of this identity. The store is loaded, and has no
/// other content.
pub(crate) type Begin = Box<dyn FnOnce(&Identity) -> Result<Box<dyn LogStore>> + Send>;

/// See the module's documentation.
pub(crate) struct Provisional {
    /// The content until the first write.
    empty: MemoryStore,
    /// Taken by the first write.
    begin: Option<Begin>,
    /// The store on disk, unless creating it failed.
    begun: Option<Box<dyn LogStore>>,
}

impl Provisional {
    /// An empty store of this identity, which must never have been used before.
    pub(crate) fn new(identity: Identity, begin: Begin) -> Result<Provisional> {
        let mut empty = MemoryDisk::new().open();
        let (hard_state, meta, state) = nothing();
        empty.found(&identity, hard_state, &meta, &mut ChunkWriter::full(state))?;
        let mut store = Provisional { empty, begin: Some(begin), begun: None };
        planted!(PutAsideWithoutLeader).then(|| store.begun().map(drop)).transpose()?;
        Ok(store)
    }

    /// The store on disk, which the first call creates.
    fn begun(&mut self) -> Result<&mut dyn LogStore> {
        if let (Some(begin), Some(identity)) = (self.begin.take(), self.empty.identity()) {
            self.begun = Some(begin(identity)?);
        }
        match &mut self.begun {
            Some(store) => Ok(&mut **store),
            None => {
                let reason = "the data directory could not be replaced".to_owned();
                Err(StorageError::Poisoned { reason })
            }
        }
    }

    /// The store to read from now.
    fn now(&self) -> &dyn LogStore {
        self.begun.as_deref().unwrap_or(&self.empty)
    }
}

impl LogStore for Provisional {
    fn scrub(&mut self, done: ScrubDone) -> Result<u64> {
        self.begun.as_mut().map_or(Ok(0), |store| store.scrub(done))
    }

    fn space(&self) -> Option<Space> {
        self.now().space()
    }

    fn log_space(&self) -> Option<Space> {
        self.now().log_space()
    }

    fn identity(&self) -> Option<&Identity> {
        self.now().identity()
    }

    fn promise(&self) -> &Promise {
        self.now().promise()
    }

    /// Not durable before the first write: the identity itself is not on disk until then.
    fn set_identity(&mut self, identity: &Identity) -> Result<()> {
        match self.begin {
            Some(_) => self.empty.set_identity(identity),
            None => self.begun()?.set_identity(identity),
        }
    }

    fn set_promise(&mut self, promise: &Promise) -> Result<()> {
        match &mut self.begun {
            Some(store) => store.set_promise(promise),
            None => refuse("a promise of an instance whose directory is damaged".to_owned()),
        }
    }

    fn mark_removed(&mut self) -> Result<()> {
        // Before its first write it has never been a member, and the directory is not its own yet.
        self.begun.as_mut().map_or(Ok(()), |store| store.mark_removed())
    }

    fn found(
        &mut self,
        _: &Identity,
        _: HardState,
        _: &SnapshotMeta,
        _: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<()> {
        refuse("the store is founded already".to_owned())
    }

    fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot> {
        if self.begin.is_some() { self.empty.load(sink) } else { self.begun()?.load(sink) }
    }

    fn read(&mut self, from: u64, bytes: u64, done: ReadDone) -> Result<()> {
        self.begun()?.read(from, bytes, done)
    }

    fn append(&mut self, write: &LogWrite) -> Result<()> {
        if write.entries.is_empty() && write.hard_state.is_none() {
            return Ok(());
        }
        self.begun()?.append(write)
    }

    fn idle(&mut self) -> Result<()> {
        self.begun.as_mut().map_or(Ok(()), |store| store.idle())
    }

    fn work_beside(&mut self) -> bool {
        self.begun.as_mut().is_some_and(|store| store.work_beside())
    }

    fn checkpointer(&mut self) -> Result<Box<dyn Checkpointer>> {
        self.begun()?.checkpointer()
    }

    fn commit_checkpoint(&mut self, meta: &SnapshotMeta, log: LogAfter) -> Result<u64> {
        self.begun()?.commit_checkpoint(meta, log)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::types::membership::{Ballot, node_id};

    fn identity() -> Identity {
        let address = "here:1".to_owned();
        Identity { cluster: 7, node: node_id(4, 3), incarnation: 3, address, uid: 4 }
    }

    fn nothing_in(identity: &Identity) -> MemoryStore {
        let mut store = MemoryDisk::new().open();
        let (hard_state, meta, state) = nothing();
        store.found(identity, hard_state, &meta, &mut ChunkWriter::full(state)).unwrap();
        store
    }

    fn first_write() -> LogWrite {
        let hard_state = Some(HardState { term: 3, vote: 0, commit: 0 });
        LogWrite { hard_state, entries: Vec::new() }
    }

    #[test]
    fn nothing_is_begun_before_the_first_write() {
        let begun = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&begun);
        let begin: Begin = Box::new(move |identity| {
            flag.store(true, Ordering::Relaxed);
            Ok(Box::new(nothing_in(identity)))
        });
        let mut store = Provisional::new(identity(), begin).unwrap();
        let boot = store.load(&mut |_| Ok(())).unwrap();
        assert_eq!((boot.hard_state, boot.checkpoint.index), (HardState::default(), 0));
        let moved = Identity { address: "there:1".to_owned(), ..identity() };
        store.set_identity(&moved).unwrap();
        store.mark_removed().unwrap();
        store.append(&LogWrite::default()).unwrap();
        let ballot = Ballot { round: 1, proposer: 1 };
        assert!(store.set_promise(&Promise { ballot, pledge: None }).is_err());
        assert!(!begun.load(Ordering::Relaxed));

        store.append(&first_write()).unwrap();
        assert!(begun.load(Ordering::Relaxed));
        assert_eq!(store.identity(), Some(&moved));
        assert_eq!(store.load(&mut |_| Ok(())).unwrap().hard_state.term, 3);
    }

    #[test]
    fn a_store_that_could_not_replace_the_directory_refuses_writes() {
        let what = "replacing it".to_owned();
        let begin: Begin = Box::new(move |_| Err(StorageError::NoSpace { what }));
        let mut store = Provisional::new(identity(), begin).unwrap();
        let error = store.append(&first_write()).unwrap_err();
        assert!(matches!(error, StorageError::NoSpace { .. }), "{error}");
        let error = store.append(&first_write()).unwrap_err();
        assert!(matches!(error, StorageError::Poisoned { .. }), "{error}");
    }
}
