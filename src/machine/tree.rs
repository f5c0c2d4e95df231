//! The tree of znodes: an immutable value that is cheap to copy and to change.
//!
//! A copy shares all znodes with its original; a change copies the znodes on
//! the way from the root and nothing else, and not even those when no copy of
//! them is around. So every batch can be published to readers, who see a whole
//! state and hold up nobody.
//!
//! The hash of the tree is the sum of the hashes of its znodes, each over its
//! path and all that it is made of, and is kept up to date by every change.
//! The number of children is not in it, since each child is.

use std::sync::Arc;

use rpds::RedBlackTreeMapSync;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::machine::command::OpError;
use crate::path;
use crate::znode::{CreateMode, SessionId, Stat, Zxid};

/// The znodes that every tree has. They cannot be deleted.
pub(crate) const RESERVED: [&str; 4] = ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"];

#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: Arc<Znode>,
    zxid: Zxid,
    hash: u64,
    len: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Znode {
    data: Arc<[u8]>,
    data_hash: u64,
    hash: u64,
    czxid: Zxid,
    mzxid: Zxid,
    pzxid: Zxid,
    ctime: u64,
    mtime: u64,
    version: u64,
    aversion: u64,
    /// How many children were ever created here: the next sequence number.
    creates: u64,
    owner: Option<SessionId>,
    children: RedBlackTreeMapSync<Arc<str>, Arc<Znode>>,
}

/// All of a znode but its place and its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ZnodeFields {
    pub(crate) data: Arc<[u8]>,
    pub(crate) czxid: Zxid,
    pub(crate) mzxid: Zxid,
    pub(crate) pzxid: Zxid,
    pub(crate) ctime: u64,
    pub(crate) mtime: u64,
    pub(crate) version: u64,
    pub(crate) aversion: u64,
    pub(crate) creates: u64,
    pub(crate) owner: Option<SessionId>,
}

impl Znode {
    pub(crate) fn data(&self) -> &Arc<[u8]> {
        &self.data
    }

    pub(crate) fn owner(&self) -> Option<SessionId> {
        self.owner
    }

    pub(crate) fn stat(&self) -> Stat {
        let children = self.children.size();
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            // Creates plus deletes; the deletes are the creates that are not here any more.
            cversion: (2 * self.creates).saturating_sub(children as u64),
            aversion: self.aversion,
            ephemeral_owner: self.owner,
            // At most the limit of a request, far below 4 GiB.
            data_length: self.data.len() as u32,
            num_children: u32::try_from(children).unwrap_or(u32::MAX),
        }
    }

    /// The names of the children, sorted.
    pub(crate) fn children(&self) -> impl Iterator<Item = &str> {
        self.children.keys().map(|name| &**name)
    }

    pub(crate) fn fields(&self) -> ZnodeFields {
        ZnodeFields {
            data: Arc::clone(&self.data),
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            aversion: self.aversion,
            creates: self.creates,
            owner: self.owner,
        }
    }

    fn new(fields: ZnodeFields) -> Znode {
        Znode {
            data_hash: xxh3_64(&fields.data),
            data: fields.data,
            hash: 0,
            czxid: fields.czxid,
            mzxid: fields.mzxid,
            pzxid: fields.pzxid,
            ctime: fields.ctime,
            mtime: fields.mtime,
            version: fields.version,
            aversion: fields.aversion,
            creates: fields.creates,
            owner: fields.owner,
            children: RedBlackTreeMapSync::new_sync(),
        }
    }

    fn computed_hash(&self, path: &str) -> u64 {
        let fields = [
            self.data_hash,
            self.czxid,
            self.mzxid,
            self.pzxid,
            self.ctime,
            self.mtime,
            self.version,
            self.aversion,
            self.creates,
            u64::from(self.owner.is_some()),
            self.owner.map_or(0, SessionId::number),
        ];
        let mut bytes = [0; 88];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        xxh3_64_with_seed(&bytes, xxh3_64(path.as_bytes()))
    }

    /// Brings the hash up to date, and with it the tree's.
    fn rehash(&mut self, path: &str, tree_hash: &mut u64) {
        *tree_hash = tree_hash.wrapping_sub(self.hash);
        self.hash = self.computed_hash(path);
        *tree_hash = tree_hash.wrapping_add(self.hash);
    }
}

impl Tree {
    /// The tree of a new cluster: the reserved znodes.
    pub(crate) fn new() -> Tree {
        let mut tree = Tree::bare();
        for path in &RESERVED[1..] {
            let creation = Creation {
                owner: None,
                zxid: 0,
                time: 0,
            };
            tree.insert_new(path, Arc::from([]), creation);
        }
        tree
    }

    /// Nothing but an empty root.
    pub(crate) fn bare() -> Tree {
        let mut root = Znode::new(ZnodeFields {
            data: Arc::from([]),
            czxid: 0,
            mzxid: 0,
            pzxid: 0,
            ctime: 0,
            mtime: 0,
            version: 0,
            aversion: 0,
            creates: 0,
            owner: None,
        });
        let mut hash = 0;
        root.rehash("/", &mut hash);
        Tree {
            root: Arc::new(root),
            zxid: 0,
            hash,
            len: 1,
        }
    }

    pub(crate) fn zxid(&self) -> Zxid {
        self.zxid
    }

    pub(crate) fn set_zxid(&mut self, zxid: Zxid) {
        self.zxid = zxid;
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// How many znodes there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Znode> {
        if !path.starts_with('/') {
            return None;
        }
        let mut znode = &*self.root;
        for name in path::components(path) {
            znode = znode.children.get(name)?;
        }
        Some(znode)
    }

    fn get_mut(&mut self, path: &str) -> Option<&mut Znode> {
        let mut znode = Arc::make_mut(&mut self.root);
        for name in path::components(path) {
            znode = Arc::make_mut(znode.children.get_mut(name)?);
        }
        Some(znode)
    }

    /// The next znode after `path` in depth-first order, siblings by name.
    pub(crate) fn next_after(&self, path: &str) -> Option<(String, &Znode)> {
        if let Some((name, child)) = self.get(path)?.children.first() {
            return Some((path::join(path, name), child));
        }
        let mut at = path;
        loop {
            let parent = path::parent(at)?;
            let after = (
                std::ops::Bound::Excluded(path::name(at)),
                std::ops::Bound::Unbounded,
            );
            let siblings = &self.get(parent)?.children;
            if let Some((name, child)) = siblings.range::<str, _>(after).next() {
                return Some((path::join(parent, name), child));
            }
            at = parent;
        }
    }

    pub(crate) fn create(
        &mut self,
        path: &str,
        data: Arc<[u8]>,
        mode: CreateMode,
        creation: Creation,
    ) -> Result<(String, Stat), OpError> {
        if path == "/" && !mode.is_sequential() {
            return Err(OpError::NodeExists {
                path: path.to_owned(),
            });
        }
        // The parent of a sequential znode is that of its whole name: of `/q/`, it is `/q`.
        let parent = &path[..path.rfind('/').unwrap_or(0)];
        let parent = if parent.is_empty() { "/" } else { parent };
        let Some(above) = self.get(parent) else {
            return Err(OpError::NoNode {
                path: parent.to_owned(),
            });
        };
        let path = if mode.is_sequential() {
            format!("{path}{:010}", above.creates)
        } else {
            path.to_owned()
        };
        if above.children.contains_key(path::name(&path)) {
            return Err(OpError::NodeExists { path });
        }
        if above.owner.is_some() {
            return Err(OpError::NoChildrenForEphemerals {
                path: parent.to_owned(),
            });
        }
        let stat = self.insert_new(&path, data, creation);
        Ok((path, stat))
    }

    /// Adds a znode whose parent exists and which does not.
    fn insert_new(&mut self, path: &str, data: Arc<[u8]>, creation: Creation) -> Stat {
        let Creation { owner, zxid, time } = creation;
        let mut znode = Znode::new(ZnodeFields {
            data,
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: time,
            mtime: time,
            version: 0,
            aversion: 0,
            creates: 0,
            owner,
        });
        let mut hash = self.hash;
        znode.rehash(path, &mut hash);
        let stat = znode.stat();
        let parent_path = path::parent(path).unwrap_or("/");
        if let Some(parent) = self.get_mut(parent_path) {
            parent.creates += 1;
            parent.pzxid = zxid;
            parent
                .children
                .insert_mut(Arc::from(path::name(path)), Arc::new(znode));
            parent.rehash(parent_path, &mut hash);
            self.len += 1;
            self.hash = hash;
        }
        stat
    }

    pub(crate) fn set(
        &mut self,
        path: &str,
        data: Arc<[u8]>,
        version: Option<u64>,
        zxid: Zxid,
        time: u64,
    ) -> Result<Stat, OpError> {
        self.check(path, version)?;
        let mut hash = self.hash;
        let Some(znode) = self.get_mut(path) else {
            return Err(OpError::NoNode {
                path: path.to_owned(),
            });
        };
        znode.data_hash = xxh3_64(&data);
        znode.data = data;
        znode.version += 1;
        znode.mzxid = zxid;
        znode.mtime = time;
        znode.rehash(path, &mut hash);
        let stat = znode.stat();
        self.hash = hash;
        Ok(stat)
    }

    /// Deletes a znode and says whose ephemeral it was.
    pub(crate) fn delete(
        &mut self,
        path: &str,
        version: Option<u64>,
        zxid: Zxid,
    ) -> Result<Option<SessionId>, OpError> {
        if RESERVED.contains(&path) {
            return Err(OpError::Reserved {
                path: path.to_owned(),
            });
        }
        let znode = self.check(path, version)?;
        if !znode.children.is_empty() {
            return Err(OpError::NotEmpty {
                path: path.to_owned(),
            });
        }
        let owner = znode.owner;
        let mut hash = self.hash.wrapping_sub(znode.hash);
        let parent_path = path::parent(path).unwrap_or("/");
        if let Some(parent) = self.get_mut(parent_path) {
            parent.children.remove_mut(path::name(path));
            parent.pzxid = zxid;
            parent.rehash(parent_path, &mut hash);
            self.len -= 1;
            self.hash = hash;
        }
        Ok(owner)
    }

    pub(crate) fn check(&self, path: &str, version: Option<u64>) -> Result<&Znode, OpError> {
        let Some(znode) = self.get(path) else {
            return Err(OpError::NoNode {
                path: path.to_owned(),
            });
        };
        match version {
            Some(expected) if expected != znode.version => Err(OpError::BadVersion {
                path: path.to_owned(),
                expected,
                actual: znode.version,
            }),
            _ => Ok(znode),
        }
    }

    /// Puts a znode in its place as it was saved, keeping the children that are there already.
    /// `false` if its parent is missing.
    pub(crate) fn restore(&mut self, path: &str, fields: ZnodeFields) -> bool {
        let mut hash = self.hash;
        let mut znode = Znode::new(fields);
        if let Some(present) = self.get_mut(path) {
            znode.children = std::mem::take(&mut present.children);
            znode.hash = present.hash;
            znode.rehash(path, &mut hash);
            *present = znode;
            self.hash = hash;
            return true;
        }
        let Some(parent) = path::parent(path).and_then(|parent| self.get_mut(parent)) else {
            return false;
        };
        znode.rehash(path, &mut hash);
        parent
            .children
            .insert_mut(Arc::from(path::name(path)), Arc::new(znode));
        self.len += 1;
        self.hash = hash;
        true
    }

    /// Takes a znode away, with all below it, as it was saved to be gone.
    pub(crate) fn restore_gone(&mut self, path: &str) {
        let Some(parent) = path::parent(path) else {
            return;
        };
        let mut gone = Vec::new();
        let mut at = self.get(path).map(|znode| (path.to_owned(), znode));
        while let Some((below, znode)) = at {
            gone.push(znode.hash);
            let next = self.next_after(&below);
            at = next.filter(|(next, _)| {
                next.strip_prefix(path)
                    .is_some_and(|rest| rest.starts_with('/'))
            });
        }
        if gone.is_empty() {
            return;
        }
        if let Some(parent) = self.get_mut(parent) {
            parent.children.remove_mut(path::name(path));
        }
        self.len -= gone.len();
        self.hash = gone
            .iter()
            .fold(self.hash, |hash, gone| hash.wrapping_sub(*gone));
    }

    /// Recomputes all that is kept up to date otherwise.
    ///
    /// # Errors
    /// Says what does not agree.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        let (mut hash, mut len) = (0_u64, 0);
        let mut at = Some(("/".to_owned(), &*self.root));
        while let Some((path, znode)) = at {
            let own = znode.computed_hash(&path);
            if own != znode.hash || xxh3_64(&znode.data) != znode.data_hash {
                return Err(format!("{path}: a stale hash"));
            }
            if (znode.creates as usize) < znode.children.size() {
                return Err(format!("{path}: more children than were created"));
            }
            hash = hash.wrapping_add(own);
            len += 1;
            at = self.next_after(&path);
        }
        if (hash, len) != (self.hash, self.len) {
            return Err("the tree's hash or size is stale".to_owned());
        }
        Ok(())
    }
}

/// What a new znode gets besides its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Creation {
    pub(crate) owner: Option<SessionId>,
    pub(crate) zxid: Zxid,
    pub(crate) time: u64,
}
