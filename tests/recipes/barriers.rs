//! Barriers: they open once, for all, and exactly the right waiters are woken.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quorate::recipes::{Barrier, DoubleBarrier, Inside};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Session};

use crate::queues::{Counter, SOON, done, quiet, settle};

#[test]
fn a_barrier_holds_all_up_until_it_is_removed() {
    let cluster = Cluster::new(3);
    let barrier =
        |node: usize| Barrier::new(&cluster.node(node).session(), "/a/b/barrier").unwrap();
    assert_eq!(barrier(0).wait_removed().wait(), Ok(()), "it is not set");
    for done in [barrier(0).remove().wait(), barrier(0).set().wait(), barrier(1).set().wait()] {
        assert_eq!(done, Ok(()));
    }
    assert_eq!(barrier(0).is_set().wait(), Ok(true));
    let late = barrier(2).wait_removed().timeout(Duration::from_millis(5)).wait();
    assert!(matches!(late, Err(Error::NotInTime { .. })), "{late:?}");
    let two = barrier(2);
    let mut waiting = Box::pin(two.wait_removed());
    assert!(settle(&cluster, &mut waiting).is_pending());
    // Other changes of its znode do not open it.
    cluster.node(0).session().set("/a/b/barrier", b"why").wait().unwrap();
    assert!(settle(&cluster, &mut waiting).is_pending(), "it opens early");
    barrier(1).remove().wait().unwrap();
    assert_eq!(settle(&cluster, &mut waiting), Poll::Ready(Ok(())));
    assert_eq!((barrier(0).remove().wait(), barrier(2).wait_removed().wait()), (Ok(()), Ok(())));
}

#[test]
fn a_barrier_blocks_members_whose_replica_does_not_have_it_yet() {
    let cluster = Cluster::new(3);
    let (here, there) = (cluster.node(0).session(), cluster.node(1).session());
    for round in 0..50 {
        let path = format!("/barrier-{round}");
        let barrier = Barrier::new(&here, &path).unwrap();
        barrier.set().wait().unwrap();
        let other = Barrier::new(&there, &path).unwrap();
        let late = other.wait_removed().timeout(Duration::from_millis(2)).wait();
        assert!(matches!(late, Err(Error::NotInTime { .. })), "{late:?}");
    }
}

/// The double barrier of three participants at a node, with its own session.
fn double(cluster: &Cluster, node: usize) -> (Session, DoubleBarrier) {
    let session = cluster.node(node).open_session().unwrap();
    let barrier = DoubleBarrier::new(&session, "/here/double", 3).unwrap();
    (session, barrier)
}

type Entering<'a> = Pin<Box<dyn Future<Output = quorate::Result<Inside>> + 'a>>;

fn enter<'a>(cluster: &Cluster, barrier: &'a DoubleBarrier) -> Entering<'a> {
    let mut entering: Entering<'a> = Box::pin(barrier.enter());
    step(cluster, &mut entering);
    entering
}

/// Polls as long as that makes progress. The next poll shows whether it is done.
fn step(cluster: &Cluster, entering: &mut Entering<'_>) -> Option<quorate::Result<Inside>> {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..10 {
        if let Poll::Ready(value) = entering.as_mut().poll(&mut context) {
            return Some(value);
        }
        cluster.advance(SOON);
    }
    None
}

#[test]
fn they_enter_and_leave_together_repeatedly() {
    let cluster = Cluster::new(3);
    let inside = std::sync::atomic::AtomicUsize::new(0);
    let rounds: usize = 6;
    std::thread::scope(|scope| {
        for node in 0..3 {
            let (cluster, inside) = (&cluster, &inside);
            scope.spawn(move || {
                use std::sync::atomic::Ordering::SeqCst;
                let (_session, barrier) = double(cluster, node);
                for round in 0..rounds {
                    assert!(inside.load(SeqCst) <= 3 * round + 2, "left early");
                    inside.fetch_add(1, SeqCst);
                    let within = barrier.enter().wait().unwrap();
                    assert!(inside.load(SeqCst) >= 3 * (round + 1), "entered early");
                    within.leave().wait().unwrap();
                }
            });
        }
    });
    quiet(&cluster, &cluster.node(0).session());
    assert_eq!(cluster.node(0).session().children("/here/double").wait().unwrap(), [""; 0]);
}

#[test]
fn participants_that_die_or_give_up_before_it_opens_do_not_count() {
    let cluster = Cluster::new(3);
    let barriers: Vec<_> = (0..5).map(|place| double(&cluster, place % 3)).collect();
    let mut first = enter(&cluster, &barriers[0].1);
    let dead = enter(&cluster, &barriers[1].1);
    cluster.expire(&barriers[1].0);
    let gave_up = enter(&cluster, &barriers[2].1);
    assert!(step(&cluster, &mut first).is_none(), "opened with two");
    drop(gave_up);
    drop(dead);
    quiet(&cluster, &barriers[2].0);
    assert!(barriers[2].1.enter().timeout(Duration::from_millis(5)).wait().is_err());
    quiet(&cluster, &barriers[2].0);
    let mut second = enter(&cluster, &barriers[3].1);
    // Changes of its znode open the barrier for no participant.
    let znodes = barriers[4].0.children("/here/double").wait().unwrap();
    assert_eq!(znodes.len(), 2);
    for znode in znodes {
        barriers[4].0.set(&format!("/here/double/{znode}"), b"").wait().unwrap();
    }
    assert!(step(&cluster, &mut first).is_none() && step(&cluster, &mut second).is_none());
}

#[test]
fn a_third_opens_it_for_all_three_and_late_ones_are_let_in() {
    let cluster = Cluster::new(3);
    let barriers: Vec<_> = (0..5).map(|place| double(&cluster, place % 3)).collect();
    let mut entering: Vec<_> =
        barriers[..3].iter().map(|(_, barrier)| Box::pin(barrier.enter())).collect();
    assert!(settle(&cluster, &mut entering[0]).is_pending());
    assert!(settle(&cluster, &mut entering[1]).is_pending());
    let mut inside = Vec::new();
    for future in entering.iter_mut().rev() {
        let Poll::Ready(entered) = settle(&cluster, future) else { panic!("not opened") };
        inside.push(entered.unwrap());
    }
    // A late participant, and one that comes while the others leave.
    let late = done(&cluster, barriers[3].1.enter()).unwrap();
    let mut leaving: Vec<_> = inside.into_iter().map(|inside| Box::pin(inside.leave())).collect();
    for future in &mut leaving {
        assert!(settle(&cluster, future).is_pending(), "left early");
    }
    let later = done(&cluster, barriers[4].1.enter()).unwrap();
    // One leaves without waiting, the other one dies.
    drop(late);
    for future in &mut leaving {
        assert!(settle(&cluster, future).is_pending(), "left early");
    }
    cluster.expire(&barriers[4].0);
    drop(later);
    // In any order.
    for _ in 0..3 {
        leaving.retain_mut(|future| settle(&cluster, future).is_pending());
    }
    assert!(leaving.is_empty(), "all have left, but some still wait");
}

/// All of them enter; the last one opens the barrier.
fn all_enter(cluster: &Cluster, barriers: &[(Session, DoubleBarrier)]) -> Vec<Inside> {
    let mut entering: Vec<_> =
        barriers.iter().map(|(_, barrier)| Box::pin(barrier.enter())).collect();
    for future in &mut entering[..barriers.len() - 1] {
        assert!(settle(cluster, future).is_pending());
    }
    let mut inside = Vec::new();
    for future in entering.iter_mut().rev() {
        let Poll::Ready(entered) = settle(cluster, future) else { panic!("not opened") };
        inside.insert(0, entered.unwrap());
    }
    inside
}

#[test]
fn the_barrier_closes_again_when_all_have_died_inside() {
    let cluster = Cluster::new(3);
    let barriers: Vec<_> = (0..3).map(|place| double(&cluster, place)).collect();
    let inside = all_enter(&cluster, &barriers);
    for (session, _) in &barriers {
        cluster.expire(session);
    }
    for inside in inside {
        assert!(done(&cluster, inside.leave()).unwrap_err().is_session_lost());
    }
    // They enter again, with new sessions.
    let again: Vec<_> = (0..3).map(|place| double(&cluster, place)).collect();
    let mut one = enter(&cluster, &again[0].1);
    let mut two = enter(&cluster, &again[1].1);
    assert!(step(&cluster, &mut one).is_none() && step(&cluster, &mut two).is_none());
    let three = done(&cluster, again[2].1.enter()).unwrap();
    assert!(step(&cluster, &mut one).is_some() && step(&cluster, &mut two).is_some());
    drop(three);
}

/// The first in the order, which the others wait for, dies before it has left.
#[test]
fn participants_that_leave_go_on_when_the_first_dies() {
    let cluster = Cluster::new(3);
    let barriers: Vec<_> = (0..3).map(|place| double(&cluster, place)).collect();
    let mut inside = all_enter(&cluster, &barriers);
    let third = inside.pop().unwrap();
    let mut second = Box::pin(inside.pop().unwrap().leave());
    assert!(settle(&cluster, &mut second).is_pending());
    cluster.expire(&barriers[0].0);
    assert!(settle(&cluster, &mut second).is_pending(), "the third is inside");
    assert_eq!(third.leave().timeout(Duration::from_secs(5)).wait(), Ok(()));
    assert_eq!(settle(&cluster, &mut second), Poll::Ready(Ok(())));
}

/// A participant that waits to enter is woken only when the barrier opens.
#[test]
fn waiting_participants_are_woken_only_when_the_barrier_opens() {
    use std::sync::atomic::Ordering::Relaxed;
    let cluster = Cluster::new(3);
    let barriers: Vec<_> = (0..4).map(|place| double(&cluster, place % 3)).collect();
    let mut first = enter(&cluster, &barriers[0].1);
    let mut second = enter(&cluster, &barriers[1].1);
    let woken = std::sync::Arc::new(Counter::default());
    let waker = Waker::from(std::sync::Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(second.as_mut().poll(&mut context).is_pending());
    // Not woken by a participant that comes, in a barrier of four, and dies.
    let (session, _) = &barriers[2];
    let more = DoubleBarrier::new(session, "/here/double", 4).unwrap();
    let third = enter(&cluster, &more);
    cluster.expire(session);
    cluster.advance(SOON);
    drop(third);
    assert_eq!(woken.0.load(Relaxed), 0);
    let last = done(&cluster, barriers[3].1.enter()).unwrap();
    cluster.advance(SOON);
    assert_eq!(woken.0.load(Relaxed), 2);
    assert!(step(&cluster, &mut first).is_some() && step(&cluster, &mut second).is_some());
    drop(last);
}

/// Curator and kazoo open a barrier by a znode, and count by names of another form.
#[test]
fn a_double_barrier_of_another_library_is_reported() {
    for (name, mode) in [
        ("41bb8ee8-bb0d-4f29-9c1f-0123456789ab", CreateMode::Ephemeral),
        ("ready", CreateMode::Persistent),
    ] {
        let session = Cluster::new(1).node(0).session();
        let path = format!("/round/{name}");
        session.create_with_parents(&path, b"", mode).wait().unwrap();
        let barrier = DoubleBarrier::new(&session, "/round", 1).unwrap();
        assert_eq!(
            barrier.enter().wait().map(drop),
            Err(Error::UnknownContender { path: path.clone() })
        );
        session.sync().wait().unwrap();
        assert_eq!(session.children("/round").wait().unwrap(), [name], "nothing is left behind");
        session.delete(&path).wait().unwrap();
        assert!(barrier.enter().wait().is_ok());
    }
}

#[test]
fn a_double_barrier_of_zero_participants_is_refused() {
    let session = Cluster::new(1).node(0).session();
    let refused = DoubleBarrier::new(&session, "/round", 0).map(drop);
    let Err(Error::InvalidSetting { setting, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(setting, "participants");
    assert!(DoubleBarrier::new(&session, "/round", 1).is_ok());
}
