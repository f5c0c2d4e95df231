//! Guarantees between the calls of one session and other sessions, and some guarantees beyond ZooKeeper's.

use std::collections::BTreeSet;

use quorate::multi::{Condition, ReadOp, ReadResult};
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error};

use crate::{P, SECOND, make, one, open, stat};

const SEQUENTIAL: CreateMode = CreateMode::PersistentSequential;

/// Writes and reads sent together, without waiting for a reply.
#[test]
fn a_sessions_calls_are_answered_in_the_order_in_which_they_were_made() {
    let cluster = Cluster::new(3);
    for node in 0..3 {
        let session = open(&cluster, node);
        let path = format!("/{node}");
        make(&session, &[&path]);
        let calls = &session.in_turn();
        let pairs: Vec<_> = (0..200)
            .map(|_| (calls.set(&path, b""), calls.get(&path), calls.exists(&path)))
            .collect();
        for (n, (set, get, exists)) in pairs.into_iter().enumerate() {
            let stat = set.wait().unwrap();
            assert_eq!(stat.version, n as u64 + 1);
            assert_eq!(get.wait().unwrap().1, stat, "its own write, and none made later");
            assert_eq!(exists.wait().unwrap(), Some(stat));
        }
    }
}

/// ZooKeeper's `sync` asks a leader that may have been deposed.
#[test]
fn a_sync_shows_every_write_that_any_session_has_seen() {
    let cluster = Cluster::new(3);
    let sessions: Vec<_> = (0..3).map(|node| open(&cluster, node)).collect();
    make(&sessions[0], &["/n"]);
    for round in 0..60 {
        let version = sessions[round % 3].set("/n", b"").wait().unwrap().version;
        for session in &sessions {
            session.sync().wait().unwrap();
            assert_eq!(stat(session, "/n").version, version);
        }
    }
    // An isolated leader that does not know it yet cannot answer a sync.
    let old = cluster.leader().unwrap();
    cluster.isolate(old);
    let mut synced = sessions[old].sync();
    cluster.advance(SECOND * 4);
    sessions[(old + 1) % 3].set("/n", b"").wait().unwrap();
    assert!(synced.try_take().is_none());
    cluster.heal();
    cluster.advance(SECOND * 2);
    synced.wait().unwrap();
    assert_eq!(stat(&sessions[old], "/n").version, 61);
}

/// With ZooKeeper, a user must not repeat a sequential create whose reply was lost, and has to look for a
/// znode with a unique name. Here the library repeats the create, and it is done once.
#[test]
fn a_sequential_create_is_done_once_whoever_is_the_leader() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().session_timeout(SECOND * 40));
    let node = (cluster.leader().unwrap() + 1) % 3;
    let session = open(&cluster, node);
    make(&session, &["/q"]);
    let mut creates = Vec::new();
    for _ in 0..4 {
        for _ in 0..50 {
            creates.push(session.create("/q/n", b"", SEQUENTIAL));
        }
        // One of the other nodes, which leads or could.
        let leader = cluster.leader().filter(|leader| *leader != node).unwrap_or((node + 1) % 3);
        cluster.restart(leader);
        cluster.advance(SECOND * 3);
    }
    for (n, create) in creates.into_iter().enumerate() {
        assert_eq!(create.wait().unwrap().path, format!("/q/n{n:010}"));
    }
    assert_eq!(session.children("/q").wait().unwrap().len(), 200);
    assert_eq!(stat(&session, "/q").cversion, 200);
}

/// Zxids are dense, and those of answered writes only grow, across changes of the leader.
#[test]
fn zxids_grow_by_one_over_changes_of_leader() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().session_timeout(SECOND * 40));
    let node = (cluster.leader().unwrap() + 1) % 3;
    let session = open(&cluster, node);
    let mut zxid = session.create("/n", b"", P).wait().unwrap().stat.czxid;
    for _ in 0..3 {
        let leader = cluster.leader().filter(|leader| *leader != node).unwrap_or((node + 1) % 3);
        cluster.restart(leader);
        cluster.advance(SECOND * 3);
        for _ in 0..5 {
            zxid += 1;
            assert_eq!(session.set("/n", b"").wait().unwrap().mzxid, zxid);
        }
    }
}

#[test]
fn many_reads_of_any_kind_show_one_state() {
    let (cluster, session) = one();
    let writer = open(&cluster, 0);
    make(&session, &["/a", "/b"]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..200 {
                let path = format!("/b/{n}");
                writer.multi().set("/a", b"").create(&path, b"", P).commit().wait().unwrap();
            }
        });
        let mut seen = 0;
        while seen < 200 {
            let reads = [
                ReadOp::Get("/a"),
                ReadOp::Children("/b"),
                ReadOp::Exists("/none"),
                ReadOp::AllChildrenNumber("/b"),
                ReadOp::Get("/none"),
            ];
            let results = session.multi_read(reads).wait().unwrap();
            let [Ok(ReadResult::Data(_, a)), Ok(ReadResult::Children(names, b)), ..] = &results[..]
            else {
                panic!("{results:?}");
            };
            assert_eq!((names.len() as u64, u64::from(b.num_children)), (a.version, a.version));
            assert_eq!(results[2], Ok(ReadResult::Exists(None)));
            assert_eq!(results[3], Ok(ReadResult::AllChildrenNumber(names.len())));
            assert!(matches!(results[4], Err(Error::NoNode { .. })));
            seen = a.version;
        }
    });
}

/// A write that has an effect only while the lock is held; this is decided when it is applied.
#[test]
fn a_write_is_fenced_by_the_lock_that_it_was_made_under() {
    let cluster = Cluster::new(3);
    let (one, two) = (open(&cluster, 0), open(&cluster, 1));
    make(&one, &["/data"]);
    let guard = one.lock("/lock").unwrap().acquire().wait().unwrap();
    let contender = |session: &quorate::Session| {
        let names = session.children("/lock").wait().unwrap();
        assert_eq!(names.len(), 1);
        format!("/lock/{}", names[0])
    };
    let (mine, token) = (contender(&one), guard.fencing_token());
    let fenced = |session: &quorate::Session, data: &[u8]| {
        session.multi().require(&mine, Condition::Czxid(token)).set("/data", data).commit()
    };
    fenced(&one, b"held").wait().unwrap();
    guard.release().wait().unwrap();
    let next = two.lock("/lock").unwrap().acquire().wait().unwrap();
    assert!(next.fencing_token() > token);
    let late = fenced(&one, b"too late").wait();
    assert!(matches!(late, Err(Error::Multi { index: 0, .. })), "{late:?}");
    two.sync().wait().unwrap();
    assert_eq!(&two.get("/data").wait().unwrap().0[..], b"held");
}

/// After an instance was killed, its successor takes over its ephemeral in one write: no reader sees the name
/// free.
#[test]
fn a_stale_ephemeral_is_taken_over_in_one_write() {
    let cluster = Cluster::new(3);
    let (stale, observer) = (open(&cluster, 0), open(&cluster, 2));
    stale.create("/member", b"old", CreateMode::Ephemeral).wait().unwrap();
    cluster.stop(0);
    cluster.advance(SECOND * 3);
    let new = open(&cluster, 1);
    let old = stat(&new, "/member");
    let watch = observer.get_and_watch("/member");
    new.multi()
        .require("/member", Condition::Czxid(old.czxid))
        .delete("/member")
        .create("/member", b"new", CreateMode::Ephemeral)
        .commit()
        .wait()
        .unwrap();
    assert!(watch.wait().is_ok());
    cluster.advance(SECOND * 20);
    let (data, now) = new.get("/member").wait().unwrap();
    assert_eq!((&data[..], now.ephemeral_owner), (&b"new"[..], Some(new.id())));
}

/// Single writes for what ZooKeeper's users do in many, and reads that ZooKeeper does not have.
#[test]
fn trees_are_deleted_and_listed_at_once() {
    let (_cluster, session) = one();
    make(&session, &["/t", "/t/a", "/t/a/b", "/t/c", "/tt"]);
    session.create("/t/e", b"", CreateMode::Ephemeral).wait().unwrap();
    let snapshot = session.snapshot().wait().unwrap();
    let listed: Vec<String> =
        snapshot.walk("/t").unwrap().map(|(path, _, _)| path.to_owned()).collect();
    assert_eq!(listed, ["/t", "/t/a", "/t/a/b", "/t/c", "/t/e"]);
    assert_eq!(session.all_children_number("/t").wait(), Ok(4));
    let zxid = session.sync().wait().unwrap();
    session.delete_recursive("/t").wait().unwrap();
    assert_eq!(session.sync().wait().unwrap(), zxid + 1);
    assert_eq!(session.exists("/t/a/b").wait().unwrap(), None);
    assert_eq!(session.ephemerals().wait().unwrap(), [""; 0]);
    assert!(session.exists("/tt").wait().unwrap().is_some());
    assert_eq!(session.delete_recursive("/t").wait(), Err(Error::NoNode { path: "/t".to_owned() }));
    // Created if missing and set if present, whatever other sessions do.
    for expected in [(0, 0), (1, 0)] {
        session
            .transact(|txn| {
                match txn.exists("/t")? {
                    None => txn.create("/t", b"", P),
                    Some(_) => txn.set("/t", b""),
                }
                Ok(())
            })
            .wait()
            .unwrap();
        let now = stat(&session, "/t");
        assert_eq!((now.version, now.cversion), expected);
    }
}

#[test]
fn an_id_names_one_session_for_ever() {
    let (cluster, session) = one();
    let mut ids = BTreeSet::new();
    for _ in 0..50 {
        let other = open(&cluster, 0);
        assert!(ids.insert(other.id()), "{} again", other.id());
        other.close().wait().unwrap();
        let back = cluster.node(0).resume(other.id(), other.password()).wait();
        assert_eq!(back.map(drop), Err(Error::SessionExpired { session: other.id() }));
    }
    assert!(ids.insert(session.id()));
}

#[test]
fn a_child_list_is_sorted_and_one_of_its_moment() {
    let (_cluster, session) = one();
    for name in ["b", "a", "Z", "0", "\u{e9}", "a-", "a b"] {
        make(&session, &[&format!("/{name}")]);
    }
    let (names, stat) = session.children_with_stat("/").wait().unwrap();
    assert_eq!(names, ["0", "Z", "a", "a b", "a-", "b", "zookeeper", "\u{e9}"]);
    assert_eq!(stat.num_children as usize, names.len());
    assert_eq!(session.children("/").wait().unwrap(), names);
    assert_eq!(session.children("/a").wait().unwrap(), [""; 0]);
    assert_eq!(session.all_children_number("/").wait(), Ok(7 + 3));
}
