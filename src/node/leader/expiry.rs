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
use crate::types::znode::SessionId;

#[derive(Debug)]
pub(crate) struct ExpiryTable {
    bucket: Duration,
    deadline_of: BTreeMap<SessionId, Time>,
    /// When each deadline is checked: never later than the deadline. So the frequent renewals only
    /// change the deadline.
    looks: SessionTimers,
}

impl ExpiryTable {
    /// `bucket` must not be zero.
    pub(crate) fn new(bucket: Duration) -> ExpiryTable {
        ExpiryTable { bucket, deadline_of: BTreeMap::new(), looks: SessionTimers::default() }
    }

    /// The session was renewed at `now`.
    pub(crate) fn touch(&mut self, session: SessionId, timeout: Duration, now: Time) {
        let bucket = self.bucket.as_nanos().max(1);
        let rounded = (now + timeout).as_nanos().div_ceil(bucket) * bucket;
        let deadline = Duration::from_nanos(u64::try_from(rounded).unwrap_or(u64::MAX));
        if !self.looks.has(session) {
            self.looks.set(session, deadline);
        }
        let known = self.deadline_of.entry(session).or_default();
        *known = deadline.max(*known);
    }

    /// When the session ends if it is not renewed.
    pub(crate) fn deadline(&self, session: SessionId) -> Option<Time> {
        self.deadline_of.get(&session).copied()
    }

    /// The session is closed.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.deadline_of.remove(&session);
        self.looks.clear(session);
    }

    /// Removes and returns the expired sessions, in a fixed order.
    pub(crate) fn take_expired(&mut self, now: Time) -> Vec<SessionId> {
        let mut expired = Vec::new();
        for session in self.looks.take_due(now) {
            match self.deadline_of.get(&session) {
                Some(deadline) if *deadline > now => self.looks.set(session, *deadline),
                _ => {
                    self.deadline_of.remove(&session);
                    expired.push(session);
                }
            }
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn expires_in_buckets_and_never_early() {
        let mut table = ExpiryTable::new(100 * MS);
        let (a, b) = (SessionId(1), SessionId(2));
        table.touch(a, 1000 * MS, 30 * MS);
        table.touch(b, 1000 * MS, 99 * MS);
        assert_eq!(table.take_expired(1099 * MS), []);
        assert_eq!(table.take_expired(1100 * MS), [a, b]);
        assert_eq!(table.take_expired(9999 * MS), []);
    }

    #[test]
    fn touch_moves_a_deadline_forward_only() {
        let mut table = ExpiryTable::new(100 * MS);
        let a = SessionId(1);
        table.touch(a, 1000 * MS, 500 * MS);
        table.touch(a, 1000 * MS, 100 * MS);
        assert_eq!(table.take_expired(1499 * MS), []);
        table.touch(a, 1000 * MS, 900 * MS);
        assert_eq!(table.take_expired(1899 * MS), []);
        assert_eq!(table.take_expired(1900 * MS), [a]);
    }

    #[test]
    fn a_closed_session_does_not_expire() {
        let mut table = ExpiryTable::new(100 * MS);
        table.touch(SessionId(1), 1000 * MS, Duration::ZERO);
        table.forget(SessionId(1));
        assert_eq!(table.take_expired(9999 * MS), []);
    }
}
