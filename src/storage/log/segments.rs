//! The files of the log: their format, and how they are created and reused.
//!
//! A segment is a file of a fixed length that was filled once, so that an append to it changes no
//! metadata: it is one write and one wait for the device. Slow calls of the file system (creating,
//! renaming and removing files) run on a separate thread, [`FileThread`](super::file_thread::FileThread).
//! An append waits for it only if segments fill faster than they can be created.
//!
//! Segments are numbered without gaps. A segment that is not needed any more is reused as the next
//! one: it is renamed, and gets a new header. Its old records cannot be mistaken for new ones,
//! since every checksum covers the segment's number.
//!
//! A segment begins with a header of [`HEADER_BYTES`], little endian; records follow, see
//! [`record`](super::record):
//!
//! | offset | bytes | meaning                                   |
//! |--------|-------|-------------------------------------------|
//! | 0      | 8     | `qrlogseg`                                |
//! | 8      | 4     | format, [`FORMAT`]                        |
//! | 12     | 4     | zero                                      |
//! | 16     | 8     | the log's id                              |
//! | 24     | 8     | the segment's number                      |
//! | 32     | 8     | the length of the file, at least          |
//! | 40     | 8     | XXH3 of everything before                 |
//! | 48     | 8     | the length once it was made longer        |
//! | 56     | 8     | XXH3 of the first 40 bytes with it        |
//! | 64     | 448   | zero                                      |

use std::io;
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::storage::bytes::u64_at;
use crate::storage::error::Result;
use crate::storage::error::{check_format, corrupt, io_error};
use crate::storage::file_system::{Access, File, FsPath};

const MAGIC: &[u8; 8] = b"qrlogseg";
pub(super) const FORMAT: u32 = 1;
/// A sector, so that no record shares one with the header.
pub(in crate::storage) const HEADER_BYTES: usize = 512;
const SEALED_BYTES: usize = 40;
/// The length, and the checksum of all up to it.
const LENGTH: Range<usize> = 32..SEALED_BYTES + 8;
/// Where these are for the length that the segment was given later. The first ones stay as they are: a crash while they
/// are written must not damage the header of a segment that is in use.
const LONGER: usize = 48;
/// The block that a new segment is filled with.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The identity of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) struct SegmentId {
    pub(in crate::storage) log: u64,
    pub(in crate::storage) number: u64,
}

/// The path of a segment.
pub(in crate::storage) fn path(dir: &FsPath, number: u64) -> FsPath {
    dir.join(format!("{number:012}"))
}

/// The numbers of the segments in a directory, in order.
pub(in crate::storage) fn numbers(dir: &FsPath) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for name in dir.list()? {
        let name = name.to_str().unwrap_or_default();
        if name.len() >= 12
            && name.bytes().all(|byte| byte.is_ascii_digit())
            && let Ok(number) = name.parse()
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The length of all segments in a directory; those whose length is not known do not count.
pub(in crate::storage) fn bytes_in(dir: &FsPath) -> u64 {
    let length = |number| path(dir, number).open(Access::Read)?.length();
    numbers(dir).unwrap_or_default().into_iter().filter_map(|number| length(number).ok()).sum()
}

/// The header of a segment.
pub(in crate::storage) fn header(id: SegmentId, length: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    for (place, field) in [id.log, id.number, length].into_iter().enumerate() {
        let start = 16 + 8 * place;
        header[start..start + 8].copy_from_slice(&field.to_le_bytes());
    }
    let checksum = xxh3_64(&header[..SEALED_BYTES]);
    header[SEALED_BYTES..SEALED_BYTES + 8].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Checks that these bytes are a complete segment with this identity.
pub(super) fn check_header(bytes: &[u8], id: SegmentId) -> Result<()> {
    let number = id.number;
    let field = |start| u64_at(bytes, start);
    if !is_sealed(bytes) {
        return corrupt(format!("segment {number} of the log has a damaged header"));
    }
    check_format("a log", field(8).map_or(0, |field| field as u32), FORMAT)?;
    if field(16) != Some(id.log) || field(24) != Some(number) {
        return corrupt(format!("segment {number} of the log is another one"));
    }
    // The file may be longer: a crash between the steps of `lengthen`.
    let length = longer(bytes, id).or(field(LENGTH.start));
    if length.is_none_or(|length| length > bytes.len() as u64) {
        return corrupt(format!("segment {number} of the log is cut short"));
    }
    Ok(())
}

/// The length that this segment was given after it was made, if that was written as a whole.
fn longer(bytes: &[u8], id: SegmentId) -> Option<u64> {
    let length = u64_at(bytes, LONGER)?;
    let expected = &header(id, length)[LENGTH];
    (bytes.get(LONGER..LONGER + LENGTH.len()) == Some(expected)).then_some(length)
}

/// Whether these bytes begin with the sound header of any segment.
fn is_sealed(bytes: &[u8]) -> bool {
    let sealed = bytes.get(..SEALED_BYTES).filter(|sealed| sealed.starts_with(MAGIC));
    sealed.is_some_and(|sealed| Some(xxh3_64(sealed)) == u64_at(bytes, SEALED_BYTES))
}

/// A segment to write to.
#[derive(Debug)]
pub(in crate::storage) struct Segment {
    pub(in crate::storage) number: u64,
    pub(in crate::storage) file: Box<dyn File>,
    pub(in crate::storage) length: u64,
}

impl Segment {
    /// Opens a segment that was read before.
    pub(in crate::storage) fn open(dir: &FsPath, number: u64, length: u64) -> Result<Segment> {
        let file = path(dir, number).open(Access::Write);
        let file = file.map_err(io_error("opening a segment of the log"))?;
        Ok(Segment { number, file, length })
    }

    /// Creates a segment, durably.
    pub(in crate::storage) fn create(dir: &FsPath, id: SegmentId, length: u64) -> Result<Segment> {
        let file = path(dir, id.number).create_file()?;
        file.write_at(&header(id, length), 0)
            .and_then(|()| fill(&*file, HEADER_BYTES as u64, length))
            .and_then(|()| file.sync_all())
            .and_then(|()| dir.sync_names())
            .map_err(io_error("making a segment of the log"))?;
        Ok(Segment { number: id.number, file, length })
    }

    /// Makes a segment longer, durably, and then writes the new length to its header.
    pub(super) fn lengthen(&mut self, id: SegmentId, length: u64) -> Result<()> {
        let io = io_error("lengthening a segment of the log");
        fill(&*self.file, self.length, length).map_err(io)?;
        self.file.sync_all().map_err(io)?;
        // Durable with the next append.
        self.file.write_at(&header(id, length)[LENGTH], LONGER as u64).map_err(io)?;
        self.length = length;
        Ok(())
    }

    /// Turns a segment that is not needed any more into a new one, durably.
    pub(super) fn reuse(dir: &FsPath, old: u64, id: SegmentId, length: u64) -> Result<Segment> {
        let io = io_error("using a segment of the log again");
        let segment = Segment::open(dir, old, length)?;
        // What is on the device counts: a start reads that. The rest stays in memory: an append would wait for the page
        // that it begins in, and for the one that it ends in.
        segment.file.forget_cached(HEADER_BYTES as u64);
        if !segment.file.content(HEADER_BYTES as u64).is_ok_and(|header| is_sealed(&header)) {
            // It is not needed, so its damage is none. Under the new name, a crash would make it one.
            path(dir, old).remove_file().map_err(io)?;
            return Segment::create(dir, id, length);
        }
        // The file is renamed first, durably: an old header under the new name means that the segment is
        // not used yet, but a new header under the old name would look like damage.
        path(dir, old).rename(&path(dir, id.number)).map_err(io)?;
        dir.sync_names().map_err(io)?;
        segment.file.write_at(&header(id, length), 0).map_err(io)?;
        segment.file.sync_data().map_err(io)?;
        Ok(Segment { number: id.number, ..segment })
    }
}

/// Writes zeros between two places of a file.
fn fill(file: &dyn File, mut from: u64, to: u64) -> io::Result<()> {
    while from < to {
        let piece = (to - from).min(ZEROS.len() as u64);
        file.write_at(&ZEROS[..piece as usize], from)?;
        from += piece;
    }
    Ok(())
}

/// Reads a file from the device if the system supports that, and not from the system's cache.
pub(super) fn read_stored(path: &FsPath) -> io::Result<Vec<u8>> {
    let file = path.open(Access::Read)?;
    file.forget_cached(u64::MAX);
    file.content(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::storage::file_system::simulated::{Device, FaultKind};

    /// A crash right after the rename left the damaged header of a segment that nothing needed under the name
    /// of the next one, and the start refused the directory.
    #[test]
    fn a_damaged_segment_is_not_used_again() {
        let work = tempfile::tempdir().unwrap();
        let dir = FsPath::system(work.path());
        let id = |number| SegmentId { log: 7, number };
        Segment::create(&dir, id(1), 4096).unwrap();
        std::fs::write(path(&dir, 1).path(), vec![1; 4096]).unwrap();
        assert_eq!(Segment::reuse(&dir, 1, id(5), 4096).unwrap().number, 5);
        assert!(!path(&dir, 1).exists());
        let made = path(&dir, 5).read().unwrap();
        check_header(&made, id(5)).unwrap();
        // Nothing of the damaged one is in it.
        assert!(made[HEADER_BYTES..].iter().all(|byte| *byte == 0));
        std::fs::write(path(&dir, 5).path(), [&made[..600], &[1; 3496]].concat()).unwrap();
        Segment::reuse(&dir, 5, id(6), 4096).unwrap();
        let used_again = path(&dir, 6).read().unwrap();
        check_header(&used_again, id(6)).unwrap();
        assert_eq!(used_again[700], 1);
    }

    /// Each append had to read the page that it began in from the device, and the one that it ended in.
    #[test]
    fn appends_to_a_segment_that_is_used_again_read_nothing() {
        let device = Device::new(1);
        let dir = FsPath::new(Arc::new(device.process()), Path::new("/"));
        let id = |number| SegmentId { log: 7, number };
        let length = 8 * 4096;
        let file = Segment::create(&dir, id(1), length).unwrap().file;
        file.write_at(&vec![1; length as usize - HEADER_BYTES], HEADER_BYTES as u64).unwrap();
        file.sync_data().unwrap();
        for page in 1..8 {
            device.damage(FaultKind::BadSector, path(&dir, 1).path(), page).unwrap();
        }
        let segment = Segment::reuse(&dir, 1, id(5), length).unwrap();
        let record = [7; 1000];
        for at in (HEADER_BYTES..length as usize - record.len()).step_by(record.len()) {
            segment.file.write_at(&record, at as u64).unwrap();
            segment.file.sync_data().unwrap();
        }
    }
}
