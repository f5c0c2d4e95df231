//! The decisions of the disk, in virtual time.

use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, unbounded};

use super::change::{AGAIN_MAX, AGAIN_PAUSE, ChangeStep};
use super::group_commit::merge;
use super::reports::Reports;
use super::state_worker::{StateStep, StateWorker};
use super::test_store::Script;
use super::tests::{meta, write};
use super::upkeep::{REST_AFTER, SCRUB_AGAIN, SPACE_PERIOD};
use super::writer::{Next, StoreStep, Writer};
use crate::machine::Machine;
use crate::machine::command::{Batch, Command, Op, Request};
use crate::machine::snapshot::{ChunkReader, ChunkWriter};
use crate::node::io::{DiskOp, Input, Time};
use crate::node::stored::{Boot, HardState, LogWrite};
use crate::storage::{LogStore, MemoryDisk};
use crate::types::membership::{Ballot, Promise};
use crate::types::znode::{CreateMode, SessionId};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Both state machines, with a disk in memory.
struct World {
    writer: Writer,
    worker: StateWorker,
    script: Script,
    disk: MemoryDisk,
    inputs: Receiver<Input>,
    now: Time,
    /// When the calls were made.
    made: Vec<(Time, &'static str)>,
}

impl World {
    fn new(script: Script) -> World {
        let (disk, store) = script.founded();
        let (sender, inputs) = unbounded();
        let reports = Reports::new(move |input| drop(sender.send(input)));
        let now = 100 * SECOND;
        let worker = StateWorker::new(reports.clone());
        let (writer, made) = (Writer::new(store, reports, now), Vec::new());
        let mut world = World { writer, worker, script, disk, inputs, now, made };
        assert_eq!(world.begin(), Some(StoreStep::Space));
        world.writer.perform();
        world
    }

    fn write(&mut self, number: u64, write: LogWrite) {
        self.writer.submit(DiskOp::Write { number, write });
    }

    /// The writer's next step. Passes on its orders.
    fn begin(&mut self) -> Option<StoreStep> {
        loop {
            match self.writer.next(self.now) {
                Next::Perform(step) => return Some(step),
                Next::Send(order) => self.worker.take(order),
                Next::Wait(_) | Next::End => return None,
            }
        }
    }

    /// The same for the worker.
    fn begin_state(&mut self) -> Option<StateStep> {
        loop {
            match self.worker.next(self.now) {
                Next::Perform(step) => return Some(step),
                Next::Send(outcome) => self.writer.checkpoint_ended(outcome),
                Next::Wait(_) | Next::End => return None,
            }
        }
    }

    /// Performs all that is due now. Returns the steps of the writer.
    fn run(&mut self) -> Vec<StoreStep> {
        let mut steps = Vec::new();
        loop {
            match self.writer.next(self.now) {
                Next::Perform(step) => {
                    steps.push(step);
                    self.writer.perform();
                }
                Next::Send(order) => self.worker.take(order),
                Next::Wait(_) | Next::End => match self.worker.next(self.now) {
                    Next::Perform(_) => self.worker.perform(),
                    Next::Send(outcome) => self.writer.checkpoint_ended(outcome),
                    Next::Wait(_) | Next::End => break,
                },
            }
        }
        let now = self.now;
        self.made.extend(self.script.calls().into_iter().map(|call| (now, call)));
        steps
    }

    /// Lets time pass.
    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        loop {
            self.run();
            let next = [self.waits_until(), self.state_waits_until()].into_iter().flatten().min();
            match next {
                Some(next) if next <= end => self.now = next,
                _ => break,
            }
        }
        self.now = end;
        self.run();
    }

    fn waits_until(&mut self) -> Option<Time> {
        match self.writer.next(self.now) {
            Next::Wait(until) => until,
            Next::End => None,
            _ => panic!("there is more to do"),
        }
    }

    fn state_waits_until(&mut self) -> Option<Time> {
        match self.worker.next(self.now) {
            Next::Wait(until) => until,
            _ => panic!("there is more to do"),
        }
    }

    /// When calls of this name were made, since the start.
    fn times(&self, call: &str) -> Vec<Duration> {
        let made = self.made.iter().filter(|(_, made)| *made == call);
        made.map(|(at, _)| *at - 100 * SECOND).collect()
    }

    /// The results since the last time.
    fn results(&self) -> Vec<String> {
        let name = |input| match input {
            Input::Written { number } => format!("written {number}"),
            Input::Read { from, entries } => format!("read {from}: {}", entries.len()),
            Input::CheckpointDone { index, .. } => format!("checkpoint {index}"),
            Input::CheckpointDelayed { reason } => format!("delayed: {reason}"),
            Input::Built { transfer, .. } => format!("built {transfer}"),
            Input::DiskSpace { free, .. } => format!("free {free}"),
            Input::Failed { .. } => "failed".to_owned(),
            other => panic!("{other:?}"),
        };
        self.inputs.try_iter().map(name).collect()
    }

    /// What a restart finds.
    fn boot(&self) -> Boot {
        self.disk.open().load(&mut |_| Ok(())).unwrap()
    }
}

fn promise() -> Promise {
    Promise { ballot: Ballot { round: 3, proposer: 1 }, pledge: None }
}

fn large() -> LogWrite {
    let mut large = write(2, 2..=40);
    for entry in &mut large.entries {
        entry.data = Bytes::from(vec![7; 100_000]);
    }
    large.hard_state = Some(HardState { term: 2, vote: 1, commit: 39 });
    large
}

/// A state of several chunks.
fn large_machine() -> Machine {
    let mut machine = Machine::new();
    let request = |seq, command| {
        let session = SessionId(1);
        Request { session, holder: 1, seq, acked: 0, command }
    };
    let create = |seq| {
        let (path, data) = (format!("/{seq}"), vec![7; 100_000].into());
        request(
            seq,
            Command::Op(Op::Create { path: path.into(), data, mode: CreateMode::Persistent }),
        )
    };
    let open = Command::Open { secret: [0; 16], timeout_ms: 1000, owner: 1, base: 0 };
    let requests = [request(0, open)].into_iter().chain((1..20).map(create)).collect();
    machine.apply(1, &Batch { time: 1, requests });
    machine
}

fn checkpoint(machine: &mut Machine, index: u64) -> DiskOp {
    let (meta, state, dirty) = (meta(machine, index), machine.state(), machine.take_dirty());
    DiskOp::Checkpoint { meta, state, dirty, keep_from: index + 1 }
}

fn install(machine: &Machine, number: u64) -> DiskOp {
    let hard_state = HardState { term: 2, vote: 0, commit: 100 };
    DiskOp::Install { number, hard_state, meta: meta(machine, 100), state: machine.state() }
}

#[test]
fn writes_that_gather_during_a_write_become_one() {
    let mut world = World::new(Script::default());
    world.write(1, write(1, 2..=3));
    assert!(matches!(world.begin(), Some(StoreStep::Append { .. })));
    world.write(2, write(1, 4..=4));
    world.write(3, write(1, 5..=6));
    world.writer.perform();
    assert_eq!(world.results(), ["written 1"]);
    assert_eq!(world.run().len(), 1);
    assert_eq!(world.results(), ["written 3"]);
    assert_eq!(world.times("append").len(), 2);
    assert_eq!(world.boot().entries.len(), 5);
}

#[test]
fn merged_writes_have_a_limit() {
    let mut world = World::new(Script::default());
    for number in 1..=30 {
        let mut write = write(1, number + 1..=number + 1);
        write.entries[0].data = Bytes::from(vec![7; 100_000]);
        world.write(number, write);
    }
    // The first two have two parts each.
    assert_eq!(world.run().len(), 5);
    assert_eq!(world.results(), ["written 11", "written 22", "written 30"]);
    assert_eq!(world.boot().entries.len(), 30);
}

#[test]
fn a_read_goes_before_the_write_that_it_came_behind() {
    let mut world = World::new(Script::default());
    world.write(1, write(1, 2..=3));
    world.run();
    world.write(2, write(1, 4..=4));
    world.writer.submit(DiskOp::Read { from: 2, bytes: 1000 });
    world.write(3, write(1, 5..=5));
    world.run();
    assert_eq!(world.results(), ["written 1", "read 2: 2", "written 3"]);
    assert_eq!(world.times("append").len(), 2);
}

/// The first write after a start notes the start in small files of its own. At the limit of open files it stopped the
/// member.
#[test]
fn a_write_that_meets_the_limit_of_open_files_is_made_later() {
    let mut world = World::new(Script::default().refuse("append", 3));
    world.writer.split_above(200);
    world.write(1, large());
    world.write(2, write(2, 41..=41));
    world.advance(2 * SECOND);
    assert_eq!(world.results(), ["written 1", "written 2"]);
    assert_eq!(world.boot().entries.len(), 40);
    assert_eq!(world.times("append")[..4], [0, 1, 2, 3].map(|again| again * AGAIN_PAUSE));

    for closes in [false, true] {
        let mut world = World::new(Script::default().refuse("append", usize::MAX));
        world.write(1, write(1, 2..=2));
        world.advance(SECOND / 10);
        if closes {
            world.writer.close();
        }
        world.advance(40 * SECOND);
        assert_eq!(world.times("append").len(), if closes { 1 } else { AGAIN_MAX + 1 });
        assert_eq!(world.results(), ["failed"]);
    }
}

#[test]
fn a_write_is_not_merged_across_another_operation() {
    let mut world = World::new(Script::default());
    world.write(1, write(1, 2..=3));
    world.writer.submit(DiskOp::Promise { number: 2, promise: promise() });
    world.write(3, write(1, 4..=4));
    world.writer.submit(DiskOp::Removed { number: 4 });
    let mark = StoreStep::Change(ChangeStep::Mark);
    let steps = world.run();
    assert!(
        matches!(steps[..], [StoreStep::Append { .. }, one, StoreStep::Append { .. }, other]
            if one == mark && other == mark),
        "{steps:?}"
    );
    assert_eq!(world.results(), ["written 1", "written 2", "written 3", "written 4"]);
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

/// Cuts a large write short after each of its parts. Fails if the store has entries of a term that it does
/// not know of. Returns the number of parts.
fn cut_between_parts() -> Result<usize, String> {
    let large = large();
    for parts in 1.. {
        let mut world = World::new(Script::default());
        world.write(1, large.clone());
        // More work waits, which is not mixed with the parts.
        world.write(2, write(2, 41..=41));
        for _ in 0..parts {
            assert!(matches!(world.begin(), Some(StoreStep::Append { .. })));
            world.writer.perform();
        }
        // The crash.
        let boot = world.boot();
        let last = boot.entries.last().unwrap();
        let HardState { term, vote, commit } = boot.hard_state;
        if (term, vote, commit) != (last.term, 1, last.index.min(39)) {
            return Err(format!("{:?} after {parts} parts, with {last:?}", boot.hard_state));
        }
        let is_whole = last.index == 40;
        assert_eq!(world.results().len(), usize::from(is_whole), "after {parts} parts");
        if is_whole {
            assert_eq!(boot.entries, large.entries);
            assert_eq!(Some(boot.hard_state), large.hard_state);
            return Ok(parts);
        }
    }
    Ok(0)
}

/// No check noticed when the first parts of a large write had no hard state: a crash between two parts
/// then left entries of a term that the store did not know of.
#[test]
fn each_part_of_a_large_write_knows_the_term_of_its_entries() {
    assert!(cut_between_parts().unwrap() > 3);
}

/// The watchdog took the installation of a large state from a leader for one write, and stopped the node
/// when it took more than a minute.
#[test]
fn each_call_of_the_store_is_a_step_of_its_own() {
    let machine = large_machine();
    let mut world = World::new(Script::default());
    world.writer.submit(install(&machine, 1));
    for call in ["begin", "chunk", "finish", "commit"] {
        let many = if call == "chunk" { ChunkWriter::full(machine.state()).count() } else { 1 };
        for _ in 0..many {
            assert!(matches!(world.begin(), Some(StoreStep::Change(_))));
            world.writer.perform();
            assert_eq!(world.script.calls(), [call]);
        }
    }
    assert_eq!(world.begin(), None);
    assert_eq!(world.results(), ["written 1"]);
    assert_eq!(world.boot().checkpoint.index, 100);
}

#[test]
fn a_change_is_tried_again_for_half_a_minute() {
    for refusals in [AGAIN_MAX, AGAIN_MAX + 1] {
        let mut world = World::new(Script::default().refuse("promise", refusals));
        world.writer.submit(DiskOp::Promise { number: 1, promise: promise() });
        world.write(2, write(1, 2..=2));
        world.advance(40 * SECOND);
        let times = world.times("promise");
        let expected = (0..=u32::try_from(AGAIN_MAX).unwrap()).map(|again| again * AGAIN_PAUSE);
        assert_eq!(times, expected.collect::<Vec<_>>());
        let is_over = matches!(world.writer.next(world.now), Next::End);
        if refusals > AGAIN_MAX {
            assert_eq!((world.results(), is_over), (vec!["failed".to_owned()], true));
        } else {
            assert_eq!(world.results(), ["written 1", "written 2"]);
            assert!(!is_over);
        }
    }
}

#[test]
fn an_installation_that_fails_in_the_middle_begins_again() {
    let machine = large_machine();
    for call in ["begin", "chunk", "finish", "commit"] {
        let mut world = World::new(Script::default().refuse(call, 1));
        world.writer.submit(install(&machine, 1));
        world.advance(SECOND);
        assert_eq!(world.results(), ["written 1"], "{call}");
        assert_eq!(world.times("begin"), [Duration::ZERO, AGAIN_PAUSE], "{call}");
        assert_eq!(world.boot().checkpoint.index, 100);
    }
}

/// Closing a node does not wait until there are file descriptors again.
#[test]
fn a_close_ends_an_operation_that_is_tried_again() {
    let mut world = World::new(Script::default().refuse("promise", usize::MAX));
    world.writer.submit(DiskOp::Promise { number: 1, promise: promise() });
    world.run();
    assert!(world.results().is_empty());
    world.writer.close();
    assert!(matches!(world.writer.next(world.now), Next::End));
    assert_eq!(world.results(), ["failed"]);
    assert_eq!(world.times("promise").len(), 1);
}

#[test]
fn a_close_waits_for_writes_and_not_for_a_checkpoint() {
    let mut world = World::new(Script::default());
    world.writer.submit(checkpoint(&mut large_machine(), 1));
    world.write(1, write(1, 2..=3));
    world.writer.submit(DiskOp::Promise { number: 2, promise: promise() });
    world.write(3, large());
    world.writer.close();
    while world.begin().is_some() {
        world.writer.perform();
    }
    assert!(matches!(world.writer.next(world.now), Next::End));
    assert_eq!(world.results(), ["written 1", "written 2", "written 3"]);
    assert_eq!(world.boot().entries.last().unwrap().index, 40);
}

#[test]
fn nothing_is_done_after_a_failure() {
    for call in ["append", "finish", "commit", "idle"] {
        let mut world = World::new(Script::default().fail(call));
        world.write(1, write(1, 2..=3));
        world.run();
        world.writer.submit(checkpoint(&mut large_machine(), 2));
        world.advance(SECOND / 2);
        world.write(2, write(1, 4..=4));
        world.advance(2 * SECOND);
        let results = world.results();
        let failed = results.iter().filter(|result| *result == "failed").count();
        assert_eq!((failed, results.last().unwrap().as_str()), (1, "failed"), "{results:?}");
        assert!(matches!(world.writer.next(world.now), Next::End));
    }
}

/// A checkpoint is stopped between all of its calls, and in the middle of each.
#[test]
fn an_installation_stops_a_checkpoint_at_each_call() {
    let mut machine = large_machine();
    let dirty = machine.take_dirty();
    let delta = ChunkWriter::delta(machine.state(), dirty.clone()).count();
    assert!(delta > 10);
    let calls_max = delta + 2;
    let cases = (0..=calls_max).flat_map(|calls| [(calls, false), (calls, true)]);
    for (calls, in_the_middle) in cases.filter(|case| *case != (calls_max, true)) {
        let mut world = World::new(Script::default());
        world.write(1, write(1, 2..=3));
        world.run();
        let (meta, state, dirty) = (meta(&machine, 2), machine.state(), dirty.clone());
        world.writer.submit(DiskOp::Checkpoint { meta, state, dirty, keep_from: 3 });
        assert_eq!(world.begin(), Some(StoreStep::Prepare));
        world.writer.perform();
        assert_eq!(world.begin(), None);
        for _ in 0..calls {
            assert!(world.begin_state().is_some());
            world.worker.perform();
        }
        if in_the_middle {
            assert!(world.begin_state().is_some());
        }
        world.script.calls();
        world.writer.submit(install(&machine, 2));
        if in_the_middle {
            // The installation waits for the call.
            assert_eq!(world.begin(), None);
            world.worker.perform();
            assert_eq!(world.script.calls().len(), 1);
        }
        world.made.clear();
        world.run();
        // Only the installation uses the store.
        let full = ChunkWriter::full(machine.state()).count();
        assert_eq!(world.made.len(), full + 3, "{:?}", world.made);
        assert_eq!(world.results(), ["written 1", "written 2"]);
        let boot = world.boot();
        assert_eq!((boot.checkpoint.index, boot.entries.len()), (100, 0));
    }
}

#[test]
fn a_checkpoint_is_written_after_one_that_was_stopped() {
    let mut machine = large_machine();
    let mut world = World::new(Script::default());
    world.writer.submit(checkpoint(&mut machine, 1));
    assert_eq!(world.begin(), Some(StoreStep::Prepare));
    world.writer.perform();
    world.writer.submit(install(&machine, 1));
    world.writer.submit(checkpoint(&mut machine, 100));
    world.run();
    assert_eq!(world.results(), ["written 1", "checkpoint 100"]);
    // Nothing is written for the first one.
    assert_eq!(world.times("begin").len(), 2);
}

#[test]
fn a_checkpoint_is_tried_again_without_a_limit() {
    let mut world = World::new(Script::default().refuse("begin", 10));
    world.write(1, write(1, 2..=2));
    world.writer.submit(checkpoint(&mut large_machine(), 2));
    world.advance(600 * SECOND);
    let expected = [0, 2, 6, 14, 30, 62, 122, 182, 242, 302, 362].map(Duration::from_secs);
    assert_eq!(world.times("begin"), expected);
    let (delayed, results): (Vec<_>, Vec<_>) =
        world.results().into_iter().partition(|result| result.starts_with("delayed: "));
    assert_eq!(results, ["written 1", "checkpoint 2"]);
    assert!(delayed.len() == 10 && delayed[0].contains("too many open files"), "{delayed:?}");
    // The next pause is short again.
    world.script.clone().refuse("chunk", 1);
    world.made.clear();
    world.writer.submit(checkpoint(&mut large_machine(), 2));
    world.advance(10 * SECOND);
    let expected = [600, 602].map(Duration::from_secs);
    assert_eq!(world.times("begin"), expected);
}

/// A received state waited for a checkpoint that was tried again for as long as the disk was full.
#[test]
fn a_received_state_is_built_while_no_checkpoint_can_be_written() {
    let mut world = World::new(Script::default().refuse("begin", usize::MAX));
    let mut machine = large_machine();
    world.writer.submit(checkpoint(&mut machine, 1));
    world.advance(SECOND);
    let mut reader = ChunkReader::new();
    ChunkWriter::full(machine.state()).for_each(|chunk| reader.push(&chunk).unwrap());
    let (reader, zxid, hash) = (Box::new(reader), machine.zxid(), machine.hash());
    world.writer.submit(DiskOp::Build { transfer: 7, reader, zxid, hash });
    world.writer.submit(DiskOp::Drop { state: machine.state() });
    world.write(1, write(1, 2..=2));
    world.run();
    let mut results = world.results();
    results.retain(|result| !result.starts_with("delayed: "));
    assert_eq!(results, ["written 1", "built 7"]);
    // An installation does not wait for it either.
    world.writer.submit(install(&machine, 2));
    world.script.clone().refuse("begin", 0);
    world.run();
    assert_eq!(world.results(), ["written 2"]);
}

#[test]
fn deferred_work_waits_for_a_pause() {
    let mut world = World::new(Script::default());
    for number in 1..=20 {
        world.write(number, write(1, number + 1..=number + 1));
        world.advance(REST_AFTER - MS);
    }
    assert!(world.times("idle").is_empty());
    world.advance(10 * SECOND);
    assert_eq!(world.times("idle"), [20 * (REST_AFTER - MS) + MS]);
}

/// A disk that lost an installed state was not noticed, if nothing was written afterwards.
#[test]
fn deferred_work_follows_a_checkpoint_and_an_installation() {
    let mut machine = large_machine();
    let mut world = World::new(Script::default());
    world.writer.submit(install(&machine, 1));
    world.advance(10 * SECOND);
    assert_eq!((world.results(), world.times("idle").len()), (vec!["written 1".to_owned()], 1));
    world.writer.submit(checkpoint(&mut machine, 100));
    world.advance(10 * SECOND);
    assert_eq!(
        (world.results(), world.times("idle").len()),
        (vec!["checkpoint 100".to_owned()], 2)
    );
}

#[test]
fn pieces_are_verified_evenly_in_a_day() {
    let day = Duration::from_secs(24 * 60 * 60);
    for (pieces, pause) in [(0, SCRUB_AGAIN), (1000, day / 1000), (1_000_000, 4 * SECOND)] {
        // A day has whole seconds, and so have the pauses.
        let pause = Duration::from_secs(pause.as_secs());
        let mut world = World::new(Script::default());
        world.script.set_pieces(pieces);
        world.advance(1000 * SECOND);
        let expected = (0..).map(|round| SCRUB_AGAIN + round * pause);
        let expected: Vec<_> = expected.take_while(|at| *at <= 1000 * SECOND).collect();
        assert_eq!(world.times("scrub"), expected, "{pieces} pieces");
    }
}

#[test]
fn writes_that_wait_go_before_the_verification() {
    let mut world = World::new(Script::default());
    world.advance(SCRUB_AGAIN - MS);
    world.write(1, write(1, 2..=3));
    world.now += MS;
    world.run();
    let calls: Vec<_> = world.made.iter().map(|(_, call)| *call).collect();
    assert_eq!(calls, ["append", "scrub"]);
    // A writer that never pauses does not prevent it.
    world.made.clear();
    for number in 2..30_000 {
        world.write(number, write(1, number + 2..=number + 2));
        world.advance(4 * MS);
    }
    assert_eq!((world.times("idle").len(), world.times("scrub").len()), (0, 1));
}

#[test]
fn the_room_on_the_disk_is_reported_when_it_changes() {
    let mut world = World::new(Script::default());
    world.script.set_space(100, 1000);
    world.advance(10 * SPACE_PERIOD);
    assert_eq!(world.results(), ["free 100"]);
    world.script.set_space(50, 1000);
    world.advance(SPACE_PERIOD - MS);
    assert!(world.results().is_empty());
    // Also while there is more to write.
    world.now += MS;
    world.write(1, write(1, 2..=3));
    assert_eq!(world.begin(), Some(StoreStep::Space));
    world.run();
    assert_eq!(world.results(), ["free 50", "written 1"]);
}
