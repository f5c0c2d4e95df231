//! The coordinator: this process's membership in the cluster.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::RecvTimeoutError;

use crate::api::builder::Builder;
use crate::api::owner::{Owner, Runs};
use crate::api::session::Session;
use crate::node::REMOVED;
use crate::node::client::LEFT;
use crate::runtime::either::{Either, either};
use crate::runtime::end::CLOSED;
use crate::runtime::own_thread;
use crate::runtime::pending::{Pending, on_a_thread};
use crate::runtime::shared::NodeShared;
use crate::types::error::{Error, Result};
use crate::types::znode::SessionId;

/// How often an instance that waits to be ready checks whether it has got the vote, or need not
/// vote.
const PLACE_PERIOD: Duration = Duration::from_millis(20);

/// Gives up a resumption that nobody waits for any more.
struct Resuming(Option<Session>);

impl Drop for Resuming {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            session.abandon();
        }
    }
}

/// This process's membership in the cluster: its replica, its vote and its sessions.
///
/// It runs until [`Coordinator::close`], or until the last handle is dropped, including the handles
/// of its sessions. Handles are clones. Several coordinators may run in one process, each with its
/// own data directory and address.
///
/// **Wakers of tasks run on its thread.** They must not block: [`Pending::wait`] fails there with
/// [`Error::WouldBlock`]. A panic in a waker is caught and logged.
///
/// **It does not run in a fork of its process.** In the fork, its sessions are over, its locks are
/// not held, calls fail with [`Error::Stopped`], and dropping handles does nothing; reads show the
/// replica as of the fork. The fork may join as a client, but not as a member. While the fork
/// lives, it keeps inherited files and sockets open: the parent process can only be restarted once
/// the fork has ended, or has executed another program.
///
/// ```no_run
/// use quorate::Coordinator;
///
/// // On one host. On several, `builder` names the cluster's `Secret` or certificates, too.
/// let coordinator = Coordinator::join(["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"]).wait()?;
/// let session = coordinator.session();
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Coordinator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    owner: Arc<Owner>,
    /// The instance's own session, once it has been requested.
    session: Mutex<Option<Session>>,
}

impl Coordinator {
    /// Joins the cluster of these peers, or founds it with them if there is none. The peers are all
    /// instances of the application, including this one, each as `host:port`. One string may name
    /// several, separated by commas, as in ZooKeeper's connect strings; for their chroot, call
    /// [`Session::chroot`].
    ///
    /// Every instance passes the same list, in any order and at every start. Each takes the first address in
    /// it that belongs to its host and is free, and stores its data below `quorate-data/<address>` in the
    /// working directory. [`Coordinator::builder`] can set both; an instance whose address is not on the list
    /// must use it. [`guide::membership`](crate::guide::membership) describes how a cluster is founded, and
    /// how instances come and go afterwards.
    ///
    /// Each name in the list must stand for one host: [`guide::membership`](crate::guide::membership)
    /// describes what happens otherwise.
    ///
    /// Returns without waiting for the others; [`Coordinator::wait_ready`] waits for them, and the first calls
    /// of each session do. So what they read is never older than what anybody knew before. Names
    /// are looked up in the background. Two things may delay it:
    /// - **Names**: if only a look-up of names can show which of the peers this instance is, this
    ///   waits for the look-up, at most 10 seconds. With [`Builder::advertise`] it does not, and the
    ///   instance listens once its name resolves. For the other names it waits a quarter of a
    ///   second, so that errors in them can be reported at once.
    /// - **A slow disk**: if the data directory is not open within a minute, and a second more for
    ///   each MiB of it, this fails with [`StartError::DataDirUnusable`](crate::StartError::DataDirUnusable). If the disk still hangs, this
    ///   process continues to use the directory: a new attempt fails with [`StartError::DataDirInUse`](crate::StartError::DataDirInUse)
    ///   until the disk has released it or the process has ended.
    ///
    /// # Errors
    /// For the list: [`StartError::NoPeers`](crate::StartError::NoPeers), [`StartError::InvalidPeer`](crate::StartError::InvalidPeer), [`StartError::DuplicatePeer`](crate::StartError::DuplicatePeer),
    /// [`StartError::NotSecured`](crate::StartError::NotSecured) if a peer is not on this host's loopback and no security is set,
    /// [`StartError::NotAPeer`](crate::StartError::NotAPeer) if no peer is this process. For the data directory:
    /// [`StartError::DataDirInUse`](crate::StartError::DataDirInUse), [`StartError::DataDirUnusable`](crate::StartError::DataDirUnusable), [`StartError::DataDirMismatch`](crate::StartError::DataDirMismatch),
    /// [`StartError::Corrupt`](crate::StartError::Corrupt). [`Error::System`] if the operating system refuses a thread, a socket or
    /// random numbers.
    pub fn join<P: AsRef<str>>(
        peers: impl IntoIterator<Item = P>,
    ) -> Pending<'static, Coordinator> {
        Builder::default().join(peers)
    }

    /// The settings for joining.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn owning(shared: Arc<NodeShared>, thread: JoinHandle<()>) -> Coordinator {
        Coordinator::run_by(shared, Runs::Thread(Mutex::new(Some(thread))))
    }

    /// A node that runs as long as `cluster` does, and keeps `cluster` running.
    pub(crate) fn of_cluster(
        shared: Arc<NodeShared>,
        cluster: Arc<dyn Any + Send + Sync>,
    ) -> Coordinator {
        Coordinator::run_by(shared, Runs::Cluster { _running: cluster })
    }

    fn run_by(shared: Arc<NodeShared>, runs: Runs) -> Coordinator {
        let owner = Arc::new(Owner { shared, runs });
        Coordinator { inner: Arc::new(Inner { owner, session: Mutex::new(None) }) }
    }

    pub(super) fn owner(&self) -> &Arc<Owner> {
        &self.inner.owner
    }

    pub(crate) fn shared(&self) -> &Arc<NodeShared> {
        &self.inner.owner.shared
    }

    /// Returns this instance's own session: the same one at every call, and a new one once that is
    /// over.
    ///
    /// Does not block: the session is opened in the background, and its first calls wait for that, reads too:
    /// see [`Session`].
    ///
    /// # Panics
    /// If the operating system provides no random numbers.
    pub fn session(&self) -> Session {
        let mut own = self.inner.session.lock().unwrap_or_else(PoisonError::into_inner);
        match &*own {
            Some(session) if !session.state().is_final() => session.clone(),
            _ => {
                let session = self.open_session().unwrap_or_else(|error| panic!("{error}"));
                *own = Some(session.clone());
                session
            }
        }
    }

    /// Opens another session, with the coordinator's session timeout. Does not block: the session
    /// is opened in the background, and its first calls wait for that, reads too: see [`Session`].
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn open_session(&self) -> Result<Session> {
        self.open_session_with(self.shared().limits.session_timeout)
    }

    /// Opens another session with its own timeout, limited to the
    /// [bounds](crate::Builder::session_timeout_bounds). Does not block, as [`Coordinator::open_session`].
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn open_session_with(&self, timeout: Duration) -> Result<Session> {
        // Whether it could be opened shows in the session's state and in the results of its calls.
        Session::open(self.owner(), timeout).map(|(session, _)| session)
    }

    /// Takes over a session that was opened here or elsewhere. It keeps its ephemeral znodes, its locks and its
    /// timeout, but not its watches. The former holder gets [`Error::SessionMoved`].
    ///
    /// # Errors
    /// [`Error::SessionExpired`] if the cluster does not know the session, or not any more;
    /// [`Error::WrongPassword`]; otherwise as [`Session::create`]. After [`Error::Timeout`] the
    /// session may have been taken over; it is not closed, and can be resumed again until it
    /// expires.
    ///
    /// ```
    /// use quorate::{CreateMode, Error, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let old = cluster.node(0).session();
    /// old.create("/mine", b"", CreateMode::Ephemeral).wait()?;
    /// let new = cluster.node(1).resume(old.id(), old.password()).wait()?;
    /// assert!(matches!(old.set("/mine", b"1").wait(), Err(Error::SessionMoved { .. })));
    /// new.set("/mine", b"2").wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn resume(&self, session: SessionId, password: [u8; 16]) -> Pending<'_, Session> {
        self.resume_as(session, password, None)
    }

    /// As [`Coordinator::resume`], with a new timeout, limited to the
    /// [bounds](crate::Builder::session_timeout_bounds). The session keeps this timeout from then
    /// on, also when it is resumed again. A shorter timeout does not end the session before the
    /// time that its former holder was promised.
    ///
    /// Source: ZooKeeper, where a client that reconnects requests a timeout again. (In ZooKeeper, a
    /// new leader returns to the first timeout.)
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let old = cluster.node(0).open_session_with(Duration::from_secs(30))?;
    /// old.sync().wait()?;
    /// let new = cluster.node(1).resume(old.id(), old.password()).wait()?;
    /// assert_eq!(new.timeout(), Duration::from_secs(30));
    /// let short = Duration::from_secs(10);
    /// assert_eq!(cluster.node(2).resume_with(old.id(), old.password(), short).wait()?.timeout(), short);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn resume_with(
        &self,
        session: SessionId,
        password: [u8; 16],
        timeout: Duration,
    ) -> Pending<'_, Session> {
        self.resume_as(session, password, Some(timeout))
    }

    fn resume_as(
        &self,
        session: SessionId,
        password: [u8; 16],
        timeout: Option<Duration>,
    ) -> Pending<'_, Session> {
        let steps = async move {
            let (resumed, opened) = Session::resume(self.owner(), (session, password), timeout)?;
            let mut resuming = Resuming(Some(resumed.clone()));
            opened.await?;
            resuming.0 = None;
            // This replica is now at least as new as everything that the former holder has read.
            Ok(resumed)
        };
        Pending::steps(self.shared(), "resume session", &session.to_string(), steps)
    }

    /// Waits until this instance has a session, its replica has caught up with the cluster and it votes or need not
    /// vote, as described at [`Coordinator::is_ready`]; at most for `timeout`.
    ///
    /// # Errors
    /// [`StartError::PeerRefused`](crate::StartError::PeerRefused) if a peer belongs to another cluster, has another secret or
    /// authority, or one of the two is too old for the other. Otherwise [`Error::Timeout`], whose
    /// text names what it was waiting for: which peers do not answer, and why.
    pub fn wait_ready(&self, timeout: Duration) -> Pending<'_, ()> {
        let steps = async move {
            let limit = self.shared().timer(timeout);
            let is_synced = AtomicBool::new(false);
            match either(self.ready(&is_synced), limit).await {
                Either::One(ready) => ready,
                Either::Other(over) => {
                    over?;
                    Err(self.not_ready(timeout, is_synced.into_inner()))
                }
            }
        };
        Pending::steps(self.shared(), "wait_ready", "", steps).unlimited()
    }

    /// Waits until the instance is ready, and sets `is_synced` when its replica has caught up.
    async fn ready(&self, is_synced: &AtomicBool) -> Result<()> {
        self.session().sync_in_any_case().await?;
        is_synced.store(true, Ordering::Relaxed);
        while !self.shared().readiness.status().is_placed {
            self.shared().timer(PLACE_PERIOD).await?;
        }
        Ok(())
    }

    /// The error of an instance that is not ready after this time.
    fn not_ready(&self, waited: Duration, is_synced: bool) -> Error {
        let shared = self.shared();
        if let Some(refusal) = shared.readiness.refusal().filter(|_| !is_synced) {
            return refusal;
        }
        let reason = shared.readiness.waiting_for();
        Error::Timeout { operation: "joining the cluster".to_owned(), waited, reason }
    }

    /// The address by which the peers know this instance. Nobody connects to a client; its address
    /// is the IP address from which its host reaches the members, without a port, or empty if no
    /// route to them was known when it joined.
    pub fn address(&self) -> String {
        self.shared().cluster.own_address()
    }

    /// Leaves the cluster for good: hands its vote to another instance if one can take it, is
    /// removed from the members, and stops. For a restart, use [`Coordinator::close`], after which
    /// it stays a member.
    ///
    /// It takes `timeout` at most. The data directory is marked; joining with it again makes this
    /// instance a new member.
    ///
    /// # Errors
    /// [`Error::Timeout`] if a majority of the voters without this one cannot be reached; so the
    /// last instance of a cluster cannot leave it. The instance continues to try as long as it
    /// runs.
    pub fn leave(&self, timeout: Duration) -> Pending<'static, ()> {
        self.work("leave", move |coordinator| coordinator.leaving(timeout))
    }

    fn leaving(&self, timeout: Duration) -> Result<()> {
        own_thread::check("leaving the cluster")?;
        let shared = self.shared();
        let changes = self.availability_changes();
        let until = shared.clock.now().saturating_add(timeout);
        shared.leave();
        loop {
            if let Some(reason) = shared.end.reason() {
                if !has_left(reason) {
                    return Err(Error::Stopped { reason: reason.to_owned() });
                }
                self.close_now();
                return Ok(());
            }
            let left = until.saturating_sub(shared.clock.now());
            if left.is_zero() {
                return Err(Error::Timeout {
                    operation: "leaving the cluster".to_owned(),
                    waited: timeout,
                    reason: shared.readiness.waiting_for(),
                });
            }
            // When the node ends, the channel is closed.
            let ended = changes.events().recv_timeout(left) == Err(RecvTimeoutError::Disconnected);
            if ended && shared.end.reason().is_none() {
                return Err(Error::Stopped { reason: CLOSED.to_owned() });
            }
        }
    }

    /// Waits until this instance has stopped: `Ok` if it was closed or has left at its user's request, an error if it
    /// has stopped for any other reason. Such an instance does not come back by itself: end the process with an exit
    /// code other than 0, and let its supervisor start it again.
    ///
    /// # Errors
    /// [`Error::Stopped`] with the reason: its disk has failed, the cluster has removed it, or a defect of
    /// this library has stopped it. [`Error::WouldBlock`].
    ///
    /// ```
    /// let cluster = quorate::testing::Cluster::new(3);
    /// let coordinator = cluster.node(0);
    /// let watcher = std::thread::spawn({
    ///     let coordinator = coordinator.clone();
    ///     move || {
    ///         if let Err(error) = coordinator.wait_stopped().wait() {
    ///             eprintln!("{error}");
    ///             std::process::exit(1);
    ///         }
    ///     }
    /// });
    /// // ... the service runs ...
    /// coordinator.close().wait()?;
    /// watcher.join().unwrap();
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn wait_stopped(&self) -> Pending<'_, ()> {
        let steps = async {
            // The changes end when the instance has stopped.
            let mut changes = self.availability_changes();
            while self.shared().end.reason().is_none() && changes.recv().await?.is_some() {}
            self.end()
        };
        Pending::steps(self.shared(), "wait_stopped", "", steps).unlimited()
    }

    /// How this instance has ended, which has stopped.
    fn end(&self) -> Result<()> {
        let shared = self.shared();
        match shared.end.reason() {
            None | Some(CLOSED) => Ok(()),
            Some(reason) if shared.end.leaves.load(Ordering::Relaxed) && has_left(reason) => Ok(()),
            Some(reason) => Err(Error::Stopped { reason: reason.to_owned() }),
        }
    }

    /// Stops this instance: hands over leadership, closes its sessions, and ends its threads.
    ///
    /// It hands over leadership first, whatever the instance's own threads are doing, so that the
    /// others can write again after a few messages and disk writes: their calls wait that long and
    /// do not fail. From then on, new sessions are refused with [`Error::Stopped`].
    ///
    /// If the other instances are being closed at the same time, the one that leads goes on leading until their
    /// sessions are closed, too.
    ///
    /// Takes a second at most (two, while others need it, or while its sessions are open and the cluster may be
    /// electing a leader), unless the disk hangs. If the cluster would now
    /// lose its majority, but another instance is about to take the place of a lost voter, it first waits
    /// for that, ten seconds at most. It stays a member and may join again. Calls on remaining handles fail
    /// with [`Error::SessionClosed`] or [`Error::Stopped`]. For a task, a thread of its own does it.
    ///
    /// Dropping the last handle has the same effect. It blocks for that time, unless the instance was joined by an awaited
    /// call: then the instance is closed in the background, and the thread that has dropped the handle waits for that
    /// when the thread ends (a runtime's threads when the runtime is shut down, and the main thread after `main`; not on
    /// Windows, nor on the main thread with musl). So call this before the program ends.
    pub fn close(&self) -> Pending<'static, ()> {
        self.work("close", |coordinator| {
            coordinator.close_now();
            Ok(())
        })
    }

    /// A call with files, threads or other members: a thread that waits does the work itself, and for a task a thread of
    /// its own does it.
    pub(crate) fn work<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Coordinator) -> Result<T> + Send + 'static,
    ) -> Pending<'static, T> {
        let coordinator = self.clone();
        Pending::work(Some(self.shared()), operation, move || work(&coordinator), on_a_thread)
    }

    pub(super) fn close_now(&self) {
        if self.shared().clock.is_forked() {
            return;
        }
        let session = self.inner.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Not under the lock: the session's end wakes tasks, which may request a session.
        drop(session);
        self.inner.owner.close();
    }
}

#[cfg(any(test, feature = "simulator"))]
impl Coordinator {
    pub(crate) fn simulated(shared: Arc<NodeShared>) -> Coordinator {
        Coordinator::run_by(shared, Runs::Simulation)
    }

    /// Opens or resumes a session without blocking, and returns the reply to wait for. A session
    /// resumed without a timeout keeps its own.
    pub(crate) fn begin_session(
        &self,
        timeout: Option<Duration>,
        resume: Option<(SessionId, [u8; 16])>,
    ) -> Result<(Session, Pending<'static, ()>)> {
        let usual = self.shared().limits.session_timeout;
        match resume {
            Some(known) => Session::resume(&self.inner.owner, known, timeout),
            None => Session::open(&self.inner.owner, timeout.unwrap_or(usual)),
        }
    }
}

/// Whether an instance that was asked to leave has stopped for that reason.
fn has_left(reason: &str) -> bool {
    [REMOVED, LEFT].contains(&reason)
}
