//! A session between its holder, its node and the log.

use std::time::Duration;

use crate::machine::command::{Command, Op, Request};
use crate::machine::snapshot::ChunkWriter;
use crate::node::io::Time;
use crate::node::message::{PeerMessage, RaftBody};
use crate::node::query::Answer;
use crate::node::request::RequestBody;
use crate::node::sessions::WINDOW;
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::types::acl::{Acl, Id, Permissions};
use crate::types::error::Error;
use crate::types::membership::NodeId;
use crate::types::session::SessionState;
use crate::types::watch::{EventKind, WatchMode};
use crate::types::znode::{CreateMode, SessionId};

const TIMEOUT: Duration = Duration::from_secs(6);

fn states_of(cluster: &Cluster, node: u64, session: SessionId) -> Vec<SessionState> {
    let of = |(at, id, state): &(u64, SessionId, SessionState)| {
        (*at == node && *id == session).then_some(*state)
    };
    cluster.states.iter().filter_map(of).collect()
}

/// The session counted as lost as soon as it was open.
#[test]
fn a_session_whose_opening_takes_longer_than_its_timeout_lives() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    for (id, host) in &mut cluster.hosts {
        host.disk_stalled = *id != leader;
    }
    let session = SessionId(1);
    let open = cluster.ask(leader, session, RequestBody::open(1, [7; 16], TIMEOUT));
    let op = Op::Create { path: "/e".into(), data: "".into(), mode: CreateMode::Ephemeral };
    let create = cluster.write(leader, session, Command::Op(op));
    cluster.advance(TIMEOUT * 2);
    assert!(!cluster.replies.contains_key(&open));
    for host in cluster.hosts.values_mut() {
        host.disk_stalled = false;
    }
    cluster.answer(open).unwrap();
    cluster.answer(create).unwrap();
    cluster.advance(TIMEOUT * 2);
    assert!(cluster.leases[&session] > cluster.now);
    assert!(!states_of(&cluster, leader, session).contains(&SessionState::Expired));
    assert!(cluster.data(leader, "/e").is_some());
}

/// The session counted as certainly alive for the rest of a timeout that began when the opening was
/// sent, then it did not, and then it did again. A lock that it held was lost and came back.
#[test]
fn a_session_whose_opening_took_long_is_surely_alive_once_it_is_renewed() {
    for (stalled, is_known_alive) in [(HEARTBEAT * 2, true), (TIMEOUT / 2, false)] {
        let mut cluster = Cluster::new(3);
        let leader = cluster.elect();
        for (id, host) in &mut cluster.hosts {
            host.disk_stalled = *id != leader;
        }
        let open = cluster.ask(leader, SessionId(1), RequestBody::open(1, [7; 16], TIMEOUT));
        cluster.advance(stalled);
        for host in cluster.hosts.values_mut() {
            host.disk_stalled = false;
        }
        cluster.answer(open).unwrap();
        assert_eq!(cluster.first_leases[&SessionId(1)] > cluster.now, is_known_alive);
        cluster.advance(TIMEOUT);
        assert!(cluster.leases[&SessionId(1)] > cluster.now);
    }
}

/// The close came right behind the resumption and ended the session that was to be saved.
#[test]
fn a_resumption_that_is_given_up_closes_nothing() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let other = cluster.follower();
    let session = cluster.open(leader, 1, TIMEOUT);
    cluster.create(leader, session, "/e", CreateMode::Ephemeral).unwrap();
    cluster.ask(other, session, RequestBody::resume(5, [7; 16], Some(TIMEOUT)));
    cluster.ask(other, session, RequestBody::Abandon(SessionState::Expired));
    cluster.advance(TIMEOUT * 2);
    assert!(cluster.data(leader, "/e").is_some(), "it was never sent");

    // The resumption was sent and is in the log. The session is not renewed, and any node may
    // resume it.
    cluster.resume(other, session, 6, [7; 16]).unwrap();
    cluster.ask(other, session, RequestBody::Abandon(SessionState::Expired));
    cluster.advance(TIMEOUT / 2);
    assert!(cluster.data(leader, "/e").is_some());
    cluster.resume(leader, session, 7, [7; 16]).unwrap();
    cluster.advance(TIMEOUT * 2);
    assert!(cluster.data(leader, "/e").is_some());
    cluster.ask(leader, session, RequestBody::Abandon(SessionState::Expired));
    cluster.advance(TIMEOUT * 2);
    assert!(cluster.data(leader, "/e").is_none());
}

/// The patience before a resend was counted from the last progress of any session of the node.
#[test]
fn lost_requests_are_sent_again_while_other_sessions_go_on() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let node = cluster.follower();
    let (stuck, busy) = (cluster.open(node, 1, TIMEOUT), cluster.open(node, 2, TIMEOUT));
    cluster.cut.insert((node, leader));
    let lost = cluster.set(node, stuck, "/", "x");
    cluster.settle();
    cluster.heal();
    for n in 0..60 {
        let set = cluster.set(node, busy, "/", &n.to_string());
        cluster.answer(set).unwrap();
        cluster.advance(HEARTBEAT);
    }
    assert!(matches!(cluster.replies.get(&lost), Some(Ok(Answer::Reply(_)))));
}

/// When the batch was applied the session had already ended, and its former holder was notified
/// that it had expired.
#[test]
fn a_session_resumed_and_closed_in_one_batch_has_moved() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let session = cluster.open(1, 1, TIMEOUT);
    cluster.ask(2, session, RequestBody::resume(5, [7; 16], Some(TIMEOUT)));
    let close = cluster.write(2, session, Command::Close);
    cluster.answer(close).unwrap();
    cluster.advance(HEARTBEAT * 2);
    assert_eq!(states_of(&cluster, 1, session).last(), Some(&SessionState::Moved));
    assert_eq!(states_of(&cluster, 2, session).last(), Some(&SessionState::Closed));
}

/// A snapshot that Raft had taken was replaced by one that Raft refused, and the node stopped.
#[test]
fn a_refused_snapshot_does_not_replace_one_that_was_taken() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let laggard = cluster.follower();
    let session = cluster.open(leader, 1, Duration::from_secs(40));
    cluster.isolate(laggard);
    let mut snapshots = Vec::new();
    for n in 0..2_u32 {
        for _ in 0..5 {
            let set = cluster.set(leader, session, "/", &n.to_string());
            cluster.answer(set).unwrap();
        }
        let node = cluster.node(leader);
        let meta = node.raft.snapshot_meta(&node.machine);
        snapshots.push((u64::from(n) + 100, meta, node.machine.state()));
    }
    let term = cluster.node(leader).status().term;
    let (taken, hash) = (snapshots[1].1.index, snapshots[1].1.hash);
    for (transfer, meta, state) in snapshots.into_iter().rev() {
        let mut chunks = 0;
        for (number, chunk) in (0..).zip(ChunkWriter::full(state)) {
            let bytes = chunk.into();
            cluster.deliver(
                leader,
                laggard,
                PeerMessage::SnapshotChunk { transfer, number, bytes },
            );
            chunks += 1;
        }
        let body = RaftBody::Snapshot { transfer, chunks, meta };
        cluster.deliver(leader, laggard, PeerMessage::Raft { term, body });
        cluster.settle();
    }
    assert_eq!(cluster.stopped.get(&laggard), None);
    let node = cluster.node(laggard);
    assert_eq!((node.raft.log().applied().index, node.status().hash), (taken, hash));
    assert!(node.raft.incoming.staged.is_none());
    cluster.heal();
    cluster.advance(HEARTBEAT * 40);
    cluster.check_equal();
}

/// A stopped node asked to be woken at once, for ever.
#[test]
fn a_stopped_node_sleeps() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.fail_disk(1);
    cluster.settle();
    let now = cluster.clock();
    let effects = cluster.hosts.get_mut(&1).unwrap().node.as_mut().unwrap().step(now, []);
    assert_eq!(effects.wake_at, Time::MAX);
    assert!(effects.messages.is_empty() && effects.disk.is_empty());
}

/// A request got no answer: the node had forgotten its session.
#[test]
fn a_session_may_be_resumed_where_it_was_just_lost() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let holder = cluster.follower();
    let session = cluster.open(holder, 1, TIMEOUT);
    cluster.create(holder, session, "/e", CreateMode::Ephemeral).unwrap();
    cluster.isolate(holder);
    // A sent write with an unknown outcome keeps the lost session in the node's table.
    cluster.set(holder, session, "/e", "x");
    while !states_of(&cluster, holder, session).contains(&SessionState::Expired) {
        cluster.advance(HEARTBEAT);
    }
    assert!(cluster.data(leader, "/e").is_some());
    cluster.heal();
    cluster.resume(holder, session, 5, [7; 16]).unwrap();
    cluster.advance(TIMEOUT * 2);
    assert!(cluster.data(leader, "/e").is_some());
}

/// The leader took the refused holder for the session's, and rejected the writes of the true one.
#[test]
fn a_refused_resumption_does_not_hold_up_the_holder() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let session = cluster.open(1, 1, TIMEOUT);
    cluster.resume(2, session, 5, [7; 16]).unwrap();
    let copies: Vec<PeerMessage> = cluster.forwarded.clone();
    cluster.resume(1, session, 6, [7; 16]).unwrap();
    let wrong = cluster.resume(3, session, 7, [8; 16]);
    assert!(matches!(wrong, Err(Error::WrongPassword { .. })), "{wrong:?}");
    let set = cluster.set(1, session, "/", "x");
    cluster.settle();
    assert!(matches!(cluster.replies.get(&set), Some(Ok(_))));
    let leader = cluster.leader().unwrap();
    for copy in copies {
        for from in (1..=3).filter(|from| *from != leader) {
            cluster.deliver(from, leader, copy.clone());
        }
    }
    cluster.settle();
    let set = cluster.set(1, session, "/", "y");
    cluster.settle();
    assert!(matches!(cluster.replies.get(&set), Some(Ok(_))));
}

/// The open of a node far behind was refused as that of a session that may have ended long ago.
#[test]
fn a_node_that_is_far_behind_opens_sessions_all_the_same() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let laggard = cluster.follower();
    cluster.isolate(laggard);
    for n in 0..10_100_u64 {
        let session = SessionId(1000 + n);
        cluster.ask(leader, session, RequestBody::open(n, [7; 16], TIMEOUT));
        cluster.write(leader, session, Command::Close);
        if n % 500 == 0 {
            cluster.settle();
        }
    }
    cluster.settle();
    let ours = SessionId(1);
    let open = cluster.ask(laggard, ours, RequestBody::open(1, [7; 16], TIMEOUT));
    cluster.settle();
    cluster.heal();
    cluster.answer(open).unwrap();
    cluster.create(laggard, ours, "/e", CreateMode::Ephemeral).unwrap();
}

/// The bytes under way are bounded too, so that a leader that cannot write need not hold all
/// waiting writes.
#[test]
fn large_writes_wait_at_their_node() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let node = cluster.follower();
    let session = cluster.open(node, 1, Duration::from_secs(40));
    cluster.forwarded.clear();
    for host in cluster.hosts.values_mut() {
        host.disk_stalled = true;
    }
    let mut writes = Vec::new();
    for _ in 0..60 {
        let op = Op::Set { path: "/".into(), data: vec![1; 1 << 20].into(), version: None };
        writes.push(cluster.write(node, session, Command::Op(op)));
    }
    cluster.settle();
    let requests = |message: &PeerMessage| match message {
        PeerMessage::Forward { requests } => requests.len(),
        _ => 0,
    };
    let sent: usize = cluster.forwarded.iter().map(requests).sum();
    assert!((10..=16).contains(&sent), "{sent}");
    for host in cluster.hosts.values_mut() {
        host.disk_stalled = false;
    }
    for write in writes {
        cluster.answer(write).unwrap();
    }
    assert_eq!(cluster.leader(), Some(leader));
}

/// A resumption and a write had been applied, and the session had ended, all within a snapshot. The
/// missing session was taken to mean that they had never been done.
#[test]
fn writes_within_a_snapshot_are_not_reported_as_undone() {
    resumed_behind_a_snapshot(true);
}

/// The leader dropped the resumption as that of a former holder, which did not know that it had
/// been the holder.
#[test]
fn a_resumption_that_was_overtaken_behind_a_snapshot_is_answered() {
    resumed_behind_a_snapshot(false);
}

/// A node resumes a session and writes, and so does another after it, which closes it perhaps. The
/// first node learns of all that from a snapshot.
fn resumed_behind_a_snapshot(closed: bool) {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let laggard = cluster.follower();
    let holder = (1..=3).find(|id| *id != leader && *id != laggard).unwrap();
    let session = cluster.open(holder, 1, Duration::from_secs(40));
    let other = cluster.open(leader, 2, Duration::from_secs(40));
    // The laggard's messages arrive, and it receives none.
    cluster.cut.extend([(leader, laggard), (holder, laggard)]);
    let resume = cluster.ask(
        laggard,
        session,
        RequestBody::resume(9, [7; 16], Some(Duration::from_secs(40))),
    );
    let done = cluster.set(laggard, session, "/", "done");
    cluster.settle();
    let never = cluster.set(laggard, session, "/", "never sent");
    assert_eq!(cluster.data(leader, "/").as_deref(), Some("done"));
    cluster.isolate(laggard);
    cluster.settle();
    cluster.resume(holder, session, 10, [7; 16]).unwrap();
    if closed {
        let close = cluster.write(holder, session, Command::Close);
        cluster.answer(close).unwrap();
    }
    outgrow_the_log(&mut cluster, leader, other);
    cluster.heal();
    let resumed = cluster.answer(resume);
    let is_notified = match resumed {
        Err(Error::SessionExpired { .. }) => closed,
        Err(Error::SessionMoved { .. }) => !closed,
        _ => false,
    };
    assert!(is_notified, "{resumed:?}");
    assert!(matches!(cluster.answer(done), Err(Error::OutcomeUnknown { .. })));
    assert!(matches!(cluster.answer(never), Err(Error::OutcomeUnknown { .. })));
}

/// Writes so much that a member which has received none of it needs a snapshot.
fn outgrow_the_log(cluster: &mut Cluster, leader: NodeId, session: SessionId) {
    for n in 0..600 {
        let data = vec![n as u8; 40_000].into();
        let op = Op::Set { path: "/".into(), data, version: None };
        cluster.write(leader, session, Command::Op(op));
        cluster.settle();
    }
    cluster.advance(HEARTBEAT * 4);
}

/// A session gets an id, which lets it see a znode, and the znode changes. One snapshot brings both to its replica.
#[test]
fn an_event_within_a_snapshot_comes_to_who_was_authenticated_within_it() {
    let (mut cluster, leader, [laggard, other]) = Cluster::of_three();
    let timeout = Duration::from_secs(40);
    let [watcher, writer] = [(laggard, 1), (leader, 2)].map(|(id, n)| cluster.open(id, n, timeout));
    let id = Id::new("digest", "alice:h");
    let acl =
        vec![Acl::new(Permissions::READ, id.clone()), Acl::new(Permissions::WRITE, Id::anyone())];
    let (path, mode) = ("/secret".into(), CreateMode::Persistent);
    let create = Op::CreateWithAcl { path, data: "".into(), mode, acl };
    let created = cluster.write(leader, writer, Command::Op(create));
    cluster.answer(created).unwrap();
    cluster.watch(laggard, watcher, 1, "/secret", WatchMode::Persistent);
    // The laggard's messages arrive, and it receives none.
    cluster.cut.extend([(leader, laggard), (other, laggard)]);
    let authenticated = cluster.write(laggard, watcher, Command::Authenticate { ids: vec![id] });
    cluster.settle();
    cluster.isolate(laggard);
    let set = cluster.set(leader, writer, "/secret", "x");
    cluster.answer(set).unwrap();
    outgrow_the_log(&mut cluster, leader, writer);
    assert!(cluster.events.is_empty() && !cluster.replies.contains_key(&authenticated));
    cluster.heal();
    cluster.answer(authenticated).unwrap();
    let seen: Vec<_> = cluster.events.iter().map(|(_, event)| (event.kind, event.net)).collect();
    assert_eq!(seen, [(EventKind::DataChanged, true)]);
}

/// The results of a session stay in every replica until its holder acknowledges them. One that never did, with a program
/// of its own, could fill the memory of all of them, even without a permission.
#[test]
fn a_leader_takes_in_no_more_than_may_be_unacknowledged() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let node = cluster.follower();
    let session = cluster.open(node, 1, TIMEOUT);
    let holder = session.0 * 1000;
    let op = Op::Delete { path: "/none".into(), version: None };
    let requests = (1..=WINDOW + 100).map(|seq| {
        let command = Command::Op(op.clone());
        Request { session, holder, seq, acked: 0, command }
    });
    for request in requests {
        cluster.deliver(node, leader, PeerMessage::Forward { requests: vec![request] });
    }
    cluster.advance(HEARTBEAT * 2);
    let kept = cluster.node(leader).machine().session(session).unwrap().result_count() as u64;
    assert!((WINDOW - 1..=WINDOW).contains(&kept), "{kept}");
    // Who acknowledges them goes on.
    let (seq, command) = (kept + 1, Command::Op(op));
    let next = Request { session, holder, seq, acked: seq, command };
    cluster.deliver(node, leader, PeerMessage::Forward { requests: vec![next] });
    cluster.advance(HEARTBEAT * 2);
    let record = cluster.node(leader).machine().session(session).unwrap();
    assert_eq!((record.last_seq, record.result_count()), (seq, 1));
}

/// The end of a session was in the log and not decided yet, and its holder was told once more that it is alive.
#[test]
fn a_session_whose_expiry_is_under_way_is_not_renewed() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let holder = cluster.follower();
    let session = cluster.open(holder, 1, TIMEOUT);
    for (id, host) in &mut cluster.hosts {
        host.disk_stalled = *id != leader;
    }
    cluster.expire(leader, session);
    cluster.settle();
    let lease = cluster.leases[&session];
    for _ in 0..TIMEOUT.as_millis() / HEARTBEAT.as_millis() {
        cluster.advance(HEARTBEAT);
    }
    assert_eq!(cluster.leader(), Some(leader));
    assert_eq!(cluster.leases[&session], lease);
    assert_eq!(states_of(&cluster, holder, session).last(), Some(&SessionState::Expired));
}
