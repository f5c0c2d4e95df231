//! Whether a power cut of a device may have left what a real file system has left.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::content::FileContent;
use super::cut::Survivors;
use super::names::{DirectoryEntries, NodeId, ROOT};
use super::page::{PAGE_BYTES, Page, SECTOR_BYTES, SECTORS};
use super::state::{Inode, State};
use super::{Device, locked};

/// The files below a directory, with their contents, and the directories.
pub(crate) type Image = BTreeMap<PathBuf, Option<Vec<u8>>>;

impl Device {
    /// Says what a power cut of this device cannot have left.
    pub(crate) fn check_image(&self, image: &Image) -> Result<(), String> {
        let mut state = locked(&self.shared);
        let State { names, nodes, random, .. } = &mut *state;
        // Journals keep the order of changes.
        let mut reason = "its names are those of no moment".to_owned();
        for last in names.moments() {
            let mut left = names.clone();
            left.cut(Survivors::Until(last), random);
            let mut found = BTreeMap::new();
            paths(left.tree(true), ROOT, Path::new("/"), &mut found);
            if !found.keys().eq(image.keys()) {
                continue;
            }
            let wrong = found.iter().find_map(|(path, node)| {
                check_file(nodes.get(node), image[path].as_deref())
                    .err()
                    .map(|what| format!("{}: {what}", path.display()))
            });
            match wrong {
                None => return Ok(()),
                Some(wrong) => reason = wrong,
            }
        }
        Err(reason)
    }

    /// Everything that processes see.
    pub(crate) fn visible_image(&self) -> Image {
        let state = locked(&self.shared);
        let mut found = BTreeMap::new();
        paths(&state.names.visible, ROOT, Path::new("/"), &mut found);
        let content = |node: NodeId| match state.nodes.get(&node) {
            Some(Inode::File(content)) => {
                let mut content = FileContent::clone(content);
                let mut bytes = vec![0; content.length() as usize];
                content.read(&mut bytes, 0).map(|_| bytes).ok()
            }
            _ => None,
        };
        found.into_iter().map(|(path, node)| (path, content(node))).collect()
    }
}

fn paths(
    tree: &DirectoryEntries,
    directory: NodeId,
    at: &Path,
    found: &mut BTreeMap<PathBuf, NodeId>,
) {
    for (name, node) in tree.in_directory(directory) {
        let path = at.join(name);
        paths(tree, node, &path, found);
        found.insert(path, node);
    }
}

fn check_file(node: Option<&Inode>, left: Option<&[u8]>) -> Result<(), String> {
    let content = match (node, left) {
        (Some(Inode::Directory), None) => return Ok(()),
        (Some(Inode::File(content)), Some(_)) => content,
        _ => return Err("a directory instead of a file, or a file instead of a directory".into()),
    };
    let left = left.unwrap_or_default();
    if !content.may_have_length(left.len() as u64) {
        return Err(format!("it has {} bytes", left.len()));
    }
    for (number, bytes) in left.chunks(PAGE_BYTES).enumerate() {
        let page = Page::default().with(0, bytes);
        let states = content.states_of(number as u64);
        for sector in 0..SECTORS {
            let end = bytes.len().saturating_sub(sector * SECTOR_BYTES).min(SECTOR_BYTES);
            let is = |state: &Page| state.sector(sector)[..end] == page.sector(sector)[..end];
            if !states.iter().any(is) {
                let states = states.len();
                return Err(format!("sector {sector} of page {number} is none of {states} states"));
            }
        }
    }
    Ok(())
}
