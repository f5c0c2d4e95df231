//! The wakers of waiting tasks.
//!
//! A waker is user code, and it is woken and dropped on the node's thread. A panic in it is caught
//! and logged there: it ends neither that thread nor the rest of its step.

use std::task::Waker;

use super::prim::contained;

/// A waker that is called at most once.
#[derive(Debug)]
pub(super) struct Task(Option<Waker>);

/// The tasks that wait for one thing.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    /// Each with its number, in ascending order.
    tasks: Vec<(u64, Task)>,
    last_number: u64,
}

impl Task {
    pub(super) fn new(waker: &Waker) -> Task {
        Task(Some(waker.clone()))
    }

    /// Call it without a lock: the waker may want the same one.
    pub(super) fn wake(mut self) {
        if let Some(waker) = self.0.take() {
            contained(|| waker.wake());
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            contained(|| drop(waker));
        }
    }
}

/// Drop removed tasks without a lock: dropping a waker runs user code.
impl Tasks {
    /// Registers a waker, in place of the former one with this number, which is returned.
    pub(super) fn register(&mut self, number: &mut Option<u64>, waker: &Waker) -> Option<Task> {
        let number = *number.get_or_insert_with(|| {
            self.last_number += 1;
            self.last_number
        });
        let task = Task::new(waker);
        match self.at(number) {
            Ok(at) => Some(std::mem::replace(&mut self.tasks[at].1, task)),
            Err(at) => {
                self.tasks.insert(at, (number, task));
                None
            }
        }
    }

    /// Removes the task with this number, if it has not been woken.
    pub(super) fn remove(&mut self, number: u64) -> Option<Task> {
        let at = self.at(number).ok()?;
        Some(self.tasks.remove(at).1)
    }

    /// Removes all tasks, to wake them.
    pub(super) fn take(&mut self) -> Vec<(u64, Task)> {
        std::mem::take(&mut self.tasks)
    }

    /// The index of the task with this number, or where to insert it.
    fn at(&self, number: u64) -> Result<usize, usize> {
        self.tasks.binary_search_by_key(&number, |(number, _)| *number)
    }
}
