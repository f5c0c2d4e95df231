//! The store on disk: the log in files of its own, checkpoints in sled.
//!
//! An append is one write and one wait for the device, see `log_file`. The
//! chunks of checkpoints go into sled, and count once a record of the log names
//! them. A full checkpoint begins a new generation: a new database, made and
//! synced on the side, so that the old one counts until the new one is whole.
//! That also bounds how far sled's file grows over what lives in it.
//!
//! `directory` says what the files are, `log_body` and `record` what is in
//! them, `generation` how sled is written, `witness` and `replay` how they are
//! checked.
//!
//! Caveats: a panic inside sled poisons this store, but sled shares a thread
//! pool among all databases of a process and may not serve another one after
//! it. In a process that aborts on panic there is nothing to catch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use super::directory::{Directory, FIRST_GENERATION, FOUNDING_SEQ};
use super::generation::{Generation, Tuning, panic_text};
use super::log_body::{CheckpointBody, CheckpointPart, LogBodyRef};
use super::log_file::{LogFile, RecordKind};
use super::log_index::{LogIndex, Span};
use super::opening;
use super::record::{ChunkId, encode, first_chunk_chain, log_id};
use super::replay::{LogReplay, read_chunks, read_log};
use super::rules::{Bounds, refuse};
use super::witness::{Testimony, Witness};
use super::{
    Boot, CheckpointKind, ChunkSink, HardState, Identity, LogAfter, LogStore, LogWrite,
    SnapshotMeta, StorageError,
};
use crate::membership::Promise;

/// What of the store can be set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SledOptions {
    /// What sled may keep in memory. The node keeps the log and the state there itself.
    pub(crate) cache_bytes: u64,
    /// A checkpoint is full when the deltas take more than the image before them, and than this.
    pub(crate) delta_bytes_min: u64,
    /// A checkpoint is full when the database is more than four times as long as what lives in
    /// it, and longer than this.
    pub(crate) file_bytes_min: u64,
    /// A checkpoint is full when it would have more deltas than this.
    pub(crate) deltas_max: usize,
    /// How long the files of the log are. A longer write gets a file of its own length.
    pub(crate) segment_bytes: u64,
}

impl Default for SledOptions {
    fn default() -> SledOptions {
        SledOptions {
            cache_bytes: 32 << 20,
            delta_bytes_min: 1 << 20,
            file_bytes_min: 64 << 20,
            deltas_max: 256,
            segment_bytes: 4 << 20,
        }
    }
}

impl SledOptions {
    fn tuning(&self) -> Tuning {
        Tuning {
            cache_bytes: self.cache_bytes,
            // Not an option: the largest value that makes no blob depends on it.
            segment_bytes: 8 << 20,
        }
    }
}

/// How many times longer than what lives in it the database may be.
const FILE_BYTES_FACTOR: u64 = 4;

/// A node's store in a data directory.
#[derive(Debug)]
pub(crate) struct SledStore {
    options: SledOptions,
    failed: Option<String>,
    state: State,
    /// The checkpoint begun and not yet committed.
    pending: Option<Pending>,
    /// Last, so that the lock outlives the databases.
    directory: Directory,
}

#[derive(Debug)]
enum State {
    Blank,
    /// Open, and its chunks not read back yet.
    Opened(Box<Opened>),
    Live(Box<Live>),
}

/// A store whose log was read.
#[derive(Debug)]
struct Opened {
    generation: Generation,
    replay: LogReplay,
    witness: Witness,
}

/// A store that can be written.
#[derive(Debug)]
struct Live {
    /// Closed before the generation's directory is given up.
    generation: Generation,
    log: LogFile,
    log_id: u64,
    witness: Witness,
    /// The last record that the witness has seen.
    witnessed: u64,
    hard_state: HardState,
    bounds: Bounds,
    index: LogIndex,
    /// What counts.
    checkpoint: CheckpointBody,
    next_part: u64,
    /// Parts of checkpoints that were begun and count for nothing.
    stale: Vec<u64>,
}

/// A checkpoint on its way.
#[derive(Debug)]
struct Pending {
    /// The new generation of a full checkpoint; a delta goes into the one there is.
    target: Option<Generation>,
    part: CheckpointPart,
}

/// After so many records the witness is written although there was no pause.
const UNWITNESSED_MAX: u64 = 4096;

impl SledStore {
    /// Opens a data directory; one that does not exist or is empty is made, and is blank.
    ///
    /// It is given up when it takes more than a minute, and a second more for each MiB of the
    /// database. The directory may then be in use for as long as the disk hangs: see [`opening`].
    pub(crate) fn open(dir: &Path, options: SledOptions) -> Result<SledStore, StorageError> {
        SledStore::open_within(opening::PATIENCE, dir, options)
    }

    /// The same with another time than a minute.
    pub(super) fn open_within(
        patience: Duration,
        dir: &Path,
        options: SledOptions,
    ) -> Result<SledStore, StorageError> {
        let path = dir.to_owned();
        opening::within(patience, dir, move |size| SledStore::open_now(&path, options, size))
    }

    fn open_now(
        dir: &Path,
        options: SledOptions,
        size: &opening::Size,
    ) -> Result<SledStore, StorageError> {
        let directory = Directory::open(dir)?;
        let opened = match directory.identity() {
            None => Ok(State::Blank),
            Some(_) => SledStore::open_log(&directory, &options, size)
                .map(|opened| State::Opened(Box::new(opened))),
        };
        match opened {
            Ok(state) => Ok(SledStore { options, failed: None, state, pending: None, directory }),
            Err(error) => Err(directory.quarantine_if_corrupt(error)),
        }
    }

    fn open_log(
        directory: &Directory,
        options: &SledOptions,
        size: &opening::Size,
    ) -> Result<Opened, StorageError> {
        let log = directory.log();
        let (witness, last) = Witness::open(&log.join(Witness::FILE))?;
        let replay = read_log(&log, log_id(directory.origin()?), &last)?;
        let number = replay.checkpoint.generation;
        let path = directory.generation(number);
        size.set(Generation::bytes_in(&path));
        let generation = Generation::open(path, number, &options.tuning())?;
        Ok(Opened { generation, replay, witness })
    }

    /// Runs one call, unless the store has failed before; if this one fails, no other will run.
    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut SledStore) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        if let Some(reason) = &self.failed {
            let reason = reason.clone();
            return Err(StorageError::Poisoned { reason });
        }
        let result = match catch_unwind(AssertUnwindSafe(|| call(self))) {
            Ok(result) => result,
            Err(panic) => Err(StorageError::Io {
                what: "a panic in the store".to_owned(),
                reason: panic_text(&*panic),
            }),
        };
        result.map_err(|error| {
            self.failed = Some(error.to_string());
            self.directory.quarantine_if_corrupt(error)
        })
    }

    fn live(&mut self) -> Result<&mut Live, StorageError> {
        match &mut self.state {
            State::Live(live) => Ok(live),
            State::Opened(..) => refuse("the store is not loaded".to_owned()),
            State::Blank => refuse("the store is blank".to_owned()),
        }
    }

    fn create_generation(&self, number: u64) -> Result<Generation, StorageError> {
        let path = self.directory.generation(number);
        Generation::create(path, number, &self.options.tuning())
    }
}

impl Live {
    fn testimony(&self) -> Testimony {
        let last = self.log.last();
        Testimony {
            first_chain: self.log_id,
            seq: last.seq,
            chain: last.chain,
            last_index: self.bounds.last(),
            hard_state: self.hard_state,
        }
    }

    /// Has the witness say how far the log reaches.
    fn testify(&mut self) -> Result<(), StorageError> {
        let testimony = self.testimony();
        if testimony.seq == self.witnessed {
            return Ok(());
        }
        let written = self.witness.write(&testimony);
        written.map_err(|error| super::files::io_error("writing the witness", &error))?;
        self.witnessed = testimony.seq;
        Ok(())
    }

    /// Makes a checkpoint count whose chunks are durable, and drops what it makes needless.
    fn commit(
        &mut self,
        generation: u64,
        parts: Vec<CheckpointPart>,
        meta: &SnapshotMeta,
        log: LogAfter,
        bounds: Bounds,
    ) -> Result<(), StorageError> {
        let next_seq = self.log.last().seq + 1;
        let (hard_state, log_from, dropped) = match log {
            LogAfter::From(from) => {
                // Records may still hold entries that an earlier checkpoint dropped: they stay
                // dropped.
                let from = from.max(self.bounds.first);
                (self.hard_state, from, self.index.droppable(from))
            }
            LogAfter::Reset(hard_state) => {
                (hard_state, meta.index + 1, self.index.spans().count())
            }
        };
        let kept_from = self.index.spans().nth(dropped).map_or(next_seq, |span| span.seq);
        let meta = meta.clone();
        let body = CheckpointBody { generation, parts, meta, hard_state, log_from, kept_from };
        self.log.append(RecordKind::Checkpoint, &body)?;
        self.index.drop_oldest(dropped);
        self.log.drop_before(kept_from);
        self.hard_state = hard_state;
        self.bounds = bounds;
        self.next_part = self.next_part.max(body.next_part());
        self.checkpoint = body;
        Ok(())
    }
}

impl Pending {
    fn new(target: Option<Generation>, log_id: u64, generation: u64, id: u64) -> Pending {
        let chain = first_chunk_chain(log_id, generation, id);
        Pending { target, part: CheckpointPart { id, chunks: 0, bytes: 0, chain } }
    }

    fn put(
        part: &mut CheckpointPart,
        generation: &mut Generation,
        chunk: &[u8],
    ) -> Result<(), StorageError> {
        let id = ChunkId { group: part.id, number: part.chunks };
        let record = encode(id, part.chain, chunk);
        generation.write(&record)?;
        let Some(chunks) = part.chunks.checked_add(1) else {
            return refuse("more chunks than can be counted".to_owned());
        };
        part.chunks = chunks;
        part.bytes += record.bytes;
        part.chain = record.chain;
        Ok(())
    }
}

/// The part of a checkpoint that a generation begins with.
const FIRST_PART: u64 = 1;

impl LogStore for SledStore {
    fn identity(&self) -> Option<&Identity> {
        self.directory.identity()
    }

    fn promise(&self) -> &Promise {
        self.directory.promise()
    }

    fn set_identity(&mut self, identity: &Identity) -> Result<(), StorageError> {
        self.call(|store| store.directory.set_identity(identity))
    }

    fn keep_promise(&mut self, promise: &Promise) -> Result<(), StorageError> {
        self.call(|store| store.directory.keep_promise(promise))
    }

    fn mark_removed(&mut self) -> Result<(), StorageError> {
        self.call(|store| {
            store.directory.origin()?;
            store.directory.mark_removed()
        })
    }

    fn found(
        &mut self,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<(), StorageError> {
        self.call(|store| {
            if !matches!(store.state, State::Blank) {
                return refuse("the store is founded already".to_owned());
            }
            let before = Bounds::empty(meta.index);
            let bounds = before.after_checkpoint(meta, LogAfter::Reset(hard_state), true)?;
            let io = |error| super::files::io_error("clearing the directory", &error);
            store.directory.remove_leftovers(None).map_err(io)?;
            let log_id = log_id(&Directory::origin_of(identity));
            let mut generation = store.create_generation(FIRST_GENERATION)?;
            let Pending { mut part, .. } =
                Pending::new(None, log_id, FIRST_GENERATION, FIRST_PART);
            for chunk in chunks {
                Pending::put(&mut part, &mut generation, &chunk)?;
            }
            generation.sync()?;
            let dir = store.directory.log();
            let mut log = LogFile::create(&dir, log_id, store.options.segment_bytes)?;
            let checkpoint = CheckpointBody {
                generation: FIRST_GENERATION,
                parts: vec![part],
                meta: meta.clone(),
                hard_state,
                log_from: meta.index + 1,
                kept_from: FOUNDING_SEQ,
            };
            log.append(RecordKind::Checkpoint, &checkpoint)?;
            let last = log.last();
            let testimony = Testimony {
                first_chain: log_id,
                seq: last.seq,
                chain: last.chain,
                last_index: bounds.last(),
                hard_state,
            };
            let witness = Witness::create(&dir.join(Witness::FILE), &testimony)?;
            super::files::sync_directory(&dir).map_err(io)?;
            // Until here the directory opens as blank, from here on as founded.
            store.directory.take(identity)?;
            store.state = State::Live(Box::new(Live {
                generation,
                log,
                log_id,
                witness,
                witnessed: last.seq,
                hard_state,
                bounds,
                index: LogIndex::default(),
                next_part: checkpoint.next_part(),
                checkpoint,
                stale: Vec::new(),
            }));
            Ok(())
        })
    }

    fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot, StorageError> {
        self.call(|store| {
            let opened = match std::mem::replace(&mut store.state, State::Blank) {
                State::Blank => return refuse("the store is blank".to_owned()),
                State::Live(live) => {
                    // As the next start would read it.
                    let replayed = read_log(live.log.dir(), live.log_id, &live.testimony());
                    let boot = replayed.and_then(|mut replay| {
                        read_chunks(&live.generation, live.log_id, &replay.checkpoint, sink)?;
                        Ok(replay.boot())
                    });
                    store.state = State::Live(live);
                    return boot;
                }
                State::Opened(opened) => *opened,
            };
            let Opened { generation, mut replay, witness } = opened;
            let log_id = log_id(store.directory.origin()?);
            read_chunks(&generation, log_id, &replay.checkpoint, sink)?;
            let boot = replay.boot();
            let LogReplay { scan, checkpoint, hard_state, bounds, index, .. } = replay;
            let counts = |group: &u64| checkpoint.parts.iter().any(|part| part.id == *group);
            let groups = generation.chunk_groups()?;
            let next_group = groups.iter().max().map_or(1, |group| group.saturating_add(1));
            // Only now that all of it is known to be sound. Best effort: what stays is removed by
            // a later open.
            let _ = store.directory.remove_leftovers(Some(generation.number()));
            let (dir, length) = (store.directory.log(), store.options.segment_bytes);
            let mut log = LogFile::resume(&dir, log_id, length, scan)?;
            log.drop_before(checkpoint.kept_from);
            let mut live = Live {
                generation,
                log,
                log_id,
                witness,
                witnessed: 0,
                hard_state,
                bounds,
                index,
                next_part: checkpoint.next_part().max(next_group),
                stale: groups.into_iter().filter(|group| !counts(group)).collect(),
                checkpoint,
            };
            // A record that the witness has not seen may be acknowledged from now on.
            live.testify()?;
            store.pending = None;
            store.state = State::Live(Box::new(live));
            Ok(boot)
        })
    }

    fn append(&mut self, write: &LogWrite) -> Result<(), StorageError> {
        self.call(|store| {
            let live = store.live()?;
            let bounds = live.bounds.after_append(write)?;
            if write.entries.is_empty() && write.hard_state.is_none() {
                return Ok(());
            }
            let hard_state = write.hard_state.unwrap_or(live.hard_state);
            let body = LogBodyRef { hard_state, entries: &write.entries };
            live.log.append(RecordKind::Write, &body)?;
            let (first, end) = match (write.entries.first(), write.entries.last()) {
                (Some(first), Some(last)) => (first.index, last.index + 1),
                _ => (0, 0),
            };
            live.index.push(Span { seq: live.log.last().seq, first, end });
            live.hard_state = hard_state;
            live.bounds = bounds;
            if live.log.last().seq >= live.witnessed + UNWITNESSED_MAX {
                live.testify()?;
            }
            Ok(())
        })
    }

    fn rest(&mut self) -> Result<(), StorageError> {
        self.call(|store| store.live()?.testify())
    }

    fn begin_checkpoint(&mut self, full: bool) -> Result<CheckpointKind, StorageError> {
        self.call(|store| {
            let options = store.options;
            let abandoned = store.pending.take();
            let live = store.live()?;
            if let Some(pending) = abandoned
                && pending.target.is_none()
            {
                live.stale.push(pending.part.id);
            }
            for part in std::mem::take(&mut live.stale) {
                live.generation.remove_group(part)?;
            }
            let (base, deltas) = live.checkpoint.bytes();
            let deltas_max = base.max(options.delta_bytes_min);
            let file_max = (FILE_BYTES_FACTOR * (base + deltas)).max(options.file_bytes_min);
            let full = full
                || deltas > deltas_max
                || live.checkpoint.parts.len() > options.deltas_max
                || live.generation.file_bytes()? > file_max;
            let (log_id, number) = (live.log_id, live.generation.number());
            if !full {
                let part = live.next_part;
                live.next_part += 1;
                store.pending = Some(Pending::new(None, log_id, number, part));
                return Ok(CheckpointKind::Delta);
            }
            let target = Some(store.create_generation(number + 1)?);
            store.pending = Some(Pending::new(target, log_id, number + 1, FIRST_PART));
            Ok(CheckpointKind::Full)
        })
    }

    fn put_chunk(&mut self, chunk: &[u8]) -> Result<(), StorageError> {
        self.call(|store| {
            let Some(mut pending) = store.pending.take() else {
                return refuse("a chunk, and no checkpoint was begun".to_owned());
            };
            match &mut pending.target {
                Some(target) => Pending::put(&mut pending.part, target, chunk)?,
                None => Pending::put(&mut pending.part, &mut store.live()?.generation, chunk)?,
            }
            store.pending = Some(pending);
            Ok(())
        })
    }

    fn commit_checkpoint(
        &mut self,
        meta: &SnapshotMeta,
        log: LogAfter,
    ) -> Result<(), StorageError> {
        self.call(|store| {
            let Some(Pending { target, part }) = store.pending.take() else {
                return refuse("a commit, and no checkpoint was begun".to_owned());
            };
            let live = store.live()?;
            let bounds = live.bounds.after_checkpoint(meta, log, target.is_some())?;
            let Some(mut target) = target else {
                live.generation.sync()?;
                let mut parts = live.checkpoint.parts.clone();
                parts.push(part);
                return live.commit(live.generation.number(), parts, meta, log, bounds);
            };
            target.sync()?;
            // Its parts are numbered from the first on again.
            live.next_part = 0;
            live.stale.clear();
            live.commit(target.number(), vec![part], meta, log, bounds)?;
            let old = std::mem::replace(&mut live.generation, target);
            live.log.dispose(old);
            Ok(())
        })
    }
}

impl Drop for SledStore {
    fn drop(&mut self) {
        // An append is durable when it returns: only chunks without a manifest may be lost here.
        // The databases close before the lock is given up.
        self.pending = None;
        if let (State::Live(live), None) = (&mut self.state, &self.failed) {
            // Best effort, as after a crash.
            let _ = live.testify();
        }
        self.state = State::Blank;
    }
}
