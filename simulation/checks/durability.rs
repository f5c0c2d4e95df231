//! Nothing is acknowledged before it is durable (I12, I13, I14).

use std::collections::BTreeMap;
use std::path::Path;

use super::membership::Membership;
use super::{Violation, require};
use crate::node::Node;
use crate::node::message::{PeerMessage, RaftBody};
use crate::simulation::durable::{Condition, Durable};
use crate::storage::simulated::{Device, Unsynced};
use crate::types::membership::NodeId;

/// I12: an entry is on the disks of a majority at the moment at which it first counts as committed.
/// So it is in every later state, whatever crashes then.
///
/// Learners do not count. A disk that was lost since then counts as it was.
pub(crate) fn on_majority(
    membership: &Membership,
    disks: &BTreeMap<NodeId, Durable>,
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
pub(crate) fn recovered(node: &Node, durable: &mut Condition) -> Result<(), Violation> {
    let (hard_state, last) = node.recovered();
    let (known, known_last) = (durable.hard_state(), durable.last());
    let knows = durable.started(hard_state, last, Some(node.id()));
    require(knows, "I14 a start knows what was durable", || {
        format!(
            "node {} starts with {hard_state:?} and entry {last}; on its disk are {known:?} and {known_last}",
            node.id(),
        )
    })?;
    let term = durable.last_term().unwrap_or(0);
    require(term <= hard_state.term, "I14 a start knows the terms of its entries", || {
        format!(
            "node {} starts with {hard_state:?}, and its last entry is of term {term}",
            node.id()
        )
    })
}

/// I14: no power cut takes what a store has confirmed, or what a start goes on with.
pub(crate) fn is_on_device(device: &Device, below: &Path) -> Result<(), Violation> {
    let unsynced = device.unsynced(below).into_iter().find(|unsynced| match unsynced {
        // A segment that is made ahead may fail, and is made again.
        Unsynced::Dirty { path } => !is_segment(path) || has_records(device, path),
        // The next start overwrites what a failed sync of the witness has lost.
        Unsynced::Lost { path } if path.ends_with("witness") => false,
        Unsynced::Lost { path } => !is_segment(path) || has_records(device, path),
        // A file that was removed may come back.
        Unsynced::Name { path } => device.exists(path),
    });
    require(unsynced.is_none(), "I14 what is confirmed is on the device", || {
        format!("{unsynced:?}")
    })
}

/// I14: a power cut does not take the data directory itself.
pub(crate) fn has_its_name(device: &Device, directory: &Path) -> Result<(), Violation> {
    let name = Unsynced::Name { path: directory.to_owned() };
    let is_lost = device.unsynced(Path::new("/")).contains(&name);
    require(!is_lost, "I14 what is confirmed is on the device", || format!("{name:?}"))
}

fn is_segment(path: &Path) -> bool {
    path.parent().is_some_and(|parent| parent.ends_with("log")) && !path.ends_with("witness")
}

/// Whether a segment has a record.
fn has_records(device: &Device, path: &Path) -> bool {
    device.visible(path, 516).get(512..) == Some(b"qrec")
}

/// I14: the witness is written over the older of its two records, so that a torn write leaves one.
pub(crate) fn is_witnessed(before: &[u64], after: &[u64]) -> Result<(), Violation> {
    let last = before.iter().max();
    let is_kept = last.is_none_or(|last| after.contains(last));
    require(is_kept, "I14 the witness keeps the record before", || {
        format!("{before:?}, then {after:?}")
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
