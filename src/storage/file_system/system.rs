//! The file system of the operating system.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use sled::{Db, Mode};

use super::space::space;
use super::{
    Access, Database, Directory, File, FileSystem, Lock, NameKind, Pair, SharedFileSystem,
};
use crate::storage::error::{Result, StorageError};
use crate::storage::error::{corrupt, io_error, panic_text};
use crate::storage::file_system::Space;

/// How long a lock may outlive its last user: a child process holds a copy of it until it runs its
/// own program, and threads of sled hold that of the database.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_POLL: Duration = Duration::from_millis(10);
/// The size of sled's cache. The node itself holds the log and the state in memory.
const CACHE_BYTES: u64 = 4 << 20;
/// No system has larger pages.
#[cfg(any(target_os = "linux", target_os = "android"))]
const PAGE_BYTES_MAX: u64 = 64 << 10;
/// Fixed, since the largest value that makes no blob depends on it.
const SEGMENT_BYTES: usize = 8 << 20;

/// The operating system's file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemFiles;

impl SystemFiles {
    /// As parts of a store share it.
    pub(crate) fn shared() -> SharedFileSystem {
        Arc::new(SystemFiles)
    }
}

impl FileSystem for SystemFiles {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn File>> {
        let file = match access {
            Access::Read => fs::File::open(path),
            Access::Write => fs::File::options().read(true).write(true).open(path),
            Access::Create => private().create(true).truncate(true).open(path),
        };
        Ok(Box::new(file?))
    }

    fn open_directory(&self, path: &Path) -> io::Result<Box<dyn Directory>> {
        #[cfg(unix)]
        return Ok(Box::new(fs::File::open(path)?));
        #[cfg(not(unix))]
        {
            let _ = path;
            Ok(Box::new(SelfSyncing))
        }
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let opened = private().create(true).truncate(false).open(path);
        let file = opened.map_err(io_error("opening LOCK"))?;
        while_locked(|| match file.try_lock() {
            Ok(()) => Some(Ok(())),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(error)) => Some(Err(io_error("locking LOCK")(error))),
        })?;
        Ok(Box::new(file))
    }

    fn kind(&self, path: &Path) -> io::Result<Option<NameKind>> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Ok(Some(NameKind::Directory)),
            Ok(_) => Ok(Some(NameKind::File)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn space(&self, path: &Path) -> Option<Space> {
        space(path)
    }

    fn open_database(&self, path: &Path) -> Result<Box<dyn Database>> {
        let config = sled_config(wall_clock())?
            .path(path)
            .mode(Mode::LowSpace)
            .cache_capacity(CACHE_BYTES)
            .segment_size(SEGMENT_BYTES)
            .flush_every_ms(None);
        // Damaged files make sled panic as often as fail.
        while_locked(|| match catch_unwind(AssertUnwindSafe(|| config.open())) {
            Ok(Ok(db)) => Some(Ok(Box::new(db) as Box<dyn Database>)),
            // Only sled's text distinguishes this from other errors.
            Ok(Err(sled::Error::Io(io))) if io.to_string().contains("could not acquire lock") => {
                None
            }
            Ok(Err(error)) => Some(Err(open_error(error))),
            Err(panic) => Some(corrupt(format!("the database: {}", panic_text(&*panic)))),
        })
    }
}

impl File for fs::File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < bytes.len() {
            match read_some(self, &mut bytes[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(some) => read += some,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    #[cfg(unix)]
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, offset)
    }

    #[cfg(not(unix))]
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        use std::io::{Seek, SeekFrom, Write};
        let mut file = self;
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        fs::File::sync_data(self)
    }

    fn sync_all(&self) -> io::Result<()> {
        fs::File::sync_all(self)
    }

    fn forget_cached(&self, bytes: u64) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            use std::num::NonZeroU64;

            use rustix::fs::{Advice, fadvise};
            // Only whole pages are dropped. None: up to the end.
            let bytes = bytes.checked_next_multiple_of(PAGE_BYTES_MAX).and_then(NonZeroU64::new);
            // Best effort: bytes from memory are verified like bytes from the device.
            let _ = fadvise(self, 0, bytes, Advice::DontNeed);
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let _ = bytes;
    }
}

#[cfg(unix)]
fn read_some(file: &fs::File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, offset)
}

#[cfg(not(unix))]
fn read_some(mut file: &fs::File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    use std::io::{Read, Seek, SeekFrom};
    file.seek(SeekFrom::Start(offset))?;
    file.read(bytes)
}

#[cfg(unix)]
impl Directory for fs::File {
    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

/// A directory of a file system that makes names durable by itself.
#[cfg(not(unix))]
#[derive(Debug)]
struct SelfSyncing;

#[cfg(not(unix))]
impl Directory for SelfSyncing {
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Lock for fs::File {}

impl Database for Db {
    fn insert(&self, key: &[u8], value: &[u8]) -> Result<()> {
        sled::Tree::insert(self, key, value).map(drop).map_err(sled_error("writing"))
    }

    fn remove(&self, key: &[u8]) -> Result<()> {
        sled::Tree::remove(self, key).map(drop).map_err(sled_error("removing"))
    }

    fn range(&self, from: &[u8]) -> Box<dyn Iterator<Item = Pair>> {
        let pairs = sled::Tree::range(self, from..);
        Box::new(pairs.map(|pair| pair.map_err(sled_error("reading"))))
    }

    fn flush(&self) -> Result<()> {
        sled::Tree::flush(self).map(drop).map_err(sled_error("flushing"))
    }
}

/// Options for a file that only its owner may read.
fn private() -> OpenOptions {
    let mut options = fs::File::options();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Repeats an attempt that returns `None` because the lock is held, for as long as a lock may outlive its
/// last user.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing signals that another process has released a lock"
)]
fn while_locked<T>(mut attempt: impl FnMut() -> Option<Result<T>>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        if begun.elapsed() >= LOCK_WAIT {
            return Err(StorageError::InUse);
        }
        thread::sleep(LOCK_POLL);
    }
}

/// sled's settings. Their default is a temporary directory that nobody uses, named by a time since 1970: before
/// that, sled panics. Then nothing has failed, and all works again once the clock is right.
fn sled_config(now: SystemTime) -> Result<sled::Config> {
    if now < SystemTime::UNIX_EPOCH {
        return Err(StorageError::Again {
            what: "opening the database".to_owned(),
            reason: "the clock of this machine shows a time before 1970; set it".to_owned(),
        });
    }
    Ok(sled::Config::new())
}

#[expect(clippy::disallowed_methods, reason = "sled reads this clock, too")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// sled's message once a thread of its pool has panicked.
const POOL_BROKEN: &str = "IO thread unexpectedly panicked";

/// Why sled did not open a database. sled reports most damage of files as a bug of its own.
fn open_error(error: sled::Error) -> StorageError {
    match error {
        // The pool is shared by all databases of the process: this one may be sound.
        sled::Error::ReportableBug(what) if what.contains(POOL_BROKEN) => StorageError::Io {
            what: "opening the database".to_owned(),
            reason: format!("{what} (in any database of this process: restart it)"),
        },
        sled::Error::ReportableBug(what) | sled::Error::Unsupported(what) => {
            corrupt_error("the database", &what)
        }
        other => sled_error("opening")(other),
    }
}

/// Converts sled's errors of this operation to errors of the store.
fn sled_error(what: &str) -> impl Fn(sled::Error) -> StorageError + use<> {
    use ErrorKind::{InvalidData, UnexpectedEof};
    let what = format!("{what} the database");
    move |error| match error {
        // sled's own checks of its files report these kinds.
        sled::Error::Io(error) if matches!(error.kind(), InvalidData | UnexpectedEof) => {
            corrupt_error(&what, &error.to_string())
        }
        sled::Error::Io(error) => io_error(&what)(error),
        sled::Error::Corruption { .. } | sled::Error::CollectionNotFound(_) => {
            corrupt_error(&what, &error.to_string())
        }
        sled::Error::Unsupported(_) | sled::Error::ReportableBug(_) => {
            StorageError::Io { what: what.clone(), reason: error.to_string() }
        }
    }
}

fn corrupt_error(what: &str, reason: &str) -> StorageError {
    StorageError::Corrupt { what: format!("{what}: {reason}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sled's panic was taken for a failed disk: it stopped a member for good, although the clock was set soon after.
    #[test]
    fn a_clock_before_1970_is_no_failure_of_the_disk() {
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        let refused = sled_config(before).unwrap_err();
        assert!(matches!(refused, StorageError::Again { .. }), "{refused:?}");
        assert!(refused.to_string().contains("before 1970"), "{refused}");
        assert!(sled_config(SystemTime::UNIX_EPOCH).is_ok());
    }

    /// A panic in another coordinator's database was taken for damage of this coordinator's files.
    #[test]
    fn a_panic_in_another_database_is_no_damage_here() {
        let pool =
            "IO thread unexpectedly panicked. please report this bug on the sled github repo.";
        let broken = open_error(sled::Error::ReportableBug(pool.to_owned()));
        assert!(matches!(broken, StorageError::Io { .. }), "{broken}");
        let other = sled::Error::ReportableBug("failed to serialize a page".to_owned());
        assert!(matches!(open_error(other), StorageError::Corrupt { .. }));
    }
}
