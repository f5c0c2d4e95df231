//! Wall clocks that differ.

use std::time::Duration;

use crate::node::tests::harness::Cluster;
use crate::types::membership::NodeId;
use crate::types::znode::CreateMode;

const HOUR_MS: u64 = 3_600_000;
/// The leader has told its clocks by then.
const TOLD: Duration = Duration::from_secs(10);

/// A cluster in which the clock of one follower is an hour ahead: that, and the leader.
fn with_one_ahead(last: bool) -> (Cluster, NodeId, NodeId) {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let mut followers = (1..=3).filter(|id| *id != leader);
    let wrong = if last { followers.next_back() } else { followers.next() }.unwrap();
    cluster.wall_ahead_ms.insert(wrong, HOUR_MS);
    cluster.advance(TOLD);
    (cluster, leader, wrong)
}

/// It fired each timer of a second 3,600 times.
#[test]
fn one_clock_that_is_ahead_moves_the_log_s_time_by_no_leap() {
    let (mut cluster, leader, wrong) = with_one_ahead(false);
    let session = cluster.open(leader, 1, Duration::from_secs(40));
    cluster.create(leader, session, "/before", CreateMode::Persistent).unwrap();
    let before = cluster.node(leader).machine().time();
    let third = (1..=3).find(|id| ![leader, wrong].contains(id)).unwrap();
    let rounds = (0..100).find(|_| {
        let leader = cluster.elect();
        if leader != wrong {
            cluster.resign(leader);
            cluster.advance(TOLD);
        }
        leader == wrong
    });
    let rounds = rounds.expect("it leads at last");
    let session = cluster.open(third, 2, Duration::from_secs(40));
    cluster.create(third, session, "/after", CreateMode::Persistent).unwrap();
    let passed = cluster.node(third).machine().time() - before;
    assert!(passed < 60_000 * (rounds + 1), "{passed} ms in {rounds} rounds");
}

#[test]
fn a_member_with_another_clock_does_not_stand_first() {
    for last in [false, true] {
        let (mut cluster, leader, wrong) = with_one_ahead(last);
        cluster.kill(leader);
        assert_ne!(cluster.elect(), wrong);
    }
}

/// If all but the leader's clock are right, one of them still leads soon.
#[test]
fn members_with_another_clock_than_the_leader_s_still_elect_one() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    cluster.wall_ahead_ms.insert(leader, HOUR_MS);
    cluster.advance(TOLD);
    cluster.kill(leader);
    cluster.elect();
}

/// Once the first leader's clock was years ahead, and nobody told it.
#[test]
fn all_members_know_that_the_log_s_time_is_ahead() {
    let mut cluster = Cluster::new(3);
    let right = cluster.clock().wall_ms;
    cluster.set_wall_clock(right + 1000 * HOUR_MS);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, Duration::from_secs(40));
    cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
    cluster.set_wall_clock(right);
    cluster.advance(TOLD);
    for id in 1..=3 {
        let ahead = cluster.node(id).metrics().clock_ahead_ms.unwrap();
        assert!((-1000 * HOUR_MS as i64..-999 * HOUR_MS as i64).contains(&ahead), "{ahead}");
    }
}
