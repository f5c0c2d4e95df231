//! The changes below a path, each with the znode before and after it.
//!
//! Every instance has the whole tree, so a snapshot already serves as the cache that other systems
//! have to build. What remains is to report the changes from one snapshot to the next. This module
//! compares the two. It does not derive changes from events: events only show where to look and
//! when. After a gap, or when this replica has caught up by a snapshot of Raft, it compares
//! everything.
//!
//! Two snapshots are compared at the paths of all events up to the zxid of the later one; these
//! events are in the channel once that snapshot can be read. An early event, of a write that the
//! snapshot does not show yet, is kept for the next snapshot.
//!
//! Events may have been dropped although their gap is not in the channel yet, since the gap is sent
//! after the tree that shows their changes. In that case the channel was full, and only the gap can
//! follow. So if as many events as the channel holds were taken since it was last seen empty,
//! everything is compared, too. From then on until the next event, every look compares everything,
//! since a look may come between the tree and the gap. Otherwise, without an event, nothing is
//! compared, and the view stays.
//!
//! Source: Curator, `CuratorCache`, which reads everything again at every reconnect, and does not
//! notice that a znode was deleted and created again in between.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::api::watch::Watch;
use crate::recipes::waiting::next_event;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::watch::{EventKind, WatchEvent, WatchMode};
use crate::types::znode::{Stat, Zxid};

/// A znode before or after a [`Change`].
///
/// ```
/// use quorate::{CreateMode, recipes::{Cache, Change}, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let mut cache = Cache::new(&session, "/shop").wait()?;
/// session.create("/shop", b"open", CreateMode::Persistent).wait()?;
/// let Change::Added { new, .. } = &cache.recv().wait()?[0] else { panic!() };
/// assert_eq!((&new.data[..], new.stat.version), (&b"open"[..], 0));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its data.
    pub data: Arc<[u8]>,
    /// Its stat.
    pub stat: Stat,
}

/// A change below the path of a [`Cache`].
///
/// ```
/// use quorate::{CreateMode, recipes::{Cache, Change}, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let mut cache = Cache::new(&session, "/shop").wait()?;
/// session.create("/shop", b"1", CreateMode::Persistent).wait()?;
/// session.set("/shop", b"2").wait()?;
/// cache.recv().wait()?;
/// session.delete("/shop").wait()?;
/// let changes = cache.recv().wait()?;
/// let [Change::Removed { path, old, .. }] = &changes[..] else { panic!("{changes:?}") };
/// assert_eq!((&path[..], &old.data[..]), ("/shop", &b"2"[..]));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A znode was created.
    Added {
        /// The last write that set its data.
        zxid: Zxid,
        /// Its path.
        path: String,
        /// The new znode.
        new: Entry,
    },
    /// A znode's data was set, possibly to the same value.
    Changed {
        /// The last write that set it.
        zxid: Zxid,
        /// Its path.
        path: String,
        /// The znode before.
        old: Entry,
        /// The znode after.
        new: Entry,
    },
    /// A znode was deleted. If another znode exists at its path by now, a [`Change::Added`]
    /// follows.
    Removed {
        /// The write that deleted it. If that is not known, as after a gap, a later write by which
        /// it had certainly been deleted.
        zxid: Zxid,
        /// Its path.
        path: String,
        /// The znode before.
        old: Entry,
    },
}

impl Change {
    /// The zxid of the write that made the change: see the variants.
    pub fn zxid(&self) -> Zxid {
        match self {
            Change::Added { zxid, .. }
            | Change::Changed { zxid, .. }
            | Change::Removed { zxid, .. } => *zxid,
        }
    }

    /// The znode's path.
    pub fn path(&self) -> &str {
        match self {
            Change::Added { path, .. }
            | Change::Changed { path, .. }
            | Change::Removed { path, .. } => path,
        }
    }

    /// The order of changes: by zxid; within one write, first removals, children before parents,
    /// and then the others, parents first.
    fn order(&self) -> impl Ord + use<> {
        let path = self.path().to_owned();
        let (removed, added) = match self {
            Change::Removed { .. } => (Some(Reverse(path)), None),
            Change::Added { .. } | Change::Changed { .. } => (None, Some(path)),
        };
        (self.zxid(), added.is_some(), removed, added)
    }
}

/// Follows a znode and everything below it: shows the present state, and reports each change.
///
/// [`Cache::view`] shows all of it at one zxid. Each [`Cache::recv`] advances the view and returns
/// the changes that lead exactly from the former view to it, in the order of their writes. A reader
/// that keeps up sees every write. For a slower one, several changes of a znode become one; a
/// deletion and a creation stay two. No removal is ever missed, even if events were dropped or this
/// replica has caught up by a snapshot.
///
/// It costs the cluster nothing. In memory it holds only the znodes that have changed since its
/// view, as a [`Snapshot`] does; at most [`Watch::CAPACITY`](crate::Watch::CAPACITY) events wait for
/// a reader.
///
/// Znodes that the session may not read are not shown. A change of an ACL alone is not reported;
/// its effect shows with the next change.
///
/// ```
/// use quorate::{CreateMode, recipes::{Cache, Change}, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let (here, there) = (cluster.node(0).session(), cluster.node(1).session());
/// here.create("/shop", b"", CreateMode::Persistent).wait()?;
/// there.sync().wait()?;
/// let mut cache = Cache::new(&there, "/shop").wait()?;
/// assert_eq!(cache.view().all_children_number("/shop")?, 0);
///
/// here.create("/shop/apples", b"3", CreateMode::Persistent).wait()?;
/// let changes = cache.recv().wait()?;
/// assert!(matches!(&changes[..], [Change::Added { path, .. }] if path == "/shop/apples"));
/// assert_eq!(&cache.view().get("/shop/apples")?.0[..], b"3");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct Cache {
    session: Session,
    path: String,
    watch: Watch,
    view: Snapshot,
    /// The paths at which a later snapshot may differ from the view, by the events that were taken.
    changed_paths: ChangedPaths,
    /// An event of a write that the view does not show.
    early: Option<WatchEvent>,
}

/// The paths at which two snapshots may differ.
#[derive(Debug, Default)]
struct ChangedPaths {
    everywhere: bool,
    paths: BTreeSet<String>,
    /// The zxid of the last deletion at each path.
    deleted: BTreeMap<String, Zxid>,
}

impl Cache {
    /// Follows the znode at this path and everything below it, whether or not it exists yet. Waits until the
    /// session's earlier calls have been answered.
    ///
    /// # Errors
    /// As [`Session::watch`].
    pub fn new<'a>(session: &'a Session, path: &'a str) -> Pending<'a, Cache> {
        session.steps("cache", path, Cache::follow(session, path))
    }

    async fn follow(session: &Session, path: &str) -> Result<Cache> {
        let watch = session.watch(path, WatchMode::PersistentRecursive).await?;
        let view = session.in_turn().snapshot_of(path).await?;
        let (session, path) = (session.clone(), path.to_owned());
        let changed_paths = ChangedPaths::default();
        Ok(Cache { session, path, watch, view, changed_paths, early: None })
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The tree as of the last changes returned; at first, as of the cache's creation. It is the
    /// whole tree, although changes are reported only at and below the path.
    pub fn view(&self) -> &Snapshot {
        &self.view
    }

    /// Takes the events of the writes that this snapshot shows, all of which are in the channel by
    /// now. `false` if there is a gap and the snapshot is too old: only a later snapshot shows the
    /// changes whose events were dropped. The events taken are kept even if reading that later
    /// snapshot fails or is cancelled.
    fn take_events(&mut self, fresh: &Snapshot) -> bool {
        while let Some(event) = self.early.take().or_else(|| self.take()) {
            let changed_paths = &mut self.changed_paths;
            if event.kind == EventKind::Gap {
                *changed_paths = ChangedPaths { everywhere: true, ..ChangedPaths::default() };
                return false;
            }
            if event.zxid > fresh.zxid() {
                self.early = Some(event);
                break;
            }
            changed_paths.everywhere |= event.net;
            if event.kind == EventKind::Deleted {
                changed_paths.deleted.insert(event.path.clone(), event.zxid);
            }
            changed_paths.paths.insert(event.path);
        }
        true
    }

    /// Advances the view to a snapshot whose events have been taken, and returns the changes.
    fn advance(&mut self, fresh: Snapshot) -> Vec<Change> {
        let mut changed_paths = std::mem::take(&mut self.changed_paths);
        if !changed_paths.everywhere && changed_paths.paths.is_empty() {
            return Vec::new();
        }
        if changed_paths.everywhere {
            changed_paths.paths = paths(&self.view, &self.path);
            changed_paths.paths.extend(paths(&fresh, &self.path));
        }
        let mut changes = Vec::new();
        for path in &changed_paths.paths {
            let (old, new) = (entry(&self.view, path), entry(&fresh, path));
            let deleted = changed_paths.deleted.get(path).copied();
            compare(path, old, new, deleted.unwrap_or(fresh.zxid()), &mut changes);
        }
        changes.sort_by_cached_key(Change::order);
        self.view = fresh;
        changes
    }

    fn take(&mut self) -> Option<WatchEvent> {
        self.watch.events().try_recv().ok()
    }

    /// Returns the changes since the last call, and advances the view; empty if there are none.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::Error::TooLarge) on a client, which receives everything at and
    /// below the path, if that is more than 8 MiB; the errors of a session that is over.
    pub fn try_recv(&mut self) -> Pending<'_, Vec<Change>> {
        let (session, path) = (self.session.clone(), self.path.clone());
        session.steps("try_recv", &path, self.latest())
    }

    pub(crate) async fn latest(&mut self) -> Result<Vec<Change>> {
        loop {
            let fresh = self.session.snapshot_of(&self.path).await?;
            if self.take_events(&fresh) {
                return Ok(self.advance(fresh));
            }
        }
    }

    /// Returns a watch whose channel gets a message when there may be changes, for a `select!` with other channels.
    /// Call [`Cache::try_recv`] until it returns nothing, once at the start and after each message. Taking messages
    /// from the channel loses no changes. The channel closes when the session is over, which `try_recv` then reports.
    ///
    /// # Errors
    /// As [`Session::watch`].
    pub fn signal(&self) -> Pending<'static, Watch> {
        self.session.watch(&self.path, WatchMode::PersistentRecursive)
    }

    /// Waits until there are changes, and returns them.
    ///
    /// # Errors
    /// The errors of a session that is over, and [`Error::NoWatch`](crate::Error::NoWatch) if
    /// somebody removed the watch.
    pub fn recv(&mut self) -> Pending<'_, Vec<Change>> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session.steps("recv", &path, self.receiving()).unlimited()
    }

    async fn receiving(&mut self) -> Result<Vec<Change>> {
        loop {
            let changes = self.latest().await?;
            if !changes.is_empty() {
                return Ok(changes);
            }
            if self.early.is_some() {
                // The change of an event that was taken can be read by now.
                continue;
            }
            self.early = Some(next_event(&self.session, &self.watch, &self.path).await?);
        }
    }
}

/// All paths at and below `path` that exist.
fn paths(snapshot: &Snapshot, path: &str) -> BTreeSet<String> {
    match snapshot.walk(path) {
        Ok(walk) => walk.map(|(path, _, _)| path.to_owned()).collect(),
        // There is no znode, or none that may be read.
        Err(_) => BTreeSet::new(),
    }
}

fn entry(snapshot: &Snapshot, path: &str) -> Option<Entry> {
    snapshot.get(path).ok().map(|(data, stat)| Entry { data, stat })
}

/// The changes at one path. `deleted` is the last write that may have deleted the znode.
fn compare(
    path: &str,
    old: Option<Entry>,
    new: Option<Entry>,
    deleted: Zxid,
    changes: &mut Vec<Change>,
) {
    let path = path.to_owned();
    match (old, new) {
        (Some(old), Some(new)) if old.stat.czxid == new.stat.czxid => {
            if old.stat.mzxid != new.stat.mzxid {
                changes.push(Change::Changed { zxid: new.stat.mzxid, path, old, new });
            }
        }
        (old, new) => {
            // The old znode was deleted at the latest when the new one was created.
            let zxid = new.as_ref().map_or(deleted, |new| deleted.min(new.stat.czxid));
            if let Some(old) = old {
                changes.push(Change::Removed { zxid, path: path.clone(), old });
            }
            if let Some(new) = new {
                changes.push(Change::Added { zxid: new.stat.mzxid, path, new });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::types::znode::CreateMode;

    fn made(czxid: Zxid, mzxid: Zxid) -> Option<Entry> {
        let session = Cluster::new(1).node(0).session();
        let stat = session.create("/x", b"", CreateMode::Persistent).wait().unwrap().stat;
        Some(Entry { data: Arc::from(&b""[..]), stat: Stat { czxid, mzxid, ..stat } })
    }

    /// The changes between two states of `/a`: the first letter of each, and its zxid.
    fn changes(old: Option<Entry>, new: Option<Entry>, deleted: Zxid) -> Vec<(char, Zxid)> {
        let mut changes = Vec::new();
        compare("/a", old, new, deleted, &mut changes);
        let kind = |change: &Change| format!("{change:?}").chars().next().unwrap();
        changes.iter().map(|change| (kind(change), change.zxid())).collect()
    }

    #[test]
    fn changes_follow_from_two_states_of_a_znode() {
        let (first, set, again) = (made(5, 5), made(5, 8), made(9, 9));
        assert_eq!(changes(None, None, 7), []);
        assert_eq!(changes(first.clone(), first.clone(), 7), []);
        assert_eq!(changes(None, set.clone(), 7), [('A', 8)], "by the write of its data");
        assert_eq!(changes(first.clone(), set.clone(), 7), [('C', 8)]);
        assert_eq!(changes(first.clone(), None, 7), [('R', 7)]);
        assert_eq!(changes(first.clone(), again.clone(), 7), [('R', 7), ('A', 9)]);
        // The zxid of the deletion is not known, but that of the next creation is.
        assert_eq!(changes(set, again.clone(), 20), [('R', 9), ('A', 9)]);
        assert_eq!(changes(first, made(9, 12), 20), [('R', 9), ('A', 12)]);
    }

    #[test]
    fn changes_of_one_write_can_be_done_in_their_order() {
        let entry = made(3, 3).unwrap();
        let added =
            |path: &str, zxid| Change::Added { zxid, path: path.to_owned(), new: entry.clone() };
        let removed =
            |path: &str, zxid| Change::Removed { zxid, path: path.to_owned(), old: entry.clone() };
        let mut all = [
            added("/a/b", 3),
            removed("/a", 3),
            added("/a", 3),
            removed("/a/b", 3),
            added("/z", 2),
        ];
        all.sort_by_cached_key(Change::order);
        let paths: Vec<&str> = all.iter().map(Change::path).collect();
        assert_eq!(paths, ["/z", "/a/b", "/a", "/a", "/a/b"]);
        assert!(matches!(all[2], Change::Removed { .. }));
    }
}
