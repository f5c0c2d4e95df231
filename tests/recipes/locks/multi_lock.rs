//! Several locks as one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quorate::recipes::MultiLock;
use quorate::testing::Cluster;
use quorate::{CreateMode, Error};

use super::Task;

fn multi(cluster: &Cluster, node: usize, paths: &[&str]) -> MultiLock {
    MultiLock::new(&cluster.node(node).session(), paths).unwrap()
}

#[test]
fn callers_that_overlap_in_any_order_all_come_to_an_end() {
    let cluster = Cluster::new(3);
    let names = ["/l/a", "/l/b", "/l/c"];
    let busy = [AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false)];
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (one, two) = (thread % 3, (thread + 1 + thread / 3) % 3);
            let lock = multi(&cluster, thread % 3, &[names[one], names[two], names[one]]);
            let busy = &busy;
            scope.spawn(move || {
                for round in 0..10 {
                    let guard = lock.acquire().wait().unwrap();
                    assert!(guard.is_held());
                    for place in [one, two] {
                        assert!(!busy[place].swap(true, Ordering::SeqCst), "two holders");
                    }
                    for place in [one, two] {
                        busy[place].store(false, Ordering::SeqCst);
                    }
                    if round % 2 > 0 {
                        guard.release().wait().unwrap();
                    }
                }
            });
        }
    });
}

#[test]
fn it_is_all_or_none_within_one_timeout() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let holder = session.lock("/b").unwrap().acquire().wait().unwrap();
    let all = multi(&cluster, 1, &["/c", "/a", "/b"]);
    assert!(all.try_acquire().wait().unwrap().is_none());
    let free = |path| {
        cluster.node(1).session().sync().wait().unwrap();
        session.sync().wait().unwrap();
        session.lock(path).unwrap().contenders().wait().unwrap().is_empty()
    };
    assert!(free("/a") && free("/c"));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| all.acquire().timeout(Duration::from_secs(5)).wait().is_err());
        while free("/a") {
            cluster.advance(Duration::from_millis(10));
        }
        cluster.advance(Duration::from_secs(5));
        assert!(waiter.join().unwrap());
    });
    assert!(free("/a") && free("/c"));
    holder.release().wait().unwrap();
    let guard = all.try_acquire().wait().unwrap().expect("all are free");
    let paths: Vec<_> = guard.guards().iter().map(|guard| guard.path()[..2].to_owned()).collect();
    assert_eq!(paths, ["/a", "/b", "/c"]);
    guard.release().wait().unwrap();
    assert!(free("/a") && free("/b") && free("/c"));
    let none = MultiLock::new(&session, [""; 0]);
    assert!(matches!(none, Err(Error::InvalidSetting { setting: "paths", .. })));
}

#[test]
fn the_loss_of_one_lock_is_the_loss_of_all() {
    let cluster = Cluster::new(3);
    let (session, admin) = (cluster.node(0).session(), cluster.node(2).session());
    session.create("/data", b"", CreateMode::Persistent).wait().unwrap();
    let both = multi(&cluster, 0, &["/a", "/b"]);
    for lost in 0..2 {
        let guard = both.acquire().wait().unwrap();
        guard.fenced().set("/data", b"1").commit().wait().unwrap();
        admin.delete(guard.guards()[lost].path()).wait().unwrap();
        let late = guard.fenced().set("/data", b"2").commit().wait();
        assert!(matches!(&late, Err(Error::Multi { index, .. }) if *index == lost), "{late:?}");
        session.sync().wait().unwrap();
        assert!(!guard.is_held());
    }
    // During the wait for the other lock.
    session.sync().wait().unwrap();
    let holder = admin.lock("/b").unwrap().acquire().wait().unwrap();
    let waiting = both.clone();
    let mut waiter = Task::new(async move { waiting.acquire().await });
    assert!(waiter.settle(&cluster).is_none());
    let first = admin.lock("/a").unwrap().contenders().wait().unwrap();
    admin.delete(&first[0].path).wait().unwrap();
    holder.release().wait().unwrap();
    assert!(matches!(waiter.settle(&cluster), Some(Err(Error::NoNode { .. }))));
    session.sync().wait().unwrap();
    assert_eq!(session.lock("/b").unwrap().contenders().wait().unwrap(), []);
}
