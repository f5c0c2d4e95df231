//! Recovery of what is encrypted.

use std::path::Path;

use super::found::{Founded, restore_with};
use super::inspect::{Inspection, inspect_with};
use super::plan::{Plan, recover_with};
use super::{Backup, read_backup_with, verify_with};
use crate::api::snapshot::Snapshot;
use crate::encryption::AtRest;
use crate::types::error::Result;

/// The functions of [`recovery`](super) for data directories and backups that are encrypted. Needs the feature
/// `encryption`.
///
/// Backups that are not encrypted can be read, too. Data directories must be encrypted, and new ones are.
///
/// ```
/// use quorate::recovery::WithKeys;
/// use quorate::encryption::AtRest;
/// use quorate::{Coordinator, CreateMode, testing::Cluster};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let (file, dir) = (directory.path().join("backup"), directory.path().join("data"));
/// let keys = AtRest::new(|| Ok::<_, String>(vec![("k1".to_owned(), *b"0123456789abcdef0123456789abcdef")]));
/// let cluster = Cluster::with_settings(1, Coordinator::builder().encryption(keys.clone()));
/// cluster.node(0).session().create("/a", b"1", CreateMode::Persistent)?;
/// let backup = cluster.node(0).backup(&file)?;
/// assert_eq!(backup.key.as_deref(), Some("k1"));
///
/// let recovery = WithKeys::new(keys);
/// assert_eq!(recovery.verify(&file)?, backup);
/// recovery.restore(&file, &dir, "10.0.0.1:7400")?;
/// assert!(recovery.inspect(&dir)?.contents.is_some());
/// assert!(quorate::recovery::inspect(&dir).is_err());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WithKeys {
    keys: AtRest,
}

impl WithKeys {
    /// Uses these keys. The key that a directory or backup is encrypted under must be among them; the first one encrypts
    /// what is written.
    #[must_use]
    pub fn new(keys: AtRest) -> WithKeys {
        WithKeys { keys }
    }

    /// As [`inspect`](super::inspect()).
    ///
    /// # Errors
    /// As there; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey).
    pub fn inspect(&self, dir: impl AsRef<Path>) -> Result<Inspection> {
        inspect_with(dir.as_ref(), Some(&self.keys))
    }

    /// As [`recover`](super::recover). [`Plan::found_anew`] uses the keys, too.
    ///
    /// # Errors
    /// As there; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey).
    pub fn recover<P: AsRef<Path>>(&self, dirs: impl IntoIterator<Item = P>) -> Result<Plan> {
        recover_with(dirs, false, Some(&self.keys))
    }

    /// As [`recover_damaged`](super::recover_damaged).
    ///
    /// # Errors
    /// As there; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey).
    pub fn recover_damaged<P: AsRef<Path>>(
        &self,
        dirs: impl IntoIterator<Item = P>,
    ) -> Result<Plan> {
        recover_with(dirs, true, Some(&self.keys))
    }

    /// As [`verify`](super::verify).
    ///
    /// # Errors
    /// As there; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey).
    pub fn verify(&self, file: impl AsRef<Path>) -> Result<Backup> {
        verify_with(file.as_ref(), Some(&self.keys))
    }

    /// As [`read_backup`](super::read_backup).
    ///
    /// # Errors
    /// As there; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey).
    pub fn read_backup(&self, file: impl AsRef<Path>) -> Result<Snapshot> {
        read_backup_with(file.as_ref(), Some(&self.keys))
    }

    /// As [`restore`](super::restore), into a data directory that is encrypted. The backup may be in clear.
    ///
    /// # Errors
    /// As there; [`StartError::EncryptionKey`](crate::StartError::EncryptionKey).
    pub fn restore(
        &self,
        file: impl AsRef<Path>,
        dir: impl AsRef<Path>,
        address: &str,
    ) -> Result<Founded> {
        restore_with(file.as_ref(), dir.as_ref(), address, Some(&self.keys))
    }
}
