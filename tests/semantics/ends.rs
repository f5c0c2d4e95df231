//! Znodes that are deleted automatically: ephemerals, containers, and those with a time to live.

use std::time::Duration;

use quorate::testing::Cluster;
use quorate::{CreateMode, Error, EventKind, WatchMode};

use crate::{P, SECOND, make, one, open, received, stat};

const E: CreateMode = CreateMode::Ephemeral;

#[test]
fn an_ephemeral_znode_has_no_children() {
    let (_cluster, session) = one();
    session.create("/e", b"", E).wait().unwrap();
    let made = session.create("/e-", b"", CreateMode::EphemeralSequential).wait().unwrap();
    let modes = [
        P,
        E,
        CreateMode::Container,
        CreateMode::PersistentSequential,
        CreateMode::PersistentWithTtl(SECOND),
    ];
    for mode in modes {
        for parent in ["/e", made.path.as_str()] {
            let refused = Error::NoChildrenForEphemerals { path: parent.to_owned() };
            assert_eq!(
                session.create(&format!("{parent}/x"), b"", mode).wait(),
                Err(refused.clone())
            );
            let multi = session.multi().create(&format!("{parent}/x"), b"", mode).commit();
            assert_eq!(multi.wait(), Err(Error::Multi { index: 0, error: Box::new(refused) }));
        }
    }
}

#[test]
fn a_session_end_deletes_its_own_ephemerals_and_nothing_else() {
    let (cluster, session) = one();
    make(&session, &["/p"]);
    let (owner, other) = (open(&cluster, 0), open(&cluster, 0));
    for path in ["/p/1", "/p/2", "/e"] {
        owner.create(path, b"", E).wait().unwrap();
    }
    owner.create("/p/stays", b"", P).wait().unwrap();
    other.create("/p/others", b"", E).wait().unwrap();
    // Any session may delete one before. A znode that takes its place does not belong to the session.
    other.delete("/e").wait().unwrap();
    make(&other, &["/e"]);
    let zxid = session.sync().wait().unwrap();
    let watch = session.watch("/p", WatchMode::PersistentRecursive).wait().unwrap();
    owner.close().wait().unwrap();
    let events: Vec<_> = watch.events().try_iter().map(|event| (event.path, event.zxid)).collect();
    assert_eq!(events, [("/p/1".to_owned(), zxid + 1), ("/p/2".to_owned(), zxid + 1)]);
    assert_eq!(session.children("/p").wait().unwrap(), ["others", "stays"]);
    assert_eq!(stat(&session, "/e").ephemeral_owner, None);
    assert_eq!(session.sync().wait().unwrap(), zxid + 1);
}

/// Requests made before the close are executed before it, and their ephemerals are deleted with the session:
/// no ephemeral is created after its session.
#[test]
fn creates_in_flight_when_their_session_is_closed_are_deleted_too() {
    let cluster = Cluster::new(3);
    let observer = open(&cluster, (cluster.leader().unwrap() + 1) % 3);
    make(&observer, &["/p"]);
    for node in 0..3 {
        let owner = open(&cluster, node);
        let creates: Vec<_> =
            (0..50).map(|_| owner.create("/p/e", b"", CreateMode::EphemeralSequential)).collect();
        let deleted = owner.delete("/p/none");
        owner.close().wait().unwrap();
        for create in creates {
            assert_eq!(create.wait().unwrap().stat.ephemeral_owner, Some(owner.id()));
        }
        assert!(deleted.wait().is_err());
        observer.sync().wait().unwrap();
        assert_eq!(observer.children("/p").wait().unwrap(), [""; 0]);
    }
    assert_eq!(stat(&observer, "/p").cversion, 2 * 150);
}

#[test]
fn a_sessions_znodes_are_all_deleted_at_once() {
    let (cluster, session) = one();
    make(&session, &["/p"]);
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            for _ in 0..100 {
                let owner = open(&cluster, 0);
                let mut multi = owner.multi();
                for n in 0..10 {
                    multi = multi.create(&format!("/p/{n}"), b"", E);
                }
                multi.commit().wait().unwrap();
                owner.close().wait().unwrap();
            }
        });
        while !done.is_finished() {
            let there = session.children("/p").wait().unwrap().len();
            assert!(there == 0 || there == 10, "{there} of 10");
        }
    });
    assert_eq!(stat(&session, "/p").cversion, 2 * 1000);
}

#[test]
fn a_container_goes_once_it_is_empty_again_and_not_before() {
    let (cluster, session) = one();
    for path in ["/used", "/kept", "/unused", "/plain"] {
        let mode = if path == "/plain" { P } else { CreateMode::Container };
        session.create(path, b"", mode).wait().unwrap();
        if path != "/unused" {
            make(&session, &[&format!("{path}/x")]);
        }
    }
    let watch = session.watch("/used", WatchMode::Persistent).wait().unwrap();
    // For as long as there is a child, and a little longer.
    cluster.advance(SECOND * 70);
    assert_eq!(received(&watch), []);
    session.delete("/used/x").wait().unwrap();
    session.delete("/plain/x").wait().unwrap();
    assert!(session.exists("/used").wait().unwrap().is_some());
    cluster.advance(SECOND * 70);
    let used = |kind| (kind, "/used".to_owned());
    assert_eq!(received(&watch), [used(EventKind::ChildrenChanged), used(EventKind::Deleted)]);
    for path in ["/kept", "/unused", "/plain"] {
        assert!(session.exists(path).wait().unwrap().is_some(), "{path}");
    }
    // A session that comes too late creates it again.
    let late = session.create("/used/y", b"", P);
    assert_eq!(late.wait(), Err(Error::NoNode { path: "/used".to_owned() }));
    let again = session.multi().create("/used", b"", CreateMode::Container);
    again.create("/used/y", b"", P).commit().wait().unwrap();
}

#[test]
fn a_time_to_live_is_counted_from_the_last_set_while_there_are_no_children() {
    let (cluster, session) = one();
    let mode = CreateMode::PersistentWithTtl(SECOND * 10);
    for path in ["/left", "/set", "/read", "/parent", "/same"] {
        session.create(path, b"x", mode).wait().unwrap();
    }
    make(&session, &["/parent/child"]);
    cluster.advance(SECOND * 8);
    session.set("/set", b"y").wait().unwrap();
    session.set("/same", b"x").wait().unwrap();
    session.get("/read").wait().unwrap();
    assert!(session.set_if("/left", b"", 7).wait().is_err(), "a failed set does not count");
    let there = |path: &str| session.exists(path).wait().unwrap().is_some();
    assert!(there("/left") && there("/read"));
    cluster.advance(SECOND * 5);
    assert!(!there("/left") && !there("/read"));
    assert!(there("/set") && there("/same") && there("/parent"));
    // Creating and deleting a child does not count as a set: the time was over long ago.
    cluster.advance(SECOND * 20);
    assert!(!there("/set") && !there("/same") && there("/parent"));
    session.delete("/parent/child").wait().unwrap();
    cluster.advance(SECOND * 3);
    assert!(!there("/parent"));
}

#[test]
fn a_time_to_live_is_from_one_millisecond_to_two_to_the_fortieth_less_one() {
    let (_cluster, session) = one();
    let ms = Duration::from_millis(1);
    assert_eq!(CreateMode::TTL_MAX, ms * 1_048_575 * 1_048_576 + ms * 1_048_575);
    let bad =
        [Duration::ZERO, ms - Duration::from_nanos(1), CreateMode::TTL_MAX + ms, Duration::MAX];
    for ttl in bad {
        for mode in
            [CreateMode::PersistentWithTtl(ttl), CreateMode::PersistentSequentialWithTtl(ttl)]
        {
            let reason = format!("{ttl:?} for /t is not from 1 ms to 2^40 - 1 ms");
            let invalid = Error::InvalidSetting { setting: "ttl", reason };
            assert_eq!(session.create("/t", b"", mode).wait(), Err(invalid.clone()));
            let multi = session.multi().create("/t", b"", mode).commit();
            assert_eq!(multi.wait(), Err(Error::Multi { index: 0, error: Box::new(invalid) }));
        }
    }
    for (ttl, kept) in [(CreateMode::TTL_MAX, CreateMode::TTL_MAX), (ms * 5 / 2, ms * 2), (ms, ms)]
    {
        let made = session
            .create("/t-", b"", CreateMode::PersistentSequentialWithTtl(ttl))
            .wait()
            .unwrap();
        assert_eq!(made.stat.ttl, Some(kept));
    }
}
