//! Which requests the sessions of this node send to the leader, and when they send them again.

use super::LocalSessions;
use super::agenda::SessionTask;
use crate::machine::command::{Command, Request};
use crate::node::io::Time;
use crate::node::versions::Gate;
use crate::types::znode::{SessionId, Zxid};

impl LocalSessions {
    /// Holds back the session's writes after this one, until [`Self::lift_send_limits`].
    pub(crate) fn set_send_limit(&mut self, session: SessionId, upto: u64) {
        if let Some(held) = self.sessions.get_mut(&session) {
            held.requests.limit(Some(upto));
            self.agenda.add(SessionTask::LiftSendLimit, session);
        }
    }

    /// Sends the writes that [`Self::set_send_limit`] held back.
    pub(crate) fn lift_send_limits(&mut self) {
        for session in self.agenda.take(SessionTask::LiftSendLimit) {
            if let Some(held) = self.sessions.get_mut(&session) {
                held.requests.limit(None);
                self.agenda.add(SessionTask::Send, session);
            }
        }
    }

    /// Takes the requests to send to the leader now, each session's in order.
    pub(crate) fn take_unsent(&mut self, gate: Gate, now: Time) -> Vec<Request> {
        if gate != self.gate {
            // Checks the held-back requests again.
            self.agenda.turn(SessionTask::AwaitVersion, SessionTask::Send);
            self.gate = gate;
        }
        let mut requests = Vec::new();
        for session in self.agenda.take(SessionTask::Send) {
            let Some(held) = self.sessions.get_mut(&session) else {
                continue;
            };
            if held.is_over() {
                continue;
            }
            let begins = self.agenda.add(SessionTask::AwaitOutcome, session);
            // The leader may count the timeout from now on, even while this node lags too far behind
            // to see that the session is open.
            if held.requests.sends_opening() && !self.renewals.has(session) {
                self.renewals.set(session, held.lease.next_renewal(now));
            }
            let holder = held.holder;
            let send = |seq, acked, command: &Command| {
                requests.push(Request { session, holder, seq, acked, command: command.clone() });
            };
            if held.requests.take_unsent(gate, now, begins, send) {
                self.agenda.add(SessionTask::AwaitVersion, session);
            }
        }
        requests
    }

    /// Whether there may be requests to send. Held-back requests may no longer have to wait.
    pub(crate) fn has_unsent(&self) -> bool {
        self.agenda.has(SessionTask::Send) || self.agenda.has(SessionTask::AwaitVersion)
    }

    /// Sent requests may be lost: sends all of them again.
    pub(crate) fn send_again(&mut self, now: Time) {
        for held in self.sessions.values_mut() {
            held.requests.moved(now, self.patience);
            held.requests.forget_sent();
            if held.has_unsent() {
                self.agenda.add(SessionTask::Send, held.id);
            }
        }
        let unrenewed = self.read_index.restart();
        self.renew_again(unrenewed, now);
    }

    /// Bases the opens that were never sent on this zxid, at which none of these sessions existed.
    ///
    /// A client that has only just started knows no zxid. An open without a base is refused once the cluster has
    /// forgotten a session, and is sent again. In between, another member would take the session for ended.
    pub(crate) fn rest_on(&mut self, zxid: Zxid) {
        self.sessions.values_mut().for_each(|held| held.requests.rest_on(zxid));
    }

    /// Sends the requests of sessions again that have made no progress for a while, each time a
    /// longer one.
    pub(super) fn send_stuck_again(&mut self, now: Time) {
        let mut asking = self.agenda.take(SessionTask::AwaitOutcome);
        asking.retain(|session| {
            let Some(held) = self.sessions.get_mut(session) else {
                return false;
            };
            let waits = !held.is_over() && held.requests.is_waiting();
            if waits && held.requests.send_stuck_again(now, self.patience * 8) {
                self.agenda.add(SessionTask::Send, held.id);
            }
            waits
        });
        self.agenda.put_back(SessionTask::AwaitOutcome, asking);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::command::{Op, OpError, Outcome, Reply};
    use crate::node::io::{Effects, RequestId};
    use crate::node::sessions::requests::Opening;
    use crate::types::version::FIRST;

    /// A client opened its first session before it knew any zxid, and went to another member while the open was
    /// under way. That member had forgotten a session since zxid 0, and took this one for ended.
    #[test]
    fn an_open_that_waited_for_a_member_rests_on_what_that_member_has() {
        const S: Time = Time::from_secs(1);
        let (session, holder) = (SessionId(1), 2);
        let mut sessions = LocalSessions::new(S, false, 7);
        let open = Command::Open { secret: [0; 16], timeout_ms: 10_000, owner: 1, base: 0 };
        let effects = &mut Effects::default();
        sessions.begin((RequestId(1), session), holder, 10 * S, open, None, effects);
        let base = |sessions: &LocalSessions| match sessions.sessions[&session].requests.opening() {
            Some(Opening { command: Command::Open { base, .. }, .. }) => Some(*base),
            _ => None,
        };
        sessions.rest_on(40);
        sessions.rest_on(30);
        assert_eq!(base(&sessions), Some(40));
        let gate = Gate { version: FIRST, possible: FIRST };
        assert!(matches!(sessions.take_unsent(gate, S)[0].command, Command::Open { base: 40, .. }));
        sessions.rest_on(50);
        assert_eq!(base(&sessions), Some(40), "it may have been opened since");
    }

    /// While very many sessions ended, an open came too late for the tombstones, and was asked for again. A
    /// write that was sent right behind it was answered with `SessionExpired`, and the session lived.
    #[test]
    fn a_write_behind_a_stale_open_is_sent_again() {
        const S: Time = Time::from_secs(1);
        let (session, holder) = (SessionId(1), 2);
        let mut sessions = LocalSessions::new(S, false, 7);
        let mut effects = Effects::default();
        let open = Command::Open { secret: [0; 16], timeout_ms: 10_000, owner: 1, base: 0 };
        sessions.begin((RequestId(1), session), holder, 10 * S, open, None, &mut effects);
        let op = Op::Delete { path: "/a".into(), version: None };
        sessions.write(RequestId(2), session, Command::Op(op), &mut effects);
        let gate = Gate { version: FIRST, possible: FIRST };
        let outcome = |seq, result| Outcome { session, holder, seq, zxid: 0, result };
        for zxid in [40, 50] {
            assert_eq!(sessions.take_unsent(gate, S).len(), 2);
            let refused = [(0, OpError::StaleOpen), (1, OpError::SessionExpired)];
            for (seq, error) in refused {
                sessions.outcome(&outcome(seq, Err(error)), S, zxid, &mut effects);
            }
            assert!(effects.replies.is_empty(), "{:?}", effects.replies);
        }
        let requests = sessions.take_unsent(gate, S);
        assert!(matches!(requests[0].command, Command::Open { base: 50, .. }));
        assert_eq!(requests[1].seq, 1);
        let opened = Ok(Reply::Session { timeout_ms: 10_000 });
        sessions.outcome(&outcome(0, opened), S, 51, &mut effects);
        sessions.outcome(&outcome(1, Ok(Reply::Done)), S, 52, &mut effects);
        assert_eq!(effects.replies.len(), 2);
        assert!(effects.replies.iter().all(|answered| answered.answer.is_ok()));
    }
}
