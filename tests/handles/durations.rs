//! Durations beyond the range of any clock, which users pass to wait for ever.

use std::time::Duration;

use crate::common::addresses;
use quorate::recipes::{
    Barrier, Cache, Config, Counter, DoubleBarrier, Group, LeaderLatch, MultiLock, Naming, NewItem,
    Queue, ReadWriteLock, ReentrantLock, Semaphore, TwoPhaseCommit, Vote,
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
        node.wait_ready(EVER).wait().unwrap();
    }
    let session = nodes[0].open_session_with(EVER).unwrap();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    assert!(session.timeout() < Duration::from_secs(3600), "{:?}", session.timeout());
    session.sync().timeout(EVER).wait().unwrap();
    let sleeping = session.sleep(EVER);
    let resumed = nodes[1].resume(session.id(), session.password()).wait().unwrap();
    resumed.set("/a", b"1").wait().unwrap();
    let mode = CreateMode::PersistentWithTtl(EVER);
    assert!(matches!(
        resumed.create("/ttl", b"", mode).wait(),
        Err(Error::InvalidSetting { setting: "ttl", .. })
    ));
    nodes[0].leave(EVER).wait().unwrap();
    assert!(matches!(sleeping.wait(), Err(Error::Stopped { .. })));
    let client = cluster.node(cluster.add_client());
    client.wait_ready(EVER).wait().unwrap();
    client.leave(EVER).wait().unwrap();
}

#[test]
fn settings_may_be_for_ever() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().replace_after(EVER));
    cluster.stop(2);
    cluster.advance(Duration::from_secs(60));
    cluster.node(0).session().create("/a", b"", CreateMode::Persistent).wait().unwrap();

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
        .wait()
        .unwrap();
    alone.wait_ready(EVER).wait().unwrap();
    alone.session().create("/a", b"", CreateMode::Persistent).wait().unwrap();
    alone.close().wait().unwrap();
    for (builder, setting) in [
        (Coordinator::builder().tick(EVER), "tick"),
        (Coordinator::builder().heartbeat(EVER), "heartbeat"),
        (
            Coordinator::builder().session_timeout_bounds(Duration::from_secs(2), EVER),
            "session_timeout_bounds",
        ),
    ] {
        let error = builder.data_dir(dir.path()).join([&free]).wait().unwrap_err();
        assert!(matches!(&error, Error::InvalidSetting { setting: of, .. } if *of == setting));
    }
}

#[test]
fn locks_can_be_waited_for_for_ever() {
    let cluster = Cluster::new(1);
    let (one, two) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
    let lock = |session: &Session| session.lock("/lock").unwrap();
    let held = lock(&one).acquire().timeout(EVER).wait().unwrap();
    let waiting = lock(&two);
    let won = until(|| waiting.acquire().timeout(EVER).wait().unwrap(), || drop(held));
    assert!(won.is_held());
    let delayed = one.lock("/delayed").unwrap().with_lock_delay(EVER);
    assert!(
        matches!(delayed, Err(Error::InvalidSetting { setting: "lock delay", .. })),
        "{delayed:?}"
    );

    let semaphore = |session: &Session| Semaphore::new(session, "/semaphore", 1).unwrap();
    let held = semaphore(&one).acquire_many(1).timeout(EVER).wait().unwrap();
    let waiting = semaphore(&two);
    drop(until(|| waiting.acquire().timeout(EVER).wait().unwrap(), || drop(held)));

    let leases = |session: &Session| {
        Semaphore::new(session, "/leases", 1).unwrap().with_naming(Naming::Curator)
    };
    let held = leases(&one).acquire().timeout(EVER).wait().unwrap();
    let waiting = leases(&two);
    drop(until(|| waiting.acquire().timeout(EVER).wait().unwrap(), || drop(held)));

    let both = MultiLock::new(&one, ["/first", "/second"]).unwrap();
    assert!(both.acquire().timeout(EVER).wait().is_ok());
    let again = ReentrantLock::new(&one, "/reentrant").unwrap();
    assert!(again.acquire().timeout(EVER).wait().is_ok());

    let files = |session: &Session| ReadWriteLock::new(session, "/files").unwrap();
    let held = files(&one).read().timeout(EVER).wait().unwrap();
    let waiting = files(&two);
    drop(until(|| waiting.write().timeout(EVER).wait().unwrap(), || drop(held)));
}

#[test]
fn groups_and_leaders_can_be_waited_for_for_ever() {
    let cluster = Cluster::new(1);
    let (one, two) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
    let group = |session: &Session| Group::new(session, "/group").unwrap();
    let member = group(&one).join("a", b"").timeout(EVER).wait().unwrap();
    let mut members = group(&two).watch();
    until(|| members.recv().timeout(EVER).wait().unwrap(), || drop(member));

    let latch = |session: &Session, id: &str| LeaderLatch::new(session, "/leader", id).unwrap();
    let leads = latch(&one, "one").campaign().timeout(EVER).wait().unwrap();
    let candidate = latch(&two, "two");
    drop(until(|| candidate.campaign().timeout(EVER).wait().unwrap(), || drop(leads)));

    let barrier = Barrier::new(&one, "/barrier").unwrap();
    barrier.set().wait().unwrap();
    let waiting = Barrier::new(&two, "/barrier").unwrap();
    until(
        || waiting.wait_removed().timeout(EVER).wait().unwrap(),
        || barrier.remove().wait().unwrap(),
    );

    let double = DoubleBarrier::new(&one, "/double", 1).unwrap();
    let inside = double.enter().timeout(EVER).wait().unwrap();
    inside.leave().timeout(EVER).wait().unwrap();
}

#[test]
fn state_can_be_waited_for_for_ever() {
    let cluster = Cluster::new(1);
    let (one, two) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
    let queue = |session: &Session| Queue::new(session, "/queue").unwrap();
    let taking = queue(&two);
    let put = || queue(&one).put(b"first").wait().unwrap();
    assert_eq!(
        until(|| taking.take().timeout(EVER).wait().unwrap().done().wait().unwrap(), put),
        ()
    );
    queue(&one).put(b"second").timeout(EVER).wait().unwrap();
    assert_eq!(taking.pop().timeout(EVER).wait().unwrap(), b"second");
    // A delay beyond all clocks was taken, and the item never became due.
    for delay in
        [EVER, Duration::from_secs(u64::MAX), CreateMode::TTL_MAX + Duration::from_nanos(1)]
    {
        let never =
            queue(&one).put_all([NewItem::new(b"now"), NewItem::new(b"never").delay(delay)]).wait();
        let Err(error @ Error::InvalidSetting { setting: "delay", .. }) = never else {
            panic!("{never:?}");
        };
        assert!(error.to_string().contains("/queue"), "{error}");
    }
    assert_eq!(queue(&one).len().wait(), Ok(0), "all of them or none");
    queue(&one).put(NewItem::new(b"later").delay(CreateMode::TTL_MAX)).wait().unwrap();
    assert!(taking.try_take().wait().unwrap().is_none());

    one.create("/cached", b"", CreateMode::Persistent).wait().unwrap();
    let mut cache = Cache::new(&two, "/cached").wait().unwrap();
    until(
        || cache.recv().timeout(EVER).wait().unwrap(),
        || {
            one.set("/cached", b"1").wait().unwrap();
        },
    );

    let config = |session: &Session| Config::<u32>::new(session, "/config").unwrap();
    let mut updates = config(&two).watch();
    until(
        || updates.recv().timeout(EVER).wait().unwrap(),
        || {
            config(&one).set(&7).wait().unwrap();
        },
    );

    let counter = Counter::new(&one, "/counter").unwrap();
    assert!(counter.add(1).timeout(EVER).wait().is_ok());

    let commit = |session: &Session| TwoPhaseCommit::new(session, "/transaction").unwrap();
    commit(&one).begin(&["a"], b"").wait().unwrap();
    let participant = commit(&two).join("a").wait().unwrap();
    let decides = commit(&one);
    let vote = || {
        participant.vote(Vote::Yes).wait().unwrap();
    };
    until(|| decides.decide().timeout(EVER).wait().expect("it is voted on"), vote);
    assert!(participant.outcome().timeout(EVER).wait().is_ok());
}
