//! The bytes of the messages between nodes.

use std::time::Duration;

use bytes::Bytes;

use crate::golden::Golden;
use crate::machine::command::{Command, Op, Outcome, Reply, Request};
use crate::node::admin::message::{
    Action, AdminReply, AdminRequest, Asker, ImageEnd, LatencySummary, Report, SessionReport,
};
use crate::node::bootstrap::message::Announcement;
use crate::node::client_message::{
    FromClient, HeldWatch, Redirect, RequestHeader, SessionClaim, ToClient, UpTo,
};
use crate::node::io::{Problem, QuorumState, SessionHolder, WatchId};
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage, RaftBody};
use crate::node::query::{Answer, EventData, Query, QueryError, Read, ZnodeContent, ZnodeRead};
use crate::node::replica::watch_kind::WatchKind;
use crate::node::stored::{EntryKind, LogEntry, SnapshotMeta, Voting};
use crate::types::acl::{Acl, Id, Permissions};
use crate::types::membership::{Member, NodeId, Promise};
use crate::types::reason::{Reason, ReasonKind};
use crate::types::right::{Connection, Right};
use crate::types::watch::{EventKind, EventZnode, WatchEvent, WatcherType};
use crate::types::znode::{SessionId, Stat};

fn admin_replies() -> Vec<(NodeId, AdminReply)> {
    let report = Report {
        term: 300,
        stale_by: Some(Duration::from_millis(1500)),
        unreachable: vec![(300, Problem { reason: "why".to_owned(), refused: true })],
        duplicates: vec!["two".to_owned()],
        refuses_writes: true,
        admin: Some("[::1]:300".parse().unwrap()),
        not_ready: Some(Reason::new(ReasonKind::Founding, "why")),
        checkpoint_error: Some("why".to_owned()),
        disk_free: Some(300),
        clock_ahead_ms: Some(-300),
        disk_sync: Some(LatencySummary {
            count: 300,
            p50: Duration::from_millis(1),
            p99: Duration::from_millis(300),
        }),
        disk_waits: Some(Duration::from_secs(3)),
        former_directories: 1,
        certificate: Some(("name".to_owned(), -300)),
        last_reports: vec![(300, Duration::from_secs(3), "why".to_owned())],
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
        requests_per_second: Some(300),
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
            raft(RaftBody::VoteResponse { pre: true, reject: false, commit: 1, commit_term: 2 }),
        ),
        ("snapshot", raft(RaftBody::Snapshot { transfer: 3, chunks: 2, meta })),
        ("timeout now", raft(RaftBody::TimeoutNow)),
        ("forward", PeerMessage::Forward { requests: vec![request.clone()] }),
        ("read index", PeerMessage::ReadIndex { boot: 1, read_index: 2, sessions: vec![session] }),
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
                log_ms: 300,
                wall_ms: 301,
            },
        ),
        ("disk low", PeerMessage::DiskLow { low: true }),
        ("closing", PeerMessage::Closing { done: true }),
        ("trouble", PeerMessage::Trouble { text: "why".to_owned() }),
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
                refused: vec![SessionId(301)],
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
        ("no leader", PeerMessage::NoLeader { voters: 3, missing: vec!["here:7400".to_owned()] }),
        (
            "admin_request",
            PeerMessage::AdminRequest {
                number: 300,
                cluster: 1 << 63,
                relay: true,
                asked: AdminRequest::Sessions { after: Some(SessionId(300)) },
                asker: None,
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
                asker: Some(Asker {
                    client: 300,
                    connection: Connection::new(
                        "10.0.0.1:400".parse().unwrap(),
                        Some("CN=a"),
                        Right::Operator,
                    ),
                }),
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
        Read::Count { path: "/a".into() },
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
        Query::RemoveWatches { path: path().into(), which: WatcherType::Any },
        Query::Sync,
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
        znode: Some(Box::new(EventZnode { data: Some(b"data"[..].into()), stat: Stat::default() })),
        before: Some(Box::new(EventZnode { data: None, stat: Stat::default() })),
    };
    let path = || "/a".to_owned();
    let mut updates = vec![
        ToClient::Attached,
        ToClient::Held { session_holder, ids: ids.clone() },
        ToClient::Outcome(Outcome { session, holder, seq: 9, zxid: 12, result: Ok(Reply::Done) }),
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
        Ok(Answer::Count(350)),
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

/// What a client may not send was decoded all the same, and what it may send took a hundred times its bytes.
#[test]
fn a_message_of_a_client_is_known_by_its_bytes_and_takes_little_memory() {
    for (name, message) in messages() {
        let bytes = message.encode(Vec::new());
        let may = message.may_a_client_send();
        assert_eq!(PeerMessage::may_a_client_send_encoded(&bytes), may, "{name}");
        assert_eq!(PeerMessage::decode_of_client(&bytes), Ok(message), "{name}");
    }
    assert!(!PeerMessage::may_a_client_send_encoded(&[]));

    let of = |messages| PeerMessage::FromClient { attachment: 1, number: 1, received: 1, messages };
    let takes = |message: PeerMessage| {
        let bytes = message.encode(Vec::new());
        assert!(bytes.len() < MESSAGE_BYTES_MAX);
        PeerMessage::decode_of_client(&bytes).is_ok()
    };
    let write = |command| {
        let (session, holder) = (SessionId(1), 2);
        of(vec![FromClient::Write(Request { session, holder, seq: 1, acked: 1, command })])
    };
    let delete = |path: &str| Op::DeleteTree { path: path.into() };
    // As many as an honest client may send.
    assert!(takes(of(vec![FromClient::End; 4_097])));
    assert!(takes(write(Command::Multi(vec![delete("/"); 65_536]))));
    assert!(!takes(of(vec![FromClient::End; 1 << 19])));
    assert!(!takes(write(Command::Multi(vec![delete(""); 1 << 19]))));
    assert!(!takes(write(Command::Authenticate { ids: vec![Id::new("", ""); 1 << 20] })));
}
