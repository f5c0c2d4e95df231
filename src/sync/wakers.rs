//! The tasks that wait for a change of something beside this list, such as what is sent in channels.
//! Any number may wait, and all are woken.

use std::sync::Arc;
use std::task::{Poll, Waker};

use super::prim::{Mutex, MutexGuard, PoisonError};
use super::task::Task;

#[derive(Debug)]
pub(crate) struct Wakers {
    waiting: Mutex<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// Each with the number of the one that waits.
    tasks: Vec<(u64, Task)>,
    last_number: u64,
}

impl Default for Wakers {
    fn default() -> Wakers {
        Wakers { waiting: Mutex::new(Waiting { tasks: Vec::new(), last_number: 0 }) }
    }
}

impl Wakers {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a waker, in place of the former one with this number.
    fn register(&self, number: &mut Option<u64>, waker: &Waker) {
        let mut waiting = self.lock();
        let number = *number.get_or_insert_with(|| {
            waiting.last_number += 1;
            waiting.last_number
        });
        let task = Task::new(waker);
        let former = match waiting.tasks.iter_mut().find(|(of, _)| *of == number) {
            Some((_, former)) => Some(std::mem::replace(former, task)),
            None => {
                waiting.tasks.push((number, task));
                None
            }
        };
        drop(waiting);
        // Not under the lock: dropping a waker runs user code.
        drop(former);
    }

    /// Removes the waker with this number, if it has not been woken.
    fn remove(&self, number: u64) {
        let mut waiting = self.lock();
        let at = waiting.tasks.iter().position(|(of, _)| *of == number);
        let removed = at.map(|at| waiting.tasks.swap_remove(at));
        drop(waiting);
        // As above.
        drop(removed);
    }

    /// Wakes all. Call it after the change.
    pub(crate) fn wake(&self) {
        let woken = std::mem::take(&mut self.lock().tasks);
        woken.into_iter().for_each(|(_, task)| task.wake());
    }
}

/// One task's place among those that wait. Dropping it gives the place up.
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
        self.wakers.register(&mut self.number, waker);
        // It may have changed in between.
        look().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.wakers.remove(number);
        }
    }
}
