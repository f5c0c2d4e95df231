//! The directory of a log that is not in the data directory.
//!
//! `Builder::log_dir` is a directory for the logs of any number of members. The log of each incarnation has a
//! directory in it, `log-*`, named by the incarnation's random number:
//!
//! | name    | what it is                                                     |
//! |---------|----------------------------------------------------------------|
//! | `LOCK`  | empty, locked for as long as the store is open                 |
//! | `OWNER` | a frame: whose log it is, and which start has used it last     |
//! | `log/`  | the log and its witness, see `log`                             |
//!
//! `LOG_DIR` in the incarnation's directory is a frame with the path of the `log_dir`, and with the start that
//! has used the log last. Each start writes a new random number to both, so an old copy of either one does not fit the
//! other, and is refused: a log without its last records would be believed. For the same reason there is no way
//! to move a log: nothing shows whether a copy has everything. What a link or a mount puts at the recorded path
//! passes the same checks, and is synced before it is used.
//!
//! A start writes its number before its first vote, entry or checkpoint. A start with an old copy that the leader turns
//! away has done none of them, and the right log is still the last one. A cluster's only member has no leader that
//! knows better: there the log of the start before passes too, with a warning, until a checkpoint is begun.
//!
//! `LOG_DIR` also has the last record of the log, as of the last start or of the last orderly end. A log that does
//! not reach it is an old copy of the same start, and is refused. Not noticed is a copy that is younger than the
//! last start of a process that was killed: as for a whole data directory, nothing outside it says how far it must
//! reach.
//!
//! A log that is not where it was recorded is an error, and no damage: its device may not be mounted. No start
//! replaces the incarnation then.

use std::io::ErrorKind;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::record::RecordPosition;
use super::segments::{self, numbers};
use super::witness::Witness;
use crate::storage::error::io_error;
use crate::storage::error::{Result, StorageError};
use crate::storage::file_system::{Access, FsPath, Lock};
use crate::storage::frame::Format;
use crate::types::encoding;

const LOG_DIR: Format = Format { name: "LOG_DIR", magic: b"qrlogdr\n", number: 1 };
const OWNER: Format = Format { name: "OWNER", magic: b"qrowner\n", number: 1 };
const LOCK: &str = "LOCK";
const LOG: &str = "log";
const PREFIX: &str = "log-";
/// A file of every data directory.
const CURRENT: &str = "CURRENT";

/// The content of `LOG_DIR`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Recorded {
    /// Empty in a copy for tools, whose log is in the incarnation's directory.
    log_dir: String,
    last: LogStart,
    /// The start before, if its log passes too.
    before: Option<LogStart>,
}

/// A start that has used the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LogStart {
    number: u64,
    /// The number of the last record at that start, or when the store was closed since, and the chain after it.
    /// 0: not known.
    seq: u64,
    chain: u64,
}

impl LogStart {
    fn after(number: u64, RecordPosition { seq, chain }: RecordPosition) -> LogStart {
        LogStart { number, seq, chain }
    }

    fn needed(&self) -> Option<RecordPosition> {
        let LogStart { seq, chain, .. } = *self;
        (seq > 0).then_some(RecordPosition { seq, chain })
    }
}

impl Recorded {
    /// The directory of the log of this incarnation.
    fn place(&self, incarnation: &FsPath, number: u64) -> FsPath {
        place(&incarnation.at(PathBuf::from(&self.log_dir)), number)
    }

    /// The start that the log with this owner is of.
    fn start_of(&self, owner: &Owner) -> Option<&LogStart> {
        let is_same = |of: &&LogStart| of.number == owner.start || Some(of.number) == owner.before;
        [&self.last].into_iter().chain(&self.before).find(is_same)
    }
}

/// The content of `OWNER`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    incarnation: u64,
    /// The last start.
    start: u64,
    /// The start before, until `LOG_DIR` has the last one.
    before: Option<u64>,
    /// The data directory that has used the log last.
    data_dir: Vec<u8>,
}

impl Owner {
    fn data_dir(&self) -> String {
        String::from_utf8_lossy(&self.data_dir).into_owned()
    }
}

/// Reads arbitrary bytes as the small files.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    LOG_DIR.fuzz::<Recorded>(bytes);
    OWNER.fuzz::<Owner>(bytes);
}

/// Who reads a log, and so what an error may advise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) enum Used {
    /// A member that starts: the others may have its data.
    ByStart,
    /// `inspect`, `recover` or `restore`. This may be the last copy.
    ByTool,
}

/// What a member does whose log is lost. A member that is alone would destroy its cluster.
const IF_LOST: &str = "If the log is lost for good, and only while a majority of the other members runs: remove \
                       the data directory of this one member, and it joins its cluster again. Never do so for \
                       a cluster's only member";

/// A locked directory of a log.
#[derive(Debug)]
pub(in crate::storage) struct LogPlace {
    path: FsPath,
    /// The directory of the incarnation.
    incarnation: FsPath,
    recorded: Recorded,
    /// The start that the log was of when it was opened.
    of: LogStart,
    owner: Owner,
    _lock: Box<dyn Lock>,
}

impl LogPlace {
    /// Makes the directory of the log of a new incarnation, durably.
    pub(in crate::storage) fn create(
        incarnation: &FsPath,
        number: u64,
        log_dir: &FsPath,
    ) -> Result<LogPlace> {
        let data_dir = bytes_of(&data_dir_of(incarnation)?);
        let Some(text) = log_dir.path().to_str().map(str::to_owned) else {
            return unusable(log_dir, "its path is not UTF-8, and cannot be recorded");
        };
        let start = xxh3_64(&encoding::append(&(number, &data_dir), Vec::new()));
        let of = LogStart { number: start, seq: 0, chain: 0 };
        let recorded = Recorded { log_dir: text, last: of.clone(), before: None };
        // First, so that what a crash leaves is found.
        LOG_DIR.write(incarnation, &recorded)?;
        let path = place(log_dir, number);
        let making = format!("making the log's directory {path}");
        let io = io_error(&making);
        if path.try_exists().map_err(io)? {
            return unusable(&path, "it exists already");
        }
        path.create_directory().map_err(io)?;
        // Another process may have made the log_dir, and ended before its name was durable.
        log_dir.sync_own_name().map_err(io)?;
        let lock = lock(&path)?;
        let owner = Owner { incarnation: number, start, before: None, data_dir };
        OWNER.write(&path, &owner)?;
        Ok(LogPlace { path, incarnation: incarnation.clone(), recorded, of, owner, _lock: lock })
    }

    /// Locks and checks the directory of an incarnation's log; `None` if the log is in the incarnation's
    /// directory.
    pub(in crate::storage) fn open(incarnation: &FsPath, number: u64) -> Result<Option<LogPlace>> {
        let Some(recorded) = LOG_DIR.read::<Recorded>(incarnation)? else { return Ok(None) };
        if recorded.log_dir.is_empty() {
            return Ok(None);
        }
        let data = data_dir_of(incarnation)?;
        let path = recorded.place(incarnation, number);
        if !path.try_exists().map_err(io_error(&format!("looking for the log at {path}")))? {
            return Err(absent(&path, &data, Used::ByStart));
        }
        let lock = lock(&path)?;
        let owner = owner_at(&path)?;
        let of = owner.as_ref().filter(|owner| owner.incarnation == number);
        let of = of.and_then(|owner| recorded.start_of(owner)).cloned();
        let (Some(owner), Some(of)) = (&owner, of) else {
            return Err(with_last_resort(other_log(&path, number, &data, owner.as_ref())));
        };
        if of != recorded.last {
            tracing::warn!(
                log = %path,
                "this is the log of the start before the last one: what the last start has written is in another log"
            );
        }
        let (incarnation, owner) = (incarnation.clone(), owner.clone());
        Ok(Some(LogPlace { path, incarnation, recorded, of, owner, _lock: lock }))
    }

    /// Where the log lives.
    pub(in crate::storage) fn log(&self) -> FsPath {
        self.path.join(LOG)
    }

    /// Makes all of the log durable: it may have been copied or moved here by a program that does not.
    pub(in crate::storage) fn sync(&self) -> Result<()> {
        let syncing = format!("syncing the log at {}", self.path);
        let io = io_error(&syncing);
        let log = self.log();
        if log.try_exists().map_err(io)? {
            let segments = numbers(&log).map_err(io)?;
            let files = segments.into_iter().map(|number| segments::path(&log, number));
            for file in files.chain([log.join(Witness::FILE)]) {
                match file.open(Access::Write).and_then(|file| file.sync_all()) {
                    // A lost witness is damage, as whoever reads it finds.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    synced => synced.map_err(io)?,
                }
            }
            log.sync_names().map_err(io)?;
        }
        self.path.sync_names().and_then(|()| self.path.sync_own_name()).map_err(io)
    }

    /// Notes durably that this data directory goes on with this log, after its record `last`. From then on no
    /// copy of one of the two fits the other. `random` makes this start another one than that of a copy of both.
    /// `is_alone`: the log of the start before fits still, for the only member of its cluster.
    pub(in crate::storage) fn start(
        &mut self,
        last: RecordPosition,
        random: u64,
        is_alone: bool,
    ) -> Result<()> {
        let data_dir = bytes_of(&data_dir_of(&self.incarnation)?);
        let of = self.of.clone();
        let recorded = self.recorded.last.number;
        let start = xxh3_64(&encoding::append(
            &(self.owner.start, recorded, random, &data_dir),
            Vec::new(),
        ));
        let owner = Owner { start, before: Some(of.number), data_dir, ..self.owner.clone() };
        OWNER.write(&self.path, &owner)?;
        let last = LogStart::after(start, last);
        let before = is_alone.then_some(of);
        let recorded = Recorded { last, before, ..self.recorded.clone() };
        LOG_DIR.write(&self.incarnation, &recorded)?;
        let owner = Owner { before: None, ..owner };
        OWNER.write(&self.path, &owner)?;
        (self.recorded, self.owner) = (recorded, owner);
        self.of = self.recorded.last.clone();
        Ok(())
    }

    /// Notes durably that only the log of the last start fits.
    pub(in crate::storage) fn forget_before(&mut self) -> Result<()> {
        if self.recorded.before.is_some() {
            let recorded = Recorded { before: None, ..self.recorded.clone() };
            LOG_DIR.write(&self.incarnation, &recorded)?;
            self.recorded = recorded;
        }
        Ok(())
    }

    /// The last record that the log must have.
    pub(in crate::storage) fn needed(&self) -> Option<RecordPosition> {
        self.of.needed()
    }

    /// Notes durably how far the log reaches as the store is closed.
    pub(in crate::storage) fn close(&mut self, last: RecordPosition) -> Result<()> {
        let last = LogStart::after(self.recorded.last.number, last);
        if self.recorded.last == last {
            return Ok(());
        }
        let recorded = Recorded { last, ..self.recorded.clone() };
        LOG_DIR.write(&self.incarnation, &recorded)?;
        self.recorded = recorded;
        Ok(())
    }

    /// The error of a log that is too short, or another one, for what `LOG_DIR` has recorded.
    pub(in crate::storage) fn too_old(&self) -> StorageError {
        let data = self.incarnation.parent();
        with_last_resort(StorageError::Io {
            what: format!("the log at {} does not have the last records of {data}", self.path),
            reason: "it is an old copy: put back the log that this member has used last".to_owned(),
        })
    }
}

/// The locked directory of a log that a tool reads.
#[derive(Debug)]
pub(in crate::storage) struct FoundLog {
    path: FsPath,
    /// Why no member continues with this log.
    pub(in crate::storage) fault: Option<StorageError>,
    _lock: Box<dyn Lock>,
}

impl FoundLog {
    /// Locks the directory of an incarnation's log, wherever it can be found: in `log_dir` first, by the
    /// incarnation's number, and then where it was recorded. `None` if the log is in the incarnation's directory.
    pub(in crate::storage) fn open(
        incarnation: &FsPath,
        number: u64,
        log_dir: Option<&FsPath>,
    ) -> Result<Option<FoundLog>> {
        let io = io_error("looking for the log");
        let (recorded, fault) = match LOG_DIR.read::<Recorded>(incarnation) {
            Err(error @ StorageError::Corrupt { .. }) => (None, Some(error)),
            Err(error) => return Err(error),
            Ok(Some(recorded)) if recorded.log_dir.is_empty() => return Ok(None),
            Ok(Some(recorded)) => (Some(recorded), None),
            Ok(None) if incarnation.join(LOG).try_exists().map_err(io)? => return Ok(None),
            Ok(None) => {
                let what = "there is neither a log nor LOG_DIR".to_owned();
                (None, Some(StorageError::Corrupt { what }))
            }
        };
        let carried = log_dir.map(|log_dir| place(log_dir, number));
        let known = recorded.as_ref().map(|recorded| recorded.place(incarnation, number));
        let mut path = None;
        for place in carried.into_iter().chain(known.clone()) {
            if path.is_none() && place.try_exists().map_err(io)? {
                path = Some(place);
            }
        }
        let data = data_dir_of(incarnation)?;
        let path = match (path, known) {
            (Some(path), _) => path,
            (None, Some(known)) => return Err(absent(&known, &data, Used::ByTool)),
            (None, None) => return fault.map_or(Ok(None), Err),
        };
        let lock = lock(&path)?;
        let owner = match owner_at(&path) {
            Err(error @ StorageError::Corrupt { .. }) => Err(error),
            owner => Ok(owner?),
        };
        let fault = fault.or(match (owner, recorded) {
            (Err(error), _) => Some(error),
            (Ok(Some(owner)), Some(recorded))
                if owner.incarnation == number && recorded.start_of(&owner).is_some() =>
            {
                None
            }
            (Ok(owner), _) => {
                let error = other_log(&path, number, &data, owner.as_ref());
                Some(StorageError::Corrupt { what: error.to_string() })
            }
        });
        Ok(Some(FoundLog { path, fault, _lock: lock }))
    }

    /// Where the log lives.
    pub(in crate::storage) fn log(&self) -> FsPath {
        self.path.join(LOG)
    }
}

/// The last record that a log must have, by the `LOG_DIR` of its incarnation.
pub(in crate::storage) fn needed(incarnation: &FsPath) -> Result<Option<RecordPosition>> {
    let recorded = match LOG_DIR.read::<Recorded>(incarnation) {
        Err(StorageError::Corrupt { .. }) => None,
        recorded => recorded?,
    };
    Ok(recorded.and_then(|recorded| recorded.last.needed()))
}

/// Notes in a copy for tools, whose log is within, which record the log must have.
pub(in crate::storage) fn note_needed(incarnation: &FsPath, copy: &FsPath) -> Result<()> {
    let Some(needed) = needed(incarnation)? else { return Ok(()) };
    let last = LogStart::after(0, needed);
    LOG_DIR.write(copy, &Recorded { log_dir: String::new(), last, before: None })
}

/// The `log_dir` that an incarnation has recorded; `None` if its log is in its own directory.
pub(in crate::storage) fn recorded_log_dir(incarnation: &FsPath) -> Result<Option<FsPath>> {
    let recorded = LOG_DIR.read::<Recorded>(incarnation)?;
    let recorded = recorded.filter(|recorded| !recorded.log_dir.is_empty());
    Ok(recorded.map(|recorded| incarnation.at(PathBuf::from(recorded.log_dir))))
}

/// Removes the log of an incarnation that is being removed, if it is elsewhere and its own. `removed` is the
/// incarnation's directory, under any name.
///
/// A log that another data directory, or another start, has used last stays: this one is a copy. So does one that
/// cannot be removed, since its device may be broken or gone: no start of a member with its log elsewhere needs it.
pub(in crate::storage) fn remove(removed: &FsPath, number: u64) -> std::io::Result<()> {
    let other = |error: StorageError| std::io::Error::other(error.to_string());
    let recorded = match LOG_DIR.read::<Recorded>(removed) {
        Err(StorageError::Corrupt { what }) => {
            tracing::warn!(dir = %removed, what, "the log of a removed incarnation may be left over");
            return Ok(());
        }
        found => found.map_err(other)?,
    };
    let Some(recorded) = recorded.filter(|recorded| !recorded.log_dir.is_empty()) else {
        return Ok(());
    };
    let data_dir = bytes_of(&data_dir_of(removed).map_err(other)?);
    let log_dir = removed.at(PathBuf::from(&recorded.log_dir));
    let path = place(&log_dir, number);
    let is_own = |owner: &Owner| {
        owner.incarnation == number
            && owner.data_dir == data_dir
            && recorded.start_of(owner).is_some()
    };
    if let Err(reason) = remove_own(&log_dir, &path, is_own) {
        tracing::warn!(log = %path, %reason, "the log of a removed incarnation stays");
    }
    Ok(())
}

/// Removes a log, if there is one and its owner is the right one.
fn remove_own(log_dir: &FsPath, path: &FsPath, is_own: impl Fn(&Owner) -> bool) -> Result<()> {
    let removing = format!("removing the log at {path}");
    let io = io_error(&removing);
    if !path.try_exists().map_err(io)? {
        return Ok(());
    }
    let locked = lock(path)?;
    match owner_at(path)? {
        // A crash has left it while it was made or removed.
        None if !path.join(LOG).try_exists().map_err(io)? => {}
        Some(owner) if is_own(&owner) => {}
        _ => {
            return Err(StorageError::Io {
                what: format!("the log at {path}"),
                reason: "it is not known to be of this data directory".to_owned(),
            });
        }
    }
    // OWNER goes last, so that what a crash leaves is still known.
    path.join(LOG).remove_all().and_then(|()| path.sync_names()).map_err(io)?;
    drop(locked);
    path.remove_all().and_then(|()| log_dir.sync_names()).map_err(io)
}

/// The canonical path of the `log_dir` of the settings.
pub(in crate::storage) fn canonical(log_dir: &FsPath) -> Result<FsPath> {
    log_dir.canonical().map_err(io_error("looking for the log_dir"))
}

/// Fails if a `log_dir`, by its canonical path, has to do with a data directory: no log is made there.
pub(in crate::storage) fn check(log_dir: &FsPath, data: &FsPath) -> Result<()> {
    let io = io_error("looking for the log_dir");
    let data = data.canonical().map_err(io)?;
    if log_dir.path().starts_with(data.path()) {
        return unusable(log_dir, &format!("it is in the data directory {data}: use another one"));
    }
    if data.path().starts_with(log_dir.path()) {
        return unusable(log_dir, &format!("the data directory {data} is in it: use another one"));
    }
    if log_dir.join(CURRENT).try_exists().map_err(io)? {
        return unusable(log_dir, "it is the data directory of a member: use another one");
    }
    Ok(())
}

/// Fails if an incarnation's log may not be in the `log_dir` of the settings, or is not there at all.
pub(in crate::storage) fn check_wanted(
    incarnation: &FsPath,
    number: u64,
    wanted: &FsPath,
) -> Result<()> {
    let io = io_error("looking for the log_dir");
    let recorded = recorded_log_dir(incarnation)?;
    let data = data_dir_of(incarnation)?;
    if let Some(recorded) = &recorded {
        // First: without its device, what is at the two paths says nothing.
        let path = place(recorded, number);
        if !path.try_exists().map_err(io)? {
            return Err(absent(&path, &data, Used::ByStart));
        }
    }
    let what = match recorded {
        Some(recorded) if recorded.path() == wanted.path() => return Ok(()),
        Some(recorded) if recorded.canonical().map_err(io)?.path() == wanted.path() => {
            return Ok(());
        }
        Some(recorded) => format!("the log of this member is in {recorded}, and not in {wanted}"),
        // Both are lost, as whoever reads the log finds.
        None if !incarnation.join(LOG).try_exists().map_err(io)? => return Ok(()),
        None => {
            format!("the log of this member is in its data directory {data}, and not in {wanted}")
        }
    };
    let reason = "start it without the new log_dir, or put a link or a mount at the recorded path. To have the log \
                  there, and only while a majority of the other members runs, stop this one member, remove its \
                  data directory and its log, and start it with the new log_dir: it joins its cluster again. \
                  Never do so for a cluster's only member";
    Err(StorageError::Io { what, reason: reason.to_owned() })
}

/// Fails if `log_dir` is where an incarnation has recorded its log, and that is not there: the next one would be
/// made beneath a mount point.
pub(in crate::storage) fn check_mounted(
    incarnation: &FsPath,
    number: u64,
    log_dir: &FsPath,
) -> Result<()> {
    let io = io_error("looking for the log_dir");
    let recorded = match recorded_log_dir(incarnation) {
        Err(StorageError::Corrupt { .. }) => None,
        recorded => recorded?,
    };
    let Some(recorded) = recorded else { return Ok(()) };
    let is_same = recorded.path() == log_dir.path()
        || recorded.canonical().map_err(io)?.path() == log_dir.canonical().map_err(io)?.path();
    let path = place(&recorded, number);
    if is_same && !path.try_exists().map_err(io)? {
        return Err(absent(&path, &data_dir_of(incarnation)?, Used::ByStart));
    }
    Ok(())
}

/// The error of what is there in place of a member's log.
fn other_log(path: &FsPath, number: u64, data: &FsPath, owner: Option<&Owner>) -> StorageError {
    let (what, reason) = match owner {
        None => (
            format!("{path} is not the log of the member in {data}: it has no OWNER"),
            "mount the log's device there, or put the log back".to_owned(),
        ),
        Some(owner) if owner.incarnation != number => (
            format!("{path} holds the log of another member, not of the one in {data}"),
            "start this member with its own log_dir, or put its log back".to_owned(),
        ),
        Some(owner) => (
            format!("the log at {path} and the data directory {data} are not of the same start"),
            format!(
                "one of them is an old copy, or was started with one since. {} has used this log last. Start the \
                 two that ran together last",
                owner.data_dir()
            ),
        ),
    };
    StorageError::Io { what, reason }
}

/// The error of a log that is not where it was recorded.
fn absent(path: &FsPath, data: &FsPath, used: Used) -> StorageError {
    let first = "if its device is not mounted, mount it; if the log was moved, put it back, or a link or a mount at \
                 this path";
    let last = match used {
        Used::ByStart => String::new(),
        Used::ByTool => "; if it was carried elsewhere, give the option --log-dir".to_owned(),
    };
    let error = StorageError::Io {
        what: format!("the log of this member is not at {path}, where {data} has recorded it"),
        reason: format!("{first}{last}"),
    };
    match used {
        Used::ByStart => with_last_resort(error),
        Used::ByTool => error,
    }
}

/// The error, as a member that starts reports it.
fn with_last_resort(error: StorageError) -> StorageError {
    match error {
        StorageError::Io { what, reason } => {
            StorageError::Io { what, reason: format!("{reason}. {IF_LOST}") }
        }
        other => other,
    }
}

fn unusable<T>(log_dir: &FsPath, reason: &str) -> Result<T> {
    let what = format!("the directory {log_dir} cannot hold a log");
    Err(StorageError::Io { what, reason: reason.to_owned() })
}

fn place(log_dir: &FsPath, number: u64) -> FsPath {
    log_dir.join(format!("{PREFIX}{number:016x}"))
}

fn lock(path: &FsPath) -> Result<Box<dyn Lock>> {
    path.join(LOCK).lock().map_err(|error| match error {
        StorageError::InUse => StorageError::LogInUse { log: path.to_string() },
        other => of_log(path, other),
    })
}

/// The owner of a log; `None` if it has none.
fn owner_at(path: &FsPath) -> Result<Option<Owner>> {
    OWNER.read(path).map_err(|error| of_log(path, error))
}

/// An error with the path of the log: without it, whoever reads the error looks in the data directory.
fn of_log(path: &FsPath, error: StorageError) -> StorageError {
    match error {
        StorageError::Io { what, reason } => {
            StorageError::Io { what: format!("{what} of the log at {path}"), reason }
        }
        StorageError::Corrupt { what } => {
            StorageError::Corrupt { what: format!("{what}, of the log at {path}") }
        }
        other => other,
    }
}

fn data_dir_of(incarnation: &FsPath) -> Result<FsPath> {
    incarnation.parent().canonical().map_err(io_error("looking for the data directory"))
}

fn bytes_of(path: &FsPath) -> Vec<u8> {
    path.path().as_os_str().as_encoded_bytes().to_owned()
}

/// The directory of an incarnation's log, by that of the incarnation and the content of its `LOG_DIR`.
#[cfg(any(test, feature = "simulator"))]
pub(in crate::storage) fn log_of(incarnation: &FsPath, number: u64, content: &[u8]) -> FsPath {
    match LOG_DIR.unseal::<Recorded>(content) {
        Ok(recorded) => place(&incarnation.at(PathBuf::from(recorded.log_dir)), number).join(LOG),
        Err(_) => incarnation.join(LOG),
    }
}

#[cfg(test)]
mod tests;
