//! What reads show, on which instance, and as of which write.

use std::time::Duration;

use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Session};

const P: CreateMode = CreateMode::Persistent;

fn session(cluster: &Cluster, node: usize) -> Session {
    let session = cluster.node(node).session();
    session.sync().unwrap();
    session
}

#[test]
fn descendants_are_counted_and_siblings_are_not() {
    let cluster = Cluster::new(1);
    let session = session(&cluster, 0);
    for path in ["/a", "/a/b", "/a/b/c", "/a/b-", "/a-", "/a-/x", "/ab"] {
        session.create(path, b"", P).unwrap();
    }
    for (path, below) in [("/a", 3), ("/a/b", 1), ("/a/b/c", 0), ("/a-", 1), ("/ab", 0)] {
        assert_eq!(session.all_children_number(path), Ok(below), "{path}");
    }
    // Like ZooKeeper: the three system znodes count, and the root does not.
    assert_eq!(session.all_children_number("/"), Ok(7 + 3));
    let missing = Error::NoNode { path: "/none".to_owned() };
    assert_eq!(session.all_children_number("/none"), Err(missing));
    assert!(matches!(session.all_children_number("none"), Err(Error::InvalidPath { .. })));
    let below = session.chroot("/a").unwrap();
    assert_eq!((below.all_children_number("/"), below.all_children_number("/b")), (Ok(3), Ok(1)));
    assert_eq!(below.snapshot().unwrap().children_with_stat("/b").unwrap().0, ["c"]);
}

#[test]
fn a_requested_snapshot_shows_all_earlier_calls_and_no_later_ones() {
    let cluster = Cluster::new(3);
    let session = session(&cluster, 0);
    let calls = session.nonblocking();
    let _first = calls.create("/a", b"1", P);
    let snapshot = calls.snapshot();
    let later = calls.set("/a", b"2");
    later.wait().unwrap();
    let snapshot = snapshot.wait().unwrap();
    assert_eq!(&snapshot.get("/a").unwrap().0[..], b"1");
    assert_eq!(snapshot.zxid(), snapshot.get("/a").unwrap().1.mzxid);
    assert_eq!(&session.get("/a").unwrap().0[..], b"2");
    // The snapshot's paths are relative to the chroot of the handle.
    let below = session.chroot("/a").unwrap();
    below.create("/b", b"", P).unwrap();
    assert_eq!(below.nonblocking().snapshot().wait().unwrap().children("/").unwrap(), ["b"]);
    session.close().unwrap();
    assert!(calls.snapshot().wait().is_err());
}

#[test]
fn a_snapshot_after_a_sync_has_its_zxid() {
    let cluster = Cluster::new(1);
    let session = session(&cluster, 0);
    // Each write takes a zxid and changes no znode.
    let other = cluster.node(0).open_session().unwrap();
    other.sync().unwrap();
    let synced = session.sync().unwrap();
    assert_eq!(session.snapshot().unwrap().zxid(), synced);
    other.close().unwrap();
    assert_eq!(session.sync().unwrap(), synced + 1);
    assert_eq!(session.snapshot().unwrap().zxid(), synced + 1);
}

#[test]
fn reads_without_a_quorum_may_be_stale_and_a_sync_waits() {
    let cluster = Cluster::new(3);
    let sessions: Vec<Session> = (0..3).map(|node| session(&cluster, node)).collect();
    sessions[0].create("/a", b"old", P).unwrap();
    sessions[2].sync().unwrap();
    cluster.isolate(2);
    sessions[0].set("/a", b"new").unwrap();
    // The isolated member still reads, and cannot catch up.
    assert_eq!(&sessions[2].get("/a").unwrap().0[..], b"old");
    let (synced, snapshot) = {
        let calls = sessions[2].nonblocking();
        (calls.sync(), calls.snapshot())
    };
    cluster.advance(Duration::from_millis(500));
    assert_eq!(&sessions[2].snapshot().unwrap().get("/a").unwrap().0[..], b"old");
    cluster.heal();
    synced.wait().unwrap();
    assert_eq!(&snapshot.wait().unwrap().get("/a").unwrap().0[..], b"new");
}
