//! Work with files that no append waits for: creating segments ahead, reading, verifying and removing.
//!
//! [`FileWork`] does it, one order after the other. In production the thread `quorate-files` drives it. On a
//! file system with one thread, its owner does the work piece by piece, at times of its own choice.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};

use super::scan::{LogRead, read_entries, verify_segment};
use super::segments::{Segment, SegmentId, path};
use crate::node::stored::LogEntry;
use crate::storage::checkpoint::SharedCheckpoints;
use crate::storage::checkpoint::generation::Generation;
use crate::storage::error::io_error;
use crate::storage::error::{Result, StorageError};
use crate::storage::file_system::{Access, FsPath, Space};
use crate::storage::frame::TMP;
use crate::storage::sealing::Sealing;

/// How many unused segments are kept for reuse, besides the one that is created ahead: all that a checkpoint frees
/// at once, since the log needs as many until the next one. A new one is written twice, at first with zeros.
const SPARE_MAX: usize = 64;
/// The same where the file system does not have this many times as much room as the most take.
const SPARE_FEW: usize = 4;
const ROOM_FOR_SPARE: u64 = 8;
/// Whether so many bytes of chunks may be kept that nothing needs.
pub(in crate::storage) fn has_room_for_chunks(free: u64, bytes: u64) -> bool {
    free >= ROOM_FOR_SPARE.saturating_mul(bytes)
}

/// By how much a large file is shortened in one step, before it is removed.
const SHRINK_BYTES: u64 = 4 << 20;

/// Receives whether a segment is sound.
pub(in crate::storage) type VerifyDone = Box<dyn FnOnce(Result<()>) + Send>;

/// Receives the entries that were read.
pub(in crate::storage) type EntriesDone = Box<dyn FnOnce(Result<Vec<LogEntry>>) + Send>;

/// A piece of work.
pub(in crate::storage) enum Order {
    Make(SegmentId),
    /// Verify a segment that is not written to any more.
    Verify(SegmentId, VerifyDone),
    /// Read entries of this log.
    Read {
        log: u64,
        sealing: Sealing,
        read: LogRead,
        done: EntriesDone,
    },
    /// Any other work with files, after all earlier orders. Segments that it needs may only be freed by
    /// a later order.
    Work(Box<dyn FnOnce() + Send>),
    /// Close and remove a generation that is not valid any more, but keep so many bytes of its file of chunks.
    Dispose {
        generation: Generation,
        spare: u64,
    },
    /// Shorten the current file of chunks to so many bytes, or to its content.
    Shorten {
        checkpoints: SharedCheckpoints,
        length: u64,
    },
    /// Remove the spare file of chunks.
    RemoveChunks(FsPath),
    /// The oldest segment is not needed any more.
    Free {
        number: u64,
        length: u64,
    },
    /// Remove spare segments if the disk has little room.
    GiveBack,
}

/// The owner's end. Dropping it ends the thread, when all orders but removals are done.
#[derive(Debug)]
pub(in crate::storage) struct FileThread {
    dir: FsPath,
    length: u64,
    /// Whether a segment was ordered and was not taken yet.
    ordered: bool,
    /// Whether a segment was freed since spare ones were last asked back.
    freed: Cell<bool>,
    driver: Driver,
}

/// Who does the work.
#[derive(Debug)]
enum Driver {
    Thread {
        orders: Option<Sender<Order>>,
        made: Receiver<Made>,
        thread: Option<JoinHandle<()>>,
    },
    /// The owner, when it says so.
    Owner(RefCell<Owned>),
}

/// The work of an owner without a thread.
struct Owned {
    work: FileWork,
    orders: VecDeque<Order>,
    made: Option<Made>,
}

/// The room on the disk that the most spare segments need.
fn room_for_spare(length: u64) -> u64 {
    ROOM_FOR_SPARE.saturating_mul(SPARE_MAX as u64).saturating_mul(length)
}

/// A segment that was created ahead.
type Made = Result<Segment>;

impl FileThread {
    /// Starts the thread, for segments of this length.
    pub(in crate::storage) fn start(dir: &FsPath, length: u64) -> Result<FileThread> {
        let mut work = FileWork::new(dir, length);
        let driver = if dir.has_one_thread() {
            let owned = Owned { work, orders: VecDeque::new(), made: None };
            Driver::Owner(RefCell::new(owned))
        } else {
            let (orders, queue) = unbounded();
            // One segment is created ahead.
            let (done, made) = bounded(1);
            let thread = std::thread::Builder::new()
                .name("quorate-files".to_owned())
                .spawn(move || work.run(&queue, &done))
                .map_err(io_error("starting the thread of the log's files"))?;
            Driver::Thread { orders: Some(orders), made, thread: Some(thread) }
        };
        let dir = dir.clone();
        Ok(FileThread { dir, length, ordered: false, freed: Cell::new(false), driver })
    }

    /// Orders the next segment, for [`FileThread::take`].
    pub(in crate::storage) fn order(&mut self, id: SegmentId) {
        if !self.ordered {
            self.send(Order::Make(id));
            self.ordered = true;
        }
    }

    /// The next segment, of at least this length. Waits for it if it is not ready.
    pub(in crate::storage) fn take(&mut self, id: SegmentId, length: u64) -> Result<Segment> {
        let ahead = if std::mem::take(&mut self.ordered) { self.await_made() } else { None };
        match ahead {
            Some(Ok(segment)) if segment.number == id.number && segment.length >= length => {
                Ok(segment)
            }
            // The thread could not create the segment; a second attempt may succeed.
            _ => Segment::create(&self.dir, id, length.max(self.length)),
        }
    }

    /// Removes spare segments if this is all the room that the disk has. A member whose writes are refused for want
    /// of room makes and frees no segments, so nothing else would.
    pub(super) fn give_back(&self, free: u64) {
        if free < room_for_spare(self.length) && self.freed.take() {
            self.send(Order::GiveBack);
        }
    }

    /// The same for the spare file of chunks beside the generations.
    pub(in crate::storage) fn give_back_chunks(&self, generations: &FsPath, free: u64) {
        if let Some((spare, bytes)) = Generation::spare_in(generations)
            && !has_room_for_chunks(free, bytes)
        {
            self.send(Order::RemoveChunks(spare));
        }
    }

    /// The usual length of a segment; a larger record gets a longer one.
    pub(in crate::storage) fn length(&self) -> u64 {
        self.length
    }

    pub(in crate::storage) fn send(&self, order: Order) {
        if let Order::Free { .. } = order {
            self.freed.set(true);
        }
        match &self.driver {
            // If the thread is gone, `take` creates the segments.
            Driver::Thread { orders: Some(orders), .. } => drop(orders.send(order)),
            Driver::Thread { orders: None, .. } => {}
            Driver::Owner(owned) => owned.borrow_mut().orders.push_back(order),
        }
    }

    /// Does a piece of the work, if the owner is to do it and there is any. Returns whether there was.
    #[cfg_attr(
        not(any(test, feature = "simulator")),
        allow(dead_code, reason = "the simulator needs it")
    )]
    pub(in crate::storage) fn work_beside(&self) -> bool {
        match &self.driver {
            Driver::Thread { .. } => false,
            Driver::Owner(owned) => owned.borrow_mut().work(),
        }
    }

    fn await_made(&self) -> Option<Made> {
        match &self.driver {
            Driver::Thread { made, .. } => made.recv().ok(),
            Driver::Owner(owned) => {
                let mut owned = owned.borrow_mut();
                while owned.made.is_none() && owned.work() {}
                owned.made.take()
            }
        }
    }
}

impl Drop for FileThread {
    fn drop(&mut self) {
        let Driver::Thread { orders, made, thread } = &mut self.driver else { return };
        drop(orders.take());
        // The thread may be waiting for its segment to be taken.
        while made.recv().is_ok() {}
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owned").field("work", &self.work).finish_non_exhaustive()
    }
}

impl Owned {
    /// Does a piece of work. Returns whether there was any.
    fn work(&mut self) -> bool {
        match self.orders.pop_front() {
            Some(order) => {
                if let Some(made) = self.work.perform(order) {
                    self.made = Some(made);
                }
                true
            }
            None => self.work.remove_some(),
        }
    }
}

/// Creates and removes files.
#[derive(Debug)]
struct FileWork {
    dir: FsPath,
    length: u64,
    /// Segments that are not needed any more, oldest first.
    spare: VecDeque<u64>,
    /// Segments that were found damaged, and are still part of the log.
    damaged: Vec<u64>,
    /// What is being removed.
    disposed: VecDeque<Disposal>,
}

/// What is removed step by step, while there are no orders.
#[derive(Debug)]
enum Disposal {
    /// The end of the current file of chunks, behind so many bytes.
    Unused {
        checkpoints: SharedCheckpoints,
        length: u64,
    },
    Large(LargeFile),
}

/// A large file that is not needed any more.
#[derive(Debug)]
struct LargeFile {
    file: FsPath,
    /// The directory that is removed with it.
    directory: Option<FsPath>,
    /// So many bytes of it are kept, under another name.
    spare: Option<(u64, FsPath)>,
}

impl LargeFile {
    /// Removes the file, or shortens it by one step: some file systems block all other calls while they discard the
    /// blocks of a removed file. Returns whether it is done.
    fn remove_some(&self) -> bool {
        let kept = self.spare.as_ref().map_or(0, |(bytes, _)| *bytes);
        let shrink = || -> io::Result<bool> {
            let open = self.file.open(Access::Write)?;
            let length = open.length()?;
            if length > kept {
                open.set_length(length.saturating_sub(SHRINK_BYTES).max(kept))?;
                open.sync_data()?;
            }
            Ok(length <= kept.saturating_add(SHRINK_BYTES))
        };
        // A file that cannot be shortened is removed at once. If that fails, the next start removes it.
        let is_done = shrink().unwrap_or(true);
        if is_done {
            let _ = match &self.spare {
                Some((_, name)) => self.file.rename(name),
                None => self.file.remove_file(),
            };
            if let Some(directory) = &self.directory {
                let _ = directory.remove_all();
            }
        }
        is_done
    }
}

impl FileWork {
    fn new(dir: &FsPath, length: u64) -> FileWork {
        let (spare, damaged, disposed) = Default::default();
        FileWork { dir: dir.clone(), length, spare, damaged, disposed }
    }

    /// Works for as long as orders can come.
    fn run(&mut self, queue: &Receiver<Order>, done: &Sender<Made>) {
        loop {
            let order = if self.disposed.is_empty() {
                queue.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                queue.try_recv()
            };
            match order {
                Ok(order) => {
                    if let Some(made) = self.perform(order) {
                        // If the log is being closed, the segment is not taken.
                        let _ = done.send(made);
                    }
                }
                Err(TryRecvError::Empty) => {
                    self.remove_some();
                }
                // The next start removes the rest.
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }

    /// Follows an order. Returns the segment if it is to make one.
    fn perform(&mut self, order: Order) -> Option<Made> {
        match order {
            Order::Make(id) => {
                // Other data may have filled the disk.
                self.remove_spare();
                return Some(match self.spare.pop_front() {
                    Some(old) => Segment::reuse(&self.dir, old, id, self.length),
                    None => Segment::create(&self.dir, id, self.length),
                });
            }
            Order::Verify(segment, done) => {
                let verified = verify_segment(&self.dir, segment);
                if let Err(error) = &verified {
                    self.note_damage(segment.number, error);
                }
                done(verified);
            }
            Order::Read { log, sealing, read, done } => {
                done(read_entries(&self.dir, log, &sealing, &read).map_err(|(number, error)| {
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
                self.remove_spare();
            }
            Order::GiveBack => self.remove_spare(),
            Order::Dispose { generation, spare } => {
                let directory = generation.abandon();
                let (file, kept) = Generation::chunks_in(&directory);
                let has_room = |space: Space| has_room_for_chunks(space.free, spare);
                let is_kept = spare > 0 && directory.space().is_some_and(has_room);
                let spare = is_kept.then_some((spare, kept));
                let file = LargeFile { file, directory: Some(directory), spare };
                self.disposed.push_back(Disposal::Large(file));
            }
            Order::Shorten { checkpoints, length } => {
                self.disposed.push_back(Disposal::Unused { checkpoints, length });
            }
            Order::RemoveChunks(spare) => {
                // Under its own name, a new generation might write to it meanwhile.
                let file = spare.at(spare.path().with_extension(TMP));
                if spare.rename(&file).is_ok() {
                    let file = LargeFile { file, directory: None, spare: None };
                    self.disposed.push_back(Disposal::Large(file));
                }
            }
        }
        None
    }

    fn remove_spare(&mut self) {
        while self.spare.len() > self.spare_max()
            && let Some(oldest) = self.spare.pop_front()
        {
            self.remove(oldest);
        }
    }

    fn spare_max(&self) -> usize {
        if self.spare.len() <= SPARE_FEW {
            return SPARE_FEW;
        }
        let needed = room_for_spare(self.length);
        let has_room = self.dir.space().is_some_and(|space| space.free >= needed);
        if has_room { SPARE_MAX } else { SPARE_FEW }
    }

    fn note_damage(&mut self, number: u64, error: &StorageError) {
        // No more files can be opened for now, or a key is wrong, which shows no damage.
        if !matches!(error, StorageError::Again { .. } | StorageError::Key { .. })
            && !self.damaged.contains(&number)
        {
            self.damaged.push(number);
        }
    }

    fn remove(&self, number: u64) {
        // A failure costs only space: the next start removes the file.
        let _ = path(&self.dir, number).remove_file();
    }

    /// Does a step of what is to be removed. Returns whether there was anything.
    fn remove_some(&mut self) -> bool {
        let is_done = match self.disposed.front() {
            Some(Disposal::Large(file)) => file.remove_some(),
            Some(Disposal::Unused { checkpoints, length }) => {
                !checkpoints.shorten(*length, SHRINK_BYTES)
            }
            None => return false,
        };
        if is_done {
            self.disposed.pop_front();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::storage::simulated::Device;

    #[test]
    fn spare_segments_are_given_back_to_a_disk_that_gets_full() {
        let device = Device::new(1);
        let files = device.process();
        let dir = FsPath::new(Arc::new(files), Path::new("/log"));
        dir.create_directory().unwrap();
        device.set_capacity(Some(1 << 40));
        let length = 4096;
        let mut work = FileWork::new(&dir, length);
        for number in 1..=80 {
            Segment::create(&dir, SegmentId { log: 7, number }, length).unwrap();
        }
        for number in 1..=64 {
            work.perform(Order::Free { number, length });
        }
        assert_eq!(work.spare.len(), 64);
        device.show_free(Some(0));
        work.perform(Order::Make(SegmentId { log: 7, number: 81 }));
        work.perform(Order::Make(SegmentId { log: 7, number: 82 }));
        assert!(work.spare.len() <= SPARE_FEW);
    }

    /// A member whose writes are refused makes and frees no segments.
    #[test]
    fn spare_segments_of_a_quiet_member_are_given_back_too() {
        let device = Device::new(1);
        let dir = FsPath::new(Arc::new(device.process()), Path::new("/log"));
        dir.create_directory().unwrap();
        device.set_capacity(Some(1 << 40));
        let length = 4096;
        let files = FileThread::start(&dir, length).unwrap();
        for number in 1..=64 {
            Segment::create(&dir, SegmentId { log: 7, number }, length).unwrap();
            files.send(Order::Free { number, length });
        }
        let spares = || {
            while files.work_beside() {}
            (1..=64).filter(|number| path(&dir, *number).open(Access::Read).is_ok()).count()
        };
        files.give_back(1 << 40);
        assert_eq!(spares(), 64);
        device.show_free(Some(0));
        files.give_back(0);
        assert_eq!(spares(), SPARE_FEW);
        // Nothing more is asked of the thread until there may be more of them.
        files.give_back(0);
        assert!(!files.work_beside());
    }
}
