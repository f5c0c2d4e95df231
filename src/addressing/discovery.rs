//! Looks up the name by which instances discover each other. It does so until there is a cluster. In a
//! cluster it does so while no leader is known, since the members may have restarted at other addresses.

use std::net::SocketAddr;
use std::time::Duration;

use crate::addressing::names::{LookUps, Resolver};
use crate::addressing::repeated::RepeatedLookups;
use crate::node::io::{Discovered, Time};

/// The pause between two look-ups.
const PAUSE: Duration = Duration::from_secs(1);

/// What an instance has to discover.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// The name, with its port.
    pub(crate) name: String,
    /// How many instances it takes to found a cluster.
    pub(crate) expected: usize,
    /// Whether it may found one.
    pub(crate) founds: bool,
    /// The address of this instance. Only addresses of the same family count: an instance may have
    /// one of each.
    pub(crate) own: SocketAddr,
}

/// Addresses count for founding once two look-ups in a row have found the same ones: while instances
/// start, a name has only some of their addresses.
#[derive(Debug)]
pub(crate) struct PeerDiscovery {
    wanted: Wanted,
    pub(crate) look_ups: RepeatedLookups,
    /// The addresses from the last look-up.
    last: Vec<String>,
    /// What was last reported to the node.
    reported: Option<Discovered>,
    /// The other addresses that were last given to the network.
    contacted: Vec<String>,
}

impl PeerDiscovery {
    pub(crate) fn new(wanted: Wanted, resolver: Resolver) -> PeerDiscovery {
        let begun = LookUps::start(&resolver, [wanted.name.as_str()]);
        let look_ups = RepeatedLookups::new(resolver, PAUSE, &begun);
        PeerDiscovery { wanted, look_ups, last: Vec::new(), reported: None, contacted: Vec::new() }
    }

    /// Takes an answer that has arrived, and looks the name up again when it is time. Returns the input
    /// for the node if the result has changed.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Discovered> {
        let answer = self.look_ups.poll(now, [self.wanted.name.as_str()])?;
        self.look_ups.begin_pause(now);
        let is_settled = match answer {
            Some((_, Ok(found))) => {
                let found = self.of_own_family(&found);
                let before = std::mem::replace(&mut self.last, found);
                before == self.last
            }
            // The former addresses continue to count, since they may still be right.
            Some((_, Err(reason))) => {
                tracing::debug!(reason, "the other instances cannot be discovered now");
                self.reported.as_ref().is_some_and(|reported| !reported.addresses.is_empty())
            }
            // The look-up could not be started.
            None => false,
        };
        let Wanted { name, expected, founds, .. } = &self.wanted;
        let addresses = if is_settled { self.last.clone() } else { Vec::new() };
        let (name, expected, founds) = (name.clone(), *expected, *founds);
        let found = Discovered { name, expected, founds, addresses };
        if self.reported.as_ref() == Some(&found) {
            return None;
        }
        self.reported = Some(found.clone());
        Some(found)
    }

    /// The addresses of other instances by the last look-up, settled or not; `None` if they have not
    /// changed.
    pub(crate) fn new_others(&mut self) -> Option<Vec<String>> {
        let own = self.wanted.own.to_string();
        let others: Vec<String> =
            self.last.iter().filter(|address| **address != own).cloned().collect();
        if others == self.contacted {
            return None;
        }
        self.contacted.clone_from(&others);
        Some(others)
    }

    fn of_own_family(&self, found: &[SocketAddr]) -> Vec<String> {
        let found = found.iter().map(canonical);
        let of_family = found.filter(|address| address.is_ipv4() == self.wanted.own.is_ipv4());
        let mut addresses: Vec<String> = of_family.map(|address| address.to_string()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}

/// The canonical form of an address.
pub(crate) fn canonical(address: &SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
