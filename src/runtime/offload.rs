//! Runs a blocking call on a thread of its own, for a task that waits for it. For rare calls only: each
//! starts a thread.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use crate::sync::slot::Slot;
use crate::types::error::{Error, Result};

/// Starts the thread when the future is first polled. The call continues if the future is dropped.
///
/// # Errors
/// [`Error::System`] if no thread can be started, and [`Error::Stopped`] if the call panicked.
pub(crate) async fn offload<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let slot = Arc::new(Slot::default());
    let answer = Arc::clone(&slot);
    let run = move || {
        // The call is our own code, and its shared state is behind locks, so a panic leaves nothing
        // inconsistent. The handles of the call are dropped before the task is woken.
        let result = catch_unwind(AssertUnwindSafe(call));
        answer.complete(result.ok());
    };
    let thread = std::thread::Builder::new().name("quorate-call".to_owned());
    thread
        .spawn(run)
        .map_err(|error| Error::System { what: "a thread", reason: error.to_string() })?;
    let result = poll_fn(|context| slot.poll(context.waker()).map_or(Poll::Pending, Poll::Ready));
    result.await.ok_or_else(|| Error::Stopped { reason: "the call panicked".to_owned() })
}
