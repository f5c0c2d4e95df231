//! The thread that works on whole states while other threads write the log: see [`StateWorker`].

use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};

use super::reports::Reports;
use super::state_worker::{CheckpointOutcome, StateOrder, StateWorker};
use super::writer::Next;
use crate::runtime::clock::Clock;
use crate::runtime::watchdog::Stepper;

/// The owner's end of the thread `quorate-state`. Dropping it ends the thread; a checkpoint in
/// progress is abandoned, and so are other orders.
pub(super) struct StateThread {
    orders: Option<Sender<StateOrder>>,
    thread: Option<JoinHandle<()>>,
}

impl StateThread {
    /// Starts the thread. It calls `ended` with the outcome of each checkpoint.
    pub(super) fn start(
        reports: Reports,
        clock: Clock,
        stepper: Stepper,
        ended: impl Fn(CheckpointOutcome) + Send + 'static,
    ) -> std::io::Result<StateThread> {
        let (orders, queue) = unbounded();
        let run = move || drive(StateWorker::new(reports), &queue, &clock, stepper, ended);
        let thread = std::thread::Builder::new().name("quorate-state".to_owned()).spawn(run)?;
        Ok(StateThread { orders: Some(orders), thread: Some(thread) })
    }

    pub(super) fn send(&self, order: StateOrder) {
        if let Some(orders) = &self.orders {
            // The thread runs as long as this value exists.
            let _ = orders.send(order);
        }
    }
}

impl Drop for StateThread {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn drive(
    mut worker: StateWorker,
    queue: &Receiver<StateOrder>,
    clock: &Clock,
    mut stepper: Stepper,
    ended: impl Fn(CheckpointOutcome),
) {
    loop {
        loop {
            match queue.try_recv() {
                Ok(order) => worker.take(order),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let now = clock.now();
        let received = match worker.next(now) {
            Next::Perform(step) => {
                if step.uses_store() {
                    stepper.begin();
                }
                worker.perform();
                stepper.end();
                continue;
            }
            Next::Send(outcome) => {
                ended(outcome);
                continue;
            }
            Next::Wait(Some(until)) => queue.recv_timeout(until.saturating_sub(now)),
            Next::Wait(None) => queue.recv().map_err(RecvTimeoutError::from),
            Next::End => return,
        };
        match received {
            Ok(order) => worker.take(order),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
