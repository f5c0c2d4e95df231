//! Clients over real sockets, with members in real processes that are killed.

use std::collections::{BTreeSet, VecDeque};
use std::io::BufRead;
use std::time::Duration;

use crate::common::{PATIENCE, Process, SESSION_TIMEOUT, addresses, name_of, node, place};
use quorate::StartError;
use quorate::operate::Status;
use quorate::{
    Availability, Coordinator, CreateMode, Error, EventKind, Secret, Security, Session, WatchMode,
};

const WORKER: &str = name_of(concat!(module_path!(), "::worker"));

/// The number of clients while a member is down.
const WRITES: usize = 200;

/// The name that stands in place of an address for a process with many clients.
const FLEET: &str = "fleet-";
const FLEETS: usize = 5;
/// The number of clients of each process, unless this variable sets another one.
const EACH: usize = 50;
const EACH_IS: &str = "QUORATE_TEST_EACH";

/// With this variable, all nodes of `what_a_client_costs_its_member` have this secret.
const SECRET: &str = "QUORATE_TEST_SECRET";

fn security() -> Security {
    match std::env::var(SECRET) {
        Ok(secret) => Secret::new(&secret).unwrap().into(),
        Err(_) => Security::default(),
    }
}

fn each() -> usize {
    std::env::var(EACH_IS).map_or(EACH, |each| each.parse().unwrap())
}

/// Runs in a process of its own: a member, or many clients, until its input ends.
#[test]
fn worker() {
    let Some((peers, address)) = place() else { return };
    if address.starts_with(FLEET) {
        return fleet(&peers, &address);
    }
    let coordinator = node(&address).security(security()).join(&peers).wait().unwrap();
    coordinator.wait_ready(PATIENCE).wait().unwrap();
    println!("@ready");
    for line in std::io::stdin().lock().lines() {
        if line.is_ok_and(|line| line == "leave") {
            coordinator.leave(PATIENCE).wait().unwrap();
            println!("@left");
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a thread of a test")]
fn fleet(peers: &[String], name: &str) {
    let client = || Coordinator::builder().client().security(security());
    let join = || client().session_timeout(PATIENCE).join(peers);
    let clients: Vec<_> = (0..each()).map(|_| join().wait().unwrap()).collect();
    let path = |place: usize| format!("/fleet/{name}-{place}");
    let sessions: Vec<_> = clients.iter().map(Coordinator::session).collect();
    let all = || sessions.iter().enumerate();
    let made: Vec<_> =
        all().map(|(place, one)| one.create(&path(place), b"", CreateMode::Ephemeral)).collect();
    for made in made {
        wait(made);
    }
    let watches: Vec<_> = sessions
        .iter()
        .map(|one| one.watch("/fleet", WatchMode::Persistent).wait().unwrap())
        .collect();
    println!("@ready");
    std::thread::spawn(move || {
        // During the test, other processes come and go below it.
        let is_change = |event: quorate::WatchEvent| event.kind == EventKind::DataChanged;
        let saw = |watch: &quorate::Watch| watch.events().iter().any(is_change);
        while watches.iter().all(saw) {
            println!("@seen");
        }
    });
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let set: Vec<_> = all().map(|(place, one)| one.set(&path(place), line.as_str())).collect();
        for set in set {
            assert_eq!(wait(set).version, 1);
        }
        println!("@all {line}");
    }
}

fn wait<T>(pending: quorate::Pending<'_, T>) -> T {
    pending.timeout(PATIENCE).wait().unwrap()
}

/// A member with hundreds of clients is stopped and started again, and then serves all of them again.
#[test]
fn a_member_serves_hundreds_of_clients() {
    let dirs = tempfile::tempdir().unwrap();
    let peers = addresses(1);
    let start = || {
        let member =
            node(&peers[0]).data_dir(dirs.path().join("data")).join(&peers).wait().unwrap();
        member.wait_ready(PATIENCE).wait().unwrap();
        member
    };
    let member = start();
    member.session().create("/fleet", b"", CreateMode::Persistent).wait().unwrap();
    let mut fleets: Vec<Process> = (0..FLEETS)
        .map(|fleet| Process::start(WORKER, dirs.path(), &peers, &format!("{FLEET}{fleet}")))
        .collect();
    fleets.iter().for_each(|fleet| drop(fleet.wait("ready")));
    assert_eq!(member.session().children("/fleet").wait().unwrap().len(), FLEETS * EACH);
    member.close().wait().unwrap();
    let member = start();
    for fleet in &mut fleets {
        fleet.order("again");
    }
    fleets.iter().for_each(|fleet| drop(fleet.wait("all again")));
    let session = member.session();
    let all = session.children("/fleet").wait().unwrap();
    assert_eq!(all.len(), FLEETS * EACH, "one has lost its session");
    for one in all {
        assert_eq!(&session.get(&format!("/fleet/{one}")).wait().unwrap().0[..], b"again");
    }
}

/// Over real sockets: learners serve all clients, the leader and the other voters none; all clients see a
/// change; when a learner leaves, another member serves its clients.
#[test]
fn hundreds_of_clients_are_served_by_learners() {
    const CLIENTS: usize = 200;
    let dirs = tempfile::tempdir().unwrap();
    let peers = addresses(5);
    let start = |address: &String| node(address).max_voters(3).data_dir(dirs.path().join(address));
    let mut members: Vec<Coordinator> =
        peers.iter().map(|address| start(address).join(&peers).wait().unwrap()).collect();
    members.iter().for_each(|member| member.wait_ready(PATIENCE).wait().unwrap());
    members[0].session().create("/news", b"", CreateMode::Persistent).wait().unwrap();
    let votes = |member: &Coordinator| {
        member.status().members.iter().any(|other| other.is_self && other.votes)
    };
    let decided = || members.iter().filter(|member| votes(member)).count() == 3;
    until(&members[0], "three members vote", |_| decided());
    let client = || Coordinator::builder().client().session_timeout(PATIENCE);
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| client().join(&peers[..2]).wait().unwrap()).collect();
    let sessions: Vec<_> = clients.iter().map(Coordinator::session).collect();
    let watches: Vec<_> = sessions
        .iter()
        .map(|session| session.watch("/news", WatchMode::Persistent).wait().unwrap())
        .collect();
    let served = |members: &[Coordinator]| -> (usize, usize) {
        let of = |voters: bool| {
            let these = members.iter().filter(|member| votes(member) == voters);
            these.map(|member| member.metrics().wait().unwrap().clients as usize).sum()
        };
        (of(true), of(false))
    };
    until(&members[0], "learners serve all", |_| served(&members) == (0, CLIENTS));
    let publish = |member: &Coordinator| {
        member.session().set("/news", b"new").wait().unwrap();
        for watch in &watches {
            let event = watch.events().recv_timeout(PATIENCE).unwrap();
            assert_eq!(event.kind, EventKind::DataChanged);
        }
    };
    publish(&members[0]);
    // Each client is connected with both learners, and with no other member.
    let has_spare = |client: &Coordinator| {
        client.status().members.iter().all(|member| member.version.is_some() != member.votes)
    };
    for client in &clients {
        until(client, "the other learner is its spare", |_| has_spare(client));
    }
    let learner = members.iter().position(|member| !votes(member)).unwrap();
    members.remove(learner).close().wait().unwrap();
    until(&members[0], "the other learner serves all", |_| served(&members) == (0, CLIENTS));
    publish(&members[0]);
    assert!(sessions.iter().all(Session::is_alive), "a session is lost");
    assert_eq!(served(&members), (0, CLIENTS));
}

/// Measures the figures of docs/clients.md. The command, with and without the second variable:
/// QUORATE_TEST_EACH=500 QUORATE_TEST_SECRET=a-long-secret-of-the-fleet cargo test --release --test clients_processes -- \
///     --ignored --nocapture what_a_client_costs_its_member
#[test]
#[ignore = "measures memory as Linux reports it, for the documentation"]
#[allow(clippy::disallowed_methods, reason = "it measures")]
fn what_a_client_costs_its_member() {
    const FLEETS: usize = 6;
    const KIB_MAX: u64 = 64;
    let dirs = tempfile::tempdir().unwrap();
    let peers = addresses(1);
    let member = Process::start(WORKER, dirs.path(), &peers, &peers[0]);
    member.wait("ready");
    let client = Coordinator::builder().client().security(security()).join(&peers).wait().unwrap();
    client.wait_ready(PATIENCE).wait().unwrap();
    client.session().create("/fleet", b"", CreateMode::Persistent).wait().unwrap();
    member.reset_memory_peak();
    let (before, _) = member.memory_kib();
    let mut fleets: Vec<Process> = (0..FLEETS)
        .map(|fleet| Process::start(WORKER, dirs.path(), &peers, &format!("{FLEET}{fleet}")))
        .collect();
    fleets.iter().for_each(|fleet| drop(fleet.wait("ready")));
    let (connected, _) = member.memory_kib();
    for fleet in &mut fleets {
        fleet.order("again");
    }
    fleets.iter().for_each(|fleet| drop(fleet.wait("all again")));
    let (written, most) = member.memory_kib();
    let all = (FLEETS * each()) as u64;
    // One change that all clients receive. They have watched it from their start.
    let begun = std::time::Instant::now();
    client.session().set("/fleet", b"change").wait().unwrap();
    fleets.iter().for_each(|fleet| drop(fleet.wait("seen")));
    println!("all {all} have seen a change after {:?}", begun.elapsed());
    for (when, kib) in [("connected", connected), ("written", written), ("most", most)] {
        let grown = kib.saturating_sub(before);
        let each = grown as f64 / all as f64;
        println!("{when}: {kib} KiB, {grown} more for {all} clients, {each:.1} for each");
    }
    assert!(most.saturating_sub(before) < KIB_MAX * all, "a client costs too much");
}

/// Waits until a client has received a status that satisfies a condition.
fn until(client: &Coordinator, what: &str, is_so: impl Fn(&Status) -> bool) {
    for _ in 0..6000 {
        if is_so(&client.status()) {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    panic!("{what}: {}", client.status());
}

fn members(status: &Status) -> BTreeSet<String> {
    status.members.iter().map(|member| member.address.clone()).collect()
}

fn voters(status: &Status) -> BTreeSet<String> {
    let voters = status.members.iter().filter(|member| member.votes);
    voters.map(|member| member.address.clone()).collect()
}

/// All members on the client's list are replaced, one after the other, by members at other addresses.
#[test]
fn a_client_outlives_the_members_that_it_was_given() {
    let dirs = tempfile::tempdir().unwrap();
    let all = addresses(6);
    let peers = &all[..3];
    let mut processes: VecDeque<Process> =
        peers.iter().map(|address| Process::start(WORKER, dirs.path(), peers, address)).collect();
    processes.iter().for_each(|member| drop(member.wait("ready")));
    let client = Coordinator::builder().client().session_timeout(SESSION_TIMEOUT);
    let client = client.join(peers).wait().unwrap();
    client.wait_ready(PATIENCE).wait().unwrap();
    let session = client.session();
    session.create("/n", b"", CreateMode::Persistent).wait().unwrap();
    let watch = session.watch("/n", WatchMode::PersistentRecursive).wait().unwrap();
    let guard = session.lock("/lock").unwrap().acquire().wait().unwrap();
    let named: BTreeSet<String> = peers.iter().cloned().collect();
    until(&client, "it knows those of its list", |status| voters(status) == named);
    until(&client, "the leader has reported which members it hears from", |_| {
        client.safe_to_stop()
    });
    assert!(client.is_ready());
    assert!(matches!(client.availability(), Availability::Healthy { spare: 1 }));
    assert!(named.contains(&client.status().leader.unwrap()));
    assert!(!named.contains(&client.address()) && !client.address().is_empty());
    let mut paths = Vec::new();
    let mut write = |count: usize| {
        for _ in 0..count {
            let made =
                session.create("/n/x-", b"", CreateMode::PersistentSequential).wait().unwrap();
            paths.push(made.path);
        }
    };
    for new in 3..6 {
        let known: Vec<String> = all[new - 3..new].to_vec();
        let process = Process::start(WORKER, dirs.path(), &known, &all[new]);
        process.wait("ready");
        processes.push_back(process);
        write(20);
        let mut old = processes.pop_front().unwrap();
        old.order("leave");
        old.wait("left");
        old.kill();
        let now: BTreeSet<String> = all[new - 2..=new].iter().cloned().collect();
        until(&client, "it knows the new ones", |status| voters(status) == now);
        until(&client, "who left is let go", |status| members(status) == now);
        write(20);
    }
    // None of the listed members is left. The member that serves the client is killed, and the new ones go
    // on.
    let leader = client.status().leader.unwrap();
    let leader = all[3..].iter().position(|address| *address == leader).unwrap();
    processes[leader].kill();
    write(20);
    until(&client, "one is missed", |status| {
        status.members.iter().any(|member| member.unreachable.is_some())
    });
    session.sync().wait().unwrap();
    let received: Vec<_> =
        watch.events().try_iter().map(|event| (event.kind, event.path)).collect();
    let all: Vec<_> = paths.into_iter().map(|path| (EventKind::Created, path)).collect();
    assert_eq!(received.len(), all.len());
    assert!(received == all, "an event was lost, doubled or out of order");
    assert!(guard.is_held() && session.is_alive());
}

/// Each member is killed in turn and comes back; the clients in this process go on.
#[test]
fn clients_go_on_whichever_member_is_killed() {
    let dirs = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let start = |peer: usize| Process::start(WORKER, dirs.path(), &peers, &peers[peer]);
    let mut members: Vec<_> = (0..3).map(start).collect();
    members.iter().for_each(|member| drop(member.wait("ready")));
    let client = || Coordinator::builder().client().session_timeout(SESSION_TIMEOUT).join(&peers);
    let (one, two) = (client().wait().unwrap(), client().wait().unwrap());
    one.wait_ready(PATIENCE).wait().unwrap();
    two.wait_ready(PATIENCE).wait().unwrap();
    let (session, other) = (one.session(), two.session());
    session.create("/n", b"", CreateMode::Persistent).wait().unwrap();
    other.sync().wait().unwrap();
    let watch = other.watch("/n", WatchMode::PersistentRecursive).wait().unwrap();
    let guard = other.lock("/lock").unwrap().acquire().wait().unwrap();
    let (mut paths, mut received) = (Vec::new(), Vec::new());
    for (victim, member) in members.iter_mut().enumerate() {
        member.kill();
        for _ in 0..WRITES {
            let made =
                session.create("/n/x-", b"", CreateMode::PersistentSequential).wait().unwrap();
            assert!(
                session.exists(&made.path).wait().unwrap().is_some(),
                "its own write is not there"
            );
            paths.push(made.path);
            received.extend(watch.events().try_iter());
        }
        *member = start(victim);
        member.wait("ready");
    }
    other.sync().wait().unwrap();
    received.extend(watch.events().try_iter());
    let kinds: BTreeSet<_> = received.iter().map(|event| format!("{:?}", event.kind)).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), [format!("{:?}", EventKind::Created)]);
    let received: Vec<_> = received.into_iter().map(|event| event.path).collect();
    assert_eq!(received.len(), paths.len());
    assert!(received == paths, "an event was lost, doubled or out of order");
    assert_eq!(other.children("/n").wait().unwrap().len(), paths.len());
    assert!(guard.is_held() && session.is_alive());
}

/// The only member on a client's list is stopped, and a member of another cluster gets its address.
#[test]
fn a_client_keeps_to_its_cluster_when_another_has_the_address() {
    let dirs = tempfile::tempdir().unwrap();
    let all = addresses(2);
    // Each cluster has one member, so stopping it stops the whole cluster.
    let start = |dir: &str, peers: &[String]| {
        let member = node(&all[0]).data_dir(dirs.path().join(dir)).join(peers).wait().unwrap();
        member.wait_ready(PATIENCE).wait().unwrap();
        member
    };
    let a = start("a", &all[..1]);
    a.session().create("/of", b"a", CreateMode::Persistent).wait().unwrap();
    let client = Coordinator::builder().client().session_timeout(PATIENCE);
    let client = client.request_timeout(Duration::from_secs(2)).join(&all).wait().unwrap();
    client.wait_ready(PATIENCE).wait().unwrap();
    let session = client.session();
    let guard = session.lock("/lock").unwrap().acquire().wait().unwrap();
    let watch = session.watch("/of", WatchMode::Persistent).wait().unwrap();
    assert_eq!(&session.get("/of").wait().unwrap().0[..], b"a");
    a.close().wait().unwrap();
    let b = start("b", &all[..1]);
    b.session().create("/of", b"b", CreateMode::Persistent).wait().unwrap();
    b.session().set("/of", b"b again").wait().unwrap();
    until(&client, "it is refused", |status| {
        let mut problems = status.members.iter().filter_map(|member| member.unreachable.as_ref());
        problems.any(|problem| problem.contains("another cluster"))
    });
    let refused = client.wait_ready(Duration::from_millis(100)).wait().unwrap_err();
    assert!(
        matches!(&refused, Error::Start(StartError::PeerRefused { peer, reason })
        if *peer == all[0] && reason.contains("another cluster")),
        "{refused}"
    );
    let availability = client.availability();
    assert!(
        matches!(&availability, Availability::NoQuorum { reason }
        if reason.text.contains("another cluster")),
        "{availability:?}"
    );
    assert_eq!(client.status().leader, None);
    assert!(!client.is_ready() && session.is_alive());
    assert!(
        matches!(session.get("/of").wait(), Err(Error::Timeout { .. })),
        "it reads the other's tree"
    );
    assert!(watch.events().try_recv().is_err(), "it received a change of the other cluster");
    // A client that starts now is served by the other cluster, since it knows no earlier one.
    let late = Coordinator::builder().client().join(&all[..1]).wait().unwrap();
    late.wait_ready(PATIENCE).wait().unwrap();
    assert_eq!(&late.session().get("/of").wait().unwrap().0[..], b"b again");
    late.close().wait().unwrap();
    b.close().wait().unwrap();
    let a = start("a", &all[..1]);
    client.wait_ready(PATIENCE).wait().unwrap();
    assert_eq!(&session.get("/of").wait().unwrap().0[..], b"a");
    assert!(guard.is_held() && session.is_alive());
    a.session().set("/of", b"a again").wait().unwrap();
    session.sync().wait().unwrap();
    assert_eq!(watch.events().try_recv().map(|event| event.kind), Ok(EventKind::DataChanged));
}

#[test]
fn a_client_refuses_a_listen_address() {
    let client = || Coordinator::builder().client();
    let address = "127.0.0.1:7400";
    for (wrong, name) in [
        (client().listen(address), "listen"),
        (client().advertise(address), "advertise"),
        (Coordinator::builder().listen(address).client(), "listen"),
    ] {
        let refused = wrong.join([address]).wait().unwrap_err();
        assert!(matches!(&refused, Error::InvalidSetting { setting, .. } if *setting == name));
        assert!(refused.to_string().contains("a client listens nowhere"), "{refused}");
    }
}
