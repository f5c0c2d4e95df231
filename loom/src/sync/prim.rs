//! Models of the primitives in the library's `sync::prim`.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use loom::sync::atomic::AtomicUsize;

pub(crate) use loom::sync::atomic::{AtomicBool, Ordering};
pub(crate) use loom::sync::{Mutex, MutexGuard};
pub(crate) use loom::thread::yield_now;
/// Not modelled: only one thread uses it, to store its end of a channel.
#[allow(clippy::disallowed_types, reason = "once_cell is no dependency of the models")]
pub(crate) use std::sync::OnceLock as OnceCell;
pub(crate) use std::sync::PoisonError;

/// Not modelled: loom reports faults by panics.
pub(crate) fn contained(code: impl FnOnce()) {
    code();
}

/// Shows the last value stored, or an earlier one where the memory model allows it.
pub(crate) struct ArcSwap<T> {
    /// All values that were ever stored. The lock is not loom's, so it orders nothing in the model.
    values: std::sync::Mutex<Vec<Arc<T>>>,
    now: AtomicUsize,
}

pub(crate) struct Guard<T>(T);

impl<T> Deref for Guard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> ArcSwap<T> {
    pub(crate) fn from_pointee(value: T) -> ArcSwap<T> {
        let values = std::sync::Mutex::new(vec![Arc::new(value)]);
        ArcSwap { values, now: AtomicUsize::new(0) }
    }

    pub(crate) fn load(&self) -> Guard<Arc<T>> {
        let place = self.now.load(Ordering::Acquire);
        Guard(Arc::clone(&self.values.lock().unwrap()[place]))
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        let place = {
            let mut values = self.values.lock().unwrap();
            values.push(value);
            values.len() - 1
        };
        self.now.store(place, Ordering::Release);
    }
}

#[derive(Debug)]
struct Queue<E> {
    waiting: VecDeque<E>,
    has_sender: bool,
    receivers: usize,
}

#[derive(Debug)]
pub(crate) struct Sender<E>(Arc<Mutex<Queue<E>>>);

#[derive(Debug)]
pub(crate) struct Receiver<E>(Arc<Mutex<Queue<E>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TryRecvError {
    Empty,
    Disconnected,
}

pub(crate) fn unbounded<E>() -> (Sender<E>, Receiver<E>) {
    let queue = Queue { waiting: VecDeque::new(), has_sender: true, receivers: 1 };
    let queue = Arc::new(Mutex::new(queue));
    (Sender(Arc::clone(&queue)), Receiver(queue))
}

impl<E> Sender<E> {
    pub(crate) fn send(&self, event: E) -> Result<(), E> {
        let mut queue = self.0.lock().unwrap();
        if queue.receivers == 0 {
            return Err(event);
        }
        queue.waiting.push_back(event);
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<E> Drop for Sender<E> {
    fn drop(&mut self) {
        self.0.lock().unwrap().has_sender = false;
    }
}

impl<E> Receiver<E> {
    pub(crate) fn try_recv(&self) -> Result<E, TryRecvError> {
        let mut queue = self.0.lock().unwrap();
        match queue.waiting.pop_front() {
            Some(event) => Ok(event),
            None if queue.has_sender => Err(TryRecvError::Empty),
            None => Err(TryRecvError::Disconnected),
        }
    }
}

impl<E> Drop for Receiver<E> {
    fn drop(&mut self) {
        let mut queue = self.0.lock().unwrap();
        queue.receivers -= 1;
        if queue.receivers == 0 {
            queue.waiting.clear();
        }
    }
}
