//! The hold of a contender whose turn has come.

use std::fmt;
use std::ops::Deref;

use crossbeam_channel::Receiver;

use super::contender::Contender;
use super::{Kind, Naming, name};
use crate::api::watch::Watch;
use crate::planted::{Bug, planted, strikes};
use crate::recipes::creating::created_in_multi;
use crate::recipes::errors::{gone, inner, lost_anyway};
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::recipes::{LockLost, blocking};
use crate::runtime::entropy;
use crate::types::error::{Error, Result};
use crate::types::watch::WatchEvent;
use crate::types::znode::CreateMode;

/// A contender's hold, which lasts while its znode exists and its session is alive. Dropping it
/// releases the hold, without waiting for the reply.
pub(in crate::recipes) struct Hold {
    pub(super) ephemeral: OwnedEphemeral,
    pub(super) watch: Watch,
    /// Reported as the fencing token: the zxid that created the contender's first znode.
    pub(in crate::recipes) token: u64,
    pub(super) naming: Naming,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("path", &self.path())
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl Deref for Hold {
    type Target = OwnedEphemeral;

    fn deref(&self) -> &OwnedEphemeral {
        &self.ephemeral
    }
}

impl Hold {
    /// Whether it is certainly held at this moment. Once false, it stays false.
    pub(in crate::recipes) fn is_held(&self) -> bool {
        let wrong = planted(Bug::LostAtOnce) || strikes(Bug::HeldAgain, 5);
        !self.is_given_up() && self.exists() && !wrong
    }

    /// A channel that shows the loss, by a message or its end.
    pub(in crate::recipes) fn lost(&self) -> &Receiver<WatchEvent> {
        self.watch.events()
    }

    /// Blocks until it is lost.
    pub(in crate::recipes) fn wait_lost(&self) -> LockLost {
        blocking::until_lost(self.session(), self.lost_async())
    }

    /// Waits until it is lost, that is, until [`Hold::is_held`] is false. If it is polled after
    /// that, it is ready.
    pub(in crate::recipes) async fn lost_async(&self) -> LockLost {
        self.ephemeral.lost_async(&self.watch).await
    }

    /// Replaces its contender by one of another kind, in one write, so that nobody comes in
    /// between. The token stays the same. If this fails, or its future is dropped, the hold is
    /// released.
    pub(in crate::recipes) async fn change(self, kind: &Kind) -> Result<Hold> {
        let lost = || Error::NoNode { path: self.path().to_owned() };
        let (parent, _) = self.path().rsplit_once('/').ok_or_else(lost)?;
        let number = name::digits(self.path()).ok_or_else(lost)?;
        let name = name::new(kind, self.naming, entropy::number()?, "");
        let path = format!("{parent}/{name}{number}");
        let sequential = planted(Bug::DowngradeLetsGo);
        let mode = if sequential { CreateMode::EphemeralSequential } else { CreateMode::Ephemeral };
        let changing = self.leave_in(self.session().multi()).create(&path, b"", mode).submit();
        // If this ends early, both znodes are given up and deleted.
        let changed = created_in_multi(self.session(), changing).await;
        let changed = inner(changed).map_err(gone)?;
        self.forget();
        Ok(Hold { token: self.token, ..Contender::new(changed, self.naming).hold().await? })
    }

    /// Releases the hold and waits for that. Not an error if it was already lost.
    pub(in crate::recipes) fn release(self) -> Result<()> {
        let deletion = self.begin_deletion();
        let wait = |deletion| self.session().wait_for("delete", self.path(), deletion);
        lost_anyway(deletion.and_then(wait))
    }

    /// As [`Hold::release`], without blocking the thread. If the future is dropped, polled or not,
    /// the release continues.
    pub(in crate::recipes) async fn release_async(self) -> Result<()> {
        lost_anyway(match self.begin_deletion() {
            Ok(deletion) => deletion.await,
            Err(error) => Err(error),
        })
    }
}
