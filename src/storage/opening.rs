//! Opening a store, for a bounded time.
//!
//! An open may never return: the disk hangs, or sled waits for one of its threads that has panicked. So it
//! runs on a separate thread, and the caller gives up after a time that no working disk needs.
//!
//! The thread cannot be stopped. It continues as long as the disk blocks it, and holds this
//! process's lock on the directory. If the open returns after all, the store is closed again and
//! the directory is free. Until then a second attempt fails with [`StorageError::InUse`], in this
//! process and in others: two stores must not write to one directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::file_system::FsPath;
use crate::storage::error::{Result, StorageError};

/// How long an open may take, however little there is to read.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// A larger log and a larger checkpoint get more time: as much as reading them at this rate takes.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;
/// How often the waiting thread wakes.
const WAKE_EVERY: Duration = Duration::from_secs(1);
/// How often to warn that the open takes long.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Runs `open` for this directory on a separate thread, and waits for a limited time. `open` stores the number of bytes
/// that it reads as soon as it is known.
///
/// On a file system with one thread, waits for as long as it takes.
pub(super) fn within<T: Send + 'static>(
    timeout: Duration,
    dir: &FsPath,
    open: impl FnOnce(&FsPath, &AtomicU64) -> Result<T> + Send + 'static,
) -> Result<T> {
    let failed = |reason: String| {
        let what = "opening the store".to_owned();
        Err(StorageError::Io { what, reason })
    };
    let size = Arc::<AtomicU64>::default();
    if dir.has_one_thread() {
        return open(dir, &size);
    }
    let (opened, opening) = bounded(1);
    let (path, known) = (dir.clone(), Arc::clone(&size));
    let thread = std::thread::Builder::new().name("quorate-open".to_owned()).spawn(move || {
        // If the caller has given up, the store is closed here.
        let _ = opened.send(open(&path, &known));
    });
    if let Err(error) = thread {
        return failed(format!("cannot start its thread: {error}"));
    }
    let look = WAKE_EVERY.min(timeout);
    let (mut waited, mut warned) = (Duration::ZERO, Duration::ZERO);
    loop {
        match opening.recv_timeout(look) {
            Ok(opened) => return opened,
            Err(RecvTimeoutError::Disconnected) => return failed("it panicked".to_owned()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        // The time is counted, not read from a clock: a time in which the process was stopped does
        // not count.
        waited += look;
        let limit = limit(timeout, size.load(Ordering::Relaxed));
        if waited >= limit {
            return failed(format!(
                "it has not come to an end in {waited:?}, as if the disk hung; until it does, the \
                 directory counts as in use by this process"
            ));
        }
        if waited >= warned + WARN_EVERY {
            warned = waited;
            tracing::warn!(dir = %dir, ?waited, ?limit, "opening the store takes long");
        }
    }
}

fn limit(timeout: Duration, bytes: u64) -> Duration {
    timeout + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_database_has_more_time() {
        assert_eq!(limit(OPEN_TIMEOUT, 1000), OPEN_TIMEOUT);
        assert_eq!(limit(OPEN_TIMEOUT, 256 << 20), OPEN_TIMEOUT + Duration::from_secs(256));
    }

    #[test]
    fn a_panic_is_an_error() {
        let opened: Result<(), _> =
            within(OPEN_TIMEOUT, &FsPath::system(std::path::Path::new("here")), |_, _| {
                panic!("in a thread")
            });
        assert!(opened.unwrap_err().to_string().contains("panicked"));
    }

    /// A node's start waited for ever for a disk that did not answer, and logged nothing.
    #[cfg(unix)]
    #[test]
    fn an_open_that_hangs_is_given_up_and_the_directory_freed_when_it_ends() {
        use std::fs;
        use std::io::Write;
        use std::process::Command;

        use crate::machine::snapshot::ChunkWriter;
        use crate::node::stored::Identity;
        use crate::storage::contract::LogStore;
        use crate::storage::directory::current_incarnation;
        use crate::storage::options::StoreOptions;
        use crate::storage::store::DiskStore;

        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        let members = vec![crate::types::membership::Member::new(1, "127.0.0.1:7400")];
        let founding = crate::types::membership::Genesis { cluster: 1, members };
        let identity = Identity {
            cluster: founding.cluster,
            node: founding.members[0].node,
            incarnation: 1,
            address: "127.0.0.1:7400".to_owned(),
            uid: 1,
        };
        let mut store = DiskStore::open(&FsPath::system(dir), StoreOptions::default()).unwrap();
        let (hard_state, meta, state) = founding.start();
        store.found(&identity, hard_state, &meta, &mut ChunkWriter::full(state)).unwrap();
        drop(store);

        // Opening a pipe without a writer blocks, like opening a file on a disk that hangs.
        let current = current_incarnation(dir);
        let file = current.join("IDENTITY");
        let bytes = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        let open = |timeout| {
            DiskStore::open_within(timeout, &FsPath::system(dir), StoreOptions::default())
        };
        let error = open(Duration::from_millis(100)).unwrap_err();
        let error = error.into_error(dir.to_owned()).to_string();
        assert!(error.contains(&dir.display().to_string()), "{error}");
        assert!(error.contains("not come to an end"), "{error}");
        assert_eq!(open(OPEN_TIMEOUT).unwrap_err(), StorageError::InUse);

        // The disk answers again. The open that was given up ends, and unlocks the directory.
        let mut pipe = fs::File::options().write(true).open(&file).unwrap();
        fs::write(current.join("IDENTITY.tmp"), &bytes).unwrap();
        fs::rename(current.join("IDENTITY.tmp"), &file).unwrap();
        // It may have ended before it has read anything.
        let written = pipe.write_all(&bytes).map_err(|error| error.kind());
        assert!(matches!(written, Ok(()) | Err(std::io::ErrorKind::BrokenPipe)), "{written:?}");
        drop(pipe);
        let store = loop {
            match open(OPEN_TIMEOUT) {
                Err(StorageError::InUse) => {}
                other => break other.unwrap(),
            }
        };
        assert_eq!(store.identity(), Some(&identity));
    }
}
