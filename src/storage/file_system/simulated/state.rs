//! All that a device and its processes share, behind one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::path::{Component, Path};
use std::sync::Arc;

use super::content::{BadSector, FileContent};
use super::faults::{FaultKind, Faults};
use super::names::{Names, NodeId, ROOT};
use super::page::PAGE_BYTES;
use super::random::Random;
use super::{DatabaseOptions, Usage};

pub(super) type ProcessId = u64;
pub(super) type HandleId = u64;

/// A file or a directory.
#[derive(Clone, Debug)]
pub(super) enum Inode {
    /// Shared with copies of the device.
    File(Arc<FileContent>),
    Directory,
}

/// A process that runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Process {
    /// After how many more changes it ends.
    pub(super) stops_after: Option<u64>,
}

/// An open file or directory, or a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle {
    pub(super) process: ProcessId,
    pub(super) node: NodeId,
    pub(super) can_write: bool,
    /// How many errors of writing were reported to it.
    pub(super) errors_seen: u64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) seed: u64,
    pub(super) random: Random,
    pub(super) nodes: BTreeMap<NodeId, Inode>,
    pub(super) names: Names,
    /// The last number that was given to a file, a handle or a process.
    pub(super) last_id: u64,
    /// The place of the last change in the order of writing.
    pub(super) order: u64,
    pub(super) processes: BTreeMap<ProcessId, Process>,
    pub(super) handles: BTreeMap<HandleId, Handle>,
    pub(super) locks: BTreeMap<NodeId, HandleId>,
    /// Whether there may be files without a name.
    pub(super) has_unnamed: bool,
    pub(super) faults: Faults,
    pub(super) capacity: Option<u64>,
    /// The room that a process is told of, if it is not what is left.
    pub(super) shown_free: Option<u64>,
    pub(super) descriptors_max: usize,
    pub(super) usage: Usage,
    pub(super) database: DatabaseOptions,
}

pub(super) fn ended() -> io::Error {
    io::Error::other("the process has ended")
}

/// EIO.
pub(super) fn device_error() -> io::Error {
    io::Error::from_raw_os_error(5)
}

/// EMFILE, or its counterpart.
pub(super) fn too_many_open() -> io::Error {
    io::Error::from_raw_os_error(if cfg!(unix) { 24 } else { 4 })
}

impl State {
    pub(super) fn new(seed: u64) -> State {
        State {
            seed,
            random: Random::new(seed),
            nodes: BTreeMap::from([(ROOT, Inode::Directory)]),
            names: Names::default(),
            last_id: ROOT,
            order: 0,
            processes: BTreeMap::new(),
            handles: BTreeMap::new(),
            locks: BTreeMap::new(),
            has_unnamed: false,
            faults: Faults::default(),
            capacity: None,
            shown_free: None,
            descriptors_max: usize::MAX,
            usage: Usage::default(),
            database: DatabaseOptions::default(),
        }
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(super) fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    /// An open file. The end of its process closes it.
    pub(super) fn handle(&self, handle: HandleId) -> io::Result<Handle> {
        self.handles.get(&handle).copied().ok_or_else(ended)
    }

    pub(super) fn check_runs(&self, process: ProcessId) -> io::Result<()> {
        if self.processes.contains_key(&process) { Ok(()) } else { Err(ended()) }
    }

    /// Whether the process ends in the middle of the change that it begins now.
    pub(super) fn ends_now(&mut self, process: ProcessId) -> io::Result<bool> {
        let process = self.processes.get_mut(&process).ok_or_else(ended)?;
        match &mut process.stops_after {
            None => Ok(false),
            Some(0) => Ok(true),
            Some(after) => {
                *after -= 1;
                Ok(false)
            }
        }
    }

    /// Makes a change for a process, unless it ends in the middle of it.
    pub(super) fn change<T>(
        &mut self,
        process: ProcessId,
        change: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        if !self.ends_now(process)? {
            return change(self);
        }
        if self.random.percent(50) {
            // It has happened, and the process does not learn that.
            let _ = change(self);
        }
        self.end_process(process);
        Err(ended())
    }

    pub(super) fn end_process(&mut self, process: ProcessId) {
        self.processes.remove(&process);
        self.handles.retain(|_, handle| handle.process != process);
        let State { locks, handles, .. } = self;
        locks.retain(|_, handle| handles.contains_key(handle));
        self.remove_unnamed();
    }

    /// Opens a descriptor.
    pub(super) fn add_handle(
        &mut self,
        process: ProcessId,
        node: NodeId,
        can_write: bool,
    ) -> HandleId {
        let errors_seen = match self.nodes.get(&node) {
            Some(Inode::File(content)) => content.write_errors_reported,
            _ => 0,
        };
        let id = self.next_id();
        self.handles.insert(id, Handle { process, node, can_write, errors_seen });
        id
    }

    pub(super) fn close(&mut self, handle: HandleId) {
        if let Some(closed) = self.handles.remove(&handle) {
            if self.locks.get(&closed.node) == Some(&handle) {
                self.locks.remove(&closed.node);
            }
            if self.has_unnamed && !self.names.has(closed.node) {
                self.remove_unnamed();
            }
        }
    }

    /// Fails if the process can open no more files.
    pub(super) fn check_descriptors(&mut self, process: ProcessId) -> io::Result<()> {
        self.check_runs(process)?;
        self.usage.opens += 1;
        let is_full = self.descriptors_max != usize::MAX && {
            let open = self.handles.values().filter(|handle| handle.process == process);
            open.count() >= self.descriptors_max
        };
        if is_full {
            self.faults.note(FaultKind::NoDescriptor);
        }
        if is_full || self.faults.strikes(FaultKind::NoDescriptor) {
            return Err(too_many_open());
        }
        Ok(())
    }

    pub(super) fn content(&mut self, node: NodeId) -> io::Result<&mut FileContent> {
        match self.nodes.get_mut(&node) {
            Some(Inode::File(content)) => Ok(Arc::make_mut(content)),
            Some(Inode::Directory) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    /// The content of a file beside the rest of the state that a change of it needs.
    pub(super) fn change_content<T>(
        &mut self,
        node: NodeId,
        change: impl FnOnce(&mut FileContent, &mut u64) -> Result<T, BadSector>,
    ) -> io::Result<T> {
        let mut order = self.order;
        let changed = change(self.content(node)?, &mut order);
        self.order = order;
        changed.map_err(|BadSector| self.bad_sector())
    }

    pub(super) fn bad_sector(&mut self) -> io::Error {
        self.faults.note(FaultKind::BadSector);
        device_error()
    }

    pub(super) fn is_directory(&self, node: NodeId) -> bool {
        matches!(self.nodes.get(&node), Some(Inode::Directory))
    }

    /// The file or directory at a path.
    pub(super) fn resolve(&self, path: &Path) -> io::Result<NodeId> {
        let mut node = ROOT;
        for component in path.components() {
            if let Some(name) = name_of(component)? {
                node = self.find(node, name)?.ok_or(ErrorKind::NotFound)?;
            }
        }
        Ok(node)
    }

    fn find(&self, directory: NodeId, name: &OsStr) -> io::Result<Option<NodeId>> {
        if !self.is_directory(directory) {
            return Err(ErrorKind::NotADirectory.into());
        }
        Ok(self.names.visible.find(directory, name))
    }

    /// The directory of a path, the last name, and what has that name.
    pub(super) fn resolve_name(
        &self,
        path: &Path,
    ) -> io::Result<((NodeId, OsString), Option<NodeId>)> {
        let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
        let directory = self.resolve(path.parent().unwrap_or(Path::new("")))?;
        let node = self.find(directory, name)?;
        Ok(((directory, name.to_owned()), node))
    }

    /// Whether a directory has no names.
    pub(super) fn is_empty(&self, directory: NodeId) -> bool {
        self.names.visible.in_directory(directory).next().is_none()
    }

    /// Whether a directory is this one, or below it.
    pub(super) fn is_within(&self, directory: NodeId, above: NodeId) -> bool {
        directory == above
            || self
                .names
                .visible
                .in_directory(above)
                .any(|(_, node)| self.is_directory(node) && self.is_within(directory, node))
    }

    /// The bytes that a file or directory takes.
    fn bytes_of(&self, node: NodeId) -> u64 {
        let page = PAGE_BYTES as u64;
        match self.nodes.get(&node) {
            Some(Inode::File(content)) => page + content.length().next_multiple_of(page),
            Some(Inode::Directory) => page,
            None => 0,
        }
    }

    /// The room that is left; `None` if there is no limit.
    pub(super) fn free(&self) -> Option<u64> {
        let capacity = self.capacity?;
        let mut nodes = self.names.visible_nodes();
        nodes.extend(self.handles.values().map(|handle| handle.node));
        let used: u64 = nodes.into_iter().map(|node| self.bytes_of(node)).sum();
        Some(capacity.saturating_sub(used))
    }

    /// How much of what a call needs there is room for.
    pub(super) fn room(&mut self, needed: u64) -> u64 {
        if needed == 0 {
            return 0;
        }
        if self.faults.strikes(FaultKind::NoSpace) {
            return self.random.below(needed);
        }
        let free = self.free().unwrap_or(u64::MAX);
        if free < needed {
            self.faults.note(FaultKind::NoSpace);
        }
        free.min(needed)
    }

    pub(super) fn check_room(&mut self, needed: u64) -> io::Result<()> {
        if self.room(needed) < needed { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    /// Removes files that have no name, may have none after a power cut, and are not open.
    pub(super) fn remove_unnamed(&mut self) {
        if !self.has_unnamed {
            return;
        }
        let mut kept: BTreeSet<NodeId> = self.names.nodes();
        kept.extend(self.handles.values().map(|handle| handle.node));
        self.nodes.retain(|node, _| kept.contains(node));
        self.has_unnamed = kept.len() != self.names.visible_nodes().len();
    }
}

/// The name that a part of a path adds, if any.
fn name_of(component: Component<'_>) -> io::Result<Option<&OsStr>> {
    match component {
        Component::Normal(name) => Ok(Some(name)),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => Ok(None),
        Component::ParentDir => Err(ErrorKind::InvalidInput.into()),
    }
}
