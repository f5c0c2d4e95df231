//! Disaster recovery: backups, and new clusters from the remains of lost ones.
//!
//! - [`Coordinator::backup`](crate::Coordinator::backup) writes the whole tree to a file while the
//!   instance runs; [`Recovery::verify`] checks such a file, and [`Recovery::restore`] founds a new cluster from it.
//! - [`Recovery::inspect`] reports the content of a data directory, without changing it.
//! - [`Recovery::recover`] compares the remaining directories after a majority of the voters is lost for
//!   good. It reports which one is best and what may be lost, before anything is written.
//!   [`Plan::found_anew`] then founds a new cluster from it. [`Recovery::recover_damaged`] also uses damaged
//!   directories, as far as they are readable.
//!
//! [`Recovery`] has these calls. It takes the keys of what is encrypted, and another place of the log.
//!
//! Everything except the backup is for stopped instances. See [`guide::recovery`](crate::guide::recovery) for
//! a guide. The program `quorate` does the same from a shell.

mod backup;
mod calls;
mod copy;
mod found;
mod inspect;

mod plan;

use crate::runtime::pending::Pending;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serializer;

#[cfg(any(test, fuzzing))]
pub(crate) use self::backup::fuzz;
pub use self::calls::Recovery;
pub use self::found::Founded;
pub use self::inspect::{Contents, Inspection};
pub use self::plan::{Loss, Plan};

use self::backup::{BackupKey, Header, ReadBackup, UnreadableBackup};
use crate::api::coordinator::Coordinator;
use crate::api::snapshot::Snapshot;
use crate::encryption::{AtRest, KeyError};
use crate::machine::snapshot::ChunkReader;
use crate::machine::{Machine, State};
use crate::node::admin::message::{AdminReply, AdminRequest};
use crate::runtime::chroot::Root;
use crate::runtime::{entropy, own_thread};
use crate::types::acl::Id;
use crate::types::error::{Error, Result};
use crate::types::moment::utc;
use crate::types::serde_form::Millis;
use crate::types::start_error::StartError;
use crate::types::znode::Zxid;

/// How many times the member that serves a client's backup may be lost before the backup fails.
const LOST_MAX: u32 = 3;

/// A description of a backup.
///
/// ```
/// use quorate::{CreateMode, recovery::Recovery, testing::Cluster};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let file = directory.path().join("backup");
/// let cluster = Cluster::new(3);
/// cluster.node(0).session().create("/a", b"1", CreateMode::Persistent).wait()?;
/// let backup = cluster.node(0).backup(&file).wait()?;
/// assert_eq!(Recovery::new().verify(&file)?, backup);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Backup {
    /// The cluster that was backed up.
    #[serde(serialize_with = "crate::types::serde_form::hex")]
    pub cluster: u64,
    /// The zxid of the last write in it: the backup contains all writes up to that one, and none
    /// after.
    pub zxid: Zxid,
    /// When it was made, by the wall clock of the instance that made it.
    #[serde(serialize_with = "millis")]
    pub time: SystemTime,
    /// The number of znodes in it.
    pub znodes: usize,
    /// The number of sessions.
    pub sessions: usize,
    /// The version that the cluster used.
    pub version: u16,
    /// The length of the file.
    pub bytes: u64,
    /// The id of the key that it is encrypted under; `None` if it is not encrypted.
    pub key: Option<String>,
}

impl Backup {
    fn new(header: &Header, machine: &Machine, bytes: u64, key: Option<String>) -> Backup {
        Backup {
            cluster: header.cluster,
            zxid: header.zxid,
            time: time(header.time_ms),
            znodes: machine.tree().len(),
            sessions: machine.session_count(),
            version: header.version,
            bytes,
            key,
        }
    }
}

impl fmt::Display for Backup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cluster {:016x} up to zxid {}, {}: {} znodes, {} sessions, version {}, {} bytes",
            self.cluster,
            self.zxid,
            moment(self.time),
            self.znodes,
            self.sessions,
            self.version,
            self.bytes
        )?;
        match &self.key {
            Some(key) => write!(f, ", encrypted under key {key}"),
            None => Ok(()),
        }
    }
}

fn verify_with(file: &Path, at_rest: Option<&AtRest>) -> Result<Backup> {
    let ReadBackup { header, machine, bytes, under } = read(file, at_rest)?;
    Ok(Backup::new(&header, &machine, bytes, under))
}

fn read_backup_with(file: &Path, at_rest: Option<&AtRest>) -> Result<Snapshot> {
    let ReadBackup { machine, .. } = read(file, at_rest)?;
    let all = Arc::new(vec![Id::new("super", "")]);
    Ok(Snapshot::new(Arc::new(machine.tree()), Root::default(), all))
}

fn read(file: &Path, at_rest: Option<&AtRest>) -> Result<ReadBackup> {
    let ring = at_rest.map(AtRest::ring).transpose().map_err(|error| key_error(file, error))?;
    backup::read(file, ring.as_ref()).map_err(|error| match error {
        UnreadableBackup::Key(reason) => key_error(file, KeyError(reason)),
        UnreadableBackup::Io(error) => unusable(file, &error),
        UnreadableBackup::Bad(reason) => {
            Error::Start(StartError::BackupDamaged { file: file.to_owned(), reason })
        }
    })
}

impl Coordinator {
    /// Writes a backup of this replica to a file, while the instance runs, and returns a
    /// description of it. The backup contains everything up to one write, and nothing after it.
    /// [`Recovery::verify`] checks a backup, and [`Recovery::restore`] founds a new cluster from it.
    ///
    /// **It is of the replica as it is**, which may lag behind, and just after a start is as old as its last
    /// checkpoint, or empty: call [`Session::sync`](crate::Session::sync) first if the backup must have
    /// everything written until now. When this returns, the file is complete and durable;
    /// until then `file` has its former content. Only the file's owner can read it, since it
    /// contains all data and the sessions' passwords. Blocks until the file is written, which
    /// delays no other request.
    ///
    /// With [`Builder::encryption`](crate::Builder), the backup is encrypted.
    ///
    /// A client receives the state of a member's replica into memory first, and then writes the backup.
    /// If that member is lost, the client starts again with another one. The member writes a line to its
    /// audit log.
    ///
    /// # Errors
    /// [`StartError::FileUnusable`]; [`StartError::EncryptionKey`]; [`Error::Stopped`]; [`Error::Timeout`] if the node does not respond. On
    /// a client also [`Error::Refused`], if the member is already sending two backups: try again later.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let file = directory.path().join("backup");
    /// let cluster = quorate::testing::Cluster::new(3);
    /// let coordinator = cluster.node(0);
    /// coordinator.session().sync().wait()?;
    /// println!("{}", coordinator.backup(&file).wait()?);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn backup(&self, file: impl AsRef<Path>) -> Pending<'static, Backup> {
        let file = file.as_ref().to_owned();
        self.work("backup", move |coordinator| coordinator.backing_up(&file))
    }

    fn backing_up(&self, file: &Path) -> Result<Backup> {
        own_thread::check("a backup")?;
        let shared = self.shared();
        let Some(state) = shared.look(|engine| engine.node().map(|node| node.machine().state()))
        else {
            return Err(shared.end.error().unwrap_or_else(|| Error::Timeout {
                operation: format!("backup {}", file.display()),
                waited: shared.limits.request_timeout,
                reason: shared.readiness.waiting_for(),
            }));
        };
        let state = match state {
            Some(state) => state,
            None => self.received_state()?,
        };
        let cluster = shared.cluster.id();
        back_up(file, cluster, shared.clock.wall_ms(), state, shared.at_rest())
    }
}

impl Coordinator {
    /// Receives the state of a member. If that member is lost, starts again with the first piece of
    /// another one.
    fn received_state(&self) -> Result<State> {
        let mut lost = 0;
        loop {
            match self.received_from_one() {
                Err(Error::Timeout { .. }) if lost < LOST_MAX => lost += 1,
                state => return state,
            }
        }
    }

    fn received_from_one(&self) -> Result<State> {
        let shared = self.shared();
        let failed = |reason: String| Error::Refused { operation: "a backup".to_owned(), reason };
        let transfer = entropy::number()?;
        let mut reader = ChunkReader::new();
        let mut of = 0;
        for piece in 0.. {
            let asked = AdminRequest::Image { of, transfer, piece };
            let mut replies = shared.ask_members(asked).wait()?;
            match replies.pop() {
                Some((node, AdminReply::Image { bytes, end: None })) => {
                    of = node;
                    reader.push(&bytes).map_err(failed)?;
                }
                Some((_, AdminReply::Image { end: Some(end), .. })) => {
                    return Ok(reader.finish(end.zxid, end.hash).map_err(failed)?.state());
                }
                Some((_, AdminReply::Refused { reason })) => return Err(failed(reason)),
                _ => {
                    return Err(Error::Timeout {
                        operation: "a backup".to_owned(),
                        waited: shared.limits.request_timeout,
                        reason: shared.readiness.waiting_for(),
                    });
                }
            }
        }
        Err(failed("the state has no end".to_owned()))
    }
}

/// Writes the backup of a state.
pub(crate) fn back_up(
    file: &Path,
    cluster: u64,
    time_ms: u64,
    state: State,
    at_rest: Option<&AtRest>,
) -> Result<Backup> {
    let key = at_rest.map(|keys| BackupKey::new(&keys.ring()?)).transpose();
    let key = key.map_err(|error| key_error(file, error))?;
    let machine = Machine::from_state(state);
    let header = Header {
        cluster,
        zxid: machine.zxid(),
        hash: machine.hash(),
        time_ms,
        version: machine.version(),
    };
    match backup::write(file, &header, machine.state(), key.as_ref()) {
        Ok(bytes) => {
            let under = key.map(|key| key.under().to_owned());
            Ok(Backup::new(&header, &machine, bytes, under))
        }
        Err(error) => Err(unusable(file, &error)),
    }
}

fn key_error(file: &Path, KeyError(reason): KeyError) -> Error {
    Error::Start(StartError::EncryptionKey { path: file.to_owned(), reason })
}

fn unusable(file: &Path, error: &dyn fmt::Display) -> Error {
    let (file, reason) = (file.to_owned(), error.to_string());
    Error::Start(StartError::FileUnusable { file, reason })
}

fn dir_unusable(dir: &Path, reason: impl Into<String>) -> Error {
    Error::Start(StartError::DataDirUnusable { dir: PathBuf::from(dir), reason: reason.into() })
}

fn time(ms: u64) -> SystemTime {
    // A time that the system cannot represent becomes the epoch.
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// A time in milliseconds since the Unix epoch.
fn millis<S: Serializer>(time: &SystemTime, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    Millis::serialize(&since_epoch(*time), serializer)
}

fn millis_if_any<S: Serializer>(
    time: &Option<SystemTime>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    Millis::serialize(&time.map(since_epoch), serializer)
}

/// A time as text: date and time in UTC.
fn moment(time: SystemTime) -> String {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => utc(since),
        Err(_) => "at an unknown time".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        let at = |seconds: u64| moment(time(seconds * 1000));
        assert_eq!(at(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(at(1_795_343_999), "2026-11-22 10:39:59 UTC");
    }
}
