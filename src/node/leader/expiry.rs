//! Which sessions the leader believes alive, and when each of them expires.
//!
//! Only the leader keeps this table. A session that is not renewed within its timeout becomes an
//! `Expire` command. So an expiry is a log entry like any other, and every replica deletes the
//! session's ephemerals at the same index. The state machine decides what closing a session does to
//! the tree.
//!
//! Invariants: a renewal never moves a deadline back. A new leader, and one that was paused, grants
//! every session its full timeout. Deadlines are rounded up to the next bucket, so no session expires
//! early.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::node::io::Time;
use crate::node::session_timers::SessionTimers;
use crate::types::membership::NodeId;
use crate::types::znode::SessionId;

#[derive(Debug)]
pub(crate) struct ExpiryTable {
    bucket: Duration,
    sessions: BTreeMap<SessionId, SessionLease>,
    /// When each deadline is checked: never later than the deadline. So the frequent renewals only
    /// change the deadline.
    looks: SessionTimers,
}

/// What the leader grants a session. Most renewals need nothing else.
#[derive(Clone, Copy, Debug)]
struct SessionLease {
    owner: NodeId,
    timeout: Duration,
    deadline: Time,
}

impl ExpiryTable {
    /// `bucket` must not be zero.
    pub(crate) fn new(bucket: Duration) -> ExpiryTable {
        ExpiryTable { bucket, sessions: BTreeMap::new(), looks: SessionTimers::default() }
    }

    /// The session, which is on the node `owner`, lives for its whole timeout from `now` on.
    pub(crate) fn grant(
        &mut self,
        session: SessionId,
        owner: NodeId,
        timeout: Duration,
        now: Time,
    ) {
        let deadline = rounded_up(now + timeout, self.bucket);
        let known = self.sessions.get(&session).map_or(Time::ZERO, |lease| lease.deadline);
        let deadline = deadline.max(known);
        self.sessions.insert(session, SessionLease { owner, timeout, deadline });
        if !self.looks.has(session) {
            self.looks.set(session, deadline);
        }
    }

    /// The node `owner` renews the session at `now`. Returns `false` if the session is not alive there.
    pub(crate) fn renew(&mut self, session: SessionId, owner: NodeId, now: Time) -> bool {
        let Some(lease) = self.sessions.get_mut(&session).filter(|lease| lease.owner == owner)
        else {
            return false;
        };
        lease.deadline = rounded_up(now + lease.timeout, self.bucket).max(lease.deadline);
        true
    }

    /// When the session ends if it is not renewed.
    pub(crate) fn deadline(&self, session: SessionId) -> Option<Time> {
        self.sessions.get(&session).map(|lease| lease.deadline)
    }

    /// The session is closed.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        self.looks.clear(session);
    }

    /// Removes and returns the expired sessions, in a fixed order.
    pub(crate) fn take_expired(&mut self, now: Time) -> Vec<SessionId> {
        let (sessions, mut expired) = (&mut self.sessions, Vec::new());
        self.looks.take_due(now, |session| {
            let deadline = sessions.get(&session).map(|lease| lease.deadline);
            let later = deadline.filter(|deadline| *deadline > now);
            if later.is_none() {
                sessions.remove(&session);
                expired.push(session);
            }
            later
        });
        expired
    }
}

fn rounded_up(time: Time, bucket: Duration) -> Time {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let bucket = nanos(bucket).max(1);
    Duration::from_nanos(nanos(time).div_ceil(bucket).saturating_mul(bucket))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn expires_in_buckets_and_never_early() {
        let mut table = ExpiryTable::new(100 * MS);
        let (a, b) = (SessionId(1), SessionId(2));
        table.grant(a, 7, 1000 * MS, 30 * MS);
        table.grant(b, 7, 1000 * MS, 99 * MS);
        assert_eq!(table.take_expired(1099 * MS), []);
        assert_eq!(table.take_expired(1100 * MS), [a, b]);
        assert_eq!(table.take_expired(9999 * MS), []);
    }

    #[test]
    fn a_renewal_moves_a_deadline_forward_only() {
        let mut table = ExpiryTable::new(100 * MS);
        let a = SessionId(1);
        table.grant(a, 7, 1000 * MS, 500 * MS);
        table.grant(a, 7, 1000 * MS, 100 * MS);
        assert_eq!(table.take_expired(1499 * MS), []);
        table.grant(a, 7, 1000 * MS, 900 * MS);
        assert_eq!(table.take_expired(1899 * MS), []);
        assert_eq!(table.take_expired(1900 * MS), [a]);
    }

    #[test]
    fn a_closed_session_does_not_expire() {
        let mut table = ExpiryTable::new(100 * MS);
        table.grant(SessionId(1), 7, 1000 * MS, Duration::ZERO);
        table.forget(SessionId(1));
        assert_eq!(table.take_expired(9999 * MS), []);
    }

    #[test]
    fn only_the_node_of_a_session_renews_it() {
        let mut table = ExpiryTable::new(100 * MS);
        let a = SessionId(1);
        table.grant(a, 7, 1000 * MS, Duration::ZERO);
        assert!(!table.renew(a, 8, 500 * MS) && !table.renew(SessionId(2), 7, 500 * MS));
        assert_eq!(table.deadline(a), Some(1000 * MS));
        assert!(table.renew(a, 7, 500 * MS));
        assert_eq!(table.take_expired(1499 * MS), []);
        // It moves to another node.
        table.grant(a, 8, 2000 * MS, 500 * MS);
        assert!(!table.renew(a, 7, 600 * MS) && table.renew(a, 8, 700 * MS));
        assert_eq!(table.take_expired(2699 * MS), []);
        assert_eq!(table.take_expired(2700 * MS), [a]);
        assert!(!table.renew(a, 8, 2700 * MS));
    }
}
