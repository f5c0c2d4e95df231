//! A cluster that is upgraded member by member while it is in use.

use std::time::Duration;

use super::Cluster;
use crate::api::coordinator::Coordinator;
use crate::operate::Status;
use crate::types::version::{INVENTED, VERSION};
use crate::{CreateMode, Error, Session, StartError};

const SECOND: Duration = Duration::from_secs(1);

fn versions(status: &Status) -> Vec<Option<u16>> {
    status.members.iter().map(|member| member.version).collect()
}

fn make(session: &Session, path: &str) {
    session.create(path, b"", CreateMode::Persistent).wait().unwrap();
}

/// A write that the older version does not have.
fn invented(session: &Session, path: &str) -> Result<(), Error> {
    session.invented(path, b"new").wait().map(drop)
}

fn unsupported(result: Result<(), Error>) {
    match result {
        Err(Error::Unsupported { what, needs: INVENTED, cluster: VERSION }) => {
            assert_eq!(what, "invented");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_cluster_needs_no_second_try() {
    for nodes in [1, 2, 3, 5] {
        let cluster = Cluster::with_settings(nodes, Coordinator::builder().version(INVENTED));
        for node in 0..nodes {
            let session = cluster.node(node).session();
            let root = format!("/{node}");
            make(&session, &root);
            invented(&session, &root).unwrap();
        }
        let status = cluster.node(0).status();
        assert_eq!(versions(&status), vec![Some(status.version); nodes]);
    }
}

#[test]
fn a_fleet_is_upgraded_member_by_member() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().version(VERSION));
    make(&cluster.node(0).session(), "/tree");
    for node in 0..3 {
        // Upgraded or not, every node refuses it: there is still a member that does not support it.
        for asked in 0..3 {
            let session = cluster.node(asked).session();
            unsupported(invented(&session, "/tree"));
            let multi = session.multi().create("/x", b"", CreateMode::Persistent);
            match multi.invented("/tree", b"new").commit().wait() {
                Err(Error::Multi { index: 1, error }) => unsupported(Err(*error)),
                other => panic!("{other:?}"),
            }
            // All other writes succeed.
            let own = format!("/by-{asked}-before-{node}");
            session.create(&own, b"", CreateMode::Ephemeral).wait().unwrap();
            assert_eq!(session.exists("/x").wait().unwrap(), None);
        }
        cluster.restart_as(node, INVENTED).unwrap();
        cluster.advance(5 * SECOND);
        let status = cluster.node(node).status();
        let expected: Vec<_> =
            (0..3).map(|at| Some(if at <= node { INVENTED } else { VERSION })).collect();
        assert_eq!(versions(&status), expected, "{status}");
        assert_eq!(status.version, if node == 2 { INVENTED } else { VERSION });
    }
    invented(&cluster.node(1).session(), "/tree").unwrap();
    for node in 0..3 {
        let session = cluster.node(node).session();
        session.sync().wait().unwrap();
        assert_eq!(session.get("/tree").wait().unwrap().0, b"new"[..].into());
        assert_eq!(cluster.node(node).status().version, INVENTED);
    }
}

/// Before the last member has been upgraded, all upgrades can be undone.
#[test]
fn an_upgrade_that_is_not_finished_is_taken_back() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().version(VERSION));
    cluster.node(0).session().create("/kept", b"", CreateMode::Persistent).wait().unwrap();
    for version in [INVENTED, VERSION] {
        for node in 0..2 {
            cluster.restart_as(node, version).unwrap();
            cluster.advance(5 * SECOND);
        }
    }
    for node in 0..3 {
        let session = cluster.node(node).session();
        session.sync().wait().unwrap();
        assert!(session.exists("/kept").wait().unwrap().is_some());
        assert_eq!(versions(&cluster.node(node).status()), [Some(VERSION); 3]);
    }
}

#[test]
fn an_instance_that_is_too_old_stops_with_the_reason() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().version(INVENTED));
    let session = cluster.node(0).session();
    session.create("/kept", b"", CreateMode::Persistent).wait().unwrap();
    // The log contains the entry for version 2.
    cluster.restart_as(2, VERSION).unwrap();
    cluster.advance(SECOND);
    let stopped = cluster.node(2).status().stopped.unwrap();
    assert!(stopped.contains("acts by version 2"), "{stopped}");
    assert!(stopped.contains("can do version 1 at most"), "{stopped}");
    assert!(matches!(cluster.node(2).session().sync().wait(), Err(Error::Stopped { .. })));
    assert_eq!(
        cluster.node(2).wait_stopped().wait(),
        Err(Error::Stopped { reason: stopped.clone() })
    );
    cluster.restart_as(2, INVENTED).unwrap();

    // A checkpoint is due after ten minutes, and contains the version, too.
    cluster.advance(700 * SECOND);
    let session = cluster.node(0).session();
    session.sync().wait().unwrap();
    let refused = cluster.restart_as(2, VERSION);
    match refused {
        Err(Error::Start(StartError::DataDirMismatch { reason, .. })) => {
            assert_eq!(reason, stopped)
        }
        other => panic!("{other:?}"),
    }
    // The others continue without this member, which joins them once it supports the version.
    session.set("/kept", b"1").wait().unwrap();
    cluster.restart_as(2, INVENTED).unwrap();
    cluster.advance(5 * SECOND);
    let session = cluster.node(2).session();
    session.sync().wait().unwrap();
    assert_eq!(session.get("/kept").wait().unwrap().0, b"1"[..].into());
    let hashes: Vec<_> = (0..3).map(|node| cluster.node(node).status().state_hash).collect();
    assert_eq!(hashes, [hashes[0]; 3]);
}

/// A write that waits for the upgrade must not wait for good, and later writes must not overtake it.
#[test]
fn a_member_that_stays_away_delays_writes_only_shortly() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().version(VERSION));
    cluster.stop(2);
    for node in 0..2 {
        cluster.restart_as(node, INVENTED).unwrap();
        cluster.advance(5 * SECOND);
    }
    let session = cluster.node(0).session();
    make(&session, "/tree");
    let mut invented_early = session.invented("/tree", b"new");
    let mut set = session.set("/tree", b"1");
    cluster.advance(10 * SECOND);
    unsupported(invented_early.try_take().expect("it has been settled by then").map(drop));
    set.try_take().expect("nor is what comes behind it held").unwrap();
    cluster.restart_as(2, INVENTED).unwrap();
    cluster.advance(5 * SECOND);
    invented(&session, "/tree").unwrap();
}

/// A client does not know what each member supports.
#[test]
fn a_client_waits_for_the_decision_and_is_refused() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().version(VERSION));
    make(&cluster.node(0).session(), "/tree");
    let client = cluster.add_client();
    cluster.restart_as(client, INVENTED).unwrap();
    cluster.advance(SECOND);
    let session = cluster.node(client).session();
    let mut early = session.invented("/tree", b"new");
    let mut set = session.set("/tree", b"1");
    cluster.advance(5 * SECOND);
    assert!(early.try_take().is_none() && set.try_take().is_none());
    cluster.advance(10 * SECOND);
    unsupported(early.try_take().expect("it has been settled by then").map(drop));
    set.try_take().expect("nor is what comes behind it held").unwrap();
    for node in 0..3 {
        cluster.restart_as(node, INVENTED).unwrap();
        cluster.advance(5 * SECOND);
    }
    invented(&session, "/tree").unwrap();
    assert_eq!(session.get("/tree").wait().unwrap().0, b"new"[..].into());
}
