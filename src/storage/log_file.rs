//! The log on disk: records in sequence, in segments that were created ahead.
//!
//! An append is one write into a file that has its full length already, and one wait for the
//! device.
//! [`segments`](super::segments) describes the files.
//!
//! A record begins at a multiple of eight bytes. Little endian:
//!
//! | offset | bytes | meaning                                                             |
//! |--------|-------|---------------------------------------------------------------------|
//! | 0      | 4     | `qrec`                                                              |
//! | 4      | 1     | kind: `W` log write, `C` checkpoint, `E` the segment ends here      |
//! | 5      | 3     | zero                                                                |
//! | 8      | 8     | length of the body                                                  |
//! | 16     | 8     | sequence number: the one before plus one                            |
//! | 24     | 8     | the chain before this record                                        |
//! | 32     | n     | the body: postcard                                                  |
//! | 32 + n | 8     | XXH3 of the log's id, the segment's number, the place in the segment, |
//! |        |       | and everything before: the chain after this record                  |
//!
//! Each record holds the chain before it, and so depends on all earlier records: one that was lost,
//! duplicated, moved or restored from an old copy is detected. The first chain is the log's id.
//!
//! How the end of the log is distinguished from damage:
//! - At most one record is being written, so a crash tears only the last one. If a sound record
//!   follows a damaged one, that is damage.
//! - The next segment is used only after a durable `E` record, so a log whose last segment is
//!   missing does not seem to end in the one before.
//! - The [`Witness`] records how far the log reached. It is written after a pause in the writes and
//!   when the store is closed. Not covered: damage to the last records, if a crash came before the
//!   witness was written.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::files::{create_directory, io_error, sync_directory};
use super::generation::Generation;
use super::log_body::{LogBody, size};
use super::log_index::{Place, Span};
use super::record::{corrupt, hash, u64_at};
use super::segments::{
    Files, HEADER_BYTES, Order, Segment, SegmentId, VerifyDone, check_header, forget_cached,
    numbers, path, read_at, read_stored, write_at,
};
use super::witness::WitnessRecord;
use super::{ReadDone, Result, StorageError};
use crate::node::stored::{HardState, LogEntry};

const MAGIC: &[u8; 4] = b"qrec";
const PREFIX_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 8;
const ALIGNMENT: usize = 8;
/// Space left in each segment for the record that ends it.
const END_BYTES: usize = PREFIX_BYTES + CHECKSUM_BYTES;
/// The buffer for records is shrunk to this size after a larger record.
const BUFFER_BYTES_MAX: usize = 1 << 20;
/// The number of the first segment of a log.
const FIRST_SEGMENT: u64 = 1;

/// The kind of a record, by its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RecordKind {
    Write = b'W',
    Checkpoint = b'C',
    End = b'E',
}

impl RecordKind {
    fn parse(tag: u8) -> Option<RecordKind> {
        let kinds = [RecordKind::Write, RecordKind::Checkpoint, RecordKind::End];
        kinds.into_iter().find(|kind| *kind as u8 == tag)
    }
}

/// The last record, and the chain after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordPosition {
    pub(super) seq: u64,
    pub(super) chain: u64,
}

/// A record that was read, with its checksum and its place in the chain verified.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogRecord<'a> {
    pub(super) kind: RecordKind,
    /// The chain before it.
    previous: u64,
    pub(super) at: RecordPosition,
    pub(super) place: Place,
    body: &'a [u8],
}

impl LogRecord<'_> {
    /// Whether this record comes right after the record at `before`.
    pub(super) fn follows(&self, before: RecordPosition) -> bool {
        before.seq.checked_add(1) == Some(self.at.seq) && before.chain == self.previous
    }

    /// Decodes the body, all of it.
    pub(super) fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        let seq = self.at.seq;
        match postcard::take_from_bytes(self.body) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => corrupt(format!("log record {seq}: {} bytes too many", rest.len())),
            Err(error) => corrupt(format!("log record {seq}: {error}")),
        }
    }
}

/// A segment of the log.
#[derive(Clone, Copy, Debug)]
struct LogSegment {
    number: u64,
    length: u64,
    /// The sequence number of its first record, or of the record that will be the first.
    first_seq: u64,
}

/// The end of a log that was read, and what is needed to continue it.
#[derive(Debug)]
pub(super) struct Scan {
    segments: VecDeque<LogSegment>,
    /// The place of the next record in the last segment.
    offset: usize,
    pub(super) last: RecordPosition,
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
    /// The sequence number of the first record.
    pub(super) fn first_seq(&self) -> Option<u64> {
        self.segments.front().map(|segment| segment.first_seq)
    }

    /// Makes durable what was read: writes the end of the log back in place, and syncs it.
    ///
    /// A process that ends leaves its last write in the page cache, where the next one finds it, although
    /// no disk has it. After a failed sync it is there too, and no later sync writes it: so it is written
    /// again, and not only synced.
    ///
    /// Earlier segments are durable. Each record is appended after the one before was synced; after a
    /// failed sync nothing is appended before the next start, which comes here first.
    pub(super) fn make_durable(&mut self, dir: &Path) -> Result<()> {
        let io = io_error("writing back the end of the log");
        for Tail { number, bytes } in std::mem::take(&mut self.tail) {
            let Segment { file, .. } = Segment::open(dir, number, 0)?;
            write_at(&file, &bytes, 0).and_then(|()| file.sync_all()).map_err(io)?;
        }
        sync_directory(dir).map_err(io)
    }
}

/// An open log.
#[derive(Debug)]
pub(super) struct LogFile {
    dir: PathBuf,
    id: u64,
    segments: VecDeque<LogSegment>,
    /// The last one, which is written to.
    segment: Segment,
    offset: usize,
    last: RecordPosition,
    files: Files,
    /// The record that is written, so that no append allocates.
    buffer: Vec<u8>,
}

impl LogFile {
    /// Creates an empty log in a directory without one.
    pub(super) fn create(dir: &Path, id: u64, segment_bytes: u64) -> Result<LogFile> {
        create_directory(dir).map_err(io_error("making the log's directory"))?;
        let first = SegmentId { log: id, number: FIRST_SEGMENT };
        let segment = Segment::create(dir, first, segment_bytes)?;
        let only = LogSegment { number: first.number, length: segment_bytes, first_seq: 1 };
        let scan = Scan {
            segments: VecDeque::from([only]),
            offset: HEADER_BYTES,
            last: RecordPosition { seq: 0, chain: id },
            tail: Vec::new(),
        };
        LogFile::of(dir, id, segment_bytes, segment, scan)
    }

    /// Opens a log that was read, to continue it.
    pub(super) fn resume(dir: &Path, id: u64, segment_bytes: u64, scan: Scan) -> Result<LogFile> {
        let (Some(first), Some(last)) = (scan.segments.front(), scan.segments.back()) else {
            return corrupt("the log has no segment".to_owned());
        };
        let io = io_error("clearing the log's directory");
        // Remove the segments that are not part of the log any more, or not yet.
        for number in numbers(dir).map_err(io)? {
            if !(first.number..=last.number).contains(&number) {
                fs::remove_file(path(dir, number)).map_err(io)?;
            }
        }
        sync_directory(dir).map_err(io)?;
        let segment = Segment::open(dir, last.number, last.length)?;
        LogFile::of(dir, id, segment_bytes, segment, scan)
    }

    fn of(
        dir: &Path,
        id: u64,
        segment_bytes: u64,
        segment: Segment,
        scan: Scan,
    ) -> Result<LogFile> {
        let mut files = Files::start(dir, segment_bytes)?;
        files.order(SegmentId { log: id, number: segment.number + 1 });
        let Scan { segments, offset, last, .. } = scan;
        let buffer = Vec::new();
        Ok(LogFile { dir: dir.to_owned(), id, segments, segment, offset, last, files, buffer })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn last(&self) -> RecordPosition {
        self.last
    }

    /// The witness's record of this end of the log.
    pub(super) fn witness_record(&self, last_index: u64, hard_state: HardState) -> WitnessRecord {
        let RecordPosition { seq, chain } = self.last;
        WitnessRecord { first_chain: self.id, seq, chain, last_index, hard_state }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Appends a record, durably. Returns where it is.
    pub(super) fn append(&mut self, kind: RecordKind, body: &impl Serialize) -> Result<Place> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.resize(PREFIX_BYTES, 0);
        let mut buffer = postcard::to_extend(body, buffer)
            .expect("encoding to a Vec fails only for types that have no length, and none is used");
        let bytes = record_bytes(buffer.len() - PREFIX_BYTES);
        if self.offset + bytes + END_BYTES > self.segment.length as usize {
            self.next_segment(bytes)?;
        }
        let at = self.seal(kind, &mut buffer);
        let (segment, offset) = (self.segment.number, self.offset as u64);
        let place = Place { segment, offset, bytes: buffer.len() as u64 };
        let written = self.write(&buffer, at);
        // A very large record must not hold its memory forever.
        buffer.shrink_to(BUFFER_BYTES_MAX);
        self.buffer = buffer;
        written.map(|()| place)
    }

    /// Completes a record: its prefix, its checksum, and zeros up to the next place for one.
    fn seal(&self, kind: RecordKind, buffer: &mut Vec<u8>) -> RecordPosition {
        let length = buffer.len() - PREFIX_BYTES;
        let seq = self.last.seq + 1;
        buffer[..4].copy_from_slice(MAGIC);
        buffer[4..8].copy_from_slice(&[kind as u8, 0, 0, 0]);
        buffer[8..16].copy_from_slice(&(length as u64).to_le_bytes());
        buffer[16..24].copy_from_slice(&seq.to_le_bytes());
        buffer[24..32].copy_from_slice(&self.last.chain.to_le_bytes());
        let segment = SegmentId { log: self.id, number: self.segment.number };
        let chain = checksum(segment, self.offset, buffer);
        buffer.extend_from_slice(&chain.to_le_bytes());
        buffer.resize(record_bytes(length), 0);
        RecordPosition { seq, chain }
    }

    /// Writes a sealed record and waits for the device.
    fn write(&mut self, record: &[u8], at: RecordPosition) -> Result<()> {
        let io = io_error("appending to the log");
        write_at(&self.segment.file, record, self.offset as u64).map_err(io)?;
        self.segment.file.sync_data().map_err(io)?;
        self.last = at;
        self.offset += record.len();
        Ok(())
    }

    /// Ends this segment, durably, and opens the next one, with room for at least these bytes.
    fn next_segment(&mut self, bytes: usize) -> Result<()> {
        let next = SegmentId { log: self.id, number: self.segment.number + 1 };
        let segment = match self.files.take(next, (HEADER_BYTES + bytes + END_BYTES) as u64) {
            // No more files can be opened for now: make the open one longer.
            Err(StorageError::Again { .. }) => {
                self.files.order(next);
                return self.lengthen(bytes);
            }
            other => other?,
        };
        let mut end = vec![0; PREFIX_BYTES];
        let at = self.seal(RecordKind::End, &mut end);
        self.write(&end, at)?;
        self.segments.push_back(LogSegment {
            number: segment.number,
            length: segment.length,
            first_seq: self.last.seq + 1,
        });
        self.segment = segment;
        self.offset = HEADER_BYTES;
        self.files.order(SegmentId { number: next.number + 1, ..next });
        Ok(())
    }

    /// Makes this segment long enough for this record and some more.
    fn lengthen(&mut self, bytes: usize) -> Result<()> {
        let needed = (self.offset + bytes + END_BYTES) as u64;
        let id = SegmentId { log: self.id, number: self.segment.number };
        self.segment.lengthen(id, needed + self.files.length())?;
        if let Some(last) = self.segments.back_mut() {
            last.length = self.segment.length;
        }
        Ok(())
    }

    /// Closes a generation that is not valid any more, and removes it, on the thread of the files.
    pub(super) fn dispose(&self, generation: Generation) {
        self.files.send(Order::Dispose(generation));
    }

    /// Reads entries on the thread of the files, where no append waits for it.
    pub(super) fn read(&self, read: LogRead, done: ReadDone) {
        let (dir, id) = (self.dir.clone(), self.id);
        self.work(Box::new(move || done(read_entries(&dir, id, &read))));
    }

    /// The next segment after this one, or else the first, among those that are not written to any more.
    /// Also returns how many those are.
    pub(super) fn next_cold(&self, after: u64) -> Option<(u64, u64)> {
        let cold = || self.segments.iter().rev().skip(1).rev();
        let next = cold().find(|segment| segment.number > after).or_else(|| cold().next())?;
        Some((next.number, cold().count() as u64))
    }

    /// Verifies a segment on the thread of the files.
    pub(super) fn verify(&self, number: u64, done: VerifyDone) {
        self.files.send(Order::Verify(SegmentId { log: self.id, number }, done));
    }

    /// Does something on the thread of the files.
    pub(super) fn work(&self, work: Box<dyn FnOnce() + Send>) {
        self.files.send(Order::Work(work));
    }

    /// Frees the segments with only records before this one.
    pub(super) fn drop_before(&mut self, seq: u64) {
        while let (Some(first), Some(second)) = (self.segments.front(), self.segments.get(1))
            && second.first_seq <= seq
        {
            let LogSegment { number, length, .. } = *first;
            self.files.send(Order::Free { number, length });
            self.segments.pop_front();
        }
    }
}

/// Reads arbitrary bytes as a segment.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let segment = SegmentId { log: 1, number: FIRST_SEGMENT };
    let _ = check_header(bytes, segment);
    let mut reader = SegmentReader { segment, start: 0, bytes, offset: 0 };
    let mut last = None;
    while let Ok(Some(_)) = reader.next(&mut last) {}
    let _ = reader.any_behind();
}

/// Reads a log and passes each record to `sink`.
///
/// # Errors
/// [`StorageError::Corrupt`] if a record other than the last one is damaged or missing.
pub(super) fn scan(
    dir: &Path,
    id: u64,
    mut sink: impl FnMut(&LogRecord<'_>) -> Result<()>,
) -> Result<Scan> {
    let io = io_error("reading the log");
    let present = match numbers(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return corrupt("the log is missing".to_owned());
        }
        other => other.map_err(io)?,
    };
    let mut segments = VecDeque::new();
    let mut tail = Vec::new();
    let mut last: Option<RecordPosition> = None;
    // Where the log seems to end, and whether it continues in the next segment.
    let mut end = (HEADER_BYTES, true);
    for number in contiguous_end(&present) {
        let mut bytes = fs::read(path(dir, *number)).map_err(io)?;
        let segment = SegmentId { log: id, number: *number };
        let mut reader = SegmentReader { segment, start: 0, bytes: &bytes, offset: HEADER_BYTES };
        if !end.1 {
            // The log has ended before: this segment may exist, but must not have records.
            if check_header(&bytes, segment).is_ok() && reader.any_behind() {
                return corrupt(format!("the log is damaged before segment {number}"));
            }
            continue;
        }
        check_header(&bytes, segment)?;
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
        segments.push_back(LogSegment { number: *number, length, first_seq });
        end = (reader.offset, continues);
        if end.0 > HEADER_BYTES {
            tail.clear();
        }
        bytes.truncate(end.0);
        tail.push(Tail { number: *number, bytes });
    }
    let Some(last) = last else {
        return corrupt("the log is empty".to_owned());
    };
    if end.1 {
        return corrupt("the last segment of the log is missing".to_owned());
    }
    Ok(Scan { segments, offset: end.0, last, tail })
}

/// Asks the system to drop its cache of the segments that may have unsynced records, so that they are read
/// from the device: the one with the last record, and at most two that were made after it.
///
/// Best effort: what is read from the cache all the same is written back.
pub(super) fn forget_cached_end(dir: &Path) {
    for number in numbers(dir).unwrap_or_default().iter().rev().take(3) {
        if let Ok(segment) = Segment::open(dir, *number, 0) {
            forget_cached(&segment.file);
        }
    }
}

/// Passes every sound record of a log that may be damaged to `sink`. The caller has to check that
/// they follow each other.
pub(super) fn sound_records(
    dir: &Path,
    id: u64,
    mut sink: impl FnMut(&LogRecord<'_>),
) -> Result<()> {
    let io = io_error("reading the log");
    for number in numbers(dir).map_err(io)? {
        let bytes = fs::read(path(dir, number)).map_err(io)?;
        let segment = SegmentId { log: id, number };
        let mut reader = SegmentReader { segment, start: 0, bytes: &bytes, offset: HEADER_BYTES };
        while reader.offset < bytes.len() {
            match reader.at(reader.offset) {
                Some(record) => {
                    sink(&record);
                    reader.offset += record.place.bytes as usize;
                }
                None => reader.offset += ALIGNMENT,
            }
        }
    }
    Ok(())
}

/// Reads a segment up to the record that ends it, and verifies all of it.
pub(super) fn verify_segment(dir: &Path, segment: SegmentId) -> Result<()> {
    let bytes = read_stored(&path(dir, segment.number)).map_err(io_error("reading the log"))?;
    check_header(&bytes, segment)?;
    let mut reader = SegmentReader { segment, start: 0, bytes: &bytes, offset: HEADER_BYTES };
    let mut last = None;
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
pub(super) struct LogRead {
    /// The records that have them, in order.
    pub(super) spans: Vec<Span>,
    /// The index of the first one.
    pub(super) from: u64,
    /// The most bytes to read; at least one entry is read.
    pub(super) bytes: u64,
}

/// Reads entries back, and verifies their records.
pub(super) fn read_entries(dir: &Path, id: u64, read: &LogRead) -> Result<Vec<LogEntry>> {
    let mut entries: Vec<LogEntry> = Vec::new();
    let mut left = read.bytes;
    for span in &read.spans {
        let Place { segment: number, offset, bytes } = span.place;
        let segment = Segment::open(dir, number, 0)?;
        let mut records = vec![0; bytes as usize];
        read_at(&segment.file, &mut records, offset).map_err(io_error("reading the log"))?;
        let segment = SegmentId { log: id, number };
        let mut reader =
            SegmentReader { segment, start: offset as usize, bytes: &records, offset: 0 };
        let mut seq = span.seq;
        while reader.offset < records.len() {
            let sound = reader.at(reader.offset).filter(|record| record.at.seq == seq);
            let Some(record) = sound else {
                return corrupt(format!("log record {seq}, which was sound before"));
            };
            reader.offset += record.place.bytes as usize;
            seq += 1;
            let body: LogBody = record.decode()?;
            for entry in body.entries {
                let next = entries.last().map_or(read.from, |last| last.index + 1);
                if entry.index < next || entry.index >= span.end {
                    continue;
                }
                let bytes = size(&entry);
                if entry.index > next || (bytes > left && !entries.is_empty()) {
                    return Ok(entries);
                }
                left = left.saturating_sub(bytes);
                entries.push(entry);
            }
        }
    }
    Ok(entries)
}

/// The numbers after the last gap in a list.
fn contiguous_end(numbers: &[u64]) -> &[u64] {
    let gap = numbers.windows(2).rposition(|pair| pair[1] != pair[0] + 1);
    &numbers[gap.map_or(0, |place| place + 1)..]
}

/// Reads the records of one segment.
struct SegmentReader<'a> {
    segment: SegmentId,
    /// The place of the first byte in the segment.
    start: usize,
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> SegmentReader<'a> {
    /// The next record, if there is a sound one; `last` is the record before it.
    fn next(&mut self, last: &mut Option<RecordPosition>) -> Result<Option<LogRecord<'a>>> {
        let Some(record) = self.at(self.offset) else { return Ok(None) };
        // Records before the oldest segment were dropped, unless it is the first segment of the log.
        let is_first = self.segment.number == FIRST_SEGMENT;
        let before =
            last.or(is_first.then_some(RecordPosition { seq: 0, chain: self.segment.log }));
        if let Some(before) = before.filter(|before| !record.follows(*before)) {
            let seq = record.at.seq;
            return corrupt(format!("log record {seq} does not follow record {}", before.seq));
        }
        *last = Some(record.at);
        self.offset += record.place.bytes as usize;
        Ok(Some(record))
    }

    /// Whether there is a sound record anywhere after this place.
    fn any_behind(&self) -> bool {
        let places = (self.offset..self.bytes.len()).step_by(ALIGNMENT);
        places.into_iter().any(|place| self.at(place).is_some())
    }

    /// The record at a place, if it is sound.
    fn at(&self, offset: usize) -> Option<LogRecord<'a>> {
        let rest = self.bytes.get(offset..)?;
        let prefix = rest.get(..PREFIX_BYTES)?;
        if !prefix.starts_with(MAGIC) {
            return None;
        }
        let kind = RecordKind::parse(prefix[4])?;
        let field = |start| u64_at(prefix, start);
        let length = usize::try_from(field(8)?).ok()?;
        let end = PREFIX_BYTES.checked_add(length)?;
        let (sealed, chain) = (rest.get(..end)?, u64_at(&rest[end..], 0)?);
        let place = self.start + offset;
        if checksum(self.segment, place, sealed) != chain {
            return None;
        }
        let at = RecordPosition { seq: field(16)?, chain };
        let (segment, offset) = (self.segment.number, place as u64);
        let place = Place { segment, offset, bytes: record_bytes(length) as u64 };
        Some(LogRecord { kind, previous: field(24)?, at, place, body: &sealed[PREFIX_BYTES..] })
    }
}

/// The bytes that a record takes, with a body of this length.
fn record_bytes(length: usize) -> usize {
    (PREFIX_BYTES + length + CHECKSUM_BYTES).next_multiple_of(ALIGNMENT)
}

fn checksum(segment: SegmentId, offset: usize, bytes: &[u8]) -> u64 {
    hash([segment.log, segment.number, offset as u64], bytes)
}
