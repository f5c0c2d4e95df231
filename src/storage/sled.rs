//! The store on disk.
//!
//! The log goes into sled as one record for each append, deltas as records
//! beside it. A full checkpoint begins a new generation: a new database, made
//! and synced on the side and put in place by one rename, so that the old one
//! counts until the new one is whole. That also bounds how far sled's file
//! grows over what lives in it, and how much it has to replay when it opens.
//!
//! `directory` says what the files are, `record` what is in them, `generation`
//! how they are written, `witness` and `replay` how they are checked.
//!
//! Caveats: a panic inside sled poisons this store, but sled shares a thread
//! pool among all databases of a process and may not serve another one after
//! it. In a process that aborts on panic there is nothing to catch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use super::directory::{Directory, FIRST_GENERATION, FOUNDING_SEQ};
use super::generation::{Generation, Tuning, panic_text};
use super::log_index::{LogIndex, Span};
use super::opening;
use super::record::{
    Kind, LogBody, Manifest, RecordId, corrupt, encode, encode_body, first_chain, first_chunk_chain,
};
use super::replay::replay;
use super::rules::{Bounds, has_voted, is_voter, refuse};
use super::witness::Testimony;
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
}

impl Default for SledOptions {
    fn default() -> SledOptions {
        SledOptions { cache_bytes: 32 << 20, delta_bytes_min: 1 << 20, file_bytes_min: 64 << 20 }
    }
}

impl SledOptions {
    pub(super) fn tuning(&self) -> Tuning {
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
    /// Open, and not read back yet.
    Opened(Generation, Testimony),
    Live(Box<Live>),
}

/// A store that can be written.
#[derive(Debug)]
struct Live {
    generation: Generation,
    first_chain: u64,
    seq: u64,
    chain: u64,
    hard_state: HardState,
    bounds: Bounds,
    log: LogIndex,
    manifest: (u64, u64),
    base_bytes: u64,
    delta_bytes: u64,
    next_checkpoint: u64,
    stale: Vec<u64>,
}

/// A checkpoint on its way.
#[derive(Debug)]
struct Pending {
    /// The new generation of a full checkpoint; a delta goes into the one there is.
    target: Option<Generation>,
    checkpoint: u64,
    chunks: u32,
    bytes: u64,
    chain: u64,
}

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
        SledStore::open_directory(Directory::open(dir)?, options, size)
    }

    pub(super) fn open_directory(
        directory: Directory,
        options: SledOptions,
        size: &opening::Size,
    ) -> Result<SledStore, StorageError> {
        let opened = match directory.identity() {
            None => Ok(State::Blank),
            Some(_) => directory.current().and_then(|number| {
                let path = directory.generation(number);
                size.set(Generation::bytes_in(&path));
                let opened = Generation::open(path, number, &options.tuning());
                opened.map(|(generation, last)| State::Opened(generation, last))
            }),
        };
        match opened {
            Ok(state) => Ok(SledStore { options, failed: None, state, pending: None, directory }),
            Err(error) => Err(directory.quarantine_if_corrupt(error)),
        }
    }

    /// Runs one call, unless the store has failed before; if this one fails, no other will run, but
    /// after [`StorageError::Again`].
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
            if matches!(error, StorageError::Again { .. }) {
                self.remove_forgotten();
                return error;
            }
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

    /// Gives back the space that a checkpoint took which has failed, and so is none any longer.
    fn remove_forgotten(&self) {
        if let (State::Live(live), None) = (&self.state, &self.pending) {
            // Best effort, as when the store is opened.
            let _ = self.directory.remove_leftovers(Some(live.generation.number()));
        }
    }

    /// Notes in the directory that its node votes, if it does by this checkpoint.
    fn note_voter(&mut self, meta: &SnapshotMeta) {
        if self.directory.identity().is_some_and(|identity| is_voter(identity, meta)) {
            self.mark_voter();
        }
    }

    /// Best effort: what it is for is durable by then, and as long as the mark is missing, more is
    /// kept than need be. The next checkpoint tries again.
    fn mark_voter(&mut self) {
        if let Err(error) = self.directory.mark_voter() {
            tracing::warn!(%error, "cannot note that this member votes");
        }
    }

    fn create_generation(&self, number: u64) -> Result<Generation, StorageError> {
        let path = self.directory.generation(number);
        Generation::create(path, number, &self.options.tuning())
    }
}

impl Live {
    /// What would have to be written to start over.
    fn live_bytes(&self) -> u64 {
        self.base_bytes + self.delta_bytes + self.log.bytes()
    }

    fn testimony(&self) -> Testimony {
        Testimony {
            first_chain: self.first_chain,
            seq: self.seq,
            chain: self.chain,
            last_index: self.bounds.last(),
            hard_state: self.hard_state,
        }
    }

    /// Writes a log record, not yet durably.
    fn write_log(&mut self, body: &LogBody) -> Result<(), StorageError> {
        let seq = self.seq + 1;
        let record = encode(RecordId::log(seq), self.chain, &encode_body(body));
        self.generation.write(&record, std::iter::empty())?;
        let (first, end) = match (body.entries.first(), body.entries.last()) {
            (Some(first), Some(last)) => (first.index, last.index + 1),
            _ => (0, 0),
        };
        self.log.push(Span {
            seq,
            first,
            end,
            // `encode` counts parts in 32 bits.
            parts: record.parts.len() as u32,
            bytes: record.bytes,
        });
        self.seq = seq;
        self.chain = record.chain;
        Ok(())
    }

    /// Makes a delta count and drops the log records that it makes needless, at once.
    fn commit_delta(
        &mut self,
        pending: &Pending,
        meta: &SnapshotMeta,
        from: u64,
    ) -> Result<(), StorageError> {
        let seq = self.seq + 1;
        let dropped = self.log.droppable(from);
        let kept_from = self.log.spans().nth(dropped).map_or(seq, |span| span.seq);
        let manifest = pending.manifest(
            meta,
            self.hard_state,
            from,
            // Manifests among the dropped records are not dropped; the chain begins after them.
            kept_from,
            Some(self.manifest),
        );
        let record = encode(RecordId::manifest(seq), self.chain, &encode_body(&manifest));
        let removed = self.log.spans().take(dropped);
        let removed = removed.map(|span| (RecordId::log(span.seq), span.parts));
        self.generation.write(&record, removed)?;
        self.log.drop_oldest(dropped);
        self.seq = seq;
        self.chain = record.chain;
        self.manifest = (seq, record.chain);
        self.delta_bytes += pending.bytes;
        let testimony = self.testimony();
        self.generation.commit(&testimony)
    }

    /// Copies the part of another generation's log that counts from an index on.
    fn copy_log(&mut self, old: &Live, from: u64) -> Result<(), StorageError> {
        for span in old.log.spans() {
            let first = span.first.max(from);
            if first >= span.end {
                continue;
            }
            let record = old.generation.record(RecordId::log(span.seq))?;
            let mut body: LogBody = record.decode()?;
            body.entries.retain(|entry| (first..span.end).contains(&entry.index));
            body.hard_state = self.hard_state;
            if body.entries.len() as u64 != span.end - first {
                return corrupt(format!("{}: entries are missing", record.id));
            }
            self.write_log(&body)?;
            self.generation.sync_if_due()?;
        }
        Ok(())
    }
}

impl Pending {
    fn new(target: Option<Generation>, checkpoint: u64, first_chain: u64) -> Pending {
        Pending {
            target,
            checkpoint,
            chunks: 0,
            bytes: 0,
            chain: first_chunk_chain(first_chain, checkpoint),
        }
    }

    fn put(&mut self, generation: &mut Generation, chunk: &[u8]) -> Result<(), StorageError> {
        let id = RecordId::chunk(self.checkpoint, self.chunks);
        let record = encode(id, self.chain, chunk);
        generation.write_piecemeal(&record)?;
        let Some(chunks) = self.chunks.checked_add(1) else {
            return refuse("more chunks than can be counted".to_owned());
        };
        self.chunks = chunks;
        self.bytes += record.bytes;
        self.chain = record.chain;
        Ok(())
    }

    fn manifest(
        &self,
        meta: &SnapshotMeta,
        hard_state: HardState,
        log_from: u64,
        kept_from: u64,
        previous: Option<(u64, u64)>,
    ) -> Manifest {
        Manifest {
            full: previous.is_none(),
            checkpoint: self.checkpoint,
            chunks: self.chunks,
            bytes: self.bytes,
            chunk_chain: self.chain,
            meta: meta.clone(),
            hard_state,
            log_from,
            kept_from,
            previous,
        }
    }

    /// Ends the chunks of a new generation with its first manifest, not yet durably.
    fn start(
        self,
        mut generation: Generation,
        first_chain: u64,
        meta: &SnapshotMeta,
        hard_state: HardState,
        log_from: u64,
    ) -> Result<Live, StorageError> {
        let seq = FOUNDING_SEQ;
        let manifest = self.manifest(meta, hard_state, log_from, seq, None);
        let record = encode(RecordId::manifest(seq), first_chain, &encode_body(&manifest));
        generation.write(&record, std::iter::empty())?;
        Ok(Live {
            generation,
            first_chain,
            seq,
            chain: record.chain,
            hard_state,
            bounds: Bounds::empty(meta.index),
            log: LogIndex::default(),
            manifest: (seq, record.chain),
            base_bytes: self.bytes,
            delta_bytes: 0,
            next_checkpoint: self.checkpoint + 1,
            stale: Vec::new(),
        })
    }
}

/// The error of a generation that does not count yet: the one that does is as it was. (If it is the
/// other one that could not be read, the next append fails too.)
fn uncounted(error: StorageError) -> StorageError {
    match error {
        StorageError::Io { what, reason } => StorageError::Again { what, reason },
        StorageError::NoSpace { what } => {
            StorageError::Again { what, reason: "no space left on the disk".to_owned() }
        }
        other => other,
    }
}

/// The checkpoint that a generation begins with.
const FIRST_CHECKPOINT: u64 = 1;

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
            let first_chain = first_chain(&Directory::origin_of(identity), FIRST_GENERATION);
            let mut generation = store.create_generation(FIRST_GENERATION)?;
            let mut pending = Pending::new(None, FIRST_CHECKPOINT, first_chain);
            for chunk in chunks {
                pending.put(&mut generation, &chunk)?;
            }
            let log_from = meta.index + 1;
            let mut live = pending.start(generation, first_chain, meta, hard_state, log_from)?;
            live.bounds = bounds;
            let testimony = live.testimony();
            live.generation.commit(&testimony)?;
            store.directory.switch(FIRST_GENERATION)?;
            // Until here the directory opens as blank, from here on as founded.
            store.directory.take(identity)?;
            store.state = State::Live(Box::new(live));
            store.note_voter(meta);
            Ok(())
        })
    }

    fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot, StorageError> {
        self.call(|store| {
            let origin = store.directory.origin()?;
            let first_chain = first_chain(
                origin,
                match &store.state {
                    State::Opened(generation, _) => generation.number(),
                    State::Live(live) => live.generation.number(),
                    State::Blank => return refuse("the store is blank".to_owned()),
                },
            );
            let replayed = match &store.state {
                State::Opened(generation, last) => replay(generation, origin, last, sink)?,
                State::Live(live) => replay(&live.generation, origin, &live.testimony(), sink)?,
                State::Blank => return refuse("the store is blank".to_owned()),
            };
            let generation = match std::mem::replace(&mut store.state, State::Blank) {
                State::Opened(generation, _) => generation,
                State::Live(live) => live.generation,
                State::Blank => return refuse("the store is blank".to_owned()),
            };
            // Only now that the generation is known to be sound. Best effort: what stays is
            // removed by a later open.
            store.pending = None;
            let _ = store.directory.remove_leftovers(Some(generation.number()));
            store.state = State::Live(Box::new(Live {
                generation,
                first_chain,
                seq: replayed.seq,
                chain: replayed.chain,
                hard_state: replayed.boot.hard_state,
                bounds: replayed.bounds,
                log: replayed.log,
                manifest: replayed.manifest,
                base_bytes: replayed.base_bytes,
                delta_bytes: replayed.delta_bytes,
                next_checkpoint: replayed.next_checkpoint,
                stale: replayed.stale,
            }));
            // A record that the witness has not seen may be acknowledged from now on.
            let live = store.live()?;
            let testimony = live.testimony();
            live.generation.commit(&testimony)?;
            if let Some(reason) = store.directory.quarantined()? {
                tracing::warn!(
                    reason,
                    "the data directory was found damaged before, and all checks pass now: this \
                     member goes on with it"
                );
                store.directory.clear_quarantined()?;
            }
            store.note_voter(&replayed.boot.checkpoint);
            Ok(replayed.boot)
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
            live.write_log(&LogBody { hard_state, entries: write.entries.clone() })?;
            live.hard_state = hard_state;
            live.bounds = bounds;
            let testimony = live.testimony();
            live.generation.commit(&testimony)?;
            if has_voted(write.hard_state.as_ref()) {
                store.mark_voter();
            }
            Ok(())
        })
    }

    fn begin_checkpoint(&mut self, full: bool) -> Result<CheckpointKind, StorageError> {
        self.call(|store| {
            let options = store.options;
            let abandoned = store.pending.take();
            let live = store.live()?;
            if let Some(pending) = abandoned
                && pending.target.is_none()
            {
                live.stale.push(pending.checkpoint);
            }
            for checkpoint in std::mem::take(&mut live.stale) {
                live.generation.remove_group(Kind::Chunk, checkpoint)?;
            }
            let deltas_max = live.base_bytes.max(options.delta_bytes_min);
            let file_max = (FILE_BYTES_FACTOR * live.live_bytes()).max(options.file_bytes_min);
            let full =
                full || live.delta_bytes > deltas_max || live.generation.file_bytes()? > file_max;
            if !full {
                let checkpoint = live.next_checkpoint;
                live.next_checkpoint += 1;
                store.pending = Some(Pending::new(None, checkpoint, live.first_chain));
                return Ok(CheckpointKind::Delta);
            }
            let number = live.generation.number() + 1;
            let first_chain = first_chain(store.directory.origin()?, number);
            let target = Some(store.create_generation(number).map_err(uncounted)?);
            store.pending = Some(Pending::new(target, FIRST_CHECKPOINT, first_chain));
            Ok(CheckpointKind::Full)
        })
    }

    fn put_chunk(&mut self, chunk: &[u8]) -> Result<(), StorageError> {
        self.call(|store| {
            let Some(mut pending) = store.pending.take() else {
                return refuse("a chunk, and no checkpoint was begun".to_owned());
            };
            match pending.target.take() {
                Some(mut target) => {
                    pending.put(&mut target, chunk).map_err(uncounted)?;
                    pending.target = Some(target);
                }
                None => pending.put(&mut store.live()?.generation, chunk)?,
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
            let Some(mut pending) = store.pending.take() else {
                return refuse("a commit, and no checkpoint was begun".to_owned());
            };
            let target = pending.target.take();
            let old = store.live()?;
            let bounds = old.bounds.after_checkpoint(meta, log, target.is_some())?;
            let (hard_state, from) = match log {
                // Records may still hold entries that an earlier checkpoint dropped: they stay
                // dropped.
                LogAfter::From(from) => (old.hard_state, from.max(old.bounds.first)),
                LogAfter::Reset(hard_state) => (hard_state, meta.index + 1),
            };
            let Some(target) = target else {
                old.bounds = bounds;
                old.commit_delta(&pending, meta, from)?;
                store.note_voter(meta);
                return Ok(());
            };
            let number = target.number();
            let first_chain = first_chain(store.directory.origin()?, number);
            let started = pending.start(target, first_chain, meta, hard_state, from);
            let mut live = started.map_err(uncounted)?;
            let old = store.live()?;
            if matches!(log, LogAfter::From(_)) {
                live.copy_log(old, from).map_err(uncounted)?;
            }
            live.bounds = bounds;
            let testimony = live.testimony();
            live.generation.commit(&testimony).map_err(uncounted)?;
            store.directory.switch(number)?;
            let old = std::mem::replace(&mut store.state, State::Live(Box::new(live)));
            if let State::Live(old) = old {
                // The old generation does not count any more: what fails here is only space,
                // which the next open gets back.
                let _ = old.generation.close();
                let _ = store.directory.remove_leftovers(Some(number));
            }
            store.note_voter(meta);
            Ok(())
        })
    }
}

impl Drop for SledStore {
    fn drop(&mut self) {
        // An append is durable when it returns: only chunks without a manifest may be lost here.
        // The databases close before the lock is given up.
        self.pending = None;
        self.state = State::Blank;
    }
}
