//! Replacing a store that cannot be used any more by a new one.
//!
//! The new store is written beside the old one and closed, so that it is complete before anything
//! is moved. Then one write makes it valid, and the old files are moved to a `before-*` directory.
//! `directory` describes the steps.

use super::directory::{Directory, FORMER_MAX, former_in};
use super::file_system::FsPath;
use super::files::io_error;
use super::rules::refuse;
use crate::node::stored::{HardState, Identity, SnapshotMeta};
use crate::storage::{DiskStore, LogStore, Result, StorageError, StoreOptions};

/// The marks of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) removed: Option<String>,
    pub(crate) quarantined: Option<String>,
}

/// Copies the store in `dir`, without its marks, to a directory that does not exist yet. `dir` is
/// locked during the copy, and nothing in it changes.
pub(crate) fn copy_store(dir: &FsPath, to: &FsPath) -> Result<Marks> {
    let directory = Directory::lock_used(dir)?;
    directory.copy_to(to)?;
    marks(&directory)
}

fn marks(directory: &Directory) -> Result<Marks> {
    Ok(Marks { removed: directory.removed()?, quarantined: directory.quarantined()? })
}

/// The identity in a directory, even if everything else is damaged; `None` if it is blank.
pub(crate) fn identity_of(dir: &FsPath) -> Result<Option<Identity>> {
    Ok(Directory::open_marked(dir)?.identity().cloned())
}

/// A store that will replace the one in a directory, which it keeps locked. Dropped before
/// [`Replacement::finish`], it changes nothing.
#[derive(Debug)]
pub(crate) struct Replacement {
    /// Closed before the directory is unlocked.
    store: Option<DiskStore>,
    directory: Directory,
}

impl Replacement {
    /// Locks `dir`, even if its content is damaged.
    pub(crate) fn begin(dir: &FsPath) -> Result<Replacement> {
        Ok(Replacement { store: None, directory: Directory::open_any(dir)? })
    }

    /// The directory's identity; `None` if it cannot be read.
    pub(crate) fn before(&self) -> Option<&Identity> {
        self.directory.identity()
    }

    /// Fails if there are too many former directories that must stay.
    pub(crate) fn check_room(&self) -> Result<()> {
        let former = self.directory.former()?.len();
        if self.directory.was_voter() || former < FORMER_MAX {
            return Ok(());
        }
        Err(StorageError::Io {
            what: format!(
                "this directory was replaced {former} times, and its instance could not vote in \
                 between: the disk may be bad"
            ),
            reason: "replace the disk, or remove those of the before-* directories in it that are \
                     not needed any more"
                .to_owned(),
        })
    }

    /// The directory's marks.
    pub(crate) fn marks(&self) -> Result<Marks> {
        marks(&self.directory)
    }

    /// Copies the store, without its marks, to a directory that does not exist yet.
    pub(crate) fn copy_to(&self, to: &FsPath) -> Result<()> {
        self.directory.copy_to(to)
    }

    /// Writes the new store.
    pub(crate) fn found(
        &mut self,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
        options: StoreOptions,
    ) -> Result<()> {
        let mut store = DiskStore::open(&self.directory.free_replacement_path()?, options)?;
        store.found(identity, hard_state, meta, chunks)?;
        self.store = Some(store);
        Ok(())
    }

    /// Puts the new store in place, durably. Returns the directory that the old files are in now.
    /// `directory` describes which former directories stay.
    pub(crate) fn finish(mut self) -> Result<FsPath> {
        if self.store.take().is_none() {
            return refuse("a replacement without a new store".to_owned());
        }
        self.directory.replace()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        self.store = None;
        // Removes the files that were written. If that fails, the next start removes them.
        let _ = self.directory.free_replacement_path();
    }
}

impl DiskStore {
    /// The directories with former data in a data directory.
    pub(crate) fn former(dir: &FsPath) -> Result<Vec<FsPath>> {
        former_in(dir).map_err(io_error("listing the directory"))
    }

    /// Replaces the store of a removed member, or a damaged one, by an empty one with a new id. The
    /// result is open and not loaded yet.
    ///
    /// The cluster, the uid and the address stay the same.
    pub(crate) fn found_replacement(
        dir: &FsPath,
        incarnation: u64,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
        options: StoreOptions,
    ) -> Result<DiskStore> {
        let mut replacement = Replacement::begin(dir)?;
        if replacement.marks()? == Marks::default() {
            return refuse("a replacement of a directory that may be sound".to_owned());
        }
        let Some(before) = replacement.before() else {
            return refuse("a replacement of a directory without a readable IDENTITY".to_owned());
        };
        let identity = before.with_incarnation(incarnation);
        replacement.found(&identity, hard_state, meta, chunks, options.clone())?;
        replacement.finish()?;
        DiskStore::open(dir, options)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::super::model::{Model, apply, entry, found, identity, promise};
    use super::*;
    use crate::node::stored::{LogWrite, Voting};
    use crate::storage::model;

    fn nothing() -> SnapshotMeta {
        SnapshotMeta { index: 0, term: 0, zxid: 0, hash: 7, voting: Voting::default() }
    }

    fn open(dir: &Path) -> Result<DiskStore> {
        DiskStore::open(&FsPath::system(dir), StoreOptions::default())
    }

    fn found_replacement(dir: &Path, incarnation: u64) -> Result<DiskStore> {
        let (hard_state, mut chunks) = (HardState::default(), vec![b"empty".to_vec()].into_iter());
        DiskStore::found_replacement(
            &FsPath::system(dir),
            incarnation,
            hard_state,
            &nothing(),
            &mut chunks,
            StoreOptions::default(),
        )
    }

    /// A member with a log and a promise, as it is before it is removed.
    fn member(dir: &Path) -> Model {
        let mut store = open(dir).unwrap();
        let mut model = found(&mut store).unwrap();
        let entries = vec![entry(1, 1, b"one"), entry(2, 1, b"two")];
        for op in [
            model::Op::Append(LogWrite { hard_state: None, entries }),
            model::Op::Promise(promise(2)),
        ] {
            let kind = apply(&mut store, &op).unwrap();
            model.apply(&op, kind);
        }
        model
    }

    /// The content of a replaced directory.
    fn replaced(incarnation: u64) -> Model {
        let founded = Model::founded(HardState::default(), &nothing(), &[b"empty".to_vec()]);
        Model { identity: identity().with_incarnation(incarnation), ..founded }
    }

    fn befores(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let names = entries.map(|name| name.to_str().unwrap().to_owned());
        names.filter(|name| name.starts_with("before-")).collect()
    }

    #[test]
    fn a_removed_members_store_is_replaced_and_its_former_data_kept() {
        let work = tempfile::tempdir().unwrap();
        let dir = work.path().join("data");
        let model = member(&dir);
        let error = found_replacement(&dir, 5).unwrap_err();
        assert!(error.to_string().contains("may be sound"), "{error}");
        let mut store = open(&dir).unwrap();
        assert_eq!(Model::of(&mut store).unwrap(), model);
        store.mark_removed().unwrap();
        drop(store);
        for _ in 0..2 {
            let error = open(&dir).unwrap_err();
            assert!(matches!(error, StorageError::Removed { .. }), "{error}");
        }
        assert_eq!(Model::of(&mut found_replacement(&dir, 5).unwrap()).unwrap(), replaced(5));
        let second = replaced(5);
        assert_ne!(second.identity.node, identity().node);
        assert_eq!((second.identity.uid, second.identity.cluster), (44, 11));
        assert_eq!(Model::of(&mut open(&dir).unwrap()).unwrap(), second);
        // The former data is complete, and there is one copy.
        assert_eq!(befores(&dir), [format!("before-{:016x}", identity().incarnation)]);
        let before = dir.join(&befores(&dir)[0]);
        assert!(matches!(open(&before), Err(StorageError::Removed { .. })));
        fs::remove_file(before.join("REMOVED")).unwrap();
        assert_eq!(Model::of(&mut open(&before).unwrap()).unwrap(), model);

        open(&dir).unwrap().mark_removed().unwrap();
        let third = identity().with_incarnation(6);
        assert_eq!(found_replacement(&dir, 6).unwrap().identity(), Some(&third));
        // The first directory has no mark any more, and the second member has never been a voter: both
        // directories are kept.
        let first = identity().incarnation;
        assert_eq!(befores(&dir), [5, first].map(|number| format!("before-{number:016x}")));
    }

    #[test]
    fn a_damaged_directory_is_replaced_if_its_identity_is_readable() {
        let work = tempfile::tempdir().unwrap();
        let dir = work.path().join("data");
        member(&dir);
        fs::remove_dir_all(dir.join("log")).unwrap();
        fs::write(dir.join("PROMISE"), b"nonsense").unwrap();
        assert!(matches!(open(&dir), Err(StorageError::Corrupt { .. })));
        assert_eq!(Model::of(&mut found_replacement(&dir, 5).unwrap()).unwrap(), replaced(5));

        let other = work.path().join("other");
        member(&other);
        fs::write(other.join("IDENTITY"), b"nonsense").unwrap();
        assert!(matches!(open(&other), Err(StorageError::Corrupt { .. })));
        let error = found_replacement(&other, 5).unwrap_err();
        assert!(error.to_string().contains("without a readable IDENTITY"), "{error}");
        assert!(befores(&other).is_empty());
    }

    /// Every state that a crash in the middle of the moves can leave, in both of the orders in
    /// which the entries of a directory may be moved.
    #[test]
    fn a_crash_during_a_replacement_leaves_the_old_or_the_new_store() {
        let work = tempfile::tempdir().unwrap();
        let removed = work.path().join("removed");
        member(&removed);
        open(&removed).unwrap().mark_removed().unwrap();
        let copy = |number: &mut u32| -> PathBuf {
            *number += 1;
            let to = work.path().join(format!("case-{number}"));
            super::super::crash_tests::copy_directory(&removed, &to);
            to
        };
        let make = |dir: &Path| {
            let mut replacement = Replacement::begin(&FsPath::system(dir)).unwrap();
            let identity = replacement.before().unwrap().with_incarnation(5);
            let mut chunks = vec![b"empty".to_vec()].into_iter();
            let hard_state = HardState::default();
            replacement
                .found(&identity, hard_state, &nothing(), &mut chunks, StoreOptions::default())
                .unwrap();
            // As after a crash: the new directory stays.
            drop(replacement.store.take());
            super::super::crash_tests::copy_directory(&dir.join("anew"), &dir.join("made"));
            drop(replacement);
            fs::rename(dir.join("made"), dir.join("anew")).unwrap();
        };
        let names = |dir: &Path, reverse: bool| {
            let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = entries
                .filter(|name| !["LOCK", "anew", "ANEW"].contains(&name.to_str().unwrap()))
                .collect();
            names.sort();
            if reverse {
                names.reverse();
            }
            names
        };
        let mut number = 0;
        // Before the replacement is valid.
        let dir = copy(&mut number);
        make(&dir);
        assert!(matches!(open(&dir), Err(StorageError::Removed { .. })));
        assert_eq!(Model::of(&mut found_replacement(&dir, 5).unwrap()).unwrap(), replaced(5));
        for reverse in [false, true] {
            for cleared in [false, true] {
                for moved in 0..20 {
                    let dir = copy(&mut number);
                    make(&dir);
                    let before = dir.join("before-0000000000000021");
                    let mark = |cleared| {
                        super::super::directory::write_replacement_progress(&dir, &before, cleared);
                    };
                    mark(false);
                    let all = names(&dir, reverse);
                    let (from, to) = if cleared {
                        fs::create_dir(&before).unwrap();
                        for name in &all {
                            fs::rename(dir.join(name), before.join(name)).unwrap();
                        }
                        mark(true);
                        (dir.join("anew"), dir.clone())
                    } else {
                        if moved > 0 {
                            fs::create_dir(&before).unwrap();
                        }
                        (dir.clone(), before.clone())
                    };
                    let mut left = names(&from, reverse);
                    left.retain(|name| !name.to_str().unwrap().starts_with("before-"));
                    let end = moved > left.len();
                    for name in left.into_iter().take(moved) {
                        fs::rename(from.join(&name), to.join(&name)).unwrap();
                    }
                    let mut store = open(&dir).unwrap();
                    assert_eq!(Model::of(&mut store).unwrap(), replaced(5), "{cleared} {moved}");
                    assert_eq!(names(&before, reverse), all, "{cleared} {moved}");
                    assert!(!dir.join("ANEW").exists() && !dir.join("anew").exists());
                    if end {
                        break;
                    }
                }
            }
        }
    }
}
