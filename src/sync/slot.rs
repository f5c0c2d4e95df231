//! The slot of one answer, and the task or function to notify when it arrives.
//!
//! Invariants: an answer is given once. The last one to register is notified, unless it has already
//! got the answer. Notifications run without the lock, since they may use the slot again.

use std::fmt;
use std::task::Waker;

use super::prim::{Mutex, MutexGuard, PoisonError};
use super::task::Task;

pub(crate) struct Slot<T> {
    state: Mutex<SlotState<T>>,
}

struct SlotState<T> {
    answer: Option<T>,
    waiting: SlotWaiter<T>,
}

enum SlotWaiter<T> {
    Nobody,
    Task(Task),
    Then(Box<dyn FnOnce(T) + Send>),
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot { state: Mutex::new(SlotState { answer: None, waiting: SlotWaiter::Nobody }) }
    }
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, SlotState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the answer, or passes it to the registered function.
    pub(crate) fn complete(&self, answer: T) {
        let mut state = self.lock();
        let waiting = std::mem::replace(&mut state.waiting, SlotWaiter::Nobody);
        if let SlotWaiter::Then(then) = waiting {
            drop(state);
            then(answer);
            return;
        }
        state.answer = Some(answer);
        // A woken task may want the lock at once.
        drop(state);
        if let SlotWaiter::Task(waker) = waiting {
            waker.wake();
        }
    }

    /// Takes the answer, or registers the waker.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<T> {
        let mut state = self.lock();
        let answer = state.answer.take();
        if answer.is_none() {
            state.waiting = SlotWaiter::Task(Task::new(waker));
        }
        answer
    }

    /// Passes the answer to `then`, now or later on the thread that completes the slot.
    pub(crate) fn then(&self, then: impl FnOnce(T) + Send + 'static) {
        if let Some((then, answer)) = self.take_or_then(then, |then, answer| then(answer)) {
            then(answer);
        }
    }

    /// Returns the answer, if it has arrived. Otherwise passes it to `then` later, on the thread that completes the
    /// slot. `with` goes with the answer.
    ///
    /// For a function that starts the next operation: where operations fail at once, one call in another would fill
    /// the stack, and a loop does not.
    pub(crate) fn take_or_then<W: Send + 'static>(
        &self,
        with: W,
        then: impl FnOnce(W, T) + Send + 'static,
    ) -> Option<(W, T)> {
        let mut state = self.lock();
        if let Some(answer) = state.answer.take() {
            return Some((with, answer));
        }
        state.waiting = SlotWaiter::Then(Box::new(move |answer| then(with, answer)));
        None
    }

    /// Whether the answer has arrived and has this property.
    pub(crate) fn holds(&self, kind: impl FnOnce(&T) -> bool) -> bool {
        self.lock().answer.as_ref().is_some_and(kind)
    }
}
