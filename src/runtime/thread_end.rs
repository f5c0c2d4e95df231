//! Waiting for the threads of a handle that is dropped, which were asked to end.
//!
//! A program may end right after such a drop, so somebody has to wait. A blocking drop does it
//! itself. On a thread of an async runtime that would stall other tasks. So if the instance was
//! joined by a task, the wait is left to the end of the thread that drops: a runtime's threads end
//! when it is shut down, and the main thread when the program returns from `main`.
//!
//! That end is the destructor of a thread-local. Windows runs those under its loader's lock, where
//! waiting for a thread may be a deadlock: there, nobody waits. With musl, that of the main thread
//! does not run.

use std::cell::RefCell;
use std::thread::JoinHandle;

use crate::runtime::clock::Clock;
use crate::runtime::own_thread;

thread_local! {
    static LEFT: Left = const { Left(RefCell::new(Vec::new())) };
}

/// The threads that this thread waits for at its end.
struct Left(RefCell<Vec<(Clock, JoinHandle<()>)>>);

impl Drop for Left {
    fn drop(&mut self) {
        for (clock, thread) in self.0.take() {
            match clock.is_forked() {
                // It does not run in this process.
                true => std::mem::forget(thread),
                // A panic in it was reported when it happened.
                false => drop(thread.join()),
            }
        }
    }
}

/// Waits for a thread that was asked to end: now, or `later`, at the end of this thread.
pub(crate) fn wait(clock: &Clock, later: bool, thread: JoinHandle<()>) {
    // The last handle may be dropped in a waker. The node's own thread cannot wait for itself, and
    // another node's must not wait.
    if own_thread::is_this() || (later && cfg!(windows)) {
        return;
    }
    let mut thread = Some(thread);
    if later {
        // While this thread is ending itself, there is nothing to leave it to.
        let _ = LEFT.try_with(|Left(left)| {
            let mut left = left.borrow_mut();
            left.retain(|(_, thread)| !thread.is_finished());
            left.extend(thread.take().map(|thread| (clock.clone(), thread)));
        });
    }
    if let Some(thread) = thread {
        let _ = thread.join();
    }
}
