//! Steps of recipes in one write with other operations: all of it happens, or nothing.

use std::time::Duration;

use quorate::multi::OpResult;
use quorate::recipes::{Counter, Group, Instance, NewItem, Partitions, Queue, Registry};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error};

/// The index and the error of a multi that failed.
fn failed<T: std::fmt::Debug>(result: Result<T, Error>) -> (usize, Error) {
    match result {
        Err(Error::Multi { index, error }) => (index, *error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_item_is_finished_together_with_its_result_or_not_at_all() {
    let cluster = Cluster::new(3);
    let (session, other) = (cluster.node(0).session(), cluster.node(1).session());
    let queue = Queue::new(&session, "/jobs").unwrap();
    queue.put_all(["one", "two"]).wait().unwrap();
    let result = |session: &quorate::Session, item: &quorate::recipes::Item| {
        let write = session.multi().create("/result", item.data(), CreateMode::Persistent);
        write.with(&item.done_part()).commit()
    };

    let item = queue.take().wait().unwrap();
    result(&session, &item).wait().unwrap();
    drop(item);
    assert_eq!(&session.get("/result").wait().unwrap().0[..], b"one");
    assert_eq!(queue.len().wait(), Ok(1));

    // Another operation fails: the item is still held.
    let item = queue.take().wait().unwrap();
    let (index, error) = failed(result(&session, &item).wait());
    assert_eq!((index, error), (0, Error::NodeExists { path: "/result".into() }));
    assert!(item.is_held());
    session.delete("/result").wait().unwrap();

    // The consumer's session ends: another one may have the item, so its result is not stored.
    let part = item.done_part();
    cluster.expire(&session);
    let write = other.multi().create("/result", b"late", CreateMode::Persistent).with(&part);
    assert_eq!(failed(write.commit().wait()).0, 1);
    assert_eq!(other.exists("/result").wait(), Ok(None));
    assert_eq!(Queue::new(&other, "/jobs").unwrap().take().wait().unwrap().data(), b"two");
}

#[test]
fn an_item_is_put_with_a_change_and_under_a_fence() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let queue = Queue::new(&session, "/deep/jobs").unwrap().max(2);
    // Without its znodes, nothing is written.
    let (index, error) = failed(session.multi().with(&queue.put_part("one")).commit().wait());
    assert_eq!((index, error), (0, Error::NoNode { path: "/deep/jobs".into() }));
    queue.prepare().wait().unwrap();
    queue.prepare().wait().unwrap();
    session.create("/state", b"", CreateMode::Persistent).wait().unwrap();

    let guard = session.lock("/lock").unwrap().acquire().wait().unwrap();
    let fence = guard.fence();
    let write = |item: &str| {
        let multi = session.multi().fence(&fence).set("/state", item);
        multi.with(&queue.put_part(item)).commit()
    };
    write("one").wait().unwrap();
    guard.release().wait().unwrap();
    assert_eq!(failed(write("two").wait()).0, 0);
    assert_eq!(queue.len().wait(), Ok(1));
    assert_eq!(&session.get("/state").wait().unwrap().0[..], b"one");

    // The order of the items is that of the operations, and a maximum counts for all of them.
    let both = session.multi().with(&queue.put_part("two")).with(&queue.put_part("three"));
    let (index, error) = failed(both.commit().wait());
    assert!(index == 1 && matches!(error, Error::QuotaExceeded { .. }), "{index}: {error:?}");
    assert_eq!(queue.pop().wait(), Ok(b"one".to_vec()));
    let both = session.multi().with(&queue.put_part("two"));
    both.with(&queue.put_part(NewItem::new("first").priority(-1))).commit().wait().unwrap();
    assert_eq!(queue.pop().wait(), Ok(b"first".to_vec()));
    assert_eq!(queue.pop().wait(), Ok(b"two".to_vec()));

    // A queue that was prepared stays when it is unused.
    cluster.advance(Duration::from_secs(600));
    session.multi().with(&queue.put_part("later")).commit().wait().unwrap();
}

#[test]
fn an_item_moves_from_one_queue_to_another() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let queues = ["/from", "/to"].map(|path| Queue::new(&session, path).unwrap());
    for queue in &queues {
        queue.prepare().wait().unwrap();
    }
    let [from, to] = queues;
    let move_one = || {
        let moved = session.multi().with(&from.pop_part()).with(&to.put_part("moved"));
        moved.commit()
    };
    let (index, error) = failed(move_one().wait());
    assert_eq!(index, 0);
    assert!(matches!(error, Error::NoNode { .. }), "{error:?}");
    assert_eq!(to.len().wait(), Ok(0));
    from.put("a").wait().unwrap();
    let results = move_one().wait().unwrap();
    assert!(matches!(&results[0], OpResult::Taken { data, claim: None, .. } if data == b"a"));
    assert_eq!((from.len().wait(), to.len().wait()), (Ok(0), Ok(1)));
}

#[test]
fn an_id_is_put_once_in_its_time() {
    let cluster = Cluster::new(3);
    let (session, other) = (cluster.node(0).session(), cluster.node(1).session());
    let queue = Queue::new(&session, "/jobs").unwrap();
    let there = Queue::new(&other, "/jobs").unwrap();
    let order = |id: &str| NewItem::new("order").unique(id, Duration::from_secs(60));
    let refused = |id: &str| Err(Error::NodeExists { path: format!("/jobs/ids/{id}") });
    queue.put(order("a/7")).wait().unwrap();
    assert_eq!(there.put(order("a/7")).wait(), refused("ia%2f7"));
    assert_eq!(queue.put_all([order("b"), order("a/7")]).wait(), refused("ia%2f7"), "all or none");
    assert_eq!(queue.pop().wait(), Ok(b"order".to_vec()));
    assert_eq!(queue.put(order("a/7")).wait(), refused("ia%2f7"), "also when it was taken");
    // The same id without a time refuses nobody.
    queue.put(NewItem::new("order").id("a/7")).wait().unwrap();
    // In another write it is refused as well.
    let (index, error) =
        failed(session.multi().with(&queue.put_part(order("a/7"))).commit().wait());
    assert_eq!((index, Err(error)), (0, refused("ia%2f7")));
    queue.put(order("b")).wait().unwrap();
    assert_eq!(queue.len().wait(), Ok(2));

    cluster.advance(Duration::from_secs(180));
    session.sync().wait().unwrap();
    queue.put(order("a/7")).wait().unwrap();
    assert_eq!(queue.len().wait(), Ok(3));
}

#[test]
fn what_is_wrong_with_a_part_is_told_when_it_is_written() {
    let session = Cluster::new(1).node(0).session();
    let queue = Queue::new(&session, "/jobs").unwrap();
    queue.prepare().wait().unwrap();
    let late = queue.put_part(NewItem::new("x").delay(CreateMode::TTL_MAX * 2));
    let write = session.multi().create("/a", b"", CreateMode::Persistent).with(&late);
    let (index, error) = failed(write.commit().wait());
    assert!(matches!(error, Error::InvalidSetting { setting: "delay", .. }), "{error:?}");
    assert_eq!(index, 1);
    // A transaction with nothing else fails, too.
    let alone = session.transact(|txn| {
        txn.with(&late);
        Ok(())
    });
    let (index, _) = failed(alone.wait());
    assert_eq!(index, 0);
    let large = queue.put_part(vec![0; 2 << 20]);
    assert_eq!(failed(session.multi().with(&large).commit().wait()).0, 0);
    assert_eq!((session.exists("/a").wait(), queue.len().wait()), (Ok(None), Ok(0)));
}

#[test]
fn a_sum_is_part_of_a_transaction() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let counter = Counter::new(&session, "/orders").unwrap();
    assert_eq!(failed(session.multi().with(&counter.add_part(1)).commit().wait()).0, 0);
    counter.add(0).wait().unwrap();
    let there = Counter::new(&cluster.node(1).session(), "/orders").unwrap();
    let mut runs = 0;
    let done = session.transact(|txn| {
        runs += 1;
        // Others that add meanwhile are no conflict.
        there.add(10).wait().unwrap();
        txn.create("/order-", b"", CreateMode::PersistentSequential);
        txn.with(&counter.add_part(1));
        Ok(())
    });
    let done = done.wait().unwrap();
    assert_eq!(runs, 1);
    assert!(matches!(done.results[1], OpResult::Added { after: 11, .. }), "{done:?}");
    counter.set(i64::MAX).wait().unwrap();
    let order = session.multi().create("/order", b"", CreateMode::Persistent);
    let (index, error) = failed(order.with(&counter.add_part(1)).commit().wait());
    assert!(index == 1 && matches!(error, Error::InvalidData { .. }), "{error:?}");
    assert_eq!(session.exists("/order").wait(), Ok(None));
}

#[test]
fn members_and_instances_are_updated_while_they_last() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let group = Group::new(&session, "/group").unwrap();
    let membership = group.join("me", b"1").wait().unwrap();
    let registry = Registry::new(&session, "/services").unwrap();
    let instance = |port| Instance::new("a", "10.0.0.7", port);
    let registration = registry.register("billing", &instance(80)).wait().unwrap();
    let both = |session: &quorate::Session, data: &str, port| {
        let write = session.multi().with(&membership.update_part(data));
        write.with(&registration.update_part(&instance(port))).commit()
    };
    both(&session, "2", 81).wait().unwrap();
    assert_eq!(&group.members().wait().unwrap().get("me").unwrap().data[..], b"2");
    let wrong = registration.update_part(&Instance::new("b", "10.0.0.7", 80));
    let (_, error) = failed(session.multi().with(&wrong).commit().wait());
    assert!(matches!(error, Error::InvalidPath { .. }), "{error:?}");
    session.delete(registration.path()).wait().unwrap();
    assert_eq!(failed(both(&session, "3", 82).wait()).0, 2);
    assert_eq!(&group.members().wait().unwrap().get("me").unwrap().data[..], b"2");
}

#[test]
fn a_part_keeps_the_root_of_the_session_that_made_it() {
    let session = Cluster::new(1).node(0).session();
    session.create("/app", b"", CreateMode::Persistent).wait().unwrap();
    let app = session.chroot("/app").unwrap();
    let queue = Queue::new(&app, "/jobs").unwrap();
    queue.prepare().wait().unwrap();
    let write = session.multi().create("/outside", b"", CreateMode::Persistent);
    write.with(&queue.put_part("x")).commit().wait().unwrap();
    assert!(session.exists("/app/jobs/items").wait().unwrap().is_some());
    assert_eq!(queue.pop().wait(), Ok(b"x".to_vec()));
}

#[test]
fn a_position_is_stored_with_its_result_or_not_at_all() {
    let cluster = Cluster::new(3);
    let (session, other) = (cluster.node(0).session(), cluster.node(1).session());
    let of = |session| Partitions::new(session, "/p", 1).unwrap();
    let mut share = of(&session).join("me").wait().unwrap();
    let sum = Counter::new(&other, "/sum").unwrap();
    sum.add(0).wait().unwrap();
    let partition = share.take().wait().unwrap();
    session
        .multi()
        .with(&sum.add_part(1))
        .with(&partition.commit_part("1"))
        .commit()
        .wait()
        .unwrap();
    // Another operation fails: the position stays, and so does the partition.
    let write = session.multi().with(&partition.hand_over_part("2")).delete("/missing");
    assert_eq!(failed(write.commit().wait()).0, 3);
    assert!(partition.is_held());
    session
        .multi()
        .with(&sum.add_part(1))
        .with(&partition.hand_over_part("2"))
        .commit()
        .wait()
        .unwrap();
    assert!(!partition.is_held());
    // Dropping it after that writes nothing.
    let before = session.sync().wait().unwrap();
    drop(partition);
    let partition = share.take().wait().unwrap();
    assert_eq!((partition.position(), partition.fencing_token()), (Some(&b"2"[..]), before + 1));
    // Its node is gone between two writes. The next owner goes on where the last one with a result has ended.
    session
        .multi()
        .with(&sum.add_part(1))
        .with(&partition.commit_part("3"))
        .commit()
        .wait()
        .unwrap();
    let late = [partition.commit_part("4"), partition.hand_over_part("4")];
    let mut there = of(&other).join("other").wait().unwrap();
    cluster.stop(0);
    cluster.advance(Duration::from_secs(60));
    let next = there.take().wait().unwrap();
    assert_eq!(next.position(), Some(&b"3"[..]));
    for part in &late {
        assert_eq!(failed(other.multi().with(&sum.add_part(1)).with(part).commit().wait()).0, 1);
    }
    assert_eq!(sum.get().wait(), Ok(3));
    other.multi().with(&sum.add_part(1)).with(&next.commit_part("4")).commit().wait().unwrap();
    assert_eq!(sum.get().wait(), Ok(4));
}
