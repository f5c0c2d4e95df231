//! Damages files one at a time: a flipped bit, a cut, zeros, or removal.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::model::{Model, Random, found};
use super::super::{DiskStore, FsPath};
use super::{Script, Seen, copy_directory, count, open_and_load, open_in_child, options};

const DAMAGE_SEED: u64 = 77;

/// Every file below a directory, except `LOCK`, which is always empty.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if !path.ends_with("LOCK") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Damages one file. Returns a description of the damage.
fn damage(random: &mut Random, dir: &Path) -> String {
    let files = files(dir);
    let chunks = files.iter().find(|path| path.ends_with("chunks")).unwrap();
    let path =
        if random.chance(40) { chunks } else { &files[random.below(files.len() as u64) as usize] };
    let mut bytes = fs::read(path).unwrap();
    let place = random.below(bytes.len() as u64) as usize;
    let name = path.strip_prefix(dir).unwrap().display();
    match random.below(10) {
        0..=4 if !bytes.is_empty() => {
            let bit = random.below(8);
            bytes[place] ^= 1 << bit;
            fs::write(path, &bytes).unwrap();
            format!("{name}: bit {bit} of byte {place}")
        }
        0..=6 => {
            bytes.truncate(place);
            fs::write(path, &bytes).unwrap();
            format!("{name}: cut to {place}")
        }
        7 | 8 => {
            let end = bytes.len().min(place + 4096);
            bytes[place..end].fill(0);
            fs::write(path, &bytes).unwrap();
            format!("{name}: zeros from {place} to {end}")
        }
        _ => {
            fs::remove_file(path).unwrap();
            format!("{name}: removed")
        }
    }
}

#[test]
fn damage_is_refused_or_harmless() {
    damages("clear");
}

#[test]
fn damage_is_refused_or_harmless_when_sealed() {
    damages(super::SEALED);
}

fn damages(kind: &str) {
    let temporary = tempfile::tempdir().unwrap();
    let work = temporary.path().join(kind);
    // Stores of different ages. Every other one was reopened, which makes sled write a snapshot.
    let mut stores = Vec::new();
    for number in 0..4_u64 {
        let dir = work.join(format!("store-{number}"));
        let mut script = Script::new(DAMAGE_SEED + number);
        let mut store = DiskStore::open(&FsPath::system(&dir), options(&dir)).unwrap();
        found(&mut store).unwrap();
        for step in 0..15 + 12 * number {
            script.perform(&mut store, |_| {});
            if number % 2 == 1 && step % 10 == 9 {
                drop(store);
                store = DiskStore::open(&FsPath::system(&dir), options(&dir)).unwrap();
                assert_eq!(Model::of(&mut store).unwrap(), script.model);
            }
        }
        drop(store);
        stores.push((dir, script));
    }
    let mut random = Random(DAMAGE_SEED);
    let (mut refused, mut harmless) = (0, 0);
    for case in 0..count("QUORATE_CRASH_DAMAGES", 150) {
        let (store, script) = &stores[case as usize % stores.len()];
        let dir = work.join("damaged");
        copy_directory(store, &dir);
        let what = damage(&mut random, &dir);
        // In a process of its own: a panic in a thread of sled would affect the next case.
        let seen = open_in_child(std::slice::from_ref(&dir)).remove(0);
        match &seen {
            Seen::Digest(digest) => {
                assert_eq!(*digest, script.model.digest(), "case {case}: {what}");
                harmless += 1;
            }
            Seen::Error(error) => {
                // Damage is never taken for a wrong key.
                assert!(!error.contains("decrypt"), "case {case}: {what}: {error}");
                refused += 1;
            }
            Seen::Blank | Seen::Nothing => panic!("case {case}: {what}: {seen:?}"),
        }
        if dir.join("QUARANTINED").exists() {
            let again = open_and_load(&dir);
            assert!(matches!(again, Seen::Error(_)), "case {case}: {what}: {again:?}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
    println!("{refused} refused, {harmless} harmless");
    assert!(refused > 0 && harmless > 0);
}
