//! The disk's threads, which alone use the store.
//!
//! `quorate-disk` takes all writes that have gathered and makes them durable together (group
//! commit). At the same time `quorate-state` builds states that a leader sends, drops the states that
//! they replace, and writes the chunks of checkpoints, so that no write waits for them. When the chunks are
//! durable, `quorate-disk` commits the checkpoint with one more write.
//!
//! An operation that fails without having changed anything ([`StorageError::Again`]), for example because
//! the process has no file descriptor for a moment, is tried again: a checkpoint without a limit, operations
//! that the node waits for, writes to the log among them, during half a minute. Any other error ends the
//! threads, and stops the node.
//!
//! The threads decide nothing. They receive, perform steps and wait as two state machines say: [`Writer`]
//! and [`StateWorker`](state_worker::StateWorker). [`InlineDisk`] drives the same two without threads.

pub(crate) mod change;
pub(crate) mod group_commit;
mod inline;
mod jobs;
pub(crate) mod reports;
mod state_thread;
pub(crate) mod state_worker;
#[cfg(test)]
mod test_store;
#[cfg(test)]
mod tests;
mod upkeep;
pub(crate) mod writer;
#[cfg(test)]
mod writer_tests;

use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::node::io::{DiskOp, Input};
use crate::runtime::clock::Clock;
use crate::runtime::watchdog::{Stepper, Steps};
use crate::storage::LogStore;
#[cfg(doc)]
use crate::storage::StorageError;

pub(crate) use self::inline::InlineDisk;
use self::reports::Reports;
use self::state_thread::StateThread;
use self::state_worker::CheckpointOutcome;
use self::writer::{Next, Writer};

/// The node's end of the disk's threads. Dropping it ends them once everything is written; an
/// unfinished checkpoint is abandoned.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Node -> disk. Unbounded; its content is bounded by Raft's limit for uncommitted entries at a
    /// leader, and by `BACKLOG_BYTES_MAX` at a follower.
    messages: Sender<DiskMessage>,
    thread: Option<JoinHandle<()>>,
    /// The calls of the store by each thread. Each call writes a few megabytes at most.
    log_steps: Steps,
    checkpoint_steps: Steps,
}

/// A message to `quorate-disk`.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be one more allocation for each write")]
enum DiskMessage {
    Op(DiskOp),
    /// From `quorate-state`.
    CheckpointEnded(CheckpointOutcome),
    Close,
}

impl Disk {
    /// Starts the threads. Their results arrive in `done` as inputs for the node, which `wake`
    /// wakes.
    pub(crate) fn start(
        store: Box<dyn LogStore>,
        done: Sender<Input>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> std::io::Result<Disk> {
        let reports = Reports::new(move |input| {
            // If the node has ended, nobody waits for the result.
            if done.send(input).is_ok() {
                wake();
            }
        });
        let clock = Clock::real();
        let (messages, queue) = unbounded();
        let (log_steps, checkpoint_steps) = (Steps::default(), Steps::default());
        let ended = messages.clone();
        let stepper = checkpoint_steps.stepper();
        let state = StateThread::start(reports.clone(), clock.clone(), stepper, move |outcome| {
            // If the writer has ended, nobody needs the outcome.
            let _ = ended.send(DiskMessage::CheckpointEnded(outcome));
        })?;
        let stepper = log_steps.stepper();
        let run = move || {
            let mut writer = Writer::new(store, reports, clock.now());
            drive(&mut writer, &queue, &clock, stepper, &state);
            // Ends before the store is closed, since an order holds part of the store.
            drop(state);
        };
        let thread = std::thread::Builder::new().name("quorate-disk".to_owned()).spawn(run)?;
        Ok(Disk { messages, thread: Some(thread), log_steps, checkpoint_steps })
    }

    pub(crate) fn submit(&self, op: DiskOp) {
        // If the writer has ended, it has already reported its failure.
        let _ = self.messages.send(DiskMessage::Op(op));
    }

    /// The calls of the store in progress: of a write, and of a checkpoint.
    pub(crate) fn under_way(&self) -> [Option<u64>; 2] {
        [self.log_steps.under_way(), self.checkpoint_steps.under_way()]
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.messages.send(DiskMessage::Close);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn drive(
    writer: &mut Writer,
    queue: &Receiver<DiskMessage>,
    clock: &Clock,
    mut stepper: Stepper,
    state: &StateThread,
) {
    loop {
        queue.try_iter().for_each(|message| take(writer, message));
        let now = clock.now();
        let received = match writer.next(now) {
            Next::Perform(_) => {
                stepper.begin();
                writer.perform();
                stepper.end();
                continue;
            }
            Next::Send(order) => {
                state.send(order);
                continue;
            }
            Next::Wait(Some(until)) => queue.recv_timeout(until.saturating_sub(now)).ok(),
            Next::Wait(None) => queue.recv().ok(),
            Next::End => return,
        };
        if let Some(message) = received {
            take(writer, message);
        }
    }
}

fn take(writer: &mut Writer, message: DiskMessage) {
    match message {
        DiskMessage::Op(op) => writer.submit(op),
        DiskMessage::CheckpointEnded(outcome) => writer.checkpoint_ended(outcome),
        DiskMessage::Close => writer.close(),
    }
}
