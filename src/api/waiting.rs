//! The async forms of a coordinator's calls. Those that only wait for answers wait here; those that
//! work with files or threads block a thread of their own.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::api::builder::Builder;
use crate::api::coordinator::{Coordinator, PLACE_PERIOD};
use crate::api::operate::{MemberReport, SessionInfo};
use crate::api::session::Session;
use crate::runtime::offload::offload;
use crate::types::error::{Error, Result};
use crate::types::znode::SessionId;

impl Builder {
    /// As [`Builder::join`], without blocking the thread: a thread of its own does it. If the future
    /// is dropped after it was polled, that continues, and the coordinator is closed once it has
    /// joined.
    ///
    /// # Errors
    /// As [`Builder::join`].
    pub async fn join_async<P: AsRef<str>>(
        self,
        peers: impl IntoIterator<Item = P>,
    ) -> Result<Coordinator> {
        let peers: Vec<String> = peers.into_iter().map(|peer| peer.as_ref().to_owned()).collect();
        offload(move || self.join(peers)).await?
    }
}

/// Gives up a resumption whose answer nobody waits for.
struct Resuming(Option<Session>);

impl Drop for Resuming {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            session.abandon();
        }
    }
}

impl Coordinator {
    /// As [`Coordinator::join`], without blocking the thread: a thread of its own does it. If the
    /// future is dropped after it was polled, that continues, and the coordinator is closed once it
    /// has joined.
    ///
    /// # Errors
    /// As [`Coordinator::join`].
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// # async fn example() -> quorate::Result<()> {
    /// let peers = ["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"];
    /// let coordinator = quorate::Coordinator::join_async(peers).await?;
    /// coordinator.wait_ready_async(Duration::from_secs(30)).await?;
    /// // Until the service is to stop.
    /// coordinator.close_async().await
    /// # }
    /// ```
    pub async fn join_async<P: AsRef<str>>(
        peers: impl IntoIterator<Item = P>,
    ) -> Result<Coordinator> {
        Builder::default().join_async(peers).await
    }

    /// As [`Coordinator::wait_ready`], without blocking the thread. Dropping the future only ends the
    /// wait.
    ///
    /// # Errors
    /// As [`Coordinator::wait_ready`].
    pub async fn wait_ready_async(&self, timeout: Duration) -> Result<()> {
        let shared = self.shared();
        let mut limit = shared.timer(timeout);
        let timed_out = |reason| Error::Timeout {
            operation: "joining the cluster".to_owned(),
            waited: timeout,
            reason,
        };
        let session = self.session();
        let mut synced = session.nonblocking().sync_in_any_case();
        let synced = poll_fn(|context| match Pin::new(&mut synced).poll(context) {
            Poll::Ready(synced) => Poll::Ready(Some(synced)),
            Poll::Pending => Pin::new(&mut limit).poll(context).map(|limit| limit.err().map(Err)),
        });
        match synced.await {
            Some(synced) => drop(synced?),
            None => {
                return Err(shared.refusal().unwrap_or_else(|| timed_out(shared.waiting_for())));
            }
        }
        while !shared.status().is_placed {
            if let Some(limit) = limit.try_take() {
                limit?;
                let place = "its replica is up to date, but it is not settled yet whether it votes";
                return Err(timed_out(format!("{place}; {}", shared.waiting_for())));
            }
            shared.timer(PLACE_PERIOD).await?;
        }
        Ok(())
    }

    /// As [`Coordinator::resume`], without blocking the thread and without a time limit. If the future
    /// is dropped, the session may have been taken over; it is not closed, and can be resumed again
    /// until it expires.
    ///
    /// # Errors
    /// As [`Coordinator::resume`], but for [`Error::Timeout`].
    pub async fn resume_async(&self, session: SessionId, password: [u8; 16]) -> Result<Session> {
        self.resumed(session, password, None).await
    }

    /// As [`Coordinator::resume_with`], in the way of [`Coordinator::resume_async`].
    ///
    /// # Errors
    /// As [`Coordinator::resume`], but for [`Error::Timeout`].
    pub async fn resume_with_async(
        &self,
        session: SessionId,
        password: [u8; 16],
        timeout: Duration,
    ) -> Result<Session> {
        self.resumed(session, password, Some(timeout)).await
    }

    async fn resumed(
        &self,
        session: SessionId,
        password: [u8; 16],
        timeout: Option<Duration>,
    ) -> Result<Session> {
        let (session, opened) = self.begin_resume((session, password), timeout)?;
        let mut resuming = Resuming(Some(session.clone()));
        opened.await?;
        resuming.0 = None;
        Ok(session)
    }

    /// As [`Coordinator::leave`], without blocking the thread: a thread of its own waits. If the
    /// future is dropped after it was polled, the instance continues to leave.
    ///
    /// # Errors
    /// As [`Coordinator::leave`]; [`Error::System`].
    pub async fn leave_async(&self, timeout: Duration) -> Result<()> {
        let coordinator = self.clone();
        offload(move || coordinator.leave(timeout)).await?
    }

    /// As [`Coordinator::close`], without blocking the thread: a thread of its own waits. If the
    /// future is dropped after it was polled, the instance continues to close.
    ///
    /// **Await it before the last handle is dropped in a task**: that drop closes the instance and
    /// waits for it, and would block the runtime's thread, for a second in most cases. After a close
    /// there is nothing left to wait for.
    ///
    /// # Errors
    /// [`Error::System`] if no thread can be started; then nothing was done.
    pub async fn close_async(&self) -> Result<()> {
        let coordinator = self.clone();
        offload(move || coordinator.close()).await
    }

    /// As [`Coordinator::close_keeping_sessions`], in the way of [`Coordinator::close_async`]. If the
    /// future is dropped after it was polled, the sessions stay open in the cluster until they expire.
    ///
    /// # Errors
    /// As [`Coordinator::close_async`].
    pub async fn close_keeping_sessions_async(&self) -> Result<Vec<(SessionId, [u8; 16])>> {
        let coordinator = self.clone();
        offload(move || coordinator.close_keeping_sessions()).await
    }

    /// As [`Coordinator::reports`], without blocking the thread: a thread of its own waits. Dropping
    /// the future only ends the wait.
    ///
    /// # Errors
    /// As [`Coordinator::reports`]; [`Error::System`].
    pub async fn reports_async(&self) -> Result<Vec<MemberReport>> {
        let coordinator = self.clone();
        offload(move || coordinator.reports()).await?
    }

    /// As [`Coordinator::sessions`], in the way of [`Coordinator::reports_async`].
    ///
    /// # Errors
    /// As [`Coordinator::sessions`]; [`Error::System`].
    pub async fn sessions_async(&self) -> Result<Vec<SessionInfo>> {
        let coordinator = self.clone();
        offload(move || coordinator.sessions()).await?
    }
}
