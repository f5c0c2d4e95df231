//! Recipes below a missing chroot: they report it, and write nothing elsewhere.

use std::time::Duration;

use quorate::recipes::{
    Barrier, Config, Counter, DoubleBarrier, Group, IdGenerator, Instance, KeyedRateLimiter,
    LeaderLatch, LeaderSelector, MultiLock, Naming, PersistentEphemeral, Queue, RateLimiter,
    ReadWriteLock, ReentrantLock, Registry, Semaphore, TwoPhaseCommit,
};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Result, Session};

fn keyed(session: &Session, path: &str) -> Result<KeyedRateLimiter> {
    RateLimiter::keyed(session, path, 1000, Duration::from_secs(1))
}

/// One use of each recipe that creates its path when it is missing.
fn uses(session: &Session) -> Vec<(&'static str, Result<()>)> {
    let instance = Instance::new("one", "host", 1);
    let body = |_| std::future::ready(std::ops::ControlFlow::Break(()));
    vec![
        ("lock", session.lock("/a/lock").unwrap().acquire().wait().map(drop)),
        ("lock, alone", session.lock("/lock").unwrap().try_acquire().wait().map(drop)),
        ("reentrant", ReentrantLock::new(session, "/re").unwrap().acquire().wait().map(drop)),
        ("write lock", ReadWriteLock::new(session, "/rw").unwrap().write().wait().map(drop)),
        ("semaphore", Semaphore::new(session, "/permits", 2).unwrap().acquire().wait().map(drop)),
        (
            "semaphore, Curator's",
            Semaphore::new(session, "/p", 2)
                .unwrap()
                .with_naming(Naming::Curator)
                .acquire()
                .wait()
                .map(drop),
        ),
        (
            "semaphore, kazoo's",
            Semaphore::new(session, "/k", 2)
                .unwrap()
                .with_naming(Naming::Kazoo)
                .acquire()
                .wait()
                .map(drop),
        ),
        ("semaphore, deep", Semaphore::new(session, "/a/p", 2).unwrap().set_permits(3).wait()),
        ("multi-lock", MultiLock::new(session, ["/x", "/y"]).unwrap().acquire().wait().map(drop)),
        ("latch", LeaderLatch::new(session, "/latch", "").unwrap().campaign().wait().map(drop)),
        (
            "selector",
            LeaderSelector::new(session, "/selector", "").unwrap().run(body).wait().map(drop),
        ),
        ("group", Group::new(session, "/group").unwrap().join("me", b"").wait().map(drop)),
        ("queue", Queue::new(session, "/queue").unwrap().put("1").wait()),
        ("bounded queue", Queue::new(session, "/bounded").unwrap().max(1).put("1").wait()),
        ("barrier", Barrier::new(session, "/barrier").unwrap().set().wait()),
        ("double", DoubleBarrier::new(session, "/double", 1).unwrap().enter().wait().map(drop)),
        ("counter", Counter::new(session, "/counter").unwrap().add(1).wait().map(drop)),
        ("ids", IdGenerator::new(session, "/ids", 1).unwrap().next_id().wait().map(drop)),
        ("config", Config::<u8>::new(session, "/a/config").unwrap().set(&1).wait().map(drop)),
        (
            "registry",
            Registry::new(session, "/r").unwrap().register("s", &instance).wait().map(drop),
        ),
        ("limit of keys", keyed(session, "/limit").unwrap().acquire("a", 1).wait()),
        (
            "two-phase",
            TwoPhaseCommit::new(session, "/tx").unwrap().begin(&["a"], b"").wait().map(drop),
        ),
    ]
}

#[test]
fn a_missing_root_is_an_error_and_is_not_waited_for() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    for root in ["/nowhere", "/nor/here"] {
        for (recipe, used) in uses(&session.chroot(root).unwrap()) {
            assert_eq!(used, Err(Error::NoNode { path: "/".to_owned() }), "{recipe} in {root}");
        }
    }
    assert_eq!(session.children("/").wait().unwrap(), ["zookeeper"]);
    session.create("/nowhere", b"", CreateMode::Persistent).wait().unwrap();
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
    assert_eq!(znode.run().wait(), Err(Error::NoNode { path: "/".to_owned() }));
}

/// A use of a recipe, with the number of its writes, not counting those for the parents of its znodes.
struct Use {
    recipe: &'static str,
    /// The first use, and each later one.
    writes: [u64; 2],
    /// The number of paths whose parents it creates, each at its own time.
    paths: u64,
    run: fn(&Session, &str) -> Result<()>,
}

fn used(recipe: &'static str, writes: [u64; 2], run: fn(&Session, &str) -> Result<()>) -> Use {
    Use { recipe, writes, paths: 1, run }
}

/// Dropping what was acquired is one more write.
fn counted_uses() -> Vec<Use> {
    vec![
        used("lock", [2, 2], |s, at| s.lock(at)?.acquire().wait().map(drop)),
        used("reentrant", [2, 2], |s, at| ReentrantLock::new(s, at)?.acquire().wait().map(drop)),
        used("write", [2, 2], |s, at| ReadWriteLock::new(s, at)?.write().wait().map(drop)),
        // And its number once.
        used("semaphore", [3, 2], |s, at| Semaphore::new(s, at, 2)?.acquire().wait().map(drop)),
        Use {
            paths: 2,
            ..used("semaphore, Curator's", [4, 4], |s, at| {
                Semaphore::new(s, at, 2)?.with_naming(Naming::Curator).acquire().wait().map(drop)
            })
        },
        Use {
            paths: 2,
            ..used("multi-lock", [4, 4], |s, at| {
                let paths = [format!("{at}/x"), format!("{at}/y")];
                MultiLock::new(s, paths)?.acquire().wait().map(drop)
            })
        },
        used("latch", [2, 2], |s, at| LeaderLatch::new(s, at, "")?.campaign().wait().map(drop)),
        used("selector", [2, 2], |s, at| {
            LeaderSelector::new(s, at, "")?
                .run(|_| async { std::ops::ControlFlow::Break(()) })
                .wait()
                .map(drop)
        }),
        used("group", [2, 2], |s, at| Group::new(s, at)?.join("me", b"").wait().map(drop)),
        used("queue", [3, 3], |s, at| {
            Queue::new(s, at)?.put("1").wait()?;
            Queue::new(s, at)?.take().wait()?.done().wait()
        }),
        used("bounded queue", [2, 2], |s, at| {
            Queue::new(s, at)?.max(1).put("1").wait()?;
            Queue::new(s, at)?.pop().wait().map(drop)
        }),
        used("barrier", [2, 2], |s, at| {
            Barrier::new(s, at)?.set().wait()?;
            Barrier::new(s, at)?.remove().wait()
        }),
        used("double barrier", [3, 3], |s, at| {
            DoubleBarrier::new(s, at, 1)?.enter().wait().map(drop)
        }),
        used("counter", [1, 1], |s, at| Counter::new(s, at)?.add(1).wait().map(drop)),
        used("ids", [1, 1], |s, at| IdGenerator::new(s, at, 1)?.next_id().wait().map(drop)),
        used("config", [1, 1], |s, at| Config::<u8>::new(s, at)?.set(&1).wait().map(drop)),
        used("registry", [2, 2], |s, at| {
            Registry::new(s, at)?.register("s", &Instance::new("one", "host", 1)).wait().map(drop)
        }),
        // What all agree on; then the key, which is there the next time.
        used("limit of keys", [2, 1], |s, at| keyed(s, at)?.acquire("a", 1).wait()),
        used("two-phase", [3, 3], |s, at| {
            let transaction = TwoPhaseCommit::new(s, at)?;
            transaction.begin(&["a"], b"").wait()?;
            transaction.abort().wait()?;
            transaction.forget().wait().map(drop)
        }),
    ]
}

#[test]
fn missing_parents_cost_one_write_and_existing_ones_none() {
    let cluster = Cluster::new(3);
    for place in [0, cluster.add_client()] {
        let session = cluster.node(place).session();
        for Use { recipe, writes, paths, run } in counted_uses() {
            let at = format!("/{place}/{recipe}/deep/here");
            for (turn, expected) in [writes[0] + paths, writes[1]].into_iter().enumerate() {
                let before = session.sync().wait().unwrap();
                let refused = cluster.node(place).metrics().wait().unwrap().requests_refused;
                assert_eq!(run(&session, &at), Ok(()), "{recipe}");
                // After the request of the drop.
                let after = session.sync().wait().unwrap();
                assert_eq!(after - before, expected, "{recipe} on {place}, use {turn}");
                let refused =
                    cluster.node(place).metrics().wait().unwrap().requests_refused - refused;
                // A client has no replica to check first, so some of its writes fail.
                assert_eq!(refused, 0, "{recipe} on {place}, use {turn}");
            }
        }
    }
}

/// Several uses begin at once; each creates the parents that the others have not created yet.
#[test]
fn concurrent_first_uses_all_find_their_parents() {
    let cluster = Cluster::new(3);
    for round in 0..10 {
        std::thread::scope(|scope| {
            for worker in 0..6 {
                let session = cluster.node(worker % 3).session();
                scope.spawn(move || {
                    let path = format!("/app/{round}/{}/group", worker % 2);
                    Group::new(&session, &path)
                        .unwrap()
                        .join(&format!("{worker}"), b"")
                        .wait()
                        .unwrap()
                });
            }
        });
    }
    let refused =
        (0..3).map(|place| cluster.node(place).metrics().wait().unwrap().requests_refused);
    assert_eq!(
        refused.sum::<u64>(),
        0,
        "a concurrent creation of the parents must not be an error"
    );
}
