//! What a node promises to others: votes, the lead, and its membership. Bugs of these kinds were planted, and no
//! other test noticed them.

use crate::node::ELECTION_TICKS;
use crate::node::io::{Input, Problem};
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::types::membership::NodeId;

/// A candidate that asked for votes before its own was durable could be elected, crash, forget that it had voted,
/// and elect another leader in the same term.
#[test]
fn a_candidate_asks_for_votes_once_its_own_is_durable() {
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
