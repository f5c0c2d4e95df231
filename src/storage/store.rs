//! The store on disk: the log in segment files, checkpoints in files of chunks with a sled database each.
//!
//! An append is one write and one wait for the device, see `log`. The chunks of checkpoints are written to a
//! file, their places to sled, and they are valid once a record of the log names them. A full checkpoint is written to
//! a new generation, beside the current one, which stays valid until the new one is complete. This also bounds how
//! much longer its files are than their live content.
//!
//! Caveats: a panic inside sled poisons this store. But all databases of a process share sled's
//! thread pool, which may not work for other databases either after a panic. In a process that
//! aborts on panic, no panic can be caught.

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::checkpoint::generation::Generation;
use super::checkpoint::part::read_chunks;
use super::checkpoint::paths::FIRST_GENERATION;
use super::checkpoint::{Finished, SharedCheckpoints, write_first};
use super::directory::Directory;
use super::directory::incarnation::{FOUNDING_SEQ, Incarnation};
use super::error::{guarded, io_error, refuse};
use super::file_system::FsPath;
use super::log::body::{CheckpointBody, LogBodyRef};
use super::log::file::LogFile;
use super::log::file_thread::has_room_for_chunks;
use super::log::index::{LogIndex, Span};
use super::log::record::RecordKind;
use super::log::replay::{LogReplay, read_log};
use super::log::scan::LogRead;
use super::log::segments;
use super::log::witness::{Witness, WitnessRecord};
use super::opening;
use super::options::StoreOptions;
use super::rules::{Bounds, has_voted, is_alone, is_voter};
use super::sealing::Sealing;
use crate::node::stored::{Boot, EntryKind, HardState, Identity, LogWrite, SnapshotMeta};
use crate::storage::{
    Checkpointer, ChunkSink, LogAfter, LogStore, ReadDone, Result, Rot, ScrubDone, Space,
    StorageError,
};
use crate::types::membership::Promise;

/// A node's store in a data directory.
#[derive(Debug)]
pub(crate) struct DiskStore {
    options: StoreOptions,
    failed: Option<String>,
    sealing: Sealing,
    state: State,
    /// Set from the load of a log in another directory until this start is noted.
    unnoted: Option<Unnoted>,
    /// The last field, so that the lock outlives the databases.
    directory: Directory,
}

/// A start that has promised nothing yet. Its log may be an old copy that was put there by mistake.
#[derive(Clone, Copy, Debug)]
struct Unnoted {
    /// Whether its member is the only one of its cluster.
    is_alone: bool,
}

#[derive(Debug)]
enum State {
    Blank,
    /// The log was read, but not the chunks.
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
pub(super) struct Live {
    checkpoints: SharedCheckpoints,
    log: LogFile,
    witness: Witness,
    /// The sequence number of the last record in the witness.
    witnessed: u64,
    hard_state: HardState,
    bounds: Bounds,
    index: LogIndex,
    /// The segment that was verified last.
    scrubbed: u64,
    /// How many pieces of the checkpoint were verified since then.
    scrubbed_pieces: u64,
}

/// The size of a piece of the checkpoint that is verified at a time.
const SCRUBBED_BYTES: u64 = 4 << 20;
/// No entry of the log comes before this one.
const FIRST_ENTRY: u64 = 1;
/// After this many records the witness is written even without a pause.
const UNWITNESSED_MAX: u64 = 4096;

impl DiskStore {
    /// Opens a data directory. If it is empty or does not exist, the store is blank.
    ///
    /// Gives up after a minute, and a second more for each MiB of the checkpoint. The directory may
    /// then stay in use for as long as the disk hangs: see [`opening`].
    pub(crate) fn open(dir: &FsPath, options: StoreOptions) -> Result<DiskStore> {
        DiskStore::open_within(opening::OPEN_TIMEOUT, dir, options)
    }

    /// As [`DiskStore::open`], with another time than a minute.
    pub(super) fn open_within(
        timeout: Duration,
        dir: &FsPath,
        options: StoreOptions,
    ) -> Result<DiskStore> {
        opening::within(timeout, dir, move |dir, size| {
            let directory = Directory::open(dir, options.log_dir.as_deref())?;
            DiskStore::open_directory(directory, options, size)
        })
    }

    pub(super) fn open_directory(
        directory: Directory,
        options: StoreOptions,
        size: &AtomicU64,
    ) -> Result<DiskStore> {
        let opened = match directory.current() {
            None => Ok((Sealing::default(), State::Blank)),
            Some(current) => {
                Sealing::open_keys(current.path(), options.keys.as_ref()).and_then(|sealing| {
                    let opened = DiskStore::open_log(current, &sealing, size)?;
                    Ok((sealing, opened))
                })
            }
        };
        let (sealing, state) = opened.map_err(|error| directory.quarantine_if_corrupt(error))?;
        Ok(DiskStore { options, failed: None, sealing, state, unnoted: None, directory })
    }

    fn open_log(current: &Incarnation, sealing: &Sealing, size: &AtomicU64) -> Result<State> {
        let log = current.log()?;
        let (witness, last) = Witness::open(&log.join(Witness::FILE))?;
        let needed = current.needed_record()?;
        // It is read twice.
        size.store(segments::bytes_in(&log).saturating_mul(2), Ordering::Relaxed);
        let mut replay = read_log(&log, current.log_id()?, &last, needed, sealing)?;
        if !replay.reaches {
            return Err(current.log_too_old());
        }
        // Before anything is done on the word of a record.
        replay.scan.make_durable(&log)?;
        let generations = current.generations();
        let open = || generations.open(replay.checkpoint.generation, size);
        let generation = open().or_else(|error| {
            // sled needs room to open a database, which spare files have.
            if !matches!(error, StorageError::NoSpace { .. }) {
                return Err(error);
            }
            generations.remove_spare();
            replay.scan.remove_others(&log)?;
            open()
        })?;
        Ok(State::Opened(Box::new(Opened { generation, replay, witness })))
    }

    /// The directory of the log, unless the store is blank.
    pub(crate) fn log(&self) -> Option<PathBuf> {
        let log = self.directory.current()?.log().ok()?;
        Some(log.path().to_owned())
    }

    /// Runs one call, unless an earlier call has failed. A failure poisons the store, except for
    /// [`StorageError::Again`].
    fn call<T>(&mut self, call: impl FnOnce(&mut DiskStore) -> Result<T>) -> Result<T> {
        if let Some(reason) = self.failed.clone() {
            return Err(StorageError::Poisoned { reason });
        }
        guarded(|| call(self)).map_err(|error| {
            if matches!(error, StorageError::Again { .. }) {
                return error;
            }
            self.failed = Some(error.to_string());
            self.directory.quarantine_if_corrupt(error)
        })
    }

    /// Lets spare segments of the log go if that is all the room there is.
    fn give_back_spare(&self, space: Option<&Space>) {
        if let (State::Live(live), Some(space)) = (&self.state, space) {
            live.log.give_back_spare(space.free);
        }
    }

    /// The same for what no checkpoint needs of the files of chunks.
    fn give_back_chunks(&self, space: Option<&Space>) {
        let generations = self.directory.current().map(|current| current.path());
        if let (State::Live(live), Some(generations), Some(space)) =
            (&self.state, generations, space)
        {
            live.log.give_back_chunks(generations, space.free);
            if live
                .checkpoints
                .unused_bytes()
                .is_some_and(|bytes| !has_room_for_chunks(space.free, bytes))
            {
                live.log.shorten(live.checkpoints.clone(), 0);
            }
        }
    }

    /// The room on the device of a log that has one of its own.
    fn log_space_now(&self) -> Option<Space> {
        self.directory.current()?.log_space()
    }

    fn live(&mut self) -> Result<&mut Live> {
        match &mut self.state {
            State::Live(live) => Ok(live),
            State::Opened(..) => refuse("the store is not loaded".to_owned()),
            State::Blank => refuse("the store is blank".to_owned()),
        }
    }

    /// Notes that this start goes on with its log: before its first vote, entry or checkpoint.
    fn note_start(&mut self) -> Result<()> {
        let Some(Unnoted { is_alone }) = self.unnoted else { return Ok(()) };
        let (random, sealing) = (self.options.random, self.sealing.clone());
        let live = self.live()?;
        let (last, generation) = (live.log.last(), live.checkpoints.lock().generation().number());
        let current = self.directory.owned()?;
        current.start_log(last, random, is_alone)?;
        current.remove_unused(generation, &sealing);
        self.unnoted = None;
        Ok(())
    }

    /// Marks the directory as that of a voter, if its node is a voter in this checkpoint.
    fn note_voter(&mut self, meta: &SnapshotMeta) {
        if self.directory.identity().is_some_and(|identity| is_voter(identity, meta)) {
            self.mark_voter();
        }
    }

    /// Best effort: without the mark, more former data is kept than necessary. The next checkpoint
    /// tries again.
    fn mark_voter(&mut self) {
        if let Err(error) = self.directory.owned().and_then(Incarnation::mark_voter) {
            tracing::warn!(%error, "cannot note that this member votes");
        }
    }
}

impl Live {
    /// Writes the first checkpoint and an empty log of an incarnation, which is complete then, durably.
    pub(super) fn found(
        new: &mut Incarnation,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
        options: StoreOptions,
        sealing: Sealing,
    ) -> Result<Live> {
        let before = Bounds::empty(meta.index);
        let bounds = before.after_checkpoint(meta, LogAfter::Reset(hard_state), true)?;
        let log_id = Incarnation::log_id_of(identity);
        let (paths, dir) = (new.generations(), new.log()?);
        let (generation, part) = write_first(&paths, log_id, &sealing, chunks)?;
        let mut log = LogFile::create(&dir, log_id, options.segment_bytes, sealing.clone())?;
        let checkpoint = CheckpointBody {
            generation: FIRST_GENERATION,
            parts: vec![part],
            meta: meta.clone(),
            hard_state,
            log_from: meta.index + 1,
            kept_from: FOUNDING_SEQ,
        };
        log.append(RecordKind::Checkpoint, &checkpoint)?;
        let record = log.witness_record(bounds.last(), hard_state);
        let witness = Witness::create(&dir.join(Witness::FILE), &record)?;
        dir.sync_names().map_err(io_error("syncing the log's directory"))?;
        new.take(identity)?;
        let made = (generation, checkpoint.parts);
        Ok(Live {
            checkpoints: SharedCheckpoints::new(paths, options, log_id, sealing, made)?,
            log,
            witness,
            witnessed: record.seq,
            hard_state,
            bounds,
            index: LogIndex::default(),
            scrubbed: 0,
            scrubbed_pieces: 0,
        })
    }

    fn witness_record(&self) -> WitnessRecord {
        self.log.witness_record(self.bounds.last(), self.hard_state)
    }

    /// Writes to the witness how far the log reaches.
    fn write_witness(&mut self) -> Result<()> {
        let record = self.witness_record();
        if record.seq == self.witnessed {
            return Ok(());
        }
        if !planted!(WitnessStays) {
            self.witness.write(&record).map_err(io_error("writing the witness"))?;
        }
        self.witnessed = record.seq;
        Ok(())
    }

    /// Verifies the next piece on another thread: first each segment of the log that is not written to
    /// any more, then the checkpoint.
    fn scrub(&mut self, done: ScrubDone) -> u64 {
        let pieces = self.checkpoints.pieces(SCRUBBED_BYTES);
        let cold = self.log.next_cold(self.scrubbed);
        let segments = cold.map_or(0, |(_, count)| count);
        let is_new_round = cold.is_none_or(|(number, _)| number <= self.scrubbed);
        let report = |verified: Result<()>, below| done(Rot::found(verified, below).err());
        match cold {
            Some((number, _)) if !is_new_round || self.scrubbed_pieces >= pieces => {
                (self.scrubbed, self.scrubbed_pieces) = (number, 0);
                let below = self.end_of_segment(number);
                self.log.verify(number, Box::new(move |verified| report(verified, below)));
            }
            _ if pieces > 0 => {
                self.scrubbed_pieces += 1;
                let checkpoints = self.checkpoints.clone();
                // Any later checkpoint replaces the damaged one; no entry of the log has to be dropped.
                let verify = move || report(checkpoints.verify(SCRUBBED_BYTES), FIRST_ENTRY);
                self.log.work(Box::new(verify));
            }
            _ => {}
        }
        segments + pieces
    }

    /// The first entry of a log that does not need this segment.
    fn end_of_segment(&self, number: u64) -> u64 {
        self.index.end_up_to(number).max(self.bounds.first)
    }

    /// Commits the finished checkpoint, and drops the part of the log that it replaces. Returns how many
    /// bytes the checkpoint takes.
    fn commit(&mut self, meta: &SnapshotMeta, log: LogAfter) -> Result<u64> {
        let shared = self.checkpoints.clone();
        // The thread of the files makes segments, and may wait for the checkpoints: no segment is waited for while they
        // are locked.
        let expected = self.next_checkpoint(&shared.lock().finished()?, meta, log)?;
        self.log.make_room(&expected.body)?;
        let mut checkpoints = shared.lock();
        let NextCheckpoint { body, bounds, dropped } =
            self.next_checkpoint(&checkpoints.finished()?, meta, log)?;
        self.log.append(RecordKind::Checkpoint, &body)?;
        let bytes = body.bytes();
        self.index.drop_oldest(dropped);
        self.log.drop_before(body.kept_from);
        self.hard_state = body.hard_state;
        self.bounds = bounds;
        if let Some((old, spare)) = checkpoints.committed(body.parts) {
            self.log.dispose(old, spare);
            if checkpoints.generation().unused_bytes() > 0 {
                self.log.shorten(self.checkpoints.clone(), checkpoints.spare_bytes());
            }
        }
        Ok(bytes)
    }

    /// The record that commits a finished checkpoint, and what follows from it.
    fn next_checkpoint(
        &self,
        finished: &Finished,
        meta: &SnapshotMeta,
        log: LogAfter,
    ) -> Result<NextCheckpoint> {
        let Finished { is_full, generation, parts } = finished;
        let bounds = self.bounds.after_checkpoint(meta, log, *is_full)?;
        let next_seq = self.log.last().seq + 1;
        let (hard_state, log_from, dropped) = match log {
            LogAfter::From(from) => {
                // Records may still hold entries that an earlier checkpoint dropped.
                let from = from.max(self.bounds.first);
                (self.hard_state, from, self.index.droppable(from))
            }
            LogAfter::Reset(hard_state) => (hard_state, meta.index + 1, self.index.spans().count()),
        };
        let kept_from = self.index.spans().nth(dropped).map_or(next_seq, |span| span.seq);
        let (generation, parts, meta) = (*generation, parts.clone(), meta.clone());
        let body = CheckpointBody { generation, parts, meta, hard_state, log_from, kept_from };
        Ok(NextCheckpoint { body, bounds, dropped })
    }
}

/// What a commit of a checkpoint writes and does.
#[derive(Debug)]
struct NextCheckpoint {
    body: CheckpointBody,
    bounds: Bounds,
    /// How many of the log's oldest records are dropped.
    dropped: usize,
}

impl LogStore for DiskStore {
    fn space(&self) -> Option<Space> {
        let space = self.directory.path().space();
        self.give_back_chunks(space.as_ref());
        // A log on a device of its own has its spare segments there.
        if self.log_space_now().is_none() {
            self.give_back_spare(space.as_ref());
        }
        space
    }

    fn log_space(&self) -> Option<Space> {
        let space = self.log_space_now();
        self.give_back_spare(space.as_ref());
        space
    }

    fn identity(&self) -> Option<&Identity> {
        self.directory.identity()
    }

    fn promise(&self) -> &Promise {
        self.directory.promise()
    }

    fn set_identity(&mut self, identity: &Identity) -> Result<()> {
        self.call(|store| store.directory.owned()?.set_identity(identity))
    }

    fn set_promise(&mut self, promise: &Promise) -> Result<()> {
        self.call(|store| store.directory.owned()?.set_promise(promise))
    }

    fn mark_removed(&mut self) -> Result<()> {
        self.call(|store| store.directory.owned()?.mark_removed())
    }

    fn found(
        &mut self,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<()> {
        self.call(|store| {
            if !matches!(store.state, State::Blank) {
                return refuse("the store is founded already".to_owned());
            }
            let mut new = store.directory.begin(identity)?;
            let options = store.options.clone();
            let sealing = Sealing::create_keys(new.path(), options.keys.as_ref())?;
            store.sealing = sealing.clone();
            let live = Live::found(&mut new, identity, hard_state, meta, chunks, options, sealing)?;
            // Before this the directory opens as blank, afterwards as founded.
            store.directory.switch_to(new)?;
            store.state = State::Live(Box::new(live));
            store.note_voter(meta);
            Ok(())
        })
    }

    fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot> {
        self.call(|store| {
            if let State::Live(live) = &store.state {
                // The live store reads its own files, as the next start would.
                let mut replay = read_log(
                    live.log.dir(),
                    live.log.id(),
                    &live.witness_record(),
                    None,
                    &store.sealing,
                )?;
                let mut checkpoints = live.checkpoints.lock();
                let generation = checkpoints.generation();
                let (id, sealing) = (live.log.id(), &store.sealing);
                read_chunks(generation, id, &replay.checkpoint.parts, sealing, sink)?;
                return Ok(replay.log.boot(&replay.checkpoint));
            }
            let State::Opened(opened) = std::mem::replace(&mut store.state, State::Blank) else {
                return refuse("the store is blank".to_owned());
            };
            let Opened { mut generation, mut replay, witness } = *opened;
            let current = store.directory.owned()?;
            let log_id = current.log_id()?;
            read_chunks(&mut generation, log_id, &replay.checkpoint.parts, &store.sealing, sink)?;
            let boot = replay.log.boot(&replay.checkpoint);
            let LogReplay { scan, checkpoint, log: read, bounds, .. } = replay;
            let (paths, options) = (current.generations(), store.options.clone());
            let sealing = store.sealing.clone();
            if current.has_log_elsewhere() {
                store.unnoted = Some(Unnoted { is_alone: is_alone(current.identity(), &boot) });
            } else {
                // Only after everything has passed the checks.
                current.remove_unused(generation.number(), &sealing);
            }
            let (dir, bytes) = (current.log()?, options.segment_bytes);
            let log = LogFile::resume(&dir, log_id, bytes, scan, sealing.clone())?;
            let _ = store.directory.remove_leftovers();
            let found = (generation, checkpoint.parts);
            let mut live = Live {
                checkpoints: SharedCheckpoints::new(paths, options, log_id, sealing, found)?,
                log,
                witness,
                witnessed: 0,
                hard_state: read.hard_state,
                bounds,
                index: read.index,
                scrubbed: 0,
                scrubbed_pieces: 0,
            };
            // Written now, since later records may be acknowledged before the witness is written again.
            live.write_witness()?;
            store.state = State::Live(Box::new(live));
            if let Some(reason) = store.directory.quarantined()? {
                tracing::warn!(
                    reason,
                    "the data directory was found damaged before, and what is used of it now passes all checks"
                );
                store.directory.clear_quarantined()?;
            }
            store.note_voter(&boot.checkpoint);
            Ok(boot)
        })
    }

    fn append(&mut self, write: &LogWrite) -> Result<()> {
        self.call(|store| {
            let live = store.live()?;
            let bounds = live.bounds.after_append(write)?;
            if write.entries.is_empty() && write.hard_state.is_none() {
                return Ok(());
            }
            let voted = (live.hard_state.term, live.hard_state.vote);
            if !write.entries.is_empty()
                || write
                    .hard_state
                    .is_some_and(|new| new.vote != 0 && (new.term, new.vote) != voted)
            {
                store.note_start()?;
            }
            if write.entries.iter().any(|entry| entry.kind == EntryKind::Membership) {
                store.directory.owned()?.forget_log_before()?;
            }
            let live = store.live()?;
            let hard_state = write.hard_state.unwrap_or(live.hard_state);
            let body = LogBodyRef { hard_state, entries: &write.entries };
            let place = live.log.append(RecordKind::Write, &body)?;
            let (first, end) = match (write.entries.first(), write.entries.last()) {
                (Some(first), Some(last)) => (first.index, last.index + 1),
                _ => (0, 0),
            };
            live.index.push(Span { seq: live.log.last().seq, first, end, place });
            live.hard_state = hard_state;
            live.bounds = bounds;
            if live.log.last().seq >= live.witnessed + UNWITNESSED_MAX {
                live.write_witness()?;
            }
            if has_voted(write.hard_state.as_ref()) {
                store.mark_voter();
            }
            Ok(())
        })
    }

    fn read(&mut self, from: u64, bytes: u64, done: ReadDone) -> Result<()> {
        self.call(|store| {
            let live = store.live()?;
            let mut read = LogRead { spans: Vec::new(), from, bytes };
            let mut left = bytes;
            if (live.bounds.first..live.bounds.next).contains(&from) {
                for span in live.index.from(from) {
                    read.spans.push(*span);
                    left = left.saturating_sub(span.place.bytes);
                    if left == 0 {
                        break;
                    }
                }
            }
            // A checkpoint drops what this read finds damaged, and must not need it for a later record.
            live.index.seal();
            let last = read.spans.last().map_or(0, |span| span.place.segment);
            let below = live.end_of_segment(last);
            live.log.read(read, Box::new(move |entries| done(Rot::found(entries, below))));
            Ok(())
        })
    }

    fn idle(&mut self) -> Result<()> {
        self.call(|store| store.live()?.write_witness())
    }

    fn scrub(&mut self, done: ScrubDone) -> Result<u64> {
        self.call(|store| match &mut store.state {
            State::Live(live) => Ok(live.scrub(done)),
            State::Opened(_) | State::Blank => Ok(0),
        })
    }

    fn work_beside(&mut self) -> bool {
        match &self.state {
            State::Live(live) => live.log.work_beside(),
            State::Opened(_) | State::Blank => false,
        }
    }

    fn checkpointer(&mut self) -> Result<Box<dyn Checkpointer>> {
        self.call(|store| -> Result<Box<dyn Checkpointer>> {
            store.note_start()?;
            // A checkpoint may remove what an earlier log needs.
            store.directory.owned()?.forget_log_before()?;
            Ok(Box::new(store.live()?.checkpoints.clone()))
        })
    }

    fn commit_checkpoint(&mut self, meta: &SnapshotMeta, log: LogAfter) -> Result<u64> {
        self.call(|store| {
            let bytes = store.live()?.commit(meta, log)?;
            store.note_voter(meta);
            Ok(bytes)
        })
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        if let (State::Live(live), None) = (&mut self.state, &self.failed) {
            // Best effort, as after a crash.
            let _ = live.write_witness();
            let last = live.log.last();
            if self.unnoted.is_some() {
                return self.state = State::Blank;
            }
            let _ = self.directory.owned().and_then(|current| current.close_log(last));
        }
        // The databases close before the lock is given up.
        self.state = State::Blank;
    }
}
