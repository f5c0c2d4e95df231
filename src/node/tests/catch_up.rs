//! Members that were away and come back while others write without a pause.

use std::time::Duration;

use crate::machine::command::{Command, Op};
use crate::node::LogLimits;
use crate::node::io::Input;
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::types::membership::NodeId;
use crate::types::znode::{CreateMode, SessionId};

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

/// Each 16 values of 1 MB made a checkpoint due, which wrote all of them once more.
#[test]
fn a_large_state_makes_checkpoints_rare_unless_the_disk_is_nearly_full() {
    let limits = LogLimits { checkpoint_bytes: 1 << 20, ..LogLimits::default() };
    let due = limits.due_bytes(2 << 20) as usize;
    assert_eq!(due, 4 << 20);
    let mut cluster = Cluster::with_log(3, limits);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let follower = cluster.follower();
    let data = "x".repeat(64 << 10);
    for n in 0..32 {
        let path = format!("/{n}");
        let create = Op::Create {
            path: path.into(),
            data: data.clone().into(),
            mode: CreateMode::Persistent,
        };
        let create = cluster.write(leader, session, Command::Op(create));
        cluster.answer(create).unwrap();
    }
    cluster.input(follower, Input::DiskSpace { free: 0, total: 1 << 40 });
    let all =
        |cluster: &Cluster| [leader, follower].map(|node| cluster.node(node).metrics().checkpoints);
    let before = all(&cluster);
    write(&mut cluster, leader, session, 5 * due / (64 << 10));
    let after = all(&cluster);
    let (rare, often) = (after[0] - before[0], after[1] - before[1]);
    assert!((4..=7).contains(&rare), "{rare} in five times as many bytes as are due");
    assert!(often > 2 * rare, "{often} on a disk without room, {rare} elsewhere");
}

/// A cluster that makes a checkpoint every so often, and keeps nothing in memory.
fn cluster(limits: LogLimits) -> (Cluster, NodeId, SessionId, NodeId) {
    let limits = LogLimits { checkpoint_entries: 16, memory_bytes: 0, ..limits };
    let mut cluster = Cluster::with_log(3, limits);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let follower = cluster.follower();
    cluster.kill(follower);
    // Until it counts as gone and no log is kept for it.
    cluster.advance(HEARTBEAT * 100);
    write(&mut cluster, leader, session, 100);
    (cluster, leader, session, follower)
}

fn sent_snapshots(cluster: &Cluster, leader: NodeId) -> u64 {
    cluster.node(leader).metrics().snapshots_sent
}

/// Holds up the disk of a member that installs a snapshot, while others write 200 values. Then the disk
/// goes on, and the member becomes level.
fn write_during_a_transfer(limits: LogLimits) -> (Cluster, NodeId, SessionId) {
    let (mut cluster, leader, session, follower) = cluster(limits);
    cluster.hosts.get_mut(&follower).unwrap().disk_stalled = true;
    cluster.start(follower);
    cluster.advance(HEARTBEAT * 10);
    assert_eq!(cluster.node(follower).metrics().snapshots_installed, 1);
    let before = cluster.node(leader).metrics().checkpoints;
    write(&mut cluster, leader, session, 200);
    assert!(cluster.node(leader).metrics().checkpoints > before + 5);
    cluster.hosts.get_mut(&follower).unwrap().disk_stalled = false;
    cluster.advance(HEARTBEAT * 40);
    cluster.check_equal();
    (cluster, leader, session)
}

/// The log was not kept for a transfer. It was cut after the state under way, so the receiver needed
/// another state at the end, and was never level as long as others wrote.
#[test]
fn the_log_behind_a_snapshot_is_kept_until_its_receiver_is_level() {
    let limits = LogLimits { retained_bytes_min: 0, retained_bytes_max: 0, ..LogLimits::default() };
    let (mut cluster, leader, session) = write_during_a_transfer(limits);
    assert_eq!(sent_snapshots(&cluster, leader), 1);
    // The next checkpoint drops the log that no peer needs any more.
    write(&mut cluster, leader, session, 40);
    let log = cluster.hosts[&leader].disk.log_bytes();
    assert!(log < 40 * (64 << 10), "{log} bytes of log");
}

#[test]
fn the_log_is_kept_for_a_transfer_up_to_a_bound() {
    let limits = LogLimits {
        retained_bytes_min: 0,
        retained_bytes_max: 0,
        catch_up_bytes: 2 << 20,
        ..LogLimits::default()
    };
    let (cluster, leader, _) = write_during_a_transfer(limits);
    assert!(sent_snapshots(&cluster, leader) > 1, "it starts again");
}

/// A member that had missed 5,000 entries was sent the whole state, because the leader sent the log
/// only from memory.
#[test]
fn a_member_that_was_away_is_sent_the_log_from_the_disk() {
    let (mut cluster, leader, session, follower) = cluster(LogLimits::default());
    cluster.start(follower);
    cluster.advance(HEARTBEAT * 20);
    cluster.check_equal();
    assert_eq!(sent_snapshots(&cluster, leader), 0);
    // A new leader has the same log.
    cluster.kill(follower);
    write(&mut cluster, leader, session, 20);
    cluster.kill(leader);
    cluster.start(follower);
    let next = cluster.elect();
    cluster.start(leader);
    let session = cluster.open(next, 2, TIMEOUT);
    write(&mut cluster, next, session, 1);
    cluster.check_equal();
    assert_eq!(sent_snapshots(&cluster, next), 0);
}

/// Damage of the log that a read for a peer found stopped the leader, where the scrubber survives the same
/// damage.
#[test]
fn a_peer_is_sent_a_snapshot_where_the_leaders_log_is_damaged() {
    let (mut cluster, leader, session, follower) = cluster(LogLimits::default());
    let rotten = cluster.node(leader).last_index() / 2;
    cluster.hosts.get_mut(&leader).unwrap().disk.rotten_below = rotten;
    cluster.start(follower);
    cluster.advance(HEARTBEAT * 20);
    assert_eq!(cluster.leader(), Some(leader));
    write(&mut cluster, leader, session, 1);
    cluster.check_equal();
    assert_eq!(sent_snapshots(&cluster, leader), 1);
    assert_eq!(cluster.node(leader).metrics().scrub_errors, 1);
}

/// The node itself used to complete and check a received state, which takes seconds for a million znodes. In
/// that time it answered no heartbeat.
#[test]
fn a_node_answers_heartbeats_while_a_state_is_built() {
    let limits = LogLimits { retained_bytes_min: 0, retained_bytes_max: 0, ..LogLimits::default() };
    let (mut cluster, leader, session, follower) = cluster(limits);
    cluster.hosts.get_mut(&follower).unwrap().builds_stalled = true;
    cluster.start(follower);
    cluster.advance(HEARTBEAT * 10);
    // With the third member gone, the leader and all writes need this one's answers.
    let third = (1..=3).find(|node| ![leader, follower].contains(node)).unwrap();
    cluster.kill(third);
    cluster.advance(HEARTBEAT * 100);
    assert_eq!(cluster.leader(), Some(leader));
    assert_eq!(cluster.node(follower).metrics().snapshots_installed, 0);
    cluster.hosts.get_mut(&follower).unwrap().builds_stalled = false;
    write(&mut cluster, leader, session, 1);
    cluster.check_equal();
    assert_eq!(sent_snapshots(&cluster, leader), 1);
}

/// The commit index of entries that came with a state, in one step, was written with the state and before
/// the entries. The store refused that, and the member stopped.
#[test]
fn a_state_and_the_log_behind_it_may_come_in_one_step() {
    let limits = LogLimits { retained_bytes_min: 0, retained_bytes_max: 0, ..LogLimits::default() };
    let (mut cluster, leader, session, follower) = cluster(limits);
    cluster.hosts.get_mut(&follower).unwrap().builds_stalled = true;
    cluster.start(follower);
    cluster.advance(HEARTBEAT * 10);
    write(&mut cluster, leader, session, 3);
    // The leader knows that the state has arrived. It sends the log after it when the follower answers a
    // heartbeat.
    for _ in 0..100 {
        cluster.now += HEARTBEAT;
        cluster.tick(leader);
        cluster.step(follower);
        cluster.step(leader);
        if cluster.has_entries(follower) {
            break;
        }
    }
    assert!(cluster.has_entries(follower));
    cluster.build(follower);
    assert!(cluster.step(follower));
    assert_eq!(cluster.node(follower).metrics().snapshots_installed, 1);
    cluster.hosts.get_mut(&follower).unwrap().builds_stalled = false;
    cluster.advance(HEARTBEAT * 10);
    assert_eq!(cluster.stopped.len(), 0, "{:?}", cluster.stopped);
    cluster.check_equal();
    assert_eq!(sent_snapshots(&cluster, leader), 1);
}
