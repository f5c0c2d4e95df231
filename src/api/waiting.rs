//! The async forms of a coordinator's calls. Calls that only wait for replies wait here; calls that
//! work with files or threads block a thread of their own.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use crate::api::builder::Builder;
use crate::api::coordinator::Coordinator;
use crate::api::operate::{MemberReport, SessionInfo};
use crate::api::session::Session;
use crate::runtime::offload::offload;
use crate::types::error::{Error, Result};
use crate::types::metrics::Metrics;
use crate::types::znode::SessionId;

/// How often an instance that waits to be ready checks whether it has got the vote, or need not
/// vote.
const PLACE_PERIOD: Duration = Duration::from_millis(20);

impl Builder {
    /// As [`Builder::join`], without blocking the thread: a thread of its own joins. If the future
    /// is dropped after it was polled, joining continues, and the coordinator is closed once it has
    /// joined.
    ///
    /// # Errors
    /// As [`Builder::join`].
    ///
    /// ```
    /// # async fn example(secret: quorate::Secret) -> quorate::Result<()> {
    /// let builder = quorate::Coordinator::builder().security(secret);
    /// let coordinator = builder.join_async(["10.0.0.1:7400", "10.0.0.2:7400"]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn join_async<P: AsRef<str>>(
        self,
        peers: impl IntoIterator<Item = P>,
    ) -> Result<Coordinator> {
        let peers: Vec<String> = peers.into_iter().map(|peer| peer.as_ref().to_owned()).collect();
        joined_by_task(move || self.join(peers)).await
    }

    /// As [`Builder::discover`], without blocking the thread: see [`Builder::join_async`].
    ///
    /// # Errors
    /// As [`Builder::discover`].
    ///
    /// ```
    /// # async fn example(secret: quorate::Secret) -> quorate::Result<()> {
    /// let builder = quorate::Coordinator::builder().security(secret);
    /// let coordinator = builder.discover_async("app:7400", 3).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn discover_async(
        self,
        name: impl AsRef<str>,
        expected: usize,
    ) -> Result<Coordinator> {
        let name = name.as_ref().to_owned();
        joined_by_task(move || self.discover(name, expected)).await
    }
}

/// Joins on a thread of its own, for a task.
async fn joined_by_task(
    join: impl FnOnce() -> Result<Coordinator> + Send + 'static,
) -> Result<Coordinator> {
    // Set before the task receives the coordinator, since its future may have been dropped.
    let by_task = |joined: &Coordinator| {
        joined.shared().joined_by_task.store(true, Ordering::Relaxed);
    };
    offload(move || join().inspect(by_task)).await?
}

/// Gives up a resumption whose future was dropped.
struct Resuming(Option<Session>);

impl Drop for Resuming {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            session.abandon();
        }
    }
}

/// Makes the awaited forms of calls that wait for threads or for several replies: a thread of its own makes the call.
macro_rules! on_a_thread {
    ($(pub fn $awaited:ident($($arg:ident: $ty:ty),*) -> Result<$T:ty> = $name:ident($($given:expr),*);)+) => {
        $(
            #[doc = concat!("[`Coordinator::", stringify!($name), "`], awaited: a thread of its own waits.")]
            /// If the future is dropped after it was polled, the call continues.
            ///
            /// # Errors
            #[doc = concat!("As [`Coordinator::", stringify!($name), "`]; [`Error::System`].")]
            pub async fn $awaited(&self, $($arg: $ty),*) -> Result<$T> {
                let coordinator = self.clone();
                $(let $arg = $arg.to_owned();)*
                offload(move || coordinator.$name($($given),*)).await?
            }
        )+
    };
}

impl Coordinator {
    on_a_thread! {
        pub fn leave_async(timeout: Duration) -> Result<()> = leave(timeout);
        pub fn reports_async() -> Result<Vec<MemberReport>> = reports();
        pub fn sessions_async() -> Result<Vec<SessionInfo>> = sessions();
        pub fn move_leader_async(address: &str, by: &str) -> Result<()> = move_leader(&address, &by);
        pub fn remove_member_async(address: &str, by: &str) -> Result<()> = remove_member(&address, &by);
        pub fn expire_session_async(session: SessionId, by: &str) -> Result<()> = expire_session(session, &by);
    }

    /// As [`Coordinator::join`], without blocking the thread: a thread of its own joins. If the
    /// future is dropped after it was polled, joining continues, and the coordinator is closed once
    /// it has joined.
    ///
    /// **Dropping the last handle does not block either.** The instance is closed in the background. The
    /// thread that has dropped the handle waits for that when the thread ends: a runtime's threads when
    /// the runtime is shut down, and the main thread after `main`. This does not work on Windows, nor on
    /// the main thread with musl: a program that ends too early leaves its sessions open until they
    /// expire. The data directory and the address are in use until the instance is closed. So await
    /// [`Coordinator::close_async`] first: it waits, and works everywhere.
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
    /// // ... the service runs ...
    /// coordinator.close_async().await
    /// # }
    /// ```
    pub async fn join_async<P: AsRef<str>>(
        peers: impl IntoIterator<Item = P>,
    ) -> Result<Coordinator> {
        Builder::default().join_async(peers).await
    }

    /// [`Coordinator::wait_ready`], awaited.
    pub async fn wait_ready_async(&self, timeout: Duration) -> Result<()> {
        let mut limit = self.shared().timer(timeout);
        let mut is_synced = false;
        let in_time = {
            let mut ready = pin!(self.ready(&mut is_synced));
            poll_fn(|context| match ready.as_mut().poll(context) {
                Poll::Ready(ready) => Poll::Ready(Some(ready)),
                Poll::Pending => {
                    Pin::new(&mut limit).poll(context).map(|limit| limit.err().map(Err))
                }
            })
            .await
        };
        in_time.unwrap_or_else(|| Err(self.not_ready(timeout, is_synced)))
    }

    /// Waits until the instance is ready, and sets `is_synced` when its replica has caught up.
    pub(super) async fn ready(&self, is_synced: &mut bool) -> Result<()> {
        self.session().nonblocking().sync_in_any_case().await?;
        *is_synced = true;
        while !self.shared().status().is_placed {
            self.shared().timer(PLACE_PERIOD).await?;
        }
        Ok(())
    }

    /// The error of an instance that is not ready after this time.
    pub(super) fn not_ready(&self, waited: Duration, is_synced: bool) -> Error {
        let shared = self.shared();
        if let Some(refusal) = shared.refusal().filter(|_| !is_synced) {
            return refusal;
        }
        let reason = shared.waiting_for();
        Error::Timeout { operation: "joining the cluster".to_owned(), waited, reason }
    }

    /// [`Coordinator::resume`], awaited. There is no time limit. If the future is dropped, the session may have been
    /// taken over; it is not closed, and can be resumed again until it expires.
    pub async fn resume_async(&self, session: SessionId, password: [u8; 16]) -> Result<Session> {
        self.resumed(session, password, None).await
    }

    /// [`Coordinator::resume_with`], awaited. See [`Coordinator::resume_async`].
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
        let (session, opened) = Session::resume(self.owner(), (session, password), timeout)?;
        let mut resuming = Resuming(Some(session.clone()));
        opened.await?;
        resuming.0 = None;
        Ok(session)
    }

    /// [`Coordinator::wait_stopped`], awaited.
    pub async fn wait_stopped_async(&self) -> Result<()> {
        let mut changes = self.availability_changes();
        while self.shared().stopped().is_none() && changes.recv_async().await.is_some() {}
        self.end()
    }

    /// As [`Coordinator::close`], without blocking the thread: a thread of its own waits. If the
    /// future is dropped after it was polled, the instance continues to close.
    ///
    /// **Await it before the program ends**, and before the last handle of an instance that was joined
    /// by a blocking call is dropped in a task: see [`Coordinator::join_async`]. After this, dropping
    /// handles does not block.
    ///
    /// # Errors
    /// [`Error::System`] if no thread can be started; then nothing was done.
    ///
    /// ```
    /// # async fn example(coordinator: &quorate::Coordinator) -> quorate::Result<()> {
    /// // The last thing that `main` does.
    /// coordinator.close_async().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close_async(&self) -> Result<()> {
        let coordinator = self.clone();
        offload(move || coordinator.close()).await
    }

    /// As [`Coordinator::close_keeping_sessions`], without blocking the thread: see
    /// [`Coordinator::close_async`]. If the future is dropped after it was polled, the sessions stay
    /// open in the cluster until they expire.
    ///
    /// # Errors
    /// As [`Coordinator::close_async`].
    ///
    /// ```
    /// # async fn example(coordinator: &quorate::Coordinator) -> quorate::Result<()> {
    /// for (id, password) in coordinator.close_keeping_sessions_async().await? {
    ///     // For `Coordinator::resume_async`, in the next process.
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close_keeping_sessions_async(&self) -> Result<Vec<(SessionId, [u8; 16])>> {
        let coordinator = self.clone();
        offload(move || coordinator.close_keeping_sessions()).await
    }

    /// [`Coordinator::metrics`], awaited.
    ///
    /// # Errors
    /// [`Error::System`] if no thread can be started.
    pub async fn metrics_async(&self) -> Result<Metrics> {
        let coordinator = self.clone();
        offload(move || coordinator.metrics()).await
    }
}

impl Session {
    /// [`Session::detach`], awaited. There is no time limit. If the future is dropped, the session is either detached or
    /// still held here: [`Session::state`] shows which.
    pub async fn detach_async(&self) -> Result<(SessionId, [u8; 16])> {
        self.nonblocking().who_am_i().await?;
        self.detached()
    }
}
