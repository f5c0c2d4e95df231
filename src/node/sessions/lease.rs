//! When the sessions of this node count as lost: what their leases and local deadlines say.

use std::time::Duration;

use super::LocalSessions;
use super::holder::LocalSession;
use crate::node::io::{Effects, Time};
use crate::planted::{Bug, planted};
use crate::types::session::SessionState;
use crate::types::znode::SessionId;

/// How much of a session's timeout this node trusts: the rest covers clocks that run at
/// different rates (`1 - 9/10` of the timeout, so rates may differ by 10 %).
pub(super) fn trusted(timeout: Duration) -> Duration {
    timeout / 10 * if planted(Bug::LeaseTooLong) { 20 } else { 9 }
}

impl LocalSessions {
    /// A ReadIndex request sent at `sent` was confirmed for the session. After its deadline that
    /// comes too late: its user may have seen that it is not surely alive, and that is for good.
    pub(crate) fn renew(
        &mut self,
        session: SessionId,
        sent: Time,
        now: Time,
        effects: &mut Effects,
    ) {
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        let valid_until = sent + trusted(held.timeout);
        if !held.is_open() || now >= held.lost_at.min(valid_until) {
            return;
        }
        held.heard = held.heard.max(sent);
        if valid_until > held.valid_until {
            (held.valid_until, held.lost_at) = (valid_until, valid_until);
            effects.leases.push((held.holding(), valid_until));
        }
        held.set_state(SessionState::Connected, effects);
    }

    /// How often they are to be renewed: a few times in the shortest of their timeouts.
    pub(crate) fn renewal_period(&self, most: Duration) -> Duration {
        let living = self.sessions.values().filter(|held| held.is_open());
        living.map(|held| held.timeout / 4).fold(most, Duration::min)
    }

    /// The sessions that are to be kept alive.
    pub(crate) fn living(&self) -> Vec<SessionId> {
        self.sessions.values().filter(|held| held.is_open()).map(|held| held.id).collect()
    }

    /// Suspends the sessions that were not confirmed for a third of their timeout, and names those
    /// whose local deadline has passed.
    pub(crate) fn check_deadlines(&mut self, now: Time, effects: &mut Effects) -> Vec<SessionId> {
        let mut lost = Vec::new();
        let reports = |held: &&mut LocalSession| held.is_open() && !planted(Bug::LossUnreported);
        for held in self.sessions.values_mut().filter(reports) {
            if now >= held.lost_at {
                lost.push(held.id);
            } else if now >= held.heard + held.timeout / 3 {
                held.set_state(SessionState::Suspended, effects);
            }
        }
        lost
    }

    /// The local deadline of the session has passed: it counts as lost from now on, though writes
    /// already sent may still happen; those are answered when the log says so.
    pub(crate) fn lose(&mut self, session: SessionId, effects: &mut Effects) {
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        held.set_state(SessionState::Expired, effects);
        self.lost.insert(session);
        let error = held.over();
        // What was never sent to anyone cannot happen any more.
        let keep = usize::try_from(held.ever_sent.saturating_sub(held.applied));
        let keep = keep.unwrap_or(usize::MAX).min(held.writes.len());
        for write in held.writes.drain(keep..) {
            effects.replies.push((write.request, Err(error.clone())));
        }
        self.fail_waits(session, effects);
    }

    /// Forgets the lost sessions that owe no answer any more.
    pub(crate) fn forget_settled(&mut self) {
        let sessions = &mut self.sessions;
        self.lost.retain(|id| {
            let owes = sessions.get(id).is_some_and(|held| held.is_over() && !held.is_settled());
            if !owes && sessions.get(id).is_some_and(LocalSession::is_over) {
                sessions.remove(id);
            }
            owes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::command::{Command, Outcome, Reply};
    use crate::node::io::RequestId;
    use crate::node::versions::Gate;
    use crate::types::version::FIRST;

    /// It was sent in time and confirmed too late, before the node had looked at its clock again: a
    /// session that was not surely alive any more, as its user could see, was so again.
    #[test]
    fn a_lease_that_has_run_out_is_not_renewed() {
        const S: Time = Time::from_secs(1);
        let mut sessions = LocalSessions::new(S);
        let mut effects = Effects::default();
        let (session, holder) = (SessionId(1), 2);
        let command = Command::Open { secret: [0; 16], timeout_ms: 10_000, owner: 1, base: 0 };
        sessions.open(RequestId(1), session, holder, 10 * S, command, &mut effects);
        let gate = Gate { version: FIRST, possible: FIRST };
        assert_eq!(sessions.take_unsent(gate, 100 * S).len(), 1);
        let result = Ok(Reply::Session { timeout_ms: 10_000 });
        let opened = Outcome { session, holder, seq: 0, result };
        sessions.outcome(&opened, 101 * S, 1, &mut effects);
        sessions.renew(session, 105 * S, 106 * S, &mut effects);
        let leases =
            |effects: &Effects| effects.leases.iter().map(|(_, until)| *until).collect::<Vec<_>>();
        assert_eq!(leases(&effects), [109 * S, 114 * S]);
        sessions.renew(session, 113 * S, 114 * S, &mut effects);
        assert_eq!(leases(&effects).len(), 2, "too late");
        assert_eq!(sessions.check_deadlines(114 * S, &mut effects), [session]);
    }
}
