//! The model of sled: what it keeps, and what it loses as sled does.

use std::collections::BTreeSet;

use super::*;
use crate::storage::error::StorageError;
use crate::storage::file_system::Database;
use crate::storage::file_system::simulated::{
    DatabaseOptions, Fault, FaultKind, PowerCut, Survivors,
};

/// Small segments, and values that fit in memory.
const OPTIONS: DatabaseOptions =
    DatabaseOptions { segment_bytes: 16 << 10, value_bytes_max: 4 << 10 };

fn new(seed: u64) -> (Device, ProcessFiles) {
    let device = Device::new(seed);
    device.set_database(OPTIONS);
    let files = device.process();
    (device, files)
}

fn keys(database: &dyn Database) -> Vec<u64> {
    let pairs = database.range(&[]).map(Result::unwrap);
    pairs.map(|(key, _)| u64::from_be_bytes((*key).try_into().unwrap())).collect()
}

fn insert(database: &dyn Database, numbers: std::ops::Range<u64>, bytes: usize) {
    for number in numbers {
        database.insert(&number.to_be_bytes(), &vec![number as u8; bytes]).unwrap();
    }
}

/// Flushes, and syncs as a store does.
fn sync(files: &dyn FileSystem, database: &dyn Database) {
    database.flush().unwrap();
    files.open(path("/db"), Access::Write).unwrap().sync_data().unwrap();
}

fn sync_all(files: &dyn FileSystem, database: &dyn Database) {
    sync(files, database);
    files.open(path("/conf"), Access::Write).unwrap().sync_all().unwrap();
    sync_names(files, "/blobs");
    sync_names(files, "/");
}

/// Opens it after a power cut, as a store does: without snapshots that were not finished.
fn reopen(device: &Device) -> (ProcessFiles, Box<dyn Database>) {
    let files = device.process();
    for name in files.list(path("/")).unwrap() {
        if name.to_str().unwrap().ends_with(".generating") {
            files.remove_file(&path("/").join(name)).unwrap();
        }
    }
    let database = files.open_database(path("/")).unwrap();
    (files, database)
}

#[test]
fn what_was_synced_survives_and_a_flush_is_no_sync() {
    let (device, files) = new(1);
    let database = files.open_database(path("/")).unwrap();
    insert(&*database, 0..10, 300);
    sync_all(&files, &*database);
    insert(&*database, 10..20, 300);
    database.flush().unwrap();
    device.cut_power_with(PowerCut::HARD);
    let database = device.process().open_database(path("/")).unwrap();
    assert_eq!(keys(&*database), (0..10).collect::<Vec<_>>());
}

#[test]
fn any_power_cut_leaves_a_beginning_of_the_log_that_has_all_that_was_synced() {
    let (device, files) = new(2);
    let database = files.open_database(path("/")).unwrap();
    sync_all(&files, &*database);
    insert(&*database, 0..30, 700);
    sync(&files, &*database);
    insert(&*database, 30..40, 700);
    database.flush().unwrap();
    let mut left = BTreeSet::new();
    for seed in 0..200 {
        let device = device.copy(seed);
        device.cut_power();
        let database = device.process().open_database(path("/")).unwrap();
        let keys = keys(&*database);
        assert!(keys.starts_with(&(0..30).collect::<Vec<_>>()), "{seed}: {keys:?}");
        left.insert(keys.len());
    }
    assert!(left.contains(&30) && left.contains(&40) && left.len() > 4, "{left:?}");
}

#[test]
fn it_writes_on_after_each_power_cut() {
    let (mut device, files) = new(3);
    let database = files.open_database(path("/")).unwrap();
    sync_all(&files, &*database);
    let mut kept = 0;
    let (mut files, mut database) = (files, database);
    for round in 0..60 {
        insert(&*database, kept..kept + 5, 900);
        sync(&files, &*database);
        kept += 5;
        // Not synced, and gone or not.
        insert(&*database, 1000 + round * 10..1000 + round * 10 + 8, 900);
        database.flush().unwrap();
        drop(database);
        device = device.copy(round);
        device.cut_power();
        (files, database) = reopen(&device);
        let unsynced: Vec<u64> = keys(&*database).into_iter().filter(|key| *key >= 1000).collect();
        for key in unsynced {
            database.remove(&key.to_be_bytes()).unwrap();
        }
        sync(&files, &*database);
        assert_eq!(keys(&*database), (0..kept).collect::<Vec<_>>(), "round {round}");
    }
}

#[test]
fn only_one_can_have_it_open() {
    let (device, files) = new(1);
    let database = files.open_database(path("/")).unwrap();
    let open = || device.process().open_database(path("/"));
    assert!(matches!(open(), Err(StorageError::InUse)));
    let pairs = database.range(&[]);
    drop(database);
    assert!(matches!(open(), Err(StorageError::InUse)), "an iterator keeps it open");
    drop(pairs);
    open().unwrap();
}

#[test]
fn an_unfinished_snapshot_refuses_to_open_until_it_is_removed() {
    let mut refused = 0;
    for after in 0..12 {
        let (device, files) = new(after);
        let database = files.open_database(path("/")).unwrap();
        insert(&*database, 0..5, 100);
        sync_all(&files, &*database);
        drop(database);
        // The process ends while it opens the database.
        files.stop_after(after);
        let _ = files.open_database(path("/"));
        files.end_process();
        let files = device.process();
        let names = files.list(path("/")).unwrap();
        let torn = names.iter().find(|name| name.to_str().unwrap().ends_with(".generating"));
        if let Some(torn) = torn {
            refused += 1;
            let again = files.open_database(path("/"));
            assert!(matches!(again, Err(StorageError::Corrupt { .. })), "{again:?}");
            files.remove_file(&path("/").join(torn)).unwrap();
        }
        assert_eq!(keys(&*files.open_database(path("/")).unwrap()), [0, 1, 2, 3, 4]);
    }
    assert!(refused >= 2, "{refused}");
}

/// What happens to a database of many records if a bit of one changes.
fn after_rot(seed: u64) -> Result<usize, StorageError> {
    let (device, files) = new(seed);
    let database = files.open_database(path("/")).unwrap();
    for batch in 0..20 {
        insert(&*database, batch * 3..batch * 3 + 3, 600);
        sync(&files, &*database);
    }
    drop(database);
    device.damage(FaultKind::UncachedRot, path("/db"), seed % 6).unwrap();
    let database = files.open_database(path("/"))?;
    let found: Result<Vec<_>, _> = database.range(&[]).collect();
    found.map(|found| found.len())
}

#[test]
fn damage_refuses_to_open_or_loses_records_silently() {
    let outcomes: Vec<_> = (0..60).map(after_rot).collect();
    let refused =
        outcomes.iter().filter(|found| matches!(found, Err(StorageError::Corrupt { .. })));
    let silent = outcomes.iter().filter(|found| matches!(found, Ok(count) if *count < 60));
    let (refused, silent) = (refused.count(), silent.count());
    assert!(refused > 10 && silent > 10, "{refused} refused, {silent} silent");
}

#[test]
fn damage_behind_a_snapshot_is_found_by_a_read_from_the_file() {
    let (device, files) = new(1);
    let database = files.open_database(path("/")).unwrap();
    insert(&*database, 0..10, 600);
    sync_all(&files, &*database);
    drop(database);
    // Opening writes a snapshot, and what is read stays in memory.
    let database = files.open_database(path("/")).unwrap();
    assert_eq!(keys(&*database).len(), 10);
    device.damage(FaultKind::UncachedRot, path("/db"), 0).unwrap();
    assert_eq!(keys(&*database).len(), 10);
    drop(database);
    let database = files.open_database(path("/")).unwrap();
    let found: Result<Vec<_>, _> = database.range(&[]).collect();
    assert!(matches!(found, Err(StorageError::Corrupt { .. })), "{found:?}");
}

#[test]
fn large_values_are_in_files_that_are_never_synced() {
    let (device, files) = new(1);
    let database = files.open_database(path("/")).unwrap();
    insert(&*database, 0..1, 100);
    insert(&*database, 1..2, OPTIONS.value_bytes_max + 1);
    sync_all(&files, &*database);
    assert_eq!(files.list(path("/blobs")).unwrap().len(), 1);
    drop(database);
    let database = files.open_database(path("/")).unwrap();
    let values: Vec<usize> = database.range(&[]).map(|pair| pair.unwrap().1.len()).collect();
    assert_eq!(values, [100, OPTIONS.value_bytes_max + 1]);
    device.cut_power_with(PowerCut::HARD);
    let database = device.process().open_database(path("/")).unwrap();
    let lost = keys(&*database);
    assert_eq!(lost, [0]);
}

/// Writes many times more than a segment, and returns what is missing of what was synced first, in how many of many
/// power cuts.
fn lost_by_power_cuts(sync_each: bool) -> usize {
    let (device, files) = new(4);
    let database = files.open_database(path("/")).unwrap();
    insert(&*database, 0..8, 900);
    sync_all(&files, &*database);
    for round in 0..40 {
        insert(&*database, 100..108, 900 + round);
        database.flush().unwrap();
        if sync_each {
            sync(&files, &*database);
        }
    }
    let lost = |seed: &u64| {
        let device = device.copy(*seed);
        device.cut_power_with(PowerCut {
            pages: Survivors::Some,
            names: Survivors::All,
            has_grown: true,
        });
        match device.process().open_database(path("/")) {
            Ok(database) => !keys(&*database).starts_with(&[0, 1, 2, 3, 4, 5, 6, 7]),
            Err(_) => true,
        }
    };
    (0..30).filter(lost).count()
}

#[test]
fn synced_records_are_lost_if_more_than_a_segment_is_not_synced() {
    assert_eq!(lost_by_power_cuts(true), 0);
    let lost = lost_by_power_cuts(false);
    assert!(lost > 10, "{lost}");
}

#[test]
fn the_file_grows_less_than_what_was_written_and_never_shrinks() {
    let (_, files) = new(1);
    let database = files.open_database(path("/")).unwrap();
    let mut before = 0;
    for _ in 0..200 {
        insert(&*database, 0..8, 900);
        sync(&files, &*database);
        let length = files.open(path("/db"), Access::Read).unwrap().length().unwrap();
        assert!(length >= before);
        before = length;
    }
    // 1.4 MB were written, and 7 KB are needed.
    assert!((2 * OPTIONS.segment_bytes..8 * OPTIONS.segment_bytes).contains(&before), "{before}");
}

#[test]
fn it_fails_for_ever_after_an_error() {
    let (device, files) = new(1);
    let database = files.open_database(path("/")).unwrap();
    insert(&*database, 0..2, 10);
    device.inject(Fault::next(FaultKind::FailedWrite));
    assert!(database.flush().is_err());
    assert!(database.flush().is_err());
    assert!(database.insert(b"key", b"value").is_err());
}

#[test]
fn it_ends_with_its_process() {
    let (device, files) = new(1);
    let database = files.open_database(path("/")).unwrap();
    insert(&*database, 0..2, 10);
    sync_all(&files, &*database);
    insert(&*database, 2..4, 10);
    files.end_process();
    assert!(database.flush().is_err());
    drop(database);
    assert_eq!(keys(&*device.process().open_database(path("/")).unwrap()), [0, 1]);
}
