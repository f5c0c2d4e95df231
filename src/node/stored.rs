//! What a node has on its disk: its log and hard state, the metadata of a checkpoint, and the
//! node's identity. The stores are in `storage`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::node::log_outline::LogOutline;
use crate::types::membership::{NodeId, node_id};
use crate::types::znode::Zxid;

/// The identity of the node of this store. Written before anything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The cluster, drawn when it was founded; 0 as long as the node belongs to none.
    pub(crate) cluster: u64,
    pub(crate) node: NodeId,
    /// Random for each empty directory. It distinguishes a wiped disk from a restart.
    pub(crate) incarnation: u64,
    /// The address at which peers reach this node.
    pub(crate) address: String,
    /// Random for a directory without a predecessor, and kept when a directory is replaced.
    pub(crate) uid: u64,
}

impl Identity {
    /// The identity of the node once its directory has been replaced: another member of the same
    /// cluster, recognisable by its uid as the successor of this one.
    pub(crate) fn with_incarnation(&self, incarnation: u64) -> Identity {
        Identity { node: node_id(self.uid, incarnation), incarnation, ..self.clone() }
    }
}

/// Some entries and the hard state, to be made durable together.
///
/// Entries are contiguous. They replace everything from the first one's index on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogWrite {
    pub(crate) hard_state: Option<HardState>,
    pub(crate) entries: Vec<LogEntry>,
}

/// The content of the store when it was loaded, without the checkpoint's chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boot {
    pub(crate) hard_state: HardState,
    /// The metadata of the checkpoint.
    pub(crate) checkpoint: SnapshotMeta,
    /// How many bytes its chunks take.
    pub(crate) checkpoint_bytes: u64,
    /// The entries up to the checkpoint that the store still has. The last of them is the checkpoint's.
    pub(crate) outline: LogOutline,
    /// The entries after the checkpoint.
    pub(crate) entries: Vec<LogEntry>,
}

impl Boot {
    /// The content of a new store.
    pub(crate) fn without_log(hard_state: HardState, checkpoint: SnapshotMeta) -> Boot {
        let (outline, entries) = (LogOutline::default(), Vec::new());
        Boot { hard_state, checkpoint, checkpoint_bytes: 0, outline, entries }
    }
}

/// One entry of the log, on the wire and on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogEntry {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) kind: EntryKind,
    pub(crate) data: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EntryKind {
    /// A [`Batch`](crate::machine::command::Batch), or nothing (a new leader's first entry).
    Normal,
    /// A [`VotingChange`](crate::node::raft::configuration::VotingChange).
    Membership,
}

/// Raft's hard state, which must be durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HardState {
    pub(crate) term: u64,
    pub(crate) vote: NodeId,
    pub(crate) commit: u64,
}

/// The metadata of a snapshot or a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotMeta {
    pub(crate) index: u64,
    pub(crate) term: u64,
    /// The state machine's zxid and hash at that index.
    pub(crate) zxid: Zxid,
    pub(crate) hash: u64,
    pub(crate) voting: Voting,
}

/// The voters and learners: Raft's `ConfState`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Voting {
    pub(crate) voters: Vec<NodeId>,
    pub(crate) learners: Vec<NodeId>,
    pub(crate) voters_outgoing: Vec<NodeId>,
    pub(crate) learners_next: Vec<NodeId>,
    pub(crate) auto_leave: bool,
}
