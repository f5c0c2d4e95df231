//! Contenders' znodes that another session has taken over or created again at the same path: the former
//! holder does not touch them any more.

use std::time::Duration;

use quorate::recipes::{DoubleBarrier, LeaderLatch, Queue, ReadWriteLock, Semaphore};
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Session};

use super::Task;

/// Takes over a znode from its session.
fn take_over(taker: &Session, path: &str, from: &Session) {
    taker.take_over(path, b"mine", from.id()).wait().unwrap();
}

/// Asserts that the znode is the taker's and unchanged, once the requests of `former` are done.
fn assert_taken(taker: &Session, path: &str, former: &Session) {
    former.sync().wait().unwrap();
    taker.sync().wait().unwrap();
    let owner = taker.exists(path).wait().unwrap().and_then(|stat| stat.ephemeral_owner);
    assert_eq!(owner, Some(taker.id()), "{path} was deleted by its former holder");
    assert_eq!(
        &taker.get(path).wait().unwrap().0[..],
        b"mine",
        "{path} was set by its former holder"
    );
}

/// Has `taker` take the znode over, and asserts that `action` of the former holder leaves it alone.
/// Returns the action's result, after deleting the znode.
fn left_alone<R>(taker: &Session, path: &str, former: &Session, action: impl FnOnce() -> R) -> R {
    take_over(taker, path, former);
    let result = action();
    assert_taken(taker, path, former);
    taker.delete(path).wait().unwrap();
    result
}

/// A member, and a client without a replica.
fn holders(cluster: &Cluster) -> [Coordinator; 2] {
    [cluster.node(0), cluster.node(cluster.add_client())]
}

#[test]
fn a_guard_that_was_lost_to_another_leaves_its_znode_alone() {
    let cluster = Cluster::new(3);
    let taker = cluster.node(1).session();
    for holder in holders(&cluster) {
        let session = holder.session();
        let lock = session.lock("/lock").unwrap();
        let delayed = lock.clone().with_lock_delay(Duration::from_secs(1)).unwrap();
        for (way, lock) in [("drop", &lock), ("release", &lock), ("release", &delayed)] {
            let guard = lock.acquire().wait().unwrap();
            let path = guard.path().to_owned();
            left_alone(&taker, &path, &session, || match way {
                "drop" => drop(guard),
                _ => guard.release().wait().unwrap(),
            });
            // The lock-delay, if there is one.
            cluster.advance(Duration::from_secs(5));
        }

        let semaphore = Semaphore::new(&session, "/permits", 2).unwrap();
        let permits = semaphore.acquire().wait().unwrap();
        let path = permits.path().to_owned();
        left_alone(&taker, &path, &session, || permits.release().wait().unwrap());

        let leadership =
            LeaderLatch::new(&session, "/leader", "").unwrap().campaign().wait().unwrap();
        let path = leadership.path().to_owned();
        left_alone(&taker, &path, &session, || leadership.release().wait().unwrap());
    }
}

#[test]
fn a_znode_that_was_made_again_is_another_one() {
    let cluster = Cluster::new(3);
    let (session, other) = (cluster.node(0).session(), cluster.node(1).session());
    let guard = session.lock("/lock").unwrap().acquire().wait().unwrap();
    let path = guard.path().to_owned();
    other
        .multi()
        .delete(&path)
        .create(&path, b"mine", CreateMode::Ephemeral)
        .commit()
        .wait()
        .unwrap();
    guard.release().wait().unwrap();
    assert_taken(&other, &path, &session);
}

#[test]
fn a_writer_that_has_lost_its_lock_to_another_cannot_become_a_reader() {
    let cluster = Cluster::new(3);
    let taker = cluster.node(1).session();
    for holder in holders(&cluster) {
        let session = holder.session();
        let lock = ReadWriteLock::new(&session, "/rw").unwrap();
        let guard = lock.write().wait().unwrap();
        let path = guard.path().to_owned();
        take_over(&taker, &path, &session);
        let refused = guard.downgrade().wait().map(drop);
        let lost = Error::NoNode { path: path.clone() };
        assert_eq!(refused, Err(lost));
        assert_taken(&taker, &path, &session);
        assert_eq!(lock.contenders().wait().unwrap().len(), 1, "no znode was created in its place");
        taker.delete(&path).wait().unwrap();
    }
}

#[test]
fn a_waiter_that_lost_its_place_to_another_does_not_hold() {
    let cluster = Cluster::new(3);
    let taker = cluster.node(1).session();
    for holder in holders(&cluster) {
        let session = holder.session();
        let lock = taker.lock("/lock").unwrap();
        let guard = lock.acquire().wait().unwrap();
        let waiting = session.lock("/lock").unwrap();
        let mut waiter = Task::new(async move { waiting.acquire().await });
        assert!(waiter.settle(&cluster).is_none());
        let place = lock.contenders().wait().unwrap().pop().unwrap().path;
        let acquired = left_alone(&taker, &place, &session, || {
            guard.release().wait().unwrap();
            waiter.settle(&cluster).expect("it is first").map(|guard| guard.is_held())
        });
        assert_eq!(acquired, Err(Error::NoNode { path: place }));
    }
}

#[test]
fn a_waiter_that_gives_up_leaves_its_former_place_alone() {
    let cluster = Cluster::new(3);
    let (session, taker) = (cluster.node(0).session(), cluster.node(1).session());
    let lock = taker.lock("/lock").unwrap();
    let guard = lock.acquire().wait().unwrap();
    let waiting = session.lock("/lock").unwrap();
    let mut waiter = Task::new(async move { waiting.acquire().await });
    assert!(waiter.settle(&cluster).is_none());
    let place = lock.contenders().wait().unwrap().pop().unwrap().path;
    take_over(&taker, &place, &session);
    drop(waiter);
    assert_taken(&taker, &place, &session);
    drop(guard);
}

#[test]
fn a_participant_that_was_replaced_is_not_inside() {
    let cluster = Cluster::new(3);
    let taker = cluster.node(1).session();
    for holder in holders(&cluster) {
        let session = holder.session();
        let alone = DoubleBarrier::new(&session, "/round", 1).unwrap();
        for leaves in [false, true] {
            let inside = alone.enter().wait().unwrap();
            let path = inside.path().to_owned();
            left_alone(&taker, &path, &session, || match leaves {
                true => inside.leave().wait().unwrap(),
                false => drop(inside),
            });
        }
        // Before it has entered.
        let two = DoubleBarrier::new(&session, "/round", 2).unwrap();
        let mut entering = Task::new(async move { two.enter().await.map(drop) });
        assert!(entering.settle(&cluster).is_none());
        taker.sync().wait().unwrap();
        let path = format!("/round/{}", taker.children("/round").wait().unwrap()[0]);
        let entered = left_alone(&taker, &path, &session, || {
            entering.settle(&cluster).expect("it is woken by the loss")
        });
        assert_eq!(entered, Err(Error::NoNode { path }));
    }
}

#[test]
fn a_consumer_that_has_lost_its_place_to_another_takes_nothing() {
    let cluster = Cluster::new(3);
    let taker = cluster.node(1).session();
    for holder in holders(&cluster) {
        let session = holder.session();
        let queue = Queue::new(&session, "/queue").unwrap();
        let waiting = queue.clone();
        let mut consumer = Task::new(async move { waiting.take().await.map(drop) });
        assert!(consumer.settle(&cluster).is_none());
        taker.sync().wait().unwrap();
        let [place] = &taker.children("/queue/takers").wait().unwrap()[..] else { panic!() };
        let place = format!("/queue/takers/{place}");
        let taken = left_alone(&taker, &place, &session, || {
            queue.put("item").wait().unwrap();
            consumer.settle(&cluster).expect("it is woken by the item")
        });
        assert_eq!(taken, Err(Error::NoNode { path: place }));
        assert_eq!(queue.try_pop().wait().unwrap().as_deref(), Some(&b"item"[..]), "it is there");
    }
}
