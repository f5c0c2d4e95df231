//! The watches of users, and how events reach them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crossbeam_channel::Receiver;

use crate::node::io::{Input, WatchId};
use crate::runtime::chroot::Root;
use crate::runtime::pending::Pending;
use crate::runtime::shared::NodeShared;
use crate::runtime::watch_sender::WatchSender;
use crate::sync::gap::{EventReceiver, channel};
use crate::types::watch::{HISTORY_BYTES, HISTORY_CHANGES, WATCH_CAPACITY, WatchEvent};

/// A watch, which receives events. Dropping it removes the watch.
///
/// A watch belongs to its session and does not keep the session alive: when the session's last
/// handle is dropped, the session is closed, and the watch is over. So hold a
/// [`Session`](crate::Session) for as long as you watch. (A [`Coordinator`](crate::Coordinator)
/// holds the session returned by its `session()`.)
///
/// An event is in the watch's channel before the change can be read from this instance. Events have
/// the order of the writes. The channel closes when the watch is over: when a one-shot watch has
/// fired, when [`Session::remove_watches`](crate::Session::remove_watches) has removed it, or when
/// its session or its node has ended. At most [`Watch::CAPACITY`](crate::Watch::CAPACITY) events wait
/// in the channel; if a reader falls further behind, events are dropped and an
/// [`EventKind::Gap`](crate::EventKind::Gap) takes their place. No node ever waits for a reader.
///
/// Changes of the session itself (ZooKeeper's default watcher) are not reported by watches, but by
/// [`Session::states`](crate::Session::states).
///
/// ```
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.create("/a", b"1", CreateMode::Persistent).wait()?;
/// let (data, _, watch) = session.get_and_watch("/a").wait()?;
/// assert_eq!(&data[..], b"1");
/// session.set("/a", b"2").wait()?;
/// assert_eq!(watch.events().iter().count(), 1, "it fires once, and the channel closes");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct Watch {
    id: WatchId,
    events: EventReceiver<WatchEvent>,
    /// Set on a client: see [`Watch::deletion`].
    deletion: Option<Arc<AtomicBool>>,
    shared: Arc<NodeShared>,
}

impl Watch {
    /// How many events wait in a watch's channel before its reader gets an
    /// [`EventKind::Gap`](crate::EventKind::Gap) instead.
    pub const CAPACITY: usize = WATCH_CAPACITY;

    /// How many of the latest changes each replica stores for
    /// [`Session::watch_from`](crate::Session::watch_from), at most.
    pub const HISTORY_CHANGES: usize = HISTORY_CHANGES;

    /// How many bytes these changes may take, at most: each takes the length of its path and about 60 more.
    pub const HISTORY_BYTES: usize = HISTORY_BYTES;

    /// The channel of events, for `select!`, iteration and so on. It may be cloned, but each event
    /// goes to one receiver only, and dropping a clone does not end the watch.
    pub fn events(&self) -> &Receiver<WatchEvent> {
        self.events.events()
    }

    /// Set once the watch has reported the deletion of its znode, which must have no children. For
    /// clients, which have no tree to check.
    pub(crate) fn deletion(&self) -> Option<Arc<AtomicBool>> {
        self.deletion.clone()
    }

    /// Waits until the next event; `None` when the watch is over.
    pub fn recv(&self) -> Pending<'_, Option<WatchEvent>> {
        let next = async { Ok(self.next().await) };
        Pending::steps(&self.shared, "recv", "", next).unlimited()
    }

    pub(crate) async fn next(&self) -> Option<WatchEvent> {
        self.events.next().await
    }

    /// Waits until `done` returns a value, and takes no event: see [`EventReceiver::until`].
    pub(crate) async fn until<T>(&self, done: impl FnMut(bool) -> Option<T>) -> T {
        self.events.until(done).await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.shared.clock.is_forked() {
            // Leaves the channel as it is, since the thread that fills it does not run in a fork.
            return self.events.leak();
        }
        self.shared.input(Input::Unwatch(self.id));
    }
}

/// Returns the two ends of a new watch. The path is relative to the root of the whole tree.
pub(crate) fn watch(
    id: WatchId,
    path: Arc<str>,
    root: &Root,
    shared: &Arc<NodeShared>,
) -> (WatchSender, Watch) {
    let (sender, events) = channel(shared.limits.watch_capacity);
    let deletion = (!shared.has_replica).then(Arc::default);
    let (root, reported) = (root.clone(), deletion.clone());
    let sender = WatchSender { path, root, events: sender, deletion: reported };
    (sender, Watch { id, events, deletion, shared: Arc::clone(shared) })
}
