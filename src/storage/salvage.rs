//! What can be taken from a damaged store: only for a new cluster, never for a member to go on with.
//!
//! A store whose `PROMISE` is lost may be whole in all that a cluster is founded from. Of one whose log
//! or witness is damaged, the checkpoint and the log up to the damage are as they were written; what
//! came after is lost, and nobody can say how much that was. Nothing is taken from a store whose
//! checkpoint is damaged.

use std::path::Path;

use super::directory::Directory;
use super::generation::Generation;
use super::opening;
use super::record::log_id;
use super::replay::{read_chunks, salvage_log};
use crate::node::stored::Boot;
use crate::storage::{DiskStore, Result, StoreOptions};

/// The part of a damaged store that is as it was written.
#[derive(Debug)]
pub(crate) struct Salvage {
    pub(crate) boot: Boot,
    /// The chunks of the checkpoint.
    pub(crate) chunks: Vec<Vec<u8>>,
}

impl DiskStore {
    /// Opens a store whose `PROMISE` may be lost or damaged.
    pub(crate) fn open_without_promise(dir: &Path, options: StoreOptions) -> Result<DiskStore> {
        let path = dir.to_owned();
        opening::within(opening::PATIENCE, dir, move |size| {
            DiskStore::open_directory(Directory::open_marked(&path)?, options, size)
        })
    }

    /// Reads as much of a damaged store as is as it was written. Whoever opens it changes it: for
    /// copies.
    pub(crate) fn salvage(dir: &Path, options: StoreOptions) -> Result<Salvage> {
        let path = dir.to_owned();
        opening::within(opening::PATIENCE, dir, move |size| {
            let directory = Directory::open_marked(&path)?;
            let log_id = log_id(directory.origin()?);
            let (checkpoint, boot) = salvage_log(&directory.log(), log_id)?;
            let path = directory.generations().path(checkpoint.generation);
            size.set(Generation::bytes_in(&path));
            let generation = Generation::open(path, checkpoint.generation, &options.tuning())?;
            let mut chunks = Vec::new();
            read_chunks(&generation, log_id, &checkpoint, &mut |chunk| {
                chunks.push(chunk.to_vec());
                Ok(())
            })?;
            Ok(Salvage { boot, chunks })
        })
    }
}
