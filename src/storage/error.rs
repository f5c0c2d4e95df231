//! Why a store failed, and how a failure of something else becomes that.

use std::any::Any;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// The error for bytes that differ from what was written.
pub(super) fn corrupt<T>(what: String) -> Result<T> {
    Err(StorageError::Corrupt { what })
}

/// Fails for the format of another version.
pub(super) fn check_format(what: &str, format: u32, own: u32) -> Result<()> {
    if format == own {
        return Ok(());
    }
    let what = format!("{what} of format {format}, this version reads {own}");
    Err(StorageError::Version { what })
}

/// The error for a call that breaks the contract.
pub(super) fn refuse<T>(reason: String) -> Result<T> {
    Err(StorageError::Io { what: "a write against the store's contract".to_owned(), reason })
}

/// Converts I/O errors of this operation to errors of the store.
pub(super) fn io_error(what: &str) -> impl Fn(io::Error) -> StorageError + Copy {
    use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    move |error| {
        let (what, reason) = (what.to_owned(), error.to_string());
        match error.kind() {
            _ if is_limit_of_open_files(&error) => StorageError::Again { what, reason },
            StorageFull | QuotaExceeded | FileTooLarge => StorageError::NoSpace { what },
            _ => StorageError::Io { what, reason },
        }
    }
}

/// Whether this process, or the system, has reached its limit of open files. Only a call that opens
/// a file fails like this, and it changes nothing.
fn is_limit_of_open_files(error: &io::Error) -> bool {
    // ENFILE and EMFILE, the same numbers on all Unixes; ERROR_TOO_MANY_OPEN_FILES.
    let codes: &[i32] = if cfg!(unix) { &[23, 24] } else { &[4] };
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Converts a panic to an error: sled panics as often as it fails.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(panic) => Err(StorageError::Panic { reason: panic_text(&*panic) }),
    }
}

/// The message of a panic.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
