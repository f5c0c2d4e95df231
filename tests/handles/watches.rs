//! The guarantees of watches, through the public handles.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, EventKind, Watch, WatchEvent, WatchMode};

#[test]
fn every_change_comes_once_and_in_order_from_any_node() {
    let cluster = Cluster::new(3);
    let (writer, reader) = (cluster.node(0).session(), cluster.node(2).session());
    let watch = reader.watch("/a", WatchMode::PersistentRecursive).wait().unwrap();
    let mut expected = Vec::new();
    expected.push(writer.create("/a", b"", CreateMode::Persistent).wait().unwrap().stat.czxid);
    for _ in 0..500 {
        expected.push(writer.set("/a", b"x").wait().unwrap().mzxid);
    }
    let seen: Vec<u64> =
        watch.events().iter().take(expected.len()).map(|event| event.zxid).collect();
    assert_eq!(seen, expected);
}

#[test]
fn a_reader_with_the_event_reads_at_least_its_change() {
    let cluster = Cluster::new(3);
    let writer = cluster.node(0).session();
    writer.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let sets = 3000;
    std::thread::scope(|scope| {
        for node in 0..3 {
            let reader = cluster.node(node).session();
            reader.sync().wait().unwrap();
            let watch = reader.watch("/a", WatchMode::Persistent).wait().unwrap();
            scope.spawn(move || {
                for event in watch.events().iter() {
                    let stat = reader.get("/a").wait().unwrap().1;
                    assert!(stat.mzxid >= event.zxid, "{} < {}", stat.mzxid, event.zxid);
                    if stat.version == sets {
                        return;
                    }
                }
            });
        }
        for _ in 0..sets {
            writer.set("/a", b"x").wait().unwrap();
        }
    });
}

#[test]
fn the_event_is_there_before_the_change_can_be_read() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    std::thread::scope(|scope| {
        let writer = session.clone();
        scope.spawn(move || (0..3000).for_each(|_| assert!(writer.set("/a", b"x").wait().is_ok())));
        let mut known = 0;
        while known < 3000 {
            let version = session.get("/a").wait().unwrap().1.version;
            let events = watch.events().try_iter().count() as u64;
            known += events;
            assert!(known >= version, "version {version} was read after {known} events");
            // A gap would invalidate this test.
            assert!(events < Watch::CAPACITY as u64);
        }
    });
}

#[test]
fn one_shot_watches_are_set_with_the_read_and_end_when_they_fire() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    assert!(session.get_and_watch("/a").wait().is_err());
    let (missing, created) = session.exists_and_watch("/a").wait().unwrap();
    assert!(missing.is_none());
    session.create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    let event = created.recv().wait().unwrap().unwrap();
    assert_eq!((event.kind, event.net), (EventKind::Created, false));
    assert!(created.recv().wait().unwrap().is_none());

    let (data, _, changed) = session.get_and_watch("/a").wait().unwrap();
    let (children, child) = session.children_and_watch("/a").wait().unwrap();
    assert_eq!((&data[..], children.len()), (&b"1"[..], 0));
    session.create("/a/b", b"", CreateMode::Persistent).wait().unwrap();
    session.set("/a", b"2").wait().unwrap();
    let kinds = |watch: quorate::Watch| -> Vec<EventKind> {
        watch.events().iter().map(|event| event.kind).collect()
    };
    assert_eq!(kinds(changed), [EventKind::DataChanged]);
    assert_eq!(kinds(child), [EventKind::ChildrenChanged]);
    session.delete("/a/b").wait().unwrap();
    let (_, _, gone) = session.get_and_watch("/a").wait().unwrap();
    let (_, no_children) = session.children_and_watch("/a").wait().unwrap();
    session.delete("/a").wait().unwrap();
    assert_eq!(kinds(gone), [EventKind::Deleted]);
    assert_eq!(kinds(no_children), [EventKind::Deleted]);
}

#[test]
fn a_multi_s_events_come_together_in_its_order() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let watch = session.watch("/", WatchMode::PersistentRecursive).wait().unwrap();
    session
        .multi()
        .create("/x", b"", CreateMode::Persistent)
        .set("/x", b"1")
        .create("/y", b"", CreateMode::Persistent)
        .delete("/x")
        .commit()
        .wait()
        .unwrap();
    assert!(session.multi().delete("/y").delete("/nothing").commit().wait().is_err());
    let events: Vec<_> = watch.events().try_iter().collect();
    let kinds: Vec<_> = events.iter().map(|event| (event.kind, event.path.as_str())).collect();
    assert_eq!(
        kinds,
        [
            (EventKind::Created, "/x"),
            (EventKind::DataChanged, "/x"),
            (EventKind::Created, "/y"),
            (EventKind::Deleted, "/x"),
        ]
    );
    assert!(events.iter().all(|event| event.zxid == events[0].zxid));
}

#[test]
fn dropping_a_watch_ends_it_and_so_does_the_end_of_its_session() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).open_session().unwrap();
    let other = cluster.node(0).session();
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let events = watch.events().clone();
    drop(watch);
    other.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    assert!(events.recv().is_err(), "the channel closes without an event");
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    session.close().wait().unwrap();
    assert!(watch.recv().wait().unwrap().is_none());
}

#[test]
fn a_slow_reader_gets_a_gap_and_then_goes_on() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let sets: Vec<_> = (0..Watch::CAPACITY * 3).map(|_| session.set("/a", b"x")).collect();
    let last = sets.into_iter().last().unwrap().wait().unwrap();
    let seen: Vec<_> = watch.events().try_iter().collect();
    assert_eq!(seen.len(), Watch::CAPACITY + 1);
    let (gap, before) = seen.split_last().unwrap();
    assert_eq!(gap.kind, EventKind::Gap);
    assert_eq!(gap.zxid, before.last().unwrap().zxid + 1, "the first write that was left out");
    assert_eq!(session.get("/a").wait().unwrap().1, last);
    session.set("/a", b"y").wait().unwrap();
    assert_eq!(watch.recv().wait().unwrap().unwrap().kind, EventKind::DataChanged);
}

/// The events of one multi in several channels could not be put into order.
#[test]
fn the_events_of_several_watches_can_be_put_into_the_order_of_the_changes() {
    let cluster = Cluster::new(1);
    let client = cluster.node(cluster.add_client()).session();
    let session = cluster.node(0).session();
    let before = session.create("/c", b"", CreateMode::Persistent).wait().unwrap().stat.czxid;
    client.sync().wait().unwrap();
    let watches = |of: &quorate::Session, from: Option<quorate::session::Zxid>| {
        let watch = |path, mode| match from {
            Some(from) => of.watch_from(path, mode, from).wait().unwrap(),
            None => of.watch(path, mode).wait().unwrap(),
        };
        let mut all: Vec<_> = ["/c", "/a", "/b"]
            .into_iter()
            .map(|path| watch(path, WatchMode::PersistentRecursive))
            .collect();
        all.push(watch("/", WatchMode::Persistent));
        all
    };
    let (here, there) = (watches(&session, None), watches(&client, None));
    session.set("/c", b"first").wait().unwrap();
    let multi = session.multi().create("/b", b"", CreateMode::Persistent);
    let multi = multi.create("/a", b"", CreateMode::Persistent).set("/b", b"x").delete("/c");
    let multi = multi.set("/a", b"y").create("/a/1", b"", CreateMode::Persistent);
    multi.delete("/b").commit().wait().unwrap();
    let past = watches(&session, Some(before));
    client.sync().wait().unwrap();
    use EventKind::{ChildrenChanged, Created, DataChanged, Deleted};
    let expected = [
        (DataChanged, "/c"),
        (Created, "/b"),
        (ChildrenChanged, "/"),
        (Created, "/a"),
        (ChildrenChanged, "/"),
        (DataChanged, "/b"),
        (Deleted, "/c"),
        (ChildrenChanged, "/"),
        (DataChanged, "/a"),
        (Created, "/a/1"),
        (Deleted, "/b"),
        (ChildrenChanged, "/"),
    ];
    for of in [here, past, there] {
        let mut events = Vec::new();
        for watch in &of {
            let received: Vec<_> = watch.events().try_iter().collect();
            assert!(received.is_sorted_by_key(|event| (event.zxid, event.position)));
            events.extend(received);
        }
        events.sort_by_key(|event| (event.zxid, event.position));
        let order: Vec<_> = events.iter().map(|event| (event.kind, &*event.path)).collect();
        assert_eq!(order, expected);
    }
}

/// A waker that reads the tree and then the channel, on the thread that wakes it, as `docs/watches.md`
/// describes.
struct Looking {
    session: quorate::Session,
    events: crossbeam_channel::Receiver<quorate::WatchEvent>,
    seen: Mutex<Option<(quorate::session::Zxid, Vec<quorate::WatchEvent>)>>,
}

impl Wake for Looking {
    fn wake(self: Arc<Self>) {
        let upto = self.session.snapshot().wait().unwrap().zxid();
        *self.seen.lock().unwrap() = Some((upto, self.events.try_iter().collect()));
    }
}

/// A full channel left an event out, and got its gap only after the change could be read. A reader that asked
/// for the tree's zxid in between and then emptied the channel found neither. It stored that zxid and resumed
/// after it: the event was lost for ever.
#[test]
fn a_full_channel_has_its_gap_before_the_change_can_be_read() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let bell = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let full = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    for _ in 0..Watch::CAPACITY {
        session.set("/a", b"x").wait().unwrap();
    }
    bell.events().try_iter().for_each(drop);
    let looking = Arc::new(Looking {
        session: session.clone(),
        events: full.events().clone(),
        seen: Mutex::new(None),
    });
    let waker = Waker::from(Arc::clone(&looking));
    let mut next = pin!(bell.recv());
    assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let set = session.set("/a", b"y").wait().unwrap().mzxid;
    let (upto, events) = looking.seen.lock().unwrap().take().expect("it was woken");
    assert_eq!(upto, set);
    let last = events.last().unwrap();
    assert_eq!((events.len(), last.kind, last.zxid), (Watch::CAPACITY + 1, EventKind::Gap, set));
}

#[test]
fn a_node_that_was_cut_off_for_long_gets_the_net_changes() {
    let cluster =
        Cluster::with_settings(3, Coordinator::builder().session_timeout(Duration::from_secs(40)));
    let cut = (cluster.leader().unwrap() + 1) % 3;
    let (writer, reader) =
        (cluster.node(cluster.leader().unwrap()).session(), cluster.node(cut).session());
    writer.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    reader.sync().wait().unwrap();
    let watch = reader.watch("/", WatchMode::PersistentRecursive).wait().unwrap();
    cluster.isolate(cut);
    // Until then the log is retained for this member.
    cluster.advance(Duration::from_secs(10));
    let big = vec![7; 100_000];
    let sets: Vec<_> = (0..600).map(|_| writer.set("/a", &big)).collect();
    let last = sets.into_iter().last().unwrap().wait().unwrap();
    cluster.heal();
    cluster.advance(Duration::from_secs(10));
    reader.sync().wait().unwrap();
    let seen: Vec<_> = watch.events().try_iter().collect();
    let (last_event, before) = seen.split_last().expect("the reader received events");
    assert_eq!(last_event.zxid, last.mzxid);
    assert!(seen.iter().any(|event| event.net), "{} events", seen.len());
    assert!(before.len() < 600);
    assert_eq!(reader.get("/a").wait().unwrap().1, last);
}

#[test]
fn a_watch_does_not_keep_its_session() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).open_session().unwrap();
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    drop(session);
    assert_eq!(watch.recv().wait().unwrap(), None);
}

/// Each event has the znode as its own write has left it, though later writes were in flight; the events of a
/// multi have the state after the whole multi.
#[test]
fn events_bring_their_znode() {
    let cluster = Cluster::new(3);
    let (writer, reader) = (cluster.node(0).session(), cluster.node(1).session());
    let watch = reader.watch_with_data("/a", WatchMode::PersistentRecursive).wait().unwrap();
    let plain = reader.watch("/a", WatchMode::PersistentRecursive).wait().unwrap();
    writer.create("/a", b"0", CreateMode::Persistent).wait().unwrap();
    let sets: Vec<_> = (1..50).map(|n| writer.set("/a", n.to_string())).collect();
    let stats: Vec<_> = sets.into_iter().map(|set| set.wait().unwrap()).collect();
    writer
        .multi()
        .set("/a", b"within")
        .set("/a", b"after")
        .create("/a/b", vec![7; WatchEvent::DATA_MAX], CreateMode::Persistent)
        .create("/a/c", vec![7; WatchEvent::DATA_MAX + 1], CreateMode::Persistent)
        .commit()
        .wait()
        .unwrap();
    writer.delete("/a/b").wait().unwrap();
    reader.sync().wait().unwrap();
    let seen: Vec<_> = watch.events().try_iter().collect();
    let received: Vec<_> = plain.events().try_iter().collect();
    assert_eq!(seen.len(), received.len());
    assert!(received.iter().all(|event| event.data().is_none() && event.stat().is_none()));
    for (n, event) in seen.iter().take(50).enumerate() {
        assert_eq!(event.data(), Some(n.to_string().as_bytes()));
    }
    for (event, stat) in seen[1..50].iter().zip(&stats) {
        assert_eq!(event.stat().as_ref(), Some(stat));
    }
    // Both events of the multi show its final state.
    let data: Vec<_> = seen[50..52].iter().map(|event| event.data().unwrap()).collect();
    assert_eq!(data, [b"after", b"after"]);
    assert_eq!(seen[52].data().map(<[u8]>::len), Some(WatchEvent::DATA_MAX));
    let too_long = (seen[53].data(), seen[53].stat().unwrap().data_length as usize);
    assert_eq!(too_long, (None, WatchEvent::DATA_MAX + 1));
    assert_eq!((seen[54].kind, seen[54].stat()), (EventKind::Deleted, None));
}

/// Each event has the znode as its own write has found it: before the whole multi, for the events of a multi.
#[test]
fn events_bring_their_znode_as_it_was_before() {
    let cluster = Cluster::new(3);
    let (writer, reader) = (cluster.node(0).session(), cluster.node(1).session());
    let watch = reader.watch_with_before("/a", WatchMode::PersistentRecursive).wait().unwrap();
    let parent = reader.watch_with_before("/a", WatchMode::Persistent).wait().unwrap();
    let without = reader.watch_with_data("/a", WatchMode::PersistentRecursive).wait().unwrap();
    let created = writer.create("/a", b"0", CreateMode::Persistent).wait().unwrap();
    let sets: Vec<_> = (1..20).map(|n| writer.set("/a", n.to_string())).collect();
    let stats: Vec<_> = sets.into_iter().map(|set| set.wait().unwrap()).collect();
    writer
        .multi()
        .set("/a", b"within")
        .set("/a", b"after")
        .create("/a/b", vec![7; WatchEvent::DATA_MAX + 1], CreateMode::Persistent)
        .commit()
        .wait()
        .unwrap();
    let again = writer.multi().delete("/a/b");
    again.create("/a/b", b"new", CreateMode::Persistent).commit().wait().unwrap();
    let brief = writer.multi().create("/a/c", b"", CreateMode::Persistent);
    brief.delete("/a/c").commit().wait().unwrap();
    reader.sync().wait().unwrap();
    let seen: Vec<_> = watch.events().try_iter().collect();
    assert_eq!((seen[0].data_before(), seen[0].stat_before()), (None, None));
    let before = std::iter::once(&created.stat).chain(&stats);
    for (n, (event, stat)) in seen[1..20].iter().zip(before).enumerate() {
        assert_eq!(event.data_before(), Some(n.to_string().as_bytes()));
        assert_eq!(event.stat_before().as_ref(), Some(stat));
        assert_eq!(event.data(), Some((n + 1).to_string().as_bytes()));
    }
    // Both events of the multi show the state before it.
    let data: Vec<_> = seen[20..22].iter().map(|event| event.data_before().unwrap()).collect();
    assert_eq!(data, [b"19", b"19"]);
    let kinds: Vec<_> = seen[22..].iter().map(|event| event.kind).collect();
    let (create, delete) = (EventKind::Created, EventKind::Deleted);
    assert_eq!(kinds, [create, delete, create, create, delete]);
    // What was deleted had too much data; what replaces it is new.
    assert_eq!(seen[23].data_before(), None);
    assert_eq!(seen[23].stat_before().unwrap().data_length as usize, WatchEvent::DATA_MAX + 1);
    assert_eq!((seen[24].stat_before(), seen[24].data()), (None, Some(&b"new"[..])));
    // It was created and deleted in one write.
    assert_eq!((seen[26].stat_before(), seen[26].stat()), (None, None));
    // A change of the children brings the parent as it was.
    let changed = parent.events().try_iter().find(|event| event.kind == EventKind::ChildrenChanged);
    let changed = changed.unwrap();
    assert_eq!(changed.data_before(), Some(&b"19"[..]));
    let children = |stat: Option<quorate::Stat>| stat.unwrap().num_children;
    assert_eq!((children(changed.stat_before()), children(changed.stat())), (0, 1));
    assert!(without.events().try_iter().all(|event| event.stat_before().is_none()));
}
