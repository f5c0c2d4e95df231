//! A call that may wait, which a thread waits for and a task awaits.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::node::query::Answer;
use crate::runtime::clock::Clock;
use crate::runtime::offload::offload;
use crate::runtime::own_thread;
use crate::runtime::shared::NodeShared;
use crate::sync::slot;
use crate::types::error::{Error, Result};

/// A call that may wait. A thread calls [`wait`](Pending::wait); a task writes `.await`.
///
/// Every call that may wait returns one, and there is no second form of it:
///
/// ```
/// use std::time::Duration;
/// use quorate::CreateMode;
///
/// # async fn example() -> quorate::Result<()> {
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.create("/a", b"1", CreateMode::Persistent).wait()?; // in a thread
/// session.set("/a", b"2").await?; // in a task
/// let guard = session.lock("/lock")?.acquire().timeout(Duration::from_secs(5)).await?; // in both
/// # Ok(())
/// # }
/// ```
///
/// **When it begins.** A session's requests (`create`, `set`, `get`, `watch`, `sync`, `commit` and so on) are made at the
/// call, and go on whether or not anybody waits: dropping the `Pending` cancels nothing. Many may be under way, and
/// take effect in the order in which they were made. (A member's reads do not wait for their turn, but for those of
/// [`Session::in_turn`](crate::Session::in_turn).) What consists of several steps (the recipes,
/// `transact`, `create_with_parents`) begins when it is first waited for. If it is dropped before it is done, it leaves
/// nothing behind: a place in a queue is given up. The [guide](crate::guide::from_async) tells both by kind.
///
/// **How long it waits.** `wait` waits at most for the [request timeout](crate::Builder::request_timeout), unless the call
/// waits for other participants (as for a lock): that has no limit. An awaited call has no limit, since a task can be
/// cancelled. [`timeout`](Pending::timeout) sets one for both.
///
/// It needs no particular runtime.
///
/// ```
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// // Both are under way at once.
/// let create = session.create("/a", b"", CreateMode::Persistent);
/// let set = session.set("/a", b"1");
/// assert_eq!((create.wait()?.path, set.wait()?.version), ("/a".to_owned(), 1));
/// # Ok::<(), quorate::Error>(())
/// ```
#[must_use = "whether it succeeds is known only from its answer; what has several steps does not begin before"]
pub struct Pending<'a, T> {
    state: State<'a, T>,
    /// `None` if the answer was there at once.
    asked: Option<Asked>,
    limit: Option<Duration>,
    /// Ends the limit of an awaited call.
    timer: Option<Box<Pending<'static, ()>>>,
}

enum State<'a, T> {
    Ready(Result<T>),
    /// A request, whose answer comes here.
    Sent(Arc<Slot>, Convert<T>),
    /// Several steps.
    Steps(Steps<'a, T>),
    /// Work that blocks: a thread that waits does it itself, and for a task a thread of its own.
    Work(Work<T>, fn(Work<T>) -> Steps<'a, T>),
    /// The answer was given.
    Taken,
}

pub(crate) type Work<T> = Box<dyn FnOnce() -> Result<T> + Send>;

type Convert<T> = Box<dyn FnOnce(Result<Answer>) -> Result<T> + Send>;
pub(crate) type Steps<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Who was asked, and for what.
struct Asked {
    shared: Arc<NodeShared>,
    operation: &'static str,
    path: Option<Arc<str>>,
    /// Whether it waits for other participants.
    is_unlimited: bool,
    /// Whether a write is under way, whose outcome is unknown if nobody waits for it.
    in_flight: Option<Arc<AtomicBool>>,
}

impl Asked {
    fn named(&self) -> String {
        let path = self.path.as_deref().unwrap_or_default();
        format!("{} {path}", self.operation).trim_end().to_owned()
    }

    fn timed_out(&self, waited: Duration) -> Error {
        let (operation, reason) = (self.named(), self.shared.readiness.waiting_for());
        let in_flight = |flag: &Arc<AtomicBool>| flag.load(Ordering::Relaxed);
        match self.is_unlimited && !self.in_flight.as_ref().is_some_and(in_flight) {
            true => Error::NotInTime { operation, waited },
            false => Error::Timeout { operation, waited, reason },
        }
    }
}

impl<T> fmt::Debug for Pending<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

// No field is ever pinned.
impl<T> Unpin for Pending<'_, T> {}

impl<'a, T> State<'a, T> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T>> {
        match self {
            State::Sent(slot, _) => {
                let Some(answer) = slot.poll(context.waker()) else { return Poll::Pending };
                Poll::Ready(self.taken_with(answer))
            }
            State::Steps(steps) => {
                let result = steps.as_mut().poll(context);
                if result.is_ready() {
                    *self = State::Taken;
                }
                result
            }
            State::Work(..) => {
                self.offload();
                self.poll(context)
            }
            State::Ready(_) | State::Taken => Poll::Ready(self.taken()),
        }
    }

    /// Has a thread of its own do the work.
    fn offload(&mut self) {
        *self = match std::mem::replace(self, State::Taken) {
            State::Work(work, offload) => State::Steps(offload(work)),
            state => state,
        };
    }

    fn taken_with(&mut self, answer: Result<Answer>) -> Result<T> {
        match std::mem::replace(self, State::Taken) {
            State::Sent(_, convert) => convert(answer),
            _ => Err(taken()),
        }
    }

    fn taken(&mut self) -> Result<T> {
        match std::mem::replace(self, State::Taken) {
            State::Ready(result) => result,
            _ => Err(taken()),
        }
    }
}

impl<T> Pending<'static, T> {
    /// A request whose answer comes into this slot.
    pub(crate) fn sent(
        slot: Arc<Slot>,
        shared: &Arc<NodeShared>,
        (operation, path): (&'static str, Option<&Arc<str>>),
        convert: impl FnOnce(Answer) -> Result<T> + Send + 'static,
    ) -> Pending<'static, T> {
        let convert = |answer: Result<Answer>| answer.and_then(convert);
        let shared = Arc::clone(shared);
        let asked =
            Asked { shared, operation, path: path.cloned(), is_unlimited: false, in_flight: None };
        Pending::new(State::Sent(slot, Box::new(convert)), Some(asked))
    }

    /// Work that blocks, with files or threads. `for_task` has a thread of its own do it.
    pub(crate) fn work(
        shared: Option<&Arc<NodeShared>>,
        operation: &'static str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
        for_task: fn(Work<T>) -> Steps<'static, T>,
    ) -> Pending<'static, T> {
        let asked = shared.map(|shared| {
            let (shared, goes_on) = (Arc::clone(shared), Some(Arc::new(AtomicBool::new(true))));
            Asked { shared, operation, path: None, is_unlimited: true, in_flight: goes_on }
        });
        Pending::new(State::Work(Box::new(work), for_task), asked)
    }

    /// Converts the answer when it is taken.
    pub(crate) fn mapped(
        mut self,
        change: impl FnOnce(Result<T>) -> Result<T> + Send + 'static,
    ) -> Self
    where
        T: 'static,
    {
        self.state = match self.state {
            State::Ready(result) => State::Ready(change(result)),
            State::Sent(slot, convert) => {
                State::Sent(slot, Box::new(move |answer| change(convert(answer))))
            }
            // Only requests are mapped.
            state => state,
        };
        self
    }

    /// Changes the path that errors name.
    pub(crate) fn renamed(mut self, change: impl FnOnce(&str) -> Arc<str>) -> Self {
        if let Some(path) = self.asked.as_mut().and_then(|asked| asked.path.as_mut()) {
            *path = change(path);
        }
        self
    }

    /// Passes the answer of a request to `then`, on the node's thread, where it must not block.
    pub(crate) fn then(self, then: impl FnOnce(Result<T>) + Send + 'static)
    where
        T: 'static,
    {
        if let Some((then, answer)) = self.take_or_then(then, |then, answer| then(answer)) {
            then(answer);
        }
    }

    /// Returns the answer of a request, if it has arrived, or passes it to `then`: see
    /// [`slot::Slot::take_or_then`].
    pub(crate) fn take_or_then<W: Send + 'static>(
        self,
        with: W,
        then: impl FnOnce(W, Result<T>) + Send + 'static,
    ) -> Option<(W, Result<T>)>
    where
        T: 'static,
    {
        match self.state {
            State::Sent(slot, convert) => {
                let with = (with, convert);
                let then = |(with, convert): (W, Convert<T>), answer| then(with, convert(answer));
                let answered = slot.take_or_then(with, then);
                answered.map(|((with, convert), answer)| (with, convert(answer)))
            }
            State::Ready(result) => Some((with, result)),
            // Only requests have an answer that nobody waits for.
            State::Steps(_) | State::Work(..) | State::Taken => Some((with, Err(taken()))),
        }
    }
}

impl<'a, T> Pending<'a, T> {
    fn new(state: State<'a, T>, asked: Option<Asked>) -> Pending<'a, T> {
        Pending { state, asked, limit: None, timer: None }
    }

    /// An answer that is there already.
    pub(crate) fn ready(result: Result<T>) -> Pending<'a, T> {
        Pending::new(State::Ready(result), None)
    }

    /// Several steps, which begin when they are first waited for, and wait for nobody else.
    pub(crate) fn steps(
        shared: &Arc<NodeShared>,
        operation: &'static str,
        path: &str,
        steps: impl Future<Output = Result<T>> + Send + 'a,
    ) -> Pending<'a, T> {
        let (shared, path) = (Arc::clone(shared), Some(path.into()));
        let asked = Asked { shared, operation, path, is_unlimited: false, in_flight: None };
        Pending::new(State::Steps(Box::pin(steps)), Some(asked))
    }

    /// The outcome is unknown if it is given up.
    pub(crate) fn unknown(self) -> Pending<'a, T> {
        self.in_flight(Arc::new(AtomicBool::new(true)))
    }

    /// While this is set, the outcome is unknown if it is given up.
    pub(crate) fn in_flight(mut self, flag: Arc<AtomicBool>) -> Pending<'a, T> {
        if let Some(asked) = &mut self.asked {
            asked.in_flight = Some(flag);
        }
        self
    }

    /// A call that goes on after this one.
    pub(crate) fn and_then<U: 'a>(
        mut self,
        then: impl FnOnce(T) -> Result<U> + Send + 'a,
    ) -> Pending<'a, U>
    where
        T: Send + 'a,
    {
        let asked = self.asked.take();
        match self.state {
            State::Ready(result) => Pending::new(State::Ready(result.and_then(then)), asked),
            mut state => {
                let steps = async move { then(poll_fn(|context| state.poll(context)).await?) };
                Pending::new(State::Steps(Box::pin(steps)), asked)
            }
        }
    }

    /// As [`Pending::steps`], without a limit: it waits for other participants.
    pub(crate) fn unlimited(mut self) -> Pending<'a, T> {
        if let Some(asked) = &mut self.asked {
            asked.is_unlimited = true;
        }
        self
    }

    /// Blocks the thread until the answer is there: at most for the limit that [`timeout`](Pending::timeout) has set, else
    /// for the [request timeout](crate::Builder::request_timeout), unless the call waits for other participants.
    ///
    /// **Do not call it in a task**: it blocks the worker thread of the runtime, and what shares the thread with the task.
    /// Write `.await` there.
    ///
    /// # Errors
    /// Those of the call; [`Error::Timeout`]; [`Error::WouldBlock`] in a waker, on the node's own thread, if the answer
    /// is not there yet.
    ///
    /// ```
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// assert_eq!(session.children("/").wait()?, ["zookeeper"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[inline]
    pub fn wait(self) -> Result<T> {
        match self.state {
            // Most reads of a member: they are moved once, into the caller.
            State::Ready(result) => result,
            state => waited_for(state, self.asked, self.limit),
        }
    }

    /// Limits the wait, of a thread as of a task, which begins when it is first waited for.
    ///
    /// # Errors
    /// When the time is over, a call that waits for other participants is given up, and fails with
    /// [`Error::NotInTime`]: nothing has happened. Otherwise it fails with [`Error::Timeout`]: a request goes on, and its
    /// outcome is unknown.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::Error;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let guard = lock.acquire().wait()?;
    /// let late = lock.acquire().timeout(Duration::from_millis(10)).wait();
    /// assert!(matches!(late, Err(Error::NotInTime { .. })));
    /// # drop(guard);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Pending<'a, T> {
        self.limit = Some(timeout);
        self
    }

    /// The answer, if it is there. Begins what has several steps, and does what can be done without waiting. Does not
    /// block.
    ///
    /// ```
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let mut sync = session.sync();
    /// let synced = loop {
    ///     match sync.try_take() {
    ///         Some(synced) => break synced?,
    ///         None => std::thread::yield_now(), // or other work
    ///     }
    /// };
    /// # let _ = synced;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn try_take(&mut self) -> Option<Result<T>> {
        match self.state.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    /// As [`Pending::wait`], at most for this time; `None` if there is no answer by then. It can be waited for again.
    #[cfg(feature = "admin")]
    pub(crate) fn wait_within(&mut self, time: Duration) -> Option<Result<T>> {
        let Some(asked) = &self.asked else { return self.try_take() };
        let clock = asked.shared.clock.clone();
        let until = clock.now().saturating_add(time);
        let answer = block_on(poll_fn(|context| self.state.poll(context)), &clock, Some(until));
        answer.unwrap_or_else(|error| Some(Err(error)))
    }

    /// Whether it has already failed.
    pub(crate) fn has_failed(&self) -> bool {
        match &self.state {
            State::Ready(result) => result.is_err(),
            State::Sent(slot, _) => slot.holds(|answer| answer.is_err()),
            State::Steps(_) | State::Work(..) | State::Taken => false,
        }
    }

    /// Ends the wait of a task when its time is over.
    fn poll_limit(&mut self, context: &mut Context<'_>) -> Poll<Result<T>> {
        let Some(limit) = self.limit else { return Poll::Pending };
        let Some(asked) = &self.asked else {
            return Poll::Ready(unlimited(&mut self.state, self.limit));
        };
        let timer = self.timer.get_or_insert_with(|| Box::new(asked.shared.timer(limit)));
        match Pin::new(timer).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => {
                // Several steps are given up.
                self.state = State::Taken;
                Poll::Ready(Err(asked.timed_out(limit)))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }
}

impl<T> Future for Pending<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        match self.state.poll(context) {
            Poll::Pending => self.poll_limit(context),
            ready => ready,
        }
    }
}

/// The answer of a call that is not done, when it is there: see [`Pending::wait`].
fn waited_for<T>(state: State<'_, T>, asked: Option<Asked>, limit: Option<Duration>) -> Result<T> {
    let mut state = match (state, limit) {
        (State::Work(work, _), None) => return work(),
        (state, _) => state,
    };
    let Some(asked) = asked else { return unlimited(&mut state, limit) };
    let usual = || (!asked.is_unlimited).then_some(asked.shared.limits.request_timeout);
    let limit = limit.or_else(usual);
    let clock = &asked.shared.clock;
    let until = limit.map(|limit| clock.now().saturating_add(limit));
    match block_on(poll_fn(|context| state.poll(context)), clock, until) {
        Ok(Some(result)) => result,
        // Without a deadline there is always a result.
        Ok(None) => Err(asked.timed_out(limit.unwrap_or_default())),
        Err(Error::WouldBlock { .. }) => Err(Error::WouldBlock { operation: asked.named() }),
        Err(error) => Err(error),
    }
}

/// An answer that is there, or the error for a limit of a call that no node serves yet.
fn unlimited<T>(state: &mut State<'_, T>, limit: Option<Duration>) -> Result<T> {
    match (state, limit) {
        (State::Work(..) | State::Steps(_), _) => Err(Error::InvalidSetting {
            setting: "timeout",
            reason: "joining waits for no other: give the limit to `wait_ready`".to_owned(),
        }),
        (state, _) => state.taken(),
    }
}

/// Has a thread of its own do the work.
pub(crate) fn on_a_thread<T: Send + 'static>(work: Work<T>) -> Steps<'static, T> {
    Box::pin(async move { offload(work).await? })
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
