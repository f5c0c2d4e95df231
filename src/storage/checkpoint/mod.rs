//! The checkpoint on disk, in files of chunks with a sled database each.
//!
//! A checkpoint is a full image and the deltas after it. Each is a group of chunks in one
//! *generation*. A full image is written to a new generation beside the current one. The log
//! names the valid generation and its groups, so chunks that were written and not committed are
//! recognized and ignored.
//!
//! One thread writes chunks and another one commits; they share [`SharedCheckpoints`]. A commit
//! holds the lock only briefly, since all chunks are durable by then.
//!
//! | where | what it answers |
//! | --- | --- |
//! | this file | when a checkpoint is a full image, and which one is valid |
//! | `part` | which chunks one has, and whether they are sound |
//! | `paths` | where generations are, and whether there is room for a further one |
//! | `generation` | how chunks become durable in a file and in sled |
//! | `chunk` | what surrounds a chunk |
//!
//! Invariants:
//! - Chunks are durable before the log names them, and stay until it names others.
//! - A checkpoint that fails leaves the valid one as it is.
//! - A chunk proves all earlier ones of its part.
//!
//! Not here: the record that makes a checkpoint valid (`log::body`), and what the log keeps for it (`store`).

pub(super) mod chunk;
pub(super) mod generation;
pub(super) mod part;
pub(super) mod paths;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::chunk::{ChunkId, first_chunk_chain};
use self::generation::Generation;
use self::part::{CheckpointPart, empty_part, put_chunk};
use self::paths::{FIRST_GENERATION, GenerationPaths};
use crate::storage::contract::{CheckpointKind, Checkpointer};
use crate::storage::error::{Result, StorageError};
use crate::storage::error::{corrupt, guarded, refuse};
use crate::storage::options::StoreOptions;
use crate::storage::sealing::Sealing;

/// The files of a generation may be this many times as long as its live content.
const FILE_BYTES_FACTOR: u64 = 4;
/// If the expected size of the current full image is not known, a new one that is a quarter of its size
/// replaces it, if that saves so many bytes.
const SHRUNK_BY: u64 = 8 << 20;
/// The file of chunks that a new image replaces is kept up to so many times the length of the image: as much as is
/// written until the next one replaces this.
const SPARE_FACTOR: u64 = 3;
/// The number of the first part in each generation: the full image.
pub(super) const FIRST_PART: u64 = 1;

/// The generations, and which of their parts are valid.
#[derive(Debug)]
pub(super) struct Checkpoints {
    paths: GenerationPaths,
    options: StoreOptions,
    log_id: u64,
    sealing: Sealing,
    /// The valid generation.
    generation: Generation,
    /// Its valid parts.
    parts: Vec<CheckpointPart>,
    next_part: u64,
    /// Parts that were begun and never committed.
    stale: Vec<u64>,
    pending: Option<PendingCheckpoint>,
    /// The expected size of the full image in bytes, when it was begun; `None` if the image was written
    /// before the store was opened.
    base_bytes: Option<u64>,
    /// The next chunk to verify in this round: the place of its part, and its number.
    verified: (usize, u32),
    /// The chain before that chunk, unless it is the first one of its part.
    verified_chain: u64,
    /// The generation was found damaged: the next checkpoint is a full image.
    is_damaged: bool,
}

/// A checkpoint that is being written.
#[derive(Debug)]
struct PendingCheckpoint {
    /// The new generation of a full checkpoint. A delta is written to the current one.
    target: Option<Generation>,
    part: CheckpointPart,
    /// The approximate size of the state in bytes.
    bytes: u64,
    is_finished: bool,
}

/// A checkpoint that is ready to be committed.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) is_full: bool,
    pub(super) generation: u64,
    pub(super) parts: Vec<CheckpointPart>,
}

impl Checkpoints {
    pub(super) fn generation(&mut self) -> &mut Generation {
        &mut self.generation
    }

    fn begin(&mut self, full: bool, bytes: u64) -> Result<CheckpointKind> {
        self.forget();
        if !self.is_damaged {
            self.generation.ensure_open().map_err(StorageError::retryable)?;
            for part in std::mem::take(&mut self.stale) {
                self.generation.remove_group(part)?;
            }
        }
        let number = self.generation.number();
        let is_finished = false;
        if !full && !self.full_is_due(bytes)? {
            let part = empty_part(self.log_id, number, self.next_part);
            self.generation.begin_part();
            self.next_part += 1;
            self.pending = Some(PendingCheckpoint { target: None, part, bytes, is_finished });
            return Ok(CheckpointKind::Delta);
        }
        if self.paths.have_room_for(bytes).is_err() {
            self.paths.remove_spare();
        }
        self.paths.have_room_for(bytes)?;
        let target = Some(self.paths.create(number + 1).map_err(StorageError::retryable)?);
        let part = empty_part(self.log_id, number + 1, FIRST_PART);
        self.pending = Some(PendingCheckpoint { target, part, bytes, is_finished });
        Ok(CheckpointKind::Full)
    }

    /// Drops the checkpoint that was begun, and frees its space.
    fn forget(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        match pending.target {
            // Best effort, as when the store is opened.
            Some(target) => drop(target.abandon().remove_all()),
            None => {
                self.generation.give_up();
                self.stale.push(pending.part.id);
            }
        }
    }

    /// Whether a new image, of about so many bytes, costs less than it saves.
    fn full_is_due(&self, bytes: u64) -> Result<bool> {
        if self.is_damaged {
            return Ok(true);
        }
        let options = &self.options;
        let base = self.parts.first().map_or(0, |part| part.bytes);
        let all = self.parts.iter().map(|part| part.bytes).sum::<u64>();
        let file_max = (FILE_BYTES_FACTOR * all).max(options.file_bytes_min);
        // Only a new image frees the space of deleted znodes.
        let has_shrunk = match self.base_bytes {
            Some(then) => 2 * bytes + options.delta_bytes_min < then,
            None => 4 * bytes + SHRUNK_BY < all,
        };
        Ok(has_shrunk
            || all - base > base.max(options.delta_bytes_min)
            || self.parts.len() > options.deltas_max
            || self.generation.file_bytes()? > file_max)
    }

    fn pending(&mut self) -> Result<&mut PendingCheckpoint> {
        match &mut self.pending {
            Some(pending) => Ok(pending),
            None => refuse("no checkpoint was begun".to_owned()),
        }
    }

    /// Runs `write` on the part that is being written and its database.
    fn write(
        &mut self,
        write: impl FnOnce(&mut CheckpointPart, &mut Generation) -> Result<()>,
    ) -> Result<()> {
        let Checkpoints { pending: Some(pending), generation, .. } = self else {
            return refuse("no checkpoint was begun".to_owned());
        };
        let written = match &mut pending.target {
            Some(target) => write(&mut pending.part, target).map_err(StorageError::retryable),
            None => write(&mut pending.part, generation),
        };
        if written.is_err() {
            self.forget();
        }
        written
    }

    fn finish(&mut self) -> Result<()> {
        self.write(|_, generation| generation.sync())?;
        self.pending()?.is_finished = true;
        Ok(())
    }

    /// The checkpoint that can be committed now.
    pub(super) fn finished(&mut self) -> Result<Finished> {
        let (current, earlier) = (self.generation.number(), self.parts.clone());
        let pending = self.pending()?;
        if !pending.is_finished {
            return refuse("a commit of a checkpoint that is not finished".to_owned());
        }
        let (is_full, generation, mut parts) = match &pending.target {
            Some(target) => (true, target.number(), Vec::new()),
            None => (false, current, earlier),
        };
        parts.push(pending.part.clone());
        Ok(Finished { is_full, generation, parts })
    }

    /// Verifies the next chunk, read from the disk and not from sled's memory. Returns its size in bytes;
    /// `None` at the end of a round, and if nothing can be verified now.
    fn verify_next(&mut self, is_first: bool) -> Result<Option<u64>> {
        if self.pending.is_some() || self.is_damaged {
            return Ok(None);
        }
        if is_first {
            self.generation.forget_read(self.verified == (0, 0))?;
        }
        let (place, number) = self.verified;
        let Some(part) = self.parts.get(place) else {
            self.verified = (0, 0);
            return Ok(None);
        };
        if number >= part.chunks {
            self.verified = (place + 1, 0);
            return self.verify_next(false);
        }
        let id = ChunkId { group: part.id, number };
        let chunk = self.generation.chunks(part.id, Some(number))?.next()?;
        let Some(chunk) = chunk.filter(|chunk| chunk.id == id) else {
            return corrupt(format!("{id} is missing"));
        };
        let first = || first_chunk_chain(self.log_id, self.generation.number(), part.id);
        let before = if number == 0 { first() } else { self.verified_chain };
        let is_last = number + 1 == part.chunks;
        if chunk.previous != before || (is_last && chunk.chain != part.chain) {
            return corrupt(format!("{id} does not follow the one before"));
        }
        self.verified.1 += 1;
        self.verified_chain = chunk.chain;
        Ok(Some(chunk.body.len() as u64))
    }

    /// How long a file of chunks with such an image may be, of which a part is not in use.
    pub(super) fn spare_bytes(&self) -> u64 {
        SPARE_FACTOR * self.parts.first().map_or(0, |part| part.bytes)
    }

    /// Makes the finished checkpoint the valid one, after the log has named it with these parts. Returns the
    /// generation that it replaces, if any, and how much of its file of chunks is worth to be kept.
    pub(super) fn committed(&mut self, parts: Vec<CheckpointPart>) -> Option<(Generation, u64)> {
        self.parts = parts;
        let PendingCheckpoint { target, bytes, .. } = self.pending.take()?;
        let target = target?;
        self.base_bytes = Some(bytes);
        // Parts of a new generation are numbered from the start.
        self.next_part = FIRST_PART + 1;
        self.stale.clear();
        self.verified = (0, 0);
        let was_damaged = std::mem::take(&mut self.is_damaged);
        let spare = self.spare_bytes();
        // The disk may damage again what it writes there.
        let is_kept = spare >= self.options.spare_bytes_min && !was_damaged;
        let spare = if is_kept { spare } else { 0 };
        Some((std::mem::replace(&mut self.generation, target), spare))
    }
}

/// Writes the first full image of the first generation, durably.
pub(super) fn write_first(
    paths: &GenerationPaths,
    log_id: u64,
    sealing: &Sealing,
    chunks: &mut dyn Iterator<Item = Vec<u8>>,
) -> Result<(Generation, CheckpointPart)> {
    let mut generation = paths.create(FIRST_GENERATION)?;
    let mut part = empty_part(log_id, FIRST_GENERATION, FIRST_PART);
    // Nothing tries again at a founding.
    for chunk in chunks {
        put_chunk(log_id, sealing, &mut part, &mut generation, &chunk)
            .map_err(StorageError::fatal)?;
    }
    generation.sync().map_err(StorageError::fatal)?;
    Ok((generation, part))
}

/// The checkpoints as the log thread and the checkpoint thread share them.
#[derive(Clone, Debug)]
pub(super) struct SharedCheckpoints(Arc<Mutex<Checkpoints>>);

impl SharedCheckpoints {
    /// The checkpoints of a generation with these valid parts.
    pub(super) fn new(
        paths: GenerationPaths,
        options: StoreOptions,
        log_id: u64,
        sealing: Sealing,
        (generation, parts): (Generation, Vec<CheckpointPart>),
    ) -> Result<SharedCheckpoints> {
        let counts = |group: &u64| parts.iter().any(|part| part.id == *group);
        let groups = generation.chunk_groups()?;
        let last = groups.iter().copied().chain(parts.iter().map(|part| part.id)).max();
        Ok(SharedCheckpoints(Arc::new(Mutex::new(Checkpoints {
            paths,
            options,
            log_id,
            sealing,
            next_part: last.map_or(FIRST_PART, |id| id.saturating_add(1)),
            stale: groups.into_iter().filter(|group| !counts(group)).collect(),
            generation,
            parts,
            pending: None,
            base_bytes: None,
            verified: (0, 0),
            verified_chain: 0,
            is_damaged: false,
        }))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Checkpoints> {
        // A panic in the middle of a change leaves an unfinished checkpoint, which is never valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, call: impl FnOnce(&mut Checkpoints) -> Result<T>) -> Result<T> {
        let mut checkpoints = self.lock();
        guarded(|| call(&mut checkpoints))
    }

    /// How much of the current file of chunks is not in use; `None` if that is not known now.
    pub(super) fn unused_bytes(&self) -> Option<u64> {
        self.0.try_lock().ok().map(|checkpoints| checkpoints.generation.unused_bytes())
    }

    /// Shortens the current file of chunks by a step, at most to so many bytes and to its content. Returns whether it
    /// is longer still.
    pub(super) fn shorten(&self, length: u64, step: u64) -> bool {
        // A failure costs only space.
        self.lock().generation.shorten(length, step).unwrap_or(false)
    }

    /// The number of pieces of so many bytes to verify; 0 while a checkpoint is written.
    pub(super) fn pieces(&self, bytes: u64) -> u64 {
        let Ok(checkpoints) = self.0.try_lock() else { return 0 };
        if checkpoints.pending.is_some() || checkpoints.is_damaged {
            return 0;
        }
        // Verifying reopens sled, which writes then.
        if checkpoints.paths.have_room_for(0).is_err() {
            return 0;
        }
        checkpoints.parts.iter().map(|part| part.bytes).sum::<u64>().div_ceil(bytes)
    }

    /// Verifies the next piece. If it is damaged, the next checkpoint is a full image.
    pub(super) fn verify(&self, bytes: u64) -> Result<()> {
        let mut left = bytes;
        loop {
            // Locked for one chunk at a time, so that a commit or a checkpoint waits only that long.
            let mut checkpoints = self.lock();
            let verified = match guarded(|| checkpoints.verify_next(left == bytes)) {
                // Such a failure shows no damage.
                Err(StorageError::NoSpace { .. } | StorageError::Again { .. }) => return Ok(()),
                verified => verified,
            };
            checkpoints.is_damaged |= verified.is_err();
            match verified? {
                Some(read) if read < left => left -= read.max(1),
                _ => return Ok(()),
            }
        }
    }
}

impl Checkpointer for SharedCheckpoints {
    fn begin(&mut self, full: bool, bytes: u64) -> Result<CheckpointKind> {
        self.call(|checkpoints| checkpoints.begin(full, bytes))
    }

    fn put_chunk(&mut self, chunk: &[u8]) -> Result<()> {
        self.call(|checkpoints| {
            let (log_id, sealing) = (checkpoints.log_id, checkpoints.sealing.clone());
            checkpoints
                .write(|part, generation| put_chunk(log_id, &sealing, part, generation, chunk))
        })
    }

    fn finish(&mut self) -> Result<()> {
        self.call(Checkpoints::finish)
    }
}
