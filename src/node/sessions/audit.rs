//! The audit log: who wrote what and what operators did, with the outcome, as lines of `tracing`.
//!
//! The member that knows who asked writes the line: of a write of its own sessions, once its replica has applied it;
//! of a client's write that it has passed on, too, whether the client is still there or not; and of an operator's
//! request. So each write with an outcome has one line in the whole cluster. (It has two if the client has sent it again
//! by another member.) Without a subscriber to the target, nothing is written and nothing is allocated.
//!
//! Source: ZooKeeper's `audit.enable`, which logs at the server that the client is connected to.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::machine::Machine;
use crate::machine::command::{Applied, Batch, Command, OpError, Reply, Request};
use crate::node::io::SessionHolder;
use crate::types::acl::Id;
use crate::types::membership::{Named, NodeId};
use crate::types::right::{Connection, Right};
use crate::types::warnings::AUDIT;
use crate::types::znode::SessionId;

/// Writes that wait for their outcome are forgotten beyond so many sessions: the leader has lost them.
const SESSIONS_MAX: usize = 1 << 16;

/// From where a request came, as far as this member knows.
#[derive(Default)]
pub(in crate::node) struct Origin<'a> {
    /// An address.
    from: Option<Cow<'a, str>>,
    /// Of the credential of its connection.
    right: Option<Right>,
    /// Of its certificate.
    subject: Option<&'a str>,
    /// The id of the client.
    client: Option<NodeId>,
}

impl<'a> Origin<'a> {
    /// A session of this instance, for a client of the gateway at this address if it has one.
    pub(in crate::node) fn own(from: Option<&'a str>) -> Origin<'a> {
        Origin { from: from.map(Cow::Borrowed), ..Origin::default() }
    }

    pub(in crate::node) fn client(client: NodeId, connection: &'a Connection) -> Origin<'a> {
        Origin {
            from: Some(connection.address.to_string().into()),
            right: Some(connection.right),
            subject: connection.subject.as_deref(),
            client: Some(client),
        }
    }

    /// A member, for one of its own users.
    pub(in crate::node) fn member(name: &Named) -> Origin<'a> {
        let from = Some(name.to_string().into());
        Origin { from, right: Some(Right::Member), ..Origin::default() }
    }
}

/// Logs the outcome of a request of a session with these ids.
pub(super) fn note(
    session: SessionId,
    ids: &[Id],
    origin: &Origin<'_>,
    command: &Command,
    result: &Result<Reply, OpError>,
) {
    if !tracing::enabled!(target: AUDIT, tracing::Level::INFO) {
        return;
    }
    // No hash of a password may appear in a log.
    let users: Vec<String> = ids.iter().map(|id| id.redacted().to_string()).collect();
    let users = users.join(",");
    let result = match result {
        Ok(_) => "success".to_owned(),
        Err(error) => format!("failure: {}", error.clone().into_error(session)),
    };
    let Origin { from, right, subject, client } = origin;
    let (from, right) = (from.as_deref(), right.map(tracing::field::display));
    let client = client.map(|client| tracing::field::display(Named::of(client)));
    let line = |operation: &str, path: &str| {
        tracing::info!(
            target: AUDIT, %session, from, right, subject, client, users, operation, path, result, "audit"
        );
    };
    match command {
        Command::Op(op) => line(op.name(), op.path()),
        Command::Multi(ops) => {
            for op in ops {
                line(op.name(), op.path());
            }
        }
        Command::Open { .. } => line("open", ""),
        Command::Resume { .. } => line("resume", ""),
        Command::Close => line("close", ""),
        // The node sends this by itself to acknowledge results.
        Command::Authenticate { ids } if ids.is_empty() => {}
        Command::Authenticate { .. } => line("add_auth", ""),
        // These are not requests of sessions.
        Command::Expire { .. }
        | Command::Reap { .. }
        | Command::RaiseVersion { .. }
        | Command::Configure { .. } => {}
    }
}

/// What an operator, or a client that may not, asked for, and the result.
pub(in crate::node) struct AdminLine<'a> {
    pub(in crate::node) action: String,
    /// What the instance that asked calls itself; anything.
    pub(in crate::node) by: &'a str,
    pub(in crate::node) origin: Origin<'a>,
    /// The member that has passed it on, if it is another one.
    pub(in crate::node) via: Option<Named>,
    /// Where the session that was expired was held.
    pub(in crate::node) held_by: Option<String>,
    pub(in crate::node) result: String,
}

impl AdminLine<'_> {
    /// Writes it. `suppressed`: so many lines before it were left out.
    pub(in crate::node) fn write(self, suppressed: Option<u64>) {
        let AdminLine { action, by, origin, via, held_by, result } = self;
        let Origin { from, right, subject, client } = origin;
        let by = Some(by).filter(|by| !by.is_empty());
        tracing::info!(
            target: AUDIT,
            action,
            by,
            from = from.as_deref(),
            right = right.map(tracing::field::display),
            subject,
            client = client.map(|client| tracing::field::display(Named::of(client))),
            via = via.map(tracing::field::display),
            held_by,
            result,
            suppressed,
            "an operator's action"
        );
    }
}

/// The clients' writes that this member has passed on to the leader and that it has not seen applied.
#[derive(Debug, Default)]
pub(in crate::node) struct PassedWrites(BTreeMap<SessionHolder, Passed>);

/// Those of one session, by their numbers: from `next` to before `end`.
#[derive(Debug)]
struct Passed {
    client: NodeId,
    connection: Option<Connection>,
    ids: Arc<Vec<Id>>,
    next: u64,
    end: u64,
}

impl PassedWrites {
    /// A client's write is passed on.
    pub(in crate::node) fn pass(
        &mut self,
        client: NodeId,
        connection: Option<&Connection>,
        request: &Request,
        machine: &Machine,
    ) {
        let (key, seq) = (holder_of(request), request.seq);
        let record = machine.session(key.session).filter(|record| record.holder == key.holder);
        if record.is_some_and(|record| record.last_seq >= seq) {
            // The client sends it again, and it has its line.
            return;
        }
        if let Some(passed) = self.0.get_mut(&key) {
            passed.end = passed.end.max(seq.saturating_add(1));
            return;
        }
        if self.0.len() >= SESSIONS_MAX {
            self.0.pop_first();
        }
        let ids = record.map(|record| Arc::clone(&record.ids)).unwrap_or_default();
        let (connection, end) = (connection.cloned(), seq.saturating_add(1));
        self.0.insert(key, Passed { client, connection, ids, next: seq, end });
    }

    /// This was applied.
    pub(in crate::node) fn note(&mut self, batch: &Batch, applied: &Applied, machine: &Machine) {
        if self.0.is_empty() {
            return;
        }
        for (request, outcome) in batch.requests.iter().zip(&applied.outcomes) {
            let (key, seq) = (holder_of(request), request.seq);
            let again = matches!(outcome.result, Err(OpError::OutOfOrder | OpError::StaleOpen));
            let Some(passed) =
                self.0.get_mut(&key).filter(|of| (of.next..of.end).contains(&seq) && !again)
            else {
                continue;
            };
            let record = machine.session(key.session).filter(|record| record.holder == key.holder);
            if let Some(record) = record {
                passed.ids = Arc::clone(&record.ids);
            }
            let origin = match &passed.connection {
                Some(connection) => Origin::client(passed.client, connection),
                None => Origin { client: Some(passed.client), ..Origin::default() },
            };
            note(key.session, &passed.ids, &origin, &request.command, &outcome.result);
            passed.next = seq.saturating_add(1);
            if passed.next >= passed.end {
                self.0.remove(&key);
            }
        }
    }

    /// A session is over, and what it has not done it never will.
    pub(in crate::node) fn gone(&mut self, session_holder: SessionHolder) {
        self.0.remove(&session_holder);
    }
}

fn holder_of(request: &Request) -> SessionHolder {
    SessionHolder { session: request.session, holder: request.holder }
}
