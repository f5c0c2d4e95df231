//! One session at the node that holds it.

use std::sync::Arc;

use super::lease::Lease;
use super::requests::{Opening, Requests};
use crate::machine::command::Command;
use crate::node::client_message::SessionClaim;
use crate::node::io::{Effects, RequestId, SessionHolder};
use crate::node::sessions::queue::{QueryQueue, Viewer};
use crate::node::sessions::rate::RequestRate;
use crate::types::acl::Id;
use crate::types::error::Error;
use crate::types::session::SessionState;
use crate::types::znode::SessionId;

/// A session as its holder sees it: what it still owes its user, and whether it takes more.
#[derive(Debug)]
pub(crate) struct LocalSession {
    pub(super) id: SessionId,
    pub(super) holder: u64,
    pub(super) state: SessionState,
    pub(super) lease: Lease,
    pub(super) requests: Requests,
    pub(super) waits: QueryQueue<RequestId>,
    pub(super) closing: bool,
    /// The ids of the session, kept until its last watch is over.
    pub(super) ids: Arc<Vec<Id>>,
    /// The host and port of the client of a gateway that uses it.
    pub(super) from: Option<String>,
    pub(super) rate: RequestRate,
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
        self.requests.opening().is_none() && !self.is_over()
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

    pub(super) fn session_holder(&self) -> SessionHolder {
        SessionHolder { session: self.id, holder: self.holder }
    }

    /// The holder's report of the session, for a replica whose state did not follow it.
    pub(super) fn claim(&self) -> SessionClaim {
        let opening = self.requests.opening();
        let base = match opening {
            Some(Opening { command: Command::Open { base, .. }, .. }) => Some(*base),
            _ => None,
        };
        SessionClaim {
            session_holder: self.session_holder(),
            applied: self.requests.applied(),
            opened: opening.is_none(),
            base: base.filter(|_| self.requests.first_sent().is_some()),
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        !self.requests.is_open() && self.waits.is_empty()
    }

    /// Answers the sent writes with an unknown outcome.
    pub(super) fn answer_unknown(&mut self, reason: &str, effects: &mut Effects) {
        self.requests.answer_unknown(self.id, reason, effects);
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.is_over() && self.requests.has_unsent()
    }
}
