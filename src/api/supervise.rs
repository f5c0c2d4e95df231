//! Runs a closure in one session after the other.
//!
//! Each run has a session of its own, which is closed when the run ends, for whatever reason. So a
//! run leaves nothing behind for the next one: neither a znode whose create was not answered in
//! time, nor a guard that it has handed to another task.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use crate::api::coordinator::Coordinator;
use crate::api::session::Session;
use crate::runtime::pending::{Pending, block_on};
use crate::runtime::shared::NodeShared;
use crate::sync::wakers::{Place, Wakers};
use crate::types::error::{Error, Result};

/// The pause before the next run. It doubles after each run that was shorter than the longest pause.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The longest pause after a run that found a name taken. The name is free once the other session is over,
/// which may be that of a former run.
const PAUSE_TAKEN: Duration = Duration::from_secs(1);

/// A closure that [`Coordinator::supervise`] runs whenever there is a session. Dropping this stops
/// it, as [`Supervised::stop`] does, and does not wait.
///
/// ```
/// use std::ops::ControlFlow;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let supervised = cluster.node(0).supervise(|session| {
///     // Blocks until the session is over.
///     session.states().events().iter().for_each(drop);
///     Ok(ControlFlow::Continue(()))
/// })?;
/// supervised.stop();
/// supervised.wait_ended().wait()?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[must_use = "dropping it stops what it supervises"]
pub struct Supervised {
    control: Arc<Control>,
    shared: Arc<NodeShared>,
}

impl fmt::Debug for Supervised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervised").field("ended", &self.control.lock().ended).finish()
    }
}

/// The state that a [`Supervised`] and its thread share.
#[derive(Default)]
struct Control {
    state: Mutex<SupervisedState>,
    /// Tasks that wait for `stopped` or `ended`.
    waiting: Arc<Wakers>,
}

#[derive(Default)]
struct SupervisedState {
    stopped: bool,
    /// The session of the current run.
    session: Option<Session>,
    ended: Option<Result<()>>,
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, SupervisedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut SupervisedState)) {
        change(&mut self.lock());
        // Not under the lock: a waker is user code, which may read the state.
        self.waiting.wake();
    }

    /// Waits until `has` returns a value of the state.
    async fn until<T>(&self, has: impl Fn(&SupervisedState) -> Option<T>) -> T {
        let mut place = Place::new(Arc::clone(&self.waiting));
        poll_fn(|context| place.poll(context.waker(), || has(&self.lock()))).await
    }

    /// Waits for the future; `None` if `stop` is called first.
    async fn unless_stopped<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut stopped = pin!(self.until(|state| state.stopped.then_some(())));
        let mut future = pin!(future);
        poll_fn(|context| match stopped.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => future.as_mut().poll(context).map(Some),
        })
        .await
    }

    fn stop(&self) {
        let mut session = None;
        self.change(|state| {
            state.stopped = true;
            session = state.session.take();
        });
        if let Some(session) = session {
            close(&session);
        }
    }

    /// Runs the closure in one session after the other.
    fn run(
        &self,
        coordinator: &Coordinator,
        mut body: impl FnMut(Session) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let clock = &coordinator.shared().clock;
        let mut runs = SupervisedRuns::new(coordinator);
        loop {
            // Without a deadline there is always a result.
            let next = block_on(self.unless_stopped(runs.next()), clock, None)?.flatten();
            let Some(session) = next.transpose()? else { return Ok(()) };
            let run = RunSession(session.clone());
            let begins = {
                let mut state = self.lock();
                state.session = (!state.stopped).then(|| session.clone());
                !state.stopped
            };
            if !begins {
                return Ok(());
            }
            let result = body(session);
            drop(run);
            let former = self.lock().session.take();
            // Not under the lock: this may drop the session.
            drop(former);
            if runs.ended(Some(result)).is_break() {
                return Ok(());
            }
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.control.stop();
    }
}

impl Supervised {
    /// Stops it: the closure is not called again. If the closure is running, its session is closed,
    /// so that its calls fail and its locks are lost, and it has to return. Does not block; use
    /// [`Supervised::wait_ended`] to wait until the closure has returned.
    ///
    /// While there is no quorum, a session cannot be closed in the cluster. Then the closure may go
    /// on waiting until the session's timeout has passed.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Waits until it has ended: the closure has returned for the last time, and its thread has dropped it.
    ///
    /// # Errors
    /// [`Error::Stopped`] if it has ended because the coordinator was closed or has stopped, or because
    /// the closure has panicked. [`Error::System`] if no session could be opened. Not an error after
    /// [`Supervised::stop`]. [`Error::WouldBlock`] in a waker.
    pub fn wait_ended(&self) -> Pending<'_, ()> {
        let ended = self.control.until(|state| state.ended.clone());
        Pending::steps(&self.shared, "wait_ended", "", ended).unlimited()
    }
}

impl Coordinator {
    /// Runs `body` on a thread of its own whenever there is a session, until it is stopped. In this
    /// way everything that belongs to a session, such as a registration, is restored after a loss
    /// of the session.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::sync::mpsc::channel;
    /// use quorate::recipes::{Instance, Registry};
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let here = Instance::new("zero", "10.0.0.7", 8080);
    /// let (report, registered) = channel();
    /// let supervised = cluster.node(0).supervise(move |session| {
    ///     let registration = Registry::new(&session, "/services")?.register("web", &here).wait()?;
    ///     let _ = report.send(session);
    ///     registration.wait_lost().wait()?;
    ///     Ok(ControlFlow::Continue(()))
    /// })?;
    ///
    /// // After the end of its session, the instance is registered again in the next one.
    /// let first = registered.recv().unwrap();
    /// cluster.expire(&first);
    /// let second = registered.recv().unwrap();
    /// assert_ne!(first.id(), second.id());
    /// assert_eq!(second.ephemerals().wait()?.len(), 1);
    /// # drop(supervised);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// **Each run has a session of its own.** The session is open when `body` is called; while there
    /// is no quorum, `body` is not called. The session is closed when `body` returns, with everything
    /// that is left in it. `body` may also use [`Coordinator::session`], which is another session.
    ///
    /// | `body` | what happens |
    /// | --- | --- |
    /// | returns [`ControlFlow::Continue`] | it runs again, in a new session |
    /// | returns an error | the same; unless the session was lost, the error is logged as `WARN` |
    /// | returns [`ControlFlow::Break`] | it has ended |
    /// | panics | it has ended, and its session is closed: others get what it held. [`Supervised::wait_ended`] fails |
    ///
    /// **Between two runs there is a pause**: a tenth of a second after a run that took longer than ten
    /// seconds. After a shorter run the pause doubles, up to ten seconds, or up to one second if the run
    /// failed with [`Error::NodeExists`]: the name may become free at any moment.
    ///
    /// **When its session is lost**, `body` notices that as any other code: its calls fail, guards are
    /// lost, watches end, [`Session::is_alive`] is false. Then it should return; a thread cannot be
    /// stopped from outside. A partition alone ([`Suspended`](crate::SessionState::Suspended)) is not a
    /// loss: `body` continues, and only calls that need the quorum wait or time out. The next session is
    /// opened as soon as the quorum can be reached again.
    ///
    /// It ends with [`Error::Stopped`] when the coordinator is closed, which closes its session as
    /// well, or has stopped. It keeps its instance running, as any handle does. Dropping
    /// [`Supervised`] does not wait for `body`: before the program ends, call [`Coordinator::close`],
    /// or [`Supervised::stop`] and [`Supervised::wait_ended`].
    ///
    /// Does not block.
    ///
    /// # Errors
    /// [`Error::System`] if no thread can be started.
    pub fn supervise(
        &self,
        body: impl FnMut(Session) -> Result<ControlFlow<()>> + Send + 'static,
    ) -> Result<Supervised> {
        let (coordinator, shared_node) = (self.clone(), Arc::clone(self.shared()));
        let control = Arc::new(Control::default());
        let shared = Arc::clone(&control);
        let run = move || {
            // A closure that panics is not used again. It is dropped before the end is reported.
            let ran = catch_unwind(AssertUnwindSafe(|| {
                let (coordinator, body) = (coordinator, body);
                shared.run(&coordinator, body)
            }));
            let ended = ran.unwrap_or_else(|_| {
                tracing::error!("what was supervised has panicked; it does not run again");
                Err(Error::Stopped { reason: "what was supervised has panicked".to_owned() })
            });
            let former = shared.lock().session.take();
            drop(former);
            shared.change(|state| state.ended = Some(ended));
        };
        let thread = std::thread::Builder::new().name("quorate-run".to_owned());
        thread
            .spawn(run)
            .map_err(|error| Error::System { what: "a thread", reason: error.to_string() })?;
        Ok(Supervised { control, shared: shared_node })
    }

    /// As [`Coordinator::supervise`], for a task: awaits the future that `body` returns, and drops it
    /// as soon as its session is over. So `body` need not notice the loss. What this returns borrows nothing from the
    /// coordinator. It has no thread of its own.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use quorate::recipes::LeaderSelector;
    /// # mod tokio { pub fn spawn<F: Future + Send + 'static>(_: F) {} }
    /// # async fn work() {}
    ///
    /// # fn example(coordinator: quorate::Coordinator) {
    /// tokio::spawn(coordinator.supervise_task(|session| async move {
    ///     let selector = LeaderSelector::new(&session, "/leader", "me")?;
    ///     // It campaigns again and again, until its session is over. A `Break` would end both.
    ///     let lead = selector.run(|leadership| async move {
    ///         println!("leads with token {}", leadership.fencing_token());
    ///         work().await;
    ///         ControlFlow::Continue(())
    ///     });
    ///     lead.await
    /// }));
    /// # }
    /// ```
    ///
    /// **Dropping the future stops it**: `body`'s future is dropped and its session closed, without
    /// waiting. A panic in `body` has the same effect, and reaches the task that polls this. The future
    /// does nothing before it is polled.
    ///
    /// A future cannot be dropped while it is being polled: if `body` computes for long between two
    /// awaits, it should check [`Session::is_alive`] between them.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the coordinator was closed or has stopped; [`Error::System`] if no
    /// session could be opened. Otherwise it ends only when `body` returns [`ControlFlow::Break`].
    pub fn supervise_task<'a, B, F>(&self, mut body: B) -> Pending<'a, ()>
    where
        B: FnMut(Session) -> F + Send + 'a,
        F: Future<Output = Result<ControlFlow<()>>> + Send + 'a,
    {
        let coordinator = self.clone();
        let steps = async move {
            let mut runs = SupervisedRuns::new(&coordinator);
            loop {
                let session = runs.next().await?;
                let run = RunSession(session.clone());
                let result = while_open(&session, body(session.clone())).await;
                drop(run);
                if runs.ended(result).is_break() {
                    return Ok(());
                }
            }
        };
        Pending::steps(self.shared(), "supervise", "", steps).unlimited()
    }
}

/// Closes the session of a run at its end, even if there are other handles.
struct RunSession(Session);

impl Drop for RunSession {
    fn drop(&mut self) {
        close(&self.0);
    }
}

/// Closes a session without waiting.
fn close(session: &Session) {
    drop(session.close());
}

/// One run after the other.
struct SupervisedRuns<'a> {
    coordinator: &'a Coordinator,
    /// When the present run began.
    began: Duration,
    /// The pause before the next one.
    pause: Duration,
}

impl SupervisedRuns<'_> {
    fn new(coordinator: &Coordinator) -> SupervisedRuns<'_> {
        SupervisedRuns { coordinator, began: Duration::ZERO, pause: Duration::ZERO }
    }

    /// Waits until the next run may begin, and opens its session.
    async fn next(&mut self) -> Result<Session> {
        let shared = self.coordinator.shared();
        loop {
            if !self.pause.is_zero() {
                shared.timer(self.pause).await?;
            }
            let (owner, timeout) = (self.coordinator.owner(), shared.limits.session_timeout);
            let (session, opened) = Session::open(owner, timeout)?;
            match opened.await {
                Ok(()) => {
                    self.began = shared.clock.now();
                    return Ok(session);
                }
                Err(error @ Error::Stopped { .. }) => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "a supervised session could not be opened");
                    self.lengthen(PAUSE_MAX);
                }
            }
        }
    }

    /// Notes the end of a run; `result` is `None` if the run was dropped.
    fn ended(&mut self, result: Option<Result<ControlFlow<()>>>) -> ControlFlow<()> {
        let ran = self.coordinator.shared().clock.now().saturating_sub(self.began);
        let is_taken = matches!(result, Some(Err(Error::NodeExists { .. })));
        match ran > PAUSE_MAX {
            true => self.pause = PAUSE_MIN,
            false => self.lengthen(if is_taken { PAUSE_TAKEN } else { PAUSE_MAX }),
        }
        match result {
            Some(Ok(ControlFlow::Break(()))) => return ControlFlow::Break(()),
            Some(Err(error)) if !error.is_session_lost() => {
                tracing::warn!(%error, pause = ?self.pause, "what is supervised failed; it runs again");
            }
            Some(_) | None => tracing::debug!(pause = ?self.pause, "what is supervised runs again"),
        }
        ControlFlow::Continue(())
    }

    fn lengthen(&mut self, most: Duration) {
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, most);
    }
}

/// Polls the future while the session is open; `None` if the session is over first.
async fn while_open<F: Future>(session: &Session, running: F) -> Option<F::Output> {
    let mut states = session.states();
    let mut running = pin!(running);
    let mut is_over = false;
    poll_fn(|context| {
        // Checked first, so that nothing runs after the loss.
        while !is_over {
            match states.poll(context.waker()) {
                Poll::Ready(state) => is_over = state.is_none_or(|state| state.is_final()),
                Poll::Pending => return running.as_mut().poll(context).map(Some),
            }
        }
        Poll::Ready(None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    /// An instance whose name was still taken by a former session stayed away for up to twice the rest of
    /// that session: each failure doubled the pause.
    #[test]
    fn a_name_that_is_taken_is_tried_again_each_second() {
        let coordinator = Cluster::new(1).node(0);
        let pause_after = |error: Error| {
            let began = coordinator.shared().clock.now();
            let mut runs = SupervisedRuns { began, ..SupervisedRuns::new(&coordinator) };
            for _ in 0..20 {
                assert!(runs.ended(Some(Err(error.clone()))).is_continue());
            }
            runs.pause
        };
        assert_eq!(pause_after(Error::NodeExists { path: "/a".to_owned() }), PAUSE_TAKEN);
        assert_eq!(pause_after(Error::NoNode { path: "/a".to_owned() }), PAUSE_MAX);
    }
}
