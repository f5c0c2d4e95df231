//! The values of watches: modes, kinds and events.

use std::sync::Arc;

use crate::types::znode::{SessionId, Stat, Zxid};

/// [`Watch::CAPACITY`](crate::Watch::CAPACITY).
pub(crate) const WATCH_CAPACITY: usize = 1024;

/// [`Watch::HISTORY_CHANGES`](crate::Watch::HISTORY_CHANGES).
pub(crate) const HISTORY_CHANGES: usize = 1 << 17;

/// [`Watch::HISTORY_BYTES`](crate::Watch::HISTORY_BYTES).
pub(crate) const HISTORY_BYTES: usize = 16 << 20;

/// Which changes a persistent watch reports.
///
/// Source: ZooKeeper 3.6, `AddWatchMode`.
///
/// ```
/// use quorate::{CreateMode, EventKind, WatchMode};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let znode = session.watch("/a", WatchMode::Persistent).wait()?;
/// let below = session.watch("/a", WatchMode::PersistentRecursive).wait()?;
/// session.create("/a", b"", CreateMode::Persistent).wait()?;
/// session.create("/a/b", b"", CreateMode::Persistent).wait()?;
/// let kinds = |watch: &quorate::Watch| -> Vec<_> {
///     watch.events().try_iter().map(|event| (event.kind, event.path)).collect()
/// };
/// assert_eq!(
///     kinds(&znode),
///     [(EventKind::Created, "/a".into()), (EventKind::ChildrenChanged, "/a".into())]
/// );
/// assert_eq!(
///     kinds(&below),
///     [(EventKind::Created, "/a".into()), (EventKind::Created, "/a/b".into())]
/// );
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WatchMode {
    /// Every change of the znode itself and of the set of its children.
    Persistent,
    /// Every creation, change and deletion of the znode and of all znodes below it.
    PersistentRecursive,
}

/// Which watches [`Session::remove_watches`](crate::Session::remove_watches) removes.
///
/// Source: ZooKeeper, `Watcher.WatcherType`.
///
/// ```
/// use quorate::WatcherType;
/// use quorate::{EventKind, WatchMode};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let (_, data) = session.exists_and_watch("/a").wait()?;
/// let persistent = session.watch("/a", WatchMode::Persistent).wait()?;
/// session.remove_watches("/a", WatcherType::Data).wait()?;
/// assert_eq!(data.recv().wait()?.map(|event| event.kind), Some(EventKind::DataWatchRemoved));
/// assert!(data.recv().wait()?.is_none(), "it is over");
/// assert!(persistent.events().is_empty(), "this one is not");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WatcherType {
    /// Those of [`Session::children_and_watch`](crate::Session::children_and_watch).
    Children,
    /// Those of [`Session::get_and_watch`](crate::Session::get_and_watch) and
    /// [`Session::exists_and_watch`](crate::Session::exists_and_watch).
    Data,
    /// All of them.
    Any,
    /// Those of [`WatchMode::Persistent`].
    Persistent,
    /// Those of [`WatchMode::PersistentRecursive`].
    PersistentRecursive,
}

/// A watch of a session of this instance, from
/// [`Coordinator::watches`](crate::Coordinator::watches).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct WatchInfo {
    /// The path watched, in the whole tree.
    pub path: String,
    /// Its type; never [`WatcherType::Any`].
    pub kind: WatcherType,
    /// Its session.
    pub session: SessionId,
}

/// One event of a [`Watch`](crate::Watch).
///
/// ```
/// use quorate::{CreateMode, EventKind, WatchMode};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let watch = session.watch("/a", WatchMode::Persistent).wait()?;
/// let created = session.create("/a", b"", CreateMode::Persistent).wait()?;
/// let event = watch.events().recv().expect("the watch is on");
/// assert_eq!((event.kind, event.zxid), (EventKind::Created, created.stat.czxid));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct WatchEvent {
    /// What happened.
    pub kind: EventKind,
    /// The path of the znode. For a [`EventKind::Gap`] and the removal of a watch, the path
    /// watched.
    pub path: String,
    /// The write that caused it. For a [`EventKind::Gap`], the first write of which an event was
    /// dropped: the events of all earlier writes have been delivered. For the removal of a watch,
    /// the last write whose events it has delivered.
    pub zxid: Zxid,
    /// Its place among the events of its write. Sorted by `(zxid, position)`, the events of all
    /// watches of an instance are in the order in which the changes happened; those of one channel
    /// already are. Events of different watches with equal values report the same change.
    ///
    /// It counts the changes of the write, so it may skip numbers. A [`EventKind::Gap`] has the
    /// place of the first event dropped. The removal of a watch comes after all others. Among the
    /// net changes of one write, deletions come first and changes of children last; their order is
    /// otherwise not known.
    pub position: u32,
    /// Whether this is a net change, found by comparing the trees after a snapshot has brought this
    /// replica up to date: several changes of the znode may have become one.
    pub net: bool,
    /// The znode as the write has left it, if the watch asks for it.
    pub(crate) znode: Option<Box<EventZnode>>,
    /// The znode as it was before the write, if the watch asks for it.
    pub(crate) before: Option<Box<EventZnode>>,
}

/// The znode in an event.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct EventZnode {
    #[serde(serialize_with = "crate::types::serde_form::base64")]
    pub(crate) data: Option<Arc<[u8]>>,
    pub(crate) stat: Stat,
}

impl WatchEvent {
    /// How many bytes of data an event carries, at most; longer data has to be read. So the events in
    /// one channel carry at most 16 MiB of data, and twice that in a watch of
    /// [`Session::watch_with_before`](crate::Session::watch_with_before).
    pub const DATA_MAX: usize = 16 << 10;

    /// The data of the znode as this event's write has left it: for watches of
    /// [`Session::watch_with_data`](crate::Session::watch_with_data) and
    /// [`Session::watch_with_before`](crate::Session::watch_with_before), if it has no more than
    /// [`WatchEvent::DATA_MAX`] bytes. `None` when the znode is gone, and for a [`EventKind::Gap`].
    pub fn data(&self) -> Option<&[u8]> {
        self.znode.as_ref()?.data.as_deref()
    }

    /// The stat that belongs to [`WatchEvent::data`], however long the data is.
    pub fn stat(&self) -> Option<Stat> {
        Some(self.znode.as_ref()?.stat)
    }

    /// The data of the znode as it was before this event's write: for watches of
    /// [`Session::watch_with_before`](crate::Session::watch_with_before), if it had no more than
    /// [`WatchEvent::DATA_MAX`] bytes. For a deletion, this is what was deleted. `None` for a creation, for
    /// a [`EventKind::Gap`], and for a znode that was not there before the write.
    ///
    /// ```
    /// use quorate::{CreateMode, WatchMode};
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/config", b"v1", CreateMode::Persistent).wait()?;
    /// let watch = session.watch_with_before("/config", WatchMode::Persistent).wait()?;
    /// session.set("/config", b"v2").wait()?;
    /// session.delete("/config").wait()?;
    ///
    /// let set = watch.recv().wait()?.expect("the watch is on");
    /// assert_eq!((set.data_before(), set.data()), (Some(&b"v1"[..]), Some(&b"v2"[..])));
    /// let deleted = watch.recv().wait()?.expect("the watch is on");
    /// assert_eq!((deleted.data_before(), deleted.data()), (Some(&b"v2"[..]), None));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn data_before(&self) -> Option<&[u8]> {
        self.before.as_ref()?.data.as_deref()
    }

    /// The stat that belongs to [`WatchEvent::data_before`], however long the data was.
    ///
    /// ```
    /// use quorate::{CreateMode, WatchMode};
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let watch = session.watch_with_before("/a", WatchMode::Persistent).wait()?;
    /// let created = session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.set("/a", b"2").wait()?;
    /// let mut events = watch.events().try_iter();
    /// assert_eq!(events.next().and_then(|event| event.stat_before()), None);
    /// assert_eq!(events.next().and_then(|event| event.stat_before()), Some(created.stat));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn stat_before(&self) -> Option<Stat> {
        Some(self.before.as_ref()?.stat)
    }
}

/// What happened to a znode.
///
/// ```
/// use quorate::{CreateMode, EventKind};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let (stat, watch) = session.exists_and_watch("/a").wait()?;
/// assert!(stat.is_none());
/// session.create("/a", b"", CreateMode::Persistent).wait()?;
/// assert_eq!(watch.recv().wait()?.map(|event| event.kind), Some(EventKind::Created));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// It was created.
    Created,
    /// It was deleted.
    Deleted,
    /// Its data was set.
    DataChanged,
    /// One of its children was created or deleted.
    ChildrenChanged,
    /// The reader was too slow and events were dropped: read again what you watch. A read after
    /// taking the gap from the channel is not older than any dropped event. Like every event, a gap
    /// is in the channel before any change that it stands for can be read.
    Gap,
    /// The last event of a get or exists watch that
    /// [`Session::remove_watches`](crate::Session::remove_watches) has removed.
    DataWatchRemoved,
    /// As [`EventKind::DataWatchRemoved`], for a watch of children.
    ChildWatchRemoved,
    /// As [`EventKind::DataWatchRemoved`], for a persistent or recursive watch.
    PersistentWatchRemoved,
}

impl EventKind {
    pub(crate) fn is_removal(self) -> bool {
        matches!(
            self,
            EventKind::DataWatchRemoved
                | EventKind::ChildWatchRemoved
                | EventKind::PersistentWatchRemoved
        )
    }
}
