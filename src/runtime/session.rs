//! What a session's handles share with the host that serves them.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::Receiver;
use once_cell::sync::OnceCell;

use crate::acl::Id;
use crate::error::Error;
use crate::node::io::Time;
use crate::runtime::clock::Clock;
use crate::session::SessionState;
use crate::sync::states::States;
use crate::znode::SessionId;

/// How many changes of a session's state wait for a reader.
const STATES_UNREAD_MAX: usize = 64;

/// What a session's handles share with the host.
pub(crate) struct SessionShared {
    pub(crate) id: SessionId,
    /// Tells its handles from others that held the same session before, or will after.
    pub(crate) holder: u64,
    pub(crate) secret: [u8; 16],
    pub(crate) timeout: Duration,
    state: Mutex<States>,
    /// Until when the session is surely alive, in nanoseconds of the clock; 0 before it is open.
    lease: AtomicU64,
    /// It is being closed: what it holds may be another's before this node hears of it.
    given_up: AtomicBool,
    /// As whom it is known.
    pub(crate) ids: ArcSwap<Vec<Id>>,
    /// Why it authenticates as nobody any more.
    auth_failure: OnceCell<Error>,
}

impl fmt::Debug for SessionShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret is not for logs.
        f.debug_struct("SessionShared").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SessionShared {
    pub(crate) fn new(
        id: SessionId,
        holder: u64,
        secret: [u8; 16],
        timeout: Duration,
    ) -> SessionShared {
        let state = States::new(SessionState::Connecting, STATES_UNREAD_MAX);
        SessionShared {
            id,
            holder,
            secret,
            timeout,
            state: Mutex::new(state),
            lease: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            ids: ArcSwap::default(),
            auth_failure: OnceCell::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, States> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> SessionState {
        self.lock().now()
    }

    /// Tells those who read the states. Whether some have so many unread that this one was left
    /// out: then `catch_up` is to be called now and then.
    pub(crate) fn set_state(&self, state: SessionState) -> bool {
        self.lock().set(state)
    }

    /// Tells those who were too slow for it the present state. Whether some still are.
    pub(crate) fn catch_up(&self) -> bool {
        self.lock().catch_up()
    }

    /// A channel of states that begins with the present one, and closes after the final one.
    pub(crate) fn states(&self) -> Receiver<SessionState> {
        self.lock().subscribe()
    }

    /// Whether the session is surely alive at this moment.
    pub(crate) fn is_alive(&self, clock: &Clock) -> bool {
        let lease = Duration::from_nanos(self.lease.load(Ordering::Acquire));
        clock.now() < lease
            && !self.given_up.load(Ordering::Acquire)
            && !self.state().is_final()
            && !clock.is_forked()
    }

    /// Before it is asked to be closed.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// It is over, since its user has failed to authenticate.
    pub(crate) fn fail_auth(&self, error: Error) {
        self.give_up();
        let _ = self.auth_failure.set(error);
        self.set_state(SessionState::AuthFailed);
    }

    /// Why its handles can do nothing any more, if that is so.
    pub(crate) fn over(&self) -> Option<Error> {
        let session = self.id;
        match self.state() {
            SessionState::Expired => Some(Error::SessionExpired { session }),
            SessionState::Moved => Some(Error::SessionMoved { session }),
            SessionState::Closed => Some(Error::SessionClosed { session }),
            SessionState::AuthFailed => self.auth_failure.get().cloned(),
            SessionState::Connecting | SessionState::Connected | SessionState::Suspended => None,
        }
    }

    pub(crate) fn set_lease(&self, until: Time) {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.lease.store(until, Ordering::Release);
    }
}
