//! Members that join and leave.

use std::time::Duration;

use crate::node::io::Input;
use crate::node::leader::planner::FORGET_FACTOR;
use crate::node::message::PeerMessage;
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::types::membership::{NodeId, Roster};
use crate::types::znode::CreateMode;

const TIMEOUT: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// The voters and the learners, as a node has them.
fn voting(cluster: &Cluster, node: NodeId) -> (Vec<NodeId>, Vec<NodeId>) {
    let available = cluster.node(node).status().availability;
    let sorted = |mut list: Vec<NodeId>| {
        list.sort_unstable();
        list
    };
    (sorted(available.voters), sorted(available.learners))
}

/// The same from the node's roster.
fn roster_parts(cluster: &Cluster, node: NodeId) -> (Vec<NodeId>, Vec<NodeId>) {
    let (Roster { seats }, _) = cluster.node(node).machine().roster();
    let part = |votes: bool| {
        let of_part = seats.iter().filter(|seat| seat.votes == votes);
        of_part.map(|seat| seat.member.node).collect()
    };
    (part(true), part(false))
}

#[test]
fn a_cluster_of_one_grows_to_three_voters() {
    let mut cluster = Cluster::new(1);
    cluster.elect();
    let session = cluster.open(1, 1, TIMEOUT);
    cluster.create(1, session, "/a", CreateMode::Persistent).unwrap();
    cluster.add(2);
    cluster.advance(5 * SECOND);
    // With two voters the loss of either would stop it.
    assert_eq!(voting(&cluster, 1), (vec![1], vec![2]));
    assert_eq!(roster_parts(&cluster, 2), (vec![1], vec![2]));
    cluster.add(3);
    cluster.advance(10 * SECOND);
    for node in 1..=3 {
        assert_eq!(voting(&cluster, node), (vec![1, 2, 3], vec![]));
        assert_eq!(roster_parts(&cluster, node), (vec![1, 2, 3], vec![]));
    }
    cluster.check_equal();
    // They are full members: the first may go.
    cluster.kill(1);
    let leader = cluster.elect();
    let session = cluster.open(leader, 2, TIMEOUT);
    cluster.create(leader, session, "/b", CreateMode::Persistent).unwrap();
}

#[test]
fn no_more_vote_than_should_and_the_others_learn() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    for node in 4..=8 {
        cluster.add(node);
        cluster.advance(3 * SECOND);
    }
    cluster.advance(10 * SECOND);
    let leader = cluster.leader().unwrap();
    let (voters, learners) = voting(&cluster, leader);
    assert_eq!((voters.len(), learners.len()), (5, 3));
    cluster.check_equal();
}

#[test]
fn a_voter_that_is_dead_for_long_gives_its_vote_to_a_learner_and_is_forgotten() {
    let mut cluster = Cluster::new(5);
    let leader = cluster.elect();
    cluster.add(6);
    cluster.advance(5 * SECOND);
    assert_eq!(voting(&cluster, leader).1, [6]);
    let victim = cluster.follower();
    cluster.kill(victim);
    cluster.advance(50 * SECOND);
    assert!(voting(&cluster, leader).0.contains(&victim), "not yet");
    cluster.advance(15 * SECOND);
    assert!(voting(&cluster, leader).0.contains(&6));
    assert_eq!(voting(&cluster, leader).1, [victim]);
    cluster.advance(60 * SECOND * FORGET_FACTOR);
    assert!(voting(&cluster, leader).1.is_empty());
    assert!(roster_parts(&cluster, leader).1.is_empty());
    // It comes back and learns that it was removed.
    cluster.start(victim);
    cluster.advance(5 * SECOND);
    let reason = &cluster.stopped[&victim];
    assert!(reason.contains("not a member of the cluster any more"), "{reason}");
}

/// Two learners that had just died were given the votes of live members, and the majority was lost.
#[test]
fn a_learner_that_has_just_died_is_given_no_vote() {
    let mut cluster = Cluster::new(5);
    let leader = cluster.elect();
    cluster.add(6);
    cluster.advance(5 * SECOND);
    let victim = cluster.follower();
    cluster.kill(victim);
    cluster.advance(60 * SECOND - SECOND / 2);
    assert!(voting(&cluster, leader).0.contains(&victim), "not yet");
    cluster.kill(6);
    cluster.advance(5 * SECOND);
    assert!(voting(&cluster, leader).0.contains(&victim));
    cluster.start(6);
    cluster.advance(5 * SECOND);
    assert!(voting(&cluster, leader).0.contains(&6));
}

/// A learner does not stand for election, so no member notices it in that way.
#[test]
fn a_learner_that_was_removed_while_it_was_away_learns_of_it() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    cluster.add(4);
    cluster.advance(5 * SECOND);
    assert_eq!(voting(&cluster, leader).1, [4]);
    cluster.kill(4);
    cluster.advance(60 * SECOND * FORGET_FACTOR + 10 * SECOND);
    assert!(voting(&cluster, leader).1.is_empty());
    cluster.start(4);
    cluster.advance(5 * SECOND);
    let reason = &cluster.stopped[&4];
    assert!(reason.contains("not a member of the cluster any more"), "{reason}");
}

/// The same, but the learner keeps running while it is cut off, and cannot know whether its leader
/// still leads.
#[test]
fn a_learner_that_was_removed_while_it_was_cut_off_learns_of_it() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    cluster.add(4);
    cluster.advance(5 * SECOND);
    assert_eq!(voting(&cluster, leader).1, [4]);
    cluster.isolate(4);
    cluster.advance(60 * SECOND * FORGET_FACTOR + 10 * SECOND);
    assert!(voting(&cluster, leader).1.is_empty());
    assert!(!cluster.stopped.contains_key(&4), "no member could notify it");
    cluster.heal();
    cluster.advance(5 * SECOND);
    let reason = &cluster.stopped[&4];
    assert!(reason.contains("not a member of the cluster any more"), "{reason}");
}

/// The leader hands over, and the next one has not received anything from the members yet.
#[test]
fn a_new_leader_does_not_count_on_the_dead() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let victim = cluster.follower();
    cluster.kill(victim);
    cluster.advance(30 * SECOND);
    cluster.leave(leader);
    cluster.advance(30 * SECOND);
    assert!(!cluster.stopped.contains_key(&leader), "its vote is needed");
    let next = cluster.leader().unwrap();
    assert_eq!(voting(&cluster, next), (vec![1, 2, 3], vec![]));
    cluster.start(victim);
    cluster.advance(10 * SECOND);
    assert!(cluster.stopped.contains_key(&leader));
}

/// It has voted under its id, and the log has removed that id.
#[test]
fn a_removed_member_is_not_taken_in_again_under_its_old_id() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.add(4);
    cluster.advance(5 * SECOND);
    // The earlier content of its disk: the mark and the entry that removes it are lost.
    let disk = cluster.hosts[&4].disk.clone();
    cluster.leave(4);
    cluster.advance(5 * SECOND);
    assert!(cluster.stopped.remove(&4).is_some());
    cluster.kill(4);
    cluster.hosts.get_mut(&4).unwrap().disk = disk;
    cluster.move_to(4, "elsewhere:9");
    cluster.advance(10 * SECOND);
    assert!(cluster.stopped.contains_key(&4));
    let leader = cluster.leader().unwrap();
    assert_eq!(voting(&cluster, leader), (vec![1, 2, 3], vec![]));
}

#[test]
fn the_dead_stay_where_nobody_can_take_their_place() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let victim = cluster.follower();
    cluster.kill(victim);
    cluster.advance(1000 * SECOND);
    assert_eq!(voting(&cluster, leader), (vec![1, 2, 3], vec![]));
    cluster.start(victim);
    cluster.advance(5 * SECOND);
    cluster.check_equal();
}

#[test]
fn a_member_that_leaves_goes_and_its_vote_stays() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.add(4);
    cluster.advance(5 * SECOND);
    // The leader itself: it hands over first.
    let leader = cluster.leader().unwrap();
    cluster.leave(leader);
    cluster.advance(10 * SECOND);
    let reason = cluster.stopped.remove(&leader).unwrap();
    assert!(reason.contains("not a member of the cluster any more"), "{reason}");
    assert!(cluster.hosts[&leader].disk.removed);
    let rest: Vec<NodeId> = (1..=4).filter(|node| *node != leader).collect();
    let new = cluster.leader().unwrap();
    assert_eq!(voting(&cluster, new), (rest.clone(), vec![]));
    assert_eq!(roster_parts(&cluster, new), (rest, vec![]));
    let session = cluster.open(new, 2, TIMEOUT);
    cluster.create(new, session, "/b", CreateMode::Persistent).unwrap();
}

/// The smallest case: the last two members of a cluster.
#[test]
fn a_cluster_shrinks_to_one() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let mut left = vec![1, 2, 3];
    while left.len() > 1 {
        let leaver = left.remove(0);
        cluster.leave(leaver);
        cluster.advance(10 * SECOND);
        assert!(cluster.stopped.contains_key(&leaver), "{leaver}");
        cluster.kill(leaver);
    }
    assert_eq!(voting(&cluster, 3), (vec![3], vec![]));
    let session = cluster.open(3, 2, TIMEOUT);
    cluster.create(3, session, "/b", CreateMode::Persistent).unwrap();
    cluster.leave(3);
    cluster.advance(5 * SECOND);
    assert_eq!(voting(&cluster, 3), (vec![3], vec![]), "there is nobody to hand over to");
}

/// A wiped disk is another member at the same address.
#[test]
fn a_wiped_member_is_replaced_at_once_by_the_one_in_its_place() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let victim = cluster.follower();
    let session = cluster.open(leader, 1, TIMEOUT);
    cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
    cluster.kill(victim);
    cluster.add_at(7, victim);
    cluster.advance(10 * SECOND);
    let (voters, learners) = voting(&cluster, leader);
    assert!(voters.contains(&7) && !voters.contains(&victim), "{voters:?}");
    assert_eq!((voters.len(), learners.len()), (3, 0));
    assert!(roster_parts(&cluster, leader).0.contains(&7));
}

/// Both answer, so one of them is a copy. Neither takes the other's place.
#[test]
fn a_member_that_is_alive_is_not_replaced() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let victim = cluster.follower();
    cluster.add_at(7, victim);
    cluster.advance(20 * SECOND);
    assert_eq!(voting(&cluster, leader), (vec![1, 2, 3], vec![]));
    assert!(!roster_parts(&cluster, leader).1.contains(&7));
}

/// Two processes with copies of one directory were at fault for a lost leader, and the reason did not name them.
#[test]
fn the_reason_for_a_missing_leader_names_a_refused_copy_for_half_a_minute() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let node = cluster.follower();
    cluster.isolate(node);
    cluster.advance(20 * SECOND);
    let reason = "two processes run as node 2";
    cluster.input(node, Input::Duplicate { reason: reason.to_owned() });
    cluster.settle();
    let names_it = |cluster: &Cluster| {
        let status = cluster.node(node).status();
        assert_eq!(status.leader, None);
        status.no_leader(|_| None).to_string().contains(reason)
    };
    cluster.advance(29 * SECOND);
    assert!(names_it(&cluster));
    cluster.advance(2 * SECOND);
    assert!(!names_it(&cluster));
}

#[test]
fn a_new_address_is_entered_in_the_roster() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let mover = cluster.follower();
    cluster.move_to(mover, "elsewhere:9");
    cluster.advance(5 * SECOND);
    let (roster, _) = cluster.node(leader).machine().roster();
    assert_eq!(roster.get(mover).unwrap().member.address, "elsewhere:9");
    cluster.advance(HEARTBEAT);
    cluster.check_equal();
}

#[test]
fn nodes_with_empty_disks_found_one_cluster_whoever_starts_first() {
    for nodes in [1, 2, 3, 5] {
        let mut cluster = Cluster::blank(nodes);
        for node in 1..=nodes {
            assert!(cluster.leader().is_none(), "before all are there");
            cluster.add(node);
            cluster.advance(3 * SECOND);
        }
        let leader = cluster.elect();
        let all: Vec<NodeId> = (1..=nodes).collect();
        let founded = cluster.node(leader).cluster();
        for node in 1..=nodes {
            assert_eq!(voting(&cluster, node), (all.clone(), vec![]));
            assert_eq!(roster_parts(&cluster, node), (all.clone(), vec![]));
            assert_eq!(cluster.node(node).cluster(), founded);
        }
        let session = cluster.open(leader, 1, TIMEOUT);
        cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
        for node in 1..=nodes {
            cluster.kill(node);
        }
        for node in 1..=nodes {
            cluster.start(node);
        }
        cluster.elect();
        cluster.advance(SECOND);
        cluster.check_equal();
        assert_eq!(cluster.node(1).cluster(), founded);
        assert!(cluster.node(1).machine().tree().get("/a").is_some());
    }
}

/// The wiped node is not the one that has pledged and voted. It cannot found another cluster while
/// another of the former three is away.
#[test]
fn an_empty_disk_in_a_member_s_place_joins_the_cluster_and_founds_none() {
    let mut cluster = Cluster::blank(3);
    for node in 1..=3 {
        cluster.add(node);
    }
    cluster.elect();
    let founded = cluster.node(1).cluster();
    for node in 1..=3 {
        cluster.kill(node);
    }
    cluster.add_at(4, 1);
    cluster.start(2);
    cluster.advance(20 * SECOND);
    assert_eq!(cluster.node(4).cluster(), founded, "it knows of it");
    assert_eq!(cluster.leader(), None, "one of three has no vote for two");
    cluster.start(3);
    let leader = cluster.elect();
    cluster.advance(20 * SECOND);
    assert_eq!(voting(&cluster, leader), (vec![2, 3, 4], vec![]));
    cluster.check_equal();
}

#[test]
fn only_a_member_reports_that_a_member_was_removed() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let follower = cluster.follower();
    for node in [leader, follower] {
        cluster.deliver(99, node, PeerMessage::Removed { index: u64::MAX });
        cluster.settle();
    }
    assert!(cluster.stopped.is_empty());
}

/// The removed member does not reach the leader.
#[test]
fn a_removed_member_learns_of_it_from_any_member() {
    let mut cluster = Cluster::new(5);
    let leader = cluster.elect();
    cluster.add(6);
    cluster.advance(5 * SECOND);
    let victim = cluster.follower();
    cluster.kill(victim);
    cluster.advance(70 * SECOND * FORGET_FACTOR);
    assert!(!cluster.node(leader).machine().roster().0.members().any(|one| one.node == victim));
    cluster.start(victim);
    cluster.cut.extend([(victim, leader), (leader, victim)]);
    cluster.advance(5 * SECOND);
    assert!(cluster.stopped[&victim].contains("not a member of the cluster any more"));
}

/// A member's last report of itself still holds for some time after it has left.
#[test]
fn a_member_that_has_left_is_not_added_again_by_an_earlier_report() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let leaver = cluster.follower();
    let seat = |cluster: &Cluster| cluster.node(leader).machine().roster().0.get(leaver).cloned();
    cluster.advance(5 * SECOND);
    let mut member = seat(&cluster).unwrap().member;
    member.address = "elsewhere:1".to_owned();
    cluster.leave(leaver);
    let is_member = |cluster: &Cluster| {
        let (voters, learners) = voting(cluster, leader);
        voters.contains(&leaver) || learners.contains(&leaver)
    };
    for _ in 0..100 {
        if !is_member(&cluster) {
            break;
        }
        cluster.deliver(leaver, leader, PeerMessage::Present { member: member.clone() });
        cluster.advance(HEARTBEAT);
    }
    cluster.advance(3 * HEARTBEAT);
    assert_eq!(seat(&cluster), None);
}

/// None of the members that it knows is left.
#[test]
fn a_member_that_was_away_while_all_others_were_replaced_learns_that_it_is_gone() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let victim = cluster.follower();
    cluster.kill(victim);
    let old: Vec<NodeId> = (1..=3).filter(|node| *node != victim).collect();
    for node in 4..=6 {
        cluster.add(node);
    }
    cluster.advance(70 * SECOND * FORGET_FACTOR);
    for node in old {
        cluster.leave(node);
        cluster.advance(60 * SECOND);
        cluster.kill(node);
    }
    let leader = cluster.elect();
    assert_eq!(voting(&cluster, leader), (vec![4, 5, 6], vec![]));
    cluster.start(victim);
    cluster.advance(30 * SECOND);
    assert!(cluster.stopped[&victim].contains("not a member of the cluster any more"));
}

/// The instance was never a member: there is nothing to wait for.
#[test]
fn an_instance_that_is_no_member_yet_leaves_at_once() {
    let mut cluster = Cluster::blank(3);
    cluster.add(1);
    cluster.leave(1);
    cluster.advance(SECOND);
    assert!(cluster.stopped.contains_key(&1));
}

/// A member with a hanging disk answers heartbeats, and counted as a working voter:
/// `availability()` reported that all was well while the loss of one more voter stopped the
/// cluster.
#[test]
fn a_voter_that_stores_nothing_is_not_counted_on() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 7, TIMEOUT);
    cluster.advance(5 * SECOND);
    let silent = |cluster: &Cluster, node| cluster.node(node).status().availability.silent;
    let hangs = cluster.follower();
    cluster.hosts.get_mut(&hangs).unwrap().disk_stalled = true;
    cluster.advance(5 * SECOND);
    for node in 1..=3 {
        assert_eq!(silent(&cluster, node), [0; 0], "there is nothing to store");
    }
    cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
    cluster.advance(5 * SECOND);
    for node in 1..=3 {
        assert_eq!(silent(&cluster, node), [hangs]);
    }
    cluster.hosts.get_mut(&hangs).unwrap().disk_stalled = false;
    cluster.advance(5 * SECOND);
    for node in 1..=3 {
        assert_eq!(silent(&cluster, node), [0; 0]);
    }
}
