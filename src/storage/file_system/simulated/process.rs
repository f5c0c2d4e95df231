//! The file system as one process sees it.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::database::SimulatedDatabase;
use super::faults::FaultKind;
use super::page::PAGE_BYTES;
use super::state::{HandleId, Inode, ProcessId, device_error, ended};
use super::{Shared, locked};
use crate::storage::error::io_error;
use crate::storage::error::{Result, StorageError};
use crate::storage::file_system::Space;
use crate::storage::file_system::{Access, Database, Directory, File, FileSystem, Lock, NameKind};

/// The file system of one process. Every call fails once the process has ended.
#[derive(Clone)]
pub(crate) struct ProcessFiles {
    shared: Shared,
    process: ProcessId,
}

impl std::fmt::Debug for ProcessFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessFiles").field("process", &self.process).finish_non_exhaustive()
    }
}

impl ProcessFiles {
    pub(super) fn new(shared: Shared, process: ProcessId) -> ProcessFiles {
        ProcessFiles { shared, process }
    }

    /// Ends the process: its files and locks are closed, and whatever it calls from now on fails and changes
    /// nothing. What it has written stays visible, and is not durable.
    pub(crate) fn end_process(&self) {
        locked(&self.shared).end_process(self.process);
    }

    /// Ends the process in the call that comes after so many more that change anything. That call may have
    /// happened, or a part of it.
    pub(crate) fn stop_after(&self, changes: u64) {
        if let Some(process) = locked(&self.shared).processes.get_mut(&self.process) {
            process.stops_after = Some(changes);
        }
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        locked(&self.shared).check_runs(self.process).is_err()
    }

    fn handle(&self, id: HandleId) -> Handle {
        Handle { shared: self.shared.clone(), id }
    }
}

impl FileSystem for ProcessFiles {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn File>> {
        let mut state = locked(&self.shared);
        state.check_descriptors(self.process)?;
        let id = match access {
            Access::Read | Access::Write => {
                let node = state.resolve(path)?;
                if state.is_directory(node) {
                    return Err(ErrorKind::IsADirectory.into());
                }
                state.add_handle(self.process, node, access == Access::Write)
            }
            Access::Create => state.change(self.process, |state| {
                let node = state.make_file(path, true)?;
                Ok(state.add_handle(self.process, node, true))
            })?,
        };
        Ok(Box::new(self.handle(id)))
    }

    fn open_directory(&self, path: &Path) -> io::Result<Box<dyn Directory>> {
        let mut state = locked(&self.shared);
        state.check_descriptors(self.process)?;
        let node = state.resolve(path)?;
        if !state.is_directory(node) {
            return Err(ErrorKind::NotADirectory.into());
        }
        let id = state.add_handle(self.process, node, false);
        Ok(Box::new(self.handle(id)))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let mut state = locked(&self.shared);
        let opening = io_error("opening LOCK");
        state.check_descriptors(self.process).map_err(opening)?;
        let exists = state.resolve(path).map_or_else(
            |error| if error.kind() == ErrorKind::NotFound { Ok(None) } else { Err(error) },
            |node| Ok(Some(node)),
        );
        let node = match exists.map_err(opening)? {
            Some(node) => node,
            None => {
                let made = state.change(self.process, |state| state.make_file(path, false));
                made.map_err(opening)?
            }
        };
        // Nothing else runs while this call waits, so nobody can release the lock.
        if state.locks.contains_key(&node) {
            return Err(StorageError::InUse);
        }
        let id = state.add_handle(self.process, node, true);
        state.locks.insert(node, id);
        Ok(Box::new(self.handle(id)))
    }

    fn kind(&self, path: &Path) -> io::Result<Option<NameKind>> {
        let state = locked(&self.shared);
        state.check_runs(self.process)?;
        match state.resolve(path) {
            Ok(node) if state.is_directory(node) => Ok(Some(NameKind::Directory)),
            Ok(_) => Ok(Some(NameKind::File)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        match self.kind(path)? {
            // There are no links here, and no relative paths.
            Some(_) => Ok(path.to_owned()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let mut state = locked(&self.shared);
        state.check_descriptors(self.process)?;
        let directory = state.resolve(path)?;
        if !state.is_directory(directory) {
            return Err(ErrorKind::NotADirectory.into());
        }
        Ok(state.list(directory))
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = locked(&self.shared);
        state.change(self.process, |state| {
            let (name, exists) = state.resolve_name(path)?;
            if exists.is_some() {
                return Err(ErrorKind::AlreadyExists.into());
            }
            state.check_room(PAGE_BYTES as u64)?;
            state.make_node(name, Inode::Directory);
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        locked(&self.shared).change(self.process, |state| state.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        locked(&self.shared).change(self.process, |state| {
            let (name, node) = state.resolve_name(path)?;
            let node = node.ok_or(ErrorKind::NotFound)?;
            if state.is_directory(node) {
                return Err(ErrorKind::IsADirectory.into());
            }
            state.remove_name(name, node);
            Ok(())
        })
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        locked(&self.shared).change(self.process, |state| {
            let (name, node) = state.resolve_name(path)?;
            let node = node.ok_or(ErrorKind::NotFound)?;
            if !state.is_directory(node) {
                return Err(ErrorKind::NotADirectory.into());
            }
            if !state.is_empty(node) {
                return Err(ErrorKind::DirectoryNotEmpty.into());
            }
            state.remove_name(name, node);
            Ok(())
        })
    }

    fn space(&self, _: &Path) -> Option<Space> {
        let state = locked(&self.shared);
        let free = state.shown_free.or_else(|| state.free())?;
        Some(Space { free, total: state.capacity? })
    }

    fn open_database(&self, path: &Path) -> Result<Box<dyn Database>> {
        let (options, seed) = {
            let state = locked(&self.shared);
            (state.database, state.seed)
        };
        Ok(Box::new(SimulatedDatabase::open(Box::new(self.clone()), path, options, seed)?))
    }

    fn has_one_thread(&self) -> bool {
        true
    }
}

/// An open file or directory, or a lock.
struct Handle {
    shared: Shared,
    id: HandleId,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        locked(&self.shared).close(self.id);
    }
}

impl Lock for Handle {}

impl Directory for Handle {
    fn sync(&self) -> io::Result<()> {
        let mut state = locked(&self.shared);
        let handle = state.handle(self.id)?;
        state.change(handle.process, |state| state.sync_names(handle.node))
    }
}

impl File for Handle {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = locked(&self.shared);
        let handle = state.handle(self.id)?;
        state.usage.reads += 1;
        if state.faults.strikes(FaultKind::FailedRead) {
            return Err(device_error());
        }
        let read = state.change_content(handle.node, |content, _| content.read(bytes, offset))?;
        state.usage.read_bytes += read as u64;
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = locked(&self.shared);
        let handle = state.handle(self.id)?;
        if !handle.can_write {
            return Err(bad_descriptor());
        }
        if state.ends_now(handle.process)? {
            let some = state.random.index(bytes.len() + 1);
            let _ = state.write(handle.node, &bytes[..some], offset);
            state.end_process(handle.process);
            return Err(ended());
        }
        state.write(handle.node, bytes, offset)
    }

    fn length(&self) -> io::Result<u64> {
        let mut state = locked(&self.shared);
        let handle = state.handle(self.id)?;
        Ok(state.content(handle.node)?.length())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        let mut state = locked(&self.shared);
        let handle = state.handle(self.id)?;
        if !handle.can_write {
            return Err(ErrorKind::InvalidInput.into());
        }
        state.change(handle.process, |state| {
            let grows = pages(length).saturating_sub(pages(state.content(handle.node)?.length()));
            state.check_room(grows * PAGE_BYTES as u64)?;
            state.change_content(handle.node, |content, order| content.set_length(order, length))
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = locked(&self.shared);
        let handle = state.handle(self.id)?;
        let id = self.id;
        state.change(handle.process, |state| state.sync_content(id, handle.node))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn forget_cached(&self, bytes: u64) {
        let mut state = locked(&self.shared);
        if let Ok(handle) = state.handle(self.id)
            && let Ok(content) = state.content(handle.node)
        {
            content.drop_cache(pages(bytes));
        }
    }
}

/// EBADF.
fn bad_descriptor() -> io::Error {
    io::Error::from_raw_os_error(9)
}

fn pages(length: u64) -> u64 {
    length.div_ceil(PAGE_BYTES as u64)
}
