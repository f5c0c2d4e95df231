//! Clients over real sockets, of members in real processes that are killed.

mod common;

use std::collections::BTreeSet;
use std::io::BufRead;

use common::{PATIENCE, Process, SESSION_TIMEOUT, addresses, node, place};
use quorate::{Coordinator, CreateMode, EventKind, WatchMode};

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
        drop(line);
    }
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
