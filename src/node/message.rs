//! The messages between nodes.
//!
//! Raft's messages travel in our own form, one variant for each kind that a peer may send. So
//! messages that raft-rs must never be stepped with from outside (proposals, local messages, reads)
//! cannot be expressed. The transport has authenticated the envelope (sender and receiver), and a
//! message does not repeat it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::machine::command::Request;
use crate::node::admin::message::{AdminReply, AdminRequest};
use crate::node::bootstrap::message::Announcement;
use crate::node::client_message::{FromClient, Redirect, ToClient, UpTo};
use crate::node::stored::{LogEntry, SnapshotMeta};
use crate::types::encoding;
use crate::types::log_form::LogForm;
use crate::types::membership::{Member, NodeId};
use crate::types::znode::SessionId;

/// The most bytes of an encoded peer message: the largest request, with room to spare for the
/// others of its batch.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;

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
    /// refused for that.
    Health { silent: Vec<NodeId>, placed: Vec<NodeId>, disk_low: Vec<NodeId>, refuses_writes: bool },
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
    AdminRequest { number: u64, cluster: u64, relay: bool, asked: AdminRequest },
    /// The replies to it, each with its sender.
    AdminReply { number: u64, replies: Vec<(NodeId, AdminReply)> },
    /// A member to the leader: whether its disk is nearly full. Repeated while it is.
    DiskLow { low: bool },
    /// A member to the others: it is being closed, and its sessions are (`done`). Repeated until it ends.
    Closing { done: bool },
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
            | PeerMessage::Closing { .. } => true,
            _ => false,
        }
    }

    /// Appends the encoded message to `buffer`.
    pub(crate) fn encode(&self, buffer: Vec<u8>) -> Vec<u8> {
        encoding::append(self, buffer)
    }

    /// Decodes a message of [`PeerMessage::encode`]; other bytes are an error with its reason.
    pub(crate) fn decode(bytes: &[u8]) -> Result<PeerMessage, String> {
        match postcard::take_from_bytes(bytes) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(format!("{} bytes too many", rest.len())),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::Golden;
    use crate::machine::command::{Command, Outcome, Reply};
    use std::time::Duration;

    use crate::node::admin::message::{Action, ImageEnd, LatencySummary, Report, SessionReport};
    use crate::node::client_message::{HeldWatch, RequestHeader, SessionClaim};
    use crate::node::io::{Problem, QuorumState, SessionHolder, WatchId};
    use crate::node::query::{Answer, EventData, Query, QueryError, Read, ZnodeContent, ZnodeRead};
    use crate::node::replica::watch_kind::WatchKind;
    use crate::node::stored::{EntryKind, Voting};
    use crate::types::acl::{Acl, Id, Permissions};
    use crate::types::membership::Promise;
    use crate::types::reason::{Reason, ReasonKind};
    use crate::types::watch::{EventKind, EventZnode, WatchEvent, WatcherType};
    use crate::types::znode::Stat;

    fn admin_replies() -> Vec<(NodeId, AdminReply)> {
        let report = Report {
            term: 300,
            stale_by: Some(Duration::from_millis(1500)),
            unreachable: vec![(300, Problem { reason: "why".to_owned(), refused: true })],
            refuses_writes: true,
            admin: Some("[::1]:300".parse().unwrap()),
            not_ready: Some(Reason::new(ReasonKind::Founding, "why")),
            disk_free: Some(300),
            disk_sync: Some(LatencySummary {
                count: 300,
                p50: Duration::from_millis(1),
                p99: Duration::from_millis(300),
            }),
            ..Report::default()
        };
        let session = SessionReport {
            session: SessionId(300),
            owner: 300,
            timeout_ms: 6000,
            age: Duration::from_secs(300),
            ephemerals: 1,
            renewed: Some(Duration::from_secs(1)),
            watches: None,
            name: Some("name".to_owned()),
            from: Some("host:1".to_owned()),
        };
        let replies = [
            AdminReply::Report(Box::new(report)),
            AdminReply::Members { members: vec![(Member::new(300, "host:1"), true)] },
            AdminReply::Sessions { sessions: vec![session], more: true, leads: true, zxid: 300 },
            AdminReply::Image {
                bytes: Bytes::from_static(b"bytes"),
                end: Some(ImageEnd { zxid: 300, hash: 1 << 63 }),
            },
            AdminReply::Begun,
            AdminReply::Gone,
            AdminReply::Refused { reason: "reason".to_owned() },
            AdminReply::NoLeader,
            AdminReply::NotYet { reason: "reason".to_owned() },
        ];
        replies.map(|reply| (300, reply)).to_vec()
    }

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
        let announcement = Announcement { member, list, cluster: 0, promise: Promise::default() };
        let request = Request { session, holder: 42, seq: 9, acked: 8, command: Command::Close };
        let requests = vec![request.clone()];
        let redirect = Box::new(Redirect {
            cluster: 7,
            members: vec![Member::new(300, "here:7400")],
            availability: QuorumState { learners: vec![300], ..QuorumState::default() },
            leader: 301,
        });
        let let_go =
            |redirect| PeerMessage::LetGo { attachment: 5, reason: "reason".to_owned(), redirect };
        let mut messages = vec![
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
            ("heartbeat", raft(RaftBody::Heartbeat { commit: 298, context: "index".into() })),
            (
                "heartbeat response",
                raft(RaftBody::HeartbeatResponse { commit: 298, context: "index".into() }),
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
            ("forward", PeerMessage::Forward { requests: vec![request.clone()] }),
            (
                "read index",
                PeerMessage::ReadIndex { boot: 1, read_index: 2, sessions: vec![session] },
            ),
            (
                "read index confirmed",
                PeerMessage::ReadIndexConfirmed {
                    boot: 1,
                    read_index: 2,
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
            ("removed", PeerMessage::Removed { index: 300 }),
            (
                "health",
                PeerMessage::Health {
                    silent: vec![300],
                    placed: vec![301],
                    disk_low: vec![302],
                    refuses_writes: true,
                },
            ),
            ("disk low", PeerMessage::DiskLow { low: true }),
            ("closing", PeerMessage::Closing { done: true }),
            ("announce", PeerMessage::Announce { announcement }),
            ("present", PeerMessage::Present { member: Member::new(300, "here:7400") }),
            ("let go", let_go(None)),
            ("let go elsewhere", let_go(Some(redirect))),
            ("client forward", PeerMessage::ClientForward { client: 300, requests }),
            (
                "client read index",
                PeerMessage::ClientReadIndex {
                    client: 300,
                    boot: 1,
                    read_index: 2,
                    sessions: vec![session],
                },
            ),
            (
                "client confirmed",
                PeerMessage::ClientReadIndexConfirmed {
                    client: 300,
                    boot: 1,
                    read_index: 2,
                    index: 300,
                    refused: vec![session],
                },
            ),
            (
                "no leader",
                PeerMessage::NoLeader { voters: 3, missing: vec!["here:7400".to_owned()] },
            ),
            (
                "admin_request",
                PeerMessage::AdminRequest {
                    number: 300,
                    cluster: 1 << 63,
                    relay: true,
                    asked: AdminRequest::Sessions { after: Some(SessionId(300)) },
                },
            ),
            (
                "admin_request_act",
                PeerMessage::AdminRequest {
                    number: 1,
                    cluster: 0,
                    relay: false,
                    asked: AdminRequest::Act {
                        action: Action::Expire { session: SessionId(300) },
                        by: "somebody".to_owned(),
                        after: None,
                    },
                },
            ),
            ("admin_reply", PeerMessage::AdminReply { number: 300, replies: admin_replies() }),
        ];
        // A line for each message, so that adding a read or an answer leaves the other lines
        // unchanged.
        messages.extend(client_messages(&request).into_iter().map(|message| {
            let (attachment, number, received) = (5, 300, 299);
            let messages = vec![message];
            ("from client", PeerMessage::FromClient { attachment, number, received, messages })
        }));
        messages.extend(updates().into_iter().map(|update| {
            let (attachment, number, updates) = (5, 300, vec![update]);
            let up_to = Some(UpTo { zxid: 350, version: 1, leader: 300 });
            ("to client", PeerMessage::ToClient { attachment, number, updates, up_to })
        }));
        messages
    }

    /// One of each.
    fn client_messages(request: &Request) -> Vec<FromClient> {
        let Request { session, holder, .. } = *request;
        let path = || "/a".to_owned();
        let session_holder = SessionHolder { session, holder };
        let call = RequestHeader { request: 7, session_holder, after: 9 };
        let reads = [
            Read::Get { path: "/a".into() },
            Read::Exists { path: "/a".into() },
            Read::Children { path: "/a".into() },
            Read::Acl { path: "/a".into() },
            Read::Ephemerals,
            Read::Ids,
            Read::Below { path: "/a".into() },
            Read::Tree,
        ];
        let mut messages = vec![
            FromClient::Begin { seen: 350, cluster: 77, name: "name".to_owned() },
            FromClient::Claim(SessionClaim {
                session_holder,
                applied: 8,
                opened: true,
                base: Some(300),
            }),
            FromClient::Watch(HeldWatch {
                watch: 6,
                session_holder,
                path: path().into(),
                kind: WatchKind::Recursive,
                existed: true,
                from: 350,
                data: EventData::Both,
            }),
            FromClient::Begun,
            FromClient::Write(request.clone()),
            FromClient::Unwatch { watch: 6 },
            FromClient::Leave { session_holder },
            FromClient::ReadIndex { boot: 1, read_index: 2, sessions: vec![session] },
            FromClient::End,
        ];
        let watch = WatchId(6);
        let reads = reads.map(|read| Query::Read { read, watch: Some(watch) });
        let others = [
            Query::Watch {
                watch,
                path: "/a".into(),
                recursive: true,
                from: Some(350),
                data: EventData::After,
            },
            Query::RemoveWatches { path: path(), which: WatcherType::Any },
            Query::Sync,
            Query::At { zxid: 350, read: Read::Get { path: "/a".into() } },
        ];
        let queries = reads.into_iter().chain(others);
        messages.extend(queries.map(|query| FromClient::Query { call, query, read_index: 2 }));
        messages
    }

    /// One of each.
    fn updates() -> Vec<ToClient> {
        let (session, holder, watch, request) = (SessionId(1), 42, 6, 7);
        let session_holder = SessionHolder { session, holder };
        let ids = vec![Id::new("ip", "10.0.0.1")];
        let event = WatchEvent {
            kind: EventKind::DataChanged,
            path: "/a".to_owned(),
            zxid: 350,
            position: 3,
            net: true,
            znode: Some(Box::new(EventZnode {
                data: Some(b"data"[..].into()),
                stat: Stat::default(),
            })),
            before: Some(Box::new(EventZnode { data: None, stat: Stat::default() })),
        };
        let path = || "/a".to_owned();
        let mut updates = vec![
            ToClient::Attached,
            ToClient::Held { session_holder, ids: ids.clone() },
            ToClient::Outcome(Outcome {
                session,
                holder,
                seq: 9,
                zxid: 12,
                result: Ok(Reply::Done),
            }),
            ToClient::Ended { session_holder, moved: true, known: true },
            ToClient::Unseen { session_holder },
            ToClient::Event { watch, event },
            ToClient::Over { watch },
            ToClient::Names { request, names: vec!["a".to_owned()] },
            ToClient::Znodes {
                request,
                znodes: vec![ZnodeRead {
                    path: path(),
                    content: Some(ZnodeContent { data: b"data"[..].into(), stat: Stat::default() }),
                }],
            },
            ToClient::Confirmed { boot: 1, read_index: 2, refused: vec![session] },
            ToClient::Again,
            ToClient::Members {
                members: vec![Member::new(300, "host:1")],
                availability: QuorumState {
                    voters: vec![300],
                    silent: vec![300],
                    has_leader: true,
                    ..QuorumState::default()
                },
            },
            ToClient::Cluster { cluster: 77 },
        ];
        let answers = [
            Ok(Answer::Reply(Reply::Done)),
            Ok(Answer::Data { data: b"data"[..].into(), stat: Stat::default(), is_null: false }),
            Ok(Answer::Exists(None)),
            Ok(Answer::Children(vec!["a".to_owned()], None)),
            Ok(Answer::Acl(Acl::open(), Stat::default())),
            Ok(Answer::Ids(ids)),
            Ok(Answer::Watching),
            Ok(Answer::Synced(350)),
            Ok(Answer::Below(350, Vec::new())),
            Err(QueryError::NoNode { path: path() }),
            Err(QueryError::NoAuth { path: path(), permission: Permissions::READ }),
            Err(QueryError::NoWatch { path: path() }),
            Err(QueryError::TooOld { path: path(), zxid: 1, oldest: 2 }),
            Err(QueryError::FutureZxid { path: path(), zxid: 2, last: 1 }),
            Err(QueryError::TooLarge { path: path(), size: 2, limit: 1 }),
            Err(QueryError::Other { reason: "reason".to_owned() }),
        ];
        updates.extend(answers.map(|answer| ToClient::Answer { request, answer }));
        updates
    }

    #[test]
    fn golden_peer_messages() {
        let mut golden = Golden::new("peer_messages");
        for (name, message) in messages() {
            let bytes = message.encode(Vec::new());
            golden.sample(name, &bytes);
            assert_eq!(PeerMessage::decode(&bytes), Ok(message));
        }
        golden.check();
    }
}
