//! Deleting znodes that a session has created and no longer wants.

use std::sync::Arc;

use crate::api::session::Session;
use crate::machine::command::Op;
use crate::runtime::ask::Ask;
use crate::runtime::inbox::RequestOrigin;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::znode::{Condition, OpResult, Zxid};

impl Session {
    /// Returns a function that deletes the znode created by the write `czxid`, by its path in the
    /// whole tree, and never a later znode at that path. The function does not wait, is not subject
    /// to the limit of waiting requests, and keeps neither session nor node alive.
    pub(crate) fn discarding(&self) -> impl FnOnce(String, Zxid) + Send + 'static {
        let (shared, session) = (Arc::clone(&self.inner.shared), Arc::clone(&self.inner.session));
        move |path, czxid| {
            shared
                .ask_and_forget(RequestOrigin::Holder(session), deletion(path.into(), czxid, None));
        }
    }

    /// As [`Session::discarding`], but deletes another znode with it: both or neither.
    pub(crate) fn discard_with(&self, path: &str, czxid: Zxid, other: &str) {
        let in_all = |path: &str| self.root.full(path).into();
        let delete = deletion(in_all(path), czxid, Some(in_all(other)));
        self.inner.shared.ask_and_forget(self.asker(), delete);
    }

    /// As [`Session::discarding`], with a reply to wait for. The reply is [`Error::NoNode`] or
    /// [`Error::Unmet`] if the znode is already gone.
    pub(crate) fn discard(&self, path: &str, czxid: Zxid) -> Result<Pending<'static, ()>> {
        self.check_alive()?;
        let delete = deletion(self.root.full(path).into(), czxid, None);
        let shared = &self.inner.shared;
        let pending = shared.ask_within(usize::MAX, self.asker(), delete, None, |_| Ok(()));
        let root = self.root.clone();
        Ok(pending.mapped(move |deleted| {
            deleted.map_err(|error| match error {
                Error::Multi { error, .. } => root.error(*error),
                error => error,
            })
        }))
    }
}

/// A write that deletes the znode created by the write `czxid`, and another one with it; it does
/// nothing if that znode is gone. Paths are in the whole tree.
fn deletion(path: Arc<str>, czxid: Zxid, other: Option<Arc<str>>) -> Ask<Vec<OpResult>> {
    let own = Condition::Czxid(czxid);
    let check = Op::Check { path: Arc::clone(&path), condition: own };
    let deletes = [Some(path), other].into_iter().flatten();
    let deletes = deletes.map(|path| Op::Delete { path, version: None });
    Ask::multi(std::iter::once(check).chain(deletes).collect())
}
