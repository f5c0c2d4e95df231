//! The data directory: its owner, its lock, its marks, and the former data in it.
//!
//! | name          | what it is                                                     |
//! |---------------|----------------------------------------------------------------|
//! | `LOCK`        | empty, locked for as long as the store is open                 |
//! | `IDENTITY`    | a frame with the [`Identity`]; written last when founding      |
//! | `PROMISE`     | a frame with the [`Promise`]                                   |
//! | `KEYS`        | a frame with keys, if the data is encrypted: see `sealing`     |
//! | `log/`        | the log and its witness, see `log_file`                        |
//! | `gen-NNNNNN/` | a generation: a sled database with the chunks of checkpoints   |
//! | `QUARANTINED` | why the directory was found damaged; text                      |
//! | `REMOVED`     | why the node is no member any more; text                       |
//! | `VOTER`       | the node has been a voter since the directory was made; text   |
//! | `anew/`       | a new data directory that will replace this one                |
//! | `ANEW`        | a frame: `anew/` is complete, and the replacement has begun    |
//! | `before-*/`   | former data, named by its incarnation                          |
//! | `*.tmp`       | a file about to be renamed, or left over from a crash          |
//!
//! `frame` describes frames. There is always a `PROMISE` beside `IDENTITY`, so that its loss is
//! noticed.
//!
//! A directory without `IDENTITY` is blank, as after a crash while founding. If it holds anything
//! that founding does not write, it is refused.
//!
//! `QUARANTINED` records a failed check and forbids nothing. Every open runs all checks again, and
//! [`load`](super::LogStore::load) removes the mark when they all pass. The checks cover the vote
//! and the last acknowledged record (see `witness`), so a start may rely on them.
//!
//! # Former data
//!
//! A `before-*` directory may be the last copy of its data. The next replacement removes earlier
//! ones only if the directory that it moves away has the mark `VOTER`: then this instance has been a
//! voter since, and as a voter had everything that was acknowledged. A directory with the mark `REMOVED` is
//! removed in any case: its cluster continues without it. So in the long run there is one
//! `before-*`, and one more for each damage found before this instance could vote again.
//! [`FORMER_MAX`] bounds their number.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::file_system::{FsPath, Lock};
use super::files::{create_file, io_error};
use super::frame::{FRAME_BYTES_MAX, Format};
use super::generation::Generation;
#[cfg(any(test, feature = "simulator"))]
use super::log_scan::find_needed;
use super::record::{corrupt, encode_body};
use super::rules::{check_successor, drops_former, refuse};
use super::sealing::KEYS;
#[cfg(any(test, feature = "simulator"))]
use super::sealing::Sealing;
#[cfg(any(test, feature = "simulator"))]
use super::segments::{numbers, path};
use super::witness::Witness;
use crate::node::stored::Identity;
use crate::storage::{Result, Space, StorageError};
use crate::types::membership::Promise;

const LOCK: &str = "LOCK";
const IDENTITY: Format = Format { name: "IDENTITY", magic: b"qrident\n", number: 1 };
const PROMISE: Format = Format { name: "PROMISE", magic: b"qrpromi\n", number: 1 };
const REPLACEMENT: Format = Format { name: "ANEW", magic: b"qranews\n", number: 1 };
const FRAMES: [Format; 4] = [IDENTITY, PROMISE, KEYS, REPLACEMENT];
const QUARANTINED: &str = "QUARANTINED";
const REMOVED: &str = "REMOVED";
const VOTER: &str = "VOTER";
const MARKS: [&str; 3] = [QUARANTINED, REMOVED, VOTER];
const REPLACEMENT_DIRECTORY: &str = "anew";
const BEFORE: &str = "before-";
/// A directory is not replaced if this many former ones have to stay.
pub(super) const FORMER_MAX: usize = 8;
const TMP: &str = ".tmp";
const GENERATION: &str = "gen-";
const LOG: &str = "log";
/// A file in directories of versions whose log was in sled.
const CURRENT: &str = "CURRENT";
/// The directory for files that a repair of the file system found, in the root of each volume.
const LOST_AND_FOUND: &str = "lost+found";

/// The generation that founding makes.
pub(super) const FIRST_GENERATION: u64 = 1;
/// The sequence number of the only record that founding makes.
pub(super) const FOUNDING_SEQ: u64 = 1;

/// The content of `IDENTITY`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    identity: Identity,
    /// The identity as it was first written, from which the chains of all records start.
    origin: Vec<u8>,
}

/// The content of `ANEW`: the progress of a replacement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ReplacementProgress {
    /// The name of the directory for the old files.
    before: String,
    /// Whether all old files are in it.
    cleared: bool,
}

/// The space that a generation needs besides its chunks, since sled allocates space ahead.
const GENERATION_ROOM: u64 = 16 << 20;

/// Where the generations of a directory live.
#[derive(Clone, Debug)]
pub(super) struct GenerationPaths(FsPath);

impl GenerationPaths {
    fn path(&self, number: u64) -> FsPath {
        self.0.join(format!("{GENERATION}{number:06}"))
    }

    /// Fails if the disk has no room for a generation of so many bytes and for the other writes during
    /// its creation.
    pub(super) fn have_room_for(&self, bytes: u64) -> Result<()> {
        let needed = bytes.saturating_add(bytes / 4).saturating_add(GENERATION_ROOM);
        match self.0.space() {
            Some(Space { free, total }) if free < needed.min(total / 4 + bytes) => {
                Err(StorageError::Again {
                    what: "writing a checkpoint".to_owned(),
                    reason: format!("it takes {needed} bytes, and the disk has room for {free}"),
                })
            }
            _ => Ok(()),
        }
    }

    /// Makes an empty generation.
    pub(super) fn create(&self, number: u64) -> Result<Generation> {
        Generation::create(self.path(number), number)
    }

    /// Opens an existing generation. First stores its size in `size`.
    pub(super) fn open(&self, number: u64, size: &AtomicU64) -> Result<Generation> {
        let path = self.path(number);
        size.store(Generation::bytes_in(&path), Ordering::Relaxed);
        Generation::open(path, number)
    }
}

/// A locked data directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: FsPath,
    owner: Option<Owner>,
    promise: Promise,
    /// Whether the node is known to have been a voter.
    voter: bool,
    /// Unlocks the directory when it is closed, after the rest of the store.
    _lock: Box<dyn Lock>,
}

impl Directory {
    /// The room on its file system.
    pub(super) fn space(&self) -> Option<Space> {
        self.path.space()
    }

    /// Creates the directory if necessary, locks it, and reads its identity.
    pub(super) fn open(path: &FsPath) -> Result<Directory> {
        let mut directory = Directory::lock(path)?;
        if let Some(reason) = directory.removed()? {
            return Err(StorageError::Removed { reason });
        }
        if planted!(MarkBelieved)
            && let Some(what) = directory.quarantined()?
        {
            return corrupt(what);
        }
        if path.join(CURRENT).exists() {
            return Err(StorageError::Version {
                what: "a data directory of a build before the first release, which had its log in \
                       the database; export its data with that build, or start with an empty one"
                    .to_owned(),
            });
        }
        match directory.read_owner() {
            Ok(()) => Ok(directory),
            Err(error) => Err(directory.quarantine_if_corrupt(error)),
        }
    }

    /// As [`Directory::open`], for a directory that may have the marks of damage or removal, and
    /// sets no mark. Only `IDENTITY` has to be sound.
    pub(super) fn open_marked(path: &FsPath) -> Result<Directory> {
        let mut directory = Directory::lock(path)?;
        directory.owner = directory.read_frame(&IDENTITY)?;
        Ok(directory)
    }

    /// As [`Directory::open_marked`], even if `IDENTITY` cannot be read.
    pub(super) fn open_any(path: &FsPath) -> Result<Directory> {
        let mut directory = Directory::lock(path)?;
        match directory.read_frame(&IDENTITY) {
            Ok(owner) => directory.owner = owner,
            Err(StorageError::Corrupt { .. }) => {}
            Err(other) => return Err(other),
        }
        Ok(directory)
    }

    /// Locks a directory that is in use as a data directory, and reads nothing yet.
    pub(super) fn lock_used(path: &FsPath) -> Result<Directory> {
        if !is_used(path) {
            return Err(StorageError::Io {
                what: "reading the directory".to_owned(),
                reason: "it is no data directory: it has no IDENTITY".to_owned(),
            });
        }
        Directory::locked(path)
    }

    fn locked(path: &FsPath) -> Result<Directory> {
        let (lock, promise) = (path.join(LOCK).lock()?, Promise::default());
        let path = path.clone();
        Ok(Directory { path, owner: None, promise, voter: false, _lock: lock })
    }

    /// Copies the store, without its marks, to a directory that does not exist yet. Not durably.
    pub(super) fn copy_to(&self, to: &FsPath) -> Result<()> {
        let io = io_error("copying the store");
        to.create_directory().map_err(io)?;
        for name in self.path.list().map_err(io)? {
            let wanted = name.to_str().is_some_and(|name| {
                FRAMES.iter().any(|frame| frame.name == name)
                    || generation_number(name).is_some()
                    || [LOG, REPLACEMENT_DIRECTORY].contains(&name)
            });
            if wanted {
                self.path.join(&name).copy_all(&to.join(&name)).map_err(io)?;
            }
        }
        Ok(())
    }

    fn lock(path: &FsPath) -> Result<Directory> {
        path.create_directory().map_err(io_error("creating the directory"))?;
        // Before the lock file, so that nothing is created in a directory of another program.
        if !is_used(path) {
            refuse_foreign(path)?;
        }
        let mut directory = Directory::locked(path)?;
        // A process that ends leaves names that no disk has. They are made durable before anything is
        // done on their word. The files themselves were synced before they got their names.
        path.sync_names().map_err(io_error("syncing the directory"))?;
        path.sync_own_name().map_err(io_error("syncing the names of the directory"))?;
        if let Some(progress) = directory.read_frame(&REPLACEMENT)? {
            directory.continue_replacement(progress)?;
        }
        directory.voter = path.join(VOTER).exists();
        Ok(directory)
    }

    /// Why the node is no member any more, if it is not.
    pub(super) fn removed(&self) -> Result<Option<String>> {
        self.read_mark(REMOVED)
    }

    /// Why the directory was found damaged, if it was.
    pub(super) fn quarantined(&self) -> Result<Option<String>> {
        self.read_mark(QUARANTINED)
    }

    fn read_mark(&self, name: &str) -> Result<Option<String>> {
        let reason = self.read_file(name)?;
        Ok(reason.map(|reason| String::from_utf8_lossy(&reason).trim_end().to_owned()))
    }

    fn write_mark(&self, name: &str, reason: &str) -> Result<()> {
        self.write_file(name, format!("{reason}\n").as_bytes())
    }

    /// Marks the directory as that of a member that was removed, durably.
    pub(super) fn mark_removed(&self) -> Result<()> {
        self.write_mark(REMOVED, "the cluster has removed this member")
    }

    /// Removes the mark of damage, durably: all checks have passed since.
    pub(super) fn clear_quarantined(&self) -> Result<()> {
        match self.path.join(QUARANTINED).remove_file() {
            Ok(()) => self.path.sync_names().map_err(io_error("removing a mark")),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io_error("removing QUARANTINED")(error)),
        }
    }

    /// Notes that the node has been a voter, durably.
    pub(super) fn mark_voter(&mut self) -> Result<()> {
        if self.voter {
            return Ok(());
        }
        self.write_mark(VOTER, "this member has been a voter of its cluster")?;
        self.voter = true;
        Ok(())
    }

    /// Whether the node has been a voter since the directory was made.
    pub(super) fn was_voter(&self) -> bool {
        self.voter
    }

    /// The directories with former data.
    pub(super) fn former(&self) -> Result<Vec<FsPath>> {
        former_in(&self.path).map_err(io_error("listing the directory"))
    }

    /// The free path for a data directory that will replace this one.
    pub(super) fn free_replacement_path(&self) -> Result<FsPath> {
        let path = self.path.join(REPLACEMENT_DIRECTORY);
        path.remove_all().map_err(io_error("clearing anew/"))?;
        Ok(path)
    }

    /// Replaces this data directory by the one in `anew/`, which must be complete and closed, and
    /// moves the old files to `before-*`. After a crash the next open finds either the old or the
    /// new one.
    pub(super) fn replace(&mut self) -> Result<FsPath> {
        let progress = ReplacementProgress { before: self.free_former_name()?, cleared: false };
        // From here on the new directory is valid, however long the moves take.
        if !planted!(MovesUnannounced) {
            self.write_frame(&REPLACEMENT, &progress)?;
        }
        let before = self.path.join(&progress.before);
        self.continue_replacement(progress)?;
        (self.owner, self.voter) = (None, self.path.join(VOTER).exists());
        self.read_owner()?;
        Ok(before)
    }

    /// An unused name for the directory that the present files will be moved to.
    fn free_former_name(&self) -> Result<String> {
        let name = match &self.owner {
            Some(owner) => format!("{BEFORE}{:016x}", owner.identity.incarnation),
            None => format!("{BEFORE}unknown"),
        };
        // A former directory may have been put back by hand, and its name is taken then.
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        match names.find(|name| !self.path.join(name).exists()) {
            Some(free) => Ok(free),
            None => refuse(format!("there is no free name like {name}")),
        }
    }

    /// Makes the moves of a replacement that are not made yet.
    fn continue_replacement(&self, mut progress: ReplacementProgress) -> Result<()> {
        let io = io_error("replacing the directory");
        let (here, new) = (&self.path, self.path.join(REPLACEMENT_DIRECTORY));
        let before = here.join(&progress.before);
        if !progress.cleared {
            before.create_directory().map_err(io)?;
            here.move_names(&before, |name| {
                let stays =
                    [LOCK, LOST_AND_FOUND, REPLACEMENT_DIRECTORY, REPLACEMENT.name].contains(&name);
                !stays && !name.starts_with(BEFORE)
            })
            .map_err(io)?;
            progress.cleared = true;
            self.write_frame(&REPLACEMENT, &progress)?;
        }
        if new.exists() {
            new.move_names(here, |name| name != LOCK).map_err(io)?;
        }
        let all = drops_former(before.join(VOTER).exists());
        let former = former_in(here).map_err(io)?;
        for older in former.into_iter().filter(|older| older.path() != before.path()) {
            if all || older.join(REMOVED).exists() {
                older.remove_all().map_err(io)?;
            }
        }
        new.remove_all().map_err(io)?;
        here.join(REPLACEMENT.name).remove_file().map_err(io)?;
        here.sync_names().map_err(io)
    }

    fn read_owner(&mut self) -> Result<()> {
        let promise = self.read_frame(&PROMISE)?;
        let Some(owner) = self.read_frame(&IDENTITY)? else {
            return self.refuse_used(promise.as_ref());
        };
        let Some(promise) = promise else {
            return corrupt("PROMISE is missing".to_owned());
        };
        (self.owner, self.promise) = (Some(owner), promise);
        Ok(())
    }

    pub(super) fn identity(&self) -> Option<&Identity> {
        self.owner.as_ref().map(|owner| &owner.identity)
    }

    pub(super) fn promise(&self) -> &Promise {
        &self.promise
    }

    /// The id of the log, from which the chain of its records starts. So a file from another store
    /// does not fit.
    pub(super) fn log_id(&self) -> Result<u64> {
        self.owner().map(|owner| xxh3_64(&owner.origin))
    }

    /// As [`Directory::log_id`], for a directory that this identity will own.
    pub(super) fn log_id_of(identity: &Identity) -> u64 {
        xxh3_64(&encode_body(identity))
    }

    fn owner(&self) -> Result<&Owner> {
        match &self.owner {
            Some(owner) => Ok(owner),
            None => refuse("the store is blank".to_owned()),
        }
    }

    /// Where the generations live.
    pub(super) fn generations(&self) -> GenerationPaths {
        GenerationPaths(self.path.clone())
    }

    /// Where the log lives.
    pub(super) fn log(&self) -> FsPath {
        self.path.join(LOG)
    }

    /// Gives the directory to `identity`, durably: the last step of founding.
    pub(super) fn take(&mut self, identity: &Identity) -> Result<()> {
        let promise = Promise::default();
        self.write_frame(&PROMISE, &promise)?;
        let owner = Owner { identity: identity.clone(), origin: encode_body(identity) };
        match planted!(ClusterForgotten) {
            true => self.owner = Some(owner),
            false => self.write_owner(owner)?,
        }
        self.promise = promise;
        Ok(())
    }

    /// Replaces the identity, durably.
    pub(super) fn set_identity(&mut self, identity: &Identity) -> Result<()> {
        let owner = self.owner()?;
        check_successor(&owner.identity, identity)?;
        self.write_owner(Owner { identity: identity.clone(), origin: owner.origin.clone() })
    }

    /// Replaces the promise, durably.
    pub(super) fn set_promise(&mut self, promise: &Promise) -> Result<()> {
        self.owner()?;
        self.write_frame(&PROMISE, promise)?;
        self.promise = promise.clone();
        Ok(())
    }

    fn write_owner(&mut self, owner: Owner) -> Result<()> {
        self.write_frame(&IDENTITY, &owner)?;
        self.owner = Some(owner);
        Ok(())
    }

    /// Removes the leftovers of crashes: all generations except `keep`, and files that were not
    /// renamed.
    pub(super) fn remove_leftovers(&self, keep: Option<u64>) -> io::Result<()> {
        for name in self.path.list()? {
            let Some(name) = name.to_str() else { continue };
            let is_stale = generation_number(name).is_some_and(|number| Some(number) != keep);
            if is_stale || name == REPLACEMENT_DIRECTORY || (name == LOG && keep.is_none()) {
                self.path.join(name).remove_all()?;
            } else if is_tmp(name) || (name == KEYS.name && keep.is_none()) {
                self.path.join(name).remove_file()?;
            }
        }
        Ok(())
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
            let _ = self.write_mark(QUARANTINED, what);
        }
        error
    }

    /// Fails if a directory without `IDENTITY` was in use: then the file was lost.
    fn refuse_used(&self, promise: Option<&Promise>) -> Result<()> {
        let used = || corrupt("IDENTITY is missing, and the store was in use".to_owned());
        if promise.is_some_and(|promise| *promise != Promise::default()) {
            return used();
        }
        for name in self.path.list().map_err(io_error("listing the directory"))? {
            let number = name.to_str().and_then(generation_number);
            if number.is_some_and(|number| number != FIRST_GENERATION) {
                return used();
            }
            if name == LOG
                // If the witness cannot be read, founding has not finished.
                && let Ok((_, last)) = Witness::open(&self.log().join(Witness::FILE))
                && last.seq > FOUNDING_SEQ
            {
                return used();
            }
        }
        Ok(())
    }

    pub(super) fn read_frame<T: DeserializeOwned>(&self, file: &Format) -> Result<Option<T>> {
        self.read_file(file.name)?.map(|bytes| file.unseal(&bytes)).transpose()
    }

    /// The content of a file, up to the length of a frame; `None` if there is no such file.
    fn read_file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match self.path.join(name).read_up_to(FRAME_BYTES_MAX) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error(&format!("reading {name}"))(error)),
        }
    }

    /// Replaces a file by a frame, atomically.
    pub(super) fn write_frame<T: Serialize>(&self, file: &Format, body: &T) -> Result<()> {
        self.write_file(file.name, &file.seal(body)?)
    }

    /// Writes a file, durably. It gets its name when its content is synced.
    fn write_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let failed = |error| io_error(&format!("writing {name}"))(error);
        let created = self.path.join(format!("{name}{TMP}"));
        let names = self.path.open_directory().map_err(failed)?;
        let file = create_file(&created)?;
        file.write_at(bytes, 0)
            .and_then(|()| if planted!(FrameUnsynced) { Ok(()) } else { file.sync_all() })
            .and_then(|()| created.rename(&self.path.join(name)))
            .and_then(|()| if planted!(FrameNameUnsynced) { Ok(()) } else { names.sync() })
            .map_err(failed)
    }
}

/// The segments of the log in a data directory that are only kept to be used again.
#[cfg(any(test, feature = "simulator"))]
pub(crate) fn spare_segments(dir: &FsPath) -> Option<Vec<FsPath>> {
    let owner: Owner = IDENTITY.unseal(&dir.join(IDENTITY.name).read().ok()?).ok()?;
    let log = dir.join(LOG);
    let needed = find_needed(&log, xxh3_64(&owner.origin), &Sealing::default()).ok()?;
    let mut numbers = numbers(&log).ok()?;
    numbers.retain(|number| *number < needed.from.segment);
    Some(numbers.into_iter().map(|number| path(&log, number)).collect())
}

/// Whether a directory has an owner, or had one when its replacement began.
fn is_used(path: &FsPath) -> bool {
    [IDENTITY, REPLACEMENT].iter().any(|frame| path.join(frame.name).exists())
}

/// Fails if a directory without `IDENTITY` holds anything that founding does not write.
fn refuse_foreign(path: &FsPath) -> Result<()> {
    for name in path.list().map_err(io_error("listing the directory"))? {
        let ours = name.to_str().is_some_and(|name| {
            [LOCK, LOG, REPLACEMENT_DIRECTORY, LOST_AND_FOUND].contains(&name)
                || MARKS.contains(&name)
                || name.starts_with(BEFORE)
                || FRAMES.iter().any(|frame| frame.name == name)
                || is_tmp(name)
                || generation_number(name).is_some()
        });
        if !ours {
            return Err(StorageError::Io {
                what: "the directory is not a data directory and not empty".to_owned(),
                reason: format!("it holds {}", name.display()),
            });
        }
    }
    Ok(())
}

/// The directories with former data in a data directory.
pub(super) fn former_in(path: &FsPath) -> io::Result<Vec<FsPath>> {
    let mut found = path.list()?;
    found.retain(|name| name.to_str().is_some_and(|name| name.starts_with(BEFORE)));
    found.sort();
    Ok(found.into_iter().map(|name| path.join(name)).collect())
}

fn is_tmp(name: &str) -> bool {
    name.strip_suffix(TMP)
        .is_some_and(|name| MARKS.contains(&name) || FRAMES.iter().any(|frame| frame.name == name))
}

/// The number in the name of a generation's directory.
fn generation_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(GENERATION)?;
    if digits.len() < 6 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// Writes `ANEW` as a crash leaves it.
#[cfg(test)]
pub(super) fn write_replacement_progress(
    dir: &std::path::Path,
    before: &std::path::Path,
    cleared: bool,
) {
    let before = before.file_name().unwrap().to_str().unwrap().to_owned();
    let progress = ReplacementProgress { before, cleared };
    std::fs::write(dir.join(REPLACEMENT.name), REPLACEMENT.seal(&progress).unwrap()).unwrap();
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::types::membership::{Ballot, Genesis, Member, Pledge};

    fn identity() -> Identity {
        Identity { cluster: 1, node: 2, incarnation: 3, address: "here:1".to_owned(), uid: 4 }
    }

    fn promise() -> Promise {
        let ballot = Ballot { round: 5, proposer: 2 };
        let member = Member { zone: "a".to_owned(), ..Member::new(2, "here:1") };
        let genesis = Genesis { cluster: 6, members: vec![member] };
        Promise { ballot, pledge: Some(Pledge { ballot, genesis }) }
    }

    #[test]
    fn golden_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = Directory::open(&FsPath::system(dir.path())).unwrap();
        directory.take(&identity()).unwrap();
        directory.set_promise(&promise()).unwrap();
        let mut golden = crate::golden::Golden::new("directory");
        let progress = ReplacementProgress { before: "before-3".to_owned(), cleared: true };
        directory.write_frame(&REPLACEMENT, &progress).unwrap();
        // `sealing` has a sample of `KEYS`.
        for frame in [IDENTITY, PROMISE, REPLACEMENT] {
            let bytes = fs::read(dir.path().join(frame.name)).unwrap();
            golden.sample(frame.name, &bytes);
        }
        golden.check();
    }

    #[test]
    fn a_lost_promise_is_noticed_and_another_format_refused() {
        let dir = tempfile::tempdir().unwrap();
        Directory::open(&FsPath::system(dir.path())).unwrap().take(&identity()).unwrap();
        let other = Format { number: 2, ..IDENTITY }.seal(&7_u64).unwrap();
        let bytes = fs::read(dir.path().join(IDENTITY.name)).unwrap();
        fs::write(dir.path().join(IDENTITY.name), other).unwrap();
        let error = Directory::open(&FsPath::system(dir.path())).unwrap_err();
        assert!(matches!(error, StorageError::Version { .. }), "{error}");
        assert!(!dir.path().join(QUARANTINED).exists());
        fs::write(dir.path().join(IDENTITY.name), bytes).unwrap();
        fs::remove_file(dir.path().join(PROMISE.name)).unwrap();
        let error = Directory::open(&FsPath::system(dir.path())).unwrap_err();
        assert!(error.to_string().contains("PROMISE is missing"), "{error}");
    }

    #[test]
    fn a_promise_outlives_the_identity_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = Directory::open(&FsPath::system(dir.path())).unwrap();
        directory.take(&identity()).unwrap();
        directory.set_promise(&promise()).unwrap();
        drop(directory);
        fs::remove_file(dir.path().join(IDENTITY.name)).unwrap();
        let error = Directory::open(&FsPath::system(dir.path())).unwrap_err();
        assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    }

    #[test]
    fn directory_is_private_and_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let directory = Directory::open(&FsPath::system(&path)).unwrap();
        assert_eq!(Directory::open(&FsPath::system(&path)).unwrap_err(), StorageError::InUse);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), 0o700);
            assert_eq!(mode(&path.join(LOCK)), 0o600);
        }
        drop(directory);
        assert!(Directory::open(&FsPath::system(&path)).unwrap().identity().is_none());
    }

    #[test]
    fn directory_of_someone_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "precious").unwrap();
        let error = Directory::open(&FsPath::system(dir.path())).unwrap_err();
        assert!(matches!(error, StorageError::Io { .. }), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn directory_keeps_its_identity_and_refuses_a_damaged_one() {
        let dir = tempfile::tempdir().unwrap();
        Directory::open(&FsPath::system(dir.path())).unwrap().take(&identity()).unwrap();
        let directory = Directory::open(&FsPath::system(dir.path())).unwrap();
        assert_eq!(directory.identity(), Some(&identity()));
        drop(directory);
        let path = dir.path().join(IDENTITY.name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[13] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = Directory::open(&FsPath::system(dir.path())).unwrap_err();
        assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
        // The mark alone does not prevent an open once the damage is repaired.
        assert!(dir.path().join(QUARANTINED).exists());
        bytes[13] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(
            Directory::open(&FsPath::system(dir.path())).unwrap().identity(),
            Some(&identity())
        );
    }
}
