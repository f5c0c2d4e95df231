//! What a store does with damage of its own files, and when it writes its witness.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use super::live::UNWITNESSED_MAX;
use super::*;
use crate::node::stored::LogEntry;
use crate::storage::contract::{CheckpointKind, Rot};
use crate::storage::crash_tests::copy_directory;
use crate::storage::directory::current_incarnation;
use crate::storage::log::index::SegmentRange;
use crate::storage::log::segments;
use crate::storage::model::{Model, Op, apply, entry, found, meta};
use crate::storage::simulated::{Device, PowerCut, ProcessFiles};

/// Short segments, so that a log has several.
fn open(dir: &Path) -> Result<DiskStore> {
    DiskStore::open(
        &FsPath::system(dir),
        StoreOptions { segment_bytes: 2 << 10, ..StoreOptions::default() },
    )
}

fn perform(store: &mut DiskStore, model: &mut Model, op: &Op) {
    let kind = apply(store, op).unwrap();
    model.apply(op, kind);
}

fn append(store: &mut DiskStore, model: &mut Model) {
    let index = model.last() + 1;
    let entries = vec![entry(index, 1, b"some data of an entry")];
    perform(store, model, &Op::Append(LogWrite { hard_state: None, entries }));
}

/// A checkpoint that keeps the log from this index on.
fn checkpoint(store: &mut DiskStore, model: &mut Model, from: u64) {
    let (meta, log) = (meta(model.last()), LogAfter::From(from));
    let (chunks, between) = (vec![b"delta".to_vec()], None);
    perform(store, model, &Op::Checkpoint { full: false, chunks, between, meta, log });
}

/// A store with a log of several segments.
fn written() -> (TempDir, DiskStore, Model) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path()).unwrap();
    let mut model = found(&mut store).unwrap();
    (0..100).for_each(|_| append(&mut store, &mut model));
    (dir, store, model)
}

fn segment_paths(dir: &Path) -> Vec<PathBuf> {
    let log = current_incarnation(dir).join("log");
    let numbers = segments::numbers(&FsPath::system(&log)).unwrap();
    numbers
        .into_iter()
        .map(|number| segments::path(&FsPath::system(&log), number))
        .map(|path| path.path().to_owned())
        .collect()
}

fn flip(path: &Path, place: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[place] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn read(store: &mut DiskStore, from: u64) -> Result<Vec<LogEntry>, Rot> {
    let (done, entries) = crossbeam_channel::bounded(1);
    store.read(from, 1 << 20, Box::new(move |read| done.send(read).unwrap())).unwrap();
    entries.recv().unwrap()
}

/// A large log on a slow disk had a minute, however long it was, and did not open.
#[test]
fn a_longer_log_has_more_time_to_be_read() {
    let (dir, store, _) = written();
    drop(store);
    let log: u64 =
        segment_paths(dir.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let size = AtomicU64::new(0);
    let directory = Directory::open(&FsPath::system(dir.path()), None).unwrap();
    let store = DiskStore::open_directory(directory, StoreOptions::default(), &size).unwrap();
    assert!(size.into_inner() > 2 * log, "it is read twice, and then the checkpoint");
    drop(store);
}

/// Segments that are kept to be used again have numbers right before the log's. A start read them as part
/// of it, and one flipped bit there made it refuse the directory.
#[test]
fn damage_before_what_the_checkpoint_keeps_is_no_damage() {
    let (dir, mut store, mut model) = written();
    let from = model.last() + 1;
    checkpoint(&mut store, &mut model, from);
    append(&mut store, &mut model);
    drop(store);
    let all = segment_paths(dir.path());
    let kept = fs::read(all.last().unwrap()).unwrap();
    // All of the segments before the last ones, and the beginning of the open one.
    for (number, path) in all.iter().enumerate() {
        for place in [10, 700, 1500] {
            let copy = tempfile::tempdir().unwrap();
            copy_directory(dir.path(), copy.path());
            flip(
                &current_incarnation(copy.path()).join("log").join(path.file_name().unwrap()),
                place,
            );
            match open(copy.path()).and_then(|mut store| Model::of(&mut store)) {
                Ok(found) => assert_eq!(found, model, "segment {number}, byte {place}"),
                Err(error) => {
                    assert!(number + 2 >= all.len(), "segment {number}, byte {place}: {error}");
                }
            }
        }
    }
    assert_eq!(fs::read(all.last().unwrap()).unwrap(), kept);
}

/// A read for a peer that lags used to stop the node, and the next start refused the directory.
#[test]
fn rot_that_a_read_finds_is_dropped_by_the_next_checkpoint() {
    for in_open_segment in [false, true] {
        let (dir, mut store, mut model) = written();
        let index = &store.live().unwrap().index;
        let spans: Vec<SegmentRange> = index.spans().map(|span| span.place).collect();
        let place = spans[if in_open_segment { spans.len() - 1 } else { 1 }];
        let segment = segments::path(
            &FsPath::system(&current_incarnation(dir.path())).join("log"),
            place.segment,
        )
        .path()
        .to_owned();
        flip(&segment, place.offset as usize + 40);
        let rot = (1..=model.last()).find_map(|from| read(&mut store, from).err()).unwrap();
        assert!(rot.below > 1 && rot.what.contains("sound before"), "{rot:?}");
        // The store goes on, and entries in other places can be read.
        append(&mut store, &mut model);
        assert!(in_open_segment || !read(&mut store, model.last()).unwrap().is_empty());
        checkpoint(&mut store, &mut model, rot.below);
        append(&mut store, &mut model);
        drop(store);
        let mut store = open(dir.path()).unwrap();
        assert_eq!(Model::of(&mut store).unwrap(), model, "in the open segment: {in_open_segment}");
    }
}

/// Nothing noticed when the witness was only written by a start: damage to the end of the log was then
/// taken for a crash.
#[test]
fn the_witness_follows_the_log() {
    let witnessed = |dir: &Path| {
        let log = FsPath::system(&current_incarnation(dir)).join("log");
        Witness::open(&log.join(Witness::FILE)).unwrap().1.seq
    };
    let last = |store: &mut DiskStore| store.live().unwrap().log.last().seq;
    let (dir, mut store, mut model) = written();
    assert!(witnessed(dir.path()) < last(&mut store));
    // After a pause.
    store.idle().unwrap();
    assert_eq!(witnessed(dir.path()), last(&mut store));
    // When it is closed.
    append(&mut store, &mut model);
    let end = last(&mut store);
    drop(store);
    assert_eq!(witnessed(dir.path()), end);
    // By a start, for what a crash has left.
    let before = tempfile::tempdir().unwrap();
    let mut store = open(dir.path()).unwrap();
    assert_eq!(Model::of(&mut store).unwrap(), model);
    append(&mut store, &mut model);
    copy_directory(dir.path(), before.path());
    assert!(witnessed(before.path()) < last(&mut store));
    let mut copy = open(before.path()).unwrap();
    assert_eq!(Model::of(&mut copy).unwrap(), model);
    assert_eq!(witnessed(before.path()), last(&mut store));
    drop(store);
    // After many records without a pause.
    let mut store = DiskStore::open(&FsPath::system(dir.path()), StoreOptions::default()).unwrap();
    Model::of(&mut store).unwrap();
    let begun = last(&mut store);
    (0..UNWITNESSED_MAX).for_each(|_| append(&mut store, &mut model));
    assert!(witnessed(dir.path()) > begun);
}

/// The name of the directory itself was not made durable by a start that found it there: a process that had
/// made it may have ended before it could.
#[test]
fn a_directory_that_a_start_has_found_survives_a_power_cut() {
    for calls in 0..60 {
        let device = Device::new(calls);
        let path =
            |files: &ProcessFiles| FsPath::new(Arc::new(files.clone()), Path::new("/a/data"));
        let cut = device.process();
        cut.stop_after(calls);
        if let Ok(mut store) = DiskStore::open(&path(&cut), StoreOptions::default()) {
            let _ = found(&mut store);
        }
        cut.end_process();
        let files = device.process();
        let mut store = DiskStore::open(&path(&files), StoreOptions::default()).unwrap();
        let mut model = match store.identity() {
            None => found(&mut store).unwrap(),
            Some(_) => Model::of(&mut store).unwrap(),
        };
        append(&mut store, &mut model);
        device.cut_power_with(PowerCut::HARD);
        drop(store);
        let files = device.process();
        let mut store = DiskStore::open(&path(&files), StoreOptions::default()).unwrap();
        assert_eq!(Model::of(&mut store).unwrap(), model, "after {calls} calls");
    }
}

/// The place is that of another chunk with the same id, as of a checkpoint that was given up.
#[test]
fn scrubbing_finds_a_chunk_that_does_not_follow_the_one_before() {
    use crate::storage::checkpoint::chunk::{ChunkId, Form, encode};
    let (dir, mut store, mut model) = written();
    let from = model.last() + 1;
    checkpoint(&mut store, &mut model, from);
    append(&mut store, &mut model);
    {
        let live = store.live().unwrap();
        let mut checkpoints = live.checkpoints.lock();
        let generation = checkpoints.generation();
        generation.begin_part();
        let id = ChunkId { group: 2, number: 0 };
        generation.write(encode(id, 12345, Form::Clear, b"other")).unwrap();
        generation.sync().unwrap();
    }
    let checkpoints = store.live().unwrap().checkpoints.clone();
    let scrubbed = checkpoints.verify(4 << 20);
    drop((checkpoints, store));
    let opened = open(dir.path()).and_then(|mut store| Model::of(&mut store));
    assert!(opened.is_err() && scrubbed.is_err(), "{scrubbed:?}");
}

/// Otherwise a delta would continue the damaged one after a full image was given up.
#[test]
fn a_damaged_checkpoint_is_known_until_another_one_replaces_it() {
    let (dir, mut store, mut model) = written();
    flip(&current_incarnation(dir.path()).join("gen-000001/chunks"), 1_000);
    let checkpoints = store.live().unwrap().checkpoints.clone();
    assert!(matches!(checkpoints.verify(4 << 20), Err(StorageError::Corrupt { .. })));
    let mut writer = store.checkpointer().unwrap();
    // The second one gives up the first.
    for _ in 0..2 {
        assert_eq!(writer.begin(false, 0).unwrap(), CheckpointKind::Full);
    }
    let from = model.last() + 1;
    checkpoint(&mut store, &mut model, from);
    drop((checkpoints, writer, store));
    assert_eq!(Model::of(&mut open(dir.path()).unwrap()).unwrap(), model);
}

/// Another thread removes freed segments, or uses them again, while the checkpoint is being appended to the log.
#[test]
fn a_checkpoint_that_the_log_does_not_name_frees_no_segment() {
    use crate::storage::simulated::{Fault, FaultKind};
    let device = Device::new(7);
    let path = |files: ProcessFiles| FsPath::new(Arc::new(files), Path::new("/a/data"));
    let options = StoreOptions { segment_bytes: 2 << 10, ..StoreOptions::default() };
    let files = device.process();
    let mut store = DiskStore::open(&path(files.clone()), options.clone()).unwrap();
    let mut model = found(&mut store).unwrap();
    (0..300).for_each(|_| append(&mut store, &mut model));
    let mut writer = store.checkpointer().unwrap();
    writer.begin(false, 0).unwrap();
    writer.finish().unwrap();
    let last = model.last();
    device.inject(Fault::next(FaultKind::FailedWrite));
    store.commit_checkpoint(&meta(last), LogAfter::From(last + 1)).unwrap_err();
    while store.work_beside() {}
    files.end_process();
    drop((writer, store));
    let mut store = DiskStore::open(&path(device.process()), options).unwrap();
    assert_eq!(Model::of(&mut store).unwrap(), model);
}

/// The disk is full as scrubbing opens the database again, and has room again for the next checkpoint, which
/// failed for good.
#[test]
fn a_full_disk_at_a_scrub_leaves_no_damage() {
    use crate::storage::simulated::{Fault, FaultKind};
    let mut bad = Vec::new();
    for kind in [FaultKind::NoSpace, FaultKind::NoDescriptor, FaultKind::FailedWrite] {
        for after in 0..10 {
            let device = Device::new(5);
            let files = device.process();
            let path = FsPath::new(Arc::new(files.clone()), Path::new("/a/data"));
            let mut store = DiskStore::open(&path, StoreOptions::default()).unwrap();
            let mut model = found(&mut store).unwrap();
            for _ in 0..3 {
                append(&mut store, &mut model);
                let from = model.last() + 1;
                checkpoint(&mut store, &mut model, from);
            }
            let checkpoints = store.live().unwrap().checkpoints.clone();
            device.inject(Fault { kind, after });
            let scrubbed = checkpoints.verify(4 << 20);
            device.disarm();
            let mut writer = store.checkpointer().unwrap();
            let begun = writer.begin(false, 0);
            if begun.is_err() {
                bad.push(format!("{kind:?} {after}: scrub {scrubbed:?}, then {begun:?}"));
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// A new file made the disk find other blocks, which halved the writes of large values.
#[test]
fn a_full_checkpoint_is_written_over_the_one_before_the_last() {
    let device = Device::new(8);
    device.set_capacity(Some(1 << 40));
    let files = device.process();
    let path = FsPath::new(Arc::new(files), Path::new("/a/data"));
    let options = StoreOptions { spare_bytes_min: 1_000_000, ..StoreOptions::default() };
    let mut store = DiskStore::open(&path, options.clone()).unwrap();
    let mut model = found(&mut store).unwrap();
    let incarnation = store.directory.current().unwrap().path().clone();
    let spare = || Generation::spare_in(&incarnation).map(|(_, bytes)| bytes);
    let full = |store: &mut DiskStore, model: &mut Model, bytes: usize| {
        append(store, model);
        let chunks = vec![vec![model.last() as u8; 100_000]; bytes / 100_000];
        let (meta, log) = (meta(model.last()), LogAfter::From(model.last() + 1));
        perform(store, model, &Op::Checkpoint { full: true, chunks, between: None, meta, log });
        while store.work_beside() {}
    };
    let mut kept = Vec::new();
    for bytes in [2_000_000, 2_000_000, 1_000_000, 2_000_000, 200_000, 2_000_000, 200_000] {
        full(&mut store, &mut model, bytes);
        kept.push(spare().map_or(0, |bytes| bytes / 100_000));
        drop(store);
        store = DiskStore::open(&path, options.clone()).unwrap();
        assert_eq!(Model::of(&mut store).unwrap(), model, "after a checkpoint of {bytes} bytes");
    }
    // The first one replaces the image of the founding. Small images are not worth it.
    assert_eq!(kept, [1, 20, 20, 20, 0, 6, 0]);
    full(&mut store, &mut model, 3_000_000);
    full(&mut store, &mut model, 3_000_000);
    full(&mut store, &mut model, 3_000_000);
    assert_eq!(spare().map(|bytes| bytes / 100_000), Some(30));
    // The current file, which had a larger image before, is as long as it was; its content is where it ends.
    full(&mut store, &mut model, 1_000_000);
    let unused = |store: &mut DiskStore| {
        let bytes = store.live().unwrap().checkpoints.unused_bytes();
        bytes.unwrap() / 100_000
    };
    assert_eq!(unused(&mut store), 20);
    drop(store);
    store = DiskStore::open(&path, options.clone()).unwrap();
    assert_eq!(Model::of(&mut store).unwrap(), model);
    assert_eq!(unused(&mut store), 20);
    full(&mut store, &mut model, 300_000);
    assert_eq!(unused(&mut store), 6, "three times the image is enough");
    full(&mut store, &mut model, 1_000_000);
    full(&mut store, &mut model, 3_000_000);
    full(&mut store, &mut model, 3_000_000);
    full(&mut store, &mut model, 1_000_000);
    assert_eq!(unused(&mut store), 20);
    assert_eq!(spare().map(|bytes| bytes / 100_000), Some(30));
    // A disk with little room gets both back.
    device.show_free(Some(1 << 40));
    assert_eq!(store.space().map(|space| space.free), Some(1 << 40));
    assert!(!store.work_beside());
    device.show_free(Some(20 << 20));
    store.space();
    while store.work_beside() {}
    assert_eq!((spare(), unused(&mut store)), (None, 20));
    device.show_free(Some(15 << 20));
    store.space();
    while store.work_beside() {}
    assert_eq!(unused(&mut store), 0);
    device.show_free(Some(21 << 20));
    full(&mut store, &mut model, 3_000_000);
    assert_eq!(spare(), None, "a disk with little room keeps none");
    drop(store);
    let mut store = DiskStore::open(&path, options).unwrap();
    assert_eq!(Model::of(&mut store).unwrap(), model);
}

/// A commit had locked the checkpoints and waited for a segment, behind work with files that waited for the checkpoints.
#[test]
fn a_commit_waits_for_no_work_with_files_that_needs_the_checkpoints() {
    let (done, is_done) = std::sync::mpsc::channel();
    let run = move || {
        let files = Device::new(9).process();
        let path = FsPath::new(Arc::new(files), Path::new("/a/data"));
        let options = StoreOptions { segment_bytes: 2 << 10, ..StoreOptions::default() };
        let mut store = DiskStore::open(&path, options).unwrap();
        let mut model = found(&mut store).unwrap();
        let mut in_commits = 0;
        for round in 0..60 {
            (0..round % 4).for_each(|_| append(&mut store, &mut model));
            let live = store.live().unwrap();
            let checkpoints = live.checkpoints.clone();
            live.log.work(Box::new(move || drop(checkpoints.verify(4 << 20))));
            let before = live.log.next_cold(0).map(|(_, count)| count);
            let from = model.last() + 1;
            checkpoint(&mut store, &mut model, from.saturating_sub(100));
            let after = store.live().unwrap().log.next_cold(0).map(|(_, count)| count);
            in_commits += u64::from(after > before);
        }
        done.send(in_commits).unwrap();
    };
    let thread = std::thread::Builder::new().spawn(run).unwrap();
    let in_commits = is_done.recv_timeout(Duration::from_secs(60));
    assert!(in_commits.is_ok_and(|count| count > 0), "{in_commits:?} commits began a segment");
    thread.join().unwrap();
}
