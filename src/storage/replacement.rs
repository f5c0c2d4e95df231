//! Replacing a store that cannot be used any more by a new one.
//!
//! The new incarnation is written beside the old one and closed, so that it is complete before one write
//! makes it the current one. `directory` describes the steps.

use std::path::Path;

use super::directory::incarnation::{Incarnation, Sound, is_removed};
use super::directory::{Directory, FORMER_MAX, former_in, is_used};
use super::error::{guarded, refuse};
use super::file_system::FsPath;
use super::sealing::Sealing;
use super::store::Live;
use crate::node::stored::{HardState, Identity, SnapshotMeta};
use crate::storage::error::{Result, StorageError};
use crate::storage::options::StoreOptions;
use crate::storage::store::DiskStore;

/// The marks of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) removed: Option<String>,
    pub(crate) quarantined: Option<String>,
    /// Why no member continues with a log that is elsewhere: damage, or it is not there.
    pub(crate) log: Option<StorageError>,
}

/// Copies the store in `dir`, without its marks, to a directory that does not exist yet. `dir` is a data
/// directory, or that of an incarnation in it. It is locked during the copy, and nothing in it changes. A log
/// that is elsewhere is looked for in `log_dir` first; in the copy, it is within, unless it is not found: see the
/// marks.
pub(crate) fn copy_store(dir: &FsPath, to: &FsPath, log_dir: Option<&Path>) -> Result<Marks> {
    if !is_used(dir)? {
        return Err(StorageError::Io {
            what: "reading the directory".to_owned(),
            reason: "it is no data directory: it has no CURRENT".to_owned(),
        });
    }
    let directory = Directory::open_damaged(dir, Sound::Nothing, log_dir)?;
    directory.copy_to(to)?;
    marks(&directory)
}

fn marks(directory: &Directory) -> Result<Marks> {
    let removed = directory.current().map(Incarnation::removed).transpose()?.flatten();
    let log = directory.current().and_then(Incarnation::log_fault);
    Ok(Marks { removed, quarantined: directory.quarantined()?, log })
}

/// The identity in a directory, even if everything else is damaged; `None` if it is blank.
pub(crate) fn identity_of(dir: &FsPath) -> Result<Option<Identity>> {
    Ok(Directory::open_damaged(dir, Sound::Identity, None)?.identity().cloned())
}

/// An incarnation that will replace the current one of a directory, which it keeps locked. Dropped before
/// [`Replacement::finish`], it changes nothing.
#[derive(Debug)]
pub(crate) struct Replacement {
    options: StoreOptions,
    new: Option<Incarnation>,
    directory: Directory,
}

impl Replacement {
    /// Locks `dir`, even if its content is damaged. `dir` is a data directory, or that of an incarnation
    /// in it.
    pub(crate) fn begin(dir: &FsPath, options: StoreOptions) -> Result<Replacement> {
        let log_dir = options.log_dir.as_deref();
        let directory = Directory::open_damaged(dir, Sound::Nothing, log_dir)?;
        Ok(Replacement { options, new: None, directory })
    }

    /// The data directory.
    pub(crate) fn dir(&self) -> &FsPath {
        self.directory.path()
    }

    /// The directory's identity; `None` if it cannot be read.
    pub(crate) fn before(&self) -> Option<&Identity> {
        self.directory.identity()
    }

    /// Fails if there are too many former directories that must stay, or if the directory for the new log is
    /// missing.
    pub(crate) fn check_room(&self) -> Result<()> {
        self.directory.new_log_dir()?;
        let former = self.directory.former()?.len();
        let was_voter = self.directory.current().is_some_and(Incarnation::was_voter);
        if was_voter || former < FORMER_MAX {
            return Ok(());
        }
        Err(StorageError::Io {
            what: format!(
                "this directory was replaced {former} times, and its instance could not vote in \
                 between: the disk may be bad"
            ),
            reason:
                "replace the disk, or remove those of the former incarnation-* directories in it \
                     that are not needed any more"
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

    /// Writes the new incarnation.
    pub(crate) fn found(
        &mut self,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<()> {
        let mut new = self.directory.begin(identity)?;
        let options = self.options.clone();
        let sealing = Sealing::create_keys(new.path(), options.keys.as_ref())?;
        guarded(|| Live::found(&mut new, identity, hard_state, meta, chunks, options, sealing))?;
        self.new = Some(new);
        Ok(())
    }

    /// Makes the new incarnation the current one, durably. Returns the directory of the one before, if
    /// there was one. `directory` describes which former ones stay.
    pub(crate) fn finish(mut self) -> Result<Option<FsPath>> {
        match self.new.take() {
            Some(new) => self.directory.switch_to(new),
            None => refuse("a replacement without a new store".to_owned()),
        }
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // Unlocks its log.
        self.new = None;
        // Removes the files that were written. If that fails, the next start removes them.
        let _ = self.directory.remove_leftovers();
    }
}

impl DiskStore {
    /// The directories with former data in a data directory.
    pub(crate) fn former(dir: &FsPath) -> Result<Vec<FsPath>> {
        former_in(dir)
    }

    /// Whether such a directory is that of a member that was removed, and not a damaged one.
    pub(crate) fn was_removed(former: &FsPath) -> bool {
        is_removed(former)
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
        let mut replacement = Replacement::begin(dir, options.clone())?;
        // An absent log is no reason.
        let Marks { removed, quarantined, .. } = replacement.marks()?;
        if removed.is_none() && quarantined.is_none() {
            return refuse("a replacement of a directory that may be sound".to_owned());
        }
        let Some(before) = replacement.before() else {
            return refuse("a replacement of a directory without a readable IDENTITY".to_owned());
        };
        let identity = before.with_incarnation(incarnation);
        replacement.found(&identity, hard_state, meta, chunks)?;
        replacement.finish()?;
        DiskStore::open(dir, options)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::super::crash_tests::copy_directory;
    use super::super::model::{Model, apply, entry, found, identity, promise};
    use super::*;
    use crate::node::stored::{LogWrite, Voting};
    use crate::storage::contract::LogStore;
    use crate::storage::model;
    use crate::storage::simulated::{Device, Fault, FaultKind, ProcessFiles};

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

    fn former(dir: &Path) -> Vec<PathBuf> {
        let former = DiskStore::former(&FsPath::system(dir)).unwrap();
        former.iter().map(|former| former.path().to_owned()).collect()
    }

    fn named(dir: &Path, incarnation: u64) -> PathBuf {
        dir.join(format!("incarnation-{incarnation:016x}"))
    }

    /// A data directory with a copy of this incarnation, without marks.
    fn copied(incarnation: &Path, to: &Path) -> Model {
        copy_store(&FsPath::system(incarnation), &FsPath::system(to), None).unwrap();
        Model::of(&mut open(to).unwrap()).unwrap()
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
        // The former data is complete, and stays where it was.
        let first = named(&dir, identity().incarnation);
        assert_eq!(former(&dir), [first.as_path()]);
        assert!(DiskStore::was_removed(&FsPath::system(&first)), "it was not damaged");
        assert_eq!(copied(&first, &work.path().join("first")), model);

        open(&dir).unwrap().mark_removed().unwrap();
        let third = identity().with_incarnation(6);
        assert_eq!(found_replacement(&dir, 6).unwrap().identity(), Some(&third));
        // The first member was removed, too: only the second is kept.
        assert_eq!(former(&dir), [named(&dir, 5)]);
        fs::remove_file(named(&dir, 5).join("REMOVED")).unwrap();
        open(&dir).unwrap().mark_removed().unwrap();
        found_replacement(&dir, 7).unwrap();
        // The second has no mark any more, and the third was never a voter: both are kept.
        assert_eq!(former(&dir), [5, 6].map(|number| named(&dir, number)));
    }

    #[test]
    fn a_damaged_directory_is_replaced_if_its_identity_is_readable() {
        let work = tempfile::tempdir().unwrap();
        let dir = work.path().join("data");
        member(&dir);
        let first = named(&dir, identity().incarnation);
        fs::remove_dir_all(first.join("log")).unwrap();
        fs::write(first.join("PROMISE"), b"nonsense").unwrap();
        assert!(matches!(open(&dir), Err(StorageError::Corrupt { .. })));
        assert_eq!(Model::of(&mut found_replacement(&dir, 5).unwrap()).unwrap(), replaced(5));

        let other = work.path().join("other");
        member(&other);
        fs::write(named(&other, identity().incarnation).join("IDENTITY"), b"nonsense").unwrap();
        assert!(matches!(open(&other), Err(StorageError::Corrupt { .. })));
        let error = found_replacement(&other, 5).unwrap_err();
        assert!(error.to_string().contains("without a readable IDENTITY"), "{error}");
        assert!(former(&other).is_empty());
    }

    /// Every state that a crash in the middle of a replacement can leave.
    #[test]
    fn a_crash_during_a_replacement_leaves_the_old_or_the_new_store() {
        let work = tempfile::tempdir().unwrap();
        let removed = work.path().join("removed");
        member(&removed);
        open(&removed).unwrap().mark_removed().unwrap();
        let (old, new) = (identity().incarnation, 5);
        let done = work.path().join("done");
        copy_directory(&removed, &done);
        drop(found_replacement(&done, new).unwrap());
        let pointer = |dir: &Path| dir.join("CURRENT");
        // The new incarnation is not complete, or complete; `CURRENT` does not name it, or names it.
        for (is_complete, is_current) in [(false, false), (true, false), (true, true)] {
            let dir = work.path().join(format!("{is_complete}-{is_current}"));
            copy_directory(&done, &dir);
            fs::write(named(&dir, new).join("NEW"), b"not in use yet").unwrap();
            if !is_complete {
                fs::remove_file(named(&dir, new).join("IDENTITY")).unwrap();
            }
            if is_current {
                assert_eq!(Model::of(&mut open(&dir).unwrap()).unwrap(), replaced(new));
                assert!(!named(&dir, new).join("NEW").exists());
                assert_eq!(former(&dir), [named(&dir, old)]);
                continue;
            }
            fs::copy(pointer(&removed), pointer(&dir)).unwrap();
            assert!(matches!(open(&dir), Err(StorageError::Removed { .. })));
            assert!(former(&dir).is_empty());
            assert_eq!(Model::of(&mut found_replacement(&dir, 6).unwrap()).unwrap(), replaced(6));
            assert!(!named(&dir, new).exists());
        }
    }

    #[test]
    fn a_replacement_that_does_not_finish_changes_nothing() {
        let work = tempfile::tempdir().unwrap();
        let dir = work.path().join("data");
        let model = member(&dir);
        let options = StoreOptions::default();
        let mut replacement = Replacement::begin(&FsPath::system(&dir), options).unwrap();
        let identity = replacement.before().unwrap().with_incarnation(5);
        let mut chunks = vec![b"empty".to_vec()].into_iter();
        replacement.found(&identity, HardState::default(), &nothing(), &mut chunks).unwrap();
        assert!(named(&dir, 5).join("IDENTITY").exists());
        drop(replacement);
        assert!(!named(&dir, 5).exists());
        assert_eq!(Model::of(&mut open(&dir).unwrap()).unwrap(), model);
    }

    /// What is recovered may be a former incarnation. The current one is later, and was removed with the others.
    #[test]
    fn a_former_incarnation_is_recovered_and_the_current_one_stays() {
        let work = tempfile::tempdir().unwrap();
        let dir = work.path().join("data");
        member(&dir);
        let first = named(&dir, identity().incarnation);
        open(&dir).unwrap().mark_removed().unwrap();
        drop(found_replacement(&dir, 5).unwrap());
        fs::write(first.join("VOTER"), "a voter").unwrap();
        let options = StoreOptions::default();
        let begin = || Replacement::begin(&FsPath::system(&first), options.clone()).unwrap();
        // As after a crash right behind the write of `CURRENT`.
        fs::write(named(&dir, 5).join("NEW"), "not in use yet").unwrap();
        drop(begin());
        assert!(named(&dir, 5).exists());
        fs::remove_file(named(&dir, 5).join("NEW")).unwrap();
        let mut replacement = begin();
        assert_eq!(replacement.dir().path(), dir);
        let identity = replacement.before().unwrap().with_incarnation(6);
        let mut chunks = vec![b"empty".to_vec()].into_iter();
        replacement.found(&identity, HardState::default(), &nothing(), &mut chunks).unwrap();
        assert_eq!(replacement.finish().unwrap().unwrap().path(), first);
        assert_eq!(former(&dir), [named(&dir, 5), first.clone()]);
        assert_eq!(open(&dir).unwrap().identity(), Some(&identity));
        // The directory of an incarnation is none of a member.
        let error = open(&first).unwrap_err();
        assert!(error.to_string().contains("within the data directory"), "{error}");
    }

    #[test]
    fn a_lost_incarnation_is_replaced() {
        let work = tempfile::tempdir().unwrap();
        let dir = work.path().join("data");
        member(&dir);
        fs::rename(named(&dir, identity().incarnation), work.path().join("lost")).unwrap();
        assert!(matches!(open(&dir), Err(StorageError::Corrupt { .. })));
        let options = StoreOptions::default();
        let mut replacement = Replacement::begin(&FsPath::system(&dir), options).unwrap();
        assert!(replacement.before().is_none());
        let mut chunks = vec![b"empty".to_vec()].into_iter();
        let hard_state = HardState::default();
        replacement.found(&identity(), hard_state, &nothing(), &mut chunks).unwrap();
        // The mark of damage goes with what is damaged: nobody goes on with that.
        assert!(dir.join("QUARANTINED").exists());
        replacement.finish().unwrap();
        assert!(!dir.join("QUARANTINED").exists());
        assert_eq!(open(&dir).unwrap().identity(), Some(&identity()));
    }

    /// Whatever fails after `CURRENT` has its new name, what it names stays.
    #[test]
    fn a_replacement_that_a_failed_sync_ends_leaves_what_current_names() {
        for call in 0..200 {
            let device = Device::new(call);
            let files = device.process();
            let path =
                |files: &ProcessFiles| FsPath::new(Arc::new(files.clone()), Path::new("/data"));
            let mut store = DiskStore::open(&path(&files), StoreOptions::default()).unwrap();
            found(&mut store).unwrap();
            store.mark_removed().unwrap();
            drop(store);
            device.inject(Fault { after: call, kind: FaultKind::FailedSync });
            let (mut chunks, hard_state) =
                (vec![b"empty".to_vec()].into_iter(), HardState::default());
            let options = StoreOptions::default();
            let _ = DiskStore::found_replacement(
                &path(&files),
                5,
                hard_state,
                &nothing(),
                &mut chunks,
                options,
            );
            device.disarm();
            files.end_process();
            let opened = DiskStore::open(&path(&device.process()), StoreOptions::default());
            assert!(matches!(opened, Ok(_) | Err(StorageError::Removed { .. })), "{opened:?}");
        }
    }

    /// Links are removed, and not what they lead to.
    #[cfg(unix)]
    #[test]
    fn a_link_is_removed_and_what_it_leads_to_stays() {
        use std::os::unix::fs::symlink;
        let work = tempfile::tempdir().unwrap();
        let (dir, precious) = (work.path().join("data"), work.path().join("precious"));
        member(&dir);
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("thesis"), "x").unwrap();
        symlink(&precious, dir.join("mine.tmp")).unwrap();
        let log = named(&dir, identity().incarnation).join("log");
        fs::rename(&log, work.path().join("moved")).unwrap();
        symlink(work.path().join("moved"), &log).unwrap();
        for incarnation in 5..8 {
            open(&dir).unwrap().mark_removed().unwrap();
            Model::of(&mut found_replacement(&dir, incarnation).unwrap()).unwrap();
        }
        assert!(precious.join("thesis").exists() && dir.join("mine.tmp").exists());
        assert!(work.path().join("moved/witness").exists() && !log.exists());
    }

    #[test]
    fn other_names_in_a_data_directory_are_left_alone() {
        let work = tempfile::tempdir().unwrap();
        let dir = work.path().join("data");
        member(&dir);
        let first = named(&dir, identity().incarnation);
        fs::write(first.with_extension("tar.gz"), "an archive").unwrap();
        copy_directory(&first, &first.with_extension("bak"));
        open(&dir).unwrap().mark_removed().unwrap();
        drop(found_replacement(&dir, 5).unwrap());
        assert_eq!(former(&dir), [first.as_path()]);
        assert!(first.with_extension("tar.gz").exists() && first.with_extension("bak").exists());
    }
}
