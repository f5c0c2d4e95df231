//! Spans of `tracing`, each from a user's request to its answer.
//!
//! They have the target `quorate::request` and the level `DEBUG`, so that they cost nothing for users who
//! log at `info`. A span's parent is the user's current span at the call. A read that this instance's own
//! replica answers at once has no span.

use tracing::Span;
use tracing::field::Empty;

use crate::node::request::ClientRequest;
use crate::types::error::Error;
use crate::types::znode::SessionId;

/// The target by which a subscriber selects the spans.
const TARGET: &str = "quorate::request";

/// The span of a request, which ends when it is dropped.
pub(super) fn of(request: &ClientRequest) -> Span {
    if !tracing::enabled!(target: TARGET, tracing::Level::DEBUG) {
        return Span::none();
    }
    let (operation, path) = request.body.named();
    let path = path.map(|path| &**path);
    let is_of_session = request.session != SessionId(0);
    let session = is_of_session.then(|| tracing::field::display(request.session));
    tracing::debug_span!(target: TARGET, "request", operation, path, session, error = Empty)
}

/// Records that the request has failed.
pub(super) fn failed(span: &Span, error: &Error) {
    span.record("error", tracing::field::display(error));
}
