//! The disk's threads, which alone use the store.
//!
//! `quorate-disk` takes all writes that have gathered and makes them durable together (group
//! commit). At the same time `quorate-state` builds states that a leader sends, drops the states that
//! they replace, and writes the chunks of checkpoints, so that no write waits for them. When the chunks are
//! durable, `quorate-disk` commits the checkpoint with one more write.
//!
//! An operation that fails without having changed anything ([`StorageError::Again`]), for example because
//! the process has no file descriptor for a moment, is tried again: a checkpoint without a limit, operations
//! that the node waits for during half a minute. Any other error ends the
//! threads, and stops the node.

mod state_thread;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, select, tick, unbounded};

use crate::machine::State;
use crate::machine::snapshot::{ChunkReader, ChunkWriter};
use crate::node::io::{DiskOp, Input};
use crate::node::stored::{HardState, LogEntry, LogWrite, SnapshotMeta};
use crate::planted::{Bug, planted};
use crate::runtime::watchdog::{Stepper, Steps};
use crate::storage::{LogAfter, LogStore, Rot, Space, StorageError};
use crate::types::znode::Zxid;

use state_thread::{Order, StateThread, write_checkpoint};

/// Writes are joined up to this size, and a larger one is split.
pub(crate) const WRITE_BYTES_MAX: usize = 1 << 20;

/// How long there must be nothing to write before the store does its deferred work.
const REST_AFTER: Duration = Duration::from_millis(5);

/// How often the room on the disk is measured.
const SPACE_PERIOD: Duration = Duration::from_secs(1);

/// The duration of a round through all pieces of the log and of the checkpoint, in seconds.
const SCRUB_ROUND: u64 = 24 * 60 * 60;
/// The shortest pause between two pieces, of a few MiB each, in seconds.
const SCRUB_PAUSE: u64 = 4;
/// The pause if there is nothing to verify, in seconds.
const SCRUB_AGAIN: u64 = 60;

/// The pause before an operation is tried again, and the number of attempts.
const AGAIN_PAUSE: Duration = Duration::from_millis(500);
const AGAIN_MAX: usize = 60;

/// The node's end of the disk's threads. Dropping it ends them once everything is written; an
/// unfinished checkpoint is abandoned.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Node -> disk. Unbounded; its content is bounded by Raft's limit for uncommitted entries at a
    /// leader, and by `BACKLOG_BYTES_MAX` at a follower.
    jobs: Sender<Job>,
    /// Never carries a message: dropped when the threads are to end.
    open: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// The calls of the store by each thread. Each call writes a few megabytes at most.
    log_steps: Steps,
    checkpoint_steps: Steps,
}

/// A job for `quorate-disk`.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be one more allocation for each write")]
enum Job {
    Op(DiskOp),
    /// `quorate-state` has made this checkpoint durable, or failed.
    Finished(u64, Result<(), StorageError>),
    End,
}

impl Disk {
    /// Starts the threads. Their results arrive in `done` as inputs for the node, which `wake`
    /// wakes.
    pub(crate) fn start(
        store: Box<dyn LogStore>,
        done: Sender<Input>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> std::io::Result<Disk> {
        let reports = Reports { done, wake: Arc::new(wake) };
        let (jobs, queue) = unbounded();
        let (log_steps, checkpoint_steps) = (Steps::default(), Steps::default());
        let finished = jobs.clone();
        let state = StateThread::start(checkpoint_steps.stepper(), move |number, result| {
            // If the writer has ended, nobody needs the result.
            let _ = finished.send(Job::Finished(number, result));
        })?;
        let (open, closing) = bounded(0);
        let stepper = log_steps.stepper();
        let mut writer = Writer {
            store,
            queue,
            next: None,
            closing,
            reports,
            stepper,
            state,
            checkpoint: None,
            checkpoints: 0,
            busy: false,
            space_due: tick(SPACE_PERIOD),
            space: None,
            scrub_in: SCRUB_AGAIN,
        };
        let thread = std::thread::Builder::new()
            .name("quorate-disk".to_owned())
            .spawn(move || writer.run())?;
        Ok(Disk { jobs, open: Some(open), thread: Some(thread), log_steps, checkpoint_steps })
    }

    pub(crate) fn submit(&self, op: DiskOp) {
        // If the writer has ended, it has already reported its failure.
        let _ = self.jobs.send(Job::Op(op));
    }

    /// The calls of the store in progress: of a write, and of a checkpoint.
    pub(crate) fn under_way(&self) -> [Option<u64>; 2] {
        [self.log_steps.under_way(), self.checkpoint_steps.under_way()]
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.open.take());
        let _ = self.jobs.send(Job::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends results to the node.
#[derive(Clone)]
struct Reports {
    done: Sender<Input>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Reports {
    fn send(&self, input: Input) {
        // If the node has ended, nobody waits for the result.
        if self.done.send(input).is_ok() {
            (self.wake)();
        }
    }
}

struct Writer {
    store: Box<dyn LogStore>,
    queue: Receiver<Job>,
    /// A job that was taken from the queue after a write, and is to be done next.
    next: Option<Job>,
    /// Closed when the thread is to end.
    closing: Receiver<()>,
    reports: Reports,
    stepper: Stepper,
    /// Ended before the store is closed, since an order holds part of the store.
    state: StateThread,
    /// The checkpoint that is being written.
    checkpoint: Option<Checkpoint>,
    /// How many checkpoints were started.
    checkpoints: u64,
    /// Whether something was written since the store last did its deferred work.
    busy: bool,
    /// When the room on the disk is to be measured, and the last result.
    space_due: Receiver<Instant>,
    space: Option<Space>,
    /// In how many seconds the next piece of the log is verified.
    scrub_in: u64,
}

/// A checkpoint that is being written.
struct Checkpoint {
    number: u64,
    meta: SnapshotMeta,
    keep_from: u64,
}

impl Writer {
    fn run(&mut self) {
        if let Err(error) = self.work() {
            tracing::error!(%error, "the disk failed");
            self.reports.send(Input::Failed { reason: format!("the disk failed: {error}") });
        }
        self.stepper.end();
    }

    /// Returns `Ok` when the node has ended and everything is written.
    fn work(&mut self) -> Result<(), StorageError> {
        self.measure();
        loop {
            if self.space_due.try_recv().is_ok() {
                self.each_second()?;
            }
            let job = match self.next.take() {
                Some(job) => job,
                None => self.wait()?,
            };
            match job {
                Job::Op(op) => self.perform(op)?,
                Job::Finished(number, finished) => self.commit(number, finished)?,
                Job::End => return Ok(()),
            }
        }
    }

    /// Waits for a job. After a pause in the writes, lets the store do its deferred work.
    fn wait(&mut self) -> Result<Job, StorageError> {
        self.stepper.end();
        if self.busy {
            match self.queue.recv_timeout(REST_AFTER) {
                Ok(job) => return Ok(job),
                Err(RecvTimeoutError::Disconnected) => return Ok(Job::End),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.stepper.begin();
            self.store.idle()?;
            self.stepper.end();
            self.busy = false;
        }
        loop {
            select! {
                recv(self.queue) -> job => return Ok(job.unwrap_or(Job::End)),
                recv(self.space_due) -> _ => self.each_second()?,
            }
        }
    }

    fn each_second(&mut self) -> Result<(), StorageError> {
        self.measure();
        self.scrub_in = self.scrub_in.saturating_sub(1);
        // Not while the disk is busy.
        if self.scrub_in == 0 && self.queue.is_empty() {
            self.scrub()?;
        }
        Ok(())
    }

    /// Verifies the next piece of the log or of the checkpoint, on another thread.
    fn scrub(&mut self) -> Result<(), StorageError> {
        let reports = self.reports.clone();
        let found = move |rot: Option<Rot>| {
            if let Some(rot) = rot {
                reports.send(rotten(rot));
            }
        };
        let pieces = self.store.scrub(Box::new(found))?;
        self.scrub_in = match SCRUB_ROUND.checked_div(pieces) {
            Some(pause) => pause.max(SCRUB_PAUSE),
            None => SCRUB_AGAIN,
        };
        Ok(())
    }

    /// Measures the room on the disk, and reports it if it has changed.
    fn measure(&mut self) {
        self.stepper.begin();
        let space = self.store.space();
        self.stepper.end();
        if let Some(Space { free, total }) = space
            && space != self.space
        {
            self.reports.send(Input::DiskSpace { free, total });
        }
        self.space = space.or(self.space);
    }

    fn perform(&mut self, op: DiskOp) -> Result<(), StorageError> {
        let (number, done) = match op {
            DiskOp::Write { number, write } => return self.write(number, write),
            DiskOp::Read { from, bytes } => return self.read(from, bytes),
            DiskOp::Checkpoint { meta, state, dirty, keep_from } => {
                self.checkpoints += 1;
                let number = self.checkpoints;
                let checkpointer = self.store.checkpointer()?;
                self.checkpoint = Some(Checkpoint { number, meta, keep_from });
                self.state.order(Order { number, state, dirty, checkpointer });
                return Ok(());
            }
            DiskOp::Build { transfer, reader, zxid, hash } => {
                let reports = self.reports.clone();
                let build = move || reports.send(built(transfer, *reader, zxid, hash));
                self.state.work(Box::new(build));
                return Ok(());
            }
            DiskOp::Drop { state } => {
                self.state.work(Box::new(move || drop(state)));
                return Ok(());
            }
            DiskOp::Install { number, hard_state, meta, state } => {
                // The installed state replaces everything, including a checkpoint in progress.
                self.checkpoint = None;
                self.state.cancel();
                let installed = self.retry(|store, stepper| {
                    install(store, hard_state, &meta, state.clone(), || stepper.begin())
                });
                (number, installed)
            }
            DiskOp::Identify { number, identity } => {
                (number, self.retry(|store, _| store.set_identity(&identity)))
            }
            DiskOp::Promise { number, promise } => {
                (number, self.retry(|store, _| store.set_promise(&promise)))
            }
            DiskOp::Removed { number } => (number, self.retry(|store, _| store.mark_removed())),
        };
        done?;
        self.reports.send(Input::Written { number });
        Ok(())
    }

    /// Makes a call, and repeats it after a pause while it fails with [`StorageError::Again`].
    fn retry(
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
            self.stepper.end();
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

    /// Writes this and all writes that have gathered behind it.
    fn write(&mut self, mut number: u64, mut write: LogWrite) -> Result<(), StorageError> {
        while size(&write) < WRITE_BYTES_MAX
            && let Ok(job) = self.queue.try_recv()
        {
            match job {
                Job::Op(DiskOp::Write { number: later, write: more }) => {
                    number = later;
                    merge(&mut write, more);
                }
                // A read only needs entries that were written earlier.
                Job::Op(DiskOp::Read { from, bytes }) => self.read(from, bytes)?,
                other => {
                    self.next = Some(other);
                    break;
                }
            }
        }
        append(&mut *self.store, write, || self.stepper.begin())?;
        self.busy = true;
        self.reports.send(Input::Written { number });
        Ok(())
    }

    /// Reads entries, on a thread that no write waits for.
    fn read(&mut self, from: u64, bytes: u64) -> Result<(), StorageError> {
        let reports = self.reports.clone();
        let report = move |read| reports.send(entries_read(from, read));
        self.store.read(from, bytes, Box::new(report))
    }

    /// Commits the checkpoint that is durable now, if it is still wanted.
    fn commit(
        &mut self,
        number: u64,
        result: Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let wanted = self.checkpoint.take_if(|checkpoint| checkpoint.number == number);
        if let Some(Checkpoint { meta, keep_from, .. }) = wanted {
            result?;
            self.stepper.begin();
            let bytes = self.store.commit_checkpoint(&meta, LogAfter::From(keep_from))?;
            self.reports.send(Input::CheckpointDone { index: meta.index, bytes });
        }
        Ok(())
    }
}

/// Performs one operation at once, for a store that needs no thread.
pub(crate) fn perform_now(store: &mut dyn LogStore, op: DiskOp) -> Result<Input, StorageError> {
    let (number, done) = match op {
        DiskOp::Write { number, write } => (number, append(store, write, || {})),
        DiskOp::Install { number, hard_state, meta, state } => {
            (number, install(store, hard_state, &meta, state, || {}))
        }
        DiskOp::Identify { number, identity } => (number, store.set_identity(&identity)),
        DiskOp::Promise { number, promise } => (number, store.set_promise(&promise)),
        DiskOp::Removed { number } => (number, store.mark_removed()),
        // Needs no answer: number 0 counts as a write that was done before.
        DiskOp::Drop { .. } => (0, Ok(())),
        DiskOp::Build { transfer, reader, zxid, hash } => {
            return Ok(built(transfer, *reader, zxid, hash));
        }
        DiskOp::Read { from, bytes } => {
            let (done, read) = bounded(1);
            // The receiver still exists.
            store.read(from, bytes, Box::new(move |entries| drop(done.send(entries))))?;
            return Ok(entries_read(from, read.recv().unwrap_or_else(|_| Ok(Vec::new()))));
        }
        DiskOp::Checkpoint { meta, state, dirty, keep_from } => {
            let checkpointer = store.checkpointer()?;
            let mut order = Order { number: 1, state, dirty, checkpointer };
            write_checkpoint(&mut order, || true)?;
            let bytes = store.commit_checkpoint(&meta, LogAfter::From(keep_from))?;
            return Ok(Input::CheckpointDone { index: meta.index, bytes });
        }
    };
    done.map(|()| Input::Written { number })
}

fn built(transfer: u64, reader: ChunkReader, zxid: Zxid, hash: u64) -> Input {
    Input::Built { transfer, machine: reader.finish(zxid, hash).map(Box::new) }
}

/// The input for the node after a read.
fn entries_read(from: u64, read: Result<Vec<LogEntry>, Rot>) -> Input {
    match read {
        Ok(entries) => Input::Read { from, entries },
        Err(rot) => rotten(rot),
    }
}

fn rotten(Rot { what, below }: Rot) -> Input {
    Input::Rotten { what, below }
}

/// Replaces everything. Reports each call of the store before making it.
fn install(
    store: &mut dyn LogStore,
    hard_state: HardState,
    meta: &SnapshotMeta,
    state: State,
    mut step: impl FnMut(),
) -> Result<(), StorageError> {
    step();
    let mut writer = store.checkpointer()?;
    writer.begin(true, state.bytes())?;
    for chunk in ChunkWriter::full(state) {
        step();
        writer.put_chunk(&chunk)?;
    }
    step();
    writer.finish()?;
    step();
    store.commit_checkpoint(meta, LogAfter::Reset(hard_state)).map(|_| ())
}

/// The approximate size of a write in bytes.
fn size(write: &LogWrite) -> usize {
    const OVERHEAD: usize = 32;
    write.entries.iter().map(|entry| entry.data.len() + OVERHEAD).sum()
}

/// Makes a write durable, in parts if it is large: the store wants no more than a few megabytes
/// between two syncs. After a crash in between, only the first parts are there, as if fewer entries
/// had arrived. Reports each call of the store before making it.
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
        let first = fits.count().max(1);
        let part = take_part(&mut write, first);
        step();
        store.append(&part)?;
    }
    step();
    store.append(&write)
}

/// Takes the first entries of a write, as a write of its own that a crash may come after.
///
/// Its hard state has the term of the entries, and so their voters: without it, a node would start with
/// entries of a term that it does not know of. The commit index may be in a later part. It is never before
/// the first entry, since committed entries are not replaced.
pub(crate) fn take_part(write: &mut LogWrite, entries: usize) -> LogWrite {
    let rest = write.entries.split_off(entries);
    let entries = std::mem::replace(&mut write.entries, rest);
    let last = entries.last().map_or(0, |entry| entry.index);
    let hard_state = write
        .hard_state
        .map(|hard_state| HardState { commit: hard_state.commit.min(last), ..hard_state });
    LogWrite { hard_state: hard_state.filter(|_| !planted(Bug::PartOfNoTerm)), entries }
}

/// Appends a later write to an earlier one: its entries replace those from its first index on.
fn merge(write: &mut LogWrite, more: LogWrite) {
    if more.hard_state.is_some() {
        write.hard_state = more.hard_state;
    }
    if let Some(first) = more.entries.first() {
        write.entries.retain(|entry| entry.index < first.index);
        write.entries.extend(more.entries);
    }
}
