//! The data directory: who owns it, which generation counts, and what is damaged.
//!
//! | name          | what it is                                                     |
//! |---------------|----------------------------------------------------------------|
//! | `LOCK`        | empty, locked for as long as the store is open                 |
//! | `IDENTITY`    | a frame with the [`Identity`]; written last when founding      |
//! | `CURRENT`     | a frame with the number of the generation that counts          |
//! | `gen-NNNNNN/` | a generation: a sled database and its witness                  |
//! | `QUARANTINED` | why the directory was found damaged; text                      |
//! | `*.tmp`       | a file about to be renamed, or left over from a crash          |
//!
//! A frame is little endian: 8 bytes of magic, 4 of format, the body in
//! postcard, 8 of XXH3 of everything before.
//!
//! A directory without `IDENTITY` is blank, and a crash while founding leaves
//! one: but only if it holds nothing that founding does not make.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use super::record::{array, corrupt, encode_body};
use super::witness::Witness;
use super::{Identity, StorageError};

const LOCK: &str = "LOCK";
const IDENTITY: &str = "IDENTITY";
const IDENTITY_MAGIC: &[u8; 8] = b"qrident\n";
const CURRENT: &str = "CURRENT";
const CURRENT_MAGIC: &[u8; 8] = b"qrcurrn\n";
const QUARANTINED: &str = "QUARANTINED";
const TMP: &str = ".tmp";
const GENERATION: &str = "gen-";
/// Where file systems put what their repair found; on a volume of its own it is in every root.
const LOST_AND_FOUND: &str = "lost+found";

/// How long a lock may outlive its last user: a process that the host starts holds a copy of it
/// until it runs its own program, and threads of sled hold on to that of the database.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(1);
pub(super) const LOCK_POLL: Duration = Duration::from_millis(10);

/// The format of the frames.
const FORMAT: u32 = 1;
/// No frame is near this long; a longer file is not read into memory.
const FRAME_BYTES_MAX: u64 = 64 << 10;

/// The generation that founding makes.
pub(super) const FIRST_GENERATION: u64 = 1;
/// The sequence number of the only record that founding makes.
pub(super) const FOUNDING_SEQ: u64 = 1;

/// A locked data directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    identity: Option<Identity>,
    /// Unlocked when it is closed, after everything else of the store.
    _lock: File,
}

impl Directory {
    /// Makes the directory if need be, locks it and reads whose it is.
    pub(super) fn open(path: &Path) -> Result<Directory, StorageError> {
        create_directory(path).map_err(|error| io_error("creating the directory", &error))?;
        // Before the lock file, so that nothing is ever put into a directory of someone else.
        if !path.join(IDENTITY).exists() {
            refuse_foreign(path)?;
        }
        let lock = lock(&path.join(LOCK))?;
        match fs::read(path.join(QUARANTINED)) {
            Ok(reason) => {
                let reason = String::from_utf8_lossy(&reason);
                return corrupt(format!("found damaged before: {}", reason.trim_end()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("reading QUARANTINED", &error)),
        }
        let mut directory = Directory { path: path.to_owned(), identity: None, _lock: lock };
        let identity =
            directory.read_frame::<Identity>(IDENTITY, IDENTITY_MAGIC).and_then(|identity| {
                match identity {
                    Some(identity) => Ok(Some(identity)),
                    None => directory.refuse_used().map(|()| None),
                }
            });
        match identity {
            Ok(identity) => directory.identity = identity,
            Err(error) => return Err(directory.quarantine_if_corrupt(error)),
        }
        Ok(directory)
    }

    pub(super) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Where a generation lives.
    pub(super) fn generation(&self, number: u64) -> PathBuf {
        self.path.join(format!("{GENERATION}{number:06}"))
    }

    /// The generation that counts.
    pub(super) fn current(&self) -> Result<u64, StorageError> {
        match self.read_frame::<u64>(CURRENT, CURRENT_MAGIC)? {
            Some(number) => Ok(number),
            None => corrupt("CURRENT is missing".to_owned()),
        }
    }

    /// Makes a generation the one that counts, durably.
    pub(super) fn switch(&self, generation: u64) -> Result<(), StorageError> {
        self.write_frame(CURRENT, CURRENT_MAGIC, &generation)
    }

    /// Makes the directory the one of `identity`, durably: the last step of founding.
    pub(super) fn take(&mut self, identity: &Identity) -> Result<(), StorageError> {
        self.write_frame(IDENTITY, IDENTITY_MAGIC, identity)?;
        self.identity = Some(identity.clone());
        Ok(())
    }

    /// Removes what crashes left: every generation but `keep`, and files that were not renamed.
    pub(super) fn remove_leftovers(&self, keep: Option<u64>) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            match generation_number(name) {
                Some(number) if Some(number) != keep => fs::remove_dir_all(entry.path())?,
                Some(_) => {}
                None if is_tmp(name) => fs::remove_file(entry.path())?,
                None => {}
            }
        }
        Ok(())
    }

    /// Marks the directory as damaged if this error says so, and gives the error back.
    ///
    /// The damaged files stay where they are. The directory is not renamed out of the way: the
    /// next start would then found a blank node under the same id, which would have forgotten
    /// what it has voted and acknowledged. Coming back as a new incarnation, known to the
    /// others as new, is the membership's business and not the store's.
    pub(super) fn quarantine_if_corrupt(&self, error: StorageError) -> StorageError {
        if let StorageError::Corrupt { what } = &error {
            // Best effort: a disk that takes no marker either is refused for the damage itself.
            let _ = create_file(&self.path.join(QUARANTINED)).and_then(|mut file| {
                writeln!(file, "{what}")
                    .and_then(|()| file.sync_all())
                    .and_then(|()| sync_directory(&self.path))
                    .map_err(|error| io_error("writing QUARANTINED", &error))
            });
        }
        error
    }

    /// Refuses a directory that has no `IDENTITY` but was in use: it was lost, not never written.
    fn refuse_used(&self) -> Result<(), StorageError> {
        let used = || corrupt("IDENTITY is missing, and the store was in use".to_owned());
        let entries =
            fs::read_dir(&self.path).map_err(|error| io_error("listing the directory", &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| io_error("listing the directory", &error))?;
            match entry.file_name().to_str().and_then(generation_number) {
                Some(FIRST_GENERATION) => {
                    // A witness that cannot be read is one that founding did not finish.
                    match Witness::open(&entry.path().join(Witness::FILE)) {
                        Ok((_, last)) if last.seq > FOUNDING_SEQ => return used(),
                        Ok(_) | Err(_) => {}
                    }
                }
                Some(_) => return used(),
                None => {}
            }
        }
        Ok(())
    }

    fn read_frame<T: DeserializeOwned>(
        &self,
        name: &str,
        magic: &[u8; 8],
    ) -> Result<Option<T>, StorageError> {
        let mut bytes = Vec::new();
        match File::open(self.path.join(name)) {
            Ok(file) => file
                .take(FRAME_BYTES_MAX)
                .read_to_end(&mut bytes)
                .map_err(|error| io_error(&format!("reading {name}"), &error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(&format!("opening {name}"), &error)),
        };
        decode_frame(name, magic, &bytes).map(Some)
    }

    /// Replaces a file by a frame, whole or not at all.
    fn write_frame<T: Serialize>(
        &self,
        name: &str,
        magic: &[u8; 8],
        body: &T,
    ) -> Result<(), StorageError> {
        let tmp = self.path.join(format!("{name}{TMP}"));
        let mut file = create_file(&tmp)?;
        file.write_all(&encode_frame(magic, &encode_body(body)))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&tmp, self.path.join(name)))
            .and_then(|()| sync_directory(&self.path))
            .map_err(|error| io_error(&format!("writing {name}"), &error))
    }
}

fn encode_frame(magic: &[u8; 8], body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 20);
    bytes.extend_from_slice(magic);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(body);
    let checksum = xxh3_64(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode_frame<T: DeserializeOwned>(
    name: &str,
    magic: &[u8; 8],
    bytes: &[u8],
) -> Result<T, StorageError> {
    let damaged = || StorageError::Corrupt { what: format!("{name} is damaged") };
    let (sealed, checksum) = bytes.split_last_chunk::<8>().ok_or_else(damaged)?;
    if xxh3_64(sealed) != u64::from_le_bytes(*checksum) {
        return Err(damaged());
    }
    let body = sealed.strip_prefix(magic).ok_or_else(damaged)?;
    let (format, body) = body.split_at_checked(4).ok_or_else(damaged)?;
    let format = u32::from_le_bytes(array(format).ok_or_else(damaged)?);
    if format != FORMAT {
        return Err(StorageError::Version {
            what: format!("{name} has format {format}, this version reads {FORMAT}"),
        });
    }
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        Ok(_) | Err(_) => Err(damaged()),
    }
}

#[expect(clippy::disallowed_methods, reason = "another process's lock gives no sign")]
fn lock(path: &Path) -> Result<File, StorageError> {
    let file = private()
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| io_error("opening LOCK", &error))?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                if begun.elapsed() >= LOCK_WAIT {
                    return Err(StorageError::InUse);
                }
                thread::sleep(LOCK_POLL);
            }
            Err(TryLockError::Error(error)) => return Err(io_error("locking LOCK", &error)),
        }
    }
}

/// Refuses a directory without `IDENTITY` that holds what founding does not make.
fn refuse_foreign(path: &Path) -> Result<(), StorageError> {
    let entries = fs::read_dir(path).map_err(|error| io_error("listing the directory", &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| io_error("listing the directory", &error))?;
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|name| {
            [LOCK, IDENTITY, CURRENT, QUARANTINED, LOST_AND_FOUND].contains(&name)
                || is_tmp(name)
                || generation_number(name).is_some()
        });
        if !ours {
            return Err(StorageError::Io {
                what: "the directory is not a data directory and not empty".to_owned(),
                reason: format!("it holds {}", name.display()),
            });
        }
    }
    Ok(())
}

fn is_tmp(name: &str) -> bool {
    name.strip_suffix(TMP).is_some_and(|name| name == IDENTITY || name == CURRENT)
}

/// The number in the name of a generation's directory.
fn generation_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(GENERATION)?;
    if digits.len() < 6 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// Options for a file that only its owner may read.
fn private() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Makes or empties a file that only its owner may read.
pub(super) fn create_file(path: &Path) -> Result<File, StorageError> {
    private()
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(|error| io_error(&format!("creating {}", path.display()), &error))
}

/// Makes a directory that only its owner may enter, and its parents, durably.
pub(super) fn create_directory(path: &Path) -> io::Result<()> {
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
#[cfg(unix)]
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes the names in a directory durable: elsewhere than on Unix the file system sees to it.
#[cfg(not(unix))]
pub(super) fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

/// The store's form of an I/O error.
pub(super) fn io_error(what: &str, error: &io::Error) -> StorageError {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let what = what.to_owned();
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => StorageError::NoSpace { what },
        _ => StorageError::Io { what, reason: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { cluster: 1, node: 2, incarnation: 3, address: "here:1".to_owned() }
    }

    #[test]
    fn directory_is_private_and_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let directory = Directory::open(&path).unwrap();
        assert_eq!(Directory::open(&path).unwrap_err(), StorageError::InUse);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), 0o700);
            assert_eq!(mode(&path.join(LOCK)), 0o600);
        }
        drop(directory);
        assert!(Directory::open(&path).unwrap().identity().is_none());
    }

    #[test]
    fn directory_of_someone_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "precious").unwrap();
        let error = Directory::open(dir.path()).unwrap_err();
        assert!(matches!(error, StorageError::Io { .. }), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn directory_keeps_its_identity_and_refuses_a_damaged_one() {
        let dir = tempfile::tempdir().unwrap();
        Directory::open(dir.path()).unwrap().take(&identity()).unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        assert_eq!(directory.identity(), Some(&identity()));
        let error = directory.current().unwrap_err();
        assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
        drop(directory);
        let path = dir.path().join(IDENTITY);
        let mut bytes = fs::read(&path).unwrap();
        bytes[13] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = Directory::open(dir.path()).unwrap_err();
        assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
        // Once found damaged, it stays refused, even if the damage goes away.
        bytes[13] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = Directory::open(dir.path()).unwrap_err();
        assert!(error.to_string().contains("found damaged before"), "{error}");
    }

    #[test]
    fn frame_of_another_format_is_a_version() {
        let mut bytes = encode_frame(CURRENT_MAGIC, &[7]);
        assert_eq!(decode_frame::<u64>("x", CURRENT_MAGIC, &bytes), Ok(7));
        bytes[8] = 9;
        let sealed = bytes.len() - 8;
        let checksum = xxh3_64(&bytes[..sealed]).to_le_bytes();
        bytes[sealed..].copy_from_slice(&checksum);
        let error = decode_frame::<u64>("x", CURRENT_MAGIC, &bytes).unwrap_err();
        assert!(matches!(error, StorageError::Version { .. }), "{error}");
    }
}
