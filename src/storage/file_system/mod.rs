//! The file system beneath a store: what the store asks of it, and no more.
//!
//! [`system`] passes each call to the operating system. The simulator has a file system of its own, which
//! knows what is in the cache and what is on the device, and fails as disks do.
//!
//! What the store relies on, of any file system:
//! - What was written can be read at once, in this process and in the next one, until the power is cut.
//! - A sync that returns `Ok` makes durable all that was written to the file before it, except what an
//!   earlier sync of the same file has failed to write.
//! - A change of names is durable once one of its directories was synced. A rename is atomic.
//! - A sector of 512 bytes is written as a whole, or not.

mod path;
#[cfg(any(test, feature = "simulator"))]
#[cfg_attr(not(test), allow(dead_code, reason = "some of it only tests use"))]
pub(crate) mod simulated;
mod space;
mod system;

use std::ffi::OsString;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sled::IVec;

pub(crate) use self::path::FsPath;
pub(crate) use self::space::Space;
#[cfg(feature = "admin")]
pub(crate) use self::space::space;
use crate::storage::error::Result;

/// A file system that parts of a store share.
pub(crate) type SharedFileSystem = Arc<dyn FileSystem>;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// To read a file that exists.
    Read,
    /// To read and write a file that exists.
    Write,
    /// To read and write an empty file, which is made, or emptied if it exists. Only its owner may read it.
    Create,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameKind {
    File,
    Directory,
}

/// A file system.
pub(crate) trait FileSystem: Debug + Send + Sync {
    /// Opens or makes a file.
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn File>>;

    /// Opens a directory, to sync its names. Opened before the names are changed: if no more files can be
    /// opened, the names are not changed at all, instead of changed and not durable.
    fn open_directory(&self, path: &Path) -> io::Result<Box<dyn Directory>>;

    /// Locks a file, which is made if it does not exist, until the lock is dropped. Fails with
    /// [`StorageError::InUse`](super::StorageError::InUse) if it stays locked for a second.
    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>>;

    /// What there is at a path, if anything.
    fn kind(&self, path: &Path) -> io::Result<Option<NameKind>>;

    /// The absolute path of what is there, without links. Fails if there is nothing.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf>;

    /// The names in a directory.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// Makes a directory that only its owner may enter. Its parent exists.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// Gives a file or a directory another name. A file that has that name is removed.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;

    /// The room at a path; `None` if that is not known.
    fn space(&self, path: &Path) -> Option<Space>;

    /// Opens the database in a directory, and makes it if it does not exist. Fails with
    /// [`StorageError::InUse`](super::StorageError::InUse) if it stays locked for a second.
    fn open_database(&self, path: &Path) -> Result<Box<dyn Database>>;

    /// Whether everything runs on the caller's thread: a store on this file system starts none.
    fn has_one_thread(&self) -> bool {
        false
    }
}

/// An open file. Dropping it closes it.
pub(crate) trait File: Debug + Send + Sync {
    /// Reads from a place. Returns how many bytes; fewer than asked for only at the end of the file.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of this at a place. A failure may leave a part of it.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    fn length(&self) -> io::Result<u64>;

    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Makes the content durable, and the length if the content needs it.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the content and everything that the file system knows of the file durable.
    fn sync_all(&self) -> io::Result<()>;

    /// Asks the system to drop its cache of the first so many bytes, and the rest of their pages, so that the next
    /// read comes from the device. So does a write to a part of a page, which has to read it first. Best
    /// effort: some systems have no such call, and bytes that were not written yet stay.
    fn forget_cached(&self, bytes: u64);
}

/// An open directory.
pub(crate) trait Directory: Debug + Send + Sync {
    /// Makes the names in it durable.
    fn sync(&self) -> io::Result<()>;
}

/// Holds a lock until it is dropped.
pub(crate) trait Lock: Debug + Send + Sync {}

/// A key and its value.
pub(crate) type Pair = Result<(IVec, IVec)>;

/// A map of bytes in the files of a directory: what the store uses of sled. Dropping it closes it.
///
/// Nothing is durable before the file `db` of the directory was synced after a [`Database::flush`].
pub(crate) trait Database: Debug + Send {
    fn insert(&self, key: &[u8], value: &[u8]) -> Result<()>;

    fn remove(&self, key: &[u8]) -> Result<()>;

    /// All pairs from this key on, in the order of the keys. It may outlive the database, which stays open
    /// that long.
    fn range(&self, from: &[u8]) -> Box<dyn Iterator<Item = Pair>>;

    /// Writes everything to the files.
    fn flush(&self) -> Result<()>;
}
