//! Semaphores.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quorate::recipes::Semaphore;
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Session};

use super::Task;

fn semaphore(cluster: &Cluster, node: usize, permits: u32) -> Semaphore {
    Semaphore::new(&cluster.node(node).session(), "/deep/permits", permits).unwrap()
}

fn wait(semaphore: &Semaphore, permits: u32) -> Task<Result<quorate::recipes::Permits, Error>> {
    let semaphore = semaphore.clone();
    Task::new(async move { semaphore.acquire_many(permits).await })
}

#[test]
fn no_more_are_held_than_there_are() {
    let cluster = Cluster::new(3);
    let held = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..9 {
            let semaphore = semaphore(&cluster, thread % 3, 4);
            let held = &held;
            scope.spawn(move || {
                for round in 0..10 {
                    let wanted = 1 + (thread as u32 + round) % 3;
                    let permits = semaphore.acquire_many(wanted).wait().unwrap();
                    let now = held.fetch_add(wanted, Ordering::SeqCst) + wanted;
                    assert!(now <= 4, "{now} permits are held");
                    std::thread::yield_now();
                    held.fetch_sub(wanted, Ordering::SeqCst);
                    // Both ways of giving them back.
                    if round % 2 > 0 {
                        permits.release().wait().unwrap();
                    }
                }
            });
        }
    });
}

#[test]
fn a_request_for_many_permits_is_not_overtaken_and_gets_all_or_none() {
    let cluster = Cluster::new(3);
    let here = semaphore(&cluster, 0, 3);
    let first = here.acquire().wait().unwrap();
    let mut many = wait(&semaphore(&cluster, 1, 3), 3);
    assert!(many.settle(&cluster).is_none());
    let there = semaphore(&cluster, 2, 3);
    assert!(
        there.try_acquire().wait().unwrap().is_none(),
        "two are free, but reserved for the first waiter"
    );
    let mut one = wait(&there, 1);
    assert!(one.settle(&cluster).is_none());
    first.release().wait().unwrap();
    let all = many.settle(&cluster).unwrap().unwrap();
    assert_eq!(all.permits(), 3);
    assert!(one.settle(&cluster).is_none());
    drop(all);
    assert!(one.settle(&cluster).unwrap().unwrap().is_held());
    let too_many = here.acquire_many(4);
    assert!(matches!(too_many.wait(), Err(Error::InvalidSetting { setting: "permits", .. })));
    assert!(matches!(here.acquire_many(0).wait(), Err(Error::InvalidSetting { .. })));
    let none = Semaphore::new(&cluster.node(0).session(), "/none", 0);
    assert!(matches!(none, Err(Error::InvalidSetting { .. })));
}

/// When a holder releases, the first waiter gets its permits, and then the next if there are enough.
#[test]
fn any_release_lets_in_the_next_waiters() {
    let cluster = Cluster::new(3);
    for goes in 0..3 {
        let mut held: Vec<_> =
            (0..3).map(|node| semaphore(&cluster, node, 3).acquire().wait().unwrap()).collect();
        let mut tasks: Vec<_> = (0..3).map(|node| wait(&semaphore(&cluster, node, 3), 1)).collect();
        for task in &mut tasks {
            assert!(task.settle(&cluster).is_none());
        }
        drop(held.remove(goes));
        let first = tasks.remove(0).settle(&cluster).expect("the first is let in").unwrap();
        assert!(tasks.iter_mut().all(|task| task.settle(&cluster).is_none()));
        // Both at once, and only the first of the two waiters notices.
        drop((held.remove(0), first));
        for mut task in tasks {
            task.settle(&cluster)
                .expect("there is enough for both")
                .unwrap()
                .release()
                .wait()
                .unwrap();
        }
    }
}

#[test]
fn waiters_that_give_up_or_die_block_no_other() {
    let cluster = Cluster::new(3);
    for dies in [true, false] {
        let held = semaphore(&cluster, 0, 1).acquire().wait().unwrap();
        let session = cluster.node(1).open_session().unwrap();
        let waiting = |session: &Session| Semaphore::new(session, "/deep/permits", 1).unwrap();
        let mut tasks: Vec<_> = (0..2).map(|_| wait(&waiting(&session), 1)).collect();
        for task in &mut tasks {
            assert!(task.settle(&cluster).is_none());
        }
        let mut last = wait(&semaphore(&cluster, 2, 1), 1);
        assert!(last.settle(&cluster).is_none());
        // The last but one, which the last one watches, and then the first.
        drop(tasks.remove(1));
        assert!(last.settle(&cluster).is_none());
        if dies {
            cluster.expire(&session);
        }
        drop(tasks);
        assert!(last.settle(&cluster).is_none());
        held.release().wait().unwrap();
        last.settle(&cluster).expect("it is its turn").unwrap().release().wait().unwrap();
    }
}

#[test]
fn a_session_that_ends_gives_its_permits_back() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).open_session().unwrap();
    let lost =
        Semaphore::new(&session, "/deep/permits", 2).unwrap().acquire_many(2).wait().unwrap();
    let mut next = wait(&semaphore(&cluster, 1, 2), 1);
    assert!(next.settle(&cluster).is_none());
    cluster.isolate(0);
    for _ in 0..10_000 {
        cluster.advance(Duration::from_millis(10));
        if let Some(permits) = next.poll() {
            assert!(!lost.is_held(), "three permits of two");
            assert!(permits.unwrap().is_held());
            return;
        }
    }
    panic!("a session that is cut off ends");
}

#[test]
fn the_number_is_the_clusters_and_can_be_changed() {
    let cluster = Cluster::new(3);
    let here = semaphore(&cluster, 0, 2);
    let held = here.acquire_many(2).wait().unwrap();
    let differs = semaphore(&cluster, 1, 3).acquire().wait().unwrap_err();
    let Error::InvalidSetting { setting: "permits", reason } = differs else { panic!("{differs}") };
    assert!(reason.starts_with("/deep/permits has 2 and not 3; "), "{reason}");
    // More permits wake the waiters, each by the one before.
    let mut tasks: Vec<_> = (0..3).map(|node| wait(&semaphore(&cluster, node, 2), 1)).collect();
    for task in &mut tasks {
        assert!(task.settle(&cluster).is_none());
    }
    here.set_permits(4).wait().unwrap();
    let more: Vec<_> = (0..2).map(|_| tasks.remove(0).settle(&cluster).unwrap().unwrap()).collect();
    assert!(tasks[0].settle(&cluster).is_none());
    assert_eq!(here.permits().wait(), Ok(4));
    // With a total below the permits in use, holders keep theirs, and no waiter gets any until enough are
    // free.
    here.set_permits(2).wait().unwrap();
    assert!(held.is_held() && more.iter().all(|permits| permits.is_held()));
    assert!(here.try_acquire().wait().unwrap().is_none());
    let mut more = more.into_iter();
    drop(held);
    assert!(tasks[0].settle(&cluster).is_none(), "there are two, and both are held");
    drop(more.next());
    let third = tasks[0].settle(&cluster).expect("one is free").unwrap();
    drop((third, more));
    // A request for more than the new total can never succeed.
    assert_eq!(here.acquire_many(2).wait().unwrap().permits(), 2);
    let two = here.acquire_many(2).wait().unwrap();
    let mut waiting = wait(&here, 2);
    assert!(waiting.settle(&cluster).is_none());
    here.set_permits(1).wait().unwrap();
    assert!(matches!(waiting.settle(&cluster), Some(Err(Error::InvalidSetting { .. }))));
    drop(two);
}

/// With a lowered total, any of the holders may release. A waiter must notice it, also a waiter that came
/// after the total was lowered.
#[test]
fn a_waiter_after_a_lowered_total_notices_any_release() {
    let cluster = Cluster::new(3);
    for first in 0..3 {
        let here = semaphore(&cluster, 0, 3);
        let mut held: Vec<_> = (0..3).map(|_| here.acquire().wait().unwrap()).collect();
        here.set_permits(1).wait().unwrap();
        let mut waiting = wait(&here, 1);
        assert!(waiting.settle(&cluster).is_none());
        for left in (0..3).rev() {
            drop(held.remove(first.min(left)));
            assert_eq!(waiting.settle(&cluster).is_some(), left == 0, "{left} are left");
        }
        here.set_permits(3).wait().unwrap();
    }
}

#[test]
fn a_znode_that_was_there_before_gets_the_number() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/permits", b"", CreateMode::Persistent).wait().unwrap();
    let semaphore = Semaphore::new(&session, "/permits", 2).unwrap();
    assert!(semaphore.acquire().wait().unwrap().is_held());
    assert_eq!(semaphore.permits().wait(), Ok(2));
    session.sync().wait().unwrap();
    // Deleted while no permits are held: created again.
    session.delete_recursive("/permits").wait().unwrap();
    assert!(semaphore.acquire().wait().unwrap().is_held());
    session.set("/permits", b"many").wait().unwrap();
    assert!(matches!(semaphore.acquire().wait(), Err(Error::InvalidData { .. })));
}

#[test]
fn dropped_at_any_point_it_leaves_nothing() {
    let cluster = Cluster::new(3);
    let session = cluster.node(1).session();
    for polls in 1..40 {
        let held = (polls % 2 > 0).then(|| semaphore(&cluster, 0, 1).acquire().wait().unwrap());
        let mut acquiring = wait(&semaphore(&cluster, 1, 1), 1);
        for _ in 0..polls {
            acquiring.wake();
            if acquiring.poll().is_some() {
                break;
            }
            if polls % 3 > 0 {
                cluster.advance(Duration::from_millis(10));
            }
        }
        drop((acquiring, held));
        for node in [0, 1, 1] {
            cluster.node(node).session().sync().wait().unwrap();
        }
        assert!(semaphore(&cluster, 1, 1).contenders().wait().unwrap().is_empty(), "{polls} polls");
        session.sync().wait().unwrap();
    }
}

#[test]
fn one_holder_is_asked_to_give_its_permits_back() {
    let cluster = Cluster::new(3);
    let (here, there) = (semaphore(&cluster, 0, 3), semaphore(&cluster, 1, 3));
    let (one, two, three) = (
        here.acquire().wait().unwrap(),
        here.acquire().wait().unwrap(),
        there.acquire().wait().unwrap(),
    );
    let revocations = [one.revocations().wait().unwrap(), two.revocations().wait().unwrap()];
    let waiting = here.clone();
    let mut waiter = Task::new(async move { waiting.acquire().await });
    assert!(waiter.settle(&cluster).is_none());
    let contenders = there.contenders().wait().unwrap();
    assert_eq!(there.revoke_holder(&contenders[3].path).wait(), Ok(false), "it waits");
    assert_eq!(there.revoke_holder("/elsewhere").wait(), Ok(false), "it is none");
    assert_eq!(there.revoke_holder(two.path()).wait(), Ok(true));
    assert!(revocations[1].wait_asked().wait().unwrap());
    // A lowered total is not a request to release, and loses none.
    assert_eq!(there.revoke_holder(three.path()).wait(), Ok(true));
    there.set_permits(1).wait().unwrap();
    here.set_permits(2).wait().unwrap();
    assert!(revocations.iter().all(|revocations| revocations.events().is_empty()));
    there.set_permits(1).wait().unwrap();
    assert!(
        three.revocations().wait().unwrap().wait_asked().wait().unwrap(),
        "the request came before it subscribed"
    );
    // A contender that holds by the former total counts as a holder.
    assert_eq!(here.revoke_holder(two.path()).wait(), Ok(true));
    assert!(revocations[1].wait_asked().wait().unwrap());
    for permits in [one, two] {
        permits.release().wait().unwrap();
        assert!(waiter.settle(&cluster).is_none(), "the total is one, and one is held");
    }
    let path = three.path().to_owned();
    three.release().wait().unwrap();
    assert_eq!(there.revoke_holder(&path).wait(), Ok(false), "it is gone");
    let permits = waiter.settle(&cluster).unwrap().unwrap();
    assert!(permits.revocations().wait().unwrap().events().is_empty());
    assert_eq!(there.revoke_holder(permits.path()).wait(), Ok(true));
    assert!(permits.revocations().wait().unwrap().wait_asked().wait().unwrap());
}

/// A session sees that a contender holds and asks it to release, before the contender itself has noticed that
/// it holds.
#[test]
fn a_revocation_that_comes_before_its_holder_knows_that_it_holds_is_not_lost() {
    let cluster = Cluster::new(3);
    let (here, there) = (semaphore(&cluster, 0, 1), semaphore(&cluster, 1, 1));
    let held = there.acquire().wait().unwrap();
    let mut waiters: Vec<_> = (0..2)
        .map(|_| {
            let waiting = here.clone();
            let mut waiter = Task::new(async move { waiting.acquire().await });
            assert!(waiter.settle(&cluster).is_none());
            waiter
        })
        .collect();
    let next = there.contenders().wait().unwrap()[1].path.clone();
    held.release().wait().unwrap();
    assert_eq!(there.revoke_holder(&next).wait(), Ok(true));
    let permits = waiters[0].settle(&cluster).expect("it is let in").unwrap();
    assert_eq!(permits.path(), next);
    assert!(permits.revocations().wait().unwrap().wait_asked().wait().unwrap());
    permits.release().wait().unwrap();
    assert!(waiters[1].settle(&cluster).is_some());
}
