//! A contender of this session, until it holds or gives up.

use std::future::ready;
use std::ops::Deref;

use once_cell::sync::OnceCell;

use super::{Hold, Naming};
use crate::api::watch::Watch;
use crate::planted::{Bug, planted};
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::types::error::Result;

/// A contender of this session. Dropping it before it holds deletes its znode.
pub(in crate::recipes) struct Contender {
    pub(in crate::recipes) ephemeral: OwnedEphemeral,
    /// A watch of its own znode, set if it has to wait.
    watch: OnceCell<Watch>,
    naming: Naming,
}

impl Deref for Contender {
    type Target = OwnedEphemeral;

    fn deref(&self) -> &OwnedEphemeral {
        &self.ephemeral
    }
}

impl Contender {
    /// Of a contender's znode, or of one that is held and lost like a contender's.
    pub(in crate::recipes) fn new(ephemeral: OwnedEphemeral, naming: Naming) -> Contender {
        Contender { ephemeral, watch: OnceCell::new(), naming }
    }

    /// Watches its own znode, if that was not done yet. The znode has no children, so the watch
    /// fires only when it is deleted.
    pub(super) async fn watch_own(&self) -> Result<()> {
        if self.watch.get().is_none() {
            let (_, watch) = self.session().nonblocking().children_and_watch(self.path()).await?;
            // Nobody else sets it: a contender waits once at a time.
            let _ = self.watch.set(watch);
        }
        Ok(())
    }

    /// Takes the hold when its turn has come. From here on, a loss is reported.
    pub(in crate::recipes) async fn hold(self) -> Result<Hold> {
        let Contender { ephemeral, watch, naming } = self;
        let watch = match watch.into_inner() {
            Some(watch) => ephemeral.follow(ready(Ok(watch))).await?,
            None => ephemeral.watch_end().await?,
        };
        let token = if planted(Bug::TokenFixed) { 1 } else { ephemeral.czxid() };
        Ok(Hold { ephemeral, watch, token, naming })
    }
}
