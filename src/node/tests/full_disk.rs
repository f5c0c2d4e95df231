//! Nearly full disks: no member stops, and writes are refused only if there is no majority with room.

use std::time::Duration;

use crate::machine::command::{Command, Op};
use crate::node::io::{Input, RequestId};
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::types::error::Error;
use crate::types::membership::NodeId;
use crate::types::session::SessionState;
use crate::types::znode::{CreateMode, SessionId};

const TIMEOUT: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);
const GIB: u64 = 1 << 30;

fn space(cluster: &mut Cluster, node: NodeId, free: u64) {
    cluster.input(node, Input::DiskSpace { free, total: 100 * GIB });
}

fn create(cluster: &mut Cluster, node: NodeId, session: SessionId, path: &str) -> RequestId {
    let (data, mode) = ("d".into(), CreateMode::Persistent);
    cluster.write(node, session, Command::Op(Op::Create { path: path.into(), data, mode }))
}

fn refused(cluster: &mut Cluster, request: RequestId, low: &[NodeId]) {
    let members = low.iter().map(|node| format!("node-{node}:1")).collect();
    assert_eq!(cluster.answer(request).unwrap_err(), Error::DiskLow { members });
}

#[test]
fn a_majority_with_room_goes_on_and_one_of_it_leads() {
    for size in [3, 5] {
        let mut cluster = Cluster::new(size);
        let leader = cluster.elect();
        let session = cluster.open(leader, 1, TIMEOUT);
        cluster.advance(3 * SECOND);
        space(&mut cluster, leader, 0);
        cluster.advance(3 * SECOND);
        let second = cluster.leader().unwrap();
        assert_ne!(second, leader, "it hands over");
        let request = create(&mut cluster, leader, session, "/a");
        cluster.answer(request).unwrap();
        cluster.advance(3 * SECOND);
        let term = cluster.node(second).status().term;
        for node in 1..=size {
            let seen = cluster.node(node).status().availability;
            assert_eq!((seen.disk_low, seen.refuses_writes), (vec![leader], false), "at {node}");
        }
        assert!(cluster.node(leader).metrics().disk_low);
        assert_eq!(cluster.node(leader).metrics().disk_free_bytes, Some(0));
        cluster.resign(second);
        cluster.advance(SECOND);
        assert_ne!(cluster.leader(), Some(leader), "the successor has room");
        assert!(cluster.node(second).status().term > term);
        assert!(cluster.states.iter().all(|(_, _, state)| *state == SessionState::Connected));
        cluster.check_equal();
    }
}

#[test]
fn without_a_majority_with_room_writes_are_refused_until_there_is_room() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let follower = cluster.follower();
    let sessions = [leader, follower].map(|node| (node, cluster.open(node, node, TIMEOUT)));
    for (node, session) in sessions {
        let request = create(&mut cluster, node, session, &format!("/{node}"));
        cluster.answer(request).unwrap();
    }
    cluster.advance(3 * SECOND);
    let mut low = vec![leader, follower];
    low.sort_unstable();
    for node in &low {
        space(&mut cluster, *node, 0);
    }
    cluster.advance(3 * SECOND);
    for _ in 0..3 {
        let index = cluster.node(leader).last_index();
        for (node, session) in sessions {
            let request = create(&mut cluster, node, session, "/b");
            refused(&mut cluster, request, &low);
            let op = |path: &str| Op::Delete { path: path.into(), version: None };
            let set = Op::Set { path: "/".into(), data: "x".into(), version: None };
            let multi = Command::Multi(vec![op("/none"), set]);
            let request = cluster.write(node, session, multi);
            refused(&mut cluster, request, &low);
            let request = cluster.read(node, session, "/");
            cluster.answer(request).unwrap();
        }
        let last = cluster.leader().unwrap();
        assert!(cluster.node(last).last_index() <= index + 2, "what is refused is not in the log");
        // Sessions are renewed for longer than their timeout.
        cluster.advance(2 * TIMEOUT);
    }
    // Operations that make room go on, and those that sessions need.
    for (node, session) in sessions {
        let path = format!("/{node}");
        let request = cluster.write(
            node,
            session,
            Command::Op(Op::Delete { path: path.into(), version: None }),
        );
        cluster.answer(request).unwrap();
    }
    let third = (1..=3).find(|node| !low.contains(node)).unwrap();
    let session = cluster.open(third, 9, TIMEOUT);
    let request = create(&mut cluster, third, session, "/c");
    refused(&mut cluster, request, &low);
    let request = cluster.write(third, session, Command::Close);
    cluster.answer(request).unwrap();
    // A little more is not enough yet.
    space(&mut cluster, follower, 70 << 20);
    cluster.advance(7 * SECOND);
    let (node, session) = sessions[0];
    let request = create(&mut cluster, node, session, "/d");
    refused(&mut cluster, request, &low);
    space(&mut cluster, follower, GIB);
    cluster.advance(2 * SECOND);
    for (node, session) in sessions {
        let request = create(&mut cluster, node, session, &format!("/later-{node}"));
        cluster.answer(request).unwrap();
    }
    assert!(cluster.stopped.is_empty());
    cluster.check_equal();
}

#[test]
fn the_only_member_refuses_by_itself() {
    let mut cluster = Cluster::new(1);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    cluster.advance(3 * SECOND);
    space(&mut cluster, leader, 0);
    cluster.advance(2 * HEARTBEAT);
    let request = create(&mut cluster, leader, session, "/a");
    refused(&mut cluster, request, &[leader]);
    space(&mut cluster, leader, GIB);
    cluster.advance(2 * HEARTBEAT);
    let request = create(&mut cluster, leader, session, "/a");
    cluster.answer(request).unwrap();
}

/// A dead voter does not count as one with room: without the voter whose disk is low, nothing could
/// be decided.
#[test]
fn a_voter_with_little_room_is_spared_while_another_is_dead() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let low = cluster.follower();
    let dead = (1..=3).find(|node| ![leader, low].contains(node)).unwrap();
    cluster.advance(3 * SECOND);
    space(&mut cluster, low, 0);
    cluster.advance(2 * SECOND);
    let request = create(&mut cluster, leader, session, "/a");
    cluster.answer(request).unwrap();
    cluster.kill(dead);
    cluster.advance(5 * SECOND);
    let request = create(&mut cluster, leader, session, "/b");
    refused(&mut cluster, request, &[low]);
    cluster.start(dead);
    cluster.advance(5 * SECOND);
    let request = create(&mut cluster, leader, session, "/b");
    cluster.answer(request).unwrap();
}

/// A member's report to the leader does not hold for ever.
#[test]
fn a_report_that_is_not_repeated_ends() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let low = cluster.follower();
    cluster.advance(3 * SECOND);
    space(&mut cluster, low, 0);
    cluster.advance(2 * SECOND);
    assert_eq!(cluster.node(leader).status().availability.disk_low, [low]);
    cluster.kill(low);
    cluster.start(low);
    cluster.advance(10 * SECOND);
    assert!(cluster.node(leader).status().availability.disk_low.is_empty());
}

/// The state in memory has all writes of a damaged part of the log.
#[test]
fn a_rotten_log_is_replaced_by_a_checkpoint_at_once() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    for count in 0..10 {
        let request = create(&mut cluster, leader, session, &format!("/{count}"));
        cluster.answer(request).unwrap();
    }
    cluster.advance(SECOND);
    let before = cluster.hosts[&leader].disk.first_index();
    let below = cluster.node(leader).last_index();
    assert!(before < below);
    let what = "segment 1".to_owned();
    cluster.input(leader, Input::Rotten { what, below });
    cluster.advance(SECOND);
    assert_eq!(cluster.hosts[&leader].disk.first_index(), below);
    assert_eq!(cluster.node(leader).metrics().scrub_errors, 1);
    let request = create(&mut cluster, leader, session, "/after");
    cluster.answer(request).unwrap();
    cluster.kill(leader);
    cluster.start(leader);
    cluster.advance(5 * SECOND);
    cluster.check_equal();
}

/// Deletes used to make room only hours later.
#[test]
fn on_a_low_disk_a_state_that_has_become_small_is_written_at_once() {
    let mut cluster = Cluster::new(1);
    cluster.elect();
    let session = cluster.open(1, 1, TIMEOUT);
    cluster.advance(3 * SECOND);
    let create = |path: &str| {
        let (path, data) = (path.into(), vec![1; 1 << 20].into());
        Command::Op(Op::Create { path, data, mode: CreateMode::Persistent })
    };
    for count in 0..20 {
        let request = cluster.write(1, session, create(&format!("/{count}")));
        cluster.answer(request).unwrap();
    }
    // So that a checkpoint covers all of it.
    let below = cluster.node(1).last_index();
    cluster.input(1, Input::Rotten { what: "a part".to_owned(), below });
    cluster.advance(SECOND);
    let before = cluster.node(1).metrics().checkpoints;
    space(&mut cluster, 1, 1 << 20);
    cluster.advance(3 * SECOND);
    let delete = |cluster: &mut Cluster, count: usize| {
        let op = Op::Delete { path: format!("/{count}").into(), version: None };
        let request = cluster.write(1, session, Command::Op(op));
        cluster.answer(request).unwrap();
        cluster.advance(SECOND);
    };
    (0..5).for_each(|count| delete(&mut cluster, count));
    assert_eq!(cluster.node(1).metrics().checkpoints, before, "most of it is still there");
    (5..16).for_each(|count| delete(&mut cluster, count));
    assert_eq!(cluster.node(1).metrics().checkpoints, before + 1);
    // Less room is needed now, too.
    space(&mut cluster, 1, 120 << 20);
    cluster.advance(3 * SECOND);
    let request = cluster.write(1, session, create("/more"));
    cluster.answer(request).unwrap();
}
