//! Which watch reports what, how often, and in which order.

use quorate::testing::Cluster;
use quorate::{CreateMode, EventKind, Session, SessionState, Watch, WatchMode};

use EventKind::{ChildrenChanged, Created, DataChanged, Deleted};

use crate::{P, SECOND, make, one, open, received};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Set {
    Get,
    Exists,
    Children,
    Persistent,
    Recursive,
}

const ALL: [Set; 5] = [Set::Get, Set::Exists, Set::Children, Set::Persistent, Set::Recursive];

impl Set {
    /// `None` where this kind of watch is not possible.
    fn at(self, session: &Session, path: &str) -> Option<Watch> {
        match self {
            Set::Get => session.get_and_watch(path).wait().ok().map(|(_, _, watch)| watch),
            Set::Exists => Some(session.exists_and_watch(path).wait().unwrap().1),
            Set::Children => session.children_and_watch(path).wait().ok().map(|(_, watch)| watch),
            Set::Persistent => Some(session.watch(path, WatchMode::Persistent).wait().unwrap()),
            Set::Recursive => {
                Some(session.watch(path, WatchMode::PersistentRecursive).wait().unwrap())
            }
        }
    }

    fn fires_once(self) -> bool {
        matches!(self, Set::Get | Set::Exists | Set::Children)
    }
}

fn event(kind: EventKind, path: &str) -> Vec<(EventKind, String)> {
    vec![(kind, path.to_owned())]
}

/// ZooKeeper's table: for each operation on `/p/c`, which watches on which paths receive which event. All
/// other watches receive nothing.
#[test]
fn each_operation_fires_exactly_the_watches_that_the_table_names() {
    use Set::{Children, Exists, Get, Persistent, Recursive};
    type Lines<'a> = &'a [(EventKind, &'a str, &'a [(Set, &'a str)])];
    let data: [(Set, &str); 6] = [
        (Get, "/p/c"),
        (Exists, "/p/c"),
        (Persistent, "/p/c"),
        (Recursive, "/p/c"),
        (Recursive, "/p"),
        (Recursive, "/"),
    ];
    let child = [(Children, "/p"), (Persistent, "/p")];
    let end = [data.as_slice(), &[(Children, "/p/c")]].concat();
    let create: Lines = &[(Created, "/p/c", &data[1..]), (ChildrenChanged, "/p", &child)];
    let set: Lines = &[(DataChanged, "/p/c", &data)];
    let delete: Lines = &[(Deleted, "/p/c", &end), (ChildrenChanged, "/p", &child)];
    type Act = fn(&Cluster, &Session);
    let operations: [(&str, Act, Act, Lines); 9] = [
        ("create", |_, _| (), |_, s| make(s, &["/p/c"]), create),
        (
            "create in a multi",
            |_, _| (),
            |_, s| drop(s.multi().create("/p/c", b"", P).commit().wait().unwrap()),
            create,
        ),
        (
            "create with a number",
            |_, s| {
                // As the first child.
                s.delete("/p").wait().unwrap();
                make(s, &["/p"]);
            },
            |_, s| {
                s.chroot("/p").unwrap().create("/c", b"", CreateMode::Ephemeral).wait().unwrap();
            },
            create,
        ),
        ("set", |_, s| make(s, &["/p/c"]), |_, s| assert!(s.set("/p/c", b"").wait().is_ok()), set),
        ("delete", |_, s| make(s, &["/p/c"]), |_, s| s.delete("/p/c").wait().unwrap(), delete),
        (
            "delete the tree",
            |_, s| make(s, &["/p/c"]),
            |_, s| s.delete_recursive("/p/c").wait().unwrap(),
            delete,
        ),
        (
            "the end of its session",
            |cluster, _| {
                // The session of this node owns it, and no other.
                let owner = cluster.node(0).session();
                owner.create("/p/c", b"", CreateMode::Ephemeral).wait().unwrap();
            },
            |cluster, _| cluster.node(0).session().close().wait().unwrap(),
            delete,
        ),
        (
            "the end of its time to live",
            |_, s| {
                s.create("/p/c", b"", CreateMode::PersistentWithTtl(SECOND)).wait().unwrap();
            },
            |cluster, _| cluster.advance(SECOND * 5),
            delete,
        ),
        (
            "the end of a container",
            |_, s| {
                s.create("/p/c", b"", CreateMode::Container).wait().unwrap();
                make(s, &["/p/c/x"]);
                s.delete("/p/c/x").wait().unwrap();
            },
            |cluster, _| cluster.advance(SECOND * 90),
            delete,
        ),
    ];
    for (name, prepare, act, lines) in operations {
        let (cluster, session) = one();
        make(&session, &["/p", "/p/other", "/q"]);
        session.delete("/p/other").wait().unwrap();
        prepare(&cluster, &session);
        let watches: Vec<(Set, &str, Watch)> = ["/", "/p", "/p/c", "/p/c/g", "/p/d", "/q"]
            .into_iter()
            .flat_map(|path| ALL.map(|set| (set, path)))
            .filter_map(|(set, path)| Some((set, path, set.at(&session, path)?)))
            .collect();
        act(&cluster, &session);
        for (set, path, watch) in &watches {
            let line = lines.iter().find(|(_, _, fired)| fired.contains(&(*set, *path)));
            let expected = line.map_or_else(Vec::new, |(kind, path, _)| event(*kind, path));
            let seen = received(watch);
            assert_eq!(seen, expected, "{name}: {set:?} on {path}");
            // A one-shot watch ends when it has fired, and only then.
            let over =
                watch.events().try_recv() == Err(crossbeam_channel::TryRecvError::Disconnected);
            assert_eq!(over, set.fires_once() && !seen.is_empty(), "{name}: {set:?} on {path}");
        }
        // All watches of the table existed.
        for (_, _, fired) in lines {
            let found = |of: &(Set, &str)| watches.iter().any(|w| (w.0, w.1) == *of);
            assert!(fired.iter().all(found), "{name}");
        }
    }
}

#[test]
fn calls_that_change_nothing_fire_no_watch() {
    let (cluster, session) = one();
    make(&session, &["/p", "/p/c"]);
    let watches: Vec<Watch> = ["/", "/p", "/p/c", "/none"]
        .into_iter()
        .flat_map(|path| ALL.map(|set| set.at(&session, path)))
        .flatten()
        .collect();
    session.sync().wait().unwrap();
    session.get("/p/c").wait().unwrap();
    session.multi().check("/p/c", 0).commit().wait().unwrap();
    assert!(session.set_if("/p/c", b"", 7).wait().is_err());
    assert!(session.delete("/p").wait().is_err());
    assert!(session.create("/p/c", b"", P).wait().is_err());
    assert!(session.create("/none/x", b"", P).wait().is_err());
    let failed = session.multi().set("/p/c", b"").create("/none", b"", P).delete("/nothing");
    assert!(failed.commit().wait().is_err());
    // A session without ephemerals opens and closes.
    open(&cluster, 0).close().wait().unwrap();
    for watch in &watches {
        assert_eq!(received(watch), []);
    }
    // They are all still set.
    session.delete_recursive("/p").wait().unwrap();
    make(&session, &["/none"]);
    session.set("/", b"").wait().unwrap();
    assert!(watches.iter().all(|watch| !received(watch).is_empty()));
}

#[test]
fn a_persistent_watch_outlives_its_znode() {
    let (_cluster, session) = one();
    // Set before the znode exists.
    let znode = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let below = session.watch("/a", WatchMode::PersistentRecursive).wait().unwrap();
    let mut expected = (Vec::new(), Vec::new());
    for _ in 0..2 {
        make(&session, &["/a", "/a/b", "/a/b/c"]);
        session.set("/a/b", b"").wait().unwrap();
        session.set("/a", b"").wait().unwrap();
        session.delete("/a/b/c").wait().unwrap();
        session.delete("/a/b").wait().unwrap();
        session.delete("/a").wait().unwrap();
        // One event for a deletion, though the watch covers the data and the children.
        let kinds = [Created, ChildrenChanged, DataChanged, ChildrenChanged, Deleted];
        expected.0.extend(kinds.map(|kind| (kind, "/a".to_owned())));
        let events = [
            (Created, "/a"),
            (Created, "/a/b"),
            (Created, "/a/b/c"),
            (DataChanged, "/a/b"),
            (DataChanged, "/a"),
            (Deleted, "/a/b/c"),
            (Deleted, "/a/b"),
            (Deleted, "/a"),
        ];
        expected.1.extend(events.map(|(kind, path)| (kind, path.to_owned())));
    }
    // A sibling whose name starts with the same letters is not below it.
    make(&session, &["/ab", "/a-"]);
    assert_eq!((received(&znode), received(&below)), expected);
}

#[test]
fn only_exists_watches_a_missing_znode() {
    let (_cluster, session) = one();
    assert!(session.get_and_watch("/a").wait().is_err());
    assert!(session.children_and_watch("/a").wait().is_err());
    let (missing, watch) = session.exists_and_watch("/a").wait().unwrap();
    assert_eq!(missing, None);
    make(&session, &["/a"]);
    assert_eq!(received(&watch), event(Created, "/a"));
    // An exists watch on an existing znode reports the next change; for a deletion, nothing else.
    let (_, set) = session.exists_and_watch("/a").wait().unwrap();
    session.set("/a", b"").wait().unwrap();
    let (_, deleted) = session.exists_and_watch("/a").wait().unwrap();
    make(&session, &["/a/b"]);
    session.delete_recursive("/a").wait().unwrap();
    make(&session, &["/a"]);
    assert_eq!(received(&set), event(DataChanged, "/a"));
    assert_eq!(received(&deleted), event(Deleted, "/a"), "without an event for the new creation");
}

/// In ZooKeeper the server notifies a connection once, and the client its watchers. Here a watch is a
/// channel, and each channel receives the event once.
#[test]
fn each_watch_receives_an_event_once_however_many_there_are() {
    let (cluster, session) = one();
    let other = open(&cluster, 0);
    make(&session, &["/a"]);
    let watches: Vec<(Set, Watch)> = [&session, &session, &other]
        .into_iter()
        .flat_map(|holder| ALL.map(|set| (set, set.at(holder, "/a").unwrap())))
        .collect();
    let zxid = session.set("/a", b"").wait().unwrap().mzxid;
    for (set, watch) in &watches {
        let events: Vec<_> = watch.events().try_iter().collect();
        if *set == Set::Children {
            assert_eq!(events, []);
            continue;
        }
        let [event] = events.as_slice() else { panic!("{set:?}: {events:?}") };
        assert_eq!((event.kind, event.path.as_str()), (DataChanged, "/a"));
        assert_eq!((event.zxid, event.net), (zxid, false));
    }
    // One of two watches on a path ends, and the other one does not.
    let [kept, dropped] = [(); 2].map(|()| Set::Persistent.at(&session, "/a").unwrap());
    drop(dropped);
    session.set("/a", b"").wait().unwrap();
    assert_eq!(received(&kept), event(DataChanged, "/a"));
}

#[test]
fn a_multi_has_one_event_per_operation_with_one_zxid() {
    let (_cluster, session) = one();
    make(&session, &["/p"]);
    let kinds = |kinds: &[EventKind], path: &str| -> Vec<_> {
        kinds.iter().map(|kind| (*kind, path.to_owned())).collect()
    };
    let [persistent, parent] =
        ["/p/c", "/p"].map(|path| Set::Persistent.at(&session, path).unwrap());
    let below = Set::Recursive.at(&session, "/p").unwrap();
    let (once, child) =
        (Set::Exists.at(&session, "/p/c").unwrap(), Set::Children.at(&session, "/p").unwrap());
    let multi = session.multi().create("/p/c", b"", P).set("/p/c", b"1").check("/p/c", 1);
    let multi = multi.set("/p/c", b"1").delete("/p/c").create("/p/c", b"", CreateMode::Ephemeral);
    multi.set("/p", b"").commit().wait().unwrap();
    let zxid = session.sync().wait().unwrap();
    let own = [Created, DataChanged, DataChanged, Deleted, Created];
    let expected = [
        (&persistent, kinds(&own, "/p/c")),
        (&parent, kinds(&[ChildrenChanged, ChildrenChanged, ChildrenChanged, DataChanged], "/p")),
        (&below, [kinds(&own, "/p/c"), kinds(&[DataChanged], "/p")].concat()),
        // A one-shot watch receives only the first.
        (&once, kinds(&[Created], "/p/c")),
        (&child, kinds(&[ChildrenChanged], "/p")),
    ];
    for (watch, expected) in expected {
        let events: Vec<_> = watch.events().try_iter().collect();
        assert!(events.iter().all(|event| event.zxid == zxid && !event.net));
        let events: Vec<_> = events.into_iter().map(|event| (event.kind, event.path)).collect();
        assert_eq!(events, expected);
    }
}

/// All of a session's znodes are deleted in one write, in the order of their paths.
#[test]
fn the_events_of_a_session_end_come_in_the_order_of_the_paths() {
    let (cluster, session) = one();
    make(&session, &["/p", "/q"]);
    let owner = open(&cluster, 0);
    for path in ["/q/a", "/p/b", "/r", "/p/a"] {
        owner.create(path, b"", CreateMode::Ephemeral).wait().unwrap();
    }
    let all = Set::Recursive.at(&session, "/").unwrap();
    let parent = Set::Persistent.at(&session, "/p").unwrap();
    owner.close().wait().unwrap();
    let events: Vec<_> = all.events().try_iter().collect();
    assert!(events.iter().all(|event| event.kind == Deleted && event.zxid == events[0].zxid));
    let paths: Vec<&str> = events.iter().map(|event| event.path.as_str()).collect();
    assert_eq!(paths, ["/p/a", "/p/b", "/q/a", "/r"]);
    assert_eq!(
        received(&parent),
        [event(ChildrenChanged, "/p"), event(ChildrenChanged, "/p")].concat()
    );
}

/// A session's own event comes before its reply, and every event before a read that shows its change.
#[test]
fn an_event_comes_before_the_reply_and_before_its_change_can_be_read() {
    let (cluster, session) = one();
    let other = open(&cluster, 0);
    make(&session, &["/a"]);
    let own = Set::Persistent.at(&session, "/a").unwrap();
    let others = Set::Persistent.at(&other, "/a").unwrap();
    for _ in 0..200 {
        let zxid = session.set("/a", b"").wait().unwrap().mzxid;
        for watch in [&own, &others] {
            assert_eq!(watch.events().try_recv().map(|event| event.zxid), Ok(zxid));
        }
    }
}

/// ZooKeeper's client sets its watches again after a reconnect, and persistent watches lose the events in
/// between. Here watches stay where they are, and the replica that was isolated delivers all events.
#[test]
fn watches_outlive_a_partition_and_a_change_of_leader_and_miss_nothing() {
    let cluster = Cluster::new(3);
    let leader = cluster.leader().unwrap();
    let (cut, writer) = (open(&cluster, (leader + 1) % 3), open(&cluster, (leader + 2) % 3));
    make(&writer, &["/a"]);
    cut.sync().wait().unwrap();
    let states = cut.states();
    let all = Set::Recursive.at(&cut, "/").unwrap();
    let once = Set::Get.at(&cut, "/a").unwrap();
    let missing = Set::Exists.at(&cut, "/b").unwrap();
    let mut expected = Vec::new();
    cluster.isolate((leader + 1) % 3);
    cluster.advance(SECOND * 6);
    assert_eq!(cut.state(), SessionState::Suspended);
    for _ in 0..20 {
        expected.push((DataChanged, "/a".to_owned(), writer.set("/a", b"").wait().unwrap().mzxid));
    }
    // Created and deleted again: ZooKeeper's exists watch would never report it.
    for kind in [Created, Deleted] {
        match kind {
            Created => make(&writer, &["/b"]),
            _ => writer.delete("/b").wait().unwrap(),
        }
        expected.push((kind, "/b".to_owned(), writer.sync().wait().unwrap()));
    }
    // The session's states report that it was in doubt; that uses up no watch.
    assert_eq!(received(&once), []);
    cluster.heal();
    cluster.advance(SECOND * 2);
    cluster.stop(leader);
    cluster.advance(SECOND * 4);
    cut.sync().wait().unwrap();
    expected.push((DataChanged, "/a".to_owned(), writer.set("/a", b"").wait().unwrap().mzxid));
    cut.sync().wait().unwrap();
    let events: Vec<_> = all.events().try_iter().collect();
    assert!(events.iter().all(|event| !event.net));
    let events: Vec<_> =
        events.into_iter().map(|event| (event.kind, event.path, event.zxid)).collect();
    assert_eq!(events, expected);
    assert_eq!(received(&once), event(DataChanged, "/a"));
    assert_eq!(received(&missing), event(Created, "/b"));
    assert!(states.events().try_iter().any(|state| state == SessionState::Suspended));
}

#[test]
fn a_resumed_session_has_no_watches_and_those_of_the_former_holder_are_over() {
    let cluster = Cluster::new(3);
    let old = open(&cluster, 0);
    make(&old, &["/a"]);
    let watches = ALL.map(|set| set.at(&old, "/a").unwrap());
    let new = cluster.node(1).resume(old.id(), old.password()).wait().unwrap();
    for watch in &watches {
        assert_eq!(watch.recv().wait().unwrap(), None);
    }
    let own = Set::Persistent.at(&new, "/a").unwrap();
    new.set("/a", b"").wait().unwrap();
    assert_eq!(received(&own), event(DataChanged, "/a"));
    assert!(watches.iter().all(|watch| received(watch).is_empty()));
}
