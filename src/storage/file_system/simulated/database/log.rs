//! The file of a simulated database: segments of records.
//!
//! Records have log sequence numbers, which grow. A segment holds those of one range, and begins with a header:
//! `simsegmt`, the number of its first byte, XXH3 of both. A record, little endian:
//!
//! | offset | bytes | meaning                                              |
//! |--------|-------|------------------------------------------------------|
//! | 0      | 8     | XXH3 of everything behind                            |
//! | 8      | 8     | its log sequence number                              |
//! | 16     | 4     | the number of the flush that wrote it                |
//! | 20     | 1     | [`Kind`]                                             |
//! | 21     | 4     | the length of the key                                |
//! | 25     | 4     | the length of the value                              |
//! | 29     |       | key, value                                           |

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use sled::IVec;
use xxhash_rust::xxh3::xxh3_64;

use crate::storage::file_system::File;
use crate::storage::file_system::simulated::random::mix;

const MAGIC: &[u8; 8] = b"simsegmt";
pub(super) const SEGMENT_HEADER_BYTES: u64 = 24;
pub(super) const RECORD_HEADER_BYTES: usize = 29;

/// What a record says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put = 1,
    Remove = 2,
    /// The value is in a file of its own, whose name is the value of the record.
    Blob = 3,
}

#[derive(Clone, Debug)]
pub(super) struct DatabaseRecord {
    pub(super) lsn: u64,
    pub(super) flush: u32,
    pub(super) kind: Kind,
    pub(super) key: IVec,
    pub(super) value: IVec,
}

/// Where a record is in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordLocation {
    pub(super) lsn: u64,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl DatabaseRecord {
    pub(super) fn bytes(&self) -> u64 {
        (RECORD_HEADER_BYTES + self.key.len() + self.value.len()) as u64
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend_from_slice(&[0; 8]);
        to.extend_from_slice(&self.lsn.to_le_bytes());
        to.extend_from_slice(&self.flush.to_le_bytes());
        to.push(self.kind as u8);
        to.extend_from_slice(&(self.key.len() as u32).to_le_bytes());
        to.extend_from_slice(&(self.value.len() as u32).to_le_bytes());
        to.extend_from_slice(&self.key);
        to.extend_from_slice(&self.value);
        let checksum = xxh3_64(&to[start + 8..]);
        to[start..start + 8].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// What is at a place of a segment.
#[derive(Debug)]
pub(super) enum FoundRecord {
    Record(DatabaseRecord),
    /// A damaged record of so many bytes, if its header is right.
    Damaged(u64),
    /// No record, or one of an earlier use of the segment.
    End,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes[at..at + 4].try_into();
    u32::from_le_bytes(field.unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes[at..at + 8].try_into();
    u64::from_le_bytes(field.unwrap_or_default())
}

/// The record with this number, if the bytes begin with it.
pub(super) fn decode(bytes: &[u8], lsn: u64) -> FoundRecord {
    if bytes.len() < RECORD_HEADER_BYTES || u64_at(bytes, 8) != lsn {
        return FoundRecord::End;
    }
    let (key, value) = (u32_at(bytes, 21) as usize, u32_at(bytes, 25) as usize);
    let end = RECORD_HEADER_BYTES.saturating_add(key).saturating_add(value);
    let damaged = FoundRecord::Damaged(end as u64);
    let Some(sealed) = bytes.get(8..end) else { return damaged };
    let kind = match bytes[20] {
        1 => Kind::Put,
        2 => Kind::Remove,
        3 => Kind::Blob,
        _ => return damaged,
    };
    if xxh3_64(sealed) != u64_at(bytes, 0) {
        return damaged;
    }
    let key_end = RECORD_HEADER_BYTES + key;
    FoundRecord::Record(DatabaseRecord {
        lsn,
        flush: u32_at(bytes, 16),
        kind,
        key: IVec::from(&bytes[RECORD_HEADER_BYTES..key_end]),
        value: IVec::from(&bytes[key_end..end]),
    })
}

pub(super) fn segment_header(base: u64) -> [u8; SEGMENT_HEADER_BYTES as usize] {
    let mut header = [0; SEGMENT_HEADER_BYTES as usize];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&base.to_le_bytes());
    let checksum = xxh3_64(&header[..16]);
    header[16..].copy_from_slice(&checksum.to_le_bytes());
    header
}

fn base_in(header: &[u8]) -> Option<u64> {
    let base = u64_at(header, 8);
    (header[..] == segment_header(base)).then_some(base)
}

/// What the replay of a file has found.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// The records and their places, in order.
    pub(super) records: Vec<(DatabaseRecord, RecordLocation)>,
    /// The first bytes of the segments, by their places.
    pub(super) segments: BTreeMap<u64, u64>,
    /// Where the next record goes: the place of its segment, and how much of that is used.
    pub(super) tail: Option<(u64, u64)>,
    /// Places of the file that hold something behind the end of the log.
    pub(super) leftovers: Vec<Range<u64>>,
    /// What is behind the end of the log in its last segment.
    behind_tail: Range<u64>,
    /// The number of the last flush.
    pub(super) flush: u32,
    /// Whether damage was found and taken for the end of a segment.
    has_skipped: bool,
    /// Why the database cannot be opened.
    pub(super) refused: Option<String>,
}

/// What sled makes of damage in the middle of its log.
enum DamageResponse {
    /// It takes the rest of the segment for unused.
    SkipSegment,
    /// The log ends here.
    End,
    /// It does not open the database.
    Refuse,
}

/// By the figures of RELIABILITY in tests with flipped bits: nearly half of the files cannot be opened, and the
/// others lose records.
fn outcome(seed: u64, lsn: u64) -> DamageResponse {
    match mix(seed ^ mix(lsn)) % 100 {
        0..45 => DamageResponse::Refuse,
        45..70 => DamageResponse::End,
        _ => DamageResponse::SkipSegment,
    }
}

/// How many flushes later a record must be for damage to be more than the torn end of the log: a store syncs after
/// each flush.
const FLUSHES_APART: u32 = 3;

/// The first damaged record.
#[derive(Clone, Copy, Debug)]
struct Damage {
    lsn: u64,
    /// The place of its segment, and its place in that.
    segment: u64,
    at: u64,
    /// The flush before it.
    flush: u32,
}

/// Reads the records of a file from a log sequence number on.
pub(super) fn replay(
    file: &dyn File,
    segment_bytes: u64,
    from: u64,
    seed: u64,
) -> io::Result<Replay> {
    let mut replay = Replay { segments: segments(file, segment_bytes)?, ..Replay::default() };
    let mut in_order: Vec<(u64, u64)> =
        replay.segments.iter().map(|(offset, base)| (*base, *offset)).collect();
    in_order.sort_unstable();
    in_order.retain(|(base, _)| base + segment_bytes > from);
    let mut bytes = vec![0; segment_bytes as usize];
    let mut damage = None;
    let mut last = None;
    let mut is_over = false;
    for (base, offset) in in_order {
        // A segment of the log is missing.
        is_over |= last.is_some_and(|last| base != last + segment_bytes);
        if is_over {
            replay.forget_segment(offset);
            continue;
        }
        last = Some(base);
        let read = file.read_at(&mut bytes, offset)?;
        let start = SEGMENT_HEADER_BYTES.max(from.saturating_sub(base));
        let end = replay.scan(&bytes[..read], base, offset, start, &mut damage);
        replay.tail = Some((offset, end));
        if bytes[..read].get(end as usize..).is_some_and(|rest| rest.iter().any(|byte| *byte > 0)) {
            replay.behind_tail = offset + end..offset + read as u64;
        }
        let Some(found) = damage else { continue };
        let is_old = replay.flush >= found.flush + FLUSHES_APART;
        if is_old && !replay.has_skipped {
            match outcome(seed, found.lsn) {
                DamageResponse::Refuse => {
                    replay.refused = Some(format!("the record at {} is damaged", found.lsn));
                    return Ok(replay);
                }
                DamageResponse::SkipSegment => replay.has_skipped = true,
                DamageResponse::End => {
                    replay.end_at(found, segment_bytes);
                    is_over = true;
                }
            }
        }
    }
    replay.leftovers.extend((!replay.behind_tail.is_empty()).then(|| replay.behind_tail.clone()));
    Ok(replay)
}

fn segments(file: &dyn File, segment_bytes: u64) -> io::Result<BTreeMap<u64, u64>> {
    let mut segments = BTreeMap::new();
    for offset in (0..file.length()?).step_by(segment_bytes as usize) {
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        if file.read_at(&mut header, offset)? == header.len()
            && let Some(base) = base_in(&header)
        {
            segments.insert(offset, base);
        }
    }
    Ok(segments)
}

impl Replay {
    /// Takes the records of a segment up to the first damaged one, and looks at those behind it. Returns where
    /// the former end.
    fn scan(
        &mut self,
        bytes: &[u8],
        base: u64,
        segment: u64,
        start: u64,
        damage: &mut Option<Damage>,
    ) -> u64 {
        let mut end = start;
        let mut at = start;
        let mut is_sound = true;
        while let Some(rest) = bytes.get(at as usize..) {
            match decode(rest, base + at) {
                FoundRecord::End => break,
                FoundRecord::Damaged(size) => {
                    let lsn = base + at;
                    damage.get_or_insert(Damage { lsn, segment, at, flush: self.flush });
                    is_sound = false;
                    at = at.saturating_add(size);
                }
                FoundRecord::Record(record) => {
                    self.flush = record.flush;
                    let size = record.bytes();
                    let place =
                        RecordLocation { lsn: base + at, offset: segment + at, bytes: size };
                    at += size;
                    if is_sound {
                        self.records.push((record, place));
                        end = at;
                    }
                }
            }
        }
        end
    }

    /// The log ends at a damaged record.
    fn end_at(&mut self, damage: Damage, segment_bytes: u64) {
        self.records.retain(|(record, _)| record.lsn < damage.lsn);
        let last = self.segments.get(&damage.segment).copied().unwrap_or_default();
        let later: Vec<u64> = self
            .segments
            .iter()
            .filter(|(_, base)| **base > last)
            .map(|(offset, _)| *offset)
            .collect();
        for offset in later {
            self.forget_segment(offset);
        }
        self.tail = Some((damage.segment, damage.at));
        self.behind_tail = damage.segment + damage.at..damage.segment + segment_bytes;
    }

    fn forget_segment(&mut self, offset: u64) {
        if self.segments.remove(&offset).is_some() {
            self.leftovers.push(offset..offset + SEGMENT_HEADER_BYTES);
        }
    }
}
