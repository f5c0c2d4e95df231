//! Quotas: soft and hard, by znodes and by bytes, and their reports.

use quorate::quota::Quota;
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, EventKind, Session, Transaction, WatchMode};

fn usage(session: &Session, path: &str) -> (u64, u64) {
    let (_, usage) = session.quota(path).wait().unwrap().expect("it has a quota");
    (usage.znodes, usage.bytes)
}

fn exceeded(path: &str, resource: &'static str, limit: u64, needed: u64) -> Error {
    Error::QuotaExceeded { path: path.to_owned(), resource, limit, needed }
}

/// S31, and exact where ZooKeeper is not: inside a multi, and for concurrent writes.
#[test]
fn hard_limits_hold() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/a", b"12", CreateMode::Persistent).wait().unwrap();
    session.set_quota("/a", &Quota::new().znodes_hard(3).bytes_hard(10)).wait().unwrap();
    assert_eq!(usage(&session, "/a"), (1, 2));
    // The znode itself counts, and so does each operation of a multi.
    let multi = session.multi().create("/a/1", b"", CreateMode::Persistent);
    let multi = multi.create("/a/2", b"", CreateMode::Ephemeral);
    let failed = multi.create("/a/3", b"", CreateMode::Persistent).commit();
    let error = Box::new(exceeded("/a", "znodes", 3, 4));
    assert_eq!(failed.wait(), Err(Error::Multi { index: 2, error }));
    assert_eq!(usage(&session, "/a"), (1, 2));
    let calls = &session;
    let creates: Vec<_> =
        (0..5).map(|_| calls.create("/a/n-", b"123", CreateMode::EphemeralSequential)).collect();
    let created: Vec<bool> = creates.into_iter().map(|create| create.wait().is_ok()).collect();
    assert_eq!(created, [true, true, false, false, false]);
    assert_eq!(usage(&session, "/a"), (3, 8));
    // Bytes: more is refused; less or the same is not.
    assert_eq!(session.set("/a", b"12345").wait(), Err(exceeded("/a", "bytes", 10, 11)));
    session.set("/a", b"1234").wait().unwrap();
    session.set("/a", b"abcd").wait().unwrap();
    session.set("/a", b"").wait().unwrap();
    assert_eq!(usage(&session, "/a"), (3, 6));
    // The error comes before BadVersion, and after NoNode.
    assert_eq!(session.set_if("/a", [0; 11], 99).wait(), Err(exceeded("/a", "bytes", 10, 17)));
    assert_eq!(session.set("/a/x", [0; 11]).wait(), Err(Error::NoNode { path: "/a/x".into() }));
    // Deleted znodes do not count any more, however they are deleted.
    session.close().wait().unwrap();
    let other = cluster.node(1).session();
    other.sync().wait().unwrap();
    assert_eq!(usage(&other, "/a"), (1, 0));
    other.delete_recursive("/a").wait().unwrap();
    assert_eq!(usage(&other, "/a"), (0, 0));
    other.create("/a", b"123", CreateMode::Persistent).wait().unwrap();
    assert_eq!(usage(&other, "/a"), (1, 3));
    other.delete_quota("/a").wait().unwrap();
    other.delete_quota("/a").wait().unwrap();
    assert_eq!(other.quota("/a").wait().unwrap(), None);
    other.set("/a", [0; 100]).wait().unwrap();
    assert!(other.children("/zookeeper/quota").wait().unwrap().is_empty());
}

/// With a limit below the current use, nothing grows, and everything may shrink.
#[test]
fn a_subtree_over_its_quota_may_shrink() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    for path in ["/a", "/a/b", "/a/c"] {
        session.create(path, b"xx", CreateMode::Persistent).wait().unwrap();
    }
    session.set_quota("/a", &Quota::new().znodes_hard(1).bytes_hard(1)).wait().unwrap();
    assert_eq!(usage(&session, "/a"), (3, 6));
    assert_eq!(session.set("/a/b", b"xxx").wait(), Err(exceeded("/a", "bytes", 1, 7)));
    session.set("/a/b", b"x").wait().unwrap();
    session.delete("/a/c").wait().unwrap();
    let failed = session.create("/a/d", b"", CreateMode::Persistent).wait().unwrap_err();
    assert_eq!(failed, exceeded("/a", "znodes", 1, 3));
    // With a raised limit the write fits.
    let quota = Quota::new().znodes_hard(3);
    session.set_quota("/a", &quota).wait().unwrap();
    session.create("/a/d", b"", CreateMode::Persistent).wait().unwrap();
    assert_eq!(session.quota("/a").wait().unwrap().unwrap().0, quota);
}

/// Soft limits fire a watch when they are exceeded, and when they are kept again.
#[test]
fn soft_limits_fire_a_watch() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    session.set_quota("/a", &Quota::new().znodes(2).bytes(3)).wait().unwrap();
    let stats = Quota::stats_path("/a");
    let watch = session.watch(&stats, WatchMode::Persistent).wait().unwrap();
    let events = || {
        session.sync().wait().unwrap();
        let events = watch.events().try_iter();
        events.map(|event| (event.kind, event.zxid)).collect::<Vec<_>>()
    };
    session.create("/a/1", b"", CreateMode::Persistent).wait().unwrap();
    assert_eq!(events(), []);
    let second = session.create("/a/2", b"", CreateMode::Persistent).wait().unwrap().stat.czxid;
    assert_eq!(events(), [(EventKind::DataChanged, second)]);
    // Not again while it stays exceeded.
    session.create("/a/3", b"", CreateMode::Persistent).wait().unwrap();
    assert_eq!(events(), []);
    let bytes = session.set("/a/3", b"1234").wait().unwrap().mzxid;
    assert_eq!(events(), [(EventKind::DataChanged, bytes)]);
    assert_eq!(&session.get(&stats).wait().unwrap().0[..], b"count=4,bytes=4");
    session.delete("/a/1").wait().unwrap();
    assert_eq!(events(), []);
    session.multi().delete("/a/2").delete("/a/3").commit().wait().unwrap();
    assert_eq!(events().len(), 2);
    // Where there is a hard limit, only that one applies.
    session.set_quota("/a", &Quota::new().znodes(1).znodes_hard(5)).wait().unwrap();
    session.create("/a/1", b"", CreateMode::Persistent).wait().unwrap();
    assert_eq!(events(), []);
}

/// The quotas of a path and of its ancestors hold together.
#[test]
fn quotas_nest() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    for path in ["/a", "/a/b", "/a/b/c", "/ab"] {
        session.create(path, b"x", CreateMode::Persistent).wait().unwrap();
    }
    session.set_quota("/", &Quota::new().bytes_hard(6)).wait().unwrap();
    session.set_quota("/a", &Quota::new()).wait().unwrap();
    session.set_quota("/a/b", &Quota::new().znodes_hard(2)).wait().unwrap();
    // The root counts, and the system's own znodes do not.
    let all = ["/", "/a", "/a/b"].map(|path| usage(&session, path));
    assert_eq!(all, [(5, 4), (3, 3), (2, 2)]);
    let nearest = session.create("/a/b/d", [0; 9], CreateMode::Persistent).wait().unwrap_err();
    assert_eq!(nearest, exceeded("/a/b", "znodes", 2, 3));
    assert_eq!(session.set("/a/b", [0; 9]).wait(), Err(exceeded("/", "bytes", 6, 12)));
    // Deleting one quota leaves the others.
    session.delete_quota("/a").wait().unwrap();
    assert_eq!(session.quota("/a").wait().unwrap(), None);
    assert_eq!(usage(&session, "/a/b"), (2, 2));
    session.delete_quota("/a/b").wait().unwrap();
    assert_eq!(session.children("/zookeeper/quota").wait().unwrap().len(), 2);
    session.delete_quota("/").wait().unwrap();
    assert!(session.children("/zookeeper/quota").wait().unwrap().is_empty());
}

/// Quota znodes written by hand, as ZooKeeper's command line does.
#[test]
fn quotas_are_znodes() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"xyz", CreateMode::Persistent).wait().unwrap();
    let base = "/zookeeper/quota/a";
    let limits = format!("{base}/zookeeper_limits");
    let stats = format!("{base}/zookeeper_stats");
    session.create(base, b"", CreateMode::Persistent).wait().unwrap();
    let data = "count=-1,bytes=-1=;byteHardLimit=4;countHardLimit=-1";
    session.create(&limits, data, CreateMode::Persistent).wait().unwrap();
    // The text in these znodes is the current quota and usage.
    let created =
        session.create(&stats, b"count=0,bytes=0", CreateMode::Persistent).wait().unwrap();
    assert_eq!(&session.get(&stats).wait().unwrap().0[..], b"count=1,bytes=3");
    assert_eq!(created.stat.data_length, 15);
    assert_eq!(session.set(&stats, b"").wait(), Err(Error::Reserved { path: stats.clone() }));
    assert_eq!(session.set("/a", b"12345").wait(), Err(exceeded("/a", "bytes", 4, 5)));
    assert_eq!(session.quota("/a").wait().unwrap().unwrap().0, Quota::new().bytes_hard(4));
    // The usage follows without a new version and without an event.
    session.set("/a", b"1234").wait().unwrap();
    let (data, stat) = session.get(&stats).wait().unwrap();
    assert_eq!(
        (&data[..], stat.version, stat.mzxid),
        (&b"count=1,bytes=4"[..], 0, created.stat.czxid)
    );
}

#[test]
fn bad_quotas_are_refused() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let missing = session.set_quota("/none", &Quota::new()).wait();
    assert_eq!(missing, Err(Error::NoNode { path: "/none".into() }));
    for path in ["/zookeeper", "/zookeeper/quota"] {
        let refused = session.set_quota(path, &Quota::new()).wait();
        assert_eq!(refused, Err(Error::Reserved { path: path.into() }));
    }
    assert!(matches!(session.set_quota("a", &Quota::new()).wait(), Err(Error::InvalidPath { .. })));
    assert_eq!(session.quota("/none").wait().unwrap(), None);
    // In a handle with a chroot, paths are relative to it.
    session.create("/app", b"", CreateMode::Persistent).wait().unwrap();
    let app = session.chroot("/app").unwrap();
    app.set_quota("/", &Quota::new().znodes_hard(1)).wait().unwrap();
    let failed = app.create("/x", b"", CreateMode::Persistent).wait().unwrap_err();
    assert_eq!(failed, exceeded("/", "znodes", 1, 2));
    assert_eq!(usage(&session, "/app"), (1, 0));
    let missing = app.set_quota("/none", &Quota::new()).wait();
    assert_eq!(missing, Err(Error::NoNode { path: "/none".into() }));
}

/// A quota failed with `TooLarge`, since the client asked for the whole tree and a client receives 8 MiB at most.
#[test]
fn a_client_sets_and_deletes_quotas_however_large_the_tree_is() {
    let cluster = Cluster::new(1);
    let member = cluster.node(0).session();
    for number in 0..9 {
        member
            .create(&format!("/n{number}"), vec![7; 1_000_000], CreateMode::Persistent)
            .wait()
            .unwrap();
    }
    let session = cluster.node(cluster.add_client()).session();
    assert!(matches!(session.snapshot().wait(), Err(Error::TooLarge { .. })), "it is large");
    for path in ["/", "/n0"] {
        session.set_quota(path, &Quota::new().znodes_hard(1)).wait().unwrap();
        session.set_quota(path, &Quota::new().bytes(1 << 20)).wait().unwrap();
        let (quota, used) = session.quota(path).wait().unwrap().expect("it was set");
        assert_eq!(quota, Quota::new().bytes(1 << 20));
        assert_eq!(used.bytes, if path == "/" { 9_000_000 } else { 1_000_000 });
    }
    let missing = session.set_quota("/none", &Quota::new()).wait();
    assert_eq!(missing, Err(Error::NoNode { path: "/none".into() }));
    for path in ["/", "/n0"] {
        session.delete_quota(path).wait().unwrap();
        assert_eq!(session.quota(path).wait().unwrap(), None);
    }
}

/// Quotas survive restarts and hold on every member.
#[test]
fn quotas_survive_restarts_and_hold_on_every_member() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    session.set_quota("/a", &Quota::new().znodes_hard(2)).wait().unwrap();
    session.create("/a/1", b"", CreateMode::Persistent).wait().unwrap();
    for node in 0..3 {
        cluster.stop(node);
    }
    for node in 0..3 {
        cluster.restart(node);
    }
    let session = cluster.node(2).session();
    session.sync().wait().unwrap();
    assert_eq!(usage(&session, "/a"), (2, 0));
    let failed = session.create("/a/2", b"", CreateMode::Persistent).wait().unwrap_err();
    assert_eq!(failed, exceeded("/a", "znodes", 2, 3));
}

/// The statistics znode keeps its mzxid though its data follows each write.
#[test]
fn a_transaction_that_read_the_usage_runs_again_when_it_changes() {
    type Read = fn(&mut Transaction<'_>) -> quorate::Result<()>;
    let reads: [Read; 2] = [
        |txn| txn.get(&Quota::stats_path("/jobs")).map(drop),
        |txn| txn.exists(&Quota::stats_path("/jobs")).map(drop),
    ];
    let cluster = Cluster::new(3);
    let places = [0, cluster.add_client()];
    for (number, (place, read)) in
        places.into_iter().flat_map(|place| reads.map(|read| (place, read))).enumerate()
    {
        let (session, other) = (cluster.node(place).session(), cluster.node(1).session());
        other.create_or_set("/jobs", b"", CreateMode::Persistent).wait().unwrap();
        other.set_quota("/jobs", &Quota::new()).wait().unwrap();
        session.sync().wait().unwrap();
        let mut runs = 0;
        session
            .transact(|txn| {
                read(txn)?;
                runs += 1;
                if runs == 1 {
                    other.create(&format!("/jobs/{number}"), b"", CreateMode::Persistent).wait()?;
                }
                txn.create(&format!("/done-{number}"), b"", CreateMode::Persistent);
                Ok(())
            })
            .wait()
            .unwrap();
        assert_eq!(runs, 2, "it has committed although the usage that it read had changed");
    }
}
