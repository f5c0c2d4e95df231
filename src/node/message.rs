//! What nodes say to each other.
//!
//! Raft's messages travel in our own form, one variant for each kind that a
//! peer may send: what raft-rs must never be stepped with from outside
//! (proposals, local messages, reads) cannot be written down here. The
//! envelope (from whom, to whom) is the transport's, which has authenticated
//! it; a message does not repeat it.

use bytes::Bytes;
use raft::eraftpb::{self, EntryType, MessageType};
use serde::{Deserialize, Serialize};

use crate::machine::command::{NodeId, Request};
use crate::membership::Member;
use crate::node::formation::word::Word;
use crate::znode::{SessionId, Zxid};

/// The most a peer message may take, encoded: the largest request with room to spare for the
/// others of its batch.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PeerMessage {
    /// A message of the Raft protocol.
    Raft { term: u64, body: RaftBody },
    /// Requests of the sender's sessions, for the leader to propose in this order.
    Forward { requests: Vec<Request> },
    /// "These of my sessions live, and tell me an index that covers every write completed by now."
    /// Sent to the leader; `boot` is drawn when the sender starts, `round` is never used twice.
    Round { boot: u64, round: u64, sessions: Vec<SessionId> },
    /// The leader was still the leader after it had received the round. Its sessions are renewed
    /// but for those in `refused`: they are gone, held elsewhere, or about to be expired.
    RoundConfirmed { boot: u64, round: u64, index: u64, refused: Vec<SessionId> },
    /// The sender's state hash after it applied the entry at this index, to be compared.
    StateHash { index: u64, hash: u64 },
    /// One piece of a snapshot, in answer to the snapshot that Raft asked for.
    SnapshotChunk { transfer: u64, number: u32, bytes: Bytes },
    /// The receiver has taken the pieces below `next` and will take more.
    SnapshotAck { transfer: u64, next: u32 },
    /// Either end gives the transfer up.
    SnapshotAbort { transfer: u64 },
    /// The sender, who has never been a member, wants to be one. Repeated until the log says so.
    Join { member: Member },
    /// The sender wants to be a member no more. Repeated until it is gone.
    Leave,
    /// The leader to one who was no member any more after this entry.
    Gone { index: u64 },
    /// The leader to the members: the voters that it has not heard of.
    Health { silent: Vec<NodeId> },
    /// What a node without a cluster tells everybody, and a member answers to that.
    Meet { word: Word },
    /// The sender is a member, as far as it knows, and this is who it is now. Repeated until the
    /// roster says so, and while it knows of no leader.
    Present { member: Member },
}

/// A Raft message of a kind that a peer may send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RaftBody {
    Append {
        index: u64,
        log_term: u64,
        commit: u64,
        entries: Vec<LogEntry>,
    },
    AppendResponse {
        index: u64,
        log_term: u64,
        commit: u64,
        reject: bool,
        reject_hint: u64,
        request_snapshot: u64,
    },
    Heartbeat {
        commit: u64,
        context: Bytes,
    },
    HeartbeatResponse {
        commit: u64,
        context: Bytes,
    },
    Vote {
        pre: bool,
        index: u64,
        log_term: u64,
        commit: u64,
        commit_term: u64,
        transfer: bool,
    },
    VoteResponse {
        pre: bool,
        reject: bool,
        commit: u64,
        commit_term: u64,
    },
    /// The snapshot of `meta`, all of whose `chunks` pieces have been sent as this transfer.
    Snapshot {
        transfer: u64,
        chunks: u32,
        meta: SnapshotMeta,
    },
    TimeoutNow,
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
    /// A [`VotingChange`](crate::membership::VotingChange).
    Membership,
}

/// Raft's durable promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HardState {
    pub(crate) term: u64,
    pub(crate) vote: NodeId,
    pub(crate) commit: u64,
}

/// What a snapshot or a checkpoint stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotMeta {
    pub(crate) index: u64,
    pub(crate) term: u64,
    /// The state machine's zxid and hash at that index.
    pub(crate) zxid: Zxid,
    pub(crate) hash: u64,
    pub(crate) voting: Voting,
}

/// Who votes: Raft's `ConfState`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Voting {
    pub(crate) voters: Vec<NodeId>,
    pub(crate) learners: Vec<NodeId>,
    pub(crate) voters_outgoing: Vec<NodeId>,
    pub(crate) learners_next: Vec<NodeId>,
    pub(crate) auto_leave: bool,
}

impl PeerMessage {
    /// Whether only nodes of one cluster may say this to each other.
    pub(crate) fn is_of_cluster(&self) -> bool {
        !matches!(self, PeerMessage::Meet { .. })
    }

    /// Appends the encoded message to `buffer`.
    pub(crate) fn encode(&self, buffer: Vec<u8>) -> Vec<u8> {
        postcard::to_extend(self, buffer)
            .expect("encoding to a Vec fails only for types that have no length, and none is used")
    }

    /// Decodes what [`PeerMessage::encode`] made; anything else is an error that says why.
    pub(crate) fn decode(bytes: &[u8]) -> Result<PeerMessage, String> {
        match postcard::take_from_bytes(bytes) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(format!("{} bytes too many", rest.len())),
            Err(error) => Err(error.to_string()),
        }
    }
}

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
            ..eraftpb::ConfState::default()
        }
    }
}

impl From<&LogEntry> for eraftpb::Entry {
    fn from(entry: &LogEntry) -> eraftpb::Entry {
        let mut raft =
            eraftpb::Entry { index: entry.index, term: entry.term, ..eraftpb::Entry::default() };
        match entry.kind {
            EntryKind::Normal => raft.data = entry.data.clone(),
            // raft-rs reads its own form of a change only where it is proposed. Elsewhere ours stands
            // for it, in a field that raft-rs passes on and does not look at.
            EntryKind::Membership => {
                raft.set_entry_type(EntryType::EntryConfChangeV2);
                raft.context = entry.data.clone();
            }
        }
        raft
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
    /// The peer's form of a message that raft-rs wants sent; `None` for a kind that stays in the
    /// node (and for snapshots, which the node sends its own way).
    pub(crate) fn from_raft(message: &eraftpb::Message) -> Option<RaftBody> {
        Some(match message.get_msg_type() {
            MessageType::MsgAppend => RaftBody::Append {
                index: message.index,
                log_term: message.log_term,
                commit: message.commit,
                entries: message.entries.iter().map(LogEntry::from).collect(),
            },
            MessageType::MsgAppendResponse => RaftBody::AppendResponse {
                index: message.index,
                log_term: message.log_term,
                commit: message.commit,
                reject: message.reject,
                reject_hint: message.reject_hint,
                request_snapshot: message.request_snapshot,
            },
            MessageType::MsgHeartbeat => {
                RaftBody::Heartbeat { commit: message.commit, context: message.context.clone() }
            }
            MessageType::MsgHeartbeatResponse => RaftBody::HeartbeatResponse {
                commit: message.commit,
                context: message.context.clone(),
            },
            kind @ (MessageType::MsgRequestVote | MessageType::MsgRequestPreVote) => {
                RaftBody::Vote {
                    pre: kind == MessageType::MsgRequestPreVote,
                    index: message.index,
                    log_term: message.log_term,
                    commit: message.commit,
                    commit_term: message.commit_term,
                    transfer: message.context == TRANSFER_CONTEXT,
                }
            }
            kind @ (MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVoteResponse) => RaftBody::VoteResponse {
                pre: kind == MessageType::MsgRequestPreVoteResponse,
                reject: message.reject,
                commit: message.commit,
                commit_term: message.commit_term,
            },
            MessageType::MsgTimeoutNow => RaftBody::TimeoutNow,
            _ => return None,
        })
    }

    /// The message for raft-rs to step, once the guard has let it pass.
    pub(crate) fn to_raft(&self, from: NodeId, to: NodeId, term: u64) -> eraftpb::Message {
        let mut message = eraftpb::Message { from, to, term, ..eraftpb::Message::default() };
        match self {
            RaftBody::Append { index, log_term, commit, entries } => {
                message.set_msg_type(MessageType::MsgAppend);
                message.index = *index;
                message.log_term = *log_term;
                message.commit = *commit;
                message.entries =
                    entries.iter().map(eraftpb::Entry::from).collect::<Vec<_>>().into();
            }
            RaftBody::AppendResponse {
                index,
                log_term,
                commit,
                reject,
                reject_hint,
                request_snapshot,
            } => {
                message.set_msg_type(MessageType::MsgAppendResponse);
                message.index = *index;
                message.log_term = *log_term;
                message.commit = *commit;
                message.reject = *reject;
                message.reject_hint = *reject_hint;
                message.request_snapshot = *request_snapshot;
            }
            RaftBody::Heartbeat { commit, context } => {
                message.set_msg_type(MessageType::MsgHeartbeat);
                message.commit = *commit;
                message.context = context.clone();
            }
            RaftBody::HeartbeatResponse { commit, context } => {
                message.set_msg_type(MessageType::MsgHeartbeatResponse);
                message.commit = *commit;
                message.context = context.clone();
            }
            RaftBody::Vote { pre, index, log_term, commit, commit_term, transfer } => {
                message.set_msg_type(if *pre {
                    MessageType::MsgRequestPreVote
                } else {
                    MessageType::MsgRequestVote
                });
                message.index = *index;
                message.log_term = *log_term;
                message.commit = *commit;
                message.commit_term = *commit_term;
                if *transfer {
                    message.context = Bytes::from_static(TRANSFER_CONTEXT);
                }
            }
            RaftBody::VoteResponse { pre, reject, commit, commit_term } => {
                message.set_msg_type(if *pre {
                    MessageType::MsgRequestPreVoteResponse
                } else {
                    MessageType::MsgRequestVoteResponse
                });
                message.reject = *reject;
                message.commit = *commit;
                message.commit_term = *commit_term;
            }
            RaftBody::Snapshot { meta, .. } => {
                message.set_msg_type(MessageType::MsgSnapshot);
                let snapshot = message.mut_snapshot().mut_metadata();
                snapshot.index = meta.index;
                snapshot.term = meta.term;
                snapshot.set_conf_state(eraftpb::ConfState::from(&meta.voting));
            }
            RaftBody::TimeoutNow => message.set_msg_type(MessageType::MsgTimeoutNow),
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::Golden;
    use crate::machine::command::Command;
    use crate::membership::Promise;

    fn messages() -> Vec<(&'static str, PeerMessage)> {
        let raft = |body| PeerMessage::Raft { term: 7, body };
        let entry = |kind| LogEntry { index: 300, term: 6, kind, data: "entry".into() };
        let voting = Voting {
            voters: vec![1, 2, 3],
            learners: vec![4],
            voters_outgoing: vec![5],
            learners_next: vec![6],
            auto_leave: true,
        };
        let meta = SnapshotMeta { index: 400, term: 6, zxid: 350, hash: u64::MAX, voting };
        let session = SessionId(0x0123_4567_89ab_cdef);
        let (member, list) = (Member::new(300, "here:7400"), vec!["here:7400".to_owned()]);
        let word = Word { member, list, cluster: 0, promise: Promise::default() };
        let request = Request { session, holder: 42, seq: 9, acked: 8, command: Command::Close };
        vec![
            (
                "append",
                raft(RaftBody::Append {
                    index: 299,
                    log_term: 6,
                    commit: 298,
                    entries: vec![entry(EntryKind::Normal), entry(EntryKind::Membership)],
                }),
            ),
            (
                "append response",
                raft(RaftBody::AppendResponse {
                    index: 300,
                    log_term: 6,
                    commit: 298,
                    reject: true,
                    reject_hint: 250,
                    request_snapshot: 1,
                }),
            ),
            ("heartbeat", raft(RaftBody::Heartbeat { commit: 298, context: "round".into() })),
            (
                "heartbeat response",
                raft(RaftBody::HeartbeatResponse { commit: 298, context: "round".into() }),
            ),
            (
                "vote",
                raft(RaftBody::Vote {
                    pre: true,
                    index: 300,
                    log_term: 6,
                    commit: 298,
                    commit_term: 5,
                    transfer: false,
                }),
            ),
            (
                "vote response",
                raft(RaftBody::VoteResponse {
                    pre: true,
                    reject: false,
                    commit: 1,
                    commit_term: 2,
                }),
            ),
            ("snapshot", raft(RaftBody::Snapshot { transfer: 3, chunks: 2, meta })),
            ("timeout now", raft(RaftBody::TimeoutNow)),
            ("forward", PeerMessage::Forward { requests: vec![request] }),
            ("round", PeerMessage::Round { boot: 1, round: 2, sessions: vec![session] }),
            (
                "round confirmed",
                PeerMessage::RoundConfirmed {
                    boot: 1,
                    round: 2,
                    index: 300,
                    refused: vec![session],
                },
            ),
            ("state hash", PeerMessage::StateHash { index: 300, hash: 1 << 63 }),
            (
                "snapshot chunk",
                PeerMessage::SnapshotChunk { transfer: 3, number: 1, bytes: "chunk".into() },
            ),
            ("snapshot ack", PeerMessage::SnapshotAck { transfer: 3, next: 2 }),
            ("snapshot abort", PeerMessage::SnapshotAbort { transfer: 3 }),
            ("join", PeerMessage::Join { member: Member::new(300, "here:7400") }),
            ("leave", PeerMessage::Leave),
            ("gone", PeerMessage::Gone { index: 300 }),
            ("health", PeerMessage::Health { silent: vec![300] }),
            ("meet", PeerMessage::Meet { word }),
            ("present", PeerMessage::Present { member: Member::new(300, "here:7400") }),
        ]
    }

    #[test]
    fn golden_peer_messages() {
        let mut golden = Golden::new("peer_messages");
        for (name, message) in messages() {
            let bytes = message.encode(Vec::new());
            golden.sample(name, &bytes);
            // What is added here must not be sent to a peer of a version that has it not: see
            // `version`.
            let of_3 = ["join", "leave", "gone", "health", "meet", "present"].contains(&name);
            assert_eq!(bytes[0] >= 8, of_3, "{name} is of a later version");
            assert!(bytes[0] != 0 || bytes[2] < 8, "{name} is of a later version");
            assert_eq!(PeerMessage::decode(&bytes), Ok(message));
        }
        golden.check();
    }
}
