//! The rooms of `storage`: its files and folders have an order, and each uses only what is below it.
//!
//! A name that a `mod.rs` passes on leads to the file that has it, so an arrow that goes up by way of `storage/mod.rs`
//! is seen, too. That file is the door: it passes on what others use, and has nothing of its own.

use std::path::{Path, PathBuf};

use crate::circles::{reached, uses};

/// From top to bottom. A folder is one room, with the file of its name.
const ORDER: &[&str] = &[
    "provisional",
    "replacement",
    "salvage",
    "store",
    "opening",
    "memory",
    "directory",
    "log",
    "checkpoint",
    "sealing",
    "frame",
    "options",
    "rules",
    "contract",
    "file_system",
    "bytes",
    "error",
];

/// The place of a file in the order, from the top.
fn rank(file: &Path) -> usize {
    let within = file.strip_prefix("storage").expect("only files of storage have a place");
    let room = within.iter().next().map(Path::new).and_then(Path::file_stem);
    let place = ORDER.iter().position(|name| room == Some(name.as_ref()));
    // The door is above all.
    place.map_or(0, |place| place + 1)
}

fn is_storage(file: &Path) -> bool {
    file.starts_with("storage")
}

#[test]
fn rooms_of_storage_use_what_is_below_them() {
    let uses = uses();
    let files = uses.keys().filter(|file| is_storage(file) && *file != Path::new("storage/mod.rs"));
    let mut upward: Vec<(&PathBuf, &PathBuf)> = Vec::new();
    for file in files.clone() {
        assert!(rank(file) > 0, "{} has no place in the order", file.display());
        let used = uses[file].iter().filter(|used| is_storage(used));
        upward.extend(used.filter(|used| rank(used) < rank(file)).map(|used| (file, used)));
    }
    assert!(files.count() > ORDER.len(), "too few files were read");
    assert!(upward.is_empty(), "{} uses go upward: {upward:#?}", upward.len());
}

/// Within a room, too: a `mod.rs` that has something of its own is above all files of its room, or below them. The
/// simulated file system is no part of a store, and its files share one state.
#[test]
fn no_files_of_storage_use_each_other() {
    let uses = uses();
    let is_simulated = |file: &PathBuf| file.starts_with("storage/file_system/simulated");
    let files = uses.keys().filter(|file| is_storage(file) && !is_simulated(file));
    let in_circle: Vec<&PathBuf> =
        files.filter(|file| reached(file, &uses).contains(*file)).collect();
    assert!(in_circle.is_empty(), "these files use each other: {in_circle:#?}");
}
