//! The tasks that wait for a change that is not stored here, such as an event in a plain channel. Any
//! number may wait, and all are woken.

use std::sync::Arc;
use std::task::{Poll, Waker};

use super::prim::{Mutex, MutexGuard, PoisonError};
use super::task::Tasks;

#[derive(Debug, Default)]
pub(crate) struct Wakers {
    waiting: Mutex<Tasks>,
}

impl Wakers {
    fn lock(&self) -> MutexGuard<'_, Tasks> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all waiting tasks. Call it after the change.
    pub(crate) fn wake(&self) {
        let woken = self.lock().take();
        woken.into_iter().for_each(|(_, task)| task.wake());
    }
}

/// One task's place in the list. Dropping it removes the task's waker.
#[derive(Debug)]
pub(crate) struct Place {
    wakers: Arc<Wakers>,
    /// The number of its waker, once it has waited.
    number: Option<u64>,
}

impl Place {
    pub(crate) fn new(wakers: Arc<Wakers>) -> Place {
        Place { wakers, number: None }
    }

    /// Returns what `look` finds, or registers the waker.
    pub(crate) fn poll<T>(
        &mut self,
        waker: &Waker,
        mut look: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        if let Some(found) = look() {
            return Poll::Ready(found);
        }
        let former = self.wakers.lock().register(&mut self.number, waker);
        // Not under the lock: dropping a waker runs user code.
        drop(former);
        // The change may have come before the waker was registered.
        look().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let removed = self.wakers.lock().remove(number);
            // Not under the lock: dropping a waker runs user code.
            drop(removed);
        }
    }
}
