//! What several parts of the store do with files.

use std::io::{self, ErrorKind};

use super::file_system::{Access, File, FsPath};
use super::{Result, StorageError};

/// Creates or truncates a file that only its owner may read.
pub(super) fn create_file(path: &FsPath) -> Result<Box<dyn File>> {
    path.open(Access::Create).map_err(io_error(&format!("creating {path}")))
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
    error.raw_os_error().is_some_and(|code| codes.contains(&code) && !planted!(LimitIsFailure))
}
