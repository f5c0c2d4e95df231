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

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::file_system::{Access, Database, File, FsPath, Pair, panic_text};
use super::files::io_error;
use super::record::{ChunkId, Encoded, Key, Reader, corrupt};
use super::{Result, StorageError};

/// Bytes of chunks written between two syncs.
const UNSYNCED_BYTES_MAX: u64 = 3 << 20;
/// Bytes of chunks written or read before the database is reopened.
pub(super) const CACHED_BYTES_MAX: u64 = 16 << 20;
/// sled's names for the files and directories of a database.
const DB: &str = "db";
const CONF: &str = "conf";
const BLOBS: &str = "blobs";

/// An open generation.
#[derive(Debug)]
pub(super) struct Generation {
    number: u64,
    path: FsPath,
    /// `None` only while it is being closed.
    db: Option<Box<dyn Database>>,
    /// A second handle of the database file, to sync it.
    file: Box<dyn File>,
    /// The parts of chunks that sled gets before the next sync.
    gathered: Vec<(Key, Vec<u8>)>,
    unsynced_bytes: u64,
    /// How many bytes were written or read since the database was opened.
    cached_bytes: u64,
    /// sled may have written chunks in memory.
    holds_written: bool,
}

/// The entries of a generation.
pub(super) type Parts = Box<dyn Iterator<Item = Pair>>;

impl Generation {
    /// Creates an empty generation, which no record of the log names yet.
    pub(super) fn create(path: FsPath, number: u64) -> Result<Generation> {
        let io = io_error("creating a generation");
        // Left over from a crash. If a record named it, it would not be created again.
        path.remove_all().map_err(io)?;
        path.create_directory().map_err(io)?;
        // A failure in a new database is no damage.
        let db = path.open_database().map_err(|error| match error {
            StorageError::Corrupt { what } => {
                StorageError::Io { what: "creating a generation".to_owned(), reason: what }
            }
            other => other,
        })?;
        let file = path.join(DB).open(Access::Write).map_err(io)?;
        let mut generation = Generation::of(number, path, db, file);
        generation.sync_everything()?;
        Ok(generation)
    }

    /// Opens an existing generation.
    pub(super) fn open(path: FsPath, number: u64) -> Result<Generation> {
        let io = io_error("opening a generation");
        // If a file is missing, sled creates a new database.
        for name in [DB, CONF] {
            if !path.join(name).try_exists().map_err(io)? {
                return corrupt(format!("generation {number} has no file {name}"));
            }
        }
        remove_torn_snapshots(&path).map_err(io)?;
        // Opened before sled opens the file, so that this handle sees write errors of sled's recovery.
        let file = path.join(DB).open(Access::Write).map_err(io)?;
        // sled must not build on what only the page cache has: a process that has ended may have left
        // writes there, and a failed sync pages that no later sync writes.
        file.sync_all().map_err(io)?;
        file.forget_cached();
        let db = path.open_database()?;
        let mut generation = Generation::of(number, path, db, file);
        if !generation.path.join(BLOBS).list().map_err(io)?.is_empty() {
            return corrupt("there is a blob file, and this store never creates one".to_owned());
        }
        // sled's recovery writes too.
        generation.sync_everything()?;
        Ok(generation)
    }

    fn of(number: u64, path: FsPath, db: Box<dyn Database>, file: Box<dyn File>) -> Generation {
        let (gathered, unsynced_bytes, cached_bytes) = (Vec::new(), 0, 0);
        let (db, holds_written) = (Some(db), true);
        Generation { number, path, db, file, gathered, unsynced_bytes, cached_bytes, holds_written }
    }

    /// Reopens the database, to free memory.
    ///
    /// sled keeps far more in memory than the size of its cache: each of the 256 parts of the cache
    /// frees pages only at every 64th access, and never its last page. Our pages have up to a megabyte,
    /// so a whole checkpoint would stay in memory.
    pub(super) fn reopen(&mut self) -> Result<()> {
        self.shut();
        self.file.forget_cached();
        self.db = Some(self.path.open_database()?);
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
    pub(super) fn bytes_in(path: &FsPath) -> u64 {
        path.join(DB).open(Access::Read).and_then(|file| file.length()).unwrap_or(0)
    }

    /// See [`FileSystem::has_one_thread`](super::file_system::FileSystem::has_one_thread).
    pub(super) fn has_one_thread(&self) -> bool {
        self.path.has_one_thread()
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The length of the database file.
    pub(super) fn file_bytes(&self) -> Result<u64> {
        self.file.length().map_err(io_error("reading the length of the database"))
    }

    /// Writes a chunk; durable after the next sync.
    pub(super) fn write(&mut self, record: Encoded) -> Result<()> {
        for (key, value) in record.parts {
            let bytes = (key.len() + value.len()) as u64;
            self.gathered.push((key, value));
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

    /// Gives sled what was gathered.
    ///
    /// sled splits a page that has more than 16 entries, and writes both halves again: each value was written
    /// three to four times. So all keys come first, with empty values: pages are split while there is little in
    /// them. A crash in between leaves empty values in a part that no record of the log names.
    fn write_gathered(&mut self) -> Result<()> {
        let gathered = std::mem::take(&mut self.gathered);
        let db = self.db()?;
        for (key, _) in &gathered {
            db.insert(key, &[])?;
        }
        gathered.iter().try_for_each(|(key, value)| db.insert(key, value))
    }

    /// The part of a checkpoint that was being written is given up.
    pub(super) fn forget_gathered(&mut self) {
        self.gathered.clear();
    }

    /// Removes all chunks of a part of a checkpoint.
    pub(super) fn remove_group(&mut self, group: u64) -> Result<()> {
        for part in self.parts(group, None)? {
            let (key, _) = part?;
            self.db()?.remove(&key)?;
            self.unsynced_bytes += key.len() as u64;
            self.sync_if_due()?;
        }
        Ok(())
    }

    /// Makes everything written durable.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.write_gathered()?;
        self.db()?.flush()?;
        if !planted!(CheckpointUnsynced) {
            self.file.sync_data().map_err(io_error("syncing the database"))?;
        }
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
        Ok(Reader::new(self.parts(group, from)?))
    }

    fn parts(&self, group: u64, from: Option<u32>) -> Result<Parts> {
        let prefix = ChunkId::group_prefix(group);
        let first =
            from.map_or(prefix.to_vec(), |number| ChunkId { group, number }.key(0).to_vec());
        let is_in =
            move |part: &Pair| part.as_ref().map_or(true, |(key, _)| key.starts_with(&prefix));
        Ok(Box::new(self.db()?.range(&first).take_while(is_in)))
    }

    /// The ids of all parts of checkpoints that have chunks.
    pub(super) fn chunk_groups(&self) -> Result<Vec<u64>> {
        let mut groups = Vec::new();
        let mut from = ChunkId { group: 0, number: 0 }.key(0);
        let end = ChunkId::end();
        // One look-up for each group, not for each chunk.
        while let Some(found) = self.db()?.range(&from).next() {
            let (key, _) = found?;
            if *key >= end[..] {
                break;
            }
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
    pub(super) fn abandon(mut self) -> FsPath {
        self.shut();
        self.path.clone()
    }

    /// The database file of a generation's directory.
    pub(super) fn database_in(path: &FsPath) -> FsPath {
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
            self.path.join(CONF).open(Access::Write)?.sync_all()?;
            self.path.join(BLOBS).sync_names()?;
            self.path.sync_names()
        };
        sync().map_err(io_error("syncing a generation"))
    }

    fn db(&self) -> Result<&dyn Database> {
        match &self.db {
            Some(db) => Ok(&**db),
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
fn remove_torn_snapshots(path: &FsPath) -> io::Result<()> {
    for name in path.list()? {
        let text = name.to_string_lossy();
        if text.starts_with("snap.") && text.ends_with(".generating") {
            path.join(&name).remove_file()?;
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::record::{Form, encode};

    /// sled wrote each value three to four times: it splits a page that has more than 16 entries, and writes both
    /// halves again.
    #[test]
    fn a_chunk_is_written_to_the_file_less_than_twice() {
        const CHUNK: usize = 48 << 10;
        let dir = tempfile::tempdir().unwrap();
        let path = FsPath::system(dir.path()).join("gen");
        let mut generation = Generation::create(path, 1).unwrap();
        let (mut chain, mut bytes) = (0, 0);
        for number in 0..200 {
            let body: Vec<u8> = (0..CHUNK).map(|at| (at * 31 + number as usize) as u8).collect();
            let record = encode(ChunkId { group: 1, number }, chain, Form::Clear, &body);
            (chain, bytes) = (record.chain, bytes + record.bytes);
            generation.write(record).unwrap();
        }
        generation.sync().unwrap();
        let file = generation.file_bytes().unwrap();
        assert!(file < 2 * bytes, "{file} bytes of file for {bytes} bytes");
        let mut read = generation.chunks(1, None).unwrap();
        let mut count = 0;
        while let Some(chunk) = read.next().unwrap() {
            assert_eq!((chunk.id.number, chunk.body.len()), (count, CHUNK));
            count += 1;
        }
        assert_eq!(count, 200);
    }
}
