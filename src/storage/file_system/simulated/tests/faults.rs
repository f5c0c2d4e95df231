//! The faults of a device and of single calls.

use std::io::ErrorKind;

use super::*;
use crate::storage::file_system::simulated::{
    DeviceState, Fault, FaultKind, PowerCut, Random, Survivors, Unsynced,
};

const PAGE: usize = 4096;

fn fails_as_device<T: std::fmt::Debug>(result: std::io::Result<T>) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(5));
}

/// A device whose file holds `old` durably, and whose next sync of it has failed after `new` was written.
fn after_failed_sync() -> (Device, ProcessFiles, Box<dyn File>) {
    // A seed with which the failed sync stores nothing.
    let (device, files, file) = device();
    file.write_at(&[1; 2 * PAGE], 0).unwrap();
    file.sync_data().unwrap();
    file.write_at(&[2; 2 * PAGE], 0).unwrap();
    device.inject(Fault::next(FaultKind::FailedSync));
    fails_as_device(file.sync_data());
    assert_eq!(device.struck().count(FaultKind::FailedSync), 1);
    (device, files, file)
}

#[test]
fn pages_of_a_failed_sync_are_readable_and_no_later_sync_writes_them() {
    let (device, files, file) = after_failed_sync();
    assert_eq!(read(&*file), [2; 2 * PAGE]);
    assert_eq!(device.state(), DeviceState::Lost);
    assert_eq!(device.unsynced(path("/")), vec![Unsynced::Lost { path: "/file".into() }]);
    file.sync_data().unwrap();
    files.open(path("/file"), Access::Write).unwrap().sync_all().unwrap();
    assert_eq!(read(&*file), [2; 2 * PAGE]);
    // Not even the most friendly power cut leaves them.
    let all = PowerCut { pages: Survivors::All, names: Survivors::All, has_grown: true };
    device.cut_power_with(all);
    assert_eq!(content(&device.process(), "/file"), [1; 2 * PAGE]);
}

#[test]
fn pages_of_a_failed_sync_are_gone_when_the_cache_is_dropped() {
    for forget in [true, false] {
        let (device, _files, file) = after_failed_sync();
        if forget {
            file.forget_cached(u64::MAX)
        } else {
            device.drop_caches()
        }
        assert_eq!(read(&*file), [1; 2 * PAGE]);
        assert_eq!(device.state(), DeviceState::Synced);
    }
}

#[test]
fn pages_of_a_failed_sync_are_durable_if_they_are_written_again() {
    let (device, _files, file) = after_failed_sync();
    file.write_at(&[3], 0).unwrap();
    file.sync_data().unwrap();
    device.cut_power_with(PowerCut::HARD);
    let mut expected = vec![1; 2 * PAGE];
    // The page is written as a whole.
    expected[..PAGE].fill(2);
    expected[0] = 3;
    assert_eq!(content(&device.process(), "/file"), expected);
}

#[test]
fn the_cache_keeps_what_was_not_synced_when_it_is_dropped() {
    let (device, _files, file) = device();
    file.write_at(b"dirty", 0).unwrap();
    device.drop_caches();
    file.forget_cached(u64::MAX);
    assert_eq!(read(&*file), b"dirty");
}

#[test]
fn each_open_file_reports_an_error_of_writing_once() {
    let (device, files, file) = device();
    let other = files.open(path("/file"), Access::Write).unwrap();
    file.write_at(b"new", 0).unwrap();
    assert!(device.inject(Fault::next(FaultKind::FailedWriteBack)));
    assert_eq!(device.state(), DeviceState::Lost);
    fails_as_device(other.sync_data());
    other.sync_data().unwrap();
    fails_as_device(file.sync_data());
    file.sync_data().unwrap();
    // It was reported before this one was opened.
    files.open(path("/file"), Access::Write).unwrap().sync_data().unwrap();
}

#[test]
fn an_unreported_error_of_writing_is_reported_by_a_file_that_is_opened_later() {
    let (device, files, file) = device();
    file.write_at(b"new", 0).unwrap();
    device.inject(Fault::next(FaultKind::FailedWriteBack));
    drop(file);
    fails_as_device(files.open(path("/file"), Access::Write).unwrap().sync_data());
}

#[test]
fn a_failed_sync_of_a_directory_leaves_its_names_to_the_next_one() {
    let (device, files, _file) = device();
    files.open(path("/new"), Access::Create).unwrap();
    device.inject(Fault::next(FaultKind::FailedSync));
    let names = files.open_directory(path("/")).unwrap();
    fails_as_device(names.sync());
    assert_eq!(device.state(), DeviceState::Renamed);
    names.sync().unwrap();
    device.cut_power_with(PowerCut::HARD);
    assert!(device.process().kind(path("/new")).unwrap().is_some());
}

#[test]
fn a_fault_strikes_the_call_that_it_is_for_once() {
    let (device, _files, file) = device();
    file.write_at(b"content", 0).unwrap();
    device.inject(Fault { kind: FaultKind::FailedRead, after: 2 });
    let mut bytes = [0; 7];
    let failed: Vec<bool> = (0..5).map(|_| file.read_at(&mut bytes, 0).is_err()).collect();
    assert_eq!(failed, [false, false, true, false, false]);
    assert_eq!(device.struck().count(FaultKind::FailedRead), 1);
    device.inject(Fault::next(FaultKind::FailedRead));
    device.disarm();
    file.read_at(&mut bytes, 0).unwrap();
}

#[test]
fn a_write_that_fails_leaves_a_part() {
    let mut left = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let device = Device::new(seed);
        let file = device.process().open(path("/file"), Access::Create).unwrap();
        drop(file);
        let files = device.process();
        let file = files.open(path("/file"), Access::Write).unwrap();
        device.inject(Fault::next(FaultKind::FailedWrite));
        fails_as_device(file.write_at(b"abc", 0));
        left.insert(read(&*file));
    }
    let parts = [&b""[..], b"a", b"ab", b"abc"].map(<[u8]>::to_vec);
    assert_eq!(left.into_iter().collect::<Vec<_>>(), parts);
}

#[test]
fn a_bad_sector_cannot_be_read_from_the_device_until_it_is_written_again() {
    let (device, _files, file) = device();
    file.write_at(&[1; 3 * PAGE], 0).unwrap();
    file.sync_data().unwrap();
    device.damage(FaultKind::BadSector, path("/file"), 1).unwrap();
    assert_eq!(device.state(), DeviceState::Damaged);
    // The cache holds it.
    assert_eq!(read(&*file), [1; 3 * PAGE]);
    file.forget_cached(u64::MAX);
    let mut page = [0; PAGE];
    file.read_at(&mut page, 0).unwrap();
    for _ in 0..2 {
        fails_as_device(file.read_at(&mut page, PAGE as u64));
    }
    // A part of a page needs the rest of it.
    fails_as_device(file.write_at(&[2], PAGE as u64));
    assert_eq!(device.struck().count(FaultKind::BadSector), 3);
    file.write_at(&[2; PAGE], PAGE as u64).unwrap();
    file.sync_data().unwrap();
    file.forget_cached(u64::MAX);
    file.read_at(&mut page, PAGE as u64).unwrap();
    assert_eq!((page, device.state()), ([2; PAGE], DeviceState::Synced));
}

#[test]
fn rot_shows_when_the_cache_does_not_hold_the_page() {
    let (device, _files, file) = device();
    file.write_at(&[1; PAGE], 0).unwrap();
    file.sync_data().unwrap();
    device.damage(FaultKind::Rot, path("/file"), 0).unwrap();
    assert_eq!(read(&*file), [1; PAGE]);
    file.forget_cached(u64::MAX);
    let rotten = read(&*file);
    let flipped: u32 = rotten.iter().map(|byte| (byte ^ 1).count_ones()).sum();
    assert_eq!(flipped, 1);
    // A power cut does not mend it, and a write of the page does.
    device.cut_power();
    let files = device.process();
    assert_eq!((content(&files, "/file"), device.state()), (rotten, DeviceState::Damaged));
    make(&files, "/file", &[1; PAGE]);
    assert_eq!(device.state(), DeviceState::Synced);
}

#[test]
fn rot_that_the_cache_does_not_hide_shows_at_once() {
    let (device, _files, file) = device();
    file.write_at(&[1; PAGE], 0).unwrap();
    file.sync_data().unwrap();
    assert!(device.inject(Fault::next(FaultKind::UncachedRot)));
    assert_ne!(read(&*file), [1; PAGE]);
}

#[test]
fn damage_strikes_only_below_a_path() {
    let (device, files, _file) = device();
    files.create_directory(path("/in")).unwrap();
    assert!(!device.inject_below(Fault::next(FaultKind::UncachedRot), path("/in")));
    let kept = make(&files, "/kept", &[1; 5 * PAGE]);
    let hit = make(&files, "/in/hit", &[1; 5 * PAGE]);
    for _ in 0..20 {
        assert!(device.inject_below(Fault::next(FaultKind::UncachedRot), path("/in")));
    }
    assert_eq!(read(&*kept), [1; 5 * PAGE]);
    assert_ne!(read(&*hit), [1; 5 * PAGE]);
}

#[test]
fn a_lost_write_was_acknowledged_and_is_not_on_the_device() {
    let (device, _files, file) = device();
    file.write_at(&[1; 3 * PAGE], 0).unwrap();
    file.sync_data().unwrap();
    device.inject(Fault { kind: FaultKind::LostWrite, after: 1 });
    file.write_at(&[2; 3 * PAGE], 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!((read(&*file), device.state()), (vec![2; 3 * PAGE], DeviceState::Damaged));
    assert_eq!(device.unsynced(path("/")), Vec::new());
    file.forget_cached(u64::MAX);
    let pages: Vec<u8> = read(&*file).chunks(PAGE).map(|page| page[0]).collect();
    assert_eq!(pages, [2, 1, 2]);
}

#[test]
fn a_misdirected_write_lands_on_another_page() {
    let mut misdirected = 0;
    for seed in 0..20 {
        let device = Device::new(seed);
        let files = device.process();
        let victim = make(&files, "/victim", &[1; 2 * PAGE]);
        let file = make(&files, "/file", &[2; 2 * PAGE]);
        device.inject(Fault::next(FaultKind::MisdirectedWrite));
        file.write_at(&[3; PAGE], 0).unwrap();
        file.sync_data().unwrap();
        // The cache hides it.
        assert_eq!((read(&*victim), read(&*file)[0]), (vec![1; 2 * PAGE], 3));
        device.drop_caches();
        let pages =
            |file: &dyn File| -> Vec<u8> { read(file).chunks(PAGE).map(|page| page[0]).collect() };
        let (victim, file) = (pages(&*victim), pages(&*file));
        let all = [victim, file].concat();
        assert_eq!(all[2], 2, "{all:?}: the page itself was not written");
        misdirected += all.iter().filter(|page| **page == 3).count();
    }
    // The others drew their own place.
    assert!((10..20).contains(&misdirected), "{misdirected}");
}

#[test]
fn a_lying_sync_makes_nothing_durable() {
    let (device, files, file) = device();
    file.write_at(b"new", 0).unwrap();
    device.inject(Fault::next(FaultKind::LyingSync));
    file.sync_data().unwrap();
    files.open(path("/new"), Access::Create).unwrap();
    device.inject(Fault::next(FaultKind::LyingSync));
    sync_names(&files, "/");
    device.cut_power_with(PowerCut::HARD);
    let files = device.process();
    assert_eq!(content(&files, "/file"), b"");
    assert_eq!(files.kind(path("/new")).unwrap(), None);
}

#[test]
fn calls_that_need_room_fail_without_it() {
    let (device, files, file) = device();
    file.write_at(&[1; 2 * PAGE], 0).unwrap();
    let full = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::StorageFull);
    };
    for by_capacity in [true, false] {
        let limit = || {
            if by_capacity {
                device.set_capacity(Some(5 * PAGE as u64));
            } else {
                device.set_capacity(None);
                device.inject(Fault::next(FaultKind::NoSpace));
            }
        };
        limit();
        // One page is free, and each of these needs two, or one and a directory's.
        full(file.write_at(&[2; 2 * PAGE], 2 * PAGE as u64));
        file.set_length(2 * PAGE as u64).unwrap();
        limit();
        full(file.set_length(4 * PAGE as u64));
        limit();
        // What is there can be changed and removed.
        file.write_at(&[3; PAGE], PAGE as u64).unwrap();
        file.sync_data().unwrap();
        if by_capacity {
            assert_eq!(files.space(path("/")).unwrap().free, PAGE as u64);
            files.create_directory(path("/filler")).unwrap();
            assert_eq!(device.state(), DeviceState::Full);
        }
        full(files.open(path("/new"), Access::Create).map(drop));
        limit();
        full(files.create_directory(path("/new")));
        if by_capacity {
            files.remove_directory(path("/filler")).unwrap();
        }
    }
    assert!(device.struck().count(FaultKind::NoSpace) >= 8);
}

#[test]
fn a_write_without_room_writes_what_fits() {
    let (device, _files, file) = device();
    device.set_capacity(Some(4 * PAGE as u64));
    assert!(file.write_at(&[1; 5 * PAGE], 100).is_err());
    assert_eq!(file.length().unwrap(), 2 * PAGE as u64);
}

#[test]
fn no_more_files_can_be_opened_than_there_are_descriptors() {
    let (device, files, file) = device();
    device.set_descriptors(Some(2));
    let full = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(24));
    };
    let second = files.open(path("/file"), Access::Read).unwrap();
    full(files.open(path("/file"), Access::Read).map(drop));
    full(files.open(path("/new"), Access::Create).map(drop));
    full(files.open_directory(path("/")).map(drop));
    full(files.list(path("/")).map(drop));
    let lock = files.lock(path("/LOCK")).unwrap_err();
    assert!(matches!(lock, crate::storage::StorageError::Again { .. }), "{lock}");
    assert!(files.open_database(path("/")).is_err());
    assert_eq!(files.kind(path("/new")).unwrap(), None);
    drop(second);
    assert_eq!(
        files.list(path("/")).unwrap(),
        ["file", "blobs"].map(Into::<std::ffi::OsString>::into)
    );
    device.set_descriptors(None);
    device.inject(Fault::next(FaultKind::NoDescriptor));
    full(files.open(path("/file"), Access::Read).map(drop));
    files.open(path("/file"), Access::Read).unwrap();
    drop(file);
}

#[test]
fn faults_are_drawn_of_each_kind_that_is_promised() {
    let mut random = Random::new(1);
    let drawn: std::collections::BTreeSet<FaultKind> =
        (0..500).map(|_| Fault::draw(&mut random).kind).collect();
    let mut promised = FaultKind::ALL.to_vec();
    promised.retain(|kind| *kind != FaultKind::LyingSync);
    assert_eq!(drawn.into_iter().collect::<Vec<_>>(), promised);
}

#[test]
fn pages_that_the_system_has_written_are_durable() {
    let (device, _files, file) = device();
    file.write_at(&[1; 40 * PAGE], 0).unwrap();
    file.sync_data().unwrap();
    file.write_at(&[2; 40 * PAGE], 0).unwrap();
    device.write_back_some();
    device.cut_power_with(PowerCut::HARD);
    let bytes = content(&device.process(), "/file");
    let new = bytes.chunks(PAGE).filter(|page| page[0] == 2).count();
    assert!((5..35).contains(&new), "{new}");
}

#[test]
fn usage_counts_what_a_step_costs() {
    let (device, files, file) = device();
    let mark = device.usage();
    file.write_at(&[1; 5000], 0).unwrap();
    file.sync_data().unwrap();
    read(&*file);
    files.rename(path("/file"), path("/other")).unwrap();
    let used = device.usage().since(&mark);
    assert_eq!((used.writes, used.written_bytes), (1, 5000));
    assert_eq!((used.syncs, used.synced_pages), (1, 2));
    assert_eq!((used.reads, used.read_bytes), (1, 5000));
    assert_eq!((used.name_changes, used.opens), (1, 0));
}
