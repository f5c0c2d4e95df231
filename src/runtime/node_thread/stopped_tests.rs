//! Nodes that have stopped by themselves, in processes that live on, over TCP.

use std::net::TcpListener;
use std::time::Duration;

use super::tests::{identity, member_on};
use super::*;
use crate::runtime::ask::Ask;
use crate::runtime::inbox::RequestOrigin;
use crate::runtime::session::SessionShared;
use crate::storage::MemoryDisk;
use crate::types::membership::Genesis;
use crate::types::reason::ReasonKind;
use crate::types::version::VERSION;
use crate::types::znode::SessionId;

/// Waits until this is so.
fn until(clock: &Clock, what: &str, mut is_so: impl FnMut() -> bool) {
    let end = clock.now() + Duration::from_secs(60);
    while !is_so() {
        assert!(clock.now() < end, "{what}");
        clock.park_until(Some(clock.now() + Duration::from_millis(10)));
    }
}

/// The disks of two of three members failed, and their processes lived on. The third one said for ever that most voters
/// are reached, and elect a leader.
#[test]
fn peers_of_stopped_nodes_count_them_as_missing_and_know_why() {
    let clock = Clock::real();
    let listeners: Vec<TcpListener> =
        (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    let members =
        listeners.iter().zip(1..).map(|(listener, uid)| Member::new(uid, address(listener)));
    let founding = Genesis { cluster: 1, members: members.collect() };
    let disks: Vec<MemoryDisk> = (0..3).map(|_| MemoryDisk::new()).collect();
    let start = |(place, listener): (usize, TcpListener)| {
        let transport = TcpTransport::new().unwrap();
        let wake = transport.wake();
        let (thread, shared) = member_on(&disks[place], place, &founding, &clock, wake.clone());
        shared.set_wake(wake);
        let Member { node, address, .. } = founding.members[place].clone();
        let (cluster, version) = (founding.cluster, VERSION);
        let incarnation = identity(place, &founding).incarnation;
        let local = LocalPeer { cluster, node, incarnation, version, address, boot: node };
        let peers = remote(&founding.members, Some(node));
        let options = TransportOptions::default();
        transport
            .start("quorate-test", listener, local, peers, vec![], options, Box::new(thread))
            .unwrap();
        shared
    };
    let shared: Vec<Arc<NodeShared>> = listeners.into_iter().enumerate().map(start).collect();
    until(&clock, "a leader", || shared.iter().all(|one| one.readiness.status().leader.is_some()));
    let leader = shared.iter().position(|one| one.readiness.status().is_leader).unwrap_or(0);
    let (stopped, left) = ([leader, (leader + 1) % 3], &shared[(leader + 2) % 3]);
    // Whoever opened a disk before fails when it writes.
    stopped.iter().for_each(|place| drop(disks[*place].open()));
    let mut id = 0;
    until(&clock, "two have stopped", || {
        id += 1;
        let timeout = Duration::from_secs(10);
        let session = Arc::new(SessionShared::new(SessionId(id), 1, [0; 16], timeout));
        let ask = Ask::open(&session, timeout);
        left.ask_and_forget(RequestOrigin::Opener(session), ask);
        stopped.iter().all(|place| shared[*place].end.reason().is_some())
    });
    until(&clock, "both are missing", || {
        left.readiness.not_ready().is_some_and(|reason| {
            let is_told = reason.text.matches("it has stopped: the disk failed").count() == 2;
            reason.kind == ReasonKind::VotersMissing && is_told
        })
    });
    shared.iter().for_each(|one| drop(one.close()));
}
