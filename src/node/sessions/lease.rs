//! When the sessions of this node count as lost, by their leases and local deadlines.

use std::time::Duration;

use super::LocalSessions;
use super::agenda::SessionTask;
use super::holder::LocalSession;
use crate::machine::command::Command;
use crate::node::io::{Effects, RequestId, Time};
use crate::types::session::SessionState;
use crate::types::znode::SessionId;

/// How many results of a silent session the state machine may keep.
const KEPT_MAX: u64 = 16;
/// How long before its due time a session is renewed together with others.
const RENEWED_AHEAD: Duration = Duration::from_millis(250);
/// The most sessions that one ReadIndex request renews, so that it is no longer than a message may be. The next
/// request renews the others.
const RENEWED_MAX: usize = 1 << 17;

/// The part of a session's timeout that this node trusts. The rest covers clocks that run at
/// different rates (`1 - 9/10` of the timeout, so rates may differ by 10 %).
fn trusted(timeout: Duration) -> Duration {
    timeout / 10 * if planted!(LeaseTooLong) { 20 } else { 9 }
}

/// How long after a renewal a session is renewed again. It is suspended after half of its timeout,
/// so one election does not suspend it.
fn renewed_after(timeout: Duration) -> Duration {
    // The timeout of a resumed session may not be known yet.
    if timeout.is_zero() { Duration::from_secs(1) } else { timeout / 3 }
}

/// Until when a session is certainly alive, and when it is suspended or lost.
#[derive(Debug)]
pub(super) struct Lease {
    timeout: Duration,
    /// Until when the session is certainly alive. Not known before it is open.
    valid_until: Time,
    /// When it counts as lost: not before ReadIndex requests have had the time to renew it after it
    /// was opened.
    lost_at: Time,
    /// When the last ReadIndex request that has renewed it was sent.
    renewed_at: Time,
}

impl Lease {
    pub(super) fn new(timeout: Duration) -> Lease {
        Lease { timeout, valid_until: Time::MAX, lost_at: Time::MAX, renewed_at: Time::ZERO }
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// When the session is renewed that was last renewed at `since`.
    pub(super) fn next_renewal(&self, since: Time) -> Time {
        since + renewed_after(self.timeout)
    }

    /// The session is open; its open was first sent at `since`. Returns until when it is certainly alive.
    pub(super) fn begin(&mut self, since: Time, now: Time) -> Time {
        let trusted = trusted(self.timeout);
        // If the opening took long, perhaps longer than a session lives without a renewal, the session lives
        // from now on, but is certainly alive only once a ReadIndex request has renewed it. Otherwise it could
        // count as alive, then lost, then alive again.
        (self.valid_until, self.lost_at) = match now < since + self.timeout / 3 {
            true => (since + trusted, since + trusted),
            false => (since, now + trusted),
        };
        self.renewed_at = since;
        self.valid_until
    }

    /// A ReadIndex request sent at `sent` was confirmed. Returns until when the session is certainly alive, or
    /// nothing if that is too late.
    fn renew(&mut self, sent: Time, now: Time) -> Option<Time> {
        let valid_until = sent + trusted(self.timeout);
        if now >= self.lost_at.min(valid_until) {
            return None;
        }
        self.renewed_at = self.renewed_at.max(sent);
        if valid_until > self.valid_until {
            (self.valid_until, self.lost_at) = (valid_until, valid_until);
        }
        Some(self.valid_until)
    }

    /// When the session is suspended unless a ReadIndex request renews it.
    fn suspended_at(&self) -> Time {
        (self.renewed_at + self.timeout / 2).min(self.lost_at)
    }
}

impl LocalSession {
    /// The state machine keeps the results of a session until its next write acknowledges them. A session
    /// that falls silent after many writes acknowledges them by an `Authenticate` without ids, which
    /// changes nothing. Returns whether it does.
    fn acknowledge(&mut self) -> bool {
        let is_due = self.requests.kept() > KEPT_MAX && !self.closing;
        if is_due {
            self.requests.push(RequestId(0), Command::Authenticate { ids: Vec::new() });
        }
        is_due
    }
}

impl LocalSessions {
    /// A ReadIndex request sent at `sent` was confirmed for the session. After the session's
    /// deadline that is too late: its user may have seen that the session is no longer certainly
    /// alive, and that must not change back.
    pub(super) fn renew(
        &mut self,
        session: SessionId,
        sent: Time,
        now: Time,
        effects: &mut Effects,
    ) {
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        if !held.is_open() {
            return;
        }
        let before = held.lease.valid_until;
        let Some(valid_until) = held.lease.renew(sent, now) else { return };
        if valid_until > before {
            effects.leases.push((held.session_holder(), valid_until));
        }
        // While it is connected, its next check is early enough.
        if held.state != SessionState::Connected {
            self.deadlines.set(session, held.lease.suspended_at());
        }
        held.set_state(SessionState::Connected, effects);
    }

    /// All sessions that are connected are renewed at this moment.
    pub(crate) fn renew_all(&mut self, at: Time, now: Time, effects: &mut Effects) {
        let connected =
            self.sessions.iter().filter(|(_, held)| held.state == SessionState::Connected);
        let connected: Vec<SessionId> = connected.map(|(session, _)| *session).collect();
        connected.into_iter().for_each(|session| self.renew(session, at, now, effects));
    }

    /// The session is open: it is renewed from now on, and its deadlines count.
    pub(super) fn begin_lease(&mut self, session: SessionId) {
        if let Some(held) = self.sessions.get(&session) {
            self.renewals.set(session, held.lease.next_renewal(held.lease.renewed_at));
            self.deadlines.set(session, held.lease.suspended_at());
        }
    }

    /// The session is over.
    pub(super) fn end_lease(&mut self, session: SessionId) {
        self.renewals.clear(session);
        self.deadlines.clear(session);
    }

    /// Whether sessions are to be renewed now.
    pub(super) fn has_renewals(&mut self, now: Time) -> bool {
        self.renewals.is_due(now)
    }

    /// The sessions that a ReadIndex request of now renews. A request for a sync (`sync`) carries only
    /// the sessions that must be renewed now, so that syncs cost the same however many sessions there
    /// are. Other requests also carry sessions that are due soon, so that there are few requests.
    pub(super) fn take_renewals(&mut self, now: Time, sync: bool) -> Vec<SessionId> {
        let ahead = if sync { Duration::ZERO } else { RENEWED_AHEAD };
        let (sessions, agenda, mut due) = (&mut self.sessions, &mut self.agenda, Vec::new());
        self.renewals.take_due(now + ahead, |session| {
            if due.len() >= RENEWED_MAX {
                return Some(now);
            }
            due.push(session);
            let held = sessions.get_mut(&session)?;
            if held.acknowledge() {
                agenda.add(SessionTask::Send, session);
            }
            Some(held.lease.next_renewal(now))
        });
        due
    }

    /// These sessions were carried by requests that may be lost: the next one renews them.
    pub(super) fn renew_again(&mut self, sessions: Vec<SessionId>, now: Time) {
        for session in sessions {
            if self.renewals.has(session) {
                self.renewals.set(session, now);
            }
        }
    }

    /// Does the work of each tick, once a heartbeat. Requests that have taken longer than `patience` may
    /// be lost and are sent again. Returns the sessions that count as lost from now on.
    pub(crate) fn tick(
        &mut self,
        patience: Duration,
        now: Time,
        effects: &mut Effects,
    ) -> Vec<SessionId> {
        let lost = self.check_deadlines(now, effects);
        lost.iter().for_each(|session| self.lose(*session, effects));
        let unrenewed = self.read_index.restart_older(now.saturating_sub(patience));
        self.renew_again(unrenewed, now);
        self.send_stuck_again(now);
        lost
    }

    /// Suspends the sessions that were not confirmed for half of their timeout, and names those
    /// whose local deadline has passed.
    fn check_deadlines(&mut self, now: Time, effects: &mut Effects) -> Vec<SessionId> {
        let (sessions, mut lost) = (&mut self.sessions, Vec::new());
        self.deadlines.take_due(now, |session| {
            let held = sessions.get_mut(&session)?;
            if now >= held.lease.lost_at {
                lost.push(session);
                return None;
            }
            let suspended_at = held.lease.suspended_at();
            if now < suspended_at {
                return Some(suspended_at);
            }
            held.set_state(SessionState::Suspended, effects);
            Some(held.lease.lost_at)
        });
        lost
    }

    /// The local deadline of the session has passed: it counts as lost from now on. Writes that
    /// were already sent may still happen. They are answered when their outcome is in the log.
    fn lose(&mut self, session: SessionId, effects: &mut Effects) {
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        held.set_state(SessionState::Expired, effects);
        self.renewals.clear(session);
        self.agenda.add(SessionTask::Settle, session);
        let error = held.over();
        held.requests.fail_unsent(&error, effects);
        self.fail_waits(session, effects);
    }

    /// Forgets the lost sessions that owe no answer any more.
    pub(crate) fn forget_settled(&mut self) {
        let sessions = &mut self.sessions;
        let mut lost = self.agenda.take(SessionTask::Settle);
        lost.retain(|id| {
            let owes = sessions.get(id).is_some_and(|held| held.is_over() && !held.is_settled());
            if !owes && sessions.get(id).is_some_and(LocalSession::is_over) {
                sessions.remove(id);
            }
            owes
        });
        self.agenda.put_back(SessionTask::Settle, lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::command::{Command, Outcome, Reply};
    use crate::node::io::RequestId;
    use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
    use crate::node::versions::Gate;
    use crate::types::version::FIRST;

    const S: Time = Time::from_secs(1);

    /// One session with a timeout of 10 s, opened at 100 s.
    fn opened(effects: &mut Effects) -> (LocalSessions, SessionId) {
        let mut sessions = LocalSessions::new(S, false, 7);
        let (session, holder) = (SessionId(1), 2);
        let command = Command::Open { secret: [0; 16], timeout_ms: 10_000, owner: 1, base: 0 };
        sessions.begin((RequestId(1), session), holder, 10 * S, command, None, effects);
        let gate = Gate { version: FIRST, possible: FIRST };
        assert_eq!(sessions.take_unsent(gate, 100 * S).len(), 1);
        let result = Ok(Reply::Session { timeout_ms: 10_000 });
        let opened = Outcome { session, holder, seq: 0, zxid: 1, result };
        sessions.outcome(&opened, 101 * S, 1, effects);
        (sessions, session)
    }

    /// A request was sent in time and confirmed too late, before the node had checked its clock
    /// again. A session that was no longer certainly alive, as its user could see, became alive
    /// again.
    #[test]
    fn a_lease_that_has_run_out_is_not_renewed() {
        let mut effects = Effects::default();
        let (mut sessions, session) = opened(&mut effects);
        sessions.renew(session, 105 * S, 106 * S, &mut effects);
        let leases =
            |effects: &Effects| effects.leases.iter().map(|(_, until)| *until).collect::<Vec<_>>();
        assert_eq!(leases(&effects), [109 * S, 114 * S]);
        sessions.renew(session, 113 * S, 114 * S, &mut effects);
        assert_eq!(leases(&effects).len(), 2, "too late");
        assert_eq!(sessions.check_deadlines(114 * S, &mut effects), [session]);
    }

    /// The leader counted the timeout from the session's opening. The node renewed the session only
    /// after its own lagging replica had applied the opening.
    #[test]
    fn a_session_that_may_be_open_is_renewed() {
        let mut sessions = LocalSessions::new(S, false, 7);
        let command = Command::Open { secret: [0; 16], timeout_ms: 6_000, owner: 1, base: 0 };
        let (of, effects) = ((RequestId(1), SessionId(1)), &mut Effects::default());
        sessions.begin(of, 2, 6 * S, command, None, effects);
        assert!(!sessions.has_renewals(100 * S), "it was not sent");
        let gate = Gate { version: FIRST, possible: FIRST };
        assert_eq!(sessions.take_unsent(gate, 100 * S).len(), 1);
        assert!(!sessions.has_renewals(100 * S));
        for after in (2..40).step_by(2) {
            sessions.send_again((100 + after) * S - S / 2);
            assert_eq!(sessions.take_unsent(gate, (100 + after) * S - S / 2).len(), 1);
            assert_eq!(sessions.take_renewals((100 + after) * S, true), [SessionId(1)]);
        }
    }

    #[test]
    fn a_session_is_renewed_in_its_time_and_again_if_that_was_lost() {
        let (mut sessions, session) = opened(&mut Effects::default());
        assert!(!sessions.has_renewals(103 * S) && sessions.has_renewals(104 * S));
        assert_eq!(sessions.take_renewals(103 * S, true), []);
        assert_eq!(sessions.take_renewals(104 * S, true), [session]);
        assert_eq!(sessions.take_renewals(104 * S, true), []);
        sessions.renew_again(vec![session], 104 * S);
        assert_eq!(sessions.take_renewals(104 * S, true), [session]);
        let soon = 104 * S + renewed_after(10 * S) - RENEWED_AHEAD;
        assert_eq!(sessions.take_renewals(soon, true), []);
        assert_eq!(sessions.take_renewals(soon, false), [session], "with others");
        sessions.end(session, SessionState::Expired, &mut Effects::default());
        sessions.renew_again(vec![session], soon);
        assert!(!sessions.has_renewals(soon + 9 * S));
        assert_eq!(sessions.check_deadlines(200 * S, &mut Effects::default()), []);
    }

    /// All sessions that were due at once, as after an election, were in one message, which could be too long to be
    /// sent at all.
    #[test]
    fn very_many_sessions_are_renewed_by_several_requests() {
        const MORE: u64 = 10;
        let mut sessions = LocalSessions::new(S, false, 7);
        let all = RENEWED_MAX as u64 + MORE;
        (0..all).for_each(|session| sessions.renewals.set(SessionId(u64::MAX - session), S));
        let sizes = [(); 3].map(|()| {
            let due = sessions.take_renewals(S, false);
            assert_eq!(sessions.has_renewals(S), due.len() == RENEWED_MAX);
            due.len() as u64
        });
        assert_eq!(sizes, [RENEWED_MAX as u64, MORE, 0]);
        let (boot, read_index) = (u64::MAX, u64::MAX);
        let sessions = vec![SessionId(u64::MAX); RENEWED_MAX];
        let message = PeerMessage::ReadIndex { boot, read_index, sessions };
        assert!(message.encode(Vec::new()).len() < MESSAGE_BYTES_MAX / 2);
    }
}
