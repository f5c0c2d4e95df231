//! The znodes of an image that is read, until all of them are put into the tree together.

use std::sync::Arc;

use super::children::Children;
use super::trie::{New, Trie};
use super::znode::{Fields, Parts, Znode};
use super::{Tree, ZnodeTotals};
use crate::types::acl::AccessList;
use crate::types::path;
use crate::types::queue::{CLAIMS, TAKEN};

/// Znodes that are not in the tree yet. Only the tree's totals include them already.
#[derive(Debug, Default)]
pub(in crate::machine) struct Image {
    znodes: Vec<New<Znode>>,
    /// All of them by their parents, in their order. In a full image siblings follow each other, so a parent is
    /// looked up and changed once for many children.
    siblings: Vec<Siblings>,
    /// The parents and the names of all siblings.
    names: String,
    /// The last access list: many znodes have the same.
    acl: Option<Arc<AccessList>>,
}

/// Znodes that follow each other below one parent.
#[derive(Debug)]
struct Siblings {
    /// The place of the first one.
    first: usize,
    /// Where the parent's path begins, and where it ends: the names follow, with a slash before each.
    parent: usize,
    parent_end: usize,
}

impl Image {
    pub(in crate::machine) fn is_empty(&self) -> bool {
        self.znodes.is_empty()
    }

    /// Adds a znode with a valid path. One that is at this path is replaced, and keeps its children.
    pub(in crate::machine) fn add(
        &mut self,
        tree: &mut Tree,
        path: &str,
        data: &[u8],
        fields: Fields,
        acl: Option<AccessList>,
    ) {
        let acl = acl.map(|acl| match &self.acl {
            Some(last) if **last == acl => Arc::clone(last),
            _ => Arc::clone(self.acl.insert(tree.shared(path, acl))),
        });
        let place = self.znodes.len();
        let znode = Znode::new(path, data, Parts { fields, acl, children: Children::default() });
        tree.account(path, None, Some(share(&znode)));
        tree.index_counted(path, true);
        // Memory holds far fewer than 2^32 znodes.
        self.znodes.push(New::of(znode, place as u32));
        // The root is nobody's child. Its own begin another group after it.
        let (first, parent, name) = match path::parent(path) {
            Some(parent) => (place, parent, Some(path::name(path))),
            None => (place + 1, path, None),
        };
        let last = self.siblings.last();
        let is_same = |last: &Siblings| &self.names[last.parent..last.parent_end] == parent;
        if name.is_none() || !last.is_some_and(is_same) {
            let begin = self.names.len();
            self.names.push_str(parent);
            self.siblings.push(Siblings { first, parent: begin, parent_end: self.names.len() });
        }
        let Some(name) = name else { return };
        self.names.push('/');
        self.names.push_str(name);
    }

    /// Puts the znodes into the tree. Calls `replaced` with each znode that was there, and the new one.
    ///
    /// # Errors
    /// If the parent of a znode does not exist. All znodes are in the tree then, too.
    pub(in crate::machine) fn finish(
        self,
        tree: &mut Tree,
        mut replaced: impl FnMut(&Znode, &Znode),
    ) -> Result<(), String> {
        let mut is_known = vec![false; self.znodes.len()];
        let mut znodes = std::mem::replace(&mut tree.znodes, Trie::new());
        znodes.insert_all(self.znodes, |former, znode, place| {
            is_known[place as usize] = true;
            tree.account(znode.path(), Some(share(znode)), None);
            tree.account(former.path(), Some(ZnodeTotals::of(former)), None);
            if let Some(children) = former.children_set().filter(|children| children.len() > 0) {
                znode.change(|parts| parts.children = children.clone());
            }
            tree.account(znode.path(), None, Some(share(znode)));
            replaced(former, znode);
        });
        tree.znodes = znodes;
        // Those that were in the tree are in their parents already. The other children of one parent are put
        // together, since a delta has them in the order of hashes.
        let ends = self.siblings.iter().skip(1).map(|next| next.parent).chain([self.names.len()]);
        let mut groups = Vec::new();
        for (Siblings { first, parent, parent_end }, end) in self.siblings.iter().zip(ends) {
            let (parent, names) =
                (&self.names[*parent..*parent_end], &self.names[*parent_end..end]);
            let names = names.split('/').skip(1).zip(&is_known[*first..]);
            let new = names.filter(|(_, is_known)| !**is_known).map(|(name, _)| name);
            if new.clone().next().is_some() {
                groups.push((parent, new));
            }
        }
        groups.sort_by_key(|(parent, _)| *parent);
        let mut orphan = None;
        for groups in groups.chunk_by(|(one, _), (other, _)| one == other) {
            let parent = groups[0].0;
            let names: Vec<&str> = groups.iter().flat_map(|(_, new)| new.clone()).collect();
            if tree.get(parent).is_none() {
                orphan.get_or_insert(path::join(parent, names[0]));
                continue;
            }
            if [TAKEN, CLAIMS].contains(&path::name(parent)) {
                names.iter().for_each(|name| tree.index_unclaimed(&path::join(parent, name)));
            }
            tree.update(parent, |znode| znode.change(|parts| parts.children.insert_all(names)));
        }
        orphan.map_or(Ok(()), |orphan| Err(format!("{orphan}: its parent does not exist")))
    }
}

/// The share of a znode that was read.
fn share(znode: &Znode) -> ZnodeTotals {
    ZnodeTotals::of(znode)
}
