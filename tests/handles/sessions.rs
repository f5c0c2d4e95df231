//! Sessions and their ephemerals, calls and futures, through the public handles.

use std::time::Duration;

use quorate::multi::OpResult;
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, EventKind, SessionState, WatchMode};

#[test]
fn a_session_reads_its_own_writes_and_others_after_a_sync() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.node(0).session(), cluster.node(1).session());
    for n in 0..50 {
        let path = format!("/n{n}");
        one.create(&path, n.to_string(), CreateMode::Persistent).wait().unwrap();
        assert_eq!(&one.get(&path).wait().unwrap().0[..], n.to_string().as_bytes());
        two.sync().wait().unwrap();
        assert!(two.exists(&path).wait().unwrap().is_some());
    }
    let mut names = two.children("/").wait().unwrap();
    names.retain(|name| name != "zookeeper");
    assert_eq!(names.len(), 50);
    assert!(names.is_sorted());
}

#[test]
fn errors_name_the_fault_and_change_nothing() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    session.create("/e", b"", CreateMode::Ephemeral).wait().unwrap();
    let path = || "/a".to_owned();
    let again = session.create("/a", b"", CreateMode::Persistent);
    assert_eq!(again.wait(), Err(Error::NodeExists { path: path() }));
    assert_eq!(
        session.set_if("/a", b"2", 7).wait(),
        Err(Error::BadVersion { path: path(), expected: 7, actual: 0 })
    );
    assert_eq!(session.delete("/x").wait(), Err(Error::NoNode { path: "/x".into() }));
    assert_eq!(
        session.create("/e/c", b"", CreateMode::Persistent).wait(),
        Err(Error::NoChildrenForEphemerals { path: "/e".into() })
    );
    session.create("/a/b", b"", CreateMode::Persistent).wait().unwrap();
    assert_eq!(session.delete("/a").wait(), Err(Error::NotEmpty { path: path() }));
    assert!(matches!(session.delete("/zookeeper").wait(), Err(Error::Reserved { .. })));
    assert!(matches!(session.set("/zookeeper/config", b"").wait(), Err(Error::Reserved { .. })));
    for bad in ["", "a", "/a/", "/a//b", "/a/../b", "/a\0"] {
        assert!(matches!(session.get(bad).wait(), Err(Error::InvalidPath { .. })), "{bad:?}");
        assert!(matches!(session.set(bad, b"").wait(), Err(Error::InvalidPath { .. })), "{bad:?}");
    }
    let big = vec![0; (1 << 20) + 1];
    assert!(matches!(session.set("/a", &big).wait(), Err(Error::TooLarge { size: 1_048_577, .. })));
    session.set("/a", &big[1..]).wait().expect("1 MiB is allowed");
    assert_eq!(session.get("/a").wait().unwrap().1.version, 1);
}

#[test]
fn a_multi_is_all_or_nothing() {
    let cluster = Cluster::new(3);
    let session = cluster.node(1).session();
    let results = session
        .multi()
        .create("/m", b"", CreateMode::Persistent)
        .create("/m/s-", b"", CreateMode::PersistentSequential)
        .create("/m/s-", b"", CreateMode::PersistentSequential)
        .set_if("/m", b"1", 0)
        .check("/m", 1)
        .delete("/m/s-0000000000")
        .commit()
        .wait()
        .unwrap();
    assert!(
        matches!(&results[2], OpResult::Created(created) if created.path.ends_with("0000000001"))
    );
    let stat = session.get("/m").wait().unwrap().1;
    assert_eq!((stat.czxid, stat.pzxid, stat.cversion), (stat.mzxid, stat.mzxid, 3));
    let failed = session.multi().set("/m", b"2").delete("/nothing").commit().wait();
    assert!(matches!(failed, Err(Error::Multi { index: 1, .. })), "{failed:?}");
    assert_eq!(&session.get("/m").wait().unwrap().0[..], b"1");
    assert_eq!(session.multi().commit().wait(), Ok(Vec::new()));
}

#[test]
fn calls_take_effect_in_the_order_in_which_they_are_made() {
    let cluster = Cluster::new(3);
    let follower = (cluster.leader().unwrap() + 1) % 3;
    let session = cluster.node(follower).session();
    let calls = &session.in_turn();
    drop(calls.create("/q", b"", CreateMode::Persistent));
    let pending: Vec<_> = (0..2000)
        .map(|n| {
            let created = calls.create("/q/", n.to_string(), CreateMode::PersistentSequential);
            // A read in between sees all earlier writes.
            (n % 100 == 0).then(|| (n, calls.children("/q"), created))
        })
        .collect();
    for (n, children, created) in pending.into_iter().flatten() {
        assert_eq!(created.wait().unwrap().path, format!("/q/{n:010}"));
        assert_eq!(children.wait().unwrap().len(), n + 1);
    }
}

#[test]
fn ephemerals_go_with_their_session() {
    let cluster = Cluster::new(3);
    let observer = cluster.node(0).session();
    for end in ["close", "drop", "expire", "stop"] {
        let coordinator = cluster.node(1);
        let session = coordinator.open_session().unwrap();
        session.create("/e", b"", CreateMode::Ephemeral).wait().unwrap();
        observer.sync().wait().unwrap();
        let (stat, watch) = observer.exists_and_watch("/e").wait().unwrap();
        assert_eq!(stat.unwrap().ephemeral_owner, Some(session.id()));
        match end {
            "close" => session.close().wait().unwrap(),
            "drop" => drop(session),
            "expire" => {
                cluster.expire(&session);
                assert_eq!(session.state(), SessionState::Expired);
                assert!(matches!(session.get("/").wait(), Err(Error::SessionExpired { .. })));
            }
            _ => {
                cluster.stop(1);
                assert!(matches!(session.get("/").wait(), Err(Error::Stopped { .. })));
                cluster.advance(Duration::from_secs(9));
                assert!(observer.exists("/e").wait().unwrap().is_some(), "not before its timeout");
                cluster.advance(Duration::from_secs(4));
            }
        }
        let event = watch.recv().wait().unwrap().expect("an event");
        assert_eq!((event.kind, event.path.as_str()), (quorate::EventKind::Deleted, "/e"), "{end}");
        assert!(observer.exists("/e").wait().unwrap().is_none(), "{end}");
    }
    cluster.restart(1);
    cluster.advance(Duration::from_secs(2));
    let back = cluster.node(1).session();
    back.sync().wait().unwrap();
    assert_eq!(cluster.node(1).status().state_hash, cluster.node(1).status().state_hash);
}

#[test]
fn without_a_quorum_writes_fail_with_the_reason_and_reads_go_on() {
    let cluster =
        Cluster::with_settings(3, Coordinator::builder().request_timeout(Duration::from_secs(3)));
    let coordinator = cluster.node(0);
    let session = coordinator.session();
    session.create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    cluster.isolate(0);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| session.set("/a", b"2").wait());
        // Past the request's deadline, if the request has started by now (otherwise it waits in real time),
        // and within the session's timeout.
        cluster.advance(Duration::from_secs(4));
        let error = write.join().unwrap().unwrap_err();
        assert!(error.is_outcome_unknown());
        let text = error.to_string();
        assert!(text.contains("set /a") && text.contains("2 of 2 peers unreachable"), "{text}");
    });
    assert_eq!(&session.get("/a").wait().unwrap().0[..], b"1");
    let stale = coordinator.status().stale_by.unwrap();
    assert!(stale >= Duration::from_secs(2), "{stale:?}");
    let shown = coordinator.status().to_string();
    assert!(shown.contains("unreachable: cut off"), "{shown}");
    // The writes in flight are done in the end.
    cluster.heal();
    cluster.advance(Duration::from_secs(3));
    let other = cluster.node(1).session();
    other.sync().wait().unwrap();
    assert_eq!(&other.get("/a").wait().unwrap().0[..], b"2");
}

#[test]
fn a_session_is_resumed_by_its_id_and_password_alone() {
    let cluster = Cluster::new(3);
    let old = cluster.node(0).session();
    old.create("/e", b"", CreateMode::Ephemeral).wait().unwrap();
    let (id, password) = (old.id(), old.password());
    let states = old.states();
    let wrong = cluster.node(1).resume(id, [0; 16]).wait();
    assert!(matches!(wrong, Err(Error::WrongPassword { .. })), "{wrong:?}");
    let unknown =
        cluster.node(1).resume(quorate::session::SessionId::from_number(42), password).wait();
    assert!(matches!(unknown, Err(Error::SessionExpired { .. })), "{unknown:?}");
    let new = cluster.node(1).resume(id, password).wait().unwrap();
    cluster.advance(Duration::from_secs(1));
    assert_eq!(states.events().iter().last(), Some(SessionState::Moved));
    assert!(matches!(old.set("/e", b"").wait(), Err(Error::SessionMoved { .. })));
    // The old process ends, and the session stays.
    cluster.stop(0);
    cluster.advance(Duration::from_secs(30));
    assert_eq!(new.set("/e", b"1").wait().unwrap().ephemeral_owner, Some(id));
    // Once more, on the node that holds it.
    let again = cluster.node(1).resume(id, password).wait().unwrap();
    assert_eq!(new.state(), SessionState::Moved);
    again.delete("/e").wait().unwrap();
    assert!(!format!("{again:?}").contains(&format!("{:?}", &password[..4])[1..8]));
}

#[test]
fn timeouts_are_negotiated_into_2_to_20_ticks() {
    let cluster = Cluster::new(1);
    let coordinator = cluster.node(0);
    for (asked, given) in [(1, 4), (10, 10), (3600, 40)] {
        let session = coordinator.open_session_with(Duration::from_secs(asked)).unwrap();
        session.sync().wait().unwrap();
        assert_eq!(session.timeout(), Duration::from_secs(given));
    }
}

#[test]
fn too_many_waiting_requests_are_refused_at_once() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().pending_requests_max(10));
    let session = cluster.node(0).session();
    session.sync().wait().unwrap();
    cluster.isolate(0);
    let mut pending: Vec<_> = (0..20).map(|_| session.set("/", b"")).collect();
    let refused = pending.iter_mut().filter_map(|set| set.try_take()).filter(
        |answer| matches!(answer, Err(error @ Error::Busy { limit: 10 }) if error.is_retryable()),
    );
    assert_eq!(refused.count(), 10);
    cluster.heal();
    cluster.advance(Duration::from_secs(2));
}

#[test]
fn futures_need_no_runtime_and_dropping_them_cancels_nothing() {
    use std::future::Future;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    fn block_on<F: Future>(future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => std::thread::park(),
            }
        }
    }
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    drop(session.create("/dropped", b"", CreateMode::Persistent));
    block_on(async {
        let created = session.create("/a", b"", CreateMode::Persistent).await?;
        let watch = session.watch("/a", quorate::WatchMode::Persistent).await?;
        session.set(&created.path, b"1").await?;
        assert_eq!(
            watch.recv().await.unwrap().map(|event| event.kind),
            Some(quorate::EventKind::DataChanged)
        );
        let guard = session.lock("/lock")?.acquire().await?;
        assert!(guard.is_held());
        Ok::<(), Error>(())
    })
    .unwrap();
    assert!(session.exists("/dropped").wait().unwrap().is_some());
}

#[test]
fn a_multi_is_bounded_in_its_operations_too() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let path = format!("/{}", "x".repeat(4000));
    let multi = (0..300).fold(session.multi(), |multi, _| multi.delete(&path));
    assert!(matches!(multi.commit().wait(), Err(Error::Multi { index: 259, .. })));
}

/// The session was closed right after its resumption.
#[test]
fn a_resumption_that_times_out_leaves_the_session_alone() {
    let cluster = Cluster::with_settings(
        3,
        Coordinator::builder().request_timeout(Duration::from_millis(200)),
    );
    let leader = cluster.leader().or_else(|| {
        cluster.advance(Duration::from_secs(5));
        cluster.leader()
    });
    let leader = leader.unwrap();
    let (old, cut_off) = (cluster.node(leader).session(), (leader + 1) % 3);
    let mut created = old.create("/mine", b"", CreateMode::Ephemeral).wait();
    while let Err(Error::Timeout { .. }) = created {
        created = old.create("/mine", b"", CreateMode::Ephemeral).wait();
    }
    assert!(matches!(created, Ok(_) | Err(Error::NodeExists { .. })), "{created:?}");
    cluster.isolate(cut_off);
    let resumed = cluster.node(cut_off).resume(old.id(), old.password()).wait();
    assert!(matches!(resumed, Err(Error::Timeout { .. })), "{resumed:?}");
    cluster.heal();
    cluster.advance(Duration::from_secs(5));
    cluster.node(cut_off).session().sync().wait().unwrap();
    assert!(cluster.node(cut_off).session().exists("/mine").wait().unwrap().is_some());
}

#[test]
fn a_late_reader_of_states_ends_with_the_current_one() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.sync().wait().unwrap();
    let states = session.states();
    for _ in 0..40 {
        cluster.isolate(0);
        cluster.advance(Duration::from_secs(5));
        assert_eq!(session.state(), SessionState::Suspended);
        cluster.heal();
        cluster.advance(Duration::from_secs(2));
        assert_eq!(session.state(), SessionState::Connected);
    }
    // One state after the other while the channel had room, then the latest one.
    let mut expected = [SessionState::Connected, SessionState::Suspended].repeat(32);
    expected.push(SessionState::Connected);
    let patience = Duration::from_secs(30);
    let seen: Vec<_> =
        expected.iter().map(|_| states.events().recv_timeout(patience).expect("a state")).collect();
    assert_eq!(seen, expected);
}

#[test]
fn a_session_names_its_ephemerals_and_a_znode_its_children_with_its_stat() {
    let cluster = Cluster::new(1);
    let (one, other) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
    one.create("/dir", b"", CreateMode::Persistent).wait().unwrap();
    // After the earlier writes.
    let pending = one.create("/dir/b", b"", CreateMode::Ephemeral);
    let named = one.ephemerals();
    assert_eq!(named.wait().unwrap(), ["/dir/b"]);
    pending.wait().unwrap();
    one.create("/a", b"", CreateMode::Ephemeral).wait().unwrap();
    other.create("/dir/c", b"", CreateMode::Ephemeral).wait().unwrap();
    assert_eq!(one.ephemerals().wait().unwrap(), ["/a", "/dir/b"]);
    one.delete("/a").wait().unwrap();
    assert_eq!(one.ephemerals().wait().unwrap(), ["/dir/b"]);
    let (children, stat) = one.children_with_stat("/dir").wait().unwrap();
    assert_eq!((children, stat.cversion, stat.num_children), (vec!["b".into(), "c".into()], 2, 2));
    one.close().wait().unwrap();
    assert!(one.ephemerals().wait().is_err());
    assert_eq!(other.children("/dir").wait().unwrap(), ["c"]);
}

#[test]
fn containers_and_znodes_with_a_time_to_live_go_by_themselves() {
    const SECOND: Duration = Duration::from_secs(1);
    let cluster = Cluster::new(3);
    let leader = cluster.leader().unwrap();
    let session = cluster.node((leader + 1) % 3).session();
    session.create("/jobs", b"", CreateMode::Container).wait().unwrap();
    session.create("/jobs/1", b"", CreateMode::Persistent).wait().unwrap();
    session.create("/unused", b"", CreateMode::Container).wait().unwrap();
    session.create("/cache", b"", CreateMode::PersistentWithTtl(10 * SECOND)).wait().unwrap();
    session.delete("/jobs/1").wait().unwrap();
    let watch = session.watch("/", WatchMode::PersistentRecursive).wait().unwrap();
    cluster.advance(8 * SECOND);
    session.set("/cache", b"touched").wait().unwrap();
    cluster.advance(8 * SECOND);
    assert!(session.exists("/cache").wait().unwrap().is_some());
    // Whichever member leads deletes them.
    cluster.stop(leader);
    cluster.advance(8 * SECOND);
    assert_eq!(session.exists("/cache").wait().unwrap(), None);
    assert!(session.exists("/jobs").wait().unwrap().is_some());
    cluster.advance(70 * SECOND);
    assert_eq!(session.exists("/jobs").wait().unwrap(), None);
    assert!(session.exists("/unused").wait().unwrap().is_some(), "it was never used");
    let deleted = watch.events().try_iter().filter(|event| event.kind == EventKind::Deleted);
    assert_eq!(deleted.map(|event| event.path).collect::<Vec<_>>(), ["/cache", "/jobs"]);
    let short = CreateMode::PersistentWithTtl(SECOND / 10_000);
    assert!(matches!(
        session.create("/x", b"", short).wait(),
        Err(Error::InvalidSetting { setting: "ttl", .. })
    ));
}
