//! Reading a generation back, with every record checked against every other.
//!
//! What must hold, or the generation is damaged:
//! - The first manifest is a full one, and each further one names the one before.
//! - From the sequence number that the last manifest names, no record is
//!   missing, and each continues the chain of the one before.
//! - They reach to where the witness saw them, and agree with it there.
//! - The log has no gap, begins no later than after the checkpoint, and the
//!   hard state's commit index is in it.
//! - The chunks of each checkpoint are all there, in their order.

use super::generation::Generation;
use super::log_index::{LogIndex, Span};
use super::record::{Kind, LogBody, Manifest, Record, corrupt, first_chain, first_chunk_chain};
use super::rules::Bounds;
use super::witness::Testimony;
use super::{Boot, ChunkSink, HardState, LogEntry, SnapshotMeta, StorageError};

/// What a generation holds, verified, and what is needed to go on writing it.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) boot: Boot,
    pub(super) bounds: Bounds,
    pub(super) log: LogIndex,
    /// The last record and the chain after it.
    pub(super) seq: u64,
    pub(super) chain: u64,
    /// The same of the last manifest.
    pub(super) manifest: (u64, u64),
    /// What the chunks of the full checkpoint take, and of all deltas.
    pub(super) base_bytes: u64,
    pub(super) delta_bytes: u64,
    /// Larger than every checkpoint's id.
    pub(super) next_checkpoint: u64,
    /// Checkpoints that were begun and never committed.
    pub(super) stale: Vec<u64>,
}

/// Reads a generation back and hands its chunks on.
pub(super) fn replay(
    generation: &Generation,
    origin: &[u8],
    witness: &Testimony,
    sink: &mut ChunkSink<'_>,
) -> Result<Replay, StorageError> {
    let first_chain = first_chain(origin, generation.number());
    if witness.first_chain != first_chain {
        return corrupt("the witness is of another store or generation".to_owned());
    }
    let manifests = read_manifests(generation, first_chain)?;
    let (Some((_, first)), Some((_, last))) = (manifests.first(), manifests.last()) else {
        return corrupt("there is no checkpoint".to_owned());
    };
    let kept_from = last.kept_from;
    let mut tape = Tape {
        seq: 0,
        chain: first_chain,
        kept_from,
        witness,
        hard_state: first.hard_state,
        checkpoint: first.meta.clone(),
        entries: Vec::new(),
        log: LogIndex::default(),
    };
    let mut base_bytes = 0;
    let mut delta_bytes = 0;
    let mut ids = Vec::new();
    for (_, manifest) in &manifests {
        read_chunks(generation, first_chain, manifest, sink)?;
        ids.push(manifest.checkpoint);
        if manifest.full {
            base_bytes += manifest.bytes;
        } else {
            delta_bytes += manifest.bytes;
        }
    }
    let mut manifest_at = (0, 0);
    let mut manifests = manifests.iter().peekable();
    let mut records = generation.records(Kind::Log)?;
    loop {
        let record = records.next()?;
        let log_seq = record.as_ref().map_or(u64::MAX, |record| record.id.group);
        while let Some((record, manifest)) =
            manifests.next_if(|(record, _)| record.id.group < log_seq)
        {
            tape.follow(record)?;
            tape.manifest(manifest);
            manifest_at = (record.id.group, record.chain);
        }
        let Some(record) = record else { break };
        tape.follow(&record)?;
        tape.append(&record)?;
    }
    let bounds = tape.finish()?;
    let groups = generation.chunk_groups()?;
    let next_checkpoint = groups.iter().chain(&ids).max().map_or(1, |id| id.saturating_add(1));
    Ok(Replay {
        boot: Boot {
            hard_state: tape.hard_state,
            checkpoint: tape.checkpoint,
            entries: tape.entries,
        },
        bounds,
        log: tape.log,
        seq: tape.seq,
        chain: tape.chain,
        manifest: manifest_at,
        base_bytes,
        delta_bytes,
        next_checkpoint,
        stale: groups.into_iter().filter(|id| !ids.contains(id)).collect(),
    })
}

/// Reads a generation back without its witness, as far as its records are as they were written. All
/// of its checkpoint must be.
pub(super) fn salvage(
    generation: &Generation,
    origin: &[u8],
    sink: &mut ChunkSink<'_>,
) -> Result<Boot, StorageError> {
    let first_chain = first_chain(origin, generation.number());
    let manifests = read_manifests(generation, first_chain)?;
    let (Some((_, first)), Some((_, last))) = (manifests.first(), manifests.last()) else {
        return corrupt("there is no checkpoint".to_owned());
    };
    for (_, manifest) in &manifests {
        read_chunks(generation, first_chain, manifest, sink)?;
    }
    // It has seen nothing, so that no end is too early for it.
    let witness = &Testimony {
        first_chain,
        seq: 0,
        chain: 0,
        last_index: 0,
        hard_state: HardState::default(),
    };
    let mut tape = Tape {
        seq: 0,
        chain: first_chain,
        kept_from: last.kept_from,
        witness,
        hard_state: first.hard_state,
        checkpoint: first.meta.clone(),
        entries: Vec::new(),
        log: LogIndex::default(),
    };
    let mut manifests = manifests.iter().peekable();
    let mut records = generation.records(Kind::Log)?;
    // The first record that is damaged or missing ends the log.
    while let Ok(record) = records.next() {
        let log_seq = record.as_ref().map_or(u64::MAX, |record| record.id.group);
        let mut follows = true;
        while let Some((record, manifest)) =
            manifests.next_if(|(record, _)| record.id.group < log_seq)
        {
            follows &= tape.follow(record).is_ok();
            tape.manifest(manifest);
        }
        let Some(record) = record.filter(|_| follows) else { break };
        if tape.follow(&record).is_err() || tape.append(&record).is_err() {
            break;
        }
    }
    for (_, manifest) in manifests {
        tape.manifest(manifest);
    }
    let Tape { mut hard_state, checkpoint, mut entries, .. } = tape;
    if entries.first().is_some_and(|first| first.index > checkpoint.index + 1) {
        entries.clear();
    }
    let end = entries.last().map_or(0, |last| last.index).max(checkpoint.index);
    hard_state.commit = hard_state.commit.min(end);
    Ok(Boot { hard_state, checkpoint, entries })
}

/// All manifests, each naming the one before.
fn read_manifests(
    generation: &Generation,
    first_chain: u64,
) -> Result<Vec<(Record, Manifest)>, StorageError> {
    let mut records = generation.records(Kind::Manifest)?;
    let mut manifests: Vec<(Record, Manifest)> = Vec::new();
    while let Some(record) = records.next()? {
        let manifest: Manifest = record.decode()?;
        let previous = manifests.last().map(|(record, _)| (record.id.group, record.chain));
        let follows = match previous {
            None => manifest.full && record.id.group == 1 && record.previous == first_chain,
            Some(_) => !manifest.full,
        };
        if !follows || manifest.previous != previous {
            return corrupt(format!("{}: does not follow the checkpoint before", record.id));
        }
        manifests.push((record, manifest));
    }
    Ok(manifests)
}

/// Verifies the chunks of one checkpoint and hands them on.
fn read_chunks(
    generation: &Generation,
    first_chain: u64,
    manifest: &Manifest,
    sink: &mut ChunkSink<'_>,
) -> Result<(), StorageError> {
    let mut chain = first_chunk_chain(first_chain, manifest.checkpoint);
    let mut chunks = generation.chunks(manifest.checkpoint)?;
    let mut count = 0;
    while let Some(record) = chunks.next()? {
        if record.id.number != count || record.previous != chain || count == manifest.chunks {
            return corrupt(format!("{}: out of order", record.id));
        }
        chain = record.chain;
        count += 1;
        if let Err(reason) = sink(&record.body) {
            return corrupt(format!("{}: {reason}", record.id));
        }
    }
    if count != manifest.chunks || chain != manifest.chunk_chain {
        return corrupt(format!(
            "{count} of {} chunks of checkpoint {}",
            manifest.chunks, manifest.checkpoint
        ));
    }
    Ok(())
}

/// The records in the order in which they were written, as far as they have been read.
struct Tape<'a> {
    seq: u64,
    chain: u64,
    kept_from: u64,
    witness: &'a Testimony,
    hard_state: HardState,
    checkpoint: SnapshotMeta,
    entries: Vec<LogEntry>,
    log: LogIndex,
}

impl Tape<'_> {
    /// Takes the next record, if it is the next.
    fn follow(&mut self, record: &Record) -> Result<(), StorageError> {
        let seq = record.id.group;
        // Below `kept_from` log records are gone, so that manifests stand alone there; those are
        // linked to each other instead.
        let follows = if seq == self.seq + 1 {
            record.previous == self.chain
        } else {
            seq > self.seq && seq <= self.kept_from
        };
        if !follows {
            return corrupt(format!("{}: does not follow record {}", record.id, self.seq));
        }
        if seq == self.witness.seq && record.chain != self.witness.chain {
            return corrupt(format!("{}: not the one that the witness saw", record.id));
        }
        self.seq = seq;
        self.chain = record.chain;
        Ok(())
    }

    fn manifest(&mut self, manifest: &Manifest) {
        self.hard_state = manifest.hard_state;
        self.checkpoint = manifest.meta.clone();
        let dropped = self.entries.partition_point(|entry| entry.index < manifest.log_from);
        self.entries.drain(..dropped);
    }

    fn append(&mut self, record: &Record) -> Result<(), StorageError> {
        if record.id.group < self.kept_from {
            return corrupt(format!("{}: was dropped and is back", record.id));
        }
        let body: LogBody = record.decode()?;
        self.hard_state = body.hard_state;
        let (mut first, mut end) = (0, 0);
        if let (Some(head), Some(tail)) = (body.entries.first(), body.entries.last()) {
            (first, end) = (head.index, tail.index.saturating_add(1));
            let next = self.entries.last().map_or(first, |entry| entry.index + 1);
            let contiguous = body.entries.windows(2).all(|pair| pair[1].index == pair[0].index + 1);
            if first > next || first == 0 || end == u64::MAX || !contiguous {
                return corrupt(format!("{}: a gap before entry {first}", record.id));
            }
            let kept = self.entries.partition_point(|entry| entry.index < first);
            self.entries.truncate(kept);
            self.entries.extend(body.entries);
        }
        self.log.push(Span {
            seq: record.id.group,
            first,
            end,
            parts: record.parts,
            bytes: record.bytes,
        });
        Ok(())
    }

    /// Checks that the end is far enough and makes sense.
    fn finish(&self) -> Result<Bounds, StorageError> {
        if self.seq < self.witness.seq {
            return corrupt(format!(
                "acknowledged data is missing: record {} was written and {} is the last there is",
                self.witness.seq, self.seq
            ));
        }
        let mut bounds = Bounds::empty(self.checkpoint.index);
        if let (Some(first), Some(last)) = (self.entries.first(), self.entries.last()) {
            bounds.first = first.index;
            bounds.next = last.index + 1;
            if first.index > self.checkpoint.index + 1 {
                return corrupt(format!(
                    "a gap between the checkpoint at {} and entry {}",
                    self.checkpoint.index, first.index
                ));
            }
        }
        if self.hard_state.commit > bounds.last() {
            return corrupt(format!(
                "commit index {} after the last index {}",
                self.hard_state.commit,
                bounds.last()
            ));
        }
        if self.seq == self.witness.seq
            && (bounds.last() != self.witness.last_index
                || self.hard_state != self.witness.hard_state)
        {
            return corrupt("the log does not end as the witness saw it".to_owned());
        }
        Ok(bounds)
    }
}
