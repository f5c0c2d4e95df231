//! What a node keeps on disk, and the promises that a store must keep.
//!
//! A store holds one node's [`Identity`], its [`Promise`] to those that it may
//! found a cluster with, its Raft log since the last checkpoint with the hard
//! state, and the checkpoint itself: a full image of the state machine followed
//! by any number of deltas, each a list of chunks that only the state machine
//! reads. The store of a node without a cluster has a checkpoint at index 0.
//!
//! The contract, which one conformance suite checks for every store:
//! - When a call returns `Ok`, what it wrote survives a power cut.
//! - A call is all or nothing: after a crash in the middle of it, the store
//!   opens as it was before the call or as it would have been after it.
//! - What is read is what was written. Anything else is
//!   [`StorageError::Corrupt`], never data and never an empty store.
//! - After an error the store is poisoned and refuses every further write: a
//!   failed sync is never tried again on the same data. The exception is
//!   [`StorageError::Again`], after which the store is as it was before the
//!   call. If that was one of a checkpoint's, the checkpoint is forgotten.
//! - One thread calls it.

mod checkpoint;
mod directory;
mod files;
mod frame;
mod generation;
mod log_body;
mod log_file;
mod log_index;
mod memory;
mod opening;
mod provisional;
mod record;
mod replacement;
mod replay;
mod rules;
mod salvage;
mod segments;
mod store;
mod witness;

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "it measures, too")]
mod conformance;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "processes are watched by the clock")]
mod crash_tests;
#[cfg(test)]
mod model;

use std::path::PathBuf;

use crate::node::stored::{Boot, HardState, Identity, LogWrite, SnapshotMeta};
use crate::types::membership::Promise;

pub(crate) use self::files::{create_file, sync_directory};
pub(crate) use self::memory::{MemoryDisk, MemoryStore};
pub(crate) use self::provisional::{Begin, Provisional};
pub(crate) use self::replacement::{Marks, Replacement, copy_store, identity_of};
pub(crate) use self::store::{DiskStore, StoreOptions};

/// The result of a store's call.
pub(crate) type Result<T, E = StorageError> = std::result::Result<T, E>;

/// What a checkpoint's chunks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckpointKind {
    /// The whole state.
    Full,
    /// What changed since the checkpoint before.
    Delta,
}

/// What becomes of the log when a checkpoint is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogAfter {
    /// Entries below this index are dropped.
    From(u64),
    /// All entries are dropped and the hard state replaced: the state came from a leader.
    Reset(HardState),
}

/// Takes the chunks of a checkpoint in the order in which they were put; an error (a chunk that
/// does not decode) ends the load as corrupt.
pub(crate) type ChunkSink<'a> = dyn FnMut(&[u8]) -> Result<(), String> + 'a;

pub(crate) trait LogStore: Send {
    /// Who this store belongs to; `None` if it is blank.
    fn identity(&self) -> Option<&Identity>;

    /// What the node has promised while it had no cluster; the default if nothing, or if the store
    /// is blank.
    fn promise(&self) -> &Promise;

    /// Replaces the identity. A node's id, incarnation and uid never change, and a cluster once set
    /// does not either. It may be called before the store is loaded, but not on a blank one.
    fn set_identity(&mut self, identity: &Identity) -> Result<()>;

    /// Replaces the promise. It may be called before the store is loaded, but not on a blank one.
    fn keep_promise(&mut self, promise: &Promise) -> Result<()>;

    /// Marks the store as that of a member that was removed: it opens and loads never again, and all
    /// that is left to do with it is to begin it again. Not on a blank one.
    fn mark_removed(&mut self) -> Result<()>;

    /// Turns a blank store into the store of `identity`, with this as its first, full checkpoint,
    /// an empty log and `hard_state`.
    fn found(
        &mut self,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<()>;

    /// Reads everything back, verified. Called once, on a store that is not blank.
    fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot>;

    /// Makes a write durable.
    fn append(&mut self, write: &LogWrite) -> Result<()>;

    /// Called when nothing was written for a while, for what need not be done with each write.
    fn rest(&mut self) -> Result<()> {
        Ok(())
    }

    /// What writes the chunks of checkpoints, while appends go on: for another thread, if that is
    /// wanted. Of a store that is loaded.
    fn checkpointer(&mut self) -> Result<Box<dyn Checkpointer>>;

    /// Makes the checkpoint that was finished last count, at once and durably. `Reset` goes with
    /// `Full` only.
    fn commit_checkpoint(&mut self, meta: &SnapshotMeta, log: LogAfter) -> Result<()>;
}

/// Writes the chunks of one checkpoint after the other. None of them counts before it is committed.
pub(crate) trait Checkpointer: Send {
    /// Begins a checkpoint and says which kind the store wants: `Full` when `full` was asked for,
    /// or when so much has gathered that a new image costs less than it saves. A checkpoint that
    /// was begun before and not committed is forgotten, whoever has begun it, and must not be gone on
    /// with.
    fn begin(&mut self, full: bool) -> Result<CheckpointKind>;

    /// Adds a chunk, of any size up to a few MiB.
    fn put_chunk(&mut self, chunk: &[u8]) -> Result<()>;

    /// Makes all chunks durable.
    fn finish(&mut self) -> Result<()>;
}

/// Why a store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StorageError {
    #[error("in use by another process")]
    InUse,
    #[error("{what}: {reason}")]
    Io { what: String, reason: String },
    #[error("no space left on the disk: {what}")]
    NoSpace { what: String },
    /// Nothing that counts was changed, and the call may be made again: there was no file to open, or
    /// a checkpoint could not be written beside what there is.
    #[error("{what}: {reason}")]
    Again { what: String, reason: String },
    #[error("this member was removed from its cluster: {reason}")]
    Removed { reason: String },
    #[error("damaged: {what}")]
    Corrupt { what: String },
    #[error("a store of another version: {what}")]
    Version { what: String },
    #[error("the store failed before: {reason}")]
    Poisoned { reason: String },
}

impl StorageError {
    /// The error that a user of the directory sees.
    pub(crate) fn into_error(self, dir: PathBuf) -> crate::types::error::Error {
        use crate::types::error::Error;
        match self {
            StorageError::InUse => Error::DataDirInUse { dir },
            StorageError::Corrupt { what } => Error::Corrupt { dir, reason: what },
            StorageError::Removed { .. } => {
                Error::DataDirMismatch { dir, reason: self.to_string() }
            }
            StorageError::Version { what } => Error::DataDirMismatch { dir, reason: what },
            other => Error::DataDirUnusable { dir, reason: other.to_string() },
        }
    }
}

/// Arbitrary bytes for all that is read back from disk.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(parts: &[&[u8]]) {
    record::fuzz(parts);
    for part in parts {
        log_body::fuzz(part);
        log_file::fuzz(part);
        witness::fuzz(part);
    }
}
