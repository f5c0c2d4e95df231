//! Planted bugs of a node's environment. The simulator stands in for the disk, the network and the
//! thread that delivers events, and plants the bugs there, so that the product code has no trace of
//! them.

use bytes::Bytes;

use crate::node::Node;
use crate::node::client_message::{FromClient, ToClient};
use crate::node::io::{DiskOp, WatchId};
use crate::node::message::{PeerMessage, RaftBody};
use crate::runtime::host::{HandleEffects, Host};
use crate::simulation::clock::{Nanos, SECOND};
use crate::types::membership::NodeId;
use crate::types::watch::{EventKind, WatchEvent};

/// Events that a planted bug delivers a step late.
pub(super) type LateEvents = Vec<(WatchId, WatchEvent)>;

/// Delivers the events of a step one step late, after its tree is visible: all of them, or those
/// that find no room in their channels. Another bug does not publish the tree.
pub(super) fn delay_events(host: &mut Host, of_step: &mut HandleEffects, late: &mut LateEvents) {
    assert!(!strikes!(StepPanics, 10_000), "planted");
    if strikes!(TreeLate, 50) {
        *of_step.tree_mut() = None;
    }
    let events = of_step.events_mut();
    if planted!(EventLate) {
        std::mem::swap(late, events);
    }
    if planted!(GapLate) {
        let (full, mut in_time): (LateEvents, LateEvents) =
            events.drain(..).partition(|(watch, _)| host.is_full(*watch));
        events.append(late);
        events.append(&mut in_time);
        *late = full;
    }
}

/// Marks some events as gaps or as net changes.
pub(super) fn misreport(of_step: &mut HandleEffects) {
    for (_, event) in of_step.events_mut() {
        if strikes!(GapForNothing, 50) {
            event.kind = EventKind::Gap;
        }
        event.net |= strikes!(NetForNothing, 50);
    }
}

/// Whether a message goes before others that wait for its link.
pub(super) fn is_urgent(message: &PeerMessage) -> bool {
    message.is_urgent() && !planted!(UrgentWaits)
}

/// The time that a node computes in addition to the cost of a message.
pub(super) fn extra_step_time() -> Nanos {
    if strikes!(StepDawdles, 5_000) { SECOND } else { 0 }
}

/// Truncates the log beyond its checkpoint.
pub(super) fn truncate_too_far(op: &mut DiskOp) {
    if let DiskOp::Checkpoint { meta, keep_from, .. } = op
        && planted!(CompactedTooFar)
    {
        *keep_from = meta.index + 2;
    }
}

/// The sender of a message, as the node sees it. The bug replaces a learner that acknowledges by a
/// voter.
pub(super) fn sender(node: &Node, from: NodeId, message: &PeerMessage) -> NodeId {
    let acknowledges = matches!(
        message,
        PeerMessage::Raft { body: RaftBody::AppendResponse { reject: false, .. }, .. }
    );
    let voting = node.voting();
    if !planted!(LearnerCounted) || !acknowledges || !voting.learners.contains(&from) {
        return from;
    }
    let others = voting.voters.iter().find(|voter| **voter != node.id());
    others.copied().unwrap_or(from)
}

/// Gives a resent write of a client the next number, so that it is not recognized.
pub(super) fn renumber(node: &Node, message: &mut PeerMessage) {
    let PeerMessage::FromClient { messages, .. } = message else { return };
    for message in messages.iter_mut().filter(|_| planted!(ClientWriteAgain)) {
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
        for entry in entries.iter_mut().filter(|_| strikes!(EntryAltered, 500)) {
            entry.data = Bytes::default();
        }
    }
}

/// Omits events from a message to a client, or the zxid up to which it has received them.
pub(super) fn leave_out(message: &mut PeerMessage) {
    if let PeerMessage::ToClient { updates, up_to, .. } = message {
        if planted!(SeenUntold) && !updates.iter().any(|it| matches!(it, ToClient::Attached)) {
            *up_to = None;
        }
        updates.retain(|update| {
            !matches!(update, ToClient::Event { .. }) || !strikes!(ChangeUntold, 50)
        });
    }
}

/// The part of a message that arrives.
pub(super) fn arriving(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() - usize::from(strikes!(MessageCut, 500))]
}
