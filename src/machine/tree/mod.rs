//! The znodes: an immutable tree that is cheap to clone and to change.
//!
//! A [`Tree`] is a persistent map from full paths to [`Znode`]s. Each znode has an ordered,
//! persistent set of its children. A clone shares everything. A write copies only the shared nodes
//! on the way to its change: a few small nodes of the map and, for a create or delete, of the
//! parent's set. Nodes that are not shared are changed in place. So the machine publishes a clone
//! after every batch, and readers may keep it for any time.
//!
//! Why a map by path and not nested nodes: a read is one lookup at any depth, a write costs the
//! same at any depth, and neither lookups nor drops recurse along a path, which may be 2,000 deep.
//!
//! Invariants ([`Tree::check`]):
//! - `/` and the other [`RESERVED`] paths exist; every other znode's parent exists.
//! - A znode is in its parent's set exactly if it is in the map.
//! - An ephemeral has no children.
//! - `restricted` counts the znodes with an access list.
//! - `counted` has exactly the paths with a znode for their usage, and the usage is correct.
//! - `due` has exactly the znodes with a time after which they may be deleted.
//! - `hash` is the wrapping sum of the znodes' hashes, so it is updated by adding and subtracting,
//!   and does not depend on the order of the writes. (It detects accidents and no forgeries: xxh3
//!   is not a cryptographic hash.)
//!
//! The map's hash function is fixed, and nothing depends on the map's order. Children are sorted by
//! the bytes of their names.
//!
//! Not here: what an operation does and when it is refused (`ops`).

mod check;
mod znode;

use std::hash::{BuildHasher, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use rpds::{HashTrieMapSync, RedBlackTreeSetSync};
use xxhash_rust::xxh3::xxh3_64;

use crate::planted::{Bug, planted};
use crate::types::acl::AccessList;
use crate::types::quota::Usage;
use crate::types::znode::{Stat, Zxid};
use crate::types::{path, quota};
use znode::Child;
pub(crate) use znode::Znode;
pub(super) use znode::{Fields, Kind, hash_words};

/// The znodes that always exist.
pub(crate) const RESERVED: [&str; 4] = ["/", "/zookeeper", CONFIG, "/zookeeper/quota"];

/// The znode that only the system writes: where ZooKeeper shows the members of the cluster.
pub(crate) const CONFIG: &str = "/zookeeper/config";

/// The width of the map's nodes: a write copies one node of at most this many pointers on each
/// level. A million znodes make five levels.
const MAP_DEGREE: u8 = 16;

/// A znode's data and stat; `None` if the reader may not read it.
pub(crate) type Content = Option<(Arc<[u8]>, Stat)>;

/// One version of all znodes.
#[derive(Clone)]
pub(crate) struct Tree {
    znodes: HashTrieMapSync<Arc<str>, Znode, PathHasher>,
    /// The znodes that the leader may delete, each with its earliest time (see [`Znode::due`]):
    /// containers first. It follows from the znodes, and so is neither hashed nor saved.
    due: RedBlackTreeSetSync<(u64, Arc<str>)>,
    /// The paths whose usage is counted: those with a znode for it.
    counted: RedBlackTreeSetSync<Arc<str>>,
    /// How many znodes have an access list: usually none.
    restricted: usize,
    zxid: Zxid,
    hash: u64,
}

/// Trees with the same hash are equal, as far as replicas can determine.
impl PartialEq for Tree {
    fn eq(&self, other: &Tree) -> bool {
        (self.zxid, self.hash) == (other.zxid, other.hash)
    }
}

impl Eq for Tree {}

impl Tree {
    /// The tree of a new cluster.
    pub(super) fn genesis() -> Tree {
        let mut tree = Tree::empty();
        for path in RESERVED {
            tree.put(Arc::from(path), &[], Fields::default());
        }
        tree
    }

    /// Sets the members of a new cluster, before any write.
    pub(super) fn set_config(&mut self, text: &[u8]) {
        self.put(Arc::from(CONFIG), text, Fields::default());
    }

    /// A tree without any znode, even the root: the start of reading a snapshot.
    pub(super) fn empty() -> Tree {
        Tree {
            znodes: HashTrieMapSync::new_with_hasher_and_degree_and_ptr_kind(
                PathHasher, MAP_DEGREE,
            ),
            due: RedBlackTreeSetSync::new_sync(),
            counted: RedBlackTreeSetSync::new_sync(),
            restricted: 0,
            zxid: 0,
            hash: 0,
        }
    }

    /// Some znodes of the tree at this zxid, each after its parent. Only for reading: they have no
    /// fields that are not in a stat. Nobody may read those without content.
    pub(crate) fn excerpt(zxid: Zxid, znodes: impl IntoIterator<Item = (String, Content)>) -> Tree {
        let mut tree = Tree::empty();
        for (path, content) in znodes {
            let Some((data, stat)) = content else {
                tree.put(Arc::from(&*path), &[], Fields::default());
                tree.put_acl(&path, AccessList::stored(Vec::new()));
                continue;
            };
            let fields = Fields {
                czxid: stat.czxid,
                mzxid: stat.mzxid,
                pzxid: stat.pzxid,
                ctime: stat.ctime,
                mtime: stat.mtime,
                version: stat.version,
                cversion: stat.cversion,
                aversion: stat.aversion,
                creates: 0,
                kind: match (stat.ephemeral_owner, stat.ttl) {
                    (Some(session), _) => Kind::Ephemeral(session),
                    (None, Some(ttl)) => Kind::Ttl(u64::try_from(ttl.as_millis()).unwrap_or(0)),
                    (None, None) if stat.is_container => Kind::Container,
                    (None, None) => Kind::Persistent,
                },
            };
            tree.put(path.into(), &data, fields);
        }
        tree.set_zxid(zxid);
        tree
    }

    /// The znode at this path; `None` if there is none, or if this is not a path.
    pub(crate) fn get(&self, path: &str) -> Option<&Znode> {
        self.znodes.get(path)
    }

    /// The last write that this tree shows.
    pub(crate) fn zxid(&self) -> Zxid {
        self.zxid
    }

    /// The hash of all znodes. Replicas that have applied the same zxid have the same.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Whether no znode has an access list, so that everybody may do everything.
    pub(crate) fn is_open(&self) -> bool {
        self.restricted == 0
    }

    /// How many znodes there are.
    pub(crate) fn len(&self) -> usize {
        self.znodes.size()
    }

    /// The znode at `cursor`, if there is one, and all after it: each before its children, and
    /// siblings by name. From `/` on, this is the whole tree.
    pub(crate) fn iter_from<'a>(
        &'a self,
        cursor: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Znode)> + use<'a> {
        let mut walk =
            Walk { tree: self, first: self.znodes.get_key_value(cursor), rest: Vec::new() };
        let mut path = cursor;
        while let Some(parent) = path::parent(path) {
            if let Some(znode) = self.get(parent) {
                let after = (Bound::Excluded(Child::new(Arc::from(path))), Bound::Unbounded);
                let siblings = znode.children.range::<Child, _>(after);
                walk.rest.push(Box::new(siblings));
            }
            path = parent;
        }
        walk.rest.reverse();
        walk
    }

    /// The znode at `path`, if there is one, and all below it, each before its children.
    pub(crate) fn below<'a>(
        &'a self,
        path: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Znode)> + use<'a> {
        let root = path.to_owned();
        // The subtree ends where another one begins.
        self.iter_from(path).take_while(move |(at, _)| path::is_below(at, &root))
    }

    pub(super) fn set_zxid(&mut self, zxid: Zxid) {
        self.zxid = zxid;
    }

    /// Creates a znode at a free path below an existing parent, and updates the parent's counters.
    pub(super) fn create(
        &mut self,
        path: &str,
        data: &[u8],
        kind: Kind,
        acl: Option<AccessList>,
        zxid: Zxid,
        time: u64,
    ) -> Stat {
        let path: Arc<str> = Arc::from(path);
        let fields = Fields {
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: time,
            mtime: time,
            kind,
            ..Fields::default()
        };
        let acl = acl.map(|acl| self.shared(&path, acl));
        self.restricted += usize::from(acl.is_some());
        let znode = Znode::new(&path, data, fields, acl);
        let stat = znode.stat();
        self.hash = self.hash.wrapping_add(znode.hash);
        let due = znode.due();
        self.znodes.insert_mut(Arc::clone(&path), znode);
        self.index(&path, None, due);
        self.index_counted(&path, true);
        if let Some(parent) = path::parent(&path) {
            self.update(parent, |znode| {
                znode.children.insert_mut(Child::new(Arc::clone(&path)));
                znode.fields.pzxid = zxid;
                // Counters wrap, as a snapshot may hold any number.
                znode.fields.cversion = znode.fields.cversion.wrapping_add(1);
                znode.fields.creates = znode.fields.creates.wrapping_add(1);
            });
        }
        stat
    }

    /// Replaces a znode's data; `None` if there is no such znode.
    pub(super) fn set(&mut self, path: &str, data: &[u8], zxid: Zxid, time: u64) -> Option<Stat> {
        self.update(path, |znode| {
            znode.data = Arc::from(data);
            znode.data_hash = xxh3_64(data);
            let more = if planted(Bug::VersionStands) { 0 } else { 1 };
            znode.fields.version = znode.fields.version.wrapping_add(more);
            znode.fields.mzxid = zxid;
            znode.fields.mtime = time;
        })
    }

    /// Replaces a znode's access list and increments its `aversion`; `None` if there is no such
    /// znode.
    pub(super) fn set_acl(&mut self, path: &str, acl: Option<AccessList>) -> Option<Stat> {
        let acl = acl.map(|acl| self.shared(path, acl));
        self.update(path, |znode| {
            znode.acl = acl;
            znode.fields.aversion = znode.fields.aversion.wrapping_add(1);
        })
    }

    /// Sets a znode's access list from a snapshot.
    pub(super) fn put_acl(&mut self, path: &str, acl: AccessList) -> Option<Stat> {
        let acl = self.shared(path, acl);
        self.update(path, |znode| znode.acl = Some(acl))
    }

    /// Shares an access list with the parent if it is equal, as it most often is.
    fn shared(&self, path: &str, acl: AccessList) -> Arc<AccessList> {
        let parent = path::parent(path).and_then(|parent| self.get(parent)?.acl());
        match parent {
            Some(shared) if **shared == acl => Arc::clone(shared),
            _ => Arc::new(acl),
        }
    }

    /// Deletes a znode without children, and updates the parent's counters.
    pub(super) fn delete(&mut self, path: &str, zxid: Zxid) {
        if !self.remove(path) {
            return;
        }
        if let Some(parent) = path::parent(path) {
            self.update(parent, |znode| {
                znode.fields.pzxid = zxid;
                znode.fields.cversion = znode.fields.cversion.wrapping_add(1);
            });
        }
    }

    /// Inserts a znode of a snapshot. Beside it, only the parent's set of children changes. A znode
    /// that was at this path is replaced, and keeps its children.
    pub(super) fn put(&mut self, path: Arc<str>, data: &[u8], fields: Fields) {
        let mut znode = Znode::new(&path, data, fields, None);
        self.hash = self.hash.wrapping_add(znode.hash);
        let mut before = None;
        if let Some(old) = self.get(&path) {
            (znode.children, before) = (old.children.clone(), old.due());
            let (hash, restricted) = (old.hash, old.acl.is_some());
            self.hash = self.hash.wrapping_sub(hash);
            self.restricted -= usize::from(restricted);
        }
        let due = znode.due().filter(|_| !planted(Bug::DueForgottenAtSnapshot));
        self.znodes.insert_mut(Arc::clone(&path), znode);
        self.index_counted(&path, true);
        self.index(&path, before, due);
        self.change_children(&path, |children| children.insert_mut(Child::new(Arc::clone(&path))));
    }

    /// Removes a znode, also from its parent's set, without updating the parent's counters.
    pub(super) fn remove(&mut self, path: &str) -> bool {
        let Some(znode) = self.get(path) else {
            return false;
        };
        let (hash, due, restricted) = (znode.hash, znode.due(), znode.acl.is_some());
        self.hash = self.hash.wrapping_sub(hash);
        self.restricted -= usize::from(restricted);
        self.index(path, due, None);
        self.index_counted(path, false);
        self.change_children(path, |children| {
            children.remove_mut(path::name(path));
        });
        self.znodes.remove_mut(path)
    }

    /// Changes the parent's set of children, and nothing else of the parent.
    fn change_children(
        &mut self,
        path: &str,
        change: impl FnOnce(&mut RedBlackTreeSetSync<Child>),
    ) {
        let Some(parent) = path::parent(path) else { return };
        let Some(znode) = self.znodes.get_mut(parent) else { return };
        let before = znode.due();
        change(&mut znode.children);
        let after = znode.due();
        self.index(parent, before, after);
    }

    /// Updates `due` when a znode's time has changed.
    fn index(&mut self, path: &str, before: Option<u64>, after: Option<u64>) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.due.remove_mut(&(before, Arc::from(path)));
        }
        if let Some(after) = after {
            self.due.insert_mut((after, Arc::from(path)));
        }
    }

    /// Updates `counted` when a znode is created or deleted.
    fn index_counted(&mut self, path: &str, exists: bool) {
        match quota::of_stats(path) {
            Some(of) if exists => self.counted.insert_mut(Arc::from(of)),
            Some(of) => {
                self.counted.remove_mut(of);
            }
            None => {}
        }
    }

    /// The counted paths that include this one, from it upwards.
    pub(super) fn counted_for<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a str> {
        let counts = !self.counted.is_empty() && quota::is_counted(path);
        let above = std::iter::successors(counts.then_some(path), |path| path::parent(path));
        above.filter(|path| self.counted.contains(*path))
    }

    /// The usage of this path and everything below it.
    pub(super) fn usage(&self, path: &str) -> Usage {
        let below = self.below(path).filter(|(path, _)| quota::is_counted(path));
        below.fold(Usage::default(), |usage, (_, znode)| usage.and((1, znode.data.len() as i64)))
    }

    /// Replaces a znode's data and nothing of its stat, as no write of a user does.
    pub(super) fn set_quietly(&mut self, path: &str, data: &[u8]) {
        self.update(path, |znode| {
            znode.data = Arc::from(data);
            znode.data_hash = xxh3_64(data);
        });
    }

    /// The containers that had children and have none any more, by path.
    pub(crate) fn unused_containers(&self) -> impl Iterator<Item = &str> {
        self.due.iter().take_while(|(at, _)| *at == 0).map(|(_, path)| &**path)
    }

    /// The znodes whose time to live is over at `time`, those overdue longest first.
    pub(crate) fn overdue(&self, time: u64) -> impl Iterator<Item = &str> {
        let due = self.due.range((Bound::Included((1, Arc::from(""))), Bound::Unbounded));
        due.take_while(move |(at, _)| *at <= time).map(|(_, path)| &**path)
    }

    /// Changes a znode in place, and updates the hashes.
    fn update(&mut self, path: &str, change: impl FnOnce(&mut Znode)) -> Option<Stat> {
        let znode = self.znodes.get_mut(path)?;
        let (before, due, restricted) = (znode.hash, znode.due(), znode.acl.is_some());
        change(znode);
        self.restricted -= usize::from(restricted);
        self.restricted += usize::from(znode.acl.is_some());
        znode.hash = znode.compute_hash(path);
        self.hash = self.hash.wrapping_sub(before).wrapping_add(znode.hash);
        let (stat, due_now) = (znode.stat(), znode.due());
        self.index(path, due, due_now);
        Some(stat)
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree")
            .field("znodes", &self.len())
            .field("zxid", &self.zxid)
            .field("hash", &format_args!("{:016x}", self.hash))
            .finish()
    }
}

/// See [`Tree::iter_from`].
struct Walk<'a> {
    tree: &'a Tree,
    first: Option<(&'a Arc<str>, &'a Znode)>,
    /// The remaining children of each znode on the way down; the deepest is the last.
    rest: Vec<Box<dyn Iterator<Item = &'a Child> + 'a>>,
}

impl<'a> Iterator for Walk<'a> {
    type Item = (&'a str, &'a Znode);

    fn next(&mut self) -> Option<(&'a str, &'a Znode)> {
        let (path, znode) = match self.first.take() {
            Some(first) => first,
            None => loop {
                match self.rest.last_mut()?.next() {
                    // Each child is in the map.
                    Some(child) => break (&child.path, self.tree.get(&child.path)?),
                    None => self.rest.pop(),
                };
            },
        };
        if znode.has_children() {
            self.rest.push(Box::new(znode.children.iter()));
        }
        Some((path, znode))
    }
}

/// xxh3 of the path, with no seed: the same everywhere and always.
#[derive(Clone, Copy, Default)]
struct PathHasher;

impl BuildHasher for PathHasher {
    type Hasher = PathHash;

    fn build_hasher(&self) -> PathHash {
        PathHash(0)
    }
}

struct PathHash(u64);

impl Hasher for PathHash {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = self.0.rotate_left(32) ^ xxh3_64(bytes);
    }

    // `str` ends its bytes with a 0xFF, which is useless when the key is one `str`.
    fn write_u8(&mut self, _: u8) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests;
