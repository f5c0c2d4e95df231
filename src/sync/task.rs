//! The waker of a waiting task.
//!
//! A waker is user code, and it is woken and dropped on the node's thread. A panic in it is caught
//! and logged there: it ends neither that thread nor the rest of its step.

use std::fmt;
use std::task::Waker;

use super::prim::contained;

/// Woken at most once.
pub(super) struct Task(Option<Waker>);

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
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
