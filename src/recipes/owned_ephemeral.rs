//! An ephemeral znode whose name is given, and that is one's own all the same.
//!
//! Unlike a contender's (see `line`), its path may be another's later: when it was deleted and made
//! again, or its session is over. So it is known by the zxid that created it, and whatever is done
//! with it is done on that condition.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::recipes::LockLost;
use crate::recipes::creating::discard_when_made;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::watch::{WatchEvent, WatchMode};
use crate::types::znode::{Condition, CreateMode, Created, OpResult, Stat, Zxid};

/// A znode that is being created. Dropped before that is done, it is given up.
pub(super) struct Creating {
    session: Session,
    pending: Option<Pending<Created>>,
}

impl Creating {
    pub(super) fn new(session: &Session, path: &str, data: &[u8]) -> Creating {
        let pending = session.nonblocking().create(path, data, CreateMode::Ephemeral);
        Creating { session: session.clone(), pending: Some(pending) }
    }

    pub(super) async fn done(mut self) -> Result<Own> {
        let Some(pending) = &mut self.pending else {
            return Err(Error::Stopped { reason: "it was waited for already".to_owned() });
        };
        // Polled in place, so that a drop in between finds it.
        let created = pending.await;
        self.pending = None;
        let Created { path, stat } = created?;
        Ok(Own::new(&self.session, &path, stat.czxid))
    }
}

impl Drop for Creating {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            discard_when_made(&self.session, pending);
        }
    }
}

/// A znode of one's own. Dropped, it is deleted, without waiting for that.
pub(super) struct Own {
    session: Session,
    path: String,
    czxid: Zxid,
    given_up: AtomicBool,
    fate: Fate,
}

/// What a client has been told of an ephemeral znode, and so knows without asking: nothing before it
/// follows it. Unused where there is a replica.
#[derive(Debug, Default)]
pub(super) struct Fate(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    /// It fires when the znode is deleted, which has no children, and at nothing else; also if what
    /// has happened is not known any more, and other watches tell of a gap.
    end: Option<Arc<Watch>>,
    /// Told by any of the watches.
    deleted: Vec<Arc<AtomicBool>>,
}

impl Fate {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A watch of the znode that this write created; from here on, its deletion is known before it is
    /// told there. It may be followed again, by other watches.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it is gone already.
    pub(super) async fn follow(&self, session: &Session, path: &str, czxid: Zxid) -> Result<Watch> {
        let calls = session.nonblocking();
        let end = match session.has_replica() {
            true => None,
            false => Some(calls.children_and_watch(path).await?.1),
        };
        let watch = calls.watch(path, WatchMode::Persistent).await?;
        // Gone before the watches were set?
        if calls.exists(path).await?.map(|stat| stat.czxid) != Some(czxid) {
            return Err(Error::NoNode { path: path.to_owned() });
        }
        if let Some(end) = end {
            let deleted = [end.deletion(), watch.deletion()].into_iter().flatten().collect();
            let former =
                std::mem::replace(&mut *self.told(), Told { end: Some(Arc::new(end)), deleted });
            // Not under the lock: it removes its watch.
            drop(former);
        }
        Ok(watch)
    }

    /// The same with a watch that fires when the znode is deleted, and at nothing else.
    pub(super) async fn follow_by(
        &self,
        watch: &Watch,
        session: &Session,
        path: &str,
        czxid: Zxid,
    ) -> Result<()> {
        let Some(deleted) = watch.deletion() else { return Ok(()) };
        // What is watched may be another's.
        if session.nonblocking().exists(path).await?.map(|stat| stat.czxid) != Some(czxid) {
            return Err(Error::NoNode { path: path.to_owned() });
        }
        self.told().deleted.push(deleted);
        Ok(())
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.told().deleted.iter().any(|told| told.load(Ordering::Acquire))
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Own")
            .field("path", &self.path)
            .field("czxid", &self.czxid)
            .finish_non_exhaustive()
    }
}

impl Own {
    pub(super) fn new(session: &Session, path: &str, czxid: Zxid) -> Own {
        let given_up = AtomicBool::new(false);
        let (path, fate) = (path.to_owned(), Fate::default());
        Own { session: session.clone(), path, czxid, given_up, fate }
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

    /// Whether it is there, for sure. Once false, it stays so.
    pub(super) fn is_there(&self) -> bool {
        self.session.is_alive() && self.how_lost().is_none()
    }

    pub(super) fn how_lost(&self) -> Option<LockLost> {
        if self.session.is_over() {
            return Some(LockLost::SessionOver);
        }
        if !self.session.has_replica() {
            return self.fate.is_deleted().then_some(LockLost::Deleted);
        }
        let tree = self.session.shared().tree();
        let path = self.session.root.full(&self.path);
        let there = tree.get(&path).map(|znode| znode.stat().czxid);
        (there != Some(self.czxid)).then_some(LockLost::Deleted)
    }

    /// From here on, its loss is told.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it is lost already.
    pub(super) async fn watch(&self) -> Result<Watch> {
        let watch = self.fate.follow(&self.session, &self.path, self.czxid).await?;
        self.until_alive().await?;
        Ok(watch)
    }

    /// The same by a watch that fires when it is deleted, and at nothing else.
    pub(super) async fn watch_by(&self, watch: &Watch) -> Result<()> {
        self.fate.follow_by(watch, &self.session, &self.path, self.czxid).await?;
        if self.how_lost() == Some(LockLost::Deleted) {
            // What is watched is another's.
            return Err(Error::NoNode { path: self.path.clone() });
        }
        self.until_alive().await
    }

    /// A session whose opening took long is open before it is known to be alive. What is not there yet
    /// looks like what is not there any more.
    async fn until_alive(&self) -> Result<()> {
        while !self.session.is_alive() {
            self.session.nonblocking().sync().await?;
        }
        Ok(())
    }

    /// The next thing that this watch of it tells, on a client its end alone: whether it is lost
    /// can be seen then. `None` if the watch is over.
    pub(super) async fn next(&self, watch: &Watch) -> Option<WatchEvent> {
        let end = self.fate.told().end.clone();
        end.as_deref().unwrap_or(watch).next().await
    }

    /// Waits until it is lost, by a watch that [`Own::watch_by`] was given.
    pub(super) async fn lost_async(&self, watch: &Watch) -> LockLost {
        until_lost(&self.session, watch, || self.how_lost()).await
    }

    /// Replaces its data.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it is not there any more.
    pub(super) async fn set(&self, data: &[u8]) -> Result<Stat> {
        let fence = Condition::Czxid(self.czxid);
        let multi = self.session.multi().require(&self.path, fence).set(&self.path, data);
        match multi.submit().await {
            Ok(results) => match results.into_iter().nth(1) {
                Some(OpResult::Set(stat)) => Ok(stat),
                // A multi has a result of each operation's kind.
                other => Err(Error::Stopped { reason: format!("a set gave {other:?}") }),
            },
            Err(Error::Multi { index: 0, .. }) => Err(Error::NoNode { path: self.path.clone() }),
            Err(Error::Multi { error, .. }) => Err(*error),
            Err(error) => Err(error),
        }
    }

    /// Deletes it, and waits until that is done. That it is gone already is no error.
    pub(super) async fn give_up(self) -> Result<()> {
        self.discard();
        // What the session asks for later comes after that.
        match self.session.nonblocking().exists(&self.path).await {
            Err(error) if !error.is_session_lost() => Err(error),
            _ => Ok(()),
        }
    }

    /// It has been deleted otherwise.
    pub(super) fn forget(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Deletes it, without waiting for that.
    pub(super) fn discard(&self) {
        if !self.given_up.swap(true, Ordering::Relaxed) {
            let path = self.session.root.full(&self.path).into_owned();
            self.session.discarding()(path, self.czxid);
        }
    }
}

/// Waits until something is lost, by a watch that fires when its znode is deleted. It takes no event,
/// so that any number of tasks may wait, and whoever reads the watch's channel beside them.
pub(super) async fn until_lost(
    session: &Session,
    watch: &Watch,
    how_lost: impl Fn() -> Option<LockLost>,
) -> LockLost {
    watch
        .until(|is_over| {
            // Or its time is over, and the node has not come to say so.
            let is_over = is_over || !session.is_alive();
            how_lost().or_else(|| is_over.then_some(LockLost::SessionOver))
        })
        .await
}

impl Drop for Own {
    fn drop(&mut self) {
        self.discard();
    }
}
