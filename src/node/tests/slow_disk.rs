//! A slow disk affects only work of its own member that depends on the disk, and no other member.

use std::time::Duration;

use bytes::Bytes;

use crate::machine::command::{Command, Op};
use crate::node::io::{DiskOp, Input, Problem};
use crate::node::message::{PeerMessage, RaftBody};
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::types::membership::NodeId;
use crate::types::session::SessionState;
use crate::types::znode::CreateMode;

const TIMEOUT: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

fn entries_bytes(op: &DiskOp) -> usize {
    match op {
        DiskOp::Write { write, .. } => write.entries.iter().map(|entry| entry.data.len()).sum(),
        _ => 0,
    }
}

/// A follower's answers to heartbeats used to wait behind its log writes. With the third member dead,
/// a disk that was slower than an election took the leader its quorum, and sessions ended.
#[test]
fn a_disk_slower_than_elections_unseats_no_leader() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let slow = cluster.follower();
    let third = (1..=3).find(|node| ![leader, slow].contains(node)).unwrap();
    cluster.kill(third);
    let term = cluster.node(leader).status().term;
    for count in 0..5 {
        cluster.hosts.get_mut(&slow).unwrap().disk_stalled = true;
        let path = format!("/{count}");
        let op = Op::Create {
            path: path.clone().into(),
            data: "d".into(),
            mode: CreateMode::Persistent,
        };
        let request = cluster.write(leader, session, Command::Op(op));
        cluster.advance(3 * SECOND);
        assert!(cluster.data(leader, &path).is_none(), "a write needs the second disk");
        assert_eq!(cluster.leader(), Some(leader));
        cluster.hosts.get_mut(&slow).unwrap().disk_stalled = false;
        cluster.advance(HEARTBEAT);
        cluster.answer(request).unwrap();
        // All the while the leader confirms and renews the session.
        assert!(cluster.states.iter().all(|(_, _, state)| *state == SessionState::Connected));
    }
    assert_eq!(cluster.node(leader).status().term, term, "there was no election");
}

/// A leader that reached a follower with a hanging disk and one other of five kept the leadership, since
/// both answered. The others could have gone on without it, but followed it for as long as the disk hung.
#[test]
fn a_leader_that_cannot_commit_makes_way_for_those_who_can() {
    let mut cluster = Cluster::new(5);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let others: Vec<NodeId> = (1..=5).filter(|node| *node != leader).collect();
    for far in &others[2..] {
        cluster.cut.extend([(leader, *far), (*far, leader)]);
    }
    cluster.hosts.get_mut(&others[0]).unwrap().disk_stalled = true;
    let request = cluster.set(leader, session, "/", "x");
    let end = cluster.now + 60 * SECOND;
    while cluster
        .node(others[1])
        .machine()
        .tree()
        .get("/")
        .is_none_or(|root| root.data().is_empty())
    {
        assert!(cluster.now < end, "{:?}", cluster.node(leader).status());
        cluster.advance(HEARTBEAT);
    }
    assert!(others[1..].contains(&cluster.leader().unwrap()));
    cluster.answer(request).unwrap();
}

/// raft-rs sends a new leader's first entries again after each answer to a heartbeat, until a disk has them.
#[test]
fn a_large_entry_is_not_sent_to_a_slow_disk_again_and_again() {
    let mut cluster = Cluster::new(3);
    let former = cluster.elect();
    let slow = cluster.follower();
    cluster.hosts.get_mut(&slow).unwrap().disk_stalled = true;
    cluster.resign(former);
    while cluster.leader().is_none_or(|leader| leader == former) {
        cluster.advance(HEARTBEAT);
    }
    let leader = cluster.elect();
    assert!(![former, slow].contains(&leader));
    let session = cluster.open(leader, 1, TIMEOUT);
    let (sent, election) =
        (cluster.trace.len(), cluster.node(leader).cx.config.timings().election());
    let request = cluster.set(leader, session, "/", &"x".repeat(256 << 10));
    cluster.advance(5 * election);
    cluster.answer(request).unwrap();
    // In the trace a large message is shown by its hash.
    let to_slow = format!(" {leader}>{slow} ");
    let sent = cluster.trace[sent..].iter().filter(|line| line.contains(&to_slow));
    let large = sent.filter(|line| !line.contains('{')).count();
    assert!(large <= 6, "{large} times");
    cluster.hosts.get_mut(&slow).unwrap().disk_stalled = false;
    cluster.advance(2 * election);
    assert_eq!(cluster.data(slow, "/").map(|data| data.len()), Some(256 << 10));
}

/// A leader with a hanging disk led on for ten seconds, and proposed nothing more once 64 MiB waited for
/// the disk.
#[test]
fn a_leader_with_a_slow_disk_hands_over() {
    for (bytes, most) in [(1, 3 * SECOND), (1 << 20, 2 * SECOND)] {
        let mut cluster = Cluster::new(3);
        let leader = cluster.elect();
        let session = cluster.open(leader, 1, TIMEOUT);
        cluster.hosts.get_mut(&leader).unwrap().disk_stalled = true;
        let since = cluster.now;
        let value = "x".repeat(bytes);
        while cluster.leader() == Some(leader) {
            assert!(cluster.now < since + most, "{:?}", cluster.node(leader).status());
            for _ in 0..4 {
                cluster.set(leader, session, "/", &value);
            }
            cluster.advance(HEARTBEAT);
        }
        // The new leader sends it more once its disk has stored the first entries.
        let set = cluster.set(leader, session, "/", "last");
        cluster.advance(2 * SECOND);
        cluster.hosts.get_mut(&leader).unwrap().disk_stalled = false;
        cluster.answer(set).unwrap();
        assert!(cluster.states.iter().all(|(_, _, state)| *state == SessionState::Connected));
        cluster.advance(SECOND);
        cluster.check_equal();
    }
}

/// A new leader did not check its own disk before it served, and it serves only once that disk has its
/// first entry.
#[test]
fn a_new_leader_whose_disk_hangs_at_once_hands_over() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let successors: Vec<NodeId> = (1..=3).filter(|node| *node != leader).collect();
    for successor in &successors {
        cluster.hosts.get_mut(successor).unwrap().stalls_at_entries = true;
    }
    cluster.resign(leader);
    cluster.settle();
    let second = cluster.leader().unwrap();
    assert!(cluster.hosts[&second].disk_stalled && second != leader);
    for successor in successors.into_iter().filter(|successor| *successor != second) {
        let successor = cluster.hosts.get_mut(&successor).unwrap();
        (successor.stalls_at_entries, successor.disk_stalled) = (false, false);
    }
    let (set, since) = (cluster.set(leader, session, "/", "x"), cluster.now);
    while cluster.leader().is_none_or(|leads| leads == second) {
        assert!(cluster.now < since + 3 * SECOND, "{:?}", cluster.node(second).status());
        cluster.advance(HEARTBEAT);
    }
    cluster.advance(SECOND);
    cluster.answer(set).unwrap();
}

/// If all disks are slow, an election would only cost time.
#[test]
fn a_leader_stays_while_all_disks_are_slow() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let term = cluster.node(leader).status().term;
    for _ in 0..20 {
        for id in (1..=3).filter(|id| *id != leader).chain([leader]) {
            cluster.set(leader, session, "/", "x");
            for (of, host) in &mut cluster.hosts {
                host.disk_stalled = *of != id;
            }
            cluster.settle();
            for host in cluster.hosts.values_mut() {
                host.disk_stalled = true;
            }
            cluster.advance(SECOND);
        }
    }
    assert_eq!(cluster.node(leader).status().term, term);
}

/// If no other node could lead, a leader stays.
#[test]
fn a_leader_that_cannot_commit_stays_if_nobody_else_could() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    for node in (1..=3).filter(|node| *node != leader) {
        cluster.hosts.get_mut(&node).unwrap().disk_stalled = true;
    }
    let (term, _) = (cluster.node(leader).status().term, cluster.set(leader, session, "/", "x"));
    cluster.advance(60 * SECOND);
    let status = cluster.node(leader).status();
    assert_eq!((status.leader, status.term), (Some(leader), term));
}

/// The memory for entries sent to a follower with a hanging disk is bounded.
#[test]
fn a_hanging_disk_does_not_fill_the_memory() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let slow = cluster.follower();
    cluster.hosts.get_mut(&slow).unwrap().disk_stalled = true;
    let data = "x".repeat(1 << 20);
    for _ in 0..80 {
        let set = cluster.set(leader, session, "/", &data);
        cluster.answer(set).unwrap();
        cluster.advance(HEARTBEAT);
    }
    let waiting: usize = cluster.hosts[&slow].held.iter().map(entries_bytes).sum();
    assert!((64 << 20..68 << 20).contains(&waiting), "{waiting} bytes wait");
    cluster.hosts.get_mut(&slow).unwrap().disk_stalled = false;
    cluster.advance(3 * SECOND);
    let set = cluster.set(leader, session, "/", "y");
    cluster.answer(set).unwrap();
    cluster.advance(3 * SECOND);
    assert_eq!(cluster.data(slow, "/").as_deref(), Some("y"));
}

/// The answer to each heartbeat makes raft-rs send an append to a peer of which it does not know how far it has the
/// log. A leader that was stopped for a few seconds found a thousand answers at once, and its memory had a
/// thousand copies of the log.
#[test]
fn many_answers_to_heartbeats_are_answered_by_one_append() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let peer = cluster.follower();
    cluster.cut.insert((leader, peer));
    for _ in 0..100 {
        let set = cluster.set(leader, session, "/", "x");
        cluster.answer(set).unwrap();
    }
    cluster.input(leader, Input::Unreachable { peer, problem: Problem::not_yet() });
    cluster.settle();
    cluster.cut.clear();
    let term = cluster.node(leader).status().term;
    let answer = RaftBody::HeartbeatResponse { commit: 0, context: Bytes::new() };
    let appends = |cluster: &mut Cluster| {
        for _ in 0..1_000 {
            let body = answer.clone();
            cluster.deliver(peer, leader, PeerMessage::Raft { term, body });
        }
        let before = cluster.trace.len();
        cluster.step(leader);
        let to = format!("{leader}>{peer} ");
        let appends = |line: &&String| line.contains(&to) && line.contains("Append {");
        cluster.trace[before..].iter().filter(appends).count()
    };
    assert_eq!(appends(&mut cluster), 1);
    assert_eq!(appends(&mut cluster), 0);
    cluster.now += HEARTBEAT;
    assert_eq!(appends(&mut cluster), 1);
    cluster.advance(SECOND);
    cluster.check_equal();
}
