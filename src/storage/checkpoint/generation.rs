//! One generation: the parts of chunks in a file, and a sled database that says where each of them is. Both are
//! written durably and checked when they are opened.
//!
//! A chunk in sled cost several times what it costs in a file: sled copies it into pages, writes them again when
//! they are split, and reads all of it back when the database is opened, which was necessary after each 16 MiB,
//! since sled keeps in memory what it has written.
//!
//! sled 0.34.7 ends its `flush` in `sync_file_range`, which is no barrier on
//! Linux, and its only true syncs come from a background thread that swallows
//! their errors. So that thread is off, and after each flush the database file
//! is synced through a separate handle, which also reports any write error
//! since it was opened.
//!
//! Invariants:
//! - Far less than a segment is written to sled between two syncs: it reuses segments that it believes to be durable.
//! - sled has places alone, so no value is large enough for a blob, a file that sled never syncs.
//! - sled knows no part that is not durable in the file of chunks.
//! - A place in the file of chunks is written again only if the checkpoint that it was written for was given up, or its
//!   generation was replaced: the file of a replaced generation is kept for the next one. What is left in it is of
//!   another generation, so no chain of chunks leads to it.
//! - Nothing in a generation is valid before a record of the log names it, all parts at once.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::chunk::{ChunkId, Encoded, Key, Reader, VALUE_BYTES_MAX};
use crate::storage::bytes::array;
use crate::storage::error::{Result, StorageError};
use crate::storage::error::{corrupt, io_error};
use crate::storage::file_system::{Access, Database, File, FsPath, Pair};

/// Bytes of chunks written between two syncs.
const UNSYNCED_BYTES_MAX: u64 = 3 << 20;
/// sled gets at most so many keys between two syncs: far less than a segment.
const UNSYNCED_KEYS_MAX: usize = 4096;
/// What a device or a file system writes at once has at most so many bytes.
const BLOCK_BYTES: u64 = 4096;
/// The file of the parts of chunks.
const CHUNKS: &str = "chunks";
/// The file of the chunks of a generation that was replaced, beside the generations.
const SPARE: &str = "spare-chunks";
/// sled's names for the files and directories of a database.
const DB: &str = "db";
const CONF: &str = "conf";
const BLOBS: &str = "blobs";

/// An open generation.
#[derive(Debug)]
pub(in crate::storage) struct Generation {
    number: u64,
    path: FsPath,
    /// `None` only while it is being closed.
    db: Option<Box<dyn Database>>,
    /// A second handle of the database file, to sync it.
    file: Box<dyn File>,
    chunks: Arc<dyn File>,
    /// Where the next part goes in the file of chunks, and where the first one of this checkpoint went. The file may be
    /// longer.
    end: u64,
    begun_at: u64,
    /// How long the file was before this checkpoint, and is again if this one is given up.
    begun_length: u64,
    /// The places of parts that sled gets at the next sync.
    gathered: Vec<(Key, Place)>,
    unsynced_bytes: u64,
    unsynced_keys: usize,
    /// sled may have what was written in memory.
    holds_written: bool,
}

/// Where a part of a chunk is in the file: 8 bytes of offset and 4 of length, little endian. It needs no checksum of its
/// own: the part has one, with its key.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    bytes: u32,
}

impl Place {
    fn encoded(self) -> [u8; 12] {
        let mut value = [0; 12];
        value[..8].copy_from_slice(&self.offset.to_le_bytes());
        value[8..].copy_from_slice(&self.bytes.to_le_bytes());
        value
    }

    fn decode(value: &[u8]) -> Option<Place> {
        let (offset, bytes) = value.split_first_chunk()?;
        let (offset, bytes) = (u64::from_le_bytes(*offset), u32::from_le_bytes(array(bytes)?));
        (bytes as usize <= VALUE_BYTES_MAX).then_some(Place { offset, bytes })
    }
}

/// A key, and where its part is.
type Found = Result<(Vec<u8>, Place)>;

/// The parts of chunks of a generation.
pub(in crate::storage) type Parts = Box<dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>>;

impl Generation {
    /// Creates an empty generation, which no record of the log names yet.
    pub(in crate::storage) fn create(path: FsPath, number: u64) -> Result<Generation> {
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
        let chunks = make_chunks(&path).map_err(io)?;
        let mut generation = Generation::of(number, path, db, (file, chunks), 0);
        generation.sync_everything()?;
        Ok(generation)
    }

    /// Opens an existing generation.
    pub(in crate::storage) fn open(path: FsPath, number: u64) -> Result<Generation> {
        let io = io_error("opening a generation");
        // If a file is missing, sled creates a new database.
        for name in [DB, CONF, CHUNKS] {
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
        file.forget_cached(u64::MAX);
        let chunks = path.join(CHUNKS).open(Access::Write).map_err(io)?;
        chunks.sync_all().map_err(io)?;
        chunks.forget_cached(u64::MAX);
        let length = chunks.length().map_err(io)?;
        let db = path.open_database()?;
        let mut generation = Generation::of(number, path, db, (file, chunks), 0);
        generation.end = generation.end_of_places()?.min(length);
        if !generation.path.join(BLOBS).list().map_err(io)?.is_empty() {
            return corrupt("there is a blob file, and this store never creates one".to_owned());
        }
        // sled's recovery writes too.
        generation.sync_everything()?;
        Ok(generation)
    }

    fn of(
        number: u64,
        path: FsPath,
        db: Box<dyn Database>,
        (file, chunks): (Box<dyn File>, Box<dyn File>),
        end: u64,
    ) -> Generation {
        Generation {
            number,
            path,
            db: Some(db),
            file,
            chunks: chunks.into(),
            end,
            begun_at: end,
            begun_length: end,
            gathered: Vec::new(),
            unsynced_bytes: 0,
            unsynced_keys: 0,
            holds_written: true,
        }
    }

    /// Reopens the database, so that it reads from the disk.
    fn reopen(&mut self) -> Result<()> {
        self.shut();
        // An attempt that failed, as on a full disk, has left one.
        remove_torn_snapshots(&self.path).map_err(io_error("opening a generation"))?;
        self.file.forget_cached(u64::MAX);
        self.db = Some(self.path.open_database()?);
        self.holds_written = false;
        // sled's recovery writes too. Without that on the device, it must read from there again.
        self.sync_everything().inspect_err(|_| self.shut())
    }

    /// Makes sure that the next reads come from the disk, and not from memory, which has what was written, and
    /// what was read in the last round.
    pub(super) fn forget_read(&mut self, is_new_round: bool) -> Result<()> {
        self.chunks.forget_cached(u64::MAX);
        if is_new_round || self.holds_written || self.db.is_none() {
            return self.reopen();
        }
        Ok(())
    }

    /// Opens the database if it could not be opened before.
    pub(super) fn ensure_open(&mut self) -> Result<()> {
        if self.db.is_none() { self.reopen() } else { Ok(()) }
    }

    /// The length of the files of a generation that is not open; 0 if that is not known.
    pub(in crate::storage) fn bytes_in(path: &FsPath) -> u64 {
        let length = |name| path.join(name).open(Access::Read).and_then(|file| file.length());
        [DB, CHUNKS].map(|name| length(name).unwrap_or(0)).iter().sum()
    }

    /// Removes the spare file of chunks beside the generations.
    pub(in crate::storage) fn remove_spare(generations: &FsPath) {
        // Best effort: it may not exist.
        let _ = generations.join(SPARE).remove_file();
    }

    /// The spare file of chunks beside the generations, and its length.
    pub(in crate::storage) fn spare_in(generations: &FsPath) -> Option<(FsPath, u64)> {
        let spare = generations.join(SPARE);
        let length = spare.open(Access::Read).and_then(|file| file.length()).ok()?;
        Some((spare, length))
    }

    /// See [`FileSystem::has_one_thread`](crate::storage::file_system::FileSystem::has_one_thread).
    pub(in crate::storage) fn has_one_thread(&self) -> bool {
        self.path.has_one_thread()
    }

    pub(in crate::storage) fn number(&self) -> u64 {
        self.number
    }

    /// The length of the files.
    pub(super) fn file_bytes(&self) -> Result<u64> {
        let database =
            self.file.length().map_err(io_error("reading the length of the database"))?;
        Ok(database + self.end)
    }

    /// The next chunks are of a new checkpoint. They share no block with valid ones, so that a write that fails
    /// touches none.
    pub(in crate::storage) fn begin_part(&mut self) {
        self.end = self.end.next_multiple_of(BLOCK_BYTES);
        self.begun_at = self.end;
        self.begun_length = self.chunks.length().unwrap_or(0);
    }

    /// Writes a chunk; durable after the next sync.
    ///
    /// # Errors
    /// [`StorageError::Again`] if the disk is full, or what an earlier image left in this place is damaged: nothing that
    /// is valid has changed.
    pub(in crate::storage) fn write(&mut self, chunk: Encoded) -> Result<()> {
        for (key, value) in chunk.parts {
            let place = Place { offset: self.end, bytes: value.len() as u32 };
            if let Err(error) = self.chunks.write_at(&value, self.end) {
                let error = io_error("writing a chunk")(error);
                if self.end >= self.begun_length {
                    return Err(error.later());
                }
                // The system reads a page before it writes a part of it, and cannot read this one. The page leaves
                // the file when this checkpoint is given up, and the next one gets a new page.
                self.begun_length = self.begun_at;
                return Err(error.retryable());
            }
            self.end += value.len() as u64;
            self.unsynced_bytes += value.len() as u64;
            self.gathered.push((key, place));
        }
        if self.gathered.len() >= UNSYNCED_KEYS_MAX {
            return self.sync();
        }
        // Little at a time: the log is synced to the same disk.
        if self.unsynced_bytes >= UNSYNCED_BYTES_MAX {
            self.sync_chunks()?;
        }
        Ok(())
    }

    /// The part of a checkpoint that was being written is given up.
    pub(super) fn give_up(&mut self) {
        self.gathered.clear();
        self.unsynced_bytes = 0;
        self.end = self.begun_at;
        // Best effort: the next checkpoint is written to the same place.
        let _ = self.chunks.set_length(self.end.max(self.begun_length));
    }

    /// How much longer the file of chunks is than its content, as one that another generation had before.
    pub(in crate::storage) fn unused_bytes(&self) -> u64 {
        self.chunks.length().map_or(0, |length| length.saturating_sub(self.end))
    }

    /// Shortens the file of chunks by so many bytes at most: to `length`, or to its content. Returns whether it is longer
    /// still.
    pub(in crate::storage) fn shorten(&mut self, length: u64, step: u64) -> io::Result<bool> {
        let (now, wanted) = (self.chunks.length()?, length.max(self.end));
        if now <= wanted {
            return Ok(false);
        }
        let next = wanted.max(now.saturating_sub(step));
        // By a handle of its own: the system reports a failed write once to each, and this one's report may be that of a
        // chunk that is not synced yet. Opened first: without a descriptor, the length would stay unsynced.
        let own = self.path.join(CHUNKS).open(Access::Write)?;
        self.chunks.set_length(next)?;
        self.begun_length = self.begun_length.min(next);
        own.sync_data()?;
        Ok(next > wanted)
    }

    /// Removes the places of all chunks of a part of a checkpoint.
    pub(super) fn remove_group(&mut self, group: u64) -> Result<()> {
        // Whatever their places are: nothing needs them.
        for pair in self.pairs(group, None)? {
            let (key, _) = pair?;
            self.db()?.remove(&key)?;
            self.holds_written = true;
            self.unsynced_keys += 1;
            self.sync_if_due()?;
        }
        Ok(())
    }

    fn sync_chunks(&mut self) -> Result<()> {
        if self.unsynced_bytes > 0 {
            let syncing = io_error("syncing chunks");
            self.chunks.sync_data().map_err(|error| syncing(error).later())?;
        }
        self.unsynced_bytes = 0;
        Ok(())
    }

    /// Makes everything written durable.
    pub(in crate::storage) fn sync(&mut self) -> Result<()> {
        self.sync_chunks()?;
        for (key, place) in std::mem::take(&mut self.gathered) {
            self.db()?.insert(&key, &place.encoded())?;
            self.holds_written = true;
        }
        self.db()?.flush()?;
        self.file.sync_data().map_err(io_error("syncing the database"))?;
        self.unsynced_keys = 0;
        Ok(())
    }

    /// Syncs if so much was written that the next write may go into another segment.
    fn sync_if_due(&mut self) -> Result<()> {
        if self.unsynced_keys >= UNSYNCED_KEYS_MAX { self.sync() } else { Ok(()) }
    }

    /// The chunks of a part of a checkpoint, in order: all, or those from this one on.
    pub(in crate::storage) fn chunks(
        &self,
        group: u64,
        from: Option<u32>,
    ) -> Result<Reader<Parts>> {
        let (chunks, end) = (Arc::clone(&self.chunks), self.end);
        let parts = self.places(group, from)?.map(move |found| {
            let (key, place) = found?;
            // Some systems refuse to read so far behind the end, which is no failure of the disk.
            if place.offset >= end {
                return Ok((key, Vec::new()));
            }
            let mut value = vec![0; place.bytes as usize];
            let read = chunks.read_at(&mut value, place.offset);
            // Fewer at the end of the file, which a checksum detects.
            value.truncate(read.map_err(io_error("reading a chunk"))?);
            Ok((key, value))
        });
        Ok(Reader::new(Box::new(parts)))
    }

    /// Where the last chunk ends that has a place.
    fn end_of_places(&self) -> Result<u64> {
        let mut end = 0;
        for pair in self.db()?.range(&ChunkId { group: 0, number: 0 }.key(0)) {
            // One that is no place is judged if its chunk is read.
            if let Some(place) = Place::decode(&pair?.1) {
                end = end.max(place.offset.saturating_add(u64::from(place.bytes)));
            }
        }
        Ok(end)
    }

    fn places(&self, group: u64, from: Option<u32>) -> Result<impl Iterator<Item = Found> + use<>> {
        Ok(self.pairs(group, from)?.map(|pair| {
            let (key, value) = pair?;
            match Place::decode(&value) {
                Some(place) => Ok((key.to_vec(), place)),
                None => corrupt(format!("no place of a chunk: {value:02x?}")),
            }
        }))
    }

    fn pairs(&self, group: u64, from: Option<u32>) -> Result<impl Iterator<Item = Pair> + use<>> {
        let prefix = ChunkId::group_prefix(group);
        let first =
            from.map_or(prefix.to_vec(), |number| ChunkId { group, number }.key(0).to_vec());
        let pairs = self.db()?.range(&first);
        Ok(pairs.take_while(move |pair| {
            pair.as_ref().map_or(true, |(key, _)| key.starts_with(&prefix))
        }))
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
    pub(in crate::storage) fn abandon(mut self) -> FsPath {
        self.shut();
        self.path.clone()
    }

    /// The large file of a generation's directory, and where it is kept for another generation.
    pub(in crate::storage) fn chunks_in(path: &FsPath) -> (FsPath, FsPath) {
        (path.join(CHUNKS), spare_beside(path))
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
            self.chunks.sync_all()?;
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

/// Makes the file of chunks of a new generation, from the spare one if there is any. Its blocks are written over: with
/// blocks that the file system has to find first, a disk wrote a third less.
fn make_chunks(path: &FsPath) -> io::Result<Box<dyn File>> {
    let (spare, chunks) = (spare_beside(path), path.join(CHUNKS));
    if spare.exists() && spare.rename(&chunks).is_ok() {
        // Under both names, the next generation would write over chunks that are valid.
        path.parent().sync_names()?;
        return chunks.open(Access::Write);
    }
    chunks.open(Access::Create)
}

/// The spare file of chunks beside a generation.
fn spare_beside(path: &FsPath) -> FsPath {
    path.parent().join(SPARE)
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::storage::checkpoint::chunk::{Form, encode};
    use crate::storage::file_system::simulated::{Device, Fault, FaultKind};

    /// sled wrote each value up to four times, and read all of it back.
    #[test]
    fn a_chunk_is_written_once() {
        const CHUNK: usize = 48 << 10;
        let dir = tempfile::tempdir().unwrap();
        let path = FsPath::system(dir.path()).join("gen");
        let mut generation = Generation::create(path, 1).unwrap();
        let (mut chain, mut bytes) = (0, 0);
        for number in 0..200 {
            let body: Vec<u8> = (0..CHUNK).map(|at| (at * 31 + number as usize) as u8).collect();
            let chunk = encode(ChunkId { group: 1, number }, chain, Form::Clear, &body);
            (chain, bytes) = (chunk.chain, bytes + chunk.bytes);
            generation.write(chunk).unwrap();
        }
        generation.sync().unwrap();
        let file = generation.file_bytes().unwrap();
        assert!(file < bytes + bytes / 50, "{file} bytes of files for {bytes} bytes");
        let mut read = generation.chunks(1, None).unwrap();
        let mut count = 0;
        while let Some(chunk) = read.next().unwrap() {
            assert_eq!((chunk.id.number, chunk.body.len()), (count, CHUNK));
            count += 1;
        }
        assert_eq!(count, 200);
    }

    #[test]
    fn a_place_is_offset_and_length() {
        let place = Place { offset: 0x0102_0304_0506_0708, bytes: 0x090a };
        assert_eq!(place.encoded(), [8, 7, 6, 5, 4, 3, 2, 1, 0x0a, 9, 0, 0]);
        assert_eq!(Place::decode(&place.encoded()).map(Place::encoded), Some(place.encoded()));
        assert!(Place::decode(&place.encoded()[..11]).is_none());
        assert!(Place::decode(&[255; 12]).is_none());
    }

    #[test]
    fn a_part_that_is_given_up_takes_no_space() {
        let dir = tempfile::tempdir().unwrap();
        let path = FsPath::system(dir.path()).join("gen");
        let mut generation = Generation::create(path.clone(), 1).unwrap();
        let chunk = |group| encode(ChunkId { group, number: 0 }, group, Form::Clear, &[7; 50_000]);
        generation.begin_part();
        generation.write(chunk(1)).unwrap();
        generation.sync().unwrap();
        for group in 2..5 {
            generation.begin_part();
            generation.write(chunk(group)).unwrap();
            if group == 3 {
                generation.sync().unwrap();
            }
            generation.give_up();
        }
        assert_eq!(generation.chunk_groups().unwrap(), [1, 3]);
        generation.remove_group(3).unwrap();
        generation.write(chunk(5)).unwrap();
        generation.sync().unwrap();
        drop(generation);
        let generation = Generation::open(path, 1).unwrap();
        assert_eq!(generation.chunk_groups().unwrap(), [1, 5]);
        for group in [1, 5] {
            let chunk = generation.chunks(group, None).unwrap().next().unwrap().unwrap();
            assert_eq!((chunk.previous, chunk.body.len()), (group, 50_000));
        }
        assert!(generation.chunks.length().unwrap() < 104_000);
    }

    /// The member stopped: the system cannot read a page of which a part is to be written.
    #[test]
    fn a_part_that_cannot_be_written_over_an_earlier_image_is_written_elsewhere_next_time() {
        let device = Device::new(3);
        let files = Arc::new(device.process());
        let path = FsPath::new(files.clone(), Path::new("/generations")).join("gen");
        let chunk = |group, bytes| {
            encode(ChunkId { group, number: 0 }, group, Form::Clear, &vec![7; bytes])
        };
        path.parent().create_directory().unwrap();
        let spare = spare_beside(&path).open(Access::Create).unwrap();
        spare.write_at(&[1; 200_000], 0).unwrap();
        spare.sync_all().unwrap();
        drop(spare);
        let mut generation = Generation::create(path.clone(), 1).unwrap();
        generation.write(chunk(1, 50_000)).unwrap();
        generation.sync().unwrap();
        device.drop_caches();
        for page in 15..40 {
            let chunks = Path::new("/generations/gen").join(CHUNKS);
            device.damage(FaultKind::BadSector, &chunks, page).unwrap();
        }
        generation.begin_part();
        let error = generation.write(chunk(2, 30_000)).unwrap_err();
        assert!(matches!(error, StorageError::Again { .. }), "{error:?}");
        generation.give_up();
        assert!(generation.chunks.length().unwrap() < 60_000);
        generation.begin_part();
        generation.write(chunk(3, 30_000)).unwrap();
        generation.sync().unwrap();
        // Only what an earlier image left there is given up.
        generation.begin_part();
        device.inject(Fault::next(FaultKind::FailedWrite));
        let error = generation.write(chunk(4, 30_000)).unwrap_err();
        assert!(matches!(error, StorageError::Io { .. }), "{error:?}");
        drop(generation);
        files.end_process();
        let files = Arc::new(device.process());
        let path = FsPath::new(files, Path::new("/generations")).join("gen");
        let generation = Generation::open(path, 1).unwrap();
        for (group, bytes) in [(1, 50_000), (3, 30_000)] {
            let chunk = generation.chunks(group, None).unwrap().next().unwrap().unwrap();
            assert_eq!((chunk.previous, chunk.body.len()), (group, bytes));
        }
    }

    /// A generation whose chunks are written over those of a former one.
    fn over_a_spare() -> (Device, Generation) {
        let device = Device::new(3);
        let path = FsPath::new(Arc::new(device.process()), Path::new("/generations")).join("gen");
        path.parent().create_directory().unwrap();
        let spare = spare_beside(&path).open(Access::Create).unwrap();
        spare.write_at(&[1; 200_000], 0).unwrap();
        spare.sync_all().unwrap();
        (device, Generation::create(path, 1).unwrap())
    }

    /// The length was set, and stayed unsynced: there was no descriptor for the handle that syncs it.
    #[test]
    fn a_file_is_not_shortened_without_a_descriptor_to_sync_it() {
        let (device, mut generation) = over_a_spare();
        device.set_descriptors(Some(0));
        assert!(generation.shorten(0, 50_000).is_err());
        assert_eq!(generation.chunks.length().unwrap(), 200_000);
        device.set_descriptors(None);
        assert!(generation.shorten(0, 50_000).unwrap());
        assert_eq!(generation.chunks.length().unwrap(), 150_000);
    }

    /// The error of the sync was lost with it, and the chunk counted as durable.
    #[test]
    fn a_sync_that_fails_while_the_file_is_shortened_fails_for_the_chunks_too() {
        let (device, mut generation) = over_a_spare();
        generation.begin_part();
        let id = ChunkId { group: 1, number: 0 };
        generation.write(encode(id, 0, Form::Clear, &[7; 30_000])).unwrap();
        device.inject(Fault::next(FaultKind::FailedSync));
        assert!(generation.shorten(0, 50_000).is_err());
        let error = generation.sync().unwrap_err();
        assert!(matches!(error, StorageError::Io { .. }), "{error:?}");
    }

    /// A place with such an offset was an error of the disk, and the member never started again.
    #[test]
    fn a_place_that_no_file_has_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = FsPath::system(dir.path()).join("gen");
        let mut generation = Generation::create(path, 1).unwrap();
        let id = ChunkId { group: 1, number: 0 };
        generation.write(encode(id, 0, Form::Clear, &[7; 100])).unwrap();
        generation.sync().unwrap();
        let key = ChunkId { group: 1, number: 0 }.key(0);
        for offset in [1 << 20, u64::from(u32::MAX), 1 << 62, 1 << 63, u64::MAX - 10, u64::MAX] {
            let place = Place { offset, bytes: 100 };
            generation.db().unwrap().insert(&key, &place.encoded()).unwrap();
            let error = generation.chunks(1, None).unwrap().next().unwrap_err();
            assert!(matches!(error, StorageError::Corrupt { .. }), "{offset:x}: {error:?}");
        }
    }

    /// Its damage stopped the member at its first checkpoint after each start.
    #[test]
    fn a_part_that_was_given_up_is_removed_whatever_its_places_say() {
        let dir = tempfile::tempdir().unwrap();
        let path = FsPath::system(dir.path()).join("gen");
        let mut generation = Generation::create(path, 1).unwrap();
        let key = ChunkId { group: 3, number: 0 }.key(0);
        generation.db().unwrap().insert(&key, &[]).unwrap();
        assert_eq!(generation.chunk_groups().unwrap(), [3]);
        generation.remove_group(3).unwrap();
        assert!(generation.chunk_groups().unwrap().is_empty());
    }
}
