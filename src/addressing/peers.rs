//! The list of peers: their addresses, and which of them is this process.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};

use crossbeam_channel::Receiver;

use crate::addressing::listening;
use crate::addressing::names::{LookUps, several};
use crate::types::error::{Error, Result};
use crate::types::start_error::StartError;

/// The peers' addresses, `host:port`, as the user wrote them. All instances have the same list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peers {
    peers: Vec<String>,
}

impl Peers {
    /// Parses the list. One string may name several peers, separated by commas, as in ZooKeeper's
    /// connect strings. Names are not looked up: a name that does not resolve is that of a peer that
    /// cannot be reached.
    ///
    /// # Errors
    /// [`StartError::NoPeers`], [`StartError::InvalidPeer`], [`StartError::DuplicatePeer`].
    pub(crate) fn parse<P: AsRef<str>>(list: impl IntoIterator<Item = P>) -> Result<Peers> {
        let given: Vec<P> = list.into_iter().collect();
        let mut peers: Vec<String> = Vec::new();
        for peer in given.iter().flat_map(|several| several.as_ref().split(',')) {
            let address = peer.trim().to_owned();
            check_address(&address)?;
            if let Ok(literal) = address.parse() {
                check_reachable(&address, &[literal])?;
            }
            let is_same = |known: &&String| match (known.parse(), address.parse()) {
                (Ok::<SocketAddr, _>(known), Ok::<SocketAddr, _>(new)) => known == new,
                _ => **known == address,
            };
            if let Some(first) = peers.iter().find(is_same) {
                return Err(Error::Start(StartError::DuplicatePeer {
                    first: first.clone(),
                    second: address,
                }));
            }
            peers.push(address);
        }
        if peers.is_empty() {
            return Err(Error::Start(StartError::NoPeers));
        }
        Ok(Peers { peers })
    }

    /// Checks the peers by the addresses of their names, as far as those are known.
    ///
    /// # Errors
    /// [`StartError::InvalidPeer`], [`StartError::DuplicatePeer`].
    pub(crate) fn check(&self, names: &LookUps) -> Result<()> {
        let found = |peer: &String| names.get(peer).and_then(|answer| answer.as_ref().ok());
        // A name of several hosts is no single peer's address: see `names`.
        let stands_for_one = |peer: &String| found(peer).filter(|found| !several(*found));
        for (place, peer) in self.peers.iter().enumerate() {
            let Some(addresses) = found(peer) else {
                continue;
            };
            check_reachable(peer, addresses)?;
            let is_same = |former: &&String| {
                let theirs = stands_for_one(former).filter(|_| !several(addresses));
                theirs.is_some_and(|theirs| theirs.iter().any(|one| addresses.contains(one)))
            };
            if let Some(first) = self.peers[..place].iter().find(is_same) {
                return Err(Error::Start(StartError::DuplicatePeer {
                    first: first.clone(),
                    second: peer.clone(),
                }));
            }
        }
        Ok(())
    }

    /// The first peer known to be on another host. A name that does not resolve is not counted: if
    /// it later resolves to another host, a node without keys does not connect to that host.
    pub(crate) fn outside_loopback(&self, names: &LookUps) -> Option<String> {
        let is_outside = |peer: &&String| match names.get(peer) {
            Some(Ok(found)) => {
                found.iter().any(|address| !address.ip().to_canonical().is_loopback())
            }
            Some(Err(_)) | None => false,
        };
        self.peers.iter().find(is_outside).cloned()
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().map(String::as_str)
    }

    /// Binds the first peer address that is free on this host: this process becomes that peer. Waits
    /// for names to be looked up until `deadline` delivers a message. If this process `was` a peer before, its
    /// address may be in use for a moment longer: it is waited for before the next one is tried.
    pub(crate) fn bind_own<T>(
        &self,
        names: &mut LookUps,
        deadline: &Receiver<T>,
        was: impl Fn(&str) -> bool,
    ) -> Result<(String, TcpListener)> {
        let mut tried = Vec::new();
        // It delivers one message only, so names are waited for once.
        let mut deadline = Some(deadline);
        let bound =
            listening::while_in_use(|| self.bind_first(names, deadline.take(), &was, &mut tried));
        if let Ok(bound) = bound {
            return Ok(bound);
        }
        Err(Error::Start(StartError::NotAPeer {
            peers: self.peers.clone(),
            detail: format!(
                " ({}); list this instance too, or set the address where the others reach it with \
                 Builder::advertise: then this node also waits for a name that does not resolve yet",
                tried.join("; ")
            ),
        }))
    }

    /// Binds the first address that is free. `tried`: why each one is not.
    fn bind_first<T>(
        &self,
        names: &mut LookUps,
        deadline: Option<&Receiver<T>>,
        was: impl Fn(&str) -> bool,
        tried: &mut Vec<String>,
    ) -> io::Result<(String, TcpListener)> {
        tried.clear();
        let mut failed = ErrorKind::NotFound;
        for peer in &self.peers {
            if let Some(deadline) = deadline {
                names.wait(Some(peer), deadline);
            }
            let reason = match names.get(peer) {
                Some(Ok(addresses)) => match listening::bind(addresses, was(peer)) {
                    Ok(listener) => return Ok((peer.clone(), listener)),
                    Err(error) if error.kind() == ErrorKind::AddrInUse => {
                        failed = ErrorKind::AddrInUse;
                        error.to_string()
                    }
                    Err(error) => error.to_string(),
                },
                Some(Err(reason)) => reason.clone(),
                None => "looking it up takes too long".to_owned(),
            };
            tried.push(format!("{peer}: {reason}"));
        }
        Err(failed.into())
    }
}

/// Checks that others can reach these addresses.
fn check_reachable(peer: &str, addresses: &[SocketAddr]) -> Result<()> {
    if addresses.iter().any(|address| address.ip().is_unspecified()) {
        let reason = "peers cannot reach an unspecified address; name the one they use".to_owned();
        return Err(Error::Start(StartError::InvalidPeer { peer: peer.to_owned(), reason }));
    }
    Ok(())
}

pub(crate) fn check_address(address: &str) -> Result<()> {
    let invalid = |reason: &str| {
        Err(Error::Start(StartError::InvalidPeer {
            peer: address.to_owned(),
            reason: reason.to_owned(),
        }))
    };
    if address.contains("://") {
        return invalid("it must be host:port, without a scheme");
    }
    if let Some(place) = address.find('/') {
        let (peer, path) = address.split_at(place);
        return invalid(&format!(
            "it must be host:port, as {peer}: a list of peers names no chroot; call \
             Session::chroot({path:?}) once it has joined"
        ));
    }
    if address.contains(',') {
        return invalid("it must be one address, not a list");
    }
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
    use crossbeam_channel::never;

    use super::*;
    use crate::addressing::names::Resolver;

    fn bind_own(peers: &Peers) -> Result<(String, TcpListener)> {
        let mut names = LookUps::start(&Resolver::default(), peers.addresses());
        peers.bind_own(&mut names, &never::<()>(), |_| false)
    }

    #[test]
    fn bad_lists_are_refused_by_name() {
        let none: [&str; 0] = [];
        assert_eq!(Peers::parse(none), Err(Error::Start(StartError::NoPeers)));
        for bad in
            ["", "host", ":7400", "host:", "host:0", "host:70000", "::1:7400", "0.0.0.0:7400"]
        {
            match Peers::parse([bad]) {
                Err(Error::Start(StartError::InvalidPeer { peer, .. })) => assert_eq!(peer, bad),
                other => panic!("{bad:?}: {other:?}"),
            }
        }
        let several = |list| Peers::parse([list]).unwrap_err().to_string();
        assert!(several("a:1,,b:2").contains("host:port"));
        assert!(several("a:1,b:2,a:1").contains("a:1"));
        let twice = Peers::parse(["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7400"]);
        assert!(matches!(twice, Err(Error::Start(StartError::DuplicatePeer { .. }))), "{twice:?}");
        // A name that does not resolve is a peer that cannot be reached yet.
        assert!(Peers::parse(["127.0.0.1:7400", "no-such-host.invalid:7400"]).is_ok());
    }

    /// A connect string of ZooKeeper was refused as an IPv6 address without brackets.
    #[test]
    fn one_string_may_name_several_peers_and_no_chroot() {
        let list = ["127.0.0.1:7400", "127.0.0.1:7401", "[::1]:7402"];
        let parsed = Peers::parse(list).unwrap();
        assert_eq!(Peers::parse([list.join(",")]).unwrap(), parsed);
        assert_eq!(
            Peers::parse(["127.0.0.1:7400 , 127.0.0.1:7401", "[::1]:7402"]).unwrap(),
            parsed
        );
        for (list, hints) in [
            ("a:1,b:2/app", ["b:2", "Session::chroot(\"/app\")"]),
            ("a:1/", ["a:1", "Session::chroot(\"/\")"]),
            ("http://a:1", ["http://a:1", "without a scheme"]),
        ] {
            let error = Peers::parse([list]).unwrap_err().to_string();
            assert!(hints.iter().all(|hint| error.contains(hint)), "{error}");
        }
        let error = check_address("a:1,b:2").unwrap_err().to_string();
        assert!(error.contains("one address"), "{error}");
    }

    #[test]
    fn a_list_without_this_host_is_refused() {
        // A documentation address (RFC 5737), which no host has.
        let error = bind_own(&Peers::parse(["192.0.2.1:7400"]).unwrap()).unwrap_err();
        assert!(error.to_string().contains("192.0.2.1:7400"), "{error}");
    }

    #[test]
    fn processes_of_one_host_take_one_address_each() {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let list = [free(), free()];
        let peers = Peers::parse(&list).unwrap();
        let first = bind_own(&peers).unwrap();
        let second = bind_own(&peers).unwrap();
        assert_eq!([&first.0, &second.0], [&list[0], &list[1]]);
        assert!(matches!(bind_own(&peers), Err(Error::Start(StartError::NotAPeer { .. }))));
    }
}
