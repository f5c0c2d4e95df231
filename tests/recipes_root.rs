//! Recipes below a root that is not there: they say so, and write nothing beside it.

use quorate::recipes::{
    Barrier, Config, Counter, DoubleBarrier, Group, IdGenerator, Instance, LeaderLatch,
    LeaderSelector, MultiLock, NodeList, PersistentEphemeral, Queue, ReadWriteLock, ReentrantLock,
    Registry, Semaphore, TwoPhaseCommit,
};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Result, Session};

/// One use of each recipe that makes its path when that is missing.
fn uses(session: &Session) -> Vec<(&'static str, Result<()>)> {
    let instance = Instance::new("one", "host", 1);
    let body = |_: &_| std::ops::ControlFlow::Break(());
    vec![
        ("lock", session.lock("/a/lock").unwrap().acquire().map(drop)),
        ("lock, alone", session.lock("/lock").unwrap().try_acquire().map(drop)),
        ("reentrant", ReentrantLock::new(session, "/re").unwrap().acquire().map(drop)),
        ("write lock", ReadWriteLock::new(session, "/rw").unwrap().write().map(drop)),
        ("semaphore", Semaphore::new(session, "/permits", 2).unwrap().acquire().map(drop)),
        ("semaphore, deep", Semaphore::new(session, "/a/p", 2).unwrap().set_permits(3)),
        ("multi-lock", MultiLock::new(session, ["/x", "/y"]).unwrap().acquire().map(drop)),
        ("latch", LeaderLatch::new(session, "/latch", "").unwrap().campaign().map(drop)),
        ("selector", LeaderSelector::new(session, "/selector", "").unwrap().run(body)),
        ("group", Group::new(session, "/group").unwrap().join("me", b"").map(drop)),
        ("queue", Queue::new(session, "/queue").unwrap().put("1")),
        ("bounded queue", Queue::new(session, "/bounded").unwrap().max(1).put("1")),
        ("barrier", Barrier::new(session, "/barrier").unwrap().set()),
        ("double", DoubleBarrier::new(session, "/double", 1).unwrap().enter().map(drop)),
        ("counter", Counter::new(session, "/counter").unwrap().add(1).map(drop)),
        ("ids", IdGenerator::new(session, "/ids", 1).unwrap().next_id().map(drop)),
        ("config", Config::<u8>::new(session, "/a/config").unwrap().set(&1).map(drop)),
        ("registry", Registry::new(session, "/r").unwrap().register("s", &instance).map(drop)),
        ("list", NodeList::new(session, "/list").unwrap().push("1").map(drop)),
        ("two-phase", TwoPhaseCommit::new(session, "/tx").unwrap().begin(&["a"], b"").map(drop)),
    ]
}

#[test]
fn a_root_that_is_missing_is_told_and_not_waited_for() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    for root in ["/nowhere", "/nor/here"] {
        for (recipe, used) in uses(&session.chroot(root).unwrap()) {
            assert_eq!(used, Err(Error::NoNode { path: "/".to_owned() }), "{recipe} in {root}");
        }
    }
    assert_eq!(session.children("/").unwrap(), ["zookeeper"]);
    session.create("/nowhere", b"", CreateMode::Persistent).unwrap();
    for (recipe, used) in uses(&session.chroot("/nowhere").unwrap()) {
        assert_eq!(used, Ok(()), "{recipe}");
    }
}

#[test]
fn a_persistent_ephemeral_without_its_root_ends_with_that() {
    let cluster = Cluster::new(1);
    let node = cluster.node(0).clone();
    let sessions = move || node.open_session()?.chroot("/nowhere");
    let znode = PersistentEphemeral::with_sessions(sessions, "/up", b"").unwrap();
    assert_eq!(znode.run(), Err(Error::NoNode { path: "/".to_owned() }));
}
