//! The file of a backup that is sent to its reader: no other process sees it, and it is deleted
//! afterwards.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use once_cell::sync::OnceCell;

use crate::api::coordinator::Coordinator;
use crate::api::support::space;
use crate::recovery::Backup;
use crate::runtime::entropy;
use crate::types::error::{Error, Result};
use crate::types::start_error::StartError;

/// The disk space that a backup must leave for the log.
const ROOM: u64 = 64 << 20;
/// How many bytes of the file are read at a time.
const PIECE_BYTES: u64 = 64 << 10;

/// The prefix of the files' names, before the part that is unique to this process.
const PREFIX: &str = "quorate-backup-";
static PROCESS: OnceCell<u64> = OnceCell::new();

/// Set while there is a backup. Only one is made and read at a time, so the disk never has more.
#[derive(Debug)]
struct Permit(Arc<AtomicBool>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A file that is deleted when this is dropped.
#[derive(Debug)]
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // On systems where an open file can be deleted, it is gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Deletes the files of former processes that were killed. No other process uses the directory now.
fn clear(directory: &Path, own: &str) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(PREFIX) && !name.starts_with(own)) {
            // It is tried again next time.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Checks that a backup leaves the room that the log and the next checkpoint need.
fn has_room(coordinator: &Coordinator, directory: &Path) -> Result<()> {
    // A client does not know the size of the state before it receives it.
    let bytes = coordinator
        .shared()
        .look(|engine| engine.node().map_or(0, |node| node.machine().bytes()))
        .unwrap_or(0);
    match space(directory) {
        Some(space) if space.free < bytes.saturating_mul(3).saturating_add(ROOM) => {
            Err(Error::Start(StartError::FileUnusable {
                file: directory.to_owned(),
                reason: format!(
                    "a backup of {bytes} bytes would leave too little room on a disk with {} bytes: make room, \
                     or take it with `quorate backup` on another machine",
                    space.free
                ),
            }))
        }
        _ => Ok(()),
    }
}

/// A written backup. The order in which its fields are dropped matters.
#[derive(Debug)]
pub(super) struct BackupFile {
    file: File,
    backup: Backup,
    _path: TemporaryFile,
    _permit: Permit,
}

impl BackupFile {
    /// Writes a backup into the data directory, or among the system's temporary files. `None` if another
    /// backup is being made or read.
    pub(super) fn write(
        coordinator: &Coordinator,
        under_way: &Arc<AtomicBool>,
    ) -> Result<Option<BackupFile>> {
        if under_way.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        let permit = Permit(Arc::clone(under_way));
        let process = PROCESS.get_or_try_init(entropy::number)?;
        let own = format!("{PREFIX}{process:016x}-");
        let directory = match coordinator.shared().readiness.directory() {
            Some(directory) => {
                clear(directory.path(), &own);
                directory.path().to_owned()
            }
            None => std::env::temp_dir(),
        };
        has_room(coordinator, &directory)?;
        let path = TemporaryFile(directory.join(format!("{own}{:016x}", entropy::number()?)));
        let backup = coordinator.backup(&path.0).wait()?;
        let unusable = |error: io::Error| {
            let (file, reason) = (path.0.clone(), error.to_string());
            Error::Start(StartError::FileUnusable { file, reason })
        };
        let file = File::open(&path.0).map_err(unusable)?;
        // On systems where this works, nothing is left of the file, even after a crash.
        let _ = std::fs::remove_file(&path.0);
        Ok(Some(BackupFile { file, backup, _path: path, _permit: permit }))
    }

    /// The description of the backup.
    pub(super) fn backup(&self) -> &Backup {
        &self.backup
    }

    /// Appends the next piece; its length is 0 at the end.
    pub(super) fn next(&mut self, to: &mut Vec<u8>) -> io::Result<usize> {
        (&mut self.file).take(PIECE_BYTES).read_to_end(to)
    }
}
