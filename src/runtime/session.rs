//! The state that a session's handles share with their host.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::Receiver;
use once_cell::sync::OnceCell;

use crate::node::io::Time;
use crate::runtime::clock::Clock;
use crate::runtime::end::NodeEnd;
use crate::runtime::mailbox::{Delivery, MailboxDeliveries, Recipient};
use crate::sync::states::States;
use crate::sync::wakers::Wakers;
use crate::types::acl::Id;
use crate::types::error::Error;
use crate::types::session::SessionState;
use crate::types::znode::SessionId;

/// How many changes of a session's state wait for a reader.
const STATES_UNREAD_MAX: usize = 64;

/// The state that a session's handles share with the host.
pub(crate) struct SessionShared {
    pub(crate) id: SessionId,
    /// Distinguishes these handles from other holders of the session, before or after.
    pub(crate) holder: u64,
    pub(crate) secret: [u8; 16],
    /// In nanoseconds. If a resumed session keeps its own timeout, it is known once the session is open.
    timeout: AtomicU64,
    state: Mutex<States>,
    /// Whether the cluster has opened it and this node has applied that. It stays so.
    opened: AtomicBool,
    /// The tasks that wait for a state.
    waiting: Arc<Wakers>,
    /// The end of the time in which the session is certainly alive, in nanoseconds of the clock; 0 before it
    /// is open.
    lease: AtomicU64,
    /// Whether it is being closed: others may get its locks before this node is notified.
    given_up: AtomicBool,
    /// Its ids.
    pub(crate) ids: ArcSwap<Vec<Id>>,
    /// Why its authentication failed, if it did.
    auth_failure: OnceCell<Error>,
    /// The gateway connection of the session, if it has one.
    pub(crate) recipient: OnceCell<Recipient>,
}

impl fmt::Debug for SessionShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Logs must not contain the secret.
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
            opened: AtomicBool::new(false),
            waiting: Arc::default(),
            lease: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            ids: ArcSwap::default(),
            auth_failure: OnceCell::new(),
            recipient: OnceCell::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, States> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> SessionState {
        self.lock().now()
    }

    /// Sets the state and notifies its readers. Returns whether a slow reader missed this state: then
    /// `catch_up` has to be called from time to time.
    pub(crate) fn set_state(&self, state: SessionState) -> bool {
        let is_behind = self.lock().set(state);
        if state == SessionState::Connected {
            self.opened.store(true, Ordering::Release);
        }
        // Not under the lock: a waker is user code, which may look at the state.
        self.waiting.wake();
        is_behind
    }

    /// Whether the session was opened here. The node publishes its tree before: from then on, it shows all
    /// that was acknowledged before the session was requested.
    pub(crate) fn was_opened(&self) -> bool {
        self.opened.load(Ordering::Acquire)
    }

    /// Reports the state to the session's gateway connection, if it has one.
    pub(crate) fn report(&self, state: SessionState, outgoing: &mut MailboxDeliveries) {
        if let Some(recipient) = self.recipient.get() {
            outgoing.add(recipient, Delivery::State(state));
        }
    }

    /// Sends the current state to readers that missed it. Returns whether some readers still miss it.
    pub(crate) fn catch_up(&self) -> bool {
        let is_behind = self.lock().catch_up();
        self.waiting.wake();
        is_behind
    }

    /// A channel of states that starts with the current one, and closes after the final one.
    pub(crate) fn states(&self) -> Receiver<SessionState> {
        self.lock().subscribe()
    }

    /// The tasks to wake after a state was sent to these channels.
    pub(crate) fn waiting(&self) -> Arc<Wakers> {
        Arc::clone(&self.waiting)
    }

    /// Whether the session is certainly alive at this moment.
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

    /// Called before a close is sent. Returns `false` if the session is detached, so that there is nothing to
    /// close.
    pub(crate) fn give_up(&self) -> bool {
        let state = self.lock();
        self.given_up.store(true, Ordering::Release);
        state.now() != SessionState::Detached
    }

    /// Detaches the session and leaves it open. Returns whether the holder still held it. From now on the
    /// holder cannot use or close it.
    pub(crate) fn detach(&self) -> bool {
        let mut state = self.lock();
        let is_open = matches!(state.now(), SessionState::Connected | SessionState::Suspended);
        let detaches = is_open && !self.given_up.load(Ordering::Acquire);
        if detaches {
            state.set(SessionState::Detached);
        }
        drop(state);
        if detaches {
            self.waiting.wake();
        }
        detaches
    }

    /// Ends the session, since its user failed to authenticate.
    pub(crate) fn fail_auth(&self, error: Error) {
        self.give_up();
        let _ = self.auth_failure.set(error);
        self.set_state(SessionState::AuthFailed);
    }

    /// The error of its handles, if it is over for them: that the node has stopped, if this ended it.
    pub(crate) fn over(&self, end: &NodeEnd) -> Option<Error> {
        let session = self.id;
        match self.state() {
            // Not asked for in other states: that makes a system call, and every read comes here.
            SessionState::Expired => Some(end.error().unwrap_or(Error::SessionExpired { session })),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Its locks may be another's before this node learns that it is closed.
    #[test]
    fn a_session_that_is_given_up_is_not_surely_alive() {
        let clock = Clock::manual();
        let open = || {
            let session = SessionShared::new(SessionId(1), 2, [0; 16], Duration::from_secs(1));
            session.set_state(SessionState::Connected);
            session.set_lease(clock.now() + Duration::from_secs(1));
            assert!(session.is_alive(&clock));
            session
        };
        let (closed, detached) = (open(), open());
        assert!(closed.give_up() && detached.detach());
        assert!(!closed.is_alive(&clock) && !detached.is_alive(&clock));
        let late = open();
        clock.advance(Duration::from_secs(1));
        assert!(!late.is_alive(&clock));
    }
}
