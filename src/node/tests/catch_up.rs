//! Members that were away, and come back while others write without a pause.

use std::time::Duration;

use crate::node::LogLimits;
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::types::membership::NodeId;
use crate::types::znode::SessionId;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Writes this many values of 64 KiB.
fn write(cluster: &mut Cluster, leader: NodeId, session: SessionId, count: usize) {
    let data = "x".repeat(64 << 10);
    for _ in 0..count {
        let set = cluster.set(leader, session, "/", &data);
        cluster.answer(set).unwrap();
    }
    cluster.advance(HEARTBEAT);
}

/// A checkpoint by bytes used to need 500 entries as well: one znode that was set to 1 MB again and again
/// filled the memory and the disk of every member with a gigabyte of log.
#[test]
fn large_values_make_a_checkpoint_due() {
    let mut cluster = Cluster::new(1);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let limit = LogLimits::default().checkpoint_bytes as usize;
    // Each member waits for its own share of the limit, five quarters at most.
    write(&mut cluster, leader, session, limit / (64 << 10) * 5 / 4 + 1);
    assert_eq!(cluster.node(leader).metrics().checkpoints, 1);
}
