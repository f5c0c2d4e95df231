//! The znodes: an immutable tree that is cheap to clone and to change.
//!
//! A [`Tree`] is a persistent hash table of [`Znode`]s by their full paths (`trie`). A znode with
//! children has an ordered, persistent set of their names (`children`). A clone shares everything. A
//! write copies only the shared nodes on the way to its change: a few small nodes of the table and,
//! for a create or delete, of the parent's set. Nodes that are not shared are changed in place. So
//! the machine publishes a clone after every batch, and readers may keep it for any time.
//!
//! Why a table by path and not nested nodes: a read is one lookup at any depth, a write costs the
//! same at any depth, and neither lookups nor drops recurse along a path, which may be 2,000 deep.
//!
//! Invariants ([`Tree::check`]):
//! - `/` and the other [`RESERVED`] paths exist; every other znode's parent exists.
//! - A name is in its parent's set exactly if the table has its path.
//! - An ephemeral has no children, and each znode's counters agree with the number of its children.
//!   `unsound` counts the znodes of which this is not true, so that a tree that was built from a
//!   snapshot needs no walk to be checked.
//! - `restricted` counts the znodes with an access list, and `bytes` those of all paths and data.
//! - `counted` has exactly the paths with a znode for their usage, and the usage is correct.
//! - `due` has exactly the znodes with a time after which they may be deleted.
//! - `unclaimed` has exactly the items among those that consumers have ([`split_taken`]) for which there is no claim.
//! - `hash` is the wrapping sum of the znodes' hashes, so it is updated by adding and subtracting,
//!   and does not depend on the order of the writes. (It detects accidents and no forgeries: xxh3
//!   is not a cryptographic hash.)
//!
//! The table's hash function is fixed, and nothing depends on the table's order. Children are sorted by
//! the bytes of their names.
//!
//! Not here: the effects and the errors of operations (`ops`).

mod check;
mod children;
mod image;
mod trie;
mod znode;

use std::ops::Bound;
use std::sync::Arc;

use rpds::RedBlackTreeSetSync;

use crate::machine::data::Data;
use crate::types::acl::AccessList;
use crate::types::queue::{CLAIMS, TAKEN, split_taken};
use crate::types::quota::Usage;
use crate::types::znode::{SessionId, Stat, Zxid};
use crate::types::{path, quota};
use children::Children;
pub(super) use image::Image;
#[cfg(test)]
pub(super) use trie::LOOKUPS;
use trie::Trie;
use znode::Parts;
pub(crate) use znode::Znode;
pub(super) use znode::{Fields, ZnodeKind, hash_words};

/// The znodes that always exist.
pub(crate) const RESERVED: [&str; 4] = ["/", "/zookeeper", CONFIG, "/zookeeper/quota"];

/// The znode that only the system writes: where ZooKeeper shows the members of the cluster.
pub(crate) const CONFIG: &str = "/zookeeper/config";

/// Where an item is that a consumer of a queue has, or had, and its name.
type TakenItem = (Arc<str>, Arc<str>);

/// A znode's data and stat; `None` if the reader may not read it.
pub(crate) type Content = Option<(Arc<[u8]>, Stat)>;

/// One version of all znodes.
#[derive(Clone)]
pub(crate) struct Tree {
    znodes: Trie<Znode>,
    /// The znodes that the leader may delete, each with its earliest time (see [`Znode::due`]): containers
    /// first. Derived from the znodes, so neither hashed nor saved.
    due: RedBlackTreeSetSync<(u64, Arc<str>)>,
    /// The paths whose usage is counted: those with a znode for it.
    counted: RedBlackTreeSetSync<Arc<str>>,
    /// The items of queues that no consumer has any more. Derived, too.
    unclaimed: RedBlackTreeSetSync<TakenItem>,
    /// How many znodes have an access list: usually none.
    restricted: usize,
    bytes: u64,
    unsound: usize,
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
            tree.put(path, &[], Fields::default(), None);
        }
        tree
    }

    /// Sets the members of a new cluster, before any write.
    pub(super) fn set_config(&mut self, text: &[u8]) {
        self.put(CONFIG, text, Fields::default(), None);
    }

    /// A tree without any znode, even the root: the start of reading a snapshot.
    pub(super) fn empty() -> Tree {
        Tree {
            znodes: Trie::new(),
            due: RedBlackTreeSetSync::new_sync(),
            counted: RedBlackTreeSetSync::new_sync(),
            unclaimed: RedBlackTreeSetSync::new_sync(),
            restricted: 0,
            bytes: 0,
            unsound: 0,
            zxid: 0,
            hash: 0,
        }
    }

    /// Some znodes of the tree at this zxid, each after its parent. Only for reading: they have no fields
    /// besides those of a stat. Znodes without content may not be read.
    pub(crate) fn excerpt(zxid: Zxid, znodes: impl IntoIterator<Item = (String, Content)>) -> Tree {
        let (mut tree, mut image) = (Tree::empty(), Image::default());
        for (path, content) in znodes {
            let Some((data, stat)) = content else {
                let nobodys = AccessList::stored(Vec::new());
                image.add(&mut tree, &path, &[], Fields::default(), Some(nobodys));
                continue;
            };
            let kind = match (stat.ephemeral_owner, stat.ttl) {
                (Some(session), _) => ZnodeKind::Ephemeral(session),
                (None, Some(ttl)) => ZnodeKind::Ttl(u64::try_from(ttl.as_millis()).unwrap_or(0)),
                (None, None) if stat.is_container => ZnodeKind::Container,
                (None, None) => ZnodeKind::Persistent,
            };
            let Stat { czxid, mzxid, pzxid, ctime, mtime, version, cversion, aversion, .. } = stat;
            let fields = Fields { czxid, mzxid, pzxid, ctime, mtime, ..Fields::default() };
            let fields = Fields { version, cversion, aversion, kind, ..fields };
            image.add(&mut tree, &path, &data, fields, None);
        }
        // The parent of the first one is not among them.
        let _ = image.finish(&mut tree, |_, _| {});
        tree.set_zxid(zxid);
        tree
    }

    /// The znode at this path; `None` if there is none, or if this is not a path.
    pub(crate) fn get(&self, path: &str) -> Option<&Znode> {
        self.znodes.get(path.as_bytes())
    }

    /// Has the processor read what writes of these paths will need.
    pub(crate) fn warm<'a>(&self, paths: impl Iterator<Item = &'a str>) {
        self.znodes.warm(paths.map(str::as_bytes));
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

    /// The bytes of all paths and all data.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many znodes there are.
    pub(crate) fn len(&self) -> usize {
        self.znodes.len()
    }

    /// The znode at `cursor`, if there is one, and all after it: each before its children, and
    /// siblings by name. From `/` on, this is the whole tree.
    pub(crate) fn iter_from<'a>(
        &'a self,
        cursor: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Znode)> + use<'a> {
        let mut walk = ZnodeIter {
            tree: self,
            first: self.get(cursor),
            path: cursor.to_owned(),
            rest: Vec::new(),
        };
        let mut path = cursor;
        while let Some(parent) = path::parent(path) {
            if let Some(znode) = self.get(parent) {
                walk.add(parent, znode.children_after(path::name(path)));
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

    /// The znodes that were created or set, or whose children have changed, after this zxid. A znode that was
    /// deleted since then is, or was below, a child of one of them. Takes time in proportion to the whole tree.
    pub(crate) fn changed_since(&self, zxid: Zxid) -> Vec<Znode> {
        let has_changed = |znode: &Znode| {
            let Stat { czxid, mzxid, pzxid, .. } = znode.stat();
            czxid.max(mzxid).max(pzxid) > zxid
        };
        let all = self.iter_from("/").map(|(_, znode)| znode);
        all.filter(|znode| has_changed(znode)).cloned().collect()
    }

    pub(super) fn set_zxid(&mut self, zxid: Zxid) {
        self.zxid = zxid;
    }

    /// Creates a znode at a free path below an existing parent, and updates the parent's counters.
    pub(super) fn create(
        &mut self,
        path: &str,
        data: &Data,
        kind: ZnodeKind,
        acl: Option<AccessList>,
        zxid: Zxid,
        time: u64,
    ) -> Stat {
        let fields = Fields {
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: time,
            mtime: time,
            kind,
            is_null: data.is_null(),
            ..Fields::default()
        };
        let acl = acl.map(|acl| self.shared(path, acl));
        let znode = Znode::new(path, data, Parts { fields, acl, children: Children::default() });
        let stat = znode.stat();
        self.account(path, None, Some(ZnodeTotals::of(&znode)));
        self.znodes.insert(znode);
        self.index_counted(path, true);
        self.index_unclaimed(path);
        self.change_parent(path, |Parts { fields, children, .. }| {
            children.insert(path::name(path));
            fields.pzxid = zxid;
            // Counters wrap, as a snapshot may hold any number.
            fields.cversion = fields.cversion.wrapping_add(1);
            fields.creates = fields.creates.wrapping_add(1);
        });
        stat
    }

    /// Replaces a znode's data; `None` if there is no such znode.
    pub(super) fn set(&mut self, path: &str, data: &Data, zxid: Zxid, time: u64) -> Option<Stat> {
        self.update(path, |znode| {
            znode.set_data(data, |fields| {
                fields.version = fields.version.wrapping_add(1);
                fields.mzxid = zxid;
                fields.mtime = time;
                fields.is_null = data.is_null();
            });
        })
    }

    /// Replaces a znode's access list and increments its `aversion`; `None` if there is no such
    /// znode.
    pub(super) fn set_acl(&mut self, path: &str, acl: Option<AccessList>) -> Option<Stat> {
        let acl = acl.map(|acl| self.shared(path, acl));
        self.update(path, |znode| {
            znode.change(|parts| {
                parts.acl = acl;
                parts.fields.aversion = parts.fields.aversion.wrapping_add(1);
            });
        })
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
        self.take(path, |fields| {
            fields.pzxid = zxid;
            fields.cversion = fields.cversion.wrapping_add(1);
        });
    }

    /// Puts a znode at a path, and its name into the parent's set of children. Nothing else of the parent changes.
    /// A znode that was there is replaced, and keeps its children.
    pub(super) fn put(&mut self, path: &str, data: &[u8], fields: Fields, acl: Option<AccessList>) {
        let mut image = Image::default();
        image.add(self, path, data, fields, acl);
        let put = image.finish(self, |_, _| {});
        debug_assert_eq!(put, Ok(()));
    }

    /// Removes a znode without children, also from its parent's set, and nothing else of the parent.
    /// Returns the session that owned it.
    pub(super) fn remove(&mut self, path: &str) -> Option<SessionId> {
        self.take(path, |_| {})?.fields().owner()
    }

    fn take(&mut self, path: &str, change_parent: impl FnOnce(&mut Fields)) -> Option<Znode> {
        let znode = self.znodes.remove(path.as_bytes())?;
        self.account(path, Some(ZnodeTotals::of(&znode)), None);
        self.index_counted(path, false);
        self.index_unclaimed(path);
        self.change_parent(path, |Parts { fields, children, .. }| {
            children.remove(path::name(path));
            change_parent(fields);
        });
        Some(znode)
    }

    /// Sets the mark of a changed znode. Returns `false` if the znode is known to have had this mark before;
    /// `None` if there is no such znode.
    pub(super) fn mark(&mut self, path: &str, mark: u32) -> Option<bool> {
        self.znodes.update_again(path.as_bytes(), |znode| znode.mark(mark))
    }

    pub(super) fn path_hash(path: &str) -> u64 {
        trie::hash(path.as_bytes())
    }

    /// Sorts the hashes of paths in the order in which the tree has their znodes. In that order, look-ups of many
    /// find the upper part of the tree in the processor's caches.
    pub(super) fn sort_path_hashes(hashes: &mut [u64]) {
        hashes.sort_unstable_by_key(|hash| hash.reverse_bits());
    }

    /// The znodes with this mark whose paths have this hash: one, or none if it does not exist any more. Collisions
    /// are possible, in any number.
    pub(super) fn with_path_hash(&self, hash: u64, mark: u32) -> impl Iterator<Item = &Znode> {
        self.znodes.with_hash(hash, move |znode| znode.has_mark(mark))
    }

    fn change_parent(&mut self, path: &str, change: impl FnOnce(&mut Parts)) {
        if let Some(parent) = path::parent(path) {
            self.update(parent, |znode| znode.change(change));
        }
    }

    /// Updates the totals of the tree after a change of one znode.
    fn account(&mut self, path: &str, before: Option<ZnodeTotals>, after: Option<ZnodeTotals>) {
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        self.hash = self.hash.wrapping_sub(before.hash).wrapping_add(after.hash);
        self.restricted += usize::from(after.is_restricted);
        self.restricted -= usize::from(before.is_restricted);
        self.bytes = self.bytes.wrapping_sub(before.bytes).wrapping_add(after.bytes);
        self.unsound += usize::from(after.is_unsound);
        self.unsound -= usize::from(before.is_unsound);
        if before.due != after.due {
            if let Some(due) = before.due {
                self.due.remove_mut(&(due, Arc::from(path)));
            }
            if let Some(due) = after.due {
                self.due.insert_mut((due, Arc::from(path)));
            }
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

    /// Updates `unclaimed` after a znode was created or deleted.
    fn index_unclaimed(&mut self, path: &str) {
        match self.item_at(path) {
            Some((item, true)) => self.unclaimed.insert_mut(item),
            Some((item, false)) => drop(self.unclaimed.remove_mut(&item)),
            None => {}
        }
    }

    /// The item that a consumer has, if this is its path or that of its claim, and whether it is there without a claim.
    fn item_at(&self, path: &str) -> Option<(TakenItem, bool)> {
        let (queue, name) = split_taken(path)?;
        let [taken, claims] = [TAKEN, CLAIMS].map(|part| format!("{queue}/{part}"));
        let exists = |parent: &str| self.get(&format!("{parent}/{name}")).is_some();
        let is_unclaimed = exists(&taken) && !exists(&claims);
        Some(((taken.into(), name.into()), is_unclaimed))
    }

    /// The names of the items here that no consumer has any more.
    pub(super) fn unclaimed<'a>(&'a self, taken: &'a str) -> impl Iterator<Item = &'a str> {
        let first = (Arc::from(taken), Arc::from(""));
        let from = self.unclaimed.range((Bound::Included(first), Bound::Unbounded));
        from.take_while(move |(parent, _)| **parent == *taken).map(|(_, name)| &**name)
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
        below.fold(Usage::default(), |usage, (_, znode)| usage.and((1, znode.data().len() as i64)))
    }

    /// Replaces a znode's data but leaves its stat unchanged, unlike a user's write.
    pub(super) fn set_quietly(&mut self, path: &str, data: &[u8]) {
        self.update(path, |znode| znode.set_data(data, |fields| fields.is_null = false));
    }

    /// Changes the times in a znode's stat, and nothing else.
    pub(super) fn move_times(&mut self, path: &str, moved: impl Fn(u64) -> u64) {
        self.update(path, |znode| {
            znode.change(|Parts { fields, .. }| {
                (fields.ctime, fields.mtime) = (moved(fields.ctime), moved(fields.mtime));
            });
        });
    }

    /// The containers that had children and have none any more, by path.
    pub(crate) fn unused_containers(&self) -> impl Iterator<Item = &str> {
        self.due.iter().take_while(|(at, _)| *at == 0).map(|(_, path)| &**path)
    }

    /// The znodes whose time to live is over at `time`, those overdue longest first.
    pub(crate) fn overdue(&self, time: u64) -> impl Iterator<Item = &str> {
        self.mortal().take_while(move |(at, _)| *at <= time).map(|(_, path)| &**path)
    }

    /// When the first time to live is over.
    pub(crate) fn first_due(&self) -> Option<u64> {
        self.mortal().next().map(|(at, _)| *at)
    }

    /// The znodes with a time to live, and when it is over, in this order.
    fn mortal(&self) -> impl Iterator<Item = &(u64, Arc<str>)> {
        self.due.range((Bound::Included((1, Arc::from(""))), Bound::Unbounded))
    }

    /// Changes a znode, and updates the totals of the tree.
    fn update(&mut self, path: &str, change: impl FnOnce(&mut Znode)) -> Option<Stat> {
        let (before, after, stat) = self.znodes.update(path.as_bytes(), |znode| {
            let before = ZnodeTotals::of(znode);
            change(znode);
            (before, ZnodeTotals::of(znode), znode.stat())
        })?;
        self.account(path, Some(before), Some(after));
        Some(stat)
    }
}

/// The share of one znode in the totals of the tree.
#[derive(Default)]
struct ZnodeTotals {
    hash: u64,
    due: Option<u64>,
    is_restricted: bool,
    bytes: u64,
    is_unsound: bool,
}

impl ZnodeTotals {
    fn of(znode: &Znode) -> ZnodeTotals {
        ZnodeTotals {
            hash: znode.hash(),
            due: znode.due(),
            is_restricted: znode.acl().is_some(),
            bytes: (znode.path().len() + znode.data().len()) as u64,
            is_unsound: !znode.is_sound(),
        }
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
struct ZnodeIter<'a> {
    tree: &'a Tree,
    first: Option<&'a Znode>,
    /// The last path, which begins with that of each znode in `rest`.
    path: String,
    /// The znodes on the way down, each with the length of its path and its remaining children.
    rest: Vec<(usize, Box<dyn Iterator<Item = &'a str> + 'a>)>,
}

impl<'a> ZnodeIter<'a> {
    fn add(&mut self, path: &str, children: impl Iterator<Item = &'a str> + 'a) {
        // The root's path is a slash, and a slash is added before each name.
        let length = if path == "/" { 0 } else { path.len() };
        self.rest.push((length, Box::new(children)));
    }
}

impl<'a> Iterator for ZnodeIter<'a> {
    type Item = (&'a str, &'a Znode);

    fn next(&mut self) -> Option<(&'a str, &'a Znode)> {
        let znode = match self.first.take() {
            Some(first) => first,
            None => loop {
                let (length, children) = self.rest.last_mut()?;
                if let Some(name) = children.next() {
                    self.path.truncate(*length);
                    self.path.push('/');
                    self.path.push_str(name);
                    // Each child is in the table: see the invariants.
                    break self.tree.get(&self.path)?;
                }
                self.rest.pop();
            },
        };
        let path = znode.path();
        if znode.has_children() {
            self.add(path, znode.children());
        }
        Some((path, znode))
    }
}

#[cfg(test)]
mod tests;
