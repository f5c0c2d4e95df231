//! The in-memory cluster, as users' tests rely on it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use quorate::testing::Cluster;
use quorate::{CreateMode, Error};

#[test]
fn it_is_ready_when_new_returns_whatever_its_size() {
    for nodes in [1, 2, 3, 5, 7] {
        let cluster = Cluster::new(nodes);
        assert!(cluster.leader().is_some());
        let created = cluster.node(nodes - 1).session().create("/a", b"", CreateMode::Persistent);
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
    session.create("/a", b"", CreateMode::Persistent).unwrap();
    let guard = lock.acquire().unwrap();
    drop((session, lock));
    assert!(guard.is_held());
    guard.release().unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it measures real time")]
fn minutes_pass_in_less_than_real_time() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/mine", b"", CreateMode::Ephemeral).unwrap();
    let start = Instant::now();
    cluster.advance(Duration::from_secs(300));
    assert!(start.elapsed() < Duration::from_secs(100));
    session.set("/mine", b"a healthy session lives on").unwrap();
}

#[test]
fn two_clusters_have_nothing_in_common() {
    let (one, two) = (Cluster::new(1), Cluster::new(1));
    one.node(0).session().create("/a", b"", CreateMode::Persistent).unwrap();
    assert!(two.node(0).session().exists("/a").unwrap().is_none());
    one.stop(0);
    two.node(0).session().sync().unwrap();
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
    cluster.node(0).session().sync().unwrap();
}

#[test]
fn a_stopped_node_answers_every_request_with_stopped() {
    let cluster = Cluster::new(3);
    let node = cluster.node(1);
    let session = node.session();
    session.sync().unwrap();
    cluster.isolate(1);
    let waiting = session.nonblocking().create("/a", b"", CreateMode::Persistent);
    let watch = session.nonblocking().watch("/a", quorate::WatchMode::Persistent);
    cluster.stop(1);
    assert!(matches!(waiting.wait(), Err(Error::Stopped { .. })));
    assert!(matches!(watch.wait(), Err(Error::Stopped { .. })));
    let error = node.wait_ready(Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, Error::Stopped { .. }), "{error}");
    assert!(node.status().to_string().contains("has stopped"), "{}", node.status());
    cluster.stop(1);
    node.wait_stopped().unwrap();
    assert_eq!(node.availability_changes().events().iter().count(), 1, "the channel closes");
    cluster.heal();
    cluster.restart(1);
    cluster.node(1).wait_ready(Duration::from_secs(30)).unwrap();
    assert!(matches!(session.get("/"), Err(Error::Stopped { .. })), "the old handle stays ended");
    assert!(cluster.node(1).session().exists("/a").unwrap().is_none());
}
