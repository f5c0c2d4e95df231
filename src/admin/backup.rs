//! A backup on its way to its reader: a file that nobody else sees, and that is gone afterwards.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::api::coordinator::Coordinator;
use crate::recovery::Backup;
use crate::runtime::entropy;
use crate::types::error::{Error, Result};

/// How much of it is read at once.
const PIECE_BYTES: u64 = 64 << 10;

/// Set while there is a backup: one is made and read at a time, so the disk holds no more.
#[derive(Debug)]
struct Permit(Arc<AtomicBool>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A file that is deleted when this is dropped.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // Where an open file can be deleted, it is gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A backup that was written. Its fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Spool {
    file: File,
    backup: Backup,
    _path: Temporary,
    _permit: Permit,
}

impl Spool {
    /// Writes a backup into the data directory, or among the system's temporary files. `None` if another one is
    /// under way.
    pub(super) fn write(
        coordinator: &Coordinator,
        under_way: &Arc<AtomicBool>,
    ) -> Result<Option<Spool>> {
        if under_way.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        let permit = Permit(Arc::clone(under_way));
        let directory = coordinator.shared().directory();
        let directory = directory.map_or_else(std::env::temp_dir, |dir| dir.path().to_owned());
        let path = directory.join(format!("quorate-backup-{:016x}", entropy::number()?));
        let path = Temporary(path);
        let backup = coordinator.backup(&path.0)?;
        let unusable = |error: io::Error| Error::FileUnusable {
            file: path.0.clone(),
            reason: error.to_string(),
        };
        let file = File::open(&path.0).map_err(unusable)?;
        // Where this works, nothing is left of it whatever happens.
        let _ = std::fs::remove_file(&path.0);
        Ok(Some(Spool { file, backup, _path: path, _permit: permit }))
    }

    /// What was written.
    pub(super) fn backup(&self) -> &Backup {
        &self.backup
    }

    /// Appends the next piece; its length is 0 at the end.
    pub(super) fn next(&mut self, to: &mut Vec<u8>) -> io::Result<usize> {
        (&mut self.file).take(PIECE_BYTES).read_to_end(to)
    }
}
