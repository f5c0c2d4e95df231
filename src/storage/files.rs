//! Creating, moving, locking and syncing files and directories.

use std::fs::{self, DirBuilder, DirEntry, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::{Result, StorageError};

/// How long a lock may outlive its last user: a child process holds a copy of it until it runs its
/// own program, and threads of sled hold that of the database.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Repeats an attempt that returns `None` because the lock is held, for as long as a lock may outlive its
/// last user.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing signals that another process has released a lock"
)]
pub(super) fn while_locked<T>(mut attempt: impl FnMut() -> Option<Result<T>>) -> Result<T> {
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

/// Locks a file, and creates it if it does not exist.
pub(super) fn lock(path: &Path) -> Result<File> {
    let opened = private().create(true).truncate(false).open(path);
    let file = opened.map_err(io_error("opening LOCK"))?;
    while_locked(|| match file.try_lock() {
        Ok(()) => Some(Ok(())),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(error)) => Some(Err(io_error("locking LOCK")(error))),
    })?;
    Ok(file)
}

/// The entries of a directory, all listed before any of them is changed.
pub(super) fn entries(path: &Path) -> io::Result<Vec<DirEntry>> {
    fs::read_dir(path)?.collect()
}

/// Moves the chosen entries of a directory to another one, durably.
pub(super) fn move_entries(
    from: &Path,
    to: &Path,
    chosen: impl Fn(&str) -> bool,
) -> io::Result<()> {
    for entry in entries(from)? {
        if entry.file_name().to_str().is_none_or(&chosen) {
            fs::rename(entry.path(), to.join(entry.file_name()))?;
        }
    }
    sync_directory(to)?;
    sync_directory(from)
}

/// Copies a file, or a directory with its content.
pub(super) fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        return fs::copy(from, to).map(drop);
    }
    create_directory(to)?;
    for entry in entries(from)? {
        copy_all(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Removes a directory with its content, if it exists.
pub(super) fn remove_all(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Options for a file that only its owner may read.
fn private() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Opens a file that exists, to read and to write.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

/// Creates or truncates a file that only its owner may read.
pub(crate) fn create_file(path: &Path) -> Result<File> {
    let created = private().create(true).truncate(true).open(path);
    created.map_err(io_error(&format!("creating {}", path.display())))
}

/// Creates a directory that only its owner may enter, and its parents, durably.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    create_directory(parent)?;
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        // Another instance that starts in the same moment may have made it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        other => other?,
    }
    sync_directory(parent)
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    Names::of(path)?.sync()
}

/// The names in a directory. Opened before the names are changed: if no more files can be opened, the
/// names are not changed at all, instead of changed and not durable.
pub(super) struct Names(#[cfg(unix)] File);

#[cfg(unix)]
impl Names {
    pub(super) fn of(path: &Path) -> io::Result<Names> {
        File::open(path).map(Names)
    }

    /// Makes them durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

/// On other systems the file system makes names durable by itself.
#[cfg(not(unix))]
impl Names {
    pub(super) fn of(_: &Path) -> io::Result<Names> {
        Ok(Names())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Converts I/O errors of this operation to errors of the store.
pub(super) fn io_error(what: &str) -> impl Fn(io::Error) -> StorageError + Copy {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
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
