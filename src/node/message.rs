//! The messages between nodes.
//!
//! Raft's messages travel in our own form, one variant for each kind that a peer may send. So
//! messages that raft-rs must never be stepped with from outside (proposals, local messages, reads)
//! cannot be expressed. The transport has authenticated the envelope (sender and receiver), and a
//! message does not repeat it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::machine::command::Request;
use crate::node::admin::message::{AdminReply, AdminRequest, Asker};
use crate::node::bootstrap::message::Announcement;
use crate::node::client_message::{FromClient, Redirect, ToClient, UpTo};
use crate::node::stored::{LogEntry, SnapshotMeta};
use crate::types::encoding::{self, bounded};
use crate::types::log_form::LogForm;
use crate::types::membership::{Member, NodeId};
use crate::types::znode::SessionId;

/// The most bytes of an encoded peer message: the largest command, and the largest result of one, with room to spare
/// for their headers.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// The most bytes of a command: 1 MiB of data, and twice that of paths. A larger one is refused where it is issued
/// and not taken in by the leader. The transport drops a message that is too long, so an entry with such a
/// command would never reach a follower, and no entry after it either.
pub(crate) const COMMAND_BYTES_MAX: usize = 3 << 20;

/// The most bytes in memory that the lists in a message of a client may take: more than those of the largest
/// command, even if it has nothing but short ids.
const CLIENT_LISTS_BYTES_MAX: usize = 32 << 20;

/// Splits items into several messages of about this many bytes each. A single item may be larger. Without
/// items there is one empty part.
pub(crate) fn in_parts<T>(
    all: impl IntoIterator<Item = T>,
    bytes_max: usize,
    size: impl Fn(&T) -> usize,
) -> Vec<Vec<T>> {
    let (mut parts, mut part, mut bytes) = (Vec::new(), Vec::new(), 0);
    for one in all {
        let size = size(&one);
        if bytes + size > bytes_max && !part.is_empty() {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += size;
        part.push(one);
    }
    parts.push(part);
    parts
}

/// One message. Variants are only ever appended, and a new one is sent only to a peer of a version
/// that has it (`version`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PeerMessage {
    /// A message of the Raft protocol.
    Raft { term: u64, body: RaftBody },
    /// Requests of the sender's sessions, for the leader to propose in this order.
    Forward { requests: Vec<Request> },
    /// A ReadIndex request to the leader. It renews these sessions of the sender, and asks for an
    /// index that covers every write completed before it was sent. `boot` is random at each start,
    /// and a number (`read_index`) is never used twice.
    ReadIndex {
        boot: u64,
        read_index: u64,
        #[serde(with = "LogForm")]
        sessions: Vec<SessionId>,
    },
    /// The leader still led after it had received the ReadIndex request. Its sessions are renewed,
    /// except those in `refused`, which are gone, held elsewhere, or about to expire.
    ReadIndexConfirmed {
        boot: u64,
        read_index: u64,
        index: u64,
        #[serde(with = "LogForm")]
        refused: Vec<SessionId>,
    },
    /// The sender's state hash after it applied the entry at this index, for comparison.
    StateHash { index: u64, hash: u64 },
    /// One piece of a snapshot, in answer to the snapshot that Raft asked for.
    SnapshotChunk { transfer: u64, number: u32, bytes: Bytes },
    /// The receiver has taken the pieces below `next` and will take more.
    SnapshotAck { transfer: u64, next: u32 },
    /// Either side gives up the transfer.
    SnapshotAbort { transfer: u64 },
    /// The sender has never been a member and asks to become one. Repeated until the log makes it
    /// one.
    Join { member: Member },
    /// The sender asks to leave for good. Repeated until it has left.
    Leave,
    /// A member to a node that was no longer a member after this entry.
    Removed { index: u64 },
    /// The leader to the members: the voters that do not answer it, the settled learners (there is
    /// no vote for them to take), the members whose disks are nearly full, and whether writes are
    /// refused for that. And the log's time, and its own wall clock.
    Health {
        silent: Vec<NodeId>,
        placed: Vec<NodeId>,
        disk_low: Vec<NodeId>,
        refuses_writes: bool,
        log_ms: u64,
        wall_ms: u64,
    },
    /// A node without a cluster sends it to all peers, and a member replies with it.
    Announce { announcement: Announcement },
    /// The sender is a member as far as it knows, and reports its present address and zone.
    /// Repeated until the roster has them, and while the sender knows no leader.
    Present { member: Member },
    /// A client without a replica to its member. `number` counts its messages of this attachment
    /// from 0. The client has received the member's messages below `received`.
    FromClient { attachment: u64, number: u64, received: u64, messages: Vec<FromClient> },
    /// A member to its client, numbered in the same way. The updates of one step end with a message
    /// that has `up_to`. None of them counts before that message has come.
    ToClient { attachment: u64, number: u64, updates: Vec<ToClient>, up_to: Option<UpTo> },
    /// A member to a client that it does not serve, or no longer serves. A member without room for
    /// the client names the others.
    LetGo { attachment: u64, reason: String, redirect: Option<Box<Redirect>> },
    /// Writes of a member's client, for the leader.
    ClientForward { client: NodeId, requests: Vec<Request> },
    /// As `ReadIndex`, for a member's client.
    ClientReadIndex {
        client: NodeId,
        boot: u64,
        read_index: u64,
        #[serde(with = "LogForm")]
        sessions: Vec<SessionId>,
        /// Sessions that the client wants to renew and does not hold at that member: the answer has them.
        #[serde(with = "LogForm")]
        refused: Vec<SessionId>,
    },
    /// As `ReadIndexConfirmed`, for a member's client.
    ClientReadIndexConfirmed {
        client: NodeId,
        boot: u64,
        read_index: u64,
        index: u64,
        #[serde(with = "LogForm")]
        refused: Vec<SessionId>,
    },
    /// A member to an instance that wants to join, in answer to each `Join` while it knows no
    /// leader: how many voters there are, and the addresses of those that it does not reach.
    NoLeader { voters: u32, missing: Vec<String> },
    /// An operator's request for a report or an action. `relay`: for all members concerned. The cluster
    /// is 0 if the sender does not know it.
    AdminRequest {
        number: u64,
        cluster: u64,
        relay: bool,
        asked: AdminRequest,
        /// The client for which a member asks.
        asker: Option<Asker>,
    },
    /// The replies to it, each with its sender.
    AdminReply { number: u64, replies: Vec<(NodeId, AdminReply)> },
    /// A member to the leader: whether its disk is nearly full. Repeated while it is.
    DiskLow { low: bool },
    /// A member to the others: it is being closed, and its sessions are (`done`). Repeated until it ends.
    Closing { done: bool },
    /// A member to the others: what is wrong with it, for people; empty if nothing is any more. See
    /// [`troubles`](crate::node::troubles).
    Trouble { text: String },
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

impl PeerMessage {
    /// Whether only nodes of one cluster may send this to each other.
    pub(crate) fn is_of_cluster(&self) -> bool {
        !matches!(
            self,
            PeerMessage::Announce { .. }
                | PeerMessage::FromClient { .. }
                | PeerMessage::ToClient { .. }
                | PeerMessage::LetGo { .. }
                | PeerMessage::AdminRequest { .. }
                | PeerMessage::AdminReply { .. }
        )
    }

    /// Whether a client without a replica may send it.
    pub(crate) fn may_a_client_send(&self) -> bool {
        matches!(self, PeerMessage::FromClient { .. } | PeerMessage::AdminRequest { .. })
    }

    /// The same for an encoded message, seen by the number of its variant before anything is decoded.
    pub(crate) fn may_a_client_send_encoded(bytes: &[u8]) -> bool {
        const FROM_CLIENT: u8 = 14;
        const ADMIN_REQUEST: u8 = 21;
        matches!(bytes.first(), Some(&(FROM_CLIENT | ADMIN_REQUEST)))
    }

    /// Whether it is small and may overtake earlier messages. Messages on which leaders, votes and
    /// sessions depend must not wait behind megabytes of entries for a peer with a slow link.
    pub(crate) fn is_urgent(&self) -> bool {
        match self {
            PeerMessage::Raft { body, .. } => {
                !matches!(body, RaftBody::Append { .. } | RaftBody::Snapshot { .. })
            }
            PeerMessage::ReadIndex { .. }
            | PeerMessage::ReadIndexConfirmed { .. }
            | PeerMessage::Health { .. }
            | PeerMessage::Closing { .. }
            | PeerMessage::Trouble { .. } => true,
            _ => false,
        }
    }

    /// Whether a transport drops it.
    pub(crate) fn is_too_long(&self) -> bool {
        encoding::size(self) > MESSAGE_BYTES_MAX
    }

    /// Appends the encoded message to `buffer`.
    pub(crate) fn encode(&self, buffer: Vec<u8>) -> Vec<u8> {
        encoding::append(self, buffer)
    }

    /// Decodes a message of [`PeerMessage::encode`]; other bytes are an error with its reason.
    pub(crate) fn decode(bytes: &[u8]) -> Result<PeerMessage, String> {
        whole(postcard::take_from_bytes(bytes))
    }

    /// The same for a message of a sender that is not trusted, whose lists take a bounded number of bytes.
    pub(crate) fn decode_of_client(bytes: &[u8]) -> Result<PeerMessage, String> {
        whole(bounded::decode(bytes, CLIENT_LISTS_BYTES_MAX))
    }
}

/// The message, if there are no bytes behind it.
fn whole(decoded: postcard::Result<(PeerMessage, &[u8])>) -> Result<PeerMessage, String> {
    match decoded {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(format!("{} bytes too many", rest.len())),
        Err(error) => Err(error.to_string()),
    }
}
