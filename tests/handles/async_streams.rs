//! Streams of changes: the feature `futures`.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use quorate::recipes::{Cache, Config, ConfigUpdate, Group, Instance, LeaderLatch, Registry};
use quorate::testing::Cluster;
use quorate::{CreateMode, EventKind, SessionState, WatchMode};

use crate::common::tasks::{Count, block_on, poll};

/// Like `StreamExt::next`: the future may be dropped at any time.
async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

/// The stream can be sent to another task.
fn sent<S: Stream + Send + Unpin + 'static>(stream: S) -> S {
    stream
}

#[test]
fn a_watchs_stream_gives_each_event_and_ends() {
    let session = Cluster::new(1).node(0).session();
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let mut events = sent(watch.into_stream());
    // A dropped future takes no event away.
    let count: Arc<Count> = Arc::default();
    assert!(poll(Box::pin(next(&mut events)).as_mut(), &count).is_pending());
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    session.set("/a", b"1").wait().unwrap();
    assert!(count.woken() > 0);
    assert_eq!(block_on(next(&mut events)).unwrap().kind, EventKind::Created);
    assert_eq!(block_on(next(&mut events)).unwrap().kind, EventKind::DataChanged);
    session.close().wait().unwrap();
    while block_on(next(&mut events)).is_some() {}
    assert!(block_on(next(&mut events)).is_none(), "it stays at its end");
}

#[test]
fn the_states_of_a_session_are_a_stream() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.sync().wait().unwrap();
    let mut states = sent(session.states());
    let mut changes = sent(cluster.node(0).availability_changes());
    assert_eq!(block_on(next(&mut states)), Some(SessionState::Connected));
    assert!(block_on(next(&mut changes)).is_some());
    session.close().wait().unwrap();
    assert_eq!(block_on(next(&mut states)), Some(SessionState::Closed));
    assert_eq!(block_on(next(&mut states)), None);
    cluster.node(0).close().wait().unwrap();
    while block_on(next(&mut changes)).is_some() {}
}

#[test]
fn recipes_report_changes_as_streams_that_lose_nothing_and_end_with_the_session() {
    let cluster = Cluster::new(1);
    let (session, other) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
    session.create("/tree", b"", CreateMode::Persistent).wait().unwrap();

    let mut changes = sent(Cache::new(&session, "/tree").wait().unwrap().into_stream());
    let count: Arc<Count> = Arc::default();
    // Reads until a stream has to wait: a cache may first report its initial contents.
    while poll(Box::pin(next(&mut changes)).as_mut(), &count).is_ready() {}
    other.create("/tree/a", b"", CreateMode::Persistent).wait().unwrap();
    assert_eq!(block_on(next(&mut changes)).unwrap().unwrap().len(), 1);

    let mut members = sent(Group::new(&session, "/group").unwrap().watch().into_stream());
    assert!(block_on(next(&mut members)).unwrap().unwrap().is_empty());
    let member = Group::new(&other, "/group").unwrap().join("me", b"").wait().unwrap();
    assert_eq!(block_on(next(&mut members)).unwrap().unwrap().len(), 1);
    drop(member);

    let latch = LeaderLatch::new(&other, "/leader", "me").unwrap();
    let mut leaders =
        sent(LeaderLatch::new(&session, "/leader", "").unwrap().watch().into_stream());
    assert!(block_on(next(&mut leaders)).unwrap().unwrap().is_none());
    let leadership = latch.campaign().wait().unwrap();
    assert_eq!(&block_on(next(&mut leaders)).unwrap().unwrap().unwrap().id[..], b"me");
    drop(leadership);

    let config = Config::<u32>::new(&session, "/config").unwrap();
    config.set(&1).wait().unwrap();
    let mut updates = sent(config.watch().into_stream());
    block_on(next(&mut updates)).unwrap().unwrap();
    config.set(&2).wait().unwrap();
    block_on(next(&mut updates)).unwrap().unwrap();
    // A value that cannot be decoded does not end the stream.
    session.set("/config", b"").wait().unwrap();
    let unread = block_on(next(&mut updates)).unwrap();
    assert!(matches!(unread, Ok(ConfigUpdate::Invalid { .. })));
    config.set(&3).wait().unwrap();
    block_on(next(&mut updates)).unwrap().unwrap();

    let discovery = Registry::new(&session, "/services").unwrap();
    let mut instances = sent(discovery.watch("web").unwrap().into_stream());
    let registry = Registry::new(&other, "/services").unwrap();
    let here = registry.register("web", &Instance::new("one", "host", 1)).wait().unwrap();
    while block_on(next(&mut instances)).unwrap().unwrap().is_empty() {}
    here.release().wait().unwrap();

    let guard = session.lock("/lock").unwrap().acquire().wait().unwrap();
    let mut asked = sent(guard.revocations().wait().unwrap().into_stream());
    assert_eq!(other.lock("/lock").unwrap().revoke().wait().unwrap(), 1);
    assert_eq!(block_on(next(&mut asked)), Some(()));

    session.close().wait().unwrap();
    while block_on(next(&mut asked)).is_some() {}
    let mut ended = 0;
    while let Some(change) = block_on(next(&mut changes)) {
        ended += usize::from(change.is_err());
    }
    assert_eq!(ended, 1, "one error, and then the end");
}
