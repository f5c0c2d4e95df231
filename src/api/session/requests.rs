//! How a session's calls are sent.

use std::sync::Arc;

use crate::api::ops::check_data;
use crate::api::session::Session;
use crate::machine::command::Op;
use crate::runtime::ask::Ask;
use crate::runtime::chroot::Root;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::path;
use crate::types::znode::{Created, OpResult, Stat, Zxid};

impl Session {
    pub(crate) fn ask<A: 'static, T: 'static>(
        &self,
        checked: Result<()>,
        ask: impl FnOnce(&Root) -> Ask<A>,
        convert: impl FnOnce(A) -> Result<T> + Send + 'static,
    ) -> Pending<'static, T> {
        let shared = self.shared();
        match checked.and_then(|()| self.check_alive()) {
            Ok(()) => {
                let ask = ask(&self.root);
                self.relative(shared.ask(self.asker(), ask, None, convert))
            }
            Err(error) => Pending::ready(Err(error)),
        }
    }

    /// Makes the paths in errors relative to the chroot.
    pub(crate) fn relative<T: 'static>(&self, pending: Pending<'static, T>) -> Pending<'static, T> {
        if self.root.is_everything() {
            return pending;
        }
        let root = self.root.clone();
        let pending = pending.mapped(move |result| result.map_err(|error| root.error(error)));
        pending.renamed(|path| self.root.strip(path).unwrap_or(path).into())
    }

    /// Checks a path, and its length in the whole tree.
    pub(crate) fn validate(&self, path: &str) -> Result<()> {
        path::validate(path)?;
        let root = &self.root;
        path::validate(&root.full(path)).map_err(|error| root.error(error))
    }

    /// Asks for an operation that creates.
    pub(crate) fn ask_create(
        &self,
        checked: Result<()>,
        op: impl FnOnce(&Root) -> Op,
    ) -> Pending<'static, Created> {
        let root = self.root.clone();
        let created = move |created| Ok(root.created(created));
        self.ask(checked, |root| Ask::create(op(root)), created)
    }

    pub(super) fn set_version(
        &self,
        path: &str,
        data: &[u8],
        version: Option<u64>,
    ) -> Pending<'static, Stat> {
        let checked = self.validate(path).and_then(|()| check_data(path, data.len()));
        let op = |root: &Root| Op::Set { path: root.full(path).into(), data: data.into(), version };
        self.ask(checked, |root| Ask::set(op(root)), Ok)
    }

    /// [`Op::Invented`].
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn invented(&self, path: &str, data: &[u8]) -> Pending<'static, Stat> {
        let checked = self.validate(path).and_then(|()| check_data(path, data.len()));
        let op = |root: &Root| Op::Invented { path: root.full(path).into(), data: data.into() };
        self.ask(checked, |root| Ask::set(op(root)), Ok)
    }

    pub(super) fn delete_version(&self, path: &str, version: Option<u64>) -> Pending<'static, ()> {
        let op = |root: &Root| Op::Delete { path: root.full(path).into(), version };
        self.ask(self.validate(path), |root| Ask::delete(op(root)), Ok)
    }

    pub(crate) fn commit(
        &self,
        checked: Result<()>,
        ops: Vec<Op>,
    ) -> Pending<'static, Vec<OpResult>> {
        let root = self.root.clone();
        self.ask(checked, |_| Ask::multi(ops), move |results| Ok(root.results(results)))
    }

    pub(crate) fn request<A: 'static, T: 'static>(
        &self,
        path: &str,
        read: impl FnOnce(Arc<str>) -> Ask<A>,
        convert: impl FnOnce(A) -> Result<T> + Send + 'static,
    ) -> Pending<'static, T> {
        self.ask(self.validate(path), |root| read(root.full(path).into()), convert)
    }

    /// As [`Session::get`]; `None` is null data, which ZooKeeper's own clients may write.
    #[cfg(feature = "gateway")]
    pub(crate) fn get_or_null(&self, path: &str) -> Pending<'static, (Option<Arc<[u8]>>, Stat)> {
        self.request(path, Ask::get_or_null, Ok)
    }

    /// As [`Session::sync`], but not subject to the limit of waiting requests.
    pub(crate) fn sync_in_any_case(&self) -> Pending<'static, Zxid> {
        let shared = self.shared();
        shared.ask_within(usize::MAX, self.asker(), Ask::sync(), None, Ok)
    }

    /// A call of several steps: see [`Pending::steps`].
    pub(crate) fn steps<'a, T>(
        &self,
        operation: &'static str,
        path: &str,
        steps: impl Future<Output = Result<T>> + Send + 'a,
    ) -> Pending<'a, T> {
        Pending::steps(self.shared(), operation, path, steps)
    }
}
