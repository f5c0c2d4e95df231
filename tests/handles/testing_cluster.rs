//! The in-memory cluster, as users' tests rely on it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use quorate::testing::Cluster;
use quorate::{CreateMode, Error, SessionState};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn it_is_ready_when_new_returns_whatever_its_size() {
    for nodes in [1, 2, 3, 5, 7] {
        let cluster = Cluster::new(nodes);
        assert!(cluster.leader().is_some());
        let created =
            cluster.node(nodes - 1).session().create("/a", b"", CreateMode::Persistent).wait();
        assert!(created.is_ok(), "{nodes} nodes: {created:?}");
    }
}

#[test]
fn handles_outlive_the_cluster_they_come_from() {
    let (session, lock) = {
        let session = Cluster::new(3).node(1).session();
        let lock = session.lock("/lock").unwrap();
        (session, lock)
    };
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let guard = lock.acquire().wait().unwrap();
    drop((session, lock));
    assert!(guard.is_held());
    guard.release().wait().unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it measures real time")]
fn minutes_pass_in_less_than_real_time() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let start = Instant::now();
    cluster.advance(Duration::from_secs(300));
    assert!(start.elapsed() < Duration::from_secs(100));
    session.set("/mine", b"a healthy session lives on").wait().unwrap();
}

#[test]
fn two_clusters_have_nothing_in_common() {
    let (one, two) = (Cluster::new(1), Cluster::new(1));
    one.node(0).session().create("/a", b"", CreateMode::Persistent).wait().unwrap();
    assert!(two.node(0).session().exists("/a").wait().unwrap().is_none());
    one.stop(0);
    two.node(0).session().sync().wait().unwrap();
}

#[test]
fn an_invalid_node_index_panics_in_the_caller_and_leaves_the_cluster_alone() {
    let cluster = Cluster::new(3);
    let mistakes: [&dyn Fn(); 5] = [
        &|| drop(cluster.node(3)),
        &|| cluster.stop(3),
        &|| cluster.restart(3),
        &|| cluster.isolate(3),
        &|| cluster.partition(&[&[0, 3]]),
    ];
    for mistake in mistakes {
        assert!(catch_unwind(AssertUnwindSafe(mistake)).is_err());
    }
    cluster.node(0).session().sync().wait().unwrap();
}

#[test]
fn a_stopped_node_answers_every_request_with_stopped() {
    let cluster = Cluster::new(3);
    let node = cluster.node(1);
    let session = node.session();
    session.sync().wait().unwrap();
    cluster.isolate(1);
    let waiting = session.create("/a", b"", CreateMode::Persistent);
    let watch = session.watch("/a", quorate::WatchMode::Persistent);
    cluster.stop(1);
    assert!(matches!(waiting.wait(), Err(Error::Stopped { .. })));
    assert!(matches!(watch.wait(), Err(Error::Stopped { .. })));
    let error = node.wait_ready(Duration::from_secs(1)).wait().unwrap_err();
    assert!(matches!(error, Error::Stopped { .. }), "{error}");
    assert!(node.status().to_string().contains("has stopped"), "{}", node.status());
    cluster.stop(1);
    node.wait_stopped().wait().unwrap();
    assert_eq!(node.availability_changes().events().iter().count(), 1, "the channel closes");
    cluster.heal();
    cluster.restart(1);
    cluster.node(1).wait_ready(Duration::from_secs(30)).wait().unwrap();
    assert!(
        matches!(session.get("/").wait(), Err(Error::Stopped { .. })),
        "the old handle stays ended"
    );
    assert!(cluster.node(1).session().exists("/a").wait().unwrap().is_none());
}

#[test]
fn a_frozen_leader_is_replaced_and_follows_when_it_thaws() {
    let cluster = Cluster::new(3);
    let leader = cluster.leader().unwrap();
    let other = cluster.node((leader + 1) % 3).session();
    let held = cluster.node(leader).session();
    held.create("/held", b"", CreateMode::Ephemeral).wait().unwrap();
    cluster.freeze(leader);
    let mut waits = held.set("/held", b"later");
    cluster.advance(30 * SECOND);
    assert_ne!(cluster.leader().unwrap(), leader);
    other.sync().wait().unwrap();
    assert!(other.exists("/held").wait().unwrap().is_none(), "its session has expired");
    assert!(waits.try_take().is_none());
    cluster.thaw(leader);
    cluster.advance(SECOND);
    assert_eq!(held.state(), SessionState::Expired);
    assert!(waits.wait().is_err());
    let again = cluster.node(leader).open_session().unwrap();
    again.create("/again", b"", CreateMode::Persistent).wait().unwrap();
}

/// In the other direction, it would stay the leader: heartbeats arrive, and nobody confirms them.
#[test]
fn a_leader_that_hears_nobody_steps_down() {
    let cluster = Cluster::new(3);
    let leader = cluster.leader().unwrap();
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    others.iter().for_each(|other| cluster.cut(*other, leader));
    cluster.advance(10 * SECOND);
    assert!(cluster.leader().is_some_and(|now| now != leader));
    cluster.heal();
    cluster.advance(5 * SECOND);
    let session = cluster.node(leader).open_session().unwrap();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
}

#[test]
fn messages_take_their_time_and_keep_their_order() {
    let cluster = Cluster::new(3);
    let leader = cluster.leader().unwrap();
    let far = (leader + 1) % 3;
    let (here, there) = (cluster.node(leader).session(), cluster.node(far).session());
    here.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    there.sync().wait().unwrap();
    cluster.delay(leader, far, 200 * SECOND / 1000);
    for number in 0..10 {
        here.set("/a", format!("{number}")).wait().unwrap();
    }
    assert_eq!(&there.get("/a").wait().unwrap().0[..], b"", "nothing has arrived");
    cluster.delay(leader, far, Duration::ZERO);
    here.set("/a", b"last").wait().unwrap();
    cluster.advance(SECOND);
    assert_eq!(&there.get("/a").wait().unwrap().0[..], b"last");
}

/// The log's time follows its leader's wall clock, a tenth faster than the clock that the cluster shares.
#[test]
fn a_node_has_a_wall_clock_of_its_own() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let log_time = || {
        let set = session.create_or_set("/now", b"", CreateMode::Persistent);
        Duration::from_millis(set.wait().unwrap().stat.mtime)
    };
    for (ahead_ms, passes) in [(3_600_000, 660), (-3_600_000, 540)] {
        cluster.set_clock(0, ahead_ms);
        let before = log_time();
        cluster.advance(600 * SECOND);
        let passed = log_time() - before;
        assert!(passed.abs_diff(passes * SECOND) < 20 * SECOND, "{passed:?}, {ahead_ms}");
    }
}

#[test]
fn one_full_disk_refuses_no_write_and_two_of_three_do() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    cluster.fill_disk(1, true);
    cluster.advance(5 * SECOND);
    session.set("/a", b"1").wait().unwrap();
    cluster.fill_disk(2, true);
    cluster.restart(2);
    cluster.advance(5 * SECOND);
    assert!(matches!(session.set("/a", b"2").wait(), Err(Error::DiskLow { .. })));
    cluster.fill_disk(2, false);
    cluster.advance(5 * SECOND);
    session.set("/a", b"3").wait().unwrap();
}

/// All clusters in memory had one id, so that a token of one was taken for that of another.
#[test]
fn the_token_of_another_cluster_is_refused() {
    let clusters = [Cluster::new(1), Cluster::new(1)];
    let [one, other] = clusters.each_ref().map(|cluster| cluster.node(0).session());
    one.sync().wait().unwrap();
    let refused = other.wait_for_zxid(one.causal_token().wait().unwrap()).wait();
    assert!(matches!(refused, Err(Error::InvalidSetting { .. })), "{refused:?}");
}
