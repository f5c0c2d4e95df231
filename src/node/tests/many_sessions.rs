//! The cost of many sessions, and of silent ones.

use std::time::Duration;

use crate::machine::command::{Command, Op};
use crate::node::query::{Answer, Query};
use crate::node::request::RequestBody;
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::types::membership::NodeId;
use crate::types::session::SessionState;
use crate::types::znode::{CreateMode, SessionId};

const TIMEOUT: Duration = Duration::from_secs(6);
const SESSIONS: u64 = 200;

fn sync(cluster: &mut Cluster, node: NodeId, session: SessionId) {
    let query = Query::Sync;
    let sync = cluster.ask(node, session, RequestBody::Query(query));
    assert!(matches!(cluster.answer(sync), Ok(Answer::Synced(_))));
}

/// The ReadIndex request of each sync renewed all sessions of the node: with 5,000 of them a sync took
/// 400 times as long.
#[test]
fn a_sync_costs_the_same_however_many_sessions_there_are() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let node = cluster.follower();
    for session in 1..=SESSIONS {
        cluster.open(node, session, TIMEOUT);
    }
    cluster.advance(TIMEOUT);
    let before = cluster.renewed;
    for _ in 0..50 {
        sync(&mut cluster, node, SessionId(1));
    }
    assert!(cluster.renewed - before <= SESSIONS, "{} renewals", cluster.renewed - before);
}

/// Each session is renewed in time, whatever else the requests carry, and no more often than
/// necessary.
#[test]
fn all_sessions_are_renewed_beside_syncs_and_without_them() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let node = cluster.follower();
    for session in 1..=SESSIONS {
        // Some live longer than others.
        cluster.open(node, session, TIMEOUT + HEARTBEAT * (session % 50) as u32 * 5);
    }
    for syncs in [true, false] {
        let (begin, before) = (cluster.now, cluster.renewed);
        while cluster.now < begin + TIMEOUT * 4 {
            if syncs {
                sync(&mut cluster, node, SessionId(1));
            }
            cluster.advance(HEARTBEAT);
        }
        let renewed = cluster.renewed - before;
        assert!((SESSIONS * 4..SESSIONS * 16).contains(&renewed), "{renewed} renewals");
    }
    assert!(cluster.states.iter().all(|(_, _, state)| *state == SessionState::Connected));
    assert!(cluster.leases.values().all(|until| *until > cluster.now + TIMEOUT / 2));
}

/// Up to 4,096 results of each session stayed in every replica and every checkpoint until it wrote again.
#[test]
fn a_session_that_falls_silent_leaves_no_results() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    for (node, session) in [(leader, 1), (cluster.follower(), 2)] {
        let session = cluster.open(node, session, TIMEOUT);
        let writes: Vec<_> =
            (0..500).map(|n| cluster.set(node, session, "/", &n.to_string())).collect();
        for write in writes {
            cluster.answer(write).unwrap();
        }
        let kept = |cluster: &Cluster, node: NodeId| {
            cluster.node(node).machine().session(session).unwrap().result_count()
        };
        assert!(kept(&cluster, leader) > 400);
        let zxid = cluster.node(leader).status().zxid;
        cluster.advance(TIMEOUT);
        for node in [1, 2, 3] {
            assert!(kept(&cluster, node) < 2, "{} results", kept(&cluster, node));
        }
        assert_eq!(cluster.node(leader).status().zxid, zxid, "nothing was written");
    }
    cluster.check_equal();
}

/// All members applied the end of a session in one piece. With 100,000 ephemerals they answered no
/// heartbeats for a second, and the leader lost its leadership.
#[test]
fn the_end_of_a_session_with_many_ephemerals_takes_several_steps() {
    const EPHEMERALS: usize = 2500;
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let node = cluster.follower();
    let session = cluster.open(node, 1, TIMEOUT);
    let other = cluster.open(leader, 2, TIMEOUT);
    let creates: Vec<_> = (0..EPHEMERALS)
        .map(|n| {
            let (path, mode) = (format!("/e{n}"), CreateMode::Ephemeral);
            let op = Op::Create { path: path.into(), data: "d".into(), mode };
            cluster.write(node, session, Command::Op(op))
        })
        .collect();
    for create in creates {
        cluster.answer(create).unwrap();
    }
    let before: Vec<u64> = cluster.hosts.values().map(|host| host.went_on).collect();
    let close = cluster.write(node, session, Command::Close);
    // Writes made in the meantime come after it.
    let set = cluster.set(leader, other, "/", "behind");
    cluster.answer(close).unwrap();
    cluster.answer(set).unwrap();
    cluster.advance(HEARTBEAT);
    for (host, before) in cluster.hosts.values().zip(before) {
        assert!(host.went_on > before + 1, "{} steps", host.went_on - before);
    }
    assert!((1..=3).all(|node| cluster.data(node, "/").as_deref() == Some("behind")));
    assert!((1..=3).all(|node| cluster.node(node).machine().tree().len() < 10));
    cluster.check_equal();
}
