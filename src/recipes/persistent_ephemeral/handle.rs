//! The handle of a persistent ephemeral, and the state that it shares with the future that drives it.

use crate::runtime::pending::Pending;
use crate::runtime::shared::NodeShared;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::recover;
use crate::api::ops::check_data;
use crate::api::session::Session;
use crate::recipes::creating::created_among;
use crate::recipes::former_run::FormerEphemeral;
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::sync::wakers::{Place, Wakers};
use crate::types::error::Result;
use crate::types::znode::{CreateMode, Created, Stat};

/// A handle of a [`PersistentEphemeral`](crate::recipes::PersistentEphemeral) that runs elsewhere. Cheap to
/// clone; dropping it does nothing. It keeps the session of the znode open until it has noticed that the
/// znode is gone.
///
/// ```
/// use quorate::recipes::PersistentEphemeral;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(1);
/// let here = PersistentEphemeral::new(&cluster.node(0).session(), "/up", b"1")?;
/// let handle = here.handle();
/// // May be called at any time, connected or not, running or not.
/// handle.set(b"2")?;
/// assert!(!handle.is_present());
/// assert_eq!(handle.path(), "/up");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone)]
pub struct EphemeralHandle {
    pub(super) path: Arc<str>,
    pub(super) shared: Arc<NodeShared>,
    state: Arc<Mutex<EphemeralState>>,
    /// Tasks that wait for any change of the state.
    waiting: Arc<Wakers>,
}

pub(super) struct EphemeralState {
    pub(super) data: Arc<[u8]>,
    /// The number of the data to write; each new data gets the next number.
    pub(super) wanted: u64,
    /// The number of the data that the znode has.
    pub(super) written: u64,
    pub(super) closed: bool,
    pub(super) znode: ZnodeState,
}

/// The state of the znode.
#[derive(Clone)]
pub(super) enum ZnodeState {
    Missing,
    /// The create of the znode is in flight in this session.
    Creating(Session, Arc<PendingCreate>),
    Exists(Arc<OwnedEphemeral>),
}

/// Receives the reply to a create, on the node's thread. It holds no session, so that no session is
/// dropped on that thread.
#[derive(Default)]
pub(super) struct PendingCreate {
    state: Mutex<CreateState>,
    waiting: Arc<Wakers>,
}

#[derive(Default)]
struct CreateState {
    /// The stat of the created znode.
    answer: Option<Result<Stat>>,
    /// The znode is no longer wanted. The reply or this flag, whichever comes second, deletes it.
    given_up: bool,
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EphemeralState {
    fn is_present(&self) -> bool {
        matches!(&self.znode, ZnodeState::Exists(ephemeral) if ephemeral.exists())
    }
}

impl PendingCreate {
    /// Creates the znode, or takes over the one that a former run has left.
    pub(super) fn begin(
        session: &Session,
        path: &str,
        data: &[u8],
        left: Option<&FormerEphemeral>,
    ) -> Arc<PendingCreate> {
        let creating = Arc::new(PendingCreate::default());
        let (put, discard) = (Arc::clone(&creating), session.discarding());
        let full = session.root.full(path).into_owned();
        let answered = move |created: Result<Created>| {
            let answer = created.map(|created| created.stat);
            let mut state = lock(&put.state);
            if let (true, Ok(stat)) = (state.given_up, &answer) {
                discard(full, stat.czxid);
            }
            state.answer = Some(answer);
            drop(state);
            put.waiting.wake();
        };
        match left {
            None => session.create(path, data, CreateMode::Ephemeral).then(answered),
            Some(left) => {
                let taking = left.take_over(session, path, data);
                taking.then(|results| answered(results.and_then(created_among)));
            }
        }
        creating
    }

    /// Deletes the znode as soon as it exists.
    fn give_up(&self, session: &Session, path: &str) {
        let mut state = lock(&self.state);
        state.given_up = true;
        if let Some(Ok(stat)) = &state.answer {
            session.discarding()(session.root.full(path).into_owned(), stat.czxid);
        }
    }

    /// Waits for the reply.
    pub(super) async fn answer(&self) -> Result<Stat> {
        let mut place = Place::new(Arc::clone(&self.waiting));
        let look = || lock(&self.state).answer.clone();
        poll_fn(|context| place.poll(context.waker(), look)).await
    }
}

impl fmt::Debug for EphemeralHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EphemeralHandle").field("path", &self.path).finish_non_exhaustive()
    }
}

impl EphemeralHandle {
    pub(super) fn new(path: &str, data: &[u8], shared: &Arc<NodeShared>) -> EphemeralHandle {
        let state = EphemeralState {
            data: data.into(),
            wanted: 1,
            written: 0,
            closed: false,
            znode: ZnodeState::Missing,
        };
        let (state, waiting) = (Arc::new(Mutex::new(state)), Arc::default());
        EphemeralHandle { path: path.into(), shared: Arc::clone(shared), state, waiting }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, EphemeralState> {
        lock(&self.state)
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut EphemeralState) -> T) -> T {
        let changed = change(&mut self.state());
        self.waiting.wake();
        changed
    }

    /// Waits until `look` finds something in the state.
    pub(super) async fn until<T>(&self, look: impl Fn(&EphemeralState) -> Option<T>) -> T {
        let mut place = Place::new(Arc::clone(&self.waiting));
        poll_fn(|context| place.poll(context.waker(), || look(&self.state()))).await
    }

    pub(super) fn set_state(&self, znode: ZnodeState) {
        let former = self
            .change(|state| (!state.closed).then(|| std::mem::replace(&mut state.znode, znode)));
        // Not under the lock: this may drop the session.
        drop(former);
    }

    /// The znode's path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Sets the znode's data. It is written as soon as possible, and again each time the znode is
    /// created. Does not block. Only the latest data counts: earlier data may never be written.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::Error::TooLarge) for more than 1 MiB.
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

    /// Closes it, and deletes the znode. Returns the state whose end has to be awaited; it also
    /// stays in place for the next caller.
    pub(super) fn end(&self) -> ZnodeState {
        let znode = self.change(|state| {
            state.closed = true;
            state.znode.clone()
        });
        match &znode {
            ZnodeState::Missing => {}
            ZnodeState::Creating(session, creating) => creating.give_up(session, &self.path),
            ZnodeState::Exists(ephemeral) => ephemeral.discard(),
        }
        znode
    }

    /// Closes it for good, and waits until the znode is gone. Running it ends; the session
    /// continues. If it was closed or dropped before, that is not an error, and this waits, too.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout), after which the znode is deleted as soon as possible. Not an error if
    /// the session, and the znode with it, is over.
    pub fn close(&self) -> Pending<'_, ()> {
        let closing = async {
            let znode = self.end();
            self.until_deleted(&znode).await
        };
        Pending::steps(&self.shared, "close", &self.path, closing)
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
