//! This session's contender, until it holds or gives up.

use std::sync::atomic::AtomicBool;

use once_cell::sync::OnceCell;

use super::Hold;
use crate::api::multi::Multi;
use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::planted::{Bug, planted};
use crate::recipes::creating::Creating;
use crate::recipes::errors::inner;
use crate::recipes::owned_ephemeral::until_alive;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::znode::{Condition, CreateMode, Created, OpResult, Stat, Zxid};

/// This session's contender. Dropping it before it holds deletes its znode.
pub(in crate::recipes) struct Contender {
    session: Session,
    /// Its znode, and the write that created it.
    created: Option<(String, Zxid)>,
    joined_at: u64,
    /// A znode to delete together with its own when it gives up: see [`Contender::mark`].
    mark: Option<String>,
    /// A watch of its own znode, set if it has to wait.
    watch: OnceCell<Watch>,
}

impl Contender {
    /// The contender of a create in flight.
    pub(super) async fn created_by(
        session: &Session,
        creating: Pending<Created>,
    ) -> Result<Contender> {
        let Created { path, stat } = Creating::new(session, creating).answer().await?;
        let mut contender = Contender::of(session, path, stat.czxid);
        contender.joined_at = stat.ctime;
        Ok(contender)
    }

    /// The contender of an existing znode.
    pub(super) fn of(session: &Session, path: String, czxid: Zxid) -> Contender {
        let (created, mark, watch) = (Some((path, czxid)), None, OnceCell::new());
        Contender { session: session.clone(), created, joined_at: 0, mark, watch }
    }

    /// Watches its own znode, if not done yet. The znode has no children, so the watch fires only
    /// when it is deleted.
    pub(super) async fn watch(&self) -> Result<()> {
        if self.watch.get().is_none() {
            let (_, watch) = self.session.nonblocking().children_and_watch(self.path()).await?;
            // Nobody else sets it: a contender waits once at a time.
            let _ = self.watch.set(watch);
        }
        Ok(())
    }

    pub(in crate::recipes) fn path(&self) -> &str {
        self.created.as_ref().map_or("", |(path, _)| path)
    }

    /// The write that created its znode.
    pub(in crate::recipes) fn czxid(&self) -> Zxid {
        self.created.as_ref().map_or(0, |(_, czxid)| *czxid)
    }

    /// Adds the check that its znode exists, and its deletion.
    pub(in crate::recipes) fn leave_in<'a>(&self, multi: Multi<'a>) -> Multi<'a> {
        multi.require(self.path(), Condition::Czxid(self.czxid())).delete(self.path())
    }

    /// Deletes its znode, and waits for that. Not an error if it is already gone.
    pub(in crate::recipes) async fn delete(&self) -> Result<()> {
        match inner(self.leave_in(self.session.multi()).submit().await) {
            Ok(_) | Err(Error::NoNode { .. } | Error::Unmet { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sets the data of its znode.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it is gone.
    pub(in crate::recipes) async fn set(&self, data: &[u8]) -> Result<Stat> {
        let path = self.path();
        let multi = self.session.multi().require(path, Condition::Czxid(self.czxid()));
        match inner(multi.set(path, data).submit().await).map_err(gone)?.pop() {
            Some(OpResult::Set(stat)) => Ok(stat),
            // A multi's results have the kinds of its operations.
            other => Err(Error::Stopped { reason: format!("a set gave {other:?}") }),
        }
    }

    /// Sets the data of its znode if it was never set. Not an error if it was.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it is gone.
    pub(in crate::recipes) async fn set_first(&self, data: &[u8]) -> Result<()> {
        set_first(&self.session, self.path(), self.czxid(), data).await
    }

    /// Creates a znode that is deleted when this contender gives up or releases, and that stays
    /// when the contender is lost.
    pub(in crate::recipes) async fn mark(&mut self, path: &str, data: &[u8]) -> Result<()> {
        let Some((own_path, czxid)) = &self.created else { return Ok(()) };
        self.mark = Some(path.to_owned());
        let multi = self.session.multi().require(own_path, Condition::Czxid(*czxid));
        let marked = multi.create(path, data, CreateMode::Persistent).submit();
        inner(marked.await).map(drop).map_err(gone)
    }

    /// When it joined, by the cluster's clock.
    pub(in crate::recipes) fn joined_at(&self) -> u64 {
        self.joined_at
    }

    /// Its znode is already gone: there is nothing to give up.
    pub(in crate::recipes) fn forget(mut self) {
        self.created = None;
    }

    /// Its turn has come: takes the hold. From here on, a loss is reported.
    pub(in crate::recipes) async fn hold(mut self) -> Result<Hold> {
        let path = self.path().to_owned();
        let calls = self.session.nonblocking();
        let there = match self.watch.get() {
            Some(_) if self.session.has_replica() => self.session.exists(&path)?,
            Some(_) => calls.exists(&path).await?,
            None => {
                // Requested together. If the znode is already gone, the first fails.
                let (watching, there) = (calls.children_and_watch(&path), calls.exists(&path));
                let _ = self.watch.set(watching.await?.1);
                there.await?
            }
        };
        // Another znode may have taken its place.
        if there.map(|stat| stat.czxid) != Some(self.czxid()) {
            return Err(Error::NoNode { path });
        }
        until_alive(&self.session).await?;
        let Some(watch) = self.watch.take() else {
            return Err(Error::NoNode { path });
        };
        let Some((_, czxid)) = self.created.take() else {
            return Err(Error::NoNode { path });
        };
        Ok(Hold {
            session: self.session.clone(),
            token: if planted(Bug::TokenFixed) { 1 } else { czxid },
            czxid,
            path,
            mark: self.mark.take(),
            watch,
            released: AtomicBool::new(false),
        })
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if let Some((path, czxid)) = self.created.take() {
            give_up(&self.session, &path, czxid, self.mark.as_deref());
        }
    }
}

pub(super) async fn set_first(
    session: &Session,
    path: &str,
    czxid: Zxid,
    data: &[u8],
) -> Result<()> {
    let multi = session.multi().require(path, Condition::Czxid(czxid)).set_if(path, data, 0);
    match inner(multi.submit().await) {
        Ok(_) | Err(Error::BadVersion { .. }) => Ok(()),
        Err(error) => Err(gone(error)),
    }
}

/// Deletes a contender's znode and its mark, without waiting for the answer.
pub(super) fn give_up(session: &Session, path: &str, czxid: Zxid, mark: Option<&str>) {
    if let Some(mark) = mark {
        // Only together: the mark of a lost contender stays.
        session.discard_with(path, czxid, mark);
    }
    // Needed if somebody else has deleted the mark.
    session.discarding()(session.root.full(path).into_owned(), czxid);
}

/// Another znode at the contender's path means that the contender is gone.
pub(super) fn gone(error: Error) -> Error {
    match error {
        Error::Unmet { path, .. } => Error::NoNode { path },
        error => error,
    }
}
