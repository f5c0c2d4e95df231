//! Creating the missing znodes above a recipe's own, as containers.
//!
//! A replica shows which znodes are missing, so that the check is free, and one write creates all
//! of them. The first use of a path takes one write for its parents, later uses none. A client, and
//! a session that is not open yet, checks only after a write has failed for a missing parent.

use crate::api::session::Session;
use crate::machine::Tree;
use crate::recipes::errors::unless_overtaken;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::CreateMode;

pub(super) const ROOT: &str = "/";

/// Creates the missing znodes of `path`, and then calls `create`, which creates something below
/// `path`. Calls `create` again as long as it fails because the parent is missing.
///
/// # Errors
/// [`Error::NoNode`] of the root if that is missing; the errors of `create`.
pub(super) async fn create_below<T, F: Future<Output = Result<T>>>(
    session: &Session,
    path: &str,
    mut create: impl FnMut() -> F,
) -> Result<T> {
    let mut parents = Parents::of(session, path);
    loop {
        parents.make().await?;
        match create().await {
            Err(Error::NoNode { .. }) => {}
            other => return other,
        }
    }
}

/// As [`create_below`], for a `create` of `path` itself.
pub(super) async fn create_at<T, F: Future<Output = Result<T>>>(
    session: &Session,
    path: &str,
    create: impl FnMut() -> F,
) -> Result<T> {
    create_below(session, path::parent(path).unwrap_or(ROOT), create).await
}

/// Creates a persistent znode without data, and what is missing above it. It may be there already.
pub(super) async fn create_unless_there(session: &Session, path: &str) -> Result<()> {
    let create = || session.create(path, b"", CreateMode::Persistent);
    match create_at(session, path, create).await {
        Ok(_) | Err(Error::NodeExists { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A path that must exist before something is created below it.
pub(super) struct Parents<'a> {
    session: &'a Session,
    path: &'a str,
    /// Whether to check for missing parents before the first attempt.
    look: bool,
}

impl<'a> Parents<'a> {
    pub(super) fn of(session: &'a Session, path: &'a str) -> Parents<'a> {
        Parents { session, path, look: session.reads_at_once() }
    }

    /// Creates the missing parents. Call it before each attempt to create something below them, and
    /// repeat an attempt that fails with [`Error::NoNode`].
    ///
    /// # Errors
    /// [`Error::NoNode`] of the root if that is missing; otherwise as [`Session::create`].
    pub(super) async fn make(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.look, true) {
            return Ok(());
        }
        loop {
            let missing = self.missing().await?;
            // The owner of a chroot creates its root.
            if missing.last() == Some(&ROOT) {
                return Err(Error::NoNode { path: ROOT.to_owned() });
            }
            if missing.is_empty() {
                return Ok(());
            }
            let mut multi = self.session.multi();
            for path in missing.into_iter().rev() {
                multi = multi.create(path, b"", CreateMode::Container);
            }
            // Otherwise another session has created one of them, or an unused one was deleted: look
            // again. This instance has seen that by now.
            if unless_overtaken(multi.commit().await)?.is_some() {
                return Ok(());
            }
        }
    }

    /// Returns the missing ones, from the path upwards.
    async fn missing(&self) -> Result<Vec<&'a str>> {
        let all = std::iter::successors(Some(self.path), |path| path::parent(path));
        if let Some(tree) = self.session.tree()? {
            return Ok(all.take_while(|path| is_missing(self.session, &tree, path)).collect());
        }
        // Requested together, so that all cost one round trip.
        let calls = &self.session.in_turn();
        let asked: Vec<_> = all.map(|path| (path, calls.exists(path))).collect();
        let mut missing = Vec::new();
        for (path, answer) in asked {
            match answer.await {
                Ok(None) => missing.push(path),
                // A znode that may not be read exists.
                Ok(Some(_)) | Err(Error::NoAuth { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }
}

fn is_missing(session: &Session, tree: &Tree, path: &str) -> bool {
    tree.get(&session.root.full(path)).is_none()
}

/// Whether this instance's replica shows, at once, that there is no such znode.
pub(super) fn shows_missing(session: &Session, path: &str) -> bool {
    matches!(session.tree(), Ok(Some(tree)) if is_missing(session, &tree, path))
}
