//! Persistent ephemerals, on an in-memory cluster.

use std::future::Future;
use std::task::{Context, Waker};
use std::time::Duration;

use quorate::WatcherType;
use quorate::recipes::PersistentEphemeral;
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error};

use super::{LONG, MOMENT};

const UP: &str = "/app/up";

fn up(cluster: &Cluster, node: usize) -> PersistentEphemeral {
    let coordinator = cluster.node(node);
    let sessions = move || Ok(coordinator.session());
    PersistentEphemeral::with_sessions(sessions, UP, b"0").unwrap()
}

#[test]
fn it_is_there_again_after_its_session_and_after_its_deletion() {
    let cluster = Cluster::new(3);
    let znode = up(&cluster, 0);
    let other = cluster.node(1).session();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| znode.run().wait());
        assert!(znode.wait_present().timeout(LONG).wait() == Ok(true));
        // A further call only waits for the end.
        let (clone, other_call) = (znode.clone(), scope.spawn(|| znode.clone().run().wait()));
        drop(clone.run().timeout(MOMENT).wait());
        let mut last = 0;
        for round in 0..6 {
            assert!(znode.wait_present().timeout(LONG).wait() == Ok(true), "round {round}");
            other.sync().wait().unwrap();
            let (data, stat) = other.get(UP).wait().unwrap();
            assert!(stat.czxid > last && stat.ephemeral_owner.is_some());
            assert_eq!(data[..], *round.to_string().as_bytes());
            last = stat.czxid;
            znode.set((round + 1).to_string()).unwrap();
            match round % 2 {
                0 => cluster.expire(&cluster.node(0).session()),
                _ => other.delete(UP).wait().unwrap(),
            }
            // It is deleted, and then created again.
            while other.exists(UP).wait().unwrap().is_none_or(|stat| stat.czxid == last) {
                cluster.advance(MOMENT);
            }
        }
        assert!(znode.wait_present().timeout(LONG).wait() == Ok(true));
        znode.close().wait().unwrap();
        assert!(!znode.is_present() && znode.wait_present().timeout(LONG).wait() != Ok(true));
        assert!(cluster.node(0).session().exists(UP).wait().unwrap().is_none());
        assert_eq!((running.join().unwrap(), other_call.join().unwrap()), (Ok(()), Ok(())));
    });
    assert_eq!(znode.close().wait(), Ok(()), "twice is no error");
    assert_eq!(znode.run().wait(), Ok(()), "it is over");
}

/// A request that is refused because there are too many is repeated. The future used to end with
/// the error.
#[test]
fn a_busy_node_does_not_end_it() {
    let cluster = Cluster::with_settings(1, Coordinator::builder().pending_requests_max(3));
    let (znode, session) = (up(&cluster, 0), cluster.node(0).session());
    let mut running = Box::pin(znode.run());
    let mut context = Context::from_waker(Waker::noop());
    let mut deleted = 0;
    for turn in 0.. {
        let calls = &session.in_turn();
        // Two times out of three, its next request may be one too many.
        let _reads: Vec<_> = (0..turn % 3 * 2).map(|_| calls.exists("/")).collect();
        assert!(running.as_mut().poll(&mut context).is_pending(), "turn {turn}");
        // Not in step with the retries, or each retry would meet the limit again.
        cluster.advance((7 + turn % 5) * MOMENT);
        if znode.is_present() && session.delete(UP).wait().is_ok() {
            deleted += 1;
        }
        if deleted == 20 {
            break;
        }
    }
}

/// It waited for a watch that had ended: on a member it looped for ever without a pause, and on a client it
/// never noticed the deletion.
#[test]
fn it_is_watched_again_when_the_application_removes_its_watches() {
    let cluster = Cluster::new(3);
    let other = cluster.node(1).session();
    for node in [0, cluster.add_client()] {
        let znode = up(&cluster, node);
        let session = cluster.node(node).session();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| znode.run().wait());
            for _ in 0..3 {
                assert!(znode.wait_present().timeout(LONG).wait() == Ok(true));
                // It exists a moment before it is watched.
                while session.remove_watches(UP, WatcherType::Any).wait().is_err() {
                    cluster.advance(MOMENT);
                }
                other.sync().wait().unwrap();
                let first = other.exists(UP).wait().unwrap().unwrap();
                other.delete(UP).wait().unwrap();
                while other.exists(UP).wait().unwrap().is_none_or(|stat| stat.czxid == first.czxid)
                {
                    cluster.advance(MOMENT);
                }
            }
            znode.close().wait().unwrap();
            assert_eq!(running.join().unwrap(), Ok(()));
        });
    }
}

#[test]
fn data_set_during_a_partition_is_written_afterwards() {
    let cluster = Cluster::new(3);
    let znode = up(&cluster, 0);
    let other = cluster.node(1).session();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| znode.run().wait());
        assert!(znode.wait_present().timeout(LONG).wait() == Ok(true));
        cluster.isolate(0);
        znode.set(b"1").unwrap();
        cluster.advance(LONG);
        assert!(!znode.is_present());
        assert!(other.exists(UP).wait().unwrap().is_none(), "gone with its session");
        znode.set(b"2").unwrap();
        cluster.heal();
        assert!(znode.wait_present().timeout(LONG * 10).wait() == Ok(true));
        other.sync().wait().unwrap();
        assert_eq!(other.get(UP).wait().unwrap().0[..], *b"2");
        znode.close().wait().unwrap();
        assert_eq!(running.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_deleted_one_ends_if_it_is_not_to_be_created_again() {
    let cluster = Cluster::new(3);
    let znode = up(&cluster, 0).recreate_deleted(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| znode.run().wait());
        assert!(znode.wait_present().timeout(LONG).wait() == Ok(true));
        cluster.expire(&cluster.node(0).session());
        while znode.is_present() {
            cluster.advance(MOMENT);
        }
        assert!(
            znode.wait_present().timeout(LONG).wait() == Ok(true),
            "the end of a session is no deletion"
        );
        cluster.node(1).session().delete(UP).wait().unwrap();
        assert_eq!(running.join().unwrap(), Err(Error::NoNode { path: UP.to_owned() }));
    });
    assert!(!znode.is_present() && znode.wait_present().timeout(LONG).wait() != Ok(true));
}

#[test]
fn it_waits_for_its_path_and_takes_nothing_from_others() {
    let cluster = Cluster::new(3);
    let former = up(&cluster, 1);
    let znode = up(&cluster, 0);
    std::thread::scope(|scope| {
        let one = scope.spawn(|| former.run().wait());
        assert!(former.wait_present().timeout(LONG).wait() == Ok(true));
        let two = scope.spawn(|| znode.run().wait());
        assert!(znode.wait_present().timeout(Duration::from_millis(50)).wait() != Ok(true));
        former.close().wait().unwrap();
        assert!(znode.wait_present().timeout(LONG).wait() == Ok(true));
        assert_eq!(former.close().wait(), Ok(()));
        cluster.node(1).session().sync().wait().unwrap();
        assert!(znode.is_present());
        znode.close().wait().unwrap();
        assert_eq!((one.join().unwrap(), two.join().unwrap()), (Ok(()), Ok(())));
    });
}

/// Closed or dropped after any number of polls, before and after its znode is known: none is left.
#[test]
fn closing_at_any_moment_leaves_nothing() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let mut context = Context::from_waker(Waker::noop());
    for closed in [true, false] {
        for polls in 0..25 {
            let znode = up(&cluster, 0);
            let mut running = Box::pin(znode.run());
            for poll in 0..polls {
                assert!(running.as_mut().poll(&mut context).is_pending());
                if poll % 3 < polls % 3 {
                    cluster.advance(MOMENT);
                }
            }
            if closed {
                // It is neither polled nor dropped any more: closing is enough.
                znode.close().wait().unwrap();
            } else {
                drop(running);
                session.sync().wait().unwrap();
                session.sync().wait().unwrap();
                assert!(
                    session.exists(UP).wait().unwrap().is_none(),
                    "dropped after {polls} polls"
                );
                continue;
            }
            assert!(session.exists(UP).wait().unwrap().is_none(), "closed after {polls} polls");
            assert!(running.as_mut().poll(&mut context).is_ready());
        }
    }
}

#[test]
fn it_ends_with_its_node_and_lives_in_a_chroot() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let cluster = Cluster::new(1);
    let coordinator = cluster.node(0);
    coordinator.session().create("/root", b"", CreateMode::Persistent).wait().unwrap();
    let sessions = {
        let coordinator = coordinator.clone();
        move || coordinator.session().chroot("/root")
    };
    let znode = PersistentEphemeral::with_sessions(sessions, UP, b"1").unwrap();
    std::thread::scope(|scope| {
        let mut running = is_send(Box::pin(znode.run()));
        let mut context = Context::from_waker(Waker::noop());
        while !znode.is_present() {
            assert!(running.as_mut().poll(&mut context).is_pending());
            cluster.advance(MOMENT);
        }
        assert!(coordinator.session().exists("/root/app/up").wait().unwrap().is_some());
        coordinator.close().wait().unwrap();
        let ends = scope.spawn(move || {
            loop {
                let mut context = Context::from_waker(Waker::noop());
                if let std::task::Poll::Ready(ended) = running.as_mut().poll(&mut context) {
                    return ended;
                }
                std::thread::yield_now();
            }
        });
        assert!(matches!(ends.join().unwrap(), Err(Error::Stopped { .. })));
    });
}
