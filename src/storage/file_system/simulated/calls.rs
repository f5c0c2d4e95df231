//! What the calls of a process do.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::content::{DeviceWrite, FileContent};
use super::faults::FaultKind;
use super::names::{Name, NodeId};
use super::page::{PAGE_BYTES, Page};
use super::state::{HandleId, Inode, State, device_error};

impl State {
    /// The file at a path, which is made if it does not exist.
    pub(super) fn make_file(&mut self, path: &Path, empty: bool) -> io::Result<NodeId> {
        let (name, node) = self.resolve_name(path)?;
        let Some(node) = node else {
            self.check_room(PAGE_BYTES as u64)?;
            return Ok(self.make_node(name, Inode::File(Arc::default())));
        };
        if self.is_directory(node) {
            return Err(ErrorKind::IsADirectory.into());
        }
        if empty {
            self.change_content(node, |content, order| content.set_length(order, 0))?;
        }
        Ok(node)
    }

    pub(super) fn make_node(&mut self, name: Name, node: Inode) -> NodeId {
        let id = self.next_id();
        self.nodes.insert(id, node);
        let order = self.next_order();
        self.usage.name_changes += 1;
        self.names.add(order, id, name);
        id
    }

    pub(super) fn remove_name(&mut self, name: Name, node: NodeId) {
        let order = self.next_order();
        self.usage.name_changes += 1;
        self.names.remove(order, node, name);
        self.has_unnamed = true;
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, node) = self.resolve_name(from)?;
        let (to, replaced) = self.resolve_name(to)?;
        let node = node.ok_or(ErrorKind::NotFound)?;
        let is_directory = self.is_directory(node);
        if is_directory && self.is_within(to.0, node) {
            return Err(ErrorKind::InvalidInput.into());
        }
        match replaced {
            Some(replaced) if replaced == node => return Ok(()),
            Some(replaced) => match (is_directory, self.is_directory(replaced)) {
                // As Linux does for every target above the source.
                (_, true) if self.is_within(from.0, replaced) => {
                    return Err(ErrorKind::DirectoryNotEmpty.into());
                }
                (false, true) => return Err(ErrorKind::IsADirectory.into()),
                (true, false) => return Err(ErrorKind::NotADirectory.into()),
                (true, true) if !self.is_empty(replaced) => {
                    return Err(ErrorKind::DirectoryNotEmpty.into());
                }
                _ => {}
            },
            None => {}
        }
        let order = self.next_order();
        self.usage.name_changes += 1;
        self.names.rename(order, node, from, to);
        self.has_unnamed |= replaced.is_some();
        Ok(())
    }

    /// The names in a directory, in an order that means nothing, as file systems give them.
    pub(super) fn list(&self, directory: NodeId) -> Vec<OsString> {
        let names = self.names.visible.in_directory(directory);
        let mut names: Vec<OsString> = names.map(|(name, _)| name.clone()).collect();
        names.sort_by_cached_key(|name| xxh3_64_with_seed(name.as_encoded_bytes(), self.seed));
        names
    }

    pub(super) fn write(&mut self, node: NodeId, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.usage.writes += 1;
        if bytes.is_empty() {
            return Ok(());
        }
        if self.faults.strikes(FaultKind::FailedWrite) {
            let some = self.random.index(bytes.len() + 1);
            self.write_all(node, &bytes[..some], offset)?;
            return Err(device_error());
        }
        let length = self.content(node)?.length();
        let pages = |length: u64| length.div_ceil(PAGE_BYTES as u64);
        let end = offset + bytes.len() as u64;
        let needed = pages(end).saturating_sub(pages(length)) * PAGE_BYTES as u64;
        let room = self.room(needed);
        if room < needed {
            let end = (pages(length) + room / PAGE_BYTES as u64) * PAGE_BYTES as u64;
            let some = end.saturating_sub(offset) as usize;
            self.write_all(node, &bytes[..some], offset)?;
            return Err(ErrorKind::StorageFull.into());
        }
        self.write_all(node, bytes, offset)
    }

    fn write_all(&mut self, node: NodeId, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.usage.written_bytes += bytes.len() as u64;
        self.change_content(node, |content, order| content.write(order, bytes, offset))
    }

    /// Syncs a file. An error of writing is reported once by each file that is open.
    pub(super) fn sync_content(&mut self, id: HandleId, node: NodeId) -> io::Result<()> {
        self.usage.syncs += 1;
        if self.faults.strikes(FaultKind::LyingSync) || planted!(AppendUnsynced) {
            return Ok(());
        }
        if self.faults.strikes(FaultKind::FailedSync) {
            self.fail_to_write(node)?;
        } else {
            self.write_to_device(node)?;
        }
        let content = self.content(node)?;
        let errors = content.write_errors;
        let seen = self
            .handles
            .get_mut(&id)
            .map_or(errors, |handle| std::mem::replace(&mut handle.errors_seen, errors));
        if seen < errors && !planted!(FailedSyncIgnored) {
            self.content(node)?.write_errors_reported = errors;
            return Err(device_error());
        }
        Ok(())
    }

    /// The device does not take the dirty pages of a file: all, or some of them.
    pub(super) fn fail_to_write(&mut self, node: NodeId) -> io::Result<()> {
        let mut random = self.random.clone();
        let takes_some = random.percent(25);
        let content = self.content(node)?;
        content.fail_sync(|| takes_some && random.percent(50));
        content.write_errors += 1;
        self.random = random;
        Ok(())
    }

    /// Writes the dirty pages of a file to the device, which may lose or misdirect one.
    fn write_to_device(&mut self, node: NodeId) -> io::Result<()> {
        let State { nodes, faults, usage, .. } = self;
        let Some(Inode::File(content)) = nodes.get_mut(&node) else {
            return Err(ErrorKind::IsADirectory.into());
        };
        let content = Arc::make_mut(content);
        usage.synced_pages += content.dirty_pages() as u64;
        let elsewhere = content.sync(|| {
            if faults.strikes(FaultKind::LostWrite) {
                DeviceWrite::Lose
            } else if faults.strikes(FaultKind::MisdirectedWrite) {
                DeviceWrite::Misdirect
            } else {
                DeviceWrite::Store
            }
        });
        for (number, page) in elsewhere {
            self.misdirect((node, number), page);
        }
        Ok(())
    }

    /// Writes a page to the place of another one. If that is its own, it was only lost.
    fn misdirect(&mut self, from: (NodeId, u64), page: Page) {
        if let Some((node, number)) = self.draw_page(|_| true)
            && (node, number) != from
            && let Ok(content) = self.content(node)
        {
            content.overwrite(number, page);
        }
    }

    /// Draws a page that is on the device, of one of these files.
    pub(super) fn draw_page(&mut self, is_in: impl Fn(NodeId) -> bool) -> Option<(NodeId, u64)> {
        let files = self.nodes.iter().filter(|(node, _)| is_in(**node));
        let files: Vec<(NodeId, Arc<FileContent>)> = files
            .filter_map(|(node, file)| match file {
                Inode::File(content) if content.stored_pages() > 0 => {
                    Some((*node, content.clone()))
                }
                _ => None,
            })
            .collect();
        let (node, content) = self.random.pick(&files)?;
        let (node, content) = (*node, content.clone());
        let mut numbers = Vec::new();
        // Most pages of a log are zeros that nobody reads.
        if self.random.percent(75) {
            content.each_page(true, |number, _| numbers.push(number));
        }
        let number = match self.random.pick(&numbers) {
            Some(number) => *number,
            None => self.random.below(content.stored_pages()),
        };
        Some((node, number))
    }

    pub(super) fn sync_names(&mut self, directory: NodeId) -> io::Result<()> {
        self.usage.syncs += 1;
        if self.faults.strikes(FaultKind::LyingSync) || planted!(NamesUnsynced) {
            return Ok(());
        }
        // The journal keeps the names, and the next sync tries again.
        if self.faults.strikes(FaultKind::FailedSync) {
            return Err(device_error());
        }
        if self.names.sync(directory) > 0 {
            self.usage.synced_pages += 1;
            self.remove_unnamed();
        }
        Ok(())
    }
}
