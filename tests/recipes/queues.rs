//! Queues: nothing is lost, nothing happens twice, and exactly the right waiters are woken.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quorate::recipes::{Barrier, DoubleBarrier, Item, Lost, NewItem, Queue};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, EventKind, Session};

pub(super) const SOON: Duration = Duration::from_millis(50);

fn queue(cluster: &Cluster, node: usize) -> Queue {
    Queue::new(&cluster.node(node).session(), "/deep/queue").unwrap()
}

/// Polls a future until it is done or makes no more progress.
pub(super) fn settle<T>(
    cluster: &Cluster,
    future: &mut Pin<Box<impl Future<Output = T>>>,
) -> Poll<T> {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..20 {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Poll::Ready(value);
        }
        cluster.advance(SOON);
    }
    Poll::Pending
}

/// The result of a future that needs no further events.
pub(super) fn done<T>(cluster: &Cluster, future: impl Future<Output = T>) -> T {
    match settle(cluster, &mut Box::pin(future)) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

/// Waits until all of the session's calls are done, including those of drops.
pub(super) fn quiet(cluster: &Cluster, session: &Session) {
    session.sync().wait().unwrap();
    cluster.advance(SOON);
    session.sync().wait().unwrap();
}

#[test]
fn items_come_by_priority_and_then_in_the_order_in_which_they_were_put() {
    let cluster = Cluster::new(3);
    let queue = queue(&cluster, 0);
    assert_eq!(
        (queue.len().wait(), queue.peek().wait(), queue.try_pop().wait()),
        (Ok(0), Ok(None), Ok(None))
    );
    queue.put("b1").wait().unwrap();
    queue.put_all([NewItem::new("c1").priority(i32::MAX), NewItem::new("b2")]).wait().unwrap();
    queue.put(NewItem::new("a1").priority(-1).id("x")).wait().unwrap();
    queue.put(NewItem::new("_").priority(i32::MIN)).wait().unwrap();
    queue.put(NewItem::new("a2").priority(-1)).wait().unwrap();
    assert_eq!((queue.len().wait(), queue.peek().wait()), (Ok(6), Ok(Some(b"_".to_vec()))));
    // An item given back is first again.
    let item = queue.take().wait().unwrap();
    assert_eq!((item.data(), item.priority(), item.id()), (&b"_"[..], i32::MIN, None));
    assert_eq!(queue.peek().wait().unwrap().unwrap(), b"a1");
    drop(item);
    let popped: Vec<String> =
        (0..6).map(|_| String::from_utf8(queue.pop().wait().unwrap()).unwrap()).collect();
    assert_eq!(popped, ["_", "a1", "a2", "b1", "b2", "c1"]);
    assert_eq!(queue.len().wait(), Ok(0));
}

#[test]
fn each_item_comes_to_one_consumer_however_many_there_are() {
    let cluster = Cluster::new(3);
    let all: BTreeSet<Vec<u8>> = (0..60).map(|n| format!("{n:02}").into_bytes()).collect();
    std::thread::scope(|scope| {
        let consumers: Vec<_> = (0..6)
            .map(|place| {
                let queue = queue(&cluster, place % 3);
                scope.spawn(move || {
                    let (mut got, mut given_back) = (Vec::new(), BTreeSet::new());
                    loop {
                        let data = if place % 2 == 0 {
                            queue.pop().wait().unwrap()
                        } else {
                            let item = queue.take().wait().unwrap();
                            assert!(item.is_held());
                            let data = item.data().to_vec();
                            // Now and then an item takes a second attempt. No more than that, since the
                            // others may be done by then.
                            if data.ends_with(b"7") && given_back.insert(data.clone()) {
                                drop(item);
                                continue;
                            }
                            item.done().wait().unwrap();
                            data
                        };
                        if data == b"end" {
                            return got;
                        }
                        got.push(data);
                    }
                })
            })
            .collect();
        let producer = queue(&cluster, 0);
        for data in &all {
            producer.put(data).wait().unwrap();
        }
        for _ in 0..6 {
            producer.put(NewItem::new("end").priority(1)).wait().unwrap();
        }
        let got: Vec<Vec<u8>> =
            consumers.into_iter().flat_map(|consumer| consumer.join().unwrap()).collect();
        assert_eq!(got.len(), all.len(), "none twice");
        assert_eq!(got.into_iter().collect::<BTreeSet<_>>(), all, "none lost");
    });
    let session = cluster.node(0).session();
    quiet(&cluster, &session);
    for left in ["items", "claims", "takers"] {
        let children = session.children(&format!("/deep/queue/{left}")).wait().unwrap();
        assert_eq!(children, [""; 0], "{left}");
    }
}

/// Beside the other calls of its session, a consumer first waited for a read behind all of them. So consumers
/// that shared a session with producers took half as many items as were put.
#[test]
fn a_consumer_waits_for_no_other_call_of_its_session() {
    let cluster = Cluster::new(3);
    let (queue, session) = (queue(&cluster, 0), cluster.node(0).session());
    queue.put("a").wait().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut take = Box::pin(queue.take());
    assert!(take.as_mut().poll(&mut context).is_pending());
    let after = session.create("/after", b"", CreateMode::Persistent).wait().unwrap().stat.czxid;
    let Poll::Ready(Ok(item)) = settle(&cluster, &mut take) else { panic!("it waits") };
    assert_eq!(item.data(), b"a");
    let taken = session.exists("/deep/queue/items").wait().unwrap().unwrap().pzxid;
    assert!(taken < after, "{taken} {after}");
    // A call sees what was put before it, also without an answer.
    let mut put = Box::pin(queue.put("c"));
    assert!(put.as_mut().poll(&mut context).is_pending());
    assert_eq!(queue.try_pop().wait(), Ok(Some(b"c".to_vec())));
    assert_eq!(done(&cluster, put), Ok(()));
}

#[test]
fn a_dead_consumers_item_returns_to_its_old_place() {
    let cluster = Cluster::new(3);
    let producer = queue(&cluster, 0);
    producer.put_all(["1", "2", "3"]).wait().unwrap();
    let dying = cluster.node(1).open_session().unwrap();
    dying.sync().wait().unwrap();
    let item = Queue::new(&dying, "/deep/queue").unwrap().take().wait().unwrap();
    assert_eq!((item.data(), item.is_held()), (&b"1"[..], true));
    let second = producer.take().wait().unwrap();
    assert_eq!(second.data(), b"2");
    cluster.expire(&dying);
    assert!(!item.is_held());
    assert!(item.done().wait().unwrap_err().is_session_lost());
    quiet(&cluster, &cluster.node(0).session());
    let again = producer.take().wait().unwrap();
    assert_eq!(again.data(), b"1");
    again.done().wait().unwrap();
    drop(second);
    assert_eq!(producer.pop().wait().unwrap(), b"2");
}

#[test]
fn a_consumer_cut_off_knows_it_before_another_has_its_item() {
    let cluster = Cluster::new(3);
    let (old, new) = (queue(&cluster, 0), queue(&cluster, 1));
    old.put("1").wait().unwrap();
    let item = old.take().wait().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let again = new.take().wait().unwrap();
            (item.is_held(), again)
        });
        while cluster
            .node(1)
            .session()
            .children("/deep/queue/takers")
            .wait()
            .is_ok_and(|all| all.is_empty())
        {
            cluster.advance(Duration::from_millis(10));
        }
        cluster.isolate(0);
        cluster.advance(Duration::from_secs(30));
        let (held, again) = waiting.join().unwrap();
        assert!(!held, "two consumers");
        assert_eq!(again.data(), b"1");
        assert!(again.fencing_token() > item.fencing_token());
        again.done().wait().unwrap();
    });
    // A message, or a closed channel.
    let _ = item.lost().recv();
    assert_eq!(item.wait_lost().wait().unwrap(), Lost::SessionOver);
}

#[test]
fn a_consumer_is_notified_of_the_deletion_of_its_claim_and_of_nothing_else() {
    let cluster = Cluster::new(3);
    let (here, there) = (queue(&cluster, 0), queue(&cluster, 1));
    here.put_all(["1", "2"]).wait().unwrap();
    let (one, two) = (here.take().wait().unwrap(), here.take().wait().unwrap());
    let mut lost = Box::pin(one.wait_lost());
    assert!(settle(&cluster, &mut lost).is_pending());
    let claim = one.path().replace("/taken/", "/claims/");
    let session = cluster.node(1).session();
    session.sync().wait().unwrap();
    session.delete(&claim).wait().unwrap();
    assert_eq!(one.lost().recv().unwrap().kind, EventKind::Deleted);
    assert!(!one.is_held());
    assert_eq!(done(&cluster, lost), Ok(Lost::Deleted));
    // Another consumer has the item, and its claim's znode has the path of the former claim.
    let again = there.take().wait().unwrap();
    assert_eq!((again.path(), again.is_held()), (one.path(), true));
    assert_eq!(one.wait_lost().wait().unwrap(), Lost::Deleted);
    assert!(one.done().wait().is_err());
    assert!(again.is_held(), "only the end of its own consumer deletes it");
    assert!(two.lost().is_empty() && two.is_held());
}

#[test]
fn one_waiting_consumer_is_woken_for_each_item_and_the_next_if_it_dies() {
    let cluster = Cluster::new(3);
    let producer = queue(&cluster, 0);
    let sessions: Vec<Session> =
        (0..3).map(|place| cluster.node(place).open_session().unwrap()).collect();
    let queues: Vec<Queue> =
        sessions.iter().map(|session| Queue::new(session, "/deep/queue").unwrap()).collect();
    let mut waiting: Vec<_> = queues.iter().map(|queue| Box::pin(queue.take())).collect();
    for taking in &mut waiting {
        assert!(settle(&cluster, taking).is_pending());
    }
    let woken = std::sync::Arc::new(Counter::default());
    let waker = Waker::from(std::sync::Arc::clone(&woken));
    for taking in &mut waiting[1..] {
        assert!(taking.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    // The first in the queue exists but makes no progress: it is not polled.
    producer.put("1").wait().unwrap();
    cluster.advance(SOON);
    assert_eq!(woken.0.load(std::sync::atomic::Ordering::Relaxed), 0, "a herd");
    // It dies: the next one gets the item that the first one was woken for.
    cluster.expire(&sessions[0]);
    cluster.advance(SOON);
    assert_eq!(woken.0.load(std::sync::atomic::Ordering::Relaxed), 1, "only the next one is woken");
    let Poll::Ready(item) = settle(&cluster, &mut waiting[1]) else { panic!("not woken") };
    let item = item.unwrap();
    assert_eq!(item.data(), b"1");
    // The third is first now, and is woken when an item is given back.
    assert!(settle(&cluster, &mut waiting[2]).is_pending());
    drop(item);
    let Poll::Ready(item) = settle(&cluster, &mut waiting[2]) else { panic!("not woken") };
    item.unwrap().done().wait().unwrap();
    assert!(
        matches!(settle(&cluster, &mut waiting[0]), Poll::Ready(Err(error)) if error.is_session_lost())
    );
}

#[derive(Default)]
pub(super) struct Counter(pub(super) std::sync::atomic::AtomicUsize);

impl std::task::Wake for Counter {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn taking_dropped_at_any_point_leaves_the_item_and_no_claim() {
    let cluster = Cluster::new(3);
    let session = cluster.node(1).session();
    let queue = Queue::new(&session, "/queue").unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for there in [false, true] {
        for polls in 1..40 {
            let mut taking = Box::pin(queue.take());
            for poll in 0..polls {
                if there && poll == polls / 2 {
                    queue.put("1").wait().unwrap();
                }
                if taking.as_mut().poll(&mut context).is_ready() {
                    break;
                }
                if polls % 3 > 0 {
                    cluster.advance(Duration::from_millis(10));
                }
            }
            drop(taking);
            quiet(&cluster, &session);
            for left in ["claims", "takers"] {
                let left = session.children(&format!("/queue/{left}")).wait().unwrap_or_default();
                assert_eq!(left, [""; 0], "after {polls} polls");
            }
            let left = queue.try_pop().wait().unwrap();
            assert_eq!(left.is_some(), there, "after {polls} polls");
        }
    }
}

#[test]
fn delayed_items_come_when_they_are_due_and_not_before() {
    let cluster = Cluster::new(3);
    let queue = queue(&cluster, 0);
    queue.put(NewItem::new("late").delay(Duration::from_secs(120)).priority(-1)).wait().unwrap();
    queue.put("now").wait().unwrap();
    assert_eq!(queue.len().wait().unwrap(), 2);
    assert_eq!(queue.pop().wait().unwrap(), b"now");
    assert_eq!((queue.try_pop().wait().unwrap(), queue.peek().wait().unwrap()), (None, None));
    // A consumer waits on an instance that joined later.
    let other = Queue::new(&cluster.node(1).session(), "/deep/queue").unwrap();
    let mut popping = Box::pin(async { other.take().await });
    assert!(settle(&cluster, &mut popping).is_pending());
    cluster.advance(Duration::from_secs(90));
    assert!(settle(&cluster, &mut popping).is_pending());
    cluster.advance(Duration::from_secs(40));
    let Poll::Ready(popped) = settle(&cluster, &mut popping) else { panic!("it is due") };
    let popped = popped.unwrap();
    assert_eq!(popped.data(), b"late");
    popped.done().wait().unwrap();
    // And without waiting.
    queue.put(NewItem::new("late").delay(Duration::from_secs(120))).wait().unwrap();
    cluster.advance(Duration::from_secs(90));
    assert_eq!(other.try_pop().wait().unwrap(), None);
    cluster.advance(Duration::from_secs(40));
    assert_eq!(other.try_pop().wait().unwrap().unwrap(), b"late");
}

#[test]
fn items_are_removed_by_exactly_their_id() {
    let cluster = Cluster::new(1);
    let queue = queue(&cluster, 0);
    for id in ["a/b", "a|b", "a_b", "a/b", "", "a-b"] {
        queue.put(NewItem::new(id).id(id)).wait().unwrap();
    }
    queue.put("none").wait().unwrap();
    let held = queue.take().wait().unwrap();
    assert_eq!(held.id(), Some("a/b"));
    assert_eq!(queue.remove("a/b").wait().unwrap(), 1, "one of them is held");
    assert_eq!(queue.remove("a/b").wait().unwrap(), 0, "it is still held");
    assert_eq!(queue.remove("b").wait().unwrap(), 0);
    assert_eq!(queue.remove("").wait().unwrap(), 1);
    held.done().wait().unwrap();
    let left: Vec<Vec<u8>> = (0..4).map(|_| queue.pop().wait().unwrap()).collect();
    assert_eq!(left, [&b"a|b"[..], b"a_b", b"a-b", b"none"]);
    let long = queue.put(NewItem::new("").id("-".repeat(2000))).wait().unwrap_err();
    assert!(matches!(long, Error::InvalidPath { .. }), "{long}");
}

#[test]
fn an_item_that_was_given_back_is_removed_by_its_id() {
    let cluster = Cluster::new(1);
    let queue = queue(&cluster, 0);
    queue.put(NewItem::new("one").id("order-7")).wait().unwrap();
    drop(queue.take().wait().unwrap());
    // The drop does not wait for its write.
    while queue.remove("order-7").wait().unwrap() == 0 {
        std::thread::yield_now();
    }
    assert!(queue.len().wait() == Ok(0) && queue.try_take().wait().unwrap().is_none());
}

#[test]
fn a_maximum_holds_under_concurrency_and_waiting_producers_get_in() {
    let cluster = Cluster::new(3);
    let full =
        |queue: &Queue| matches!(queue.try_put("x").wait(), Err(Error::QuotaExceeded { .. }));
    let queue = queue(&cluster, 0).max(5);
    let never = queue.put_all(["x"; 6]).wait().unwrap_err();
    let (path, resource) = ("/deep/queue".to_owned(), "items");
    assert_eq!(never, Error::QuotaExceeded { path, resource, limit: 5, needed: 6 });
    queue.put_all(["x"; 4]).wait().unwrap();
    assert!(matches!(
        queue.try_put_all(["x"; 2]).wait(),
        Err(Error::QuotaExceeded { needed: 6, .. })
    ));
    queue.try_put("x").wait().unwrap();
    assert!(full(&queue));
    assert!(queue.put("x").timeout(Duration::from_millis(5)).wait().is_err());
    // Items that a consumer has claimed count.
    let item = queue.take().wait().unwrap();
    assert!(full(&queue));
    item.done().wait().unwrap();
    queue.try_put("x").wait().unwrap();
    std::thread::scope(|scope| {
        for place in 0..6 {
            let queue = self::queue(&cluster, place % 3).max(5);
            scope.spawn(move || {
                for _ in 0..5 {
                    queue.put("y").wait().unwrap();
                }
            });
        }
        for _ in 0..35 {
            let _: Vec<u8> = queue.pop().wait().unwrap();
            assert!(queue.len().wait().unwrap() <= 5, "it overfills");
        }
    });
    assert_eq!(queue.len().wait().unwrap(), 0);
}

#[test]
fn queues_and_barriers_work_below_a_chroot_and_after_their_containers_have_gone() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/team", b"", CreateMode::Persistent).wait().unwrap();
    let team = session.chroot("/team").unwrap();
    let queue = Queue::new(&team, "/queue").unwrap().max(3);
    for _ in 0..2 {
        queue.put(NewItem::new("1").id("i")).wait().unwrap();
        let item: Item = queue.take().wait().unwrap();
        assert!(item.is_held() && item.path().starts_with("/queue/taken/"));
        drop(item);
        assert_eq!(queue.take().timeout(Duration::from_secs(1)).wait().unwrap().data(), b"1");
        quiet(&cluster, &session);
        queue.take().wait().unwrap().done().wait().unwrap();
        // A consumer in the line, which leaves it.
        let mut taking = Box::pin(queue.take());
        assert!(settle(&cluster, &mut taking).is_pending());
        drop(taking);
        assert!(session.exists("/team/queue/items").wait().unwrap().is_some());
        let inside = DoubleBarrier::new(&team, "/double", 1).unwrap().enter().wait().unwrap();
        inside.leave().wait().unwrap();
        let barrier = Barrier::new(&team, "/some/barrier").unwrap();
        barrier.set().wait().unwrap();
        assert!(session.exists("/team/some/barrier").wait().unwrap().is_some());
        barrier.remove().wait().unwrap();
        // The consumer that found nothing has left the line of those that wait.
        quiet(&cluster, &session);
        cluster.advance(Duration::from_secs(300));
        assert_eq!(session.children("/team").wait().unwrap(), [""; 0], "no unused znode is left");
    }
}

#[test]
fn a_queue_of_a_session_that_is_over_fails_at_once() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).open_session().unwrap();
    let queue = Queue::new(&session, "/queue").unwrap();
    let mut taking = Box::pin(queue.take());
    assert!(settle(&cluster, &mut taking).is_pending());
    cluster.expire(&session);
    assert!(
        matches!(settle(&cluster, &mut taking), Poll::Ready(Err(error)) if error.is_session_lost())
    );
    assert!(queue.put("x").wait().unwrap_err().is_session_lost());
    assert!(matches!(Queue::new(&session, "queue"), Err(Error::InvalidPath { .. })));
}

/// The numbers of items in work and of claims are equal, but one item has no claim.
#[test]
fn a_dead_consumers_item_returns_beside_the_claim_of_a_deleted_item() {
    let cluster = Cluster::new(3);
    for waits in [1, cluster.add_client()] {
        let session = |node: usize| cluster.node(node).open_session().unwrap();
        let queue = |session: &Session| Queue::new(session, "/jobs").unwrap();
        let (works, dies, waits) = (session(0), session(2), session(waits));
        queue(&works).put_all(["deleted", "good"]).wait().unwrap();
        let deleted = queue(&works).take().wait().unwrap();
        let good = queue(&dies).take().wait().unwrap();
        // An operator deletes an item whose consumer does not come to an end.
        cluster.node(0).session().delete(deleted.path()).wait().unwrap();
        let waiting = queue(&waits);
        let mut taking = Box::pin(waiting.take());
        assert!(settle(&cluster, &mut taking).is_pending());
        cluster.expire(&dies);
        match settle(&cluster, &mut taking) {
            Poll::Ready(item) => assert_eq!(item.unwrap().data(), b"good"),
            Poll::Pending => panic!("it waits beside {:?}", waits.children("/jobs/claims")),
        }
        quiet(&cluster, &waits);
        assert_eq!(waiting.take().wait().unwrap().data(), b"good");
        assert!(deleted.is_held());
        drop(good);
        quiet(&cluster, &waits);
        assert!(waiting.pop().timeout(SOON).wait().is_ok());
        assert_eq!(waiting.len().wait(), Ok(0));
    }
}

/// Many are in work, and new ones come: the one that has no claim comes first again nevertheless.
#[test]
fn a_dead_consumers_item_returns_while_there_are_others_and_many_in_work() {
    let cluster = Cluster::new(1);
    let session = || cluster.node(0).open_session().unwrap();
    let (works, dies) = (session(), session());
    let queue = |session: &Session| Queue::new(session, "/jobs").unwrap();
    queue(&works).put_all((0..103).map(|number| number.to_string())).wait().unwrap();
    let deleted = queue(&works).take().wait().unwrap();
    let lost = queue(&dies).take().wait().unwrap();
    let working: Vec<Item> = (0..100).map(|_| queue(&works).take().wait().unwrap()).collect();
    cluster.node(0).session().delete(deleted.path()).wait().unwrap();
    cluster.expire(&dies);
    assert_eq!(queue(&works).take().wait().unwrap().data(), b"1");
    assert_eq!(working.len(), 100);
    drop(lost);
}
