//! Which requests the sessions of this node send to the leader, and when they send them again.

use super::LocalSessions;
use super::WINDOW;
use super::WINDOW_BYTES;
use super::agenda::SessionTask;
use super::lease::renewed_after;
use crate::machine::command::{Command, Request};
use crate::node::io::Time;
use crate::node::versions::Gate;
use crate::types::version::is_above;
use crate::types::znode::{SessionId, Zxid};

impl LocalSessions {
    /// Holds back the session's writes after this one, until [`Self::lift_send_limits`].
    pub(crate) fn set_send_limit(&mut self, session: SessionId, upto: u64) {
        if let Some(held) = self.sessions.get_mut(&session) {
            held.send_limit = held.send_limit.min(upto);
            self.agenda.add(SessionTask::LiftSendLimit, session);
        }
    }

    /// Sends the writes that [`Self::set_send_limit`] held back.
    pub(crate) fn lift_send_limits(&mut self) {
        for session in self.agenda.take(SessionTask::LiftSendLimit) {
            if let Some(held) = self.sessions.get_mut(&session) {
                held.send_limit = u64::MAX;
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
            let request = |seq, command: &Command| Request {
                session,
                holder: held.holder,
                seq,
                acked: held.applied + 1,
                command: command.clone(),
            };
            if self.agenda.add(SessionTask::AwaitOutcome, session) || held.sent.is_none() {
                held.moved_at = now;
            }
            if let Some(opening) = &held.opening
                && held.sent.is_none()
            {
                requests.push(request(0, &opening.command));
                held.first_sent.get_or_insert(now);
                // The leader may count the timeout from now on, even while this node lags too far behind
                // to see that the session is open.
                if !self.renewals.has(session) {
                    self.renewals.set(session, now + renewed_after(held.timeout));
                }
            }
            let from = held.sent.unwrap_or(0).max(held.applied);
            let most = held.issued.min(held.applied + WINDOW).min(held.send_limit.max(from));
            let (mut upto, mut under_way) = (from, held.under_way);
            while upto < most {
                let write = &mut held.writes[(upto - held.applied) as usize];
                let needs = write.command.version();
                if is_above(needs, gate.version) {
                    if needs <= gate.possible {
                        self.agenda.add(SessionTask::AwaitVersion, session);
                        break;
                    }
                    write.refuse(gate.version);
                }
                if under_way > 0 && under_way + write.size > WINDOW_BYTES {
                    break;
                }
                upto += 1;
                held.acknowledged = held.applied;
                under_way += write.size;
                requests.push(request(upto, &write.command));
            }
            held.sent = Some(upto);
            held.under_way = under_way;
            held.ever_sent = held.ever_sent.max(upto);
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
            (held.moved_at, held.patience) = (now, self.patience);
            held.forget_sent();
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
        for held in self.sessions.values_mut().filter(|held| held.first_sent.is_none()) {
            if let Some(opening) = &mut held.opening
                && let Command::Open { base, .. } = &mut opening.command
            {
                *base = zxid.max(*base);
            }
        }
    }

    /// Sends the requests of sessions again that have made no progress for a while, each time a
    /// longer one.
    pub(super) fn send_stuck_again(&mut self, now: Time) {
        let mut asking = self.agenda.take(SessionTask::AwaitOutcome);
        asking.retain(|session| {
            let Some(held) = self.sessions.get_mut(session) else {
                return false;
            };
            let waits = held.sent.is_some()
                && !held.is_over()
                && (held.opening.is_some() || !held.writes.is_empty());
            if waits && now >= held.moved_at + held.patience {
                held.moved_at = now;
                held.patience = (held.patience * 2).min(self.patience * 8);
                held.forget_sent();
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
    use crate::node::sessions::holder::Opening;
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
        let base = |sessions: &LocalSessions| match &sessions.sessions[&session].opening {
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
