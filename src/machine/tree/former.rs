//! What writes have replaced, so that they can be undone, and the trees of the past be shown.
//!
//! Keeping whole trees would keep the nodes of the table that each write copies: several times the size of
//! what has changed. So only the former znodes are kept, which no write copies anyway, and a past tree is the
//! present one with the later changes undone, newest first. The two share everything that is equal in both.
//!
//! While it is on ([`Tree::record`]), each change of the tree adds a [`Former`]. The machine takes them after each
//! write. A clone of a tree begins with none, so a rollback to the state before the write forgets all of them, and one
//! to a state within it uses [`Tree::mark_formers`]. What one write may leave is bounded: more is dropped, and the write
//! cannot be undone.

use std::sync::Arc;

use super::znode::Parts;
use super::{Fields, Tree, Znode, ZnodeTotals};
use crate::types::path;
use crate::types::znode::{Stat, Zxid};

/// An empty list of more than so many is not kept for the next write.
pub(in crate::machine) const KEPT_MAX: usize = 4096;

/// What one change has replaced.
#[derive(Clone, Debug)]
enum Former {
    /// No znode.
    Created { path: Box<str>, parent: Option<Box<Fields>> },
    /// This znode.
    Deleted { znode: Znode, parent: Option<Box<Fields>> },
    /// This znode, here without its children: they have not changed.
    Changed { znode: Znode },
    /// It is not known, since the write was too large.
    Lost,
}

impl Former {
    /// About how many bytes it takes, with the data and the access list that nobody else may have any more.
    fn bytes(&self) -> usize {
        let of_parent =
            |parent: &Option<Box<Fields>>| parent.as_ref().map_or(0, |_| size_of::<Fields>() + 16);
        size_of::<Undo>()
            + match self {
                Former::Created { path, parent } => path.len() + 16 + of_parent(parent),
                Former::Deleted { znode, parent } => znode.footprint() + of_parent(parent),
                Former::Changed { znode } => znode.footprint(),
                Former::Lost => 0,
            }
    }

    fn path(&self) -> &str {
        match self {
            Former::Created { path, .. } => path,
            Former::Deleted { znode, .. } | Former::Changed { znode } => znode.path(),
            Former::Lost => "",
        }
    }
}

/// The former znodes of the write under way, oldest first.
#[derive(Debug)]
pub(super) struct Recorder {
    formers: Vec<Former>,
    bytes: usize,
    bytes_max: usize,
    /// It was too much.
    is_over: bool,
}

/// Without any former znodes.
impl Clone for Recorder {
    fn clone(&self) -> Recorder {
        Recorder::new(self.bytes_max)
    }
}

impl Recorder {
    fn new(bytes_max: usize) -> Recorder {
        Recorder { formers: Vec::new(), bytes: 0, bytes_max, is_over: false }
    }

    fn add(&mut self, former: Former) {
        if self.is_over {
            return;
        }
        self.bytes += former.bytes();
        self.formers.push(former);
        if self.bytes > self.bytes_max {
            *self = Recorder { is_over: true, ..Recorder::new(self.bytes_max) };
        }
    }
}

/// How one change is undone.
#[derive(Clone, Debug)]
pub(crate) struct Undo {
    /// The write.
    pub(crate) zxid: Zxid,
    former: Former,
}

impl Undo {
    /// Whether the write can be undone.
    pub(crate) fn is_possible(&self) -> bool {
        !matches!(self.former, Former::Lost)
    }

    /// About how many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.former.bytes()
    }
}

/// Which part of a past tree is needed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TreePart<'a> {
    All,
    /// This znode and the names of its children.
    Znode(&'a str),
    /// This znode and all below it.
    Below(&'a str),
}

impl TreePart<'_> {
    fn needs(self, former: &Former) -> bool {
        match self {
            TreePart::All => true,
            TreePart::Below(root) => path::is_below(former.path(), root),
            TreePart::Znode(of) => {
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

    /// Adds how the write that has just taken this zxid is undone.
    pub(in crate::machine) fn take_undos(&mut self, zxid: Zxid, undos: &mut Vec<Undo>) {
        let Some(recorder) = &mut self.recorder else { return };
        if std::mem::take(&mut recorder.is_over) {
            recorder.formers.clear();
            recorder.formers.push(Former::Lost);
        }
        recorder.bytes = 0;
        undos.extend(recorder.formers.drain(..).map(|former| Undo { zxid, former }));
        if recorder.formers.capacity() > KEPT_MAX {
            recorder.formers = Vec::new();
        }
    }

    /// How much was recorded of the write under way.
    pub(in crate::machine) fn mark_formers(&self) -> usize {
        self.recorder.as_ref().map_or(0, |recorder| recorder.formers.len())
    }

    /// Goes back to a clone that was made within the write under way, when so much was recorded.
    pub(in crate::machine) fn roll_back(&mut self, clone: Tree, mark: usize) {
        let mut recorder = self.recorder.take();
        if let Some(recorder) = &mut recorder {
            let undone = recorder.formers.drain(mark.min(recorder.formers.len())..);
            recorder.bytes -= undone.map(|former| former.bytes()).sum::<usize>();
        }
        *self = Tree { recorder, ..clone };
    }

    fn undo(&mut self, former: &Former) {
        match former {
            Former::Created { path, parent } => {
                self.take(path, |fields| restore(fields, parent));
            }
            Former::Deleted { znode, parent } => {
                let path = znode.path();
                self.account(path, None, Some(ZnodeTotals::of(znode)));
                self.znodes.insert(znode.clone());
                self.index_counted(path, true);
                self.index_unclaimed(path);
                self.change_parent(path, |Parts { fields, children, .. }| {
                    children.insert(path::name(path));
                    restore(fields, parent);
                });
            }
            Former::Changed { znode } => {
                self.update(znode.path(), |present| present.revert(znode));
            }
            Former::Lost => {}
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

/// The changes whose undoing shows a past tree, and the present one. [`PastTree::tree`] takes time in
/// proportion to the changes since then.
#[derive(Clone, Debug)]
pub(crate) struct PastTree {
    pub(crate) present: Tree,
    pub(crate) zxid: Zxid,
    /// These have all changes after `zxid`, and perhaps earlier ones, oldest first.
    pub(crate) chunks: Vec<Arc<Vec<Undo>>>,
}

impl PastTree {
    /// The tree of that time, or a part of it: what is elsewhere is then not consistent.
    pub(crate) fn tree(&self, part: TreePart<'_>) -> Tree {
        // Nothing exceeds this limit.
        self.tree_within(part, usize::MAX).unwrap_or_else(|_| self.present.clone())
    }

    /// The same, if at most so many changes have to be undone. Otherwise returns the oldest zxid for which that is
    /// enough.
    pub(crate) fn tree_within(&self, part: TreePart<'_>, changes_max: usize) -> Result<Tree, Zxid> {
        let mut past = Tree { recorder: None, ..self.present.clone() };
        let kept = unless!(PastOneLate, self.zxid, self.zxid + 1);
        let newest_first = self.chunks.iter().rev().flat_map(|chunk| chunk.iter().rev());
        let mut undone = 0;
        for undo in newest_first.take_while(|undo| undo.zxid > kept) {
            if !part.needs(&undo.former) {
                continue;
            }
            undone += 1;
            if undone > changes_max {
                return Err(undo.zxid);
            }
            past.undo(&undo.former);
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
