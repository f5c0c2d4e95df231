//! A cluster that is upgraded member by member while it is in use.

use std::time::Duration;

use quorate::testing::Cluster;
use quorate::{Acl, CreateMode, Error, Session, Status};

const SECOND: Duration = Duration::from_secs(1);

fn versions(status: &Status) -> Vec<Option<u16>> {
    status.members.iter().map(|member| member.version).collect()
}

fn make(session: &Session, path: &str) {
    session.create(path, b"", CreateMode::Persistent).unwrap();
}

/// What version 1 cannot do.
fn close_off(session: &Session, path: &str) -> Result<(), Error> {
    session.set_acl(path, &Acl::read_only()).map(drop)
}

fn unsupported(result: Result<(), Error>) {
    match result {
        Err(Error::Unsupported { what, needs: 2, cluster: 1 }) => {
            assert_eq!(what, "set_acl");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_cluster_needs_no_second_try() {
    for nodes in [1, 2, 3, 5] {
        let cluster = Cluster::new(nodes);
        for node in 0..nodes {
            let session = cluster.node(node).session();
            let root = format!("/{node}");
            make(&session, &root);
            close_off(&session, &root).unwrap();
        }
        let status = cluster.node(0).status();
        assert_eq!(versions(&status), vec![Some(status.version); nodes]);
    }
}

#[test]
fn a_fleet_is_upgraded_member_by_member() {
    let cluster = Cluster::builder().version(1).start(3);
    make(&cluster.node(0).session(), "/tree");
    for node in 0..3 {
        // Whoever is asked, upgraded or not: a member is there that could not do it.
        for asked in 0..3 {
            let session = cluster.node(asked).session();
            unsupported(close_off(&session, "/tree"));
            let multi = session.multi().create("/x", b"", CreateMode::Persistent);
            match multi.set_acl("/tree", &Acl::open()).commit() {
                Err(Error::Multi { index: 1, error }) => unsupported(Err(*error)),
                other => panic!("{other:?}"),
            }
            // Everything else goes on.
            let own = format!("/by-{asked}-before-{node}");
            session.create(&own, b"", CreateMode::Ephemeral).unwrap();
            assert_eq!(session.exists("/x").unwrap(), None);
        }
        cluster.restart_as(node, 2).unwrap();
        cluster.advance(5 * SECOND);
        let status = cluster.node(node).status();
        let expected: Vec<_> = (0..3).map(|at| Some(if at <= node { 2 } else { 1 })).collect();
        assert_eq!(versions(&status), expected, "{status}");
        assert_eq!(status.version, if node == 2 { 2 } else { 1 });
    }
    close_off(&cluster.node(1).session(), "/tree").unwrap();
    for node in 0..3 {
        let session = cluster.node(node).session();
        session.sync().unwrap();
        assert_eq!(session.acl("/tree").unwrap().0, Acl::read_only());
        assert_eq!(cluster.node(node).status().version, 2);
    }
}

/// Before the last member has been upgraded, all of it can be taken back.
#[test]
fn an_upgrade_that_is_not_finished_is_taken_back() {
    let cluster = Cluster::builder().version(1).start(3);
    cluster.node(0).session().create("/kept", b"", CreateMode::Persistent).unwrap();
    for version in [2, 1] {
        for node in 0..2 {
            cluster.restart_as(node, version).unwrap();
            cluster.advance(5 * SECOND);
        }
    }
    for node in 0..3 {
        let session = cluster.node(node).session();
        session.sync().unwrap();
        assert!(session.exists("/kept").unwrap().is_some());
        assert_eq!(versions(&cluster.node(node).status()), [Some(1); 3]);
    }
}

#[test]
fn an_instance_that_is_too_old_says_so_and_harms_nothing() {
    let cluster = Cluster::builder().version(2).start(3);
    let session = cluster.node(0).session();
    session.create("/kept", b"", CreateMode::Persistent).unwrap();
    // The log has it that the cluster acts by version 2.
    cluster.restart_as(2, 1).unwrap();
    cluster.advance(SECOND);
    let stopped = cluster.node(2).status().stopped.unwrap();
    assert!(stopped.contains("acts by version 2"), "{stopped}");
    assert!(stopped.contains("can do version 1 at most"), "{stopped}");
    assert!(matches!(cluster.node(2).session().sync(), Err(Error::Stopped { .. })));
    cluster.restart_as(2, 2).unwrap();

    // A checkpoint is due after ten minutes, and has it too.
    cluster.advance(700 * SECOND);
    let session = cluster.node(0).session();
    session.sync().unwrap();
    let refused = cluster.restart_as(2, 1);
    match refused {
        Err(Error::DataDirMismatch { reason, .. }) => assert_eq!(reason, stopped),
        other => panic!("{other:?}"),
    }
    // The others go on without it, and it with them once it can.
    session.set("/kept", b"1").unwrap();
    cluster.restart_as(2, 2).unwrap();
    cluster.advance(5 * SECOND);
    let session = cluster.node(2).session();
    session.sync().unwrap();
    assert_eq!(session.get("/kept").unwrap().0, b"1"[..].into());
    let hashes: Vec<_> = (0..3).map(|node| cluster.node(node).status().state_hash).collect();
    assert_eq!(hashes, [hashes[0]; 3]);
}

/// What is held back must not be held for good, nor overtaken.
#[test]
fn a_member_that_never_comes_is_not_waited_for_long() {
    let cluster = Cluster::builder().version(1).start(3);
    cluster.stop(2);
    for node in 0..2 {
        cluster.restart_as(node, 2).unwrap();
        cluster.advance(5 * SECOND);
    }
    let session = cluster.node(0).session();
    make(&session, "/tree");
    let mut set_acl = session.nonblocking().set_acl("/tree", &Acl::read_only());
    let mut set = session.nonblocking().set("/tree", b"1");
    cluster.advance(10 * SECOND);
    unsupported(set_acl.try_take().expect("it has been settled by then").map(drop));
    set.try_take().expect("nor is what comes behind it held").unwrap();
    cluster.restart_as(2, 2).unwrap();
    cluster.advance(5 * SECOND);
    close_off(&session, "/tree").unwrap();
}
