//! The disk's thread: it alone touches the store.
//!
//! It takes all the writes that have gathered and makes them durable as one
//! (group commit), and writes a checkpoint chunk by chunk in between, so that
//! no write waits for more than one chunk.
//!
//! What fails without having changed anything ([`StorageError::Again`]) is tried
//! again, for one when the process has no file to open for a moment: a checkpoint
//! for as long as it takes, while writes go on; what the node waits for, for half
//! a minute. Any other error ends the thread, and stops the node.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{
    Receiver, RecvTimeoutError, Sender, TryRecvError, after, bounded, never, select, unbounded,
};

use crate::machine::snapshot::ChunkWriter;
use crate::machine::{Dirty, State};
use crate::node::io::{DiskOp, Input};
use crate::runtime::watchdog::{Stepper, Steps};
use crate::storage::{
    CheckpointKind, HardState, LogAfter, LogStore, LogWrite, SnapshotMeta, StorageError,
};

/// A write is not joined with more beyond this, and is cut into parts when it is larger itself.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// The pause before an operation is tried again, and how often it is.
const AGAIN_PAUSE: Duration = Duration::from_millis(500);
const AGAIN_MAX: usize = 60;
/// The pause before a checkpoint is.
const CHECKPOINT_PAUSE: Duration = Duration::from_secs(2);

/// The node's end of the disk's thread. Dropping it ends the thread once all is written.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Node -> disk. Not bounded here: what is in it is bounded by what Raft lets be uncommitted.
    ops: Option<Sender<DiskOp>>,
    /// Never a message: dropped when the thread is to end.
    open: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Its calls of the store, each of which writes a few megabytes at most.
    steps: Steps,
}

impl Disk {
    /// Starts the thread; what it has done arrives in `done` as inputs for the node.
    pub(crate) fn start(store: Box<dyn LogStore>, done: Sender<Input>) -> std::io::Result<Disk> {
        let (ops, queue) = unbounded();
        let (open, closing) = bounded(0);
        let steps = Steps::default();
        let stepper = steps.stepper();
        let (checkpoint, retry) = (None, never());
        let mut writer = Writer { store, queue, closing, done, stepper, checkpoint, retry };
        let thread = std::thread::Builder::new()
            .name("quorate-disk".to_owned())
            .spawn(move || writer.run())?;
        Ok(Disk { ops: Some(ops), open: Some(open), thread: Some(thread), steps })
    }

    pub(crate) fn submit(&self, op: DiskOp) {
        if let Some(ops) = &self.ops {
            // A failed writer has reported that already and takes nothing more.
            let _ = ops.send(op);
        }
    }

    /// The call of the store that is under way, if one is.
    pub(crate) fn under_way(&self) -> Option<u64> {
        self.steps.under_way()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop((self.ops.take(), self.open.take()));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Writer {
    store: Box<dyn LogStore>,
    queue: Receiver<DiskOp>,
    /// Closed when the thread is to end.
    closing: Receiver<()>,
    done: Sender<Input>,
    stepper: Stepper,
    checkpoint: Option<Checkpoint>,
    /// When a checkpoint that has failed is begun again.
    retry: Receiver<Instant>,
}

/// A checkpoint that is being written.
struct Checkpoint {
    state: State,
    dirty: Dirty,
    meta: SnapshotMeta,
    keep_from: u64,
    progress: Progress,
}

enum Progress {
    /// It is to be begun.
    Due,
    /// It has failed, and is begun again after a while.
    Paused,
    Begun(Box<ChunkWriter>),
}

impl Writer {
    fn run(&mut self) {
        if let Err(error) = self.work() {
            tracing::error!(%error, "the disk failed");
            let _ = self.done.send(Input::Failed { reason: format!("the disk failed: {error}") });
        }
        self.stepper.rest();
    }

    /// Ends well when the node is gone and all is written.
    fn work(&mut self) -> Result<(), StorageError> {
        loop {
            let goes_on = |one: &Checkpoint| !matches!(one.progress, Progress::Paused);
            let op = if self.checkpoint.as_ref().is_some_and(goes_on) {
                // A chunk between any two writes: neither waits long for the other.
                self.stepper.begin();
                self.go_on_with_checkpoint()?;
                self.queue.try_recv()
            } else {
                self.stepper.rest();
                select! {
                    recv(self.queue) -> op => op.map_err(|_| TryRecvError::Disconnected),
                    recv(self.retry) -> _ => {
                        self.retry = never();
                        if let Some(checkpoint) = &mut self.checkpoint {
                            checkpoint.progress = Progress::Due;
                        }
                        Err(TryRecvError::Empty)
                    }
                }
            };
            match op {
                Ok(op) => self.perform(op)?,
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
    }

    fn perform(&mut self, op: DiskOp) -> Result<(), StorageError> {
        let mut next = Some(op);
        while let Some(op) = next.take() {
            match op {
                DiskOp::Write { number, write } => next = self.write(number, write)?,
                DiskOp::Install { number, hard_state, meta, state } => {
                    // It replaces everything, a checkpoint under way included.
                    self.checkpoint = None;
                    self.insist(|store, stepper| {
                        install(store, hard_state, &meta, state.clone(), || stepper.begin())
                    })?;
                    self.tell(Input::Written { number });
                }
                DiskOp::Identify { number, identity } => {
                    self.insist(|store, _| store.set_identity(&identity))?;
                    self.tell(Input::Written { number });
                }
                DiskOp::Promise { number, promise } => {
                    self.insist(|store, _| store.keep_promise(&promise))?;
                    self.tell(Input::Written { number });
                }
                DiskOp::Removed { number } => {
                    self.insist(|store, _| store.mark_removed())?;
                    self.tell(Input::Written { number });
                }
                DiskOp::Checkpoint { meta, state, dirty, keep_from } => {
                    let progress = Progress::Due;
                    self.checkpoint = Some(Checkpoint { state, dirty, meta, keep_from, progress });
                }
            }
        }
        Ok(())
    }

    /// Makes a call, and again after a while if that may help.
    fn insist(
        &mut self,
        mut call: impl FnMut(&mut dyn LogStore, &mut Stepper) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let mut tries = 0;
        loop {
            self.stepper.begin();
            let error = match call(&mut *self.store, &mut self.stepper) {
                Err(error @ StorageError::Again { .. }) => error,
                other => return other,
            };
            self.stepper.rest();
            tries += 1;
            if tries == 1 {
                tracing::warn!(%error, "cannot write to the data directory; trying again");
            }
            let paused = self.closing.recv_timeout(AGAIN_PAUSE);
            if tries > AGAIN_MAX || paused != Err(RecvTimeoutError::Timeout) {
                return Err(error);
            }
        }
    }

    /// Writes this and all the writes that have gathered behind it; gives back what came next.
    fn write(
        &mut self,
        mut number: u64,
        mut write: LogWrite,
    ) -> Result<Option<DiskOp>, StorageError> {
        let mut next = None;
        while size(&write) < WRITE_BYTES_MAX
            && let Ok(op) = self.queue.try_recv()
        {
            match op {
                DiskOp::Write { number: later, write: more } => {
                    number = later;
                    merge(&mut write, more);
                }
                other => {
                    next = Some(other);
                    break;
                }
            }
        }
        append(&mut *self.store, write, || self.stepper.begin())?;
        self.tell(Input::Written { number });
        Ok(next)
    }

    /// Takes a step with the checkpoint. If that fails without harm, it is begun again later.
    fn go_on_with_checkpoint(&mut self) -> Result<(), StorageError> {
        let Some(checkpoint) = &mut self.checkpoint else {
            return Ok(());
        };
        match checkpoint.step(&mut *self.store) {
            Ok(false) => Ok(()),
            Ok(true) => {
                let index = checkpoint.meta.index;
                self.checkpoint = None;
                self.tell(Input::CheckpointDone { index });
                Ok(())
            }
            Err(error @ StorageError::Again { .. }) => {
                tracing::warn!(%error, "cannot write a checkpoint; trying again");
                checkpoint.progress = Progress::Paused;
                self.retry = after(CHECKPOINT_PAUSE);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn tell(&self, input: Input) {
        // The node may be gone already; then nobody waits for this.
        let _ = self.done.send(input);
    }
}

impl Checkpoint {
    /// Begins, writes a chunk, or commits; whether it counts now.
    fn step(&mut self, store: &mut dyn LogStore) -> Result<bool, StorageError> {
        let Progress::Begun(chunks) = &mut self.progress else {
            let chunks = begin_checkpoint(store, self.state.clone(), self.dirty.clone())?;
            self.progress = Progress::Begun(Box::new(chunks));
            return Ok(false);
        };
        if let Some(chunk) = chunks.next() {
            store.put_chunk(&chunk)?;
            return Ok(false);
        }
        store.commit_checkpoint(&self.meta, LogAfter::From(self.keep_from))?;
        Ok(true)
    }
}

/// Performs one operation at once, for a store that needs no thread.
pub(crate) fn perform_now(store: &mut dyn LogStore, op: DiskOp) -> Result<Input, StorageError> {
    match op {
        DiskOp::Write { number, write } => {
            append(store, write, || {})?;
            Ok(Input::Written { number })
        }
        DiskOp::Install { number, hard_state, meta, state } => {
            install(store, hard_state, &meta, state, || {})?;
            Ok(Input::Written { number })
        }
        DiskOp::Identify { number, identity } => {
            store.set_identity(&identity)?;
            Ok(Input::Written { number })
        }
        DiskOp::Promise { number, promise } => {
            store.keep_promise(&promise)?;
            Ok(Input::Written { number })
        }
        DiskOp::Removed { number } => {
            store.mark_removed()?;
            Ok(Input::Written { number })
        }
        DiskOp::Checkpoint { meta, state, dirty, keep_from } => {
            for chunk in begin_checkpoint(store, state, dirty)? {
                store.put_chunk(&chunk)?;
            }
            store.commit_checkpoint(&meta, LogAfter::From(keep_from))?;
            Ok(Input::CheckpointDone { index: meta.index })
        }
    }
}

fn begin_checkpoint(
    store: &mut dyn LogStore,
    state: State,
    dirty: Dirty,
) -> Result<ChunkWriter, StorageError> {
    Ok(match store.begin_checkpoint(false)? {
        CheckpointKind::Full => ChunkWriter::full(state),
        CheckpointKind::Delta => ChunkWriter::delta(state, dirty),
    })
}

/// Replaces everything; says so before each call of the store.
fn install(
    store: &mut dyn LogStore,
    hard_state: HardState,
    meta: &SnapshotMeta,
    state: State,
    mut step: impl FnMut(),
) -> Result<(), StorageError> {
    step();
    store.begin_checkpoint(true)?;
    for chunk in ChunkWriter::full(state) {
        step();
        store.put_chunk(&chunk)?;
    }
    step();
    store.commit_checkpoint(meta, LogAfter::Reset(hard_state))
}

/// About the bytes of a write.
fn size(write: &LogWrite) -> usize {
    const OVERHEAD: usize = 32;
    write.entries.iter().map(|entry| entry.data.len() + OVERHEAD).sum()
}

/// Makes a write durable, in parts if it is large: the store wants no more than a few megabytes
/// between two syncs. A crash in between leaves the first parts, which is as if fewer entries had
/// arrived. Says so before each call of the store.
fn append(
    store: &mut dyn LogStore,
    mut write: LogWrite,
    mut step: impl FnMut(),
) -> Result<(), StorageError> {
    while size(&write) > WRITE_BYTES_MAX && write.entries.len() > 1 {
        let mut bytes = 0;
        let fits = write.entries.iter().take_while(|entry| {
            bytes += entry.data.len();
            bytes <= WRITE_BYTES_MAX / 2
        });
        let rest = write.entries.split_off(fits.count().max(1));
        let part = LogWrite {
            // What is committed may lie in a later part. It is never before the first entry,
            // since what is committed is not replaced.
            hard_state: write.hard_state.map(|hard_state| HardState {
                commit: hard_state.commit.min(write.entries[write.entries.len() - 1].index),
                ..hard_state
            }),
            entries: std::mem::replace(&mut write.entries, rest),
        };
        step();
        store.append(&part)?;
    }
    step();
    store.append(&write)
}

/// Adds a later write to an earlier one: its entries replace those from its first index on.
fn merge(write: &mut LogWrite, more: LogWrite) {
    if more.hard_state.is_some() {
        write.hard_state = more.hard_state;
    }
    if let Some(first) = more.entries.first() {
        write.entries.retain(|entry| entry.index < first.index);
        write.entries.extend(more.entries);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::machine::Machine;
    use crate::machine::command::{Batch, Command, Op, Request};
    use crate::membership::{Ballot, Promise};
    use crate::node::message::{EntryKind, LogEntry};
    use crate::storage::{Identity, MemoryDisk, MemoryStore};
    use crate::znode::CreateMode;

    fn write(term: u64, indexes: std::ops::RangeInclusive<u64>) -> LogWrite {
        let kind = EntryKind::Normal;
        let entry = |index| LogEntry { index, term, kind, data: Bytes::new() };
        LogWrite {
            hard_state: Some(HardState { term, vote: 0, commit: 0 }),
            entries: indexes.map(entry).collect(),
        }
    }

    fn founded() -> (MemoryDisk, MemoryStore) {
        let disk = MemoryDisk::new();
        let mut store = disk.open();
        let founding = crate::peers::Peers::parse(["127.0.0.1:7400"]).unwrap().founding().unwrap();
        let (hard_state, meta, state) = founding.start(crate::version::FIRST);
        let identity = Identity {
            cluster: 1,
            node: founding.members[0].node,
            incarnation: 1,
            address: "127.0.0.1:7400".to_owned(),
            uid: 1,
        };
        store.found(&identity, hard_state, &meta, &mut ChunkWriter::full(state)).unwrap();
        (disk, store)
    }

    /// A store some of whose calls fail without harm before they succeed, as often as is said.
    struct Reluctant {
        store: MemoryStore,
        begins: usize,
        chunks: usize,
        commits: usize,
        promises: usize,
    }

    impl Reluctant {
        fn refuses(left: &mut usize) -> Result<(), StorageError> {
            if *left == 0 {
                return Ok(());
            }
            *left -= 1;
            let (what, reason) = ("opening".to_owned(), "too many open files".to_owned());
            Err(StorageError::Again { what, reason })
        }
    }

    impl LogStore for Reluctant {
        fn identity(&self) -> Option<&Identity> {
            self.store.identity()
        }

        fn promise(&self) -> &Promise {
            self.store.promise()
        }

        fn set_identity(&mut self, identity: &Identity) -> Result<(), StorageError> {
            self.store.set_identity(identity)
        }

        fn keep_promise(&mut self, promise: &Promise) -> Result<(), StorageError> {
            Reluctant::refuses(&mut self.promises)?;
            self.store.keep_promise(promise)
        }

        fn mark_removed(&mut self) -> Result<(), StorageError> {
            self.store.mark_removed()
        }

        fn found(
            &mut self,
            identity: &Identity,
            hard_state: HardState,
            meta: &SnapshotMeta,
            chunks: &mut dyn Iterator<Item = Vec<u8>>,
        ) -> Result<(), StorageError> {
            self.store.found(identity, hard_state, meta, chunks)
        }

        fn load(
            &mut self,
            sink: &mut crate::storage::ChunkSink<'_>,
        ) -> Result<crate::storage::Boot, StorageError> {
            self.store.load(sink)
        }

        fn append(&mut self, write: &LogWrite) -> Result<(), StorageError> {
            self.store.append(write)
        }

        fn begin_checkpoint(&mut self, full: bool) -> Result<CheckpointKind, StorageError> {
            Reluctant::refuses(&mut self.begins)?;
            self.store.begin_checkpoint(full)
        }

        fn put_chunk(&mut self, chunk: &[u8]) -> Result<(), StorageError> {
            Reluctant::refuses(&mut self.chunks)?;
            self.store.put_chunk(chunk)
        }

        fn commit_checkpoint(
            &mut self,
            meta: &SnapshotMeta,
            log: LogAfter,
        ) -> Result<(), StorageError> {
            Reluctant::refuses(&mut self.commits)?;
            self.store.commit_checkpoint(meta, log)
        }
    }

    /// A moment in which the process had no file to open ended the disk's thread, and stopped the node
    /// for good.
    #[test]
    fn what_has_changed_nothing_is_tried_again() {
        let (disk, store) = founded();
        let store = Reluctant { store, begins: 1, chunks: 1, commits: 1, promises: 2 };
        let (done, written) = unbounded();
        let thread = Disk::start(Box::new(store), done).unwrap();
        let machine = Machine::new();
        let meta = SnapshotMeta {
            index: 3,
            term: 1,
            zxid: machine.zxid(),
            hash: machine.hash(),
            voting: crate::node::message::Voting { voters: vec![1], ..Default::default() },
        };
        let hard_state = HardState { term: 1, vote: 0, commit: 3 };
        let append = LogWrite { hard_state: Some(hard_state), ..write(1, 2..=4) };
        thread.submit(DiskOp::Write { number: 1, write: append });
        let (state, dirty) = (machine.state(), Dirty::default());
        thread.submit(DiskOp::Checkpoint { meta, state, dirty, keep_from: 4 });
        // The checkpoint fails three times; writes do not wait for it.
        thread.submit(DiskOp::Write { number: 2, write: write(1, 5..=5) });
        let promise = Promise { ballot: Ballot { round: 3, proposer: 1 }, pledge: None };
        thread.submit(DiskOp::Promise { number: 3, promise: promise.clone() });
        let told: Vec<Input> = (0..4).map(|_| written.recv().unwrap()).collect();
        let numbers = told.iter().filter_map(|input| match input {
            Input::Written { number } => Some(*number),
            Input::CheckpointDone { index: 3 } => None,
            other => panic!("{other:?}"),
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3]);
        assert!(matches!(told[3], Input::CheckpointDone { .. }), "{told:?}");
        drop(thread);
        let mut store = disk.open();
        assert_eq!(store.promise(), &promise);
        let boot = store.load(&mut |_| Ok(())).unwrap();
        assert_eq!((boot.checkpoint.index, boot.entries.last().unwrap().index), (3, 5));
    }

    /// Whoever closes a node does not wait until it has files to open again.
    #[test]
    fn a_call_that_is_tried_again_does_not_keep_the_thread() {
        let (_, store) = founded();
        let store = Reluctant { store, begins: 0, chunks: 0, commits: 0, promises: usize::MAX };
        let (done, written) = unbounded();
        let thread = Disk::start(Box::new(store), done).unwrap();
        let promise = Promise { ballot: Ballot { round: 3, proposer: 1 }, pledge: None };
        thread.submit(DiskOp::Promise { number: 1, promise });
        drop(thread);
        assert!(written.iter().all(|input| matches!(input, Input::Failed { .. })));
    }

    fn large() -> LogWrite {
        let mut large = write(2, 2..=40);
        for entry in &mut large.entries {
            entry.data = Bytes::from(vec![7; 100_000]);
        }
        large.hard_state = Some(HardState { term: 2, vote: 1, commit: 39 });
        large
    }

    #[test]
    fn a_large_write_is_stored_in_parts_and_whole() {
        let (disk, mut store) = founded();
        let large = large();
        append(&mut store, large.clone(), || {}).unwrap();
        drop(store);
        let boot = disk.open().load(&mut |_| Ok(())).unwrap();
        assert_eq!(boot.entries, large.entries);
        assert_eq!(Some(boot.hard_state), large.hard_state);
    }

    #[test]
    fn a_merged_write_is_what_both_would_have_left() {
        let mut merged = write(1, 5..=9);
        merge(&mut merged, write(2, 7..=8));
        let left: Vec<_> = merged.entries.iter().map(|entry| (entry.index, entry.term)).collect();
        assert_eq!(left, [(5, 1), (6, 1), (7, 2), (8, 2)]);
        assert_eq!(merged.hard_state.unwrap().term, 2);
        merge(&mut merged, LogWrite { hard_state: None, entries: Vec::new() });
        assert_eq!(merged.entries.len(), 4);
        assert_eq!(merged.hard_state.unwrap().term, 2);
    }

    #[test]
    fn identity_and_promise_are_written_in_their_turn() {
        let (disk, store) = founded();
        let identity = store.identity().cloned().unwrap();
        let identity = Identity { address: "elsewhere:1".to_owned(), ..identity };
        let ballot = Ballot { round: 3, proposer: 1 };
        let promise = Promise { ballot, pledge: None };
        let (done, written) = unbounded();
        let thread = Disk::start(Box::new(store), done).unwrap();
        thread.submit(DiskOp::Write { number: 1, write: write(1, 2..=3) });
        thread.submit(DiskOp::Promise { number: 2, promise: promise.clone() });
        thread.submit(DiskOp::Write { number: 3, write: write(1, 4..=4) });
        thread.submit(DiskOp::Identify { number: 4, identity: identity.clone() });
        thread.submit(DiskOp::Removed { number: 5 });
        drop(thread);
        let numbers = written.iter().map(|input| match input {
            Input::Written { number } => number,
            other => panic!("{other:?}"),
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let mut store = disk.open();
        assert_eq!((store.identity(), store.promise()), (Some(&identity), &promise));
        let error = store.load(&mut |_| Ok(())).unwrap_err();
        assert!(matches!(error, StorageError::Removed { .. }), "{error}");
    }

    /// A large state from a leader was one write for the watchdog, which stopped the node when its
    /// disk took more than a minute for all of it.
    #[test]
    fn each_call_of_the_store_is_a_step_of_its_own() {
        let (_, mut store) = founded();
        let mut steps = 0;
        append(&mut store, large(), || steps += 1).unwrap();
        assert!(steps >= 4, "{steps}");

        let mut machine = Machine::new();
        let request = |seq, command| {
            let session = crate::znode::SessionId(1);
            Request { session, holder: 1, seq, acked: 0, command }
        };
        let create = |seq| {
            let (path, data) = (format!("/{seq}"), Bytes::from(vec![7; 100_000]));
            request(seq, Command::Op(Op::Create { path, data, mode: CreateMode::Persistent }))
        };
        let open = Command::Open { secret: [0; 16], timeout_ms: 1000, owner: 1, base: 0 };
        let requests = [request(0, open)].into_iter().chain((1..20).map(create)).collect();
        machine.apply(1, &Batch { time: 1, requests });
        let chunks = ChunkWriter::full(machine.state()).count();
        assert!(chunks > 20);
        let meta = SnapshotMeta {
            index: 100,
            term: 2,
            zxid: machine.zxid(),
            hash: machine.hash(),
            voting: crate::node::message::Voting { voters: vec![1], ..Default::default() },
        };
        let hard_state = HardState { term: 2, vote: 0, commit: 100 };
        let mut steps = 0;
        install(&mut store, hard_state, &meta, machine.state(), || steps += 1).unwrap();
        assert_eq!(steps, 1 + chunks + 1);
    }
}
