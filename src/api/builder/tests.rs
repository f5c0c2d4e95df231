//! Joining by names, over TCP on loopback addresses, with a resolver of the test's own.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};

use crossbeam_channel::{bounded, unbounded};

use crate::api::builder::*;
use crate::runtime::clock::Clock;
use crate::types::start_error::StartError;

/// Longer than any step of a test takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A port that is free on these addresses.
pub(super) fn free_port(ips: &[&str]) -> u16 {
    loop {
        let first = TcpListener::bind((ips[0], 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        if ips[1..].iter().all(|ip| TcpListener::bind((*ip, port)).is_ok()) {
            return port;
        }
    }
}

/// Names whose addresses the test may change.
#[derive(Clone, Default)]
pub(super) struct Names(Arc<Mutex<Known>>);

pub(super) type Known = Vec<(String, Vec<SocketAddr>)>;

impl Names {
    pub(super) fn set(&self, name: &str, port: u16, ips: &[&str]) {
        let found = ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect();
        let mut names = self.0.lock().unwrap();
        names.retain(|(known, _)| known != name);
        names.push((name.to_owned(), found));
    }

    pub(super) fn resolver(&self) -> Resolver {
        let names = self.clone();
        Resolver::new(move |name| {
            let names = names.0.lock().unwrap();
            match names.iter().find(|(known, _)| known == name) {
                Some((_, found)) => Ok(found.clone()),
                None => Err(io::Error::other("no such host")),
            }
        })
    }
}

pub(super) fn builder(resolver: Resolver, dir: &Path) -> Builder {
    Builder { resolver, ..Coordinator::builder() }.data_dir(dir)
}

/// One name for three instances, as that of a headless service: each founded a cluster of its own,
/// and all three held the same lock, with the same fencing token.
#[test]
fn instances_behind_one_name_found_nothing_by_it() {
    let dir = tempfile::tempdir().unwrap();
    let ips = ["127.0.0.2", "127.0.0.3", "127.0.0.4"];
    let port = free_port(&ips);
    let app = format!("app:{port}");
    let names = Names::default();
    names.set(&app, port, &ips);
    for ip in ips {
        let instance = builder(names.resolver(), &dir.path().join(ip));
        let listening = instance.clone().listen(format!("{ip}:{port}"));
        let advertised = listening.clone().advertise(&app);
        for instance in [instance, listening, advertised] {
            match instance.join([&app]).wait() {
                Err(Error::Start(StartError::InvalidPeer { peer, reason })) => {
                    assert_eq!(peer, app);
                    assert!(reason.contains("127.0.0.2, 127.0.0.3, 127.0.0.4"), "{reason}");
                    assert!(reason.contains("Builder::advertise"), "{reason}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Instances with an advertised address find each other by such a name, once one of them has
/// founded the cluster.
#[test]
fn a_name_of_several_hosts_is_where_to_look() {
    let dir = tempfile::tempdir().unwrap();
    let ips = ["127.0.0.2", "127.0.0.3", "127.0.0.4"];
    let port = free_port(&ips);
    let app = format!("app:{port}");
    let names = Names::default();
    names.set(&app, port, &ips);
    let join = |ip: &str, list: &[&str]| {
        let instance = builder(names.resolver(), &dir.path().join(ip));
        instance.advertise(format!("{ip}:{port}")).join(list).wait().unwrap()
    };
    // With that name in the list, or with that name alone, instances wait and report the reason.
    let own = format!("{}:{port}", ips[0]);
    let waiting = [join(ips[0], &[&own, &app]), join(ips[1], &[&app])];
    for instance in &waiting {
        match instance.wait_ready(Duration::from_millis(300)).wait() {
            Err(Error::Timeout { reason, .. }) => {
                let text = "stands for several hosts (127.0.0.2, 127.0.0.3, 127.0.0.4)";
                assert!(reason.contains(text), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    waiting[0].close().wait().unwrap();
    let founder = join(ips[0], &[&own]);
    founder.wait_ready(PATIENCE).wait().unwrap();
    waiting[1].wait_ready(PATIENCE).wait().unwrap();
    let third = join(ips[2], &[&app]);
    third.wait_ready(PATIENCE).wait().unwrap();
    // A client needs no address of its own.
    let client = Builder { resolver: names.resolver(), ..Coordinator::builder() }.client();
    let client = client.join([&app]).wait().unwrap();
    client.wait_ready(PATIENCE).wait().unwrap();
    let guard = founder.session().lock("/lock").unwrap().acquire().wait().unwrap();
    for other in [&waiting[1], &third, &client] {
        assert!(other.session().lock("/lock").unwrap().try_acquire().wait().unwrap().is_none());
    }
    drop(guard);
}

/// The addresses of a name may change while an instance waits: a pod's name appears some time after
/// the pod, and a name that first stands for several hosts may later stand for this one alone.
#[test]
fn names_are_looked_up_until_there_is_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let ips = ["127.0.0.2", "127.0.0.3"];
    let port = free_port(&ips);
    let (app, listen) = (format!("app:{port}"), format!("{}:{port}", ips[0]));
    let names = Names::default();
    let instance = builder(names.resolver(), dir.path()).listen(listen);
    // Not there yet.
    let instance = instance.join([&app]).wait().unwrap();
    waiting_for(&instance, "could not be looked up");
    names.set(&app, port, &ips);
    waiting_for(&instance, "stands for several hosts (127.0.0.2, 127.0.0.3)");
    names.set(&app, port, &ips[..1]);
    instance.wait_ready(PATIENCE).wait().unwrap();
    // A member continues, whatever its name stands for by then.
    instance.close().wait().unwrap();
    names.set(&app, port, &ips);
    let again = builder(names.resolver(), dir.path()).join([&app]).wait().unwrap();
    again.wait_ready(PATIENCE).wait().unwrap();
}

/// A resolver that did not answer delayed `join` by ten seconds for each name, although `join` needs
/// none of them. It must not delay `close` either.
#[test]
fn names_of_others_that_are_not_answered_delay_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port(&["127.0.0.2"]);
    let own = format!("127.0.0.2:{port}");
    let (asked, asks) = unbounded();
    let (hangs, hung) = bounded::<()>(0);
    let resolver = Resolver::new(move |name| {
        asked.send(name.to_owned()).unwrap();
        // Blocks until the test is over.
        let _ = hung.recv();
        Err(io::Error::other("no answer"))
    });
    let list = [own.clone(), "one:7400".to_owned(), "two:7400".to_owned()];
    let member = builder(resolver.clone(), dir.path());
    let named = member.clone().data_dir(dir.path().join("named"));
    let named = named.advertise("three:7400").listen("127.0.0.3:7400").security(Security::Insecure);
    let client = Builder { resolver, ..Coordinator::builder() }.client();
    let (joined, joins) = unbounded();
    let join = move || {
        for (builder, list) in [(member, &list[..]), (named, &list[..]), (client, &list[1..])] {
            let coordinator = builder.join(list).wait().unwrap();
            assert!(coordinator.wait_ready(Duration::from_millis(10)).wait().is_err());
            coordinator.close().wait().unwrap();
            joined.send(()).unwrap();
        }
    };
    std::thread::Builder::new().spawn(join).unwrap();
    for _ in 0..3 {
        joins.recv_timeout(PATIENCE).expect("it waits for a name");
    }
    // The number of abandoned look-ups is bounded: for each coordinator, those of its join and of
    // its network.
    let asked: Vec<String> = asks.try_iter().collect();
    assert!(asked.iter().any(|name| name == "three:7400"));
    for name in ["one:7400", "two:7400"] {
        let times = asked.iter().filter(|asked| *asked == name).count();
        assert!((3..=6).contains(&times), "{name}: {times} times");
    }
    drop(hangs);
}

/// Waits until the instance reports this reason for its waiting.
pub(super) fn waiting_for(instance: &Coordinator, text: &str) {
    let clock = Clock::real();
    let until = clock.now() + PATIENCE;
    loop {
        match instance.wait_ready(Duration::from_millis(50)).wait() {
            Err(Error::Timeout { reason, .. }) if reason.contains(text) => return,
            Err(Error::Timeout { reason, .. }) => {
                assert!(clock.now() < until, "waited for {text:?}, and it is {reason:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A pod of a StatefulSet gets its name some time after its start. `join` failed, and the pod was
/// restarted until the name existed.
#[test]
fn an_own_name_that_is_not_there_yet_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let ips = ["127.0.0.2", "127.0.0.3", "127.0.0.4"];
    let port = free_port(&ips);
    let names = Names::default();
    let peers = ["app-0", "app-1", "app-2"].map(|name| format!("{name}:{port}"));
    let join = |place: usize| {
        let instance = builder(names.resolver(), &dir.path().join(ips[place]));
        instance.security(Security::Insecure).advertise(&peers[place]).join(&peers).wait().unwrap()
    };
    let mut instances = [0, 1, 2].map(join);
    let own = |instance: &Coordinator| {
        let status = instance.status();
        status.members.into_iter().find(|member| member.is_self).unwrap().unreachable
    };
    for (instance, peer) in instances.iter().zip(&peers) {
        waiting_for(instance, &format!("this instance does not listen at {peer} yet: "));
        waiting_for(instance, "no such host");
        waiting_for(instance, "Builder::listen");
        assert!(own(instance).unwrap().contains("does not listen"));
    }
    // The name may still lead to where the pod was before.
    names.set(&peers[0], port, &["198.51.100.1"]);
    waiting_for(&instances[0], "it leads to 198.51.100.1, which this host does not have");
    for (ip, peer) in ips.iter().zip(&peers) {
        names.set(peer, port, &[ip]);
    }
    for instance in &instances {
        instance.wait_ready(PATIENCE).wait().unwrap();
        assert_eq!(own(instance), None);
    }
    // A member waits for its name as well: two members come back with each other's address.
    let node = instances[0].status().id;
    instances[0].close().wait().unwrap();
    instances[1].close().wait().unwrap();
    names.set(&peers[0], port, &["198.51.100.1"]);
    names.set(&peers[1], port, &["198.51.100.2"]);
    instances[0] = join(0);
    instances[1] = join(1);
    waiting_for(&instances[0], "does not listen");
    names.set(&peers[0], port, &[ips[1]]);
    names.set(&peers[1], port, &[ips[0]]);
    for instance in &instances {
        instance.wait_ready(PATIENCE).wait().unwrap();
    }
    assert_eq!(instances[0].status().id, node);
    assert_eq!(instances[2].status().members.len(), 3);
}

/// Without security, an instance must not listen where other hosts reach it.
#[test]
fn a_name_that_turns_out_to_be_outside_is_not_listened_at_without_protection() {
    let dir = tempfile::tempdir().unwrap();
    let names = Names::default();
    let instance = builder(names.resolver(), dir.path());
    let instance =
        instance.advertise("app-0:7400").join(["app-0:7400", "app-1:7400"]).wait().unwrap();
    waiting_for(&instance, "no such host");
    names.set("app-0:7400", 7400, &["198.51.100.1"]);
    waiting_for(&instance, "the traffic is not protected: set Builder::security");
}

/// An instance finds itself among the peers by their names, also if its name appears after its
/// start.
#[test]
fn an_instance_looks_for_itself_among_its_peers_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port(&["127.0.0.2"]);
    let app = format!("app:{port}");
    let names = Names::default();
    let (asked, asks) = unbounded();
    let (resolver, known) = (names.resolver(), names.clone());
    let resolver = Resolver::new(move |name| {
        let answer = resolver.look_up(name).map_err(io::Error::other);
        let _ = asked.send(name.to_owned());
        // The name resolves from the second look-up on.
        known.set(name, port, &["127.0.0.2"]);
        answer
    });
    let instance = builder(resolver, dir.path()).join([&app]).wait().unwrap();
    instance.wait_ready(PATIENCE).wait().unwrap();
    assert!(asks.len() > 1);
    // After the time limit, the error states what to do.
    let none = Builder { own_name_wait: Duration::from_millis(20), ..Coordinator::builder() };
    let none = Builder { resolver: Names::default().resolver(), ..none };
    let error = none.data_dir(dir.path()).join(["app-0:7400", "app-1:7400"]).wait().unwrap_err();
    assert!(matches!(error, Error::Start(StartError::NotAPeer { .. })), "{error}");
    let text = error.to_string();
    assert!(text.contains("no such host") && text.contains("Builder::advertise"), "{text}");
}

/// Errors in names that resolve are reported at once, as those in addresses.
#[test]
fn names_are_checked_as_addresses_are() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port(&["127.0.0.2"]);
    let names = Names::default();
    let (own, same) = (format!("own:{port}"), format!("same:{port}"));
    names.set(&own, port, &["127.0.0.2"]);
    names.set(&same, port, &["127.0.0.2"]);
    names.set("any:1", 1, &["0.0.0.0"]);
    names.set("far:1", 1, &["198.51.100.1"]);
    let join =
        |other: &str| builder(names.resolver(), dir.path()).join([&own, other]).wait().unwrap_err();
    assert!(matches!(join(&same), Error::Start(StartError::DuplicatePeer { .. })));
    assert!(matches!(join("any:1"), Error::Start(StartError::InvalidPeer { .. })));
    assert_eq!(join("far:1"), Error::Start(StartError::NotSecured { address: "far:1".to_owned() }));
}
