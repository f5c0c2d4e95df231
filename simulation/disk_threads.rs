//! The disk's threads of a running node: their state machines, on the file system of a device.
//!
//! A step is decided at one time and performed at a later one. Meanwhile more operations gather. The end of
//! the process may come before the step, or amid its calls of the file system.

use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};

use super::clock::{Nanos, nanos};
use super::random::Random;
use crate::node::io::{DiskOp, Input, Time};
use crate::runtime::disk::reports::Reports;
use crate::runtime::disk::state_worker::{StateStep, StateWorker};
use crate::runtime::disk::writer::{Next, StoreStep, Writer};
use crate::storage::LogStore;
use crate::storage::simulated::ProcessFiles;

/// See the module's documentation.
pub(crate) struct DiskThreads {
    writer: Writer,
    worker: StateWorker,
    inputs: Receiver<Input>,
    files: ProcessFiles,
    /// Since when a step of the writer, and one of the worker, are decided.
    pub(super) writing_since: Option<Nanos>,
    pub(super) working_since: Option<Nanos>,
    /// When one of them goes on by itself.
    pub(super) wake_at: Option<Nanos>,
}

/// The steps that were just decided.
#[derive(Debug, Default)]
pub(crate) struct Decided {
    pub(crate) write: Option<StoreStep>,
    pub(crate) work: Option<StateStep>,
}

impl DiskThreads {
    /// A disk whose writes are split above this size.
    pub(crate) fn new(
        store: Box<dyn LogStore>,
        files: ProcessFiles,
        split_above: usize,
        now: Nanos,
    ) -> DiskThreads {
        let (sender, inputs) = unbounded();
        // Nobody receives what a process reports at its end.
        let reports = Reports::new(move |input| drop(sender.send(input)));
        let worker = StateWorker::new(reports.clone());
        let mut writer = Writer::new(store, reports, time(now));
        writer.split_above(split_above);
        DiskThreads {
            writer,
            worker,
            inputs,
            files,
            writing_since: None,
            working_since: None,
            wake_at: None,
        }
    }

    pub(crate) fn submit(&mut self, op: DiskOp) {
        self.writer.submit(op);
    }

    /// Decides the next steps, at this time. Those of the writer that take no time are performed at once.
    pub(crate) fn decide(&mut self, now: Nanos, takes_time: impl Fn(StoreStep) -> bool) -> Decided {
        let mut decided = Decided::default();
        loop {
            let mut goes_on = false;
            self.wake_at = None;
            if self.writing_since.is_none() {
                match self.writer.next(time(now)) {
                    Next::Perform(step) if takes_time(step) => {
                        self.writing_since = Some(now);
                        decided.write = Some(step);
                    }
                    Next::Perform(_) => {
                        self.writer.perform();
                        goes_on = true;
                    }
                    Next::Send(order) => {
                        self.worker.take(order);
                        goes_on = true;
                    }
                    Next::Wait(until) => self.wakes_at(until),
                    Next::End => {}
                }
            }
            if self.working_since.is_none() {
                match self.worker.next(time(now)) {
                    Next::Perform(step) => {
                        self.working_since = Some(now);
                        decided.work = Some(step);
                    }
                    Next::Send(outcome) => {
                        self.writer.checkpoint_ended(outcome);
                        goes_on = true;
                    }
                    Next::Wait(until) => self.wakes_at(until),
                    Next::End => {}
                }
            }
            if !goes_on {
                return decided;
            }
        }
    }

    fn wakes_at(&mut self, until: Option<Time>) {
        let until = until.map(nanos);
        self.wake_at = self.wake_at.into_iter().chain(until).min();
    }

    /// Performs the step of the writer.
    pub(crate) fn write(&mut self) {
        self.writing_since = None;
        self.writer.perform();
    }

    /// Performs the step of the worker.
    pub(crate) fn work(&mut self) {
        self.working_since = None;
        self.worker.perform();
    }

    /// Does a piece of the work beside the writer's. Returns whether there was any.
    pub(crate) fn work_beside(&mut self) -> bool {
        self.writer.work_beside()
    }

    /// What it has to tell the node.
    pub(crate) fn inputs(&mut self) -> impl Iterator<Item = Input> + '_ {
        self.inputs.try_iter()
    }

    /// Whether everything is written, the store's deferred work included.
    pub(crate) fn is_resting(&self) -> bool {
        self.writing_since.is_none() && self.working_since.is_none() && self.writer.is_resting()
    }

    /// The process has come to its end in an orderly way: writes everything.
    pub(crate) fn close(mut self, now: Nanos) {
        self.writer.close();
        loop {
            match self.writer.next(time(now)) {
                Next::Perform(_) => self.writer.perform(),
                // Nothing waits for the worker any more.
                Next::Send(_) => {}
                Next::Wait(_) | Next::End => break,
            }
        }
        let files = self.files.clone();
        drop(self);
        files.end_process();
    }

    /// Ends the process. If `torn`, each step that was under way ends amid its calls of the file system.
    /// Otherwise it has not begun, or was just performed. Returns whether a step was cut short.
    pub(crate) fn kill(mut self, random: &Random, torn: bool) -> bool {
        let mut lanes = [self.writing_since.is_some(), self.working_since.is_some()];
        let first = random.index(2);
        let mut is_cut = false;
        for lane in [first, 1 - first] {
            if !std::mem::take(&mut lanes[lane]) || (!torn && random.percent(50)) {
                continue;
            }
            if torn {
                let most = *random.pick(&[1, 2, 4, 4, 16, 64]);
                self.files.stop_after(random.below(most));
            }
            match lane {
                0 => self.write(),
                _ => self.work(),
            }
            is_cut |= self.files.has_ended();
        }
        self.files.end_process();
        is_cut
    }
}

fn time(now: Nanos) -> Time {
    Duration::from_nanos(now)
}
