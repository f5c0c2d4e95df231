//! Fences, revocation and lock-delay.

use std::time::Duration;

use quorate::multi::Condition;
use quorate::recipes::{LeaderLatch, Lock, MultiLock, Queue, Semaphore};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Session};

use super::{Task, lock};

#[test]
fn fenced_writes_happen_only_while_the_lock_is_held() {
    let cluster = Cluster::new(3);
    let (session, admin) = (cluster.node(0).session(), cluster.node(1).session());
    admin.create("/data", b"", CreateMode::Persistent).wait().unwrap();
    let guard = session.lock("/deep/lock").unwrap().acquire().wait().unwrap();
    let results = guard.fenced().set("/data", b"1").commit().wait().unwrap();
    assert_eq!(results.len(), 2, "the zxid of the check, and that of the write");
    // Another session's writes, with a check of the same lock.
    admin.multi().fence(&guard.fence()).set("/data", b"2").commit().wait().unwrap();
    // Both are in flight before the loss is known here.
    admin.delete(guard.path()).wait().unwrap();
    let other = admin.multi().fence(&guard.fence());
    for multi in [guard.fenced().set("/data", b"3"), other.set("/data", b"4")] {
        let late = multi.commit().wait();
        assert!(matches!(late, Err(Error::Multi { index: 0, .. })), "{late:?}");
    }
    // A new znode at the same path does not belong to this guard.
    admin.create(guard.path(), b"", CreateMode::Persistent).wait().unwrap();
    let late = guard.fenced().set("/data", b"5").commit();
    let unmet = Error::Unmet {
        path: guard.path().to_owned(),
        condition: Condition::Czxid(guard.fencing_token()),
    };
    assert_eq!(late.wait(), Err(Error::Multi { index: 0, error: Box::new(unmet) }));
    admin.sync().wait().unwrap();
    assert_eq!(&admin.get("/data").wait().unwrap().0[..], b"2");
}

#[test]
fn a_fence_knows_its_root_and_keeps_the_places_of_the_others() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/app", b"", CreateMode::Persistent).wait().unwrap();
    let app = session.chroot("/app").unwrap();
    let guard = app.lock("/lock").unwrap().acquire().wait().unwrap();
    guard.fenced().create("/a", b"", CreateMode::Persistent).commit().wait().unwrap();
    assert!(session.exists("/app/a").wait().unwrap().is_some());
    // In a multi of the whole tree.
    session
        .multi()
        .fence(&guard.fence())
        .create("/b", b"", CreateMode::Persistent)
        .commit()
        .wait()
        .unwrap();
    let failed = session.multi().fence(&guard.fence()).delete("/b").delete("/missing").commit();
    let error = Box::new(Error::NoNode { path: "/missing".to_owned() });
    assert_eq!(failed.wait(), Err(Error::Multi { index: 2, error }));
    let invalid =
        session.multi().fence(&guard.fence()).delete("/b").delete("relative").commit().wait();
    assert!(matches!(invalid, Err(Error::Multi { index: 2, .. })), "{invalid:?}");
}

#[test]
fn a_fenced_transaction_commits_only_while_its_lock_is_held() {
    let cluster = Cluster::new(3);
    let (session, admin) = (cluster.node(0).session(), cluster.node(1).session());
    let guard = session.lock("/lock").unwrap().acquire().wait().unwrap();
    let both = MultiLock::new(&session, ["/a", "/b"]).unwrap().acquire().wait().unwrap();
    let permits = Semaphore::new(&session, "/permits", 2).unwrap().acquire().wait().unwrap();
    let leadership = LeaderLatch::new(&session, "/leader", "").unwrap().campaign().wait().unwrap();
    let queue = Queue::new(&session, "/queue").unwrap();
    queue.put("item").wait().unwrap();
    let item = queue.take().wait().unwrap();
    let claim = format!("/queue/claims/{}", item.path().rsplit('/').next().unwrap());
    let fences = [
        (guard.fence(), guard.path()),
        (both.fence(), both.guards()[1].path()),
        (permits.fence(), permits.path()),
        (leadership.fence(), leadership.path()),
        (item.fence(), &claim),
    ];
    admin.create("/counter", b"0", CreateMode::Persistent).wait().unwrap();
    for (number, (fence, path)) in fences.iter().enumerate() {
        // Another session's transaction, in the holder's name.
        let done = admin.transact(|txn| {
            let before = txn.get("/counter")?.1.version;
            txn.fence(fence);
            txn.set("/counter", b"1");
            Ok(before)
        });
        let done = done.wait().unwrap();
        let checks = if number == 1 { 2 } else { 1 };
        assert_eq!((done.value, done.results.len()), (number as u64, checks + 1));
        admin.delete(path).wait().unwrap();
        let mut runs = 0;
        let late = session
            .transact(|txn| {
                runs += 1;
                txn.get("/lock")?;
                txn.create("/late", b"", CreateMode::Persistent);
                txn.fence(fence);
                Ok(())
            })
            .wait();
        let Err(Error::Multi { index, error }) = late else { panic!("{late:?}") };
        assert_eq!((index, *error), (checks, Error::NoNode { path: (*path).to_owned() }));
        assert_eq!(runs, 1, "a lost lock does not come back");
        assert!(session.exists("/late").wait().unwrap().is_none());
    }
}

// Listing contenders.

#[test]
fn contenders_are_listed_with_their_sessions_in_order() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.node(0).session(), cluster.node(1).session());
    let guard = lock(&cluster, 0).acquire().wait().unwrap();
    let waiting = lock(&cluster, 1);
    let mut waiter = Task::new(async move { waiting.acquire().await });
    assert!(waiter.settle(&cluster).is_none());
    let contenders = lock(&cluster, 0).contenders().wait().unwrap();
    let sessions: Vec<_> = contenders.iter().map(|contender| contender.session).collect();
    assert_eq!(sessions, [Some(one.id()), Some(two.id())]);
    assert_eq!((contenders[0].path.as_str(), contenders[0].kind), (guard.path(), "lock"));
    let none = one.lock("/nobody").unwrap().contenders().wait().unwrap();
    assert!(none.is_empty());
}

// Revocation.

#[test]
fn a_holder_receives_requests_made_before_and_after_it_subscribes() {
    let cluster = Cluster::new(3);
    let other = lock(&cluster, 1);
    assert_eq!(other.revoke().wait(), Ok(0), "no session holds it");
    let guard = lock(&cluster, 0).acquire().wait().unwrap();
    let later = guard.revocations().wait().unwrap();
    assert!(later.events().is_empty());
    assert_eq!(other.revoke().wait(), Ok(1));
    let earlier = guard.revocations().wait().unwrap();
    assert!(earlier.wait_asked().wait().unwrap() && later.wait_asked().wait().unwrap());
    assert_eq!(other.revoke().wait(), Ok(1));
    assert!(
        earlier.wait_asked().wait().unwrap() && later.wait_asked().wait().unwrap(),
        "each request arrives"
    );
    assert!(guard.is_held() && guard.lost().is_empty(), "a request is no loss");
    cluster.node(2).session().delete(guard.path()).wait().unwrap();
    assert!(!later.wait_asked().wait().unwrap(), "it holds nothing to release any more");
    assert!(matches!(guard.revocations().wait(), Err(Error::NoNode { .. })));
}

#[test]
fn revocations_end_with_the_session() {
    let cluster = Cluster::new(3);
    let guard = lock(&cluster, 0).acquire().wait().unwrap();
    let revocations = guard.revocations().wait().unwrap();
    cluster.expire(&cluster.node(0).session());
    assert!(!revocations.wait_asked().wait().unwrap());
}

// Lock-delay.

const DELAY: Duration = Duration::from_secs(100);

fn delayed(session: &Session) -> Lock {
    session.lock("/lock").unwrap().with_lock_delay(DELAY).unwrap()
}

#[test]
fn an_orderly_release_hands_over_at_once_and_leaves_nothing() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    for released in [true, false] {
        let guard = delayed(&session).acquire().wait().unwrap();
        assert!(session.exists("/lock/held").wait().unwrap().is_some());
        if released {
            guard.release().wait().unwrap();
        } else {
            drop(guard);
            session.sync().wait().unwrap();
        }
        assert_eq!(session.children("/lock").wait().unwrap(), [""; 0]);
        let next = lock(&cluster, 0).try_acquire().wait().unwrap().expect("it is free");
        next.release().wait().unwrap();
    }
    // A contender that only waited leaves no delay either, however it ends.
    let guard = delayed(&session).acquire().wait().unwrap();
    let other = cluster.node(1).open_session().unwrap();
    let waiting = delayed(&other);
    let mut waiter = Task::new(async move { waiting.acquire().await });
    assert!(waiter.settle(&cluster).is_none());
    cluster.expire(&other);
    guard.release().wait().unwrap();
    assert!(lock(&cluster, 0).try_acquire().wait().unwrap().is_some());
    let too_short = session.lock("/lock").unwrap().with_lock_delay(Duration::from_micros(1));
    assert!(matches!(too_short, Err(Error::InvalidSetting { setting: "lock delay", .. })));
}

/// Deleting the mark must not prevent a holder from releasing.
#[test]
fn a_release_without_its_mark_is_a_release() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    for released in [true, false] {
        let guard = delayed(&session).acquire().wait().unwrap();
        session.delete("/lock/held").wait().unwrap();
        if released {
            guard.release().wait().unwrap();
        } else {
            drop(guard);
        }
        session.sync().wait().unwrap();
        assert_eq!(session.children("/lock").wait().unwrap(), [""; 0]);
    }
}

#[test]
fn after_a_loss_the_lock_stays_free_until_the_delay_is_over() {
    let cluster = Cluster::new(3);
    for deleted in [false, true] {
        let session = cluster.node(0).open_session().unwrap();
        let guard = delayed(&session).acquire().wait().unwrap();
        let waiting = lock(&cluster, 1);
        let mut waiter = Task::new(async move { waiting.acquire().await });
        assert!(waiter.settle(&cluster).is_none());
        if deleted {
            cluster.node(2).session().delete(guard.path()).wait().unwrap();
        } else {
            cluster.expire(&session);
        }
        assert!(waiter.settle(&cluster).is_none());
        cluster.advance(DELAY * 9 / 10);
        assert!(waiter.settle(&cluster).is_none(), "it is too early");
        assert!(lock(&cluster, 2).try_acquire().wait().unwrap().is_none());
        cluster.advance(DELAY / 5);
        let next = waiter.settle(&cluster).expect("the delay is over").unwrap();
        // Its mark is not the next holder's.
        next.release().wait().unwrap();
        assert!(lock(&cluster, 2).try_acquire().wait().unwrap().is_some());
        cluster.node(2).session().sync().wait().unwrap();
    }
}

/// The cluster measures the time: it does not start again with each waiter.
#[test]
fn a_delay_outlives_its_waiters() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).open_session().unwrap();
    let _guard = delayed(&session).acquire().wait().unwrap();
    cluster.expire(&session);
    for _ in 0..4 {
        let waiter = cluster.node(1).open_session().unwrap();
        assert!(delayed(&waiter).try_acquire().wait().unwrap().is_none());
        let waiting = delayed(&waiter);
        let mut task = Task::new(async move { waiting.acquire().await });
        assert!(task.settle(&cluster).is_none());
        cluster.advance(DELAY / 4);
        cluster.expire(&waiter);
    }
    cluster.advance(DELAY / 10);
    assert!(lock(&cluster, 2).try_acquire().wait().unwrap().is_some());
}

/// An acquisition that is dropped at any point leaves neither a contender nor a mark.
#[test]
fn a_delayed_acquisition_dropped_at_any_point_is_no_loss() {
    let cluster = Cluster::new(3);
    let session = cluster.node(1).session();
    for polls in 1..40 {
        let lock = delayed(&session);
        let mut acquiring = Task::new(async move { lock.acquire().await });
        for _ in 0..polls {
            acquiring.wake();
            if acquiring.poll().is_some() {
                break;
            }
            if polls % 3 > 0 {
                cluster.advance(Duration::from_millis(10));
            }
        }
        drop(acquiring);
        session.sync().wait().unwrap();
        session.sync().wait().unwrap();
        assert_eq!(
            session.children("/lock").wait().unwrap_or_default(),
            [""; 0],
            "after {polls} polls"
        );
    }
}
