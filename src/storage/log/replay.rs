//! Reading the log of a store back and verifying it.
//!
//! The log is damaged unless all of this holds:
//! - The log has no gap after the record that its last checkpoint names. It reaches as far as the
//!   witness records, and agrees with the witness there. ([`scan`](super::scan) has checked
//!   each record.)
//! - Its entries start no later than right after the checkpoint, and include the hard state's
//!   commit index.

use super::body::{CheckpointBody, LogBody, size};
use super::index::{LogIndex, SegmentRange, Span};
use super::record::{LogRecord, RecordKind, RecordPosition};
use super::scan::{Needed, Scan, find_needed, forget_cached_end, scan, sound_records};
use super::witness::WitnessRecord;
use crate::node::log_outline::LogOutline;
use crate::node::stored::{Boot, HardState, LogEntry};
use crate::storage::error::corrupt;
use crate::storage::error::{Result, StorageError};
use crate::storage::file_system::FsPath;
use crate::storage::rules::Bounds;
use crate::storage::sealing::Sealing;

/// The verified content of a log, and what is needed to continue it.
#[derive(Debug)]
pub(in crate::storage) struct LogReplay {
    pub(in crate::storage) scan: Scan,
    /// The last checkpoint.
    pub(in crate::storage) checkpoint: CheckpointBody,
    pub(in crate::storage) log: ReadLog,
    pub(in crate::storage) bounds: Bounds,
    /// Whether the log has the record that was asked for, unless it may have dropped that.
    pub(in crate::storage) reaches: bool,
}

/// Reads and verifies a log. `needed`: a record that it should have, see [`LogReplay::reaches`].
pub(in crate::storage) fn read_log(
    dir: &FsPath,
    id: u64,
    witness: &WitnessRecord,
    needed: Option<RecordPosition>,
    sealing: &Sealing,
) -> Result<LogReplay> {
    if witness.first_chain != id {
        return corrupt("the witness is of another store".to_owned());
    }
    forget_cached_end(dir);
    // The log is read twice, so that only the entries after the last checkpoint are in memory at the
    // same time.
    let Needed { named, checkpoint, from } = find_needed(dir, id, sealing)?;
    let mut log = ReadLog::new(&checkpoint);
    let (mut last_named, mut reaches) = (None, true);
    let scanned = scan(dir, id, from, |record: &LogRecord<'_>| {
        if record.at.seq == witness.seq && record.at.chain != witness.chain {
            return corrupt(format!("log record {} is not the one that was written", witness.seq));
        }
        if needed.is_some_and(|needed| needed.seq == record.at.seq && needed != record.at) {
            reaches = false;
        }
        if record.kind == RecordKind::Checkpoint {
            last_named = Some(record.at);
        }
        log.take(record, sealing)
    })?;
    if last_named != Some(named) {
        return Err(StorageError::Io {
            what: "reading the log".to_owned(),
            reason: format!("record {} was there, and is not there now", named.seq),
        });
    }
    let bounds = log.check_end(scanned.last.seq, witness)?;
    reaches &= needed.is_none_or(|needed| needed.seq <= scanned.last.seq);
    Ok(LogReplay { scan: scanned, checkpoint, log, bounds, reaches })
}

/// Reads as much of a log as is undamaged, without its witness: the last checkpoint that it names,
/// and the entries after it up to the first gap.
pub(in crate::storage) fn salvage_log(
    dir: &FsPath,
    id: u64,
    sealing: &Sealing,
) -> Result<(CheckpointBody, Boot)> {
    let mut checkpoint: Option<(RecordPosition, CheckpointBody)> = None;
    sound_records(dir, id, |record| {
        if record.kind == RecordKind::Checkpoint
            && let Ok(body) = record.decode(sealing)
        {
            checkpoint = Some((record.at, body));
        }
    })?;
    let Some((named_at, checkpoint)) = checkpoint else {
        return corrupt("the log names no checkpoint".to_owned());
    };
    let mut log = ReadLog::new(&checkpoint);
    let mut last: Option<RecordPosition> = None;
    let mut continues = true;
    sound_records(dir, id, |record| {
        if !continues || record.at.seq < checkpoint.kept_from {
            return;
        }
        let follows = match last {
            None => record.at.seq == checkpoint.kept_from,
            Some(last) => record.follows(last),
        };
        // The first record that is damaged or missing ends the log.
        continues = follows && log.take(record, sealing).is_ok();
        if continues {
            last = Some(record.at);
        }
    })?;
    if last.is_none_or(|last| last.seq < named_at.seq) {
        log.hard_state = checkpoint.hard_state;
    }
    let index = checkpoint.meta.index;
    if log.entries.first().is_some_and(|first| first.index > index + 1) {
        log.entries.clear();
    }
    let end = log.entries.last().map_or(0, |last| last.index).max(index);
    log.hard_state.commit = log.hard_state.commit.min(end);
    let boot = log.boot(&checkpoint);
    Ok((checkpoint, boot))
}

/// The log as far as it has been read.
#[derive(Debug)]
pub(in crate::storage) struct ReadLog {
    /// The index of the last checkpoint in the whole log.
    checkpoint: u64,
    pub(in crate::storage) hard_state: HardState,
    /// The entries up to that checkpoint, and those after it.
    outline: LogOutline,
    entries: Vec<LogEntry>,
    pub(in crate::storage) index: LogIndex,
}

impl ReadLog {
    fn new(checkpoint: &CheckpointBody) -> ReadLog {
        let (outline, entries, index) = Default::default();
        let (checkpoint, hard_state) = (checkpoint.meta.index, checkpoint.hard_state);
        ReadLog { checkpoint, hard_state, outline, entries, index }
    }

    /// What a node starts from with this checkpoint, besides the chunks. Moves the entries out.
    pub(in crate::storage) fn boot(&mut self, checkpoint: &CheckpointBody) -> Boot {
        Boot {
            hard_state: self.hard_state,
            checkpoint: checkpoint.meta.clone(),
            checkpoint_bytes: checkpoint.bytes(),
            outline: std::mem::take(&mut self.outline),
            entries: std::mem::take(&mut self.entries),
        }
    }

    /// The index after the last entry.
    fn next(&self) -> Option<u64> {
        let last = self.entries.last().map(|entry| entry.index);
        last.or(self.outline.last().map(|(index, _)| index)).map(|last| last + 1)
    }

    fn drop_before(&mut self, from: u64) {
        self.outline.drop_before(from);
        let dropped = self.entries.partition_point(|entry| entry.index < from);
        self.entries.drain(..dropped);
    }

    /// Adds a record, and updates the hard state.
    fn take(&mut self, record: &LogRecord<'_>, sealing: &Sealing) -> Result<()> {
        match record.kind {
            RecordKind::Write => {
                let body: LogBody = record.decode(sealing)?;
                self.hard_state = body.hard_state;
                self.append(record.at.seq, record.place, body)?;
            }
            RecordKind::Checkpoint => {
                let body: CheckpointBody = record.decode(sealing)?;
                self.drop_before(body.log_from);
                self.hard_state = body.hard_state;
            }
            RecordKind::End => {}
        }
        Ok(())
    }

    fn append(&mut self, seq: u64, place: SegmentRange, body: LogBody) -> Result<()> {
        let (mut first, mut end) = (0, 0);
        if let (Some(head), Some(tail)) = (body.entries.first(), body.entries.last()) {
            (first, end) = (head.index, tail.index.saturating_add(1));
            let next = self.next().unwrap_or(first);
            let contiguous = body.entries.windows(2).all(|pair| pair[1].index == pair[0].index + 1);
            if first > next || first == 0 || end == u64::MAX || !contiguous {
                return corrupt(format!("log record {seq}: a gap before entry {first}"));
            }
            let kept = self.entries.partition_point(|entry| entry.index < first);
            self.entries.truncate(kept);
            self.outline.drop_from(first);
            for entry in body.entries {
                if entry.index <= self.checkpoint {
                    self.outline.push(entry.index, entry.term, size(&entry));
                } else {
                    self.entries.push(entry);
                }
            }
        }
        self.index.push(Span { seq, first, end, place });
        Ok(())
    }

    /// Checks that the log reaches far enough and is consistent.
    fn check_end(&self, last_seq: u64, witness: &WitnessRecord) -> Result<Bounds> {
        if last_seq < witness.seq {
            return corrupt(format!(
                "acknowledged data is missing: log record {} was written and {last_seq} is the \
                 last there is",
                witness.seq
            ));
        }
        let index = self.checkpoint;
        let mut bounds = Bounds::empty(index);
        if let Some(first) = self.outline.first().or(self.entries.first().map(|entry| entry.index))
        {
            bounds.first = first;
            if first > index + 1 {
                return corrupt(format!(
                    "a gap between the checkpoint at {index} and entry {first}"
                ));
            }
        }
        if let Some(next) = self.next() {
            bounds.next = next;
        }
        let (last, commit) = (bounds.last(), self.hard_state.commit);
        if commit > last {
            return corrupt(format!("commit index {commit} after the last index {last}"));
        }
        let seen = (witness.last_index, witness.hard_state);
        if last_seq == witness.seq && (last, self.hard_state) != seen {
            return corrupt("the end of the log differs from the witness".to_owned());
        }
        Ok(bounds)
    }
}
