//! Nothing is acknowledged before it is durable (I12, I13, I14).

use std::collections::BTreeMap;

use super::membership::Membership;
use super::{Violation, require};
use crate::node::Node;
use crate::node::message::{PeerMessage, RaftBody};
use crate::simulation::disk::{Condition, SimDisk};
use crate::types::membership::NodeId;

/// I12: an entry is on the disks of a majority at the moment at which it first counts as committed.
/// So it is in every later state, whatever crashes then.
///
/// Learners do not count. A disk that was lost since then counts as it was.
pub(crate) fn on_majority(
    membership: &Membership,
    disks: &BTreeMap<NodeId, SimDisk>,
    index: u64,
    term: u64,
) -> Result<(), Violation> {
    let holds = |node| disks.get(&node).is_some_and(|disk| disk.condition().holds(index, term));
    require(membership.decides(holds), "I12 committed is durable", || {
        let holding: Vec<&NodeId> = disks.keys().filter(|node| holds(**node)).collect();
        let voting = membership.voting();
        format!("entry {index} of term {term} is applied, and on {holding:x?} of {voting:x?}")
    })
}

/// I14: a node starts with everything that it had made durable: its term, its vote and its log.
pub(crate) fn recovered(node: &Node, disk: &Condition) -> Result<(), Violation> {
    let (hard_state, last) = node.recovered();
    let durable = disk.hard_state();
    // A single member stands for election and wins as soon as it starts.
    let alone = hard_state.term == durable.term + 1 && hard_state.vote == node.id();
    let knows =
        (hard_state.term, hard_state.vote, last) == (durable.term, durable.vote, disk.last());
    require(knows || alone, "I14 a start knows what was durable", || {
        format!(
            "node {} starts with {hard_state:?} and entry {last}; on its disk are {durable:?} and {}",
            node.id(),
            disk.last()
        )
    })
}

/// I13: a node sends no acknowledgement and no vote before what it confirms is durable on its disk.
pub(crate) fn sending(
    message: &PeerMessage,
    from: NodeId,
    to: NodeId,
    disk: &Condition,
) -> Result<(), Violation> {
    let PeerMessage::Raft { term, body } = message else {
        return Ok(());
    };
    match body {
        RaftBody::AppendResponse { index, reject: false, .. } => {
            // An acknowledgement to a deposed leader may name entries that the next leader has
            // replaced in the same step. That step is durable, and the entries cannot have been
            // committed.
            let held = *index <= disk.last() || disk.hard_state().term > *term;
            require(held, "I13 no acknowledgement before the sync", || {
                format!("node {from} acknowledges {index}, and has {} on disk", disk.last())
            })
        }
        RaftBody::VoteResponse { pre: false, reject: false, .. } => {
            let durable = disk.hard_state();
            let held = durable.term > *term || (durable.term == *term && durable.vote == to);
            require(held, "I13 no vote before the sync", || {
                format!("node {from} votes for {to} in term {term}, and has {durable:?} on disk")
            })
        }
        // A candidate has voted for itself.
        RaftBody::Vote { pre: false, .. } => {
            let durable = disk.hard_state();
            let held = durable.term > *term || (durable.term == *term && durable.vote == from);
            require(held, "I13 no candidate before the sync", || {
                format!("node {from} stands in term {term}, and has {durable:?} on disk")
            })
        }
        _ => Ok(()),
    }
}
