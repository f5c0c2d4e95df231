//! Planted bugs of a node's environment. The simulator stands in for the disk, the network and the
//! thread that delivers events, and plants the bugs there, so that the product code has no trace of
//! them.

use bytes::Bytes;

use crate::node::Node;
use crate::node::client_message::{FromClient, ToClient};
use crate::node::io::{Answered, DiskOp, WatchId};
use crate::node::message::{PeerMessage, RaftBody};
use crate::node::query::Answer;
use crate::runtime::host::{HandleEffects, Host};
use crate::simulation::clock::{Nanos, SECOND};
use crate::types::error::Error;
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

/// Changes the events and the replies of a step.
pub(super) fn misreport(of_step: &mut HandleEffects) {
    let replies = of_step.replies_mut();
    replies.retain(|_| !strikes!(OutcomeLost, 97));
    for Answered { answer, .. } in replies {
        if matches!(answer, Ok(Answer::Reply(_))) && strikes!(AnswerMixed, 53) {
            *answer = Err(Error::NoNode { path: String::new() });
        }
        if let Err(Error::Unsupported { cluster, .. }) = answer {
            *cluster -= u16::from(planted!(VersionMistold));
        }
    }
    let events = of_step.events_mut();
    if planted!(EventsOutOfOrder) {
        events.reverse();
    }
    if planted!(EventTwice) {
        *events = events.iter().flat_map(|event| [event.clone(), event.clone()]).collect();
    }
    events.retain(|(_, event)| {
        let lost = planted!(EventLostOnDelete) && event.kind == EventKind::Deleted
            || planted!(EventsLostAtSnapshot) && event.net;
        !lost
    });
    for (_, event) in events {
        if strikes!(GapForNothing, 50) {
            event.kind = EventKind::Gap;
        }
        event.net |= strikes!(NetForNothing, 50);
        if planted!(PositionForgotten) {
            event.position = 0;
        }
        if planted!(BeforeIsAfter) {
            event.before.clone_from(&event.znode);
        }
        if planted!(EventDataLate)
            && let Some(znode) = &mut event.znode
        {
            znode.stat.version += 1;
        }
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

/// Truncates the log beyond its checkpoint, or writes less than a node has asked for.
pub(super) fn spoil(op: &mut DiskOp) {
    match op {
        DiskOp::Checkpoint { meta, keep_from, .. } if planted!(CompactedTooFar) => {
            *keep_from = meta.index + 2;
        }
        DiskOp::Checkpoint { meta, .. } if planted!(LearnersForgotten) => {
            meta.voting.learners.clear();
        }
        DiskOp::Install { hard_state, .. } if planted!(VoteLostAtInstall) => hard_state.vote = 0,
        _ => {}
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

/// Empties an entry on its way to a follower, or labels a snapshot with another index.
pub(super) fn alter(message: &mut PeerMessage) {
    match message {
        PeerMessage::Raft { body: RaftBody::Append { entries, .. }, .. } => {
            for entry in entries.iter_mut().filter(|_| strikes!(EntryAltered, 500)) {
                entry.data = Bytes::default();
            }
        }
        PeerMessage::Raft { body: RaftBody::Snapshot { meta, .. }, .. } => {
            meta.index -= u64::from(planted!(SnapshotMislabelled));
            meta.index += u64::from(planted!(SnapshotAhead));
        }
        _ => {}
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
