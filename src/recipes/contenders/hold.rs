//! What a contender holds once its turn has come.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Receiver;

use super::contender::{Contender, give_up, gone, set_first};
use super::name;
use crate::api::multi::Fence;
use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::planted::{Bug, planted, strikes};
use crate::recipes::creating::created_in_multi;
use crate::recipes::{LockLost, blocking, owned_ephemeral};
use crate::runtime::entropy;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::watch::WatchEvent;
use crate::types::znode::{Condition, CreateMode, Zxid};

/// What a contender holds while its znode exists and its session is alive. Dropping it releases the
/// hold, without waiting for the answer.
pub(in crate::recipes) struct Hold {
    pub(super) session: Session,
    pub(super) path: String,
    /// Reported as the fencing token.
    pub(super) token: u64,
    /// The write that created its znode.
    pub(super) czxid: Zxid,
    /// A znode to delete together with its own on release.
    pub(super) mark: Option<String>,
    pub(super) watch: Watch,
    pub(super) released: AtomicBool,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("path", &self.path)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl Hold {
    pub(in crate::recipes) fn session(&self) -> &Session {
        &self.session
    }

    /// The zxid that created the contender's first znode.
    pub(in crate::recipes) fn token(&self) -> u64 {
        self.token
    }

    pub(in crate::recipes) fn path(&self) -> &str {
        &self.path
    }

    /// Whether it is certainly held at this moment. Once false, it stays false.
    pub(in crate::recipes) fn is_held(&self) -> bool {
        let released = self.released.load(Ordering::Acquire);
        let wrong = planted(Bug::LostAtOnce) || strikes(Bug::HeldAgain, 5);
        !released && self.session.is_alive() && self.loss().is_none() && !wrong
    }

    /// A channel that shows the loss, by a message or its end.
    pub(in crate::recipes) fn lost(&self) -> &Receiver<WatchEvent> {
        self.watch.events()
    }

    /// Blocks until it is lost.
    pub(in crate::recipes) fn wait_lost(&self) -> LockLost {
        blocking::until_lost(&self.session, self.lost_async())
    }

    /// Waits until it is lost, that is, until [`Hold::is_held`] is false. Notices that at the
    /// latest when polled after it.
    pub(in crate::recipes) async fn lost_async(&self) -> LockLost {
        owned_ephemeral::until_lost(&self.session, &self.watch, || self.loss()).await
    }

    /// As [`Contender::set_first`].
    pub(in crate::recipes) async fn set_first(&self, data: &[u8]) -> Result<()> {
        set_first(&self.session, &self.path, self.czxid, data).await
    }

    pub(in crate::recipes) fn loss(&self) -> Option<LockLost> {
        if self.session.is_over() {
            return Some(LockLost::SessionOver);
        }
        if let Some(deletion) = self.watch.deletion() {
            return deletion.load(Ordering::Acquire).then_some(LockLost::Deleted);
        }
        let exists = owned_ephemeral::replica_has(&self.session, &self.path, self.czxid);
        (!exists).then_some(LockLost::Deleted)
    }

    /// The condition that it is still held.
    pub(in crate::recipes) fn fence(&self) -> Fence {
        Fence::of(&self.session, &self.path, self.czxid)
    }

    /// Replaces its contender by one of another kind, in one write, so that nobody comes in
    /// between. The token stays the same. If this fails, or its future is dropped, the hold is
    /// released.
    pub(in crate::recipes) async fn change(self, kind: &str) -> Result<Hold> {
        let lost = || Error::NoNode { path: self.path.clone() };
        let (parent, _) = self.path.rsplit_once('/').ok_or_else(lost)?;
        let (_, number) = self.path.rsplit_once('-').ok_or_else(lost)?;
        let path = format!("{parent}/{}{number}", name(kind, entropy::number()?));
        let sequential = planted(Bug::DowngradeLetsGo);
        let mode = if sequential { CreateMode::EphemeralSequential } else { CreateMode::Ephemeral };
        let multi = self.session.multi().require(&self.path, Condition::Czxid(self.czxid));
        let changing = multi.delete(&self.path).create(&path, b"", mode).submit();
        // If this ends early, both znodes are deleted.
        let created = created_in_multi(&self.session, changing).await.map_err(gone)?;
        self.released.store(true, Ordering::Release);
        let contender = Contender::of(&self.session, created.path().to_owned(), created.czxid());
        created.forget();
        let mut held = contender.hold().await?;
        held.token = self.token;
        Ok(held)
    }

    /// Releases the hold, without waiting for the answer.
    pub(in crate::recipes) fn discard(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            give_up(&self.session, &self.path, self.czxid, self.mark.as_deref());
        }
    }

    /// Releases the hold and waits for that. Not an error if it was already lost.
    pub(in crate::recipes) fn release(self) -> Result<()> {
        let released = self.begin_release();
        gone_anyway(released.and_then(|answer| self.session.wait_for("delete", &self.path, answer)))
    }

    /// As [`Hold::release`], without blocking the thread. If the future is dropped, polled or not,
    /// the release continues.
    pub(in crate::recipes) async fn release_async(self) -> Result<()> {
        gone_anyway(match self.begin_release() {
            Ok(answer) => answer.await,
            Err(error) => Err(error),
        })
    }

    fn begin_release(&self) -> Result<Pending<()>> {
        self.released.store(true, Ordering::Release);
        if let Some(mark) = &self.mark {
            self.session.discard_with(&self.path, self.czxid, mark);
        }
        // This comes after the former: when it is answered, both are done.
        self.session.discard(&self.path, self.czxid)
    }
}

/// Not an error if it was already lost.
fn gone_anyway(released: Result<()>) -> Result<()> {
    match released {
        Err(Error::NoNode { .. } | Error::Unmet { .. }) => Ok(()),
        Err(error) if error.is_session_lost() => Ok(()),
        other => other,
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.discard();
    }
}
