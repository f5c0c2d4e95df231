//! An ephemeral znode that outlives its session: it is created again in the next one.
//!
//! The state of the znode is shared by the clones and the one future that drives it. So closing is
//! exact at any moment: an existing znode is deleted at once, and a znode that is being created is
//! deleted as soon as the reply comes, whether or not anybody still polls the future.
//!
//! Source: Curator, `PersistentNode` (once `PersistentEphemeralNode`).

mod create;
mod running;

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};

use self::create::{ZnodeState, lock};
use self::running::{Running, Sessions, recover};
use crate::api::ops::{check_create, check_data};
use crate::api::session::Session;
use crate::runtime::either::{Either, either};
use crate::runtime::pending::Pending;
use crate::runtime::shared::NodeShared;
use crate::sync::wakers::{Place, Wakers};
#[cfg(doc)]
use crate::types::error::Error;
use crate::types::error::Result;
use crate::types::znode::CreateMode;

/// An ephemeral znode that is created again, in a new session, when its session is over, and also
/// when somebody has deleted it. It announces an instance for as long as the instance exists.
///
/// It has no thread of its own and must be driven: by waiting for [`PersistentEphemeral::run`] on a thread, or in a
/// task. That continues until it is closed, or the call is dropped. The znode is then deleted, even if a request is in
/// flight.
///
/// Clones are the same one. They may be used at any time, connected or not, running or not; dropping them does
/// nothing.
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
/// let run = here.run();
/// let running = std::thread::spawn(move || run.wait());
/// assert!(here.wait_present().wait()?);
///
/// // The session is lost; the znode is created again in the next one.
/// cluster.expire(&cluster.node(0).session());
/// here.set(b"ready")?;
/// assert!(here.wait_present().wait()?);
/// let session = cluster.node(0).session();
/// assert_eq!(&session.get("/up/host-0").wait()?.0[..], b"ready");
///
/// here.close().wait()?;
/// assert!(session.exists("/up/host-0").wait()?.is_none());
/// running.join().expect("it does not panic")?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone)]
pub struct PersistentEphemeral {
    path: Arc<str>,
    shared: Arc<NodeShared>,
    state: Arc<Mutex<EphemeralState>>,
    /// Tasks that wait for any change of the state.
    waiting: Arc<Wakers>,
    /// Taken by the call that runs it.
    sessions: Arc<Mutex<Option<Sessions>>>,
    again: bool,
}

struct EphemeralState {
    data: Arc<[u8]>,
    /// The number of the data to write; each new data gets the next number.
    wanted: u64,
    /// The number of the data that the znode has.
    written: u64,
    closed: bool,
    znode: ZnodeState,
}

impl EphemeralState {
    fn is_present(&self) -> bool {
        matches!(&self.znode, ZnodeState::Exists(ephemeral) if ephemeral.exists())
    }
}

impl fmt::Debug for PersistentEphemeral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PersistentEphemeral")
            .field("path", &self.path)
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
        let mut last = session.clone();
        let another = move || {
            last = last.open_another()?;
            Ok(last.clone())
        };
        PersistentEphemeral::of(session.clone(), another, path, data.as_ref())
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
    /// here.set(b"1")?;
    /// assert!(!here.is_present(), "it does not run yet");
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
        let first = sessions()?;
        PersistentEphemeral::of(first, sessions, path, data.as_ref())
    }

    fn of(
        first: Session,
        mut others: impl FnMut() -> Result<Session> + Send + 'static,
        path: &str,
        data: &[u8],
    ) -> Result<PersistentEphemeral> {
        check_create(path, data, CreateMode::Ephemeral)?;
        let shared = Arc::clone(first.shared());
        let mut first = Some(first);
        let sessions: Sessions = Box::new(move || first.take().map_or_else(&mut others, Ok));
        let state = EphemeralState {
            data: data.into(),
            wanted: 1,
            written: 0,
            closed: false,
            znode: ZnodeState::Missing,
        };
        Ok(PersistentEphemeral {
            path: path.into(),
            shared,
            state: Arc::new(Mutex::new(state)),
            waiting: Arc::default(),
            sessions: Arc::new(Mutex::new(Some(sessions))),
            again: true,
        })
    }

    /// Sets whether the znode is created again when somebody has deleted it: `true` by default.
    /// With `false`, running it ends with [`Error::NoNode`] in that case.
    pub fn recreate_deleted(mut self, again: bool) -> PersistentEphemeral {
        self.again = again;
        self
    }

    /// Maintains the znode, and waits until it is closed. The first call does so; further ones, also of clones, only
    /// wait.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the node has stopped; the errors of `sessions`; [`Error::NoNode`] if
    /// the znode was deleted and is not to be created again, or of `/` if the root of its sessions
    /// does not exist; and other errors that waiting does not cure, such as [`Error::NoAuth`] and
    /// [`Error::QuotaExceeded`]. After an error the znode is not left behind.
    pub fn run(&self) -> Pending<'static, ()> {
        let sessions = lock(&self.sessions).take();
        let running = sessions.map(|sessions| Running { ephemeral: self.clone(), sessions });
        Pending::steps(&self.shared, "run", &self.path, self.clone().running(running)).unlimited()
    }

    async fn running(self, running: Option<Running>) -> Result<()> {
        let closed = self.until(|state| state.closed.then_some(Ok(())));
        let Some(running) = running else { return closed.await };
        match either(closed, running.run()).await {
            Either::One(ended) | Either::Other(ended) => ended,
        }
    }

    /// Sets the znode's data. It is written as soon as possible, and again each time the znode is
    /// created. Does not block. Only the latest data counts: earlier data may never be written.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for more than 1 MiB.
    pub fn set(&self, data: impl AsRef<[u8]>) -> Result<()> {
        let data = data.as_ref();
        check_data(&self.path, data.len())?;
        self.change(|state| {
            state.data = data.into();
            state.wanted += 1;
        });
        Ok(())
    }

    /// Whether the znode exists at this moment, in a session that is certainly alive, as this
    /// replica has it. Does not block.
    pub fn is_present(&self) -> bool {
        self.state().is_present()
    }

    /// Waits until the znode exists with the data that was set last; `false` if it is closed.
    pub fn wait_present(&self) -> Pending<'_, bool> {
        let is_written = |state: &EphemeralState| state.wanted == state.written;
        let present = self.until(move |state| match state.closed {
            true => Some(Ok(false)),
            false => (state.is_present() && is_written(state)).then_some(Ok(true)),
        });
        Pending::steps(&self.shared, "wait_present", &self.path, present).unlimited()
    }

    /// Closes it for good, and waits until the znode is gone. Running it ends; the session
    /// continues. If it was closed before, that is not an error, and this waits, too.
    ///
    /// # Errors
    /// [`Error::Timeout`], after which the znode is deleted as soon as possible. Not an error if
    /// the session, and the znode with it, is over.
    pub fn close(&self) -> Pending<'_, ()> {
        let closing = async {
            let znode = self.end();
            self.until_deleted(&znode).await
        };
        Pending::steps(&self.shared, "close", &self.path, closing)
    }

    fn state(&self) -> MutexGuard<'_, EphemeralState> {
        lock(&self.state)
    }

    fn change<T>(&self, change: impl FnOnce(&mut EphemeralState) -> T) -> T {
        let changed = change(&mut self.state());
        self.waiting.wake();
        changed
    }

    /// Waits until `look` finds something in the state.
    async fn until<T>(&self, look: impl Fn(&EphemeralState) -> Option<T>) -> T {
        let mut place = Place::new(Arc::clone(&self.waiting));
        poll_fn(|context| place.poll(context.waker(), || look(&self.state()))).await
    }

    fn set_state(&self, znode: ZnodeState) {
        let former = self
            .change(|state| (!state.closed).then(|| std::mem::replace(&mut state.znode, znode)));
        // Not under the lock: this may drop the session.
        drop(former);
    }

    /// Closes it, and deletes the znode. Returns the state whose end has to be awaited; it also
    /// stays in place for the next caller.
    fn end(&self) -> ZnodeState {
        let unused = lock(&self.sessions).take();
        let znode = self.change(|state| {
            state.closed = true;
            state.znode.clone()
        });
        // Not under the lock: this may drop its session.
        drop(unused);
        match &znode {
            ZnodeState::Missing => {}
            ZnodeState::Creating(session, creating) => creating.give_up(session, &self.path),
            ZnodeState::Exists(ephemeral) => ephemeral.discard(),
        }
        znode
    }

    async fn until_deleted(&self, znode: &ZnodeState) -> Result<()> {
        let session = match znode {
            ZnodeState::Missing => return Ok(()),
            ZnodeState::Creating(session, creating) => {
                // A failed create has created nothing.
                let _ = creating.answer().await;
                session
            }
            ZnodeState::Exists(ephemeral) => ephemeral.session(),
        };
        // The deletion was sent before this request, so this is answered after it.
        while let Err(error) = session.in_turn().exists(&self.path).await {
            if error.is_session_lost() {
                break;
            }
            recover(session, error).await?;
        }
        let former = std::mem::replace(&mut self.state().znode, ZnodeState::Missing);
        // Not under the lock: this may drop the session.
        drop(former);
        Ok(())
    }
}
