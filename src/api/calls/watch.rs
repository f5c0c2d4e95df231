//! A session's calls that set and remove watches.

use crate::api::watch::watch;
use crate::node::io::WatchId;
use crate::node::query::EventData;
use crate::runtime::ask::Ask;
use crate::runtime::chroot::Root;
use crate::runtime::pending::Pending;
use std::sync::Arc;

use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::types::watch::{WatchMode, WatcherType};
use crate::types::znode::{Stat, Zxid};

impl Session {
    /// As [`Session::get`], and sets a one-shot watch at the same moment. The watch reports the next change of the
    /// data, or the znode's deletion, and is then over. Waits until the session's earlier calls have been answered.
    ///
    /// ```
    /// use quorate::{CreateMode, EventKind};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// let (data, _, watch) = session.get_and_watch("/a").wait()?;
    /// session.set("/a", b"2").wait()?;
    /// assert_eq!(watch.recv().wait()?.unwrap().kind, EventKind::DataChanged);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn get_and_watch(&self, path: &str) -> Pending<'static, (Arc<[u8]>, Stat, Watch)> {
        self.read_and_watch(path, Ask::get, |(data, stat), watch| (data, stat, watch))
    }

    /// As [`Session::exists`], with the watch of [`Session::get_and_watch`]. If the znode does not exist, the watch
    /// reports its creation.
    ///
    /// ```
    /// use quorate::{CreateMode, EventKind};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let (exists, watch) = session.exists_and_watch("/a").wait()?;
    /// assert!(exists.is_none());
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// assert_eq!(watch.recv().wait()?.unwrap().kind, EventKind::Created);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn exists_and_watch(&self, path: &str) -> Pending<'static, (Option<Stat>, Watch)> {
        self.read_and_watch(path, Ask::exists, |stat, watch| (stat, watch))
    }

    /// As [`Session::children`], and sets a one-shot watch at the same moment. The watch reports the next child
    /// created or deleted, or the znode's deletion, and is then over.
    ///
    /// ```
    /// use quorate::{CreateMode, EventKind};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let (names, watch) = session.children_and_watch("/").wait()?;
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// assert_eq!(watch.recv().wait()?.unwrap().kind, EventKind::ChildrenChanged);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn children_and_watch(&self, path: &str) -> Pending<'static, (Vec<String>, Watch)> {
        self.read_and_watch(path, Ask::children, |(names, _), watch| (names, watch))
    }

    /// Watches a path until the watch is dropped or removed; the znode need not exist. Waits until the session's
    /// earlier calls have been answered.
    ///
    /// ```
    /// use quorate::{CreateMode, EventKind, WatchMode};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let watch = session.watch("/a", WatchMode::Persistent).wait()?;
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.set("/a", b"2").wait()?;
    /// assert_eq!(watch.recv().wait()?.unwrap().kind, EventKind::Created);
    /// assert_eq!(watch.recv().wait()?.unwrap().kind, EventKind::DataChanged);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn watch(&self, path: &str, mode: WatchMode) -> Pending<'static, Watch> {
        self.watch_after(path, mode, None, EventData::None)
    }

    /// As [`Session::watch`], with events that carry the znode as the write has left it, so that no
    /// read is needed: see [`WatchEvent::data`](crate::WatchEvent::data) and
    /// [`WatchEvent::stat`](crate::WatchEvent::stat). An event of kind
    /// [`EventKind::ChildrenChanged`](crate::EventKind::ChildrenChanged) carries the parent. If
    /// this replica has caught up by a snapshot, an event carries the znode as of the snapshot.
    /// While such a watch exists, this node applies writes one by one.
    ///
    /// ```
    /// use quorate::{CreateMode, WatchMode};
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let watch = session.watch_with_data("/config", WatchMode::Persistent).wait()?;
    /// session.create("/config", b"v1", CreateMode::Persistent).wait()?;
    /// session.set("/config", b"v2").wait()?;
    /// let values: Vec<_> =
    ///     watch.events().try_iter().filter_map(|event| Some(event.data()?.to_vec())).collect();
    /// assert_eq!(values, [b"v1", b"v2"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn watch_with_data(&self, path: &str, mode: WatchMode) -> Pending<'static, Watch> {
        self.watch_after(path, mode, None, EventData::After)
    }

    /// As [`Session::watch_with_data`], with events that also carry the znode as it was before the write:
    /// see [`WatchEvent::data_before`](crate::WatchEvent::data_before) and
    /// [`WatchEvent::stat_before`](crate::WatchEvent::stat_before). For a deletion this is what was
    /// deleted; for a creation there is none. All events of a multi carry the znode as it was before the
    /// multi. If this replica has caught up by a snapshot, an event carries the znode of the tree that the
    /// snapshot has replaced. An event carries nothing that the session may not read, by the access list
    /// that the znode had then.
    ///
    /// ```
    /// use quorate::{CreateMode, WatchMode};
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/limit", b"10", CreateMode::Persistent).wait()?;
    /// let watch = session.watch_with_before("/limit", WatchMode::Persistent).wait()?;
    /// session.set("/limit", b"20").wait()?;
    /// let event = watch.recv().wait()?.expect("the watch is on");
    /// assert_eq!((event.data_before(), event.data()), (Some(&b"10"[..]), Some(&b"20"[..])));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn watch_with_before(&self, path: &str, mode: WatchMode) -> Pending<'static, Watch> {
        self.watch_after(path, mode, None, EventData::Both)
    }

    /// As [`Session::watch`], starting in the past: its first events report every change after the
    /// write `zxid`, in order, and later events report what comes next; none is missing and none
    /// comes twice. So a reader that has processed everything up to a zxid, on any instance, can
    /// continue there.
    ///
    /// The past events are in the channel when this returns. If there are more than
    /// [`Watch::CAPACITY`](crate::Watch::CAPACITY), the rest is dropped, and an
    /// [`EventKind::Gap`](crate::EventKind::Gap) follows those that are there.
    ///
    /// If this replica has not applied `zxid` yet, it first catches up with the leader, and this
    /// waits as [`Session::sync`] does. Otherwise it needs no quorum.
    ///
    /// A replica stores the latest [`Watch::HISTORY_CHANGES`](crate::Watch::HISTORY_CHANGES) changes, up to
    /// [`Watch::HISTORY_BYTES`](crate::Watch::HISTORY_BYTES). It has only the changes that it has applied one by
    /// one: those after the checkpoint with which it started, or after the last snapshot that it
    /// has received.
    ///
    /// # Errors
    /// [`Error::TooOld`] if the replica no longer has all changes since `zxid`: then set a watch
    /// with [`Session::watch`], and read the znodes again. [`Error::FutureZxid`] if there is no
    /// such write. [`Error::InvalidPath`]; [`Error::Timeout`]; the errors of a session that is
    /// over; [`Error::Busy`]; [`Error::Stopped`].
    ///
    /// ```
    /// use quorate::{CreateMode, EventKind, WatchMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let (here, there) = (cluster.node(0).session(), cluster.node(1).session());
    /// let seen = here.create("/a", b"1", CreateMode::Persistent).wait()?.stat.czxid;
    /// let set = here.set("/a", b"2").wait()?.mzxid;
    ///
    /// // Another instance continues from there.
    /// let watch = there.watch_from("/a", WatchMode::Persistent, seen).wait()?;
    /// let event = watch.recv().wait()?.expect("it is set");
    /// assert_eq!((event.kind, event.zxid), (EventKind::DataChanged, set));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// [`Error::TooOld`]: crate::Error::TooOld
    /// [`Error::FutureZxid`]: crate::Error::FutureZxid
    /// [`Error::InvalidPath`]: crate::Error::InvalidPath
    /// [`Error::Timeout`]: crate::Error::Timeout
    /// [`Error::Busy`]: crate::Error::Busy
    /// [`Error::Stopped`]: crate::Error::Stopped
    pub fn watch_from(&self, path: &str, mode: WatchMode, zxid: Zxid) -> Pending<'static, Watch> {
        self.watch_after(path, mode, Some(zxid), EventData::None)
    }

    /// Removes the session's watches of a type at a path, whichever of its handles has set them.
    /// Each gets a last event ([`EventKind::DataWatchRemoved`](crate::EventKind::DataWatchRemoved)
    /// or the like) behind the events that wait for its reader, and is over. No change after this
    /// has returned is reported by them. Dropping a [`Watch`] removes it without an event.
    ///
    /// Needs no quorum, but waits until the session's earlier calls have been answered.
    ///
    /// # Errors
    /// [`Error::NoWatch`] if there is none; [`Error::InvalidPath`]; [`Error::Timeout`]; the errors
    /// of a session that is over; [`Error::Busy`]; [`Error::Stopped`].
    ///
    /// ```
    /// use quorate::WatcherType;
    /// use quorate::WatchMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let watch = session.watch("/a", WatchMode::Persistent).wait()?;
    /// session.remove_watches("/a", WatcherType::Any).wait()?;
    /// // An event reports the removal, and the watch ends.
    /// assert!(watch.recv().wait()?.is_some() && watch.recv().wait()?.is_none());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `removeWatches` and `removeAllWatches`; with `removeWatches`, the server
    /// keeps the watch.
    ///
    /// [`Error::InvalidPath`]: crate::Error::InvalidPath
    /// [`Error::Timeout`]: crate::Error::Timeout
    /// [`Error::Busy`]: crate::Error::Busy
    /// [`Error::Stopped`]: crate::Error::Stopped
    /// [`Error::NoWatch`]: crate::Error::NoWatch
    pub fn remove_watches(&self, path: &str, which: WatcherType) -> Pending<'static, ()> {
        let ask = |root: &Root| Ask::remove_watches(root.full(path).into(), which);
        self.ask(self.validate(path), ask, Ok)
    }

    /// Makes a request that sets a watch.
    fn watching<A: 'static, T: 'static>(
        &self,
        path: &str,
        ask: impl FnOnce(WatchId, Arc<str>) -> Ask<A>,
        convert: impl FnOnce(A, Watch) -> T + Send + 'static,
    ) -> Pending<'static, T> {
        let shared = self.shared();
        if let Err(error) = self.validate(path).and_then(|()| self.check_alive()) {
            return Pending::ready(Err(error));
        }
        let id = shared.next_watch();
        // All users of the path share one copy.
        let full: Arc<str> = self.root.full(path).into();
        let (sender, watch) = watch(id, Arc::clone(&full), &self.root, shared);
        let convert = |answer| Ok(convert(answer, watch));
        let ask = ask(id, full);
        self.relative(shared.ask(self.asker(), ask, Some((id, sender)), convert))
    }

    /// Makes a read that sets a watch at the same moment.
    fn read_and_watch<A: 'static, T: 'static>(
        &self,
        path: &str,
        read: impl FnOnce(Arc<str>) -> Ask<A>,
        convert: impl FnOnce(A, Watch) -> T + Send + 'static,
    ) -> Pending<'static, T> {
        self.watching(path, |watch, path| read(path).watching(watch), convert)
    }

    fn watch_after(
        &self,
        path: &str,
        mode: WatchMode,
        from: Option<Zxid>,
        data: EventData,
    ) -> Pending<'static, Watch> {
        let recursive = mode == WatchMode::PersistentRecursive;
        let ask = |watch, path| Ask::watch(watch, path, recursive, from, data);
        self.watching(path, ask, |(), watch| watch)
    }
}
