//! How disks perform the writes of their nodes. Like the disk's thread, they use one sync for all
//! waiting writes, up to some size, and write checkpoints at the same time.

use std::time::Duration;

use super::clock::{Nanos, SECOND};
use super::faults::Fault;
use super::kernel::Phase;
use super::process::{Begun, Life, Process};
use super::world::{Event, World};
use crate::node::io::{DiskOp, Input};
use crate::runtime::disk_watch::{DISK_DEAD, DISK_SLOW};

impl World {
    pub(super) fn watch_disk(&self, life: &mut Life) {
        let busy = Duration::from_nanos(self.now().saturating_sub(life.syncing_since));
        if busy > DISK_DEAD {
            let reason = "the disk failed: a write has been under way for too long".to_owned();
            life.host.input(Input::Failed { reason });
        } else if busy > DISK_SLOW {
            if !std::mem::replace(&mut life.resigned, true) {
                life.host.input(Input::Resign);
            }
        } else {
            life.resigned = false;
        }
    }

    pub(super) fn submit(&mut self, place: usize, life: &mut Life, op: DiskOp) {
        life.waiting.push_back(op);
        if life.syncing.is_empty() {
            let at = self.now().max(self.processes[place].busy_until);
            let begun = life.begin_sync(at);
            self.sync_begun(place, begun, at);
        }
    }

    fn sync_begun(&mut self, place: usize, begun: Begun, at: Nanos) {
        let epoch = self.processes[place].epoch;
        if let Some((number, bytes)) = begun.checkpoint {
            let time = self.sync_time(place) * 4 + self.kernel.plan.on_disk(bytes);
            self.schedule(at + time, Event::Checkpointed { place, epoch, number });
        }
        if !begun.sync {
            return;
        }
        let time = self.sync_time(place) + self.kernel.plan.on_disk(begun.bytes);
        self.schedule(at + time, Event::Synced { place, epoch });
        let chaos = self.kernel.phase.get() == Phase::Chaos;
        if begun.tearable
            && chaos
            && self.random.chance(self.kernel.plan.rates.of(Fault::TornWrite))
        {
            let amid = self.random.below(time);
            self.schedule(at + amid, Event::Tear { place, epoch });
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

    pub(super) fn synced(&mut self, place: usize, epoch: u64) {
        let now = self.now();
        let fails = self.kernel.phase.get() == Phase::Chaos
            && self.random.chance(self.kernel.plan.rates.of(Fault::FailedSync));
        let process = &mut self.processes[place];
        let Some(life) = process.life.as_mut().filter(|_| process.epoch == epoch) else {
            return;
        };
        if fails {
            process.disk.condition().fails = true;
            self.kernel.count_fault(Fault::FailedSync);
            self.kernel.trace.log_fault(format_args!("node {place}: a sync fails"));
        }
        self.kernel.trace.note([7, place as u64, life.syncing.len() as u64]);
        life.end_sync();
        process.disk.condition().fails = false;
        let begun = life.begin_sync(now);
        self.settle_fresh(place);
        self.sync_begun(place, begun, now);
        self.schedule_step(place);
    }
}
