//! Recipes are written as futures; here a thread waits for one.

use std::future::Future;
use std::time::Duration;

use crate::api::session::Session;
use crate::recipes::LockLost;
use crate::runtime::pending::block_on;
use crate::types::error::{Error, Result};

/// However long it takes.
pub(super) fn forever<T>(session: &Session, future: impl Future<Output = Result<T>>) -> Result<T> {
    match block_on(future, &session.shared().clock, None)? {
        Some(result) => result,
        // Without a deadline there is always a result.
        None => Err(Error::Stopped { reason: "no answer".to_owned() }),
    }
}

/// Until something is lost, however long it is held.
pub(super) fn until_lost(session: &Session, lost: impl Future<Output = LockLost>) -> LockLost {
    // Without a deadline there is always a result, but for a waker, where nobody may wait: whoever
    // does is told to stop.
    block_on(lost, &session.shared().clock, None).ok().flatten().unwrap_or(LockLost::SessionOver)
}

/// At most for `timeout`; `None` if there is no result by then. The future is dropped.
pub(super) fn within<T>(
    session: &Session,
    timeout: Duration,
    future: impl Future<Output = Result<T>>,
) -> Result<Option<T>> {
    let clock = &session.shared().clock;
    let deadline = clock.now().saturating_add(timeout);
    block_on(future, clock, Some(deadline))?.transpose()
}

/// At most for the request timeout, as for a call that does not wait for others.
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
