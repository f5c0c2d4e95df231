//! The place of one answer, and who is told when it is there.
//!
//! Invariants: an answer is given once; whoever asked last to be told is told, unless he has had
//! the answer; what is told runs without the lock, since it may want the slot again.

use std::fmt;
use std::task::Waker;

use super::prim::{Mutex, MutexGuard, PoisonError};
use super::task::Task;

pub(crate) struct Slot<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    answer: Option<T>,
    waiting: Waiting<T>,
}

enum Waiting<T> {
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
        Slot { state: Mutex::new(State { answer: None, waiting: Waiting::Nobody }) }
    }
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the answer in its place, or hands it to who is to have it.
    pub(crate) fn complete(&self, answer: T) {
        let mut state = self.lock();
        let waiting = std::mem::replace(&mut state.waiting, Waiting::Nobody);
        if let Waiting::Then(then) = waiting {
            drop(state);
            then(answer);
            return;
        }
        state.answer = Some(answer);
        // Whoever is woken may want the lock at once.
        drop(state);
        if let Waiting::Task(waker) = waiting {
            waker.wake();
        }
    }

    /// Takes the answer, if it is there.
    pub(crate) fn take(&self) -> Option<T> {
        self.lock().answer.take()
    }

    /// Takes the answer, or has the waker told when it is there.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<T> {
        let mut state = self.lock();
        let answer = state.answer.take();
        if answer.is_none() {
            state.waiting = Waiting::Task(Task::new(waker));
        }
        answer
    }

    /// Hands the answer to `then`, now or when it comes, on the thread that brings it.
    pub(crate) fn then(&self, then: impl FnOnce(T) + Send + 'static) {
        let mut state = self.lock();
        match state.answer.take() {
            Some(answer) => {
                drop(state);
                then(answer);
            }
            None => state.waiting = Waiting::Then(Box::new(then)),
        }
    }

    /// Whether an answer of this kind is there.
    pub(crate) fn holds(&self, kind: impl FnOnce(&T) -> bool) -> bool {
        self.lock().answer.as_ref().is_some_and(kind)
    }
}
