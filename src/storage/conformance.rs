//! One test suite for every store, of the contract in the parent module.

use proptest::prelude::*;

use super::directory::current_incarnation;
use super::model::{
    Model, Op, Random, apply, draw, entry, found, hard_state, identity, meta, promise,
};
use crate::node::stored::{HardState, Identity, LogWrite, SnapshotMeta};
use crate::storage::contract::{CheckpointKind, LogAfter, LogStore};
use crate::storage::error::StorageError;
use crate::storage::file_system::FsPath;
use crate::storage::memory::MemoryDisk;
use crate::storage::options::StoreOptions;
use crate::storage::store::DiskStore;
use crate::types::membership::Promise;

/// Opens a store; reopens the same one after it was dropped.
type Open<'a> = dyn FnMut() -> Box<dyn LogStore> + 'a;

/// Runs a test on a fresh store of each kind.
fn each(test: impl Fn(&mut Open<'_>)) {
    let disk = MemoryDisk::new();
    test(&mut || Box::new(disk.open()));
    let dir = tempfile::tempdir().unwrap();
    test(&mut || {
        Box::new(DiskStore::open(&FsPath::system(dir.path()), StoreOptions::default()).unwrap())
    });
    // Short segments, so that the log often continues in the next one.
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { segment_bytes: 2 << 10, ..StoreOptions::default() };
    test(&mut || Box::new(DiskStore::open(&FsPath::system(dir.path()), options.clone()).unwrap()));
    let (dir, logs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log_dir = Some(logs.path().to_owned());
    let options = StoreOptions { segment_bytes: 2 << 10, log_dir, ..StoreOptions::default() };
    test(&mut || Box::new(DiskStore::open(&FsPath::system(dir.path()), options.clone()).unwrap()));
    {
        let dir = tempfile::tempdir().unwrap();
        let ring = std::sync::Arc::new(crate::encryption::KeyRing::for_tests(&["k1"]));
        let (logs, keys) = (tempfile::tempdir().unwrap(), Some(ring));
        let log_dir = Some(logs.path().to_owned());
        let options =
            StoreOptions { segment_bytes: 2 << 10, keys, log_dir, ..StoreOptions::default() };
        test(&mut || {
            Box::new(DiskStore::open(&FsPath::system(dir.path()), options.clone()).unwrap())
        });
    }
}

fn reopened(open: &mut Open<'_>) -> Model {
    Model::of(open().as_mut()).unwrap()
}

pub(super) fn entries(from: u64, to: u64, term: u64) -> LogWrite {
    let entry = |index| entry(index, term, format!("entry {index}").as_bytes());
    LogWrite { hard_state: None, entries: (from..=to).map(entry).collect() }
}

pub(super) fn checkpoint(full: bool, chunks: &[&[u8]], index: u64, log: LogAfter) -> Op {
    Op::Checkpoint {
        full,
        chunks: chunks.iter().map(|chunk| chunk.to_vec()).collect(),
        between: None,
        meta: meta(index),
        log,
    }
}

/// Performs the operations one by one, and reopens the store after each.
fn run(open: &mut Open<'_>, ops: &[Op]) {
    let mut model = found(open().as_mut()).unwrap();
    assert_eq!(reopened(open), model);
    for op in ops {
        let mut store = open();
        assert_eq!(Model::of(store.as_mut()).unwrap(), model);
        let kind = apply(store.as_mut(), op).unwrap();
        model.apply(op, kind);
        // Both the live store and the reopened one must have the contents.
        assert_eq!(Model::of(store.as_mut()).unwrap(), model, "live after {op:?}");
        drop(store);
        assert_eq!(reopened(open), model, "reopened after {op:?}");
    }
}

#[test]
fn store_is_blank_until_it_is_founded() {
    each(|open| {
        assert_eq!(open().identity(), None);
        let model = found(open().as_mut()).unwrap();
        assert_eq!(open().identity(), Some(&identity()));
        assert_eq!(reopened(open), model);
        assert!(found(open().as_mut()).is_err());
        assert_eq!(reopened(open), model);
    });
}

#[test]
fn store_without_a_cluster_keeps_its_promises_and_joins_one() {
    each(|open| {
        let mut chunks = vec![b"empty".to_vec()].into_iter();
        let nothing = SnapshotMeta {
            index: 0,
            term: 0,
            zxid: 0,
            hash: 7,
            voting: crate::node::stored::Voting::default(),
        };
        let alone = Identity { cluster: 0, ..identity() };
        let mut store = open();
        assert_eq!(*store.promise(), Promise::default());
        store.found(&alone, HardState::default(), &nothing, &mut chunks).unwrap();
        drop(store);
        let mut model = Model {
            identity: alone.clone(),
            ..Model::founded(HardState::default(), &nothing, &[b"empty".to_vec()])
        };
        assert_eq!(reopened(open), model);
        let ops = [
            Op::Promise(promise(1)),
            Op::Identify(Identity { address: "elsewhere:1".to_owned(), ..alone }),
            Op::Promise(promise(2)),
            // The writes of a member that founds a cluster without a snapshot.
            Op::Append(entries(1, 3, 1)),
            Op::Identify(Identity { address: "elsewhere:1".to_owned(), ..identity() }),
            checkpoint(true, &[b"theirs"], 90, LogAfter::Reset(hard_state(4, 0, 90))),
            Op::Append(entries(91, 95, 4)),
            Op::Identify(identity()),
        ];
        for op in ops {
            let mut store = open();
            assert_eq!(Model::of(store.as_mut()).unwrap(), model);
            let kind = apply(store.as_mut(), &op).unwrap();
            model.apply(&op, kind);
            assert_eq!(Model::of(store.as_mut()).unwrap(), model, "live after {op:?}");
            drop(store);
            assert_eq!(reopened(open), model, "reopened after {op:?}");
        }
    });
}

#[test]
fn identity_and_promise_can_be_set_before_the_store_is_loaded() {
    each(|open| {
        let mut model = found(open().as_mut()).unwrap();
        for op in [
            Op::Promise(promise(2)),
            Op::Identify(Identity { address: "elsewhere:1".to_owned(), ..identity() }),
        ] {
            let kind = apply(open().as_mut(), &op).unwrap();
            model.apply(&op, kind);
            assert_eq!(reopened(open), model);
        }
    });
}

#[test]
fn store_refuses_to_become_another_nodes() {
    for wrong in [
        Identity { node: 9, ..identity() },
        Identity { incarnation: 9, ..identity() },
        Identity { uid: 9, ..identity() },
        Identity { cluster: 9, ..identity() },
        Identity { cluster: 0, ..identity() },
    ] {
        each(|open| {
            let mut store = open();
            assert!(store.set_identity(&identity()).is_err(), "a blank store");
            drop(store);
            assert!(open().set_promise(&promise(1)).is_err(), "a blank store");
            let mut store = open();
            let model = found(store.as_mut()).unwrap();
            let error = store.set_identity(&wrong).unwrap_err();
            assert!(matches!(error, StorageError::Io { .. }), "{error}");
            let error = store.set_promise(&promise(1)).unwrap_err();
            assert!(matches!(error, StorageError::Poisoned { .. }), "{error}");
            drop(store);
            assert_eq!(reopened(open), model);
        });
    }
}

#[test]
fn append_keeps_overwrites_and_hard_states() {
    each(|open| {
        let state = |term, vote, commit| {
            Op::Append(LogWrite {
                hard_state: Some(hard_state(term, vote, commit)),
                entries: Vec::new(),
            })
        };
        run(
            open,
            &[
                Op::Append(entries(1, 5, 1)),
                state(2, 3, 2),
                Op::Append(entries(4, 4, 2)),
                Op::Append(LogWrite::default()),
                Op::Append(entries(5, 9, 2)),
                state(3, 1, 9),
                Op::Append(entries(3, 12, 3)),
            ],
        );
    });
}

#[test]
fn append_keeps_large_entries() {
    each(|open| {
        let mut random = Random(1);
        let large = |random: &mut Random, index| entry(index, 1, &random.bytes(1 << 20));
        let two = vec![large(&mut random, 1), large(&mut random, 2)];
        let small_and_large = vec![entry(2, 2, b"small"), large(&mut random, 3)];
        let write = |entries| Op::Append(LogWrite { hard_state: None, entries });
        run(open, &[write(two), write(small_and_large)]);
    });
}

#[test]
fn checkpoint_deltas_follow_the_full_one() {
    each(|open| {
        run(
            open,
            &[
                Op::Append(entries(1, 5, 1)),
                Op::Append(entries(6, 9, 1)),
                checkpoint(false, &[b"one", b"two"], 5, LogAfter::From(4)),
                checkpoint(false, &[], 7, LogAfter::From(8)),
                Op::Append(entries(10, 10, 1)),
                checkpoint(false, &[b"three"], 10, LogAfter::From(11)),
                Op::Append(entries(11, 12, 1)),
                checkpoint(true, &[b"all", &[1; 200_000]], 11, LogAfter::From(11)),
                checkpoint(false, &[b"four"], 12, LogAfter::From(2)),
            ],
        );
    });
}

#[test]
fn checkpoint_from_a_leader_resets_the_log() {
    each(|open| {
        run(
            open,
            &[
                Op::Append(entries(1, 5, 1)),
                checkpoint(true, &[b"theirs"], 90, LogAfter::Reset(hard_state(4, 0, 90))),
                Op::Append(entries(91, 95, 4)),
                checkpoint(true, &[], 300, LogAfter::Reset(hard_state(5, 1, 300))),
            ],
        );
    });
}

#[test]
fn appends_may_happen_during_a_checkpoint() {
    each(|open| {
        let between = |full, from, to| Op::Checkpoint {
            full,
            chunks: vec![b"a".to_vec(), b"b".to_vec()],
            between: Some(entries(from, to, 1)),
            meta: meta(from - 1),
            log: LogAfter::From(from - 1),
        };
        let first = Op::Append(entries(1, 5, 1));
        run(open, &[first, between(false, 6, 8), between(true, 9, 12)]);
    });
}

#[test]
fn checkpoint_abandoned_is_forgotten() {
    each(|open| {
        let abandon =
            |full| Op::Abandon { full, chunks: vec![vec![9; 100_000], b"never".to_vec()] };
        let mut model = found(open().as_mut()).unwrap();
        let mut store = open();
        Model::of(store.as_mut()).unwrap();
        // Without reopening, so that the abandoned checkpoint still exists when the next one begins.
        for op in [
            Op::Append(entries(1, 5, 1)),
            abandon(false),
            abandon(true),
            abandon(false),
            checkpoint(false, &[b"kept"], 3, LogAfter::From(3)),
            abandon(true),
            checkpoint(true, &[b"full"], 4, LogAfter::From(3)),
            abandon(false),
        ] {
            let kind = apply(store.as_mut(), &op).unwrap();
            model.apply(&op, kind);
        }
        drop(store);
        assert_eq!(reopened(open), model);
        run_on(open, model, &[abandon(true), abandon(false)]);
    });
}

#[test]
fn a_checkpoint_that_another_one_overtakes_is_dropped() {
    each(|open| {
        let mut store = open();
        let mut wanted = found(store.as_mut()).unwrap();
        let mut first = store.checkpointer().unwrap();
        let mut second = store.checkpointer().unwrap();
        first.begin(false, 0).unwrap();
        first.put_chunk(b"first").unwrap();
        second.begin(false, 0).unwrap();
        second.put_chunk(b"second").unwrap();
        second.finish().unwrap();
        drop((first, second));
        store.commit_checkpoint(&meta(0), LogAfter::From(1)).unwrap();
        drop(store);
        wanted.apply(&checkpoint(false, &[b"second"], 0, LogAfter::From(1)), CheckpointKind::Delta);
        assert_eq!(reopened(open), wanted);
    });
}

#[test]
fn a_checkpoint_that_is_not_finished_is_not_committed() {
    each(|open| {
        let mut store = open();
        let model = found(store.as_mut()).unwrap();
        store.checkpointer().unwrap().begin(false, 0).unwrap();
        let error = store.commit_checkpoint(&meta(0), LogAfter::From(1)).unwrap_err();
        assert!(matches!(error, StorageError::Io { .. }), "{error}");
        drop(store);
        assert_eq!(reopened(open), model);
    });
}

fn run_on(open: &mut Open<'_>, mut model: Model, ops: &[Op]) {
    for op in ops {
        let mut store = open();
        assert_eq!(Model::of(store.as_mut()).unwrap(), model);
        let kind = apply(store.as_mut(), op).unwrap();
        model.apply(op, kind);
    }
    assert_eq!(reopened(open), model);
}

#[test]
fn store_refuses_writes_that_it_could_not_load_again() {
    let out_of_range = LogWrite { hard_state: Some(hard_state(1, 1, 6)), entries: Vec::new() };
    let with_hole = LogWrite {
        hard_state: None,
        entries: [entries(6, 6, 1).entries, entries(8, 8, 1).entries].concat(),
    };
    for wrong in [
        Op::Append(entries(7, 8, 1)),
        Op::Append(with_hole),
        Op::Append(out_of_range),
        checkpoint(false, &[], 6, LogAfter::From(6)),
        checkpoint(false, &[], 3, LogAfter::From(5)),
        checkpoint(false, &[], 3, LogAfter::Reset(hard_state(1, 1, 3))),
    ] {
        each(|open| {
            let mut store = open();
            let mut model = found(store.as_mut()).unwrap();
            let first = Op::Append(entries(1, 5, 1));
            let kind = apply(store.as_mut(), &first).unwrap();
            model.apply(&first, kind);
            let error = apply(store.as_mut(), &wrong).unwrap_err();
            assert!(matches!(error, StorageError::Io { .. }), "{error}");
            // The store is poisoned from then on; the next open finds the contents from before.
            let error = store.append(&entries(6, 6, 1)).unwrap_err();
            assert!(matches!(error, StorageError::Poisoned { .. }), "{error}");
            drop(store);
            assert_eq!(reopened(open), model);
        });
    }
}

#[test]
fn store_reports_a_chunk_that_does_not_decode_as_corrupt() {
    each(|open| {
        let mut store = open();
        found(store.as_mut()).unwrap();
        let error = store.load(&mut |_| Err("nonsense".to_owned())).unwrap_err();
        assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    });
}

#[test]
fn memory_store_shuts_out_its_predecessor() {
    let disk = MemoryDisk::new();
    let mut first = disk.open();
    found(&mut first).unwrap();
    let _second = disk.clone().open();
    assert_eq!(first.append(&entries(1, 1, 1)), Err(StorageError::InUse));
}

#[test]
fn sled_store_answers_full_when_deltas_outweigh_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { delta_bytes_min: 200_000, ..StoreOptions::default() };
    let mut store = DiskStore::open(&FsPath::system(dir.path()), options.clone()).unwrap();
    found(&mut store).unwrap();
    let mut kinds = Vec::new();
    for _ in 0..6 {
        let mut writer = store.checkpointer().unwrap();
        kinds.push(writer.begin(false, 0).unwrap());
        writer.put_chunk(&[1; 90_000]).unwrap();
        writer.finish().unwrap();
        store.commit_checkpoint(&meta(0), LogAfter::From(1)).unwrap();
    }
    let full = kinds.iter().position(|kind| *kind == CheckpointKind::Full);
    assert_eq!(full, Some(3), "{kinds:?}");
}

#[test]
fn sled_store_bounds_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        file_bytes_min: 24 << 20,
        delta_bytes_min: 1 << 30,
        ..StoreOptions::default()
    };
    let mut store = DiskStore::open(&FsPath::system(dir.path()), options.clone()).unwrap();
    let mut model = found(&mut store).unwrap();
    let mut fulls = 0;
    let mut random = Random(5);
    for round in 0..40_u64 {
        let next = model.last() + 1;
        let op = Op::Append(LogWrite {
            hard_state: None,
            entries: vec![entry(next, 1, &random.bytes(1 << 20))],
        });
        let kind = apply(&mut store, &op).unwrap();
        model.apply(&op, kind);
        let op = checkpoint(false, &[b"delta"], next, LogAfter::From(next));
        let kind = apply(&mut store, &op).unwrap();
        model.apply(&op, kind);
        fulls += u64::from(kind == CheckpointKind::Full);
        assert!(fulls <= round / 2, "full in nearly every round");
    }
    let bytes: u64 = std::fs::read_dir(current_incarnation(dir.path()))
        .unwrap()
        .flat_map(|gen_| ["chunks", "db"].map(|name| gen_.as_ref().unwrap().path().join(name)))
        .filter_map(|path| std::fs::metadata(path).ok())
        .map(|file| file.len())
        .sum();
    assert!(fulls > 0 || bytes <= 32 << 20, "{bytes} bytes, {fulls} fulls");
    drop(store);
    let mut store = DiskStore::open(&FsPath::system(dir.path()), options.clone()).unwrap();
    assert_eq!(Model::of(&mut store).unwrap(), model);
}

/// Performs random operations, sometimes reopens the store, and compares it with the model.
fn run_drawn(open: &mut Open<'_>, seed: u64, count: usize) {
    let mut random = Random(seed);
    let mut store = open();
    let mut model = found(store.as_mut()).unwrap();
    for step in 0..count {
        let op = draw(&mut random, &model, 20);
        let kind = apply(store.as_mut(), &op).unwrap_or_else(|e| panic!("step {step}: {e}"));
        model.apply(&op, kind);
        if random.chance(10) {
            drop(store);
            store = open();
            assert_eq!(Model::of(store.as_mut()).unwrap(), model, "step {step}");
        }
    }
    drop(store);
    assert_eq!(reopened(open), model);
}

#[test]
fn checkpoint_does_not_bring_back_dropped_entries() {
    // A record with needed and dropped entries stays. A later full checkpoint copied all of it.
    each(|open| {
        run(
            open,
            &[
                Op::Append(entries(1, 5, 1)),
                checkpoint(false, &[], 3, LogAfter::From(4)),
                checkpoint(true, &[], 3, LogAfter::From(1)),
                checkpoint(false, &[], 4, LogAfter::From(2)),
            ],
        );
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 12,
        failure_persistence: None,
        // A shorter run of the same seed fails no earlier, so there is little to shrink.
        max_shrink_iters: 0,
        ..ProptestConfig::default()
    })]

    #[test]
    fn store_holds_what_the_model_holds(seed: u64, count in 1_usize..60) {
        each(|open| run_drawn(open, seed, count));
    }
}

/// Not a test: `cargo test --release --lib append_latency -- --ignored --nocapture` measures.
#[test]
#[ignore = "measures"]
fn append_latency() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let mut store = DiskStore::open(&FsPath::system(dir.path()), StoreOptions::default()).unwrap();
    let mut model = found(&mut store).unwrap();
    let mut times = Vec::new();
    // For comparison: as many bytes to a file filled with zeros, like the log's segments.
    let bare = std::fs::File::create(dir.path().join("bare")).unwrap();
    let mut bare_times = Vec::new();
    for round in 0..3_000 {
        let bytes = [7; 16_500];
        let begun = std::time::Instant::now();
        super::file_system::File::write_at(&bare, &bytes, round % 200 * 16_500).unwrap();
        bare.sync_data().unwrap();
        if round >= 200 {
            bare_times.push(begun.elapsed());
        }
        let first = model.last() + 1;
        let write = LogWrite {
            hard_state: Some(hard_state(1, 1, first - 1)),
            entries: (first..first + 100).map(|i| entry(i, 1, &[7; 150])).collect(),
        };
        let begun = std::time::Instant::now();
        store.append(&write).unwrap();
        times.push(begun.elapsed());
        model.checkpoint.index = first + 99;
    }
    times.sort();
    bare_times.sort();
    let p50 = |times: &[std::time::Duration]| times[times.len() / 2];
    println!("append p50 {:?} p99 {:?}", p50(&times), times[times.len() * 99 / 100]);
    println!("a bare file: p50 {:?}", p50(&bare_times));
}

/// Deletes freed no space until there were very many deltas.
#[test]
fn sled_store_replaces_the_image_when_the_state_has_become_small() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { delta_bytes_min: 200_000, ..StoreOptions::default() };
    let mut store = DiskStore::open(&FsPath::system(dir.path()), options.clone()).unwrap();
    found(&mut store).unwrap();
    let mut begin = |full: bool, bytes: u64| {
        let mut writer = store.checkpointer().unwrap();
        let kind = writer.begin(full, bytes).unwrap();
        writer.put_chunk(&[1; 1000]).unwrap();
        writer.finish().unwrap();
        store.commit_checkpoint(&meta(0), LogAfter::From(1)).unwrap();
        kind
    };
    assert_eq!(begin(true, 10 << 20), CheckpointKind::Full);
    assert_eq!(begin(false, 10 << 20), CheckpointKind::Delta);
    assert_eq!(begin(false, 6 << 20), CheckpointKind::Delta, "half of it saves little");
    assert_eq!(begin(false, 4 << 20), CheckpointKind::Full);
    assert_eq!(begin(false, 4 << 20), CheckpointKind::Delta, "it is small now");
}

/// An image without room was written until the disk was full, again and again.
#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn sled_store_begins_no_image_that_has_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = DiskStore::open(&FsPath::system(dir.path()), StoreOptions::default()).unwrap();
    found(&mut store).unwrap();
    let mut writer = store.checkpointer().unwrap();
    let refused = writer.begin(true, 1 << 60).unwrap_err();
    assert!(matches!(refused, StorageError::Again { .. }), "{refused}");
    assert_eq!(writer.begin(false, 1 << 60).unwrap(), CheckpointKind::Delta);
}
