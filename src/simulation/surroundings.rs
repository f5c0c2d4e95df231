//! Planted bugs of what surrounds a node. The simulator makes them itself, in the places where it
//! stands in for the disk, the network and the thread that delivers events, so that the product
//! code has no trace of them.

use bytes::Bytes;

use crate::node::Node;
use crate::node::client_message::{FromClient, ToClient};
use crate::node::io::{DiskOp, WatchId};
use crate::node::message::{PeerMessage, RaftBody};
use crate::node::stored::Boot;
use crate::planted::{Bug, if_planted, planted, strikes};
use crate::runtime::host::{HandleEffects, Host};
use crate::simulation::clock::{Nanos, SECOND};
use crate::types::membership::NodeId;
use crate::types::watch::{EventKind, WatchEvent};

/// Events that a planted bug delivers a step late.
pub(super) type LateEvents = Vec<(WatchId, WatchEvent)>;

/// Delivers the events of a step with the next one, after its tree was published: all of them, or
/// those that find no room in their channels. Or does not publish the tree.
pub(super) fn delay_events(host: &mut Host, of_step: &mut HandleEffects, late: &mut LateEvents) {
    assert!(!strikes(Bug::StepPanics, 10_000), "planted");
    if strikes(Bug::TreeLate, 50) {
        *of_step.tree_mut() = None;
    }
    let events = of_step.events_mut();
    if_planted(Bug::EventLate, || std::mem::swap(late, events));
    if planted(Bug::GapLate) {
        let (full, mut in_time): (LateEvents, LateEvents) =
            events.drain(..).partition(|(watch, _)| host.is_full(*watch));
        events.append(late);
        events.append(&mut in_time);
        *late = full;
    }
}

/// Says of some events that they stand for others.
pub(super) fn misreport(of_step: &mut HandleEffects) {
    for (_, event) in of_step.events_mut() {
        if strikes(Bug::GapForNothing, 50) {
            event.kind = EventKind::Gap;
        }
        event.net |= strikes(Bug::NetForNothing, 50);
    }
}

/// Whether a message goes before others that wait for its link.
pub(super) fn is_urgent(message: &PeerMessage) -> bool {
    message.is_urgent() && !planted(Bug::UrgentWaits)
}

/// For how long a node computes besides what a message takes.
pub(super) fn dawdling() -> Nanos {
    if strikes(Bug::StepDawdles, 5_000) { SECOND } else { 0 }
}

/// What a disk forgets between two starts.
pub(super) fn forget(boot: &mut Boot) {
    if_planted(Bug::VoteForgotten, || boot.hard_state.vote = 0);
    if planted(Bug::LogTailForgotten) {
        boot.entries.pop_if(|last| last.index > boot.checkpoint.index);
    }
}

/// A checkpoint, whose log the disk cuts beyond it.
pub(super) fn cut_too_far(op: &mut DiskOp) {
    if let DiskOp::Checkpoint { meta, keep_from, .. } = op {
        if_planted(Bug::CompactedTooFar, || *keep_from = meta.index + 2);
    }
}

/// Who a node takes for the sender of a message: for a learner that acknowledges, a voter.
pub(super) fn sender(node: &Node, from: NodeId, message: &PeerMessage) -> NodeId {
    let acknowledges = matches!(
        message,
        PeerMessage::Raft { body: RaftBody::AppendResponse { reject: false, .. }, .. }
    );
    let voting = node.voting();
    if !planted(Bug::LearnerCounted) || !acknowledges || !voting.learners.contains(&from) {
        return from;
    }
    let others = voting.voters.iter().find(|voter| **voter != node.id());
    others.copied().unwrap_or(from)
}

/// Gives a client's write that arrives again the next number, so that it is not known.
pub(super) fn renumber(node: &Node, message: &mut PeerMessage) {
    let PeerMessage::FromClient { messages, .. } = message else { return };
    for message in messages.iter_mut().filter(|_| planted(Bug::ClientWriteAgain)) {
        if let FromClient::Write(request) = message
            && let Some(record) = node.machine().session(request.session)
            && (1..=record.last_seq).contains(&request.seq)
        {
            request.seq = record.last_seq + 1;
        }
    }
}

/// Empties an entry on its way to a follower.
pub(super) fn alter(message: &mut PeerMessage) {
    if let PeerMessage::Raft { body: RaftBody::Append { entries, .. }, .. } = message {
        for entry in entries.iter_mut().filter(|_| strikes(Bug::EntryAltered, 500)) {
            entry.data = Bytes::default();
        }
    }
}

/// Leaves events out of what a client is sent, or up to which change it has been sent them.
pub(super) fn leave_out(message: &mut PeerMessage) {
    if let PeerMessage::ToClient { updates, up_to, .. } = message {
        if !updates.iter().any(|update| matches!(update, ToClient::Attached)) {
            if_planted(Bug::SeenUntold, || *up_to = None);
        }
        updates.retain(|update| {
            !matches!(update, ToClient::Event { .. }) || !strikes(Bug::ChangeUntold, 50)
        });
    }
}

/// What of a message arrives.
pub(super) fn arriving(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() - usize::from(strikes(Bug::MessageCut, 500))]
}
