//! The watches of a connection.
//!
//! ZooKeeper has one watch for each path and kind of a client, and sends one event for each change of a
//! path, however many watches it concerns. Here each request that sets a watch sets a new one, so that no
//! event is missed while another event is in flight; the former watch is removed when the new one is set.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::support::{WatchId, WatchKind};
use crate::gateway::wire::codes::EventType;
use crate::types::watch::{EventKind, WatchEvent, WatcherType};
use crate::types::znode::Zxid;

#[derive(Debug, Default)]
pub(super) struct Watches {
    /// All watches that the node may still have.
    known: BTreeMap<WatchId, (Arc<str>, WatchKind)>,
    /// The watches that are set.
    set: BTreeMap<(Arc<str>, WatchKind), WatchId>,
    /// The zxid and the position of the last change of which an event was sent, and the events sent for it.
    change: (Zxid, u32),
    sent: Vec<(EventKind, String)>,
}

impl Watches {
    pub(super) fn len(&self) -> usize {
        self.set.len()
    }

    /// The paths that are watched, in order.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        let mut last = None;
        let paths = self.set.keys().map(|(path, _)| &**path);
        paths.filter(move |path| last.replace(*path) != Some(*path))
    }

    /// A request that sets a watch is about to be sent.
    pub(super) fn ask(&mut self, watch: WatchId, path: Arc<str>, kind: WatchKind) {
        self.known.insert(watch, (path, kind));
    }

    /// The watch was not set, or is not wanted any more.
    pub(super) fn forget(&mut self, watch: WatchId) {
        if let Some(key) = self.known.remove(&watch)
            && self.set.get(&key) == Some(&watch)
        {
            self.set.remove(&key);
        }
    }

    /// Forgets a watch if its setting was not replied to yet. Returns whether that is so.
    pub(super) fn forget_unset(&mut self, watch: WatchId) -> bool {
        let key = self.known.get(&watch);
        let unset = key.is_some_and(|key| self.set.get(key) != Some(&watch));
        if unset {
            self.known.remove(&watch);
        }
        unset
    }

    pub(super) fn is_known(&self, watch: WatchId) -> bool {
        self.known.contains_key(&watch)
    }

    /// Notes that the watch was set. Returns the former one at this path, which is to be removed.
    pub(super) fn note_set(&mut self, watch: WatchId) -> Option<WatchId> {
        let former = self.set.insert(self.known.get(&watch)?.clone(), watch);
        let former = former.filter(|former| *former != watch)?;
        self.known.remove(&former);
        Some(former)
    }

    /// Returns the type of the event to send to the client, if one is to be sent.
    pub(super) fn fire(&mut self, watch: WatchId, event: &WatchEvent) -> Option<EventType> {
        let (_, kind) = self.known.get(&watch)?;
        let fires_once = kind.fires_once();
        let kind = match event.kind {
            EventKind::Created => EventType::NodeCreated,
            EventKind::Deleted => EventType::NodeDeleted,
            EventKind::DataChanged => EventType::NodeDataChanged,
            EventKind::ChildrenChanged => EventType::NodeChildrenChanged,
            // It is removed here when the request to remove it is replied to, since earlier requests may still
            // wait for their replies.
            _ => return None,
        };
        if fires_once {
            self.forget(watch);
        }
        if self.change != (event.zxid, event.position) {
            self.change = (event.zxid, event.position);
            self.sent.clear();
        }
        if self.sent.iter().any(|(kind, path)| (*kind, path) == (event.kind, &event.path)) {
            return None;
        }
        self.sent.push((event.kind, event.path.clone()));
        Some(kind)
    }

    /// Whether there are watches of a type at a path.
    pub(super) fn has(&self, path: &str, which: WatcherType) -> bool {
        self.at(path, which).next().is_some()
    }

    /// Forgets the watches of a type at a path. Returns whether there were any.
    pub(super) fn remove(&mut self, path: &str, which: WatcherType) -> bool {
        let watches: Vec<WatchId> = self.at(path, which).collect();
        watches.iter().for_each(|watch| self.forget(*watch));
        !watches.is_empty()
    }

    fn at(&self, path: &str, which: WatcherType) -> impl Iterator<Item = WatchId> {
        use WatchKind::{Children, Data, Persistent, Recursive};
        let kinds = [Data, Children, Persistent, Recursive].into_iter();
        let path: Arc<str> = path.into();
        let keys = kinds.filter(move |kind| kind.is(which)).map(move |kind| (path.clone(), kind));
        keys.filter_map(|key| self.set.get(&key).copied())
    }
}
