//! The lock: one holder at a time, in order, and every loss is reported.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quorate::recipes::{Lock, Lost};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error};

/// The paths of the holder and the waiters.
fn paths(lock: &Lock) -> Vec<String> {
    lock.contenders().wait().unwrap().into_iter().map(|contender| contender.path).collect()
}

#[test]
fn one_holder_at_a_time_and_tokens_only_grow() {
    let cluster = Cluster::new(3);
    let (busy, last) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..9 {
            let lock = cluster.node(thread % 3).session().lock("/deep/down/lock").unwrap();
            let (busy, last) = (&busy, &last);
            scope.spawn(move || {
                for _ in 0..10 {
                    let guard = lock.acquire().wait().unwrap();
                    assert!(!busy.swap(true, Ordering::SeqCst), "two holders");
                    assert!(guard.is_held());
                    let before = last.swap(guard.fencing_token(), Ordering::SeqCst);
                    assert!(guard.fencing_token() > before);
                    busy.store(false, Ordering::SeqCst);
                    // Both ways of releasing.
                    if guard.fencing_token().is_multiple_of(2) {
                        guard.release().wait().unwrap();
                    }
                }
            });
        }
    });
    // Dropping a guard only requests its release. The session's next request takes effect after the release.
    for node in [1, 2, 0] {
        cluster.node(node).session().sync().wait().unwrap();
    }
    let session = cluster.node(0).session();
    assert_eq!(session.children("/deep/down/lock").wait().unwrap(), [""; 0]);
}

#[test]
fn it_is_fair_and_a_release_wakes_one() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let lock = session.lock("/lock").unwrap();
    let first = lock.acquire().wait().unwrap();
    std::thread::scope(|scope| {
        let (done, order) = crossbeam_channel::unbounded();
        for waiter in 0..10 {
            let waiting = cluster.node(waiter % 3).session().lock("/lock").unwrap();
            let done = done.clone();
            scope.spawn(move || {
                let guard = waiting.acquire().wait().unwrap();
                done.send(waiter).unwrap();
                guard.release().wait().unwrap();
            });
            // The next thread queues once this one has.
            while lock.contenders().wait().unwrap().len() < waiter + 2 {
                cluster.advance(Duration::from_millis(10));
            }
        }
        first.release().wait().unwrap();
        let order: Vec<usize> = order.iter().take(10).collect();
        assert_eq!(order, (0..10).collect::<Vec<_>>());
    });
}

#[test]
fn giving_up_leaves_no_contender() {
    let cluster = Cluster::new(3);
    let lock = cluster.node(0).session().lock("/lock").unwrap();
    let other = cluster.node(1).session().lock("/lock").unwrap();
    let guard = lock.acquire().wait().unwrap();
    assert!(other.try_acquire().wait().unwrap().is_none());
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| other.acquire().timeout(Duration::from_secs(5)).wait().is_err());
        while lock.contenders().wait().unwrap().len() < 2 {
            cluster.advance(Duration::from_millis(10));
        }
        cluster.advance(Duration::from_secs(5));
        assert!(waiter.join().unwrap());
    });
    // A future dropped before the name of its znode is known.
    let mut waiting = Box::pin(other.acquire());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    drop(waiting);
    cluster.advance(Duration::from_secs(1));
    let session = cluster.node(1).session();
    session.sync().wait().unwrap();
    assert_eq!(paths(&other), [guard.path()]);
    drop(guard);
    assert!(other.acquire().wait().unwrap().is_held());
}

#[test]
fn a_holder_cut_off_knows_it_before_another_can_hold() {
    let cluster = Cluster::new(3);
    let old = cluster.node(0).session().lock("/lock").unwrap().acquire().wait().unwrap();
    let lost = old.lost().clone();
    let other = cluster.node(1).session().lock("/lock").unwrap();
    std::thread::scope(|scope| {
        let new = scope.spawn(|| {
            let new = other.acquire().wait().unwrap();
            (old.is_held(), new)
        });
        while other.contenders().wait().unwrap().len() < 2 {
            cluster.advance(Duration::from_millis(10));
        }
        cluster.isolate(0);
        cluster.advance(Duration::from_secs(30));
        let (old_held, new) = new.join().unwrap();
        assert!(!old_held, "two holders");
        assert!(new.fencing_token() > old.fencing_token());
        assert!(lost.recv().is_err(), "the channel has closed");
        assert_eq!(old.wait_lost().wait().unwrap(), Lost::SessionOver);
    });
    assert!(old.release().wait().is_ok(), "nothing is left to release");
}

#[test]
fn a_holder_is_notified_when_its_znode_is_deleted() {
    let cluster = Cluster::new(3);
    let guard = cluster.node(0).session().lock("/lock").unwrap().acquire().wait().unwrap();
    assert!(guard.is_held());
    cluster.node(1).session().delete(guard.path()).wait().unwrap();
    assert_eq!(guard.wait_lost().wait().unwrap(), Lost::Deleted);
    cluster.advance(Duration::from_millis(100));
    assert!(!guard.is_held());
}

#[test]
fn numbers_decide_and_not_the_order_of_names() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/lock", b"", CreateMode::Persistent).wait().unwrap();
    // An eleven-digit number is larger than a ten-digit one, though its name sorts before it.
    session.create("/lock/lock-10000000000", b"", CreateMode::Persistent).wait().unwrap();
    session.create("/lock/other", b"", CreateMode::Persistent).wait().unwrap();
    let lock = session.lock("/lock").unwrap();
    let guard = lock.try_acquire().wait().unwrap().expect("it is the first by number");
    assert_eq!(paths(&lock), [guard.path(), "/lock/lock-10000000000"]);
}

#[test]
fn a_lock_of_a_session_that_is_over_fails() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let lock = session.lock("/lock").unwrap();
    session.close().wait().unwrap();
    assert!(matches!(lock.acquire().wait(), Err(Error::SessionClosed { .. })));
    assert!(matches!(session.lock("relative"), Err(Error::InvalidPath { .. })));
}

/// An acquisition may be dropped at any point, before or after the name of its znode is known. It leaves no
/// contender, and the lock goes to the next one.
#[test]
fn an_acquisition_dropped_at_any_point_leaves_nothing() {
    let cluster = Cluster::new(3);
    let session = cluster.node(1).session();
    let lock = session.lock("/locks/here").unwrap();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for held in [false, true] {
        let guard = held.then(|| cluster.node(0).session().lock("/locks/here").unwrap());
        let guard = guard.map(|lock| lock.acquire().wait().unwrap());
        for polls in 1..40 {
            let mut acquiring = Box::pin(lock.acquire());
            for _ in 0..polls {
                if acquiring.as_mut().poll(&mut context).is_ready() {
                    assert!(!held, "two holders");
                    break;
                }
                if polls % 3 > 0 {
                    cluster.advance(Duration::from_millis(10));
                }
            }
            drop(acquiring);
            session.sync().wait().unwrap();
            session.sync().wait().unwrap();
            let left = lock.contenders().wait().unwrap().len();
            assert_eq!(left, usize::from(held), "after {polls} polls");
        }
        drop(guard);
        session.sync().wait().unwrap();
    }
}

#[test]
fn a_guard_keeps_its_session_alive_until_it_is_dropped() {
    let cluster = Cluster::new(3);
    let guard = {
        let session = cluster.node(0).open_session().unwrap();
        session.lock("/lock").unwrap().acquire().wait().unwrap()
    };
    cluster.advance(Duration::from_secs(60));
    assert!(guard.is_held());
    let sessions = cluster.node(1).status().sessions;
    drop(guard);
    let observer = cluster.node(1).session();
    observer.sync().wait().unwrap();
    cluster.advance(Duration::from_secs(1));
    assert_eq!(cluster.node(1).status().sessions, sessions, "one opened, one closed");
    assert_eq!(observer.lock("/lock").unwrap().contenders().wait().unwrap(), []);
}

#[test]
fn all_guards_of_a_session_report_its_end() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let guards: Vec<_> = (0..5)
        .map(|lock| session.lock(&format!("/l{lock}")).unwrap().acquire().wait().unwrap())
        .collect();
    cluster.expire(&session);
    for guard in guards {
        assert!(!guard.is_held());
        assert_eq!(guard.wait_lost().wait().unwrap(), Lost::SessionOver);
        assert_eq!(guard.release().wait(), Ok(()));
    }
}

/// Deletes a contender's znode and the lock's own, so that the numbers start from zero again.
fn restart_numbers(session: &quorate::Session, contender: &str) {
    session.multi().delete(contender).delete("/lock").commit().wait().unwrap();
}

/// The numbers had started from zero again, and a former holder released the znode of a later one.
#[test]
fn a_release_never_takes_the_lock_from_another_holder() {
    let cluster = Cluster::new(3);
    let admin = cluster.node(2).session();
    for same_session in [true, false] {
        for released in [true, false] {
            let session = cluster.node(0).session();
            let former = session.lock("/lock").unwrap().acquire().wait().unwrap();
            restart_numbers(&admin, former.path());
            let other = if same_session { session.clone() } else { cluster.node(1).session() };
            let lock = other.lock("/lock").unwrap();
            let guard = lock.acquire().wait().unwrap();
            if released {
                former.release().wait().unwrap();
            } else {
                drop(former);
            }
            session.sync().wait().unwrap();
            other.sync().wait().unwrap();
            assert!(guard.is_held(), "same session: {same_session}, released: {released}");
            assert_eq!(paths(&lock), [guard.path()]);
            guard.release().wait().unwrap();
        }
    }
}

/// A contender whose znode is gone must not take a later znode with the same number for its own: it must
/// neither wait in that place nor delete that znode.
#[test]
fn a_waiter_whose_znode_is_gone_has_lost_its_place() {
    let cluster = Cluster::new(3);
    let lock = cluster.node(0).session().lock("/lock").unwrap();
    let holder = lock.acquire().wait().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let lock = cluster.node(1).open_session().unwrap().lock("/lock").unwrap();
            lock.acquire().wait().map(drop)
        });
        while lock.contenders().wait().unwrap().len() < 2 {
            cluster.advance(Duration::from_millis(10));
        }
        let admin = cluster.node(2).session();
        admin.sync().wait().unwrap();
        let contenders = paths(&lock);
        // In one write, so that the lock is never without contenders.
        let mut multi = admin.multi();
        for contender in &contenders {
            multi = multi.delete(contender);
        }
        multi = multi.delete("/lock").create("/lock", b"", CreateMode::Persistent);
        let names = ["/lock/lock-", "/lock/lock-"];
        for name in names {
            multi = multi.create(name, b"", CreateMode::EphemeralSequential);
        }
        multi.commit().wait().unwrap();
        assert!(matches!(waiter.join().unwrap(), Err(Error::NoNode { .. })));
        cluster.node(1).session().sync().wait().unwrap();
        admin.sync().wait().unwrap();
        assert_eq!(
            admin.children("/lock").wait().unwrap().len(),
            2,
            "the other contenders' znodes stay"
        );
    });
    drop(holder);
}
