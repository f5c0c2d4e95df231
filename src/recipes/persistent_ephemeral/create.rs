//! The znode of a persistent ephemeral, and its create, whose reply may come when nobody wants it any more.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::session::Session;
use crate::recipes::creating::created_among;
use crate::recipes::former_run::FormerEphemeral;
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::sync::wakers::{Place, Wakers};
use crate::types::error::Result;
use crate::types::znode::{CreateMode, Created, Stat};

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

pub(super) fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(super) fn give_up(&self, session: &Session, path: &str) {
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
