//! A client's reads. Each shows one state of its replica, and no state older than what the session
//! has already seen.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use super::{CheckedReply, Handle};
use crate::api::multi_read::{ReadOp, ReadResult};
use crate::api::snapshot::Snapshot;
use crate::runtime::pending::Pending;
use crate::simulation::checks::{Checks, Violation, order, require};
use crate::simulation::oracle::ZnodeState;
use crate::types::acl::{Acl, Id, Permissions};
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::{Stat, Zxid};

impl Handle {
    /// Checks a read of a path's znode that has just been sent.
    fn read<T: Debug + 'static>(
        self: &Rc<Self>,
        what: &'static str,
        path: &str,
        pending: Pending<'static, T>,
        fits: Fits<T>,
    ) -> CheckedReply<Result<T>> {
        let (at, ids) = (path.to_owned(), self.ids.borrow().clone());
        self.read_state(what, path, pending, move |checks, range, result| {
            let fits = |known: Option<&ZnodeState>| permitted(result, known, &ids, fits);
            order::read(&checks.oracle, &at, range, fits, || format!("{what} {at} gave {result:?}"))
        })
    }

    /// Checks a read that has just been sent. `find` is given the range of zxids that the read may
    /// show. It returns the earliest one that fits the result.
    fn read_state<T: Debug + 'static>(
        self: &Rc<Self>,
        what: &'static str,
        path: &str,
        pending: Pending<'static, T>,
        find: impl Fn(&Checks, (Zxid, Zxid), &Result<T>) -> Result<Zxid, Violation> + 'static,
    ) -> CheckedReply<Result<T>> {
        let from = self.shown();
        let waits = self.kernel.wait(what, self.place);
        let number = self.ask(false);
        // A read behind a sync is answered late, and later writes do not wait for it.
        let behind = (self.syncs.get() == 0).then(|| self.issued.get());
        let installs = self.installs();
        let (path, handle) = (path.to_owned(), Rc::clone(self));
        Box::pin(async move {
            let _waits = waits;
            let result = pending.await;
            handle.answered(number, what, &result);
            handle.note(what, &path, &result);
            // A snapshot may bring several of the session's writes at once, without a state between
            // them.
            let behind = behind.filter(|_| installs == handle.installs());
            if matches!(result, Ok(_) | Err(Error::NoNode { .. } | Error::NoAuth { .. })) {
                handle.check_read((from, behind), |checks, range| find(checks, range, &result));
            }
            result
        })
    }

    fn check_read(
        &self,
        (from, behind): (Zxid, Option<u64>),
        find: impl Fn(&Checks, (Zxid, Zxid)) -> Result<Zxid, Violation>,
    ) {
        // The session's earlier writes have replies by now, so its floor includes them.
        let checks = self.kernel.checks.borrow();
        // The read must not show the session's later writes.
        let next =
            behind.and_then(|seq| checks.oracle.outcome(self.session.id(), self.holder, seq + 1));
        let before_next =
            next.filter(|next| next.is_done() && next.changes).map(|next| next.zxid - 1);
        let from = from.max(self.floor.get());
        let to = self.shown().min(before_next.unwrap_or(Zxid::MAX));
        let read = find(&checks, (from.max(self.begun), to)).or_else(|violation| {
            let older = find(&checks, (from, to)).map_err(|_| violation)?;
            self.shows_what_was_acknowledged("a read", older).map(|()| older)
        });
        drop(checks);
        match read {
            Ok(zxid) => self.raise(zxid),
            Err(violation) => self.kernel.fail(violation),
        }
    }

    /// A read that is queued behind the session's earlier requests.
    pub(crate) fn get(self: &Rc<Self>, path: &str) -> CheckedReply<Result<(Arc<[u8]>, Stat)>> {
        let (session, below) = self.at(path);
        self.read("get", path, session.get(below), data_fits)
    }

    /// Like [`Handle::get`].
    pub(crate) fn exists(self: &Rc<Self>, path: &str) -> CheckedReply<Result<Option<Stat>>> {
        let (session, below) = self.at(path);
        self.read("exists", path, session.exists(below), exists_fits)
    }

    /// Like [`Handle::get`].
    pub(crate) fn children(self: &Rc<Self>, path: &str) -> CheckedReply<Result<Vec<String>>> {
        let (session, below) = self.at(path);
        self.read("children", path, session.children(below), children_fits)
    }

    /// Like [`Handle::get`], for the access list as the session may see it.
    pub(crate) fn acl(self: &Rc<Self>, path: &str) -> CheckedReply<Result<(Vec<Acl>, Stat)>> {
        let (session, below) = self.at(path);
        let pending = session.acl(below);
        let (at, ids) = (path.to_owned(), self.ids.borrow().clone());
        self.read_state("get acl", path, pending, move |checks, range, result| {
            let fits = |known: Option<&ZnodeState>| acl_fits(result, known, &ids);
            let what = || format!("the acl of {at} was {result:?}");
            order::read(&checks.oracle, &at, range, fits, what)
        })
    }

    /// Like [`Handle::get`], for the session's ephemerals.
    pub(crate) fn ephemerals(self: &Rc<Self>) -> CheckedReply<Result<Vec<String>>> {
        let id = self.session.id();
        let pending = self.session.ephemerals();
        self.read_state("ephemerals", "", pending, move |checks, range, result| {
            order::read_ephemerals(&checks.oracle, id, range, result.as_deref().unwrap_or_default())
        })
    }

    /// Like [`Handle::get`], for a snapshot. [`Handle::check_snapshot`] checks its contents.
    pub(crate) fn snapshot(self: &Rc<Self>) -> CheckedReply<Result<Snapshot>> {
        let pending = self.session.in_turn().snapshot();
        self.read_state("snapshot", "", pending, snapshot_between)
    }

    /// The subtree of a path: at once if the session can be read at once, and otherwise by a request.
    pub(crate) async fn view(&self, path: &str) -> Result<Snapshot> {
        match self.session.reads_at_once() {
            true => self.session.snapshot().wait(),
            false => self.session.snapshot_of(path).await,
        }
    }

    /// Like [`Handle::view`].
    pub(crate) async fn children_seen(&self, path: &str) -> Result<Vec<String>> {
        match self.session.reads_at_once() {
            true => self.session.children(path).wait(),
            false => self.session.children(path).await,
        }
    }

    /// Like [`Handle::view`].
    pub(crate) async fn stat_seen(&self, path: &str) -> Result<Option<Stat>> {
        self.session.exists(path).await
    }

    /// Like [`Handle::view`].
    pub(crate) async fn data_seen(&self, path: &str) -> Result<Arc<[u8]>> {
        self.session.get(path).await.map(|(data, _)| data)
    }

    /// [`Handle::read_now`] where reads are requests: a snapshot of the subtree, and reads that are answered
    /// one after the other.
    pub(crate) async fn read_by_request(self: &Rc<Self>, path: &str) {
        let (session, below) = self.at(path);
        let root = self.root_of(path).is_some();
        let pending = session.snapshot_of(below);
        let below = self.read_state("snapshot below", path, pending, snapshot_between);
        let (get, children) = (self.get(path), self.children(path));
        // A snapshot through a chroot has other paths.
        if let (Ok(snapshot), false) = (below.await, root) {
            self.check_snapshot(path, &snapshot);
        }
        let _ = (get.await, children.await);
    }

    /// The reads that do not wait of one path. All of them show one state.
    pub(crate) fn read_now(&self, path: &str) {
        let shown = self.shown();
        let session = &self.session;
        let get = session.get(path).wait();
        self.note("get now", path, &get);
        self.check_now("get now", path, shown, &get, data_fits);
        let exists = session.exists(path).wait();
        self.check_now("exists now", path, shown, &exists, exists_fits);
        let children = session.children(path).wait();
        self.check_now("children now", path, shown, &children, children_fits);
        let children = session.children_with_stat(path).wait();
        self.check_now("children, stat now", path, shown, &children, children_with_stat_fit);
        let paged = in_pages(|after| session.children_page(path, after, PAGE).wait());
        self.check_now("children, paged now", path, shown, &paged, children_fits);
        if let Ok(snapshot) = session.snapshot().wait() {
            self.kernel.count("snapshot now");
            self.check_snapshot(path, &snapshot);
        }
    }

    /// Several reads of one state. Each must show what it would show alone.
    pub(crate) fn multi_read_now(&self, paths: &[String; 2]) {
        let shown = self.shown();
        let ops = paths.iter().flat_map(|path| {
            [ReadOp::Get(path), ReadOp::Exists(path), ReadOp::Children(path)]
                .into_iter()
                .chain([ReadOp::AllChildrenNumber(path)])
        });
        let ops: Vec<ReadOp<'_>> = ops.collect();
        let Ok(results) = self.session.multi_read(ops.iter().copied()).wait() else { return };
        self.kernel.count("multi read now");
        let checks = self.kernel.checks.borrow();
        let at = |path: &str| checks.oracle.at(path, shown);
        let ids = self.ids.borrow();
        let hidden =
            |path: &str| at(path).is_some_and(|known| !known.permits(&ids, Permissions::READ));
        let fits = |(op, result): &(&ReadOp<'_>, &Result<ReadResult>)| match (**op, result) {
            (op, result) if hidden(op.path()) => matches!(
                result,
                Err(Error::NoAuth { path, permission: Permissions::READ }) if path == op.path()
            ),
            (ReadOp::Exists(path), Ok(ReadResult::Exists(stat))) => {
                *stat == at(path).map(|known| known.stat)
            }
            (ReadOp::Get(path), Ok(ReadResult::Data(data, stat))) => {
                at(path).is_some_and(|known| known.data == *data && known.stat == *stat)
            }
            (ReadOp::Children(path), Ok(ReadResult::Children(names, stat))) => {
                at(path).is_some_and(|known| known.children == *names && known.stat == *stat)
            }
            (ReadOp::AllChildrenNumber(path), Ok(ReadResult::AllChildrenNumber(number))) => {
                let below = checks.oracle.paths_below(path).filter(|path| at(path).is_some());
                below.count() == number + 1
            }
            (
                ReadOp::Get(path) | ReadOp::Children(path) | ReadOp::AllChildrenNumber(path),
                Err(Error::NoNode { path: missing }),
            ) => path == missing && at(path).is_none(),
            _ => false,
        };
        let odd = ops.iter().zip(&results).find(|read| !fits(read));
        let checked =
            require(results.len() == ops.len() && odd.is_none(), "I3 reads show what was", || {
                format!("{odd:?} in a multi read at zxid {shown}, of {} reads", ops.len())
            });
        drop(checks);
        self.kernel.check(checked);
    }

    /// Takes a snapshot beside the session's other reads, and checks it.
    pub(crate) async fn check_present(&self, path: &str) {
        if let Ok(snapshot) = self.session.in_turn().snapshot().await {
            self.check_snapshot(path, &snapshot);
        }
    }

    /// A snapshot shows everything that existed at its zxid, and nothing else.
    pub(crate) fn check_snapshot(&self, path: &str, snapshot: &Snapshot) {
        let begun = self.shows_what_was_acknowledged("a snapshot", snapshot.zxid());
        let odd = self.oddity(path, snapshot);
        let shown = require(odd.is_none(), "I3 snapshots show what was", || format!("{odd:?}"));
        self.kernel.check(begun.and(shown));
    }

    /// What a snapshot shows below a path that did not exist like that at its zxid.
    fn oddity(&self, path: &str, snapshot: &Snapshot) -> Option<String> {
        let checks = self.kernel.checks.borrow();
        let at = |path: &str| checks.oracle.at(path, snapshot.zxid());
        let ids = self.ids.borrow();
        let readable =
            |path: &str| at(path).is_some_and(|known| known.permits(&ids, Permissions::READ));
        let all = checks.oracle.paths_below(path).filter(|path| at(path).is_some()).count();
        // Nothing is shown below a znode that the session cannot read.
        let shown = |at: &str| {
            let mut above = std::iter::successors(Some(at), |path| path::parent(path))
                .take_while(|above| path::is_below(above, path));
            above.all(readable)
        };
        let paths = checks.oracle.paths_below(path).filter(|path| shown(path));
        let mut there: BTreeMap<&str, Stat> =
            paths.filter_map(|path| Some((path, at(path)?.stat))).collect();
        let counted = match snapshot.all_children_number(path) {
            Ok(below) => below + 1 == all && readable(path),
            Err(_) => there.is_empty(),
        };
        let children = snapshot.children_with_stat(path);
        let paged = in_pages(|after| snapshot.children_page(path, after, PAGE));
        let listed = permitted(&children, at(path), &ids, children_with_stat_fit)
            && permitted(&paged, at(path), &ids, children_fits);
        let odd = match snapshot.walk(path) {
            Ok(mut walk) => walk.find(|(path, _, stat)| there.remove(path) != Some(*stat)),
            Err(_) => None,
        };
        let holds = counted && listed && odd.is_none() && there.is_empty();
        (!holds).then(|| {
            let zxid = snapshot.zxid();
            format!("below {path} at zxid {zxid}: {odd:?}, not {there:?}; {counted} {listed}")
        })
    }

    fn check_now<T: Debug>(
        &self,
        what: &'static str,
        path: &str,
        shown: Zxid,
        result: &Result<T>,
        fits: Fits<T>,
    ) {
        self.kernel.count(what);
        if result.as_ref().is_err_and(Error::is_session_lost) {
            return;
        }
        let floor = self.floor.get();
        let checks = self.kernel.checks.borrow();
        let checked = require(shown >= floor, "I3 reads do not go back", || {
            format!("{what} {path} shows zxid {shown} after {floor}")
        })
        .and_then(|()| self.shows_what_was_acknowledged(what, shown))
        .and_then(|()| {
            let fits = permitted(result, checks.oracle.at(path, shown), &self.ids.borrow(), fits);
            require(fits, "I3 reads show what was", || {
                format!("{what} {path} gave {result:?} at zxid {shown}")
            })
        });
        drop(checks);
        self.kernel.check(checked);
        self.raise(shown);
    }
}

/// Children on one page.
const PAGE: usize = 2;

/// Reads all children, page by page.
fn in_pages(read: impl Fn(Option<&str>) -> Result<Vec<String>>) -> Result<Vec<String>> {
    let mut all: Vec<String> = Vec::new();
    loop {
        let page = read(all.last().map(String::as_str))?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

/// The snapshot shows a state within the range.
fn snapshot_between(
    _: &Checks,
    (from, to): (Zxid, Zxid),
    result: &Result<Snapshot>,
) -> Result<Zxid, Violation> {
    let zxid = result.as_ref().map_or(0, Snapshot::zxid);
    require((from..=to).contains(&zxid), "I3 reads show what was", || {
        format!("a snapshot of zxid {zxid}, not from {from} to {to}")
    })?;
    Ok(zxid)
}

/// Whether a result matches the state of the znode.
type Fits<T> = fn(&Result<T>, Option<&ZnodeState>) -> bool;

/// The same, if the session has the permission to read. Otherwise the result must be `NoAuth`.
fn permitted<T>(
    result: &Result<T>,
    known: Option<&ZnodeState>,
    ids: &[Id],
    fits: impl Fn(&Result<T>, Option<&ZnodeState>) -> bool,
) -> bool {
    if known.is_some_and(|known| !known.permits(ids, Permissions::READ)) {
        return matches!(result, Err(Error::NoAuth { permission: Permissions::READ, .. }));
    }
    fits(result, known)
}

fn data_fits(result: &Result<(Arc<[u8]>, Stat)>, known: Option<&ZnodeState>) -> bool {
    match (result, known) {
        (Ok((data, stat)), Some(known)) => *data == known.data && *stat == known.stat,
        (Err(Error::NoNode { .. }), None) => true,
        _ => false,
    }
}

fn acl_fits(result: &Result<(Vec<Acl>, Stat)>, known: Option<&ZnodeState>, ids: &[Id]) -> bool {
    let either = Permissions::READ | Permissions::ADMIN;
    match (result, known) {
        (Ok((acl, stat)), Some(known)) => {
            let hidden = |entry: &Acl| match entry.id.id.split_once(':') {
                Some((user, _)) => {
                    Acl::new(entry.permissions, Id::new("digest", format!("{user}:x")))
                }
                None => entry.clone(),
            };
            let all = known.acl.clone().unwrap_or_else(Acl::open);
            let all = match known.permits(ids, Permissions::ADMIN) {
                true => all,
                false => all.iter().map(hidden).collect(),
            };
            known.permits(ids, either) && *stat == known.stat && *acl == all
        }
        (Err(Error::NoNode { .. }), None) => true,
        (Err(Error::NoAuth { permission, .. }), Some(known)) => {
            *permission == either && !known.permits(ids, either)
        }
        _ => false,
    }
}

fn exists_fits(result: &Result<Option<Stat>>, known: Option<&ZnodeState>) -> bool {
    matches!(result, Ok(stat) if *stat == known.map(|known| known.stat))
}

fn children_fits(result: &Result<Vec<String>>, known: Option<&ZnodeState>) -> bool {
    match (result, known) {
        (Ok(children), Some(known)) => *children == known.children,
        (Err(Error::NoNode { .. }), None) => true,
        _ => false,
    }
}

fn children_with_stat_fit(
    result: &Result<(Vec<String>, Stat)>,
    known: Option<&ZnodeState>,
) -> bool {
    match (result, known) {
        (Ok((children, stat)), Some(known)) => *children == known.children && *stat == known.stat,
        (Err(Error::NoNode { .. }), None) => true,
        _ => false,
    }
}
