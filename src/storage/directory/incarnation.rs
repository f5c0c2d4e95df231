//! The directory of one incarnation of a member: its identity, its promise, its log and its checkpoints.
//!
//! | name          | what it is                                                     |
//! |---------------|----------------------------------------------------------------|
//! | `NEW`         | the incarnation was never the current one; text                |
//! | `IDENTITY`    | a frame with the [`Identity`]; written last                    |
//! | `PROMISE`     | a frame with the [`Promise`]                                   |
//! | `KEYS`        | a frame with keys, if the data is encrypted: see `sealing`     |
//! | `log/`        | the log and its witness, see `log`; or                         |
//! | `LOG_DIR`     | a frame: where else the log is, see `log::place`               |
//! | `gen-NNNNNN/` | a generation: chunks of checkpoints, and sled with their places |
//! | `REMOVED`     | why the node is no member any more; text                       |
//! | `VOTER`       | the node has been a voter; text                                |
//! | `*.tmp`       | a file about to be renamed, or left over from a crash          |
//!
//! `frame` describes frames and marks. There is always a `PROMISE` beside `IDENTITY`, so that its loss is
//! noticed.

use std::ffi::OsString;
use std::io::{self, ErrorKind};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::node::stored::Identity;
use crate::storage::checkpoint::paths::{GenerationPaths, generation_number};
use crate::storage::error::{Result, StorageError};
use crate::storage::error::{corrupt, io_error, refuse};
use crate::storage::file_system::FsPath;
use crate::storage::file_system::Space;
use crate::storage::frame::{self, Format, TMP};
use crate::storage::log::place::{self, FoundLog, LogPlace};
use crate::storage::log::record::RecordPosition;
#[cfg(any(test, feature = "simulator"))]
use crate::storage::log::scan::find_needed;
#[cfg(any(test, feature = "simulator"))]
use crate::storage::log::segments::{numbers, path};
use crate::storage::rules::check_successor;
use crate::storage::sealing::{KEYS, Sealing};
use crate::types::encoding;
use crate::types::membership::Promise;

pub(in crate::storage) const IDENTITY: Format =
    Format { name: "IDENTITY", magic: b"qrident\n", number: 1 };
const PROMISE: Format = Format { name: "PROMISE", magic: b"qrpromi\n", number: 1 };
const NEW: &str = "NEW";
const REMOVED: &str = "REMOVED";
const VOTER: &str = "VOTER";
const LOG: &str = "log";
const PREFIX: &str = "incarnation-";

/// The sequence number of the only record that founding makes.
pub(in crate::storage) const FOUNDING_SEQ: u64 = 1;

/// The content of `IDENTITY`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    identity: Identity,
    /// The identity as it was first written, from which the chains of all records start.
    origin: Vec<u8>,
}

/// Reads arbitrary bytes as the small files.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    IDENTITY.fuzz::<Owner>(bytes);
    PROMISE.fuzz::<Promise>(bytes);
}

/// What must be sound where an incarnation is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) enum Sound {
    /// `IDENTITY` and `PROMISE`, and the node is still a member.
    All,
    /// `IDENTITY`.
    Identity,
    /// Nothing.
    Nothing,
}

/// The directory of an incarnation.
#[derive(Debug)]
pub(in crate::storage) struct Incarnation {
    path: FsPath,
    /// `None` in an incarnation that is being made, and where `IDENTITY` cannot be read.
    owner: Option<Owner>,
    promise: Promise,
    /// Whether the node is known to have been a voter.
    voter: bool,
    log: LogAt,
}

/// Where the log of an incarnation is.
#[derive(Debug)]
enum LogAt {
    /// In the incarnation's directory.
    Here,
    Elsewhere(LogPlace),
    /// Elsewhere, for a tool that reads it.
    Found(FoundLog),
    /// Elsewhere, and this prevents its use.
    Unusable(StorageError),
}

impl Incarnation {
    /// The name of an identity's directory.
    pub(in crate::storage) fn name(identity: &Identity) -> String {
        format!("{PREFIX}{:016x}", identity.incarnation)
    }

    /// Whether this is the name of an incarnation's directory.
    pub(super) fn is_name(name: &str) -> bool {
        let number = name.strip_prefix(PREFIX).unwrap_or_default();
        number.len() == 16 && number.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }

    /// Makes a directory at this path, which stays new until [`Incarnation::mark_current`]. `log_dir`: the
    /// directory that the log will be in, if not in this one.
    pub(in crate::storage) fn create(
        path: FsPath,
        log_dir: Option<&FsPath>,
    ) -> Result<Incarnation> {
        let io = io_error("making a data directory");
        if is_complete(&path).map_err(io)? {
            return refuse(format!("{path} exists already"));
        }
        path.create_directory().map_err(io)?;
        frame::write_mark(&path, NEW, "this incarnation is not in use yet")?;
        let log = match log_dir {
            Some(log_dir) => LogAt::Elsewhere(LogPlace::create(&path, number_of(&path), log_dir)?),
            None => LogAt::Here,
        };
        Ok(Incarnation { path, owner: None, promise: Promise::default(), voter: false, log })
    }

    /// Opens the directory at this path. A log that is elsewhere is looked for in `log_dir` first.
    pub(in crate::storage) fn open(
        path: FsPath,
        sound: Sound,
        log_dir: Option<&FsPath>,
    ) -> Result<Incarnation> {
        if !path.try_exists().map_err(io_error("looking for the incarnation"))? {
            return corrupt(format!("{}, which CURRENT names, is missing", file_name(&path)));
        }
        // A process that ends leaves names that no disk has. They are made durable before anything is
        // done on their word. The files themselves were synced before they got their names.
        path.sync_names().map_err(io_error("syncing the directory"))?;
        let (voter, promise) = (path.join(VOTER).exists(), Promise::default());
        let mut opened = Incarnation { path, owner: None, promise, voter, log: LogAt::Here };
        if let (Sound::All, Some(reason)) = (sound, opened.removed()?) {
            return Err(StorageError::Removed { reason });
        }
        match (opened.read_owner(sound), sound) {
            (Ok(()), _) | (Err(StorageError::Corrupt { .. }), Sound::Nothing) => {}
            (Err(error), _) => return Err(error),
        }
        let number = number_of(&opened.path);
        opened.log = match sound {
            Sound::All => {
                LogPlace::open(&opened.path, number)?.map_or(LogAt::Here, LogAt::Elsewhere)
            }
            Sound::Identity | Sound::Nothing => {
                match FoundLog::open(&opened.path, number, log_dir) {
                    Ok(found) => found.map_or(LogAt::Here, LogAt::Found),
                    Err(error) => LogAt::Unusable(error),
                }
            }
        };
        Ok(opened)
    }

    fn read_owner(&mut self, sound: Sound) -> Result<()> {
        let Some(owner) = IDENTITY.read::<Owner>(&self.path)? else {
            return corrupt("IDENTITY is missing".to_owned());
        };
        self.owner = Some(owner);
        if sound == Sound::All {
            self.promise = match PROMISE.read(&self.path)? {
                Some(promise) => promise,
                None => return corrupt("PROMISE is missing".to_owned()),
            };
        }
        Ok(())
    }

    pub(in crate::storage) fn path(&self) -> &FsPath {
        &self.path
    }

    /// Notes that this is the current incarnation now, durably.
    pub(super) fn mark_current(&self) -> Result<()> {
        frame::remove_file(&self.path, NEW)
    }

    /// Why the node is no member any more, if it is not.
    pub(in crate::storage) fn removed(&self) -> Result<Option<String>> {
        frame::read_mark(&self.path, REMOVED)
    }

    /// Marks the node as a member that was removed, durably.
    pub(in crate::storage) fn mark_removed(&self) -> Result<()> {
        frame::write_mark(&self.path, REMOVED, "the cluster has removed this member")
    }

    /// Notes that the node has been a voter, durably.
    pub(in crate::storage) fn mark_voter(&mut self) -> Result<()> {
        if self.voter {
            return Ok(());
        }
        frame::write_mark(&self.path, VOTER, "this member has been a voter of its cluster")?;
        self.voter = true;
        Ok(())
    }

    /// Whether the node has been a voter.
    pub(in crate::storage) fn was_voter(&self) -> bool {
        self.voter
    }

    pub(in crate::storage) fn identity(&self) -> Option<&Identity> {
        self.owner.as_ref().map(|owner| &owner.identity)
    }

    pub(in crate::storage) fn promise(&self) -> &Promise {
        &self.promise
    }

    /// The id of the log, from which the chain of its records starts. So a file from another store
    /// does not fit.
    pub(in crate::storage) fn log_id(&self) -> Result<u64> {
        self.owner().map(|owner| xxh3_64(&owner.origin))
    }

    /// As [`Incarnation::log_id`], for a directory that this identity will own.
    pub(in crate::storage) fn log_id_of(identity: &Identity) -> u64 {
        xxh3_64(&encoding::append(identity, Vec::new()))
    }

    fn owner(&self) -> Result<&Owner> {
        match &self.owner {
            Some(owner) => Ok(owner),
            None => refuse("the store is blank".to_owned()),
        }
    }

    /// Where the generations live.
    pub(in crate::storage) fn generations(&self) -> GenerationPaths {
        GenerationPaths::new(&self.path)
    }

    /// Where the log lives.
    pub(in crate::storage) fn log(&self) -> Result<FsPath> {
        match &self.log {
            LogAt::Here => Ok(self.path.join(LOG)),
            LogAt::Elsewhere(place) => Ok(place.log()),
            LogAt::Found(found) => Ok(found.log()),
            LogAt::Unusable(error) => Err(error.clone()),
        }
    }

    /// Why no member continues with the log, if the reason is not in the log itself.
    pub(in crate::storage) fn log_fault(&self) -> Option<StorageError> {
        match &self.log {
            LogAt::Here | LogAt::Elsewhere(_) => None,
            LogAt::Found(found) => found.fault.clone(),
            LogAt::Unusable(error) => Some(error.clone()),
        }
    }

    /// The room on the file system of a log that is elsewhere.
    pub(in crate::storage) fn log_space(&self) -> Option<Space> {
        match &self.log {
            LogAt::Elsewhere(place) => place.log().space(),
            LogAt::Here | LogAt::Found(_) | LogAt::Unusable(_) => None,
        }
    }

    /// Makes a log that is elsewhere durable, before it is read.
    pub(super) fn sync_log(&self) -> Result<()> {
        match &self.log {
            LogAt::Elsewhere(place) => place.sync(),
            LogAt::Here | LogAt::Found(_) | LogAt::Unusable(_) => Ok(()),
        }
    }

    /// Whether the log is in another directory.
    pub(in crate::storage) fn has_log_elsewhere(&self) -> bool {
        matches!(self.log, LogAt::Elsewhere(_))
    }

    /// Notes durably that this incarnation goes on with its log, after the record `last`. `random`: no start has
    /// had this number. `is_alone`: it is the only member of its cluster.
    pub(in crate::storage) fn start_log(
        &mut self,
        last: RecordPosition,
        random: u64,
        is_alone: bool,
    ) -> Result<()> {
        match &mut self.log {
            LogAt::Elsewhere(place) => place.start(last, random, is_alone),
            LogAt::Here | LogAt::Found(_) | LogAt::Unusable(_) => Ok(()),
        }
    }

    /// Notes durably that no log of an earlier start fits any more.
    pub(in crate::storage) fn forget_log_before(&mut self) -> Result<()> {
        match &mut self.log {
            LogAt::Elsewhere(place) => place.forget_before(),
            LogAt::Here | LogAt::Found(_) | LogAt::Unusable(_) => Ok(()),
        }
    }

    /// Notes durably how far a log that is elsewhere reaches, as the store is closed.
    pub(in crate::storage) fn close_log(&mut self, last: RecordPosition) -> Result<()> {
        match &mut self.log {
            LogAt::Elsewhere(place) => place.close(last),
            LogAt::Here | LogAt::Found(_) | LogAt::Unusable(_) => Ok(()),
        }
    }

    /// The last record that a log which is, or was, elsewhere must have.
    pub(in crate::storage) fn needed_record(&self) -> Result<Option<RecordPosition>> {
        match &self.log {
            LogAt::Elsewhere(place) => Ok(place.needed()),
            LogAt::Here | LogAt::Found(_) | LogAt::Unusable(_) => place::needed(&self.path),
        }
    }

    /// The error of a log without that record.
    pub(in crate::storage) fn log_too_old(&self) -> StorageError {
        match &self.log {
            LogAt::Elsewhere(place) => place.too_old(),
            LogAt::Here | LogAt::Found(_) | LogAt::Unusable(_) => StorageError::Corrupt {
                what: "the log does not have the last records of its data directory: it is an old copy"
                    .to_owned(),
            },
        }
    }

    /// Gives the directory to `identity`, durably: the last step of making it.
    pub(in crate::storage) fn take(&mut self, identity: &Identity) -> Result<()> {
        let promise = Promise::default();
        PROMISE.write(&self.path, &promise)?;
        let origin = encoding::append(identity, Vec::new());
        self.write_owner(Owner { identity: identity.clone(), origin })?;
        self.promise = promise;
        Ok(())
    }

    /// Replaces the identity, durably.
    pub(in crate::storage) fn set_identity(&mut self, identity: &Identity) -> Result<()> {
        let owner = self.owner()?;
        check_successor(&owner.identity, identity)?;
        self.write_owner(Owner { identity: identity.clone(), origin: owner.origin.clone() })
    }

    /// Replaces the promise, durably.
    pub(in crate::storage) fn set_promise(&mut self, promise: &Promise) -> Result<()> {
        self.owner()?;
        PROMISE.write(&self.path, promise)?;
        self.promise = promise.clone();
        Ok(())
    }

    fn write_owner(&mut self, owner: Owner) -> Result<()> {
        IDENTITY.write(&self.path, &owner)?;
        self.owner = Some(owner);
        Ok(())
    }

    /// Removes what is not needed with this generation and these keys. Best effort: the next open tries again, and
    /// what is left does no harm.
    pub(in crate::storage) fn remove_unused(&self, generation: u64, sealing: &Sealing) {
        let _ = self.remove_leftovers(generation);
        let _ = sealing.drop_unused_keys(&self.path);
    }

    /// Removes the leftovers of crashes: all generations except `keep`, and files that were not
    /// renamed.
    fn remove_leftovers(&self, keep: u64) -> io::Result<()> {
        for name in self.path.list()? {
            let Some(name) = name.to_str() else { continue };
            if generation_number(name).is_some_and(|number| number != keep) {
                self.path.join(name).remove_all()?;
            } else if frame::unfinished(name).is_some() {
                self.path.join(name).remove_file()?;
            }
        }
        Ok(())
    }

    /// Copies the store with its log, without its marks, to a directory that does not exist yet. Not durably.
    pub(in crate::storage) fn copy_to(&self, to: &FsPath) -> Result<()> {
        let io = io_error("copying the store");
        to.create_directory().map_err(io)?;
        for name in self.path.list().map_err(io)? {
            let wanted = name.to_str().is_some_and(|name| {
                [IDENTITY.name, PROMISE.name, KEYS.name].contains(&name)
                    || generation_number(name).is_some()
            });
            if wanted {
                self.path.join(&name).copy_all(&to.join(&name)).map_err(io)?;
            }
        }
        let log = match self.log() {
            Ok(log) => log,
            Err(error @ StorageError::LogInUse { .. }) => return Err(error),
            // What is left is copied without it. See `log_fault`.
            Err(_) => return Ok(()),
        };
        place::note_needed(&self.path, to)?;
        match log.try_exists().map_err(io)? {
            true => log.copy_all(&to.join(LOG)).map_err(io),
            false => Ok(()),
        }
    }
}

/// Whether the directory at this path is that of an incarnation that is, or was, the current one: it has
/// not the mark `NEW`, and holds more than the unfinished form of it.
pub(in crate::storage) fn is_complete(path: &FsPath) -> io::Result<bool> {
    let names = match path.list() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    let is_new = names.iter().any(|name| name == NEW);
    let unfinished = |name: &OsString| name.to_str().and_then(frame::unfinished) == Some(NEW);
    Ok(!is_new && !names.iter().all(unfinished))
}

/// Whether the node of this incarnation was removed from its cluster.
pub(in crate::storage) fn is_removed(path: &FsPath) -> bool {
    path.join(REMOVED).exists()
}

/// Fails if the log of this incarnation may not be in the `log_dir` of the settings, or is not there at all.
pub(super) fn check_log_dir(path: &FsPath, log_dir: &FsPath) -> Result<()> {
    place::check_wanted(path, number_of(path), log_dir)
}

/// Fails if `log_dir` is where this incarnation has its log, and its device is not mounted.
pub(in crate::storage) fn check_mounted(path: &FsPath, log_dir: &FsPath) -> Result<()> {
    place::check_mounted(path, number_of(path), log_dir)
}

/// Removes the directory of an incarnation, and its log.
///
/// It loses its name first, durably: without its mark `NEW`, what a crash leaves of it would count as former
/// data.
pub(in crate::storage) fn remove(path: &FsPath) -> io::Result<()> {
    let removed = path.at(path.path().with_extension(TMP));
    finish_removal(&removed)?;
    path.rename(&removed)?;
    path.parent().sync_names()?;
    finish_removal(&removed)
}

/// Removes what is left of an incarnation that has lost its name. Its log goes first, since this directory
/// records where that is.
pub(super) fn finish_removal(removed: &FsPath) -> io::Result<()> {
    place::remove(removed, number_of(removed))?;
    removed.remove_all()
}

/// The number in the name of an incarnation's directory, whatever the name ends with.
fn number_of(path: &FsPath) -> u64 {
    let name = file_name(path);
    let digits = name.strip_prefix(PREFIX).and_then(|digits| digits.get(..16));
    // Only such names are ever opened, made or removed.
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default()
}

fn file_name(path: &FsPath) -> String {
    path.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The segments of the log of an incarnation that are only kept to be used again.
#[cfg(any(test, feature = "simulator"))]
pub(in crate::storage) fn spare_segments(dir: &FsPath) -> Option<Vec<FsPath>> {
    let incarnation = Incarnation::open(dir.clone(), Sound::Identity, None).ok()?;
    let log = incarnation.log().ok()?;
    let needed = find_needed(&log, incarnation.log_id().ok()?, &Sealing::default()).ok()?;
    let mut numbers = numbers(&log).ok()?;
    numbers.retain(|number| *number < needed.from.segment);
    Some(numbers.into_iter().map(|number| path(&log, number)).collect())
}

/// The directory of an incarnation's log, by that of the incarnation and the content of its `LOG_DIR`.
#[cfg(any(test, feature = "simulator"))]
pub(crate) fn log_of(incarnation: &FsPath, content: &[u8]) -> FsPath {
    place::log_of(incarnation, number_of(incarnation), content)
}
