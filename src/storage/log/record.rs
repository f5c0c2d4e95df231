//! The records of the log's segments.
//!
//! A record begins at a multiple of eight bytes. Little endian:
//!
//! | offset | bytes | meaning                                                             |
//! |--------|-------|---------------------------------------------------------------------|
//! | 0      | 4     | `qrec`                                                              |
//! | 4      | 1     | kind: `W` log write, `C` checkpoint, `E` the segment ends here      |
//! | 5      | 1     | 1 if the body is encrypted, otherwise 0                             |
//! | 6      | 2     | zero                                                                |
//! | 8      | 8     | length of the body                                                  |
//! | 16     | 8     | sequence number: the one before plus one                            |
//! | 24     | 8     | the chain before this record                                        |
//! | 32     | n     | the body: postcard, perhaps encrypted (see `sealing`)               |
//! | 32 + n | 8     | XXH3 of the log's id, the segment's number, the place in the segment, |
//! |        |       | and everything before: the chain after this record                  |
//!
//! Each record holds the chain before it, and so depends on all earlier records: one that was lost,
//! duplicated, moved or restored from an old copy is detected. The first chain is the log's id.

use serde::de::DeserializeOwned;

use super::index::SegmentRange;
#[cfg(any(test, fuzzing))]
use super::segments::check_header;
use super::segments::{HEADER_BYTES, SegmentId};
use crate::encryption::AssociatedData;
use crate::storage::bytes::{hash, u64_at};
use crate::storage::error::corrupt;
use crate::storage::error::{Result, StorageError};
use crate::storage::sealing::Sealing;

pub(in crate::storage) const MAGIC: &[u8; 4] = b"qrec";
pub(super) const PREFIX_BYTES: usize = 32;
pub(in crate::storage) const CHECKSUM_BYTES: usize = 8;
const ALIGNMENT: usize = 8;
/// The place of the byte that says what the body is, and its values.
pub(super) const FORM: usize = 5;
pub(super) const CLEAR: u8 = 0;
pub(in crate::storage) const SEALED: u8 = 1;
/// The number of the first segment of a log.
pub(super) const FIRST_SEGMENT: u64 = 1;

/// The kind of a record, by its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::storage) enum RecordKind {
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
pub(in crate::storage) struct RecordPosition {
    pub(in crate::storage) seq: u64,
    pub(in crate::storage) chain: u64,
}

/// A record that was read, with its checksum and its place in the chain verified.
#[derive(Clone, Copy, Debug)]
pub(in crate::storage) struct LogRecord<'a> {
    pub(in crate::storage) kind: RecordKind,
    /// The chain before it.
    previous: u64,
    pub(in crate::storage) at: RecordPosition,
    pub(in crate::storage) place: SegmentRange,
    log: u64,
    form: u8,
    body: &'a [u8],
}

impl LogRecord<'_> {
    /// Whether this record comes right after the record at `before`.
    pub(in crate::storage) fn follows(&self, before: RecordPosition) -> bool {
        before.seq.checked_add(1) == Some(self.at.seq) && before.chain == self.previous
    }

    /// Decrypts the body, if it is encrypted, and decodes all of it.
    pub(in crate::storage) fn decode<T: DeserializeOwned>(&self, sealing: &Sealing) -> Result<T> {
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
pub(in crate::storage) struct SegmentReader<'a> {
    segment: SegmentId,
    /// The place of the first byte in the segment.
    start: usize,
    bytes: &'a [u8],
    /// The place of the next record in `bytes`.
    pub(in crate::storage) offset: usize,
}

impl<'a> SegmentReader<'a> {
    /// A reader of these bytes, which are a segment.
    pub(in crate::storage) fn new(segment: SegmentId, bytes: &'a [u8]) -> SegmentReader<'a> {
        SegmentReader { segment, start: 0, bytes, offset: HEADER_BYTES }
    }

    /// A reader of these bytes, which begin at this place of a segment.
    pub(super) fn of_part(segment: SegmentId, start: usize, bytes: &'a [u8]) -> SegmentReader<'a> {
        SegmentReader { segment, start, bytes, offset: 0 }
    }

    /// The next record, if there is a sound one. `last` is the record before it; it is not known for the
    /// first one that is read.
    pub(in crate::storage) fn next(
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
    pub(in crate::storage) fn at(&self, offset: usize) -> Option<LogRecord<'a>> {
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
            || (self.start > 0 && planted!(ReadUnverified));
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

pub(in crate::storage) fn checksum(segment: SegmentId, offset: usize, bytes: &[u8]) -> u64 {
    hash([segment.log, segment.number, offset as u64], bytes)
}

/// The place of an encrypted body: that of its record, which comes after this chain.
pub(in crate::storage) fn context(
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
pub(in crate::storage) fn fuzz(bytes: &[u8]) {
    let segment = SegmentId { log: 1, number: FIRST_SEGMENT };
    let _ = check_header(bytes, segment);
    let mut reader = SegmentReader::of_part(segment, 0, bytes);
    let mut last = None;
    while let Ok(Some(_)) = reader.next(&mut last) {}
    let _ = reader.any_behind();
}
