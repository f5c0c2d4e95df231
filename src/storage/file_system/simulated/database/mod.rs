//! A model of sled 0.34 as a store uses it, with sled's faults.
//!
//! Writes stay in memory until a flush, which appends them to the file `db` and syncs nothing. Opening reads the
//! file from the last snapshot on, and writes another snapshot of the index. Like sled, it
//! - takes a damaged record for the end of the log, or of its segment, and opens with less than was written, or
//!   refuses to open;
//! - refuses to open if a crash has left an unfinished snapshot;
//! - makes what is missing: without `conf` or `db` it is new and empty;
//! - moves records to the end and uses their segments again once a segment more was flushed, durable or not. So a
//!   store that flushes more than a segment between two syncs loses what it had synced;
//! - puts large values into files of their own, which it never syncs;
//! - keeps in memory what was written or read, until it is opened again;
//! - fails for ever after an error.

mod append;
mod log;
mod snapshot;

use std::collections::BTreeMap;
use std::io;
use std::ops::{Bound, Range};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sled::IVec;

use self::log::{FoundRecord, Kind, RecordLocation, Replay, decode, replay};
use self::snapshot::{read_snapshot, snapshots};
use crate::storage::error::{Result, StorageError};
use crate::storage::error::{corrupt, io_error};
use crate::storage::file_system::{Access, Database, File, FileSystem, Lock, Pair};

const CONF: &[u8] = b"simulated database, format 1";

/// How a database is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseOptions {
    /// A store may flush less than this between two syncs.
    pub(crate) segment_bytes: u64,
    /// Values of more bytes go to files of their own. Less than half of a segment.
    pub(crate) value_bytes_max: usize,
}

impl Default for DatabaseOptions {
    /// For a store that syncs after a mebibyte, and whose values have at most 60 KB.
    fn default() -> DatabaseOptions {
        DatabaseOptions { segment_bytes: 2 << 20, value_bytes_max: 128 << 10 }
    }
}

/// An open database.
#[derive(Debug)]
pub(super) struct SimulatedDatabase {
    inner: Arc<Mutex<OpenDatabase>>,
}

/// A value, in memory or in the file.
#[derive(Clone, Debug, Default)]
struct Stored {
    value: Option<IVec>,
    /// `None` until it is flushed.
    place: Option<RecordLocation>,
}

#[derive(Clone, Copy, Debug)]
struct DatabaseSegment {
    base: u64,
    /// The bytes of the records in it that are still needed.
    live: u64,
    /// Since when it holds nothing that is needed, by log sequence number.
    free_since: Option<u64>,
}

#[derive(Debug)]
struct OpenDatabase {
    files: Box<dyn FileSystem>,
    path: PathBuf,
    file: Box<dyn File>,
    _lock: Box<dyn Lock>,
    options: DatabaseOptions,
    seed: u64,
    index: BTreeMap<IVec, Stored>,
    /// Removals, which hide older records of their keys.
    removed: BTreeMap<IVec, Option<RecordLocation>>,
    /// What the next flush writes, in order; `None` removes.
    unflushed: Vec<(IVec, Option<IVec>)>,
    unflushed_bytes: u64,
    /// By their places in the file.
    segments: BTreeMap<u64, DatabaseSegment>,
    /// The segment that is written, and how much of it is used.
    current: u64,
    used: u64,
    flush: u32,
    failed: Option<StorageError>,
}

impl SimulatedDatabase {
    pub(super) fn open(
        files: Box<dyn FileSystem>,
        path: &Path,
        options: DatabaseOptions,
        seed: u64,
    ) -> Result<SimulatedDatabase> {
        let io = io_error("opening the database");
        make_directories(&*files, path).map_err(io)?;
        check_conf(&*files, &path.join("conf"))?;
        let db = path.join("db");
        let lock = files.lock(&db)?;
        let file = files.open(&db, Access::Write).map_err(io)?;
        let snapshots = snapshots(&*files, path)?;
        let (from, index) = match snapshots.last() {
            Some(name) => read_snapshot(&*files, &path.join(name))?,
            None => (0, BTreeMap::new()),
        };
        let found = replay(&*file, options.segment_bytes, from, seed).map_err(io)?;
        if let Some(what) = found.refused {
            return corrupt(format!("the database: {what}"));
        }
        let has_new = !found.records.is_empty();
        erase(&*file, &found.leftovers).map_err(io)?;
        let mut inner = OpenDatabase {
            files,
            path: path.to_owned(),
            file,
            _lock: lock,
            options,
            seed,
            index,
            removed: BTreeMap::new(),
            unflushed: Vec::new(),
            unflushed_bytes: 0,
            segments: BTreeMap::new(),
            current: 0,
            used: 0,
            flush: 0,
            failed: None,
        };
        inner.take(found)?;
        if has_new {
            inner.write_snapshot(&snapshots).map_err(io)?;
        }
        Ok(SimulatedDatabase { inner: Arc::new(Mutex::new(inner)) })
    }

    fn inner(&self) -> MutexGuard<'_, OpenDatabase> {
        locked(&self.inner)
    }
}

fn locked(inner: &Mutex<OpenDatabase>) -> MutexGuard<'_, OpenDatabase> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Overwrites what is behind the end of the log, so that it is not taken for a part of it later.
fn erase(file: &dyn File, leftovers: &[Range<u64>]) -> io::Result<()> {
    for range in leftovers {
        file.write_at(&vec![0; (range.end - range.start) as usize], range.start)?;
    }
    if leftovers.is_empty() { Ok(()) } else { file.sync_all() }
}

fn make_directories(files: &dyn FileSystem, path: &Path) -> io::Result<()> {
    let blobs = path.join("blobs");
    if files.kind(&blobs)?.is_none() {
        files.create_directory(&blobs)?;
    }
    Ok(())
}

/// Checks the file `conf`, and writes it if there is none. A power cut may leave it empty.
fn check_conf(files: &dyn FileSystem, path: &Path) -> Result<()> {
    let io = io_error("opening the database");
    if files.kind(path).map_err(io)?.is_some() {
        let file = files.open(path, Access::Read).map_err(io)?;
        let mut bytes = vec![0; CONF.len()];
        let read = file.read_at(&mut bytes, 0).map_err(io)?;
        if read > 8 && bytes != CONF {
            return corrupt("the database: conf is damaged".to_owned());
        }
        if read > 8 {
            return Ok(());
        }
    }
    let file = files.open(path, Access::Create).map_err(io)?;
    file.write_at(CONF, 0).map_err(io)
}

impl OpenDatabase {
    /// Takes what the replay of the file has found.
    fn take(&mut self, found: Replay) -> Result<()> {
        for (offset, base) in &found.segments {
            let segment = DatabaseSegment { base: *base, live: 0, free_since: None };
            self.segments.insert(*offset, segment);
        }
        self.flush = found.flush;
        for (record, place) in found.records {
            match record.kind {
                Kind::Put => {
                    let stored = Stored { value: None, place: Some(place) };
                    self.index.insert(record.key, stored);
                }
                Kind::Remove => drop(self.index.remove(&record.key)),
                Kind::Blob => {
                    match self.read_blob(&record.value) {
                        Ok(_) => {
                            let stored = Stored { value: None, place: Some(place) };
                            self.index.insert(record.key, stored);
                        }
                        // sled skips the record of a blob that is missing.
                        Err(StorageError::Io { .. }) => {}
                        // It takes a torn one for the end of the log.
                        Err(_) => break,
                    }
                }
            }
        }
        let places: Vec<RecordLocation> =
            self.index.values().filter_map(|stored| stored.place).collect();
        for place in places {
            // sled knows by its snapshot which segments it uses, also if the header of one is damaged.
            let start = place.offset - place.offset % self.options.segment_bytes;
            let base = place.lsn - (place.offset - start);
            let unknown = DatabaseSegment { base, live: 0, free_since: None };
            self.segments.entry(start).or_insert(unknown);
            if let Some(segment) = self.segment_of(place) {
                segment.live += place.bytes;
            }
        }
        if let Some((offset, used)) = found.tail {
            (self.current, self.used) = (offset, used);
        } else if let Some((offset, _)) =
            self.segments.iter().max_by_key(|(_, segment)| segment.base)
        {
            // The snapshot has everything, up to the end of this segment.
            (self.current, self.used) = (*offset, self.options.segment_bytes);
        }
        let tip = self.tip();
        for (offset, segment) in &mut self.segments {
            if segment.live == 0 && *offset != self.current {
                segment.free_since = Some(tip);
            }
        }
        Ok(())
    }

    /// The log sequence number of the next record.
    fn tip(&self) -> u64 {
        self.segments.get(&self.current).map_or(0, |segment| segment.base + self.used)
    }

    fn segment_of(&mut self, place: RecordLocation) -> Option<&mut DatabaseSegment> {
        let start = place.offset - place.offset % self.options.segment_bytes;
        let segment = self.segments.get_mut(&start)?;
        (segment.base..segment.base + self.options.segment_bytes)
            .contains(&place.lsn)
            .then_some(segment)
    }

    /// A record is not needed any more.
    fn release(&mut self, place: RecordLocation) {
        let (tip, current) = (self.tip(), self.current);
        let start = place.offset - place.offset % self.options.segment_bytes;
        if let Some(segment) = self.segment_of(place) {
            segment.live = segment.live.saturating_sub(place.bytes);
            if segment.live == 0 && start != current {
                segment.free_since = Some(tip);
            }
        }
    }

    fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn put(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.check()?;
        let key = IVec::from(key);
        let value = value.map(IVec::from);
        self.unflushed_bytes += (key.len() + value.as_ref().map_or(0, |value| value.len())) as u64;
        let old = match value.clone() {
            Some(value) => {
                if let Some(Some(place)) = self.removed.remove(&key) {
                    self.release(place);
                }
                self.index.insert(key.clone(), Stored { value: Some(value), place: None })
            }
            None => {
                let old = self.index.remove(&key);
                if old.is_none() {
                    return Ok(());
                }
                self.removed.insert(key.clone(), None);
                old
            }
        };
        if let Some(place) = old.and_then(|old| old.place) {
            self.release(place);
        }
        self.unflushed.push((key, value));
        // sled's buffer is a segment.
        if self.unflushed_bytes >= self.options.segment_bytes / 2 { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.check()?;
        let flushed = self.append_unflushed();
        if let Err(error) = &flushed {
            self.failed = Some(error.clone());
        }
        flushed
    }

    /// The value of a key, which stays in memory then.
    fn value(&mut self, key: &IVec) -> Result<Option<IVec>> {
        let Some(stored) = self.index.get(key) else { return Ok(None) };
        if let Some(value) = &stored.value {
            return Ok(Some(value.clone()));
        }
        let Some(place) = stored.place else { return Ok(None) };
        let mut bytes = vec![0; place.bytes as usize];
        let read = self.file.read_at(&mut bytes, place.offset);
        let read = read.map_err(io_error("reading the database"))?;
        let value = match decode(&bytes[..read], place.lsn) {
            FoundRecord::Record(record) if record.key == *key => match record.kind {
                Kind::Blob => self.read_blob(&record.value)?,
                _ => record.value,
            },
            _ => return corrupt("the database: a record is damaged".to_owned()),
        };
        if let Some(stored) = self.index.get_mut(key) {
            stored.value = Some(value.clone());
        }
        Ok(Some(value))
    }

    /// The next pair from a key on, or behind it.
    fn next_pair(&mut self, from: &Bound<IVec>) -> Option<Pair> {
        let range = (from.clone(), Bound::Unbounded);
        let key = self.index.range(range).next()?.0.clone();
        match self.value(&key) {
            Ok(value) => value.map(|value| Ok((key, value))),
            Err(error) => Some(Err(error)),
        }
    }
}

impl Drop for OpenDatabase {
    fn drop(&mut self) {
        // As sled's.
        let _ = self.flush();
    }
}

impl Database for SimulatedDatabase {
    fn insert(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.inner().put(key, Some(value))
    }

    fn remove(&self, key: &[u8]) -> Result<()> {
        self.inner().put(key, None)
    }

    fn range(&self, from: &[u8]) -> Box<dyn Iterator<Item = Pair>> {
        let inner = self.inner.clone();
        let mut from = Bound::Included(IVec::from(from));
        let mut has_failed = false;
        Box::new(std::iter::from_fn(move || {
            if has_failed {
                return None;
            }
            let pair = locked(&inner).next_pair(&from)?;
            match &pair {
                Ok((key, _)) => from = Bound::Excluded(key.clone()),
                Err(_) => has_failed = true,
            }
            Some(pair)
        }))
    }

    fn flush(&self) -> Result<()> {
        self.inner().flush()
    }
}
