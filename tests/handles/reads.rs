//! What reads show, on which instance, and as of which write.

use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::common::addresses;
use quorate::multi::{ReadOp, ReadResult};
use quorate::recipes::{Config, Counter, Group, LeaderLatch, Queue};
use quorate::session::CausalToken;
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Session};

use crate::common::tasks::block_on;

const P: CreateMode = CreateMode::Persistent;

fn session(cluster: &Cluster, node: usize) -> Session {
    let session = cluster.node(node).session();
    session.sync().wait().unwrap();
    session
}

#[test]
fn descendants_are_counted_and_siblings_are_not() {
    let cluster = Cluster::new(1);
    let session = session(&cluster, 0);
    for path in ["/a", "/a/b", "/a/b/c", "/a/b-", "/a-", "/a-/x", "/ab"] {
        session.create(path, b"", P).wait().unwrap();
    }
    for (path, below) in [("/a", 3), ("/a/b", 1), ("/a/b/c", 0), ("/a-", 1), ("/ab", 0)] {
        assert_eq!(session.all_children_number(path).wait(), Ok(below), "{path}");
    }
    // Like ZooKeeper: the three system znodes count, and the root does not.
    assert_eq!(session.all_children_number("/").wait(), Ok(7 + 3));
    let missing = Error::NoNode { path: "/none".to_owned() };
    assert_eq!(session.all_children_number("/none").wait(), Err(missing));
    assert!(matches!(session.all_children_number("none").wait(), Err(Error::InvalidPath { .. })));
    let below = session.chroot("/a").unwrap();
    assert_eq!(
        (below.all_children_number("/").wait(), below.all_children_number("/b").wait()),
        (Ok(3), Ok(1))
    );
    assert_eq!(below.snapshot().wait().unwrap().children("/b").unwrap(), ["c"]);
}

#[test]
fn a_requested_snapshot_shows_all_earlier_calls_and_no_later_ones() {
    let cluster = Cluster::new(3);
    let session = session(&cluster, 0);
    let calls = &session.in_turn();
    let _first = calls.create("/a", b"1", P);
    let snapshot = calls.snapshot();
    let later = calls.set("/a", b"2");
    later.wait().unwrap();
    let snapshot = snapshot.wait().unwrap();
    assert_eq!(&snapshot.get("/a").unwrap().0[..], b"1");
    assert_eq!(snapshot.zxid(), snapshot.get("/a").unwrap().1.mzxid);
    assert_eq!(&session.get("/a").wait().unwrap().0[..], b"2");
    // The snapshot's paths are relative to the chroot of the handle.
    let below = session.chroot("/a").unwrap();
    below.create("/b", b"", P).wait().unwrap();
    assert_eq!(below.in_turn().snapshot().wait().unwrap().children("/").unwrap(), ["b"]);
    session.close().wait().unwrap();
    assert!(calls.snapshot().wait().is_err());
}

#[test]
fn a_snapshot_after_a_sync_has_its_zxid() {
    let cluster = Cluster::new(1);
    let session = session(&cluster, 0);
    // Each write takes a zxid and changes no znode.
    let other = cluster.node(0).open_session().unwrap();
    other.sync().wait().unwrap();
    let synced = session.sync().wait().unwrap();
    assert_eq!(session.snapshot().wait().unwrap().zxid(), synced);
    other.close().wait().unwrap();
    assert_eq!(session.sync().wait().unwrap(), synced + 1);
    assert_eq!(session.snapshot().wait().unwrap().zxid(), synced + 1);
}

#[test]
fn reads_without_a_quorum_may_be_stale_and_a_sync_waits() {
    let cluster = Cluster::new(3);
    let sessions: Vec<Session> = (0..3).map(|node| session(&cluster, node)).collect();
    sessions[0].create("/a", b"old", P).wait().unwrap();
    sessions[2].sync().wait().unwrap();
    cluster.isolate(2);
    sessions[0].set("/a", b"new").wait().unwrap();
    // The isolated member still reads, and cannot catch up.
    assert_eq!(&sessions[2].get("/a").wait().unwrap().0[..], b"old");
    let (synced, snapshot) = {
        let calls = &sessions[2].in_turn();
        (calls.sync(), calls.snapshot())
    };
    cluster.advance(Duration::from_millis(500));
    assert_eq!(&sessions[2].snapshot().wait().unwrap().get("/a").unwrap().0[..], b"old");
    cluster.heal();
    synced.wait().unwrap();
    assert_eq!(&snapshot.wait().unwrap().get("/a").unwrap().0[..], b"new");
}

/// A service writes, and another one reads at another instance.
#[test]
fn a_session_waits_for_a_write_of_another() {
    const PATIENCE: Duration = Duration::from_secs(1);
    let cluster = Cluster::new(3);
    let client = cluster.add_client();
    let sessions: Vec<Session> = [0, 1, 2, client].map(|node| session(&cluster, node)).into();
    let first = sessions[0].create("/a", b"1", P).wait().unwrap().stat.czxid;
    for session in &sessions {
        assert_eq!(session.wait_for_zxid(first).timeout(PATIENCE).wait(), Ok(()));
        assert_eq!(&session.get("/a").wait().unwrap().0[..], b"1");
        block_on(session.wait_for_zxid(first)).unwrap();
    }

    cluster.isolate(2);
    let second = sessions[0].set("/a", b"2").wait().unwrap().mzxid;
    // What is here needs no quorum.
    assert_eq!(sessions[2].wait_for_zxid(first).timeout(Duration::ZERO).wait(), Ok(()));
    let late = sessions[2].wait_for_zxid(second).timeout(PATIENCE).wait();
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    assert_eq!(&sessions[2].get("/a").wait().unwrap().0[..], b"1");
    cluster.heal();
    assert_eq!(sessions[2].wait_for_zxid(second).timeout(30 * PATIENCE).wait(), Ok(()));
    assert_eq!(&sessions[2].get("/a").wait().unwrap().0[..], b"2");

    for session in &sessions {
        let error = session.wait_for_zxid(u64::MAX).timeout(PATIENCE).wait().unwrap_err();
        assert!(matches!(error, Error::FutureZxid { zxid: u64::MAX, .. }), "{error}");
        session.close().wait().unwrap();
        assert!(
            session.wait_for_zxid(first).timeout(PATIENCE).wait().unwrap_err().is_session_lost()
        );
    }
}

/// A token covers what its session has written and read, also what no stat shows.
#[test]
fn a_token_of_one_session_is_waited_for_by_others() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let cluster = Cluster::new(3);
    let client = cluster.add_client();
    let sessions: Vec<Session> = [0, 1, 2, client].map(|node| session(&cluster, node)).into();
    for (place, writer) in sessions.iter().enumerate() {
        let path = format!("/{place}");
        let written = writer.create(&path, b"", P).wait().unwrap().stat.czxid;
        let created = writer.causal_token().wait().unwrap();
        assert!(created.zxid() >= written, "node {place}");
        writer.delete(&path).wait().unwrap();
        let token = writer.causal_token().wait().unwrap();
        assert!(token.zxid() > written, "a deletion has a zxid, too");
        for reader in &sessions {
            assert_eq!(reader.wait_for_zxid(token).timeout(PATIENCE).wait(), Ok(()));
            assert_eq!(reader.exists(&path).wait(), Ok(None));
            // What it has seen so, it hands on.
            assert!(reader.causal_token().wait().unwrap().zxid() >= token.zxid());
        }
    }
    // What was only read counts as well.
    let latest = sessions[0].set("/", b"2").wait().unwrap().mzxid;
    for reader in &sessions {
        reader.sync().wait().unwrap();
        assert_eq!(&reader.get("/").wait().unwrap().0[..], b"2");
        assert!(reader.causal_token().wait().unwrap().zxid() >= latest);
    }

    let theirs: CausalToken = "00000000000000a7-1".parse().unwrap();
    for reader in &sessions {
        let error = reader.wait_for_zxid(theirs).timeout(PATIENCE).wait().unwrap_err();
        assert!(matches!(error, Error::InvalidSetting { setting: "causal token", .. }), "{error}");
    }
}

/// A member of this cluster, on this disk.
fn member(dir: &Path, peers: &[String], own: &str) -> Coordinator {
    let dir = dir.join(own.replace(':', "-"));
    Coordinator::builder().advertise(own).data_dir(dir).join(peers).wait().unwrap()
}

/// Creates so many znodes below `/n`.
fn fill(session: &Session, znodes: usize) {
    session.create("/n", b"", P).wait().unwrap();
    let calls = &session;
    let asked: Vec<_> =
        (0..znodes).map(|znode| calls.create(&format!("/n/{znode:05}"), b"1", P)).collect();
    for created in asked {
        created.wait().unwrap();
    }
}

/// A member was closed and joined again. Its own log was applied again after `join` had returned, and until then
/// reads went through its history: `NoNode` for what had been acknowledged long ago, then a quarter of it, then
/// half of it. An application took that for an answer.
#[test]
fn the_first_read_after_a_restart_shows_all_that_was_acknowledged() {
    const ZNODES: usize = 16_000;
    let (dir, peers) = (tempfile::tempdir().unwrap(), addresses::addresses(1));
    let first = member(dir.path(), &peers, &peers[0]);
    fill(&first.session(), ZNODES);
    first.close().wait().unwrap();
    type Look = fn(&Session) -> quorate::Result<usize>;
    let looks: [Look; 8] = [
        |session| session.children("/n").wait().map(|names| names.len()),
        |session| session.children_with_stat("/n").wait().map(|(names, _)| names.len()),
        |session| Ok(session.exists("/n").wait()?.map_or(0, |stat| stat.num_children as usize)),
        |session| session.snapshot().wait()?.children("/n").map(|names| names.len()),
        |session| session.all_children_number("/n").wait(),
        |session| match session.multi_read([ReadOp::Children("/n")]).wait()?.remove(0)? {
            ReadResult::Children(names, _) => Ok(names.len()),
            other => panic!("{other:?}"),
        },
        |session| Ok(session.transact(|txn| Ok(txn.children("/n")?.len())).wait()?.value),
        |session| block_on(session.in_turn().children("/n")).map(|names| names.len()),
    ];
    for round in 0..3 {
        let again = member(dir.path(), &peers, &peers[0]);
        assert_eq!(again.session().children("/n").wait().map(|names| names.len()), Ok(ZNODES));
        again.close().wait().unwrap();
        // All at the same moment, each in a session of its own.
        let again = member(dir.path(), &peers, &peers[0]);
        std::thread::scope(|scope| {
            for (number, look) in looks.iter().enumerate() {
                let session = again.open_session().unwrap();
                scope.spawn(move || assert_eq!(look(&session), Ok(ZNODES), "{round}: {number}"));
            }
        });
        again.close().wait().unwrap();
    }
}

/// As above, with one of three members, which also has to catch up with the others.
#[test]
fn the_first_read_of_a_member_that_comes_back_shows_what_happened_meanwhile() {
    let (dir, peers) = (tempfile::tempdir().unwrap(), addresses::addresses(3));
    let start = |own: &String| member(dir.path(), &peers, own);
    let members: Vec<Coordinator> = peers.iter().map(start).collect();
    fill(&members[0].session(), 2_000);
    for round in 0..3 {
        members[2].close().wait().unwrap();
        let last = format!("/n/round-{round}");
        members[0].session().create(&last, b"1", P).wait().unwrap();
        let again = start(&peers[2]);
        let session = again.open_session().unwrap();
        assert!(session.exists(&last).wait().unwrap().is_some(), "round {round}");
        assert_eq!(session.children("/n").wait().unwrap().len(), 2_001 + round);
        again.close().wait().unwrap();
    }
}

/// The looks of recipes took an unapplied log for an answer: a counter of 41 was 0, a queue of five items empty.
#[test]
fn the_first_looks_of_recipes_after_a_restart_show_all_that_was_acknowledged() {
    let (dir, peers) = (tempfile::tempdir().unwrap(), addresses::addresses(1));
    let first = member(dir.path(), &peers, &peers[0]);
    let session = first.session();
    Counter::new(&session, "/counter").unwrap().set(41).wait().unwrap();
    Queue::new(&session, "/queue").unwrap().put(b"item").wait().unwrap();
    Config::<u64>::new(&session, "/config").unwrap().set(&7).wait().unwrap();
    fill(&session, 4_000);
    first.close().wait().unwrap();
    type Look = fn(&Session) -> quorate::Result<bool>;
    let looks: [Look; 9] = [
        |session| Ok(Counter::new(session, "/counter")?.get().wait()? == 41),
        |session| Ok(block_on(Counter::new(session, "/counter")?.get())? == 41),
        |session| Ok(Queue::new(session, "/queue")?.len().wait()? > 0),
        |session| Ok(Queue::new(session, "/queue")?.peek().wait()?.is_some()),
        |session| Ok(Config::<u64>::new(session, "/config")?.get().wait()?.is_some()),
        // Nobody leads and nobody is there: the answer is right only if it shows the znodes beside it.
        |session| {
            let led = LeaderLatch::new(session, "/leader", "me")?.leader().wait()?;
            Ok(led.is_none() && session.children("/n").wait()?.len() == 4_000)
        },
        |session| {
            let led = block_on(LeaderLatch::new(session, "/leader", "me")?.leader())?;
            Ok(led.is_none() && session.children("/n").wait()?.len() == 4_000)
        },
        |session| {
            let members = Group::new(session, "/members")?.members().wait()?;
            Ok(members.is_empty() && session.children("/n").wait()?.len() == 4_000)
        },
        |session| Ok(block_on(session.transact(|txn| txn.children("/n")))?.value.len() == 4_000),
    ];
    let again = member(dir.path(), &peers, &peers[0]);
    std::thread::scope(|scope| {
        for (number, look) in looks.into_iter().enumerate() {
            let session = again.open_session().unwrap();
            scope.spawn(move || assert_eq!(look(&session), Ok(true), "look {number}"));
        }
    });
    again.close().wait().unwrap();
}

/// A session outlives its process: it was resumed at a member that had not applied its own log yet.
#[test]
fn a_session_that_is_resumed_after_a_restart_shows_all_that_was_acknowledged() {
    let (dir, peers) = (tempfile::tempdir().unwrap(), addresses::addresses(1));
    let first = member(dir.path(), &peers, &peers[0]);
    let kept = first.open_session().unwrap();
    kept.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    fill(&kept, 4_000);
    let (id, password) = kept.detach().wait().unwrap();
    first.close().wait().unwrap();
    let again = member(dir.path(), &peers, &peers[0]);
    let resumed = again.resume(id, password).wait().unwrap();
    assert!(resumed.exists("/mine").wait().unwrap().is_some());
    assert_eq!(resumed.children("/n").wait().unwrap().len(), 4_000);
    let (id, password) = resumed.detach().wait().unwrap();
    again.close().wait().unwrap();
    let again = member(dir.path(), &peers, &peers[0]);
    let resumed = block_on(again.resume(id, password)).unwrap();
    assert_eq!(resumed.children("/n").wait().unwrap().len(), 4_000);
}

/// An instance was cut off for a while. A session that was asked for there afterwards read what the replica had
/// shown before: NoNode for a lock that others had known for long.
#[test]
fn the_first_read_behind_a_partition_shows_what_happened_meanwhile() {
    let cluster = Cluster::new(3);
    let there = session(&cluster, 0);
    there.create("/n", b"", P).wait().unwrap();
    for round in 0..20 {
        cluster.isolate(2);
        let name = format!("/n/{round}");
        there.create(&name, b"", P).wait().unwrap();
        cluster.heal();
        let new = cluster.node(2).open_session().unwrap();
        assert!(new.exists(&name).wait().unwrap().is_some(), "round {round}");
        new.close().wait().unwrap();
    }
}

/// One of three that has just started, alone: nobody can open its sessions.
fn alone(timeout: Duration) -> (Cluster, Coordinator) {
    let cluster = Cluster::with_settings(3, Coordinator::builder().request_timeout(timeout));
    session(&cluster, 0).create("/a", b"1", P).wait().unwrap();
    session(&cluster, 2).close().wait().unwrap();
    for node in 0..3 {
        cluster.stop(node);
    }
    cluster.restart(2);
    let node = cluster.node(2);
    (cluster, node)
}

/// A process that had started without a quorum answered reads from a replica of any age.
#[test]
fn without_a_quorum_the_first_calls_time_out_with_the_reason() {
    let (cluster, node) = alone(Duration::from_millis(300));
    let session = node.session();
    let below = session.chroot("/zookeeper").unwrap();
    type Call = fn(&Session) -> quorate::Result<()>;
    let calls: [Call; 10] = [
        |session| session.get("/").wait().map(drop),
        |session| session.exists("/").wait().map(drop),
        |session| session.children("/").wait().map(drop),
        |session| session.children_with_stat("/").wait().map(drop),
        |session| session.acl("/").wait().map(drop),
        |session| session.ephemerals().wait().map(drop),
        |session| session.snapshot().wait().map(drop),
        |session| session.multi_read([ReadOp::Get("/")]).wait().map(drop),
        |session| session.get_and_watch("/").wait().map(drop),
        |session| Counter::new(session, "/c")?.get().wait().map(drop),
    ];
    let unready = node.wait_ready(Duration::from_millis(100)).wait();
    let Err(Error::Timeout { reason: why, .. }) = unready else { panic!("{unready:?}") };
    for (number, call) in calls.into_iter().enumerate() {
        for session in [&session, &below] {
            let called = call(session);
            let Err(Error::Timeout { reason, .. }) = called else { panic!("{number}: {called:?}") };
            assert_eq!(reason, why, "{number}");
        }
    }
    // What has no limit waits on, and is answered once there is a quorum.
    let read = session.in_turn().get("/a");
    cluster.restart(0);
    assert_eq!(&read.wait().unwrap().0[..], b"1");
    assert_eq!(&session.get("/a").wait().unwrap().0[..], b"1");
    // From now on it reads with or without a quorum.
    cluster.stop(0);
    assert_eq!(&session.get("/a").wait().unwrap().0[..], b"1");
}

#[test]
fn a_stale_snapshot_needs_neither_a_session_nor_a_quorum() {
    let (cluster, node) = alone(Duration::from_secs(60));
    // Where it has got to depends on what it knew to be committed.
    assert!(node.stale_snapshot().unwrap().exists("/").unwrap().is_some());
    cluster.restart(0);
    let session = node.session();
    assert_eq!(&session.get("/a").wait().unwrap().0[..], b"1");
    assert_eq!(&node.stale_snapshot().unwrap().get("/a").unwrap().0[..], b"1");
    let client = cluster.node(cluster.add_client());
    assert!(matches!(client.stale_snapshot(), Err(Error::NeedsReplica { .. })));
}

#[test]
fn a_first_read_that_waits_ends_with_its_coordinator() {
    let (_cluster, node) = alone(Duration::from_secs(60));
    let session = node.session();
    let (read, blocked) = thread::scope(|threads| {
        let blocked = threads.spawn(|| session.get("/a").wait().map(drop));
        let read = session.in_turn().get("/a");
        node.close().wait().unwrap();
        (read.wait().map(drop), blocked.join().unwrap())
    });
    for read in [read, blocked] {
        let over =
            |error: &Error| matches!(error, Error::Stopped { .. } | Error::SessionClosed { .. });
        assert!(read.as_ref().is_err_and(over), "{read:?}");
    }
    assert!(session.get("/a").wait().is_err_and(|error| matches!(error, Error::Stopped { .. })));
}

#[test]
fn a_first_read_comes_before_a_close_that_was_asked_for_later() {
    let (cluster, node) = alone(Duration::from_secs(60));
    let session = node.session();
    let read = session.in_turn().get("/a");
    let closed = session.close();
    assert!(
        session.get("/a").wait().is_err_and(|error| matches!(error, Error::SessionClosed { .. }))
    );
    cluster.restart(0);
    assert_eq!(&read.wait().unwrap().0[..], b"1");
    closed.wait().unwrap();
}
