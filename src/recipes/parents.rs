//! The znodes above a recipe's own: made when they are missing, as containers.
//!
//! A replica knows which are missing, so that a look costs nothing, and one write makes all of them:
//! the first use of a path takes one write for its parents, and every later one none. An instance
//! without a replica looks only when a write has failed for a missing parent, by asking its member.

use crate::api::session::Session;
use crate::recipes::errors::{inner, is_overtaken};
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::{CreateMode, Stat};

pub(super) const ROOT: &str = "/";

/// A path that is to be there before something is created below it.
pub(super) struct Parents<'a> {
    session: &'a Session,
    path: &'a str,
    /// Whether to look, and not to try at once.
    look: bool,
}

impl<'a> Parents<'a> {
    pub(super) fn of(session: &'a Session, path: &'a str) -> Parents<'a> {
        Parents { session, path, look: session.has_replica() }
    }

    /// Makes those that are missing. To be called before each attempt to create what is below them:
    /// an attempt that fails with [`Error::NoNode`] is to be made again.
    ///
    /// # Errors
    /// [`Error::NoNode`] of the root; otherwise as [`Session::create`].
    pub(super) async fn make(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.look, true) {
            return Ok(());
        }
        loop {
            let missing = self.missing().await?;
            // The root of a chroot is its owner's to make.
            if missing.last() == Some(&ROOT) {
                return Err(Error::NoNode { path: ROOT.to_owned() });
            }
            if missing.is_empty() {
                return Ok(());
            }
            let create = |multi: crate::api::multi::Multi<'a>, path: &&str| {
                multi.create(path, b"", CreateMode::Container)
            };
            let multi = missing.iter().rev().fold(self.session.multi(), create);
            match inner(multi.submit().await) {
                Ok(_) => return Ok(()),
                // Others have made one, or one has gone that was not used any more: look again. This
                // instance has seen that by now.
                Err(error) if is_overtaken(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Those that are missing, from the path upwards.
    async fn missing(&self) -> Result<Vec<&'a str>> {
        let all = std::iter::successors(Some(self.path), |path| path::parent(path));
        if self.session.has_replica() {
            return Ok(all.take_while(|path| is_missing(self.session, path)).collect());
        }
        // Asked for together: this takes the time of one.
        let calls = self.session.nonblocking();
        let asked: Vec<(&str, Pending<Option<Stat>>)> =
            all.map(|path| (path, calls.exists(path))).collect();
        let mut missing = Vec::new();
        for (path, answer) in asked {
            match answer.await {
                Ok(None) => missing.push(path),
                // Which may not be read is there.
                Ok(Some(_)) | Err(Error::NoAuth { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }
}

/// Whether this instance's replica has no such znode.
pub(super) fn is_missing(session: &Session, path: &str) -> bool {
    session.shared().tree().get(&session.root.full(path)).is_none()
}
