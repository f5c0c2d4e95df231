//! Recovery of what is encrypted, or has its log elsewhere.

use std::path::{Path, PathBuf};

use super::found::{Founded, restore_with};
use super::inspect::{Inspection, inspect_with};
use super::plan::{Plan, recover_with};
use super::{Backup, read_backup_with, verify_with};
use crate::api::snapshot::Snapshot;
use crate::encryption::AtRest;
use crate::machine::Machine;
use crate::runtime::clock::Clock;
use crate::runtime::directory::store_options;
use crate::storage::{StorageError, StoreOptions};
use crate::types::error::Result;

/// The functions of [`recovery`](super) with settings: the keys of what is encrypted, and where logs are.
///
/// ```
/// use quorate::recovery::{self, Options};
/// use quorate::testing::Cluster;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let (file, dir, logs) =
/// #     (directory.path().join("backup"), directory.path().join("data"), directory.path().join("logs"));
/// Cluster::new(1).node(0).backup(&file).wait()?;
/// Options::new().log_dir(&logs).restore(&file, &dir, "10.0.0.1:7400")?;
/// // The directory says where its log is, unless both were carried elsewhere.
/// assert!(recovery::inspect(&dir)?.contents.is_some());
/// # let carried = directory.path().join("carried");
/// std::fs::rename(&logs, &carried).unwrap();
/// assert!(recovery::inspect(&dir).is_err());
/// assert!(Options::new().log_dir(&carried).inspect(&dir)?.contents.is_some());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(super) at_rest: Option<AtRest>,
    pub(super) log_dir: Option<PathBuf>,
    pub(super) sets_time_back: bool,
}

impl Options {
    /// No settings, as in the functions of [`recovery`](super).
    #[must_use]
    pub fn new() -> Options {
        Options::default()
    }

    /// Uses these keys. The key that a directory or backup is encrypted under must be among them; the first one encrypts
    /// what is written. Backups that are not encrypted can be read, too; data directories must be encrypted.
    ///
    /// ```
    /// use quorate::encryption::AtRest;
    /// use quorate::recovery::Options;
    /// use quorate::{Coordinator, CreateMode, testing::Cluster};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let (file, dir) = (directory.path().join("backup"), directory.path().join("data"));
    /// let keys = AtRest::new(|| Ok::<_, String>(vec![("k1".to_owned(), *b"0123456789abcdef0123456789abcdef")]));
    /// let cluster = Cluster::with_settings(1, Coordinator::builder().encryption(keys.clone()));
    /// cluster.node(0).session().create("/a", b"1", CreateMode::Persistent).wait()?;
    /// let backup = cluster.node(0).backup(&file).wait()?;
    /// assert_eq!(backup.key.as_deref(), Some("k1"));
    ///
    /// let recovery = Options::new().encryption(keys);
    /// assert_eq!(recovery.verify(&file)?, backup);
    /// recovery.restore(&file, &dir, "10.0.0.1:7400")?;
    /// assert!(recovery.inspect(&dir)?.contents.is_some());
    /// assert!(quorate::recovery::inspect(&dir).is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn encryption(mut self, keys: AtRest) -> Options {
        self.at_rest = Some(keys);
        self
    }

    /// The directory of logs, as [`Builder::log_dir`](crate::Builder::log_dir). A log that a data directory has
    /// elsewhere is looked for here first, and then where it was recorded: needed if they were carried to
    /// another machine, or if the directory's record of the place is lost. A log that is not known to be the last
    /// one of its directory counts as damaged: see [`recover_damaged`](super::recover_damaged). The log of a new
    /// cluster is made here.
    #[must_use]
    pub fn log_dir(mut self, dir: impl Into<PathBuf>) -> Options {
        self.log_dir = Some(dir.into());
        self
    }

    /// A new cluster goes on from this machine's clock, if the log's time is later: for when a member with a clock that was
    /// far ahead has moved the log's time there. What was written later than now counts as written now, and what expires
    /// or is due keeps what is left of its time. [Metrics](crate::guide::metrics#clocks) says what to do about timers and rate
    /// limiters, whose znodes have times of their own.
    #[must_use]
    pub fn set_time_back(mut self) -> Options {
        self.sets_time_back = true;
        self
    }

    /// As [`inspect`](super::inspect()).
    ///
    /// # Errors
    /// As there; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey).
    pub fn inspect(&self, dir: impl AsRef<Path>) -> Result<Inspection> {
        inspect_with(dir.as_ref(), self)
    }

    /// As [`recover`](super::recover). [`Plan::found_anew`] uses the settings, too.
    ///
    /// # Errors
    /// As there; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey).
    pub fn recover<P: AsRef<Path>>(&self, dirs: impl IntoIterator<Item = P>) -> Result<Plan> {
        recover_with(dirs, false, self)
    }

    /// As [`recover_damaged`](super::recover_damaged).
    ///
    /// # Errors
    /// As there; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey).
    pub fn recover_damaged<P: AsRef<Path>>(
        &self,
        dirs: impl IntoIterator<Item = P>,
    ) -> Result<Plan> {
        recover_with(dirs, true, self)
    }

    /// As [`verify`](super::verify).
    ///
    /// # Errors
    /// As there; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey).
    pub fn verify(&self, file: impl AsRef<Path>) -> Result<Backup> {
        verify_with(file.as_ref(), self.at_rest.as_ref())
    }

    /// As [`read_backup`](super::read_backup).
    ///
    /// # Errors
    /// As there; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey).
    pub fn read_backup(&self, file: impl AsRef<Path>) -> Result<Snapshot> {
        read_backup_with(file.as_ref(), self.at_rest.as_ref())
    }

    /// As [`restore`](super::restore). With keys, the data directory is encrypted, and the backup may be in clear.
    ///
    /// # Errors
    /// As there; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey).
    pub fn restore(
        &self,
        file: impl AsRef<Path>,
        dir: impl AsRef<Path>,
        address: &str,
    ) -> Result<Founded> {
        restore_with(file.as_ref(), dir.as_ref(), address, self)
    }

    /// Sets the log's time back, if that was asked for.
    pub(super) fn set_time(&self, machine: &mut Machine) {
        if self.sets_time_back {
            machine.set_time_back(Clock::real().wall_ms());
        }
    }

    /// The settings of the stores.
    pub(super) fn store(&self) -> std::result::Result<StoreOptions, StorageError> {
        store_options(self.at_rest.as_ref(), self.log_dir.as_deref())
    }
}
