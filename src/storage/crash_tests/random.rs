//! Random crashes, power cuts and faults of a store on the simulated file system.

use std::path::Path;
use std::sync::Arc;

use super::super::model::{Model, Op, Random, draw, found};
use super::super::{CheckpointKind, DiskStore, FsPath, LogStore, StorageError, StoreOptions};
use super::keys;
use crate::node::stored::{HardState, LogEntry, SnapshotMeta};
use crate::storage::simulated::{DatabaseOptions, Device, Fault, FaultKind, ProcessFiles};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Contents {
    hard_state: HardState,
    checkpoint: SnapshotMeta,
    chunks: Vec<(usize, u64)>,
    entries: Vec<LogEntry>,
}

fn short(chunk: &[u8]) -> (usize, u64) {
    (chunk.len(), xxhash_rust::xxh3::xxh3_64(chunk))
}

fn of_model(model: &Model) -> Contents {
    let index = model.checkpoint.index;
    Contents {
        hard_state: model.hard_state,
        checkpoint: model.checkpoint.clone(),
        chunks: model.chunks.iter().map(|c| short(c)).collect(),
        entries: model.entries.iter().filter(|e| e.index > index).cloned().collect(),
    }
}

fn of_store(store: &mut DiskStore) -> Result<Contents, StorageError> {
    let mut chunks = Vec::new();
    let boot = store.load(&mut |chunk| {
        chunks.push(short(chunk));
        Ok(())
    })?;
    Ok(Contents {
        hard_state: boot.hard_state,
        checkpoint: boot.checkpoint,
        chunks,
        entries: boot.entries,
    })
}

struct Failure {
    error: StorageError,
    in_store: bool,
}

/// Performs an operation. `possible`: what the store may hold.
fn perform(
    store: &mut DiskStore,
    device: &Device,
    random: &mut Random,
    op: &Op,
    model: &mut Model,
    possible: &mut Vec<Model>,
) -> Result<(), Failure> {
    let outer = |error| Failure { error, in_store: true };
    let inner = |error| Failure { error, in_store: false };
    let after = |model: &Model, op: &Op, kind| {
        let mut after = model.clone();
        after.apply(op, kind);
        after
    };
    match op {
        Op::Append(write) => {
            let next = after(model, op, CheckpointKind::Delta);
            possible.push(next.clone());
            store.append(write).map_err(outer)?;
            *model = next;
        }
        Op::Identify(_) | Op::Promise(_) => {}
        Op::Abandon { full, chunks } => {
            let mut writer = store.checkpointer().map_err(outer)?;
            writer.begin(*full, 0).map_err(inner)?;
            for chunk in chunks {
                writer.put_chunk(chunk).map_err(inner)?;
            }
            // Also one that is finished.
            if random.chance(50) {
                writer.finish().map_err(inner)?;
            }
        }
        Op::Checkpoint { full, chunks, between, meta, log } => {
            let mut writer = store.checkpointer().map_err(outer)?;
            let kind = writer.begin(*full, 0).map_err(inner)?;
            let mut between = between.as_ref();
            for chunk in chunks {
                writer.put_chunk(chunk).map_err(inner)?;
                if random.chance(20) {
                    device.write_back_some();
                }
                if let Some(write) = between.take() {
                    let next = after(model, &Op::Append(write.clone()), kind);
                    possible.push(next.clone());
                    store.append(write).map_err(outer)?;
                    *model = next;
                    *possible = vec![model.clone()];
                }
            }
            if let Some(write) = between {
                let next = after(model, &Op::Append(write.clone()), kind);
                possible.push(next.clone());
                store.append(write).map_err(outer)?;
                *model = next;
                *possible = vec![model.clone()];
            }
            writer.finish().map_err(inner)?;
            let op = Op::Checkpoint {
                full: *full,
                chunks: chunks.clone(),
                between: None,
                meta: meta.clone(),
                log: *log,
            };
            let next = after(model, &op, kind);
            possible.push(next.clone());
            store.commit_checkpoint(meta, *log).map_err(outer)?;
            *model = next;
        }
    }
    *possible = vec![model.clone()];
    Ok(())
}

fn scrub(store: &mut DiskStore) -> Result<Vec<String>, StorageError> {
    let mut rots = Vec::new();
    let mut left = 1;
    let mut first = true;
    while left > 0 {
        let (done, rot) = crossbeam_channel::bounded(1);
        let count = store.scrub(Box::new(move |rot| drop(done.send(rot))))?;
        while store.work_beside() {}
        left = if first { count.max(1) } else { left } - 1;
        first = false;
        rots.extend(rot.try_recv().ok().flatten().map(|rot| rot.what));
    }
    Ok(rots)
}

fn open(files: &ProcessFiles, options: &StoreOptions) -> Result<DiskStore, StorageError> {
    DiskStore::open(&FsPath::new(Arc::new(files.clone()), Path::new("/a/data")), options.clone())
}

#[derive(Default, Debug)]
struct Counts {
    went_on: u64,
    starts: u64,
    scrubs: u64,
}

fn run(seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut random = Random(seed);
    let device = Device::new(seed);
    device.set_database(DatabaseOptions { segment_bytes: 16 << 10, value_bytes_max: 4 << 10 });
    let small = random.chance(50);
    let options = StoreOptions {
        delta_bytes_min: if small { 20_000 } else { u64::MAX },
        file_bytes_min: if small { 200_000 } else { u64::MAX },
        deltas_max: if small { 6 } else { usize::MAX },
        segment_bytes: 32 << 10,
        keys: if random.chance(30) { keys() } else { None },
        log_dir: None,
        random: 0,
    };
    let with_faults = random.chance(60);
    let goes_on_after_all = random.chance(50);
    let mut model: Option<Model> = None;
    for round in 0..12 {
        let files = device.process();
        let mut possible = Vec::new();
        if random.chance(80) {
            let most = if random.chance(50) { 60 } else { 400 };
            let changes = random.below(most);
            files.stop_after(changes);
        }
        let kinds = [
            FaultKind::FailedSync,
            FaultKind::FailedWriteBack,
            FaultKind::FailedWrite,
            FaultKind::NoSpace,
            FaultKind::NoDescriptor,
            FaultKind::FailedRead,
        ];
        if with_faults && random.chance(30) {
            let kind = kinds[random.below(6) as usize];
            device.inject(Fault { kind, after: random.below(20) });
        }
        let opened = (|| -> Result<DiskStore, StorageError> {
            let mut store = open(&files, &options)?;
            counts.starts += 1;
            match (&mut model, store.identity().is_none()) {
                (model @ None, true) => {
                    let new = found(&mut store)?;
                    *model = Some(new);
                }
                (None, false) => {
                    // A founding that failed at its end.
                    let seen = of_store(&mut store)?;
                    assert_eq!(seen.checkpoint.index, 0);
                    let memory = super::super::MemoryDisk::new();
                    model = Some(found(&mut memory.open()).unwrap());
                }
                (Some(model), false) => {
                    let seen = of_store(&mut store)?;
                    if seen != of_model(model) {
                        return Err(StorageError::Corrupt { what: format!("lost: {seen:?}") });
                    }
                }
                (Some(_), true) => {
                    return Err(StorageError::Corrupt { what: "all is lost".to_owned() });
                }
            }
            Ok(store)
        })();
        match opened {
            Err(error @ StorageError::Corrupt { .. }) => {
                return Err(format!("seed {seed} round {round} open: {error}"));
            }
            Err(error) => {
                if !files.has_ended() && !with_faults {
                    return Err(format!("seed {seed} round {round} open: {error}"));
                }
            }
            Ok(mut store) => {
                let model = model.as_mut().unwrap();
                possible = vec![model.clone()];
                for step in 0..random.below(40) {
                    if with_faults && random.chance(6) {
                        let kind = kinds[random.below(6) as usize];
                        device.inject(Fault { kind, after: random.below(12) });
                    }
                    let op = draw(&mut random, model, 45);
                    let done = perform(&mut store, &device, &mut random, &op, model, &mut possible);
                    if let Err(Failure { error, in_store }) = done {
                        if files.has_ended() {
                            break;
                        }
                        if !with_faults {
                            return Err(format!("seed {seed} round {round} step {step}: {error}"));
                        }
                        if matches!(error, StorageError::Corrupt { .. }) {
                            return Err(format!("seed {seed} round {round} step {step}: {error}"));
                        }
                        let again = matches!(error, StorageError::Again { .. });
                        if !(again || goes_on_after_all && !in_store) {
                            break;
                        }
                        counts.went_on += 1;
                        possible = vec![model.clone()];
                    }
                    if random.chance(30) {
                        store.work_beside();
                    }
                    if random.chance(10) {
                        device.write_back_some();
                    }
                    if random.chance(5) {
                        let before = device.struck();
                        counts.scrubs += 1;
                        if random.chance(50) {
                            device.drop_caches();
                        }
                        let rots = scrub(&mut store);
                        // A write that has failed before is reported by a sync of a scrub.
                        let late = |rots: &Vec<String>| {
                            with_faults && rots.iter().all(|rot| rot.contains("os error 5"))
                        };
                        let struck = [
                            FaultKind::FailedRead,
                            FaultKind::FailedWriteBack,
                            FaultKind::FailedSync,
                            FaultKind::FailedWrite,
                            FaultKind::NoSpace,
                            FaultKind::NoDescriptor,
                        ]
                        .iter()
                        .any(|k| device.struck().count(*k) != before.count(*k));
                        match rots {
                            Ok(rots)
                                if rots.is_empty()
                                    || late(&rots)
                                    || struck
                                    || files.has_ended() => {}
                            Ok(rots) => {
                                return Err(format!("seed {seed} round {round} scrub: {rots:?}"));
                            }
                            Err(_) => break,
                        }
                    }
                    if files.has_ended() {
                        break;
                    }
                }
                if random.chance(50) {
                    files.end_process();
                }
                drop(store);
            }
        }
        files.end_process();
        device.disarm();
        match random.below(5) {
            0 => {}
            1 => device.drop_caches(),
            2 => device.write_back_some(),
            _ => drop(device.cut_power()),
        }
        // A clean start: which of the possible states is it?
        let files = device.process();
        // A write that failed before is reported to the next start, once for each file.
        let mut opened = open(&files, &options);
        for _ in 0..4 {
            if with_faults && matches!(opened, Err(StorageError::Io { .. })) {
                opened = open(&files, &options);
            }
        }
        let mut store = match opened {
            Ok(store) => store,
            Err(error) => return Err(format!("seed {seed} round {round}: start: {error}")),
        };
        if store.identity().is_none() {
            if model.is_some() && !possible.is_empty() {
                return Err(format!("seed {seed} round {round}: blank"));
            }
            model = None;
        } else {
            let seen = match of_store(&mut store) {
                Ok(seen) => seen,
                Err(error) => return Err(format!("seed {seed} round {round}: load: {error}")),
            };
            let mut candidates = possible.clone();
            candidates.extend(model.clone());
            if candidates.is_empty() {
                let memory = super::super::MemoryDisk::new();
                candidates.push(found(&mut memory.open()).unwrap());
            }
            match candidates.into_iter().find(|m| of_model(m) == seen) {
                Some(found) => model = Some(found),
                None => return Err(format!("seed {seed} round {round}: lost something: {seen:?}")),
            }
            let rots = scrub(&mut store).unwrap();
            if !rots.is_empty() {
                return Err(format!("seed {seed} round {round} scrub at start: {rots:?}"));
            }
        }
        files.end_process();
        drop(store);
        if random.chance(30) {
            device.cut_power();
        }
    }
    Ok(())
}

#[test]
fn any_crash_and_fault_leaves_what_was_acknowledged() {
    let mut counts = Counts::default();
    let seeds = 0..super::count("QUORATE_CRASH_RANDOM", 40);
    let failed: Vec<String> = seeds.filter_map(|seed| run(seed, &mut counts).err()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(counts.starts > 100 && counts.scrubs > 30 && counts.went_on > 0, "{counts:?}");
}

/// A delta that does not fit is tried again, as a full image is: nothing of the checkpoint before has changed.
#[test]
fn a_delta_without_room_is_tried_again() {
    let device = Device::new(1);
    let mut store = open(&device.process(), &StoreOptions::default()).unwrap();
    found(&mut store).unwrap();
    let mut writer = store.checkpointer().unwrap();
    writer.begin(false, 1 << 20).unwrap();
    device.inject(Fault::next(FaultKind::NoSpace));
    let written = writer.put_chunk(&[7; 50_000]);
    assert!(matches!(written, Err(StorageError::Again { .. })), "{written:?}");
    writer.begin(false, 1 << 20).unwrap();
    writer.put_chunk(&[7; 50_000]).unwrap();
    writer.finish().unwrap();
}
