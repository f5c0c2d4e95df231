//! Power cuts: what was synced survives, and of the rest any part.

use std::collections::BTreeSet;

use super::*;
use crate::storage::file_system::simulated::{DeviceState, PowerCut, Survivors, Unsynced};

const PAGE: usize = 4096;

/// All outcomes of cutting the power after something was done, as `look` sees them.
fn outcomes<T: Ord>(
    act: impl Fn(&dyn FileSystem, &dyn File),
    look: impl Fn(&dyn FileSystem) -> T,
) -> BTreeSet<T> {
    let (device, files, file) = device();
    act(&files, &*file);
    let outcome = |seed| {
        let device = device.copy(seed);
        device.cut_power();
        look(&device.process())
    };
    (0..300).map(outcome).collect()
}

#[test]
fn what_was_synced_survives() {
    let kept = outcomes(
        |_, file| {
            file.write_at(&[7; 3 * PAGE], 0).unwrap();
            file.sync_data().unwrap();
        },
        |files| content(files, "/file"),
    );
    assert_eq!(kept, BTreeSet::from([vec![7; 3 * PAGE]]));
}

#[test]
fn any_subset_of_unsynced_pages_survives() {
    let kept = outcomes(
        |_, file| {
            file.write_at(&[1; 2 * PAGE], 0).unwrap();
            file.sync_data().unwrap();
            file.write_at(&[2; 2 * PAGE], 0).unwrap();
        },
        |files| {
            let bytes = content(files, "/file");
            (bytes[PAGE - 1], bytes[PAGE])
        },
    );
    assert_eq!(kept, BTreeSet::from([(1, 1), (1, 2), (2, 1), (2, 2)]));
}

#[test]
fn sectors_of_a_page_tear_and_are_whole() {
    let kept = outcomes(
        |_, file| {
            file.write_at(&[1; PAGE], 0).unwrap();
            file.sync_data().unwrap();
            file.write_at(&[2; PAGE], 0).unwrap();
        },
        |files| content(files, "/file"),
    );
    let whole = |page: &Vec<u8>| page.chunks(512).all(|sector| sector == [sector[0]; 512]);
    assert!(kept.iter().all(whole));
    assert!(kept.len() > 10, "{} ways to tear", kept.len());
}

#[test]
fn a_state_of_a_page_between_two_writes_survives() {
    let kept = outcomes(
        |_, file| {
            for number in 1..4 {
                file.write_at(&[number; 100], 0).unwrap();
            }
        },
        |files| content(files, "/file").first().copied().unwrap_or_default(),
    );
    assert_eq!(kept, BTreeSet::from([0, 1, 2, 3]));
}

#[test]
fn the_length_has_grown_or_not() {
    let kept = outcomes(
        |_, file| file.write_at(&[1; 2 * PAGE], 0).unwrap(),
        |files| content(files, "/file").len(),
    );
    assert_eq!(kept, BTreeSet::from([0, PAGE, 2 * PAGE]));
    let kept = outcomes(
        |_, file| {
            file.set_length(100).unwrap();
            file.sync_data().unwrap();
        },
        |files| content(files, "/file").len(),
    );
    assert_eq!(kept, BTreeSet::from([100]));
}

#[test]
fn what_was_cut_off_comes_back_or_is_gone() {
    let kept = outcomes(
        |_, file| {
            file.write_at(&[1; PAGE], 0).unwrap();
            file.sync_data().unwrap();
            file.set_length(10).unwrap();
            file.set_length(20).unwrap();
        },
        |files| content(files, "/file"),
    );
    assert!(kept.contains(&vec![1; PAGE]));
    assert!(kept.contains(&[&[1; 10][..], &[0; 10]].concat()));
}

#[test]
fn unsynced_names_are_there_or_not() {
    let kept = outcomes(
        |files, _| {
            files.open(path("/a"), Access::Create).unwrap();
            files.open(path("/b"), Access::Create).unwrap();
        },
        |files| files.list(path("/")).unwrap().len(),
    );
    assert_eq!(kept, BTreeSet::from([1, 2, 3]));
}

#[test]
fn a_rename_is_atomic() {
    let kept = outcomes(
        |files, _| {
            make(files, "/old", b"old");
            make(files, "/new", b"new");
            files.rename(path("/new"), path("/old")).unwrap();
        },
        |files| (content(files, "/old"), files.kind(path("/new")).unwrap().is_some()),
    );
    assert_eq!(kept, BTreeSet::from([(b"old".to_vec(), true), (b"new".to_vec(), false)]));
}

#[test]
fn a_sync_of_either_directory_makes_a_rename_durable() {
    for synced in ["/from", "/to"] {
        let kept = outcomes(
            |files, _| {
                files.create_directory(path("/from")).unwrap();
                files.create_directory(path("/to")).unwrap();
                sync_names(files, "/");
                // Its first name is not durable by itself.
                files.open(path("/from/a"), Access::Create).unwrap();
                files.rename(path("/from/a"), path("/to/b")).unwrap();
                sync_names(files, synced);
            },
            |files| {
                let exists = |of| files.kind(path(of)).unwrap().is_some();
                (exists("/from/a"), exists("/to/b"))
            },
        );
        assert_eq!(kept, BTreeSet::from([(false, true)]), "{synced}");
    }
}

#[test]
fn a_sync_of_a_directory_leaves_other_names_undecided() {
    let kept = outcomes(
        |files, _| {
            files.create_directory(path("/in")).unwrap();
            files.open(path("/in/a"), Access::Create).unwrap();
            sync_names(files, "/");
        },
        |files| files.kind(path("/in/a")).unwrap().is_some(),
    );
    assert_eq!(kept, BTreeSet::from([false, true]));
}

#[test]
fn a_removed_file_comes_back_with_its_content_or_is_gone() {
    let kept = outcomes(
        |files, _| {
            make(files, "/a", b"kept");
            files.remove_file(path("/a")).unwrap();
        },
        |files| files.kind(path("/a")).unwrap().map(|_| content(files, "/a")),
    );
    assert_eq!(kept, BTreeSet::from([None, Some(b"kept".to_vec())]));
}

#[test]
fn a_hard_cut_leaves_only_what_was_synced() {
    let (device, files, file) = device();
    file.write_at(b"synced", 0).unwrap();
    file.sync_data().unwrap();
    file.write_at(b"unsynced", 0).unwrap();
    files.open(path("/new"), Access::Create).unwrap();
    device.cut_power_with(PowerCut::HARD);
    let files = device.process();
    assert_eq!(content(&files, "/file"), b"synced");
    assert_eq!(files.list(path("/")).unwrap().len(), 1);
    assert_eq!(device.state(), DeviceState::Synced);
    assert_eq!(device.visible_fingerprint(), device.durable_fingerprint());
}

#[test]
fn oracles_see_what_a_power_cut_may_change() {
    let (device, files, file) = device();
    files.create_directory(path("/in")).unwrap();
    sync_names(&files, "/");
    assert_eq!((device.unsynced(path("/")), device.state()), (Vec::new(), DeviceState::Synced));
    file.write_at(b"x", 0).unwrap();
    let dirty = Unsynced::Dirty { path: "/file".into() };
    assert_eq!((device.unsynced(path("/")), device.state()), (vec![dirty], DeviceState::Dirty));
    assert_eq!(device.unsynced(path("/in")), Vec::new());
    files.rename(path("/file"), path("/in/b")).unwrap();
    let name = |path: &str| Unsynced::Name { path: path.into() };
    let dirty = Unsynced::Dirty { path: "/in/b".into() };
    let expected = vec![dirty, name("/file"), name("/in/b")];
    assert_eq!((device.unsynced(path("/")), device.state()), (expected, DeviceState::Renamed));
    sync_names(&files, "/in");
    file.sync_data().unwrap();
    assert_eq!(device.unsynced(path("/")), Vec::new());
}

#[test]
fn a_survivor_up_to_a_place_keeps_the_order_of_writing() {
    let (device, _files, file) = device();
    file.write_at(&[0; 8 * PAGE], 0).unwrap();
    file.sync_data().unwrap();
    for page in 0..8 {
        file.write_at(&[1; PAGE], page * PAGE as u64).unwrap();
    }
    for end in 0..40 {
        let copy = device.copy(end);
        let pages = Survivors::Until(end);
        copy.cut_power_with(PowerCut { pages, ..PowerCut::HARD });
        let bytes = content(&copy.process(), "/file");
        let pages: Vec<u8> = bytes.chunks(PAGE).map(|page| page[0].max(page[PAGE - 1])).collect();
        assert!(pages.is_sorted_by(|one, two| one >= two), "{end}: {pages:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let run = |seed| {
        let (device, files, file) = device();
        for number in 0..20 {
            file.write_at(&[number; 3000], u64::from(number) * 1777).unwrap();
            files.open(path(&format!("/{number}")), Access::Create).unwrap();
        }
        let copy = device.copy(seed);
        copy.cut_power();
        (copy.visible_fingerprint(), device.visible_fingerprint(), device.durable_fingerprint())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).0, run(6).0);
}
