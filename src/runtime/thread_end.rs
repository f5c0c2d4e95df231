//! Waits for the threads of a dropped handle, which were asked to end.
//!
//! A program may end right after such a drop, so the drop has to wait for the threads. On a thread of an async runtime that would stall other tasks. So if the instance was
//! joined by a task, the wait is left to the end of the thread that drops: a runtime's threads end
//! when it is shut down, and the main thread when the program returns from `main`.
//!
//! The wait at a thread's end is in the destructor of a thread-local. Windows runs such destructors under
//! its loader's lock, where waiting for a thread may be a deadlock, so there is no wait on Windows. With
//! musl, the main thread's destructors do not run.

use std::cell::RefCell;
use std::thread::JoinHandle;

use crate::runtime::clock::Clock;
use crate::runtime::own_thread;

thread_local! {
    static LEFT: UnjoinedThreads = const { UnjoinedThreads(RefCell::new(Vec::new())) };
}

/// The threads that this thread waits for at its end.
struct UnjoinedThreads(RefCell<Vec<(Clock, JoinHandle<()>)>>);

impl Drop for UnjoinedThreads {
    fn drop(&mut self) {
        for (clock, thread) in self.0.take() {
            match clock.is_forked() {
                // The thread does not run in this process, which is a fork.
                true => std::mem::forget(thread),
                // A panic in the thread was reported when it happened.
                false => drop(thread.join()),
            }
        }
    }
}

/// Waits for a thread that was asked to end: now, or `later`, at the end of this thread.
pub(crate) fn wait(clock: &Clock, later: bool, thread: JoinHandle<()>) {
    if clock.is_forked() {
        // The thread does not run in this process, which is a fork.
        return std::mem::forget(thread);
    }
    // The last handle may be dropped in a waker. The node's own thread cannot wait for itself, and
    // another node's must not wait.
    if own_thread::is_this() || (later && cfg!(windows)) {
        return;
    }
    let mut thread = Some(thread);
    if later {
        // If this thread is ending already, nobody is left to wait.
        let _ = LEFT.try_with(|UnjoinedThreads(left)| {
            let mut left = left.borrow_mut();
            left.retain(|(_, thread)| !thread.is_finished());
            left.extend(thread.take().map(|thread| (clock.clone(), thread)));
        });
    }
    if let Some(thread) = thread {
        let _ = thread.join();
    }
}
