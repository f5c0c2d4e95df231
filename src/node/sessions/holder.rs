//! One session at the node that holds it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::machine::command::{Command, OpError, Reply};
use crate::node::client_message::SessionClaim;
use crate::node::io::{Effects, RequestId, SessionHolder, Time};
use crate::node::query::Answer;
use crate::node::sessions::queue::{QueryQueue, Viewer};
use crate::types::acl::Id;
use crate::types::error::Error;
use crate::types::session::SessionState;
use crate::types::znode::SessionId;

#[derive(Debug)]
pub(crate) struct LocalSession {
    pub(crate) id: SessionId,
    pub(crate) holder: u64,
    pub(crate) timeout: Duration,
    pub(crate) state: SessionState,
    pub(super) opening: Option<Opening>,
    /// When the open (or resume) was first sent. The leader's deadline for the session cannot count
    /// from earlier.
    pub(super) first_sent: Option<Time>,
    /// Until when the session is certainly alive. Not known before it is open.
    pub(super) valid_until: Time,
    /// When it counts as lost: not before ReadIndex requests have had the time to renew it after it
    /// was opened.
    pub(super) lost_at: Time,
    /// When the last ReadIndex request that has renewed it was sent.
    pub(super) renewed_at: Time,
    pub(super) issued: u64,
    /// The last number sent to the present leader; `None`: nothing, not even the open.
    pub(super) sent: Option<u64>,
    /// The bytes of writes that were sent to the leader and are not answered yet.
    pub(super) under_way: usize,
    /// The last number ever sent to any leader.
    pub(super) ever_sent: u64,
    pub(super) applied: u64,
    /// The last number whose result a request has acknowledged. The state machine keeps the later
    /// results.
    pub(super) acknowledged: u64,
    /// When its requests last moved, and how long to wait before they are sent again.
    pub(super) moved_at: Time,
    pub(super) patience: Duration,
    pub(super) writes: VecDeque<PendingWrite>,
    pub(super) waits: QueryQueue<RequestId>,
    pub(super) closing: bool,
    /// The ids of the session, kept until its last watch is over.
    pub(super) ids: Arc<Vec<Id>>,
    /// The host and port of the client of a gateway that uses it.
    pub(super) from: Option<String>,
    /// Whether it may have been resumed, used and ended within the entries of an installed
    /// snapshot.
    pub(super) unseen: bool,
    /// The last number that may be sent for now.
    pub(super) send_limit: u64,
}

#[derive(Debug)]
pub(super) struct Opening {
    pub(super) request: RequestId,
    pub(super) command: Command,
}

#[derive(Debug)]
pub(super) struct PendingWrite {
    pub(super) request: RequestId,
    pub(super) command: Command,
    pub(super) size: usize,
    /// The error to refuse it with, if the cluster's version has no such command. Then `command`
    /// does nothing and only takes its place in the session's sequence.
    pub(super) refused: Option<OpError>,
}

impl PendingWrite {
    /// Refuses the write if it needs a later version than this.
    pub(super) fn refuse(&mut self, version: u16) {
        if let Some(error) = self.command.unsupported(version) {
            self.command = Command::Multi(Vec::new());
            self.refused = Some(error);
        }
    }

    /// Answers it, since its session is over. A close succeeds then.
    pub(super) fn fail(self, error: &Error, effects: &mut Effects) {
        let answer = match self.command {
            Command::Close => Ok(Answer::Reply(Reply::Done)),
            _ => Err(error.clone()),
        };
        effects.reply(self.request, answer);
    }
}

/// The error that calls on a session in this final state get.
pub(in crate::node) fn over(session: SessionId, state: SessionState) -> Error {
    match state {
        SessionState::Moved => Error::SessionMoved { session },
        SessionState::Closed => Error::SessionClosed { session },
        SessionState::Detached => Error::SessionDetached { session },
        _ => Error::SessionExpired { session },
    }
}

impl LocalSession {
    pub(super) fn is_open(&self) -> bool {
        self.opening.is_none() && !self.is_over()
    }

    pub(super) fn is_over(&self) -> bool {
        self.state.is_final()
    }

    pub(super) fn viewer(&self) -> Viewer<'_> {
        Viewer { session: self.id, ids: &self.ids }
    }

    /// The error that calls on a session in a final state get.
    pub(super) fn over(&self) -> Error {
        over(self.id, self.state)
    }

    pub(super) fn set_state(&mut self, state: SessionState, effects: &mut Effects) {
        if self.state != state && !self.is_over() {
            self.state = state;
            effects.sessions.push((self.session_holder(), state));
        }
    }

    /// When it is suspended unless a ReadIndex request renews it.
    pub(super) fn suspended_at(&self) -> Time {
        (self.renewed_at + self.timeout / 2).min(self.lost_at)
    }

    /// Gives a write the next number.
    pub(super) fn push(&mut self, request: RequestId, command: Command) {
        self.issued += 1;
        let size = command.size();
        self.writes.push_back(PendingWrite { request, command, size, refused: None });
    }

    pub(super) fn session_holder(&self) -> SessionHolder {
        SessionHolder { session: self.id, holder: self.holder }
    }

    /// The holder's report of the session, for a replica whose state did not follow it.
    pub(super) fn claim(&self) -> SessionClaim {
        let base = match self.opening {
            Some(Opening { command: Command::Open { base, .. }, .. }) => Some(base),
            _ => None,
        };
        SessionClaim {
            session_holder: self.session_holder(),
            applied: self.applied,
            opened: self.opening.is_none(),
            base: base.filter(|_| self.first_sent.is_some()),
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.opening.is_none() && self.writes.is_empty() && self.waits.is_empty()
    }

    /// Answers the sent writes with an unknown outcome. The writes that were never sent have
    /// certainly not happened.
    pub(super) fn answer_unknown(&mut self, reason: &str, effects: &mut Effects) {
        let sent = self.sent_writes();
        let error = Error::OutcomeUnknown { session: self.id, reason: reason.to_owned() };
        self.writes.drain(..sent).for_each(|write| write.fail(&error, effects));
    }

    /// How many of its first writes were ever sent to any leader.
    pub(super) fn sent_writes(&self) -> usize {
        let sent = self.ever_sent.saturating_sub(self.applied);
        usize::try_from(sent).unwrap_or(usize::MAX).min(self.writes.len())
    }

    /// Forgets what was sent: it may be lost.
    pub(super) fn forget_sent(&mut self) {
        self.sent = self.sent.filter(|_| planted!(ResendForgotten));
        self.under_way = 0;
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.is_over()
            && (self.sent.is_none_or(|sent| sent < self.issued))
            && (self.opening.is_some() || !self.writes.is_empty())
    }
}
