//! Random operations on the simulated file system: processes that end anywhere, power cuts and faults of the disk.

use std::path::Path;
use std::sync::Arc;

use super::super::model::{Model, Op, Random, apply, draw, found};
use super::super::{
    CheckpointKind, DiskStore, FsPath, LogStore, MemoryDisk, Result, StorageError, StoreOptions,
};
use super::{count, keys};
use crate::storage::directory::spare_segments;
use crate::storage::simulated::{DatabaseOptions, Device, Fault, FaultKind, ProcessFiles};

/// How many processes use the device, one after the other.
const LIVES: u64 = 12;

const FAULTS: [FaultKind; 6] = [
    FaultKind::FailedSync,
    FaultKind::FailedWriteBack,
    FaultKind::FailedWrite,
    FaultKind::FailedRead,
    FaultKind::NoSpace,
    FaultKind::NoDescriptor,
];

/// How often something has happened.
#[derive(Debug, Default)]
struct Counts {
    lives: u64,
    scrubs: u64,
    tried_again: u64,
}

/// A device, and what may be on it.
struct World<'a> {
    random: Random,
    device: Device,
    options: StoreOptions,
    has_faults: bool,
    /// What a founding makes.
    founded: Model,
    /// What a start may find: `None` is a blank directory.
    possible: Vec<Option<Model>>,
    counts: &'a mut Counts,
}

/// The contents that a start finds.
fn loaded(store: &mut DiskStore) -> Result<Option<Model>> {
    let Some(identity) = store.identity().cloned() else { return Ok(None) };
    let promise = store.promise().clone();
    let mut chunks = Vec::new();
    let boot = store.load(&mut |chunk| {
        chunks.push(chunk.to_vec());
        Ok(())
    })?;
    let (hard_state, checkpoint, entries) = (boot.hard_state, boot.checkpoint, boot.entries);
    Ok(Some(Model { identity, promise, hard_state, checkpoint, entries, chunks }))
}

/// As [`loaded`]: a start loads no entries that the checkpoint covers.
fn uncovered(mut model: Model) -> Model {
    let covered = model.checkpoint.index;
    model.entries.retain(|entry| entry.index > covered);
    model
}

/// Whether the operation appends to the log.
fn appends(op: &Op) -> bool {
    matches!(op, Op::Append(_) | Op::Checkpoint { between: Some(_), .. })
}

/// What there may be after an operation that has not ended well.
fn after_failed(model: &Model, op: &Op) -> Vec<Option<Model>> {
    let mut all = vec![model.clone()];
    if let Op::Checkpoint { between: Some(write), .. } = op {
        let mut appended = model.clone();
        appended.append(write);
        all.push(appended);
    }
    for kind in [CheckpointKind::Delta, CheckpointKind::Full] {
        let mut done = model.clone();
        done.apply(op, kind);
        all.push(done);
    }
    all.into_iter().map(Some).collect()
}

/// Scrubs once. Returns the damage that it has found.
fn scrub(store: &mut DiskStore) -> Result<Vec<String>> {
    let (mut rots, mut left) = (Vec::new(), None);
    while left != Some(0) {
        let (done, rot) = crossbeam_channel::bounded(1);
        let pieces = store.scrub(Box::new(move |rot| drop(done.send(rot))))?;
        while store.work_beside() {}
        left = Some(left.unwrap_or(pieces.max(1)) - 1);
        rots.extend(rot.try_recv().ok().flatten().map(|rot| rot.what));
    }
    Ok(rots)
}

impl World<'_> {
    fn new(seed: u64, counts: &mut Counts) -> World<'_> {
        let mut random = Random(seed);
        let device = Device::new(seed);
        device.set_database(DatabaseOptions { segment_bytes: 16 << 10, value_bytes_max: 4 << 10 });
        // Either the store chooses full images by itself, or the operations do.
        let chooses = random.chance(50);
        let options = StoreOptions {
            delta_bytes_min: if chooses { 20_000 } else { u64::MAX },
            file_bytes_min: if chooses { 200_000 } else { u64::MAX },
            deltas_max: if chooses { 6 } else { usize::MAX },
            spare_bytes_min: 1,
            segment_bytes: 32 << 10,
            keys: if random.chance(30) { keys() } else { None },
            log_dir: None,
            random: 0,
        };
        let has_faults = random.chance(60);
        let founded = found(&mut MemoryDisk::new().open()).unwrap();
        let possible = vec![None];
        World { random, device, options, has_faults, founded, possible, counts }
    }

    fn open(&self, files: &ProcessFiles) -> Result<DiskStore> {
        let path = FsPath::new(Arc::new(files.clone()), Path::new("/a/data"));
        DiskStore::open(&path, self.options.clone())
    }

    fn inject(&mut self, percent: u64) {
        if self.has_faults && self.random.chance(percent) {
            let kind = FAULTS[self.random.below(FAULTS.len() as u64) as usize];
            self.device.inject(Fault { kind, after: self.random.below(16) });
        }
    }

    /// A process that may end, or fail, anywhere.
    fn live(&mut self) -> Result<()> {
        let files = self.device.process();
        if self.random.chance(80) {
            let most = if self.random.chance(50) { 60 } else { 400 };
            files.stop_after(self.random.below(most));
        }
        self.inject(30);
        let used = self.use_store(&files);
        let is_excused = files.has_ended() || self.has_faults;
        files.end_process();
        self.device.disarm();
        match used {
            // Damage is never excused.
            Err(error) if !is_excused || matches!(error, StorageError::Corrupt { .. }) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    fn use_store(&mut self, files: &ProcessFiles) -> Result<()> {
        let mut store = self.open(files)?;
        self.counts.lives += 1;
        let mut model = match loaded(&mut store)? {
            Some(_) => self.possible[0].clone().unwrap(),
            None => {
                self.possible = vec![None, Some(self.founded.clone())];
                found(&mut store)?
            }
        };
        self.possible = vec![Some(model.clone())];
        for _ in 0..self.random.below(40) {
            self.inject(6);
            let op = draw(&mut self.random, &model, 45);
            self.possible = after_failed(&model, &op);
            match apply(&mut store, &op) {
                Ok(kind) => model.apply(&op, kind),
                // What was appended in between stays.
                Err(StorageError::Again { .. }) if !appends(&op) => self.counts.tried_again += 1,
                Err(error) => return Err(error),
            }
            self.possible = vec![Some(model.clone())];
            if matches!(op, Op::Abandon { .. }) && self.random.chance(50) {
                // It is given up when it is finished.
                store.checkpointer()?.finish()?;
            }
            if self.random.chance(30) {
                store.work_beside();
            }
            if self.random.chance(10) {
                self.device.write_back_some();
            }
            if self.random.chance(5) {
                self.counts.scrubs += 1;
                let rots = scrub(&mut store)?;
                if !rots.is_empty() && !self.has_faults && !files.has_ended() {
                    return Err(StorageError::Corrupt { what: format!("scrubbing: {rots:?}") });
                }
            }
        }
        Ok(())
    }

    /// Starts without faults: what is there is one of the things that may be there, and is sound.
    fn check(&mut self) -> Result<()> {
        match self.random.below(5) {
            0 => {}
            1 => self.device.drop_caches(),
            2 => self.device.write_back_some(),
            _ => drop(self.device.cut_power()),
        }
        let files = self.device.process();
        // A write that has failed is reported to the next start, once for each file.
        let mut opened = self.open(&files);
        for _ in 0..4 {
            if self.has_faults && matches!(opened, Err(StorageError::Io { .. })) {
                opened = self.open(&files);
            }
        }
        let mut store = opened?;
        let seen = loaded(&mut store)?;
        let is_seen = |model: &Option<Model>| model.clone().map(uncovered) == seen;
        let Some(found) = self.possible.iter().find(|model| is_seen(model)).cloned() else {
            let what = format!("{seen:?} is none of {:?}", self.possible);
            return Err(StorageError::Corrupt { what });
        };
        if found.is_some() {
            let rots = scrub(&mut store)?;
            if !rots.is_empty() {
                return Err(StorageError::Corrupt {
                    what: format!("scrubbing at a start: {rots:?}"),
                });
            }
        }
        self.possible = vec![found];
        files.end_process();
        Ok(())
    }
}

#[test]
fn any_crash_and_fault_leaves_what_was_acknowledged() {
    let mut counts = Counts::default();
    for seed in 0..count("QUORATE_CRASH_RANDOM", 40) {
        let mut world = World::new(seed, &mut counts);
        for life in 0..LIVES {
            if let Err(error) = world.live().and_then(|()| world.check()) {
                panic!("seed {seed}, life {life}: {error}");
            }
        }
    }
    assert!(counts.lives > 100 && counts.scrubs > 30 && counts.tried_again > 0, "{counts:?}");
}

/// A delta that does not fit is tried again, as a full image is: nothing of the checkpoint before has changed.
#[test]
fn a_delta_without_room_is_tried_again() {
    let mut counts = Counts::default();
    let world = World::new(1, &mut counts);
    let mut store = world.open(&world.device.process()).unwrap();
    found(&mut store).unwrap();
    let mut writer = store.checkpointer().unwrap();
    writer.begin(false, 1 << 20).unwrap();
    world.device.inject(Fault::next(FaultKind::NoSpace));
    let written = writer.put_chunk(&[7; 50_000]);
    assert!(matches!(written, Err(StorageError::Again { .. })), "{written:?}");
    writer.begin(false, 1 << 20).unwrap();
    writer.put_chunk(&[7; 50_000]).unwrap();
    writer.finish().unwrap();
}

/// Other data has filled the disk while the member was stopped.
#[test]
fn a_start_on_a_full_disk_has_the_room_of_its_spare_segments() {
    let device = Device::new(1);
    device.set_capacity(Some(1 << 40));
    let files = device.process();
    let path = FsPath::new(Arc::new(files.clone()), Path::new("/a/data"));
    let options = StoreOptions { segment_bytes: 64 << 10, ..StoreOptions::default() };
    let mut store = DiskStore::open(&path, options.clone()).unwrap();
    let mut model = found(&mut store).unwrap();
    let mut random = Random(3);
    for _ in 0..400 {
        let op = draw(&mut random, &model, 45);
        if let Ok(kind) = apply(&mut store, &op) {
            model.apply(&op, kind);
        }
        while store.work_beside() {}
    }
    assert!(!spare_segments(&path).unwrap().is_empty());
    let space = path.space().unwrap();
    files.end_process();
    drop(store);
    device.set_capacity(Some(space.total - space.free));
    let path = FsPath::new(Arc::new(device.process()), Path::new("/a/data"));
    let mut store = DiskStore::open(&path, options).unwrap();
    loaded(&mut store).unwrap();
    assert!(spare_segments(&path).unwrap().is_empty());
}
