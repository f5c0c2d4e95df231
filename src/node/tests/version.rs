//! Members of several versions: what they report, what they refuse, and which of them stop.

use std::time::Duration;

use crate::machine::command::{Command, Op, Reply};
use crate::node::io::RequestId;
use crate::node::query::Answer;
use crate::node::tests::harness::{Cluster, HEARTBEAT, TICK};
use crate::node::versions::PATIENCE_TICKS;
use crate::types::error::Error;
use crate::types::membership::NodeId;
use crate::types::version::{INVENTED, VERSION};
use crate::types::znode::{CreateMode, SessionId};

const TIMEOUT: Duration = Duration::from_secs(30);

fn op(path: &str) -> Op {
    Op::Invented { path: path.into(), data: "new".into() }
}

fn invented(cluster: &mut Cluster, node: NodeId, session: SessionId) -> RequestId {
    cluster.write(node, session, Command::Op(op("/a")))
}

fn unsupported<T>() -> Result<T, Error> {
    Err(Error::Unsupported { what: "invented".to_owned(), needs: INVENTED, cluster: VERSION })
}

fn error(answer: Result<Answer, Error>) -> Result<(), Error> {
    answer.map(drop)
}

/// Writes so much that the log is cut.
fn write_much(cluster: &mut Cluster, node: NodeId, session: SessionId) {
    for n in 0..600 {
        let data = vec![n as u8; 40_000].into();
        let op = Op::Set { path: "/".into(), data, version: None };
        cluster.write(node, session, Command::Op(op));
        cluster.settle();
    }
    cluster.advance(HEARTBEAT * 4);
}

/// A cluster in which this member is too old for the newer version.
fn mixed(nodes: u64, old: NodeId) -> Cluster {
    let mut cluster = Cluster::of_version(nodes, INVENTED);
    cluster.restart_as(old, VERSION);
    cluster
}

#[test]
fn a_new_cluster_acts_by_the_version_of_its_members_at_once() {
    for nodes in [1, 2, 3, 5] {
        let mut cluster = Cluster::of_version(nodes, INVENTED);
        cluster.elect();
        cluster.settle();
        for id in 1..=nodes {
            assert_eq!(cluster.node(id).status().version, INVENTED, "{nodes} nodes");
        }
        cluster.check_equal();
    }
}

#[test]
fn a_request_waits_until_all_versions_are_known() {
    let mut cluster = Cluster::of_version(3, INVENTED);
    cluster.take_away(3);
    cluster.elect();
    let mut asked = Vec::new();
    for id in [1, 2] {
        let session = cluster.open(id, id, TIMEOUT);
        cluster.create(id, session, "/a", CreateMode::Persistent).ok();
        let invented = invented(&mut cluster, id, session);
        let set = cluster.set(id, session, "/a", "x");
        let read = cluster.read(id, session, "/a");
        cluster.advance(TICK * (PATIENCE_TICKS - 1) / 2);
        for request in [invented, set, read] {
            assert!(!cluster.replies.contains_key(&request), "node {id}");
        }
        asked.push([invented, set, read]);
    }
    // The member had only taken long to start. The requests that waited at either node are done, in
    // order.
    cluster.newest = 0;
    cluster.start(3);
    cluster.settle();
    cluster.advance(HEARTBEAT);
    assert_eq!(cluster.newest, INVENTED);
    for asked in asked {
        let [invented, set, read] = asked.map(|request| cluster.replies.remove(&request).unwrap());
        let (Ok(Answer::Reply(Reply::Set(first))), Ok(Answer::Reply(Reply::Set(second)))) =
            (invented, set)
        else {
            panic!("neither was refused");
        };
        assert!(first.version < second.version, "the one was asked for before the other");
        assert!(matches!(read, Ok(Answer::Data { data, .. }) if data[..] == *b"x"));
    }
}

#[test]
fn a_member_that_does_not_connect_in_time_is_not_waited_for() {
    let mut cluster = Cluster::of_version(3, INVENTED);
    cluster.take_away(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
    let (asked, refused) = (cluster.now, invented(&mut cluster, leader, session));
    let set = cluster.set(leader, session, "/a", "x");
    assert_eq!(error(cluster.answer(refused)), unsupported());
    cluster.answer(set).unwrap();
    assert!(cluster.now - asked <= TICK * PATIENCE_TICKS);
    // From then on such a request is refused at once.
    let (asked, refused) = (cluster.now, invented(&mut cluster, leader, session));
    assert_eq!(error(cluster.answer(refused)), unsupported());
    assert!(cluster.now - asked <= HEARTBEAT);
    cluster.start(3);
    let refused = invented(&mut cluster, leader, session);
    assert_eq!(error(cluster.answer(refused)), Ok(()));
}

/// The rules of `crate::types::version`.
#[test]
fn an_old_member_can_read_all_that_the_others_write() {
    for old in 1..=3 {
        let mut cluster = mixed(3, old);
        cluster.elect();
        for id in 1..=3 {
            let session = cluster.open(id, id, TIMEOUT);
            let path = format!("/{id}");
            cluster.create(id, session, &path, CreateMode::Ephemeral).unwrap();
            cluster.create(id, session, "/s-", CreateMode::PersistentSequential).unwrap();
            let asked = cluster.now;
            let refused = invented(&mut cluster, id, session);
            assert_eq!(error(cluster.answer(refused)), unsupported());
            let ops = vec![Op::Delete { path: path.into(), version: None }, op("/s-0000000000")];
            let multi = cluster.write(id, session, Command::Multi(ops));
            let refused = error(cluster.answer(multi));
            assert!(matches!(refused, Err(Error::Multi { index: 1, .. })), "{refused:?}");
            assert!(cluster.now - asked <= HEARTBEAT, "it is known who is too old");
        }
        // A member that has been away is brought up to date by a snapshot.
        let away = (1..=3).find(|id| Some(*id) != cluster.leader()).unwrap();
        cluster.isolate(away);
        let (at, session) = ((1..=3).find(|id| *id != away).unwrap(), SessionId(9));
        cluster.open(at, session.0, TIMEOUT);
        write_much(&mut cluster, at, session);
        cluster.heal();
        cluster.newest = 0;
        cluster.advance(HEARTBEAT * 40);
        cluster.check_equal();
        let status = cluster.node(old).status();
        assert_eq!(
            (status.version, cluster.newest),
            (VERSION, VERSION),
            "with the old one at {old}"
        );
        assert!(cluster.stopped.is_empty(), "{:?}", cluster.stopped);
        // After its upgrade, the cluster's version is raised.
        cluster.restart_as(old, INVENTED);
        cluster.elect();
        cluster.settle();
        let session = cluster.open(at, 10, TIMEOUT);
        let refused = invented(&mut cluster, at, session);
        let missing = Error::NoNode { path: "/a".to_owned() };
        assert_eq!(error(cluster.answer(refused)), Err(missing));
        cluster.advance(HEARTBEAT * 10);
        cluster.check_equal();
        assert_eq!(cluster.newest, INVENTED);
    }
}

#[test]
fn a_member_that_is_too_old_stops_and_goes_on_when_it_is_upgraded() {
    let mut cluster = mixed(3, 3);
    cluster.elect();
    let session = cluster.open(1, 1, TIMEOUT);
    cluster.create(1, session, "/a", CreateMode::Persistent).unwrap();
    cluster.restart_as(3, INVENTED);
    cluster.elect();
    cluster.advance(HEARTBEAT);
    assert_eq!(cluster.node(1).status().version, INVENTED);
    // The entry is in its log, and it stops at the entry after each start.
    for _ in 0..2 {
        cluster.restart_as(3, VERSION);
        cluster.advance(HEARTBEAT * 40);
        let reason = cluster.stopped.remove(&3).unwrap();
        assert!(reason.starts_with(&format!("the cluster acts by version {INVENTED}")), "{reason}");
        assert!(reason.contains("can do version 1 at most"), "{reason}");
    }
    cluster.elect();
    let done = invented(&mut cluster, 1, session);
    cluster.answer(done).unwrap();
    assert_eq!(cluster.node(1).status().version, INVENTED, "it is not lowered");
    cluster.restart_as(3, INVENTED);
    cluster.advance(HEARTBEAT * 40);
    cluster.check_equal();
    assert!(cluster.stopped.is_empty());
}

#[test]
fn a_member_that_is_too_old_takes_no_snapshot_of_what_it_cannot_do() {
    let mut cluster = Cluster::of_version(3, INVENTED);
    cluster.take_away(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    // It was connected for a moment, in which it reported its version and was sent nothing.
    cluster.isolate(3);
    cluster.start(3);
    cluster.advance(HEARTBEAT);
    assert_eq!(cluster.node(leader).status().version, INVENTED);
    write_much(&mut cluster, leader, session);
    cluster.restart_as(3, VERSION);
    cluster.heal();
    cluster.advance(HEARTBEAT * 40);
    let reason = cluster.stopped.remove(&3).unwrap();
    assert!(reason.starts_with(&format!("the cluster acts by version {INVENTED}")), "{reason}");
    cluster.restart_as(3, INVENTED);
    cluster.advance(Duration::from_secs(8));
    cluster.check_equal();
    assert_eq!(cluster.node(3).status().version, INVENTED);
}

/// Only a leader raises the version.
#[test]
fn a_raise_is_not_forwarded() {
    use crate::machine::command::Request;
    let mut cluster = mixed(3, 3);
    let leader = cluster.elect();
    let command = Command::RaiseVersion { version: INVENTED };
    let request = Request { session: SessionId(0), holder: 0, seq: 0, acked: 0, command };
    let from = cluster.follower();
    cluster.deliver(
        from,
        leader,
        crate::node::message::PeerMessage::Forward { requests: vec![request] },
    );
    cluster.settle();
    assert_eq!(cluster.node(leader).status().version, VERSION);
    assert!(cluster.stopped.is_empty());
}
