//! A store that can be written: its log and its checkpoints, and which part of the one the other replaces.
//!
//! It knows neither the marks of the directory nor that a failure poisons the store.

use crate::node::stored::{Boot, HardState, Identity, LogWrite, SnapshotMeta};
use crate::storage::checkpoint::part::read_chunks;
use crate::storage::checkpoint::paths::FIRST_GENERATION;
use crate::storage::checkpoint::{Finished, SharedCheckpoints, write_first};
use crate::storage::contract::{ChunkSink, LogAfter, ReadDone, Rot, ScrubDone};
use crate::storage::directory::incarnation::{FOUNDING_SEQ, Incarnation};
use crate::storage::error::Result;
use crate::storage::error::io_error;
use crate::storage::file_system::FsPath;
use crate::storage::log::body::{CheckpointBody, LogBodyRef};
use crate::storage::log::file::LogFile;
use crate::storage::log::file_thread::has_room_for_chunks;
use crate::storage::log::index::{LogIndex, Span};
use crate::storage::log::record::RecordKind;
use crate::storage::log::replay::{ReadLog, read_log};
use crate::storage::log::scan::LogRead;
use crate::storage::log::witness::{Witness, WitnessRecord};
use crate::storage::options::StoreOptions;
use crate::storage::rules::Bounds;
use crate::storage::sealing::Sealing;

/// A store that can be written.
#[derive(Debug)]
pub(in crate::storage) struct Live {
    pub(super) checkpoints: SharedCheckpoints,
    pub(super) log: LogFile,
    witness: Witness,
    /// The sequence number of the last record in the witness.
    witnessed: u64,
    hard_state: HardState,
    bounds: Bounds,
    pub(super) index: LogIndex,
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
pub(super) const UNWITNESSED_MAX: u64 = 4096;

impl Live {
    /// Writes the first checkpoint and an empty log of an incarnation, which is complete then, durably.
    pub(in crate::storage) fn found(
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

    /// Goes on with a store that was read back, and writes a witness of how far its log reaches.
    pub(super) fn resume(
        checkpoints: SharedCheckpoints,
        log: LogFile,
        witness: Witness,
        read: ReadLog,
        bounds: Bounds,
    ) -> Result<Live> {
        let mut live = Live {
            checkpoints,
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
        Ok(live)
    }

    /// Reads the store's own files, as the next start would.
    pub(super) fn read_back(&self, sealing: &Sealing, sink: &mut ChunkSink<'_>) -> Result<Boot> {
        let (dir, id, witness) = (self.log.dir(), self.log.id(), self.witness_record());
        let mut replay = read_log(dir, id, &witness, None, sealing)?;
        let mut checkpoints = self.checkpoints.lock();
        read_chunks(checkpoints.generation(), id, &replay.checkpoint.parts, sealing, sink)?;
        Ok(replay.log.boot(&replay.checkpoint))
    }

    /// The bounds after this write, or why it is refused.
    pub(super) fn bounds_after(&self, write: &LogWrite) -> Result<Bounds> {
        self.bounds.after_append(write)
    }

    /// Whether this write acknowledges entries, or is a new vote.
    pub(super) fn is_promise(&self, write: &LogWrite) -> bool {
        let voted = (self.hard_state.term, self.hard_state.vote);
        let votes = |new: HardState| new.vote != 0 && (new.term, new.vote) != voted;
        !write.entries.is_empty() || write.hard_state.is_some_and(votes)
    }

    /// Appends a write that leads to these bounds, durably.
    pub(super) fn append(&mut self, write: &LogWrite, bounds: Bounds) -> Result<()> {
        let hard_state = write.hard_state.unwrap_or(self.hard_state);
        let body = LogBodyRef { hard_state, entries: &write.entries };
        let place = self.log.append(RecordKind::Write, &body)?;
        let (first, end) = match (write.entries.first(), write.entries.last()) {
            (Some(first), Some(last)) => (first.index, last.index + 1),
            _ => (0, 0),
        };
        let seq = self.log.last().seq;
        self.index.push(Span { seq, first, end, place });
        self.hard_state = hard_state;
        self.bounds = bounds;
        if seq >= self.witnessed + UNWITNESSED_MAX {
            self.write_witness()?;
        }
        Ok(())
    }

    /// Reads entries on another thread: see [`LogStore::read`](crate::storage::LogStore::read).
    pub(super) fn read(&mut self, from: u64, bytes: u64, done: ReadDone) {
        let mut read = LogRead { spans: Vec::new(), from, bytes };
        let mut left = bytes;
        if (self.bounds.first..self.bounds.next).contains(&from) {
            for span in self.index.from(from) {
                read.spans.push(*span);
                left = left.saturating_sub(span.place.bytes);
                if left == 0 {
                    break;
                }
            }
        }
        // A checkpoint drops what this read finds damaged, and must not need it for a later record.
        self.index.seal();
        let last = read.spans.last().map_or(0, |span| span.place.segment);
        let below = self.end_of_segment(last);
        self.log.read(read, Box::new(move |entries| done(Rot::found(entries, below))));
    }

    /// Lets what no checkpoint needs of the files of chunks go, if that is all the room there is.
    pub(super) fn give_back_chunks(&self, generations: &FsPath, free: u64) {
        self.log.give_back_chunks(generations, free);
        let unused = self.checkpoints.unused_bytes();
        if unused.is_some_and(|bytes| !has_room_for_chunks(free, bytes)) {
            self.log.shorten(self.checkpoints.clone(), 0);
        }
    }

    fn witness_record(&self) -> WitnessRecord {
        self.log.witness_record(self.bounds.last(), self.hard_state)
    }

    /// Writes to the witness how far the log reaches.
    pub(super) fn write_witness(&mut self) -> Result<()> {
        let record = self.witness_record();
        if record.seq == self.witnessed {
            return Ok(());
        }
        self.witness.write(&record).map_err(io_error("writing the witness"))?;
        self.witnessed = record.seq;
        Ok(())
    }

    /// Verifies the next piece on another thread: first each segment of the log that is not written to
    /// any more, then the checkpoint.
    pub(super) fn scrub(&mut self, done: ScrubDone) -> u64 {
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
    pub(super) fn commit(&mut self, meta: &SnapshotMeta, log: LogAfter) -> Result<u64> {
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
