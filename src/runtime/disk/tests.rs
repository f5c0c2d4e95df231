//! Writes, checkpoints and states of leaders, on threads.

use bytes::Bytes;

use super::*;
use crate::machine::command::{Batch, Command, Op, Request};
use crate::machine::{Dirty, Machine};
use crate::node::stored::{Boot, EntryKind, Identity, LogEntry};
use crate::planted::plant;
use crate::storage::{CheckpointKind, Checkpointer, ChunkSink, MemoryDisk, MemoryStore, ReadDone};
use crate::types::membership::{Ballot, Promise};
use crate::types::znode::CreateMode;

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
    let members = vec![crate::types::membership::Member::new(1, "127.0.0.1:7400")];
    let founding = crate::types::membership::Genesis { cluster: 1, members };
    let (hard_state, meta, state) = founding.start();
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

/// Cuts a large write short after each of its parts. Fails if the store has entries of a term that it does
/// not know of.
fn cut_between_parts() -> Result<(), String> {
    let large = large();
    let mut parts = 0;
    loop {
        parts += 1;
        let (disk, mut store) = founded();
        let mut steps = 0;
        let whole = append(&mut store, large.clone(), || {
            steps += 1;
            if steps > parts {
                // The crash: this store can write no more.
                drop(disk.open());
            }
        });
        let boot = disk.open().load(&mut |_| Ok(())).unwrap();
        let last = boot.entries.last().unwrap();
        let HardState { term, vote, commit } = boot.hard_state;
        if (term, vote, commit) != (last.term, 1, last.index.min(39)) {
            return Err(format!("{:?} after {parts} parts, with {last:?}", boot.hard_state));
        }
        if whole.is_ok() {
            assert!(parts > 3);
            return Ok(());
        }
    }
}

/// No check noticed when the first parts of a large write had no hard state: a crash between two parts
/// then left entries of a term that the store did not know of.
#[test]
fn each_part_of_a_large_write_knows_the_term_of_its_entries() {
    cut_between_parts().unwrap();
    plant(Some(Bug::PartOfNoTerm));
    let found = cut_between_parts();
    plant(None);
    assert!(found.is_err(), "the planted bug");
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
    let thread = Disk::start(Box::new(store), done, || {}).unwrap();
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

/// The watchdog took the installation of a large state from a leader for one write, and stopped the node
/// when it took more than a minute.
#[test]
fn each_call_of_the_store_is_a_step_of_its_own() {
    let (_, mut store) = founded();
    let mut steps = 0;
    append(&mut store, large(), || steps += 1).unwrap();
    assert!(steps >= 4, "{steps}");

    let mut machine = Machine::new();
    let request = |seq, command| {
        let session = crate::types::znode::SessionId(1);
        Request { session, holder: 1, seq, acked: 0, command }
    };
    let create = |seq| {
        let (path, data) = (format!("/{seq}"), Bytes::from(vec![7; 100_000]));
        request(
            seq,
            Command::Op(Op::Create { path, data: data.into(), mode: CreateMode::Persistent }),
        )
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
        voting: crate::node::stored::Voting { voters: vec![1], ..Default::default() },
    };
    let hard_state = HardState { term: 2, vote: 0, commit: 100 };
    let mut steps = 0;
    install(&mut store, hard_state, &meta, machine.state(), || steps += 1).unwrap();
    assert_eq!(steps, 1 + chunks + 2);
}

/// How often calls fail harmlessly before they succeed, and a channel that delays the chunks of a
/// checkpoint.
#[derive(Clone)]
struct Trouble {
    begins: usize,
    chunks: usize,
    promises: usize,
    /// Each chunk waits for one message; none waits once the channel is closed.
    proceed: Receiver<()>,
}

impl Trouble {
    fn refuses(left: &mut usize) -> Result<(), StorageError> {
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        let (what, reason) = ("opening".to_owned(), "too many open files".to_owned());
        Err(StorageError::Again { what, reason })
    }
}

/// A store, or its checkpointer, with these failures.
struct Troubled<T> {
    inner: T,
    trouble: Trouble,
}

impl Checkpointer for Troubled<Box<dyn Checkpointer>> {
    fn begin(&mut self, full: bool, bytes: u64) -> Result<CheckpointKind, StorageError> {
        Trouble::refuses(&mut self.trouble.begins)?;
        self.inner.begin(full, bytes)
    }

    fn put_chunk(&mut self, chunk: &[u8]) -> Result<(), StorageError> {
        let _ = self.trouble.proceed.recv();
        Trouble::refuses(&mut self.trouble.chunks)?;
        self.inner.put_chunk(chunk)
    }

    fn finish(&mut self) -> Result<(), StorageError> {
        self.inner.finish()
    }
}

impl LogStore for Troubled<MemoryStore> {
    fn checkpointer(&mut self) -> Result<Box<dyn Checkpointer>, StorageError> {
        let (inner, trouble) = (self.inner.checkpointer()?, self.trouble.clone());
        Ok(Box::new(Troubled { inner, trouble }))
    }

    fn set_promise(&mut self, promise: &Promise) -> Result<(), StorageError> {
        Trouble::refuses(&mut self.trouble.promises)?;
        self.inner.set_promise(promise)
    }

    fn append(&mut self, write: &LogWrite) -> Result<(), StorageError> {
        self.inner.append(write)
    }

    fn commit_checkpoint(
        &mut self,
        meta: &SnapshotMeta,
        log: LogAfter,
    ) -> Result<u64, StorageError> {
        self.inner.commit_checkpoint(meta, log)
    }

    fn identity(&self) -> Option<&Identity> {
        self.inner.identity()
    }

    fn promise(&self) -> &Promise {
        self.inner.promise()
    }

    fn set_identity(&mut self, identity: &Identity) -> Result<(), StorageError> {
        self.inner.set_identity(identity)
    }

    fn mark_removed(&mut self) -> Result<(), StorageError> {
        self.inner.mark_removed()
    }

    fn found(
        &mut self,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<(), StorageError> {
        self.inner.found(identity, hard_state, meta, chunks)
    }

    fn read(&mut self, from: u64, bytes: u64, done: ReadDone) -> Result<(), StorageError> {
        self.inner.read(from, bytes, done)
    }

    fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot, StorageError> {
        self.inner.load(sink)
    }
}

/// A store whose calls fail this often, and whose checkpoints are not delayed.
fn reluctant(
    store: MemoryStore,
    begins: usize,
    chunks: usize,
    promises: usize,
) -> Box<dyn LogStore> {
    let (_, proceed) = unbounded();
    Box::new(Troubled { inner: store, trouble: Trouble { begins, chunks, promises, proceed } })
}

fn meta(machine: &Machine, index: u64) -> SnapshotMeta {
    let voting = crate::node::stored::Voting { voters: vec![1], ..Default::default() };
    SnapshotMeta { index, term: 1, zxid: machine.zxid(), hash: machine.hash(), voting }
}

fn held_thread() -> (MemoryDisk, Disk, Sender<()>, Receiver<Input>, Machine) {
    let (disk, store) = founded();
    let (sender, proceed) = unbounded();
    let trouble = Trouble { begins: 0, chunks: 0, promises: 0, proceed };
    let (done, inputs) = unbounded();
    let store = Box::new(Troubled { inner: store, trouble });
    let thread = Disk::start(store, done, || {}).unwrap();
    let mut machine = Machine::new();
    thread.submit(DiskOp::Write { number: 1, write: write(1, 2..=3) });
    assert!(matches!(inputs.recv().unwrap(), Input::Written { number: 1 }));
    let (meta, state, dirty) = (meta(&machine, 2), machine.state(), machine.take_dirty());
    thread.submit(DiskOp::Checkpoint { meta, state, dirty, keep_from: 3 });
    (disk, thread, sender, inputs, machine)
}

#[test]
fn a_write_does_not_wait_for_a_checkpoint() {
    let (disk, thread, proceed, inputs, _) = held_thread();
    for number in 2..20 {
        thread.submit(DiskOp::Write { number, write: write(1, number + 2..=number + 2) });
        assert!(matches!(inputs.recv().unwrap(), Input::Written { number: n } if n == number));
    }
    drop(proceed);
    assert!(matches!(inputs.recv().unwrap(), Input::CheckpointDone { index: 2, .. }));
    drop(thread);
    let boot = disk.open().load(&mut |_| Ok(())).unwrap();
    assert_eq!((boot.checkpoint.index, boot.entries[0].index), (2, 3));
    assert_eq!(boot.entries.last().unwrap().index, 21);
}

#[test]
fn a_state_from_the_leader_replaces_a_checkpoint_in_progress() {
    let (disk, thread, proceed, inputs, machine) = held_thread();
    let hard_state = HardState { term: 2, vote: 0, commit: 100 };
    let (meta, state) = (meta(&machine, 100), machine.state());
    thread.submit(DiskOp::Install { number: 2, hard_state, meta, state });
    // Both are waiting at their chunks.
    drop(proceed);
    assert!(matches!(inputs.recv().unwrap(), Input::Written { number: 2 }));
    drop(thread);
    assert!(inputs.try_recv().is_err(), "the checkpoint is done, too");
    let boot = disk.open().load(&mut |_| Ok(())).unwrap();
    assert_eq!((boot.checkpoint.index, boot.entries.len()), (100, 0));
}

#[test]
fn a_checkpoint_in_progress_does_not_delay_the_end() {
    let (disk, thread, proceed, inputs, _) = held_thread();
    thread.submit(DiskOp::Write { number: 2, write: write(1, 4..=4) });
    // One chunk, of whichever checkpoint; there are more.
    let ending = std::thread::Builder::new().spawn(move || drop(thread)).unwrap();
    while !ending.is_finished() {
        let _ = proceed.send(());
        std::thread::yield_now();
    }
    ending.join().unwrap();
    assert!(matches!(inputs.recv().unwrap(), Input::Written { number: 2 }));
    let boot = disk.open().load(&mut |_| Ok(())).unwrap();
    assert_eq!(boot.entries.last().unwrap().index, 4);
}

/// When the process had no file descriptor for a moment, the disk's thread ended and the node stopped.
#[test]
fn a_failure_that_changed_nothing_is_tried_again() {
    let (disk, store) = founded();
    let store = reluctant(store, 1, 1, 2);
    let (done, written) = unbounded();
    let thread = Disk::start(store, done, || {}).unwrap();
    let machine = Machine::new();
    let meta = SnapshotMeta {
        index: 3,
        term: 1,
        zxid: machine.zxid(),
        hash: machine.hash(),
        voting: crate::node::stored::Voting { voters: vec![1], ..Default::default() },
    };
    let hard_state = HardState { term: 1, vote: 0, commit: 3 };
    let append = LogWrite { hard_state: Some(hard_state), ..write(1, 2..=4) };
    thread.submit(DiskOp::Write { number: 1, write: append });
    let (state, dirty) = (machine.state(), Dirty::default());
    thread.submit(DiskOp::Checkpoint { meta, state, dirty, keep_from: 4 });
    // The checkpoint fails twice; writes do not wait for it.
    thread.submit(DiskOp::Write { number: 2, write: write(1, 5..=5) });
    let promise = Promise { ballot: Ballot { round: 3, proposer: 1 }, pledge: None };
    thread.submit(DiskOp::Promise { number: 3, promise: promise.clone() });
    let inputs: Vec<Input> = (0..4).map(|_| written.recv().unwrap()).collect();
    let numbers = inputs.iter().filter_map(|input| match input {
        Input::Written { number } => Some(*number),
        Input::CheckpointDone { index: 3, .. } => None,
        other => panic!("{other:?}"),
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3]);
    assert!(matches!(inputs[3], Input::CheckpointDone { .. }), "{inputs:?}");
    drop(thread);
    let mut store = disk.open();
    assert_eq!(store.promise(), &promise);
    let boot = store.load(&mut |_| Ok(())).unwrap();
    assert_eq!((boot.checkpoint.index, boot.entries.last().unwrap().index), (3, 5));
}

/// A received state waited for a checkpoint that was tried again for as long as the disk was full.
#[test]
fn a_received_state_is_built_while_no_checkpoint_can_be_written() {
    let (_, store) = founded();
    let store = reluctant(store, usize::MAX, 0, 0);
    let (done, inputs) = unbounded();
    let thread = Disk::start(store, done, || {}).unwrap();
    let mut machine = Machine::new();
    let (meta, state, dirty) = (meta(&machine, 1), machine.state(), machine.take_dirty());
    thread.submit(DiskOp::Checkpoint { meta, state, dirty, keep_from: 2 });
    let mut reader = ChunkReader::new();
    for chunk in ChunkWriter::full(machine.state()) {
        reader.push(&chunk).unwrap();
    }
    let (zxid, hash) = (machine.zxid(), machine.hash());
    thread.submit(DiskOp::Build { transfer: 7, reader: Box::new(reader), zxid, hash });
    let built = inputs.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(matches!(built, Input::Built { transfer: 7, machine: Ok(_) }));
    drop(thread);
}

/// Closing a node does not wait until there are file descriptors again.
#[test]
fn a_call_that_is_tried_again_does_not_keep_the_thread() {
    let (_, store) = founded();
    let store = reluctant(store, 0, 0, usize::MAX);
    let (done, written) = unbounded();
    let thread = Disk::start(store, done, || {}).unwrap();
    let promise = Promise { ballot: Ballot { round: 3, proposer: 1 }, pledge: None };
    thread.submit(DiskOp::Promise { number: 1, promise });
    drop(thread);
    assert!(written.iter().all(|input| matches!(input, Input::Failed { .. })));
}
