//! What the disk does next, without threads, channels and clocks: the thread `quorate-disk` drives it, and
//! so can a simulator.
//!
//! The driver submits operations, and asks for the next step. Each step is one call of the store. Between
//! the decision for a step and its execution, time may pass and more operations may arrive; a crash may
//! come before, during or after it. What takes time in proportion to a whole state goes to the other state
//! machine, [`StateWorker`](super::state_worker::StateWorker), as an [`StateOrder`].
//!
//! ```text
//! writer.submit(operation);
//! match writer.next(now) {
//!     Next::Perform(step) => writer.perform(),   // now, or later
//!     Next::Send(order) => worker.take(order),
//!     Next::Wait(until) => ...                   // for an operation, or that time
//!     Next::End => ...                           // it was closed, or has failed
//! }
//! ```

use super::change::{AGAIN_MAX, AGAIN_PAUSE, ChangeCall, ChangeStep, DiskChange};
use super::group_commit::size;
use super::jobs::{DiskJob, Jobs};
use super::reports::Reports;
use super::state_worker::{CheckpointOrder, CheckpointOutcome, StateOrder};
use super::upkeep::Upkeep;
use crate::machine::{Dirty, State};
use crate::node::io::{DiskOp, Input, Time};
use crate::node::stored::{LogWrite, SnapshotMeta};
use crate::storage::{LogAfter, LogStore, StorageError};

/// What a driver does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<StoreStep, Message> {
    /// Performs this step, now or later. Until then, the answer stays the same.
    Perform(StoreStep),
    /// Passes this message to the other state machine.
    Send(Message),
    /// Waits for a message, at most until this time.
    Wait(Option<Time>),
    /// Ends.
    End,
}

/// One call of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreStep {
    /// Appends these bytes, about: several writes, one, or a part of one.
    Append { bytes: usize },
    /// Reads up to so many bytes.
    Read { bytes: u64 },
    /// Prepares a checkpoint. Writes nothing.
    Prepare,
    /// Commits a checkpoint that the other state machine has written.
    Commit,
    /// A part of a change that is tried again if it fails.
    Change(ChangeStep),
    /// Deferred work of the store.
    Idle,
    /// Measures the room on the disk.
    Space,
    /// Verifies a piece of the log or of the checkpoint.
    Scrub,
}

/// The disk's state machine. It has the store.
pub(crate) struct Writer {
    store: Box<dyn LogStore>,
    reports: Reports,
    jobs: Jobs,
    /// The step that was decided, and not yet performed.
    call: Option<StoreCall>,
    /// The change in progress. No other job is done meanwhile.
    change: Option<DiskChange>,
    /// A call that has failed without having changed anything. Nothing else is done before it is made again.
    delayed: Option<Delayed>,
    /// How often it has failed.
    delays: usize,
    /// The checkpoint that is being written.
    checkpoint: Option<Checkpoint>,
    /// How many checkpoints were started.
    checkpoints: u64,
    /// To be sent next.
    order: Option<StateOrder>,
    /// Whether a checkpoint must have stopped before the change goes on.
    is_stopping: bool,
    upkeep: Upkeep,
    is_closing: bool,
    has_failed: bool,
}

/// A call of the store.
pub(super) enum StoreCall {
    /// The number to report if this is the last part.
    Append(Option<u64>, LogWrite),
    Read(u64, u64),
    Prepare(Box<(Checkpoint, State, Dirty)>),
    Commit(Box<Checkpoint>),
    Change(ChangeCall),
    Idle,
    Space,
    Scrub,
}

struct Delayed {
    call: StoreCall,
    error: StorageError,
    /// When it is made again. `None`: the pause begins.
    again_at: Option<Time>,
}

/// A checkpoint that is being written.
pub(super) struct Checkpoint {
    number: u64,
    meta: SnapshotMeta,
    keep_from: u64,
}

impl Writer {
    /// Results go to `reports`, some from other threads of the store.
    pub(crate) fn new(store: Box<dyn LogStore>, reports: Reports, now: Time) -> Writer {
        Writer {
            store,
            reports,
            jobs: Jobs::new(),
            call: None,
            change: None,
            delayed: None,
            delays: 0,
            checkpoint: None,
            checkpoints: 0,
            order: None,
            is_stopping: false,
            upkeep: Upkeep::new(now),
            is_closing: false,
            has_failed: false,
        }
    }

    /// Adds an operation, after all earlier ones.
    pub(crate) fn submit(&mut self, op: DiskOp) {
        self.jobs.push(DiskJob::Op(op));
    }

    /// A checkpoint that was ordered has ended.
    pub(crate) fn checkpoint_ended(&mut self, outcome: CheckpointOutcome) {
        match outcome {
            CheckpointOutcome::Stopped => self.is_stopping = false,
            outcome => self.jobs.push(DiskJob::Outcome(outcome)),
        }
    }

    /// Ends once everything is written. A call that fails is not tried again, and an unfinished checkpoint
    /// is abandoned.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
    }

    /// Splits writes of more bytes than this.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn split_above(&mut self, bytes: usize) {
        self.jobs.split_above(bytes);
    }

    /// Whether everything is written, the store's deferred work included.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn is_resting(&self) -> bool {
        let Writer { jobs, call, change, delayed, upkeep, .. } = self;
        let is_idle = call.is_none() && change.is_none() && delayed.is_none();
        is_idle && !upkeep.busy && jobs.is_empty()
    }

    /// See [`LogStore::work_beside`].
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn work_beside(&mut self) -> bool {
        self.store.work_beside()
    }

    /// Decides what to do next.
    pub(crate) fn next(&mut self, now: Time) -> Next<StoreStep, StateOrder> {
        if self.has_failed {
            return Next::End;
        }
        if let Some(call) = &self.call {
            return Next::Perform(call.step());
        }
        match self.decide(now) {
            Ok(Next::Perform(call)) => {
                let step = call.step();
                self.call = Some(call);
                Next::Perform(step)
            }
            Ok(Next::Send(order)) => Next::Send(order),
            Ok(Next::Wait(until)) => Next::Wait(until),
            Ok(Next::End) => Next::End,
            Err(error) => {
                self.fail(&error);
                Next::End
            }
        }
    }

    /// Performs the step that was decided. If it fails for good, the node gets [`Input::Failed`], and
    /// nothing more is done.
    pub(crate) fn perform(&mut self) {
        if let Some(call) = self.call.take()
            && let Err(error) = self.make(call)
        {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &StorageError) {
        let reason = error.why_stopped();
        tracing::error!("{reason}");
        self.reports.send(Input::Failed { reason });
        self.has_failed = true;
    }

    fn decide(&mut self, now: Time) -> Result<Next<StoreCall, StateOrder>, StorageError> {
        if let Some(order) = self.order.take() {
            return Ok(Next::Send(order));
        }
        let space_at = match self.upkeep.first(now) {
            Ok(call) => return Ok(Next::Perform(call)),
            Err(until) => until,
        };
        if let Some(mut delayed) = self.delayed.take() {
            let again_at = *delayed.again_at.get_or_insert(now + AGAIN_PAUSE);
            if self.is_closing {
                return Err(delayed.error);
            }
            if now >= again_at {
                return Ok(Next::Perform(delayed.call));
            }
            self.delayed = Some(delayed);
            return Ok(Next::Wait(Some(again_at.min(space_at))));
        }
        loop {
            if let Some(call) = self.jobs.go_on_writing() {
                return Ok(Next::Perform(call));
            }
            if let Some(change) = &mut self.change {
                if self.is_stopping {
                    return Ok(Next::Wait(Some(space_at)));
                }
                return Ok(match change.pauses_until(now, self.is_closing)? {
                    Some(until) => Next::Wait(Some(until.min(space_at))),
                    None => Next::Perform(StoreCall::Change(change.next_call())),
                });
            }
            let Some(job) = self.jobs.pop() else { break };
            self.upkeep.interrupt();
            if let Some(next) = self.begin(job)? {
                return Ok(next);
            }
        }
        if self.is_closing {
            return Ok(Next::End);
        }
        Ok(match self.upkeep.next(now) {
            Ok(call) => Next::Perform(call),
            Err(until) => Next::Wait(Some(until)),
        })
    }

    /// Begins a job. `None`: it is in progress now, or there is nothing to do for it.
    fn begin(&mut self, job: DiskJob) -> Result<Option<Next<StoreCall, StateOrder>>, StorageError> {
        let op = match job {
            DiskJob::Op(op) => op,
            DiskJob::Outcome(outcome) => {
                return Ok(self.checkpoint_to_commit(outcome)?.map(Next::Perform));
            }
        };
        let change = match op {
            DiskOp::Write { number, write } => {
                self.jobs.begin_write(number, write);
                return Ok(None);
            }
            DiskOp::Read { from, bytes } => {
                return Ok(Some(Next::Perform(StoreCall::Read(from, bytes))));
            }
            DiskOp::Checkpoint { meta, state, dirty, keep_from } => {
                self.checkpoints += 1;
                let checkpoint = Checkpoint { number: self.checkpoints, meta, keep_from };
                let prepared = Box::new((checkpoint, state, dirty));
                return Ok(Some(Next::Perform(StoreCall::Prepare(prepared))));
            }
            DiskOp::Build { transfer, reader, zxid, hash } => {
                return Ok(Some(Next::Send(StateOrder::Build { transfer, reader, zxid, hash })));
            }
            DiskOp::Drop { state } => {
                return Ok(Some(Next::Send(StateOrder::Drop(Box::new(state)))));
            }
            DiskOp::Install { number, hard_state, meta, state } => {
                self.change = Some(DiskChange::install(number, hard_state, meta, state));
                // The installed state replaces everything, including a checkpoint in progress.
                let current = self.checkpoint.take();
                let stops = current.map(|_| Next::Send(StateOrder::Stop));
                self.is_stopping = stops.is_some();
                return Ok(stops);
            }
            DiskOp::Identify { number, identity } => DiskChange::identity(number, identity),
            DiskOp::Promise { number, promise } => DiskChange::promise(number, promise),
            DiskOp::Removed { number } => DiskChange::removed(number),
        };
        self.change = Some(change);
        Ok(None)
    }

    /// Commits the checkpoint that has ended, if it is still wanted.
    fn checkpoint_to_commit(
        &mut self,
        outcome: CheckpointOutcome,
    ) -> Result<Option<StoreCall>, StorageError> {
        let (number, written) = match outcome {
            CheckpointOutcome::Written(number) => (number, Ok(())),
            CheckpointOutcome::Failed(number, error) => (number, Err(error)),
            CheckpointOutcome::Stopped => return Ok(None),
        };
        let wanted = self.checkpoint.take_if(|checkpoint| checkpoint.number == number);
        let Some(checkpoint) = wanted else { return Ok(None) };
        written.map(|()| Some(StoreCall::Commit(Box::new(checkpoint))))
    }

    fn make(&mut self, call: StoreCall) -> Result<(), StorageError> {
        match call {
            StoreCall::Append(number, write) => {
                if let Err(error) = self.store.append(&write) {
                    return self.delay(StoreCall::Append(number, write), error);
                }
                (self.upkeep.busy, self.delays) = (true, 0);
                if let Some(number) = number {
                    self.reports.send(Input::Written { number });
                }
            }
            StoreCall::Read(from, bytes) => {
                let reports = self.reports.clone();
                let done = move |read| reports.entries_read(from, read);
                self.store.read(from, bytes, Box::new(done))?;
            }
            StoreCall::Prepare(prepared) => {
                let checkpointer = match self.store.checkpointer() {
                    Ok(checkpointer) => checkpointer,
                    Err(error) => return self.delay(StoreCall::Prepare(prepared), error),
                };
                self.delays = 0;
                let (checkpoint, state, dirty) = *prepared;
                let number = checkpoint.number;
                let order = CheckpointOrder { number, state, dirty, checkpointer };
                self.order = Some(StateOrder::Checkpoint(Box::new(order)));
                self.checkpoint = Some(checkpoint);
            }
            StoreCall::Commit(checkpoint) => {
                let Checkpoint { meta, keep_from, .. } = *checkpoint;
                let bytes = self.store.commit_checkpoint(&meta, LogAfter::From(keep_from))?;
                self.upkeep.busy = true;
                self.reports.send(Input::CheckpointDone { index: meta.index, bytes });
            }
            StoreCall::Change(call) => {
                if let Some(mut change) = self.change.take() {
                    if change.perform(call, &mut *self.store, self.is_closing)? {
                        self.upkeep.busy = true;
                        self.reports.send(Input::Written { number: change.number() });
                    } else {
                        self.change = Some(change);
                    }
                }
            }
            StoreCall::Idle => {
                self.store.idle()?;
                self.upkeep.busy = false;
            }
            StoreCall::Space => self.upkeep.measure(&*self.store, &self.reports),
            StoreCall::Scrub => self.upkeep.scrub(&mut *self.store, self.reports.clone())?,
        }
        Ok(())
    }

    /// Makes the call again after a pause, if it has changed nothing.
    fn delay(&mut self, call: StoreCall, error: StorageError) -> Result<(), StorageError> {
        self.delays += 1;
        let is_over = self.is_closing || self.delays > AGAIN_MAX;
        if is_over || !matches!(error, StorageError::Again { .. }) {
            return Err(error);
        }
        if self.delays == 1 {
            tracing::warn!(%error, "cannot write to the data directory; trying again");
        }
        self.delayed = Some(Delayed { call, error, again_at: None });
        Ok(())
    }
}

impl StoreCall {
    fn step(&self) -> StoreStep {
        match self {
            StoreCall::Append(_, write) => StoreStep::Append { bytes: size(write) },
            StoreCall::Read(_, bytes) => StoreStep::Read { bytes: *bytes },
            StoreCall::Prepare(_) => StoreStep::Prepare,
            StoreCall::Commit(_) => StoreStep::Commit,
            StoreCall::Change(call) => StoreStep::Change(call.step()),
            StoreCall::Idle => StoreStep::Idle,
            StoreCall::Space => StoreStep::Space,
            StoreCall::Scrub => StoreStep::Scrub,
        }
    }
}
