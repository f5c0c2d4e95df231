//! The metrics of an instance.

use std::time::Duration;

use quorate::testing::Cluster;
use quorate::{CreateMode, WatchMode};

#[test]
fn writes_are_counted_by_every_replica_and_the_rest_by_whose_it_is() {
    let cluster = Cluster::new(3);
    let (one, other) = (cluster.node(0), cluster.node(1));
    let session = one.open_session().unwrap();
    let watch = session.watch("/", WatchMode::PersistentRecursive).unwrap();
    let path = |n| format!("/jobs/{n}");
    session.create("/jobs", b"", CreateMode::Persistent).unwrap();
    for n in 0..5 {
        session.create(&path(n), b"", CreateMode::Ephemeral).unwrap();
        session.set(&path(n), b"1").unwrap();
    }
    session.delete(&path(0)).unwrap();
    assert!(session.delete(&path(0)).is_err());
    let metrics = one.metrics();
    assert_eq!(metrics.watch_events, watch.events().try_iter().count() as u64);
    assert_eq!((metrics.znodes_created, metrics.znodes_changed), (6, 5));
    assert_eq!((metrics.znodes_deleted, metrics.requests_refused), (1, 1));
    assert_eq!(metrics.changes_below["/jobs"], 12);
    assert_eq!(metrics.watches, 1);
    session.close().unwrap();
    cluster.advance(Duration::from_secs(1));
    let (metrics, others) = (one.metrics(), other.metrics());
    assert_eq!((metrics.znodes_deleted, metrics.sessions_ended), (5, 1));
    assert_eq!(others.changes_below, metrics.changes_below);
    assert_eq!((others.watch_events, others.watches), (0, 0));
    let won: u64 = (0..3).map(|node| cluster.node(node).metrics().elections_won).sum();
    assert_eq!(won, 1);
}
