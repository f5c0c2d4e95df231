//! Looking up host names, and deciding whether a name stands for a single host.
//!
//! The system's resolver blocks, for minutes if its servers do not answer, and cannot be
//! interrupted. So each name is looked up on a thread `quorate-dns`, which is never joined, and the
//! caller waits for the answer only as long as it wants to. The number of these threads is bounded:
//! here by [`THREADS_MAX`] for each join, and in `transport` for each instance.
//!
//! The name by which an instance founds a cluster must stand for that instance alone. If it stands
//! for several hosts, each of them would take itself for the listed one and found a cluster of its
//! own. [`OwnName`] checks that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, after, select, unbounded};

use crate::node::io::Hindrance;

/// The most names that one join looks up at a time.
const THREADS_MAX: usize = 64;

/// The addresses of a name, or the reason why they are not known.
pub(crate) type Answer = Result<Vec<SocketAddr>, String>;

/// Looks up a name (`host:port`).
type LookUp = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// How names are looked up: by the system, except in tests.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<LookUp>);

impl Default for Resolver {
    fn default() -> Resolver {
        Resolver(Arc::new(|name| Ok(name.to_socket_addrs()?.collect())))
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl Resolver {
    #[cfg(test)]
    pub(crate) fn new(
        look_up: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Resolver {
        Resolver(Arc::new(look_up))
    }

    /// The addresses of a name, in the order in which to try them. May block for minutes.
    pub(crate) fn look_up(&self, name: &str) -> Answer {
        match (self.0)(name) {
            Ok(addresses) if addresses.is_empty() => Err(format!("{name:?} has no address")),
            Ok(addresses) => Ok(addresses),
            Err(error) => Err(format!("cannot look up {name:?}: {error}")),
        }
    }
}

/// Runs a look-up of names on a thread of its own.
///
/// # Errors
/// If the system cannot start a thread.
pub(crate) fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("quorate-dns".to_owned()).spawn(run).map(drop)
}

/// The addresses of the names given to a join, as far as they are known.
#[derive(Debug)]
pub(crate) struct LookUps {
    known: BTreeMap<String, Answer>,
    missing: usize,
    answers: Receiver<(String, Answer)>,
}

impl LookUps {
    /// Starts to look up those addresses that are names.
    pub(crate) fn start<'a>(
        resolver: &Resolver,
        addresses: impl IntoIterator<Item = &'a str>,
    ) -> LookUps {
        let mut known = BTreeMap::new();
        let mut names = Vec::new();
        for address in addresses {
            match address.parse::<SocketAddr>() {
                Ok(literal) => drop(known.insert(address.to_owned(), Ok(vec![literal]))),
                Err(_) if !names.contains(&address) => names.push(address),
                Err(_) => {}
            }
        }
        // Join -> look-ups: as many as there are names. Look-ups -> join: one answer for each.
        let (names_tx, names_rx) = unbounded::<String>();
        let (answers_tx, answers) = unbounded();
        for name in &names {
            let _ = names_tx.send((*name).to_owned());
        }
        for _ in 0..names.len().min(THREADS_MAX) {
            let (resolver, names_rx, answers_tx) =
                (resolver.clone(), names_rx.clone(), answers_tx.clone());
            let started = spawn(move || {
                while let Ok(name) = names_rx.try_recv() {
                    let answer = resolver.look_up(&name);
                    // The join has returned and waits for no further answers.
                    if answers_tx.send((name, answer)).is_err() {
                        return;
                    }
                }
            });
            if let Err(error) = started {
                tracing::warn!(%error, "cannot start a thread to look up names");
                break;
            }
        }
        LookUps { known, missing: names.len(), answers }
    }

    /// The answer for this address; `None` while it is being looked up.
    pub(crate) fn get(&self, address: &str) -> Option<&Answer> {
        self.known.get(address)
    }

    /// Waits until this address is known, or all are, until `deadline` delivers a message at the
    /// latest.
    pub(crate) fn wait<T>(&mut self, address: Option<&str>, deadline: &Receiver<T>) {
        while self.missing > 0 && address.is_none_or(|address| !self.known.contains_key(address)) {
            select! {
                recv(self.answers) -> answer => match answer {
                    Ok((name, answer)) => {
                        self.missing -= 1;
                        self.known.insert(name, answer);
                    }
                    // The threads could not be started.
                    Err(_) => return,
                },
                recv(deadline) -> _ => return,
            }
        }
    }

    /// As [`LookUps::wait`], for at most this time.
    pub(crate) fn wait_for(&mut self, address: Option<&str>, time: Duration) {
        self.wait(address, &after(time));
    }

    /// The channel of the answers that have not been received yet. It closes after the last one.
    pub(crate) fn answers(&self) -> Receiver<(String, Answer)> {
        self.answers.clone()
    }

    /// The addresses found until now.
    pub(crate) fn found(&self) -> impl Iterator<Item = (&str, &[SocketAddr])> {
        self.known.iter().filter_map(|(address, answer)| {
            answer.as_ref().ok().map(|found| (address.as_str(), found.as_slice()))
        })
    }
}

/// The address of this host from which it reaches the given one. Sends nothing.
pub(crate) fn towards(address: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(address).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The address of this host from which it reaches other hosts. Sends nothing.
pub(crate) fn outward() -> Option<IpAddr> {
    // Documentation addresses (RFC 5737, RFC 3849): only the route is asked for.
    let others = ["192.0.2.1:9", "[2001:db8::1]:9"].into_iter();
    others.filter_map(|other| towards(other.parse().ok()?)).next()
}

/// Whether this is an address of this host: a host reaches its own addresses from themselves.
pub(crate) fn is_own(address: &SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    ip.is_loopback() || towards(*address).is_some_and(|from| from.to_canonical() == ip)
}

/// Whether these addresses belong to several hosts: there is more than one of a family.
pub(crate) fn several<'a>(addresses: impl IntoIterator<Item = &'a SocketAddr>) -> bool {
    let ips = addresses.into_iter().map(|address| address.ip().to_canonical());
    let (four, six): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = ips.partition(IpAddr::is_ipv4);
    four.len() > 1 || six.len() > 1
}

/// Whether the addresses of this instance's own name belong to further hosts. One host may have
/// several addresses, if all are its own. (Each loopback address counts as a host, since tests use
/// them as hosts.)
fn several_for_own(addresses: &[SocketAddr]) -> bool {
    let own = addresses.iter().filter(|address| is_own(address)).count();
    if own == addresses.len() {
        return several(addresses.iter().filter(|one| one.ip().to_canonical().is_loopback()));
    }
    own > 0 || several(addresses)
}

fn ips(addresses: &[SocketAddr]) -> String {
    let mut ips: Vec<String> = addresses.iter().map(|one| one.ip().to_string()).collect();
    ips.sort_unstable();
    ips.dedup();
    ips.join(", ")
}

/// Whether this instance may found a cluster under its own name.
#[derive(Debug)]
pub(crate) struct OwnName {
    own: String,
    list: Vec<String>,
    /// Whether the user has set the name: [`Builder::advertise`](crate::Builder::advertise).
    is_advertised: bool,
    found: BTreeMap<String, Vec<SocketAddr>>,
}

impl OwnName {
    pub(crate) fn new(
        own: &str,
        list: Vec<String>,
        is_advertised: bool,
        known: &LookUps,
    ) -> OwnName {
        let mut name = OwnName { own: own.to_owned(), list, is_advertised, found: BTreeMap::new() };
        for (address, found) in known.found() {
            name.found(address, found.to_vec());
        }
        name
    }

    /// All names to look up.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let listed = self.list.iter().filter(|address| !address.eq_ignore_ascii_case(&self.own));
        let all = listed.chain([&self.own]).map(String::as_str);
        all.filter(|address| address.parse::<SocketAddr>().is_err())
    }

    /// A look-up has finished.
    pub(crate) fn found(&mut self, address: &str, found: Vec<SocketAddr>) {
        let address = address.to_ascii_lowercase();
        self.found.insert(address, found);
    }

    /// Why no cluster may be founded, as far as the names are known now.
    pub(crate) fn hindrance(&self) -> Option<Hindrance> {
        let own = &self.own;
        let found = |address: &str| self.found.get(&address.to_ascii_lowercase());
        let hindrance = |reason, forbids_joining| Some(Hindrance { reason, forbids_joining });
        if let Some(found) = found(own)
            && several_for_own(found)
        {
            let reason = format!(
                "{own} stands for several hosts ({}), so it cannot be one instance's address: list a \
                 name or an address of its own for each instance, and name this one's by \
                 Builder::advertise",
                ips(found)
            );
            return hindrance(reason, true);
        }
        let others = self.list.iter().filter(|address| !address.eq_ignore_ascii_case(own));
        for other in others {
            if let Some(found) = found(other)
                && several(found)
            {
                let reason = format!(
                    "{other} stands for several hosts ({}): an existing cluster can be joined through \
                     it, but no cluster is founded from a list that contains it; to found one, list \
                     a name or an address of its own for each instance",
                    ips(found)
                );
                return hindrance(reason, false);
            }
        }
        // If there are other peers on the list, all of them, or a majority, have to agree.
        let is_alone = self.list.len() == 1 && self.list[0].eq_ignore_ascii_case(own);
        if !is_alone {
            return None;
        }
        match found(own) {
            None => hindrance(
                format!(
                    "it is not known yet whether {own}, the only peer, stands for this host alone: \
                     the name could not be looked up"
                ),
                false,
            ),
            Some(found) if !self.is_advertised && !found.iter().all(is_own) => hindrance(
                format!(
                    "{own} is not an address of this host ({}), and several instances may be behind \
                     it: list an address of its own for each instance; or, if this will always be \
                     the only instance, confirm the address by Builder::advertise",
                    ips(found)
                ),
                true,
            ),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{bounded, never};

    use super::*;

    /// The own name, and a list of names with their addresses.
    fn own(own: &str, is_advertised: bool, names: &[(&str, &[&str])]) -> OwnName {
        let list = names.iter().map(|(name, _)| (*name).to_owned()).collect();
        let none = LookUps::start(&Resolver::default(), []);
        let mut own = OwnName::new(own, list, is_advertised, &none);
        for (name, ips) in names.iter().filter(|(_, ips)| !ips.is_empty()) {
            let found = ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 7400));
            own.found(name, found.collect());
        }
        own
    }

    fn reason(own: &OwnName) -> (String, bool) {
        let hindrance = own.hindrance().expect("it must not found");
        (hindrance.reason, hindrance.forbids_joining)
    }

    /// Documentation addresses (RFC 5737, RFC 3849), which no host has.
    const ELSEWHERE: [&str; 3] = ["198.51.100.1", "198.51.100.2", "2001:db8::1"];

    #[test]
    fn a_name_of_one_host_founds() {
        for ips in
            [&["127.0.0.1"][..], &["127.0.0.1", "::1"], &["::1"], &["127.0.0.2", "127.0.0.2"]]
        {
            for is_advertised in [false, true] {
                assert_eq!(
                    own("App:7400", is_advertised, &[("app:7400", ips)]).hindrance(),
                    None,
                    "{ips:?}"
                );
            }
        }
        // Behind address translation, the name's address is not one of this host's own.
        assert_eq!(own("app:7400", true, &[("app:7400", &ELSEWHERE[..1])]).hindrance(), None);
        assert_eq!(own("app:7400", true, &[("app:7400", &ELSEWHERE[1..])]).hindrance(), None);
        // Names that do not resolve belong to other peers that cannot be reached.
        let three = [("a:1", &["127.0.0.1"][..]), ("b:1", &[]), ("c:1", &ELSEWHERE[1..])];
        assert_eq!(own("a:1", false, &three).hindrance(), None);
        assert_eq!(own("b:1", false, &three).hindrance(), None);
    }

    #[test]
    fn a_name_of_several_hosts_neither_founds_nor_joins() {
        for ips in [
            &["127.0.0.2", "127.0.0.3"][..],
            &["127.0.0.1", "127.0.0.2", "::1"],
            &ELSEWHERE[..2],
            // This host, and another one.
            &["127.0.0.1", "198.51.100.1"],
            &["127.0.0.1", "2001:db8::1"],
        ] {
            for is_advertised in [false, true] {
                let (reason, forbids_joining) =
                    reason(&own("app:1", is_advertised, &[("app:1", ips)]));
                assert!(reason.starts_with("app:1 stands for several hosts ("), "{reason}");
                assert!(ips.iter().all(|ip| reason.contains(ip)), "{reason}");
                assert!(reason.contains("Builder::advertise"), "{reason}");
                assert!(forbids_joining);
            }
        }
    }

    #[test]
    fn a_list_with_a_name_of_several_hosts_founds_nothing_and_joins() {
        let list = [("a:1", &["127.0.0.1"][..]), ("all:1", &ELSEWHERE[..2])];
        // Whether it is on the list or not.
        for name in ["a:1", "127.0.0.9:1"] {
            let (reason, forbids_joining) = reason(&own(name, true, &list));
            assert!(
                reason.starts_with("all:1 stands for several hosts (198.51.100.1, "),
                "{reason}"
            );
            assert!(!forbids_joining);
        }
    }

    #[test]
    fn an_only_peer_founds_once_it_is_known_to_be_this_host() {
        let mut app = own("app:1", false, &[("app:1", &[])]);
        let (unknown, forbids_joining) = reason(&app);
        assert!(unknown.contains("could not be looked up") && !forbids_joining, "{unknown}");
        // For example the address of a load balancer, which may have others behind it.
        app.found("app:1", vec![SocketAddr::new(ELSEWHERE[0].parse().unwrap(), 1)]);
        let (balanced, forbids_joining) = reason(&app);
        assert!(balanced.contains("not an address of this host (198.51.100.1)"), "{balanced}");
        assert!(forbids_joining);
        app.found("app:1", vec!["127.0.0.1:1".parse().unwrap()]);
        assert_eq!(app.hindrance(), None);
        // The same for an address instead of a name.
        let (literal, _) =
            reason(&own("198.51.100.1:1", false, &[("198.51.100.1:1", &["198.51.100.1"])]));
        assert!(literal.contains("not an address of this host"), "{literal}");
    }

    #[test]
    fn as_many_names_as_there_are_threads_are_looked_up_at_a_time() {
        let (begun, begins) = unbounded();
        let (release, released) = bounded::<()>(0);
        let resolver = Resolver::new(move |_| {
            begun.send(()).unwrap();
            let _ = released.recv();
            Ok(vec!["127.0.0.1:1".parse().unwrap()])
        });
        let names: Vec<String> =
            (0..2 * THREADS_MAX).map(|name| format!("name-{name}:1")).collect();
        let mut look_ups = LookUps::start(&resolver, names.iter().map(String::as_str));
        for _ in 0..THREADS_MAX {
            begins.recv().unwrap();
        }
        assert!(begins.is_empty());
        // With no time, it does not wait.
        look_ups.wait(None, &after(Duration::ZERO));
        assert!(names.iter().all(|name| look_ups.get(name).is_none()));
        drop(release);
        look_ups.wait(None, &never::<()>());
        assert!(names.iter().all(|name| look_ups.get(name).is_some_and(|answer| answer.is_ok())));
    }
}
