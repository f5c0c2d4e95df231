//! The requests of a user's handles to its node.

use std::sync::Arc;
use std::time::Duration;

use crate::machine::command::{Command, TIMEOUT_KEPT};
use crate::node::admin::message::AdminRequest;
use crate::node::io::RequestId;
use crate::node::query::Query;
use crate::types::session::SessionState;
use crate::types::znode::SessionId;

/// A request of a user's handle to its node. Requests of one session are executed in the order in
/// which they come in, reads included.
#[derive(Debug)]
pub(crate) struct ClientRequest {
    /// The answer has the same. 0, which no other request has, if nobody waits for the answer.
    pub(crate) id: RequestId,
    /// 0 if it belongs to no session.
    pub(crate) session: SessionId,
    pub(crate) body: RequestBody,
}

#[derive(Debug)]
pub(crate) enum RequestBody {
    /// Begins the session for this holder, by a [`Command::Open`] or [`Command::Resume`], to which the node adds what
    /// only it knows. Session, holder and secret are random. Requests of the session may follow at once, without
    /// waiting for the answer. `from`: the host and port of its user, if that is a client of a gateway; for reports.
    Begin { holder: u64, command: Command, from: Option<String> },
    /// Answered with the `Reply` that fits the command. [`Command::Close`] also succeeds when the session was gone
    /// already.
    Command(Command),
    /// Answered from this replica, after all earlier requests of the session.
    Query(Query),
    /// Of no session. Answered with [`Answer::Admin`](crate::node::query::Answer::Admin), whether there is a leader
    /// or not.
    Admin(AdminRequest),
    /// The holder gives up the session without closing it. The session is no longer renewed and can
    /// be resumed until it expires. This is its final state for its holder. Not answered.
    Abandon(SessionState),
}

impl RequestBody {
    /// Opens a session.
    pub(crate) fn open(holder: u64, secret: [u8; 16], timeout: Duration) -> RequestBody {
        let timeout_ms = milliseconds(timeout);
        let command = Command::Open { secret, timeout_ms, owner: 0, base: 0 };
        RequestBody::Begin { holder, command, from: None }
    }

    /// Resumes a session, which keeps its own timeout if none is given.
    pub(crate) fn resume(holder: u64, secret: [u8; 16], timeout: Option<Duration>) -> RequestBody {
        let timeout_ms = timeout.map_or(TIMEOUT_KEPT, |timeout| milliseconds(timeout).max(1));
        let command = Command::Resume { secret, timeout_ms, owner: 0 };
        RequestBody::Begin { holder, command, from: None }
    }

    /// Its name for users, and its path.
    pub(crate) fn named(&self) -> (&'static str, Option<&Arc<str>>) {
        match self {
            RequestBody::Begin { command: Command::Open { .. }, .. } => ("open", None),
            RequestBody::Begin { .. } => ("resume", None),
            RequestBody::Command(command) => match command {
                Command::Op(op) => (op.name(), Some(op.path())),
                Command::Multi(ops) => ("multi", ops.first().map(|op| op.path())),
                Command::Authenticate { .. } => ("add_auth", None),
                // No other command is a user's.
                _ => ("close", None),
            },
            RequestBody::Query(query) => (query.name(), query.path()),
            RequestBody::Admin(asked) => match asked {
                AdminRequest::Report => ("reports", None),
                AdminRequest::Sessions { .. } => ("sessions", None),
                AdminRequest::Image { .. } => ("backup", None),
                AdminRequest::Act { .. } => ("act", None),
            },
            RequestBody::Abandon(_) => ("abandon", None),
        }
    }
}

/// A timeout as commands have it.
pub(crate) fn milliseconds(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX)
}
