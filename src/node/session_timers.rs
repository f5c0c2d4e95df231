//! When each of many sessions is due, so that the cost of a step is in proportion to the due
//! sessions.

use std::collections::{BTreeMap, BTreeSet};

use crate::node::io::Time;
use crate::types::znode::SessionId;

/// One time for each session.
#[derive(Debug, Default)]
pub(crate) struct SessionTimers {
    by_time: BTreeSet<(Time, SessionId)>,
    time_of: BTreeMap<SessionId, Time>,
}

impl SessionTimers {
    /// Sets the time of a session, in place of its former one.
    pub(crate) fn set(&mut self, session: SessionId, at: Time) {
        if let Some(before) = self.time_of.insert(session, at) {
            self.by_time.remove(&(before, session));
        }
        self.by_time.insert((at, session));
    }

    /// Removes the time of a session.
    pub(crate) fn clear(&mut self, session: SessionId) {
        if let Some(before) = self.time_of.remove(&session) {
            self.by_time.remove(&(before, session));
        }
    }

    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.time_of.contains_key(&session)
    }

    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.by_time.first().is_some_and(|(at, _)| *at <= now)
    }

    /// Removes and returns the due sessions: by time, and by id.
    pub(crate) fn take_due(&mut self, now: Time) -> Vec<SessionId> {
        let mut due = Vec::new();
        while self.is_due(now)
            && let Some((_, session)) = self.by_time.pop_first()
        {
            self.time_of.remove(&session);
            due.push(session);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Time = Time::from_secs(1);

    #[test]
    fn each_session_comes_once_at_its_last_time() {
        let (a, b, c) = (SessionId(1), SessionId(2), SessionId(3));
        let mut timers = SessionTimers::default();
        timers.set(c, S);
        timers.set(a, 3 * S);
        timers.set(b, 2 * S);
        timers.set(a, 2 * S);
        timers.clear(c);
        assert!(!timers.is_due(S) && timers.is_due(2 * S) && timers.has(a) && !timers.has(c));
        assert_eq!(timers.take_due(S), []);
        assert_eq!(timers.take_due(9 * S), [a, b]);
        assert!(!timers.has(a));
        assert_eq!(timers.take_due(9 * S), []);
    }
}
