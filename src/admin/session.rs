//! The session of an endpoint: opened when it is first needed, and again after it was lost.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::api::coordinator::Coordinator;
use crate::api::session::Session;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};

/// How long a request waits for a reply of the cluster.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long a request waits until the session has its ids. Other requests wait behind it.
const IDS_WITHIN: Duration = Duration::from_millis(500);

pub(super) struct AdminSession {
    coordinator: Coordinator,
    auths: Vec<(String, Vec<u8>)>,
    current: Mutex<Option<Current>>,
}

struct Current {
    session: Session,
    /// The requests for its ids that are not answered yet.
    asked: Vec<Pending<'static, ()>>,
}

impl AdminSession {
    pub(super) fn new(coordinator: Coordinator, auths: Vec<(String, Vec<u8>)>) -> AdminSession {
        AdminSession { coordinator, auths, current: Mutex::new(None) }
    }

    /// The session, with its ids.
    ///
    /// # Errors
    /// The errors of opening it; [`Error::Timeout`] while it does not have its ids, as without a
    /// quorum.
    pub(super) fn get(&self) -> Result<Session> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let former = current.take().filter(|current| !current.session.state().is_final());
        let mut now = match former {
            Some(current) => current,
            None => self.open()?,
        };
        while let Some(next) = now.asked.last_mut() {
            match next.wait_within(IDS_WITHIN) {
                Some(Ok(())) => drop(now.asked.pop()),
                // A session without all its ids is not used: it is closed, and the next request
                // opens another one.
                Some(Err(error)) => return Err(error),
                None => {
                    *current = Some(now);
                    return Err(self.late("opening the endpoint's session", IDS_WITHIN));
                }
            }
        }
        let session = now.session.clone();
        *current = Some(now);
        Ok(session)
    }

    fn open(&self) -> Result<Current> {
        let session = self.coordinator.open_session()?;
        let ask = |(scheme, credentials): &(String, Vec<u8>)| session.add_auth(scheme, credentials);
        let asked = self.auths.iter().map(ask).collect();
        Ok(Current { session, asked })
    }

    /// Calls a function with the session, and again with a new session if the former one was over.
    pub(super) fn with<T>(&self, call: impl Fn(&Session) -> Result<T>) -> Result<T> {
        match call(&self.get()?) {
            // The call had no effect, since the end of the session was known before.
            Err(Error::SessionExpired { .. } | Error::SessionClosed { .. }) => call(&self.get()?),
            called => called,
        }
    }

    pub(super) fn late(&self, operation: &str, waited: Duration) -> Error {
        let reason = self.coordinator.shared().readiness.waiting_for();
        Error::Timeout { operation: operation.to_owned(), waited, reason }
    }
}
