//! The end of a process: all that it has written stays visible, and is not durable.

use std::collections::BTreeSet;

use super::*;
use crate::storage::error::StorageError;
use crate::storage::file_system::simulated::PowerCut;

#[test]
fn what_an_ended_process_has_written_is_visible_and_not_durable() {
    let (device, files, file) = device();
    file.write_at(b"written", 0).unwrap();
    files.end_process();
    assert_eq!(content(&device.process(), "/file"), b"written");
    device.cut_power_with(PowerCut::HARD);
    assert_eq!(content(&device.process(), "/file"), b"");
}

#[test]
fn an_ended_process_changes_nothing() {
    let (device, files, file) = device();
    let names = files.open_directory(path("/")).unwrap();
    file.write_at(b"written", 0).unwrap();
    files.open(path("/new"), Access::Create).unwrap();
    let before = (device.visible_fingerprint(), device.durable_fingerprint());
    files.end_process();
    assert!(files.has_ended());
    assert!(file.write_at(b"more", 0).is_err());
    assert!(file.read_at(&mut [0; 4], 0).is_err());
    assert!(file.sync_data().is_err());
    assert!(file.set_length(0).is_err());
    assert!(file.length().is_err());
    file.forget_cached(u64::MAX);
    assert!(names.sync().is_err());
    assert!(files.open(path("/file"), Access::Create).is_err());
    assert!(files.rename(path("/file"), path("/other")).is_err());
    assert!(files.remove_file(path("/file")).is_err());
    assert!(files.create_directory(path("/directory")).is_err());
    assert!(files.kind(path("/file")).is_err());
    assert!(files.list(path("/")).is_err());
    assert!(files.open_database(path("/")).is_err());
    drop((file, names));
    assert_eq!((device.visible_fingerprint(), device.durable_fingerprint()), before);
}

#[test]
fn a_lock_is_held_until_it_is_dropped_or_its_process_ends() {
    let (device, files, _file) = device();
    let other = device.process();
    let lock = files.lock(path("/LOCK")).unwrap();
    assert!(matches!(files.lock(path("/LOCK")), Err(StorageError::InUse)));
    assert!(matches!(other.lock(path("/LOCK")), Err(StorageError::InUse)));
    drop(lock);
    let held = other.lock(path("/LOCK")).unwrap();
    assert!(matches!(files.lock(path("/LOCK")), Err(StorageError::InUse)));
    other.end_process();
    let _lock = files.lock(path("/LOCK")).unwrap();
    // It belongs to a process that has ended.
    drop(held);
    assert!(matches!(device.process().lock(path("/LOCK")), Err(StorageError::InUse)));
}

/// What a process leaves that ends at each of its changes.
fn ends(act: impl Fn(&dyn FileSystem) -> std::io::Result<()>, changes: u64) -> BTreeSet<Vec<u8>> {
    let mut left = BTreeSet::new();
    for seed in 0..60 {
        for after in 0..changes {
            let device = Device::new(seed);
            let files = device.process();
            files.stop_after(after);
            assert!(act(&files).is_err(), "{after}");
            assert!(files.has_ended());
            let files = device.process();
            let exists = files.kind(path("/file")).unwrap().is_some();
            left.insert(if exists { content(&files, "/file") } else { b"none".to_vec() });
        }
    }
    left
}

#[test]
fn a_process_ends_in_the_middle_of_a_call() {
    let left = ends(
        |files| {
            let file = files.open(path("/file"), Access::Create)?;
            file.write_at(b"abc", 0)?;
            file.sync_data()?;
            file.write_at(b"xyz", 0)
        },
        4,
    );
    let texts: Vec<&[u8]> = vec![b"none", b"", b"a", b"ab", b"abc", b"xbc", b"xyc", b"xyz"];
    assert_eq!(left, texts.into_iter().map(<[u8]>::to_vec).collect());
}

#[test]
fn a_process_that_ends_in_a_sync_has_synced_or_not() {
    let synced = |seed| {
        let device = Device::new(seed);
        let files = device.process();
        let file = make(&files, "/file", b"old");
        files.stop_after(1);
        file.write_at(b"new", 0).unwrap();
        assert!(file.sync_data().is_err());
        device.cut_power_with(PowerCut::HARD);
        content(&device.process(), "/file")
    };
    let left: BTreeSet<Vec<u8>> = (0..20).map(synced).collect();
    assert_eq!(left, BTreeSet::from([b"old".to_vec(), b"new".to_vec()]));
}

#[test]
fn a_file_without_a_name_lives_as_long_as_it_is_open() {
    let (device, files, file) = device();
    device.set_capacity(Some(1 << 20));
    file.write_at(&[1; 100_000], 0).unwrap();
    let free = || files.space(path("/")).unwrap().free;
    let with = free();
    files.remove_file(path("/file")).unwrap();
    file.write_at(b"more", 0).unwrap();
    assert_eq!((read(&*file)[..4].to_vec(), free()), (b"more".to_vec(), with));
    drop(file);
    assert!(free() > with + 100_000);
}
