//! The audit log: who wrote what, with the outcome, as lines of `tracing`.
//!
//! The node of the session that asked writes the line, once its replica has applied the request. So
//! each request with an outcome has one line in the whole cluster. Without a subscriber to the
//! target, nothing is written and nothing is allocated.
//!
//! Source: ZooKeeper's `audit.enable`, which logs at the server that the client is connected to.

use crate::machine::command::{Command, OpError, Reply};
use crate::types::acl::Id;
use crate::types::znode::SessionId;

/// The target by which a subscriber selects the lines.
pub(in crate::node) const TARGET: &str = "quorate::audit";

/// Logs the outcome of a request of a session with these ids, held by a client at this address if it is one of
/// the gateway.
pub(super) fn note(
    session: SessionId,
    ids: &[Id],
    from: Option<&str>,
    command: &Command,
    result: &Result<Reply, OpError>,
) {
    if !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
        return;
    }
    // No hash of a password may appear in a log.
    let users: Vec<String> = ids.iter().map(|id| id.redacted().to_string()).collect();
    let users = users.join(",");
    let result = match result {
        Ok(_) => "success".to_owned(),
        Err(error) => format!("failure: {}", error.clone().into_error(session)),
    };
    let line = |operation: &str, path: &str| {
        tracing::info!(target: TARGET, %session, from, users, operation, path, result, "audit");
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
