//! Reading the undamaged part of a damaged store. It serves to found a new cluster; a member never
//! continues with it.
//!
//! A store whose `PROMISE` is lost may have everything else. If the log or the witness is damaged,
//! the checkpoint and the log up to the damage can still be read. The rest is lost, and its size is not
//! known. Nothing is read from a store whose checkpoint is damaged.

use super::checkpoint::part::read_chunks;
use super::directory::Directory;
use super::directory::incarnation::Sound;
use super::file_system::FsPath;
use super::log::replay::salvage_log;
use super::opening;
use super::sealing::Sealing;
use crate::node::stored::Boot;
use crate::storage::error::Result;
use crate::storage::options::StoreOptions;
use crate::storage::store::DiskStore;

/// The undamaged part of a store.
#[derive(Debug)]
pub(crate) struct Salvage {
    pub(crate) boot: Boot,
    /// The chunks of the checkpoint.
    pub(crate) chunks: Vec<Vec<u8>>,
}

impl DiskStore {
    /// Opens a store whose `PROMISE` may be lost or damaged.
    pub(crate) fn open_without_promise(dir: &FsPath, options: StoreOptions) -> Result<DiskStore> {
        opening::within(opening::OPEN_TIMEOUT, dir, move |dir, size| {
            let directory =
                Directory::open_damaged(dir, Sound::Identity, options.log_dir.as_deref())?;
            DiskStore::open_directory(directory, options, size)
        })
    }

    /// Reads the undamaged part of a store. Opening changes the directory, so use a copy.
    pub(crate) fn salvage(dir: &FsPath, options: StoreOptions) -> Result<Salvage> {
        opening::within(opening::OPEN_TIMEOUT, dir, move |dir, size| {
            let mut directory =
                Directory::open_damaged(dir, Sound::Identity, options.log_dir.as_deref())?;
            let current = directory.owned()?;
            let log_id = current.log_id()?;
            let sealing = Sealing::open_keys(current.path(), options.keys.as_ref())?;
            let (checkpoint, boot) = salvage_log(&current.log()?, log_id, &sealing)?;
            let mut generation = current.generations().open(checkpoint.generation, size)?;
            let mut chunks = Vec::new();
            read_chunks(&mut generation, log_id, &checkpoint.parts, &sealing, &mut |chunk| {
                chunks.push(chunk.to_vec());
                Ok(())
            })?;
            Ok(Salvage { boot, chunks })
        })
    }
}
