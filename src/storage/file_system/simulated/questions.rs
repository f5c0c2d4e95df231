//! What oracles ask of a device.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::content::FileContent;
use super::names::{DirectoryEntries, NodeId, ROOT};
use super::state::{Inode, State};
use super::{Device, locked};

/// Something that a power cut may change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unsynced {
    /// A file that has pages or a length that no sync has written.
    Dirty { path: PathBuf },
    /// A file that has pages that a failed sync has lost.
    Lost { path: PathBuf },
    /// A name that was made, changed or removed.
    Name { path: PathBuf },
}

/// The worst that can be said of a device, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DeviceState {
    /// A power cut changes nothing.
    Synced,
    /// There is content that was not synced.
    Dirty,
    /// There are names that were not synced.
    Renamed,
    /// There is content that a failed sync has lost.
    Lost,
    /// The device does not hold what was synced.
    Damaged,
    /// There is no room for another page.
    Full,
}

impl Device {
    /// What below a path a power cut may change. If that is a directory, its own name counts as well.
    pub(crate) fn unsynced(&self, below: &Path) -> Vec<Unsynced> {
        locked(&self.shared).unsynced(below)
    }

    /// Whether processes see anything at this path.
    pub(crate) fn exists(&self, path: &Path) -> bool {
        locked(&self.shared).resolve(path).is_ok()
    }

    /// The first bytes of a file as processes see them, at most so many. What the device cannot read counts.
    pub(crate) fn visible(&self, path: &Path, most: usize) -> Vec<u8> {
        let state = locked(&self.shared);
        let node = state.resolve(path).ok().and_then(|node| state.nodes.get(&node));
        match node {
            Some(Inode::File(content)) => content.visible(most),
            _ => Vec::new(),
        }
    }

    /// A hash of everything that processes see.
    pub(crate) fn visible_fingerprint(&self) -> u64 {
        locked(&self.shared).fingerprint(false)
    }

    /// A hash of everything that is durable.
    pub(crate) fn durable_fingerprint(&self) -> u64 {
        locked(&self.shared).fingerprint(true)
    }

    /// The device's state, for coverage.
    pub(crate) fn state(&self) -> DeviceState {
        let state = locked(&self.shared);
        let contents = || {
            state.nodes.values().filter_map(|node| match node {
                Inode::File(content) => Some(content),
                Inode::Directory => None,
            })
        };
        if state.free() == Some(0) {
            DeviceState::Full
        } else if contents().any(|content| content.is_damaged()) {
            DeviceState::Damaged
        } else if contents().any(|content| content.lost_pages() > 0) {
            DeviceState::Lost
        } else if state.names.has_pending() {
            DeviceState::Renamed
        } else if contents().any(|content| is_dirty(content)) {
            DeviceState::Dirty
        } else {
            DeviceState::Synced
        }
    }
}

fn is_dirty(content: &FileContent) -> bool {
    content.dirty_pages() > 0 || content.is_length_unsynced()
}

impl State {
    pub(super) fn is_dirty(&self, node: NodeId) -> bool {
        matches!(self.nodes.get(&node), Some(Inode::File(content)) if is_dirty(content))
    }

    /// The place of the oldest change that may not be durable in the order of writing.
    pub(super) fn oldest_unsynced(&self) -> u64 {
        let contents = self.nodes.values().filter_map(|node| match node {
            Inode::File(content) => content.oldest_unsynced(),
            Inode::Directory => None,
        });
        let oldest = contents.chain(self.names.oldest_unsynced()).min();
        oldest.map_or(self.order, |order| order.saturating_sub(1))
    }

    fn unsynced(&self, below: &Path) -> Vec<Unsynced> {
        let mut found = Vec::new();
        let Ok(node) = self.resolve(below) else { return found };
        let mut directories = BTreeMap::new();
        self.each_path(node, below, &mut |path, node| {
            let Some(Inode::File(content)) = self.nodes.get(&node) else {
                directories.insert(node, path.to_owned());
                return;
            };
            if is_dirty(content) {
                found.push(Unsynced::Dirty { path: path.to_owned() });
            }
            if content.lost_pages() > 0 {
                found.push(Unsynced::Lost { path: path.to_owned() });
            }
        });
        let own = self.resolve_name(below).ok().map(|(name, _)| name);
        for name in self.names.unsynced() {
            if let Some(path) = directories.get(&name.0) {
                found.push(Unsynced::Name { path: path.join(&name.1) });
            } else if own.as_ref() == Some(name) {
                found.push(Unsynced::Name { path: below.to_owned() });
            }
        }
        found.sort();
        found.dedup();
        found
    }

    fn each_path(&self, from: NodeId, path: &Path, each: &mut dyn FnMut(&Path, NodeId)) {
        each(path, from);
        for (name, node) in self.names.visible.in_directory(from) {
            self.each_path(node, &path.join(name), each);
        }
    }

    fn fingerprint(&self, on_device: bool) -> u64 {
        let mut hash = Xxh3::new();
        self.hash_directory(self.names.tree(on_device), ROOT, on_device, &mut hash);
        hash.digest()
    }

    fn hash_directory(
        &self,
        tree: &DirectoryEntries,
        directory: NodeId,
        on_device: bool,
        hash: &mut Xxh3,
    ) {
        for (name, node) in tree.in_directory(directory) {
            let name = name.as_encoded_bytes();
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name);
            match self.nodes.get(&node) {
                Some(Inode::File(content)) => {
                    let length = if on_device { content.device_length() } else { content.length() };
                    hash.update(&length.to_le_bytes());
                    content.each_page(on_device, |number, page| {
                        hash.update(&number.to_le_bytes());
                        hash.update(page.bytes());
                    });
                }
                _ => {
                    hash.update(b"directory");
                    self.hash_directory(tree, node, on_device, hash);
                    hash.update(b"end");
                }
            }
        }
    }
}
