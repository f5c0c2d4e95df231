//! Handles under concurrent use and impatient users.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use quorate::recipes::{
    Barrier, Cache, Config, Counter, Discovery, DoubleBarrier, Group, IdGenerator, Instance,
    LeaderLatch, LeaderSelector, Lock, MultiLock, NodeList, PersistentEphemeral, Queue,
    ReadWriteLock, ReentrantLock, Registry, Semaphore, SharedSemaphore, TwoPhaseCommit,
};
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, EventKind, SessionState, WatchMode};

#[test]
fn a_wrong_password_takes_nothing_from_the_holder_on_the_same_node() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/mine", b"", CreateMode::Ephemeral).unwrap();
    let wrong = cluster.node(0).resume(session.id(), [0; 16]);
    assert!(matches!(wrong, Err(Error::WrongPassword { .. })), "{wrong:?}");
    assert_eq!(session.state(), SessionState::Connected);
    session.set("/mine", b"1").unwrap();
}

#[test]
fn a_handle_that_lost_its_session_cannot_close_it() {
    let cluster = Cluster::new(3);
    let old = cluster.node(0).open_session().unwrap();
    old.create("/mine", b"", CreateMode::Ephemeral).unwrap();
    let new = cluster.node(0).resume(old.id(), old.password()).unwrap();
    assert_eq!(old.close(), Ok(()));
    drop(old);
    cluster.advance(Duration::from_secs(1));
    assert_eq!(new.state(), SessionState::Connected);
    new.set("/mine", b"1").unwrap();
}

#[test]
fn a_write_in_flight_when_its_session_is_resumed_does_not_fail_with_a_known_outcome() {
    let cluster = Cluster::new(3);
    let node = cluster.node((cluster.leader().unwrap() + 1) % 3);
    for round in 0..50 {
        let path = format!("/n{round}");
        let session = node.open_session().unwrap();
        session.sync().unwrap();
        let write = session.nonblocking().create(&path, b"", CreateMode::Persistent);
        let resumed = node.resume(session.id(), session.password()).unwrap();
        resumed.sync().unwrap();
        let exists = resumed.exists(&path).unwrap().is_some();
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
        let guard = lock.acquire().unwrap();
        let leader = cluster.leader().unwrap();
        // No request is answered while this node is isolated.
        cluster.isolate(0);
        let waiting: Vec<_> = (0..4).map(|_| session.nonblocking().set("/", b"")).collect();
        std::thread::scope(|scope| {
            let let_go = scope.spawn(|| {
                if released {
                    guard.release().unwrap();
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
        session.sync().unwrap();
        assert_eq!(lock.contenders().unwrap(), [], "leader {leader}, released {released}");
    }
}

#[test]
fn waiting_for_ever_is_a_long_time_and_not_a_panic() {
    let cluster =
        Cluster::with_settings(1, Coordinator::builder().request_timeout(Duration::from_secs(60)));
    let session = cluster.node(0).session();
    let mut write = session.nonblocking().create("/a", b"", CreateMode::Persistent);
    assert!(write.wait_timeout(Duration::MAX).unwrap().is_ok());
    assert!(write.wait().is_err(), "the answer was taken already");
    cluster.node(0).wait_ready(Duration::MAX).unwrap();
    let lock = session.lock("/lock").unwrap();
    assert!(lock.acquire_timeout(Duration::MAX).unwrap().is_some());
}

#[test]
fn a_lock_is_not_held_any_more_once_its_session_is_being_closed() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).open_session().unwrap();
    let guard = session.lock("/lock").unwrap().acquire().unwrap();
    // The session may be closed, and another session hold the lock, before this replica knows it.
    let _closing = session.nonblocking().close();
    assert!(!guard.is_held());
    assert!(!session.is_alive());
}

#[test]
fn a_node_of_a_cluster_in_memory_can_be_closed_too() {
    let cluster = Cluster::new(3);
    let node = cluster.node(1);
    let session = node.session();
    session.create("/mine", b"", CreateMode::Ephemeral).unwrap();
    node.close();
    assert!(session.get("/").is_err_and(|error| error.is_session_lost()));
    assert!(session.set("/", b"").is_err_and(|error| error.is_session_lost()));
    assert!(node.status().stopped.is_some());
    let other = cluster.node(2).session();
    other.sync().unwrap();
    assert!(other.exists("/mine").unwrap().is_none(), "its sessions were closed cleanly");
    cluster.restart(1);
    cluster.node(1).wait_ready(Duration::from_secs(30)).unwrap();
}

/// Reads the tree inside `wake`, on the thread that wakes.
struct Reader {
    session: quorate::Session,
    least_version: AtomicUsize,
    woken: AtomicUsize,
}

impl Wake for Reader {
    fn wake(self: Arc<Self>) {
        let version = self.session.get("/a").unwrap().1.version as usize;
        assert!(version >= self.least_version.load(Ordering::SeqCst));
        self.woken.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_woken_task_may_read_at_once_even_within_the_waker() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).unwrap();
    let watch = session.watch("/a", WatchMode::Persistent).unwrap();
    let reader = Arc::new(Reader {
        session: session.clone(),
        least_version: AtomicUsize::new(1),
        woken: AtomicUsize::new(0),
    });
    let waker = Waker::from(Arc::clone(&reader));
    {
        let mut next = Box::pin(watch.recv_async());
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        session.set("/a", b"1").unwrap();
        let Poll::Ready(Some(event)) = next.as_mut().poll(&mut Context::from_waker(&waker)) else {
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
    session.create("/mine", b"", CreateMode::Ephemeral).unwrap();
    let closes: Vec<_> = (0..3).map(|_| session.nonblocking().close()).collect();
    for close in closes {
        assert_eq!(close.wait(), Ok(()));
    }
    assert!(cluster.node(0).session().exists("/mine").unwrap().is_none());
    assert_eq!(session.close(), Ok(()));
    assert!(matches!(session.get("/"), Err(Error::SessionClosed { .. })));
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
    session.create("/a", b"", CreateMode::Persistent).unwrap();
    let watch = session.watch("/a", WatchMode::Persistent).unwrap();
    let waker = Waker::from(Arc::new(Panics));
    let mut next = Box::pin(watch.recv_async());
    assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(session.set("/a", b"1").unwrap().version, 1);
    assert_eq!(session.get("/a").unwrap().1.version, 1);
    assert!(watch.recv().is_some());
}

/// Compiles only if the future of each async call may be spawned on a multi-threaded runtime, including calls
/// that are generic or take a closure.
#[test]
fn futures_may_go_from_thread_to_thread() {
    fn is_send<T>(_: impl Future<Output = T> + Send) {}

    fn of_locks(
        locks: (&Lock, &ReentrantLock, &ReadWriteLock, &MultiLock, &Semaphore, &SharedSemaphore),
    ) {
        let (lock, reentrant, shared, multi, semaphore, leases) = locks;
        is_send(leases.try_acquire_async());
        is_send(async { leases.acquire_async().await?.release_async().await });
        is_send(leases.held_async());
        is_send(lock.try_acquire_async());
        is_send(lock.acquire_async());
        is_send(lock.contenders_async());
        is_send(lock.revoke_async());
        is_send(reentrant.acquire_async());
        is_send(async { shared.write_async().await?.downgrade_async().await });
        is_send(async { shared.read_async().await?.revocations_async().await });
        is_send(shared.revoke_holder_async(""));
        is_send(multi.acquire_async());
        is_send(async { semaphore.acquire_async().await?.revocations_async().await });
        is_send(semaphore.set_permits_async(1));
        is_send(semaphore.revoke_holder_async(""));
    }

    fn of_elections(latch: &LeaderLatch, selector: &LeaderSelector, group: &Group) {
        is_send(async { Ok::<_, Error>(latch.campaign_async().await?.wait_lost_async().await) });
        is_send(async { latch.watch().recv_async().await });
        let name = String::new();
        is_send(selector.run_async(|leadership| {
            let name = &name;
            async move { std::ops::ControlFlow::Break((leadership.fencing_token(), name.len())) }
        }));
        is_send(async {
            let membership = group.join_async(&name, b"").await?;
            membership.update_async(b"").await?;
            Ok::<_, Error>(membership.wait_lost_async().await)
        });
        is_send(async { group.watch().recv_async().await });
    }

    fn of_queues(queue: &Queue, barrier: &Barrier, double: &DoubleBarrier) {
        is_send(queue.put_async(""));
        is_send(queue.put_all_async([""]));
        is_send(async {
            let item = queue.take_async().await?;
            item.wait_lost_async().await;
            item.done_async().await
        });
        is_send(queue.try_take_async());
        is_send(queue.remove_async(""));
        is_send(barrier.set_async());
        is_send(barrier.remove_async());
        is_send(barrier.wait_async());
        is_send(async { double.enter_async().await?.leave_async().await });
    }

    fn of_state(counter: &Counter, ids: &IdGenerator, config: &Config<u8>, list: &NodeList) {
        is_send(counter.add_async(1));
        is_send(counter.compare_and_set_async(0, 1));
        is_send(ids.next_id_async());
        is_send(config.set_async(&1));
        is_send(config.compare_and_set_async(None, &1));
        is_send(async { config.watch().recv_async().await });
        is_send(list.push_async(""));
        is_send(list.items_async());
    }

    fn of_services(registry: &Registry, discovery: &Discovery, two_phase: &TwoPhaseCommit) {
        let instance = Instance::new("", "", 0);
        is_send(registry.register_async("", &instance));
        is_send(async { discovery.watch("")?.recv_async().await });
        is_send(two_phase.begin_async(&[], b""));
        is_send(two_phase.decide_async());
        is_send(async { two_phase.join_async("").await?.outcome_async().await });
        is_send(two_phase.forget_async());
    }

    fn of_sessions(session: &quorate::Session, watch: &quorate::Watch, own: PersistentEphemeral) {
        let path = String::new();
        is_send(session.transact_async(|txn| {
            txn.set(&path, b"");
            Ok(path.len())
        }));
        is_send(watch.recv_async());
        is_send(async { Cache::new_async(session, "").await?.recv_async().await });
        let handle = own.handle();
        is_send(handle.wait_present_async());
        is_send(handle.close_async());
        is_send(own.run_async());
    }

    let _ = (of_locks, of_elections, of_queues, of_state, of_services, of_sessions);
}
