//! How a member stops while others go on, or stop as well.
//!
//! A member that is being closed says so to all others ([`PeerMessage::Closing`]), again at each heartbeat, and
//! says it once more when its own sessions are closed. From then on nobody hands the lead to it, it refuses
//! the lead if somebody did not know, and it stands for election only if nobody else does.
//!
//! A leader that is being closed hands over to a member that is not. If all others are being closed as well,
//! nobody can lead for longer, so it goes on leading: their sessions can be closed only by a leader and a
//! majority. It stops when all are done, and so do the voters without which those that go on have no majority.
//! [`Host::is_closed`](crate::runtime::host::Host::is_closed) limits the time of both.
//!
//! Without these rules, members that are closed at once hand the lead round and round: each holds it for a few
//! milliseconds, which is too short to close a session.

use std::collections::BTreeMap;

use crate::node::context::Context;
use crate::node::io::Time;
use crate::node::message::PeerMessage;
use crate::node::raft::core::Raft;
use crate::types::membership::NodeId;

/// The members that are being closed.
#[derive(Debug, Default)]
pub(super) struct ClosingMembers {
    /// This member, if it is being closed: whether its sessions are closed.
    pub(super) own: Option<bool>,
    /// The others, and until when each report holds.
    others: BTreeMap<NodeId, (ClosingProgress, Time)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosingProgress {
    /// Its sessions are being closed.
    Busy,
    Done,
    /// The connection to it has ended.
    Gone,
}

impl ClosingMembers {
    /// The host closes this member: `done` once its sessions are closed.
    pub(super) fn close(&mut self, done: bool, raft: &Raft, cx: &mut Context) {
        if self.own.replace(done) != Some(done) {
            self.report(raft, cx);
        }
    }

    /// Reports to all members that this one is being closed.
    fn report(&self, raft: &Raft, cx: &mut Context) {
        if let Some(done) = self.own {
            cx.send_all(raft.others(), &PeerMessage::Closing { done });
        }
    }

    /// Repeats this member's report, once a heartbeat, and forgets those that the others no longer repeat.
    pub(super) fn tick(&mut self, raft: &Raft, cx: &mut Context) {
        let now = cx.now.mono;
        self.others.retain(|_, (_, until)| now < *until);
        self.report(raft, cx);
    }

    /// A member reports that it is being closed.
    pub(super) fn note(&mut self, member: NodeId, done: bool, cx: &Context) {
        let progress = if done { ClosingProgress::Done } else { ClosingProgress::Busy };
        self.others.insert(member, (progress, cx.now.mono + cx.patience()));
    }

    /// Refuses the lead if this member is being closed. Returns whether it does.
    pub(super) fn refuses_lead(&self, from: NodeId, cx: &mut Context) -> bool {
        let Some(done) = self.own.filter(|_| !planted!(ClosersLead)) else {
            return false;
        };
        cx.send(from, PeerMessage::Closing { done });
        true
    }

    /// The connection to a peer has ended.
    pub(super) fn gone(&mut self, peer: NodeId, cx: &Context) {
        if let Some(known) = self.others.get_mut(&peer) {
            *known = (ClosingProgress::Gone, cx.now.mono + cx.patience());
        }
    }

    /// A connection to a peer was made: it may have started again.
    pub(super) fn back(&mut self, peer: NodeId) {
        self.others.remove(&peer);
    }

    /// Whether another member is being closed, or has been a moment ago.
    pub(super) fn is_closing(&self, node: NodeId) -> bool {
        self.others.contains_key(&node) && !planted!(ClosersLead)
    }

    pub(super) fn is(&self, node: NodeId, progress: ClosingProgress) -> bool {
        self.others.get(&node).is_some_and(|(known, _)| *known == progress)
    }

    /// Whether nothing can be decided any more, since a majority has been closed.
    pub(super) fn is_abandoned(&self, raft: &Raft) -> bool {
        let gone = |node| self.is(node, ClosingProgress::Gone);
        let voting = raft.log().voting();
        let lacks = |voters: &[NodeId]| {
            let left = voters.iter().filter(|voter| !gone(**voter)).count();
            2 * left <= voters.len() && !voters.is_empty()
        };
        lacks(&voting.voters) || lacks(&voting.voters_outgoing)
    }
}

#[cfg(test)]
mod tests {
    use crate::node::io::{Input, Problem};
    use crate::node::message::{PeerMessage, RaftBody};
    use crate::node::tests::harness::{Cluster, HEARTBEAT};
    use crate::node::timings::ELECTION_TICKS;
    use crate::types::membership::NodeId;
    use crate::types::znode::CreateMode;

    fn close(cluster: &mut Cluster, member: NodeId) {
        cluster.input(member, Input::Closing { done: false, resigns: true });
    }

    /// Members that were closed at once handed the lead round and round, a few milliseconds each.
    #[test]
    fn members_that_are_closed_hand_the_lead_only_to_those_that_are_not() {
        let (mut cluster, leader, [first, second]) = Cluster::of_three();
        let term = cluster.node(leader).status().term;
        close(&mut cluster, first);
        cluster.settle();
        close(&mut cluster, leader);
        cluster.settle();
        assert_eq!(cluster.leader(), Some(second));
        close(&mut cluster, second);
        for _ in 0..3 * ELECTION_TICKS {
            for member in [leader, first, second] {
                close(&mut cluster, member);
            }
            cluster.advance(HEARTBEAT);
        }
        assert_eq!(cluster.leader(), Some(second), "nobody else could lead for longer");
        assert_eq!(cluster.node(second).status().term, term + 1);
        let session = cluster.open(first, 7, HEARTBEAT * 30);
        cluster.create(first, session, "/a", CreateMode::Persistent).unwrap();
    }

    #[test]
    fn a_member_that_is_being_closed_refuses_the_lead() {
        let (mut cluster, leader, [first, _]) = Cluster::of_three();
        let term = cluster.node(leader).status().term;
        // The leader has chosen it before it knew.
        close(&mut cluster, first);
        let order = PeerMessage::Raft { term, body: RaftBody::TimeoutNow };
        cluster.deliver(leader, first, order);
        cluster.settle();
        assert_eq!((cluster.leader(), cluster.node(leader).status().term), (Some(leader), term));
    }

    #[test]
    fn a_member_that_is_being_closed_leaves_the_election_to_another() {
        let (mut cluster, leader, [first, second]) = Cluster::of_three();
        close(&mut cluster, first);
        cluster.settle();
        cluster.kill(leader);
        for member in [first, second] {
            let problem = Problem { reason: "reset".to_owned(), refused: false };
            cluster.input(member, Input::Unreachable { peer: leader, problem });
            cluster.settle();
        }
        while cluster.leader().is_none() {
            cluster.advance(HEARTBEAT);
        }
        assert_eq!(cluster.leader(), Some(second));
    }

    #[test]
    fn the_only_member_with_the_whole_log_leads_although_it_is_being_closed() {
        let (mut cluster, leader, [first, second]) = Cluster::of_three();
        let session = cluster.open(leader, 7, HEARTBEAT * 30);
        cluster.isolate(second);
        cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
        cluster.kill(leader);
        cluster.heal();
        close(&mut cluster, first);
        for _ in 0..6 * ELECTION_TICKS {
            cluster.advance(HEARTBEAT);
            if let Some(leader) = cluster.leader() {
                assert_eq!(leader, first);
                return;
            }
        }
        panic!("nobody leads");
    }

    #[test]
    fn a_leader_stays_until_others_that_are_closed_are_done() {
        let (mut cluster, leader, [first, second]) = Cluster::of_three();
        for member in [leader, first, second] {
            close(&mut cluster, member);
        }
        cluster.settle();
        let done = Input::Closing { done: true, resigns: true };
        cluster.input(leader, done);
        cluster.settle();
        assert!(cluster.node(leader).is_needed_to_close(true));
        cluster.input(first, Input::Closing { done: true, resigns: true });
        cluster.settle();
        assert!(cluster.node(first).is_needed_to_close(false), "the last two are the majority");
        cluster.input(second, Input::Closing { done: true, resigns: true });
        cluster.settle();
        for member in [leader, first, second] {
            assert!(!cluster.node(member).is_needed_to_close(member == leader));
        }
        // Those that have ended leave no majority.
        assert!(!cluster.node(leader).is_abandoned());
        for peer in [first, second] {
            let problem = Problem { reason: "reset".to_owned(), refused: false };
            cluster.input(leader, Input::Unreachable { peer, problem });
        }
        cluster.settle();
        assert!(cluster.node(leader).is_abandoned());
    }

    /// Each of them left because the others were to stay, and the last entry had no majority.
    #[test]
    fn one_that_is_done_does_not_count_on_others_that_are_closed() {
        let mut cluster = Cluster::new(5);
        let leader = cluster.elect();
        for member in 1..=5 {
            close(&mut cluster, member);
        }
        cluster.settle();
        let done = |cluster: &mut Cluster, member| {
            cluster.input(member, Input::Closing { done: true, resigns: true });
            cluster.settle();
        };
        let others: Vec<NodeId> = (1..=5).filter(|id| *id != leader).collect();
        for member in &others {
            done(&mut cluster, *member);
            assert!(cluster.node(*member).is_needed_by_closers(), "the leader is not done");
        }
        done(&mut cluster, leader);
        assert!((1..=5).all(|member| !cluster.node(member).is_needed_by_closers()));
    }

    #[test]
    fn a_member_that_has_started_again_may_lead() {
        let (mut cluster, leader, [first, second]) = Cluster::of_three();
        for member in [first, second] {
            close(&mut cluster, member);
        }
        cluster.settle();
        cluster.kill(first);
        cluster.start(first);
        cluster.advance(HEARTBEAT);
        cluster.resign(leader);
        cluster.settle();
        assert_eq!(cluster.leader(), Some(first), "the other one is still being closed");
    }
}
