//! A contender of this session, until it holds or gives up.

use std::future::ready;
use std::ops::Deref;

use once_cell::sync::OnceCell;

use super::{ContenderKind, Naming, name};
use crate::api::multi::Multi;
use crate::api::watch::Watch;
use crate::recipes::Held;
use crate::recipes::creating::created_in_multi;
use crate::recipes::errors::{gone, inner};
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::runtime::entropy;
use crate::types::error::{Error, Result};
use crate::types::znode::CreateMode;

/// A contender of this session. Dropping it before it holds deletes its znode.
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
    pub(in crate::recipes) fn new(ephemeral: OwnedEphemeral) -> Contender {
        Contender { ephemeral, watch: OnceCell::new() }
    }

    /// Watches its own znode, if that was not done yet. The znode has no children, so the watch
    /// fires only when it is deleted.
    pub(in crate::recipes) async fn watch_own(&self) -> Result<()> {
        if self.watch.get().is_none() {
            let (_, watch) = self.session().children_and_watch(self.path()).await?;
            // Nobody else sets it: a contender waits once at a time.
            let _ = self.watch.set(watch);
        }
        Ok(())
    }

    /// Replaces its znode by another one in one write, to which `multi` is the start and `end` adds the rest. The
    /// path may be the same.
    pub(in crate::recipes) async fn replace<'a>(
        &mut self,
        multi: Multi<'a>,
        path: &str,
        data: &[u8],
        end: impl FnOnce(Multi<'a>) -> Multi<'a>,
    ) -> Result<()> {
        let leaving = self.ephemeral.leave_in(multi);
        let replacing = end(leaving.create(path, data, CreateMode::Ephemeral)).commit();
        // If this ends early, both znodes are given up and deleted.
        let new = created_in_multi(self.ephemeral.session(), replacing).await?;
        self.ephemeral.forget();
        *self = Contender::new(new);
        Ok(())
    }

    /// It holds when its turn has come. From here on, a loss is reported.
    pub(in crate::recipes) async fn held(self) -> Result<Held> {
        let Contender { ephemeral, watch } = self;
        let mut held = match watch.into_inner() {
            Some(watch) => {
                let watch = ephemeral.follow(ready(Ok(watch))).await?;
                Held::watched(ephemeral, watch)
            }
            None => Held::new(ephemeral).await?,
        };
        if planted!(TokenFixed) {
            held.token = 1;
        }
        Ok(held)
    }
}

/// Replaces a contender that holds by one of another kind, in one write, so that nobody comes in
/// between. The token stays the same. If this fails, or its future is dropped, it is released.
pub(in crate::recipes) async fn change(
    held: Held,
    kind: &ContenderKind,
    naming: Naming,
) -> Result<Held> {
    let lost = || Error::NoNode { path: held.path().to_owned() };
    let (parent, _) = held.path().rsplit_once('/').ok_or_else(lost)?;
    let number = name::digits(held.path()).ok_or_else(lost)?;
    let name = name::new(kind, naming, entropy::number()?, "");
    let path = format!("{parent}/{name}{number}");
    let leaving = held.ephemeral.leave_in(held.session().multi());
    let changing = leaving.create(&path, b"", CreateMode::Ephemeral).commit();
    // If this ends early, both znodes are given up and deleted.
    let changed = created_in_multi(held.session(), changing).await;
    let changed = inner(changed).map_err(gone)?;
    held.ephemeral.forget();
    let mut changed = Held::new(changed).await?;
    changed.token = held.token;
    Ok(changed)
}
