//! The durable state of a node: the contract of a store, and two implementations, on disk (`store`) and
//! in memory (`memory`).
//!
//! A store holds one node's
//! - [`Identity`],
//! - [`Promise`] to the peers that it may found a cluster with,
//! - checkpoint: a full image of the state machine and any number of deltas, each a list of chunks
//!   that only the state machine decodes,
//! - Raft log since the checkpoint, and hard state.
//!
//! The store of a node without a cluster has a checkpoint at index 0.
//!
//! `contract` says what every store promises.

mod bytes;
mod checkpoint;
mod contract;
mod directory;
mod error;
mod file_system;
mod file_thread;
mod frame;
mod generation;
mod incarnation;
mod log_body;
mod log_file;
mod log_index;
mod log_place;
mod log_record;
mod log_scan;
mod memory;
mod opening;
mod options;
mod part;
mod paths;
mod provisional;
mod record;
mod replacement;
mod replay;
mod rules;
mod salvage;
mod sealing;
mod segments;
mod store;
mod witness;

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "one test measures times")]
mod conformance;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "processes are watched by the clock")]
mod crash_tests;
#[cfg(test)]
mod model;

pub(crate) use self::contract::{
    CheckpointKind, Checkpointer, ChunkSink, LogAfter, LogStore, ReadDone, Rot, ScrubDone,
};
#[cfg(any(test, feature = "simulator"))]
pub(crate) use self::directory::{current_name, spare_segments};
pub(crate) use self::error::{Result, StorageError};
#[cfg(feature = "admin")]
pub(crate) use self::file_system::space;
#[cfg(any(test, feature = "simulator"))]
pub(crate) use self::file_system::{Access, simulated};
pub(crate) use self::file_system::{FsPath, Space};
#[cfg(any(test, feature = "simulator"))]
pub(crate) use self::incarnation::log_of;
pub(crate) use self::memory::{MemoryDisk, MemoryStore};
pub(crate) use self::options::StoreOptions;
pub(crate) use self::provisional::{Begin, Provisional};
pub(crate) use self::replacement::{Marks, Replacement, copy_store, identity_of};
pub(crate) use self::store::DiskStore;
#[cfg(any(test, feature = "simulator"))]
pub(crate) use self::witness::witnessed;

/// Reads an arbitrary frame `KEYS`, and arbitrary encrypted bytes.
#[cfg(any(test, fuzzing))]
pub(crate) use self::sealing::fuzz as fuzz_keys;

/// Reads arbitrary bytes as the small files of a directory.
#[cfg(any(test, fuzzing))]
pub(crate) use self::{incarnation::fuzz as fuzz_identity, log_place::fuzz as fuzz_log_place};

/// Reads arbitrary bytes as each kind of data on disk.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(parts: &[&[u8]]) {
    record::fuzz(parts);
    for part in parts {
        log_body::fuzz(part);
        log_record::fuzz(part);
        witness::fuzz(part);
    }
}
