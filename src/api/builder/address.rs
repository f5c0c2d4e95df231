//! Finds out which of the peers this instance is: the address that it listens on, and the ids that
//! its sessions get from that address.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use super::{Builder, earlier};
use crate::addressing::listening::{self, ListenAttempt};
use crate::addressing::names::{self, LookUps};
use crate::addressing::peers::{Peers, check_address};
use crate::runtime::clock::Clock;
use crate::security::Security;
use crate::types::acl::Id;
use crate::types::error::{Error, Result};
use crate::types::start_error::StartError;

/// How long `join` waits for a name that shows which of the peers this instance is.
pub(super) const OWN_NAME_WAIT: Duration = Duration::from_secs(10);
/// The pause before `join` looks up the names again.
pub(super) const OWN_NAME_PAUSE: Duration = Duration::from_millis(500);
/// How long `join` waits for the other names: those resolved by then are checked at once.
pub(super) const NAMES_WAIT: Duration = Duration::from_millis(250);

impl Builder {
    /// Starts to look up the names of the peers and of the settings.
    pub(super) fn look_up(&self, peers: &Peers) -> LookUps {
        let settings = [&self.advertise, &self.listen];
        let given = settings.into_iter().flatten().map(String::as_str);
        LookUps::start(&self.resolver, peers.addresses().chain(given))
    }

    /// Returns the address of this instance, and its listener unless it has to wait for a name.
    pub(super) fn bind(
        &self,
        peers: &Peers,
        names: &mut LookUps,
    ) -> Result<(String, Option<TcpListener>)> {
        let address = match (&self.advertise, &self.listen) {
            (Some(advertised), _) => advertised,
            (None, None) => return self.bind_own(peers, names),
            (None, Some(listen)) => {
                // With a list of one peer, this instance is that peer, whatever address it listens
                // on.
                let is_only = peers.addresses().count() == 1;
                let own = peers.addresses().find(|peer| is_only || *peer == *listen);
                own.ok_or_else(|| {
                    Error::Start(StartError::NotAPeer {
                    peers: peers.addresses().map(str::to_owned).collect(),
                    detail:
                        " (the address to listen on is not one of them); list this instance too, \
                             or set the address where the others reach it with Builder::advertise"
                            .to_owned(),
                })
                })?
            }
        };
        check_address(address)?;
        let listener = bind(self.listen.as_deref().unwrap_or(address), names)?;
        Ok((address.to_owned(), listener))
    }

    /// Finds the peer that this instance is, and listens on its address. Fails if there is none:
    /// without it, nothing can start.
    fn bind_own(
        &self,
        peers: &Peers,
        names: &mut LookUps,
    ) -> Result<(String, Option<TcpListener>)> {
        let clock = Clock::real();
        let until = clock.now().saturating_add(self.own_name_wait);
        loop {
            let left = until.saturating_sub(clock.now());
            let bound = peers.bind_own(names, &crossbeam_channel::after(left), earlier::was_here);
            let is_known = |peer: &str| matches!(names.get(peer), Some(Ok(_)));
            let left = until.saturating_sub(clock.now());
            match bound {
                Err(Error::Start(StartError::NotAPeer { .. }))
                    if !peers.addresses().all(is_known) && !left.is_zero() =>
                {
                    let pause = crossbeam_channel::after(left.min(OWN_NAME_PAUSE));
                    let _ = pause.recv();
                    *names = self.look_up(peers);
                }
                bound => return bound.map(|(address, listener)| (address, Some(listener))),
            }
        }
    }
}

/// The address of this host from which it reaches the first reachable peer, among the peers with
/// known names. Sends nothing.
pub(super) fn towards(peers: &Peers, names: &LookUps) -> Option<IpAddr> {
    let first = |peer| names.get(peer)?.as_ref().ok()?.first().copied();
    peers.addresses().find_map(|peer| names::towards(first(peer)?))
}

/// Listens on this address. `None` if the address is a name that does not resolve yet, or not to this
/// host yet.
pub(super) fn bind(address: &str, names: &mut LookUps) -> Result<Option<TcpListener>> {
    check_address(address)?;
    names.wait_for(Some(address), NAMES_WAIT);
    let Some(Ok(found)) = names.get(address) else {
        return Ok(None);
    };
    let failed = |reason| {
        Err(Error::Start(StartError::CannotListen { address: address.to_owned(), reason }))
    };
    match ListenAttempt::of(listening::bind(found, true), found) {
        ListenAttempt::Listens(listener) => Ok(Some(listener)),
        ListenAttempt::Elsewhere(_) if address.parse::<SocketAddr>().is_err() => Ok(None),
        ListenAttempt::Elsewhere(reason) | ListenAttempt::Failed(reason) => failed(reason),
    }
}

/// The id of this instance's sessions in scheme `ip`.
pub(super) fn own(listened: Option<SocketAddr>, advertised: &str, names: &LookUps) -> Option<Id> {
    let bound = listened.map(|address| address.ip());
    let ip = bound.filter(|ip| !ip.is_unspecified()).or_else(|| {
        let resolved = names.get(advertised)?.as_ref().ok()?.first()?;
        Some(resolved.ip())
    })?;
    Some(Id::new("ip", ip.to_canonical().to_string()))
}

/// The id of this instance's sessions in scheme `x509`.
#[cfg(feature = "tls")]
pub(super) fn own_subject(security: &Security) -> Option<Id> {
    let Security::Tls(tls) = security else {
        return None;
    };
    let id = Id::new("x509", tls.keys().subject.clone());
    match id.check() {
        Ok(()) => Some(id),
        Err(reason) => {
            tracing::warn!(reason, "this instance's sessions have no id of scheme x509");
            None
        }
    }
}

#[cfg(not(feature = "tls"))]
pub(super) fn own_subject(_security: &Security) -> Option<Id> {
    None
}
