//! Which znodes the leader asks the log to delete: containers that are no longer used, and znodes
//! whose time to live is over.
//!
//! The tree keeps them in order, so the leader does not search. Each deletion is a `Reap` command in
//! the log, and the state machine checks it again when it applies it: a container that has a child by
//! then stays, and so does a znode that was set in the meantime. (ZooKeeper's leader decides alone,
//! so a set just before the deletion is lost.)
//!
//! Invariants: the leader asks for no deletion again before the last one is applied. Neither kind
//! delays the other, however many there are.

use std::time::Duration;

use crate::machine::Tree;
use crate::node::io::Time;

/// How often containers are looked for: ZooKeeper's `znode.container.checkIntervalMs`.
pub(crate) const CONTAINER_PERIOD: Duration = Duration::from_secs(60);
/// How often znodes whose time to live is over are looked for.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);
/// How many of each kind are proposed at once. The others follow a period later. So do containers,
/// since with ZooKeeper's limit of 10,000 a minute a leader could fall behind.
const AT_ONCE_MAX: usize = 1000;

#[derive(Debug)]
pub(crate) struct Reaper {
    container_period: Duration,
    next: Time,
    next_containers: Time,
    /// The first entry of the last proposed deletions.
    asked: u64,
}

impl Reaper {
    pub(crate) fn new(container_period: Duration) -> Reaper {
        Reaper { container_period, next: Time::ZERO, next_containers: Time::ZERO, asked: 0 }
    }

    /// This node leads from now on.
    pub(crate) fn lead(&mut self, now: Time) {
        (self.asked, self.next_containers) = (0, now.saturating_add(self.container_period));
    }

    /// Whether it is time to look, when the entry `applied` is the last applied one.
    pub(crate) fn is_time(&self, now: Time, applied: u64) -> bool {
        now >= self.next && applied >= self.asked
    }

    /// When it may find one next, not before that. `time` is the log's.
    pub(crate) fn next_at(&self, now: Time, tree: &Tree, time: u64) -> Time {
        let containers = tree.unused_containers().next().map(|_| self.next_containers);
        // The log's time may run a tenth faster than this node's clock.
        let left = |due: u64| Duration::from_millis(due.saturating_sub(time)) * 9 / 10;
        let due = tree.first_due().map(|due| now.saturating_add(left(due)));
        containers.into_iter().chain(due).min().unwrap_or(Time::MAX)
    }

    /// The znodes to be deleted, when `last` is the last entry of the log and `time` the wall time.
    pub(crate) fn take_due(&mut self, now: Time, last: u64, tree: &Tree, time: u64) -> Vec<String> {
        self.next = now + PERIOD;
        let mut due: Vec<String> = Vec::new();
        if !planted!(NothingReaped) {
            due.extend(tree.overdue(time).take(AT_ONCE_MAX).map(str::to_owned));
        }
        if now >= self.next_containers && !planted!(ContainersStay) {
            let others = due.len();
            due.extend(tree.unused_containers().take(AT_ONCE_MAX).map(str::to_owned));
            if due.len() - others < AT_ONCE_MAX {
                self.next_containers = now.saturating_add(self.container_period);
            }
        }
        if !due.is_empty() {
            self.asked = last + 1;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::machine::command::{Batch, Command, Op, Request};
    use crate::types::znode::{CreateMode, SessionId};

    const SECOND: Duration = Duration::from_secs(1);

    /// A machine at time 1 with this many used containers and this many znodes with a time to live
    /// of 1 ms.
    fn machine(containers: usize, short_lived: usize) -> Machine {
        let mut machine = Machine::new();
        let request =
            |seq, command| Request { session: SessionId(7), holder: 1, seq, acked: 0, command };
        let open = Command::Open { secret: [0; 16], timeout_ms: 1000, owner: 1, base: 0 };
        let mut requests = vec![request(0, open)];
        let create =
            |path: String, mode| Op::Create { path: path.into(), data: Vec::new().into(), mode };
        let mut ops = Vec::new();
        for number in 0..containers {
            let child = format!("/c{number}/x");
            ops.push(create(format!("/c{number}"), CreateMode::Container));
            ops.push(create(child.clone(), CreateMode::Persistent));
            ops.push(Op::Delete { path: child.into(), version: None });
        }
        let ttl = CreateMode::PersistentWithTtl(Duration::from_millis(1));
        ops.extend((0..short_lived).map(|number| create(format!("/t{number}"), ttl)));
        requests.extend(
            ops.into_iter().enumerate().map(|(at, op)| request(at as u64 + 1, Command::Op(op))),
        );
        let applied = machine.apply(1, &Batch { time: 1, requests });
        assert!(applied.outcomes.iter().all(|outcome| outcome.result.is_ok()));
        machine
    }

    #[test]
    fn containers_wait_for_their_period_and_short_lived_znodes_for_theirs() {
        let machine = machine(1, 1);
        let mut reaper = Reaper::new(60 * SECOND);
        reaper.lead(100 * SECOND);
        let tree = machine.tree();
        assert!(reaper.is_time(100 * SECOND, 0));
        assert!(reaper.take_due(100 * SECOND, 9, &tree, 1).is_empty());
        assert!(!reaper.is_time(100 * SECOND, 99));
        assert_eq!(reaper.take_due(101 * SECOND, 9, &tree, 2), ["/t0"]);
        // The deletion is in the log, as entry 10, and not applied.
        assert!(!reaper.is_time(160 * SECOND, 9));
        assert!(reaper.is_time(160 * SECOND, 10));
        assert_eq!(reaper.take_due(160 * SECOND, 10, &tree, 1), ["/c0"]);
        assert!(reaper.take_due(219 * SECOND, 11, &tree, 1).is_empty());
        // A new leader waits for a whole period first.
        reaper.lead(219 * SECOND);
        assert!(reaper.take_due(278 * SECOND, 11, &tree, 1).is_empty());
        assert_eq!(reaper.take_due(279 * SECOND, 11, &tree, 1), ["/c0"]);
    }

    #[test]
    fn however_many_are_due_both_kinds_have_their_turn() {
        let mut machine = machine(2 * AT_ONCE_MAX + 1, AT_ONCE_MAX + 1);
        let mut reaper = Reaper::new(60 * SECOND);
        for (second, expected) in [2 * AT_ONCE_MAX, AT_ONCE_MAX + 1, 1, 0].into_iter().enumerate() {
            let now = SECOND * second as u32;
            let due = reaper.take_due(now, 0, &machine.tree(), 2);
            assert_eq!(due.len(), expected, "at second {second}");
            let reap = |path| Request {
                session: SessionId(0),
                holder: 0,
                seq: 0,
                acked: 0,
                command: Command::Reap { path },
            };
            let requests = due.into_iter().map(reap).collect();
            let applied = machine.apply(1, &Batch { time: 2, requests });
            assert!(applied.outcomes.iter().all(|outcome| outcome.result.is_ok()));
        }
        machine.check_invariants().unwrap();
    }
}
