//! Waits that several recipes need.

use std::pin::pin;
use std::task::Poll;

use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::types::error::{Error, Result};
use crate::types::watch::WatchEvent;

/// Waits until the znode is deleted or changed. Returns at once if there is no such znode.
pub(super) async fn until_changed(session: &Session, path: &str) -> Result<()> {
    let (exists, watch) = session.nonblocking().exists_and_watch(path).await?;
    if exists.is_some() {
        // `None` if this session is over.
        watch.recv_async().await;
    }
    Ok(())
}

/// Waits for an event of a watch of this path.
///
/// # Errors
/// The errors of a session that is over; [`Error::NoWatch`] if somebody has removed the watch.
pub(super) async fn next_event(session: &Session, watch: &Watch, path: &str) -> Result<WatchEvent> {
    if let Some(event) = watch.recv_async().await {
        return Ok(event);
    }
    session.check_alive()?;
    Err(Error::NoWatch { path: path.to_owned() })
}

pub(super) enum Either<A, B> {
    One(A),
    Other(B),
}

/// Waits for the future that is ready first; if both are, returns the result of the first.
pub(super) async fn either<A, B>(
    one: impl Future<Output = A>,
    other: impl Future<Output = B>,
) -> Either<A, B> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    std::future::poll_fn(move |context| match one.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Either::One(value)),
        Poll::Pending => other.as_mut().poll(context).map(Either::Other),
    })
    .await
}
