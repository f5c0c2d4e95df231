//! Clients over real sockets, of members in real processes that are killed.

mod common;

use std::collections::{BTreeSet, VecDeque};
use std::io::BufRead;
use std::time::Duration;

use common::{PATIENCE, Process, SESSION_TIMEOUT, addresses, node, place};
use quorate::{Availability, Coordinator, CreateMode, EventKind, Status, WatchMode};

/// So many while a member is dead.
const WRITES: usize = 200;

/// In a process of its own: a member, until its input ends.
#[test]
fn worker() {
    let Some((peers, address)) = place() else { return };
    let coordinator = node(&address).join(&peers).unwrap();
    coordinator.wait_ready(PATIENCE).unwrap();
    println!("@ready");
    for line in std::io::stdin().lock().lines() {
        if line.is_ok_and(|line| line == "leave") {
            coordinator.leave(PATIENCE).unwrap();
            println!("@left");
        }
    }
}

/// Waits until a client is told something of its members, which is looked for.
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

/// All members that its list names are replaced, one after the other, by others at other addresses.
#[test]
fn a_client_outlives_the_members_that_it_was_given() {
    let dirs = tempfile::tempdir().unwrap();
    let all = addresses(6);
    let peers = &all[..3];
    let mut processes: VecDeque<Process> =
        peers.iter().map(|address| Process::start(dirs.path(), peers, address)).collect();
    processes.iter().for_each(|member| drop(member.wait("ready")));
    let client = Coordinator::builder().client().session_timeout(SESSION_TIMEOUT);
    let client = client.join(peers).unwrap();
    client.wait_ready(PATIENCE).unwrap();
    let session = client.session();
    session.create("/n", b"", CreateMode::Persistent).unwrap();
    let watch = session.watch("/n", WatchMode::PersistentRecursive).unwrap();
    let guard = session.lock("/lock").unwrap().acquire().unwrap();
    let named: BTreeSet<String> = peers.iter().cloned().collect();
    until(&client, "it knows those of its list", |status| voters(status) == named);
    until(&client, "its leader has told whom it hears of", |_| client.safe_to_stop());
    assert!(client.is_ready());
    assert!(matches!(client.availability(), Availability::Healthy { spare: 1 }));
    assert!(named.contains(&client.status().leader.unwrap()));
    assert!(!named.contains(&client.address()) && !client.address().is_empty());
    let mut paths = Vec::new();
    let mut write = |count: usize| {
        for _ in 0..count {
            let made = session.create("/n/x-", b"", CreateMode::PersistentSequential).unwrap();
            paths.push(made.path);
        }
    };
    for new in 3..6 {
        let known: Vec<String> = all[new - 3..new].to_vec();
        let process = Process::start(dirs.path(), &known, &all[new]);
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
    // None of those that it was given is there, and whoever serves it is killed: the others are.
    let leader = client.status().leader.unwrap();
    let leader = all[3..].iter().position(|address| *address == leader).unwrap();
    processes[leader].kill();
    write(20);
    until(&client, "one is missed", |status| {
        status.members.iter().any(|member| member.unreachable.is_some())
    });
    session.sync().unwrap();
    let told: Vec<_> = watch.events().try_iter().map(|event| (event.kind, event.path)).collect();
    let all: Vec<_> = paths.into_iter().map(|path| (EventKind::Created, path)).collect();
    assert_eq!(told.len(), all.len());
    assert!(told == all, "an event was lost, doubled or out of order");
    assert!(guard.is_held() && session.is_alive());
}

/// Each member is killed in turn and comes back; the clients, in this process, go on.
#[test]
fn clients_go_on_whichever_member_is_killed() {
    let dirs = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let start = |peer: usize| Process::start(dirs.path(), &peers, &peers[peer]);
    let mut members: Vec<_> = (0..3).map(start).collect();
    members.iter().for_each(|member| drop(member.wait("ready")));
    let client = || Coordinator::builder().client().session_timeout(SESSION_TIMEOUT).join(&peers);
    let (one, two) = (client().unwrap(), client().unwrap());
    one.wait_ready(PATIENCE).unwrap();
    two.wait_ready(PATIENCE).unwrap();
    let (session, other) = (one.session(), two.session());
    session.create("/n", b"", CreateMode::Persistent).unwrap();
    other.sync().unwrap();
    let watch = other.watch("/n", WatchMode::PersistentRecursive).unwrap();
    let guard = other.lock("/lock").unwrap().acquire().unwrap();
    let (mut paths, mut told) = (Vec::new(), Vec::new());
    for (victim, member) in members.iter_mut().enumerate() {
        member.kill();
        for _ in 0..WRITES {
            let made = session.create("/n/x-", b"", CreateMode::PersistentSequential).unwrap();
            assert!(session.exists(&made.path).unwrap().is_some(), "its own write is not there");
            paths.push(made.path);
            told.extend(watch.events().try_iter());
        }
        *member = start(victim);
        member.wait("ready");
    }
    other.sync().unwrap();
    told.extend(watch.events().try_iter());
    let kinds: BTreeSet<_> = told.iter().map(|event| format!("{:?}", event.kind)).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), [format!("{:?}", EventKind::Created)]);
    let told: Vec<_> = told.into_iter().map(|event| event.path).collect();
    assert_eq!(told.len(), paths.len());
    assert!(told == paths, "an event was lost, doubled or out of order");
    assert_eq!(other.children("/n").unwrap().len(), paths.len());
    assert!(guard.is_held() && session.is_alive());
}
