//! Blocking forms: a thread waits for a recipe's future.

use std::future::Future;
use std::time::Duration;

use crate::api::session::Session;
use crate::recipes::Lost;
use crate::runtime::pending::block_on;
use crate::types::error::{Error, Result};

/// Waits without a time limit.
pub(super) fn forever<T>(session: &Session, future: impl Future<Output = Result<T>>) -> Result<T> {
    // Without a deadline there is always a result.
    block_on(future, &session.shared().clock, None)?
        .unwrap_or_else(|| Err(Error::Stopped { reason: "no answer".to_owned() }))
}

/// Waits for a loss, without a time limit.
pub(super) fn until_lost(session: &Session, lost: impl Future<Output = Lost>) -> Lost {
    // Without a deadline there is always a result, except inside a waker, where nothing may block.
    // There the session counts as lost.
    block_on(lost, &session.shared().clock, None).ok().flatten().unwrap_or(Lost::SessionOver)
}

/// Waits at most for `timeout`; `None` if there is no result by then. The future is dropped.
pub(super) fn within<T>(
    session: &Session,
    timeout: Duration,
    future: impl Future<Output = Result<T>>,
) -> Result<Option<T>> {
    let clock = &session.shared().clock;
    let deadline = clock.now().saturating_add(timeout);
    block_on(future, clock, Some(deadline))?.transpose()
}

/// Waits at most for the request timeout, for calls that do not wait for other participants.
pub(super) fn request<T>(
    session: &Session,
    operation: &str,
    path: &str,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    let waited = session.shared().limits.request_timeout;
    within(session, waited, future)?.ok_or_else(|| Error::Timeout {
        operation: format!("{operation} {path}"),
        waited,
        reason: session.shared().waiting_for(),
    })
}
