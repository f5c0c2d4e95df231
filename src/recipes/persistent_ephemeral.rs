//! An ephemeral znode that outlives its session: it is created again in the next one.
//!
//! The state of the znode is shared by the handles and the one future that drives it. So closing is
//! exact at any moment: an existing znode is deleted at once, and a znode that is being created is
//! deleted as soon as the reply comes, whether or not anybody still polls the future.
//!
//! Source: Curator, `PersistentNode` (once `PersistentEphemeralNode`).

mod handle;

use crate::runtime::pending::Pending;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::handle::EphemeralHandle;
use self::handle::{PendingCreate, ZnodeState};
use crate::api::ops::check_create;
use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::recipes::Lost;
use crate::recipes::errors::{if_exists, unless_overtaken};
use crate::recipes::former_run::FormerEphemeral;
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::recipes::parents::Parents;
use crate::recipes::waiting::until_changed;
use crate::runtime::either::{Either, either};
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::CreateMode;

/// The pause before a write is tried again that was refused because disks are nearly full.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

/// Never locked; the mutex only makes a reference to it `Send`.
type Sessions = Mutex<Box<dyn FnMut() -> Result<Session> + Send>>;

/// An ephemeral znode that is created again, in a new session, when its session is over, and also
/// when somebody has deleted it. It announces an instance for as long as the instance exists.
///
/// It has no thread of its own and must be driven: by [`PersistentEphemeral::run`] on a thread, or
/// by [`PersistentEphemeral::run`] as a task. Both continue until it is closed through an
/// [`EphemeralHandle`], or dropped. The znode is then deleted, even if a request is in flight.
///
/// If its instance is disconnected for longer than the session's timeout, the znode is deleted with
/// its session; it is created again once the cluster can be reached. If another instance's znode is at
/// the path, it waits until the path is free. A znode that a former run of this instance has left, whose
/// session has not expired yet, is taken over in one write. (A [client](crate::Builder::client), which is
/// another instance after each start, waits.) Missing parents are created as containers.
///
/// To restore more than one znode, use [`Coordinator::supervise`](crate::Coordinator::supervise).
///
/// ```
/// use std::time::Duration;
/// use quorate::recipes::PersistentEphemeral;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let here = PersistentEphemeral::new(&cluster.node(0).session(), "/up/host-0", b"starting")?;
/// let handle = here.handle();
/// let running = std::thread::spawn(move || here.run().wait());
/// assert!(handle.wait_present().wait()?);
///
/// // The session is lost; the znode is created again in the next one.
/// cluster.expire(&cluster.node(0).session());
/// handle.set(b"ready")?;
/// assert!(handle.wait_present().wait()?);
/// let session = cluster.node(0).session();
/// assert_eq!(&session.get("/up/host-0").wait()?.0[..], b"ready");
///
/// handle.close().wait()?;
/// assert!(session.exists("/up/host-0").wait()?.is_none());
/// running.join().expect("it does not panic")?;
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct PersistentEphemeral {
    handle: EphemeralHandle,
    sessions: Sessions,
    /// The first session.
    first: Option<Session>,
    again: bool,
}

impl fmt::Debug for PersistentEphemeral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PersistentEphemeral")
            .field("handle", &self.handle)
            .field("again", &self.again)
            .finish_non_exhaustive()
    }
}

impl PersistentEphemeral {
    /// Makes one for a znode at this path, in this session and, after its end, in a new one of the same
    /// instance, with its timeout and root ([`Session::chroot`]). Writes nothing before it is run.
    ///
    /// # Errors
    /// [`Error::InvalidPath`]; [`Error::TooLarge`] for more than 1 MiB of data.
    pub fn new(
        session: &Session,
        path: &str,
        data: impl AsRef<[u8]>,
    ) -> Result<PersistentEphemeral> {
        let (mut last, mut is_first) = (session.clone(), true);
        let sessions = move || {
            if !std::mem::take(&mut is_first) {
                last = last.open_another()?;
            }
            Ok(last.clone())
        };
        PersistentEphemeral::with_sessions(sessions, path, data)
    }

    /// As [`PersistentEphemeral::new`], in sessions that `sessions` returns: it is called now, and
    /// whenever the former session is over. Use it for sessions with credentials, or to share the sessions of
    /// others, such as [`Coordinator::session`](crate::Coordinator::session). It holds its current session.
    ///
    /// ```
    /// use quorate::recipes::PersistentEphemeral;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(1);
    /// let coordinator = cluster.node(0);
    /// let sessions = move || Ok(coordinator.session());
    /// let here = PersistentEphemeral::with_sessions(sessions, "/up", b"")?;
    /// assert_eq!(here.handle().path(), "/up");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`PersistentEphemeral::new`], and the errors of `sessions`.
    pub fn with_sessions(
        mut sessions: impl FnMut() -> Result<Session> + Send + 'static,
        path: &str,
        data: impl AsRef<[u8]>,
    ) -> Result<PersistentEphemeral> {
        let data = data.as_ref();
        check_create(path, data, CreateMode::Ephemeral)?;
        let first = sessions()?;
        let handle = EphemeralHandle::new(path, data, first.shared());
        let sessions: Sessions = Mutex::new(Box::new(sessions));
        Ok(PersistentEphemeral { handle, sessions, first: Some(first), again: true })
    }

    /// Sets whether the znode is created again when somebody has deleted it: `true` by default.
    /// With `false`, running it ends with [`Error::NoNode`] in that case.
    pub fn recreate_deleted(mut self, again: bool) -> PersistentEphemeral {
        self.again = again;
        self
    }

    /// Returns a handle to set the data, to check whether the znode exists, and to close it.
    pub fn handle(&self) -> EphemeralHandle {
        self.handle.clone()
    }

    /// Maintains the znode. Waits until it is closed through a handle.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the node has stopped; the errors of `sessions`; [`Error::NoNode`] if
    /// the znode was deleted and is not to be created again, or of `/` if the root of its sessions
    /// does not exist; and other errors that waiting does not cure, such as [`Error::NoAuth`] and
    /// [`Error::QuotaExceeded`]. After an error the znode is not left behind.
    pub fn run(self) -> Pending<'static, ()> {
        let (shared, path) = (Arc::clone(&self.handle.shared), self.handle.path.clone());
        Pending::steps(&shared, "run", &path, self.running()).unlimited()
    }

    async fn running(mut self) -> Result<()> {
        let handle = self.handle.clone();
        let closed = handle.until(|state| state.closed.then_some(()));
        match either(closed, self.run_sessions()).await {
            Either::One(()) => Ok(()),
            Either::Other(ended) => ended,
        }
    }

    /// Runs in one session after the other.
    async fn run_sessions(&mut self) -> Result<()> {
        loop {
            let session = match self.first.take() {
                Some(session) => session,
                None => self.sessions.get_mut().unwrap_or_else(PoisonError::into_inner)()?,
            };
            let Err(error) = self.run_in(&session.for_recipe()).await;
            self.handle.set_state(ZnodeState::Missing);
            match error {
                Error::Stopped { .. } => return Err(error),
                error if error.is_session_lost() => {}
                error => return Err(error),
            }
            // Opening sessions may fail immediately each time.
            session.sleep(session.shared().limits.tick).await?;
        }
    }

    async fn run_in(&self, session: &Session) -> Result<std::convert::Infallible> {
        let mut parents = Parents::of(session, path::parent(&self.handle.path).unwrap_or("/"));
        let mut left = None;
        loop {
            if let Err(error) = parents.make().await {
                recover(session, error).await?;
                continue;
            }
            let ended = match self.create(session, left.take()).await {
                Ok(Some(ephemeral)) => self.maintain(&ephemeral).await,
                // Another write came first, perhaps the end of the former run's session.
                Ok(None) => self.find_left(session).await.map(|found| left = found),
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                recover(session, error).await?;
            }
        }
    }

    /// Returns the znode at the path if a former run of this instance has left it. Otherwise waits until
    /// the znode there, if there is one, is changed or deleted.
    async fn find_left(&self, session: &Session) -> Result<Option<FormerEphemeral>> {
        let left = FormerEphemeral::at(session, &self.handle.path).await?;
        if left.is_none() {
            until_changed(session, &self.handle.path).await?;
        }
        Ok(left)
    }

    /// Creates the znode, or takes over the one that was left. `None` if another write came first.
    async fn create(
        &self,
        session: &Session,
        left: Option<FormerEphemeral>,
    ) -> Result<Option<Arc<OwnedEphemeral>>> {
        let handle = &self.handle;
        let creating = {
            let mut state = handle.state();
            // If it was closed just now, the next poll notices that.
            (!state.closed).then(|| {
                state.written = state.wanted;
                let creating =
                    PendingCreate::begin(session, &handle.path, &state.data, left.as_ref());
                state.znode = ZnodeState::Creating(session.clone(), Arc::clone(&creating));
                creating
            })
        };
        let Some(creating) = creating else { return std::future::pending().await };
        let answer = creating.answer().await;
        let Some(stat) = unless_overtaken(answer)? else { return Ok(None) };
        let ephemeral = Arc::new(OwnedEphemeral::new(session, &handle.path, &stat));
        // If it was closed in the meantime, this deletes the znode once more.
        handle.set_state(ZnodeState::Exists(Arc::clone(&ephemeral)));
        Ok(Some(ephemeral))
    }

    /// Writes the latest data to the znode while it exists. Returns when somebody has deleted it.
    async fn maintain(&self, ephemeral: &Arc<OwnedEphemeral>) -> Result<()> {
        let handle = &self.handle;
        let mut watch = follow(ephemeral).await?;
        // The session is known to be alive now.
        handle.change(|_| {});
        while let (Some(following), None) = (&watch, ephemeral.loss()) {
            let (data, wanted, written) = {
                let state = handle.state();
                (Arc::clone(&state.data), state.wanted, state.written)
            };
            if wanted == written {
                if !self.changed(ephemeral, following, written).await {
                    // The application has removed the session's watches of this path.
                    watch = follow(ephemeral).await?;
                }
                continue;
            }
            match ephemeral.set(&data).await {
                Ok(_) => handle.change(|state| state.written = wanted),
                Err(Error::NoNode { .. }) => break,
                Err(error) => recover(ephemeral.session(), error).await?,
            }
        }
        if ephemeral.loss() == Some(Lost::SessionOver) {
            ephemeral.session().check_alive()?;
        }
        // The tree shows deletions by the end of a session before the session's handles see that
        // end. A request is answered after it.
        while let Err(error) = ephemeral.session().in_turn().exists(&handle.path).await {
            recover(ephemeral.session(), error).await?;
        }
        handle.set_state(ZnodeState::Missing);
        if !self.again {
            return Err(Error::NoNode { path: handle.path.to_string() });
        }
        Ok(())
    }

    /// Waits until the znode has changed, or the data to write differs from the written one.
    /// `false` if the watch is over.
    async fn changed(&self, ephemeral: &OwnedEphemeral, watch: &Watch, written: u64) -> bool {
        let wanted = self.handle.until(|state| (state.wanted != written).then_some(()));
        match either(wanted, ephemeral.next(watch)).await {
            Either::One(()) => true,
            Either::Other(event) => event.is_some(),
        }
    }
}

impl Drop for PersistentEphemeral {
    fn drop(&mut self) {
        self.handle.end();
    }
}

/// Watches the znode; `None` if it is already gone.
async fn follow(ephemeral: &OwnedEphemeral) -> Result<Option<Watch>> {
    loop {
        match if_exists(ephemeral.watch().await) {
            Err(error) => recover(ephemeral.session(), error).await?,
            watch => return watch,
        }
    }
}

/// Waits a while if that may help.
async fn recover(session: &Session, error: Error) -> Result<()> {
    match error {
        Error::Busy { .. } => session.sleep(session.shared().limits.tick).await,
        // An operator has to make room.
        Error::DiskLow { .. } => session.sleep(ROOM_PAUSE).await,
        error => Err(error),
    }
}
