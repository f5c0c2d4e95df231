//! The records of the log's segments, as [`log_file`](super::log_file) describes them.

use serde::de::DeserializeOwned;

use super::bytes::{hash, u64_at};
use super::error::corrupt;
use super::log_index::SegmentRange;
use super::sealing::Sealing;
#[cfg(any(test, fuzzing))]
use super::segments::check_header;
use super::segments::{HEADER_BYTES, SegmentId};
use super::{Result, StorageError};
use crate::encryption::AssociatedData;

pub(super) const MAGIC: &[u8; 4] = b"qrec";
pub(super) const PREFIX_BYTES: usize = 32;
pub(super) const CHECKSUM_BYTES: usize = 8;
const ALIGNMENT: usize = 8;
/// The place of the byte that says what the body is, and its values.
pub(super) const FORM: usize = 5;
pub(super) const CLEAR: u8 = 0;
pub(super) const SEALED: u8 = 1;
/// The number of the first segment of a log.
pub(super) const FIRST_SEGMENT: u64 = 1;

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
    pub(super) place: SegmentRange,
    log: u64,
    form: u8,
    body: &'a [u8],
}

impl LogRecord<'_> {
    /// Whether this record comes right after the record at `before`.
    pub(super) fn follows(&self, before: RecordPosition) -> bool {
        before.seq.checked_add(1) == Some(self.at.seq) && before.chain == self.previous
    }

    /// Decrypts the body, if it is encrypted, and decodes all of it.
    pub(super) fn decode<T: DeserializeOwned>(&self, sealing: &Sealing) -> Result<T> {
        let seq = self.at.seq;
        let is_sealed = match self.form {
            CLEAR => false,
            SEALED => true,
            other => {
                let what =
                    format!("log record {seq} of form {other}, which this version does not read");
                return Err(StorageError::Version { what });
            }
        };
        let SegmentRange { segment: number, offset, .. } = self.place;
        let segment = SegmentId { log: self.log, number };
        let context = context(segment, offset as usize, self.kind, self.at.seq, self.previous);
        let name = format_args!("log record {seq}");
        let body = sealing.opened(&context, is_sealed, self.body, name)?;
        match postcard::take_from_bytes(&body) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => corrupt(format!("log record {seq}: {} bytes too many", rest.len())),
            Err(error) => corrupt(format!("log record {seq}: {error}")),
        }
    }
}

/// Reads the records of one segment.
#[derive(Debug)]
pub(super) struct SegmentReader<'a> {
    segment: SegmentId,
    /// The place of the first byte in the segment.
    start: usize,
    bytes: &'a [u8],
    /// The place of the next record in `bytes`.
    pub(super) offset: usize,
}

impl<'a> SegmentReader<'a> {
    /// A reader of these bytes, which are a segment.
    pub(super) fn new(segment: SegmentId, bytes: &'a [u8]) -> SegmentReader<'a> {
        SegmentReader { segment, start: 0, bytes, offset: HEADER_BYTES }
    }

    /// A reader of these bytes, which begin at this place of a segment.
    pub(super) fn of_part(segment: SegmentId, start: usize, bytes: &'a [u8]) -> SegmentReader<'a> {
        SegmentReader { segment, start, bytes, offset: 0 }
    }

    /// The next record, if there is a sound one. `last` is the record before it; it is not known for the
    /// first one that is read.
    pub(super) fn next(
        &mut self,
        last: &mut Option<RecordPosition>,
    ) -> Result<Option<LogRecord<'a>>> {
        let Some(record) = self.at(self.offset) else { return Ok(None) };
        if let Some(before) = last.filter(|before| !record.follows(*before)) {
            let seq = record.at.seq;
            return corrupt(format!("log record {seq} does not follow record {}", before.seq));
        }
        *last = Some(record.at);
        self.offset += record.place.bytes as usize;
        Ok(Some(record))
    }

    /// The next sound record, past any damage.
    pub(super) fn next_sound(&mut self) -> Option<LogRecord<'a>> {
        while self.offset < self.bytes.len() {
            if let Some(record) = self.at(self.offset) {
                self.offset += record.place.bytes as usize;
                return Some(record);
            }
            self.offset += ALIGNMENT;
        }
        None
    }

    /// Whether there is a sound record anywhere after this place.
    pub(super) fn any_behind(&self) -> bool {
        let places = (self.offset..self.bytes.len()).step_by(ALIGNMENT);
        places.into_iter().any(|place| self.at(place).is_some())
    }

    /// The record at a place, if it is sound.
    pub(super) fn at(&self, offset: usize) -> Option<LogRecord<'a>> {
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
        let is_sound = checksum(self.segment, place, sealed) == chain
            || planted!(RotAccepted)
            || (self.start > 0 && planted!(ReadUnverified))
            || (chain == 0 && planted!(TornRecordAccepted));
        if !is_sound {
            return None;
        }
        let at = RecordPosition { seq: field(16)?, chain };
        let SegmentId { log, number: segment } = self.segment;
        let place =
            SegmentRange { segment, offset: place as u64, bytes: record_bytes(length) as u64 };
        let (form, body) = (prefix[FORM], &sealed[PREFIX_BYTES..]);
        Some(LogRecord { kind, previous: field(24)?, at, place, log, form, body })
    }
}

/// The bytes that a record takes, with a body of this length.
pub(super) fn record_bytes(length: usize) -> usize {
    (PREFIX_BYTES + length + CHECKSUM_BYTES).next_multiple_of(ALIGNMENT)
}

pub(super) fn checksum(segment: SegmentId, offset: usize, bytes: &[u8]) -> u64 {
    hash([segment.log, segment.number, offset as u64], bytes)
}

/// The place of an encrypted body: that of its record, which comes after this chain.
pub(super) fn context(
    segment: SegmentId,
    offset: usize,
    kind: RecordKind,
    seq: u64,
    previous: u64,
) -> AssociatedData {
    let SegmentId { log, number } = segment;
    AssociatedData::new(b'L', [log, number, offset as u64, kind as u64, seq, previous, 0])
}

/// Reads arbitrary bytes as records.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let segment = SegmentId { log: 1, number: FIRST_SEGMENT };
    let _ = check_header(bytes, segment);
    let mut reader = SegmentReader::of_part(segment, 0, bytes);
    let mut last = None;
    while let Ok(Some(_)) = reader.next(&mut last) {}
    let _ = reader.any_behind();
}
