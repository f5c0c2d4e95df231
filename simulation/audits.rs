//! Whether the world has settled, and whether it is in the state that it must have then.

use super::checks::agreement::same_state;
use super::checks::{Violation, require};
use super::process::Process;
use super::world::World;
use crate::node::leader::reaper::PERIOD as REAP_PERIOD;

impl World {
    /// Whether all processes run and have applied the whole log.
    pub(crate) fn is_settled(&self) -> bool {
        let last = self.kernel.checks.borrow().oracle.last();
        self.processes.iter().all(|process| {
            process.life.as_ref().is_some_and(|life| life.host.node().applied().index == last)
        })
    }

    /// Whether all processes have applied everything and no unused container is left.
    pub(crate) fn is_tidy(&self) -> bool {
        self.is_settled() && self.kernel.checks.borrow().oracle.unused_container().is_none()
    }

    /// Whether all processes follow one leader.
    pub(crate) fn has_leader(&self) -> bool {
        let checks = self.kernel.checks.borrow();
        let members = self.processes.iter();
        let mut running =
            members.filter(|process| checks.membership.is_member(process.member.node));
        let leader = |process: &Process| {
            let (term, leader, _) = process.life.as_ref()?.host.node().leadership();
            (leader != 0).then_some((term, leader))
        };
        let Some(first) = running.next().map(leader) else {
            return false;
        };
        first.is_some() && running.all(|process| leader(process) == first)
    }

    pub(crate) fn leader(&self) -> Option<usize> {
        let leads = |process: &Process| {
            process.life.as_ref().is_some_and(|life| life.host.node().leadership().2)
        };
        self.processes.iter().position(leads)
    }

    /// The final checks, when all clients have finished: the replicas are equal.
    pub(crate) fn audit(&self) -> Result<(), Violation> {
        let checks = self.kernel.checks.borrow();
        for process in &self.processes {
            let Some(life) = &process.life else { continue };
            same_state(&checks.oracle, life.host.node())?;
            let applied = life.host.node().applied().index;
            require(applied == checks.oracle.last(), "I31 replicas come together", || {
                format!("a replica is at {applied} of {}", checks.oracle.last())
            })?;
        }
        checks.oracle.check_state()?;
        checks.linearizable()?;
        let life = self.leader().and_then(|leader| self.processes[leader].life.as_ref());
        if let Some(time) = life.and_then(|life| life.host.node().stamps()) {
            // The leader looks for such znodes once per period, at one of its ticks.
            let allowed = REAP_PERIOD * 5 + self.kernel.plan.heartbeat * 2;
            let overdue = checks.oracle.overdue(time, allowed.as_millis() as u64);
            require(overdue.is_none(), "I31 what is due is deleted", || {
                format!("{overdue:?} should have gone")
            })?;
        }
        checks.order.settled(&checks.oracle)?;
        super::checks::sessions::Sessions::settled(&checks.oracle)
    }
}
