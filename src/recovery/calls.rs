//! The calls, and their settings.

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
#[cfg(doc)]
use crate::types::start_error::StartError;

/// Reads and founds while no instance runs. Its settings are the keys of what is encrypted, and where logs are; most
/// need none.
///
/// ```
/// use quorate::recovery::Recovery;
/// use quorate::testing::Cluster;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let (file, dir, logs) =
/// #     (directory.path().join("backup"), directory.path().join("data"), directory.path().join("logs"));
/// Cluster::new(1).node(0).backup(&file).wait()?;
/// Recovery::new().log_dir(&logs).restore(&file, &dir, "10.0.0.1:7400")?;
/// // The directory says where its log is, unless both were carried elsewhere.
/// assert!(Recovery::new().inspect(&dir)?.contents.is_some());
/// # let carried = directory.path().join("carried");
/// std::fs::rename(&logs, &carried).unwrap();
/// assert!(Recovery::new().inspect(&dir).is_err());
/// assert!(Recovery::new().log_dir(&carried).inspect(&dir)?.contents.is_some());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    pub(super) at_rest: Option<AtRest>,
    pub(super) log_dir: Option<PathBuf>,
    pub(super) sets_time_back: bool,
}

impl Recovery {
    /// No settings: nothing is encrypted, and each directory says where its log is.
    #[must_use]
    pub fn new() -> Recovery {
        Recovery::default()
    }

    /// Uses these keys. The key that a directory or backup is encrypted under must be among them; the first one encrypts
    /// what is written. Backups that are not encrypted can be read, too; data directories must be encrypted.
    ///
    /// ```
    /// use quorate::encryption::AtRest;
    /// use quorate::recovery::Recovery;
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
    /// let recovery = Recovery::new().encryption(keys);
    /// assert_eq!(recovery.verify(&file)?, backup);
    /// recovery.restore(&file, &dir, "10.0.0.1:7400")?;
    /// assert!(recovery.inspect(&dir)?.contents.is_some());
    /// assert!(Recovery::new().inspect(&dir).is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn encryption(mut self, keys: AtRest) -> Recovery {
        self.at_rest = Some(keys);
        self
    }

    /// The directory of logs, as [`Builder::log_dir`](crate::Builder::log_dir). A log that a data directory has
    /// elsewhere is looked for here first, and then where it was recorded: needed if they were carried to
    /// another machine, or if the directory's record of the place is lost. A log that is not known to be the last
    /// one of its directory counts as damaged: see [`Recovery::recover_damaged`]. The log of a new
    /// cluster is made here.
    #[must_use]
    pub fn log_dir(mut self, dir: impl Into<PathBuf>) -> Recovery {
        self.log_dir = Some(dir.into());
        self
    }

    /// A new cluster goes on from this machine's clock, if the log's time is later: for when a member with a clock that was
    /// far ahead has moved the log's time there. What was written later than now counts as written now, and what expires
    /// or is due keeps what is left of its time. [Metrics](crate::guide::metrics#clocks) says what to do about timers and rate
    /// limiters, whose znodes have times of their own.
    #[must_use]
    pub fn set_time_back(mut self) -> Recovery {
        self.sets_time_back = true;
        self
    }

    /// Inspects a data directory, without changing it. The directory is locked and copied to the
    /// system's directory for temporary files; the copy is read, checked and deleted.
    ///
    /// Blocks until it is done; the time grows with the size of the directory.
    ///
    /// # Errors
    /// [`StartError::DataDirInUse`](crate::StartError::DataDirInUse) if an instance runs with it;
    /// [`StartError::DataDirUnusable`](crate::StartError::DataDirUnusable) if it is not a data directory or
    /// cannot be read; [`StartError::DataDirMismatch`](crate::StartError::DataDirMismatch) if its version is too
    /// new; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey) if it is encrypted; [`StartError::Corrupt`](crate::StartError::Corrupt) only if not even its owner can be read.
    pub fn inspect(&self, dir: impl AsRef<Path>) -> Result<Inspection> {
        inspect_with(dir.as_ref(), self)
    }

    /// Compares the remaining data directories of a cluster and plans how to continue.
    ///
    /// The best is the one that Raft would elect: the one with the highest last term and, among those,
    /// the highest last index. The more of the cluster's directories are given, the less may be lost.
    /// They must be the members' directories in their last state, and not older copies. Nothing is
    /// changed. Blocks as [`Recovery::inspect`].
    ///
    /// [`Plan::found_anew`] uses the settings, too.
    ///
    /// # Errors
    /// [`StartError::Unrecoverable`] if none of them can be used, if they belong to different clusters, or
    /// if one is given twice; otherwise as [`Recovery::inspect`]; [`StartError::EncryptionKey`].
    pub fn recover<P: AsRef<Path>>(&self, dirs: impl IntoIterator<Item = P>) -> Result<Plan> {
        recover_with(dirs, false, self)
    }

    /// As [`Recovery::recover`], but also considers a damaged directory if no undamaged one has as many writes.
    /// Of a damaged directory it uses the checkpoint, and the log up to the damage.
    ///
    /// Acknowledged writes after the damaged place are lost, and their number is unknown.
    /// [`Plan::loss`] reports which writes are preserved. Use this when there is no undamaged
    /// directory, or only old ones.
    ///
    /// ```
    /// use quorate::recovery::Recovery;
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let (file, dir) = (directory.path().join("backup"), directory.path().join("data"));
    /// # quorate::testing::Cluster::new(1).node(0).backup(&file).wait()?;
    /// # Recovery::new().restore(&file, &dir, "10.0.0.1:7400")?;
    /// // For an undamaged directory, the plan is the same.
    /// assert_eq!(Recovery::new().recover_damaged([&dir])?, Recovery::new().recover([&dir])?);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Recovery::recover`]; [`StartError::EncryptionKey`].
    pub fn recover_damaged<P: AsRef<Path>>(
        &self,
        dirs: impl IntoIterator<Item = P>,
    ) -> Result<Plan> {
        recover_with(dirs, true, self)
    }

    /// Reads a backup to its end, checks every checksum and the consistency of the state, and returns a
    /// description of it. Blocks until it is done.
    ///
    /// # Errors
    /// [`StartError::BackupDamaged`] if the backup is damaged, or its version is too new;
    /// [`StartError::EncryptionKey`] if it is encrypted; [`StartError::FileUnusable`].
    pub fn verify(&self, file: impl AsRef<Path>) -> Result<Backup> {
        verify_with(file.as_ref(), self.at_rest.as_ref())
    }

    /// Reads a backup, and returns the tree in it, with access to all znodes, whatever their access lists. Blocks until it
    /// is read. Compare it with another one, or with [`Session::snapshot`](crate::Session::snapshot); `quorate diff` does.
    ///
    /// ```
    /// use quorate::{CreateMode, recovery::Recovery, testing::Cluster};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let file = directory.path().join("backup");
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// cluster.node(0).backup(&file).wait()?;
    /// session.set("/a", b"2").wait()?;
    /// assert_eq!(&Recovery::new().read_backup(&file)?.get("/a")?.0[..], b"1");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Recovery::verify`]; [`StartError::EncryptionKey`].
    pub fn read_backup(&self, file: impl AsRef<Path>) -> Result<Snapshot> {
        read_backup_with(file.as_ref(), self.at_rest.as_ref())
    }

    /// Founds a new cluster of one member from a backup, in an empty directory. `address` (`host:port`)
    /// is the member's address. Further members join later.
    ///
    /// The new cluster is unrelated to that of the backup: their members cannot connect to each other.
    /// Sessions in the backup expire, unless they are resumed. The backup is read to its end and
    /// checked before anything is written, and a crash leaves an empty directory or the new cluster.
    /// Blocks until it is done.
    ///
    /// With keys, the data directory is encrypted, and the backup may be in clear.
    ///
    /// # Errors
    /// As [`Recovery::verify`]; [`StartError::InvalidPeer`]; [`StartError::DataDirMismatch`] if the
    /// directory already belongs to a member; [`StartError::DataDirInUse`], [`StartError::DataDirUnusable`],
    /// [`StartError::Corrupt`]; [`StartError::EncryptionKey`].
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
