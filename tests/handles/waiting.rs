//! The rule of waiting: what a `Pending` promises to a thread and to a task.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quorate::recipes::{Config, Queue};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Pending};

use crate::common::tasks::{block_on, poll};

const MOMENT: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_place_is_given_up_at_the_end_of_a_limit_by_a_thread_and_by_a_task() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let lock = session.lock("/lock").unwrap();
    let guard = lock.acquire().wait().unwrap();
    let is_given_up = |late: Result<(), Error>| {
        let error = late.unwrap_err();
        assert!(
            matches!(&error, Error::NotInTime { operation, .. } if operation == "acquire /lock")
        );
        assert!(!error.is_outcome_unknown() && error.is_retryable(), "{error}");
        session.sync().wait().unwrap();
        assert_eq!(lock.contenders().wait().unwrap().len(), 1, "only the holder is left");
    };
    is_given_up(lock.acquire().timeout(MOMENT).wait().map(drop));
    let mut task = lock.acquire().timeout(SECOND);
    assert!(poll(Pin::new(&mut task), &Arc::default()).is_pending());
    cluster.advance(2 * SECOND);
    is_given_up(block_on(task).map(drop));
    guard.release().wait().unwrap();
}

#[test]
fn a_request_goes_on_after_its_limit_and_its_outcome_is_unknown() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    cluster.isolate(0);
    let late = session.set("/a", b"1").timeout(MOMENT).wait().unwrap_err();
    assert!(matches!(&late, Error::Timeout { operation, .. } if operation == "set /a"), "{late}");
    assert!(late.is_outcome_unknown());
    let mut task = session.set("/a", b"2").timeout(SECOND / 2);
    assert!(poll(Pin::new(&mut task), &Arc::default()).is_pending());
    cluster.advance(SECOND);
    let late = block_on(task);
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    cluster.heal();
    session.sync().wait().unwrap();
    assert_eq!(session.get("/a").wait().unwrap().1.version, 2, "both were done");
}

#[test]
fn steps_begin_when_they_are_first_waited_for_and_requests_at_the_call() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let lock = session.lock("/lock").unwrap();
    drop(lock.acquire());
    assert!(lock.contenders().wait().unwrap().is_empty());
    let mut acquiring = lock.acquire();
    let guard = loop {
        if let Some(guard) = acquiring.try_take() {
            break guard.unwrap();
        }
        std::thread::yield_now();
    };
    assert!(guard.is_held());
    assert!(acquiring.try_take().unwrap().is_err(), "an answer is given once");
    drop(session.create("/a", b"", CreateMode::Persistent));
    session.sync().wait().unwrap();
    assert!(session.exists("/a").wait().unwrap().is_some(), "a drop cancels nothing");
}

/// A member's reads do not wait for what is under way, so they go on without a quorum. Those in turn do.
#[test]
fn reads_in_turn_wait_for_the_calls_before_them_and_others_do_not() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    cluster.isolate(0);
    let set = session.set("/a", b"2");
    let mut in_turn = session.in_turn().get("/a");
    assert_eq!(&session.get("/a").wait().unwrap().0[..], b"1");
    assert!(in_turn.try_take().is_none());
    let _later = session.set("/a", b"3");
    cluster.heal();
    set.wait().unwrap();
    assert_eq!(&in_turn.wait().unwrap().0[..], b"2", "neither less nor more");
}

/// Any call may be made in a task of a runtime with several threads.
#[test]
fn all_kinds_can_be_sent_to_another_thread() {
    fn is_send<'a, T: Send>(call: Pending<'a, T>) -> impl Send + use<'a, T> {
        call
    }
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    drop(is_send(session.get("/")));
    drop(is_send(session.sync()));
    drop(is_send(session.transact(|txn| txn.children("/"))));
    drop(is_send(Queue::new(&session, "/queue").unwrap().take()));
    drop(is_send(Config::<u8>::new(&session, "/config").unwrap().update(|_| 1)));
    drop(is_send(cluster.node(0).reports()));
}
