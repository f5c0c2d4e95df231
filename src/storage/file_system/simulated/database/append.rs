//! How a simulated database appends to its file, and uses segments again.

use std::path::PathBuf;

use sled::IVec;
use xxhash_rust::xxh3::xxh3_64;

use super::log::{DatabaseRecord, Kind, RecordLocation, SEGMENT_HEADER_BYTES, segment_header};
use super::{DatabaseSegment, OpenDatabase};
use crate::storage::error::Result;
use crate::storage::error::{corrupt, io_error};
use crate::storage::file_system::Access;
use crate::storage::file_system::simulated::random::mix;

/// Bytes to append at a place of the file.
#[derive(Debug, Default)]
struct AppendBatch {
    offset: u64,
    bytes: Vec<u8>,
}

impl OpenDatabase {
    pub(super) fn append_unflushed(&mut self) -> Result<()> {
        if self.unflushed.is_empty() {
            return Ok(());
        }
        self.flush += 1;
        self.unflushed_bytes = 0;
        let mut batch = AppendBatch::default();
        for (key, value) in std::mem::take(&mut self.unflushed) {
            self.append(&mut batch, key, value)?;
        }
        self.write(&mut batch)
    }

    fn append(&mut self, batch: &mut AppendBatch, key: IVec, value: Option<IVec>) -> Result<()> {
        let (kind, value) = match value {
            None => (Kind::Remove, IVec::default()),
            Some(value) if value.len() > self.options.value_bytes_max => {
                (Kind::Blob, self.write_blob(&value)?)
            }
            Some(value) => (Kind::Put, value),
        };
        let mut record = DatabaseRecord { lsn: 0, flush: self.flush, kind, key, value };
        if self.segments.is_empty() || self.used + record.bytes() > self.options.segment_bytes {
            self.write(batch)?;
            self.next_segment(batch)?;
            // Records of the oldest segment went before this one.
            if self.used + record.bytes() > self.options.segment_bytes {
                self.write(batch)?;
                self.start_segment(batch);
            }
        }
        record.lsn = self.tip();
        let place = RecordLocation {
            lsn: record.lsn,
            offset: self.current + self.used,
            bytes: record.bytes(),
        };
        if batch.bytes.is_empty() {
            batch.offset = place.offset;
        }
        record.encode(&mut batch.bytes);
        self.used += place.bytes;
        let is_current = match kind {
            Kind::Remove => match self.removed.get_mut(&record.key) {
                Some(removed) => {
                    *removed = Some(place);
                    true
                }
                None => false,
            },
            Kind::Put | Kind::Blob => match self.index.get_mut(&record.key) {
                Some(stored) => {
                    stored.place = Some(place);
                    true
                }
                None => false,
            },
        };
        if is_current && let Some(segment) = self.segment_of(place) {
            segment.live += place.bytes;
        }
        Ok(())
    }

    /// Writes what is to be appended to the file.
    fn write(&mut self, batch: &mut AppendBatch) -> Result<()> {
        if !batch.bytes.is_empty() {
            let bytes = std::mem::take(&mut batch.bytes);
            let written = self.file.write_at(&bytes, batch.offset);
            written.map_err(io_error("flushing the database"))?;
        }
        Ok(())
    }

    /// Goes on in the next segment, and moves records out of the oldest one.
    fn next_segment(&mut self, batch: &mut AppendBatch) -> Result<()> {
        self.start_segment(batch);
        let oldest = self.segments.iter().min_by_key(|(_, segment)| segment.base);
        let Some((&oldest, &DatabaseSegment { base, live, .. })) = oldest else { return Ok(()) };
        let sparse = live < self.options.segment_bytes / 4 * 3;
        // Some pages are written again although most of their segment is needed.
        let is_moved = sparse || mix(self.seed ^ base).is_multiple_of(4);
        if oldest == self.current || !is_moved || live == 0 {
            return Ok(());
        }
        let range = base..base + self.options.segment_bytes;
        let keys = self
            .index
            .iter()
            .filter(|(_, stored)| stored.place.is_some_and(|place| range.contains(&place.lsn)));
        let keys: Vec<IVec> = keys.map(|(key, _)| key.clone()).collect();
        let removed = self
            .removed
            .iter()
            .filter(|(_, place)| place.is_some_and(|place| range.contains(&place.lsn)));
        let removed: Vec<IVec> = removed.map(|(key, _)| key.clone()).collect();
        for key in keys {
            let value = self.value(&key)?;
            if let Some(place) = self.index.get(&key).and_then(|stored| stored.place) {
                self.release(place);
            }
            self.append(batch, key, value)?;
        }
        for key in removed {
            if let Some(Some(place)) = self.removed.get(&key).copied() {
                self.release(place);
            }
            self.append(batch, key, None)?;
        }
        Ok(())
    }

    /// Begins a segment: one that is free for long enough, or a new one.
    fn start_segment(&mut self, batch: &mut AppendBatch) {
        let size = self.options.segment_bytes;
        let tip = self.tip();
        let base = self.segments.get_mut(&self.current).map_or(0, |left| {
            if left.live == 0 {
                left.free_since = Some(tip);
            }
            left.base + size
        });
        // The log must have no gap, so segments are used again in order.
        let oldest = self.segments.iter().min_by_key(|(_, segment)| segment.base);
        let free = oldest
            .filter(|(_, segment)| segment.free_since.is_some_and(|since| since + size <= tip));
        let offset = match free {
            Some((offset, _)) => *offset,
            None => self.segments.last_key_value().map_or(0, |(offset, _)| offset + size),
        };
        self.segments.insert(offset, DatabaseSegment { base, live: 0, free_since: None });
        (self.current, self.used) = (offset, SEGMENT_HEADER_BYTES);
        batch.offset = offset;
        batch.bytes.extend_from_slice(&segment_header(base));
    }

    /// Writes a large value to a file of its own, which nobody syncs. Returns what the record holds.
    fn write_blob(&mut self, value: &[u8]) -> Result<IVec> {
        let io = io_error("flushing the database");
        let name = self.tip().to_be_bytes();
        let file = self.files.open(&self.blob(&name), Access::Create).map_err(io)?;
        let checksum = xxh3_64(value).to_le_bytes();
        file.write_at(&[&checksum[..], value].concat(), 0).map_err(io)?;
        Ok(IVec::from(&name))
    }

    fn blob(&self, name: &[u8]) -> PathBuf {
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        self.path.join("blobs").join(name)
    }

    pub(super) fn read_blob(&self, name: &[u8]) -> Result<IVec> {
        let io = io_error("reading the database");
        let file = self.files.open(&self.blob(name), Access::Read).map_err(io)?;
        let mut bytes = vec![0; file.length().map_err(io)? as usize];
        file.read_at(&mut bytes, 0).map_err(io)?;
        match bytes.split_at_checked(8) {
            Some((checksum, value)) if checksum == xxh3_64(value).to_le_bytes() => {
                Ok(IVec::from(value))
            }
            _ => corrupt("the database: a blob is damaged".to_owned()),
        }
    }
}
