//! Multis.

use quorate::multi::{Condition, OpResult};
use quorate::{CreateMode, Error, Session, Stat};

use crate::{P, make, one, open, stat};

/// The whole tree, to check that nothing has changed.
fn everything(session: &Session) -> Vec<(String, Vec<u8>, Stat)> {
    let snapshot = session.snapshot().wait().unwrap();
    let walk = snapshot.walk("/").unwrap();
    walk.map(|(path, data, stat)| (path.to_owned(), data.to_vec(), stat)).collect()
}

#[test]
fn each_operation_sees_what_those_before_it_did() {
    let (_cluster, session) = one();
    let before = session.sync().wait().unwrap();
    let results = session
        .multi()
        .create("/a", b"", P)
        .require("/a/e", Condition::Absent)
        .create("/a/e", b"123", CreateMode::Ephemeral)
        .set_if("/a", b"1", 0)
        .check("/a", 1)
        .set_if("/a", b"22", 1)
        .delete_if("/a/e", 0)
        .create("/a/n", b"", CreateMode::PersistentSequential)
        .create("/a/n", b"", CreateMode::PersistentSequential)
        .delete("/a/n0000000001")
        .set("/a", b"333")
        .commit()
        .wait()
        .unwrap();
    let zxid = before + 1;
    // Each result is as of its operation, not as of the end.
    let brief: Vec<String> = results
        .iter()
        .map(|result| match result {
            OpResult::Created(made) => {
                assert_eq!((made.stat.czxid, made.stat.mzxid), (zxid, zxid));
                format!("created {} {}", made.path, made.stat.data_length)
            }
            OpResult::Set(stat) => {
                assert_eq!((stat.mzxid, stat.pzxid), (zxid, zxid));
                let Stat { version, data_length, cversion, num_children, .. } = stat;
                format!("set {version} {data_length} {cversion} {num_children}")
            }
            OpResult::Deleted => "deleted".to_owned(),
            OpResult::Checked => "checked".to_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        "created /a 0",
        "checked",
        "created /a/e 3",
        "set 1 1 1 1",
        "checked",
        "set 2 2 1 1",
        "deleted",
        "created /a/n0000000001 0",
        "created /a/n0000000002 0",
        "deleted",
        "set 3 3 5 1",
    ];
    assert_eq!(brief, expected);
    assert_eq!(session.sync().wait().unwrap(), zxid);
    let OpResult::Set(last) = results[10] else { panic!("{:?}", results[10]) };
    assert_eq!(stat(&session, "/a"), last);
}

/// ZooKeeper returns `Ok` for the operations before the failed one and `RuntimeInconsistency` for those after
/// it, and the exception has no path. Here the error is that of the failed operation, with its index.
#[test]
fn a_failed_multi_changes_nothing_and_reports_the_index() {
    let (_cluster, session) = one();
    make(&session, &["/a", "/full", "/full/x"]);
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let before = (everything(&session), session.sync().wait().unwrap());
    let fails: [(&str, Error); 6] = [
        ("missing", Error::NoNode { path: "/none".to_owned() }),
        ("taken", Error::NodeExists { path: "/a".to_owned() }),
        ("full", Error::NotEmpty { path: "/full".to_owned() }),
        ("version", Error::BadVersion { path: "/full".to_owned(), expected: 9, actual: 0 }),
        ("reserved", Error::Reserved { path: "/zookeeper".to_owned() }),
        ("ephemeral", Error::NoChildrenForEphemerals { path: "/mine".to_owned() }),
    ];
    for (which, error) in fails {
        for place in 0..4 {
            let mut multi = session.multi();
            for at in 0..4 {
                multi = match (at == place, which, at) {
                    (true, "missing", _) => multi.delete("/none"),
                    (true, "taken", _) => multi.create("/a", b"", P),
                    (true, "full", _) => multi.delete("/full"),
                    (true, "version", _) => multi.check("/full", 9),
                    (true, "reserved", _) => multi.delete("/zookeeper"),
                    (true, ..) => multi.create("/mine/x", b"", P),
                    (false, _, 0) => multi.create("/new", b"", CreateMode::Ephemeral),
                    (false, _, 1) => multi.delete("/full/x").create("/full/x", b"", P),
                    (false, ..) => multi.set("/full/x", b"changed"),
                };
            }
            // One of the other lines has two operations.
            let index = place + usize::from(place > 1);
            let failed = Error::Multi { index, error: Box::new(error.clone()) };
            assert_eq!(multi.commit().wait(), Err(failed), "{which} in place {place}");
            assert!(before == (everything(&session), session.sync().wait().unwrap()), "{which}");
        }
    }
}

#[test]
fn a_multi_without_effect_still_succeeds() {
    let (_cluster, session) = one();
    let zxid = session.sync().wait().unwrap();
    assert_eq!(session.multi().commit().wait(), Ok(Vec::new()));
    let checks = session.multi().check("/", 0).require("/none", Condition::Absent);
    assert_eq!(checks.commit().wait(), Ok(vec![OpResult::Checked; 2]));
    assert_eq!(session.sync().wait().unwrap(), zxid);
    // Created and deleted again: only the zxid and the parent's count show it.
    session.multi().create("/a", b"", P).delete("/a").commit().wait().unwrap();
    assert_eq!(session.sync().wait().unwrap(), zxid + 1);
    assert_eq!(stat(&session, "/").cversion, 2);
}

#[test]
fn a_multi_takes_every_mode_and_every_condition() {
    let (_cluster, session) = one();
    let ttl = crate::SECOND * 60;
    let modes = [
        CreateMode::Persistent,
        CreateMode::PersistentSequential,
        CreateMode::Ephemeral,
        CreateMode::EphemeralSequential,
        CreateMode::Container,
        CreateMode::PersistentWithTtl(ttl),
        CreateMode::PersistentSequentialWithTtl(ttl),
    ];
    let mut multi = session.multi();
    for (n, mode) in modes.iter().enumerate() {
        multi = multi.create(&format!("/{n}-"), b"", *mode);
    }
    let results = multi.commit().wait().unwrap();
    for (mode, result) in modes.iter().zip(&results) {
        let OpResult::Created(made) = result else { panic!("{result:?}") };
        assert_eq!(stat(&session, &made.path), made.stat);
        assert_eq!(made.stat.ephemeral_owner.is_some(), mode.is_ephemeral());
        assert_eq!(made.stat.is_container, *mode == CreateMode::Container);
        assert_eq!(made.stat.ttl, mode.ttl());
        assert_eq!(made.path.len() > 3, mode.is_sequential());
    }
    let there = session.set("/0-", b"x").wait().unwrap();
    let zxid = there.czxid;
    for (holds, fails) in [
        (Condition::Exists, Condition::Absent),
        (Condition::Version(1), Condition::Version(0)),
        (Condition::Czxid(zxid), Condition::Czxid(zxid + 1)),
        (Condition::Mzxid(zxid + 1), Condition::Mzxid(zxid)),
        (Condition::Pzxid(zxid), Condition::Pzxid(zxid + 1)),
        (Condition::Cversion(0), Condition::Cversion(1)),
        (Condition::Aversion(0), Condition::Aversion(1)),
    ] {
        assert_eq!(
            session.multi().require("/0-", holds).commit().wait(),
            Ok(vec![OpResult::Checked])
        );
        assert!(session.multi().require("/0-", fails).set("/0-", b"").commit().wait().is_err());
    }
    assert_eq!(stat(&session, "/0-").version, 1);
}

#[test]
fn no_reader_sees_a_part_of_a_multi() {
    let (cluster, session) = one();
    session.multi().create("/a", b"", P).create("/b", b"", P).commit().wait().unwrap();
    let reader = open(&cluster, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                session.multi().set("/a", b"").set("/b", b"").commit().wait().unwrap();
            }
        });
        let mut last = 0;
        while last < 300 {
            let snapshot = reader.snapshot().wait().unwrap();
            let [a, b] = ["/a", "/b"].map(|path| snapshot.get(path).unwrap().1);
            assert_eq!((a.version, a.mzxid, a.mtime), (b.version, b.mzxid, b.mtime));
            assert!(a.version >= last);
            last = a.version;
        }
    });
}

#[test]
fn a_multi_of_a_session_that_is_over_fails_and_changes_nothing() {
    let (cluster, session) = one();
    let old = open(&cluster, 0);
    let new = cluster.node(0).resume(old.id(), old.password()).wait().unwrap();
    let moved = old.multi().create("/a", b"", P).commit();
    assert_eq!(moved.wait(), Err(Error::SessionMoved { session: old.id() }));
    new.multi().create("/a", b"", P).commit().wait().unwrap();
    new.close().wait().unwrap();
    let closed = new.multi().delete("/a").commit();
    assert_eq!(closed.wait(), Err(Error::SessionClosed { session: new.id() }));
    assert!(session.exists("/a").wait().unwrap().is_some());
}
