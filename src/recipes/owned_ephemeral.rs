//! An ephemeral znode that this instance created and owns.
//!
//! Its path may later belong to somebody else: after a delete and a create, or after the end of the
//! session. So the znode is identified by the zxid that created it, and every write to it is
//! conditional on that zxid.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::recipes::LockLost;
use crate::types::error::{Error, Result};
use crate::types::watch::{WatchEvent, WatchMode};
use crate::types::znode::{Condition, OpResult, Stat, Zxid};

/// An ephemeral znode. Dropping it deletes the znode, without waiting for the answer.
pub(super) struct OwnedEphemeral {
    session: Session,
    path: String,
    czxid: Zxid,
    given_up: AtomicBool,
    deletion: DeletionWatch,
}

impl fmt::Debug for OwnedEphemeral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedEphemeral")
            .field("path", &self.path)
            .field("czxid", &self.czxid)
            .finish_non_exhaustive()
    }
}

impl OwnedEphemeral {
    pub(super) fn new(session: &Session, path: &str, czxid: Zxid) -> OwnedEphemeral {
        let given_up = AtomicBool::new(false);
        let (path, deletion) = (path.to_owned(), DeletionWatch::default());
        OwnedEphemeral { session: session.clone(), path, czxid, given_up, deletion }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn czxid(&self) -> Zxid {
        self.czxid
    }

    /// Whether the znode certainly exists at this moment, as far as this replica knows. Once false,
    /// it stays false.
    pub(super) fn exists(&self) -> bool {
        self.session.is_alive() && self.loss().is_none()
    }

    pub(super) fn loss(&self) -> Option<LockLost> {
        if self.session.is_over() {
            return Some(LockLost::SessionOver);
        }
        if !self.session.has_replica() {
            return self.deletion.is_deleted().then_some(LockLost::Deleted);
        }
        let exists = replica_has(&self.session, &self.path, self.czxid);
        (!exists).then_some(LockLost::Deleted)
    }

    /// Watches the znode, without waiting for the session to be alive. From here on, a client's
    /// [`OwnedEphemeral::loss`] reports a deletion.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the znode is already gone.
    pub(super) async fn watch_deletion(&self) -> Result<Watch> {
        self.deletion.follow(&self.session, &self.path, self.czxid).await
    }

    /// As [`OwnedEphemeral::watch_deletion`], and waits until the session is alive.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the znode is already gone.
    pub(super) async fn watch(&self) -> Result<Watch> {
        let watch = self.watch_deletion().await?;
        until_alive(&self.session).await?;
        Ok(watch)
    }

    /// As [`OwnedEphemeral::watch`], with a watch that fires only when the znode is deleted.
    pub(super) async fn watch_by(&self, watch: &Watch) -> Result<()> {
        self.deletion.follow_by(watch, &self.session, &self.path, self.czxid).await?;
        if self.loss() == Some(LockLost::Deleted) {
            // The watched znode is another one at the same path.
            return Err(Error::NoNode { path: self.path.clone() });
        }
        until_alive(&self.session).await
    }

    /// Waits for the watch's next event; on a client, for the end of the znode alone, after which
    /// [`OwnedEphemeral::loss`] is up to date. `None` if the watch is over.
    pub(super) async fn next(&self, watch: &Watch) -> Option<WatchEvent> {
        let end = self.deletion.state().end.clone();
        end.as_deref().unwrap_or(watch).next().await
    }

    /// Waits for the loss, by a watch that was passed to [`OwnedEphemeral::watch_by`].
    pub(super) async fn lost_async(&self, watch: &Watch) -> LockLost {
        until_lost(&self.session, watch, || self.loss()).await
    }

    /// Replaces the znode's data.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the znode no longer exists.
    pub(super) async fn set(&self, data: &[u8]) -> Result<Stat> {
        let fence = Condition::Czxid(self.czxid);
        let multi = self.session.multi().require(&self.path, fence).set(&self.path, data);
        match multi.submit().await {
            Ok(results) => match results.into_iter().nth(1) {
                Some(OpResult::Set(stat)) => Ok(stat),
                // A multi's results have the kinds of its operations.
                other => Err(Error::Stopped { reason: format!("a set gave {other:?}") }),
            },
            Err(Error::Multi { index: 0, .. }) => Err(Error::NoNode { path: self.path.clone() }),
            Err(Error::Multi { error, .. }) => Err(*error),
            Err(error) => Err(error),
        }
    }

    /// Deletes the znode and waits for that. Not an error if it is already gone.
    pub(super) async fn give_up(self) -> Result<()> {
        self.discard();
        // The session's later calls are answered after the deletion.
        match self.session.nonblocking().exists(&self.path).await {
            Err(error) if !error.is_session_lost() => Err(error),
            _ => Ok(()),
        }
    }

    /// Leaves the deletion to somebody else: dropping this no longer deletes the znode.
    pub(super) fn forget(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Deletes the znode, without waiting for the answer.
    pub(super) fn discard(&self) {
        if !self.given_up.swap(true, Ordering::Relaxed) {
            let path = self.session.root.full(&self.path).into_owned();
            self.session.discarding()(path, self.czxid);
        }
    }
}

impl Drop for OwnedEphemeral {
    fn drop(&mut self) {
        self.discard();
    }
}

/// What a client's watches have reported about an ephemeral znode, so that it knows of the deletion
/// without asking: every later answer comes after the report. Unused on an instance with a replica.
#[derive(Debug, Default)]
struct DeletionWatch(Mutex<DeletionState>);

#[derive(Debug, Default)]
struct DeletionState {
    /// Fires only when the znode, which has no children, is deleted; also when the history is no
    /// longer known and other watches report a gap.
    end: Option<Arc<Watch>>,
    /// Each is set when one of the watches reports the deletion.
    deleted: Vec<Arc<AtomicBool>>,
}

impl DeletionWatch {
    fn state(&self) -> MutexGuard<'_, DeletionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the znode that this write created. From here on, [`DeletionWatch::is_deleted`] knows
    /// of a deletion before the returned watch reports it. May be called again.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the znode is already gone.
    async fn follow(&self, session: &Session, path: &str, czxid: Zxid) -> Result<Watch> {
        let calls = session.nonblocking();
        let end = match session.has_replica() {
            true => None,
            false => Some(calls.children_and_watch(path).await?.1),
        };
        let watch = calls.watch(path, WatchMode::Persistent).await?;
        // It may have gone before the watches were set.
        if calls.exists(path).await?.map(|stat| stat.czxid) != Some(czxid) {
            return Err(Error::NoNode { path: path.to_owned() });
        }
        if let Some(end) = end {
            let deleted = [end.deletion(), watch.deletion()].into_iter().flatten().collect();
            let new = DeletionState { end: Some(Arc::new(end)), deleted };
            let former = std::mem::replace(&mut *self.state(), new);
            // Not under the lock: dropping it removes its watch.
            drop(former);
        }
        Ok(watch)
    }

    /// As [`DeletionWatch::follow`], with a watch that fires only when the znode is deleted.
    async fn follow_by(
        &self,
        watch: &Watch,
        session: &Session,
        path: &str,
        czxid: Zxid,
    ) -> Result<()> {
        let Some(deleted) = watch.deletion() else { return Ok(()) };
        // The watched znode may be another one at the same path.
        if session.nonblocking().exists(path).await?.map(|stat| stat.czxid) != Some(czxid) {
            return Err(Error::NoNode { path: path.to_owned() });
        }
        self.state().deleted.push(deleted);
        Ok(())
    }

    fn is_deleted(&self) -> bool {
        self.state().deleted.iter().any(|deleted| deleted.load(Ordering::Acquire))
    }
}

/// Whether this replica has the znode at `path` that the write `czxid` created.
pub(super) fn replica_has(session: &Session, path: &str, czxid: Zxid) -> bool {
    let tree = session.shared().tree();
    tree.get(&session.root.full(path)).is_some_and(|znode| znode.stat().czxid == czxid)
}

/// Waits until the session is known to be alive. After a slow opening the session is open before
/// that is known, and its znode would look lost although it is not.
pub(super) async fn until_alive(session: &Session) -> Result<()> {
    while !session.is_alive() {
        session.nonblocking().sync().await?;
    }
    Ok(())
}

/// Waits for a loss, by a watch that fires when the znode is deleted. Takes no event from the watch,
/// so that any number of tasks may wait while another reads its channel.
pub(super) async fn until_lost(
    session: &Session,
    watch: &Watch,
    loss: impl Fn() -> Option<LockLost>,
) -> LockLost {
    watch
        .until(|is_over| {
            // The session's time may be over before the node reports it.
            let is_over = is_over || !session.is_alive();
            loss().or_else(|| is_over.then_some(LockLost::SessionOver))
        })
        .await
}
