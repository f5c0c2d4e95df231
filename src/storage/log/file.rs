//! An open log, which is written to.
//!
//! An append is one write into a file that has its full length already, and one wait for the device.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use serde::Serialize;

use super::file_thread::{EntriesDone, FileThread, Order, VerifyDone};
use super::index::SegmentRange;
use super::record::{
    CHECKSUM_BYTES, FIRST_SEGMENT, FORM, MAGIC, PREFIX_BYTES, RecordKind, RecordPosition, SEALED,
    checksum, context, record_bytes,
};
use super::scan::{LogRead, LogSegment, Scan};
use super::segments::{HEADER_BYTES, Segment, SegmentId};
use super::witness::WitnessRecord;
use crate::node::stored::HardState;
use crate::storage::checkpoint::SharedCheckpoints;
use crate::storage::checkpoint::generation::Generation;
use crate::storage::error::corrupt;
use crate::storage::error::io_error;
use crate::storage::error::{Result, StorageError};
use crate::storage::file_system::FsPath;
use crate::storage::sealing::Sealing;
use crate::types::encoding;

/// Space left in each segment for the record that ends it.
const END_BYTES: usize = PREFIX_BYTES + CHECKSUM_BYTES;
/// The buffer for records is shrunk to this size after a larger record.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// An open log.
#[derive(Debug)]
pub(in crate::storage) struct LogFile {
    dir: FsPath,
    id: u64,
    segments: VecDeque<LogSegment>,
    /// The last one, which is written to.
    segment: Segment,
    offset: usize,
    last: RecordPosition,
    files: FileThread,
    /// The record that is written, so that no append allocates.
    buffer: Vec<u8>,
    sealing: Sealing,
}

impl LogFile {
    /// Creates an empty log in a directory without one.
    pub(in crate::storage) fn create(
        dir: &FsPath,
        id: u64,
        segment_bytes: u64,
        sealing: Sealing,
    ) -> Result<LogFile> {
        dir.create_directory().map_err(io_error("making the log's directory"))?;
        let first = SegmentId { log: id, number: FIRST_SEGMENT };
        let segment = Segment::create(dir, first, segment_bytes)?;
        let scan = Scan::empty(id, &segment);
        LogFile::of(dir, id, segment_bytes, segment, scan, sealing)
    }

    /// Opens a log that was read, to continue it.
    pub(in crate::storage) fn resume(
        dir: &FsPath,
        id: u64,
        segment_bytes: u64,
        scan: Scan,
        sealing: Sealing,
    ) -> Result<LogFile> {
        let Some(last) = scan.segments.back() else {
            return corrupt("the log has no segment".to_owned());
        };
        scan.remove_others(dir)?;
        let segment = Segment::open(dir, last.number, last.length)?;
        LogFile::of(dir, id, segment_bytes, segment, scan, sealing)
    }

    fn of(
        dir: &FsPath,
        id: u64,
        segment_bytes: u64,
        segment: Segment,
        scan: Scan,
        sealing: Sealing,
    ) -> Result<LogFile> {
        let mut files = FileThread::start(dir, segment_bytes)?;
        files.order(SegmentId { log: id, number: segment.number + 1 });
        let Scan { segments, offset, last, .. } = scan;
        let (dir, buffer) = (dir.clone(), Vec::new());
        Ok(LogFile { dir, id, segments, segment, offset, last, files, buffer, sealing })
    }

    pub(in crate::storage) fn id(&self) -> u64 {
        self.id
    }

    pub(in crate::storage) fn last(&self) -> RecordPosition {
        self.last
    }

    /// The witness's record of this end of the log.
    pub(in crate::storage) fn witness_record(
        &self,
        last_index: u64,
        hard_state: HardState,
    ) -> WitnessRecord {
        let RecordPosition { seq, chain } = self.last;
        WitnessRecord { first_chain: self.id, seq, chain, last_index, hard_state }
    }

    pub(in crate::storage) fn dir(&self) -> &FsPath {
        &self.dir
    }

    /// Makes sure that this segment has room for a record with this body, which waits for the thread of the files if it
    /// has not. Returns the body, ready to be sealed.
    fn with_room(&mut self, body: &impl Serialize) -> Result<Vec<u8>> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let (head, tail) = self.sealing.around();
        buffer.resize(PREFIX_BYTES + head, 0);
        encoding::append_to(&mut buffer, body);
        let bytes = record_bytes(buffer.len() - PREFIX_BYTES + tail);
        if self.offset + bytes + END_BYTES > self.segment.length as usize {
            self.next_segment(bytes)?;
        }
        Ok(buffer)
    }

    /// Makes sure that the next [`LogFile::append`], of this body, does not wait for the thread of the files.
    pub(in crate::storage) fn make_room(&mut self, body: &impl Serialize) -> Result<()> {
        self.buffer = self.with_room(body)?;
        Ok(())
    }

    /// Appends a record, durably. Returns where it is.
    pub(in crate::storage) fn append(
        &mut self,
        kind: RecordKind,
        body: &impl Serialize,
    ) -> Result<SegmentRange> {
        let mut buffer = self.with_room(body)?;
        let at = self.seal(kind, &mut buffer);
        let (segment, offset) = (self.segment.number, self.offset as u64);
        let place = SegmentRange { segment, offset, bytes: buffer.len() as u64 };
        let written = self.write(&buffer, at);
        // A very large record must not hold its memory forever.
        buffer.shrink_to(BUFFER_BYTES_MAX);
        self.buffer = buffer;
        written.map(|()| place)
    }

    /// Completes a record: its prefix, its body if that is encrypted, its checksum, and zeros up to the next place for
    /// one.
    fn seal(&self, kind: RecordKind, buffer: &mut Vec<u8>) -> RecordPosition {
        let seq = self.last.seq + 1;
        let segment = SegmentId { log: self.id, number: self.segment.number };
        buffer[..4].copy_from_slice(MAGIC);
        buffer[4..8].copy_from_slice(&[kind as u8, 0, 0, 0]);
        // The record that ends a segment has no body.
        if kind != RecordKind::End {
            let context = context(segment, self.offset, kind, seq, self.last.chain);
            if self.sealing.seal(&context, buffer, PREFIX_BYTES) {
                buffer[FORM] = SEALED;
            }
        }
        let length = buffer.len() - PREFIX_BYTES;
        buffer[8..16].copy_from_slice(&(length as u64).to_le_bytes());
        buffer[16..24].copy_from_slice(&seq.to_le_bytes());
        buffer[24..32].copy_from_slice(&self.last.chain.to_le_bytes());
        let chain = checksum(segment, self.offset, buffer);
        buffer.extend_from_slice(&chain.to_le_bytes());
        buffer.resize(record_bytes(length), 0);
        RecordPosition { seq, chain }
    }

    /// Writes a sealed record and waits for the device.
    fn write(&mut self, record: &[u8], at: RecordPosition) -> Result<()> {
        let io = io_error("appending to the log");
        self.segment.file.write_at(record, self.offset as u64).map_err(io)?;
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

    /// Removes spare segments if the disk has little room.
    pub(in crate::storage) fn give_back_spare(&self, free: u64) {
        self.files.give_back(free);
    }

    /// Removes the spare file of chunks beside the generations if the disk has little room.
    pub(in crate::storage) fn give_back_chunks(&self, generations: &FsPath, free: u64) {
        self.files.give_back_chunks(generations, free);
    }

    /// Shortens the current file of chunks to so many bytes, or to its content, on the thread of the files.
    pub(in crate::storage) fn shorten(&self, checkpoints: SharedCheckpoints, length: u64) {
        self.files.send(Order::Shorten { checkpoints, length });
    }

    /// Closes a generation that is not valid any more, and removes it, on the thread of the files. So many bytes of its
    /// file of chunks are kept for the next one.
    pub(in crate::storage) fn dispose(&self, generation: Generation, spare: u64) {
        self.files.send(Order::Dispose { generation, spare });
    }

    /// Reads entries on the thread of the files, where no append waits for it.
    pub(in crate::storage) fn read(&self, read: LogRead, done: EntriesDone) {
        let sealing = self.sealing.clone();
        self.files.send(Order::Read { log: self.id, sealing, read, done });
    }

    /// The next segment after this one, or else the first, among those that are not written to any more.
    /// Also returns how many those are.
    pub(in crate::storage) fn next_cold(&self, after: u64) -> Option<(u64, u64)> {
        let cold = || self.segments.iter().rev().skip(1).rev();
        let next = cold().find(|segment| segment.number > after).or_else(|| cold().next())?;
        Some((next.number, cold().count() as u64))
    }

    /// Verifies a segment on the thread of the files.
    pub(in crate::storage) fn verify(&self, number: u64, done: VerifyDone) {
        self.files.send(Order::Verify(SegmentId { log: self.id, number }, done));
    }

    /// See [`FileThread::work_beside`].
    #[cfg_attr(
        not(any(test, feature = "simulator")),
        allow(dead_code, reason = "the simulator needs it")
    )]
    pub(in crate::storage) fn work_beside(&self) -> bool {
        self.files.work_beside()
    }

    /// Does something on the thread of the files.
    pub(in crate::storage) fn work(&self, work: Box<dyn FnOnce() + Send>) {
        self.files.send(Order::Work(work));
    }

    /// Frees the segments with only records before this one.
    pub(in crate::storage) fn drop_before(&mut self, seq: u64) {
        while let (Some(first), Some(second)) = (self.segments.front(), self.segments.get(1))
            && second.first_seq <= seq
        {
            let LogSegment { number, length, .. } = *first;
            self.files.send(Order::Free { number, length });
            self.segments.pop_front();
        }
    }
}
