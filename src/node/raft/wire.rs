//! The types of raft-rs and those of this crate, each as the other.

use bytes::Bytes;
use raft::eraftpb::{self, ConfChangeSingle, ConfChangeType, EntryType, MessageType};

use crate::node::message::RaftBody;
use crate::node::raft::configuration::{NodeRole, VotingChange};
use crate::node::stored::{EntryKind, HardState, LogEntry, Voting};
use crate::types::membership::NodeId;

pub(super) use raft::eraftpb::Message;

impl From<&eraftpb::ConfState> for Voting {
    fn from(state: &eraftpb::ConfState) -> Voting {
        Voting {
            voters: state.voters.clone(),
            learners: state.learners.clone(),
            voters_outgoing: state.voters_outgoing.clone(),
            learners_next: state.learners_next.clone(),
            auto_leave: state.auto_leave,
        }
    }
}

impl From<&Voting> for eraftpb::ConfState {
    fn from(voting: &Voting) -> eraftpb::ConfState {
        eraftpb::ConfState {
            voters: voting.voters.clone(),
            learners: voting.learners.clone(),
            voters_outgoing: voting.voters_outgoing.clone(),
            learners_next: voting.learners_next.clone(),
            auto_leave: voting.auto_leave,
            ..Default::default()
        }
    }
}

impl From<&eraftpb::HardState> for HardState {
    fn from(raft: &eraftpb::HardState) -> HardState {
        HardState { term: raft.term, vote: raft.vote, commit: raft.commit }
    }
}

impl From<&LogEntry> for eraftpb::Entry {
    fn from(entry: &LogEntry) -> eraftpb::Entry {
        let (entry_type, data, context) = match entry.kind {
            EntryKind::Normal => (EntryType::EntryNormal, entry.data.clone(), Bytes::new()),
            // raft-rs reads its own form of a change only where it is proposed. Elsewhere ours
            // takes its place, in a field that raft-rs passes on unread.
            EntryKind::Membership => {
                (EntryType::EntryConfChangeV2, Bytes::new(), entry.data.clone())
            }
        };
        let LogEntry { index, term, .. } = *entry;
        eraftpb::Entry { index, term, entry_type, data, context, ..Default::default() }
    }
}

impl From<&eraftpb::Entry> for LogEntry {
    fn from(entry: &eraftpb::Entry) -> LogEntry {
        let (kind, data) = match entry.get_entry_type() {
            EntryType::EntryNormal => (EntryKind::Normal, &entry.data),
            EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                (EntryKind::Membership, &entry.context)
            }
        };
        LogEntry { index: entry.index, term: entry.term, kind, data: data.clone() }
    }
}

/// What raft-rs puts into the vote requests of a leadership transfer.
const TRANSFER_CONTEXT: &[u8] = b"CampaignTransfer";

impl RaftBody {
    /// The wire form of a message from raft-rs; `None` for a kind that stays in the node (and for
    /// snapshots, which the node sends in its own way).
    pub(super) fn from_raft(message: &eraftpb::Message) -> Option<RaftBody> {
        let &eraftpb::Message { index, log_term, commit, commit_term, reject, .. } = message;
        let context = || message.context.clone();
        Some(match message.msg_type {
            MessageType::MsgAppend => {
                let entries = message.entries.iter().map(LogEntry::from).collect();
                RaftBody::Append { index, log_term, commit, entries }
            }
            MessageType::MsgAppendResponse => RaftBody::AppendResponse {
                index,
                log_term,
                commit,
                reject,
                reject_hint: message.reject_hint,
                request_snapshot: message.request_snapshot,
            },
            MessageType::MsgHeartbeat => RaftBody::Heartbeat { commit, context: context() },
            MessageType::MsgHeartbeatResponse => {
                RaftBody::HeartbeatResponse { commit, context: context() }
            }
            kind @ (MessageType::MsgRequestVote | MessageType::MsgRequestPreVote) => {
                let pre = kind == MessageType::MsgRequestPreVote;
                let transfer = message.context == TRANSFER_CONTEXT;
                RaftBody::Vote { pre, index, log_term, commit, commit_term, transfer }
            }
            kind @ (MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVoteResponse) => {
                let pre = kind == MessageType::MsgRequestPreVoteResponse;
                RaftBody::VoteResponse { pre, reject, commit, commit_term }
            }
            MessageType::MsgTimeoutNow => RaftBody::TimeoutNow,
            _ => return None,
        })
    }

    /// The message for raft-rs to step, once the guard has let it pass.
    pub(super) fn to_raft(&self, from: NodeId, to: NodeId, term: u64) -> eraftpb::Message {
        let of = |msg_type| eraftpb::Message { msg_type, from, to, term, ..Default::default() };
        match *self {
            RaftBody::Append { index, log_term, commit, ref entries } => eraftpb::Message {
                index,
                log_term,
                commit,
                entries: entries.iter().map(eraftpb::Entry::from).collect::<Vec<_>>().into(),
                ..of(MessageType::MsgAppend)
            },
            RaftBody::AppendResponse {
                index,
                log_term,
                commit,
                reject,
                reject_hint,
                request_snapshot,
            } => eraftpb::Message {
                index,
                log_term,
                commit,
                reject,
                reject_hint,
                request_snapshot,
                ..of(MessageType::MsgAppendResponse)
            },
            RaftBody::Heartbeat { commit, ref context } => {
                let context = context.clone();
                eraftpb::Message { commit, context, ..of(MessageType::MsgHeartbeat) }
            }
            RaftBody::HeartbeatResponse { commit, ref context } => {
                let context = context.clone();
                eraftpb::Message { commit, context, ..of(MessageType::MsgHeartbeatResponse) }
            }
            RaftBody::Vote { pre, index, log_term, commit, commit_term, transfer } => {
                let context = Bytes::from_static(if transfer { TRANSFER_CONTEXT } else { b"" });
                let message = of(match pre {
                    true => MessageType::MsgRequestPreVote,
                    false => MessageType::MsgRequestVote,
                });
                eraftpb::Message { index, log_term, commit, commit_term, context, ..message }
            }
            RaftBody::VoteResponse { pre, reject, commit, commit_term } => {
                let message = of(match pre {
                    true => MessageType::MsgRequestPreVoteResponse,
                    false => MessageType::MsgRequestVoteResponse,
                });
                eraftpb::Message { reject, commit, commit_term, ..message }
            }
            RaftBody::Snapshot { ref meta, .. } => {
                let mut message = of(MessageType::MsgSnapshot);
                let snapshot = message.mut_snapshot().mut_metadata();
                (snapshot.index, snapshot.term) = (meta.index, meta.term);
                snapshot.set_conf_state(eraftpb::ConfState::from(&meta.voting));
                message
            }
            RaftBody::TimeoutNow => of(MessageType::MsgTimeoutNow),
        }
    }
}

impl VotingChange {
    /// The change, for raft-rs.
    pub(super) fn to_raft(&self) -> eraftpb::ConfChangeV2 {
        let steps = self.steps.iter().map(|(node, part)| {
            let change_type = match part {
                NodeRole::Voter => ConfChangeType::AddNode,
                NodeRole::Learner => ConfChangeType::AddLearnerNode,
                NodeRole::Gone => ConfChangeType::RemoveNode,
            };
            ConfChangeSingle { node_id: *node, change_type, ..Default::default() }
        });
        let changes = steps.collect::<Vec<_>>().into();
        eraftpb::ConfChangeV2 { changes, ..Default::default() }
    }
}
