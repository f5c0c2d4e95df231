//! Watches as their users hold them, and how events reach them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Receiver;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::node::io::{ClientRequest, WatchId};
#[cfg(any(test, feature = "simulator"))]
use crate::planted::{Bug, planted};
use crate::root::Root;
use crate::runtime::shared::Shared;
use crate::session::Session;
use crate::sync::gap::{EventReceiver, EventSender, channel};
use crate::znode::{SessionId, Stat, Zxid};

/// How many events wait in a watch's channel before its reader gets a [`EventKind::Gap`] instead.
pub const WATCH_CAPACITY: usize = 1024;

/// How many of the latest changes each replica keeps for
/// [`Session::watch_from`](crate::Session::watch_from), at most.
pub const HISTORY_CHANGES: usize = 1 << 17;

/// How many bytes these may take, at most: each change takes the length of its path and about 60
/// more.
pub const HISTORY_BYTES: usize = 16 << 20;

/// How many bytes of data an event brings, at most: what is longer is to be read. So the events that
/// wait in one channel take 16 MiB of data at most.
pub const EVENT_DATA_MAX: usize = 16 << 10;

/// Which changes a persistent watch tells of.
///
/// Source: ZooKeeper 3.6, `AddWatchMode`.
///
/// ```
/// use quorate::{CreateMode, EventKind, WatchMode};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let znode = session.watch("/a", WatchMode::Persistent)?;
/// let below = session.watch("/a", WatchMode::PersistentRecursive)?;
/// session.create("/a", b"", CreateMode::Persistent)?;
/// session.create("/a/b", b"", CreateMode::Persistent)?;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
/// use quorate::{EventKind, WatchMode, WatcherType};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let (_, data) = session.exists_and_watch("/a")?;
/// let persistent = session.watch("/a", WatchMode::Persistent)?;
/// session.remove_watches("/a", WatcherType::Data)?;
/// assert_eq!(data.recv().map(|event| event.kind), Some(EventKind::DataWatchRemoved));
/// assert!(data.recv().is_none(), "it is over");
/// assert!(persistent.events().is_empty(), "this one is not");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

/// A watch of a session of this instance, as [`Coordinator::watches`](crate::Coordinator::watches)
/// tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchInfo {
    /// What it watches, in the whole tree.
    pub path: String,
    /// How: never [`WatcherType::Any`].
    pub kind: WatcherType,
    /// Whose it is.
    pub session: SessionId,
}

/// One event of a [`Watch`].
///
/// ```
/// use quorate::{CreateMode, EventKind, WatchMode};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let watch = session.watch("/a", WatchMode::Persistent)?;
/// let created = session.create("/a", b"", CreateMode::Persistent)?;
/// let event = watch.events().recv().expect("the watch is on");
/// assert_eq!((event.kind, event.zxid), (EventKind::Created, created.stat.czxid));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchEvent {
    /// What happened.
    pub kind: EventKind,
    /// To which znode. For a [`EventKind::Gap`] and the end of a watch that was removed, the path
    /// that is watched.
    pub path: String,
    /// By which write. For a [`EventKind::Gap`], the first write of which an event was left out: the
    /// events of all earlier writes have been delivered. For a watch that was removed, the last write
    /// whose events it has delivered.
    pub zxid: Zxid,
    /// Its place among the events of its write. The events of all watches of an instance, put into
    /// the order of `(zxid, position)`, are in the order in which the changes happened; those of one
    /// channel are already. Events of different watches that agree in both tell of the same change.
    ///
    /// It counts what the write has changed, and so has holes. A [`EventKind::Gap`] has the place of the
    /// first event left out, the last event of a watch that was removed is behind all others, and
    /// among the net changes of one write deletions come first and changes of children last: more is
    /// not known of these.
    pub position: u32,
    /// Whether this is a net change, found by comparing the trees after this replica was brought
    /// up to date by a snapshot: several changes of the znode may have become one.
    pub net: bool,
    /// The znode as the write has left it, if the watch brings that.
    pub(crate) znode: Option<Box<EventZnode>>,
}

/// What an event brings of its znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventZnode {
    pub(crate) data: Option<Arc<[u8]>>,
    pub(crate) stat: Stat,
}

impl WatchEvent {
    /// The data of the znode as this event's write has left it: for watches of
    /// [`Session::watch_with_data`](crate::Session::watch_with_data), if it has no more than
    /// [`EVENT_DATA_MAX`] bytes. `None` when the znode is gone, and for a [`EventKind::Gap`].
    pub fn data(&self) -> Option<&[u8]> {
        self.znode.as_ref()?.data.as_deref()
    }

    /// The stat that goes with [`WatchEvent::data`], whatever the size of that.
    pub fn stat(&self) -> Option<Stat> {
        Some(self.znode.as_ref()?.stat)
    }
}

/// What happened to a znode.
///
/// ```
/// use quorate::{CreateMode, EventKind};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let (stat, watch) = session.exists_and_watch("/a")?;
/// assert!(stat.is_none());
/// session.create("/a", b"", CreateMode::Persistent)?;
/// assert_eq!(watch.recv().map(|event| event.kind), Some(EventKind::Created));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// The reader was too slow and events were left out: read again what you watch. What is read
    /// after a gap was taken from the channel is not older than any event left out. Like every event,
    /// a gap is in the channel before any change that it stands for can be read.
    Gap,
    /// The last event of a watch of a get or an exists that
    /// [`Session::remove_watches`](crate::Session::remove_watches) removed.
    DataWatchRemoved,
    /// The same of a watch of children.
    ChildWatchRemoved,
    /// The same of a persistent or a recursive watch.
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

/// A watch that has been set. Dropping it ends it.
///
/// It belongs to its session and does not keep it alive: when the last handle of the session is
/// dropped, the session is closed, and the watch is over. So keep a [`Session`](crate::Session) for
/// as long as you watch; a [`Coordinator`](crate::Coordinator) keeps the one that it gives out by
/// `session()`.
///
/// Its events are in its channel before the change can be read from this instance, in the order
/// of the writes, whether or not the channel is full. The channel closes when the watch is over: when one that fires once has fired,
/// when it was removed by [`Session::remove_watches`](crate::Session::remove_watches), or
/// when its session or its node has ended. At most [`WATCH_CAPACITY`] events wait in it; a reader
/// that falls further behind gets an [`EventKind::Gap`], and no node ever waits for a reader.
///
/// What becomes of the session itself (ZooKeeper's default watcher) is told by
/// [`Session::states`](crate::Session::states), and by no watch.
///
/// ```
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.create("/a", b"1", CreateMode::Persistent)?;
/// let (data, _, watch) = session.get_and_watch("/a")?;
/// assert_eq!(&data[..], b"1");
/// session.set("/a", b"2")?;
/// assert_eq!(watch.events().iter().count(), 1, "it fires once, and the channel closes");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct Watch {
    id: WatchId,
    events: EventReceiver<WatchEvent>,
    /// On a client: see [`Watch::deletion`].
    deletion: Option<Arc<AtomicBool>>,
    shared: Arc<Shared>,
}

impl Watch {
    /// The channel, for `select!`, iteration and the like. It may be cloned, but each event goes to
    /// one receiver only, and only this watch ends with its drop.
    pub fn events(&self) -> &Receiver<WatchEvent> {
        self.events.events()
    }

    /// Whether it has told of the deletion of its znode, which can have no children: for a client, who
    /// has no tree to look at.
    pub(crate) fn deletion(&self) -> Option<Arc<AtomicBool>> {
        self.deletion.clone()
    }

    /// Blocks until the next event; `None` when the watch is over.
    pub fn recv(&self) -> Option<WatchEvent> {
        self.events().recv().ok()
    }

    /// Waits for the next event without blocking the thread; `None` when the watch is over. Several
    /// tasks may wait: one of them gets the event, and all learn of the end.
    pub async fn next(&self) -> Option<WatchEvent> {
        self.events.next().await
    }

    /// Waits until `done` gives something, and leaves the events to others: see
    /// [`EventReceiver::until`].
    pub(crate) async fn until<T>(&self, done: impl FnMut(bool) -> Option<T>) -> T {
        self.events.until(done).await
    }
}

/// What a session's watches have beyond those that begin now.
impl Session {
    /// As [`Session::watch`], beginning in the past: its first events are of every change after the
    /// write `zxid`, in order, and those behind them of what comes next; none is missing and none
    /// comes twice. What has been told up to a zxid, on whichever instance, can so be gone on with.
    ///
    /// The events of the past are in the channel when this returns. If there are more than
    /// [`WATCH_CAPACITY`] of them, the others are left out, and behind those
    /// that are there comes an [`EventKind::Gap`].
    ///
    /// If this replica has not applied `zxid` yet, it first catches up, for which it asks the leader:
    /// this blocks as [`Session::sync`] does. Otherwise it needs no quorum.
    ///
    /// A replica remembers the latest [`HISTORY_CHANGES`] changes, in
    /// [`HISTORY_BYTES`] at most, and those only that it has applied one by one:
    /// since it was started, from its last checkpoint on, or since it was brought up to date by a
    /// snapshot.
    ///
    /// # Errors
    /// [`Error::TooOld`] if it does not remember all changes since `zxid`: then watch from now, and
    /// read again what is watched. [`Error::FutureZxid`] if there is no such write.
    /// [`Error::InvalidPath`]; [`Error::Timeout`]; the errors of a session that is over;
    /// [`Error::Busy`]; [`Error::Stopped`].
    ///
    /// ```
    /// use quorate::{CreateMode, EventKind, WatchMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let (here, there) = (cluster.node(0).session(), cluster.node(1).session());
    /// let seen = here.create("/a", b"1", CreateMode::Persistent)?.stat.czxid;
    /// let set = here.set("/a", b"2")?.mzxid;
    ///
    /// // Somebody else goes on from there, on another instance.
    /// let watch = there.watch_from("/a", WatchMode::Persistent, seen)?;
    /// let event = watch.recv().expect("it is set");
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
    pub fn watch_from(&self, path: &str, mode: WatchMode, zxid: Zxid) -> Result<Watch> {
        self.settle("watch", path, self.nonblocking().watch_from(path, mode, zxid))
    }

    /// Removes the watches of a type that this session has at a path, through whichever handle they
    /// were set. Each is told so by a last event ([`EventKind::DataWatchRemoved`] and its like),
    /// behind those that wait for its reader, and is over. None of them fires for what happens
    /// after this has returned; the node has forgotten them. Dropping a [`Watch`] removes it without
    /// an event.
    ///
    /// It needs no quorum, but blocks until the session's earlier calls have their answers.
    ///
    /// # Errors
    /// [`Error::NoWatch`] if there is none; [`Error::InvalidPath`]; [`Error::Timeout`]; the errors of a
    /// session that is over; [`Error::Busy`]; [`Error::Stopped`].
    ///
    /// Source: ZooKeeper, `removeWatches` and `removeAllWatches`, of which the former leaves the watch
    /// on its server.
    ///
    /// [`Error::InvalidPath`]: crate::Error::InvalidPath
    /// [`Error::Timeout`]: crate::Error::Timeout
    /// [`Error::Busy`]: crate::Error::Busy
    /// [`Error::Stopped`]: crate::Error::Stopped
    /// [`Error::NoWatch`]: crate::Error::NoWatch
    pub fn remove_watches(&self, path: &str, which: WatcherType) -> Result<()> {
        self.settle("remove watches", path, self.nonblocking().remove_watches(path, which))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.tell(None, ClientRequest::Unwatch { watch: self.id });
    }
}

/// The node's end of a watch's channel: see [`gap`](crate::sync::gap).
#[derive(Debug)]
pub(crate) struct WatchSender {
    /// In the whole tree.
    path: Arc<str>,
    root: Root,
    events: EventSender<WatchEvent>,
    /// A gap that is held back.
    #[cfg(any(test, feature = "simulator"))]
    late: Option<Box<WatchEvent>>,
    deletion: Option<Arc<AtomicBool>>,
}

/// The two ends of a new watch of a path, as it is in the whole tree.
pub(crate) fn watch(
    id: WatchId,
    path: Arc<str>,
    root: &Root,
    shared: &Arc<Shared>,
) -> (WatchSender, Watch) {
    let (sender, events) = channel(shared.limits.watch_capacity);
    let deletion = (!shared.has_replica).then(Arc::default);
    let told = deletion.clone();
    let sender = WatchSender {
        path,
        root: root.clone(),
        events: sender,
        #[cfg(any(test, feature = "simulator"))]
        late: None,
        deletion: told,
    };
    (sender, Watch { id, events, deletion, shared: Arc::clone(shared) })
}

impl WatchSender {
    /// Sends an event, before the tree that shows the change is published. Whether this is the first
    /// since `wake`, which is then to be called.
    pub(crate) fn deliver(&mut self, event: WatchEvent) -> bool {
        // That there are other children than before, where there are none, is told of a znode that
        // was made in its place.
        if let Some(deletion) = &self.deletion
            && matches!(event.kind, EventKind::Deleted | EventKind::ChildrenChanged)
            && event.path == *self.path
        {
            deletion.store(true, Ordering::Release);
        }
        let event = WatchEvent { path: self.root.relative(event.path), ..event };
        if event.kind == EventKind::Gap {
            return self.events.leave_out(event);
        }
        if event.kind.is_removal() {
            return self.events.deliver_last(event);
        }
        let (path, root) = (&self.path, &self.root);
        let gap = |event| WatchEvent {
            kind: EventKind::Gap,
            path: root.relative((**path).to_owned()),
            net: false,
            znode: None,
            ..event
        };
        #[cfg(any(test, feature = "simulator"))]
        if planted(Bug::GapLate) && (self.late.is_some() || self.events.is_full()) {
            self.late = Some(Box::new(gap(event)));
            return self.events.touch();
        }
        self.events.deliver(event, gap)
    }

    /// Wakes the task that waits for events, after the tree has been published.
    pub(crate) fn wake(&mut self) {
        #[cfg(any(test, feature = "simulator"))]
        if let Some(gap) = self.late.take() {
            self.events.leave_out(*gap);
        }
        self.events.wake();
    }
}
