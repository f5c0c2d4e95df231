//! The threads of the disk: they alone touch the store.
//!
//! `quorate-disk` takes all the writes that have gathered and makes them durable
//! as one (group commit). `quorate-state` writes the chunks of checkpoints
//! meanwhile, which no write waits for; when they are durable, `quorate-disk`
//! makes the checkpoint count by one more write.
//!
//! What fails without having changed anything ([`StorageError::Again`]) is tried
//! again, for example when the process has no file to open for a moment: a
//! checkpoint for as long as it takes, what the node waits for during half a
//! minute. Any other error ends the threads, and stops the node.

mod state_thread;
#[cfg(test)]
mod tests;

use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use crate::machine::State;
use crate::machine::snapshot::ChunkWriter;
use crate::node::io::{DiskOp, Input};
use crate::node::stored::{HardState, LogWrite, SnapshotMeta};
use crate::runtime::watchdog::{Stepper, Steps};
use crate::storage::{LogAfter, LogStore, StorageError};

use state_thread::{Order, StateThread, write_checkpoint};

/// A write is not joined with more beyond this, and is cut into parts when it is larger itself.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// How long nothing is to be written before the store does what need not be done with each write.
const REST_AFTER: Duration = Duration::from_millis(5);

/// The pause before an operation is tried again, and how often it is.
const AGAIN_PAUSE: Duration = Duration::from_millis(500);
const AGAIN_MAX: usize = 60;

/// The node's end of the disk's threads. Dropping it ends them once all is written; a checkpoint
/// that is not finished by then is given up.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Node -> disk. Not bounded here: what is in it is bounded by what Raft lets be uncommitted.
    jobs: Sender<Job>,
    /// Never a message: dropped when the threads are to end.
    open: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// The calls of the store by either thread, each of which writes a few megabytes at most.
    log_steps: Steps,
    checkpoint_steps: Steps,
}

/// What `quorate-disk` is asked for.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be one more allocation for each write")]
enum Job {
    Op(DiskOp),
    /// `quorate-state` has made this checkpoint durable, or failed.
    Finished(u64, Result<(), StorageError>),
    End,
}

impl Disk {
    /// Starts the threads; what they have done arrives in `done` as inputs for the node, which `wake`
    /// wakes.
    pub(crate) fn start(
        store: Box<dyn LogStore>,
        done: Sender<Input>,
        wake: impl Fn() + Send + 'static,
    ) -> std::io::Result<Disk> {
        let wake = Box::new(wake);
        let (jobs, queue) = unbounded();
        let (log_steps, checkpoint_steps) = (Steps::default(), Steps::default());
        let finished = jobs.clone();
        let state = StateThread::start(checkpoint_steps.stepper(), move |number, result| {
            // A writer that is gone takes nothing more.
            let _ = finished.send(Job::Finished(number, result));
        })?;
        let (open, closing) = bounded(0);
        let stepper = log_steps.stepper();
        let (checkpoint, checkpoints) = (None, 0);
        let mut writer = Writer {
            store,
            queue,
            closing,
            done,
            wake,
            stepper,
            state,
            checkpoint,
            checkpoints,
            busy: false,
        };
        let thread = std::thread::Builder::new()
            .name("quorate-disk".to_owned())
            .spawn(move || writer.run())?;
        Ok(Disk { jobs, open: Some(open), thread: Some(thread), log_steps, checkpoint_steps })
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
        drop(self.open.take());
        let _ = self.jobs.send(Job::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Writer {
    store: Box<dyn LogStore>,
    queue: Receiver<Job>,
    /// Closed when the thread is to end.
    closing: Receiver<()>,
    done: Sender<Input>,
    wake: Box<dyn Fn() + Send>,
    stepper: Stepper,
    /// Ended before the store is closed, of which an order holds a part.
    state: StateThread,
    /// The checkpoint that is being written.
    checkpoint: Option<Checkpoint>,
    /// How many were begun.
    checkpoints: u64,
    /// Whether something was written since the store last rested.
    busy: bool,
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
            self.notify(Input::Failed { reason: format!("the disk failed: {error}") });
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
                Job::Finished(number, finished) => self.commit(number, finished)?,
                Job::End => return Ok(()),
            }
        }
    }

    /// Waits for something to do; lets the store rest if that takes a while.
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
                self.checkpoints += 1;
                let number = self.checkpoints;
                let checkpointer = self.store.checkpointer()?;
                self.checkpoint = Some(Checkpoint { number, meta, keep_from });
                self.state.order(Order { number, state, dirty, checkpointer });
                return Ok(None);
            }
            DiskOp::Install { number, hard_state, meta, state } => {
                // It replaces everything, a checkpoint under way included.
                self.checkpoint = None;
                self.state.cancel();
                self.insist(|store, stepper| {
                    install(store, hard_state, &meta, state.clone(), || stepper.begin())
                })?;
                number
            }
            DiskOp::Identify { number, identity } => {
                self.insist(|store, _| store.set_identity(&identity))?;
                number
            }
            DiskOp::Promise { number, promise } => {
                self.insist(|store, _| store.keep_promise(&promise))?;
                number
            }
            DiskOp::Removed { number } => {
                self.insist(|store, _| store.mark_removed())?;
                number
            }
        };
        self.notify(Input::Written { number });
        Ok(None)
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
        self.notify(Input::Written { number });
        Ok(next)
    }

    /// Makes the checkpoint count that is durable now, if it is still wanted.
    fn commit(
        &mut self,
        number: u64,
        result: Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let wanted = self.checkpoint.take_if(|checkpoint| checkpoint.number == number);
        if let Some(Checkpoint { meta, keep_from, .. }) = wanted {
            result?;
            self.stepper.begin();
            self.store.commit_checkpoint(&meta, LogAfter::From(keep_from))?;
            self.notify(Input::CheckpointDone { index: meta.index });
        }
        Ok(())
    }

    fn notify(&self, input: Input) {
        // The node may be gone already; then nobody waits for this.
        if self.done.send(input).is_ok() {
            (self.wake)();
        }
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
            let checkpointer = store.checkpointer()?;
            let mut order = Order { number: 1, state, dirty, checkpointer };
            write_checkpoint(&mut order, || true)?;
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
