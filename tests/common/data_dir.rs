//! What is in a data directory.

use std::fs;
use std::path::{Path, PathBuf};

const PREFIX: &str = "incarnation-";

/// The directory of the current incarnation.
pub(crate) fn current(dir: &Path) -> PathBuf {
    let pointer = fs::read(dir.join("CURRENT")).unwrap();
    let pointer = String::from_utf8_lossy(&pointer).into_owned();
    let start = pointer.find(PREFIX).unwrap();
    dir.join(&pointer[start..start + PREFIX.len() + 16])
}

/// The names of the directories of former incarnations.
pub(crate) fn former(dir: &Path) -> Vec<String> {
    let current = current(dir);
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = paths
        .filter(|path| *path != current)
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .filter(|name| name.starts_with(PREFIX))
        .collect();
    names.sort();
    names
}
