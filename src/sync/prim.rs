//! The primitives of this folder. See `loom/src/sync/prim.rs` for the models.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
pub(super) use std::thread::yield_now;

pub(super) use arc_swap::{ArcSwap, Guard};
pub(super) use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};
pub(super) use once_cell::sync::OnceCell;

/// Runs user code on a thread that must survive its panic.
pub(super) fn contained(code: impl FnOnce()) {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    // Unwind safe: the closure uses nothing of the library but the waker itself.
    let Err(panic) = catch_unwind(AssertUnwindSafe(code)) else { return };
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(
        message = message.unwrap_or("no message"),
        "a waker panicked; the node continues, but the task that waits may never be woken"
    );
    // The panic's value also comes from user code, and may panic when it is dropped.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(panic);
    }
}
