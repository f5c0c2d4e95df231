//! An ephemeral znode that this instance created and owns.
//!
//! Its path may later belong to somebody else: after a delete and a create, or after the end of the
//! session. So the znode is identified by the zxid that created it, and every write to it is
//! conditional on that zxid.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::multi::{Fence, Multi};
use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::machine::Tree;
use crate::recipes::Lost;
use crate::recipes::errors::{gone, inner, stat_of_set, unless_gone};
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::watch::{WatchEvent, WatchMode};
use crate::types::znode::{Condition, CreateMode, Stat, Zxid};

/// An ephemeral znode. Dropping it deletes the znode, without waiting for the reply.
pub(super) struct OwnedEphemeral {
    session: Session,
    path: String,
    /// The zxid of the write that created it.
    czxid: Zxid,
    /// A znode to delete together with it: see [`OwnedEphemeral::mark`].
    mark: Option<String>,
    given_up: AtomicBool,
    deletion: Mutex<DeletionState>,
}

impl fmt::Debug for OwnedEphemeral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedEphemeral")
            .field("path", &self.path)
            .field("czxid", &self.czxid)
            .finish_non_exhaustive()
    }
}

/// Reports of a client's watches about an ephemeral znode. With them a client knows of the deletion
/// without a request: every later reply comes after the report. Unused on an instance with a
/// replica.
#[derive(Debug, Default)]
struct DeletionState {
    /// Fires only when the znode, which has no children, is deleted, even if the history is no
    /// longer known and other watches report a gap.
    end: Option<Arc<Watch>>,
    /// One flag for each watch, set when it reports the deletion.
    deleted: Vec<Arc<AtomicBool>>,
}

impl OwnedEphemeral {
    /// Owns the znode at this path, whose stat at its creation is `stat`.
    pub(super) fn new(session: &Session, path: &str, stat: &Stat) -> OwnedEphemeral {
        OwnedEphemeral {
            session: session.clone(),
            path: path.to_owned(),
            czxid: stat.czxid,
            mark: None,
            given_up: AtomicBool::new(false),
            deletion: Mutex::default(),
        }
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

    fn deletion(&self) -> MutexGuard<'_, DeletionState> {
        self.deletion.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the znode certainly exists at this moment, as far as this replica knows. Once false,
    /// it stays false.
    pub(super) fn exists(&self) -> bool {
        self.session.is_alive() && self.loss().is_none()
    }

    pub(super) fn loss(&self) -> Option<Lost> {
        let is_deleted = match self.session.tree() {
            Ok(Some(tree)) => !self.is_in(&tree),
            Ok(None) if !self.session.is_over() => {
                self.deletion().deleted.iter().any(|it| it.load(Ordering::Acquire))
            }
            Ok(None) | Err(_) => return Some(Lost::SessionOver),
        };
        is_deleted.then_some(Lost::Deleted)
    }

    fn is_in(&self, tree: &Tree) -> bool {
        let znode = tree.get(&self.session.root.full(&self.path));
        znode.is_some_and(|znode| znode.stat().czxid == self.czxid)
    }

    /// Waits until the session is known to be alive. If the opening was slow, the session is open
    /// before it is known to be alive, and the znode would look lost although it is not.
    async fn until_alive(&self) -> Result<()> {
        while !self.session.is_alive() {
            self.session.sync().await?;
        }
        Ok(())
    }

    /// The error that the znode no longer exists.
    fn is_gone(&self) -> Error {
        Error::NoNode { path: self.path.clone() }
    }

    /// Checks that the znode at the path is this one, and not another one created later.
    fn check(&self, there: Option<Stat>) -> Result<()> {
        match there.is_some_and(|stat| stat.czxid == self.czxid) {
            true => Ok(()),
            false => Err(self.is_gone()),
        }
    }

    /// Watches the znode, without waiting for the session to be alive. From here on, a client's
    /// [`OwnedEphemeral::loss`] reports a deletion before the returned watch does. May be called
    /// again.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the znode is already gone.
    pub(super) async fn watch_deletion(&self) -> Result<Watch> {
        let calls = &self.session.in_turn();
        let end = match self.session.has_replica() {
            true => None,
            false => Some(calls.children_and_watch(&self.path).await?.1),
        };
        let watch = calls.watch(&self.path, WatchMode::Persistent).await?;
        // The znode may have been deleted before the watches were set.
        self.check(calls.exists(&self.path).await?)?;
        if let Some(end) = end {
            let deleted = [end.deletion(), watch.deletion()].into_iter().flatten().collect();
            let new = DeletionState { end: Some(Arc::new(end)), deleted };
            let former = std::mem::replace(&mut *self.deletion(), new);
            // Not under the lock: dropping the watch removes it.
            drop(former);
        }
        Ok(watch)
    }

    /// As [`OwnedEphemeral::watch_deletion`], and waits until the session is alive.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the znode is already gone.
    pub(super) async fn watch(&self) -> Result<Watch> {
        let watch = self.watch_deletion().await?;
        self.until_alive().await?;
        Ok(watch)
    }

    /// As [`OwnedEphemeral::watch`], with a watch that fires only when the znode is deleted.
    pub(super) async fn watch_end(&self) -> Result<Watch> {
        // The znode has no children.
        let watching = self.session.children_and_watch(&self.path);
        self.follow(async { Ok(watching.await?.1) }).await
    }

    /// As [`OwnedEphemeral::watch_end`], with a watch that was requested already. That watch may be
    /// of another znode at the same path.
    pub(super) async fn follow(
        &self,
        watching: impl Future<Output = Result<Watch>>,
    ) -> Result<Watch> {
        // Requested together with the watch, so that both cost one round trip.
        let is_client = !self.session.has_replica();
        let there = is_client.then(|| self.session.in_turn().exists(&self.path));
        let watch = watching.await?;
        if let Some(there) = there {
            self.check(there.await?)?;
        }
        self.deletion().deleted.extend(watch.deletion());
        if self.loss() == Some(Lost::Deleted) {
            return Err(self.is_gone());
        }
        self.until_alive().await?;
        Ok(watch)
    }

    /// Waits for the watch's next event; on a client, only for the end of the znode, after which
    /// [`OwnedEphemeral::loss`] is up to date. `None` if the watch is over.
    pub(super) async fn next(&self, watch: &Watch) -> Option<WatchEvent> {
        let end = self.deletion().end.clone();
        end.as_deref().unwrap_or(watch).next().await
    }

    /// Waits for the loss with a watch that fires when the znode is deleted. Takes no event from
    /// the watch, so that any number of tasks may wait while another task reads its channel.
    pub(super) async fn lost(&self, watch: &Watch) -> Lost {
        watch
            .until(|is_over| {
                // The session's timeout may have passed before the node reports it.
                let is_over = is_over || !self.session.is_alive();
                self.loss().or_else(|| is_over.then_some(Lost::SessionOver))
            })
            .await
    }

    /// The condition that the znode exists.
    pub(super) fn fence(&self) -> Fence {
        Fence::of(&self.session, &self.path, self.czxid)
    }

    /// Starts a multi with the check that the znode exists.
    pub(super) fn multi(&self) -> Multi<'_> {
        self.session.multi().require(&self.path, Condition::Czxid(self.czxid))
    }

    /// Adds the check that the znode exists, and its deletion.
    pub(super) fn leave_in<'a>(&self, multi: Multi<'a>) -> Multi<'a> {
        multi.require(&self.path, Condition::Czxid(self.czxid)).delete(&self.path)
    }

    /// Replaces the znode's data.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the znode no longer exists.
    pub(super) async fn set(&self, data: &[u8]) -> Result<Stat> {
        match self.multi().set(&self.path, data).commit().await {
            Err(Error::Multi { index: 0, .. }) => Err(self.is_gone()),
            done => stat_of_set(inner(done)?),
        }
    }

    /// Sets the znode's data if it was never set. Not an error if it was.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the znode no longer exists.
    pub(super) async fn set_first(&self, data: &[u8]) -> Result<()> {
        match inner(self.multi().set_if(&self.path, data, 0).commit().await) {
            Ok(_) | Err(Error::BadVersion { .. }) => Ok(()),
            Err(error) => Err(gone(error)),
        }
    }

    /// Creates a second znode, which is deleted when this one is given up, and stays when this one
    /// is lost.
    pub(super) async fn mark(&mut self, path: &str, data: &[u8]) -> Result<()> {
        self.mark = Some(path.to_owned());
        let marked = self.multi().create(path, data, CreateMode::Persistent).commit();
        inner(marked.await).map(drop).map_err(gone)
    }

    /// Deletes the znode, and waits for the deletion. Not an error if it is already gone.
    pub(super) async fn delete(&self) -> Result<()> {
        unless_gone(self.leave_in(self.session.multi()).commit().await).map(drop)
    }

    /// Starts to delete the znode, and returns the reply to wait for: see [`Session::discard`].
    pub(super) fn begin_deletion(&self) -> Result<Pending<'_, ()>> {
        self.forget();
        self.discard_mark();
        // This request comes after the former one: when it is answered, both are done.
        self.session.discard(&self.path, self.czxid)
    }

    /// Leaves the deletion to the caller: dropping this no longer deletes the znode.
    pub(super) fn forget(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// Whether it was forgotten or discarded.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Gives it up as [`OwnedEphemeral::forget`] does, until the result says whether that is for good.
    pub(super) fn give_up(&self) -> GivingUp<'_> {
        self.forget();
        GivingUp { ephemeral: Some(self) }
    }

    /// Deletes the znode, without waiting for the reply.
    pub(super) fn discard(&self) {
        if !self.given_up.swap(true, Ordering::AcqRel) {
            self.discard_given_up();
        }
    }

    fn discard_given_up(&self) {
        self.discard_mark();
        // Deletes the znode alone, in case somebody else has deleted the mark.
        let path = self.session.root.full(&self.path).into_owned();
        self.session.discarding()(path, self.czxid);
    }

    fn discard_mark(&self) {
        if let Some(mark) = &self.mark {
            // Deletes both or neither: the mark of a lost znode stays.
            self.session.discard_with(&self.path, self.czxid, mark);
        }
    }
}

/// An ephemeral that counts as given up while a write that deletes it is in flight. If that write's outcome is not
/// waited for, the znode is deleted anyway.
pub(super) struct GivingUp<'a> {
    ephemeral: Option<&'a OwnedEphemeral>,
}

impl GivingUp<'_> {
    /// The write has deleted the znode.
    pub(super) fn done(mut self) {
        self.ephemeral = None;
    }

    /// The write has certainly not deleted the znode.
    pub(super) fn undo(mut self) {
        if let Some(ephemeral) = self.ephemeral.take() {
            ephemeral.given_up.store(false, Ordering::Release);
        }
    }
}

impl Drop for GivingUp<'_> {
    fn drop(&mut self) {
        if let Some(ephemeral) = self.ephemeral {
            ephemeral.discard_given_up();
        }
    }
}

impl Drop for OwnedEphemeral {
    fn drop(&mut self) {
        self.discard();
    }
}
