//! Advancing the clock of an in-memory cluster, and skipping the time in which nothing happens.
//!
//! In small steps, an hour of a cluster of five has 36,000 heartbeats of the leader, with all that follows from them. If
//! nothing has happened for a while, and everybody is there, nothing but heartbeats will happen until the first timer of a
//! user, thread that waits for a time, or znode whose time to live ends. So the clock may go there in one step, if all
//! nodes are told beforehand that the others were there ([`Input::Idle`]).
//!
//! Threads of users get their real time to react: after each event that they may see, the steps are small for as long as
//! they take to wake up.

use std::collections::BTreeSet;
use std::time::Duration;

use super::nodes::{NodeSlot, Nodes};
use crate::node::io::{Input, Time};
use crate::runtime::clock::Clock;
use crate::runtime::host::Host;

/// The steps are small for so long after the last event, by the cluster's clock and in real time.
const QUIET_AFTER: Duration = Duration::from_secs(10);
const REACTS_WITHIN: Duration = Duration::from_millis(20);
/// They are small for the last part of each advance, too.
const SMALL_LAST: Duration = Duration::from_secs(1);
/// The longest step. What a node does at times of its own may come later by this.
const SKIPPED_MAX: Duration = Duration::from_secs(60);

/// When something last happened that users may see.
pub(super) struct Quiet {
    since: Time,
    real: Clock,
    real_since: Time,
    #[cfg(test)]
    steps: u64,
}

impl Quiet {
    pub(super) fn new(now: Time) -> Quiet {
        let real = Clock::real();
        Quiet {
            since: now,
            real_since: real.now(),
            real,
            #[cfg(test)]
            steps: 0,
        }
    }

    /// Something happens.
    pub(super) fn end(&mut self, clock: &Clock) {
        (self.since, self.real_since) = (clock.now(), self.real.now());
    }

    fn is_long(&self, now: Time) -> bool {
        now >= self.since + QUIET_AFTER && self.real.now() >= self.real_since + REACTS_WITHIN
    }
}

impl NodeSlot {
    /// The host, if it runs and lacks nothing.
    fn sound_host(&self) -> Option<&Host> {
        let running = self.running.as_ref().filter(|_| !self.is_frozen && !self.is_full)?;
        Some(&running.host)
    }
}

impl Nodes {
    pub(super) fn advance(&mut self, time: Duration) {
        self.run_until_idle();
        let mut left = time;
        while !left.is_zero() {
            let by = self.skip(left.saturating_sub(SMALL_LAST)).unwrap_or_else(|| {
                let arrives_in = self.links.next_at().map(|at| at.saturating_sub(self.clock.now()));
                let step = self.settings.heartbeat.min(arrives_in.unwrap_or(Time::MAX));
                // A message that is due arrives with the next step.
                step.max(Duration::from_millis(1)).min(left)
            });
            #[cfg(test)]
            (self.quiet.steps += 1);
            self.clock.advance(by);
            left -= by;
            self.run_until_idle();
        }
    }

    /// Prepares the nodes for a step of at most this length in which nothing happens, and returns its length; `None`: the
    /// next step is a small one.
    fn skip(&mut self, most: Duration) -> Option<Duration> {
        let now = self.clock.now();
        let by = self.quiet_until(now)?.saturating_sub(now).min(SKIPPED_MAX).min(most);
        if by <= self.settings.heartbeat * 2 {
            return None;
        }
        for running in self.slots.iter_mut().filter_map(|slot| slot.running.as_mut()) {
            running.host.input(Input::Idle { until: now + by });
        }
        self.run_until_idle();
        Some(by)
    }

    /// Until when nothing but heartbeats happens; `None`: something may happen at any time.
    fn quiet_until(&self, now: Time) -> Option<Time> {
        if !self.quiet.is_long(now) || !self.links.are_sound() {
            return None;
        }
        let hosts: Vec<&Host> =
            self.slots.iter().map(NodeSlot::sound_host).collect::<Option<_>>()?;
        let mut until = self.clock.first_deadline().unwrap_or(Time::MAX);
        for host in &hosts {
            until = until.min(host.quiet_until()?);
        }
        let first = hosts.first()?.member()?;
        let (_, leader, _) = first.leadership();
        let is_level = |host: &Host| {
            let (zxid, leads) = (host.engine().zxid(), host.engine().leadership().1);
            zxid == first.machine().zxid() && leads == leader && leader != 0
        };
        // A session that nobody holds ends in its time.
        let held: BTreeSet<_> = hosts.iter().flat_map(|host| host.held()).collect();
        let all_held = first.machine().sessions().all(|(session, _)| held.contains(&session));
        (all_held && hosts.iter().all(|host| is_level(host))).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::{Missed, Schedule, Timer};
    use crate::testing::Cluster;
    use crate::types::session::SessionState;
    use crate::types::watch::{EventKind, WatchEvent, WatchMode};
    use crate::types::znode::CreateMode;

    const HOUR: Duration = Duration::from_secs(3600);

    /// An hour of five members took eight seconds.
    #[test]
    fn idle_time_is_skipped() {
        let cluster = Cluster::new(5);
        let sessions: Vec<_> = (0..5).map(|node| cluster.node(node).session()).collect();
        for session in &sessions {
            session.sync().wait().unwrap();
        }
        let (term, before) = (cluster.node(0).status().term, sessions[0].sync().wait().unwrap());
        let steps = cluster.order(|nodes| nodes.quiet.steps);
        cluster.advance(24 * HOUR);
        let steps = cluster.order(|nodes| nodes.quiet.steps) - steps;
        assert!(steps < 5000, "{steps} steps for a day");
        assert!(sessions.iter().all(|session| session.state() == SessionState::Connected));
        // Nothing has happened: no election, no write.
        assert_eq!(cluster.node(0).status().term, term);
        assert_eq!(sessions[4].sync().wait(), Ok(before));
    }

    #[test]
    fn what_ends_by_time_ends_in_time() {
        const MINUTE: Duration = Duration::from_secs(60);
        let cluster = Cluster::new(3);
        let session = cluster.node(1).session();
        let watch = session.watch("/", WatchMode::PersistentRecursive).wait().unwrap();
        let create = |path: &str, ttl| {
            session.create(path, b"", CreateMode::PersistentWithTtl(ttl)).wait().unwrap();
        };
        create("/a", HOUR);
        create("/b", HOUR + 3 * MINUTE);
        cluster.advance(HOUR - MINUTE);
        assert!(session.exists("/a").wait().unwrap().is_some());
        cluster.advance(2 * MINUTE);
        assert!(session.exists("/a").wait().unwrap().is_none());
        assert!(session.exists("/b").wait().unwrap().is_some());
        cluster.advance(HOUR);
        assert!(session.exists("/b").wait().unwrap().is_none());
        let gone = |event: &WatchEvent| event.kind == EventKind::Deleted;
        assert_eq!(watch.events().try_iter().filter(gone).count(), 2);
    }

    /// Nobody holds it, so that nobody renews it.
    #[test]
    fn a_session_that_nobody_holds_expires() {
        let cluster = Cluster::new(3);
        let session = cluster.node(0).session();
        let one = cluster.node(1).open_session().unwrap();
        one.create("/e", b"", CreateMode::Ephemeral).wait().unwrap();
        one.detach().wait().unwrap();
        session.sync().wait().unwrap();
        assert!(session.exists("/e").wait().unwrap().is_some());
        cluster.advance(HOUR);
        assert!(session.exists("/e").wait().unwrap().is_none());
    }

    /// Each of its waits ends a skip.
    #[test]
    fn a_thread_that_waits_for_timers_gets_all_of_them() {
        const INTERVAL: Duration = Duration::from_secs(600);
        let cluster = Cluster::new(1);
        let schedule = Schedule::new(&cluster.node(0).session(), "/s").unwrap();
        let timer = Timer::every(INTERVAL).unwrap().missed(Missed::All);
        schedule.set("often", &timer).wait().unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let fires =
                    std::iter::repeat_with(|| schedule.fire(|_, multi| multi).wait().unwrap());
                fires.take(4).map(|fire| fire.due()).collect::<Vec<_>>()
            });
            for _ in 0..1000 {
                if thread.is_finished() {
                    break;
                }
                cluster.advance(HOUR / 2);
            }
            let due = thread.join().unwrap();
            for pair in due.windows(2) {
                assert_eq!(pair[1].duration_since(pair[0]).unwrap(), INTERVAL, "{due:?}");
            }
        });
    }
}
