//! A lock that its owner acquires again.

use std::time::Duration;

use quorate::recipes::ReentrantLock;
use quorate::testing::Cluster;

use super::{Task, lock};

#[test]
fn clones_share_one_holding_and_others_are_kept_out() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let lock = ReentrantLock::new(&session, "/lock").unwrap();
    let other = ReentrantLock::new(&session, "/lock").unwrap();
    let before = session.sync().unwrap();
    let outer = lock.acquire().unwrap();
    let written = session.sync().unwrap() - before;
    let clone = lock.clone();
    let inner =
        std::thread::scope(|scope| scope.spawn(|| clone.acquire().unwrap()).join().unwrap());
    assert_eq!(session.sync().unwrap() - before, written, "the second one sends no request");
    assert_eq!((outer.holds(), outer.path()), (2, inner.path()));
    drop(outer);
    assert!(inner.is_held() && other.try_acquire().unwrap().is_none());
    inner.release().unwrap();
    let guard = other.try_acquire().unwrap().expect("it is free");
    assert!(lock.try_acquire().unwrap().is_none());
    assert!(lock.acquire_timeout(Duration::ZERO).unwrap().is_none());
    // A lost one is not shared any more.
    session.delete(guard.path()).unwrap();
    let again = other.acquire().unwrap();
    assert!(again.fencing_token() > guard.fencing_token() && !guard.is_held());
}

/// One of the clones is a contender; another takes its place when it gives up.
#[test]
fn clones_that_acquire_at_the_same_time_are_one_contender() {
    let cluster = Cluster::new(3);
    let holder = lock(&cluster, 1).acquire().unwrap();
    let session = cluster.node(0).session();
    let all = ReentrantLock::new(&session, "/lock").unwrap();
    let mut tasks: Vec<_> = (0..3)
        .map(|_| {
            let clone = all.clone();
            Task::new(async move { clone.acquire_async().await })
        })
        .collect();
    for task in &mut tasks {
        assert!(task.settle(&cluster).is_none());
    }
    let contenders = || lock(&cluster, 0).contenders().unwrap().len();
    assert_eq!(contenders(), 2);
    drop(tasks.remove(0));
    for task in &mut tasks {
        assert!(task.settle(&cluster).is_none());
    }
    assert_eq!(contenders(), 2);
    holder.release().unwrap();
    let guards: Vec<_> =
        tasks.iter_mut().map(|task| task.settle(&cluster).unwrap().unwrap()).collect();
    assert_eq!(guards[0].path(), guards[1].path());
}
