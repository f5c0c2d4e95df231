//! When an instance is settled in the cluster, and when a voter must not stop because of another
//! one.

use std::time::Duration;

use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::planted::{Bug, plant};
use crate::types::membership::NodeId;
use crate::types::znode::{CreateMode, SessionId};

const TIMEOUT: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

fn votes(cluster: &Cluster, node: NodeId) -> bool {
    let seen = cluster.node(node).status().availability;
    seen.voters.contains(&node) && seen.outgoing.is_empty()
}

/// The node's part of `Coordinator::is_ready`.
fn is_ready(cluster: &Cluster, node: NodeId) -> bool {
    let status = cluster.node(node).status();
    status.is_placed && status.fresh_at.is_some() && status.leader.is_some()
}

/// Advances until the node is ready. Returns for how long it was up to date and not ready.
fn until_ready(cluster: &mut Cluster, node: NodeId, at_most: Duration) -> Duration {
    let end = cluster.now + at_most;
    let mut waited = Duration::ZERO;
    while !is_ready(cluster, node) {
        assert!(cluster.now < end, "{node} is not ready: {:?}", cluster.node(node).status());
        cluster.advance(HEARTBEAT);
        if cluster.node(node).status().fresh_at.is_some() {
            waited += HEARTBEAT;
        }
    }
    waited
}

/// A member applies entries that a majority has, even if its own disk hangs. If it were ready then,
/// the next member would be stopped, and the majority would need that disk.
#[test]
fn a_member_whose_disk_takes_nothing_is_not_fresh() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    cluster.advance(3 * SECOND);
    let slow = cluster.follower();
    let fresh_at = |cluster: &Cluster| cluster.node(slow).status().fresh_at.unwrap();
    cluster.hosts.get_mut(&slow).unwrap().disk_stalled = true;
    cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
    let stalled_at = cluster.now;
    cluster.advance(3 * SECOND);
    assert!(cluster.data(slow, "/a").is_some(), "it is applied all the same");
    assert!(fresh_at(&cluster) <= stalled_at);
    cluster.hosts.get_mut(&slow).unwrap().disk_stalled = false;
    cluster.advance(3 * SECOND);
    assert!(fresh_at(&cluster) > stalled_at);
}

/// A leader with a session, and a replacement that has just started for one of the two others.
fn with_replacement() -> (Cluster, NodeId, SessionId, NodeId) {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let place = cluster.follower();
    cluster.kill(place);
    let new = 100 + place;
    cluster.add_at(new, place);
    (cluster, leader, session, new)
}

/// A learner had to be within 64 entries of the log's end at each look for a second. While others wrote
/// fast, its disk was always a little further behind. It never got its vote, the dead voter kept it, and
/// a rolling restart waited for ever.
#[test]
fn a_replacement_gets_its_vote_while_others_write_fast() {
    let (mut cluster, leader, session, new) = with_replacement();
    let end = cluster.now + 30 * SECOND;
    while !is_ready(&cluster, new) {
        assert!(cluster.now < end, "{new} is not ready: {:?}", cluster.node(new).status());
        cluster.hosts.get_mut(&new).unwrap().disk_stalled = true;
        for _ in 0..100 {
            let set = cluster.set(leader, session, "/", "x");
            cluster.answer(set).unwrap();
        }
        // The leader checks while a hundred entries are on their way to the disk.
        cluster.advance(HEARTBEAT);
        cluster.hosts.get_mut(&new).unwrap().disk_stalled = false;
        cluster.settle();
    }
    assert!(votes(&cluster, new));
}

/// A learner that stores no new entries must not get a vote that a majority may need.
#[test]
fn a_replacement_that_falls_behind_gets_no_vote() {
    let (mut cluster, leader, session, new) = with_replacement();
    while cluster.node(new).status().fresh_at.is_none() {
        cluster.advance(HEARTBEAT);
    }
    cluster.hosts.get_mut(&new).unwrap().disk_stalled = true;
    for _ in 0..100 {
        let set = cluster.set(leader, session, "/", "x");
        cluster.answer(set).unwrap();
        cluster.advance(HEARTBEAT);
    }
    assert!(!votes(&cluster, new) && !is_ready(&cluster, new));
}

/// Every instance in turn is killed and its disk wiped. The next one follows as soon as it is ready
/// again.
fn roll(nodes: u64, leader_first: bool) {
    let mut cluster = Cluster::new(nodes);
    let leader = cluster.elect();
    let mut places: Vec<NodeId> = (1..=nodes).collect();
    places.sort_by_key(|place| (*place == leader) != leader_first);
    for (count, place) in places.into_iter().enumerate() {
        let leader = cluster.elect();
        let session = cluster.open(leader, 1 + count as u64, TIMEOUT);
        let path = format!("/{count}");
        cluster.create(leader, session, &path, CreateMode::Persistent).unwrap();
        cluster.kill(place);
        let new = 100 + place;
        cluster.add_at(new, place);
        until_ready(&mut cluster, new, 30 * SECOND);
        assert!(votes(&cluster, new), "{new} is ready and does not vote");
    }
    let leader = cluster.elect();
    for count in 0..nodes {
        assert!(cluster.data(leader, &format!("/{count}")).is_some(), "/{count} is lost");
    }
}

/// A replacement was ready as a learner while its dead former self was still the voter. A rolling
/// restart by readiness went on, and with the second of three the majority was lost for good.
#[test]
fn a_cluster_rolled_by_readiness_with_empty_disks_keeps_its_data() {
    for (nodes, leader_first) in [(3, true), (3, false), (5, true), (5, false)] {
        roll(nodes, leader_first);
    }
}

#[test]
#[should_panic(expected = "is ready and does not vote")]
fn readiness_before_the_place_is_seen() {
    plant(Some(Bug::ReadyBeforePlace));
    roll(3, false);
}

/// Only the leader knows that there is no vote for the learner.
#[test]
fn a_learner_that_is_to_stay_one_becomes_ready() {
    let mut cluster = Cluster::new(5);
    cluster.elect();
    cluster.add(6);
    until_ready(&mut cluster, 6, 5 * SECOND);
    assert!(!votes(&cluster, 6));
    // If a voter is lost afterwards, the learner stays ready: it was not meant to take that place.
    let victim = (1..=5).find(|node| Some(*node) != cluster.leader()).unwrap();
    cluster.kill(victim);
    cluster.advance(5 * SECOND);
    assert!(is_ready(&cluster, 6));
    // Wiped, it is the spare learner again.
    cluster.kill(6);
    cluster.start(victim);
    cluster.add_at(7, 6);
    until_ready(&mut cluster, 7, 10 * SECOND);
    assert!(!votes(&cluster, 7));
}

/// A voter is lost and comes back as another member at a new address, so no member can know whose
/// place it should take. It takes a silent voter's place after `replace_after`.
#[test]
fn at_a_new_address_it_is_ready_with_the_vote_of_the_dead() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let victim = cluster.follower();
    cluster.kill(victim);
    cluster.add(4);
    let waited = until_ready(&mut cluster, 4, 90 * SECOND);
    assert!(votes(&cluster, 4));
    assert!(waited > 30 * SECOND, "{waited:?}");
    // The next one is not ready before the change of the leader is over, either.
    let leader = cluster.leader().unwrap();
    cluster.kill(leader);
    cluster.add(5);
    until_ready(&mut cluster, 5, 90 * SECOND);
    assert!(votes(&cluster, 5));
}

/// The leader still counts the former self as alive, or a new leader does not know the members'
/// health yet.
#[test]
fn a_replacement_of_the_leader_is_not_ready_before_the_next_leader_has_given_it_the_vote() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    cluster.kill(leader);
    cluster.add_at(9, leader);
    until_ready(&mut cluster, 9, 30 * SECOND);
    assert!(votes(&cluster, 9));
}

/// A member that restarts from its disk has its vote, even while others are away.
#[test]
fn a_voter_that_restarts_is_ready_while_another_one_is_down() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let others: Vec<NodeId> = (1..=3).filter(|node| *node != leader).collect();
    cluster.kill(others[0]);
    cluster.advance(5 * SECOND);
    cluster.kill(others[1]);
    cluster.start(others[1]);
    let waited = until_ready(&mut cluster, others[1], 10 * SECOND);
    assert!(waited <= 2 * HEARTBEAT, "{waited:?}");
}

/// The same for a growing cluster: until the others vote, all data depends on the first member.
#[test]
fn a_cluster_of_one_that_grows_by_readiness_may_lose_any() {
    let mut cluster = Cluster::new(1);
    cluster.elect();
    cluster.add(2);
    // With two voters the loss of either would stop it: the second one is a learner for now.
    until_ready(&mut cluster, 2, 10 * SECOND);
    assert!(!votes(&cluster, 2));
    cluster.add(3);
    until_ready(&mut cluster, 3, 10 * SECOND);
    assert!(votes(&cluster, 3));
    cluster.kill(1);
    cluster.elect();
}

#[test]
fn a_voter_stays_while_a_lost_one_is_replaced_and_only_then() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    cluster.advance(3 * SECOND);
    let stay = |cluster: &Cluster| -> Vec<NodeId> {
        let running = cluster.hosts.iter().filter(|(_, host)| host.node.is_some());
        running.map(|(id, _)| *id).filter(|id| cluster.node(*id).must_stay()).collect()
    };
    assert!(stay(&cluster).is_empty(), "all are there");
    let victim = cluster.follower();
    let third = (1..=3).find(|node| ![leader, victim].contains(node)).unwrap();
    cluster.kill(victim);
    cluster.advance(5 * SECOND);
    assert!(stay(&cluster).is_empty(), "nobody comes");
    cluster.add_at(4, victim);
    let mut both = vec![leader, third];
    both.sort_unstable();
    // It meets the cluster, and asks to join.
    let met = cluster.now + 3 * SECOND;
    while stay(&cluster) != both {
        assert!(cluster.now < met);
        cluster.advance(HEARTBEAT);
    }
    while !votes(&cluster, 4) {
        assert_eq!(stay(&cluster), both);
        cluster.advance(HEARTBEAT);
    }
    cluster.advance(6 * SECOND);
    assert!(stay(&cluster).is_empty(), "it is there");
    // As one of two, a voter is always needed, so it does not wait.
    let mut cluster = Cluster::new(2);
    cluster.elect();
    cluster.advance(3 * SECOND);
    assert!(stay(&cluster).is_empty());
}
