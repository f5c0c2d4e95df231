//! Instances without a replica: the same calls, answered by a member.

use std::time::Duration;

use crossbeam_channel::TryRecvError;
use quorate::WatcherType;
use quorate::testing::Cluster;
use quorate::{Availability, Coordinator, CreateMode, Error, EventKind, SessionState, WatchMode};

const SECOND: Duration = Duration::from_secs(1);

/// The result of a future, polled when it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

/// Its status was published up to 20 ms later, so that it waited and then said that it was not ready.
#[test]
fn who_has_waited_to_be_ready_is_ready() {
    let cluster = Cluster::new(3);
    for at in 0..20 {
        let client = cluster.node(cluster.add_client());
        client.wait_ready(Duration::from_secs(60)).wait().unwrap();
        assert!(client.is_ready(), "client {at}: {:?}", client.status().not_ready);
    }
    for node in 0..3 {
        cluster.restart(node);
        let member = cluster.node(node);
        member.wait_ready(Duration::from_secs(60)).wait().unwrap();
        assert!(member.is_ready(), "member {node}: {:?}", member.status().not_ready);
    }
}

#[test]
fn a_client_reads_and_writes() {
    let cluster = Cluster::new(3);
    let client = cluster.node(cluster.add_client());
    let session = client.session();
    session.create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    assert_eq!(&session.get("/a").wait().unwrap().0[..], b"1");
    session.set("/a", b"2").wait().unwrap();
    assert_eq!(&session.get("/a").wait().unwrap().0[..], b"2");
    assert_eq!(session.children("/").wait().unwrap(), ["a", "zookeeper"]);
    assert_eq!(session.exists("/b").wait().unwrap(), None);
    assert!(matches!(session.get("/b").wait(), Err(Error::NoNode { .. })));
    let elsewhere = cluster.node(0).session();
    elsewhere.sync().wait().unwrap();
    assert_eq!(&elsewhere.get("/a").wait().unwrap().0[..], b"2");
    assert!(session.is_alive());
    session.close().wait().unwrap();
    assert_eq!(session.state(), SessionState::Closed);
}

#[test]
fn a_client_watches() {
    let cluster = Cluster::new(3);
    let client = cluster.node(cluster.add_client());
    let (session, other) = (client.session(), cluster.node(1).session());
    let watch = session.watch("/a", WatchMode::PersistentRecursive).wait().unwrap();
    let (none, once) = session.exists_and_watch("/a").wait().unwrap();
    assert_eq!(none, None);
    other.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    other.create("/a/b", b"", CreateMode::Persistent).wait().unwrap();
    session.sync().wait().unwrap();
    let events: Vec<_> = watch.events().try_iter().map(|event| (event.kind, event.path)).collect();
    assert_eq!(
        events,
        [(EventKind::Created, "/a".to_owned()), (EventKind::Created, "/a/b".to_owned())]
    );
    assert_eq!(once.recv().wait().unwrap().map(|event| event.kind), Some(EventKind::Created));
    assert_eq!(once.recv().wait().unwrap(), None);
    drop(watch);
    cluster.advance(SECOND);
}

/// A client asks a member to remove its watches. Without one, they stay until it has one again.
#[test]
fn a_client_without_a_member_keeps_its_watches_until_it_has_one() {
    let cluster = Cluster::new(3);
    let client = cluster.add_client();
    let session = cluster.node(client).session();
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    cluster.isolate(client);
    let mut removed = session.remove_watches("/a", WatcherType::Any);
    cluster.advance(SECOND);
    assert!(removed.try_take().is_none(), "nobody can remove them");
    assert_eq!(watch.events().try_recv().map(|event| event.kind), Err(TryRecvError::Empty));
    cluster.heal();
    cluster.advance(5 * SECOND);
    removed.wait().unwrap();
    assert_eq!(
        watch.recv().wait().unwrap().map(|event| event.kind),
        Some(EventKind::PersistentWatchRemoved)
    );
    assert!(watch.recv().wait().unwrap().is_none(), "it is over");
    cluster.node(0).session().create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let none = session.remove_watches("/a", WatcherType::Any).wait();
    assert!(matches!(none, Err(Error::NoWatch { .. })), "{none:?}");
}

/// The member that serves the client is stopped, again and again, while the client writes and watches.
#[test]
fn a_client_moves_between_members_and_misses_nothing() {
    let cluster = Cluster::new(3);
    let client = cluster.node(cluster.add_client());
    let session = client.session();
    session.create("/n", b"", CreateMode::Persistent).wait().unwrap();
    let watch = session.watch("/n", WatchMode::PersistentRecursive).wait().unwrap();
    let mut expected = Vec::new();
    for round in 0..12 {
        let down = round % 3;
        let writes: Vec<_> = (0..5)
            .map(|_| session.create("/n/x-", b"", CreateMode::PersistentSequential))
            .collect();
        cluster.stop(down);
        cluster.advance(5 * SECOND);
        for write in writes {
            expected.push(write.wait().unwrap().path);
        }
        let children = session.children("/n").wait().unwrap();
        assert_eq!(children.len(), expected.len(), "a write was lost or done twice");
        cluster.restart(down);
        cluster.advance(SECOND);
    }
    session.sync().wait().unwrap();
    let received: Vec<_> =
        watch.events().try_iter().map(|event| (event.kind, event.path)).collect();
    let all: Vec<_> = expected.into_iter().map(|path| (EventKind::Created, path)).collect();
    assert_eq!(received, all, "an event was lost, doubled or out of order");
    assert!(session.is_alive());
}

/// A client gives its sessions up before the cluster can give away what they hold.
#[test]
fn a_client_that_is_cut_off_loses_its_lock_in_time() {
    let cluster = Cluster::new(3);
    let one = cluster.add_client();
    let here = cluster.node(one).session();
    let guard = here.lock("/lock").unwrap().acquire().wait().unwrap();
    assert!(guard.is_held());
    let there = cluster.node(0).session();
    let waiting = there.lock("/lock").unwrap();
    cluster.isolate(one);
    let mut others = None;
    for _ in 0..1000 {
        cluster.advance(SECOND / 10);
        if let Some(next) = waiting.try_acquire().wait().unwrap() {
            others = Some(next);
            break;
        }
        assert!(here.state() != SessionState::Closed);
    }
    let next = others.expect("the lock goes to the next contender in the end");
    assert!(!guard.is_held(), "two hold it");
    assert!(!here.is_alive());
    assert!(next.fencing_token() > guard.fencing_token());
    cluster.heal();
    cluster.advance(SECOND);
    assert_eq!(here.state(), SessionState::Expired);
}

#[test]
fn transactions_snapshots_and_a_chroot_work_for_a_client() {
    let cluster = Cluster::new(3);
    let session = cluster.node(cluster.add_client()).session();
    session.create("/app", b"", CreateMode::Persistent).wait().unwrap();
    let app = session.chroot("/app").unwrap();
    app.create("/n", b"0", CreateMode::Persistent).wait().unwrap();
    let other = cluster.node(1).session();
    let mut runs = 0;
    app.transact(|txn| {
        let (data, _) = txn.get("/n")?;
        runs += 1;
        if runs == 1 {
            other.sync().wait()?;
            other.set("/app/n", b"5").wait()?;
        }
        txn.set("/n", [data[0] + 1]);
        Ok(())
    })
    .wait()
    .unwrap();
    assert_eq!(runs, 2, "another write came in between");
    assert_eq!(&app.get("/n").wait().unwrap().0[..], b"6");
    let results = app.multi().create("/m", b"1", CreateMode::Persistent).delete("/n").commit();
    assert_eq!(results.wait().unwrap().len(), 2);
    let snapshot = app.snapshot().wait().unwrap();
    assert_eq!(snapshot.children("/").unwrap(), ["m"]);
    assert_eq!(&snapshot.get("/m").unwrap().0[..], b"1");
    assert_eq!(app.children_with_stat("/").wait().unwrap().0, ["m"]);
    assert_eq!(session.children_page("/", None, 1).wait().unwrap(), ["app"]);
    assert_eq!(session.all_children_number("/app").wait().unwrap(), 1);
    let (_, stat) = app.get("/m").wait().unwrap();
    assert_eq!(snapshot.exists("/m").unwrap(), Some(stat));
    assert_eq!(session.delete_recursive("/app").wait(), Ok(()));
}

#[test]
fn access_lists_hold_for_a_client() {
    let cluster = Cluster::new(3);
    let session = cluster.node(cluster.add_client()).session();
    let other = cluster.node(cluster.add_client()).session();
    session.add_auth("digest", "user:secret").wait().unwrap();
    let own = quorate::acl::Acl::creator_all();
    session.create_with_acl("/own", b"1", CreateMode::Persistent, &own).wait().unwrap();
    assert_eq!(&session.get("/own").wait().unwrap().0[..], b"1");
    other.sync().wait().unwrap();
    assert!(matches!(other.get("/own").wait(), Err(Error::NoAuth { .. })));
    assert!(matches!(other.set("/own", b"2").wait(), Err(Error::NoAuth { .. })));
    let (hidden, seen) = (
        other.watch("/own", WatchMode::Persistent).wait().unwrap(),
        session.watch("/own", WatchMode::Persistent).wait().unwrap(),
    );
    session.set("/own", b"2").wait().unwrap();
    other.sync().wait().unwrap();
    assert_eq!((hidden.events().len(), seen.events().len()), (0, 1));
    assert!(session.who_am_i().wait().unwrap().iter().any(|id| id.scheme == "digest"));
    assert_eq!(session.acl("/own").wait().unwrap().0.len(), 1);
}

#[test]
fn a_session_is_resumed_on_another_client() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.node(cluster.add_client()), cluster.node(cluster.add_client()));
    let session = one.open_session().unwrap();
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let resumed = two.resume(session.id(), session.password()).wait().unwrap();
    assert!(resumed.exists("/mine").wait().unwrap().is_some());
    cluster.advance(SECOND);
    assert_eq!(session.state(), SessionState::Moved);
    resumed.set("/mine", b"2").wait().unwrap();
    assert!(matches!(session.get("/mine").wait(), Err(Error::SessionMoved { .. })));
    assert!(two.resume(session.id(), [0; 16]).wait().is_err());
    // On a member, and back on the client.
    let here = cluster.node(0).resume(session.id(), session.password()).wait().unwrap();
    assert_eq!(here.ephemerals().wait().unwrap(), ["/mine"]);
    let back = one.resume(session.id(), session.password()).wait().unwrap();
    assert_eq!(back.ephemerals().wait().unwrap(), ["/mine"]);
    back.close().wait().unwrap();
    assert_eq!(two.session().exists("/mine").wait().unwrap(), None);
}

#[test]
fn watches_of_all_kinds_survive_a_move() {
    let cluster = Cluster::new(3);
    let one = cluster.add_client();
    let session = cluster.node(one).session();
    let writer = cluster.node(0).session();
    for path in ["/data", "/gone", "/dir", "/tree"] {
        writer.create(path, b"", CreateMode::Persistent).wait().unwrap();
    }
    session.sync().wait().unwrap();
    let (_, _, data) = session.get_and_watch("/data").wait().unwrap();
    let (_, _, gone) = session.get_and_watch("/gone").wait().unwrap();
    let (_, new) = session.exists_and_watch("/new").wait().unwrap();
    let (_, children) = session.children_and_watch("/dir").wait().unwrap();
    let (_, quiet) = session.children_and_watch("/tree").wait().unwrap();
    let tree = session.watch("/tree", WatchMode::PersistentRecursive).wait().unwrap();
    let brought = session.watch_with_data("/data", WatchMode::Persistent).wait().unwrap();
    let before = session.watch_with_before("/data", WatchMode::Persistent).wait().unwrap();
    // Changes while the client has no member.
    cluster.isolate(one);
    writer.set("/data", b"1").wait().unwrap();
    writer.delete("/gone").wait().unwrap();
    writer.create("/gone", b"", CreateMode::Persistent).wait().unwrap();
    writer.create("/new", b"", CreateMode::Persistent).wait().unwrap();
    writer.create("/dir/x", b"", CreateMode::Persistent).wait().unwrap();
    writer.set("/tree", b"1").wait().unwrap();
    cluster.heal();
    cluster.advance(2 * SECOND);
    assert!(session.is_alive());
    let kind = |watch: &quorate::Watch| watch.events().try_recv().ok().map(|event| event.kind);
    assert_eq!(kind(&data), Some(EventKind::DataChanged));
    assert_eq!(kind(&gone), Some(EventKind::Deleted));
    assert_eq!(kind(&new), Some(EventKind::Created));
    assert_eq!(kind(&children), Some(EventKind::ChildrenChanged));
    assert_eq!(kind(&tree), Some(EventKind::DataChanged));
    assert_eq!(kind(&brought), Some(EventKind::Gap), "data of net changes is unknown");
    assert_eq!(kind(&before), Some(EventKind::Gap));
    // The new member knows what the watches want.
    writer.set("/data", b"2").wait().unwrap();
    session.sync().wait().unwrap();
    let event = before.events().try_recv().unwrap();
    assert_eq!((event.data_before(), event.data()), (Some(&b"1"[..]), Some(&b"2"[..])));
    assert_eq!(brought.events().try_recv().unwrap().stat_before(), None);
    assert_eq!(kind(&quiet), None);
    writer.create("/tree/x", b"", CreateMode::Persistent).wait().unwrap();
    writer.set("/data", b"2").wait().unwrap();
    session.sync().wait().unwrap();
    assert_eq!(kind(&quiet), Some(EventKind::ChildrenChanged), "it is still there");
    let event = brought.events().try_recv().unwrap();
    assert_eq!(event.data(), Some(&b"2"[..]));
}

#[test]
fn a_stopped_client_is_forgotten() {
    let cluster = Cluster::new(3);
    let one = cluster.add_client();
    let session = cluster.node(one).session();
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    cluster.node(one).close().wait().unwrap();
    cluster.advance(SECOND);
    let other = cluster.node(2).session();
    other.sync().wait().unwrap();
    assert_eq!(other.exists("/mine").wait().unwrap(), None);
    // The client crashes, and the cluster notices it.
    cluster.restart(one);
    let session = cluster.node(one).session();
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    other.sync().wait().unwrap();
    assert!(other.exists("/mine").wait().unwrap().is_some());
    cluster.isolate(one);
    cluster.advance(Duration::from_secs(30));
    other.sync().wait().unwrap();
    assert_eq!(other.exists("/mine").wait().unwrap(), None);
}

fn kinds(watch: &quorate::Watch) -> Vec<(EventKind, u64)> {
    watch.events().try_iter().map(|event| (event.kind, event.zxid)).collect()
}

/// 200 instances: 5 voters, 15 learners and 180 clients. Some clients count under a lock, all of them watch;
/// the leader and a serving member are stopped.
#[test]
fn two_hundred_instances_go_on_when_members_die() {
    const CLIENTS: usize = 180;
    const WORKERS: usize = 24;
    const EACH: usize = 3;
    let cluster = Cluster::with_settings(5, Coordinator::builder().max_voters(5));
    for _ in 5..20 {
        cluster.add_node();
    }
    let mut waited = 0;
    while (0..20).any(|node| !cluster.node(node).is_ready()) {
        cluster.advance(SECOND);
        waited += 1;
        assert!(waited < 100, "all have joined in time");
    }
    let clients: Vec<_> = (0..CLIENTS).map(|_| cluster.node(cluster.add_client())).collect();
    let first = clients[0].session();
    first.create("/shared", b"", CreateMode::Persistent).wait().unwrap();
    first.create("/shared/n", b"0", CreateMode::Persistent).wait().unwrap();
    first.create("/members", b"", CreateMode::Persistent).wait().unwrap();
    let sessions: Vec<_> = clients.iter().map(quorate::Coordinator::session).collect();
    let watches: Vec<_> = sessions
        .iter()
        .enumerate()
        .map(|(number, session)| {
            session.sync().wait().unwrap();
            let path = format!("/members/{number}");
            session.create(&path, b"", CreateMode::Ephemeral).wait().unwrap();
            session.watch("/shared", WatchMode::PersistentRecursive).wait().unwrap()
        })
        .collect();
    let working = std::sync::atomic::AtomicUsize::new(WORKERS);
    std::thread::scope(|scope| {
        for session in sessions.iter().take(WORKERS) {
            scope.spawn(|| {
                let lock = session.lock("/lock").unwrap();
                for _ in 0..EACH {
                    let guard = lock.acquire().wait().unwrap();
                    let (data, _) = session.get("/shared/n").wait().unwrap();
                    let n: usize = std::str::from_utf8(&data).unwrap().parse().unwrap();
                    session.set("/shared/n", (n + 1).to_string()).wait().unwrap();
                    guard.release().wait().unwrap();
                }
                working.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            });
        }
        let mut beats = 0;
        let mut leader = None;
        while working.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            cluster.advance(SECOND / 20);
            beats += 1;
            if beats == 10 {
                leader = cluster.leader();
                cluster.stop(leader.unwrap());
            }
            if beats == 60 {
                cluster.stop((0..5).find(|node| Some(*node) != leader).unwrap());
            }
            if beats == 200 {
                cluster.restart(leader.unwrap());
            }
        }
    });
    let last = &sessions[CLIENTS - 1];
    last.sync().wait().unwrap();
    let total = WORKERS * EACH;
    assert_eq!(&last.get("/shared/n").wait().unwrap().0[..], total.to_string().as_bytes());
    assert_eq!(last.children("/members").wait().unwrap().len(), CLIENTS, "no session was lost");
    let mut first = None;
    for (session, watch) in sessions.iter().zip(&watches) {
        session.sync().wait().unwrap();
        let events = kinds(watch);
        assert!(events.iter().all(|(kind, _)| *kind == EventKind::DataChanged));
        assert!(events.is_sorted_by(|one, next| one.1 < next.1), "doubled or out of order");
        assert_eq!(events.len(), total, "an event was lost");
        assert_eq!(first.get_or_insert_with(|| events.clone()), &events);
    }
}

/// Under load, with every serving member stopped and isolated in turn: reads never go back, each event comes
/// once and before a read can show its change, and each write happens once.
#[test]
fn under_load_no_write_or_event_is_lost_or_repeated() {
    let cluster = Cluster::new(3);
    let one = cluster.add_client();
    let session = cluster.node(one).session();
    let writer = cluster.node(cluster.add_client()).session();
    session.create("/n", b"", CreateMode::Persistent).wait().unwrap();
    let watch = session.watch("/n", WatchMode::Persistent).wait().unwrap();
    let (mut zxid, mut written) = (0, Vec::new());
    for round in 0..60_usize {
        let sets: Vec<_> = (0..4).map(|_| writer.set("/n", b"x")).collect();
        let own = session.set("/n", b"y");
        match round % 5 {
            0 => cluster.isolate(round % 3),
            1 => cluster.stop(round % 3),
            2 => cluster.isolate(one),
            3 => cluster.partition(&[&[0, 1], &[2, one, one + 1]]),
            _ => {}
        }
        cluster.advance(SECOND / 4 * (round % 4) as u32);
        let read = session.in_turn().get("/n");
        cluster.heal();
        if round % 5 == 1 {
            cluster.restart(round % 3);
        }
        cluster.advance(3 * SECOND);
        let (_, stat) = read.wait().unwrap();
        assert!(stat.mzxid >= zxid, "older than before");
        zxid = stat.mzxid;
        written.extend(sets.into_iter().map(|set| set.wait().unwrap().mzxid));
        written.push(own.wait().unwrap().mzxid);
        let (_, stat) = session.get("/n").wait().unwrap();
        assert!(stat.mzxid >= *written.last().unwrap(), "its own write is not there");
        let received = watch.events().len();
        assert!(received > 0 && stat.version as usize == written.len());
    }
    session.sync().wait().unwrap();
    written.sort_unstable();
    let events: Vec<u64> = kinds(&watch).into_iter().map(|(_, zxid)| zxid).collect();
    assert_eq!(events, written);
    assert!(session.is_alive() && writer.is_alive());
}

/// A client reports what its member has sent about the cluster.
#[test]
fn a_client_reports_the_members_and_how_many_may_fail() {
    let cluster = Cluster::new(3);
    let place = cluster.add_client();
    let client = cluster.node(place);
    let members = |client: &quorate::Coordinator| {
        let members = client.status().members.into_iter();
        members.map(|member| (member.address, member.votes, member.is_self)).collect::<Vec<_>>()
    };
    let voter = |place: usize| (format!("node-{place}"), true, false);
    client.session().sync().wait().unwrap();
    cluster.advance(3 * SECOND);
    assert_eq!(members(&client), [voter(0), voter(1), voter(2)]);
    assert_eq!(client.address(), format!("node-{place}"));
    let leader = cluster.leader().unwrap();
    assert_eq!(client.status().leader, Some(format!("node-{leader}")));
    assert_eq!(client.availability(), Availability::Healthy { spare: 1 });
    assert!(client.is_ready() && client.safe_to_stop());
    let down = (leader + 1) % 3;
    cluster.stop(down);
    cluster.advance(20 * SECOND);
    let availability = client.availability().to_string();
    assert!(
        availability
            .contains(&format!("1 of 3 voters is unreachable or stores nothing (node-{down})"))
    );
    assert!(client.status().members[down].unreachable.is_some());
    cluster.restart(down);
    // One more member: four voters tolerate no more failures than three.
    let new = cluster.add_node();
    cluster.advance(20 * SECOND);
    assert_eq!(members(&client)[3..], [(format!("node-{new}"), false, false)]);
    // Without a member the client reports that.
    cluster.isolate(place);
    cluster.advance(SECOND);
    assert!(matches!(client.availability(), Availability::NoQuorum { .. }));
    assert!(!client.is_ready() && !client.safe_to_stop());
    cluster.heal();
    cluster.advance(5 * SECOND);
    assert!(client.is_ready());
    cluster.stop(place);
    assert_eq!(client.status().leader, None);
}

/// A recipe's future must not block the thread that polls it, which may be the one that delivers the reply.
#[test]
fn recipe_reads_can_be_awaited() {
    use quorate::recipes::{
        Barrier, Cache, Chooser, Config, Counter, Group, LeaderLatch, Naming, Registry, Semaphore,
        Strategy, TwoPhaseCommit,
    };
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn first<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }
    let cluster = Cluster::new(3);
    let place = cluster.add_client();
    let session = cluster.node(place).session();
    session.sync().wait().unwrap();
    let latch = LeaderLatch::new(&session, "/latch", "").unwrap();
    let group = Group::new(&session, "/group").unwrap();
    let discovery = Registry::new(&session, "/services").unwrap();
    let chooser: Chooser = discovery.chooser("s", Strategy::Random).unwrap();
    let barrier = Barrier::new(&session, "/barrier").unwrap();
    let semaphore = Semaphore::new(&session, "/semaphore", 2).unwrap();
    let leases = Semaphore::new(&session, "/leases", 2).unwrap().with_naming(Naming::Curator);
    let transaction = TwoPhaseCommit::new(&session, "/transaction").unwrap();
    let config = Config::<u32>::new(&session, "/config").unwrap();
    let counter = Counter::new(&session, "/counter").unwrap();
    let mut cache = Cache::new(&session, "/cache").wait().unwrap();
    let mut updates = config.watch();
    let mut instances = discovery.watch("s").unwrap();
    // No member answers now, and no future blocks.
    cluster.isolate(place);
    assert!(first(leases.contenders()).is_pending());
    assert!(first(leases.try_acquire()).is_pending());
    assert!(first(latch.leader()).is_pending());
    assert!(first(latch.candidates()).is_pending());
    assert!(first(latch.watch().recv()).is_pending());
    assert!(first(group.members()).is_pending());
    assert!(first(group.watch().recv()).is_pending());
    assert!(first(discovery.names()).is_pending());
    assert!(first(discovery.instances("s")).is_pending());
    assert!(first(chooser.choose()).is_pending());
    assert!(first(barrier.is_set()).is_pending());
    assert!(first(chooser.noted_failure("a")).is_pending());
    assert!(first(semaphore.permits()).is_pending());
    assert!(first(transaction.phase()).is_pending());
    assert!(first(config.get()).is_pending());
    assert!(first(counter.get()).is_pending());
    assert!(first(cache.recv()).is_pending());
    assert!(first(updates.recv()).is_pending());
    assert!(first(instances.recv()).is_pending());
    cluster.heal();
    cluster.advance(5 * SECOND);
    assert_eq!(latch.leader().wait(), Ok(None));
    assert_eq!(group.members().wait().unwrap().len(), 0);
    assert_eq!(barrier.is_set().wait(), Ok(false));
}

/// A dropped future may have taken a change, or requested one in vain; the next future returns it.
#[test]
fn a_cache_on_a_client_misses_no_change() {
    use quorate::recipes::{Cache, Change};
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    let cluster = Cluster::new(3);
    let place = cluster.add_client();
    let (session, other) = (cluster.node(place).session(), cluster.node(0).session());
    session.sync().wait().unwrap();
    other.create("/shop", b"", CreateMode::Persistent).wait().unwrap();
    let mut cache = Cache::new(&session, "/shop").wait().unwrap();
    for round in 0..3 {
        let path = format!("/shop/{round}");
        other.create(&path, b"1", CreateMode::Persistent).wait().unwrap();
        session.sync().wait().unwrap();
        // The read goes to the member, and the poll does not wait for the reply.
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(cache.recv()).as_mut().poll(&mut context).is_pending());
        cluster.isolate(place);
        cluster.advance(SECOND);
        assert!(pin!(cache.recv()).as_mut().poll(&mut context).is_pending());
        other.delete(&path).wait().unwrap();
        cluster.heal();
        cluster.advance(3 * SECOND);
        other.create(&path, b"2", CreateMode::Persistent).wait().unwrap();
        let mut data = None;
        while data.as_deref() != Some(&b"2"[..]) {
            for change in cache.recv().wait().unwrap() {
                match change {
                    Change::Added { new, .. } => assert!(data.replace(new.data).is_none()),
                    Change::Removed { .. } => assert!(data.take().is_some()),
                    change => panic!("{change:?}"),
                }
            }
        }
        assert_eq!(cache.view().children("/shop").unwrap().len(), round + 1);
    }
}

/// The async forms return what the blocking forms return.
#[test]
fn async_reads_return_what_blocking_reads_return() {
    use quorate::recipes::{
        Config, Counter, Instance, Phase, Registry, Semaphore, Strategy, TwoPhaseCommit,
    };

    let cluster = Cluster::new(3);
    for place in [0, cluster.add_client()] {
        let session = cluster.node(place).session();
        session.sync().wait().unwrap();
        let at = |name: &str| format!("/{name}-{place}");
        let semaphore = Semaphore::new(&session, &at("semaphore"), 3).unwrap();
        assert!(matches!(block_on(semaphore.permits()), Err(Error::NoNode { .. })));
        drop(semaphore.acquire().wait().unwrap());
        assert_eq!(block_on(semaphore.permits()), Ok(3));
        semaphore.set_permits(5).wait().unwrap();
        assert_eq!(block_on(semaphore.permits()), semaphore.permits().wait());

        let transaction = TwoPhaseCommit::new(&session, &at("transaction")).unwrap();
        assert!(matches!(block_on(transaction.phase()), Err(Error::NoNode { .. })));
        transaction.begin(&["a"], b"").wait().unwrap();
        assert_eq!(block_on(transaction.phase()), Ok(Phase::Voting));
        transaction.join("a").wait().unwrap().vote(quorate::recipes::Vote::No).wait().unwrap();
        transaction.decide().wait().unwrap();
        assert_eq!(block_on(transaction.phase()), Ok(Phase::Aborted));

        let registry = Registry::new(&session, &at("services")).unwrap();
        let one = registry.register("s", &Instance::new("one", "host", 1)).wait().unwrap();
        let _two = registry.register("s", &Instance::new("two", "host", 1)).wait().unwrap();
        let discovery = Registry::new(&session, &at("services")).unwrap();
        let chooser = discovery.chooser("s", Strategy::LeastRecentlyFailed).unwrap();
        block_on(chooser.noted_failure("nobody")).unwrap();
        block_on(chooser.noted_failure("two")).unwrap();
        for _ in 0..10 {
            let chosen = block_on(chooser.choose()).unwrap().unwrap();
            assert_eq!(chosen.id, "one", "the other has failed");
        }
        assert!(one.is_held());
        session.delete(one.path()).wait().unwrap();
        assert!(!one.is_held());

        let config = Config::<u32>::new(&session, &at("config")).unwrap();
        assert_eq!(block_on(config.get()), Ok(None));
        config.set(&7).wait().unwrap();
        assert_eq!(block_on(config.get()), config.get().wait());
        let counter = Counter::new(&session, &at("counter")).unwrap();
        assert_eq!(block_on(counter.get()), Ok(0));
        counter.add(2).wait().unwrap();
        assert_eq!(block_on(counter.get()), Ok(2));
    }
}

/// A client knows of the deletion of its own znode once it has received the event.
#[test]
fn a_client_notices_that_its_item_is_lost() {
    use quorate::recipes::{Lost, NewItem, Queue};

    let cluster = Cluster::new(3);
    let session = cluster.node(cluster.add_client()).session();
    session.sync().wait().unwrap();
    let queue = Queue::new(&session, "/queue").unwrap();
    queue.put(NewItem::new("work")).wait().unwrap();
    let item = queue.take().wait().unwrap();
    assert!(item.is_held());
    // The item's ephemeral znode is its claim.
    let claims = session.ephemerals().wait().unwrap();
    assert_eq!(claims.len(), 1);
    cluster.node(0).session().delete(&claims[0]).wait().unwrap();
    assert_eq!(item.wait_lost().wait().unwrap(), Lost::Deleted);
    assert!(!item.is_held());
}
