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
    let before = session.sync().wait().unwrap();
    let outer = lock.acquire().wait().unwrap();
    let written = session.sync().wait().unwrap() - before;
    let clone = lock.clone();
    let inner =
        std::thread::scope(|scope| scope.spawn(|| clone.acquire().wait().unwrap()).join().unwrap());
    assert_eq!(session.sync().wait().unwrap() - before, written, "the second one sends no request");
    assert_eq!((outer.holds(), outer.path()), (2, inner.path()));
    drop(outer);
    assert!(inner.is_held() && other.try_acquire().wait().unwrap().is_none());
    inner.release().wait().unwrap();
    let guard = other.try_acquire().wait().unwrap().expect("it is free");
    assert!(lock.try_acquire().wait().unwrap().is_none());
    assert!(lock.acquire().timeout(Duration::ZERO).wait().is_err());
    // A lost one is not shared any more.
    session.delete(guard.path()).wait().unwrap();
    let again = other.acquire().wait().unwrap();
    assert!(again.fencing_token() > guard.fencing_token() && !guard.is_held());
}

/// One of the clones is a contender; another takes its place when it gives up.
#[test]
fn clones_that_acquire_at_the_same_time_are_one_contender() {
    let cluster = Cluster::new(3);
    let holder = lock(&cluster, 1).acquire().wait().unwrap();
    let session = cluster.node(0).session();
    let all = ReentrantLock::new(&session, "/lock").unwrap();
    let mut tasks: Vec<_> = (0..3)
        .map(|_| {
            let clone = all.clone();
            Task::new(async move { clone.acquire().await })
        })
        .collect();
    for task in &mut tasks {
        assert!(task.settle(&cluster).is_none());
    }
    let contenders = || lock(&cluster, 0).contenders().wait().unwrap().len();
    assert_eq!(contenders(), 2);
    drop(tasks.remove(0));
    for task in &mut tasks {
        assert!(task.settle(&cluster).is_none());
    }
    assert_eq!(contenders(), 2);
    holder.release().wait().unwrap();
    let guards: Vec<_> =
        tasks.iter_mut().map(|task| task.settle(&cluster).unwrap().unwrap()).collect();
    assert_eq!(guards[0].path(), guards[1].path());
}
