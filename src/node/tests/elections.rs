//! Who stands for election, and who is handed the lead, while roles change.

use std::time::Duration;

use crate::machine::command::{Command, Op};
use crate::node::io::{Input, Problem};
use crate::node::message::{PeerMessage, RaftBody};
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::node::timings::ELECTION_TICKS;
use crate::types::membership::NodeId;
use crate::types::znode::CreateMode;

const TIMEOUT: Duration = Duration::from_secs(6);

/// How many messages with this text were sent, as to `1>2`, or to all by `1>`.
fn sent(cluster: &Cluster, link: &str, text: &str) -> usize {
    let link = format!(" {link}");
    cluster.trace.iter().filter(|line| line.contains(&link) && line.contains(text)).count()
}

const STANDS: &str = "body: Vote {";
const TOLD_TO_STAND: &str = "body: TimeoutNow";

/// raft-rs sends a successor one message to stand for election. When that was lost, the leader waited
/// for the same successor for as long as an election takes, and then sent it the message again.
#[test]
fn a_resigning_leader_whose_successor_does_not_answer_chooses_another() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    cluster.advance(HEARTBEAT * 20);
    let term = cluster.node(leader).status().term;
    let successor = (1..=3).rev().find(|id| *id != leader).unwrap();
    let other = (1..=3).find(|id| ![leader, successor].contains(id)).unwrap();
    cluster.cut.insert((leader, successor));
    for _ in 0..8 {
        cluster.resign(leader);
        cluster.settle();
        cluster.advance(HEARTBEAT);
    }
    assert_eq!((cluster.leader(), cluster.node(other).status().term), (Some(other), term + 1));
}

/// The successor was chosen again each time that the leader was asked to hand over. When another voter
/// had as much of the log a moment later, both stood for election, and often neither won.
#[test]
fn a_resigning_leader_has_one_successor() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    let followers: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    for follower in &followers {
        cluster.hosts.get_mut(follower).unwrap().disk_stalled = true;
    }
    cluster.set(leader, session, "/", "1");
    cluster.settle();
    // The followers have all of the log one after the other.
    for follower in followers {
        cluster.hosts.get_mut(&follower).unwrap().disk_stalled = false;
        cluster.advance(HEARTBEAT);
        cluster.cut.insert((leader, follower));
        cluster.resign(leader);
        cluster.settle();
    }
    assert_eq!(sent(&cluster, &format!("{leader}>"), TOLD_TO_STAND), 1);
}

#[test]
fn a_resigning_leader_hands_over_at_once() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    cluster.resign(leader);
    cluster.settle();
    let new = cluster.leader().unwrap();
    assert_ne!(new, leader, "no election timeout had to pass");
}

/// Brings a follower up to date by a snapshot, with nothing written after it.
fn caught_up_by_snapshot(cluster: &mut Cluster) -> u64 {
    let leader = cluster.elect();
    let laggard = cluster.follower();
    let session = cluster.open(leader, 1, Duration::from_secs(40));
    cluster.isolate(laggard);
    let mut last = None;
    for n in 0..600 {
        let op = Op::Set { path: "/".into(), data: vec![n as u8; 40_000].into(), version: None };
        last = Some(cluster.write(leader, session, Command::Op(op)));
        cluster.settle();
    }
    cluster.answer(last.unwrap()).unwrap();
    cluster.heal();
    laggard
}

/// raft-rs looks at the entries that are not applied yet before it campaigns. After a snapshot
/// those were entries that it does not have, and it stopped the node.
#[test]
fn a_node_may_stand_for_election_right_after_a_snapshot() {
    let mut cluster = Cluster::new(3);
    let laggard = caught_up_by_snapshot(&mut cluster);
    cluster.advance(Duration::from_secs(8));
    cluster.check_equal();
    for id in (1..=3).filter(|id| *id != laggard) {
        cluster.kill(id);
    }
    cluster.advance(Duration::from_secs(5));
    assert_eq!(cluster.stopped.get(&laggard), None);
}

#[test]
fn a_node_does_not_stand_for_election_while_its_disk_takes_a_snapshot() {
    let mut cluster = Cluster::new(3);
    let laggard = caught_up_by_snapshot(&mut cluster);
    let leader = cluster.leader().unwrap();
    cluster.hosts.get_mut(&laggard).unwrap().disk_stalled = true;
    cluster.advance(Duration::from_secs(8));
    assert_eq!(cluster.node(laggard).metrics().snapshots_installed, 1);
    let stands = |cluster: &Cluster| sent(cluster, &format!("{laggard}>"), STANDS);
    let before = stands(&cluster);
    // Its leader tells it to stand.
    let term = cluster.node(leader).status().term;
    let order = PeerMessage::Raft { term, body: RaftBody::TimeoutNow };
    cluster.deliver(leader, laggard, order);
    cluster.settle();
    // All others are lost, as it hears from their hosts.
    for peer in (1..=3).filter(|id| *id != laggard) {
        cluster.kill(peer);
        lose(&mut cluster, laggard, peer);
    }
    cluster.advance(Duration::from_secs(5));
    assert_eq!(stands(&cluster), before);
    assert_eq!(cluster.stopped.get(&laggard), None);
    cluster.hosts.get_mut(&laggard).unwrap().disk_stalled = false;
    cluster.advance(HEARTBEAT * 5 * ELECTION_TICKS as u32);
    assert!(stands(&cluster) > before, "then it does");
    for id in (1..=3).filter(|id| *id != laggard) {
        cluster.start(id);
    }
    cluster.elect();
    cluster.advance(Duration::from_secs(5));
    cluster.check_equal();
}

/// The host of a member reports that its connection to a peer has ended.
fn lose(cluster: &mut Cluster, member: NodeId, peer: NodeId) {
    let problem = Problem { reason: "reset".to_owned(), refused: false };
    cluster.input(member, Input::Unreachable { peer, problem });
}

/// It would lead for a moment and hand over, and its vote is the one that another needs.
#[test]
fn a_member_that_is_done_with_closing_does_not_stand_although_it_could_win() {
    for done in [false, true] {
        let (mut cluster, leader, [closed, other]) = Cluster::of_three();
        let session = cluster.open(leader, 7, TIMEOUT * 5);
        // Only the member that is closed has all of the log.
        cluster.isolate(other);
        cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
        cluster.kill(leader);
        cluster.heal();
        cluster.input(closed, Input::Closing { done, resigns: true });
        lose(&mut cluster, closed, leader);
        lose(&mut cluster, other, leader);
        cluster.advance(HEARTBEAT * 6 * ELECTION_TICKS as u32);
        let stood = sent(&cluster, &format!("{closed}>"), STANDS) > 0;
        assert_eq!((stood, cluster.leader().is_some()), (!done, !done));
    }
}

/// Nothing could be written until the leader gave it up.
#[test]
fn a_leader_hands_over_to_no_member_that_is_dead() {
    const ELECTION: u32 = ELECTION_TICKS as u32;
    // raft-rs forgets once in an election timeout who was active.
    for phase in 0..ELECTION {
        // When its connection has ended, as soon as it does not answer any more, and later.
        for silence in [0, 5, 3 * ELECTION] {
            let (mut cluster, leader, [living, dead]) = Cluster::of_three();
            cluster.advance(HEARTBEAT * (5 + phase));
            cluster.kill(dead);
            if silence == 0 {
                lose(&mut cluster, leader, dead);
            }
            cluster.advance(HEARTBEAT * silence);
            // The message to the living one is lost, and so another would be chosen.
            cluster.cut.insert((leader, living));
            let told =
                |cluster: &Cluster, to| sent(cluster, &format!("{leader}>{to}"), TOLD_TO_STAND);
            cluster.resign(leader);
            cluster.settle();
            assert_eq!((told(&cluster, living), told(&cluster, dead)), (1, 0));
            for _ in 0..8 * u32::from(silence > 5) {
                cluster.advance(HEARTBEAT);
                cluster.resign(leader);
                cluster.settle();
            }
            assert_eq!(told(&cluster, dead), 0);
        }
    }
}
