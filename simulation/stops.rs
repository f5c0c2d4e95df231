//! How processes end: they are killed, they are closed, or they stop because of an error.

use super::checks::Violation;
use super::clock::{MILLI, SECOND};
use super::faults::Fault;
use super::world::World;
use crate::node::REMOVED;

/// How many of the kills are power cuts, which take what no disk has. The others end only the process.
const POWER_CUT_PERCENT: u64 = 50;

impl World {
    /// Kills a process, alone or by a power cut. What its disk has not synced is lost, at least in part, if
    /// the power is cut.
    pub(crate) fn crash(&mut self, place: usize) {
        self.end(place, false);
    }

    /// Ends a process. If it `closes`, its disk writes everything first.
    fn end(&mut self, place: usize, closes: bool) {
        let Some(life) = self.processes[place].life.take() else {
            return;
        };
        self.kernel.trace.note([6, place as u64, self.processes[place].epoch]);
        self.kernel.checks.borrow_mut().watches.crashed(place);
        self.kernel.executor.kill(place);
        self.kernel.coordinators.borrow_mut()[place] = None;
        self.down_since.insert(self.processes[place].member.node, self.now());
        let torn = self.kernel.plan.rates.of(Fault::TornWrite) > 0 && self.random.percent(50);
        let power = !closes && self.power.percent(POWER_CUT_PERCENT);
        if power {
            self.kernel.count_event("power cuts");
        }
        let (directory, is_provisional) = (life.directory.clone(), life.is_provisional);
        if closes {
            life.disk.close(self.now());
        } else if life.disk.kill(&self.random, torn) {
            self.kernel.count_fault(Fault::TornWrite);
        }
        if power {
            self.processes[place].device.cut_power();
        }
        if is_provisional && directory.damage().is_none() {
            self.put_aside_damaged(place, directory.former());
        }
        let process = &mut self.processes[place];
        (process.paused_until, process.slow_until) = (0, 0);
        process.busy_until = 0;
        for peer in 0..self.processes.len() {
            if peer != place && self.processes[peer].life.is_some() {
                self.schedule_notice(peer, place, SECOND);
            }
        }
        self.clients_notice(place, SECOND);
    }

    pub(super) fn crash_for_a_while(&mut self, place: usize) {
        self.crash(place);
        let time = *self.random.pick(&[10 * MILLI, SECOND, 5 * SECOND]);
        let time = self.random.around(time);
        self.start_in(place, time);
    }

    pub(super) fn stopped(&self, place: usize) -> Option<String> {
        let coordinators = self.kernel.coordinators.borrow();
        coordinators[place].as_ref()?.shared().end.reason().map(str::to_owned)
    }

    /// A process has closed. It starts again after a while.
    pub(super) fn closed(&mut self, place: usize) {
        self.kernel.trace.log_fault(format_args!("node {place}: has closed"));
        if let Some(life) = &self.processes[place].life {
            let mut checks = self.kernel.checks.borrow_mut();
            let checked = checks.stopping.ended(life.host.node(), self.kernel.now());
            drop(checks);
            self.kernel.check(checked);
        }
        let writes_all = self.random.percent(70);
        self.end(place, writes_all);
        let time = self.random.around(2 * SECOND);
        self.start_in(place, time);
    }

    /// Whether the disk at a place gave its node a reason to stop: a sync failed, there is no room, a call
    /// takes too long, or the database is damaged. Damage of the log that a read finds is none, nor is the
    /// limit of open files.
    fn is_excused(&self, place: usize, reason: &str) -> bool {
        let process = &self.processes[place];
        process.excused_until > self.now() || (process.damage.is_some() && !reason.contains("log"))
    }

    /// A node has stopped by itself. It may do so only if its disk has failed, if it is too old, or if
    /// it is no member any more.
    pub(super) fn node_stopped(&mut self, place: usize, reason: &str) {
        self.kernel.trace.log_fault(format_args!("node {place}: has stopped: {reason}"));
        if reason.starts_with("the cluster acts by version") {
            self.too_old(place);
        } else if reason == REMOVED && self.may_be_gone(place) {
            self.kernel.count_event("removed members stopped");
        } else if !(reason.starts_with("the disk failed") && self.is_excused(place, reason)) {
            self.kernel.fail(Violation::new(
                "I31 no node stops by itself",
                format!("node {place}: {reason}"),
            ));
        }
        self.crash(place);
        let time = self.random.around(3 * SECOND);
        self.start_in(place, time);
    }
}
