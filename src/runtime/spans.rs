//! Spans of `tracing`, each from a user's request to its answer.
//!
//! They have the target `quorate::request` and the level `DEBUG`, so that they cost nothing for users who
//! log at `info`. A span's parent is the user's current span at the call. A read that this instance's own
//! replica answers at once has no span.

use tracing::Span;
use tracing::field::Empty;

use crate::node::admin::message::AdminRequest;
use crate::node::io::{ClientRequest, Write};
use crate::node::query::{Query, Read};
use crate::types::error::Error;
use crate::types::znode::SessionId;

/// The target by which a subscriber selects the spans.
const TARGET: &str = "quorate::request";

/// The span of a request, which ends when it is dropped.
pub(super) fn of(request: &ClientRequest) -> Span {
    if !tracing::enabled!(target: TARGET, tracing::Level::DEBUG) {
        return Span::none();
    }
    let (operation, path) = described(request);
    let session = session(request).map(tracing::field::display);
    tracing::debug_span!(target: TARGET, "request", operation, path, session, error = Empty)
}

/// Records that the request has failed.
pub(super) fn failed(span: &Span, error: &Error) {
    span.record("error", tracing::field::display(error));
}

fn described(request: &ClientRequest) -> (&'static str, Option<&str>) {
    match request {
        ClientRequest::Open { .. } => ("open", None),
        ClientRequest::Resume { .. } => ("resume", None),
        ClientRequest::Introduce { .. } => ("introduce", None),
        ClientRequest::Write { command, .. } => match command {
            Write::Op(op) => (op.name(), Some(op.path())),
            Write::Multi(ops) => ("multi", ops.first().map(|op| op.path())),
            Write::Authenticate(_) => ("add_auth", None),
            Write::Close => ("close", None),
        },
        ClientRequest::Query { query, .. } => match query {
            Query::Read { read, .. } | Query::At { read, .. } => (
                match read {
                    Read::Get { .. } => "get",
                    Read::Exists { .. } => "exists",
                    Read::Children { .. } => "children",
                    Read::Acl { .. } => "acl",
                    Read::Ephemerals => "ephemerals",
                    Read::Ids => "ids",
                    Read::Below { .. } => "below",
                    Read::Tree => "snapshot",
                },
                read.path().map(|path| &**path),
            ),
            Query::Watch { path, .. } => ("watch", Some(path)),
            Query::RemoveWatches { path, .. } => ("remove_watches", Some(path)),
            Query::Sync => ("sync", None),
        },
        ClientRequest::Admin { asked, .. } => match asked {
            AdminRequest::Report => ("reports", None),
            AdminRequest::Sessions { .. } => ("sessions", None),
            AdminRequest::Image { .. } => ("backup", None),
            AdminRequest::Act { .. } => ("act", None),
        },
        ClientRequest::Abandon { .. } => ("abandon", None),
        ClientRequest::Unwatch { .. } => ("unwatch", None),
        ClientRequest::AdminEndpoint { .. } => ("admin_endpoint", None),
    }
}

fn session(request: &ClientRequest) -> Option<SessionId> {
    match request {
        ClientRequest::Open { session, .. }
        | ClientRequest::Resume { session, .. }
        | ClientRequest::Introduce { session, .. }
        | ClientRequest::Write { session, .. }
        | ClientRequest::Query { session, .. }
        | ClientRequest::Abandon { session, .. } => Some(*session),
        ClientRequest::Admin { .. }
        | ClientRequest::Unwatch { .. }
        | ClientRequest::AdminEndpoint { .. } => None,
    }
}
