//! What writes have replaced, so that they can be undone, and the trees of the past be shown.
//!
//! Keeping whole trees would keep the nodes of the table that each write copies: several times the size of
//! what has changed. So only the former znodes are kept, which no write copies anyway, and a past tree is the
//! present one with the later changes undone, newest first. The two share everything that is equal in both.
//!
//! While it is on ([`Tree::record`]), each change of the tree adds a [`Former`]. A rollback to a clone also
//! rolls this list back. The machine takes the list after each write. What one write may leave is bounded:
//! more is dropped, and the write cannot be undone.

use std::sync::Arc;

use rpds::ListSync;

use super::znode::Parts;
use super::{Fields, Share, Tree, Znode};
use crate::types::path;
use crate::types::znode::{Stat, Zxid};

/// What one change has replaced.
#[derive(Debug)]
pub(super) enum Former {
    /// No znode.
    Created { path: Box<str>, parent: Option<Box<Fields>> },
    /// This znode.
    Deleted { znode: Znode, parent: Option<Box<Fields>> },
    /// This znode, here without its children: they have not changed.
    Changed { znode: Znode },
}

/// About how many bytes an entry of the list takes, with its two allocations.
const ENTRY_BYTES: usize = size_of::<Former>() + 64;

impl Former {
    /// About how many bytes it takes, with the data and the access list that nobody else may have any more.
    fn bytes(&self) -> usize {
        let of_parent =
            |parent: &Option<Box<Fields>>| parent.as_ref().map_or(0, |_| size_of::<Fields>() + 16);
        ENTRY_BYTES
            + match self {
                Former::Created { path, parent } => path.len() + 16 + of_parent(parent),
                Former::Deleted { znode, parent } => znode.footprint() + of_parent(parent),
                Former::Changed { znode } => znode.footprint(),
            }
    }

    fn path(&self) -> &str {
        match self {
            Former::Created { path, .. } => path,
            Former::Deleted { znode, .. } | Former::Changed { znode } => znode.path(),
        }
    }
}

/// The former znodes of the write under way.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    /// The newest comes first. A persistent list, so that a rollback costs nothing.
    formers: ListSync<Former>,
    bytes: usize,
    bytes_max: usize,
    /// It was too much.
    is_over: bool,
}

impl Recorder {
    fn new(bytes_max: usize) -> Recorder {
        Recorder { formers: ListSync::new_sync(), bytes: 0, bytes_max, is_over: false }
    }

    fn add(&mut self, former: Former) {
        if self.is_over {
            return;
        }
        self.bytes += former.bytes();
        self.formers.push_front_mut(former);
        if self.bytes > self.bytes_max {
            *self = Recorder { is_over: true, ..Recorder::new(self.bytes_max) };
        }
    }
}

/// How one write is undone.
#[derive(Clone, Debug)]
pub(crate) struct Undo {
    /// The write.
    pub(crate) zxid: Zxid,
    /// About how many bytes it takes.
    pub(crate) bytes: usize,
    /// `None`: it cannot be, since it was too large.
    formers: Option<ListSync<Former>>,
}

impl Undo {
    pub(crate) fn is_possible(&self) -> bool {
        self.formers.is_some()
    }
}

/// Which part of a past tree is needed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    All,
    /// This znode and the names of its children.
    Znode(&'a str),
    /// This znode and all below it.
    Below(&'a str),
}

impl Part<'_> {
    fn needs(self, former: &Former) -> bool {
        match self {
            Part::All => true,
            Part::Below(root) => path::is_below(former.path(), root),
            Part::Znode(of) => {
                let is_child = || path::parent(former.path()) == Some(of);
                former.path() == of || (!matches!(former, Former::Changed { .. }) && is_child())
            }
        }
    }
}

impl Tree {
    /// From now on, what is replaced is recorded, up to so many bytes for each write; 0: no longer.
    pub(in crate::machine) fn record(&mut self, bytes_max: usize) {
        self.recorder = (bytes_max > 0).then(|| Recorder::new(bytes_max));
    }

    /// How the write that has just taken this zxid is undone; `None` if it has changed nothing, or nothing is
    /// recorded.
    pub(in crate::machine) fn take_undo(&mut self, zxid: Zxid) -> Option<Undo> {
        let recorder = self.recorder.as_mut()?;
        if recorder.formers.is_empty() && !recorder.is_over {
            return None;
        }
        let taken = std::mem::replace(recorder, Recorder::new(recorder.bytes_max));
        let formers = (!taken.is_over).then_some(taken.formers);
        Some(Undo { zxid, bytes: taken.bytes + size_of::<Undo>(), formers })
    }

    fn undo(&mut self, former: &Former) {
        match former {
            Former::Created { path, parent } => {
                self.take(path, |fields| restore(fields, parent));
            }
            Former::Deleted { znode, parent } => {
                let path = znode.path();
                self.account(path, None, Some(Share::of(znode)));
                self.znodes.insert(znode.clone());
                self.index_counted(path, true);
                self.change_parent(path, |Parts { fields, children, .. }| {
                    children.insert(path::name(path));
                    restore(fields, parent);
                });
            }
            Former::Changed { znode } => {
                self.update(znode.path(), |present| present.revert(znode));
            }
        }
    }

    pub(super) fn note_created(&mut self, path: &str, parent: Option<Fields>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.add(Former::Created { path: path.into(), parent: parent.map(Box::new) });
        }
    }

    pub(super) fn note_deleted(&mut self, znode: Znode, parent: Option<Fields>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.add(Former::Deleted { znode, parent: parent.map(Box::new) });
        }
    }

    /// As [`Tree::update`], for changes that are recorded.
    pub(super) fn change_znode(
        &mut self,
        path: &str,
        change: impl FnOnce(&mut Znode),
    ) -> Option<Stat> {
        let (records, mut former) = (self.recorder.is_some(), None);
        let stat = self.update(path, |znode| {
            former = records.then(|| znode.without_children());
            change(znode);
        });
        if let (Some(recorder), Some(znode)) = (&mut self.recorder, former) {
            recorder.add(Former::Changed { znode });
        }
        stat
    }
}

fn restore(fields: &mut Fields, former: &Option<Box<Fields>>) {
    if let Some(former) = former {
        *fields = **former;
    }
}

/// The writes whose undoing shows a past tree, and the present one. [`PastTree::tree`] takes time in
/// proportion to the changes since then.
#[derive(Clone, Debug)]
pub(crate) struct PastTree {
    pub(crate) present: Tree,
    pub(crate) zxid: Zxid,
    /// These have all writes after `zxid`, and perhaps earlier ones, oldest first.
    pub(crate) chunks: Vec<Arc<Vec<Undo>>>,
}

impl PastTree {
    /// The tree of that time, or a part of it: what is elsewhere is then not consistent.
    pub(crate) fn tree(&self, part: Part<'_>) -> Tree {
        // Nothing exceeds this limit.
        self.tree_within(part, usize::MAX).unwrap_or_else(|_| self.present.clone())
    }

    /// The same, if at most so many changes have to be undone. Otherwise returns the oldest zxid for which that is
    /// enough.
    pub(crate) fn tree_within(&self, part: Part<'_>, changes_max: usize) -> Result<Tree, Zxid> {
        let mut past = Tree { recorder: None, ..self.present.clone() };
        let kept = unless!(PastOneLate, self.zxid, self.zxid + 1);
        let newest_first = self.chunks.iter().rev().flat_map(|chunk| chunk.iter().rev());
        let mut undone = 0;
        for undo in newest_first.take_while(|undo| undo.zxid > kept) {
            let formers = undo.formers.iter().flat_map(ListSync::iter);
            for former in formers.filter(|former| part.needs(former)) {
                undone += 1;
                if undone > changes_max {
                    return Err(undo.zxid);
                }
                past.undo(former);
            }
        }
        past.zxid = self.zxid;
        Ok(past)
    }
}

impl PartialEq for PastTree {
    fn eq(&self, other: &PastTree) -> bool {
        (&self.present, self.zxid) == (&other.present, other.zxid)
    }
}

impl Eq for PastTree {}
