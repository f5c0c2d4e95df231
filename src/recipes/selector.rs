//! Runs code while this instance leads.
//!
//! Source: Curator, `LeaderSelector`.

use crate::runtime::pending::Pending;
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::api::session::Session;
use crate::recipes::contenders::SELECTOR;
use crate::recipes::errors::is_root_missing;
use crate::recipes::{LeaderLatch, Leadership, Naming};
use crate::runtime::either::either;
use crate::types::error::{Error, Result};

/// Runs a closure whenever this instance leads an election, and resigns when the closure returns.
///
/// The closure's result decides whether to campaign again: [`ControlFlow::Continue`] queues behind
/// the other candidates, [`ControlFlow::Break`] ends the selector, which returns it. When the session is
/// over, it ends with the session's error. After that, make a selector with a new session;
/// [`Coordinator::supervise`](crate::Coordinator::supervise) automates that: what the selector returns
/// is what its closure has to return. It has no thread of its own.
///
/// The election is a [`LeaderLatch`]'s, with the same guarantees and costs. Latches and selectors
/// of one path take part in one election.
///
/// ```
/// use std::ops::ControlFlow;
/// use quorate::recipes::LeaderSelector;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let selector = LeaderSelector::new(&cluster.node(0).session(), "/leader", "zero")?;
/// let mut terms = 0;
/// let ended = selector.run(|leadership| {
///     assert!(leadership.is_held());
///     terms += 1;
///     let last = (terms == 3).then(|| leadership.fencing_token());
///     async move { last.map_or(ControlFlow::Continue(()), ControlFlow::Break) }
/// });
/// let ended = ended.wait()?;
/// println!("its last token was {:?}", ended.break_value());
/// assert_eq!(terms, 3);
/// assert!(selector.latch().leader().wait()?.is_none(), "it has resigned");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LeaderSelector {
    latch: LeaderLatch,
    /// How long the last term goes on until there is another candidate.
    hand_over: Option<Duration>,
}

impl LeaderSelector {
    /// Returns a selector for the election at this path, for a candidate with this id. Sends
    /// nothing.
    ///
    /// # Errors
    /// As [`LeaderLatch::new`].
    pub fn new(session: &Session, path: &str, id: impl AsRef<[u8]>) -> Result<LeaderSelector> {
        let latch = LeaderLatch::of(session, path, id.as_ref(), &[&SELECTOR])?;
        Ok(LeaderSelector { latch, hand_over: None })
    }

    /// Returns the same election, with another name for the candidates of this handle: see
    /// [`LeaderLatch::with_naming`]. By default, Curator's `LeaderSelector` counts them.
    #[must_use]
    pub fn with_naming(mut self, naming: Naming) -> LeaderSelector {
        self.latch = self.latch.with_naming(naming);
        self
    }

    /// Returns the same election, with a priority of the candidates of this handle: see
    /// [`LeaderLatch::with_priority`].
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> LeaderSelector {
        self.latch = self.latch.with_priority(priority);
        self
    }

    /// Hands over at the end, as [`Leadership::hand_over`] does, instead of resigning: when the closure returns
    /// [`ControlFlow::Break`], the selector waits for at most this time until there is another candidate, and returns
    /// once that one leads. If there is none, it resigns when the time is over. Until then it leads, although the
    /// closure has returned. At [`ControlFlow::Continue`] the next candidate leads at once, anyway.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::time::Duration;
    /// use quorate::recipes::LeaderSelector;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let selector = LeaderSelector::new(&session, "/leader", "me")?;
    /// let selector = selector.with_hand_over(Duration::from_millis(10));
    /// selector.run(|_| async { ControlFlow::Break(()) }).wait()?;
    /// assert!(selector.latch().leader().wait()?.is_none(), "there was nobody else");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn with_hand_over(mut self, timeout: Duration) -> LeaderSelector {
        self.hand_over = Some(timeout);
        self
    }

    /// The election, to query its leader and its candidates.
    pub fn latch(&self) -> &LeaderLatch {
        &self.latch
    }

    /// Campaigns, and runs `body` while it leads, again and again, until `body` returns [`ControlFlow::Break`], and
    /// returns that, or until the session is over. The future returned by `body` is
    /// polled only while this instance leads. If the lead is lost, that future is dropped, and this
    /// campaigns again, unless the session is over. Dropping the future of `run` drops that
    /// of `body`, and resigns. The argument of `body` may be cloned and sent to other tasks; the
    /// leadership ends with `body`.
    ///
    /// A future cannot be dropped while it is being polled: if `body` computes for long between two
    /// awaits, it should call [`Held::is_held`](crate::recipes::Held::is_held) between them.
    ///
    /// The future of `run` may be spawned on a multi-threaded runtime if `body` and its
    /// future are `Send`. `body` may borrow from its environment, and return an `async move` block
    /// with those references:
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::sync::Arc;
    /// use quorate::recipes::LeaderSelector;
    ///
    /// struct App {
    ///     name: String,
    ///     selector: LeaderSelector,
    /// }
    ///
    /// impl App {
    ///     async fn lead(&self) -> quorate::Result<ControlFlow<()>> {
    ///         let greeting = format!("{} leads", self.name);
    ///         let run = self.selector.run(|leadership| {
    ///             let greeting = &greeting;
    ///             async move {
    ///                 println!("{greeting}, with token {}", leadership.fencing_token());
    ///                 self.work().await;
    ///                 ControlFlow::Break(())
    ///             }
    ///         });
    ///         run.await
    ///     }
    ///
    ///     async fn work(&self) {}
    /// }
    ///
    /// # mod tokio { pub fn spawn<F: Future + Send + 'static>(_: F) {} }
    /// # fn example(session: quorate::Session) -> quorate::Result<()> {
    /// let selector = LeaderSelector::new(&session, "/leader", "me")?;
    /// let app = Arc::new(App { name: "me".to_owned(), selector });
    /// tokio::spawn(async move { app.lead().await });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of a session that is over; otherwise as [`LeaderLatch::campaign`].
    pub fn run<'a, T: Send + 'a, F: Future<Output = ControlFlow<T>> + Send + 'a>(
        &'a self,
        body: impl FnMut(Arc<Leadership>) -> F + Send + 'a,
    ) -> Pending<'a, ControlFlow<T>> {
        let latch = &self.latch;
        latch.session().steps("run", latch.path(), self.running(body)).unlimited()
    }

    pub(crate) async fn running<T, F: Future<Output = ControlFlow<T>>>(
        &self,
        mut body: impl FnMut(Arc<Leadership>) -> F,
    ) -> Result<ControlFlow<T>> {
        loop {
            let term = Term(Arc::new(self.campaign().await?));
            let running = body(Arc::clone(&term.0));
            if let Some(ended @ ControlFlow::Break(_)) = while_leading(&term.0, running).await {
                if let Some(timeout) = self.hand_over {
                    let timeout = self.latch.session().sleep(timeout);
                    // It resigns in any case, so an error means the same as no other candidate.
                    let _ = either(term.0.handing_over(None, true), timeout).await;
                }
                term.resign().await;
                return Ok(ended);
            }
            term.resign().await;
        }
    }

    /// Waits until it leads. If somebody deletes the candidate, campaigns as a new one.
    async fn campaign(&self) -> Result<Leadership> {
        loop {
            match self.latch.campaign().await {
                Err(error @ Error::NoNode { .. }) if !is_root_missing(&error) => {}
                done => return done,
            }
        }
    }
}

/// A term of leadership. Dropping it resigns, even if there are clones of the leadership.
struct Term(Arc<Leadership>);

impl Term {
    /// Resigns, and waits until it has. What is not known then makes no difference: it campaigns again, or ends.
    async fn resign(&self) {
        if let Ok(deletion) = self.0.ephemeral.begin_deletion() {
            let _ = deletion.await;
        }
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.0.ephemeral.discard();
    }
}

/// Polls `running` while it leads; `None` if the lead is lost first.
async fn while_leading<T>(
    leadership: &Leadership,
    running: impl Future<Output = ControlFlow<T>>,
) -> Option<ControlFlow<T>> {
    let mut lost = pin!(leadership.wait_lost());
    let mut running = pin!(running);
    let mut is_lost = false;
    poll_fn(|context| {
        // Checked first, so that nothing runs after the loss.
        is_lost = is_lost || lost.as_mut().poll(context).is_ready() || !leadership.is_held();
        if is_lost && !planted!(SelectorRunsOn) {
            return Poll::Ready(None);
        }
        running.as_mut().poll(context).map(Some)
    })
    .await
}
