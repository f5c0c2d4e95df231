//! Durations beyond the range of any clock, which users pass to wait for ever.

use std::time::Duration;

use crate::common::addresses;
use quorate::recipes::{
    Barrier, Cache, Config, Counter, DoubleBarrier, Group, LeaderLatch, MultiLock, Naming, NewItem,
    Queue, ReadWriteLock, ReentrantLock, Semaphore, SharedSemaphore, TwoPhaseCommit, Vote,
};
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Session};

const EVER: Duration = Duration::MAX;

/// Waits on a thread of its own until `done` ends the wait.
fn until<T: Send>(wait: impl FnOnce() -> T + Send, done: impl FnOnce()) -> T {
    std::thread::scope(|scope| {
        let waiter = scope.spawn(wait);
        done();
        waiter.join().unwrap()
    })
}

#[test]
fn an_instance_can_wait_for_ever() {
    let cluster = Cluster::with_settings(
        3,
        Coordinator::builder().session_timeout(EVER).request_timeout(EVER),
    );
    let nodes = [0, 1, 2].map(|node| cluster.node(node));
    for node in &nodes {
        node.wait_ready(EVER).unwrap();
    }
    let session = nodes[0].open_session_with(EVER).unwrap();
    session.create("/a", b"", CreateMode::Persistent).unwrap();
    assert!(session.timeout() < Duration::from_secs(3600), "{:?}", session.timeout());
    session.nonblocking().sync().wait_timeout(EVER).unwrap().unwrap();
    let sleeping = session.nonblocking().sleep(EVER);
    let resumed = nodes[1].resume(session.id(), session.password()).unwrap();
    resumed.set("/a", b"1").unwrap();
    let mode = CreateMode::PersistentWithTtl(EVER);
    assert!(matches!(
        resumed.create("/ttl", b"", mode),
        Err(Error::InvalidSetting { setting: "ttl", .. })
    ));
    nodes[0].leave(EVER).unwrap();
    assert!(matches!(sleeping.wait(), Err(Error::Stopped { .. })));
    let client = cluster.node(cluster.add_client());
    client.wait_ready(EVER).unwrap();
    client.leave(EVER).unwrap();
}

#[test]
fn settings_may_be_for_ever() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().replace_after(EVER));
    cluster.stop(2);
    cluster.advance(Duration::from_secs(60));
    cluster.node(0).session().create("/a", b"", CreateMode::Persistent).unwrap();

    let dir = tempfile::tempdir().unwrap();
    let free = addresses::address();
    let alone = Coordinator::builder()
        .data_dir(dir.path())
        .session_timeout(EVER)
        .request_timeout(EVER)
        .replace_after(EVER)
        .found_with_majority_after(EVER)
        .container_check_interval(EVER)
        .join([&free])
        .unwrap();
    alone.wait_ready(EVER).unwrap();
    alone.session().create("/a", b"", CreateMode::Persistent).unwrap();
    alone.close();
    for (builder, setting) in [
        (Coordinator::builder().tick(EVER), "tick"),
        (Coordinator::builder().heartbeat(EVER), "heartbeat"),
        (
            Coordinator::builder().session_timeout_bounds(Duration::from_secs(2), EVER),
            "session_timeout_bounds",
        ),
    ] {
        let error = builder.data_dir(dir.path()).join([&free]).unwrap_err();
        assert!(matches!(&error, Error::InvalidSetting { setting: of, .. } if *of == setting));
    }
}

#[test]
fn locks_can_be_waited_for_for_ever() {
    let cluster = Cluster::new(1);
    let (one, two) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
    let lock = |session: &Session| session.lock("/lock").unwrap();
    let held = lock(&one).acquire_timeout(EVER).unwrap().unwrap();
    let waiting = lock(&two);
    let won = until(|| waiting.acquire_timeout(EVER).unwrap(), || drop(held));
    assert!(won.unwrap().is_held());
    let delayed = one.lock("/delayed").unwrap().with_lock_delay(EVER);
    assert!(
        matches!(delayed, Err(Error::InvalidSetting { setting: "lock delay", .. })),
        "{delayed:?}"
    );

    let semaphore = |session: &Session| Semaphore::new(session, "/semaphore", 1).unwrap();
    let held = semaphore(&one).acquire_many_timeout(1, EVER).unwrap().unwrap();
    let waiting = semaphore(&two);
    assert!(until(|| waiting.acquire_timeout(EVER).unwrap(), || drop(held)).is_some());

    let leases =
        |session: &Session| SharedSemaphore::new(session, "/leases", 1, Naming::Curator).unwrap();
    let held = leases(&one).acquire_timeout(EVER).unwrap().unwrap();
    let waiting = leases(&two);
    assert!(until(|| waiting.acquire_timeout(EVER).unwrap(), || drop(held)).is_some());

    let both = MultiLock::new(&one, ["/first", "/second"]).unwrap();
    assert!(both.acquire_timeout(EVER).unwrap().is_some());
    let again = ReentrantLock::new(&one, "/reentrant").unwrap();
    assert!(again.acquire_timeout(EVER).unwrap().is_some());

    let files = |session: &Session| ReadWriteLock::new(session, "/files").unwrap();
    let held = files(&one).read_timeout(EVER).unwrap().unwrap();
    let waiting = files(&two);
    assert!(until(|| waiting.write_timeout(EVER).unwrap(), || drop(held)).is_some());
}

#[test]
fn groups_and_leaders_can_be_waited_for_for_ever() {
    let cluster = Cluster::new(1);
    let (one, two) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
    let group = |session: &Session| Group::new(session, "/group").unwrap();
    let member = group(&one).join_timeout("a", b"", EVER).unwrap().unwrap();
    let mut members = group(&two).watch();
    until(|| members.recv_timeout(EVER).unwrap().unwrap(), || drop(member));

    let latch = |session: &Session, id: &str| LeaderLatch::new(session, "/leader", id).unwrap();
    let leads = latch(&one, "one").campaign_timeout(EVER).unwrap().unwrap();
    let candidate = latch(&two, "two");
    assert!(until(|| candidate.campaign_timeout(EVER).unwrap(), || drop(leads)).is_some());

    let barrier = Barrier::new(&one, "/barrier").unwrap();
    barrier.set().unwrap();
    let waiting = Barrier::new(&two, "/barrier").unwrap();
    assert!(until(|| waiting.wait_timeout(EVER).unwrap(), || barrier.remove().unwrap()));

    let double = DoubleBarrier::new(&one, "/double", 1).unwrap();
    let inside = double.enter_timeout(EVER).unwrap().unwrap();
    assert!(inside.leave_timeout(EVER).unwrap());
}

#[test]
fn state_can_be_waited_for_for_ever() {
    let cluster = Cluster::new(1);
    let (one, two) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
    let queue = |session: &Session| Queue::new(session, "/queue").unwrap();
    let taking = queue(&two);
    let put = || queue(&one).put(b"first").unwrap();
    assert_eq!(until(|| taking.take_timeout(EVER).unwrap().unwrap().done().unwrap(), put), ());
    assert!(queue(&one).put_timeout(b"second", EVER).unwrap());
    assert_eq!(taking.pop_timeout(EVER).unwrap().unwrap(), b"second");
    // A delay beyond all clocks was taken, and the item never became due.
    for delay in
        [EVER, Duration::from_secs(u64::MAX), CreateMode::TTL_MAX + Duration::from_nanos(1)]
    {
        let never =
            queue(&one).put_all([NewItem::new(b"now"), NewItem::new(b"never").delay(delay)]);
        let Err(error @ Error::InvalidSetting { setting: "delay", .. }) = never else {
            panic!("{never:?}");
        };
        assert!(error.to_string().contains("/queue"), "{error}");
    }
    assert!(queue(&one).is_empty().unwrap(), "all of them or none");
    queue(&one).put(NewItem::new(b"later").delay(CreateMode::TTL_MAX)).unwrap();
    assert!(taking.try_take().unwrap().is_none());

    one.create("/cached", b"", CreateMode::Persistent).unwrap();
    let mut cache = Cache::new(&two, "/cached").unwrap();
    until(
        || cache.recv_timeout(EVER).unwrap(),
        || {
            one.set("/cached", b"1").unwrap();
        },
    );

    let config = |session: &Session| Config::<u32>::new(session, "/config").unwrap();
    let mut updates = config(&two).watch();
    until(
        || updates.recv_timeout(EVER).unwrap().unwrap(),
        || {
            config(&one).set(&7).unwrap();
        },
    );

    let counter = Counter::new(&one, "/counter").unwrap();
    assert!(counter.add_timeout(1, EVER).unwrap().is_some());

    let commit = |session: &Session| TwoPhaseCommit::new(session, "/transaction").unwrap();
    commit(&one).begin(&["a"], b"").unwrap();
    let participant = commit(&two).join("a").unwrap();
    let decides = commit(&one);
    let vote = || {
        participant.vote(Vote::Yes).unwrap();
    };
    until(|| decides.decide_timeout(EVER).unwrap().expect("it is voted on"), vote);
    assert!(participant.outcome_timeout(EVER).unwrap().is_some());
}
