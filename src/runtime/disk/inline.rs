//! The disk of a node without threads, for a store that never makes its node wait.

use crossbeam_channel::{Receiver, unbounded};

use super::reports::Reports;
use super::state_worker::StateWorker;
use super::writer::{Next, Writer};
use crate::node::io::{DiskOp, Input, Time};
use crate::storage::LogStore;

/// Performs each operation at once.
pub(crate) struct InlineDisk {
    writer: Writer,
    worker: StateWorker,
    inputs: Receiver<Input>,
}

impl InlineDisk {
    pub(crate) fn new(store: Box<dyn LogStore>, now: Time) -> InlineDisk {
        let (sender, inputs) = unbounded();
        // The receiver exists as long as there is anything to report.
        let reports = Reports::new(move |input| drop(sender.send(input)));
        let worker = StateWorker::new(reports.clone());
        InlineDisk { writer: Writer::new(store, reports, now), worker, inputs }
    }

    /// Performs an operation, and returns its results.
    pub(crate) fn perform(&mut self, op: DiskOp, now: Time) -> impl Iterator<Item = Input> + '_ {
        self.writer.submit(op);
        loop {
            match self.writer.next(now) {
                Next::Perform(_) => self.writer.perform(),
                Next::Send(order) => self.worker.take(order),
                Next::Wait(_) | Next::End => match self.worker.next(now) {
                    Next::Perform(_) => self.worker.perform(),
                    Next::Send(outcome) => self.writer.checkpoint_ended(outcome),
                    Next::Wait(_) | Next::End => break,
                },
            }
        }
        self.inputs.try_iter()
    }
}
