//! The directories of generations: their names, and whether there is room for a further one.

use std::sync::atomic::{AtomicU64, Ordering};

use super::generation::Generation;
use crate::storage::error::{Result, StorageError};
use crate::storage::file_system::{FsPath, Space};

const PREFIX: &str = "gen-";
/// The generation that founding makes.
pub(in crate::storage) const FIRST_GENERATION: u64 = 1;
/// The space that a generation needs besides its chunks, since sled allocates space ahead.
const GENERATION_ROOM: u64 = 16 << 20;

/// The directory that the generations of an incarnation are in.
#[derive(Clone, Debug)]
pub(in crate::storage) struct GenerationPaths(FsPath);

impl GenerationPaths {
    /// Those in this directory.
    pub(in crate::storage) fn new(dir: &FsPath) -> GenerationPaths {
        GenerationPaths(dir.clone())
    }

    fn path(&self, number: u64) -> FsPath {
        self.0.join(format!("{PREFIX}{number:06}"))
    }

    /// Fails if the disk has no room for a generation of so many bytes and for the other writes during
    /// its creation.
    pub(super) fn have_room_for(&self, bytes: u64) -> Result<()> {
        let needed = bytes.saturating_add(bytes / 4).saturating_add(GENERATION_ROOM);
        match self.0.space() {
            Some(Space { free, total }) if free < needed.min(total / 4 + bytes) => {
                Err(StorageError::Again {
                    what: "writing a checkpoint".to_owned(),
                    reason: format!("it takes {needed} bytes, and the disk has room for {free}"),
                })
            }
            _ => Ok(()),
        }
    }

    /// Removes the file of chunks that is kept for the next generation.
    pub(in crate::storage) fn remove_spare(&self) {
        Generation::remove_spare(&self.0);
    }

    /// Makes an empty generation.
    pub(in crate::storage) fn create(&self, number: u64) -> Result<Generation> {
        Generation::create(self.path(number), number)
    }

    /// Opens an existing generation. First adds its size to `size`.
    pub(in crate::storage) fn open(&self, number: u64, size: &AtomicU64) -> Result<Generation> {
        let path = self.path(number);
        size.fetch_add(Generation::bytes_in(&path), Ordering::Relaxed);
        Generation::open(path, number)
    }
}

/// The number in the name of a generation's directory.
pub(in crate::storage) fn generation_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    if digits.len() < 6 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}
