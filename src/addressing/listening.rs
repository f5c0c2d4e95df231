//! Listens at an address with a name, once the name is looked up and leads to this host. In Kubernetes,
//! the name of a pod exists only some time after the pod, and may lead to the pod's former address until
//! then.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::addressing::names::{LookUps, Resolver};
use crate::addressing::repeated::RepeatedLookups;
use crate::node::io::Time;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a start waits for an address that is in use, as for a data directory that is.
const IN_USE_WAIT: Duration = Duration::from_secs(1);
/// The pause between two attempts at an address that is in use.
const IN_USE_PAUSE: Duration = Duration::from_millis(10);

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

/// Repeats an attempt to bind while the address is in use. A socket may outlive its user for a moment: a process
/// that ends has it, and so has a child of this process between its fork and its exec.
pub(crate) fn while_in_use<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = crossbeam_channel::after(IN_USE_WAIT);
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::AddrInUse && end.is_empty() => {
                let _ = crossbeam_channel::after(IN_USE_PAUSE).recv();
            }
            bound => return bound,
        }
    }
}

/// Listens at one of these addresses. `waits`: also if it is in use for a moment.
pub(crate) fn bind(addresses: &[SocketAddr], waits: bool) -> io::Result<TcpListener> {
    let attempt = || TcpListener::bind(addresses);
    if waits { while_in_use(attempt) } else { attempt() }
}

impl ListenAttempt {
    /// The outcome of binding the addresses of a name.
    pub(crate) fn of(bound: io::Result<TcpListener>, found: &[SocketAddr]) -> ListenAttempt {
        match bound {
            Ok(listener) => ListenAttempt::Listens(listener),
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                let ips: Vec<String> =
                    found.iter().map(|address| address.ip().to_string()).collect();
                let ips = ips.join(", ");
                ListenAttempt::Elsewhere(format!(
                    "it leads to {ips}, which this host does not have"
                ))
            }
            Err(error) => ListenAttempt::Failed(error.to_string()),
        }
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
            None => ListenAttempt::of(bind(found, false), found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_is_tried_again_and_other_errors_are_returned() {
        let mut attempts = 0;
        let bound = while_in_use(|| {
            attempts += 1;
            if attempts < 3 { Err(ErrorKind::AddrInUse.into()) } else { Ok(attempts) }
        });
        assert_eq!(bound.unwrap(), 3);
        let mut attempts = 0;
        let refused = while_in_use(|| {
            attempts += 1;
            Err::<(), _>(ErrorKind::AddrNotAvailable.into())
        });
        assert_eq!((refused.unwrap_err().kind(), attempts), (ErrorKind::AddrNotAvailable, 1));
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let refused = while_in_use(|| TcpListener::bind(address)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    }
}
