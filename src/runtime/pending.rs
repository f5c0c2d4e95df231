//! The answer to a request in flight.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::node::query::Answer;
use crate::runtime::clock::Clock;
use crate::runtime::own_thread;
use crate::sync::slot;
use crate::types::error::{Error, Result};

/// The answer to a request that was already sent.
///
/// It is a [`Future`] that needs no particular runtime, and a thread can wait for it. The request
/// continues whether or not anybody waits: dropping a `Pending` cancels nothing. Requests of one
/// session take effect in the order in which they were made, not in which they are polled.
///
/// ```
/// use std::time::Duration;
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let create = session.nonblocking().create("/a", b"", CreateMode::Persistent);
/// let mut set = session.nonblocking().set("/a", b"1");
/// assert_eq!(create.wait()?.path, "/a");
/// let stat = set.wait_timeout(Duration::from_secs(10)).expect("an answer within 10 seconds")?;
/// assert_eq!(stat.version, 1);
/// # Ok::<(), quorate::Error>(())
/// ```
#[must_use = "the request goes on, but whether it succeeds is known only from its answer"]
pub struct Pending<T> {
    slot: Arc<Slot>,
    convert: Option<Convert<T>>,
    clock: Clock,
}

/// Never locked: the mutex makes a `Pending` `Sync`, so that futures that borrow it while they wait
/// are `Send`.
type Convert<T> = Mutex<Box<dyn FnOnce(Result<Answer>) -> Result<T> + Send>>;

fn run<T>(convert: Convert<T>, answer: Result<Answer>) -> Result<T> {
    let convert = convert.into_inner().unwrap_or_else(PoisonError::into_inner);
    convert(answer)
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

// No field is ever pinned.
impl<T> Unpin for Pending<T> {}

impl<T> Pending<T> {
    pub(crate) fn new(
        slot: Arc<Slot>,
        clock: Clock,
        convert: impl FnOnce(Answer) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let convert = |answer: Result<Answer>| answer.and_then(convert);
        Pending { slot, convert: Some(Mutex::new(Box::new(convert))), clock }
    }

    /// A request that has failed already.
    pub(crate) fn failed(error: Error, clock: Clock) -> Pending<T> {
        let slot = Arc::new(Slot::default());
        slot.complete(Err(error));
        // The function is never called: there is nothing to convert.
        Pending::new(slot, clock, |_| Err(Error::Stopped { reason: String::new() }))
    }

    /// Blocks until the answer arrives, without a limit.
    ///
    /// # Errors
    /// Those of the request; [`Error::WouldBlock`] in a waker, if the answer has not arrived yet.
    pub fn wait(self) -> Result<T> {
        let clock = self.clock.clone();
        match block_on(self, &clock, None)? {
            Some(result) => result,
            // Without a deadline there is always an answer.
            None => Err(Error::Stopped { reason: "no answer".to_owned() }),
        }
    }

    /// Blocks until the answer arrives, at most for `timeout`; `None` if it has not by then. The
    /// request continues, and can be waited for again. An answer is given once: waiting again after
    /// that is an error. Does not block in a waker: see [`Error::WouldBlock`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<T>> {
        let clock = self.clock.clone();
        let deadline = clock.now().saturating_add(timeout);
        block_on(self, &clock, Some(deadline)).unwrap_or_else(|error| Some(Err(error)))
    }

    /// The answer, if it has arrived.
    pub fn try_take(&mut self) -> Option<Result<T>> {
        let answer = self.slot.take()?;
        Some(self.converted(answer))
    }

    /// Converts the answer when it is taken.
    pub(crate) fn map(
        mut self,
        change: impl FnOnce(Result<T>) -> Result<T> + Send + 'static,
    ) -> Pending<T>
    where
        T: 'static,
    {
        self.convert = self.convert.take().map(|convert| -> Convert<T> {
            Mutex::new(Box::new(move |answer| change(run(convert, answer))))
        });
        self
    }

    /// Whether it has already failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.slot.holds(|answer| answer.is_err())
    }

    /// Passes the answer to `then`, on the node's thread, where it must not block.
    pub(crate) fn then(self, then: impl FnOnce(Result<T>) + Send + 'static)
    where
        T: 'static,
    {
        let convert = self.convert;
        self.slot.then(move |answer| then(converted(convert, answer)));
    }

    /// Returns the answer, if it has arrived, or passes it to `then`: see [`slot::Slot::take_or_then`].
    pub(crate) fn take_or_then<W: Send + 'static>(
        self,
        with: W,
        then: impl FnOnce(W, Result<T>) + Send + 'static,
    ) -> Option<(W, Result<T>)>
    where
        T: 'static,
    {
        let with = (with, self.convert);
        let answered = self.slot.take_or_then(with, |(with, convert), answer| {
            then(with, converted(convert, answer));
        });
        answered.map(|((with, convert), answer)| (with, converted(convert, answer)))
    }

    fn converted(&mut self, answer: Result<Answer>) -> Result<T> {
        converted(self.convert.take(), answer)
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if self.convert.is_none() {
            return Poll::Ready(Err(taken()));
        }
        match self.slot.poll(context.waker()) {
            Some(answer) => Poll::Ready(self.converted(answer)),
            None => Poll::Pending,
        }
    }
}

fn converted<T>(convert: Option<Convert<T>>, answer: Result<Answer>) -> Result<T> {
    match convert {
        Some(convert) => run(convert, answer),
        None => Err(taken()),
    }
}

fn taken() -> Error {
    Error::Stopped { reason: "the answer was taken already".to_owned() }
}

/// Where the answer is stored.
pub(crate) type Slot = slot::Slot<Result<Answer>>;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Wakes this thread. Every blocking call needs it, so it is made once.
fn thread_waker() -> Waker {
    thread_local!(static WAKER: Waker = Waker::from(Arc::new(Unpark(std::thread::current()))));
    // The thread may be ending.
    let waker = WAKER.try_with(Waker::clone);
    waker.unwrap_or_else(|_| Waker::from(Arc::new(Unpark(std::thread::current()))))
}

/// Polls a future on this thread until it is done, at most until the deadline; `None` if it is not
/// done by then.
///
/// # Errors
/// Instead of waiting: [`Error::WouldBlock`] on a node's own thread, and [`Error::Stopped`] in a
/// fork.
pub(crate) fn block_on<F: Future>(
    future: F,
    clock: &Clock,
    deadline: Option<Duration>,
) -> Result<Option<F::Output>> {
    let waker = thread_waker();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Ok(Some(output));
        }
        if deadline.is_some_and(|deadline| clock.now() >= deadline) {
            return Ok(None);
        }
        own_thread::check("waiting for an answer")?;
        if clock.is_forked() {
            return Err(Error::Stopped { reason: clock.fork_reason() });
        }
        clock.park_until(deadline);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::command::Reply;

    fn pending(slot: &Arc<Slot>, clock: &Clock) -> Pending<u8> {
        Pending::new(Arc::clone(slot), clock.clone(), |_| Ok(7))
    }

    #[test]
    fn an_answer_reaches_a_waiting_thread() {
        let (slot, clock) = (Arc::new(Slot::default()), Clock::real());
        let waiting = pending(&slot, &clock);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| waiting.wait());
            slot.complete(Ok(Answer::Reply(Reply::Done)));
            assert_eq!(waiter.join().unwrap(), Ok(7));
        });
    }

    #[test]
    fn a_timeout_leaves_the_request_to_be_waited_for_again() {
        let (slot, clock) = (Arc::new(Slot::default()), Clock::real());
        let mut waiting = pending(&slot, &clock);
        assert_eq!(waiting.wait_timeout(Duration::ZERO), None);
        assert_eq!(waiting.try_take(), None);
        slot.complete(Err(Error::Busy { limit: 1 }));
        assert_eq!(waiting.wait_timeout(Duration::MAX), Some(Err(Error::Busy { limit: 1 })));
        assert_eq!(waiting.wait(), Err(taken()), "without this error it would wait for ever");
    }

    /// A multi-threaded runtime can spawn futures that wait for answers.
    #[test]
    fn pending_is_send_and_sync() {
        fn may<T: Send + Sync>() {}
        may::<Pending<std::cell::Cell<u8>>>();
    }

    #[test]
    fn then_runs_once_before_and_after_the_answer() {
        for answered_first in [true, false] {
            let (slot, clock) = (Arc::new(Slot::default()), Clock::real());
            let (sender, receiver) = crossbeam_channel::unbounded();
            let then = move |answer: Result<u8>| sender.send(answer).unwrap();
            if answered_first {
                slot.complete(Ok(Answer::Watching));
            }
            pending(&slot, &clock).then(then);
            if !answered_first {
                slot.complete(Ok(Answer::Watching));
            }
            assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [Ok(7)]);
        }
    }
}
