//! What is done with whole states while the log is written, without threads, channels and clocks: the thread
//! `quorate-state` drives it, and so can a simulator. It writes the chunks of checkpoints, builds states
//! that a leader sends, and drops the states that they replace.
//!
//! It is driven like [`Writer`](super::writer::Writer), whose orders it takes and which gets its outcomes.

use std::collections::VecDeque;
use std::time::Duration;

use super::reports::Reports;
use super::writer::Next;
use crate::machine::snapshot::{ChunkReader, ChunkWriter};
use crate::machine::{Dirty, State};
use crate::node::io::{Input, Time};
use crate::storage::{CheckpointKind, Checkpointer, StorageError};
use crate::types::znode::Zxid;

/// The pause before a failed checkpoint is tried again, if it has changed nothing. The pause doubles with
/// each failure.
pub(super) const AGAIN_PAUSE: Duration = Duration::from_secs(2);
pub(super) const AGAIN_PAUSE_MAX: Duration = Duration::from_secs(60);

/// What the writer wants.
pub(crate) enum StateOrder {
    /// Writes a checkpoint. An earlier one has ended.
    Checkpoint(Box<CheckpointOrder>),
    /// Stops writing a checkpoint. The answer [`CheckpointOutcome::Stopped`] comes when the store is not
    /// used any more: after one call at most, or after the state that is just being built or dropped.
    Stop,
    /// See [`DiskOp::Build`](crate::node::io::DiskOp::Build).
    Build { transfer: u64, reader: Box<ChunkReader>, zxid: Zxid, hash: u64 },
    /// See [`DiskOp::Drop`](crate::node::io::DiskOp::Drop).
    Drop(Box<State>),
}

/// A checkpoint to write.
pub(crate) struct CheckpointOrder {
    /// Larger than all earlier numbers.
    pub(super) number: u64,
    pub(super) state: State,
    /// The changes since the former checkpoint.
    pub(super) dirty: Dirty,
    /// Writes the checkpoint.
    pub(super) checkpointer: Box<dyn Checkpointer>,
}

/// What became of a checkpoint.
#[derive(Debug)]
pub(crate) enum CheckpointOutcome {
    /// All chunks of the checkpoint with this number are durable.
    Written(u64),
    /// It cannot be written.
    Failed(u64, StorageError),
    /// No checkpoint is being written any more.
    Stopped,
}

/// A call of the store, or other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateStep {
    /// Begins a checkpoint.
    Begin,
    /// Writes a chunk of so many bytes.
    Chunk { bytes: usize },
    /// Makes all chunks durable.
    Finish,
    /// Builds a state. Does not use the store.
    Build,
    /// Drops a state. Does not use the store.
    Drop,
}

/// The state machine for work on whole states.
pub(crate) struct StateWorker {
    reports: Reports,
    orders: VecDeque<StateOrder>,
    /// The checkpoint that is being written, or that is tried again after a pause.
    checkpoint: Option<CheckpointAttempt>,
    /// The step that was decided, and not yet performed.
    call: Option<StateCall>,
    /// Whether the checkpoint stops after the present step.
    is_stopping: bool,
    outcomes: VecDeque<CheckpointOutcome>,
    /// The pause after the next failure.
    pause: Duration,
}

struct CheckpointAttempt {
    order: Box<CheckpointOrder>,
    /// `None` before it has begun.
    chunks: Option<ChunkWriter>,
    /// The pause after a failure, and its end once it has begun.
    pause: Option<Duration>,
    again_at: Option<Time>,
}

enum StateCall {
    Begin,
    Chunk(Vec<u8>),
    Finish,
    Build { transfer: u64, reader: Box<ChunkReader>, zxid: Zxid, hash: u64 },
    Drop(Box<State>),
}

impl StateWorker {
    /// The states that it builds go to `reports`.
    pub(crate) fn new(reports: Reports) -> StateWorker {
        StateWorker {
            reports,
            orders: VecDeque::new(),
            checkpoint: None,
            call: None,
            is_stopping: false,
            outcomes: VecDeque::new(),
            pause: AGAIN_PAUSE,
        }
    }

    /// Takes an order. All but [`StateOrder::Stop`] wait for earlier ones, but not for a checkpoint that is tried
    /// again later.
    pub(crate) fn take(&mut self, order: StateOrder) {
        let StateOrder::Stop = order else {
            self.orders.push_back(order);
            return;
        };
        self.orders.retain(|order| !matches!(order, StateOrder::Checkpoint(_)));
        match self.call {
            Some(StateCall::Begin | StateCall::Chunk(_) | StateCall::Finish) => {
                self.is_stopping = true
            }
            Some(StateCall::Build { .. } | StateCall::Drop(_)) | None => self.stop(),
        }
    }

    fn stop(&mut self) {
        (self.checkpoint, self.is_stopping) = (None, false);
        self.outcomes.push_back(CheckpointOutcome::Stopped);
    }

    /// Decides what to do next.
    pub(crate) fn next(&mut self, now: Time) -> Next<StateStep, CheckpointOutcome> {
        if let Some(outcome) = self.outcomes.pop_front() {
            return Next::Send(outcome);
        }
        if self.call.is_none() {
            match self.decide(now) {
                Ok(call) => self.call = Some(call),
                Err(until) => return Next::Wait(until),
            }
        }
        self.call.as_ref().map_or(Next::Wait(None), |call| Next::Perform(call.step()))
    }

    /// The next call, or until when there is none.
    fn decide(&mut self, now: Time) -> Result<StateCall, Option<Time>> {
        let mut until = None;
        if let Some(checkpoint) = &mut self.checkpoint {
            until = checkpoint.pauses_until(now);
            if until.is_none() {
                return Ok(checkpoint.next_call());
            }
        }
        match self.orders.pop_front() {
            Some(StateOrder::Checkpoint(order)) => {
                let (chunks, pause, again_at) = (None, None, None);
                self.checkpoint = Some(CheckpointAttempt { order, chunks, pause, again_at });
                Ok(StateCall::Begin)
            }
            Some(StateOrder::Build { transfer, reader, zxid, hash }) => {
                Ok(StateCall::Build { transfer, reader, zxid, hash })
            }
            Some(StateOrder::Drop(state)) => Ok(StateCall::Drop(state)),
            Some(StateOrder::Stop) | None => Err(until),
        }
    }

    /// Performs the step that was decided.
    pub(crate) fn perform(&mut self) {
        let made = match (self.call.take(), &mut self.checkpoint) {
            (None, _) => return,
            (Some(StateCall::Build { transfer, reader, zxid, hash }), _) => {
                return self.reports.build(transfer, *reader, zxid, hash);
            }
            (Some(StateCall::Drop(state)), _) => return drop(state),
            (Some(_), None) => return,
            (Some(call), Some(checkpoint)) => checkpoint.perform(call),
        };
        if self.is_stopping {
            return self.stop();
        }
        let Some(checkpoint) = &mut self.checkpoint else { return };
        let number = checkpoint.order.number;
        match made {
            Ok(false) => {}
            Ok(true) => {
                (self.checkpoint, self.pause) = (None, AGAIN_PAUSE);
                self.outcomes.push_back(CheckpointOutcome::Written(number));
            }
            Err(error @ StorageError::Again { .. }) => {
                tracing::warn!(%error, "cannot write a checkpoint; trying again");
                self.reports.send(Input::CheckpointDelayed { reason: error.to_string() });
                checkpoint.again_after(self.pause);
                self.pause = (2 * self.pause).min(AGAIN_PAUSE_MAX);
            }
            Err(error) => {
                self.checkpoint = None;
                self.outcomes.push_back(CheckpointOutcome::Failed(number, error));
            }
        }
    }
}

impl CheckpointAttempt {
    /// When it is tried again; `None` if its next call is due.
    fn pauses_until(&mut self, now: Time) -> Option<Time> {
        let again_at = *self.again_at.get_or_insert(now + self.pause?);
        if now < again_at {
            return Some(again_at);
        }
        (self.pause, self.again_at) = (None, None);
        None
    }

    fn again_after(&mut self, pause: Duration) {
        (self.chunks, self.pause, self.again_at) = (None, Some(pause), None);
    }

    fn next_call(&mut self) -> StateCall {
        match &mut self.chunks {
            None => StateCall::Begin,
            Some(chunks) => chunks.next().map_or(StateCall::Finish, StateCall::Chunk),
        }
    }

    /// Returns whether the checkpoint is complete.
    fn perform(&mut self, call: StateCall) -> Result<bool, StorageError> {
        let CheckpointOrder { state, dirty, checkpointer, .. } = &mut *self.order;
        match call {
            StateCall::Begin => {
                self.chunks = Some(match checkpointer.begin(false, state.bytes())? {
                    CheckpointKind::Full => ChunkWriter::full(state.clone()),
                    CheckpointKind::Delta => ChunkWriter::delta(state.clone(), dirty.clone()),
                });
            }
            StateCall::Chunk(chunk) => checkpointer.put_chunk(&chunk)?,
            StateCall::Finish => {
                checkpointer.finish()?;
                return Ok(true);
            }
            StateCall::Build { .. } | StateCall::Drop(_) => {}
        }
        Ok(false)
    }
}

impl StateCall {
    fn step(&self) -> StateStep {
        match self {
            StateCall::Begin => StateStep::Begin,
            StateCall::Chunk(chunk) => StateStep::Chunk { bytes: chunk.len() },
            StateCall::Finish => StateStep::Finish,
            StateCall::Build { .. } => StateStep::Build,
            StateCall::Drop(_) => StateStep::Drop,
        }
    }
}

impl StateStep {
    /// Whether it is a call of the store, which a watchdog observes.
    pub(crate) fn uses_store(self) -> bool {
        match self {
            StateStep::Begin | StateStep::Chunk { .. } | StateStep::Finish => true,
            StateStep::Build | StateStep::Drop => false,
        }
    }
}
