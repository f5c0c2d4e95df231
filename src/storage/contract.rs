//! What every store promises.
//!
//! One conformance suite checks it for all of them:
//! - When a call returns `Ok`, what it wrote survives a power cut.
//! - A call is atomic: after a crash in the middle of it, the store opens in the state before or
//!   after the call.
//! - A read returns what was written, or [`StorageError::Corrupt`]: never other data, and never an
//!   empty store.
//! - After an error the store is poisoned and refuses every further write: a failed sync is never
//!   repeated on the same data. The exception is [`StorageError::Again`]: the store is unchanged.
//!   If the call belonged to a checkpoint, that checkpoint is dropped.
//! - One thread calls it.

use super::error::{Result, StorageError};
use super::file_system::Space;
use crate::node::stored::{Boot, HardState, Identity, LogEntry, LogWrite, SnapshotMeta};
use crate::types::membership::Promise;

/// What a checkpoint's chunks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckpointKind {
    /// The whole state.
    Full,
    /// What changed since the checkpoint before.
    Delta,
}

/// What the commit of a checkpoint does to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogAfter {
    /// Entries below this index are dropped.
    From(u64),
    /// All entries are dropped and the hard state replaced: the state came from a leader.
    Reset(HardState),
}

/// Receives the chunks of a checkpoint in the order in which they were written. If it fails (a chunk
/// does not decode), the load fails as corrupt.
pub(crate) type ChunkSink<'a> = dyn FnMut(&[u8]) -> Result<(), String> + 'a;

/// Receives the result of [`LogStore::read`].
pub(crate) type ReadDone = Box<dyn FnOnce(Result<Vec<LogEntry>, Rot>) + Send>;

/// Receives the damage that [`LogStore::scrub`] has found, if any.
pub(crate) type ScrubDone = Box<dyn FnOnce(Option<Rot>) + Send>;

/// A piece of the log that was sound when it was written, and is damaged now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rot {
    /// A description, for people.
    pub(crate) what: String,
    /// A log that begins with this entry does not need the piece.
    pub(crate) below: u64,
}

impl Rot {
    /// What a piece of the log holds, or that it is damaged. A log that begins with the entry `below` does
    /// not need the piece.
    pub(super) fn found<T: Default>(read: Result<T>, below: u64) -> Result<T, Rot> {
        match read {
            // No more files can be opened for now, which shows no damage.
            Err(StorageError::Again { .. }) => Ok(T::default()),
            // Nor does a wrong key.
            Err(StorageError::Key { what }) => {
                tracing::error!(what, "a piece of the log cannot be decrypted");
                Ok(T::default())
            }
            Err(error) => Err(Rot { what: error.to_string(), below }),
            Ok(read) => Ok(read),
        }
    }
}

/// The durable state of one node: see the module's documentation.
pub(crate) trait LogStore: Send {
    /// The node that this store belongs to; `None` if it is blank.
    fn identity(&self) -> Option<&Identity>;

    /// The node's promise from the time when it had no cluster; the default if there is none, or if
    /// the store is blank.
    fn promise(&self) -> &Promise;

    /// Replaces the identity. A node's id, incarnation and uid never change, nor does its cluster
    /// once it is set. May be called before the store is loaded, but not on a blank one.
    fn set_identity(&mut self, identity: &Identity) -> Result<()>;

    /// Replaces the promise. May be called before the store is loaded, but not on a blank one.
    fn set_promise(&mut self, promise: &Promise) -> Result<()>;

    /// Marks the store as that of a removed member. It cannot be opened or loaded again, only
    /// replaced. Not for a blank store.
    fn mark_removed(&mut self) -> Result<()>;

    /// Turns a blank store into the store of `identity`, with a full checkpoint of these chunks, an
    /// empty log and `hard_state`.
    fn found(
        &mut self,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<()>;

    /// Reads everything back and verifies it. Called once, on a store that is not blank.
    fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot>;

    /// Makes a write durable.
    fn append(&mut self, write: &LogWrite) -> Result<()>;

    /// Reads entries from index `from` on, at most so many bytes but at least one entry. `done` gets the
    /// entries, perhaps on another thread; none if the log does not have the first one, or cannot be read
    /// now. Damage that is found does not poison the store.
    fn read(&mut self, from: u64, bytes: u64, done: ReadDone) -> Result<()>;

    /// Does work that is not needed at each write. Called when nothing was written for a while.
    fn idle(&mut self) -> Result<()> {
        Ok(())
    }

    /// Verifies the next piece of the checkpoint, or of the log that is not written to any more, on
    /// another thread. After the last one it begins again. Returns how many such pieces there are.
    fn scrub(&mut self, done: ScrubDone) -> Result<u64> {
        drop(done);
        Ok(0)
    }

    /// The room on the file system of the store; `None` if it is not known.
    fn space(&self) -> Option<Space> {
        None
    }

    /// That of a log that is elsewhere; `None` if there is none, or it is not known.
    fn log_space(&self) -> Option<Space>;

    /// Does a piece of the work that a store with threads does beside its calls, if this store has none.
    /// Returns whether there was any.
    #[cfg_attr(
        not(any(test, feature = "simulator")),
        allow(dead_code, reason = "the simulator needs it")
    )]
    fn work_beside(&mut self) -> bool {
        false
    }

    /// The writer of checkpoints, which may run on another thread beside appends. The store must be
    /// loaded.
    fn checkpointer(&mut self) -> Result<Box<dyn Checkpointer>>;

    /// Commits the checkpoint that was finished last, atomically and durably. `Reset` is allowed
    /// only with a full one. Returns how many bytes its chunks take,
    /// including those of the checkpoints that it continues.
    fn commit_checkpoint(&mut self, meta: &SnapshotMeta, log: LogAfter) -> Result<u64>;
}

/// Writes one checkpoint after the other. None is valid before its commit.
pub(crate) trait Checkpointer: Send {
    /// Begins a checkpoint and returns the kind that the store wants: `Full` if `full` is set, or
    /// if a new image costs less than it saves. A new image takes so many `bytes`, about; it is not
    /// begun on a disk that has no room for it. A checkpoint that was begun before and not
    /// committed is dropped, and nobody may continue it.
    fn begin(&mut self, full: bool, bytes: u64) -> Result<CheckpointKind>;

    /// Adds a chunk, of any size up to a few MiB.
    fn put_chunk(&mut self, chunk: &[u8]) -> Result<()>;

    /// Makes all chunks durable.
    fn finish(&mut self) -> Result<()>;
}
