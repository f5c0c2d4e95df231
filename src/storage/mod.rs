//! The durable state of a node: the contract of a store, and two implementations, on disk (`store`) and
//! in memory (`memory`).
//!
//! A store holds one node's
//! - `Identity`,
//! - `Promise` to the peers that it may found a cluster with,
//! - checkpoint: a full image of the state machine and any number of deltas, each a list of chunks
//!   that only the state machine decodes,
//! - Raft log since the checkpoint, and hard state.
//!
//! The store of a node without a cluster has a checkpoint at index 0.
//!
//! `contract` says what every store promises, and `rules` what its callers may not do.
//!
//! | where | what it answers |
//! | --- | --- |
//! | `store` | what a member does with its data directory, call by call |
//! | `directory` | which files a member has, and which of its incarnations is the current one |
//! | `log` | how an append is durable, how far the log reaches, and whether it is sound |
//! | `checkpoint` | which chunks are valid, and whether they are sound |
//! | `file_system` | what the system does with files, and what can be relied on |
//! | `sealing`, `frame`, `bytes` | what the formats of these have in common |
//!
//! Beside `store`: `opening` bounds the time that it takes to open one, `replacement` puts a new one in its place,
//! `salvage` reads what is left of a damaged one, and `provisional` stands for it until a leader has admitted the member.
//!
//! Each uses only what is below it (`tests/repository/rooms.rs` has the order). This file only passes on what others
//! use.
//!
//! Not here: when a checkpoint is begun, and which threads call a store (`runtime::disk`); what is done with the
//! directory of a member that cannot start (`runtime::directory`, `recovery`).

mod bytes;
mod checkpoint;
mod contract;
mod directory;
mod error;
mod file_system;
mod frame;
mod log;
mod memory;
mod opening;
mod options;
mod provisional;
mod replacement;
mod rules;
mod salvage;
mod sealing;
mod store;

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "one test measures times")]
mod conformance;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "processes are watched by the clock")]
mod crash_tests;
#[cfg(test)]
mod model;

pub(crate) use self::contract::{CheckpointKind, Checkpointer, ChunkSink, LogAfter, LogStore, Rot};
#[cfg(any(test, feature = "simulator"))]
pub(crate) use self::contract::{ReadDone, ScrubDone};
#[cfg(any(test, feature = "simulator"))]
pub(crate) use self::directory::incarnation::log_of;
#[cfg(any(test, feature = "simulator"))]
pub(crate) use self::directory::{current_name, spare_segments};
#[cfg(any(test, feature = "simulator"))]
pub(crate) use self::error::Result;
pub(crate) use self::error::StorageError;
#[cfg(feature = "admin")]
pub(crate) use self::file_system::space;
#[cfg(any(test, feature = "simulator"))]
pub(crate) use self::file_system::{Access, simulated};
pub(crate) use self::file_system::{FsPath, Space};
#[cfg(any(test, feature = "simulator"))]
pub(crate) use self::log::witness::witnessed;
pub(crate) use self::memory::MemoryDisk;
#[cfg(test)]
pub(crate) use self::memory::MemoryStore;
pub(crate) use self::options::StoreOptions;
pub(crate) use self::provisional::{Begin, Provisional};
pub(crate) use self::replacement::{Marks, Replacement, copy_store, identity_of};
pub(crate) use self::store::DiskStore;

/// Reads an arbitrary frame `KEYS`, and arbitrary encrypted bytes.
#[cfg(any(test, fuzzing))]
pub(crate) use self::sealing::fuzz as fuzz_keys;

/// Reads arbitrary bytes as the small files of a directory.
#[cfg(any(test, fuzzing))]
pub(crate) use self::{
    directory::incarnation::fuzz as fuzz_identity, log::place::fuzz as fuzz_log_place,
};

/// Reads arbitrary bytes as each kind of data on disk.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(parts: &[&[u8]]) {
    checkpoint::chunk::fuzz(parts);
    for part in parts {
        log::body::fuzz(part);
        log::record::fuzz(part);
        log::witness::fuzz(part);
    }
}
