//! What changes in a part of the tree, with what was there before and after.
//!
//! Every instance has all of the tree, so that a snapshot of it is what other systems have to build
//! a cache for. What is left is to say what has changed from one snapshot to the next. That is found
//! by comparing the two, and never guessed from events: these say where to look and when. After a
//! gap, or when this replica has jumped ahead, everything is looked at.
//!
//! Two snapshots are compared at the paths of all events up to the later one's zxid, which are in
//! the channel once that can be read. One that comes early, of a write that the snapshot does not
//! show yet, is kept for the next.
//!
//! Events may also have been left out though their gap is not in the channel yet: it comes behind
//! the tree that shows them. Then the channel was full, and nothing but the gap can follow. So
//! whoever has taken as many events as it holds, since it was last seen empty, looks at everything
//! too. From then on until the next event, it does so at every look: who looks for another reason
//! than this channel may come between the tree and the gap. Otherwise, where there is no event,
//! nothing is compared, and the view stays.
//!
//! Source: Curator, `CuratorCache`, which reads everything again at every reconnect, and does not see
//! that a znode was deleted and made again meanwhile.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::api::watch::Watch;
use crate::planted::{Bug, planted};
use crate::recipes::blocking;
use crate::types::error::{Error, Result};
use crate::types::watch::{EventKind, WatchEvent, WatchMode};
use crate::types::znode::{Stat, Zxid};

/// A znode as a [`Change`] found or left it.
///
/// ```
/// use quorate::{CreateMode, recipes::{Cache, Change}, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let mut cache = Cache::new(&session, "/shop")?;
/// session.create("/shop", b"open", CreateMode::Persistent)?;
/// let Change::Added { new, .. } = &cache.recv()?[0] else { panic!() };
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

/// One change below the path of a [`Cache`].
///
/// ```
/// use quorate::{CreateMode, recipes::{Cache, Change}, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let mut cache = Cache::new(&session, "/shop")?;
/// session.create("/shop", b"1", CreateMode::Persistent)?;
/// session.set("/shop", b"2")?;
/// cache.recv()?;
/// session.delete("/shop")?;
/// let changes = cache.recv()?;
/// let [Change::Removed { path, old, .. }] = &changes[..] else { panic!("{changes:?}") };
/// assert_eq!((&path[..], &old.data[..]), ("/shop", &b"2"[..]));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A znode is there that was not.
    Added {
        /// The write that set its data as it is.
        zxid: Zxid,
        /// Its path.
        path: String,
        /// What it is.
        new: Entry,
    },
    /// A znode's data was set, perhaps to the same.
    Changed {
        /// The last write that set it.
        zxid: Zxid,
        /// Its path.
        path: String,
        /// What it was.
        old: Entry,
        /// What it is.
        new: Entry,
    },
    /// A znode is gone. If another one is there by now, an [`Change::Added`] follows.
    Removed {
        /// The write that deleted it; where that is not known, after a gap, one of which is known
        /// that it was deleted by then.
        zxid: Zxid,
        /// Its path.
        path: String,
        /// What it was.
        old: Entry,
    },
}

impl Change {
    /// The write that made it: see the variants.
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

    /// By zxid; of one write, removals first, children before their parents, and then the others,
    /// parents first.
    fn order(&self) -> impl Ord + use<> {
        let path = self.path().to_owned();
        let (removed, added) = match self {
            Change::Removed { .. } => (Some(Reverse(path)), None),
            Change::Added { .. } | Change::Changed { .. } => (None, Some(path)),
        };
        (self.zxid(), added.is_some(), removed, added)
    }
}

/// A znode and everything below it, and what changes there.
///
/// [`Cache::view`] is all of it at one zxid. Each [`Cache::recv`] moves the view on and gives the
/// changes that lead from the one before exactly to it, in the order of their writes. A reader that
/// keeps up sees every write; for one that does not, what happened to a znode in between becomes one
/// change, and a deletion and a creation stay two. No removal is ever missed, whatever events were
/// left out and however far this replica jumped ahead.
///
/// It costs the cluster nothing. In memory it keeps what has changed since its view, as a
/// [`Snapshot`] does; at most [`WATCH_CAPACITY`](crate::WATCH_CAPACITY) events wait for a reader.
///
/// What the session may not read is not there. That an ACL was changed is no change of data, and
/// shows with the next.
///
/// ```
/// use quorate::{CreateMode, recipes::{Cache, Change}, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let (here, there) = (cluster.node(0).session(), cluster.node(1).session());
/// here.create("/shop", b"", CreateMode::Persistent)?;
/// there.sync()?;
/// let mut cache = Cache::new(&there, "/shop")?;
/// assert_eq!(cache.view().all_children_number("/shop")?, 0);
///
/// here.create("/shop/apples", b"3", CreateMode::Persistent)?;
/// let changes = cache.recv()?;
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
    /// Where a later snapshot may differ from the view, by the events that were taken.
    touched: Touched,
    /// An event of a write that the view does not show.
    early: Option<WatchEvent>,
}

/// Where two snapshots may differ.
#[derive(Debug, Default)]
struct Touched {
    everywhere: bool,
    paths: BTreeSet<String>,
    /// When what was there was last deleted.
    deleted: BTreeMap<String, Zxid>,
}

impl Cache {
    /// The znode at this path and all below it, whether or not there are any yet. Blocks until the
    /// session's earlier calls have their answers.
    ///
    /// # Errors
    /// As [`Session::watch`].
    pub fn new(session: &Session, path: &str) -> Result<Cache> {
        blocking::request(session, "cache", path, Cache::new_async(session, path))
    }

    /// As [`Cache::new`], without blocking the thread.
    pub async fn new_async(session: &Session, path: &str) -> Result<Cache> {
        let watch = session.nonblocking().watch(path, WatchMode::PersistentRecursive).await?;
        let view = session.nonblocking().snapshot_of(path).await?;
        let (session, path) = (session.clone(), path.to_owned());
        let touched = Touched::default();
        Ok(Cache { session, path, watch, view, touched, early: None })
    }

    /// The path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The tree as of the changes that were given last; at first, as it was when the cache was made.
    /// It is all of the tree, and changes are told of what is at and below the path.
    pub fn view(&self) -> &Snapshot {
        &self.view
    }

    /// Takes the events of what this snapshot shows: all of them are in the channel by now. False
    /// if it is too old, since there is a gap: only what is read from now on shows all that was left
    /// out. What was taken is kept, should that fail or not be waited for.
    fn sift(&mut self, fresh: &Snapshot) -> bool {
        while let Some(event) = self.early.take().or_else(|| self.take()) {
            let touched = &mut self.touched;
            if event.kind == EventKind::Gap {
                *touched = Touched { everywhere: true, ..Touched::default() };
                return false;
            }
            if event.zxid > fresh.zxid() {
                self.early = Some(event);
                break;
            }
            touched.everywhere |= event.net;
            if event.kind == EventKind::Deleted {
                if planted(Bug::CacheMissesRemoval) {
                    continue;
                }
                touched.deleted.insert(event.path.clone(), event.zxid);
            }
            touched.paths.insert(event.path);
        }
        true
    }

    /// Moves the view on to a snapshot whose events were taken, and tells how they differ.
    fn advance(&mut self, fresh: Snapshot) -> Vec<Change> {
        let mut touched = std::mem::take(&mut self.touched);
        if !touched.everywhere && touched.paths.is_empty() {
            return Vec::new();
        }
        if touched.everywhere {
            touched.paths = paths(&self.view, &self.path);
            touched.paths.extend(paths(&fresh, &self.path));
        }
        let mut changes = Vec::new();
        for path in &touched.paths {
            let (old, new) = (entry(&self.view, path), entry(&fresh, path));
            let deleted = touched.deleted.get(path).copied();
            compare(path, old, new, deleted.unwrap_or(fresh.zxid()), &mut changes);
        }
        changes.sort_by_cached_key(Change::order);
        self.view = fresh;
        changes
    }

    fn take(&mut self) -> Option<WatchEvent> {
        self.watch.events().try_recv().ok()
    }

    /// What has changed since the changes that were given last, and moves the view on; nothing if
    /// nothing has. Does not block on a member; a client waits for the answer of its member.
    ///
    /// # Errors
    /// [`Error::TooLarge`] on a client, which is sent what is below the path, 8 MiB at most; those of
    /// a session that is over.
    pub fn try_recv(&mut self) -> Result<Vec<Change>> {
        loop {
            let fresh = self.session.snapshot_of(&self.path)?;
            if self.sift(&fresh) {
                return Ok(self.advance(fresh));
            }
        }
    }

    /// The same without blocking the thread. Dropping the future loses nothing.
    pub(crate) async fn latest(&mut self) -> Result<Vec<Change>> {
        loop {
            let fresh = self.session.snapshot_soon(&self.path).await?;
            if self.sift(&fresh) {
                return Ok(self.advance(fresh));
            }
        }
    }

    /// A watch whose channel says when to look: for `select!` beside other channels. After a message
    /// from it, and once at first, take what [`Cache::try_recv`] gives until that is nothing; nothing
    /// is lost with what is taken from the channel. It closes when the session is over, which
    /// `try_recv` then tells. Blocks as [`Session::watch`].
    ///
    /// # Errors
    /// As [`Session::watch`].
    pub fn signal(&self) -> Result<Watch> {
        self.session.watch(&self.path, WatchMode::PersistentRecursive)
    }

    /// Waits for changes without blocking the thread: one at least. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// Those of a session that is over, and [`Error::NoWatch`] if somebody removed its watch.
    pub async fn next(&mut self) -> Result<Vec<Change>> {
        loop {
            let changes = self.latest().await?;
            if !changes.is_empty() {
                return Ok(changes);
            }
            if self.early.is_some() {
                // What it tells of can be read, once it was taken.
                continue;
            }
            match self.watch.next().await {
                Some(event) => self.early = Some(event),
                None => {
                    self.session.check_alive()?;
                    return Err(Error::NoWatch { path: self.path.clone() });
                }
            }
        }
    }

    /// Blocks until there are changes. Fails as [`Cache::next`].
    pub fn recv(&mut self) -> Result<Vec<Change>> {
        let session = self.session.clone();
        blocking::forever(&session, self.next())
    }

    /// Blocks until there are changes, at most for `timeout`: none if there are none by then. Fails
    /// as [`Cache::next`].
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Vec<Change>> {
        let session = self.session.clone();
        Ok(blocking::within(&session, timeout, self.next())?.unwrap_or_default())
    }
}

/// All that is there.
fn paths(snapshot: &Snapshot, path: &str) -> BTreeSet<String> {
    match snapshot.walk(path) {
        Ok(walk) => walk.map(|(path, _, _)| path.to_owned()).collect(),
        // None there, or none that may be read.
        Err(_) => BTreeSet::new(),
    }
}

fn entry(snapshot: &Snapshot, path: &str) -> Option<Entry> {
    snapshot.get(path).ok().map(|(data, stat)| Entry { data, stat })
}

/// How one znode differs, which was deleted by `deleted` if it was.
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
            // At the latest when there was another one.
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
        let stat = session.create("/x", b"", CreateMode::Persistent).unwrap().stat;
        Some(Entry { data: Arc::from(&b""[..]), stat: Stat { czxid, mzxid, ..stat } })
    }

    /// What comes of two states of `/a`: how each change begins, and its zxid.
    fn changes(old: Option<Entry>, new: Option<Entry>, deleted: Zxid) -> Vec<(char, Zxid)> {
        let mut changes = Vec::new();
        compare("/a", old, new, deleted, &mut changes);
        let kind = |change: &Change| format!("{change:?}").chars().next().unwrap();
        changes.iter().map(|change| (kind(change), change.zxid())).collect()
    }

    #[test]
    fn two_states_of_a_znode_differ_by_what_must_have_happened() {
        let (first, set, again) = (made(5, 5), made(5, 8), made(9, 9));
        assert_eq!(changes(None, None, 7), []);
        assert_eq!(changes(first.clone(), first.clone(), 7), []);
        assert_eq!(changes(None, set.clone(), 7), [('A', 8)], "by the write of its data");
        assert_eq!(changes(first.clone(), set.clone(), 7), [('C', 8)]);
        assert_eq!(changes(first.clone(), None, 7), [('R', 7)]);
        assert_eq!(changes(first.clone(), again.clone(), 7), [('R', 7), ('A', 9)]);
        // When it was deleted is not known, but that another was made.
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
