//! The znodes of an image that is read, until all of them are put into the tree together.

use std::sync::Arc;

use super::children::Children;
use super::trie::{New, Trie};
use super::znode::{Fields, Parts, Znode};
use super::{Tree, ZnodeTotals};
use crate::types::acl::AccessList;
use crate::types::path;

/// Znodes that are not in the tree yet. Only the tree's totals include them already.
#[derive(Debug, Default)]
pub(in crate::machine) struct Image {
    znodes: Vec<New<Znode>>,
    /// All of them by their parents, in their order. Siblings follow each other in an image, so a parent is
    /// looked up and changed once for many children.
    siblings: Vec<Siblings>,
    /// The last access list: many znodes have the same.
    acl: Option<Arc<AccessList>>,
}

/// Znodes that follow each other below one parent.
#[derive(Debug)]
struct Siblings {
    parent: String,
    /// The place of the first one.
    first: usize,
    /// The names, with a slash before each.
    names: String,
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
        let Some(parent) = path::parent(path) else {
            // The root is nobody's child. Its children are after it.
            let (parent, names) = (path.to_owned(), String::new());
            return self.siblings.push(Siblings { parent, first: place + 1, names });
        };
        if self.siblings.last().is_none_or(|last| last.parent != parent) {
            let (parent, names) = (parent.to_owned(), String::new());
            self.siblings.push(Siblings { parent, first: place, names });
        }
        if let Some(siblings) = self.siblings.last_mut() {
            siblings.names.push('/');
            siblings.names.push_str(path::name(path));
        }
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
        let mut orphan = None;
        for Siblings { parent, first, names } in &self.siblings {
            if tree.get(parent).is_none() {
                orphan
                    .get_or_insert(path::join(parent, names.split('/').nth(1).unwrap_or_default()));
                continue;
            }
            let names = names.split('/').skip(1).zip(&is_known[*first..]);
            let new: Vec<&str> =
                names.filter(|(_, known)| !**known).map(|(name, _)| name).collect();
            if !new.is_empty() {
                tree.update(parent, |znode| znode.change(|parts| parts.children.insert_all(new)));
            }
        }
        orphan.map_or(Ok(()), |orphan| Err(format!("{orphan}: its parent does not exist")))
    }
}

/// The share of a znode that was read.
fn share(znode: &Znode) -> ZnodeTotals {
    let share = ZnodeTotals::of(znode);
    ZnodeTotals { due: share.due.filter(|_| !planted!(DueForgottenAtSnapshot)), ..share }
}
