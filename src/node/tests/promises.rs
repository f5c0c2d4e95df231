//! What a node promises to others: votes, the lead, sessions, and who votes. Bugs of these kinds were planted, and
//! neither another test nor the simulator noticed them, or only late.

use std::time::Duration;

use crate::node::io::{Input, Problem};
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::node::timings::ELECTION_TICKS;
use crate::planted::{Bug, claims};
use crate::types::membership::NodeId;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A candidate that asked for votes before its own was durable could be elected, crash, forget that it had voted,
/// and elect another leader in the same term.
#[test]
fn a_candidate_asks_for_votes_once_its_own_is_durable() {
    claims(candidate_waits_for_its_disk, Bug::VoteAskedEarly);
}

fn candidate_waits_for_its_disk() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let term = cluster.node(leader).status().term;
    let others: Vec<NodeId> = (1..=3).filter(|id| *id != leader).collect();
    // The first one stands for election at once when it notices the loss.
    let (candidate, voter) = (others[0], others[1]);
    cluster.hosts.get_mut(&candidate).unwrap().disk_stalled = true;
    cluster.kill(leader);
    for member in [voter, candidate] {
        let problem = Problem { reason: "reset".to_owned(), refused: false };
        cluster.input(member, Input::Unreachable { peer: leader, problem });
        cluster.settle();
    }
    assert_eq!(cluster.node(candidate).status().term, term + 1, "it is a candidate");
    assert_eq!(cluster.node(voter).status().term, term, "nobody has asked the other one");
    cluster.hosts.get_mut(&candidate).unwrap().disk_stalled = false;
    cluster.settle();
    assert_eq!(cluster.leader(), Some(candidate));
}

/// Such a leader seems to lead for as long as it is cut off, and its callers wait for it.
#[test]
fn a_leader_that_no_majority_answers_steps_down() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    cluster.isolate(leader);
    for _ in 0..=2 * ELECTION_TICKS {
        cluster.advance(HEARTBEAT);
    }
    assert!(!cluster.node(leader).status().is_leader);
}

/// Renewals that arrived during the freeze are still unread.
#[test]
fn a_leader_that_was_frozen_expires_nobody_at_once() {
    let mut cluster = Cluster::new(1);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    cluster.now += 2 * TIMEOUT;
    cluster.advance(4 * HEARTBEAT);
    assert!(cluster.node(leader).machine().session(session).is_some());
}

/// Such a session is never lost by mistake, so no check noticed; but its holder is never sure of it either.
#[test]
fn a_session_that_was_opened_since_the_leader_leads_is_renewed() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT);
    cluster.advance(3 * TIMEOUT);
    let (now, leases) = (cluster.now, &cluster.leases);
    assert!(leases.values().any(|until| *until > now), "{session} has no lease: {leases:?}");
}

/// A member that starts from a checkpoint without the former voters decides without them.
#[test]
fn a_checkpoint_has_the_former_voters_of_a_joint_configuration() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let node = cluster.hosts.get_mut(&1).unwrap().node.as_mut().unwrap();
    let mut joint = node.raft.log().voting().clone();
    joint.voters_outgoing = vec![1, 2];
    node.raft.log_mut().set_voting(joint);
    assert_eq!(node.raft.snapshot_meta(&node.machine).voting.voters_outgoing, [1, 2]);
}
