//! The threads of the disk: they alone touch the store.
//!
//! `quorate-disk` takes all the writes that have gathered and makes them durable
//! as one (group commit). `quorate-state` writes the chunks of checkpoints
//! meanwhile, which no write waits for; when they are durable, `quorate-disk`
//! makes the checkpoint count by one more write.

use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use crate::machine::State;
use crate::machine::snapshot::ChunkWriter;
use crate::node::io::{DiskOp, Input};
use crate::runtime::state_thread::{Order, StateThread, write_checkpoint};
use crate::runtime::watchdog::{Stepper, Steps};
use crate::storage::{HardState, LogAfter, LogStore, LogWrite, SnapshotMeta, StorageError};

/// A write is not joined with more beyond this, and is cut into parts when it is larger itself.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// How long nothing is to be written before the store does what need not be done with each write.
const REST_AFTER: Duration = Duration::from_millis(5);

/// The node's end of the disk's threads. Dropping it ends them once all is written; a checkpoint
/// that is not finished by then is given up.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Node -> disk. Not bounded here: what is in it is bounded by what Raft lets be uncommitted.
    jobs: Sender<Job>,
    thread: Option<JoinHandle<()>>,
    /// The calls of the store by either thread, each of which writes a few megabytes at most.
    log_steps: Steps,
    checkpoint_steps: Steps,
}

/// What `quorate-disk` is asked for.
#[derive(Debug)]
enum Job {
    Op(DiskOp),
    /// `quorate-state` has made the checkpoint durable; `false` if it was given up.
    Finished(Result<bool, StorageError>),
    End,
}

impl Disk {
    /// Starts the thread; what it has done arrives in `done` as inputs for the node.
    pub(crate) fn start(store: Box<dyn LogStore>, done: Sender<Input>) -> std::io::Result<Disk> {
        let (jobs, queue) = unbounded();
        let (log_steps, checkpoint_steps) = (Steps::default(), Steps::default());
        let mut store = store;
        let failed = |error: StorageError| std::io::Error::other(error.to_string());
        let checkpointer = store.checkpointer().map_err(failed)?;
        let state = StateThread::start(checkpointer, checkpoint_steps.stepper(), {
            let jobs = jobs.clone();
            // The writer is gone when it does not listen any more.
            move |finished| drop(jobs.send(Job::Finished(finished)))
        })?;
        let stepper = log_steps.stepper();
        let mut writer =
            Writer { store, queue, done, stepper, state, checkpoint: None, busy: false };
        let thread = std::thread::Builder::new()
            .name("quorate-disk".to_owned())
            .spawn(move || writer.run())?;
        Ok(Disk { jobs, thread: Some(thread), log_steps, checkpoint_steps })
    }

    pub(crate) fn submit(&self, op: DiskOp) {
        // A failed writer has reported that already and takes nothing more.
        let _ = self.jobs.send(Job::Op(op));
    }

    /// The calls of the store that are under way, if any are: one of a write, one of a checkpoint.
    pub(crate) fn under_way(&self) -> [Option<u64>; 2] {
        [self.log_steps.under_way(), self.checkpoint_steps.under_way()]
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.jobs.send(Job::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Writer {
    store: Box<dyn LogStore>,
    queue: Receiver<Job>,
    done: Sender<Input>,
    stepper: Stepper,
    /// Ended before the store is closed, of which it holds a part.
    state: StateThread,
    /// The checkpoint that is being written.
    checkpoint: Option<(SnapshotMeta, u64)>,
    /// Whether something was written since the store was last told of a rest.
    busy: bool,
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
        let mut next = None;
        loop {
            let job = match next.take() {
                Some(job) => job,
                None => self.wait()?,
            };
            match job {
                Job::Op(op) => next = self.perform(op)?,
                Job::Finished(finished) => self.commit(finished?)?,
                Job::End => return Ok(()),
            }
        }
    }

    /// Waits for something to do; tells the store if that takes a while.
    fn wait(&mut self) -> Result<Job, StorageError> {
        self.stepper.rest();
        if self.busy {
            match self.queue.recv_timeout(REST_AFTER) {
                Ok(job) => return Ok(job),
                Err(RecvTimeoutError::Disconnected) => return Ok(Job::End),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.stepper.begin();
            self.store.rest()?;
            self.stepper.rest();
            self.busy = false;
        }
        Ok(self.queue.recv().unwrap_or(Job::End))
    }

    /// Does an operation; gives back what came next, if it has taken that from the queue.
    fn perform(&mut self, op: DiskOp) -> Result<Option<Job>, StorageError> {
        let number = match op {
            DiskOp::Write { number, write } => return self.write(number, write),
            DiskOp::Checkpoint { meta, state, dirty, keep_from } => {
                self.checkpoint = Some((meta, keep_from));
                self.state.order(Order { state, dirty });
                return Ok(None);
            }
            DiskOp::Install { number, hard_state, meta, state } => {
                // It replaces everything, a checkpoint under way included.
                self.checkpoint = None;
                let store = &mut *self.store;
                install(store, hard_state, &meta, state, || self.stepper.begin())?;
                number
            }
            DiskOp::Identify { number, identity } => {
                self.stepper.begin();
                self.store.set_identity(&identity)?;
                number
            }
            DiskOp::Promise { number, promise } => {
                self.stepper.begin();
                self.store.keep_promise(&promise)?;
                number
            }
            DiskOp::Removed { number } => {
                self.stepper.begin();
                self.store.mark_removed()?;
                number
            }
        };
        self.tell(Input::Written { number });
        Ok(None)
    }

    /// Writes this and all the writes that have gathered behind it; gives back what came next.
    fn write(&mut self, mut number: u64, mut write: LogWrite) -> Result<Option<Job>, StorageError> {
        let mut next = None;
        while size(&write) < WRITE_BYTES_MAX
            && let Ok(job) = self.queue.try_recv()
        {
            match job {
                Job::Op(DiskOp::Write { number: later, write: more }) => {
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
        self.busy = true;
        self.tell(Input::Written { number });
        Ok(next)
    }

    /// Makes the checkpoint count that was finished, if it is still wanted.
    fn commit(&mut self, is_finished: bool) -> Result<(), StorageError> {
        if is_finished && let Some((meta, keep_from)) = self.checkpoint.take() {
            self.stepper.begin();
            self.store.commit_checkpoint(&meta, LogAfter::From(keep_from))?;
            self.tell(Input::CheckpointDone { index: meta.index });
        }
        Ok(())
    }

    fn tell(&self, input: Input) {
        // The node may be gone already; then nobody waits for this.
        let _ = self.done.send(input);
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
            write_checkpoint(&mut *store.checkpointer()?, Order { state, dirty }, || true)?;
            store.commit_checkpoint(&meta, LogAfter::From(keep_from))?;
            Ok(Input::CheckpointDone { index: meta.index })
        }
    }
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
    let mut writer = store.checkpointer()?;
    writer.begin(true)?;
    for chunk in ChunkWriter::full(state) {
        step();
        writer.put_chunk(&chunk)?;
    }
    step();
    writer.finish()?;
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
    use crate::storage::{
        Boot, CheckpointKind, Checkpointer, ChunkSink, Identity, MemoryDisk, MemoryStore,
    };
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
        assert_eq!(steps, 1 + chunks + 2);
    }

    /// A store whose checkpoints wait before each chunk until the test lets them go on.
    struct Held {
        store: MemoryStore,
        chunks: Receiver<()>,
    }

    struct HeldCheckpointer {
        inner: Box<dyn Checkpointer>,
        chunks: Receiver<()>,
    }

    impl Checkpointer for HeldCheckpointer {
        fn begin(&mut self, full: bool) -> Result<CheckpointKind, StorageError> {
            self.inner.begin(full)
        }

        fn put_chunk(&mut self, chunk: &[u8]) -> Result<bool, StorageError> {
            let _ = self.chunks.recv();
            self.inner.put_chunk(chunk)
        }

        fn finish(&mut self) -> Result<bool, StorageError> {
            self.inner.finish()
        }
    }

    impl LogStore for Held {
        fn checkpointer(&mut self) -> Result<Box<dyn Checkpointer>, StorageError> {
            let (inner, chunks) = (self.store.checkpointer()?, self.chunks.clone());
            Ok(Box::new(HeldCheckpointer { inner, chunks }))
        }

        fn append(&mut self, write: &LogWrite) -> Result<(), StorageError> {
            self.store.append(write)
        }

        fn commit_checkpoint(
            &mut self,
            meta: &SnapshotMeta,
            log: LogAfter,
        ) -> Result<(), StorageError> {
            self.store.commit_checkpoint(meta, log)
        }

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

        fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot, StorageError> {
            self.store.load(sink)
        }
    }

    fn meta(machine: &Machine, index: u64) -> SnapshotMeta {
        let voting = crate::node::message::Voting { voters: vec![1], ..Default::default() };
        SnapshotMeta { index, term: 1, zxid: machine.zxid(), hash: machine.hash(), voting }
    }

    fn held_thread() -> (MemoryDisk, Disk, Sender<()>, Receiver<Input>, Machine) {
        let (disk, store) = founded();
        let (go_on, chunks) = unbounded();
        let (done, inputs) = unbounded();
        let thread = Disk::start(Box::new(Held { store, chunks }), done).unwrap();
        let mut machine = Machine::new();
        thread.submit(DiskOp::Write { number: 1, write: write(1, 2..=3) });
        assert!(matches!(inputs.recv().unwrap(), Input::Written { number: 1 }));
        let (meta, state, dirty) = (meta(&machine, 2), machine.state(), machine.take_dirty());
        thread.submit(DiskOp::Checkpoint { meta, state, dirty, keep_from: 3 });
        (disk, thread, go_on, inputs, machine)
    }

    #[test]
    fn a_write_does_not_wait_for_a_checkpoint() {
        let (disk, thread, go_on, inputs, _) = held_thread();
        for number in 2..20 {
            thread.submit(DiskOp::Write { number, write: write(1, number + 2..=number + 2) });
            assert!(matches!(inputs.recv().unwrap(), Input::Written { number: n } if n == number));
        }
        drop(go_on);
        assert!(matches!(inputs.recv().unwrap(), Input::CheckpointDone { index: 2 }));
        drop(thread);
        let boot = disk.open().load(&mut |_| Ok(())).unwrap();
        assert_eq!((boot.checkpoint.index, boot.entries[0].index), (2, 3));
        assert_eq!(boot.entries.last().unwrap().index, 21);
    }

    #[test]
    fn a_state_from_the_leader_takes_the_place_of_a_checkpoint_under_way() {
        let (disk, thread, go_on, inputs, machine) = held_thread();
        let hard_state = HardState { term: 2, vote: 0, commit: 100 };
        let (meta, state) = (meta(&machine, 100), machine.state());
        thread.submit(DiskOp::Install { number: 2, hard_state, meta, state });
        // Both are held at their chunks.
        drop(go_on);
        assert!(matches!(inputs.recv().unwrap(), Input::Written { number: 2 }));
        drop(thread);
        assert!(inputs.try_recv().is_err(), "the checkpoint is done, too");
        let boot = disk.open().load(&mut |_| Ok(())).unwrap();
        assert_eq!((boot.checkpoint.index, boot.entries.len()), (100, 0));
    }

    #[test]
    fn a_checkpoint_under_way_does_not_hold_up_the_end() {
        let (disk, thread, go_on, inputs, _) = held_thread();
        thread.submit(DiskOp::Write { number: 2, write: write(1, 4..=4) });
        // One chunk, whichever it waits for; there are more.
        let ending = std::thread::spawn(move || drop(thread));
        while !ending.is_finished() {
            let _ = go_on.send(());
            std::thread::yield_now();
        }
        ending.join().unwrap();
        assert!(matches!(inputs.recv().unwrap(), Input::Written { number: 2 }));
        let boot = disk.open().load(&mut |_| Ok(())).unwrap();
        assert_eq!(boot.entries.last().unwrap().index, 4);
    }
}
