use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use loom::future::block_on;
use loom::thread;

use crate::every_schedule;
use crate::sync::slot::Slot;

async fn answer(slot: &Slot<u8>) -> u8 {
    poll_fn(|context| slot.poll(context.waker()).map_or(Poll::Pending, Poll::Ready)).await
}

#[test]
fn a_waiting_task_is_woken_and_gets_the_answer() {
    every_schedule(|| {
        let slot = Arc::new(Slot::default());
        let completes = Arc::clone(&slot);
        let node = thread::spawn(move || completes.complete(7));
        assert_eq!(block_on(answer(&slot)), 7);
        node.join().unwrap();
        assert_eq!(slot.poll(std::task::Waker::noop()), None, "an answer is given once");
    });
}

/// A future that is moved to another task is polled with another waker.
#[test]
fn the_last_waker_is_woken() {
    every_schedule(|| {
        let slot = Arc::new(Slot::default());
        let completes = Arc::clone(&slot);
        let node = thread::spawn(move || completes.complete(7));
        if let Some(answer) = slot.poll(Waker::noop()) {
            assert_eq!(answer, 7);
        } else {
            assert_eq!(block_on(answer(&slot)), 7);
        }
        node.join().unwrap();
    });
}

#[test]
fn the_registered_function_gets_the_answer_once() {
    every_schedule(|| {
        let slot = Arc::new(Slot::default());
        let completes = Arc::clone(&slot);
        let node = thread::spawn(move || completes.complete(7));
        let sum = Arc::new(AtomicUsize::new(0));
        let adds = Arc::clone(&sum);
        // The slot may have been polled before.
        let early = slot.poll(Waker::noop());
        slot.then(move |answer: usize| {
            adds.fetch_add(answer, Ordering::Relaxed);
        });
        node.join().unwrap();
        let late = sum.load(Ordering::Relaxed);
        assert_eq!(early.unwrap_or_default() + late, 7);
    });
}

/// The registered function may use the slot again, so it is called without the lock.
#[test]
fn the_registered_function_may_use_the_slot() {
    every_schedule(|| {
        let slot = Arc::new(Slot::default());
        let (completes, used) = (Arc::clone(&slot), Arc::downgrade(&slot));
        let node = thread::spawn(move || completes.complete(7));
        slot.then(move |answer: u8| {
            assert_eq!(answer, 7);
            if let Some(slot) = used.upgrade() {
                assert_eq!(slot.poll(std::task::Waker::noop()), None);
            }
        });
        node.join().unwrap();
    });
}

#[test]
fn an_answer_without_a_waiter_is_dropped_with_its_slot() {
    every_schedule(|| {
        let (slot, answer) = (Arc::new(Slot::default()), Arc::new(7));
        let (completes, given) = (Arc::clone(&slot), Arc::clone(&answer));
        let node = thread::spawn(move || completes.complete(given));
        drop(slot.poll(Waker::noop()));
        drop(slot);
        node.join().unwrap();
        assert_eq!(Arc::strong_count(&answer), 1, "the answer is dropped with its slot");
    });
}
