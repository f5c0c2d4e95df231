//! Damage that is found while a store is open, and repaired.

use super::super::conformance::{checkpoint, entries};
use super::super::model::{Model, Op, Random, apply, found};
use super::super::{CheckpointKind, DiskStore, FsPath, LogAfter, LogStore, Rot, StoreOptions};
use super::copy_directory;
use crate::storage::directory::current_incarnation;

/// The results of a whole round of verifying.
fn scrub(store: &mut DiskStore) -> Vec<Option<Rot>> {
    let mut found = Vec::new();
    let mut left = 1;
    while left > 0 {
        let (done, rot) = crossbeam_channel::bounded(1);
        let send = move |rot| done.send(rot).unwrap();
        let count = store.scrub(Box::new(send)).unwrap();
        left = if found.is_empty() { count.max(1) } else { left } - 1;
        found.push(rot.recv().ok().flatten());
    }
    found
}

/// Damage that occurs while a member runs was found only at its next start, which then lost the
/// directory.
#[test]
fn a_damaged_segment_is_found_and_a_checkpoint_drops_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { segment_bytes: 2 << 10, ..StoreOptions::default() };
    let mut store = DiskStore::open(&FsPath::system(dir.path()), options.clone()).unwrap();
    let mut model = found(&mut store).unwrap();
    let first = model.last() + 1;
    for index in first..first + 100 {
        let op = Op::Append(entries(index, index, 1));
        let kind = apply(&mut store, &op).unwrap();
        model.apply(&op, kind);
    }
    let sound = scrub(&mut store);
    assert!(sound.len() >= 3 && sound.iter().all(Option::is_none), "{sound:?}");
    let log = current_incarnation(dir.path()).join("log");
    let path = log.join(format!("{:012}", 2));
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let rots: Vec<_> = scrub(&mut store).into_iter().flatten().collect();
    let [rot] = &rots[..] else { panic!("{rots:?}") };
    assert!(rot.below > first && rot.below < first + 100, "{rot:?}");
    // The next start would find the damage.
    let copy = tempfile::tempdir().unwrap();
    copy_directory(dir.path(), copy.path());
    assert!(DiskStore::open(&FsPath::system(copy.path()), options.clone()).is_err());
    let op = checkpoint(false, &[b"delta"], model.last(), LogAfter::From(rot.below));
    let kind = apply(&mut store, &op).unwrap();
    model.apply(&op, kind);
    assert!(scrub(&mut store).iter().all(Option::is_none));
    drop(store);
    let mut store = DiskStore::open(&FsPath::system(dir.path()), options.clone()).unwrap();
    assert_eq!(Model::of(&mut store).unwrap(), model);
}

#[test]
fn a_damaged_checkpoint_is_found_and_a_full_image_replaces_it() {
    let dir = tempfile::tempdir().unwrap();
    // Chunks of no pattern, so that each takes its room on the disk.
    let mut random = Random(7);
    let mut chunk = || -> Vec<u8> { (0..300_000).map(|_| random.below(256) as u8).collect() };
    let chunks: Vec<Vec<u8>> = (0..20).map(|_| chunk()).collect();
    let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
    let mut store = DiskStore::open(&FsPath::system(dir.path()), StoreOptions::default()).unwrap();
    let mut model = found(&mut store).unwrap();
    let at = model.last() + 1;
    let run = |store: &mut DiskStore, model: &mut Model, op: &Op| {
        let kind = apply(store, op).unwrap();
        model.apply(op, kind);
        kind
    };
    run(&mut store, &mut model, &Op::Append(entries(at, at, 1)));
    let full = checkpoint(true, &chunks, at, LogAfter::From(at));
    run(&mut store, &mut model, &full);
    let sound = scrub(&mut store);
    assert!(sound.len() >= 2 && sound.iter().all(Option::is_none), "{sound:?}");
    let damaged = largest(dir.path(), "chunks");
    let mut bytes = std::fs::read(&damaged).unwrap();
    let pattern = &chunks[13][1000..1064];
    let found_at = |(at, part): (usize, &[u8])| (part == pattern).then_some(at);
    let copies: Vec<usize> = bytes.windows(64).enumerate().filter_map(found_at).collect();
    assert_eq!(copies.len(), 1);
    copies.into_iter().for_each(|at| bytes[at] ^= 1);
    std::fs::write(&damaged, &bytes).unwrap();
    let rots: Vec<_> = scrub(&mut store).into_iter().flatten().collect();
    let [rot] = &rots[..] else { panic!("{rots:?}") };
    assert_eq!(rot.below, 1, "none of the log is damaged: {rot:?}");
    // The next start would find the damage.
    let copy = tempfile::tempdir().unwrap();
    copy_directory(dir.path(), copy.path());
    let mut opened = DiskStore::open(&FsPath::system(copy.path()), StoreOptions::default());
    assert!(opened.is_err() || Model::of(opened.as_mut().unwrap()).is_err());
    let op = checkpoint(false, &chunks, at, LogAfter::From(at));
    assert_eq!(run(&mut store, &mut model, &op), CheckpointKind::Full, "no delta can repair it");
    assert!(scrub(&mut store).iter().all(Option::is_none));
    drop(store);
    let mut store = DiskStore::open(&FsPath::system(dir.path()), StoreOptions::default()).unwrap();
    assert_eq!(Model::of(&mut store).unwrap(), model);
}

/// Reading a damaged page must not fail the checkpoint that repairs it.
#[test]
fn any_damage_of_a_checkpoint_is_found_and_repaired_while_it_is_open() {
    let mut random = Random(99);
    let mut count_found = 0;
    for round in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = |count| (0..count).map(|_| random.below(256) as u8).collect::<Vec<u8>>();
        let chunks = [bytes(60_000), bytes(60_000), bytes(60_000)];
        let noise = bytes(4096);
        let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        let mut store =
            DiskStore::open(&FsPath::system(dir.path()), StoreOptions::default()).unwrap();
        let mut model = found(&mut store).unwrap();
        let at = model.last() + 1;
        for op in
            [Op::Append(entries(at, at, 1)), checkpoint(true, &chunks, at, LogAfter::From(at))]
        {
            model.apply(&op, apply(&mut store, &op).unwrap());
        }
        let damaged = largest(dir.path(), if round % 2 == 0 { "chunks" } else { "db" });
        let mut bytes = std::fs::read(&damaged).unwrap();
        let begin = random.below(bytes.len() as u64) as usize;
        let rest = bytes.len() - begin;
        match round % 3 {
            0 => bytes[begin] ^= 1 << random.below(8),
            1 => bytes[begin..begin + rest.min(512)].fill(0),
            _ => {
                let count = rest.min(noise.len());
                bytes[begin..begin + count].copy_from_slice(&noise[..count]);
            }
        }
        std::fs::write(&damaged, &bytes).unwrap();
        if scrub(&mut store).iter().any(Option::is_some) {
            count_found += 1;
            let op = checkpoint(false, &chunks, at, LogAfter::From(at));
            assert_eq!(apply(&mut store, &op).unwrap(), CheckpointKind::Full);
            model.apply(&op, CheckpointKind::Full);
        }
        // If no damage was found, it was in data that sled has replaced since.
        drop(store);
        let mut store =
            DiskStore::open(&FsPath::system(dir.path()), StoreOptions::default()).unwrap();
        assert_eq!(Model::of(&mut store).unwrap(), model, "round {round}, at {begin}");
    }
    assert!(count_found > 15, "{count_found} of 30");
}

/// The largest file of that name in a directory: a smaller one was replaced, and is being removed.
fn largest(dir: &std::path::Path, name: &str) -> std::path::PathBuf {
    let files = std::fs::read_dir(current_incarnation(dir))
        .unwrap()
        .map(|of| of.unwrap().path().join(name));
    let bytes = |file: &std::path::PathBuf| std::fs::metadata(file).map_or(0, |data| data.len());
    files.max_by_key(bytes).unwrap()
}
