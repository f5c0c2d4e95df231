//! The part of the tree that a session's handle sees: ZooKeeper's chroot.

use std::borrow::Cow;
use std::sync::Arc;

use crate::types::error::Error;
use crate::types::znode::{CreateMode, Created, OpResult};

/// The path that all others are relative to; by default the root of the whole tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Root(Option<Arc<str>>);

impl Root {
    /// The chroot at this path below this one.
    pub(crate) fn below(&self, path: &str) -> Root {
        match path {
            "/" => self.clone(),
            path => Root(Some(self.full(path).into())),
        }
    }

    pub(crate) fn path(&self) -> &str {
        self.0.as_deref().unwrap_or("/")
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.0.is_none()
    }

    /// A path's form in the whole tree.
    pub(crate) fn full<'a>(&self, path: &'a str) -> Cow<'a, str> {
        match &self.0 {
            None => Cow::Borrowed(path),
            Some(_) if planted!(ChrootIgnored) => Cow::Borrowed(path),
            Some(root) if path == "/" => Cow::Owned((**root).to_owned()),
            Some(root) => Cow::Owned(format!("{root}{path}")),
        }
    }

    /// A whole-tree path's form below the root; `None` if it is not below it.
    pub(crate) fn strip<'a>(&self, path: &'a str) -> Option<&'a str> {
        let shown = planted!(ChrootShown);
        let Some(root) = self.0.as_ref().filter(|_| !shown) else { return Some(path) };
        match path.strip_prefix(&**root)? {
            "" => Some("/"),
            rest => rest.starts_with('/').then_some(rest),
        }
    }

    /// As [`Root::strip`], but a path that is not below the root is unchanged.
    pub(crate) fn relative(&self, path: String) -> String {
        match self.strip(&path) {
            Some(relative) if relative.len() < path.len() => relative.to_owned(),
            _ => path,
        }
    }

    /// The form in the whole tree of a path that a znode is created with.
    pub(crate) fn new_path(&self, path: &str, mode: CreateMode) -> String {
        match &self.0 {
            // The number is appended to the path: with `/`, it goes below the root, not beside it.
            Some(root) if mode.is_sequential() => format!("{root}{path}"),
            _ => self.full(path).into(),
        }
    }

    pub(crate) fn created(&self, created: Created) -> Created {
        Created { path: self.relative(created.path), ..created }
    }

    pub(crate) fn results(&self, mut results: Vec<OpResult>) -> Vec<OpResult> {
        for result in &mut results {
            let (path, other) = match result {
                OpResult::Created(created) => (&mut created.path, None),
                OpResult::Taken { path, claim, .. } => (path, claim.as_mut()),
                _ => continue,
            };
            for path in [Some(path), other.map(|claim| &mut claim.path)].into_iter().flatten() {
                *path = self.relative(std::mem::take(path));
            }
        }
        results
    }

    /// An error with paths relative to the root.
    pub(crate) fn error(&self, mut error: Error) -> Error {
        if self.is_everything() {
            return error;
        }
        match &mut error {
            Error::NoNode { path }
            | Error::NodeExists { path }
            | Error::NotEmpty { path }
            | Error::BadVersion { path, .. }
            | Error::Unmet { path, .. }
            | Error::Conflict { path, .. }
            | Error::UnknownContender { path }
            | Error::NoAuth { path, .. }
            | Error::InvalidAcl { path, .. }
            | Error::QuotaExceeded { path, .. }
            | Error::NoChildrenForEphemerals { path }
            | Error::InvalidPath { path, .. }
            | Error::Reserved { path }
            | Error::NoWatch { path }
            | Error::TooOld { path, .. }
            | Error::FutureZxid { path, .. }
            | Error::TooLarge { path, .. } => *path = self.relative(std::mem::take(path)),
            Error::Multi { error, .. } => {
                let inner = std::mem::replace(&mut **error, Error::Busy { limit: 0 });
                **error = self.error(inner);
            }
            _ => {}
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_there_and_back() {
        let all = Root::default();
        let app = all.below("/app");
        let deep = app.below("/x/y").below("/");
        assert_eq!((all.path(), app.path(), deep.path()), ("/", "/app", "/app/x/y"));
        for (root, relative, full) in [
            (&all, "/", "/"),
            (&all, "/a", "/a"),
            (&app, "/", "/app"),
            (&app, "/a", "/app/a"),
            (&deep, "/a/b", "/app/x/y/a/b"),
        ] {
            assert_eq!(root.full(relative), full);
            assert_eq!(root.relative(full.to_owned()), relative);
        }
        // Not below it.
        for path in ["/", "/apple", "/other/app", "/zookeeper"] {
            assert_eq!(app.strip(path), None);
            assert_eq!(app.relative(path.to_owned()), path);
        }
    }
}
