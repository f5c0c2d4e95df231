//! Tests of a cluster of nodes.

#[cfg(test)]
pub(crate) mod catch_up;
mod clocks;
#[cfg(test)]
pub(crate) mod crash;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod elections;
#[cfg(test)]
mod full_disk;
#[cfg(test)]
pub(crate) mod harness;
#[cfg(test)]
pub(crate) mod leader_priority;
mod learners;
#[cfg(test)]
pub(crate) mod many_sessions;
#[cfg(test)]
pub(crate) mod membership;
#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
pub(crate) mod place;
mod promises;
#[cfg(test)]
pub(crate) mod session;
#[cfg(test)]
pub(crate) mod slow_disk;
mod starts;
#[cfg(test)]
mod too_large;
#[cfg(test)]
mod troubles;
#[cfg(test)]
pub(crate) mod version;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::machine::command::{Command, Op, Reply};
use crate::node::io::{RequestId, WatchId};
use crate::node::query::{Answer, Query};
use crate::node::request::RequestBody;
use crate::node::tests::harness::{Cluster, HEARTBEAT, TICK};
use crate::types::error::Error;
use crate::types::membership::NodeId;
use crate::types::session::SessionState;
use crate::types::watch::{EventKind, WatchMode};
use crate::types::znode::CreateMode;

const TIMEOUT: Duration = Duration::from_secs(6);

#[test]
fn writes_of_every_node_reach_every_replica() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    for id in 1..=3 {
        let session = cluster.open(id, id, TIMEOUT);
        cluster.create(id, session, &format!("/n{id}"), CreateMode::Persistent).unwrap();
    }
    cluster.advance(HEARTBEAT * 2);
    cluster.check_equal();
    for id in 1..=3 {
        assert_eq!(cluster.data(id, "/n1").as_deref(), Some("d"));
        assert_eq!(cluster.data(id, "/n3").as_deref(), Some("d"));
    }
}

#[test]
fn the_same_inputs_give_the_same_trace() {
    let run = || {
        let mut cluster = Cluster::new(5);
        let leader = cluster.elect();
        let session = cluster.open(leader, 9, TIMEOUT);
        cluster.create(leader, session, "/a", CreateMode::Ephemeral).unwrap();
        cluster.kill(leader);
        cluster.elect();
        cluster.start(leader);
        cluster.advance(TIMEOUT * 3);
        cluster.check_equal();
        cluster.trace
    };
    let (one, two) = (run(), run());
    assert!(one.len() > 100);
    assert_eq!(one, two);
}

#[test]
fn a_single_node_needs_nobody() {
    let mut cluster = Cluster::new(1);
    cluster.advance(HEARTBEAT);
    let session = cluster.open(1, 1, TIMEOUT);
    cluster.create(1, session, "/a", CreateMode::Persistent).unwrap();
    cluster.kill(1);
    cluster.start(1);
    cluster.advance(HEARTBEAT);
    assert_eq!(cluster.data(1, "/a").as_deref(), Some("d"));
}

#[test]
fn pipelined_requests_apply_in_order_across_a_leader_change() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let writer = cluster.follower();
    let session = cluster.open(writer, 1, TIMEOUT);
    cluster.create(writer, session, "/q", CreateMode::Persistent).unwrap();
    let mut requests = Vec::new();
    for round in 0..5 {
        for n in 0..20 {
            let path = "/q/n-".into();
            let data = format!("{round}:{n}").into();
            let mode = CreateMode::PersistentSequential;
            let op = Op::Create { path, data, mode };
            requests.push(cluster.write(writer, session, Command::Op(op)));
        }
        match round {
            0 => cluster.settle(),
            // Requests sent to it may or may not be in the log.
            1 => cluster.kill(leader),
            _ => cluster.advance(HEARTBEAT * 3),
        }
    }
    let created: Vec<String> = requests
        .into_iter()
        .map(|request| match cluster.answer(request) {
            Ok(Answer::Reply(Reply::Created(created))) => created.path,
            other => panic!("{other:?}"),
        })
        .collect();
    let expected: Vec<String> = (0..100).map(|n| format!("/q/n-{n:010}")).collect();
    assert_eq!(created, expected, "each once, and in the order of the calls");
    cluster.start(leader);
    cluster.advance(HEARTBEAT * 40);
    cluster.check_equal();
}

#[test]
fn a_killed_node_s_session_expires_and_its_ephemerals_go() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let victim = cluster.follower();
    let session = cluster.open(victim, 1, TIMEOUT);
    cluster.create(victim, session, "/e", CreateMode::Ephemeral).unwrap();
    cluster.advance(TIMEOUT * 2);
    assert!(cluster.data(leader, "/e").is_some(), "a living session does not expire");
    cluster.kill(victim);
    cluster.advance(TIMEOUT - Duration::from_secs(2));
    assert!(cluster.data(leader, "/e").is_some());
    cluster.advance(Duration::from_secs(3));
    assert!(cluster.data(leader, "/e").is_none());
    cluster.start(victim);
    cluster.advance(HEARTBEAT * 10);
    cluster.check_equal();
}

#[test]
fn an_isolated_holder_knows_of_its_loss_before_the_cluster_acts() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    cluster.create(leader, session, "/e", CreateMode::Ephemeral).unwrap();
    cluster.advance(TIMEOUT);
    cluster.isolate(leader);
    let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    let mut lost_at = None;
    let mut gone_at = None;
    for _ in 0..400 {
        cluster.advance(HEARTBEAT);
        if lost_at.is_none() && cluster.states.contains(&(leader, session, SessionState::Expired)) {
            lost_at = Some(cluster.now);
            assert!(cluster.leases[&session] <= cluster.now);
        }
        if gone_at.is_none() && cluster.data(others[0], "/e").is_none() {
            gone_at = Some(cluster.now);
        }
    }
    let (lost_at, gone_at) = (lost_at.unwrap(), gone_at.unwrap());
    assert!(lost_at < gone_at, "{lost_at:?} {gone_at:?}");
    assert!(cluster.states.contains(&(leader, session, SessionState::Suspended)));
    cluster.heal();
    cluster.advance(HEARTBEAT * 40);
    cluster.check_equal();
}

#[test]
fn sessions_survive_leader_changes() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let holder = cluster.follower();
    let session = cluster.open(holder, 1, TIMEOUT);
    cluster.create(holder, session, "/e", CreateMode::Ephemeral).unwrap();
    for _ in 0..6 {
        let leader = cluster.elect();
        if leader == holder {
            break;
        }
        cluster.kill(leader);
        let new = cluster.elect();
        assert_ne!(new, leader);
        cluster.start(leader);
        cluster.advance(Duration::from_secs(4));
    }
    assert!(cluster.data(holder, "/e").is_some());
    assert!(!cluster.states.iter().any(|(_, _, state)| *state == SessionState::Expired));
}

#[test]
fn a_sync_sees_all_completed_writes() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let reader = cluster.follower();
    let writer_session = cluster.open(leader, 1, TIMEOUT);
    let session = cluster.open(reader, 2, TIMEOUT);
    cluster.create(leader, writer_session, "/a", CreateMode::Persistent).unwrap();
    for n in 0..20 {
        let set = cluster.set(leader, writer_session, "/a", &n.to_string());
        cluster.answer(set).unwrap();
        let sync = cluster.ask(reader, session, RequestBody::Query(Query::Sync));
        let read = cluster.read(reader, session, "/a");
        assert!(matches!(cluster.answer(sync), Ok(Answer::Synced(_))));
        match cluster.answer(read).unwrap() {
            Answer::Data { data, .. } => assert_eq!(&data[..], n.to_string().as_bytes()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_sync_without_a_quorum_waits_and_is_answered_after_it_is_back() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, Duration::from_secs(40));
    cluster.isolate(leader);
    let sync = cluster.ask(leader, session, RequestBody::Query(Query::Sync));
    cluster.advance(Duration::from_secs(5));
    assert!(!cluster.replies.contains_key(&sync));
    cluster.heal();
    assert!(matches!(cluster.answer(sync), Ok(Answer::Synced(_))));
}

#[test]
fn a_resumed_session_moves_with_its_ephemerals() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let session = cluster.open(1, 1, TIMEOUT);
    cluster.create(1, session, "/e", CreateMode::Ephemeral).unwrap();
    let wrong = cluster.resume(2, session, 5, [8; 16]);
    assert!(matches!(wrong, Err(Error::WrongPassword { .. })), "{wrong:?}");
    cluster.resume(2, session, 6, [7; 16]).unwrap();
    cluster.settle();
    assert!(cluster.states.contains(&(1, session, SessionState::Moved)));
    let late = cluster.set(1, session, "/e", "late");
    assert!(matches!(
        cluster.answer(late),
        Err(Error::SessionExpired { .. } | Error::SessionMoved { .. })
    ));
    let set = cluster.set(2, session, "/e", "moved");
    cluster.answer(set).unwrap();
    cluster.kill(1);
    cluster.advance(TIMEOUT * 2);
    assert_eq!(cluster.data(2, "/e").as_deref(), Some("moved"));
}

#[test]
fn watches_report_changes_made_anywhere() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let (one, two) = (cluster.open(1, 1, TIMEOUT), cluster.open(2, 2, TIMEOUT));
    cluster.watch(2, two, 1, "/a", WatchMode::PersistentRecursive);
    cluster.create(1, one, "/a", CreateMode::Persistent).unwrap();
    cluster.create(1, one, "/a/b", CreateMode::Persistent).unwrap();
    cluster.advance(HEARTBEAT * 2);
    let seen: Vec<_> =
        cluster.events.iter().map(|(id, event)| (*id, event.kind, event.path.as_str())).collect();
    let expected =
        [(WatchId(1), EventKind::Created, "/a"), (WatchId(1), EventKind::Created, "/a/b")];
    assert_eq!(seen, expected);
    let close = cluster.write(2, two, Command::Close);
    cluster.answer(close).unwrap();
    assert_eq!(cluster.ended, [WatchId(1)]);
}

#[test]
fn a_replica_far_behind_gets_a_snapshot_and_its_watches_the_net_changes() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let laggard = cluster.follower();
    let session = cluster.open(leader, 1, Duration::from_secs(40));
    let watcher = cluster.open(laggard, 2, Duration::from_secs(40));
    cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
    cluster.create(leader, session, "/gone", CreateMode::Persistent).unwrap();
    cluster.advance(HEARTBEAT * 2);
    cluster.watch(laggard, watcher, 1, "/", WatchMode::PersistentRecursive);
    cluster.events.clear();
    cluster.isolate(laggard);
    // Big entries, so that few of them make a checkpoint due.
    for n in 0..600 {
        let data = vec![n as u8; 40_000].into();
        let op = Op::Set { path: "/a".into(), data, version: None };
        cluster.write(leader, session, Command::Op(op));
        cluster.settle();
    }
    let delete = Op::Delete { path: "/gone".into(), version: None };
    let delete = cluster.write(leader, session, Command::Op(delete));
    cluster.answer(delete).unwrap();
    cluster.advance(HEARTBEAT * 4);
    cluster.heal();
    cluster.advance(Duration::from_secs(8));
    cluster.check_equal();
    let seen: Vec<_> = cluster
        .events
        .iter()
        .map(|(_, event)| (event.kind, event.path.as_str(), event.net))
        .collect();
    let expected = [(EventKind::DataChanged, "/a", true), (EventKind::Deleted, "/gone", true)];
    assert_eq!(seen, expected);
    // The installed state is on its disk.
    cluster.kill(laggard);
    cluster.start(laggard);
    cluster.advance(HEARTBEAT * 40);
    cluster.check_equal();
}

/// All members stopped at the same time for their checkpoints, and with them every write.
#[test]
fn members_do_not_write_their_checkpoints_together() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
    let mut at: BTreeMap<NodeId, BTreeSet<u64>> = BTreeMap::new();
    for n in 0..2_000 {
        let data = vec![n as u8; 40_000].into();
        let op = Op::Set { path: "/a".into(), data, version: None };
        cluster.write(leader, session, Command::Op(op));
        cluster.settle();
        for id in 1..=3 {
            at.entry(id).or_default().insert(cluster.node(id).raft.checkpoints.last().index);
        }
    }
    let at: Vec<BTreeSet<u64>> = at.into_values().collect();
    assert!(at.iter().all(|checkpoints| checkpoints.len() > 3), "{at:?}");
    let first = *at[0].first().unwrap();
    for (one, other) in [(0, 1), (1, 2), (2, 0)] {
        let both: Vec<&u64> = at[one].intersection(&at[other]).filter(|at| **at != first).collect();
        assert!(both.is_empty(), "{at:?}");
    }
}

#[test]
fn nothing_is_acknowledged_before_it_is_durable_on_a_majority() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
    for host in cluster.hosts.values_mut() {
        host.disk_stalled = true;
    }
    let set = cluster.set(leader, session, "/a", "x");
    cluster.settle();
    assert!(!cluster.replies.contains_key(&set));
    let follower = cluster.follower();
    cluster.hosts.get_mut(&follower).unwrap().disk_stalled = false;
    cluster.settle();
    assert!(!cluster.replies.contains_key(&set), "one disk of three is no majority");
    for (id, host) in &mut cluster.hosts {
        host.disk_stalled = *id == leader;
    }
    cluster.answer(set).unwrap();
}

/// raft-rs hands out only entries on the member's own disk, so one slow disk held up the answers to
/// all users of its member, although a majority had their writes.
#[test]
fn a_slow_disk_holds_up_no_answer() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let follower = cluster.follower();
    for (number, slow) in [(1, leader), (2, follower)] {
        let session = cluster.open(slow, number, TIMEOUT);
        let path = format!("/of-{slow}");
        cluster.create(slow, session, &path, CreateMode::Persistent).unwrap();
        cluster.hosts.get_mut(&slow).unwrap().disk_stalled = true;
        let set = cluster.set(slow, session, &path, "x");
        cluster.answer(set).unwrap();
        assert_eq!(cluster.data(slow, &path).as_deref(), Some("x"));
        cluster.hosts.get_mut(&slow).unwrap().disk_stalled = false;
        cluster.settle();
    }
    cluster.check_equal();
}

#[test]
fn acknowledged_writes_survive_the_loss_of_all_nodes() {
    let mut cluster = Cluster::new(3);
    for round in 1..=5_u64 {
        cluster.elect();
        let session = cluster.open(round % 3 + 1, round, TIMEOUT);
        cluster
            .create(round % 3 + 1, session, &format!("/r{round}"), CreateMode::Persistent)
            .unwrap();
        for id in 1..=3 {
            cluster.kill(id);
        }
        for id in 1..=3 {
            cluster.start(id);
        }
    }
    cluster.elect();
    cluster.advance(HEARTBEAT * 10);
    for round in 1..=5 {
        assert!(cluster.data(1, &format!("/r{round}")).is_some(), "/r{round}");
    }
    cluster.check_equal();
}

#[test]
fn a_node_that_lost_its_log_stops_instead_of_voting() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let victim = cluster.follower();
    let blank = cluster.hosts[&victim].disk.clone();
    let session = cluster.open(leader, 1, TIMEOUT);
    for n in 0..10 {
        cluster.create(leader, session, &format!("/n{n}"), CreateMode::Persistent).unwrap();
    }
    cluster.kill(victim);
    cluster.hosts.get_mut(&victim).unwrap().disk = blank;
    cluster.start(victim);
    cluster.advance(HEARTBEAT * 10);
    let reason = &cluster.stopped[&victim];
    assert!(reason.contains("acknowledged data was lost"), "{reason}");
    cluster.create(leader, session, "/after", CreateMode::Persistent).unwrap();
}

#[test]
fn a_failed_disk_stops_the_node_and_answers_everybody() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    for host in cluster.hosts.values_mut() {
        host.disk_stalled = true;
    }
    let set = cluster.set(leader, session, "/", "x");
    cluster.settle();
    cluster.fail_disk(leader);
    assert!(matches!(cluster.answer(set), Err(Error::Stopped { .. })));
    assert!(cluster.stopped[&leader].contains("disk"));
    let late = cluster.set(leader, session, "/", "y");
    assert!(matches!(cluster.answer(late), Err(Error::Stopped { .. })));
    for host in cluster.hosts.values_mut() {
        host.disk_stalled = false;
    }
    cluster.isolate(leader);
    let new = cluster.elect();
    assert_ne!(new, leader);
}

#[test]
fn a_closed_session_takes_nothing_more() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let session = cluster.open(1, 1, TIMEOUT);
    cluster.create(1, session, "/e", CreateMode::Ephemeral).unwrap();
    let before: RequestId = cluster.set(1, session, "/e", "x");
    let close = cluster.write(1, session, Command::Close);
    let after = cluster.set(1, session, "/e", "y");
    assert!(cluster.answer(before).is_ok());
    assert!(matches!(cluster.answer(close), Ok(Answer::Reply(Reply::Done))));
    assert!(matches!(cluster.answer(after), Err(Error::SessionClosed { .. })));
    assert_eq!(cluster.data(1, "/e"), None);
    assert!(cluster.states.contains(&(1, session, SessionState::Closed)));
    assert_eq!(TICK * 3, TIMEOUT);
}

/// A session's requests come a second time after the session has ended: held up on their way, or
/// resent to another leader. Running its open again would run its writes again too.
#[test]
fn late_copies_of_an_ended_session_s_requests_do_nothing() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let holder = cluster.follower();
    let session = cluster.open(holder, 1, TIMEOUT);
    for _ in 0..3 {
        cluster.create(holder, session, "/n-", CreateMode::PersistentSequential).unwrap();
    }
    let copies: Vec<_> = cluster.forwarded.clone();
    assert!(copies.len() >= 4);
    let close = cluster.write(holder, session, Command::Close);
    cluster.answer(close).unwrap();
    let before = cluster.node(leader).machine().zxid();
    for message in copies {
        cluster.deliver(holder, leader, message);
    }
    cluster.advance(HEARTBEAT * 4);
    assert_eq!(cluster.node(leader).machine().zxid(), before);
    cluster.check_equal();
}

/// The wall clocks' years ahead.
const YEARS_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

/// Creates a znode with a time to live of a minute, and checks that it lives for a minute, within a
/// tenth and the leader's period of reaping.
fn a_minute_lasts_a_minute(cluster: &mut Cluster, path: &str) {
    let leader = cluster.elect();
    let number = 100 + cluster.node(leader).last_index();
    let session = cluster.open(leader, number, Duration::from_secs(40));
    let ttl = CreateMode::PersistentWithTtl(Duration::from_secs(60));
    cluster.create(leader, session, path, ttl).unwrap();
    let there = |cluster: &Cluster| cluster.node(leader).machine().tree().get(path).is_some();
    cluster.advance(Duration::from_secs(54));
    assert!(there(cluster), "{path} went early");
    cluster.advance(Duration::from_secs(16));
    assert!(!there(cluster), "{path} stays");
}

/// A leader whose clock was years ahead for a moment stamped writes with that time, and the log
/// time stood still until the clock reached it or another node led. No time to live ended, no item
/// became due, and no lock-delay ended.
#[test]
fn the_log_s_time_goes_on_when_the_leader_s_clock_was_ahead() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, Duration::from_secs(40));
    cluster.set_wall_clock(YEARS_MS);
    cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
    for wall in [1_000_000, 0, 5] {
        cluster.set_wall_clock(wall);
        a_minute_lasts_a_minute(&mut cluster, &format!("/t{wall}"));
        assert_eq!(cluster.leader(), Some(leader), "it leads all the time");
    }
    cluster.check_equal();
}

/// Such a moment also ended every time to live at once.
#[test]
fn a_leader_s_clock_that_is_ahead_for_a_moment_ends_nothing_early() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, Duration::from_secs(40));
    let ttl = CreateMode::PersistentWithTtl(Duration::from_secs(60));
    cluster.create(leader, session, "/t", ttl).unwrap();
    let wall = cluster.clock().wall_ms;
    cluster.set_wall_clock(wall + YEARS_MS);
    cluster.advance(Duration::from_secs(2));
    cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
    cluster.set_wall_clock(wall);
    cluster.advance(Duration::from_secs(20));
    assert!(cluster.node(leader).machine().tree().get("/t").is_some());
    cluster.advance(Duration::from_secs(50));
    assert!(cluster.node(leader).machine().tree().get("/t").is_none());
    cluster.check_equal();
}

/// The log time is years ahead of all wall clocks, since a node with a wrong clock has begun to
/// lead. A later time to live of a minute still lasts a minute, whichever node leads.
#[test]
fn a_new_leader_goes_on_from_the_log_s_time() {
    let mut cluster = Cluster::new(3);
    cluster.set_wall_clock(YEARS_MS);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, Duration::from_secs(40));
    cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
    for wall in [1_000_000, 0, 5] {
        cluster.set_wall_clock(wall);
        cluster.resign(cluster.leader().unwrap());
        cluster.advance(HEARTBEAT * 40);
        a_minute_lasts_a_minute(&mut cluster, &format!("/t{wall}"));
    }
    cluster.check_equal();
}

/// Once in each election timeout raft-rs forgets which members were active, until they answer again. A leader that
/// was asked to resign in between did nothing.
#[test]
fn a_leader_that_is_asked_to_resign_hands_over_at_any_time() {
    for ticks in 0..12 {
        let mut cluster = Cluster::new(3);
        let leader = cluster.elect();
        cluster.advance(HEARTBEAT * ticks);
        cluster.now += HEARTBEAT;
        cluster.tick(leader);
        cluster.resign(leader);
        cluster.step(leader);
        cluster.advance(HEARTBEAT * 4);
        assert!(cluster.leader().is_some_and(|next| next != leader), "after {ticks} heartbeats");
    }
}
