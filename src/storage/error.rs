//! Why a store failed.

use std::path::PathBuf;

/// The result of a store's call.
pub(crate) type Result<T, E = StorageError> = std::result::Result<T, E>;

/// Why a store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StorageError {
    #[error("in use by another process")]
    InUse,
    /// The log is elsewhere, and in use there.
    #[error("the log at {log} is in use by another process")]
    LogInUse { log: String },
    #[error("{what}: {reason}")]
    Io { what: String, reason: String },
    /// A panic, mostly of sled, which panics on damage and on failures of the disk, but on other things, too.
    #[error("a panic in the store, which may not be of the disk: {reason}")]
    Panic { reason: String },
    #[error("no space left on the disk: {what}")]
    NoSpace { what: String },
    /// Nothing was changed, and the call may be repeated: no more files can be opened, or a new
    /// checkpoint cannot be written.
    #[error("{what}: {reason}")]
    Again { what: String, reason: String },
    #[error("this member was removed from its cluster: {reason}")]
    Removed { reason: String },
    #[error("damaged: {what}")]
    Corrupt { what: String },
    #[error("a store of another version: {what}")]
    Version { what: String },
    /// A key for encryption at rest is missing or is another one, or the directory is not encrypted and should be. No
    /// sign of damage: the data may be sound, and must stay.
    #[error("{what}")]
    Key { what: String },
    #[error("the store failed before: {reason}")]
    Poisoned { reason: String },
}

impl StorageError {
    /// The error that a user of the directory sees.
    pub(crate) fn into_error(self, dir: PathBuf) -> crate::types::error::Error {
        use crate::types::error::Error;
        use crate::types::start_error::StartError;
        match self {
            StorageError::InUse => {
                Error::Start(StartError::DataDirInUse { dir, by: "another process".to_owned() })
            }
            StorageError::LogInUse { log } => {
                let by = format!(
                    "another process, which has locked its log at {log}: is this directory a copy, and the \
                     original in use?"
                );
                Error::Start(StartError::DataDirInUse { dir, by })
            }
            StorageError::Corrupt { what } => {
                Error::Start(StartError::Corrupt { dir, reason: what })
            }
            StorageError::Removed { .. } => {
                Error::Start(StartError::DataDirMismatch { dir, reason: self.to_string() })
            }
            StorageError::Key { what } => {
                Error::Start(StartError::EncryptionKey { path: dir, reason: what })
            }
            StorageError::Version { what } => {
                Error::Start(StartError::DataDirMismatch { dir, reason: what })
            }
            other => Error::Start(StartError::DataDirUnusable { dir, reason: other.to_string() }),
        }
    }
}

impl StorageError {
    /// Why a member stops that cannot go on after this.
    pub(crate) fn why_stopped(&self) -> String {
        match self {
            StorageError::Panic { .. } => self.to_string(),
            other => format!("the disk failed: {other}"),
        }
    }

    /// The error for a failure that leaves what is valid unchanged, as in a new generation.
    pub(super) fn retryable(self) -> StorageError {
        match self {
            StorageError::Io { what, reason } => StorageError::Again { what, reason },
            other => other.later(),
        }
    }

    /// The error if nothing has failed but that the disk is full, and nothing has changed.
    pub(super) fn later(self) -> StorageError {
        match self {
            StorageError::NoSpace { what } => {
                StorageError::Again { what, reason: "no space left on the disk".to_owned() }
            }
            other => other,
        }
    }

    /// The error where nobody tries again.
    pub(super) fn fatal(self) -> StorageError {
        match self {
            StorageError::Again { what, reason } => StorageError::Io { what, reason },
            other => other,
        }
    }
}
