//! The names in directories: what processes see, and what is on the device.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use super::cut::Survivors;
use super::random::Random;

/// The number of a file or a directory.
pub(super) type NodeId = u64;

pub(super) const ROOT: NodeId = 0;

/// A directory and a name in it.
pub(super) type Name = (NodeId, OsString);

/// A change of names: at most one is removed, and at most one added, for the same file or directory.
#[derive(Clone, Debug)]
struct NameChange {
    /// Its place in the order of writing of the whole device.
    order: u64,
    node: NodeId,
    removed: Option<Name>,
    added: Option<Name>,
}

/// The names in each directory.
#[derive(Clone, Debug, Default)]
pub(super) struct DirectoryEntries(BTreeMap<NodeId, BTreeMap<OsString, NodeId>>);

impl DirectoryEntries {
    pub(super) fn find(&self, directory: NodeId, name: &OsStr) -> Option<NodeId> {
        self.0.get(&directory)?.get(name).copied()
    }

    pub(super) fn in_directory(
        &self,
        directory: NodeId,
    ) -> impl Iterator<Item = (&OsString, NodeId)> {
        self.0.get(&directory).into_iter().flatten().map(|(name, node)| (name, *node))
    }

    /// Applies a change, unless what it removes is not there.
    fn apply(&mut self, change: &NameChange) {
        if let Some((directory, name)) = &change.removed {
            if self.find(*directory, name) != Some(change.node) {
                return;
            }
            if let Some(names) = self.0.get_mut(directory) {
                names.remove(name);
            }
        }
        if let Some((directory, name)) = &change.added {
            self.0.entry(*directory).or_default().insert(name.clone(), change.node);
        }
    }

    /// All files and directories that can be reached from the root.
    fn reachable(&self, from: NodeId, found: &mut BTreeSet<NodeId>) {
        if found.insert(from) {
            for (_, node) in self.in_directory(from) {
                self.reachable(node, found);
            }
        }
    }
}

/// All names of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub(super) visible: DirectoryEntries,
    durable: DirectoryEntries,
    /// What no sync has made durable, in order.
    pending: Vec<NameChange>,
}

impl Names {
    pub(super) fn add(&mut self, order: u64, node: NodeId, added: Name) {
        self.change(NameChange { order, node, removed: None, added: Some(added) });
    }

    pub(super) fn remove(&mut self, order: u64, node: NodeId, removed: Name) {
        self.change(NameChange { order, node, removed: Some(removed), added: None });
    }

    pub(super) fn rename(&mut self, order: u64, node: NodeId, from: Name, to: Name) {
        self.change(NameChange { order, node, removed: Some(from), added: Some(to) });
    }

    fn change(&mut self, change: NameChange) {
        self.visible.apply(&change);
        self.pending.push(change);
    }

    /// Makes the names in a directory durable, and the earlier changes of the same files and names.
    /// Returns how many changes those are.
    pub(super) fn sync(&mut self, directory: NodeId) -> usize {
        if self.pending.is_empty() {
            return 0;
        }
        let mut nodes = BTreeSet::new();
        let mut names: BTreeSet<Name> = BTreeSet::new();
        let mut needed = vec![false; self.pending.len()];
        for (change, needed) in self.pending.iter().zip(&mut needed).rev() {
            let mut both = change.removed.iter().chain(&change.added);
            *needed = both.any(|name| name.0 == directory || names.contains(name))
                || nodes.contains(&change.node);
            if *needed {
                nodes.insert(change.node);
                names.extend(change.removed.iter().chain(&change.added).cloned());
            }
        }
        let mut needed = needed.into_iter();
        let before = self.pending.len();
        let durable = &mut self.durable;
        self.pending.retain(|change| {
            let is_needed = needed.next() == Some(true);
            if is_needed {
                durable.apply(change);
            }
            !is_needed
        });
        before - self.pending.len()
    }

    /// The power is cut: only durable names are left, and those changes that survive.
    pub(super) fn cut(&mut self, survivors: Survivors, random: &mut Random) {
        for change in std::mem::take(&mut self.pending) {
            let survives = match survivors {
                Survivors::None => false,
                Survivors::All => true,
                Survivors::Until(last) => change.order <= last,
                Survivors::Some | Survivors::Torn => random.percent(50),
            };
            if survives {
                self.durable.apply(&change);
            }
        }
        let reachable = self.durable_nodes();
        self.durable.0.retain(|directory, _| reachable.contains(directory));
        self.visible = self.durable.clone();
    }

    /// The place of the oldest unsynced change in the order of writing.
    pub(super) fn oldest_unsynced(&self) -> Option<u64> {
        self.pending.first().map(|change| change.order)
    }

    /// The places in the order of writing after which the names differ.
    #[cfg(test)]
    pub(super) fn moments(&self) -> Vec<u64> {
        let changes = self.pending.iter().map(|change| change.order);
        std::iter::once(0).chain(changes).collect()
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The names that a power cut may take back or bring back, with their directories.
    pub(super) fn unsynced(&self) -> impl Iterator<Item = &Name> {
        self.pending.iter().flat_map(|change| change.removed.iter().chain(&change.added))
    }

    fn durable_nodes(&self) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::new();
        self.durable.reachable(ROOT, &mut found);
        found
    }

    /// Everything that has a name, or may have one after a power cut.
    pub(super) fn nodes(&self) -> BTreeSet<NodeId> {
        let mut found = self.durable_nodes();
        self.visible.reachable(ROOT, &mut found);
        for change in &self.pending {
            self.visible.reachable(change.node, &mut found);
            self.durable.reachable(change.node, &mut found);
        }
        found
    }

    /// Whether a file or directory has a name in some directory, or may have one after a power cut.
    pub(super) fn has(&self, node: NodeId) -> bool {
        let trees = [&self.visible, &self.durable];
        trees
            .into_iter()
            .flat_map(|tree| tree.0.values())
            .any(|names| names.values().any(|named| *named == node))
            || self.pending.iter().any(|change| change.node == node)
    }

    /// Everything that processes can open.
    pub(super) fn visible_nodes(&self) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::new();
        self.visible.reachable(ROOT, &mut found);
        found
    }

    /// A directory and everything below it, or a file.
    pub(super) fn nodes_below(&self, node: NodeId) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::new();
        self.visible.reachable(node, &mut found);
        found
    }

    pub(super) fn tree(&self, on_device: bool) -> &DirectoryEntries {
        if on_device { &self.durable } else { &self.visible }
    }
}
