//! The cost of many or slow learners to the leader: bounds by count, for any timing.

use std::time::Duration;

use crate::node::message::{PeerMessage, RaftBody};
use crate::node::raft::core::LEARNER_WINDOW;
use crate::node::raft::snapshot_transfer::LEARNER_TRANSFERS_MAX;
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::types::membership::NodeId;
use crate::types::znode::CreateMode;

const TIMEOUT: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// How many messages with entries one node has sent to another.
fn appends(cluster: &Cluster, from: NodeId, to: NodeId) -> usize {
    let between = format!(" {from}>{to} ");
    let sent = cluster.trace.iter().filter(|line| line.contains(&between));
    sent.filter(|line| line.contains("Append {") && !line.contains("entries: []")).count()
}

/// How many states the leader is sending.
fn transfers(cluster: &Cluster, leader: u64) -> usize {
    cluster.node(leader).leading.as_ref().map_or(0, |leading| leading.replication.transfers())
}

/// Two members that do not answer do not stop the others, and the learner among them is sent
/// little.
#[test]
fn a_learner_that_does_not_answer_has_a_short_queue_and_stops_nobody() {
    let mut cluster = Cluster::new(1);
    cluster.elect();
    for node in 2..=3 {
        cluster.add(node);
    }
    cluster.advance(10 * SECOND);
    cluster.add(4);
    cluster.advance(10 * SECOND);
    let voting = cluster.node(1).status().availability;
    assert_eq!((voting.voters.len(), voting.learners.as_slice()), (3, [4].as_slice()));
    let session = cluster.open(1, 1, TIMEOUT);
    // A voter has been a learner before, and must no longer have a short queue.
    cluster.cut.extend([(3, 1), (4, 1)]);
    let before = [3, 4].map(|to| appends(&cluster, 1, to));
    for number in 0..50 {
        let path = format!("/{number}");
        cluster.create(1, session, &path, CreateMode::Persistent).unwrap();
    }
    let sent =
        [(3, before[0]), (4, before[1])].map(|(to, before)| appends(&cluster, 1, to) - before);
    assert!(sent[0] >= 50, "{sent:?}");
    assert_eq!(sent[1], LEARNER_WINDOW);
    cluster.heal();
    cluster.advance(5 * SECOND);
    cluster.check_equal();
}

/// All nodes that join at once get the state in the end, and only a few are sent it at a time.
#[test]
fn states_go_to_a_few_learners_at_a_time() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let learners = 4..=20;
    // The other members receive from these learners. Their acknowledgements to the leader are lost.
    cluster.cut.extend(learners.clone().map(|node| (node, leader)));
    learners.clone().for_each(|node| cluster.add(node));
    let mut most = 0;
    for _ in 0..200 {
        // Their only message is that they have none of the log.
        for learner in learners.clone() {
            let node = cluster.node(leader);
            let Some(progress) = node.raft.progress(learner) else { continue };
            let body = RaftBody::AppendResponse {
                index: progress.next - 1,
                log_term: 0,
                commit: 0,
                reject: true,
                reject_hint: 0,
                request_snapshot: 0,
            };
            let term = node.raft.term();
            cluster.deliver(learner, leader, PeerMessage::Raft { term, body });
        }
        cluster.advance(HEARTBEAT);
        most = most.max(transfers(&cluster, leader));
    }
    assert_eq!(most, LEARNER_TRANSFERS_MAX);
    cluster.heal();
    cluster.advance(30 * SECOND);
    let voting = cluster.node(leader).status().availability;
    assert_eq!(voting.voters.len() + voting.learners.len(), 20);
    cluster.check_equal();
    assert_eq!(transfers(&cluster, leader), 0);
}
