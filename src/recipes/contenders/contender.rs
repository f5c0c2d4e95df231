//! This session's contender, until it holds or gives up.

use std::ops::Deref;

use once_cell::sync::OnceCell;

use super::Hold;
use crate::api::watch::Watch;
use crate::planted::{Bug, planted};
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::types::error::{Error, Result};

/// This session's contender. Dropping it before it holds deletes its znode.
pub(in crate::recipes) struct Contender {
    pub(in crate::recipes) ephemeral: OwnedEphemeral,
    /// A watch of its own znode, set if it has to wait.
    watch: OnceCell<Watch>,
}

impl Deref for Contender {
    type Target = OwnedEphemeral;

    fn deref(&self) -> &OwnedEphemeral {
        &self.ephemeral
    }
}

impl Contender {
    pub(super) fn new(ephemeral: OwnedEphemeral) -> Contender {
        Contender { ephemeral, watch: OnceCell::new() }
    }

    /// Watches its own znode, if not done yet. The znode has no children, so the watch fires only
    /// when it is deleted.
    pub(super) async fn watch_own(&self) -> Result<()> {
        if self.watch.get().is_none() {
            let (_, watch) = self.session().nonblocking().children_and_watch(self.path()).await?;
            // Nobody else sets it: a contender waits once at a time.
            let _ = self.watch.set(watch);
        }
        Ok(())
    }

    /// Its turn has come: takes the hold. From here on, a loss is reported.
    pub(in crate::recipes) async fn hold(self) -> Result<Hold> {
        let Contender { ephemeral, watch } = self;
        let (session, path) = (ephemeral.session(), ephemeral.path());
        let calls = session.nonblocking();
        let (watch, there) = match watch.into_inner() {
            Some(watch) if session.has_replica() => (watch, session.exists(path)?),
            Some(watch) => (watch, calls.exists(path).await?),
            None => {
                // Requested together. If the znode is already gone, the first fails.
                let (watching, there) = (calls.children_and_watch(path), calls.exists(path));
                (watching.await?.1, there.await?)
            }
        };
        // Another znode may have taken its place.
        if there.map(|stat| stat.czxid) != Some(ephemeral.czxid()) {
            return Err(Error::NoNode { path: path.to_owned() });
        }
        ephemeral.until_alive().await?;
        ephemeral.follow_by(&watch);
        let token = if planted(Bug::TokenFixed) { 1 } else { ephemeral.czxid() };
        Ok(Hold { ephemeral, watch, token })
    }
}
