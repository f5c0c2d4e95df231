//! Single writes for operations that take several calls in ZooKeeper.

use quorate::acl::{Acl, Id, Permissions};
use quorate::multi::OpResult;
use quorate::quota::Quota;
use quorate::session::SessionId;
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, EventKind, Session, WatchMode};

fn events(session: &Session, watch: &quorate::Watch) -> Vec<(EventKind, u64)> {
    session.sync().wait().unwrap();
    watch.events().try_iter().map(|event| (event.kind, event.zxid)).collect()
}

#[test]
fn create_or_set_sets_an_existing_znode_and_creates_a_missing_one() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let created = session.create_or_set("/a", b"1", CreateMode::Ephemeral).wait().unwrap();
    assert_eq!(created.stat.ephemeral_owner, Some(session.id()));
    // The existing znode keeps its mode.
    let set = session.create_or_set("/a", b"2", CreateMode::Persistent).wait().unwrap();
    assert_eq!((set.path.as_str(), set.stat.version), ("/a", 1));
    assert_eq!(set.stat.ephemeral_owner, Some(session.id()));
    let expected =
        [(EventKind::Created, created.stat.czxid), (EventKind::DataChanged, set.stat.mzxid)];
    assert_eq!(events(&session, &watch), expected);
    // A sequential mode always creates.
    session.create("/dir", b"", CreateMode::Persistent).wait().unwrap();
    for number in 0..2 {
        let mode = CreateMode::PersistentSequential;
        let created = session.create_or_set("/dir/n-", b"", mode).wait().unwrap();
        assert_eq!(created.path, format!("/dir/n-{number:010}"));
    }
    let missing = session.create_or_set("/none/a", b"", CreateMode::Persistent).wait().unwrap_err();
    assert_eq!(missing, Error::NoNode { path: "/none".into() });
    let results = session
        .multi()
        .create_or_set("/b", b"1", CreateMode::Persistent)
        .create_or_set("/b", b"2", CreateMode::Persistent)
        .commit()
        .wait()
        .unwrap();
    assert!(
        matches!(results[..], [OpResult::Created(_), OpResult::Set(stat)] if stat.version == 1)
    );
    let chrooted = session.chroot("/dir").unwrap();
    for version in 0..2 {
        let put = chrooted.create_or_set("/x", b"", CreateMode::Persistent).wait().unwrap();
        assert_eq!((put.path.as_str(), put.stat.version), ("/x", version));
    }
}

#[test]
fn a_stale_ephemeral_is_taken_over_in_one_operation() {
    let cluster = Cluster::new(1);
    let former = cluster.node(0).open_session().unwrap();
    let session = cluster.node(0).open_session().unwrap();
    let other = cluster.node(0).open_session().unwrap();
    let from = former.id();
    // A missing znode is created; the caller's own is set.
    let taken = session.take_over("/free", b"1", from).wait().unwrap();
    assert_eq!(taken.stat.ephemeral_owner, Some(session.id()));
    assert_eq!(session.take_over("/free", b"2", from).wait().unwrap().stat.version, 1);
    // The former session's znode is replaced, with one zxid and its access list.
    session.add_auth("digest", "a:b").wait().unwrap();
    let acl = [
        Acl::new(Permissions::ALL, Id::anyone()),
        Acl::new(Permissions::READ, Id::digest("a", "b")),
    ];
    let old = former.create_with_acl("/a", b"1", CreateMode::Ephemeral, &acl).wait().unwrap().stat;
    let watch = other.watch("/a", WatchMode::Persistent).wait().unwrap();
    let new = session.take_over("/a", b"2", from).wait().unwrap().stat;
    assert_eq!((new.ephemeral_owner, new.version), (Some(session.id()), 0));
    assert!(new.czxid > old.czxid);
    let expected = [(EventKind::Deleted, new.czxid), (EventKind::Created, new.czxid)];
    assert_eq!(events(&other, &watch), expected);
    assert_eq!(session.acl("/a").wait().unwrap().0, acl);
    assert_eq!(former.ephemerals().wait().unwrap(), Vec::<String>::new());
    former.close().wait().unwrap();
    assert!(session.exists("/a").wait().unwrap().is_some());
    // A znode of any other session is not.
    other.create("/b", b"", CreateMode::Ephemeral).wait().unwrap();
    other.create("/c", b"", CreateMode::Persistent).wait().unwrap();
    for path in ["/b", "/c"] {
        let refused = session.take_over(path, b"", from).wait().unwrap_err();
        assert_eq!(refused, Error::NodeExists { path: path.into() });
    }
    assert!(session.take_over("/b", b"", SessionId::from_number(0)).wait().is_err());
    let failed = session.multi().take_over("/b", b"", other.id()).delete("/none").commit().wait();
    assert!(matches!(failed, Err(Error::Multi { index: 1, .. })), "{failed:?}");
    assert_eq!(other.ephemerals().wait().unwrap(), ["/b"]);
}

#[test]
fn a_takeover_needs_both_permissions_and_no_more_quota() {
    let cluster = Cluster::new(1);
    let former = cluster.node(0).open_session().unwrap();
    let session = cluster.node(0).open_session().unwrap();
    let admin = cluster.node(0).open_session().unwrap();
    admin.add_auth("digest", "a:b").wait().unwrap();
    former.create("/dir", b"", CreateMode::Persistent).wait().unwrap();
    former.create("/dir/a", b"12", CreateMode::Ephemeral).wait().unwrap();
    let both = Permissions::CREATE | Permissions::DELETE;
    for (given, lacks) in [
        (Permissions::CREATE, Some(Permissions::DELETE)),
        (Permissions::DELETE, Some(Permissions::CREATE)),
        (both, None),
    ] {
        let entry = |permissions, id| Acl::new(permissions, id);
        let acl = [entry(given, Id::anyone()), entry(Permissions::ALL, Id::digest("a", "b"))];
        admin.set_acl("/dir", &acl).wait().unwrap();
        let taken = session.take_over("/dir/a", b"12", former.id());
        match lacks {
            Some(permission) => {
                assert_eq!(taken.wait(), Err(Error::NoAuth { path: "/dir".into(), permission }));
                assert_eq!(former.ephemerals().wait().unwrap(), ["/dir/a"]);
            }
            None => drop(taken.wait().unwrap()),
        }
    }
    // A subtree over its quota does not grow by a takeover.
    admin.set_quota("/dir", &Quota::new().znodes_hard(1).bytes_hard(1)).wait().unwrap();
    let refused = former.take_over("/dir/a", b"123", session.id()).wait().unwrap_err();
    assert!(matches!(refused, Error::QuotaExceeded { .. }), "{refused:?}");
    former.take_over("/dir/a", b"21", session.id()).wait().unwrap();
    let (_, usage) = admin.quota("/dir").wait().unwrap().unwrap();
    assert_eq!((usage.znodes, usage.bytes), (2, 2));
}

#[test]
fn children_are_read_page_by_page() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/dir", b"", CreateMode::Persistent).wait().unwrap();
    for number in 0..25 {
        session.create(&format!("/dir/{number:02}"), b"", CreateMode::Persistent).wait().unwrap();
    }
    let snapshot = session.snapshot().wait().unwrap();
    let mut all: Vec<String> = Vec::new();
    loop {
        let page = snapshot.children_page("/dir", all.last().map(String::as_str), 10).unwrap();
        if page.is_empty() {
            break;
        }
        assert_eq!(page.len(), 10.min(25 - all.len()));
        // Znodes deleted in between are still in the snapshot.
        session.delete(&format!("/dir/{}", page[0])).wait().unwrap();
        all.extend(page);
    }
    assert_eq!(all, snapshot.children("/dir").unwrap());
    // The cursor's znode need not exist any more.
    assert_eq!(session.children_page("/dir", Some("00"), 2).wait().unwrap(), ["01", "02"]);
    assert_eq!(session.children_page("/dir", None, 0).wait().unwrap(), Vec::<String>::new());
    let missing = session.children_page("/none", None, 1);
    assert_eq!(missing.wait(), Err(Error::NoNode { path: "/none".into() }));
}
