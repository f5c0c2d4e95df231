//! Which watches this node's users have set, and what each is told of a change.
//!
//! ZooKeeper's rules (`DataTree`, `WatchManager`). For a change of `/p/c`:
//! - created: `Created` to the data watches of `/p/c`, then `ChildrenChanged`
//!   to the child watches of `/p`;
//! - set: `DataChanged` to the data watches of `/p/c`;
//! - deleted: `Deleted` to the data watches of `/p/c`, then to its child
//!   watches, then `ChildrenChanged` to the child watches of `/p`.
//!
//! Data watches are those of get and exists, the persistent and the recursive
//! ones; child watches are those of children and the persistent ones. A
//! persistent watch hears of a deletion once. A recursive watch matches its
//! path and all below it and never hears `ChildrenChanged`. Watches of get,
//! exists and children fire once.
//!
//! A session that may not read the znode (of `ChildrenChanged`: the parent) is
//! not told; a watch that fires once is over all the same.

use std::collections::{BTreeMap, BTreeSet};

use crate::acl::AccessList;
use crate::machine::command::{Change, ChangeKind};
use crate::machine::{Tree, Znode};
use crate::node::io::WatchId;
use crate::path;
use crate::planted::{Bug, planted};
use crate::watch::{EventKind, WatchEvent};
use crate::znode::{SessionId, Zxid};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchKind {
    /// Of get and exists.
    Data,
    /// Of children.
    Children,
    Persistent,
    Recursive,
}

impl WatchKind {
    fn fires_once(self) -> bool {
        matches!(self, WatchKind::Data | WatchKind::Children)
    }

    fn is_data(self) -> bool {
        matches!(self, WatchKind::Data | WatchKind::Persistent)
    }

    fn is_child(self) -> bool {
        matches!(self, WatchKind::Children | WatchKind::Persistent)
    }
}

#[derive(Debug)]
struct Watcher {
    path: String,
    kind: WatchKind,
    session: SessionId,
}

/// What a round of changes came to: the events in order, and the watches that are over after them.
#[derive(Debug, Default)]
pub(crate) struct Fired {
    pub(crate) events: Vec<(WatchId, WatchEvent)>,
    pub(crate) ended: Vec<WatchId>,
}

#[derive(Debug, Default)]
pub(crate) struct WatchTable {
    watchers: BTreeMap<WatchId, Watcher>,
    by_path: BTreeMap<String, BTreeMap<WatchId, WatchKind>>,
    by_session: BTreeMap<SessionId, BTreeSet<WatchId>>,
    /// How many recursive watches there are: without any, no ancestor needs a look.
    recursive: usize,
}

impl WatchTable {
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.watchers.len()
    }

    pub(crate) fn add(&mut self, id: WatchId, path: &str, kind: WatchKind, session: SessionId) {
        self.by_path.entry(path.to_owned()).or_default().insert(id, kind);
        self.by_session.entry(session).or_default().insert(id);
        self.recursive += usize::from(kind == WatchKind::Recursive);
        self.watchers.insert(id, Watcher { path: path.to_owned(), kind, session });
    }

    pub(crate) fn remove(&mut self, id: WatchId) {
        let Some(watcher) = self.watchers.remove(&id) else {
            return;
        };
        self.recursive -= usize::from(watcher.kind == WatchKind::Recursive);
        if let Some(at_path) = self.by_path.get_mut(&watcher.path) {
            at_path.remove(&id);
            if at_path.is_empty() {
                self.by_path.remove(&watcher.path);
            }
        }
        if let Some(of_session) = self.by_session.get_mut(&watcher.session) {
            of_session.remove(&id);
            if of_session.is_empty() {
                self.by_session.remove(&watcher.session);
            }
        }
    }

    /// Removes the watches of a session that is over.
    pub(crate) fn end_session(&mut self, session: SessionId) -> Vec<WatchId> {
        let ids: Vec<WatchId> =
            self.by_session.get(&session).into_iter().flatten().copied().collect();
        for id in &ids {
            self.remove(*id);
        }
        ids
    }

    /// Tells of a change those who `may_read` it, by the access list that it comes with.
    pub(crate) fn fire(
        &mut self,
        change: &Change,
        may_read: impl Fn(SessionId, Option<&AccessList>) -> bool,
        fired: &mut Fired,
    ) {
        if self.watchers.is_empty() {
            return;
        }
        let event = |kind, path: &str| WatchEvent {
            kind,
            path: path.to_owned(),
            zxid: change.zxid,
            net: false,
        };
        let path = change.path.as_str();
        let hears = |session| may_read(session, change.acl.as_deref());
        match change.kind {
            ChangeKind::Created => {
                self.fire_data(event(EventKind::Created, path), hears, fired);
            }
            ChangeKind::DataChanged => {
                self.fire_data(event(EventKind::DataChanged, path), hears, fired);
                return;
            }
            ChangeKind::Deleted => {
                self.fire_data(event(EventKind::Deleted, path), hears, fired);
                let told = |kind: WatchKind| kind == WatchKind::Children;
                self.fire_at(path, told, &event(EventKind::Deleted, path), hears, fired);
                if planted(Bug::EventLostOnDelete) {
                    return;
                }
            }
        }
        if let Some(parent) = path::parent(path) {
            let event = event(EventKind::ChildrenChanged, parent);
            let hears = |session| may_read(session, change.parent_acl.as_deref());
            self.fire_at(parent, WatchKind::is_child, &event, hears, fired);
        }
    }

    /// To the data watches of the path, and the recursive ones of it and of all above it.
    fn fire_data(
        &mut self,
        event: WatchEvent,
        hears: impl Fn(SessionId) -> bool + Copy,
        fired: &mut Fired,
    ) {
        self.fire_at(&event.path, WatchKind::is_data, &event, hears, fired);
        if self.recursive == 0 {
            return;
        }
        let mut at = Some(event.path.as_str());
        while let Some(path) = at {
            self.fire_at(path, |kind| kind == WatchKind::Recursive, &event, hears, fired);
            at = path::parent(path);
        }
    }

    fn fire_at(
        &mut self,
        path: &str,
        matches: impl Fn(WatchKind) -> bool,
        event: &WatchEvent,
        hears: impl Fn(SessionId) -> bool,
        fired: &mut Fired,
    ) {
        let Some(watchers) = self.by_path.get(path) else {
            return;
        };
        let mut over = Vec::new();
        for (id, kind) in watchers {
            if matches(*kind) {
                if self.watchers.get(id).is_some_and(|watcher| hears(watcher.session)) {
                    fired.events.push((*id, event.clone()));
                }
                if planted(Bug::EventTwice) {
                    fired.events.push((*id, event.clone()));
                }
                if kind.fires_once() && !planted(Bug::OneShotStays) {
                    over.push(*id);
                }
            }
        }
        for id in over {
            self.remove(id);
            fired.ended.push(id);
        }
    }

    /// After a snapshot took the place of the tree: tells each watch the net change of what it
    /// watches, oldest first.
    pub(crate) fn fire_net(
        &mut self,
        old: &Tree,
        new: &Tree,
        may_read: impl Fn(SessionId, Option<&AccessList>) -> bool,
        fired: &mut Fired,
    ) {
        if planted(Bug::EventsLostAtSnapshot) {
            return;
        }
        let mut net = Net { old, new, events: Vec::new() };
        for (path, watchers) in &self.by_path {
            for (id, kind) in watchers {
                match kind {
                    WatchKind::Data => net.node(*id, path, true),
                    WatchKind::Children => net.children(*id, path, true),
                    WatchKind::Persistent => {
                        net.node(*id, path, false);
                        net.children(*id, path, false);
                    }
                    WatchKind::Recursive => net.subtree(*id, path),
                }
            }
        }
        let mut events = net.events;
        events.sort_by_key(|(_, event)| event.zxid);
        let mut once = BTreeSet::new();
        for (id, event) in events {
            let Some(watcher) = self.watchers.get(&id) else {
                continue;
            };
            if watcher.kind.fires_once() && !once.insert(id) {
                continue;
            }
            let znode = new.get(&event.path).or_else(|| old.get(&event.path));
            if may_read(watcher.session, znode.and_then(|znode| Some(&**znode.acl()?))) {
                fired.events.push((id, event));
            }
        }
        for id in once {
            self.remove(id);
            fired.ended.push(id);
        }
    }
}

/// Compares two trees for the watches between them.
struct Net<'a> {
    old: &'a Tree,
    new: &'a Tree,
    events: Vec<(WatchId, WatchEvent)>,
}

impl Net<'_> {
    fn push(&mut self, id: WatchId, kind: EventKind, path: &str, zxid: Zxid) {
        let event = WatchEvent { kind, path: path.to_owned(), zxid, net: true };
        self.events.push((id, event));
    }

    fn node(&mut self, id: WatchId, path: &str, once: bool) {
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
            (None, None) => {}
            (None, Some(new)) => self.push(id, EventKind::Created, path, new.czxid),
            // When exactly it went is not known any more: some time up to now.
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
            (Some(_), Some(_)) => {}
        }
    }

    fn children(&mut self, id: WatchId, path: &str, once: bool) {
        match (self.old.get(path).map(Znode::stat), self.new.get(path).map(Znode::stat)) {
            (Some(_), None) if once => self.push(id, EventKind::Deleted, path, self.new.zxid()),
            (Some(old), Some(new)) if old.pzxid != new.pzxid => {
                self.push(id, EventKind::ChildrenChanged, path, new.pzxid);
            }
            _ => {}
        }
    }

    fn subtree(&mut self, id: WatchId, root: &str) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use EventKind::{ChildrenChanged, Created, DataChanged, Deleted};

    const S: SessionId = SessionId(7);

    fn fire(table: &mut WatchTable, kind: ChangeKind, path: &str) -> Vec<(u64, EventKind, String)> {
        let mut fired = Fired::default();
        let (path, acl, parent_acl) = (path.to_owned(), None, None);
        let change = Change { zxid: 9, kind, path, acl, parent_acl };
        table.fire(&change, |_, _| true, &mut fired);
        assert!(fired.events.iter().all(|(_, event)| event.zxid == 9 && !event.net));
        fired.events.into_iter().map(|(id, event)| (id.0, event.kind, event.path)).collect()
    }

    fn table(watches: &[(u64, &str, WatchKind)]) -> WatchTable {
        let mut table = WatchTable::default();
        for (id, path, kind) in watches {
            table.add(WatchId(*id), path, *kind, S);
        }
        table
    }

    #[test]
    fn one_shot_watches_fire_once() {
        let mut table = table(&[(1, "/a", WatchKind::Data)]);
        let changed = fire(&mut table, ChangeKind::DataChanged, "/a");
        assert_eq!(changed, [(1, DataChanged, "/a".to_owned())]);
        assert_eq!(fire(&mut table, ChangeKind::DataChanged, "/a"), []);
        assert!(table.by_path.is_empty() && table.by_session.is_empty());
    }

    #[test]
    fn child_watches_hear_of_children_and_of_their_own_end() {
        let mut watches = table(&[(1, "/a", WatchKind::Children)]);
        assert_eq!(fire(&mut watches, ChangeKind::DataChanged, "/a"), []);
        assert_eq!(fire(&mut watches, ChangeKind::Created, "/a/b/c"), []);
        let created = fire(&mut watches, ChangeKind::Created, "/a/b");
        assert_eq!(created, [(1, ChildrenChanged, "/a".to_owned())]);
        let mut watches = table(&[(1, "/a", WatchKind::Children)]);
        let deleted = fire(&mut watches, ChangeKind::Deleted, "/a");
        assert_eq!(deleted, [(1, Deleted, "/a".to_owned())]);
    }

    #[test]
    fn persistent_watches_stay_and_hear_a_deletion_once() {
        let mut table = table(&[(1, "/a", WatchKind::Persistent)]);
        let heard: Vec<_> = [
            (ChangeKind::Created, "/a"),
            (ChangeKind::DataChanged, "/a"),
            (ChangeKind::Created, "/a/b"),
            (ChangeKind::DataChanged, "/a/b"),
            (ChangeKind::Deleted, "/a/b"),
            (ChangeKind::Deleted, "/a"),
            (ChangeKind::Created, "/a"),
        ]
        .into_iter()
        .flat_map(|(kind, path)| fire(&mut table, kind, path))
        .map(|(_, kind, path)| (kind, path))
        .collect();
        let expected = [Created, DataChanged, ChildrenChanged, ChildrenChanged, Deleted, Created];
        assert_eq!(heard, expected.map(|kind| (kind, "/a".to_owned())));
    }

    #[test]
    fn recursive_watches_hear_all_below_but_no_children_changed() {
        let mut table = table(&[(1, "/a", WatchKind::Recursive), (2, "/", WatchKind::Recursive)]);
        let created = fire(&mut table, ChangeKind::Created, "/a/b/c");
        let path = "/a/b/c".to_owned();
        assert_eq!(created, [(1, Created, path.clone()), (2, Created, path)]);
        assert_eq!(fire(&mut table, ChangeKind::DataChanged, "/ab").len(), 1);
    }

    #[test]
    fn removal_and_the_end_of_a_session() {
        let mut table = table(&[(1, "/a", WatchKind::Data), (2, "/a", WatchKind::Recursive)]);
        table.remove(WatchId(1));
        assert_eq!(table.end_session(S), [WatchId(2)]);
        assert_eq!(fire(&mut table, ChangeKind::Created, "/a"), []);
        assert_eq!(table.recursive, 0);
    }
}
