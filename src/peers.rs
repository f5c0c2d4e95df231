//! The list of peers: who they are, and which of them this process is.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::membership::{Genesis, Member};

/// One peer of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// `host:port` as the user wrote it: what all instances agree on.
    pub(crate) address: String,
    /// What the name resolved to, or why it did not.
    resolved: std::result::Result<Vec<SocketAddr>, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peers {
    peers: Vec<Peer>,
}

impl Peers {
    /// Parses and resolves the list.
    ///
    /// # Errors
    /// [`Error::NoPeers`], [`Error::InvalidPeer`], [`Error::DuplicatePeer`]. A name that does not
    /// resolve is that of a peer that cannot be reached.
    pub(crate) fn parse<P: AsRef<str>>(list: impl IntoIterator<Item = P>) -> Result<Peers> {
        let mut peers: Vec<Peer> = Vec::new();
        for peer in list {
            let address = peer.as_ref().trim().to_owned();
            check_address(&address)?;
            let resolved = match address.to_socket_addrs() {
                Ok(found) => {
                    let mut found: Vec<SocketAddr> = found.collect();
                    found.sort_unstable();
                    found.dedup();
                    if found.is_empty() { Err("no address".to_owned()) } else { Ok(found) }
                }
                Err(error) => Err(error.to_string()),
            };
            if let Ok(found) = &resolved
                && found.iter().any(|found| found.ip().is_unspecified())
            {
                let reason = "peers cannot reach an unspecified address; name the one they use";
                return Err(Error::InvalidPeer { peer: address, reason: reason.to_owned() });
            }
            let new = Peer { address, resolved };
            if let Some(same) = peers.iter().find(|known| known.is_same(&new)) {
                return Err(Error::DuplicatePeer {
                    first: same.address.clone(),
                    second: new.address,
                });
            }
            peers.push(new);
        }
        if peers.is_empty() {
            return Err(Error::NoPeers);
        }
        Ok(Peers { peers })
    }

    /// The first that is on another host. A name that does not resolve may be anywhere, and is not
    /// connected to from a node without keys when it does and is not here: see `transport`.
    pub(crate) fn outside_loopback(&self) -> Option<String> {
        let is_outside = |peer: &&Peer| match &peer.resolved {
            Ok(found) => found.iter().any(|address| !address.ip().to_canonical().is_loopback()),
            Err(_) => false,
        };
        self.peers.iter().find(is_outside).map(|peer| peer.address.clone())
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().map(|peer| peer.address.as_str())
    }

    /// Binds the first peer that is an address of this host and free: this process is that peer.
    pub(crate) fn bind_own(&self) -> Result<(String, TcpListener)> {
        let mut tried = Vec::new();
        for peer in &self.peers {
            match &peer.resolved {
                Ok(addresses) => match TcpListener::bind(addresses.as_slice()) {
                    Ok(listener) => return Ok((peer.address.clone(), listener)),
                    Err(error) => tried.push(format!("{}: {error}", peer.address)),
                },
                Err(reason) => tried.push(format!("{}: {reason}", peer.address)),
            }
        }
        Err(Error::NotAPeer {
            peers: self.addresses().map(str::to_owned).collect(),
            detail: format!(" ({})", tried.join("; ")),
        })
    }

    /// The cluster that these peers had founded with a build before members came and went: its id
    /// and theirs follow from the list.
    pub(crate) fn founding(&self) -> Result<Genesis> {
        let mut addresses: Vec<String> = self.addresses().map(str::to_owned).collect();
        addresses.sort_unstable();
        let cluster = xxh3_64(addresses.join(",").as_bytes());
        let mut members: Vec<Member> = Vec::new();
        for address in addresses {
            // 0 is nobody's id.
            let node = xxh3_64(address.as_bytes()).max(1);
            if members.iter().any(|member| member.node == node) {
                let reason = "its id is another peer's; write its name differently".to_owned();
                return Err(Error::InvalidPeer { peer: address, reason });
            }
            members.push(Member::new(node, address));
        }
        Ok(Genesis { cluster, members })
    }
}

impl Peer {
    fn is_same(&self, other: &Peer) -> bool {
        let shared = match (&self.resolved, &other.resolved) {
            (Ok(ours), Ok(theirs)) => ours.iter().any(|address| theirs.contains(address)),
            _ => false,
        };
        shared || self.address == other.address
    }
}

pub(crate) fn check_address(address: &str) -> Result<()> {
    let invalid = |reason: &str| {
        Err(Error::InvalidPeer { peer: address.to_owned(), reason: reason.to_owned() })
    };
    let Some((host, port)) = address.rsplit_once(':') else {
        return invalid("it must be host:port");
    };
    if host.is_empty() {
        return invalid("the host is missing");
    }
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return invalid("an IPv6 address must be in brackets, as in [::1]:7400");
    }
    match port.parse::<u16>() {
        Ok(0) => invalid("port 0 means any port, which peers could not know"),
        Ok(_) => Ok(()),
        Err(_) => invalid("the port must be a number from 1 to 65535"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_lists_are_refused_by_name() {
        let none: [&str; 0] = [];
        assert_eq!(Peers::parse(none), Err(Error::NoPeers));
        for bad in
            ["", "host", ":7400", "host:", "host:0", "host:70000", "::1:7400", "0.0.0.0:7400"]
        {
            match Peers::parse([bad]) {
                Err(Error::InvalidPeer { peer, .. }) => assert_eq!(peer, bad),
                other => panic!("{bad:?}: {other:?}"),
            }
        }
        let twice = Peers::parse(["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7400"]);
        assert!(matches!(twice, Err(Error::DuplicatePeer { .. })), "{twice:?}");
        // One that cannot be reached, for now.
        assert!(Peers::parse(["127.0.0.1:7400", "no-such-host.invalid:7400"]).is_ok());
    }

    #[test]
    fn a_list_without_this_host_is_refused() {
        // A documentation address (RFC 5737): nobody's.
        let error = Peers::parse(["192.0.2.1:7400"]).unwrap().bind_own().unwrap_err();
        assert!(error.to_string().contains("192.0.2.1:7400"), "{error}");
    }

    #[test]
    fn processes_of_one_host_take_one_address_each() {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let list = [free(), free()];
        let peers = Peers::parse(&list).unwrap();
        let first = peers.bind_own().unwrap();
        let second = peers.bind_own().unwrap();
        assert_eq!([&first.0, &second.0], [&list[0], &list[1]]);
        assert!(matches!(peers.bind_own(), Err(Error::NotAPeer { .. })));
    }

    #[test]
    fn the_order_of_the_list_does_not_matter() {
        let one = Peers::parse(["127.0.0.1:7400", "127.0.0.1:7401"]).unwrap().founding().unwrap();
        let two = Peers::parse(["127.0.0.1:7401", "127.0.0.1:7400"]).unwrap().founding().unwrap();
        assert_eq!(one, two);
        let other = Peers::parse(["127.0.0.1:7400"]).unwrap().founding().unwrap();
        assert_ne!(one.cluster, other.cluster);
    }
}
