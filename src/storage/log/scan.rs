//! Reading a log: what a start needs of it, or all that is sound of a damaged one.
//!
//! A log is read from the first record that its last checkpoint keeps. Segments before it are only kept to
//! be used again, and records before it in the same segment are not needed: damage there is no damage of
//! the log. [`log`](super) says how the end of the log is distinguished from damage.

use std::collections::VecDeque;
use std::io::ErrorKind;

use super::body::{CheckpointBody, LogBody, size};
use super::index::{SegmentRange, Span};
use super::record::{FIRST_SEGMENT, LogRecord, RecordKind, RecordPosition, SegmentReader};
use super::segments::{HEADER_BYTES, Segment, SegmentId, check_header, numbers, path, read_stored};
use crate::node::stored::LogEntry;
use crate::storage::error::{Result, StorageError};
use crate::storage::error::{corrupt, io_error};
use crate::storage::file_system::FsPath;
use crate::storage::sealing::Sealing;

/// A segment of the log.
#[derive(Clone, Copy, Debug)]
pub(in crate::storage) struct LogSegment {
    pub(in crate::storage) number: u64,
    pub(in crate::storage) length: u64,
    /// The sequence number of its first record, or of the record that will be the first.
    pub(super) first_seq: u64,
}

/// The end of a log that was read, and what is needed to continue it.
#[derive(Debug)]
pub(in crate::storage) struct Scan {
    pub(in crate::storage) segments: VecDeque<LogSegment>,
    /// The place of the next record in the last segment.
    pub(in crate::storage) offset: usize,
    pub(in crate::storage) last: RecordPosition,
    /// What may not be durable: the segment with the last record, and those behind it.
    tail: Vec<Tail>,
}

/// A segment as it was read, up to the end of its records.
#[derive(Debug)]
struct Tail {
    number: u64,
    bytes: Vec<u8>,
}

impl Scan {
    /// An empty log, in this first segment.
    pub(in crate::storage) fn empty(id: u64, segment: &Segment) -> Scan {
        let Segment { number, length, .. } = *segment;
        Scan {
            segments: VecDeque::from([LogSegment { number, length, first_seq: 1 }]),
            offset: HEADER_BYTES,
            last: before_first(id),
            tail: Vec::new(),
        }
    }

    /// Makes durable what was read: writes the end of the log back in place, and syncs it.
    ///
    /// A process that ends leaves its last write in the page cache, where the next one finds it, although
    /// no disk has it. After a failed sync it is there too, and no later sync writes it: so it is written
    /// again, and not only synced.
    ///
    /// Earlier segments are durable. Each record is appended after the one before was synced; after a
    /// failed sync nothing is appended before the next start, which comes here first.
    pub(in crate::storage) fn make_durable(&mut self, dir: &FsPath) -> Result<()> {
        if planted!(StartTrustsRead) {
            return Ok(());
        }
        let io = io_error("writing back the end of the log");
        for Tail { number, bytes } in std::mem::take(&mut self.tail) {
            let Segment { file, .. } = Segment::open(dir, number, 0)?;
            file.write_at(&bytes, 0).and_then(|()| file.sync_all()).map_err(io)?;
        }
        dir.sync_names().map_err(io)
    }

    /// Removes the segments that are not part of the log any more, or not yet.
    pub(in crate::storage) fn remove_others(&self, dir: &FsPath) -> Result<()> {
        let io = io_error("clearing the log's directory");
        let is_part = |number| self.segments.iter().any(|segment| segment.number == number);
        for number in numbers(dir).map_err(io)? {
            if !is_part(number) {
                path(dir, number).remove_file().map_err(io)?;
            }
        }
        dir.sync_names().map_err(io)
    }
}

/// The needed part of a log.
#[derive(Debug)]
pub(in crate::storage) struct Needed {
    /// The record of the last checkpoint.
    pub(in crate::storage) named: RecordPosition,
    pub(in crate::storage) checkpoint: CheckpointBody,
    /// The place of the first record that the checkpoint keeps.
    pub(in crate::storage) from: SegmentRange,
}

/// Finds the last checkpoint that a log names, and what it needs of the log. Reads the log backwards, so
/// what is not needed is not read.
pub(in crate::storage) fn find_needed(dir: &FsPath, id: u64, sealing: &Sealing) -> Result<Needed> {
    let io = io_error("reading the log");
    let present = match numbers(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return corrupt("the log is missing".to_owned());
        }
        other => other.map_err(io)?,
    };
    let mut named: Option<(RecordPosition, CheckpointBody)> = None;
    for number in present.into_iter().rev() {
        let bytes = path(dir, number).read().map_err(io)?;
        let segment = SegmentId { log: id, number };
        // Another format must not look like damage. Damage is reported if the segment is needed.
        if let Err(error) = check_header(&bytes, segment)
            && matches!(error, StorageError::Version { .. })
        {
            return Err(error);
        }
        let mut reader = SegmentReader::new(segment, &bytes);
        let mut places: Vec<(u64, SegmentRange)> = Vec::new();
        let mut checkpoint: Option<LogRecord<'_>> = None;
        while let Some(record) = reader.next_sound() {
            places.push((record.at.seq, record.place));
            if record.kind == RecordKind::Checkpoint {
                checkpoint = Some(record);
            }
        }
        if named.is_none()
            && let Some(record) = checkpoint
        {
            named = Some((record.at, record.decode(sealing)?));
        }
        let Some((at, checkpoint)) = &named else { continue };
        let kept_from = checkpoint.kept_from;
        if let Some((_, from)) = places.iter().find(|(seq, _)| *seq == kept_from) {
            return Ok(Needed { named: *at, checkpoint: checkpoint.clone(), from: *from });
        }
        if places.iter().any(|(seq, _)| *seq < kept_from) {
            break;
        }
    }
    match named {
        Some((_, checkpoint)) => {
            let kept_from = checkpoint.kept_from;
            corrupt(format!("the log does not reach back to record {kept_from}"))
        }
        None => corrupt("the log names no checkpoint".to_owned()),
    }
}

/// Reads a log from this record on and passes each record to `sink`.
///
/// # Errors
/// [`StorageError::Corrupt`] if a record other than the last one is damaged or missing.
pub(in crate::storage) fn scan(
    dir: &FsPath,
    id: u64,
    from: SegmentRange,
    mut sink: impl FnMut(&LogRecord<'_>) -> Result<()>,
) -> Result<Scan> {
    let io = io_error("reading the log");
    let mut segments = VecDeque::new();
    let mut tail = Vec::new();
    let begins = from.segment == FIRST_SEGMENT && from.offset == HEADER_BYTES as u64;
    // Records before others were dropped.
    let mut last: Option<RecordPosition> = begins.then(|| before_first(id));
    // Where the log seems to end, and whether it continues in the next segment.
    let mut end = (from.offset as usize, true);
    let present = numbers(dir).map_err(io)?;
    for number in present.into_iter().filter(|number| *number >= from.segment) {
        let mut bytes = path(dir, number).read().map_err(io)?;
        let segment = SegmentId { log: id, number };
        let mut reader = SegmentReader::new(segment, &bytes);
        if !end.1 {
            // The log has ended before: this segment may exist, but must not have records.
            if check_header(&bytes, segment).is_ok() && reader.any_behind() {
                return corrupt(format!("the log is damaged before segment {number}"));
            }
            continue;
        }
        if number != from.segment + segments.len() as u64 {
            return corrupt(format!("a segment of the log before segment {number} is missing"));
        }
        check_header(&bytes, segment)?;
        if number == from.segment {
            reader.offset = from.offset as usize;
        }
        let mut first_seq = last.map(|last| last.seq + 1);
        let mut continues = false;
        while let Some(record) = reader.next(&mut last)? {
            first_seq.get_or_insert(record.at.seq);
            if record.kind == RecordKind::End {
                continues = true;
                break;
            }
            sink(&record)?;
        }
        if !continues && reader.any_behind() {
            return corrupt(format!(
                "record {} of the log is damaged, and there are records behind it",
                last.map_or(1, |last| last.seq + 1)
            ));
        }
        let (length, first_seq) = (bytes.len() as u64, first_seq.unwrap_or(0));
        segments.push_back(LogSegment { number, length, first_seq });
        end = (reader.offset, continues);
        if end.0 > HEADER_BYTES {
            tail.clear();
        }
        bytes.truncate(end.0);
        tail.push(Tail { number, bytes });
    }
    let Some(last) = last.filter(|last| last.seq > 0) else {
        return corrupt("the log is empty".to_owned());
    };
    if end.1 {
        return corrupt("the last segment of the log is missing".to_owned());
    }
    Ok(Scan { segments, offset: end.0, last, tail })
}

/// The position before the first record of a log.
fn before_first(id: u64) -> RecordPosition {
    RecordPosition { seq: 0, chain: id }
}

/// Asks the system to drop its cache of the segments that may have unsynced records, so that they are read
/// from the device: the one with the last record, and at most two that were made after it.
///
/// Best effort: what is read from the cache all the same is written back.
pub(super) fn forget_cached_end(dir: &FsPath) {
    for number in numbers(dir).unwrap_or_default().iter().rev().take(3) {
        if let Ok(segment) = Segment::open(dir, *number, 0) {
            segment.file.forget_cached(u64::MAX);
        }
    }
}

/// Passes every sound record of a log that may be damaged to `sink`. The caller has to check that
/// they follow each other.
pub(super) fn sound_records(
    dir: &FsPath,
    id: u64,
    mut sink: impl FnMut(&LogRecord<'_>),
) -> Result<()> {
    let io = io_error("reading the log");
    for number in numbers(dir).map_err(io)? {
        let bytes = path(dir, number).read().map_err(io)?;
        let segment = SegmentId { log: id, number };
        let mut reader = SegmentReader::new(segment, &bytes);
        while let Some(record) = reader.next_sound() {
            sink(&record);
        }
    }
    Ok(())
}

/// Reads a segment up to the record that ends it, and verifies all of it.
pub(super) fn verify_segment(dir: &FsPath, segment: SegmentId) -> Result<()> {
    let bytes = read_stored(&path(dir, segment.number)).map_err(io_error("reading the log"))?;
    check_header(&bytes, segment)?;
    let mut reader = SegmentReader::new(segment, &bytes);
    // The record before a segment is not read, unless there is none.
    let mut last = (segment.number == FIRST_SEGMENT).then(|| before_first(segment.log));
    while let Some(record) = reader.next(&mut last)? {
        if record.kind == RecordKind::End {
            return Ok(());
        }
    }
    let (number, offset) = (segment.number, reader.offset);
    corrupt(format!("segment {number} of the log, at byte {offset}"))
}

/// Entries to read.
#[derive(Debug)]
pub(in crate::storage) struct LogRead {
    /// The records that have them, in order.
    pub(in crate::storage) spans: Vec<Span>,
    /// The index of the first one.
    pub(in crate::storage) from: u64,
    /// The most bytes to read; at least one entry is read.
    pub(in crate::storage) bytes: u64,
}

/// Reads entries back, and verifies their records. Fails with the number of the segment that cannot be
/// read.
pub(super) fn read_entries(
    dir: &FsPath,
    id: u64,
    sealing: &Sealing,
    read: &LogRead,
) -> Result<Vec<LogEntry>, (u64, StorageError)> {
    let mut entries: Vec<LogEntry> = Vec::new();
    let mut left = read.bytes;
    for span in &read.spans {
        let goes_on = read_span(dir, id, sealing, read, span, &mut entries, &mut left);
        if !goes_on.map_err(|error| (span.place.segment, error))? {
            break;
        }
    }
    Ok(entries)
}

/// Reads the entries of one span. Returns whether more can follow.
fn read_span(
    dir: &FsPath,
    id: u64,
    sealing: &Sealing,
    read: &LogRead,
    span: &Span,
    entries: &mut Vec<LogEntry>,
    left: &mut u64,
) -> Result<bool> {
    let SegmentRange { segment: number, offset, bytes } = span.place;
    let segment = Segment::open(dir, number, 0)?;
    let mut records = vec![0; bytes as usize];
    segment.file.read_all_at(&mut records, offset).map_err(io_error("reading the log"))?;
    let segment = SegmentId { log: id, number };
    let mut reader = SegmentReader::of_part(segment, offset as usize, &records);
    let mut seq = span.seq;
    while reader.offset < records.len() {
        let sound = reader.at(reader.offset).filter(|record| record.at.seq == seq);
        let Some(record) = sound else {
            return corrupt(format!("log record {seq}, which was sound before"));
        };
        reader.offset += record.place.bytes as usize;
        seq += 1;
        let body: LogBody = record.decode(sealing)?;
        for entry in body.entries {
            let next = entries.last().map_or(read.from, |last| last.index + 1);
            if entry.index < next || entry.index >= span.end {
                continue;
            }
            let bytes = size(&entry);
            if entry.index > next || (bytes > *left && !entries.is_empty()) {
                return Ok(false);
            }
            *left = left.saturating_sub(bytes);
            entries.push(entry);
        }
    }
    Ok(true)
}
