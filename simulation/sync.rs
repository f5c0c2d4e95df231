//! How long the steps of disks take, and which of them fail.

use std::time::Duration;

use super::clock::{Nanos, SECOND};
use super::disk_threads::Decided;
use super::faults::Fault;
use super::kernel::Phase;
use super::process::{Life, Process};
use super::world::{Event, World};
use crate::node::io::{DiskOp, Input};
use crate::runtime::disk::change::ChangeStep;
use crate::runtime::disk::state_worker::StateStep;
use crate::runtime::disk::writer::StoreStep;
use crate::storage::simulated::{Fault as DeviceFault, FaultKind};

impl World {
    /// Looks whether a disk hangs.
    pub(super) fn watch_disk(&self, life: &mut Life) {
        let under_way = [life.disk.writing_since, life.disk.working_since];
        // Steps begin at different times, so that tells them apart.
        if let Some(input) = life.disk_watch.look(Duration::from_nanos(self.now()), under_way) {
            life.host.input(input);
        }
    }

    pub(super) fn submit(&mut self, place: usize, life: &mut Life, op: DiskOp) {
        life.disk.submit(op);
        let at = self.now().max(self.processes[place].busy_until);
        self.disk_goes_on(place, life, at);
    }

    /// Begins the next steps of a disk, from this time on.
    fn disk_goes_on(&mut self, place: usize, life: &mut Life, at: Nanos) {
        let epoch = self.processes[place].epoch;
        let takes_time =
            |step| !matches!(step, StoreStep::Prepare | StoreStep::Space | StoreStep::Scrub);
        let Decided { write, work } = life.disk.decide(at, takes_time);
        if let Some(step) = write {
            let (bytes, is_append) = match step {
                StoreStep::Append { bytes } => (bytes as u64, true),
                StoreStep::Read { bytes } => (bytes, false),
                StoreStep::Change(ChangeStep::Chunk { bytes }) => (bytes as u64, false),
                _ => (0, false),
            };
            let time = self.sync_time(place) + self.kernel.plan.on_disk(bytes);
            self.schedule(at + time, Event::Written { place, epoch, is_append });
            let chaos = self.kernel.phase.get() == Phase::Chaos;
            if chaos && self.random.chance(self.kernel.plan.rates.of(Fault::TornWrite)) {
                let amid = self.random.below(time);
                self.schedule(at + amid, Event::Tear { place, epoch });
            }
        }
        if let Some(step) = work {
            let bytes = if let StateStep::Chunk { bytes } = step { bytes as u64 } else { 0 };
            let time = self.sync_time(place) + self.kernel.plan.on_disk(bytes);
            self.schedule(at + time, Event::Worked { place, epoch });
        }
        if let Some(due) = life.disk.wake_at
            && (life.disk_due <= at || due < life.disk_due)
        {
            life.disk_due = due;
            self.schedule(due, Event::DiskDue { place, epoch });
        }
        for input in life.disk.inputs() {
            if let Input::CheckpointDone { .. } = input {
                self.kernel.count_event("checkpoints");
            }
            life.owed += super::costs::INPUT;
            life.host.input(input);
        }
        if let Some(violation) = self.processes[place].durable.condition().take_violation() {
            self.kernel.fail(violation);
        }
    }

    pub(super) fn sync_time(&self, place: usize) -> Nanos {
        let time = self.random.around(self.kernel.plan.sync).max(1);
        let Process { slow_disk_until, slow_disk_by, .. } = self.processes[place];
        if slow_disk_until <= self.now() {
            time
        } else if slow_disk_by > 0 {
            time + slow_disk_by
        } else {
            time + self.random.around(SECOND) + if self.random.percent(2) { 20 * SECOND } else { 0 }
        }
    }

    /// A step of a disk comes to its end; `None`: it is only looked at.
    pub(super) fn disk_steps(&mut self, place: usize, epoch: u64, what: Option<DiskStep>) {
        let process = &mut self.processes[place];
        if process.epoch != epoch {
            return;
        }
        let Some(mut life) = process.life.take() else { return };
        let fails = what == Some(DiskStep::Append)
            && self.kernel.phase.get() == Phase::Chaos
            && self.random.chance(self.kernel.plan.rates.of(Fault::FailedSync));
        let device = process.device.clone();
        let failed = || device.struck().count(FaultKind::FailedSync);
        let before = failed();
        if fails {
            device.inject(DeviceFault::next(FaultKind::FailedSync));
        }
        match what {
            Some(DiskStep::Append | DiskStep::Write) => life.disk.write(),
            Some(DiskStep::Work) => life.disk.work(),
            None => {}
        }
        if fails {
            device.disarm();
        }
        // An append may have nothing to sync.
        if failed() > before {
            self.processes[place].excuse(self.kernel.now());
            self.kernel.count_fault(Fault::FailedSync);
            self.kernel.trace.log_fault(format_args!("node {place}: a sync fails"));
        }
        // Reads are waited for. Other work beside comes now or later.
        let all = what != Some(DiskStep::Append) || self.random.percent(25);
        while all && life.disk.work_beside() {}
        self.kernel.trace.note([7, place as u64, what.map_or(0, |what| what as u64)]);
        let now = self.now();
        self.disk_goes_on(place, &mut life, now);
        self.processes[place].life = Some(life);
        self.settle_directory(place);
        self.schedule_step(place);
    }
}

/// What a disk does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskStep {
    Append = 1,
    Write,
    Work,
}
