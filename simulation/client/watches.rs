//! A client's watches. Each is checked for as long as the client keeps it.

use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use super::{CheckedReply, Handle};
use crate::api::watch::Watch;
use crate::runtime::pending::Pending;
use crate::simulation::checks::watches::{Kind, Watched};
use crate::simulation::checks::{Checks, require};
use crate::simulation::kernel::Kernel;
use crate::simulation::oracle::ZnodeState;
use crate::types::acl::Permissions;
use crate::types::error::{Error, Result};
use crate::types::watch::{WatchMode, WatcherType};
use crate::types::znode::{Stat, Zxid};

impl Handle {
    /// Sets a watch and checks it until [`CheckedWatch`] is dropped.
    async fn watching<T: Debug>(
        self: &Rc<Self>,
        what: &'static str,
        (path, kind): (&str, Kind),
        pending: Pending<'static, T>,
        start: Start,
        split: impl FnOnce(T) -> (Option<Seen>, Watch),
    ) -> Result<CheckedWatch> {
        let waits = self.kernel.wait(what, self.place);
        let number = self.ask(false);
        let result = pending.await;
        drop(waits);
        self.answered(number, what, &result);
        self.note(what, path, &result);
        let (seen, watch) = split(result?);
        let watched = Watched {
            place: self.place,
            path: path.to_owned(),
            root: self.root_of(path).unwrap_or_default().to_owned(),
            kind,
            data: what == "watch with data" || what == "watch with before",
            before: what == "watch with before",
            ids: self.ids.borrow().clone(),
            events: watch.events().clone(),
            handle: Rc::downgrade(self),
        };
        let ids = self.ids.borrow().clone();
        let readable = |known: &ZnodeState| known.permits(&ids, Permissions::READ);
        let fits = |known: Option<&ZnodeState>| {
            let fits = |seen: &Seen| known.is_none_or(readable) && seen.fits(known);
            seen.as_ref().is_none_or(fits)
        };
        let mut checks = self.kernel.checks.borrow_mut();
        let checks = &mut *checks;
        let set = match start {
            Start::Since(from) => {
                let range = (from.max(self.floor.get()), self.shown());
                checks.watches.set(&checks.oracle, watched, range, fits)
            }
            Start::After(zxid) => {
                checks.watches.set_from(&checks.oracle, watched, (zxid, self.shown()))
            }
        };
        let id = match set {
            Ok(id) => Some(id),
            Err(violation) => {
                self.kernel.fail(violation);
                None
            }
        };
        Ok(CheckedWatch { kernel: Rc::clone(&self.kernel), id, _watch: watch })
    }

    pub(crate) async fn get_and_watch(self: &Rc<Self>, path: &str) -> Result<CheckedWatch> {
        let (session, below) = self.at(path);
        let (from, pending) = (self.now(), session.get_and_watch(below));
        let split = |(data, stat, watch)| (Some(Seen::Data(data, stat)), watch);
        self.watching("get and watch", (path, Kind::Data), pending, from, split).await
    }

    pub(crate) async fn exists_and_watch(self: &Rc<Self>, path: &str) -> Result<CheckedWatch> {
        let (session, below) = self.at(path);
        let (from, pending) = (self.now(), session.exists_and_watch(below));
        let split = |(stat, watch)| (Some(Seen::Exists(stat)), watch);
        self.watching("exists and watch", (path, Kind::Data), pending, from, split).await
    }

    pub(crate) async fn children_and_watch(self: &Rc<Self>, path: &str) -> Result<CheckedWatch> {
        let (session, below) = self.at(path);
        let (from, pending) = (self.now(), session.children_and_watch(below));
        let split = |(children, watch)| (Some(Seen::Children(children)), watch);
        self.watching("children and watch", (path, Kind::Children), pending, from, split).await
    }

    pub(crate) async fn watch(
        self: &Rc<Self>,
        path: &str,
        mode: WatchMode,
    ) -> Result<CheckedWatch> {
        let (session, below) = self.at(path);
        let (from, pending) = (self.now(), session.watch(below, mode));
        self.watching("watch", (path, kind(mode)), pending, from, |watch| (None, watch)).await
    }

    pub(crate) async fn watch_with_data(
        self: &Rc<Self>,
        path: &str,
        mode: WatchMode,
    ) -> Result<CheckedWatch> {
        let (session, below) = self.at(path);
        let (from, pending) = (self.now(), session.watch_with_data(below, mode));
        let what = "watch with data";
        self.watching(what, (path, kind(mode)), pending, from, |watch| (None, watch)).await
    }

    pub(crate) async fn watch_with_before(
        self: &Rc<Self>,
        path: &str,
        mode: WatchMode,
    ) -> Result<CheckedWatch> {
        let (session, below) = self.at(path);
        let (from, pending) = (self.now(), session.watch_with_before(below, mode));
        let what = "watch with before";
        self.watching(what, (path, kind(mode)), pending, from, |watch| (None, watch)).await
    }

    fn now(&self) -> Start {
        Start::Since(self.shown())
    }

    /// W6: the watch reports every change after the zxid, or the replica's history does not reach
    /// back to it.
    pub(crate) async fn watch_from(
        self: &Rc<Self>,
        path: &str,
        mode: WatchMode,
        zxid: Zxid,
    ) -> Result<CheckedWatch> {
        let written = self.kernel.checks.borrow().oracle.zxid();
        let (session, below) = self.at(path);
        let pending = session.watch_from(below, mode, zxid);
        let (what, start) = ((path, kind(mode)), Start::After(zxid));
        let result = self.watching("watch from", what, pending, start, |watch| (None, watch)).await;
        match result {
            Err(Error::TooOld { oldest, .. }) => {
                self.kernel.count("watch from, too old");
                let forgotten = self.forgotten();
                let is_so = zxid < oldest && oldest <= forgotten;
                self.kernel.check(require(is_so, "W6 only what is forgotten is too old", || {
                    format!("zxid {zxid}, said to be before {oldest}; forgotten: {forgotten}")
                }));
            }
            Err(Error::FutureZxid { last, .. }) => {
                self.kernel.count("watch from, future");
                let is_so = zxid > last && last >= written;
                self.kernel.check(require(is_so, "W6 only what nobody has is future", || {
                    format!("zxid {zxid}, said to be after {last}; written: {written}")
                }));
            }
            _ => {}
        }
        result
    }

    /// The last zxid whose changes may be missing from this replica's history.
    fn forgotten(&self) -> Zxid {
        if !self.session.has_replica() {
            // Any member may have answered, and none has seen more than the present log.
            let known_from = self.kernel.known_from.borrow().iter().copied().max();
            let now = self.kernel.checks.borrow().oracle.zxid();
            return self.kernel.forgotten(known_from.unwrap_or(0), now);
        }
        self.kernel.forgotten(self.kernel.known_from.borrow()[self.place], self.shown())
    }

    /// Removes watches. Every one of them on this handle must be over by then.
    pub(crate) fn remove_watches(
        self: &Rc<Self>,
        path: &str,
        which: WatcherType,
    ) -> CheckedReply<Result<()>> {
        self.kernel.checks.borrow_mut().watches.removing(self, path, which);
        let waits = self.kernel.wait("remove watches", self.place);
        let pending = self.session.remove_watches(path, which);
        let (number, handle, path) = (self.ask(false), Rc::clone(self), path.to_owned());
        Box::pin(async move {
            let _waits = waits;
            let result = pending.await;
            handle.answered(number, "remove watches", &result);
            handle.note("remove watches", &path, &result);
            let mut checks = handle.kernel.checks.borrow_mut();
            let Checks { watches, oracle, .. } = &mut *checks;
            let checked = if matches!(result, Ok(()) | Err(Error::NoWatch { .. })) {
                let (shown, some) = (handle.shown(), result.is_ok());
                watches.removed(oracle, &handle, (&path, which), some, shown)
            } else {
                watches.none_removed(&handle);
                Ok(())
            };
            drop(checks);
            handle.kernel.check(checked);
            result
        })
    }
}

fn kind(mode: WatchMode) -> Kind {
    match mode {
        WatchMode::Persistent => Kind::Persistent,
        WatchMode::PersistentRecursive => Kind::Recursive,
    }
}

/// Where a watch begins.
enum Start {
    /// At some moment since this zxid was shown.
    Since(Zxid),
    /// Right after this zxid.
    After(Zxid),
}

/// The result of the read that came with a watch.
enum Seen {
    Data(Arc<[u8]>, Stat),
    Exists(Option<Stat>),
    Children(Vec<String>),
}

impl Seen {
    fn fits(&self, known: Option<&ZnodeState>) -> bool {
        match (self, known) {
            (Seen::Exists(stat), known) => *stat == known.map(|known| known.stat),
            (_, None) => false,
            (Seen::Data(data, stat), Some(known)) => *data == known.data && *stat == known.stat,
            (Seen::Children(children), Some(known)) => *children == known.children,
        }
    }
}

/// A watch that is being checked.
#[derive(Debug)]
pub(crate) struct CheckedWatch {
    kernel: Rc<Kernel>,
    id: Option<u64>,
    _watch: Watch,
}

impl CheckedWatch {
    /// Whether it is a one-shot watch that has fired.
    pub(crate) fn has_fired(&self) -> bool {
        self.id.is_none_or(|id| self.kernel.checks.borrow().watches.has_fired(id))
    }
}

impl Drop for CheckedWatch {
    fn drop(&mut self) {
        if let Some(id) = self.id
            // The checks may drop it last. The process is gone by then.
            && let Ok(mut checks) = self.kernel.checks.try_borrow_mut()
        {
            checks.watches.forget(id);
        }
    }
}
