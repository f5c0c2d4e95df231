//! Watches as their users hold them, and how events reach them.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

use crate::node::io::{ClientRequest, WatchId};
use crate::runtime::host::Shared;
use crate::znode::Zxid;

/// How many events wait in a watch's channel before its reader gets a [`EventKind::Gap`] instead.
pub const WATCH_CAPACITY: usize = 1024;

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
    /// To which znode. For a [`EventKind::Gap`], the path that is watched.
    pub path: String,
    /// By which write. For a [`EventKind::Gap`], the last write whose event was left out.
    pub zxid: Zxid,
    /// Whether this is a net change, found by comparing the trees after this replica was brought
    /// up to date by a snapshot: several changes of the znode may have become one.
    pub net: bool,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// after a gap was taken from the channel is not older than any event left out.
    Gap,
}

/// A watch that has been set. Dropping it ends it.
///
/// It belongs to its session and does not keep it alive: when the last handle of the session is
/// dropped, the session is closed, and the watch is over. So keep a [`Session`](crate::Session) for
/// as long as you watch; a [`Coordinator`](crate::Coordinator) keeps the one that it gives out by
/// `session()`.
///
/// Its events are in its channel before the change can be read from this instance, in the order
/// of the writes. The channel closes when the watch is over: when one that fires once has fired, or
/// when its session or its node has ended. At most [`WATCH_CAPACITY`] events wait in it; a reader
/// that falls further behind gets an [`EventKind::Gap`], and no node ever waits for a reader.
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
    events: Receiver<WatchEvent>,
    waiting: Arc<Waiting>,
    shared: Arc<Shared>,
}

impl Watch {
    /// The channel, for `select!`, iteration and the like. It may be cloned, but each event goes to
    /// one receiver only, and only this watch ends with its drop.
    pub fn events(&self) -> &Receiver<WatchEvent> {
        &self.events
    }

    /// Blocks until the next event; `None` when the watch is over.
    pub fn recv(&self) -> Option<WatchEvent> {
        self.events.recv().ok()
    }

    /// Waits for the next event without blocking the thread; `None` when the watch is over. For one
    /// task at a time.
    pub async fn next(&self) -> Option<WatchEvent> {
        poll_fn(|context| {
            // Registered before looking, so that what comes in between wakes the task.
            self.waiting.register(context.waker());
            match self.events.try_recv() {
                Ok(event) => Poll::Ready(Some(event)),
                Err(TryRecvError::Disconnected) => Poll::Ready(None),
                Err(TryRecvError::Empty) => Poll::Pending,
            }
        })
        .await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.tell(None, ClientRequest::Unwatch { watch: self.id });
    }
}

/// The task that waits for a watch.
#[derive(Debug, Default)]
struct Waiting {
    waker: Mutex<Option<Waker>>,
}

impl Waiting {
    fn register(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The node's end of a watch's channel.
///
/// The channel has one place more than events may take, for a `Gap`. An event that finds no
/// place is left out. After the tree has been published, [`WatchSender::settle`] puts a `Gap`
/// behind what waits. If even the last place is taken, then by a `Gap` that has not been read
/// yet: whoever reads it later, and then reads the tree, sees what was left out until now.
///
/// A task is woken only then, too: its waker is the user's code, which may read the tree at once,
/// on this very thread.
#[derive(Debug)]
pub(crate) struct WatchSender {
    path: String,
    sender: Sender<WatchEvent>,
    waiting: Arc<Waiting>,
    left_out: Option<Zxid>,
    unsettled: bool,
}

/// The two ends of a new watch.
pub(crate) fn watch(id: WatchId, path: &str, shared: &Arc<Shared>) -> (WatchSender, Watch) {
    let (sender, events) = bounded(WATCH_CAPACITY + 1);
    let waiting = Arc::<Waiting>::default();
    let path = path.to_owned();
    let waiter = Arc::clone(&waiting);
    let ours = WatchSender { path, sender, waiting: waiter, left_out: None, unsettled: false };
    (ours, Watch { id, events, waiting, shared: Arc::clone(shared) })
}

impl WatchSender {
    /// Before the tree that shows the change is published. Whether this is the first since
    /// `settle`, which is to be called again.
    pub(crate) fn deliver(&mut self, event: WatchEvent) -> bool {
        if self.left_out.is_some() || self.sender.len() >= WATCH_CAPACITY {
            self.left_out = Some(event.zxid);
        } else {
            // There is a place; that nobody reads is not our business.
            let _ = self.sender.try_send(event);
        }
        !std::mem::replace(&mut self.unsettled, true)
    }

    /// After the tree has been published.
    pub(crate) fn settle(&mut self) {
        self.unsettled = false;
        if let Some(zxid) = self.left_out.take() {
            let (kind, path) = (EventKind::Gap, self.path.clone());
            // If there is no place, the gap in the last one has not been read yet.
            let _ = self.sender.try_send(WatchEvent { kind, path, zxid, net: false });
        }
        self.waiting.wake();
    }
}

impl Drop for WatchSender {
    fn drop(&mut self) {
        // The task must see the channel closed, so that goes first.
        let (closed, _) = bounded(0);
        self.sender = closed;
        self.waiting.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (WatchSender, Receiver<WatchEvent>) {
        let (sender, events) = bounded(WATCH_CAPACITY + 1);
        let waiting = Arc::default();
        let (path, left_out, unsettled) = ("/a".to_owned(), None, false);
        (WatchSender { path, sender, waiting, left_out, unsettled }, events)
    }

    fn event(zxid: Zxid) -> WatchEvent {
        WatchEvent { kind: EventKind::DataChanged, path: "/a".to_owned(), zxid, net: false }
    }

    #[test]
    fn a_slow_reader_gets_a_gap_in_place_of_what_it_missed() {
        let (mut sender, events) = ends();
        let capacity = WATCH_CAPACITY as u64;
        for zxid in 0..capacity + 50 {
            if sender.deliver(event(zxid)) {
                sender.settle();
            }
        }
        let seen: Vec<WatchEvent> = events.try_iter().collect();
        assert_eq!(seen.len(), WATCH_CAPACITY + 1);
        assert!(seen[..WATCH_CAPACITY].iter().all(|event| event.kind == EventKind::DataChanged));
        assert_eq!(seen[WATCH_CAPACITY].kind, EventKind::Gap);
        sender.deliver(event(9999));
        assert_eq!(events.try_recv().unwrap(), event(9999), "it goes on after the gap");
    }

    /// The reader takes the gap after an event was left out but before that event's tree is
    /// published, and so reads a tree without it: another gap must come.
    #[test]
    fn a_gap_taken_too_early_is_followed_by_another() {
        let (mut sender, events) = ends();
        for zxid in 0..=WATCH_CAPACITY as u64 {
            if sender.deliver(event(zxid)) {
                sender.settle();
            }
        }
        assert!(sender.deliver(event(5000)), "it wants to be settled");
        assert_eq!(events.try_iter().last().unwrap().kind, EventKind::Gap);
        sender.settle();
        let gap = events.try_recv().unwrap();
        assert_eq!((gap.kind, gap.zxid), (EventKind::Gap, 5000));
    }

    /// Any interleaving of a writer and a reader leaves the reader with the last state: the model of
    /// a reader is one that notes each event's zxid, and at a gap takes what is published.
    #[test]
    fn whoever_reads_again_at_a_gap_ends_at_the_latest_state() {
        let mut random = 1_u64;
        let (mut sender, events) = ends();
        let (mut published, mut known) = (0, 0);
        for zxid in 1..200_000 {
            let unsettled = sender.deliver(event(zxid));
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut read = |most: u64, published: u64| {
                for event in events.try_iter().take(most as usize) {
                    known = if event.kind == EventKind::Gap { published } else { event.zxid };
                }
            };
            let burst = if (random >> 40).is_multiple_of(4096) { 3000 } else { (random >> 33) % 2 };
            read(burst, published);
            published = zxid;
            if unsettled {
                sender.settle();
            }
        }
        for event in events.try_iter() {
            known = if event.kind == EventKind::Gap { published } else { event.zxid };
        }
        assert_eq!(known, published);
    }

    #[test]
    fn the_channel_closes_with_the_sender() {
        let (mut sender, events) = ends();
        sender.deliver(event(1));
        drop(sender);
        assert_eq!(events.iter().count(), 1);
    }
}
