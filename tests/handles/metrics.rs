//! The metrics of an instance.

use std::time::Duration;

use quorate::operate::Histogram;
use quorate::testing::Cluster;
use quorate::{CreateMode, WatchMode};

#[test]
fn every_replica_counts_writes_and_other_metrics_are_local() {
    let cluster = Cluster::new(3);
    let (one, other) = (cluster.node(0), cluster.node(1));
    let session = one.open_session().unwrap();
    let watch = session.watch("/", WatchMode::PersistentRecursive).wait().unwrap();
    let path = |n| format!("/jobs/{n}");
    session.create("/jobs", b"", CreateMode::Persistent).wait().unwrap();
    for n in 0..5 {
        session.create(&path(n), b"", CreateMode::Ephemeral).wait().unwrap();
        session.set(&path(n), b"1").wait().unwrap();
    }
    session.delete(&path(0)).wait().unwrap();
    assert!(session.delete(&path(0)).wait().is_err());
    let metrics = one.metrics().wait().unwrap();
    assert_eq!(metrics.watch_events, watch.events().try_iter().count() as u64);
    assert_eq!((metrics.znodes_created, metrics.znodes_changed), (6, 5));
    assert_eq!((metrics.znodes_deleted, metrics.requests_refused), (1, 1));
    assert_eq!(metrics.changes_below["/jobs"], 12);
    assert_eq!(metrics.watches, 1);
    session.close().wait().unwrap();
    cluster.advance(Duration::from_secs(1));
    let (metrics, others) = (one.metrics().wait().unwrap(), other.metrics().wait().unwrap());
    assert_eq!((metrics.znodes_deleted, metrics.sessions_ended), (5, 1));
    assert_eq!(others.changes_below, metrics.changes_below);
    assert_eq!((others.watch_events, others.watches), (0, 0));
    assert_eq!((metrics.sessions_expired, others.requests_refused), (0, 0));
    let won: u64 =
        (0..3).map(|node| cluster.node(node).metrics().wait().unwrap().elections_won).sum();
    assert_eq!(won, 1);
}

#[test]
fn durations_are_measured_where_the_work_is_done() {
    let cluster = Cluster::new(3);
    let leads = |place: &usize| cluster.node(*place).status().is_leader;
    let leader = (0..3).find(leads).expect("the cluster has one from the start");
    let (one, other) = (cluster.node(leader), cluster.node((leader + 1) % 3));
    let session = other.open_session().unwrap();
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let before = (one.metrics().wait().unwrap(), other.metrics().wait().unwrap());
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    session.sync().wait().unwrap();
    assert_eq!(watch.events().try_iter().count(), 1);
    let after = (one.metrics().wait().unwrap(), other.metrics().wait().unwrap());
    let added = |of: fn(&quorate::operate::Metrics) -> &Histogram| {
        let of = |before, after| of(after).count() - of(before).count();
        (of(&before.0, &after.0), of(&before.1, &after.1))
    };
    assert_eq!(added(|of| &of.commit), (1, 0), "the leader's");
    assert!(added(|of| &of.disk_sync).1 >= 1);
    assert!(added(|of| &of.apply).1 >= 1);
    assert!(added(|of| &of.sync).1 >= 1);
    assert_eq!(added(|of| &of.watch_delivery), (0, 1), "by the watch");
}

/// One session is closed, one expires, and others stay.
#[test]
fn a_session_that_expires_is_counted_apart_from_those_that_are_closed() {
    let cluster = Cluster::new(3);
    let sessions: Vec<_> = (0..3).map(|n| cluster.node(n).open_session().unwrap()).collect();
    sessions[0].close().wait().unwrap();
    cluster.expire(&sessions[1]);
    cluster.node(0).session().sync().wait().unwrap();
    assert_eq!(cluster.node(0).metrics().wait().unwrap().sessions_ended, 2);
    let expired = (0..3).map(|node| cluster.node(node).metrics().wait().unwrap().sessions_expired);
    assert_eq!(expired.sum::<u64>(), 1, "the leader counts");
}

#[test]
fn metrics_that_an_instance_does_not_have_are_absent() {
    let cluster = Cluster::new(3);
    cluster.advance(Duration::from_secs(2));
    let metrics = cluster.node(0).metrics().wait().unwrap();
    assert_eq!((metrics.members, metrics.unreachable_members), (3, 0));
    assert_eq!((metrics.has_leader, metrics.spare_voters), (true, Some(1)));
    assert!(metrics.stale_by.is_some() && metrics.applied_index > Some(0));
    assert!(metrics.durable_index >= metrics.applied_index && metrics.log_bytes > Some(0));
    let client = cluster.add_client();
    let session = cluster.node(client).open_session().unwrap();
    assert!(session.delete("/none").wait().is_err());
    let metrics = cluster.node(client).metrics().wait().unwrap();
    assert_eq!((metrics.requests_refused, metrics.has_leader), (1, true));
    assert_eq!((metrics.applied_index, metrics.log_bytes), (None, None));
    let text = metrics.to_string();
    assert!(text.contains("\nquorate_requests_refused_total 1\n"), "{text}");
    for absent in ["quorate_znodes", "quorate_applied_index", "quorate_zxid"] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
}
