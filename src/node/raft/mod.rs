//! Raft, as this node runs it: the log, the handling of each `Ready` of raft-rs, elections,
//! persistence, and the check that stands between raft-rs and the network.

pub(in crate::node) mod checkpoints;
pub(crate) mod configuration;
pub(in crate::node) mod core;
pub(crate) mod divergence;
pub(in crate::node) mod elections;
pub(crate) mod guard;
pub(in crate::node) mod heartbeats;
pub(crate) mod leader_loss;
pub(crate) mod log;
mod log_reads;
pub(crate) mod logger;
pub(in crate::node) mod persistence;
pub(in crate::node) mod probes;
pub(crate) mod quorum_loss;
pub(in crate::node) mod ready;
pub(in crate::node) mod replication;
pub(crate) mod snapshot_transfer;
pub(in crate::node) mod state;
mod wire;

/// Where the numbers of a term begin. No two terms have a number in common, as long as none uses 2^32
/// of them.
pub(crate) fn numbers_of(term: u64) -> u64 {
    term << 32
}
