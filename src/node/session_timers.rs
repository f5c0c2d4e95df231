//! When each of many sessions is due, so that the cost of a step is in proportion to the due sessions.
//!
//! Sessions with the same time share a list. A session that gets another time stays in its old list, where it is
//! skipped: that costs less than to remove it.

use std::collections::BTreeMap;

use crate::node::io::Time;
use crate::types::znode::SessionId;

/// For each session that has a time, the lists name at most this many, and [`LISTED_MIN`] more.
const LISTED_SHARE: usize = 4;
const LISTED_MIN: usize = 64;

/// One time for each session.
#[derive(Debug, Default)]
pub(crate) struct SessionTimers {
    lists: BTreeMap<Time, Vec<SessionId>>,
    /// How many sessions the lists name.
    listed: usize,
    time_of: BTreeMap<SessionId, Time>,
}

impl SessionTimers {
    /// Sets the time of a session, in place of its former one.
    pub(crate) fn set(&mut self, session: SessionId, at: Time) {
        if self.time_of.insert(session, at) != Some(at) {
            self.list(session, at);
        }
    }

    /// Removes the time of a session.
    pub(crate) fn clear(&mut self, session: SessionId) {
        self.time_of.remove(&session);
        self.tidy();
    }

    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.time_of.contains_key(&session)
    }

    pub(crate) fn is_due(&mut self, now: Time) -> bool {
        while let Some(mut list) = self.lists.first_entry().filter(|list| *list.key() <= now) {
            let at = *list.key();
            while let Some(session) = list.get().last() {
                if self.time_of.get(session) == Some(&at) {
                    return true;
                }
                list.get_mut().pop();
                self.listed -= 1;
            }
            list.remove();
        }
        false
    }

    /// Passes each due session to `next`, by time and by id, which returns its next time; `None`: it has none any
    /// more. A next time that is due too is left to the next call.
    pub(crate) fn take_due(&mut self, now: Time, mut next: impl FnMut(SessionId) -> Option<Time>) {
        let mut due = Vec::new();
        while let Some(list) = self.lists.first_entry().filter(|list| *list.key() <= now) {
            self.listed -= list.get().len();
            due.push(list.remove_entry());
        }
        for (at, mut sessions) in due {
            sessions.sort_unstable();
            for session in sessions {
                let Some(time) = self.time_of.get_mut(&session).filter(|time| **time == at) else {
                    continue;
                };
                if let Some(again) = next(session) {
                    *time = again;
                    self.list(session, again);
                } else {
                    self.time_of.remove(&session);
                }
            }
        }
    }

    fn list(&mut self, session: SessionId, at: Time) {
        self.lists.entry(at).or_default().push(session);
        self.listed += 1;
        self.tidy();
    }

    /// Builds the lists again if most of the sessions in them would be skipped.
    fn tidy(&mut self) {
        if self.listed <= LISTED_SHARE * self.time_of.len() + LISTED_MIN {
            return;
        }
        self.lists.clear();
        for (session, at) in &self.time_of {
            self.lists.entry(*at).or_default().push(*session);
        }
        self.listed = self.time_of.len();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: Time = Time::from_secs(1);

    fn take(timers: &mut SessionTimers, now: Time) -> Vec<SessionId> {
        let mut due = Vec::new();
        timers.take_due(now, |session| {
            due.push(session);
            None
        });
        due
    }

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
        assert_eq!(take(&mut timers, S), []);
        assert_eq!(take(&mut timers, 9 * S), [a, b]);
        assert!(!timers.has(a));
        assert_eq!(take(&mut timers, 9 * S), []);
    }

    #[test]
    fn sessions_that_come_and_go_leave_nothing() {
        let mut timers = SessionTimers::default();
        for session in 0..10_000 {
            timers.set(SessionId(session), S * 3600);
            timers.clear(SessionId(session));
            assert!(timers.listed <= LISTED_MIN);
        }
        for n in 0..10_000 {
            timers.set(SessionId(1), S * n);
            assert!(timers.listed <= LISTED_MIN + LISTED_SHARE);
        }
    }

    /// The lists are built again in the middle of a call that takes two of them.
    #[test]
    fn lists_that_are_taken_do_not_count() {
        let mut timers = SessionTimers::default();
        let (gone, stays) = (SessionId(1), SessionId(2));
        timers.set(gone, S);
        timers.set(stays, S);
        for other in 0..70 {
            timers.set(SessionId(100 + other), 2 * S);
            timers.clear(SessionId(100 + other));
        }
        timers.take_due(2 * S, |session| (session == stays).then_some(9 * S));
        assert_eq!(timers.listed, 1);
        assert!(!timers.is_due(8 * S) && timers.is_due(9 * S));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Set(u64, u32),
        Clear(u64),
        /// Each due session is due again after a time of this list, which depends on its id; 0: not again.
        Take(u32, Vec<u32>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..20u64, 0..50u32).prop_map(|(session, at)| Step::Set(session, at)),
            1 => (0..20u64).prop_map(Step::Clear),
            1 => (0..50u32, prop::collection::vec(0..10u32, 1..5))
                .prop_map(|(now, again)| Step::Take(now, again)),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_a_map(steps in prop::collection::vec(step(), 0..500)) {
            let (mut timers, mut map) = (SessionTimers::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Set(session, at) => {
                        timers.set(SessionId(session), S * at);
                        map.insert(session, S * at);
                    }
                    Step::Clear(session) => {
                        timers.clear(SessionId(session));
                        map.remove(&session);
                    }
                    Step::Take(now, again) => {
                        let now = S * now;
                        let next = |session: u64| {
                            let again = again[session as usize % again.len()];
                            (again > 0).then_some(now + S * again)
                        };
                        let mut expected: Vec<(Time, u64)> = map
                            .iter()
                            .filter(|(_, at)| **at <= now)
                            .map(|(session, at)| (*at, *session))
                            .collect();
                        expected.sort_unstable();
                        prop_assert_eq!(timers.is_due(now), !expected.is_empty());
                        let mut due = Vec::new();
                        timers.take_due(now, |session| {
                            due.push(session.0);
                            next(session.0)
                        });
                        let expected: Vec<u64> =
                            expected.into_iter().map(|(_, session)| session).collect();
                        prop_assert_eq!(&due, &expected);
                        for session in expected {
                            match next(session) {
                                Some(at) => map.insert(session, at),
                                None => map.remove(&session),
                            };
                        }
                    }
                }
                prop_assert_eq!(timers.listed, timers.lists.values().map(Vec::len).sum::<usize>());
                let known = (0..20).map(|session| timers.has(SessionId(session)));
                prop_assert!(known.eq((0..20).map(|session| map.contains_key(&session))));
            }
        }
    }
}
