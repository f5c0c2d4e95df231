//! Waits that several recipes need.

use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::types::error::{Error, Result};
use crate::types::watch::WatchEvent;

/// Waits until the znode is deleted or changed. Returns at once if there is no such znode.
pub(super) async fn until_changed(session: &Session, path: &str) -> Result<()> {
    let (exists, watch) = session.exists_and_watch(path).await?;
    if exists.is_some() {
        // `None` if this session is over.
        watch.next().await;
    }
    Ok(())
}

/// Waits for an event of a watch of this path.
///
/// # Errors
/// The errors of a session that is over; [`Error::NoWatch`] if somebody has removed the watch.
pub(super) async fn next_event(session: &Session, watch: &Watch, path: &str) -> Result<WatchEvent> {
    if let Some(event) = watch.next().await {
        return Ok(event);
    }
    session.check_alive()?;
    Err(Error::NoWatch { path: path.to_owned() })
}
