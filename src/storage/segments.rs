//! The files of the log: created ahead, read, reused, and removed on another thread.
//!
//! A segment is a file of a fixed length that was filled once, so that an append to it changes no
//! metadata: it is one write and one wait for the device. Slow calls of the file system (creating,
//! renaming and removing files) run on a separate thread, [`Files`]. An append waits for it only if
//! segments fill faster than they can be created.
//!
//! Segments are numbered without gaps. A segment that is not needed any more is reused as the next
//! one: it is renamed, and gets a new header. Its old records cannot be mistaken for new ones,
//! since every checksum covers the segment's number.
//!
//! A segment begins with a header of [`HEADER_BYTES`], little endian; records follow, see
//! [`log_file`](super::log_file):
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
//! | 48     | 464   | zero                                      |

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};
use xxhash_rust::xxh3::xxh3_64;

use super::files::{create_file, entries, io_error, open_file, remove_all, sync_directory};
use super::generation::Generation;
use super::log_scan::{LogRead, read_entries, verify_segment};
use super::record::{check_format, corrupt, u64_at};
use super::{Result, StorageError};
use crate::node::stored::LogEntry;

const MAGIC: &[u8; 8] = b"qrlogseg";
pub(super) const FORMAT: u32 = 1;
/// A sector, so that no record shares one with the header.
pub(super) const HEADER_BYTES: usize = 512;
const SEALED_BYTES: usize = 40;
/// How many unused segments are kept for reuse, besides the one that is created ahead.
const SPARE_MAX: usize = 4;
/// By how much a large file is shortened in one step, before it is removed.
const SHRINK_BYTES: u64 = 4 << 20;
/// The block that a new segment is filled with.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The identity of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentId {
    pub(super) log: u64,
    pub(super) number: u64,
}

/// The path of a segment.
pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:012}"))
}

/// The numbers of the segments in a directory, in order.
pub(super) fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in entries(dir)? {
        let name = entry.file_name();
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

/// The header of a segment.
pub(super) fn header(id: SegmentId, length: u64) -> [u8; HEADER_BYTES] {
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
    let sealed = bytes.get(..SEALED_BYTES).filter(|sealed| sealed.starts_with(MAGIC));
    if sealed.map(xxh3_64) != field(SEALED_BYTES) || sealed.is_none() {
        return corrupt(format!("segment {number} of the log has a damaged header"));
    }
    check_format("a log", field(8).map_or(0, |field| field as u32), FORMAT)?;
    if field(16) != Some(id.log) || field(24) != Some(number) {
        return corrupt(format!("segment {number} of the log is another one"));
    }
    // The file may be longer: a crash between the steps of `lengthen`.
    if field(32).is_none_or(|length| length > bytes.len() as u64) {
        return corrupt(format!("segment {number} of the log is cut short"));
    }
    Ok(())
}

/// A segment to write to.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) file: File,
    pub(super) length: u64,
}

impl Segment {
    /// Opens a segment that was read before.
    pub(super) fn open(dir: &Path, number: u64, length: u64) -> Result<Segment> {
        let file = open_file(&path(dir, number));
        let file = file.map_err(io_error("opening a segment of the log"))?;
        Ok(Segment { number, file, length })
    }

    /// Creates a segment, durably.
    pub(super) fn create(dir: &Path, id: SegmentId, length: u64) -> Result<Segment> {
        let file = create_file(&path(dir, id.number))?;
        write_at(&file, &header(id, length), 0)
            .and_then(|()| fill(&file, HEADER_BYTES as u64, length))
            .and_then(|()| file.sync_all())
            .and_then(|()| sync_directory(dir))
            .map_err(io_error("making a segment of the log"))?;
        Ok(Segment { number: id.number, file, length })
    }

    /// Makes a segment longer, durably, and then writes the new length to its header.
    pub(super) fn lengthen(&mut self, id: SegmentId, length: u64) -> Result<()> {
        let io = io_error("lengthening a segment of the log");
        fill(&self.file, self.length, length).map_err(io)?;
        self.file.sync_all().map_err(io)?;
        // Durable with the next append.
        write_at(&self.file, &header(id, length), 0).map_err(io)?;
        self.length = length;
        Ok(())
    }

    /// Turns a segment that is not needed any more into a new one, durably.
    fn reuse(dir: &Path, old: u64, id: SegmentId, length: u64) -> Result<Segment> {
        let io = io_error("using a segment of the log again");
        let segment = Segment::open(dir, old, length)?;
        // The file is renamed first, durably: an old header under the new name means that the segment is
        // not used yet, but a new header under the old name would look like damage.
        fs::rename(path(dir, old), path(dir, id.number)).map_err(io)?;
        sync_directory(dir).map_err(io)?;
        write_at(&segment.file, &header(id, length), 0).map_err(io)?;
        segment.file.sync_data().map_err(io)?;
        Ok(Segment { number: id.number, ..segment })
    }
}

/// Writes zeros between two places of a file.
fn fill(file: &File, mut from: u64, to: u64) -> io::Result<()> {
    while from < to {
        let piece = (to - from).min(ZEROS.len() as u64);
        write_at(file, &ZEROS[..piece as usize], from)?;
        from += piece;
    }
    Ok(())
}

/// Writes at a place of a file.
#[cfg(unix)]
pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// Writes at a place of a file.
#[cfg(not(unix))]
pub(super) fn write_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

/// Reads from a place of a file.
#[cfg(unix)]
pub(super) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

/// Reads from a place of a file.
#[cfg(not(unix))]
pub(super) fn read_at(mut file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(bytes)
}

/// Asks the system to drop its cache of a file, so that the next read comes from the device. Some systems
/// have no such call.
pub(super) fn forget_cached(file: &File) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use rustix::fs::{Advice, fadvise};
        // Best effort: bytes from memory are verified like bytes from the device.
        let _ = fadvise(file, 0, None, Advice::DontNeed);
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = file;
}

/// Reads a file from the device if the system supports that, and not from the system's cache.
pub(super) fn read_stored(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    forget_cached(&file);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Receives whether a segment is sound.
pub(super) type VerifyDone = Box<dyn FnOnce(Result<()>) + Send>;

/// Receives the entries that were read.
pub(super) type EntriesDone = Box<dyn FnOnce(Result<Vec<LogEntry>>) + Send>;

/// A request to the thread of the files.
pub(super) enum Order {
    Make(SegmentId),
    /// Verify a segment that is not written to any more.
    Verify(SegmentId, VerifyDone),
    /// Read entries of this log.
    Read {
        log: u64,
        read: LogRead,
        done: EntriesDone,
    },
    /// Any other work with files, after all earlier orders. Segments that it needs may only be freed by
    /// a later order.
    Work(Box<dyn FnOnce() + Send>),
    /// Close and remove a generation that is not valid any more.
    Dispose(Generation),
    /// The oldest segment is not needed any more.
    Free {
        number: u64,
        length: u64,
    },
}

/// The thread that creates and removes files.
#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    length: u64,
    orders: Option<Sender<Order>>,
    made: Receiver<Result<Segment>>,
    /// Whether a segment was ordered and was not taken yet.
    ordered: bool,
    thread: Option<JoinHandle<()>>,
}

impl Files {
    /// Starts the thread, for segments of this length. The thread ends when [`Files`] is dropped.
    pub(super) fn start(dir: &Path, length: u64) -> Result<Files> {
        let (orders, queue) = unbounded();
        // One segment is created ahead.
        let (done, made) = bounded(1);
        let mut worker = Worker {
            dir: dir.to_owned(),
            length,
            spare: VecDeque::new(),
            damaged: Vec::new(),
            disposed: VecDeque::new(),
            queue,
            done,
        };
        let thread = std::thread::Builder::new()
            .name("quorate-files".to_owned())
            .spawn(move || worker.run())
            .map_err(io_error("starting the thread of the log's files"))?;
        let (dir, orders, thread) = (dir.to_owned(), Some(orders), Some(thread));
        Ok(Files { dir, length, orders, made, ordered: false, thread })
    }

    /// Orders the next segment, for [`Files::take`].
    pub(super) fn order(&mut self, id: SegmentId) {
        if !self.ordered {
            self.send(Order::Make(id));
            self.ordered = true;
        }
    }

    /// The next segment, of at least this length. Waits for it if it is not ready.
    pub(super) fn take(&mut self, id: SegmentId, length: u64) -> Result<Segment> {
        let ahead = if std::mem::take(&mut self.ordered) { self.made.recv().ok() } else { None };
        match ahead {
            Some(Ok(segment)) if segment.number == id.number && segment.length >= length => {
                Ok(segment)
            }
            // The thread could not create the segment; a second attempt may succeed.
            _ => Segment::create(&self.dir, id, length.max(self.length)),
        }
    }

    /// The usual length of a segment; a larger record gets a longer one.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn send(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // If the thread is gone, `take` creates the segments.
            let _ = orders.send(order);
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        drop(self.orders.take());
        // The thread may be waiting for its segment to be taken.
        while self.made.recv().is_ok() {}
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    dir: PathBuf,
    length: u64,
    /// Segments that are not needed any more, oldest first.
    spare: VecDeque<u64>,
    /// Segments that were found damaged, and are still part of the log.
    damaged: Vec<u64>,
    /// Directories of generations that are being removed.
    disposed: VecDeque<PathBuf>,
    queue: Receiver<Order>,
    done: Sender<Result<Segment>>,
}

impl Worker {
    fn run(&mut self) {
        loop {
            let order = if self.disposed.is_empty() {
                self.queue.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.queue.try_recv()
            };
            match order {
                Ok(order) => self.perform(order),
                Err(TryRecvError::Empty) => self.remove_some(),
                // The next start removes the rest.
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }

    fn perform(&mut self, order: Order) {
        match order {
            Order::Make(id) => {
                let made = match self.spare.pop_front() {
                    Some(old) => Segment::reuse(&self.dir, old, id, self.length),
                    None => Segment::create(&self.dir, id, self.length),
                };
                // If the log is being closed, the segment is not taken.
                let _ = self.done.send(made);
            }
            Order::Verify(segment, done) => {
                let verified = verify_segment(&self.dir, segment);
                if let Err(error) = &verified {
                    self.note_damage(segment.number, error);
                }
                done(verified);
            }
            Order::Read { log, read, done } => {
                done(read_entries(&self.dir, log, &read).map_err(|(number, error)| {
                    self.note_damage(number, &error);
                    error
                }));
            }
            Order::Work(work) => work(),
            Order::Free { number, length } => {
                let is_sound = !self.damaged.contains(&number);
                self.damaged.retain(|damaged| *damaged != number);
                // A damaged segment is not reused: its part of the disk may fail again.
                if length == self.length && is_sound {
                    self.spare.push_back(number);
                } else {
                    self.remove(number);
                }
                while self.spare.len() > SPARE_MAX
                    && let Some(oldest) = self.spare.pop_front()
                {
                    self.remove(oldest);
                }
            }
            Order::Dispose(generation) => self.disposed.push_back(generation.abandon()),
        }
    }

    fn note_damage(&mut self, number: u64, error: &StorageError) {
        // No more files can be opened for now, which shows no damage.
        if !matches!(error, StorageError::Again { .. }) && !self.damaged.contains(&number) {
            self.damaged.push(number);
        }
    }

    fn remove(&self, number: u64) {
        // A failure costs only space: the next start removes the file.
        let _ = fs::remove_file(path(&self.dir, number));
    }

    /// Removes a file, or shortens a large one by one step: some file systems block all other calls while
    /// they discard the blocks of a removed file.
    fn remove_some(&mut self) {
        let Some(directory) = self.disposed.front() else { return };
        let shrink = || -> io::Result<bool> {
            let file = File::options().write(true).open(Generation::database_in(directory))?;
            let length = file.metadata()?.len();
            file.set_len(length.saturating_sub(SHRINK_BYTES))?;
            file.sync_data()?;
            Ok(length <= SHRINK_BYTES)
        };
        // A file that cannot be shortened is removed at once. If that fails, the next start removes it.
        if shrink().unwrap_or(true) {
            let _ = remove_all(directory);
            self.disposed.pop_front();
        }
    }
}
