//! The data directory: its lock, and which incarnation of the member is the current one. [`incarnation`] is the
//! directory of one.
//!
//! | name             | what it is                                                    |
//! |------------------|---------------------------------------------------------------|
//! | `LOCK`           | empty, locked for as long as the store is open                |
//! | `CURRENT`        | a frame with the name of the current incarnation's directory  |
//! | `incarnation-*/` | the data of an incarnation, see `incarnation`                 |
//! | `QUARANTINED`    | why the current incarnation was found damaged; text           |
//! | `*.tmp`          | a file about to be renamed, or left over from a crash         |
//!
//! An incarnation is made beside the current one, under the mark `NEW`. When it is complete, `CURRENT`
//! names it, and then the mark goes. So a crash leaves either the former or the new incarnation, nothing
//! has to be moved, and the former data stays where it was. An incarnation that has the mark and that
//! `CURRENT` does not name is left over from a crash.
//!
//! A directory without `CURRENT` is blank if all its incarnations have the mark. If it holds anything
//! that a data directory does not, it is refused.
//!
//! `QUARANTINED` records a failed check and forbids nothing. Every open runs all checks again, and
//! [`load`](crate::storage::LogStore::load) removes the mark when they all pass. The checks cover the vote
//! and the last acknowledged record (see `log::witness`), so a start may rely on them.
//!
//! # Former data
//!
//! A former incarnation may be the last copy of its data. The next one removes earlier ones only if the
//! incarnation before it has the mark `VOTER`: then this instance has been a voter since, and as a voter
//! had everything that was acknowledged. One with the mark `REMOVED` is removed in any case: its cluster
//! continues without it. So in the long run there is one, and one more for each damage found before this
//! instance could vote again. [`FORMER_MAX`] bounds their number.
//!
//! Not here: what is in a log and in a checkpoint (`log`, `checkpoint`), and in which order a directory is made and
//! replaced (`store`, `replacement`).

pub(super) mod incarnation;

use std::io;
use std::path::Path;

use self::incarnation::{Incarnation, Sound};
use crate::node::stored::Identity;
use crate::storage::checkpoint::generation::Generation;
use crate::storage::error::{Result, StorageError};
use crate::storage::error::{corrupt, io_error, refuse};
use crate::storage::file_system::{FsPath, Lock};
use crate::storage::frame::{self, Format};
use crate::storage::log::place;
use crate::storage::rules::drops_former;
use crate::types::membership::{Ballot, Promise};
use crate::types::version::FORMATS;

const LOCK: &str = "LOCK";
/// With the number of all formats, on which what is in the directory depends.
const CURRENT: Format = Format { name: "CURRENT", magic: b"qrcurre\n", number: FORMATS as u32 };
const QUARANTINED: &str = "QUARANTINED";
/// No further incarnation is made if this many former ones have to stay.
pub(super) const FORMER_MAX: usize = 8;
/// The directory for files that a repair of the file system found, in the root of each volume.
const LOST_AND_FOUND: &str = "lost+found";

/// A locked data directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: FsPath,
    current: Option<Incarnation>,
    /// Whether `CURRENT` may name another one than `current`: then nothing is removed.
    is_unsure: bool,
    /// The directory for logs of the settings.
    log_dir: Option<FsPath>,
    /// Unlocks the directory when it is closed, after the rest of the store.
    _lock: Box<dyn Lock>,
}

impl Directory {
    /// Creates the directory if necessary, locks it, and opens its current incarnation. Fails if that has its
    /// log in another directory than `log_dir`.
    pub(super) fn open(path: &FsPath, log_dir: Option<&Path>) -> Result<Directory> {
        if let Some(log_dir) = log_dir {
            // Before anything is made.
            place::check(&place::canonical(&path.at(log_dir.to_owned()))?, path)?;
        }
        let mut directory = Directory::lock(path, log_dir)?;
        match directory.open_current() {
            Ok(()) => Ok(directory),
            Err(error) => Err(directory.quarantine_if_corrupt(error)),
        }
    }

    fn open_current(&mut self) -> Result<()> {
        let Some(name) = CURRENT.read::<String>(&self.path)? else {
            let found = incarnations_in(&self.path).map_err(io_error("listing the directory"))?;
            return match found.is_empty() {
                true => Ok(()),
                false => corrupt("CURRENT is missing, and the directory was in use".to_owned()),
            };
        };
        let path = self.path.join(name);
        if let Some(log_dir) = &self.log_dir
            && !incarnation::is_removed(&path)
        {
            incarnation::check_log_dir(&path, log_dir)?;
        }
        let current = Incarnation::open(path, Sound::All, None)?;
        current.sync_log()?;
        current.mark_current()?;
        self.current = Some(current);
        Ok(())
    }

    /// As [`Directory::open`], for a directory that may have the marks of damage or removal, and sets no
    /// mark. Only what `sound` asks for has to be sound. `path` may also be the directory of an
    /// incarnation within a data directory, which stands for the current one then. A log that is elsewhere is
    /// looked for in `log_dir` first.
    pub(super) fn open_damaged(
        path: &FsPath,
        sound: Sound,
        log_dir: Option<&Path>,
    ) -> Result<Directory> {
        let (path, name) = located(path);
        let mut directory = Directory::lock(&path, log_dir)?;
        let named = CURRENT.read::<String>(&path);
        if let Err(error @ StorageError::Version { .. }) = named {
            // Nothing there is damaged.
            return Err(error);
        }
        directory.is_unsure = name.is_some() && named.as_ref() != Ok(&name);
        let mut current = match name {
            Some(name) => Some(path.join(name)),
            None => match current_in(&path) {
                Err(StorageError::Corrupt { .. }) if sound == Sound::Nothing => None,
                other => other?,
            },
        };
        if sound == Sound::Nothing
            && let Some(named) = &current
            && !named.try_exists().map_err(io_error("looking for the incarnation"))?
        {
            current = None;
        }
        let log_dir = directory.log_dir.as_ref();
        let open = |current| Incarnation::open(current, sound, log_dir);
        directory.current = current.map(open).transpose()?;
        Ok(directory)
    }

    fn lock(path: &FsPath, log_dir: Option<&Path>) -> Result<Directory> {
        let log_dir = log_dir.map(|log_dir| path.at(log_dir.to_owned()));
        let log_dir = log_dir.map(|log_dir| place::canonical(&log_dir)).transpose()?;
        path.create_directory().map_err(io_error("creating the directory"))?;
        // Before the lock file, so that nothing is created in a directory of another program.
        if !has_data(path)? {
            refuse_foreign(path)?;
        }
        let lock = path.join(LOCK).lock()?;
        // As in `Incarnation::open`.
        path.sync_names().map_err(io_error("syncing the directory"))?;
        path.sync_own_name().map_err(io_error("syncing the names of the directory"))?;
        Ok(Directory { path: path.clone(), current: None, is_unsure: false, log_dir, _lock: lock })
    }

    pub(super) fn path(&self) -> &FsPath {
        &self.path
    }

    /// The current incarnation, unless the directory is blank.
    pub(super) fn current(&self) -> Option<&Incarnation> {
        self.current.as_ref()
    }

    /// The current incarnation. Fails if the directory is blank.
    pub(super) fn owned(&mut self) -> Result<&mut Incarnation> {
        match &mut self.current {
            Some(current) => Ok(current),
            None => refuse("the store is blank".to_owned()),
        }
    }

    /// The identity of the current incarnation, if it can be read.
    pub(super) fn identity(&self) -> Option<&Identity> {
        self.current.as_ref().and_then(Incarnation::identity)
    }

    pub(super) fn promise(&self) -> &Promise {
        static NONE: Promise = Promise { ballot: Ballot { round: 0, proposer: 0 }, pledge: None };
        self.current.as_ref().map_or(&NONE, Incarnation::promise)
    }

    /// The directory for the log of a further incarnation: that of the settings, or that of the current one.
    pub(super) fn new_log_dir(&self) -> Result<Option<FsPath>> {
        let current = self.current.as_ref().map(Incarnation::path);
        let recorded = match current.map(place::recorded_log_dir).transpose() {
            Err(StorageError::Corrupt { .. }) => None,
            recorded => recorded?.flatten(),
        };
        let Some(log_dir) = self.log_dir.as_ref().or(recorded.as_ref()) else { return Ok(None) };
        place::check(&place::canonical(log_dir)?, &self.path)?;
        if let Some(current) = current {
            incarnation::check_mounted(current, log_dir)?;
        }
        Ok(Some(log_dir.clone()))
    }

    /// Why the directory was found damaged, if it was.
    pub(super) fn quarantined(&self) -> Result<Option<String>> {
        frame::read_mark(&self.path, QUARANTINED)
    }

    /// Removes the mark of damage, durably: all checks have passed since.
    pub(super) fn clear_quarantined(&self) -> Result<()> {
        frame::remove_file(&self.path, QUARANTINED)
    }

    /// Marks the directory as damaged if this error reports damage. Returns the error.
    ///
    /// The damaged files stay where they are. If the directory were renamed, the next start would
    /// found a blank node under the same id, and that node would not know what it has voted and
    /// acknowledged. The membership, and not the store, lets the instance return as a new
    /// incarnation.
    pub(super) fn quarantine_if_corrupt(&self, error: StorageError) -> StorageError {
        if let StorageError::Corrupt { what } = &error {
            // Best effort: without the mark, the next open finds the same damage.
            let _ = frame::write_mark(&self.path, QUARANTINED, what);
        }
        error
    }

    /// The directories with former data.
    pub(super) fn former(&self) -> Result<Vec<FsPath>> {
        former_in(&self.path)
    }

    /// Makes a directory for a further incarnation.
    pub(super) fn begin(&self, identity: &Identity) -> Result<Incarnation> {
        let log_dir = self.new_log_dir()?;
        self.remove_leftovers().map_err(io_error("clearing the directory"))?;
        let name = Incarnation::name(identity);
        if planted!(CurrentEarly) {
            CURRENT.write(&self.path, &name)?;
        }
        Incarnation::create(self.path.join(name), log_dir.as_ref())
    }

    /// Makes a complete incarnation the current one, durably, and removes what is not needed any more.
    /// Returns the directory of the one before. After a crash the next open finds either of the two.
    pub(super) fn switch_to(&mut self, new: Incarnation) -> Result<Option<FsPath>> {
        let name = new.path().path().file_name().unwrap_or_default().to_string_lossy();
        let keeps_all = std::mem::replace(&mut self.is_unsure, true);
        // It is about the incarnation before. If that stays after a crash, the next open finds the damage again.
        self.clear_quarantined()?;
        CURRENT.write(&self.path, &name)?;
        new.mark_current()?;
        self.is_unsure = false;
        let before = self.current.replace(new);
        let all = drops_former(before.as_ref().is_some_and(Incarnation::was_voter));
        let before = before.map(|before| before.path().clone());
        if let Some(before) = &before {
            Generation::remove_spare(before);
        }
        let io = io_error("removing former data");
        for former in self.former()?.into_iter().filter(|_| !keeps_all) {
            let is_before = before.as_ref().is_some_and(|before| before.path() == former.path());
            if !is_before && (all || incarnation::is_removed(&former)) {
                incarnation::remove(&former).map_err(io)?;
            }
        }
        self.path.sync_names().map_err(io)?;
        Ok(before)
    }

    /// Removes the leftovers of crashes: incarnations that were never complete, and files that were not
    /// renamed.
    pub(super) fn remove_leftovers(&self) -> io::Result<()> {
        if self.is_unsure {
            return Ok(());
        }
        for name in self.path.list()? {
            let Some(name) = name.to_str() else { continue };
            let path = self.path.join(name);
            let is_current =
                self.current.as_ref().is_some_and(|current| current.path().path() == path.path());
            if Incarnation::is_name(name) && !is_current && !incarnation::is_complete(&path)? {
                incarnation::remove(&path)?;
            } else if frame::unfinished(name).is_some_and(Incarnation::is_name) {
                incarnation::finish_removal(&path)?;
            } else if frame::unfinished(name).is_some_and(is_ours) {
                path.remove_all()?;
            }
        }
        Ok(())
    }

    /// Copies the current incarnation, without its marks, to a data directory that does not exist yet. Not
    /// durably.
    pub(super) fn copy_to(&self, to: &FsPath) -> Result<()> {
        let Some(current) = &self.current else {
            return corrupt("CURRENT does not name one of the incarnations".to_owned());
        };
        let name = current.path().path().file_name().unwrap_or_default().to_string_lossy();
        current.copy_to(&to.join(&*name))?;
        CURRENT.write(to, &name)
    }
}

/// The data directory at a path; also the name of an incarnation in it, if the path is that of one.
fn located(path: &FsPath) -> (FsPath, Option<String>) {
    let name = path.path().file_name().and_then(|name| name.to_str());
    match name {
        Some(name)
            if Incarnation::is_name(name) && incarnation::is_complete(path).unwrap_or(false) =>
        {
            (path.parent(), Some(name.to_owned()))
        }
        _ => (path.clone(), None),
    }
}

/// Whether there is the data of a member at this path: a data directory, or that of an incarnation in it.
pub(super) fn is_used(path: &FsPath) -> Result<bool> {
    Ok(located(path).1.is_some() || has_data(path)?)
}

fn has_data(path: &FsPath) -> Result<bool> {
    let io = io_error("reading the directory");
    let has_pointer = path.join(CURRENT.name).try_exists().map_err(io)?;
    Ok(has_pointer || !incarnations_in(path).map_err(io)?.is_empty())
}

/// Whether this is the name of something in a data directory.
fn is_ours(name: &str) -> bool {
    [LOCK, CURRENT.name, QUARANTINED].contains(&name) || Incarnation::is_name(name)
}

/// The directory of the current incarnation, unless the data directory is blank. If `CURRENT` is lost, the
/// only incarnation is the current one.
pub(super) fn current_in(path: &FsPath) -> Result<Option<FsPath>> {
    let damage = match CURRENT.read::<String>(path) {
        Ok(Some(name)) => return Ok(Some(path.join(name))),
        Ok(None) => "missing".to_owned(),
        Err(StorageError::Corrupt { .. }) => "damaged".to_owned(),
        Err(other) => return Err(other),
    };
    let mut found = incarnations_in(path).map_err(io_error("listing the directory"))?;
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => corrupt(format!("CURRENT is {damage}, and there is more than one incarnation")),
    }
}

/// Fails if a directory holds anything that a data directory does not.
fn refuse_foreign(path: &FsPath) -> Result<()> {
    if let (data, Some(name)) = located(path) {
        return Err(StorageError::Io {
            what: "the directory is not a data directory".to_owned(),
            reason: format!("it is {name} within the data directory {data}"),
        });
    }
    for name in path.list().map_err(io_error("listing the directory"))? {
        let ours = name.to_str().is_some_and(|name| {
            name == LOST_AND_FOUND || is_ours(frame::unfinished(name).unwrap_or(name))
        });
        if !ours {
            if path.join(incarnation::IDENTITY.name).try_exists().unwrap_or(false) {
                // Before `CURRENT`, the data was in the directory itself.
                let what = format!(
                    "the directory is that of an older build, and this one reads formats of number {FORMATS}: start it \
                     with the build that wrote it, or let this one begin in an empty directory"
                );
                return Err(StorageError::Version { what });
            }
            return Err(StorageError::Io {
                what: "the directory is not a data directory and not empty".to_owned(),
                reason: format!("it holds {}", name.display()),
            });
        }
    }
    Ok(())
}

/// The incarnations that are, or were, the current one.
fn incarnations_in(path: &FsPath) -> io::Result<Vec<FsPath>> {
    let mut names = path.list()?;
    names.retain(|name| name.to_str().is_some_and(Incarnation::is_name));
    names.sort();
    let mut found = Vec::new();
    for path in names.into_iter().map(|name| path.join(name)) {
        if incarnation::is_complete(&path)? {
            found.push(path);
        }
    }
    Ok(found)
}

/// The directories with former data in a data directory.
pub(super) fn former_in(path: &FsPath) -> Result<Vec<FsPath>> {
    let current = match CURRENT.read::<String>(path) {
        Err(StorageError::Corrupt { .. }) => None,
        other => other?.map(|name| path.join(name)),
    };
    let mut found = incarnations_in(path).map_err(io_error("listing the directory"))?;
    found.retain(|path| current.as_ref().is_none_or(|current| current.path() != path.path()));
    Ok(found)
}

/// The segments of the log in a data directory that are only kept to be used again.
#[cfg(any(test, feature = "simulator"))]
pub(crate) fn spare_segments(dir: &FsPath) -> Option<Vec<FsPath>> {
    incarnation::spare_segments(&current_in(dir).ok()??)
}

/// The directory of the current incarnation in a data directory.
#[cfg(test)]
pub(super) fn current_incarnation(dir: &std::path::Path) -> std::path::PathBuf {
    current_in(&FsPath::system(dir)).unwrap().unwrap().path().to_owned()
}

/// The name of the directory of the current incarnation, by the content of `CURRENT`.
#[cfg(any(test, feature = "simulator"))]
pub(crate) fn current_name(content: &[u8]) -> Option<String> {
    CURRENT.unseal(content).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::types::membership::{Genesis, Member, Pledge};

    const NAME: &str = "incarnation-0000000000000003";

    fn identity() -> Identity {
        Identity { cluster: 1, node: 2, incarnation: 3, address: "here:1".to_owned(), uid: 4 }
    }

    fn promise() -> Promise {
        let ballot = Ballot { round: 5, proposer: 2 };
        let member = Member { zone: "a".to_owned(), ..Member::new(2, "here:1") };
        let genesis = Genesis { cluster: 6, members: vec![member] };
        Promise { ballot, pledge: Some(Pledge { ballot, genesis }) }
    }

    fn open(dir: &Path) -> Result<Directory> {
        Directory::open(&FsPath::system(dir), None)
    }

    /// Makes this incarnation the current one of the directory, without a log.
    fn make(directory: &mut Directory, identity: &Identity) -> Option<FsPath> {
        let mut new = directory.begin(identity).unwrap();
        new.take(identity).unwrap();
        directory.switch_to(new).unwrap()
    }

    fn made(dir: &Path) -> Directory {
        let mut directory = open(dir).unwrap();
        make(&mut directory, &identity());
        directory
    }

    #[test]
    fn golden_directory() {
        let dir = tempfile::tempdir().unwrap();
        made(dir.path()).owned().unwrap().set_promise(&promise()).unwrap();
        let mut golden = crate::golden::Golden::new("directory");
        for name in ["CURRENT", &format!("{NAME}/IDENTITY"), &format!("{NAME}/PROMISE")] {
            golden.sample(name, &fs::read(dir.path().join(name)).unwrap());
        }
        golden.check();
    }

    /// The directory of a build from before `CURRENT` was called one that is no data directory.
    #[test]
    fn a_directory_of_an_older_build_is_refused_by_the_number_of_formats() {
        let dir = tempfile::tempdir().unwrap();
        incarnation::IDENTITY.write(&FsPath::system(dir.path()), &7_u64).unwrap();
        fs::create_dir(dir.path().join("log")).unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(matches!(error, StorageError::Version { .. }), "{error}");
        assert!(
            error.to_string().contains(&format!("reads formats of number {FORMATS}")),
            "{error}"
        );
    }

    #[test]
    fn a_lost_file_is_noticed_and_another_format_refused() {
        for file in ["CURRENT", "IDENTITY", "PROMISE"] {
            let dir = tempfile::tempdir().unwrap();
            made(dir.path()).owned().unwrap().set_promise(&promise()).unwrap();
            let path = match file {
                "CURRENT" => dir.path().join(file),
                _ => dir.path().join(NAME).join(file),
            };
            let other = Format { number: 9, ..CURRENT }.seal(&7_u64).unwrap();
            let bytes = fs::read(&path).unwrap();
            let magic = [&bytes[..8], &other[8..other.len() - 8]].concat();
            let sum = xxhash_rust::xxh3::xxh3_64(&magic);
            fs::write(&path, [&magic[..], &sum.to_le_bytes()].concat()).unwrap();
            let error = open(dir.path()).unwrap_err();
            assert!(matches!(error, StorageError::Version { .. }), "{file}: {error}");
            assert!(!dir.path().join(QUARANTINED).exists());
            fs::remove_file(&path).unwrap();
            let error = open(dir.path()).unwrap_err();
            assert!(error.to_string().contains(&format!("{file} is missing")), "{error}");
            assert!(dir.path().join(QUARANTINED).exists());
            fs::write(&path, &bytes).unwrap();
            // The mark alone does not prevent an open once the damage is repaired.
            assert_eq!(open(dir.path()).unwrap().identity(), Some(&identity()));
        }
    }

    /// Whoever reads what is left finds the only incarnation, but not one of several.
    #[test]
    fn an_incarnation_is_found_without_its_name_in_current() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = made(dir.path());
        fs::remove_file(dir.path().join("CURRENT")).unwrap();
        let path = FsPath::system(dir.path());
        let found =
            |path: &FsPath| current_in(path).map(|found| found.map(|path| path.to_string()));
        assert_eq!(found(&path).unwrap(), Some(path.join(NAME).to_string()));
        // One that is not complete is none.
        drop(directory.begin(&identity().with_incarnation(5)).unwrap());
        assert_eq!(found(&path).unwrap(), Some(path.join(NAME).to_string()));
        // Nor is one whose mark a crash has cut short.
        let cut = dir.path().join("incarnation-0000000000000007");
        fs::create_dir(&cut).unwrap();
        assert_eq!(found(&path).unwrap(), Some(path.join(NAME).to_string()));
        fs::write(cut.join("NEW.tmp"), b"this").unwrap();
        assert_eq!(found(&path).unwrap(), Some(path.join(NAME).to_string()));
        make(&mut directory, &identity().with_incarnation(6));
        assert_eq!(
            found(&path).unwrap(),
            Some(path.join("incarnation-0000000000000006").to_string())
        );
        fs::remove_file(dir.path().join("CURRENT")).unwrap();
        assert!(matches!(found(&path), Err(StorageError::Corrupt { .. })));
        drop(directory);
        let former = Directory::open_damaged(&path.join(NAME), Sound::All, None).unwrap();
        assert_eq!(former.identity(), Some(&identity()));
        drop(former);
        let error = Directory::open(&path, None).unwrap_err();
        assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    }

    #[test]
    fn directory_is_private_and_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let directory = open(&path).unwrap();
        assert_eq!(open(&path).unwrap_err(), StorageError::InUse);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), 0o700);
            assert_eq!(mode(&path.join(LOCK)), 0o600);
        }
        drop(directory);
        assert!(open(&path).unwrap().identity().is_none());
    }

    #[test]
    fn directory_of_someone_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "precious").unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(matches!(error, StorageError::Io { .. }), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        // In a data directory it does not matter, and stays.
        fs::remove_file(dir.path().join("thesis.txt")).unwrap();
        drop(made(dir.path()));
        fs::write(dir.path().join("thesis.txt"), "precious").unwrap();
        make(&mut open(dir.path()).unwrap(), &identity().with_incarnation(5));
        assert!(dir.path().join("thesis.txt").exists());
    }
}
