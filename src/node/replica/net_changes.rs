//! The events that watches get when a snapshot replaces the tree: the net changes between the two
//! trees.

use std::collections::BTreeSet;

use crate::machine::{Tree, Znode};
use crate::node::io::WatchId;
use crate::types::path;
use crate::types::watch::{EventKind, WatchEvent};
use crate::types::znode::Zxid;

/// A net change. Its place within its write is not known: deletions come first, so that a znode
/// that was deleted and created again is reported in that order, and changes of children last.
pub(in crate::node) fn net_event(kind: EventKind, path: &str, zxid: Zxid) -> WatchEvent {
    let position = match kind {
        EventKind::Deleted => 0,
        EventKind::ChildrenChanged => 2,
        _ => 1,
    };
    WatchEvent { kind, path: path.to_owned(), zxid, position, net: true, znode: None }
}

/// Compares two trees for the watches between them.
pub(in crate::node) struct Net<'a> {
    old: &'a Tree,
    new: &'a Tree,
    pub(in crate::node) events: Vec<(WatchId, WatchEvent)>,
}

impl<'a> Net<'a> {
    pub(in crate::node) fn new(old: &'a Tree, new: &'a Tree) -> Net<'a> {
        Net { old, new, events: Vec::new() }
    }

    fn push(&mut self, id: WatchId, kind: EventKind, path: &str, zxid: Zxid) {
        self.events.push((id, net_event(kind, path, zxid)));
    }

    pub(in crate::node) fn node(&mut self, id: WatchId, path: &str, once: bool) {
        let (old, new) = (self.old.get(path), self.new.get(path));
        self.compare(id, path, old, new, once);
    }

    fn compare(
        &mut self,
        id: WatchId,
        path: &str,
        old: Option<&Znode>,
        new: Option<&Znode>,
        once: bool,
    ) {
        match (old.map(Znode::stat), new.map(Znode::stat)) {
            (None, Some(new)) => self.push(id, EventKind::Created, path, new.czxid),
            // The zxid of the deletion is not known: the present one is the latest possible.
            (Some(_), None) => self.push(id, EventKind::Deleted, path, self.new.zxid()),
            (Some(old), Some(new)) if old.czxid != new.czxid => {
                if once {
                    self.push(id, EventKind::DataChanged, path, new.mzxid);
                } else {
                    self.push(id, EventKind::Deleted, path, new.czxid);
                    self.push(id, EventKind::Created, path, new.czxid);
                }
            }
            (Some(old), Some(new)) if old.mzxid != new.mzxid => {
                self.push(id, EventKind::DataChanged, path, new.mzxid);
            }
            _ => {}
        }
    }

    pub(in crate::node) fn children(&mut self, id: WatchId, path: &str, once: bool) {
        match (self.old.get(path).map(Znode::stat), self.new.get(path).map(Znode::stat)) {
            (Some(_), None) if once => self.push(id, EventKind::Deleted, path, self.new.zxid()),
            (Some(old), Some(new)) if old.pzxid != new.pzxid => {
                self.push(id, EventKind::ChildrenChanged, path, new.pzxid);
            }
            _ => {}
        }
    }

    pub(in crate::node) fn subtree(&mut self, id: WatchId, root: &str) {
        let mut open = vec![root.to_owned()];
        while let Some(path) = open.pop() {
            let (old, new) = (self.old.get(&path), self.new.get(&path));
            self.compare(id, &path, old, new, false);
            let mut names: BTreeSet<&str> = BTreeSet::new();
            names.extend(old.into_iter().flat_map(Znode::children));
            names.extend(new.into_iter().flat_map(Znode::children));
            open.extend(names.into_iter().map(|name| path::join(&path, name)));
        }
    }
}
