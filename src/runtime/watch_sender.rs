//! The node's end of a watch's channel: see [`gap`](crate::sync::gap).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::runtime::chroot::Root;
use crate::sync::gap::EventSender;
use crate::types::watch::{EventKind, WatchEvent};

/// The node's end of a watch's channel: see [`gap`](crate::sync::gap).
#[derive(Debug)]
pub(crate) struct WatchSender {
    /// The path watched, in the whole tree.
    pub(crate) path: Arc<str>,
    pub(crate) root: Root,
    pub(crate) events: EventSender<WatchEvent>,
    /// Set when the znode was deleted.
    pub(crate) deletion: Option<Arc<AtomicBool>>,
}

impl WatchSender {
    /// Sends an event, before the tree that shows the change is published. Returns whether this is
    /// the first since `wake`, which must be called then.
    pub(crate) fn deliver(&mut self, event: WatchEvent) -> bool {
        // A change of the children of a znode that has none means that another znode was created in
        // its place.
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
            before: None,
            ..event
        };
        self.events.deliver(event, gap)
    }

    /// Wakes the task that waits for events, after the tree was published.
    pub(crate) fn wake(&mut self) {
        self.events.wake();
    }
}
