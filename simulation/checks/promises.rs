//! What nodes promise in their votes and in their confirmations of ReadIndex requests.

use std::collections::BTreeMap;

use super::{Violation, require};
use crate::node::io::DiskOp;
use crate::node::message::PeerMessage;
use crate::simulation::oracle::Oracle;
use crate::types::membership::NodeId;

#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// The last term that each node writes to its disk, and its vote in that term.
    votes: BTreeMap<NodeId, (u64, NodeId)>,
    /// Each ReadIndex request, by its sender and its numbers: the last entry that counted as committed when it was
    /// sent.
    asked: BTreeMap<(NodeId, u64, u64), u64>,
}

/// ReadIndex requests that are remembered. They are answered or given up soon.
const ASKED_MAX: usize = 100_000;

impl Promises {
    /// I11: a node writes a vote once in a term, and never takes it back.
    pub(crate) fn writing(&mut self, node: NodeId, op: &DiskOp) -> Result<(), Violation> {
        let hard_state = match op {
            DiskOp::Write { write, .. } => write.hard_state,
            DiskOp::Install { hard_state, .. } => Some(*hard_state),
            _ => None,
        };
        let Some(new) = hard_state else { return Ok(()) };
        let (term, vote) = self.votes.insert(node, (new.term, new.vote)).unwrap_or_default();
        let is_kept = term != new.term || vote == 0 || vote == new.vote;
        require(is_kept, "I11 a vote is kept", || {
            format!("node {node:x} has voted for {vote:x} in term {term}, and now writes {new:?}")
        })
    }

    /// A node has started from what its disk held: it may have lost votes that were not durable.
    pub(crate) fn started(&mut self, node: NodeId) {
        self.votes.remove(&node);
    }

    /// I2: a confirmed ReadIndex request shows everything that was committed when it was sent.
    pub(crate) fn sending(
        &mut self,
        from: NodeId,
        to: NodeId,
        message: &PeerMessage,
        oracle: &Oracle,
    ) -> Result<(), Violation> {
        let (key, index) = match message {
            PeerMessage::ReadIndex { boot, read_index, .. } => ((from, *boot, *read_index), None),
            PeerMessage::ClientReadIndex { client, boot, read_index, .. } => {
                ((*client, *boot, *read_index), None)
            }
            PeerMessage::ReadIndexConfirmed { boot, read_index, index, .. } => {
                ((to, *boot, *read_index), Some(*index))
            }
            PeerMessage::ClientReadIndexConfirmed { client, boot, read_index, index, .. } => {
                ((*client, *boot, *read_index), Some(*index))
            }
            _ => return Ok(()),
        };
        let Some(index) = index else {
            if self.asked.len() >= ASKED_MAX {
                self.asked.clear();
            }
            self.asked.entry(key).or_insert(oracle.last());
            return Ok(());
        };
        let committed = self.asked.get(&key).copied().unwrap_or_default();
        require(index >= committed, "I2 a ReadIndex shows what was committed", || {
            format!(
                "node {from:x} confirms {index} to {to:x}, and {committed} was committed before"
            )
        })
    }
}
