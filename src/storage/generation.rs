//! One generation: a sled database, written durably and checked when it is opened.
//!
//! sled 0.34.7 ends its `flush` in `sync_file_range`, which is no barrier on
//! Linux, and its only true syncs come from a background thread that swallows
//! their errors. So that thread is off, and after each flush the database file
//! is synced through a separate handle, which also reports any write error
//! since it was opened.
//!
//! Invariants:
//! - Less than a segment is written between two syncs, except for a single larger record: sled
//!   reuses segments that it believes to be durable.
//! - No value is large enough for a blob, a file that sled never syncs.
//! - Nothing in a generation is valid before a record of the log names it, all parts at once.

use std::any::Any;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use sled::{Db, IVec, Mode};

use super::files::{create_directory, entries, io_error, open_file, sync_directory, while_locked};
use super::record::{ChunkId, Encoded, Reader, corrupt};
use super::segments::forget_cached;
use super::{Result, StorageError};

/// Bytes of chunks written between two syncs.
const UNSYNCED_BYTES_MAX: u64 = 1 << 20;
/// Bytes of chunks written or read before the database is reopened.
pub(super) const CACHED_BYTES_MAX: u64 = 16 << 20;
/// sled's names for the files and directories of a database.
const DB: &str = "db";
const CONF: &str = "conf";
const BLOBS: &str = "blobs";

/// The size of sled's cache. The node itself holds the log and the state in memory.
const CACHE_BYTES: u64 = 4 << 20;
/// Fixed, since the largest value that makes no blob depends on it.
const SEGMENT_BYTES: usize = 8 << 20;

/// An open generation.
#[derive(Debug)]
pub(super) struct Generation {
    number: u64,
    path: PathBuf,
    /// `None` only while it is being closed.
    db: Option<Db>,
    /// A second handle of the database file, to sync it.
    file: File,
    unsynced_bytes: u64,
    /// How many bytes were written or read since the database was opened.
    cached_bytes: u64,
    /// sled may have written chunks in memory.
    holds_written: bool,
}

/// The entries of a generation.
pub(super) type Parts = Box<dyn Iterator<Item = Result<(IVec, IVec)>>>;

impl Generation {
    /// Creates an empty generation, which no record of the log names yet.
    pub(super) fn create(path: PathBuf, number: u64) -> Result<Generation> {
        let io = io_error("creating a generation");
        if path.exists() {
            // Left over from a crash. If a record named it, it would not be created again.
            fs::remove_dir_all(&path).map_err(io)?;
        }
        create_directory(&path).map_err(io)?;
        // A failure in a new database is no damage.
        let db = open_sled(&path).map_err(|error| match error {
            StorageError::Corrupt { what } => {
                StorageError::Io { what: "creating a generation".to_owned(), reason: what }
            }
            other => other,
        })?;
        let file = open_file(&path.join(DB)).map_err(io)?;
        let mut generation = Generation::of(number, path, db, file);
        generation.sync_everything()?;
        Ok(generation)
    }

    /// Opens an existing generation.
    pub(super) fn open(path: PathBuf, number: u64) -> Result<Generation> {
        let io = io_error("opening a generation");
        // If a file is missing, sled creates a new database.
        for name in [DB, CONF] {
            if !path.join(name).try_exists().map_err(io)? {
                return corrupt(format!("generation {number} has no file {name}"));
            }
        }
        remove_torn_snapshots(&path).map_err(io)?;
        // Opened before sled opens the file, so that this handle sees write errors of sled's recovery.
        let file = open_file(&path.join(DB)).map_err(io)?;
        // sled must not build on what only the page cache has: a process that has ended may have left
        // writes there, and a failed sync pages that no later sync writes.
        file.sync_all().map_err(io)?;
        forget_cached(&file);
        let db = open_sled(&path)?;
        let mut generation = Generation::of(number, path, db, file);
        let mut blobs = fs::read_dir(generation.path.join(BLOBS)).map_err(io)?;
        if blobs.next().is_some() {
            return corrupt("there is a blob file, and this store never creates one".to_owned());
        }
        // sled's recovery writes too.
        generation.sync_everything()?;
        Ok(generation)
    }

    fn of(number: u64, path: PathBuf, db: Db, file: File) -> Generation {
        let (db, unsynced_bytes, cached_bytes, holds_written) = (Some(db), 0, 0, true);
        Generation { number, path, db, file, unsynced_bytes, cached_bytes, holds_written }
    }

    /// Reopens the database, to free memory.
    ///
    /// sled keeps far more in memory than the size of its cache: each of the 256 parts of the cache
    /// frees pages only at every 64th access, and never its last page. Our pages have up to a megabyte,
    /// so a whole checkpoint would stay in memory.
    pub(super) fn reopen(&mut self) -> Result<()> {
        self.shut();
        forget_cached(&self.file);
        self.db = Some(open_sled(&self.path)?);
        (self.cached_bytes, self.holds_written) = (0, false);
        // sled's recovery writes too.
        self.sync_everything()
    }

    /// Makes sure that the next reads come from the disk and not from sled's memory, which has written
    /// chunks, and those that were read since the start of the last round.
    pub(super) fn forget_read(&mut self, is_new_round: bool) -> Result<()> {
        let holds_much = self.holds_written || self.cached_bytes >= CACHED_BYTES_MAX;
        if is_new_round || holds_much || self.db.is_none() {
            return self.reopen();
        }
        Ok(())
    }

    /// Opens the database if it could not be opened before.
    pub(super) fn ensure_open(&mut self) -> Result<()> {
        if self.db.is_none() { self.reopen() } else { Ok(()) }
    }

    /// Notes that so many bytes were read, which sled keeps in memory.
    pub(super) fn has_read(&mut self, bytes: u64) {
        self.cached_bytes += bytes;
    }

    /// The length of the database file of a generation that is not open; 0 if that is not known.
    pub(super) fn bytes_in(path: &Path) -> u64 {
        fs::metadata(path.join(DB)).map_or(0, |metadata| metadata.len())
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The length of the database file.
    pub(super) fn file_bytes(&self) -> Result<u64> {
        let metadata = self.file.metadata();
        Ok(metadata.map_err(io_error("reading the length of the database"))?.len())
    }

    /// Writes a chunk; durable after the next sync.
    pub(super) fn write(&mut self, record: &Encoded) -> Result<()> {
        for (key, value) in &record.parts {
            self.db()?.insert(key, value.as_slice()).map_err(sled_error("writing"))?;
            let bytes = (key.len() + value.len()) as u64;
            self.unsynced_bytes += bytes;
            self.cached_bytes += bytes;
            self.holds_written = true;
            self.sync_if_due()?;
        }
        if self.cached_bytes >= CACHED_BYTES_MAX {
            self.sync()?;
            self.reopen()?;
        }
        Ok(())
    }

    /// Removes all chunks of a part of a checkpoint.
    pub(super) fn remove_group(&mut self, group: u64) -> Result<()> {
        let keys = self.db()?.scan_prefix(ChunkId::group_prefix(group)).keys();
        for key in keys {
            let key = key.map_err(sled_error("reading"))?;
            self.db()?.remove(&key).map_err(sled_error("removing"))?;
            self.unsynced_bytes += key.len() as u64;
            self.sync_if_due()?;
        }
        Ok(())
    }

    /// Makes everything written durable.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.db()?.flush().map_err(sled_error("flushing"))?;
        self.file.sync_data().map_err(io_error("syncing the database"))?;
        self.unsynced_bytes = 0;
        Ok(())
    }

    /// Syncs if so much was written that the next write may go into another segment.
    pub(super) fn sync_if_due(&mut self) -> Result<()> {
        if self.unsynced_bytes >= UNSYNCED_BYTES_MAX {
            self.sync()?;
        }
        Ok(())
    }

    /// The chunks of a part of a checkpoint, in order: all, or those from this one on.
    pub(super) fn chunks(&self, group: u64, from: Option<u32>) -> Result<Reader<Parts>> {
        let prefix = ChunkId::group_prefix(group);
        let first =
            from.map_or(prefix.to_vec(), |number| ChunkId { group, number }.key(0).to_vec());
        let parts = self.db()?.range(first..).map(|part| part.map_err(sled_error("reading")));
        let is_in = move |part: &Result<(IVec, IVec)>| {
            part.as_ref().map_or(true, |(key, _)| key.starts_with(&prefix))
        };
        Ok(Reader::new(Box::new(parts.take_while(is_in))))
    }

    /// The ids of all parts of checkpoints that have chunks.
    pub(super) fn chunk_groups(&self) -> Result<Vec<u64>> {
        let mut groups = Vec::new();
        let mut from = ChunkId { group: 0, number: 0 }.key(0);
        let end = ChunkId::end();
        // One look-up for each group, not for each chunk.
        while let Some(found) = self.db()?.range(&from[..]..&end[..]).next() {
            let (key, _) = found.map_err(sled_error("reading"))?;
            let (id, _) = ChunkId::parse(&key)?;
            groups.push(id.group);
            match id.group.checked_add(1) {
                Some(next) => from = ChunkId { group: next, number: 0 }.key(0),
                None => break,
            }
        }
        Ok(groups)
    }

    /// Closes a generation that is not valid any more, and returns its directory.
    pub(super) fn abandon(mut self) -> PathBuf {
        self.shut();
        std::mem::take(&mut self.path)
    }

    /// The database file of a generation's directory.
    pub(super) fn database_in(path: &Path) -> PathBuf {
        path.join(DB)
    }

    fn shut(&mut self) {
        let db = self.db.take();
        // sled's destructors do I/O and may panic, which must not happen in a `drop` here.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(db)));
    }

    fn sync_everything(&mut self) -> Result<()> {
        self.sync()?;
        let sync = || -> io::Result<()> {
            self.file.sync_all()?;
            open_file(&self.path.join(CONF))?.sync_all()?;
            sync_directory(&self.path.join(BLOBS))?;
            sync_directory(&self.path)
        };
        sync().map_err(io_error("syncing a generation"))
    }

    fn db(&self) -> Result<&Db> {
        match &self.db {
            Some(db) => Ok(db),
            None => Err(StorageError::Poisoned { reason: "the database is closed".to_owned() }),
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.shut();
    }
}

/// Removes snapshot files that sled had not finished: it would report them as damaged on each open.
fn remove_torn_snapshots(path: &Path) -> io::Result<()> {
    for entry in entries(path)? {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn open_sled(path: &Path) -> Result<Db> {
    let config = sled::Config::new()
        .path(path)
        .mode(Mode::LowSpace)
        .cache_capacity(CACHE_BYTES)
        .segment_size(SEGMENT_BYTES)
        .flush_every_ms(None);
    // Damaged files make sled panic as often as fail.
    while_locked(|| match catch_unwind(AssertUnwindSafe(|| config.open())) {
        Ok(Ok(db)) => Some(Ok(db)),
        // Only sled's text distinguishes this from other errors.
        Ok(Err(sled::Error::Io(io))) if io.to_string().contains("could not acquire lock") => None,
        Ok(Err(error)) => Some(Err(open_error(error))),
        Err(panic) => Some(corrupt(format!("the database: {}", panic_text(&*panic)))),
    })
}

/// sled's message once a thread of its pool has panicked.
const POOL_BROKEN: &str = "IO thread unexpectedly panicked";

/// Why sled did not open a database. sled reports most damage of files as a bug of its own.
fn open_error(error: sled::Error) -> StorageError {
    match error {
        // The pool is shared by all databases of the process: this one may be sound.
        sled::Error::ReportableBug(what) if what.contains(POOL_BROKEN) => StorageError::Io {
            what: "opening the database".to_owned(),
            reason: format!("{what} (in any database of this process: restart it)"),
        },
        sled::Error::ReportableBug(what) | sled::Error::Unsupported(what) => {
            corrupt_error("the database", &what)
        }
        other => sled_error("opening")(other),
    }
}

/// Converts sled's errors of this operation to errors of the store.
fn sled_error(what: &str) -> impl Fn(sled::Error) -> StorageError {
    use io::ErrorKind::{InvalidData, UnexpectedEof};
    move |error| {
        let what = format!("{what} the database");
        match error {
            // sled's own checks of its files report these kinds.
            sled::Error::Io(error) if matches!(error.kind(), InvalidData | UnexpectedEof) => {
                corrupt_error(&what, &error.to_string())
            }
            sled::Error::Io(error) => io_error(&what)(error),
            sled::Error::Corruption { .. } | sled::Error::CollectionNotFound(_) => {
                corrupt_error(&what, &error.to_string())
            }
            sled::Error::Unsupported(_) | sled::Error::ReportableBug(_) => {
                StorageError::Io { what, reason: error.to_string() }
            }
        }
    }
}

fn corrupt_error(what: &str, reason: &str) -> StorageError {
    StorageError::Corrupt { what: format!("{what}: {reason}") }
}

/// Converts a panic to an error: sled panics as often as it fails.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(panic) => Err(StorageError::Io {
            what: "a panic in the store".to_owned(),
            reason: panic_text(&*panic),
        }),
    }
}

/// The message of a panic.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A panic in another coordinator's database was taken for damage of this coordinator's files.
    #[test]
    fn a_panic_in_another_database_is_no_damage_here() {
        let pool =
            "IO thread unexpectedly panicked. please report this bug on the sled github repo.";
        let broken = open_error(sled::Error::ReportableBug(pool.to_owned()));
        assert!(matches!(broken, StorageError::Io { .. }), "{broken}");
        let other = sled::Error::ReportableBug("failed to serialize a page".to_owned());
        assert!(matches!(open_error(other), StorageError::Corrupt { .. }));
    }
}
