//! Read-write locks: readers share, and writers are alone.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use quorate::recipes::ReadWriteLock;
use quorate::testing::Cluster;
use quorate::{CreateMode, Error};

use super::Task;

fn shared(cluster: &Cluster, node: usize) -> ReadWriteLock {
    ReadWriteLock::new(&cluster.node(node).session(), "/rw").unwrap()
}

#[test]
fn readers_share_and_writers_are_alone() {
    let cluster = Cluster::new(3);
    // The number of readers that hold; a writer counts as a thousand.
    let holding = AtomicI64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..9 {
            let lock = shared(&cluster, thread % 3);
            let holding = &holding;
            scope.spawn(move || {
                for round in 0..10 {
                    if (thread + round) % 3 > 0 {
                        let guard = lock.read().wait().unwrap();
                        let readers = holding.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(readers < 1000, "a reader beside a writer");
                        std::thread::yield_now();
                        holding.fetch_sub(1, Ordering::SeqCst);
                        guard.release().wait().unwrap();
                    } else {
                        let guard = lock.write().wait().unwrap();
                        assert_eq!(holding.fetch_add(1000, Ordering::SeqCst), 0, "not alone");
                        if round % 2 > 0 {
                            holding.fetch_sub(1000, Ordering::SeqCst);
                            guard.release().wait().unwrap();
                        } else {
                            holding.fetch_sub(999, Ordering::SeqCst);
                            let guard = guard.downgrade().wait().unwrap();
                            assert!(holding.fetch_sub(1, Ordering::SeqCst) < 1000);
                            guard.release().wait().unwrap();
                        }
                    }
                }
            });
        }
    });
    // Releases on the other nodes may not have reached this one yet.
    cluster.node(0).session().sync().wait().unwrap();
    assert!(shared(&cluster, 0).contenders().wait().unwrap().is_empty());
}

#[test]
fn a_reader_does_not_overtake_a_writer_that_waits() {
    let cluster = Cluster::new(3);
    let first = shared(&cluster, 0).read().wait().unwrap();
    let waiting = shared(&cluster, 1);
    let mut writer = Task::new(async move { waiting.write().await });
    assert!(writer.settle(&cluster).is_none());
    assert!(
        shared(&cluster, 2).try_read().wait().unwrap().is_none(),
        "there is a writer before it"
    );
    let waiting = shared(&cluster, 2);
    let mut reader = Task::new(async move { waiting.read().await });
    assert!(reader.settle(&cluster).is_none());
    let kinds: Vec<_> = shared(&cluster, 2)
        .contenders()
        .wait()
        .unwrap()
        .iter()
        .map(|contender| contender.kind)
        .collect();
    assert_eq!(kinds, ["read", "write", "read"]);
    first.release().wait().unwrap();
    let writing = writer.settle(&cluster).unwrap().unwrap();
    assert!(reader.settle(&cluster).is_none());
    writing.release().wait().unwrap();
    assert!(reader.settle(&cluster).unwrap().unwrap().is_held());
}

/// A waiter dies before its turn: those after it must not take that for their own turn.
#[test]
fn a_waiter_that_dies_lets_no_other_in() {
    let cluster = Cluster::new(3);
    for kinds in [["write", "write"], ["read", "write"], ["write", "read"]] {
        let holder = match kinds[0] {
            "read" => {
                let guard = shared(&cluster, 0).read().wait().unwrap();
                Box::new(move || guard.release().wait()) as Box<dyn FnOnce() -> Result<(), Error>>
            }
            _ => {
                let guard = shared(&cluster, 0).write().wait().unwrap();
                Box::new(move || guard.release().wait())
            }
        };
        let dying = cluster.node(1).open_session().unwrap();
        let waiting = ReadWriteLock::new(&dying, "/rw").unwrap();
        let mut dead = Task::new(async move { waiting.write().await });
        assert!(dead.settle(&cluster).is_none());
        let (waiting, reads) = (shared(&cluster, 2), kinds[1] == "read");
        let mut behind = Task::new(async move {
            if reads {
                waiting.read().await.and_then(|guard| guard.release().wait())
            } else {
                waiting.write().await.and_then(|guard| guard.release().wait())
            }
        });
        assert!(behind.settle(&cluster).is_none());
        cluster.expire(&dying);
        assert!(behind.settle(&cluster).is_none(), "the first still holds it: {kinds:?}");
        holder().unwrap();
        assert_eq!(behind.settle(&cluster), Some(Ok(())));
    }
}

#[test]
fn a_downgrade_lets_no_writer_in_between_and_keeps_the_token() {
    let cluster = Cluster::new(3);
    let writing = shared(&cluster, 0).write().wait().unwrap();
    let (token, path) = (writing.fencing_token(), writing.path().to_owned());
    let (one, two) = (shared(&cluster, 1), shared(&cluster, 2));
    let mut reader = Task::new(async move { one.read().await });
    assert!(reader.settle(&cluster).is_none());
    let mut writer = Task::new(async move { two.write().await });
    assert!(writer.settle(&cluster).is_none());
    let reading = writing.downgrade().wait().unwrap();
    assert!(reading.is_held() && reading.path() != path);
    assert_eq!(reading.fencing_token(), token);
    reading.fenced().create("/written", b"", CreateMode::Persistent).commit().wait().unwrap();
    let other = reader.settle(&cluster).expect("it reads beside it").unwrap();
    assert!(writer.settle(&cluster).is_none());
    other.release().wait().unwrap();
    assert!(writer.settle(&cluster).is_none(), "one still reads");
    reading.release().wait().unwrap();
    assert!(writer.settle(&cluster).unwrap().unwrap().fencing_token() > token);
    // A lost lock cannot be downgraded.
    let writing = shared(&cluster, 0).write().wait().unwrap();
    cluster.node(1).session().delete(writing.path()).wait().unwrap();
    assert!(matches!(writing.downgrade().wait(), Err(Error::NoNode { .. })));
    cluster.node(0).session().sync().wait().unwrap();
    assert!(shared(&cluster, 0).contenders().wait().unwrap().is_empty());
}

#[test]
fn a_downgrade_dropped_at_any_point_is_a_release() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    for polls in 0..10 {
        let writing = shared(&cluster, 0).write().wait().unwrap();
        let mut downgrading = Task::new(writing.downgrade());
        for _ in 0..polls {
            downgrading.wake();
            if downgrading.poll().is_some() {
                break;
            }
            if polls % 2 > 0 {
                cluster.advance(Duration::from_millis(10));
            }
        }
        drop(downgrading);
        // The reader's znode is deleted just after the answer that it exists.
        session.sync().wait().unwrap();
        cluster.advance(Duration::from_millis(10));
        session.sync().wait().unwrap();
        assert!(shared(&cluster, 0).contenders().wait().unwrap().is_empty(), "after {polls} polls");
    }
}

#[test]
fn a_single_holder_is_asked_to_release() {
    let cluster = Cluster::new(3);
    let other = shared(&cluster, 1);
    let guards: Vec<_> = (0..3).map(|node| shared(&cluster, node).read().wait().unwrap()).collect();
    let revocations: Vec<_> =
        guards.iter().map(|guard| guard.revocations().wait().unwrap()).collect();
    let waiting = shared(&cluster, 0);
    let mut writer = Task::new(async move { waiting.write().await });
    assert!(writer.settle(&cluster).is_none());
    // On a client, too.
    let client = ReadWriteLock::new(&cluster.node(cluster.add_client()).session(), "/rw");
    for lock in [&other, &client.unwrap()] {
        assert_eq!(lock.revoke_holder(guards[1].path()).wait(), Ok(true));
        assert!(revocations[1].wait_asked().wait().unwrap());
    }
    let contenders = other.contenders().wait().unwrap();
    assert_eq!(other.revoke_holder(&contenders[3].path).wait(), Ok(false), "it waits");
    assert_eq!(other.revoke_holder("/elsewhere").wait(), Ok(false), "it is none");
    assert!(revocations.iter().all(|revocations| revocations.events().is_empty()));
    let path = guards[1].path().to_owned();
    guards.into_iter().for_each(|guard| guard.release().wait().unwrap());
    assert_eq!(other.revoke_holder(&path).wait(), Ok(false), "it is gone");
    let writer = writer.settle(&cluster).unwrap().unwrap();
    assert!(
        writer.revocations().wait().unwrap().events().is_empty(),
        "a waiter is not asked to release"
    );
    assert_eq!(other.revoke_holder(writer.path()).wait(), Ok(true));
    // Before it subscribes, too.
    assert!(writer.revocations().wait().unwrap().wait_asked().wait().unwrap());
}

#[test]
fn all_holders_are_asked_to_release() {
    let cluster = Cluster::new(3);
    let guards: Vec<_> = (0..3).map(|node| shared(&cluster, node).read().wait().unwrap()).collect();
    let waiting = shared(&cluster, 1);
    let mut writer = Task::new(async move { waiting.write().await });
    assert!(writer.settle(&cluster).is_none());
    assert_eq!(shared(&cluster, 1).revoke().wait(), Ok(3));
    for guard in guards {
        assert!(guard.revocations().wait().unwrap().wait_asked().wait().unwrap());
        guard.release().wait().unwrap();
    }
    let writing = writer.settle(&cluster).unwrap().unwrap();
    assert_eq!(shared(&cluster, 0).revoke().wait(), Ok(1));
    assert!(writing.revocations().wait().unwrap().wait_asked().wait().unwrap());
}

#[test]
fn isolated_readers_notice_their_loss_before_a_writer_writes() {
    let cluster = Cluster::new(3);
    let reading = shared(&cluster, 0).read().wait().unwrap();
    let waiting = shared(&cluster, 1);
    let mut writer = Task::new(async move { waiting.write().await });
    assert!(writer.settle(&cluster).is_none());
    cluster.isolate(0);
    for _ in 0..10_000 {
        cluster.advance(Duration::from_millis(10));
        if let Some(writing) = writer.poll() {
            assert!(!reading.is_held(), "a reader beside a writer");
            assert!(writing.unwrap().fencing_token() > reading.fencing_token());
            return;
        }
    }
    panic!("a session that is cut off ends");
}
