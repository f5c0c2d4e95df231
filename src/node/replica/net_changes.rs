//! The events that watches get when a snapshot replaces the tree: the net changes between the two
//! trees.

use std::collections::BTreeMap;

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
    let path = path.to_owned();
    WatchEvent { kind, path, zxid, position, net: true, znode: None, before: None }
}

/// Compares two trees for the watches between them.
pub(in crate::node) struct Net<'a> {
    old: &'a Tree,
    new: &'a Tree,
    pub(in crate::node) events: Vec<(WatchId, WatchEvent)>,
    /// How many znodes were compared for recursive watches.
    visited: usize,
}

/// The recursive watches, by the paths of their roots.
pub(in crate::node) type Roots<'a> = BTreeMap<&'a str, Vec<WatchId>>;

impl<'a> Net<'a> {
    pub(in crate::node) fn new(old: &'a Tree, new: &'a Tree) -> Net<'a> {
        Net { old, new, events: Vec::new(), visited: 0 }
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

    /// The changes below the roots of recursive watches. Only the changed znodes are visited, and those that are
    /// gone: the whole tree may be large, and this runs on the node's thread.
    pub(in crate::node) fn subtrees(&mut self, roots: &Roots<'_>, changed: &[Znode]) {
        if roots.is_empty() {
            return;
        }
        let (old, new) = (self.old, self.new);
        for znode in changed {
            let path = znode.path();
            self.below_roots(roots, path);
            if !is_covered(roots, path) {
                continue;
            }
            // Both are sorted.
            let mut present = new.get(path).into_iter().flat_map(Znode::children).peekable();
            for name in old.get(path).into_iter().flat_map(Znode::children) {
                while present.next_if(|other| *other < name).is_some() {}
                if present.peek() != Some(&name) {
                    for (gone, _) in old.below(&path::join(path, name)) {
                        self.below_roots(roots, gone);
                    }
                }
            }
        }
    }

    /// Compares one znode for all recursive watches above it.
    fn below_roots(&mut self, roots: &Roots<'_>, path: &str) {
        let (old, new) = (self.old.get(path), self.new.get(path));
        self.visited += 1;
        for root in ancestors(path) {
            for id in roots.get(root).into_iter().flatten() {
                self.compare(*id, path, old, new, false);
            }
        }
    }
}

/// A path and all above it.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| path::parent(path))
}

/// Whether one of the roots is above a path, at it, or below it.
fn is_covered(roots: &Roots<'_>, path: &str) -> bool {
    if ancestors(path).any(|above| roots.contains_key(above)) {
        return true;
    }
    let below = path::join(path, "");
    roots.range(below.as_str()..).next().is_some_and(|(root, _)| root.starts_with(&below))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::machine::command::{Batch, Command, Op, Request};
    use crate::types::znode::{CreateMode, SessionId};

    /// Opens a session, and creates `/N` with `/N/M` below it for all these numbers.
    fn machine() -> Machine {
        let mut machine = Machine::new();
        let open = Command::Open { secret: [9; 16], timeout_ms: 1000, owner: 1, base: 0 };
        apply(&mut machine, open);
        for n in 0..20 {
            create(&mut machine, &format!("/{n}"));
            (0..50).for_each(|m| create(&mut machine, &format!("/{n}/{m}")));
        }
        machine
    }

    fn apply(machine: &mut Machine, command: Command) {
        let session = SessionId(7);
        let seq = machine.session(session).map_or(0, |record| record.last_seq + 1);
        let request = Request { session, holder: 1, seq, acked: seq, command };
        machine.apply(1, &Batch { time: 1000, requests: vec![request] });
    }

    fn create(machine: &mut Machine, path: &str) {
        let (path, mode) = (path.into(), CreateMode::Persistent);
        apply(machine, Command::Op(Op::Create { path, data: "".into(), mode }));
    }

    fn delete(machine: &mut Machine, path: &str) {
        apply(machine, Command::Op(Op::Delete { path: path.into(), version: None }));
    }

    /// Each recursive watch compared all znodes below it on the node's thread, which took seconds with a million
    /// of them, whatever had changed.
    #[test]
    fn a_recursive_watch_visits_only_what_has_changed() {
        let mut machine = machine();
        let old = machine.tree();
        let data = "new".into();
        apply(&mut machine, Command::Op(Op::Set { path: "/3/4".into(), data, version: None }));
        create(&mut machine, "/5/new");
        for m in 0..50 {
            delete(&mut machine, &format!("/7/{m}"));
        }
        delete(&mut machine, "/7");
        delete(&mut machine, "/9/1");
        create(&mut machine, "/9/1");
        let new = machine.tree();
        let roots = Roots::from([("/", vec![WatchId(1), WatchId(2)]), ("/7/8", vec![WatchId(3)])]);
        let mut net = Net::new(&old, &new);
        net.subtrees(&roots, &machine.take_changed(old.zxid()));
        let of = |id| net.events.iter().filter(move |(of, _)| *of == WatchId(id));
        let kinds = |path: &str| -> Vec<EventKind> {
            of(1).filter(|(_, event)| event.path == path).map(|(_, event)| event.kind).collect()
        };
        assert_eq!(kinds("/3/4"), [EventKind::DataChanged]);
        assert_eq!(kinds("/5/new"), [EventKind::Created]);
        assert_eq!(kinds("/7"), [EventKind::Deleted]);
        assert_eq!(kinds("/7/49"), [EventKind::Deleted]);
        assert_eq!(kinds("/9/1"), [EventKind::Deleted, EventKind::Created]);
        assert_eq!((of(1).count(), of(2).count(), of(3).count()), (55, 55, 1));
        // "/", "/3/4", "/5", "/5/new", "/9", "/9/1", and those that are gone.
        assert_eq!(net.visited, 6 + 51, "of {}", new.len());
        // The parent of what is gone may be above all roots.
        let roots = Roots::from([("/7", vec![WatchId(1)]), ("/8", vec![WatchId(2)])]);
        let mut net = Net::new(&old, &new);
        net.subtrees(&roots, &machine.take_changed(old.zxid()));
        let of = |id| net.events.iter().filter(move |(of, _)| *of == WatchId(id)).count();
        assert_eq!((of(1), of(2)), (51, 0));
    }
}
