use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};

use loom::future::block_on;
use loom::thread;

use crate::every_schedule;
use crate::sync::prim::{Receiver, TryRecvError, unbounded};
use crate::sync::wakers::{Place, Wakers};

/// A task that reads a plain channel, as the readers of a session's states do.
struct Reader {
    changes: Receiver<u8>,
    place: Place,
}

impl Reader {
    fn new(changes: Receiver<u8>, wakers: &Arc<Wakers>) -> Reader {
        Reader { changes, place: Place::new(Arc::clone(wakers)) }
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Option<u8>> {
        let changes = &self.changes;
        self.place.poll(waker, || match changes.try_recv() {
            Ok(change) => Some(Some(change)),
            Err(TryRecvError::Disconnected) => Some(None),
            Err(TryRecvError::Empty) => None,
        })
    }

    fn next(&mut self) -> Option<u8> {
        block_on(poll_fn(|context| self.poll(context.waker())))
    }
}

#[test]
fn all_waiting_tasks_are_woken() {
    every_schedule(|| {
        let wakers = Arc::new(Wakers::default());
        let (senders, readers): (Vec<_>, Vec<_>) = [unbounded(), unbounded()].into_iter().unzip();
        let wakes = Arc::clone(&wakers);
        let node = thread::spawn(move || {
            for sender in &senders {
                sender.send(7).unwrap();
            }
            wakes.wake();
        });
        let mut readers = readers.into_iter().map(|changes| Reader::new(changes, &wakers));
        let (mut here, mut there) = (readers.next().unwrap(), readers.next().unwrap());
        let other = thread::spawn(move || assert_eq!(there.next(), Some(7)));
        assert_eq!(here.next(), Some(7));
        other.join().unwrap();
        node.join().unwrap();
    });
}

#[test]
fn a_waiting_task_gets_every_change_and_the_end() {
    every_schedule(|| {
        let wakers = Arc::new(Wakers::default());
        let (sender, changes) = unbounded();
        let wakes = Arc::clone(&wakers);
        let node = thread::spawn(move || {
            sender.send(7).unwrap();
            wakes.wake();
            drop(sender);
            wakes.wake();
        });
        let mut reader = Reader::new(changes, &wakers);
        assert_eq!([reader.next(), reader.next()], [Some(7), None]);
        node.join().unwrap();
    });
}

/// A future that is moved to another task is polled with another waker.
#[test]
fn the_last_waker_of_a_reader_is_woken() {
    every_schedule(|| {
        let wakers = Arc::new(Wakers::default());
        let (sender, changes) = unbounded();
        let wakes = Arc::clone(&wakers);
        let node = thread::spawn(move || {
            sender.send(7).unwrap();
            wakes.wake();
        });
        let mut reader = Reader::new(changes, &wakers);
        match reader.poll(Waker::noop()) {
            Poll::Ready(change) => assert_eq!(change, Some(7)),
            Poll::Pending => assert_eq!(reader.next(), Some(7)),
        }
        node.join().unwrap();
    });
}

/// A dropped place removes its own waker, and no other one.
#[test]
fn a_task_that_gives_up_leaves_the_wakers_of_others() {
    every_schedule(|| {
        let wakers = Arc::new(Wakers::default());
        let (sender, changes) = unbounded();
        let wakes = Arc::clone(&wakers);
        let node = thread::spawn(move || {
            sender.send(7).unwrap();
            wakes.wake();
        });
        let (_never, nothing) = unbounded();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let mut gives_up = Reader::new(nothing, &wakers);
        assert!(gives_up.poll(&Waker::from(Arc::clone(&count))).is_pending());
        let mut reader = Reader::new(changes, &wakers);
        let early = reader.poll(Waker::noop());
        drop(gives_up);
        if early.is_pending() {
            assert_eq!(reader.next(), Some(7));
        }
        node.join().unwrap();
        assert_eq!(Arc::strong_count(&count), 1);
    });
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A waker may register another waker at once, so it is called without the lock.
#[test]
fn a_woken_task_may_wait_again() {
    struct Again(Arc<Wakers>);

    impl Wake for Again {
        fn wake(self: Arc<Self>) {
            let mut place = Place::new(Arc::clone(&self.0));
            assert_eq!(place.poll(Waker::noop(), || None::<u8>), Poll::Pending);
        }
    }

    every_schedule(|| {
        let wakers = Arc::new(Wakers::default());
        let wakes = Arc::clone(&wakers);
        let node = thread::spawn(move || wakes.wake());
        let mut place = Place::new(Arc::clone(&wakers));
        let waker = Waker::from(Arc::new(Again(Arc::clone(&wakers))));
        assert_eq!(place.poll(&waker, || None::<u8>), Poll::Pending);
        node.join().unwrap();
    });
}
