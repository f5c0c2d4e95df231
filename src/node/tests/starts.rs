//! How long members wait for each other when they start.

use std::time::Duration;

use crate::node::io::{Input, Problem};
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::node::timings::ELECTION_TICKS;
use crate::types::membership::NodeId;
use crate::types::version::VERSION;
use crate::types::znode::CreateMode;

/// The heartbeats until this holds, with disks that take a heartbeat for each write, or no time.
fn heartbeats(cluster: &mut Cluster, slow: bool, done: impl Fn(&Cluster) -> bool) -> usize {
    let mut passed = 0;
    while !done(cluster) {
        assert!(passed < 100, "nothing comes of it");
        stall(cluster, slow);
        cluster.advance(HEARTBEAT);
        stall(cluster, false);
        cluster.settle();
        passed += 1;
    }
    passed
}

fn stall(cluster: &mut Cluster, stalled: bool) {
    cluster.hosts.values_mut().for_each(|host| host.disk_stalled = stalled);
}

fn has_leader(cluster: &Cluster) -> bool {
    cluster.leader().is_some_and(|leader| cluster.node(leader).serves())
}

fn is_ready(cluster: &Cluster, node: NodeId) -> bool {
    let status = cluster.node(node).status();
    status.is_placed && status.fresh_at.is_some() && status.leader.is_some()
}

/// The first tree had only the last checkpoint. The rest was applied while readers had that tree, so each
/// part of it was copied.
#[test]
fn a_node_starts_with_all_that_its_log_has_as_committed() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, Duration::from_secs(60));
    // More than one step applies.
    let paths: Vec<String> = (0..5000).map(|n| format!("/{n}")).collect();
    for path in &paths {
        cluster.create(leader, session, path, CreateMode::Persistent).unwrap();
    }
    let follower = cluster.follower();
    // The followers have the commit of the last write with the next one.
    for node in [leader, follower] {
        cluster.set(leader, session, "/0", "last");
        cluster.settle();
        cluster.kill(node);
        cluster.start(node);
        let applied = |path: &String| cluster.data(node, path).is_some();
        assert!(paths.iter().all(applied), "on {node}");
    }
}

/// The first one that had a cluster told the others when they asked again, a second later, and then all
/// waited for an election timeout.
#[test]
fn instances_that_found_a_cluster_wait_for_their_disks_alone() {
    let mut cluster = Cluster::blank(3);
    for node in 1..=3 {
        cluster.add(node);
    }
    let passed = heartbeats(&mut cluster, true, has_leader);
    // Two promises, the state and the identity, the vote, and the first entry.
    assert!(passed <= 8, "{passed} heartbeats");
}

#[test]
fn members_that_all_start_again_do_not_wait_for_an_election_timeout() {
    for first in 1..=3 {
        let mut cluster = Cluster::new(3);
        cluster.elect();
        (1..=3).for_each(|node| cluster.kill(node));
        for place in 0..3 {
            cluster.start((first + place) % 3 + 1);
            cluster.settle();
        }
        let passed = heartbeats(&mut cluster, true, has_leader);
        assert!(passed < ELECTION_TICKS, "{passed} heartbeats");
    }
}

/// A member that starts while others lead changes nothing for them.
#[test]
fn a_member_that_starts_again_disturbs_no_leader() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let term = cluster.node(leader).status().term;
    for node in (1..=3).filter(|node| *node != leader) {
        cluster.kill(node);
        cluster.start(node);
        cluster.advance(HEARTBEAT * 2 * ELECTION_TICKS as u32);
        assert_eq!(cluster.leader(), Some(leader));
        assert_eq!(cluster.node(node).status().term, term);
    }
}

/// It asked to join when a second had passed, and was ready when it had been level with the log for another.
#[test]
fn a_new_instance_is_ready_soon() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    // The leader knows the members.
    cluster.advance(Duration::from_secs(3));
    for place in [4, 5] {
        cluster.add(place);
        heartbeats(&mut cluster, false, |cluster| is_ready(cluster, place));
    }
    // Five vote, so the sixth stays a learner.
    cluster.add(6);
    let passed = heartbeats(&mut cluster, false, |cluster| is_ready(cluster, 6));
    // It is a member at once, seen to be level at the next heartbeat, and level for as long as a voter may take to
    // answer.
    assert!(passed <= 6, "{passed} heartbeats");
    assert!(!cluster.node(6).raft.is_voter(6));
}

/// An instance reaches the members before they are connected to it. Their replies were lost, and it asked again a
/// second later.
#[test]
fn an_instance_receives_its_cluster_once_members_are_connected_to_it() {
    let mut cluster = Cluster::blank(3);
    (1..=3).for_each(|node| cluster.add(node));
    heartbeats(&mut cluster, false, has_leader);
    cluster.add(4);
    for node in 1..=3 {
        cluster.cut.insert((node, 4));
        cluster.input(node, Input::Unreachable { peer: 4, problem: Problem::not_yet() });
    }
    cluster.settle();
    assert!(!cluster.node(4).bootstrap.joins, "nothing reaches it");
    cluster.heal();
    (1..=3).for_each(|node| cluster.input(node, Input::Connected { peer: 4, version: VERSION }));
    cluster.settle();
    assert!(cluster.node(4).bootstrap.joins);
}
