//! Which watches are set at this replica, and which events each change gives them.
//!
//! ZooKeeper's rules (`DataTree`, `WatchManager`). For a change of `/p/c`:
//! - created: `Created` to the data watches of `/p/c`, then `ChildrenChanged` to the child watches of
//!   `/p`;
//! - set: `DataChanged` to the data watches of `/p/c`;
//! - deleted: `Deleted` to the data watches of `/p/c`, then to its child watches, then
//!   `ChildrenChanged` to the child watches of `/p`.
//!
//! Data watches are those of get and exists, the persistent and the recursive ones. Child watches are
//! those of children and the persistent ones. A persistent watch gets one event for a deletion. A
//! recursive watch matches its path and all paths below it, and never gets `ChildrenChanged`. Watches
//! of get, exists and children fire once.
//!
//! A session that may not read the znode (for `ChildrenChanged`: the parent) gets no event. A watch
//! that fires once is over all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::machine::command::{Change, ChangeKind};
use crate::machine::{Tree, Znode};
use crate::node::io::{Effects, WatchId};
use crate::node::replica::net_changes::{Net, Roots};
use crate::node::replica::notification::{
    MissedEvent, Notification, brought, of_parent, of_znode, seen_by,
};
use crate::node::replica::path_filter::PathFilter;
pub(crate) use crate::node::replica::watch_kind::{EventData, WatchKind};
use crate::types::acl::AccessList;
use crate::types::path;
use crate::types::watch::{EventKind, WATCH_CAPACITY, WatchEvent, WatchInfo, WatcherType};
use crate::types::znode::{SessionId, Zxid};

#[derive(Debug)]
struct Watcher {
    path: Arc<str>,
    kind: WatchKind,
    session: SessionId,
}

/// The watches of one path: mostly one.
#[derive(Debug)]
enum AtPath {
    One(WatchId, WatchKind),
    Many(BTreeMap<WatchId, WatchKind>),
}

impl AtPath {
    fn insert(&mut self, id: WatchId, kind: WatchKind) {
        match self {
            AtPath::One(first, of) => {
                *self = AtPath::Many(BTreeMap::from([(*first, *of), (id, kind)]));
            }
            AtPath::Many(many) => {
                many.insert(id, kind);
            }
        }
    }

    /// Returns whether none is left.
    fn remove(&mut self, id: WatchId) -> bool {
        match self {
            AtPath::One(..) => true,
            AtPath::Many(many) => {
                many.remove(&id);
                many.is_empty()
            }
        }
    }

    /// In the order of their ids.
    fn iter(&self) -> impl Iterator<Item = (WatchId, WatchKind)> {
        let (one, many) = match self {
            AtPath::One(id, kind) => (Some((*id, *kind)), None),
            AtPath::Many(many) => (None, Some(many)),
        };
        let many = many.into_iter().flatten().map(|(id, kind)| (*id, *kind));
        one.into_iter().chain(many)
    }
}

/// The result of some changes: the events in order, and the watches that are over after them.
#[derive(Debug, Default)]
pub(crate) struct Fired {
    pub(crate) events: Vec<(WatchId, WatchEvent)>,
    pub(crate) ended: Vec<WatchId>,
}

impl Fired {
    /// Adds them after the events that are already queued.
    pub(in crate::node) fn add_to(self, effects: &mut Effects) {
        effects.events.extend(self.events);
        effects.ended.extend(self.ended);
    }
}

#[derive(Debug, Default)]
pub(crate) struct WatchTable {
    watchers: BTreeMap<WatchId, Watcher>,
    by_path: BTreeMap<Arc<str>, AtPath>,
    /// A filter of the same paths. Most writes concern no watch, and cost one look-up here.
    paths: PathFilter,
    by_session: BTreeMap<SessionId, BTreeSet<WatchId>>,
    /// How many recursive watches there are. Without any, ancestors need no look-up.
    recursive: usize,
    /// Those whose events bring the znode.
    with_data: BTreeSet<WatchId>,
    /// Those of them whose events also bring the znode as it was before.
    with_data_before: BTreeSet<WatchId>,
}

impl WatchTable {
    pub(crate) fn len(&self) -> usize {
        self.watchers.len()
    }

    pub(crate) fn add(&mut self, id: WatchId, path: Arc<str>, kind: WatchKind, session: SessionId) {
        match self.by_path.get_mut(&path) {
            Some(at_path) => at_path.insert(id, kind),
            None => {
                self.paths.add(&path, self.by_path.keys().map(|path| &**path));
                self.by_path.insert(Arc::clone(&path), AtPath::One(id, kind));
            }
        }
        self.by_session.entry(session).or_default().insert(id);
        self.recursive += usize::from(kind == WatchKind::Recursive);
        self.watchers.insert(id, Watcher { path, kind, session });
    }

    /// Adds a persistent or recursive watch, which first reports past changes, oldest first: as many as
    /// its channel holds, and then a gap.
    pub(crate) fn add_with_past<'a>(
        &mut self,
        (id, path, kind): (WatchId, Arc<str>, WatchKind),
        session: SessionId,
        past: impl Iterator<Item = &'a Change>,
        may_read: impl Fn(Option<&AccessList>) -> bool,
        fired: &mut Fired,
    ) {
        let seen = past.filter_map(|change| seen_by(kind, &path, change));
        let mut seen = seen.filter(|notification| may_read(notification.acl));
        let events =
            seen.by_ref().take(WATCH_CAPACITY).map(|notification| (id, notification.event()));
        fired.events.extend(events);
        if let Some(left_out) = seen.next() {
            let gap = Notification { kind: EventKind::Gap, path: &path, acl: None, ..left_out };
            fired.events.push((id, gap.event()));
        }
        self.add(id, path, kind, session);
    }

    /// Adds a watch that was set at another member and has reported everything up to a zxid. It first
    /// reports the later changes, as far as they are `known`.
    pub(crate) fn add_again<'a>(
        &mut self,
        (id, path, kind): (WatchId, Arc<str>, WatchKind),
        session: SessionId,
        known: Option<impl Iterator<Item = &'a Change>>,
        (missed, data): (MissedEvent<'_>, EventData),
        may_read: impl Fn(Option<&AccessList>) -> bool,
        fired: &mut Fired,
    ) {
        if kind.fires_once() {
            let first = match known {
                Some(mut past) => {
                    let first = past.find_map(|change| seen_by(kind, &path, change));
                    first.map(|first| (first.event(), may_read(first.acl)))
                }
                None => missed.net(kind, &path).map(|event| {
                    let acl = missed.tree.get(&path).and_then(|znode| Some(&**znode.acl()?));
                    (event, may_read(acl))
                }),
            };
            let Some((event, is_readable)) = first else {
                return self.add(id, path, kind, session);
            };
            fired.events.extend(is_readable.then_some((id, event)));
            fired.ended.push(id);
            return;
        }
        let gap = match known {
            Some(past) if data == EventData::None => {
                return self.add_with_past((id, path, kind), session, past, may_read, fired);
            }
            // Only the result of the last of these changes is known.
            Some(mut past) => {
                let first = past.find_map(|change| seen_by(kind, &path, change));
                first.map(|first| (first.zxid, first.position))
            }
            // It has reported everything up to there. Later changes are not known.
            None if missed.from >= missed.tree.zxid() => Some((missed.from, u32::MAX)),
            None => Some((missed.from + 1, 0)),
        };
        if let Some((zxid, position)) = gap {
            let kind = EventKind::Gap;
            let gap = Notification { kind, path: &path, zxid, position, acl: None };
            fired.events.push((id, gap.event()));
        }
        self.add(id, path, kind, session);
        self.bring_data(id, data);
    }

    pub(crate) fn remove(&mut self, id: WatchId) {
        let Some(watcher) = self.watchers.remove(&id) else {
            return;
        };
        self.with_data.remove(&id);
        self.with_data_before.remove(&id);
        self.recursive -= usize::from(watcher.kind == WatchKind::Recursive);
        if self.by_path.get_mut(&watcher.path).is_some_and(|at_path| at_path.remove(id)) {
            self.by_path.remove(&watcher.path);
            self.paths.remove(&watcher.path);
        }
        if let Some(of_session) = self.by_session.get_mut(&watcher.session) {
            of_session.remove(&id);
            if of_session.is_empty() {
                self.by_session.remove(&watcher.session);
            }
        }
    }

    /// The watches after this one, by their numbers.
    pub(crate) fn infos_after(
        &self,
        after: Option<WatchId>,
    ) -> impl Iterator<Item = (WatchId, WatchInfo)> {
        let after = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.watchers.range(after).map(|(id, watcher)| {
            let (path, session) = ((*watcher.path).to_owned(), watcher.session);
            (*id, WatchInfo { path, kind: watcher.kind.of_type(), session })
        })
    }

    /// The events of this watch bring the znode, in these states.
    pub(crate) fn bring_data(&mut self, id: WatchId, data: EventData) {
        if data >= EventData::After {
            self.with_data.insert(id);
        }
        if data == EventData::Both {
            self.with_data_before.insert(id);
        }
    }

    /// Whether there is such a watch.
    pub(crate) fn bring_any_data(&self) -> bool {
        !self.with_data.is_empty()
    }

    /// Whether there is a watch whose events bring the znode as it was before.
    pub(crate) fn bring_any_before(&self) -> bool {
        !self.with_data_before.is_empty()
    }

    /// Adds the znodes to the events that bring them: as the tree has them, and as the tree `before` the
    /// write had them, which is needed only if [`WatchTable::bring_any_before`].
    pub(crate) fn add_data(
        &self,
        events: &mut [(WatchId, WatchEvent)],
        before: Option<&Tree>,
        tree: impl FnOnce() -> Tree,
        may_read: impl Fn(SessionId, Option<&AccessList>) -> bool,
    ) {
        if self.with_data.is_empty() {
            return;
        }
        let tree = tree();
        for (id, event) in events.iter_mut().filter(|(id, _)| self.with_data.contains(id)) {
            if event.kind == EventKind::Gap || event.kind.is_removal() {
                continue;
            }
            // Another operation of the same write may have revoked the permission.
            let reads = |znode: &&Znode| {
                let session = self.watchers.get(id).map(|watcher| watcher.session);
                session.is_some_and(|session| may_read(session, znode.acl().map(|acl| &**acl)))
            };
            event.znode = tree.get(&event.path).filter(reads).map(brought);
            // What is created was not there, though the write may have deleted another znode at its path.
            if event.kind != EventKind::Created && self.with_data_before.contains(id) {
                let znode = before.and_then(|tree| tree.get(&event.path)).filter(reads);
                event.before = znode.map(brought);
            }
        }
    }

    /// Removes the watches of one type that a session has at a path, here or as a client's. Their last
    /// event reports the removal. Returns `false` if there are none. They have reported everything up
    /// to `zxid`.
    pub(crate) fn remove_watches(
        &mut self,
        session: SessionId,
        path: &str,
        which: WatcherType,
        clients: bool,
        zxid: Zxid,
        fired: &mut Fired,
    ) -> bool {
        let ours = |(id, kind): &(WatchId, WatchKind)| {
            let of = self.watchers.get(id).is_some_and(|of| of.session == session);
            kind.is(which) && of && id.is_client() == clients
        };
        let at_path = self.by_path.get(path).into_iter().flat_map(AtPath::iter);
        let removed: Vec<_> = at_path.filter(ours).collect();
        for (id, kind) in &removed {
            let notification =
                Notification { kind: kind.removed(), path, zxid, position: u32::MAX, acl: None };
            fired.events.push((*id, notification.event()));
            if !planted!(RemovedWatchStays) {
                self.remove(*id);
                fired.ended.push(*id);
            }
        }
        !removed.is_empty()
    }

    /// Removes the watches of a session that has ended here.
    pub(crate) fn end_session(&mut self, session: SessionId) -> Vec<WatchId> {
        let all = self.by_session.get(&session).into_iter().flatten().copied();
        let ids: Vec<WatchId> = all.filter(|id| !id.is_client()).collect();
        for id in &ids {
            self.remove(*id);
        }
        ids
    }

    /// How many watches a session has here.
    pub(crate) fn count_of(&self, session: SessionId) -> usize {
        self.by_session.get(&session).map_or(0, BTreeSet::len)
    }

    /// The watches that clients have set for a session.
    pub(crate) fn clients_of(&self, session: SessionId) -> Vec<WatchId> {
        let all = self.by_session.get(&session).into_iter().flatten().copied();
        all.filter(|id| id.is_client()).collect()
    }

    /// Sends a change to the watches whose sessions `may_read` it, by the change's access list.
    pub(crate) fn fire(
        &mut self,
        change: &Change,
        may_read: impl Fn(SessionId, Option<&AccessList>) -> bool,
        fired: &mut Fired,
    ) {
        if self.watchers.is_empty() {
            return;
        }
        let path = &*change.path;
        let notification = of_znode(change);
        self.fire_at(path, WatchKind::is_data, notification, &may_read, fired);
        let mut above = (self.recursive > 0).then_some(path);
        while let Some(at) = above {
            self.fire_at(at, |kind| kind == WatchKind::Recursive, notification, &may_read, fired);
            above = path::parent(at);
        }
        if change.kind == ChangeKind::DataChanged {
            return;
        }
        let deleted = change.kind == ChangeKind::Deleted;
        if deleted {
            let is_of_children = |kind| kind == WatchKind::Children;
            self.fire_at(path, is_of_children, notification, &may_read, fired);
        }
        if let Some(parent) = path::parent(path) {
            let notification = of_parent(change, parent);
            self.fire_at(parent, WatchKind::is_child, notification, &may_read, fired);
        }
    }

    fn fire_at(
        &mut self,
        path: &str,
        matches: impl Fn(WatchKind) -> bool,
        notification: Notification<'_>,
        may_read: impl Fn(SessionId, Option<&AccessList>) -> bool,
        fired: &mut Fired,
    ) {
        if !self.paths.may_hold(path) {
            return;
        }
        let Some(watchers) = self.by_path.get(path) else {
            return;
        };
        let mut over = Vec::new();
        for (id, kind) in watchers.iter() {
            if matches(kind) {
                let may_see = |watcher: &Watcher| may_read(watcher.session, notification.acl);
                if self.watchers.get(&id).is_some_and(may_see) || planted!(EventsUnfiltered) {
                    fired.events.push((id, notification.event()));
                }
                if kind.fires_once() && !planted!(OneShotStays) {
                    over.push(id);
                }
            }
        }
        for id in over {
            self.remove(id);
            fired.ended.push(id);
        }
    }

    /// Sends each watch the net change of what it watches, oldest first, after a snapshot has replaced the
    /// tree. `changed`: see [`Tree::changed_since`].
    pub(crate) fn fire_net(
        &mut self,
        old: &Tree,
        new: &Tree,
        changed: &[Znode],
        may_read: impl Fn(SessionId, Option<&AccessList>) -> bool,
        fired: &mut Fired,
    ) {
        let (mut net, mut roots) = (Net::new(old, new), Roots::new());
        for (path, watchers) in &self.by_path {
            for (id, kind) in watchers.iter() {
                match kind {
                    WatchKind::Data => net.node(id, path, true),
                    WatchKind::Children => net.children(id, path, true),
                    WatchKind::Persistent => {
                        net.node(id, path, false);
                        net.children(id, path, false);
                    }
                    WatchKind::Recursive => roots.entry(path).or_default().push(id),
                }
            }
        }
        net.subtrees(&roots, changed);
        let mut events = net.events;
        events.sort_by_key(|(_, event)| (event.zxid, event.position));
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

#[cfg(test)]
mod tests {
    use super::*;
    use EventKind::{ChildrenChanged, Created, DataChanged, Deleted};

    const S: SessionId = SessionId(7);

    fn fire(table: &mut WatchTable, kind: ChangeKind, path: &str) -> Vec<(u64, EventKind, String)> {
        let mut fired = Fired::default();
        let (path, acl, parent_acl) = (path.into(), None, None);
        let change = Change { zxid: 9, kind, path, position: 0, acl, parent_acl };
        table.fire(&change, |_, _| true, &mut fired);
        assert!(fired.events.iter().all(|(_, event)| event.zxid == 9 && !event.net));
        fired.events.into_iter().map(|(id, event)| (id.0, event.kind, event.path)).collect()
    }

    fn table(watches: &[(u64, &str, WatchKind)]) -> WatchTable {
        let mut table = WatchTable::default();
        for (id, path, kind) in watches {
            table.add(WatchId(*id), (*path).into(), *kind, S);
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
    fn child_watches_get_events_of_children_and_of_their_own_end() {
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
    fn persistent_watches_stay_and_get_one_event_for_a_deletion() {
        let mut table = table(&[(1, "/a", WatchKind::Persistent)]);
        let events: Vec<_> = [
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
        assert_eq!(events, expected.map(|kind| (kind, "/a".to_owned())));
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

    fn changes(of: &[(ChangeKind, &str)]) -> Vec<Change> {
        let change = |((kind, path), zxid): (&(ChangeKind, &str), Zxid)| Change {
            zxid,
            kind: *kind,
            path: (*path).into(),
            position: 0,
            acl: None,
            parent_acl: None,
        };
        of.iter().zip(1..).map(change).collect()
    }

    /// A live watch and one that begins in the past report the same events.
    #[test]
    fn past_events_are_those_of_a_live_watch() {
        let paths = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/b", "/a/bb"];
        let kinds = [ChangeKind::Created, ChangeKind::DataChanged, ChangeKind::Deleted];
        let all: Vec<_> =
            kinds.iter().flat_map(|kind| paths.iter().map(|path| (*kind, *path))).collect();
        let changes = changes(&all);
        for path in paths {
            for kind in [WatchKind::Persistent, WatchKind::Recursive] {
                let (mut live, mut past) = (Fired::default(), Fired::default());
                let mut watches = table(&[(1, path, kind)]);
                changes.iter().for_each(|change| watches.fire(change, |_, _| true, &mut live));
                let mut later = WatchTable::default();
                let watch = (WatchId(1), path.into(), kind);
                later.add_with_past(watch, S, changes.iter(), |_| true, &mut past);
                assert_eq!(live.events, past.events, "{kind:?} {path}");
                assert!(!past.events.is_empty());
                assert_eq!(later.len(), 1);
            }
        }
    }

    #[test]
    fn a_past_that_is_too_long_ends_in_a_gap() {
        let set = (ChangeKind::DataChanged, "/a");
        for (count, gap) in [(WATCH_CAPACITY, false), (WATCH_CAPACITY + 1, true), (5000, true)] {
            let mut changes = changes(&vec![set; count]);
            let (kind, path) = (ChangeKind::Created, "/b".into());
            let (acl, parent_acl) = (None, None);
            changes.push(Change { zxid: 9999, kind, path, position: 0, acl, parent_acl });
            let mut fired = Fired::default();
            let watch = (WatchId(1), "/a".into(), WatchKind::Persistent);
            WatchTable::default().add_with_past(watch, S, changes.iter(), |_| true, &mut fired);
            let (seen, after) = fired.events.split_at(WATCH_CAPACITY);
            assert!(seen.iter().zip(1..).all(|((_, event), zxid)| event.zxid == zxid));
            let after: Vec<_> = after.iter().map(|(_, event)| (event.kind, event.zxid)).collect();
            let expected = gap.then_some((EventKind::Gap, WATCH_CAPACITY as Zxid + 1));
            assert_eq!(after, expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn watches_are_removed_by_type_path_and_session() {
        use EventKind::{ChildWatchRemoved, DataWatchRemoved, PersistentWatchRemoved};
        let of = |which, expected: &[(u64, EventKind)]| {
            let mut watches = table(&[
                (1, "/a", WatchKind::Data),
                (2, "/a", WatchKind::Children),
                (3, "/a", WatchKind::Persistent),
                (4, "/a", WatchKind::Recursive),
                (5, "/a", WatchKind::Data),
                (6, "/a/b", WatchKind::Data),
            ]);
            for (id, kind) in [(7, WatchKind::Data), (8, WatchKind::Recursive)] {
                watches.add(WatchId(id), "/a".into(), kind, SessionId(99));
            }
            let mut fired = Fired::default();
            assert!(watches.remove_watches(S, "/a", which, false, 50, &mut fired));
            let seen = |(id, event): &(WatchId, WatchEvent)| {
                assert_eq!((event.path.as_str(), event.zxid), ("/a", 50));
                (id.0, event.kind)
            };
            assert_eq!(fired.events.iter().map(seen).collect::<Vec<_>>(), expected);
            let ended: Vec<_> = expected.iter().map(|(id, _)| WatchId(*id)).collect();
            assert_eq!(fired.ended, ended);
            assert_eq!(watches.len(), 8 - expected.len());
            assert!(!watches.remove_watches(S, "/a", which, false, 50, &mut fired), "{which:?}");
            let events = fire(&mut watches, ChangeKind::Deleted, "/a");
            let gone = |id: &u64| expected.iter().any(|(removed, _)| removed == id);
            assert!(!events.iter().any(|(id, ..)| gone(id)));
            assert!(events.iter().any(|(id, ..)| *id == 8));
        };
        let (data, child, persistent) =
            (DataWatchRemoved, ChildWatchRemoved, PersistentWatchRemoved);
        of(WatcherType::Data, &[(1, data), (5, data)]);
        of(WatcherType::Children, &[(2, child)]);
        of(WatcherType::Persistent, &[(3, persistent)]);
        of(WatcherType::PersistentRecursive, &[(4, persistent)]);
        let any = [(1, data), (2, child), (3, persistent), (4, persistent), (5, data)];
        of(WatcherType::Any, &any);
    }

    #[test]
    fn many_watches_of_one_path_come_and_go() {
        let mut watches = WatchTable::default();
        for id in 0..100 {
            watches.add(WatchId(id), "/a".into(), WatchKind::Persistent, S);
        }
        assert_eq!(fire(&mut watches, ChangeKind::DataChanged, "/a").len(), 100);
        for id in (0..100).filter(|id| id % 3 != 0) {
            watches.remove(WatchId(id));
        }
        let events = fire(&mut watches, ChangeKind::DataChanged, "/a");
        let ids: Vec<u64> = events.into_iter().map(|(id, ..)| id).collect();
        assert_eq!(ids, (0..100).step_by(3).collect::<Vec<_>>());
        assert_eq!(watches.end_session(S).len(), 34);
        assert!(watches.by_path.is_empty() && watches.watchers.is_empty());
    }

    /// As its client moves to another member.
    #[test]
    fn a_one_shot_watch_that_is_set_again_shows_nothing_that_its_session_may_not_read() {
        let (kind, path) = (ChangeKind::DataChanged, "/a".into());
        let change = Change { zxid: 9, kind, path, position: 0, acl: None, parent_acl: None };
        let tree = Tree::excerpt(9, []);
        for may_read in [false, true] {
            let (mut watches, mut fired) = (WatchTable::default(), Fired::default());
            let new = (WatchId(1), "/a".into(), WatchKind::Data);
            let missed = MissedEvent { tree: &tree, from: 8, existed: true };
            let known = Some(std::iter::once(&change));
            watches.add_again(new, S, known, (missed, EventData::None), |_| may_read, &mut fired);
            assert_eq!(fired.events.len(), usize::from(may_read));
            assert_eq!(fired.ended, [WatchId(1)], "it has fired");
        }
    }
}
