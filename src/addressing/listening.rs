//! Listens at an address with a name, once the name is looked up and leads to this host. In Kubernetes,
//! the name of a pod exists only some time after the pod, and may lead to the pod's former address until
//! then.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::addressing::names::{LookUps, Resolver};
use crate::addressing::repeated::RepeatedLookups;
use crate::node::io::Time;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// How to listen without the name.
pub(crate) const HINT: &str = "to listen before the name is there, give Builder::listen an IP address and a port, as \
     0.0.0.0:7400";

/// The outcome of an attempt to listen.
pub(crate) enum ListenAttempt {
    Listens(TcpListener),
    /// The address is not this host's: the name may be out of date.
    Elsewhere(String),
    Failed(String),
}

/// Tries to listen at the addresses of a name.
pub(crate) fn listen(found: &[SocketAddr]) -> ListenAttempt {
    match TcpListener::bind(found) {
        Ok(listener) => ListenAttempt::Listens(listener),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
            let ips: Vec<String> = found.iter().map(|address| address.ip().to_string()).collect();
            let ips = ips.join(", ");
            ListenAttempt::Elsewhere(format!("it leads to {ips}, which this host does not have"))
        }
        Err(error) => ListenAttempt::Failed(error.to_string()),
    }
}

/// Why a member does not listen yet; nothing if it does.
#[derive(Debug, Default)]
pub(crate) struct NotListening(Mutex<Option<String>>);

impl NotListening {
    /// Sets why this member does not listen yet; `None` if it does.
    pub(crate) fn set(&self, reason: Option<String>) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = reason.as_ref().filter(|reason| current.as_ref() != Some(*reason)) {
            tracing::warn!("{reason}");
        }
        *current = reason;
    }

    /// Why nobody can connect to this member yet.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Looks the name up and tries to listen, repeatedly until it succeeds.
#[derive(Debug)]
pub(crate) struct Listening {
    /// The name, with its port.
    address: String,
    pub(crate) look_ups: RepeatedLookups,
    /// Whether connections from other hosts would not be protected.
    on_loopback_only: bool,
}

impl Listening {
    pub(crate) fn new(address: &str, resolver: Resolver, on_loopback_only: bool) -> Listening {
        let begun = LookUps::start(&resolver, [address]);
        let look_ups = RepeatedLookups::new(resolver, PAUSE, &begun);
        Listening { address: address.to_owned(), look_ups, on_loopback_only }
    }

    /// The reason why the instance does not listen, before the first look-up is answered.
    pub(crate) fn first_reason(&self) -> String {
        self.describe("the name is being looked up")
    }

    fn describe(&self, reason: &str) -> String {
        format!("this instance does not listen at {} yet: {reason}; {HINT}", self.address)
    }

    /// Starts a look-up when it is time, and tries to listen when an answer has arrived. Returns the
    /// result of an attempt: the listener, or why this instance does not listen yet.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Result<TcpListener, String>> {
        let answer = self.look_ups.poll(now, [self.address.as_str()])?;
        self.look_ups.begin_pause(now);
        let reason = match answer {
            None => "no thread to look it up could be started".to_owned(),
            Some((_, Err(reason))) => reason,
            Some((_, Ok(found))) => match self.try_at(&found) {
                ListenAttempt::Listens(listener) => return Some(Ok(listener)),
                ListenAttempt::Elsewhere(reason) | ListenAttempt::Failed(reason) => reason,
            },
        };
        Some(Err(self.describe(&reason)))
    }

    fn try_at(&self, found: &[SocketAddr]) -> ListenAttempt {
        let is_outside = |one: &&SocketAddr| !one.ip().to_canonical().is_loopback();
        match found.iter().find(is_outside).filter(|_| self.on_loopback_only) {
            Some(outside) => ListenAttempt::Failed(format!(
                "it leads to {}, where others reach it, and the traffic is not protected: set \
                 Builder::security",
                outside.ip()
            )),
            None => listen(found),
        }
    }
}
