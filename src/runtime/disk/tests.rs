//! Writes, checkpoints and states of leaders, on the real threads. What they do is tested in
//! `writer_tests`.

use crossbeam_channel::unbounded;

use super::test_store::Script;
use super::*;
use crate::machine::Machine;
use crate::node::stored::{HardState, Identity, LogEntry, LogWrite, SnapshotMeta};
use crate::storage::{MemoryDisk, StorageError};
use crate::types::membership::{Ballot, Promise};

pub(super) fn write(term: u64, indexes: std::ops::RangeInclusive<u64>) -> LogWrite {
    let kind = crate::node::stored::EntryKind::Normal;
    let entry = |index| LogEntry { index, term, kind, data: bytes::Bytes::new() };
    LogWrite {
        hard_state: Some(HardState { term, vote: 0, commit: 0 }),
        entries: indexes.map(entry).collect(),
    }
}

#[test]
fn identity_and_promise_are_written_in_their_turn() {
    let (disk, store) = Script::default().founded();
    let identity = store.identity().cloned().unwrap();
    let identity = Identity { address: "elsewhere:1".to_owned(), ..identity };
    let ballot = Ballot { round: 3, proposer: 1 };
    let promise = Promise { ballot, pledge: None };
    let (done, written) = unbounded();
    let thread = Disk::start(store, done, || {}).unwrap();
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

pub(super) fn meta(machine: &Machine, index: u64) -> SnapshotMeta {
    let voting = crate::node::stored::Voting { voters: vec![1], ..Default::default() };
    SnapshotMeta { index, term: 1, zxid: machine.zxid(), hash: machine.hash(), voting }
}

fn held_thread() -> (MemoryDisk, Disk, Sender<()>, Receiver<Input>, Machine) {
    let (sender, proceed) = unbounded();
    let (disk, store) = Script::delayed(proceed).founded();
    let (done, inputs) = unbounded();
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
    let (disk, store) = Script::default().refuse("promise", 1).founded();
    let (done, written) = unbounded();
    let thread = Disk::start(store, done, || {}).unwrap();
    let promise = Promise { ballot: Ballot { round: 3, proposer: 1 }, pledge: None };
    thread.submit(DiskOp::Promise { number: 1, promise: promise.clone() });
    assert!(matches!(written.recv().unwrap(), Input::Written { number: 1 }));
    drop(thread);
    assert_eq!(disk.open().promise(), &promise);
}

/// Closing a node does not wait until there are file descriptors again.
#[test]
fn a_call_that_is_tried_again_does_not_keep_the_thread() {
    let (_, store) = Script::default().refuse("promise", usize::MAX).founded();
    let (done, written) = unbounded();
    let thread = Disk::start(store, done, || {}).unwrap();
    let promise = Promise { ballot: Ballot { round: 3, proposer: 1 }, pledge: None };
    thread.submit(DiskOp::Promise { number: 1, promise });
    drop(thread);
    assert!(written.iter().all(|input| matches!(input, Input::Failed { .. })));
}
