//! Which operation changes which field of which stat, and which operations take a zxid.

use quorate::multi::Condition;
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Session, Stat, WatchMode};

use crate::{P, SECOND, make, one, open, received, stat};

/// `/g`, `/g/p` below it, and `/other`, created one second of the cluster's clock ago.
fn family() -> (Cluster, Session) {
    let (cluster, session) = one();
    make(&session, &["/other", "/g", "/g/p"]);
    cluster.advance(SECOND);
    (cluster, session)
}

/// The stats of the znodes that an operation on a child of `/g/p` must not change.
fn bystanders(session: &Session) -> Vec<Stat> {
    ["/", "/g", "/other", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"]
        .map(|path| stat(session, path))
        .to_vec()
}

#[test]
fn a_create_sets_the_stat_and_counts_at_the_parent() {
    let (cluster, session) = family();
    let others = bystanders(&session);
    let ttl = SECOND * 100;
    for (mode, owned, container, ttl) in [
        (CreateMode::Persistent, false, false, None),
        (CreateMode::PersistentSequential, false, false, None),
        (CreateMode::Ephemeral, true, false, None),
        (CreateMode::EphemeralSequential, true, false, None),
        (CreateMode::Container, false, true, None),
        (CreateMode::PersistentWithTtl(ttl), false, false, Some(ttl)),
        (
            CreateMode::PersistentSequentialWithTtl(CreateMode::TTL_MAX),
            false,
            false,
            Some(CreateMode::TTL_MAX),
        ),
    ] {
        cluster.advance(SECOND);
        let parent = stat(&session, "/g/p");
        let made = session.create("/g/p/c", b"1234567", mode).wait().unwrap();
        let now = made.stat;
        assert_eq!(stat(&session, &made.path), now, "{mode:?}");
        assert_eq!((now.mzxid, now.pzxid), (now.czxid, now.czxid));
        assert_eq!(now.mtime, now.ctime);
        assert!(now.ctime >= parent.ctime + 1000);
        assert_eq!((now.version, now.cversion, now.aversion), (0, 0, 0));
        assert_eq!((now.data_length, now.num_children), (7, 0));
        assert_eq!(now.ephemeral_owner, owned.then(|| session.id()));
        assert_eq!((now.is_container, now.ttl), (container, ttl));
        let mut expected = parent;
        (expected.pzxid, expected.cversion, expected.num_children) =
            (now.czxid, parent.cversion + 1, parent.num_children + 1);
        assert_eq!(stat(&session, "/g/p"), expected, "{mode:?}");
        session.delete(&made.path).wait().unwrap();
    }
    assert_eq!(bystanders(&session), others);
}

#[test]
fn a_delete_counts_at_the_parent() {
    let (cluster, session) = family();
    make(&session, &["/g/p/a", "/g/p/b"]);
    let (others, parent, b) =
        (bystanders(&session), stat(&session, "/g/p"), stat(&session, "/g/p/b"));
    cluster.advance(SECOND);
    session.delete("/g/p/a").wait().unwrap();
    let mut expected = parent;
    (expected.pzxid, expected.cversion, expected.num_children) = (parent.pzxid + 1, 3, 1);
    assert_eq!(stat(&session, "/g/p"), expected);
    assert_eq!(stat(&session, "/g/p/b"), b);
    assert_eq!(bystanders(&session), others);
}

#[test]
fn a_set_counts_at_the_znode_alone_even_when_the_bytes_are_the_same() {
    let (cluster, session) = family();
    make(&session, &["/g/p/c"]);
    let (others, parent, made) =
        (bystanders(&session), stat(&session, "/g/p"), stat(&session, "/g/p/c"));
    let mut before = made;
    for (version, data) in [(1, &b"same"[..]), (2, b"same"), (3, b""), (4, b"")] {
        cluster.advance(SECOND);
        let now = session.set("/g/p/c", data).wait().unwrap();
        assert_eq!(stat(&session, "/g/p/c"), now);
        assert_eq!((now.version, now.data_length as usize), (version, data.len()));
        assert_eq!(now.mzxid, before.mzxid + 1);
        assert!(now.mtime >= before.mtime + 1000);
        let (mzxid, mtime, data_length) = (made.mzxid, made.mtime, made.data_length);
        let mut unchanged = now;
        (unchanged.version, unchanged.mzxid, unchanged.mtime) = (0, mzxid, mtime);
        unchanged.data_length = data_length;
        assert_eq!(unchanged, made);
        before = now;
    }
    assert_eq!(stat(&session, "/g/p"), parent);
    assert_eq!(bystanders(&session), others);
}

#[test]
fn the_end_of_a_session_counts_at_the_parent_for_each_of_its_znodes_in_one_zxid() {
    for expires in [false, true] {
        let (cluster, session) = family();
        let owner = open(&cluster, 0);
        make(&session, &["/g/p/stays"]);
        for path in ["/g/p/a", "/g/p/b", "/g/p/c"] {
            owner.create(path, b"", CreateMode::Ephemeral).wait().unwrap();
        }
        let (others, parent) = (bystanders(&session), stat(&session, "/g/p"));
        if expires {
            cluster.expire(&owner);
        } else {
            owner.close().wait().unwrap();
        }
        let mut expected = parent;
        (expected.cversion, expected.num_children) = (parent.cversion + 3, 1);
        expected.pzxid = parent.pzxid + 1;
        assert_eq!(stat(&session, "/g/p"), expected);
        assert_eq!(bystanders(&session), others);
    }
}

#[test]
fn a_multi_has_one_zxid_and_one_time_for_all_of_it() {
    let (cluster, session) = family();
    cluster.advance(SECOND);
    session
        .multi()
        .create("/g/p/a", b"", P)
        .create("/g/p/b", b"", P)
        .set("/g/p/a", b"12")
        .set("/g", b"1")
        .delete("/g/p/b")
        .delete("/other")
        .commit()
        .wait()
        .unwrap();
    let (a, parent, g, root) = (
        stat(&session, "/g/p/a"),
        stat(&session, "/g/p"),
        stat(&session, "/g"),
        stat(&session, "/"),
    );
    let zxid = a.czxid;
    assert_eq!([a.mzxid, a.pzxid, parent.pzxid, g.mzxid, root.pzxid], [zxid; 5]);
    assert_eq!([a.mtime, g.mtime], [a.ctime; 2]);
    assert_eq!((a.version, a.data_length), (1, 2));
    assert_eq!((parent.cversion, parent.num_children, parent.version), (3, 1, 0));
    assert!(parent.mzxid < zxid && g.pzxid < zxid && root.mzxid < zxid);
}

#[test]
fn a_tree_that_is_deleted_at_once_counts_as_one_child() {
    let (_cluster, session) = family();
    make(&session, &["/g/p/a", "/g/p/a/b"]);
    let g = stat(&session, "/g");
    session.delete_recursive("/g/p").wait().unwrap();
    let mut expected = g;
    (expected.cversion, expected.num_children) = (g.cversion + 1, 0);
    expected.pzxid = session.sync().wait().unwrap();
    assert_eq!(stat(&session, "/g"), expected);
}

#[test]
fn calls_that_change_nothing_leave_every_stat_alone() {
    let (_cluster, session) = family();
    make(&session, &["/g/p/c"]);
    let all = |session: &Session| -> Vec<(String, Stat)> {
        let snapshot = session.snapshot().wait().unwrap();
        let walk = snapshot.walk("/").unwrap();
        walk.map(|(path, _, stat)| (path.to_owned(), stat)).collect()
    };
    let before = all(&session);
    session.get("/g/p").wait().unwrap();
    session.children("/g/p").wait().unwrap();
    session.get_and_watch("/g/p").wait().unwrap();
    session.sync().wait().unwrap();
    session.multi().check("/g/p", 0).require("/none", Condition::Absent).commit().wait().unwrap();
    assert!(session.set_if("/g/p/c", b"x", 7).wait().is_err());
    assert!(session.delete("/g/p").wait().is_err());
    assert!(session.create("/g/p/c", b"", P).wait().is_err());
    assert!(session.multi().set("/g/p/c", b"x").delete("/none").commit().wait().is_err());
    assert_eq!(all(&session), before);
}

/// ZooKeeper gives a zxid to a failed write too; here a failed write takes none.
#[test]
fn a_write_that_fails_takes_no_zxid_and_the_beginning_and_end_of_a_session_do() {
    let (cluster, session) = one();
    let mut zxid = session.sync().wait().unwrap();
    let mut takes = |number: u64, what: &str| {
        zxid += number;
        assert_eq!(session.sync().wait().unwrap(), zxid, "{what}");
    };
    session.create("/a", b"", P).wait().unwrap();
    takes(1, "a create");
    session.set("/a", b"").wait().unwrap();
    takes(1, "a set");
    for _ in 0..3 {
        assert!(session.create("/a", b"", P).wait().is_err());
        assert!(session.set_if("/a", b"", 9).wait().is_err());
        assert!(session.delete("/none").wait().is_err());
        assert!(session.multi().set("/a", b"").delete("/none").commit().wait().is_err());
    }
    takes(0, "failures");
    session.multi().commit().wait().unwrap();
    session.multi().check("/a", 1).commit().wait().unwrap();
    takes(0, "a multi that changes nothing");
    session.multi().set("/a", b"").set("/a", b"").delete("/a").commit().wait().unwrap();
    takes(1, "a multi");
    let other = open(&cluster, 0);
    takes(1, "a session that is opened");
    other.create("/e", b"", CreateMode::Ephemeral).wait().unwrap();
    other.create("/f", b"", CreateMode::Ephemeral).wait().unwrap();
    other.close().wait().unwrap();
    takes(3, "two creates and the close of their session");
    let (id, password) = (session.id(), session.password());
    let resumed = cluster.node(0).resume(id, password).wait().unwrap();
    assert_eq!(resumed.sync().wait().unwrap(), zxid + 1, "a session that is resumed");
}

/// There is no number for "any version": that is a call of its own. ZooKeeper's -1 means any version, even
/// when a counter that has wrapped has that value.
#[test]
fn a_version_is_a_number_like_any_other() {
    let (_cluster, session) = one();
    make(&session, &["/a"]);
    for wrong in [1, 7, u64::from(u32::MAX), u64::MAX] {
        let bad = Error::BadVersion { path: "/a".to_owned(), expected: wrong, actual: 0 };
        assert_eq!(session.set_if("/a", b"", wrong).wait(), Err(bad.clone()));
        assert_eq!(session.delete_if("/a", wrong).wait(), Err(bad.clone()));
        let checked = session.multi().check("/a", wrong).commit();
        assert_eq!(checked.wait(), Err(Error::Multi { index: 0, error: Box::new(bad.clone()) }));
        let set = session.multi().set_if("/a", b"", wrong).commit();
        assert_eq!(set.wait(), Err(Error::Multi { index: 0, error: Box::new(bad.clone()) }));
        let deleted = session.multi().delete_if("/a", wrong).commit();
        assert_eq!(deleted.wait(), Err(Error::Multi { index: 0, error: Box::new(bad) }));
    }
    assert_eq!(session.set_if("/a", b"", 0).wait().unwrap().version, 1);
    session.multi().check("/a", 1).require("/a", Condition::Exists).commit().wait().unwrap();
    assert_eq!(session.set("/a", b"").wait().unwrap().version, 2);
    session.delete_if("/a", 2).wait().unwrap();
    make(&session, &["/a"]);
    session.set("/a", b"").wait().unwrap();
    session.delete("/a").wait().unwrap();
}

/// An empty value is not null: data is bytes.
#[test]
fn data_is_written_and_read_as_a_whole() {
    let (_cluster, session) = one();
    make(&session, &["/a"]);
    let (data, made) = session.get("/a").wait().unwrap();
    assert_eq!((&data[..], made.data_length), (&b""[..], 0));
    for data in [&b"long value"[..], b"short", b"\0\xff", b""] {
        session.set("/a", data).wait().unwrap();
        let (read, stat) = session.get("/a").wait().unwrap();
        assert_eq!((&read[..], stat.data_length as usize), (data, data.len()));
    }
    // On every znode, with children or without, and on the system's.
    make(&session, &["/a/b"]);
    session.set("/a", b"parent").wait().unwrap();
    session.set("/", b"root").wait().unwrap();
    assert_eq!(&session.get("/").wait().unwrap().0[..], b"root");
    // The value that was read stays as it was.
    let (before, _) = session.get("/a").wait().unwrap();
    session.set("/a", b"later").wait().unwrap();
    assert_eq!(&before[..], b"parent");
}

/// ZooKeeper shows neither, and its clients see the owner 0 for both.
#[test]
fn a_container_and_a_time_to_live_show_in_the_stat() {
    let (cluster, session) = one();
    let ttl = SECOND * 60;
    let container = session.create("/c", b"", CreateMode::Container).wait().unwrap().stat;
    let short = session.create("/t", b"", CreateMode::PersistentWithTtl(ttl)).wait().unwrap().stat;
    assert!(container.is_container && container.ttl.is_none() && container.expires_at().is_none());
    assert!(!short.is_container && short.ttl == Some(ttl));
    assert_eq!([container.ephemeral_owner, short.ephemeral_owner], [None, None]);
    assert_eq!(short.expires_at(), Some(short.ctime + 60_000));
    cluster.advance(SECOND);
    let set = session.set("/t", b"").wait().unwrap();
    assert_eq!(set.expires_at(), Some(set.mtime + 60_000));
    let watch = session.watch("/t", WatchMode::Persistent).wait().unwrap();
    make(&session, &["/t/x"]);
    assert_eq!(stat(&session, "/t").expires_at(), None, "not while it has children");
    assert_eq!(received(&watch).len(), 1);
}
