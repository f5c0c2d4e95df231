//! Watches that start in the past, and the removal of watches.

use std::time::Duration;

use quorate::WatcherType;
use quorate::session::Zxid;
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, EventKind, Session, Watch, WatchMode};

fn received(watch: &Watch) -> Vec<(EventKind, String, Zxid)> {
    let events = watch.events().try_iter();
    events.map(|event| (event.kind, event.path, event.zxid)).collect()
}

/// Creates, sets and deletes at several paths. Returns the zxids from which a watch may start.
fn busy(session: &Session, turns: u64) -> Vec<Zxid> {
    let mut zxids = Vec::new();
    for turn in 0..turns {
        let path = format!("/app/{}", turn % 7);
        let zxid = match session.exists(&path).wait().unwrap() {
            None => session.create(&path, b"", CreateMode::Persistent).wait().unwrap().stat.czxid,
            Some(_) if turn % 5 == 0 => {
                session.multi().set("/app", b"").delete(&path).commit().wait().unwrap();
                session.get("/app").wait().unwrap().1.mzxid
            }
            Some(_) => session.set(&path, b"x").wait().unwrap().mzxid,
        };
        zxids.push(zxid);
    }
    zxids
}

#[test]
fn a_watch_from_a_past_zxid_receives_all_later_events() {
    let cluster = Cluster::new(3);
    let (writer, reader) = (cluster.node(0).session(), cluster.node(1).session());
    writer.create("/app", b"", CreateMode::Persistent).wait().unwrap();
    reader.sync().wait().unwrap();
    let modes = [WatchMode::Persistent, WatchMode::PersistentRecursive];
    for mode in modes {
        let live = reader.watch("/app", mode).wait().unwrap();
        let zxids = busy(&writer, 60);
        let there = cluster.node(2).session();
        // Watches that start in the middle, and also receive the next changes.
        let past: Vec<(Zxid, Watch)> = zxids
            .iter()
            .map(|zxid| (*zxid, there.watch_from("/app", mode, *zxid).wait().unwrap()))
            .collect();
        busy(&writer, 20);
        reader.sync().wait().unwrap();
        there.sync().wait().unwrap();
        let all = received(&live);
        assert!(all.len() > 30, "{}", all.len());
        for (zxid, watch) in past {
            let later: Vec<_> = all.iter().filter(|(.., of)| *of > zxid).cloned().collect();
            assert_eq!(received(&watch), later, "{mode:?} from {zxid}");
        }
    }
}

/// The zxid that a session has seen may be ahead of the replica at which it goes on.
#[test]
fn a_replica_that_is_behind_catches_up_first() {
    let cluster = Cluster::new(3);
    let leader = cluster.leader().unwrap();
    let behind = (leader + 1) % 3;
    let (writer, reader) = (cluster.node(leader).session(), cluster.node(behind).session());
    writer.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    reader.sync().wait().unwrap();
    cluster.isolate(behind);
    let seen = writer.set("/a", b"1").wait().unwrap().mzxid;
    let next = writer.set("/a", b"2").wait().unwrap().mzxid;
    let calls = &reader.in_turn();
    let mut pending = calls.watch_from("/a", WatchMode::Persistent, seen);
    let read = calls.get("/a");
    assert!(pending.try_take().is_none());
    cluster.heal();
    let watch = pending.wait().unwrap();
    assert!(read.wait().unwrap().1.mzxid >= seen, "a later call waits too");
    assert_eq!(watch.recv().wait().unwrap().unwrap().zxid, next);
    writer.set("/a", b"3").wait().unwrap();
    assert_eq!(watch.recv().wait().unwrap().unwrap().zxid, next + 1);
}

#[test]
fn a_zxid_that_is_not_written_yet_is_an_error() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let last = session.create("/a", b"", CreateMode::Persistent).wait().unwrap().stat.czxid;
    let error = session.watch_from("/a", WatchMode::Persistent, last + 1).wait().unwrap_err();
    assert_eq!(error, Error::FutureZxid { path: "/a".to_owned(), zxid: last + 1, last });
    let watch = session.watch_from("/a", WatchMode::Persistent, last).wait().unwrap();
    session.set("/a", b"").wait().unwrap();
    assert_eq!(received(&watch).len(), 1);
}

#[test]
fn paths_are_relative_to_the_root_of_the_handle() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let seen = session.create("/app", b"", CreateMode::Persistent).wait().unwrap().stat.czxid;
    let app = session.chroot("/app").unwrap();
    app.create("/x", b"", CreateMode::Persistent).wait().unwrap();
    session.create("/apple", b"", CreateMode::Persistent).wait().unwrap();
    let paths =
        |watch: Watch| received(&watch).into_iter().map(|event| event.1).collect::<Vec<_>>();
    let mode = WatchMode::PersistentRecursive;
    assert_eq!(paths(app.watch_from("/", mode, seen).wait().unwrap()), ["/x"]);
    assert_eq!(paths(session.watch_from("/app", mode, seen).wait().unwrap()), ["/app/x"]);
    assert_eq!(paths(session.watch_from("/", mode, seen).wait().unwrap()), ["/app/x", "/apple"]);
    let error = app.watch_from("/x", mode, 9999).wait().unwrap_err();
    assert!(matches!(&error, Error::FutureZxid { path, .. } if path == "/x"), "{error}");

    let watch = app.watch("/x", WatchMode::Persistent).wait().unwrap();
    app.remove_watches("/x", WatcherType::Persistent).wait().unwrap();
    assert_eq!(watch.recv().wait().unwrap().unwrap().path, "/x");
    let error = app.remove_watches("/x", WatcherType::Persistent).wait().unwrap_err();
    assert_eq!(error, Error::NoWatch { path: "/x".to_owned() });
}

#[test]
fn a_long_past_is_cut_by_a_gap() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let seen = session.create("/a", b"", CreateMode::Persistent).wait().unwrap().stat.czxid;
    let more = Watch::CAPACITY as u64 + 500;
    let sets: Vec<_> = (0..more).map(|_| session.set("/a", b"x")).collect();
    sets.into_iter().last().unwrap().wait().unwrap();
    let watch = session.watch_from("/a", WatchMode::Persistent, seen).wait().unwrap();
    let events = received(&watch);
    let (gap, before) = events.split_last().unwrap();
    let first_left_out = seen + Watch::CAPACITY as u64 + 1;
    assert_eq!(*gap, (EventKind::Gap, "/a".to_owned(), first_left_out));
    let expected: Vec<Zxid> = (1..=Watch::CAPACITY as u64).map(|n| seen + n).collect();
    assert_eq!(before.iter().map(|event| event.2).collect::<Vec<_>>(), expected);
    let next = session.set("/a", b"y").wait().unwrap().mzxid;
    assert_eq!(received(&watch), [(EventKind::DataChanged, "/a".to_owned(), next)]);
}

#[test]
fn a_zxid_before_the_retained_history_is_too_old() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let seen = session.create("/a", b"", CreateMode::Persistent).wait().unwrap().stat.czxid;
    let mut last = seen;
    // Each multi is one write with many changes.
    while last < seen + Watch::HISTORY_CHANGES as u64 / 1000 + 1 {
        let mut multi = session.multi();
        for _ in 0..1000 {
            multi = multi.set("/a", b"x");
        }
        multi.commit().wait().unwrap();
        last = session.get("/a").wait().unwrap().1.mzxid;
    }
    let watch = |zxid| session.watch_from("/b", WatchMode::Persistent, zxid);
    let Err(Error::TooOld { path, zxid, oldest }) = watch(seen).wait() else {
        panic!("it is too old")
    };
    assert_eq!((path.as_str(), zxid), ("/b", seen));
    assert!(oldest > seen && oldest <= last, "{oldest}");
    assert!(matches!(watch(oldest - 1).wait(), Err(Error::TooOld { .. })));
    watch(oldest).wait().unwrap();
}

/// After a restart a replica knows the changes that are in its log after the checkpoint.
#[test]
fn the_past_is_there_after_a_restart() {
    let cluster = Cluster::new(3);
    let writer = cluster.node(0).session();
    let seen = writer.create("/a", b"", CreateMode::Persistent).wait().unwrap().stat.czxid;
    let set = writer.set("/a", b"1").wait().unwrap().mzxid;
    let place = (cluster.leader().unwrap() + 1) % 3;
    cluster.restart(place);
    let reader = cluster.node(place).open_session().unwrap();
    let watch = reader.watch_from("/a", WatchMode::Persistent, seen).wait().unwrap();
    assert_eq!(received(&watch), [(EventKind::DataChanged, "/a".to_owned(), set)]);
}

#[test]
fn a_zxid_covered_by_a_snapshot_is_too_old_on_that_member_only() {
    let cluster =
        Cluster::with_settings(3, Coordinator::builder().session_timeout(Duration::from_secs(40)));
    let leader = cluster.leader().unwrap();
    let cut = (leader + 1) % 3;
    let (writer, reader) = (cluster.node(leader).session(), cluster.node(cut).session());
    let seen = writer.create("/a", b"", CreateMode::Persistent).wait().unwrap().stat.czxid;
    reader.sync().wait().unwrap();
    cluster.isolate(cut);
    // The leader keeps more of its log for a member that was there a moment ago.
    cluster.advance(Duration::from_secs(5));
    let big = vec![7; 100_000];
    let sets: Vec<_> = (0..600).map(|_| writer.set("/a", &big)).collect();
    let last = sets.into_iter().last().unwrap().wait().unwrap().mzxid;
    cluster.heal();
    cluster.advance(Duration::from_secs(10));
    reader.sync().wait().unwrap();
    let error = reader.watch_from("/a", WatchMode::Persistent, seen).wait().unwrap_err();
    assert!(matches!(error, Error::TooOld { zxid, .. } if zxid == seen), "{error}");
    let watch = reader.watch_from("/a", WatchMode::Persistent, last).wait().unwrap();
    assert!(received(&watch).is_empty());
    let watch = writer.watch_from("/a", WatchMode::Persistent, seen).wait().unwrap();
    assert_eq!(received(&watch).len(), 600);
}

/// In another process, a resumed session continues from the last zxid it has seen.
#[test]
fn a_resumed_session_goes_on_where_it_was() {
    let cluster = Cluster::new(3);
    let writer = cluster.node(0).session();
    let former = cluster.node(1).open_session().unwrap();
    let watch = former.watch("/a", WatchMode::Persistent).wait().unwrap();
    writer.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let seen = watch.recv().wait().unwrap().unwrap().zxid;
    let missed = writer.set("/a", b"1").wait().unwrap().mzxid;
    let resumed = cluster.node(2).resume(former.id(), former.password()).wait().unwrap();
    let watch = resumed.watch_from("/a", WatchMode::Persistent, seen).wait().unwrap();
    assert_eq!(received(&watch), [(EventKind::DataChanged, "/a".to_owned(), missed)]);
}

/// S19: a removed watch receives a last event and is forgotten, even while it has handles.
#[test]
fn removed_watches_receive_a_last_event_and_end() {
    let cluster = Cluster::new(3);
    let (session, other) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
    let zxid = session.create("/a", b"", CreateMode::Persistent).wait().unwrap().stat.czxid;
    let (_, _, data) = session.get_and_watch("/a").wait().unwrap();
    let (_, exists) = session.exists_and_watch("/a").wait().unwrap();
    let (_, children) = session.children_and_watch("/a").wait().unwrap();
    let persistent = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let recursive = session.watch("/a", WatchMode::PersistentRecursive).wait().unwrap();
    let others = other.watch("/a", WatchMode::Persistent).wait().unwrap();
    let zxid = zxid.max(session.sync().wait().unwrap());
    let is_removed = |watch: &Watch, kind| {
        let event = watch.recv().wait().unwrap().unwrap();
        assert_eq!((event.kind, event.path.as_str(), event.zxid), (kind, "/a", zxid));
        assert_eq!(watch.recv().wait().unwrap(), None);
    };
    session.remove_watches("/a", WatcherType::Data).wait().unwrap();
    is_removed(&data, EventKind::DataWatchRemoved);
    is_removed(&exists, EventKind::DataWatchRemoved);
    session.remove_watches("/a", WatcherType::Children).wait().unwrap();
    is_removed(&children, EventKind::ChildWatchRemoved);
    session.remove_watches("/a", WatcherType::PersistentRecursive).wait().unwrap();
    is_removed(&recursive, EventKind::PersistentWatchRemoved);
    let none = Error::NoWatch { path: "/a".to_owned() };
    for which in [WatcherType::Data, WatcherType::Children, WatcherType::PersistentRecursive] {
        assert_eq!(session.remove_watches("/a", which).wait(), Err(none.clone()));
    }
    session.set("/a", b"1").wait().unwrap();
    assert_eq!(persistent.recv().wait().unwrap().unwrap().kind, EventKind::DataChanged);
    let zxid = session.get("/a").wait().unwrap().1.mzxid;
    session.remove_watches("/a", WatcherType::Any).wait().unwrap();
    let event = persistent.recv().wait().unwrap().unwrap();
    assert_eq!((event.kind, event.zxid), (EventKind::PersistentWatchRemoved, zxid));
    assert_eq!(session.remove_watches("/a", WatcherType::Any).wait(), Err(none));
    assert_eq!(
        others.recv().wait().unwrap().unwrap().kind,
        EventKind::DataChanged,
        "another session's stays"
    );
    assert!(others.events().is_empty());
}

/// The last event comes after the waiting events and after the gap.
#[test]
fn a_removed_watch_has_its_last_event_even_when_its_channel_is_full() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let calls = &session;
    let sets: Vec<_> = (0..Watch::CAPACITY * 2).map(|_| calls.set("/a", b"x")).collect();
    let removed = calls.remove_watches("/a", WatcherType::Any);
    removed.wait().unwrap();
    drop(sets);
    let kinds: Vec<EventKind> = watch.events().iter().map(|event| event.kind).collect();
    assert_eq!(kinds.len(), Watch::CAPACITY + 2);
    let last = [EventKind::Gap, EventKind::PersistentWatchRemoved];
    assert_eq!(kinds[Watch::CAPACITY..], last);
}

/// Calls take effect in order: a watch that is not set yet is removed too.
#[test]
fn a_watch_is_removed_in_the_order_of_the_calls() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let calls = &session;
    let first = calls.remove_watches("/a", WatcherType::Any);
    let before = calls.watch("/a", WatchMode::Persistent);
    let second = calls.remove_watches("/a", WatcherType::Any);
    let after = calls.watch("/a", WatchMode::Persistent);
    assert!(matches!(first.wait(), Err(Error::NoWatch { .. })));
    let before = before.wait().unwrap();
    second.wait().unwrap();
    assert_eq!(before.events().iter().count(), 1);
    let after = after.wait().unwrap();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    assert_eq!(after.recv().wait().unwrap().unwrap().kind, EventKind::Created);
}

/// Without a quorum, local operations go on.
#[test]
fn the_past_and_removal_need_no_quorum() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let seen = session.create("/a", b"", CreateMode::Persistent).wait().unwrap().stat.czxid;
    session.set("/a", b"").wait().unwrap();
    cluster.isolate(0);
    let watch = session.watch_from("/a", WatchMode::Persistent, seen).wait().unwrap();
    assert_eq!(received(&watch).len(), 1);
    session.remove_watches("/a", WatcherType::Any).wait().unwrap();
    assert_eq!(watch.recv().wait().unwrap().unwrap().kind, EventKind::PersistentWatchRemoved);
    assert_eq!(watch.recv().wait().unwrap(), None);
}
