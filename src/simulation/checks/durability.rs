//! Nothing is promised before it is durable (I12, I13).

use std::collections::BTreeMap;

use super::membership::Membership;
use super::{Violation, require};
use crate::node::Node;
use crate::node::message::{PeerMessage, RaftBody};
use crate::simulation::disk::{Condition, SimDisk};
use crate::types::membership::NodeId;

/// I12: what is committed is on the disks of a majority, at the moment when it first counts as
/// committed. Whatever crashes then, it is in every later state.
///
/// Learners do not count. A disk that was lost since counts as it was then.
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

/// I14: a node that starts knows all that it had made durable: its term, its vote and its log.
pub(crate) fn recovered(node: &Node, disk: &Condition) -> Result<(), Violation> {
    let (hard_state, last) = node.recovered();
    let durable = disk.hard_state;
    // The only member stands for election, and wins it, as soon as it is there.
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

/// I13: no acknowledgement and no vote leaves a node before what it rests on is durable there.
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
            // One to a deposed leader may acknowledge entries that the next leader has replaced since,
            // in the same step: that step is durable, and they cannot have been committed.
            let held = *index <= disk.last() || disk.hard_state.term > *term;
            require(held, "I13 no acknowledgement before the sync", || {
                format!("node {from} acknowledges {index}, and has {} on disk", disk.last())
            })
        }
        RaftBody::VoteResponse { pre: false, reject: false, .. } => {
            let durable = disk.hard_state;
            let held = durable.term > *term || (durable.term == *term && durable.vote == to);
            require(held, "I13 no vote before the sync", || {
                format!("node {from} votes for {to} in term {term}, and has {durable:?} on disk")
            })
        }
        _ => Ok(()),
    }
}
