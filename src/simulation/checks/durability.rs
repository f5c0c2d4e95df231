//! Nothing is promised before it is durable (I12, I13).

use super::{Violation, require};
use crate::machine::command::NodeId;
use crate::node::message::{PeerMessage, RaftBody};
use crate::simulation::disk::{Condition, SimDisk};

/// I12: what is committed is on the disks of a majority, at the moment when it first counts as
/// committed. Whatever crashes then, it is in every later state.
pub(crate) fn on_majority(disks: &[SimDisk], index: u64, term: u64) -> Result<(), Violation> {
    let holding = disks.iter().filter(|disk| disk.condition().holds(index, term)).count();
    require(holding > disks.len() / 2, "I12 committed is durable", || {
        format!(
            "entry {index} of term {term} is applied, and on {holding} of {} disks",
            disks.len()
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
            require(*index <= disk.last(), "I13 no acknowledgement before the sync", || {
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
