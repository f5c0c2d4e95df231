//! Listens at an address that is a name, once that is looked up and belongs to this host. In
//! Kubernetes, the name of a pod is there only some time after the pod, and may lead to the pod's
//! former address before.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::node::io::Time;
use crate::runtime::repeated::Repeated;
use crate::transport::names::{LookUps, Resolver};

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// How to do without the name.
pub(crate) const HINT: &str = "to listen before the name is there, give Builder::listen an IP address and a port, as \
     0.0.0.0:7400";

/// The outcome of an attempt to listen.
pub(crate) enum Attempt {
    Listens(TcpListener),
    /// The address is not this host's: the name may be behind.
    Elsewhere(String),
    Failed(String),
}

/// Tries to listen at the addresses of a name.
pub(crate) fn listen(found: &[SocketAddr]) -> Attempt {
    match TcpListener::bind(found) {
        Ok(listener) => Attempt::Listens(listener),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
            let ips: Vec<String> = found.iter().map(|address| address.ip().to_string()).collect();
            let ips = ips.join(", ");
            Attempt::Elsewhere(format!("it leads to {ips}, which this host does not have"))
        }
        Err(error) => Attempt::Failed(error.to_string()),
    }
}

/// Looks the name up and tries to listen, again and again.
#[derive(Debug)]
pub(crate) struct Listening {
    /// The name, with its port.
    address: String,
    pub(super) look_ups: Repeated,
    /// Whether connections from other hosts would not be protected.
    on_loopback_only: bool,
}

impl Listening {
    pub(crate) fn new(address: &str, resolver: Resolver, on_loopback_only: bool) -> Listening {
        let begun = LookUps::start(&resolver, [address]);
        let look_ups = Repeated::new(resolver, PAUSE, &begun);
        Listening { address: address.to_owned(), look_ups, on_loopback_only }
    }

    /// What the instance waits for, before the first answer.
    pub(crate) fn begins(&self) -> String {
        self.waits("the name is being looked up")
    }

    fn waits(&self, reason: &str) -> String {
        format!("this instance does not listen at {} yet: {reason}; {HINT}", self.address)
    }

    /// Goes on when it is time, or an answer has arrived. Returns what came of an attempt: the
    /// listener, or why this instance does not listen yet.
    pub(crate) fn go_on(&mut self, now: Time) -> Option<Result<TcpListener, String>> {
        let answer = self.look_ups.go_on(now, [self.address.as_str()])?;
        self.look_ups.rest(now);
        let reason = match answer {
            None => "no thread to look it up could be started".to_owned(),
            Some((_, Err(reason))) => reason,
            Some((_, Ok(found))) => match self.try_at(&found) {
                Attempt::Listens(listener) => return Some(Ok(listener)),
                Attempt::Elsewhere(reason) | Attempt::Failed(reason) => reason,
            },
        };
        Some(Err(self.waits(&reason)))
    }

    fn try_at(&self, found: &[SocketAddr]) -> Attempt {
        let is_outside = |one: &&SocketAddr| !one.ip().to_canonical().is_loopback();
        match found.iter().find(is_outside).filter(|_| self.on_loopback_only) {
            Some(outside) => Attempt::Failed(format!(
                "it leads to {}, where others reach it, and the traffic is not protected: set \
                 Builder::security",
                outside.ip()
            )),
            None => listen(found),
        }
    }
}
