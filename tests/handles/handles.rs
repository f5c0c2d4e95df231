//! Handles under concurrent use and impatient users.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use quorate::recipes::{
    Barrier, Cache, Config, Counter, DoubleBarrier, Group, IdGenerator, Instance, LeaderLatch,
    LeaderSelector, Lock, MultiLock, PersistentEphemeral, Queue, ReadWriteLock, ReentrantLock,
    Registry, Semaphore, TwoPhaseCommit,
};
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, EventKind, SessionState, WatchMode};

#[test]
fn a_wrong_password_takes_nothing_from_the_holder_on_the_same_node() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let wrong = cluster.node(0).resume(session.id(), [0; 16]).wait();
    assert!(matches!(wrong, Err(Error::WrongPassword { .. })), "{wrong:?}");
    assert_eq!(session.state(), SessionState::Connected);
    session.set("/mine", b"1").wait().unwrap();
}

#[test]
fn a_handle_that_lost_its_session_cannot_close_it() {
    let cluster = Cluster::new(3);
    let old = cluster.node(0).open_session().unwrap();
    old.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let new = cluster.node(0).resume(old.id(), old.password()).wait().unwrap();
    assert_eq!(old.close().wait(), Ok(()));
    drop(old);
    cluster.advance(Duration::from_secs(1));
    assert_eq!(new.state(), SessionState::Connected);
    new.set("/mine", b"1").wait().unwrap();
}

#[test]
fn a_write_in_flight_when_its_session_is_resumed_does_not_fail_with_a_known_outcome() {
    let cluster = Cluster::new(3);
    let node = cluster.node((cluster.leader().unwrap() + 1) % 3);
    for round in 0..50 {
        let path = format!("/n{round}");
        let session = node.open_session().unwrap();
        session.sync().wait().unwrap();
        let write = session.create(&path, b"", CreateMode::Persistent);
        let resumed = node.resume(session.id(), session.password()).wait().unwrap();
        resumed.sync().wait().unwrap();
        let exists = resumed.exists(&path).wait().unwrap().is_some();
        match write.wait() {
            Ok(_) => assert!(exists),
            Err(error) => assert!(!exists || error.is_outcome_unknown(), "{error}"),
        }
    }
}

#[test]
fn a_lock_is_released_however_many_requests_are_waiting() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().pending_requests_max(4));
    let node = cluster.node(0);
    let session = node.session();
    let lock = session.lock("/lock").unwrap();
    for released in [true, false] {
        let guard = lock.acquire().wait().unwrap();
        let leader = cluster.leader().unwrap();
        // No request is answered while this node is isolated.
        cluster.isolate(0);
        let waiting: Vec<_> = (0..4).map(|_| session.set("/", b"")).collect();
        std::thread::scope(|scope| {
            let let_go = scope.spawn(|| {
                if released {
                    guard.release().wait().unwrap();
                } else {
                    drop(guard);
                }
            });
            if !released {
                let_go.join().unwrap();
            }
            cluster.heal();
            cluster.advance(Duration::from_secs(3));
        });
        for write in waiting {
            let _ = write.wait();
        }
        session.sync().wait().unwrap();
        assert_eq!(lock.contenders().wait().unwrap(), [], "leader {leader}, released {released}");
    }
}

#[test]
fn waiting_for_ever_is_a_long_time_and_not_a_panic() {
    let cluster =
        Cluster::with_settings(1, Coordinator::builder().request_timeout(Duration::from_secs(60)));
    let session = cluster.node(0).session();
    let mut write = session.create("/a", b"", CreateMode::Persistent).timeout(Duration::MAX);
    while write.try_take().is_none() {
        std::thread::yield_now();
    }
    assert!(write.wait().is_err(), "the answer was taken already");
    cluster.node(0).wait_ready(Duration::MAX).wait().unwrap();
    let lock = session.lock("/lock").unwrap();
    assert!(lock.acquire().timeout(Duration::MAX).wait().is_ok());
}

#[test]
fn a_lock_is_not_held_any_more_once_its_session_is_being_closed() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).open_session().unwrap();
    let guard = session.lock("/lock").unwrap().acquire().wait().unwrap();
    // The session may be closed, and another session hold the lock, before this replica knows it.
    let _closing = session.close();
    assert!(!guard.is_held());
    assert!(!session.is_alive());
}

#[test]
fn a_node_of_a_cluster_in_memory_can_be_closed_too() {
    let cluster = Cluster::new(3);
    let node = cluster.node(1);
    let session = node.session();
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    node.close().wait().unwrap();
    assert!(session.get("/").wait().is_err_and(|error| error.is_session_lost()));
    assert!(session.set("/", b"").wait().is_err_and(|error| error.is_session_lost()));
    assert!(node.status().stopped.is_some());
    let other = cluster.node(2).session();
    other.sync().wait().unwrap();
    assert!(other.exists("/mine").wait().unwrap().is_none(), "its sessions were closed cleanly");
    cluster.restart(1);
    cluster.node(1).wait_ready(Duration::from_secs(30)).wait().unwrap();
}

/// Reads the tree inside `wake`, on the thread that wakes.
struct Reader {
    session: quorate::Session,
    least_version: AtomicUsize,
    woken: AtomicUsize,
}

impl Wake for Reader {
    fn wake(self: Arc<Self>) {
        let version = self.session.get("/a").wait().unwrap().1.version as usize;
        assert!(version >= self.least_version.load(Ordering::SeqCst));
        self.woken.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_woken_task_may_read_at_once_even_within_the_waker() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let reader = Arc::new(Reader {
        session: session.clone(),
        least_version: AtomicUsize::new(1),
        woken: AtomicUsize::new(0),
    });
    let waker = Waker::from(Arc::clone(&reader));
    {
        let mut next = Box::pin(watch.recv());
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        session.set("/a", b"1").wait().unwrap();
        let Poll::Ready(Ok(Some(event))) = next.as_mut().poll(&mut Context::from_waker(&waker))
        else {
            panic!("no event");
        };
        assert_eq!(event.kind, EventKind::DataChanged);
    }
    assert_eq!(reader.woken.load(Ordering::SeqCst), 1);
}

#[test]
fn a_session_closed_twice_is_closed_once_and_both_wait_for_it() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).open_session().unwrap();
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let closes: Vec<_> = (0..3).map(|_| session.close()).collect();
    for close in closes {
        assert_eq!(close.wait(), Ok(()));
    }
    assert!(cluster.node(0).session().exists("/mine").wait().unwrap().is_none());
    assert_eq!(session.close().wait(), Ok(()));
    assert!(matches!(session.get("/").wait(), Err(Error::SessionClosed { .. })));
}

#[test]
fn a_waker_that_panics_harms_no_other_waker() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("from a waker");
        }
    }
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let waker = Waker::from(Arc::new(Panics));
    let mut next = Box::pin(watch.recv());
    assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(session.set("/a", b"1").wait().unwrap().version, 1);
    assert_eq!(session.get("/a").wait().unwrap().1.version, 1);
    assert!(watch.recv().wait().unwrap().is_some());
}

/// Compiles only if the future of each async call may be spawned on a multi-threaded runtime, including calls
/// that are generic or take a closure.
#[test]
fn futures_may_go_from_thread_to_thread() {
    fn is_send<T>(_: impl Future<Output = T> + Send) {}

    fn of_locks(
        locks: (&Lock, &ReentrantLock, &ReadWriteLock, &MultiLock, &Semaphore, &Semaphore),
    ) {
        let (lock, reentrant, shared, multi, semaphore, leases) = locks;
        is_send(leases.try_acquire());
        is_send(async { leases.acquire().await?.release().await });
        is_send(leases.contenders());
        is_send(lock.try_acquire());
        is_send(lock.acquire());
        is_send(lock.contenders());
        is_send(lock.revoke());
        is_send(reentrant.acquire());
        is_send(async { shared.write().await?.downgrade().await });
        is_send(async { shared.read().await?.revocations().await });
        is_send(shared.revoke_holder(""));
        is_send(multi.acquire());
        is_send(async { semaphore.acquire().await?.revocations().await });
        is_send(semaphore.set_permits(1));
        is_send(semaphore.revoke_holder(""));
    }

    fn of_elections(latch: &LeaderLatch, selector: &LeaderSelector, group: &Group) {
        is_send(async { Ok::<_, Error>(latch.campaign().await?.wait_lost().await.unwrap()) });
        is_send(async { latch.watch().recv().await });
        let name = String::new();
        is_send(selector.run(|leadership| {
            let name = &name;
            async move { std::ops::ControlFlow::Break((leadership.fencing_token(), name.len())) }
        }));
        is_send(async {
            let membership = group.join(&name, b"").await?;
            membership.update(b"").await?;
            Ok::<_, Error>(membership.wait_lost().await.unwrap())
        });
        is_send(async { group.watch().recv().await });
    }

    fn of_queues(queue: &Queue, barrier: &Barrier, double: &DoubleBarrier) {
        is_send(queue.put(""));
        is_send(queue.put_all([""]));
        is_send(async {
            let item = queue.take().await?;
            item.wait_lost().await.unwrap();
            item.done().await
        });
        is_send(queue.try_take());
        is_send(queue.remove(""));
        is_send(barrier.set());
        is_send(barrier.remove());
        is_send(barrier.wait_removed());
        is_send(async { double.enter().await?.leave().await });
    }

    fn of_state(counter: &Counter, ids: &IdGenerator, config: &Config<u8>) {
        is_send(counter.add(1));
        is_send(counter.compare_and_set(0, 1));
        is_send(ids.next_id());
        is_send(config.set(&1));
        is_send(config.compare_and_set(None, &1));
        is_send(async { config.watch().recv().await });
    }

    fn of_services(registry: &Registry, two_phase: &TwoPhaseCommit) {
        let instance = Instance::new("", "", 0);
        is_send(registry.register("", &instance));
        is_send(async { registry.watch("")?.recv().await });
        is_send(two_phase.begin(&[], b""));
        is_send(two_phase.decide());
        is_send(async { two_phase.join("").await?.outcome().await });
        is_send(two_phase.forget());
    }

    fn of_sessions(session: &quorate::Session, watch: &quorate::Watch, own: PersistentEphemeral) {
        let path = String::new();
        is_send(session.transact(|txn| {
            txn.set(&path, b"");
            Ok(path.len())
        }));
        is_send(watch.recv());
        is_send(async { Cache::new(session, "").await?.recv().await });
        is_send(own.wait_present());
        is_send(own.close());
        is_send(own.run());
    }

    let _ = (of_locks, of_elections, of_queues, of_state, of_services, of_sessions);
}
