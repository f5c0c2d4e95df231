//! Handles whose tree is a part of the whole tree.

use std::time::Duration;

use quorate::multi::{Condition, OpResult};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, EventKind, Session, WatchMode};

const P: CreateMode = CreateMode::Persistent;

/// A session, and the same one confined to `/app`.
fn sessions() -> (Cluster, Session, Session) {
    let cluster = Cluster::new(1);
    let all = cluster.node(0).session();
    all.create("/app", b"", P).wait().unwrap();
    let app = all.chroot("/app").unwrap();
    (cluster, all, app)
}

fn no_node(path: &str) -> Error {
    Error::NoNode { path: path.to_owned() }
}

#[test]
fn paths_go_in_and_come_out_relative_to_the_root() {
    let (_cluster, all, app) = sessions();
    assert_eq!(app.create("/a", b"1", P).wait().unwrap().path, "/a");
    let numbered = app.create("/a/n-", b"", CreateMode::EphemeralSequential).wait().unwrap();
    assert_eq!(numbered.path, "/a/n-0000000000");
    assert_eq!(&all.get("/app/a").wait().unwrap().0[..], b"1");
    assert_eq!(app.set("/a", b"2").wait().unwrap().version, 1);
    assert_eq!(app.children("/").wait().unwrap(), ["a"]);
    assert_eq!(app.children_with_stat("/a").wait().unwrap().0, ["n-0000000000"]);
    all.create("/outside", b"", CreateMode::Ephemeral).wait().unwrap();
    assert_eq!(app.ephemerals().wait().unwrap(), ["/a/n-0000000000"]);
    assert_eq!(all.ephemerals().wait().unwrap(), ["/app/a/n-0000000000", "/outside"]);
    app.delete(&numbered.path).wait().unwrap();
    app.delete_if("/a", 1).wait().unwrap();
    assert_eq!(app.exists("/a").wait().unwrap(), None);
    // The root itself, and the root with a suffix: a sequential number goes below the root, not next to it.
    app.set("/", b"root").wait().unwrap();
    assert_eq!(&all.get("/app").wait().unwrap().0[..], b"root");
    assert_eq!(
        app.create("/", b"", CreateMode::PersistentSequential).wait().unwrap().path,
        "/0000000001"
    );
    assert!(all.exists("/app/0000000001").wait().unwrap().is_some());
    assert!(app.exists("/zookeeper").wait().unwrap().is_none());
    assert_eq!((app.id(), app.root(), all.root()), (all.id(), "/app", "/"));
}

#[test]
fn errors_name_what_the_caller_named() {
    let (_cluster, all, app) = sessions();
    assert_eq!(app.get("/x").wait(), Err(no_node("/x")));
    assert_eq!(app.set("/x", b"").wait(), Err(no_node("/x")));
    assert_eq!(app.create("/x/y", b"", P).wait(), Err(no_node("/x")));
    app.create("/x", b"", P).wait().unwrap();
    assert_eq!(app.create("/x", b"", P).wait(), Err(Error::NodeExists { path: "/x".to_owned() }));
    let failed = app.multi().set("/x", b"1").require("/x", Condition::Czxid(1)).commit();
    let unmet = Error::Unmet { path: "/x".to_owned(), condition: Condition::Czxid(1) };
    assert_eq!(failed.wait(), Err(Error::Multi { index: 1, error: Box::new(unmet) }));
    // The error of a multi that was too large named the path in the whole tree.
    let half = vec![0; 600_000];
    let Err(Error::Multi { index: 1, error }) =
        app.multi().set("/x", &half).set("/x", &half).commit().wait()
    else {
        panic!("it is too large")
    };
    assert!(matches!(*error, Error::TooLarge { path, .. } if path == "/x"));
    assert!(matches!(app.get("x").wait(), Err(Error::InvalidPath { path, .. }) if path == "x"));
    assert!(matches!(all.chroot("app/"), Err(Error::InvalidPath { .. })));
    // A path of the maximal length is too long below the root.
    let long = format!("/{}", "l".repeat(4095));
    assert!(all.create(&long, b"", P).wait().is_ok());
    for result in [app.set(&long, b"").wait().map(drop), app.create(&long, b"", P).wait().map(drop)]
    {
        assert!(matches!(result, Err(Error::InvalidPath { .. })), "{result:?}");
    }
    // A root that does not exist.
    let nowhere = all.chroot("/nowhere").unwrap();
    assert_eq!(nowhere.create("/a", b"", P).wait(), Err(no_node("/")));
}

#[test]
fn watches_multis_and_snapshots_see_the_root_as_all_there_is() {
    let (_cluster, all, app) = sessions();
    let recursive = app.watch("/", WatchMode::PersistentRecursive).wait().unwrap();
    let (_, once) = app.exists_and_watch("/a").wait().unwrap();
    let results =
        app.multi().create("/a", b"", P).create("/a/", b"", CreateMode::PersistentSequential);
    let results = results.commit().wait().unwrap();
    let paths: Vec<&str> = results
        .iter()
        .map(|result| match result {
            OpResult::Created(created) => created.path.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(paths, ["/a", "/a/0000000000"]);
    all.create("/apple", b"", P).wait().unwrap();
    all.set("/app", b"1").wait().unwrap();
    let events: Vec<_> =
        recursive.events().try_iter().map(|event| (event.kind, event.path)).collect();
    let event = |kind, path: &str| (kind, path.to_owned());
    assert_eq!(
        events,
        [
            event(EventKind::Created, "/a"),
            event(EventKind::Created, "/a/0000000000"),
            event(EventKind::DataChanged, "/"),
        ]
    );
    assert_eq!(once.recv().wait().unwrap().map(|event| event.path), Some("/a".to_owned()));

    let snapshot = app.snapshot().wait().unwrap();
    let walk = |path: &str| -> Vec<String> {
        snapshot.walk(path).unwrap().map(|(path, _, _)| path.to_owned()).collect()
    };
    assert_eq!(walk("/"), ["/", "/a", "/a/0000000000"]);
    assert_eq!(walk("/a"), ["/a", "/a/0000000000"]);
    assert_eq!(snapshot.children("/").unwrap(), ["a"]);
    assert_eq!(snapshot.get("/apple"), Err(no_node("/apple")));

    app.transact(|txn| {
        let (data, _) = txn.get("/")?;
        txn.set("/a", data);
        Ok(())
    })
    .wait()
    .unwrap();
    assert_eq!(&all.get("/app/a").wait().unwrap().0[..], b"1");
}

#[test]
fn recipes_work_inside_and_roots_nest() {
    let (_cluster, all, app) = sessions();
    let team = app.chroot("/teams").unwrap().chroot("/red").unwrap().chroot("/").unwrap();
    assert_eq!(team.root(), "/app/teams/red");
    app.create("/teams", b"", P).wait().unwrap();
    app.create("/teams/red", b"", P).wait().unwrap();
    let lock = team.lock("/lock").unwrap();
    let guard = lock.acquire().wait().unwrap();
    assert!(guard.is_held());
    assert_eq!(lock.contenders().wait().unwrap().len(), 1);
    // The same lock by another path.
    let same = all.lock("/app/teams/red/lock").unwrap();
    assert!(same.try_acquire().wait().unwrap().is_none());
    guard.release().wait().unwrap();
    assert!(all.children("/app/teams/red/lock").wait().unwrap().is_empty());
    // Given up by dropping the guard and the waiting future.
    let guard = lock.acquire().wait().unwrap();
    assert!(same.acquire().timeout(Duration::ZERO).wait().is_err());
    drop(guard);
    let guard = same.acquire().wait().unwrap();
    assert_eq!(lock.contenders().wait().unwrap().len(), 1);
    drop(guard);
}
