//! Reads of the past: `snapshot_at` and the like.

use std::time::Duration;

use quorate::acl::{Acl, Id, Permissions};
use quorate::session::Zxid;
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Session};

fn value(session: &Session, zxid: Zxid) -> Vec<u8> {
    session.get_at("/a", zxid).unwrap().0.to_vec()
}

/// On every member and on a client; writes of one batch, and of a multi, included.
#[test]
fn each_write_has_its_state() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().snapshot_history(1 << 20));
    let client = cluster.node(cluster.add_client()).session();
    let session = cluster.node(0).session();
    let created = session.create("/a", b"0", CreateMode::Persistent).unwrap().stat.czxid;
    let sets: Vec<_> = (1..40).map(|n| session.nonblocking().set("/a", n.to_string())).collect();
    let stats: Vec<_> = sets.into_iter().map(|set| set.wait().unwrap()).collect();
    let multi = session.multi().set("/a", b"within").create("/a/b", b"b", CreateMode::Persistent);
    multi.set("/a", b"after").commit().unwrap();
    let last = session.get("/a").unwrap().1.mzxid;
    session.delete_recursive("/a").unwrap();
    for reader in [&session, &cluster.node(1).session(), &client] {
        assert_eq!(value(reader, created), b"0");
        for (n, stat) in (1..).zip(&stats) {
            let (data, then) = reader.get_at("/a", stat.mzxid).unwrap();
            assert_eq!((data.to_vec(), then), (n.to_string().into_bytes(), *stat));
        }
        assert_eq!(value(reader, last), b"after");
        let (names, stat) = reader.children_at("/a", last).unwrap();
        assert_eq!((names, stat.num_children), (vec!["b".to_owned()], 1));
        let then = reader.snapshot_at("/a", last).unwrap();
        let walk: Vec<_> = then.walk("/a").unwrap().map(|(path, data, _)| (path, data)).collect();
        assert_eq!(walk, [("/a", &b"after"[..]), ("/a/b", b"b")]);
        assert_eq!(then.zxid(), last);
        let missing = Error::NoNode { path: "/a".to_owned() };
        assert_eq!(reader.get_at("/a", last + 1).unwrap_err(), missing);
        assert_eq!(reader.get_at("/a", created - 1).unwrap_err(), missing);
        assert!(reader.snapshot_at("/a", last + 1).unwrap().exists("/a").unwrap().is_none());
        let future = reader.get_at("/a", last + 1000).unwrap_err();
        assert!(
            matches!(future, Error::FutureZxid { zxid, .. } if zxid == last + 1000),
            "{future}"
        );
    }
    for reader in [&session, &client] {
        let whole = reader.snapshot_at("/", last).unwrap();
        assert_eq!(&whole.get("/a/b").unwrap().0[..], b"b");
    }
}

/// A replica that does not have the write yet catches up first; one that has it needs no quorum.
#[test]
fn a_replica_that_is_behind_catches_up_first() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().snapshot_history(1 << 20));
    let (here, there) = (cluster.node(0).session(), cluster.node(1).session());
    here.create("/a", b"0", CreateMode::Persistent).unwrap();
    for n in 0..20 {
        let zxid = here.set("/a", [n]).unwrap().mzxid;
        assert_eq!(value(&there, zxid), [n]);
    }
    let zxid = here.set("/a", b"last").unwrap().mzxid;
    there.sync().unwrap();
    cluster.isolate(1);
    assert_eq!(value(&there, zxid), b"last");
    assert_eq!(value(&there, zxid - 1), [19]);
}

#[test]
fn what_is_kept_is_bounded_and_nothing_by_default() {
    let cluster = Cluster::with_settings(1, Coordinator::builder().snapshot_history(4 << 20));
    let session = cluster.node(0).session();
    let first = session.create("/a", b"", CreateMode::Persistent).unwrap().stat.czxid;
    let mut last = first;
    for n in 0..10 {
        last = session.set("/a", vec![n; 1 << 20]).unwrap().mzxid;
    }
    let error = session.snapshot_at("/", first).unwrap_err();
    let Error::TooOld { zxid, oldest, .. } = error else { panic!("{error}") };
    assert!(zxid == first && (last - 4..last).contains(&oldest), "{oldest} of {last}");
    assert!(session.snapshot_at("/", oldest - 1).is_err());
    assert_eq!(value(&session, oldest)[..2], [(9 - (last - oldest)) as u8; 2]);

    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let created = session.create("/a", b"1", CreateMode::Persistent).unwrap().stat.czxid;
    assert_eq!(value(&session, created), b"1", "the present is known");
    session.set("/a", b"2").unwrap();
    let error = session.get_at("/a", created).unwrap_err();
    assert!(matches!(error, Error::TooOld { oldest, .. } if oldest == created + 1), "{error}");
}

/// A restart begins with the checkpoint and goes through the log after it; a snapshot from a leader replaces what was kept.
#[test]
fn the_past_begins_with_the_process_or_with_a_received_snapshot() {
    let cluster = Cluster::with_settings(
        3,
        Coordinator::builder().snapshot_history(1 << 20).session_timeout(Duration::from_secs(40)),
    );
    let leader = cluster.leader().unwrap();
    let (restarted, cut) = ((leader + 1) % 3, (leader + 2) % 3);
    let writer = cluster.node(leader).session();
    let first = writer.create("/a", b"1", CreateMode::Persistent).unwrap().stat.czxid;
    writer.set("/a", b"2").unwrap();
    cluster.restart(restarted);
    let reader = cluster.node(restarted).open_session().unwrap();
    assert_eq!(value(&reader, first), b"1");

    cluster.isolate(cut);
    cluster.advance(Duration::from_secs(5));
    let big = vec![7; 100_000];
    let sets: Vec<_> = (0..600).map(|_| writer.nonblocking().set("/a", &big)).collect();
    for set in sets {
        set.wait().unwrap();
    }
    cluster.heal();
    cluster.advance(Duration::from_secs(10));
    let reader = cluster.node(cut).open_session().unwrap();
    let error = reader.snapshot_at("/", first).unwrap_err();
    assert!(matches!(error, Error::TooOld { .. }), "{error}");
}

/// The access list of that time, for the ids of now.
#[test]
fn the_access_lists_of_the_past_hold() {
    let cluster = Cluster::with_settings(1, Coordinator::builder().snapshot_history(1 << 20));
    let session = cluster.node(0).session();
    let closed = [Acl::new(Permissions::ADMIN, Id::anyone())];
    session.create("/a", b"open", CreateMode::Persistent).unwrap();
    let open = session.snapshot().unwrap().zxid();
    session.multi().set("/a", b"secret").set_acl("/a", &closed).commit().unwrap();
    let secret = session.snapshot().unwrap().zxid();
    session.set_acl("/a", &Acl::open()).unwrap();
    assert_eq!(value(&session, open), b"open");
    let denied = |error: Error| matches!(error, Error::NoAuth { .. });
    assert!(denied(session.get_at("/a", secret).unwrap_err()));
    assert!(denied(session.snapshot_at("/", secret).unwrap().get("/a").unwrap_err()));
    assert!(session.snapshot_at("/a", secret).unwrap().walk("/a").is_err_and(denied));
    assert_eq!(&session.get("/a").unwrap().0[..], b"secret");
}

/// Paths are those of a handle with a chroot, also in errors.
#[test]
fn a_chroot_has_its_past() {
    let cluster = Cluster::with_settings(1, Coordinator::builder().snapshot_history(1 << 20));
    let session = cluster.node(0).session();
    session.create("/app", b"", CreateMode::Persistent).unwrap();
    let created = session.create("/app/a", b"1", CreateMode::Persistent).unwrap().stat.czxid;
    session.set("/app/a", b"2").unwrap();
    let below = session.chroot("/app").unwrap();
    assert_eq!(value(&below, created), b"1");
    assert_eq!(&below.snapshot_at("/", created).unwrap().get("/a").unwrap().0[..], b"1");
    assert_eq!(&below.snapshot_at("/a", created).unwrap().get("/a").unwrap().0[..], b"1");
    let error = below.get_at("/a", created - 1).unwrap_err();
    assert_eq!(error, Error::NoNode { path: "/a".to_owned() });
}
