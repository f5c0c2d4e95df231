//! What a session's handles share with the host that serves them.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::Receiver;
use once_cell::sync::OnceCell;

use crate::node::io::Time;
use crate::runtime::clock::Clock;
use crate::sync::states::States;
use crate::types::acl::Id;
use crate::types::error::Error;
use crate::types::session::SessionState;
use crate::types::znode::SessionId;

/// How many changes of a session's state wait for a reader.
const STATES_UNREAD_MAX: usize = 64;

/// What a session's handles share with the host.
pub(crate) struct SessionShared {
    pub(crate) id: SessionId,
    /// Tells its handles from others that held the same session before, or will after.
    pub(crate) holder: u64,
    pub(crate) secret: [u8; 16],
    /// In nanoseconds. Of one that was resumed and keeps its own: known once it is open.
    timeout: AtomicU64,
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
            timeout: AtomicU64::new(nanoseconds(timeout)),
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

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout.load(Ordering::Relaxed))
    }

    pub(crate) fn set_timeout(&self, timeout: Duration) {
        self.timeout.store(nanoseconds(timeout), Ordering::Relaxed);
    }

    /// Before it is asked to be closed. Whether there is something to be closed: not if its holder
    /// has detached it.
    pub(crate) fn give_up(&self) -> bool {
        let state = self.lock();
        self.given_up.store(true, Ordering::Release);
        state.now() != SessionState::Detached
    }

    /// Its holder lets go of it and leaves it open. Whether it was the holder's still: from here on
    /// it is not, and is not closed by it either.
    pub(crate) fn detach(&self) -> bool {
        let mut state = self.lock();
        let is_open = matches!(state.now(), SessionState::Connected | SessionState::Suspended);
        let detaches = is_open && !self.given_up.load(Ordering::Acquire);
        if detaches {
            state.set(SessionState::Detached);
        }
        detaches
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
            SessionState::Detached => Some(Error::SessionDetached { session }),
            SessionState::AuthFailed => self.auth_failure.get().cloned(),
            SessionState::Connecting | SessionState::Connected | SessionState::Suspended => None,
        }
    }

    pub(crate) fn set_lease(&self, until: Time) {
        self.lease.store(nanoseconds(until), Ordering::Release);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
