//! Instances without a replica: the same calls, answered by a member.

use std::time::Duration;

use quorate::testing::Cluster;
use quorate::{CreateMode, Error, EventKind, SessionState, WatchMode};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_client_reads_and_writes() {
    let cluster = Cluster::new(3);
    let client = cluster.node(cluster.add_client());
    let session = client.session();
    session.create("/a", b"1", CreateMode::Persistent).unwrap();
    assert_eq!(&session.get("/a").unwrap().0[..], b"1");
    session.set("/a", b"2").unwrap();
    assert_eq!(&session.get("/a").unwrap().0[..], b"2");
    assert_eq!(session.children("/").unwrap(), ["a", "zookeeper"]);
    assert_eq!(session.exists("/b").unwrap(), None);
    assert!(matches!(session.get("/b"), Err(Error::NoNode { .. })));
    let elsewhere = cluster.node(0).session();
    elsewhere.sync().unwrap();
    assert_eq!(&elsewhere.get("/a").unwrap().0[..], b"2");
    assert!(session.is_alive());
    session.close().unwrap();
    assert_eq!(session.state(), SessionState::Closed);
}

#[test]
fn a_client_watches() {
    let cluster = Cluster::new(3);
    let client = cluster.node(cluster.add_client());
    let (session, other) = (client.session(), cluster.node(1).session());
    let watch = session.watch("/a", WatchMode::PersistentRecursive).unwrap();
    let (none, once) = session.exists_and_watch("/a").unwrap();
    assert_eq!(none, None);
    other.create("/a", b"", CreateMode::Persistent).unwrap();
    other.create("/a/b", b"", CreateMode::Persistent).unwrap();
    session.sync().unwrap();
    let events: Vec<_> = watch.events().try_iter().map(|event| (event.kind, event.path)).collect();
    assert_eq!(
        events,
        [(EventKind::Created, "/a".to_owned()), (EventKind::Created, "/a/b".to_owned())]
    );
    assert_eq!(once.recv().map(|event| event.kind), Some(EventKind::Created));
    assert_eq!(once.recv(), None);
    drop(watch);
    cluster.advance(SECOND);
}

/// Whoever serves it is stopped, again and again, while it writes and watches.
#[test]
fn a_client_moves_and_misses_nothing() {
    let cluster = Cluster::new(3);
    let client = cluster.node(cluster.add_client());
    let session = client.session();
    session.create("/n", b"", CreateMode::Persistent).unwrap();
    let watch = session.watch("/n", WatchMode::PersistentRecursive).unwrap();
    let mut expected = Vec::new();
    for round in 0..12 {
        let down = round % 3;
        let writes: Vec<_> = (0..5)
            .map(|_| session.nonblocking().create("/n/x-", b"", CreateMode::PersistentSequential))
            .collect();
        cluster.stop(down);
        cluster.advance(5 * SECOND);
        for write in writes {
            expected.push(write.wait().unwrap().path);
        }
        let children = session.children("/n").unwrap();
        assert_eq!(children.len(), expected.len(), "a write was lost or done twice");
        cluster.restart(down);
        cluster.advance(SECOND);
    }
    session.sync().unwrap();
    let told: Vec<_> = watch.events().try_iter().map(|event| (event.kind, event.path)).collect();
    let all: Vec<_> = expected.into_iter().map(|path| (EventKind::Created, path)).collect();
    assert_eq!(told, all, "an event was lost, doubled or out of order");
    assert!(session.is_alive());
}

/// Its sessions are lost to it before the cluster can give away what they hold.
#[test]
fn a_client_that_is_cut_off_loses_its_lock_in_time() {
    let cluster = Cluster::new(3);
    let one = cluster.add_client();
    let here = cluster.node(one).session();
    let guard = here.lock("/lock").unwrap().acquire().unwrap();
    assert!(guard.is_held());
    let there = cluster.node(0).session();
    let waiting = there.lock("/lock").unwrap();
    cluster.isolate(one);
    let mut others = None;
    for _ in 0..1000 {
        cluster.advance(SECOND / 10);
        if let Some(next) = waiting.try_acquire().unwrap() {
            others = Some(next);
            break;
        }
        assert!(here.state() != SessionState::Closed);
    }
    let next = others.expect("the lock is given away at last");
    assert!(!guard.is_held(), "two hold it");
    assert!(!here.is_alive());
    assert!(next.fencing_token() > guard.fencing_token());
    cluster.heal();
    cluster.advance(SECOND);
    assert_eq!(here.state(), SessionState::Expired);
}

#[test]
fn transactions_snapshots_and_a_chroot_work_for_a_client() {
    let cluster = Cluster::new(3);
    let session = cluster.node(cluster.add_client()).session();
    session.create("/app", b"", CreateMode::Persistent).unwrap();
    let app = session.chroot("/app").unwrap();
    app.create("/n", b"0", CreateMode::Persistent).unwrap();
    let other = cluster.node(1).session();
    let mut runs = 0;
    app.transact(|txn| {
        let (data, _) = txn.get("/n")?;
        runs += 1;
        if runs == 1 {
            other.sync()?;
            other.set("/app/n", b"5")?;
        }
        txn.set("/n", [data[0] + 1]);
        Ok(())
    })
    .unwrap();
    assert_eq!(runs, 2, "somebody came between");
    assert_eq!(&app.get("/n").unwrap().0[..], b"6");
    let results = app.multi().create("/m", b"1", CreateMode::Persistent).delete("/n").commit();
    assert_eq!(results.unwrap().len(), 2);
    let snapshot = app.snapshot().unwrap();
    assert_eq!(snapshot.children("/").unwrap(), ["m"]);
    assert_eq!(&snapshot.get("/m").unwrap().0[..], b"1");
    assert_eq!(app.children_with_stat("/").unwrap().0, ["m"]);
    assert_eq!(session.children_page("/", None, 1).unwrap(), ["app"]);
    assert_eq!(session.all_children_number("/app").unwrap(), 1);
    let (_, stat) = app.get("/m").unwrap();
    assert_eq!(snapshot.exists("/m").unwrap(), Some(stat));
    assert_eq!(session.delete_recursive("/app"), Ok(()));
}

#[test]
fn access_lists_hold_for_a_client() {
    let cluster = Cluster::new(3);
    let session = cluster.node(cluster.add_client()).session();
    let other = cluster.node(cluster.add_client()).session();
    session.add_auth("digest", "user:secret").unwrap();
    let own = quorate::Acl::creator_all();
    session.create_with_acl("/own", b"1", CreateMode::Persistent, &own).unwrap();
    assert_eq!(&session.get("/own").unwrap().0[..], b"1");
    other.sync().unwrap();
    assert!(matches!(other.get("/own"), Err(Error::NoAuth { .. })));
    assert!(matches!(other.set("/own", b"2"), Err(Error::NoAuth { .. })));
    let (hidden, seen) = (
        other.watch("/own", WatchMode::Persistent).unwrap(),
        session.watch("/own", WatchMode::Persistent).unwrap(),
    );
    session.set("/own", b"2").unwrap();
    other.sync().unwrap();
    assert_eq!((hidden.events().len(), seen.events().len()), (0, 1));
    assert!(session.who_am_i().unwrap().iter().any(|id| id.scheme == "digest"));
    assert_eq!(session.acl("/own").unwrap().0.len(), 1);
}

#[test]
fn a_session_is_resumed_on_another_client() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.node(cluster.add_client()), cluster.node(cluster.add_client()));
    let session = one.open_session().unwrap();
    session.create("/mine", b"", CreateMode::Ephemeral).unwrap();
    let resumed = two.resume(session.id(), session.password()).unwrap();
    assert!(resumed.exists("/mine").unwrap().is_some());
    cluster.advance(SECOND);
    assert_eq!(session.state(), SessionState::Moved);
    resumed.set("/mine", b"2").unwrap();
    assert!(matches!(session.get("/mine"), Err(Error::SessionMoved { .. })));
    assert!(two.resume(session.id(), [0; 16]).is_err());
    // And on a member, and back.
    let here = cluster.node(0).resume(session.id(), session.password()).unwrap();
    assert_eq!(here.ephemerals().unwrap(), ["/mine"]);
    let back = one.resume(session.id(), session.password()).unwrap();
    assert_eq!(back.ephemerals().unwrap(), ["/mine"]);
    back.close().unwrap();
    assert_eq!(two.session().exists("/mine").unwrap(), None);
}

#[test]
fn watches_of_all_kinds_survive_a_move() {
    let cluster = Cluster::new(3);
    let one = cluster.add_client();
    let session = cluster.node(one).session();
    let writer = cluster.node(0).session();
    for path in ["/data", "/gone", "/dir", "/tree"] {
        writer.create(path, b"", CreateMode::Persistent).unwrap();
    }
    session.sync().unwrap();
    let (_, _, data) = session.get_and_watch("/data").unwrap();
    let (_, _, gone) = session.get_and_watch("/gone").unwrap();
    let (_, new) = session.exists_and_watch("/new").unwrap();
    let (_, children) = session.children_and_watch("/dir").unwrap();
    let (_, quiet) = session.children_and_watch("/tree").unwrap();
    let tree = session.watch("/tree", WatchMode::PersistentRecursive).unwrap();
    let brought = session.watch_with_data("/data", WatchMode::Persistent).unwrap();
    // What happens while it has no member.
    cluster.isolate(one);
    writer.set("/data", b"1").unwrap();
    writer.delete("/gone").unwrap();
    writer.create("/gone", b"", CreateMode::Persistent).unwrap();
    writer.create("/new", b"", CreateMode::Persistent).unwrap();
    writer.create("/dir/x", b"", CreateMode::Persistent).unwrap();
    writer.set("/tree", b"1").unwrap();
    cluster.heal();
    cluster.advance(2 * SECOND);
    assert!(session.is_alive());
    let kind = |watch: &quorate::Watch| watch.events().try_recv().ok().map(|event| event.kind);
    assert_eq!(kind(&data), Some(EventKind::DataChanged));
    assert_eq!(kind(&gone), Some(EventKind::Deleted));
    assert_eq!(kind(&new), Some(EventKind::Created));
    assert_eq!(kind(&children), Some(EventKind::ChildrenChanged));
    assert_eq!(kind(&tree), Some(EventKind::DataChanged));
    assert_eq!(kind(&brought), Some(EventKind::Gap), "it is not known what each write left");
    assert_eq!(kind(&quiet), None);
    writer.create("/tree/x", b"", CreateMode::Persistent).unwrap();
    writer.set("/data", b"2").unwrap();
    session.sync().unwrap();
    assert_eq!(kind(&quiet), Some(EventKind::ChildrenChanged), "it is still there");
    let event = brought.events().try_recv().unwrap();
    assert_eq!(event.data(), Some(&b"2"[..]));
}

#[test]
fn a_stopped_client_is_forgotten() {
    let cluster = Cluster::new(3);
    let one = cluster.add_client();
    let session = cluster.node(one).session();
    session.create("/mine", b"", CreateMode::Ephemeral).unwrap();
    cluster.node(one).close();
    cluster.advance(SECOND);
    let other = cluster.node(2).session();
    other.sync().unwrap();
    assert_eq!(other.exists("/mine").unwrap(), None);
    // It crashes, and the cluster finds out.
    cluster.restart(one);
    let session = cluster.node(one).session();
    session.create("/mine", b"", CreateMode::Ephemeral).unwrap();
    other.sync().unwrap();
    assert!(other.exists("/mine").unwrap().is_some());
    cluster.isolate(one);
    cluster.advance(Duration::from_secs(30));
    other.sync().unwrap();
    assert_eq!(other.exists("/mine").unwrap(), None);
}
