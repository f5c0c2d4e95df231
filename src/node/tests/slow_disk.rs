//! What a slow disk costs: its own member what rests on the disk, and nobody else anything.

use std::time::Duration;

use crate::machine::command::Op;
use crate::node::io::Write;
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::types::session::SessionState;
use crate::types::znode::CreateMode;

const TIMEOUT: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

/// A follower's answers to heartbeats used to wait behind its log writes. With the third member dead,
/// a disk that was slower than an election took the leader its quorum, and sessions ended.
#[test]
fn a_disk_slower_than_elections_unseats_no_leader() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let slow = cluster.follower();
    let third = (1..=3).find(|node| ![leader, slow].contains(node)).unwrap();
    cluster.kill(third);
    let term = cluster.node(leader).status().term;
    for count in 0..5 {
        cluster.hosts.get_mut(&slow).unwrap().disk_stalled = true;
        let path = format!("/{count}");
        let op = Op::Create { path: path.clone(), data: "d".into(), mode: CreateMode::Persistent };
        let request = cluster.write(leader, session, Write::Op(op));
        cluster.advance(3 * SECOND);
        assert!(cluster.data(leader, &path).is_none(), "a write needs the second disk");
        assert_eq!(cluster.leader(), Some(leader));
        cluster.hosts.get_mut(&slow).unwrap().disk_stalled = false;
        cluster.advance(HEARTBEAT);
        cluster.answer(request).unwrap();
        // It confirms that the session is alive, and renews it, all the while.
        assert!(cluster.states.iter().all(|(_, _, state)| *state == SessionState::Connected));
    }
    assert_eq!(cluster.node(leader).status().term, term, "there was no election");
}
