//! How a follower reacts when its connection to the leader ends, and a voter when it knows no leader and
//! reaches a majority.
//!
//! A killed process closes its sockets at once, long before an election timeout would notice its
//! silence. So a follower whose connection to the leader has ended forgets the leader and holds a
//! pre-vote. That is safe for any cause. Followers that still receive from the leader refuse a
//! pre-vote (Raft thesis, 9.6), and the node follows a live leader again as soon as the leader
//! sends something.
//!
//! The followers take turns, one each tick, so that they do not split the votes. The first one starts
//! at once. Each starts again if the others have not noticed the loss yet. After a few turns only the
//! usual election timeouts are left.
//!
//! Voters that have all just started know of no leader either. They take turns in the same way from the
//! moment on at which they reach a majority, and do not wait for a silence that has no end. Once a node has
//! known a leader, connections cause no election any more.

use crate::node::context::Context;
use crate::node::membership::Membership;
use crate::node::raft::core::Raft;
use crate::node::raft::state::{LeaderLoss, RaftRole};
use crate::types::membership::NodeId;

/// How many turns each follower has.
const TURNS: usize = 3;

impl Raft {
    /// The connection to a peer has ended, or could not be made.
    pub(in crate::node) fn connection_lost(
        &mut self,
        peer: NodeId,
        membership: &Membership,
        cx: &Context,
    ) -> Result<(), String> {
        if peer != self.leader() || peer == cx.id {
            return Ok(());
        }
        self.forget_leader();
        self.elections.loss = Some(LeaderLoss { leader: peer, ticks: 0 });
        self.hasten_election(membership, cx)
    }

    /// A connection to a peer was made.
    pub(in crate::node) fn connection_made(
        &mut self,
        peer: NodeId,
        membership: &Membership,
        cx: &Context,
    ) -> Result<(), String> {
        let is_first = !self.elections.knew_leader && self.leader() == 0;
        // A candidate has its votes under way.
        let is_free = !matches!(self.role(), RaftRole::Candidate | RaftRole::Leader);
        let are_voters = self.is_voter(peer) && self.is_voter(cx.id);
        if !is_first || !is_free || !are_voters || !self.reaches_majority(membership) {
            return Ok(());
        }
        // Whoever comes next begins the turns again: it may be the one that was asked in vain.
        self.elections.loss = Some(LeaderLoss { leader: 0, ticks: 0 });
        self.hasten_election(membership, cx)
    }

    fn reaches_majority(&self, membership: &Membership) -> bool {
        let id = self.id();
        let reached = |voter: &&NodeId| **voter == id || membership.versions.is_connected(**voter);
        let decide = |voters: &[NodeId]| {
            voters.is_empty() || 2 * voters.iter().filter(reached).count() > voters.len()
        };
        let voting = self.log().voting();
        decide(&voting.voters) && decide(&voting.voters_outgoing)
    }

    /// Campaigns if it is this node's turn. Called when the leader is lost, and at each tick.
    pub(in crate::node) fn hasten_election(
        &mut self,
        membership: &Membership,
        cx: &Context,
    ) -> Result<(), String> {
        let Some(LeaderLoss { leader, ticks }) = self.elections.loss.take() else {
            return Ok(());
        };
        let mut voters: Vec<NodeId> = self.log().voting().voters.clone();
        voters.retain(|voter| *voter != leader);
        voters.sort_unstable();
        let place = voters.iter().position(|voter| *voter == cx.id);
        let (Some(place), 0, false) = (place, self.leader(), self.leads()) else {
            return Ok(());
        };
        if ticks % voters.len() == place && self.may_campaign(membership, cx) {
            self.campaign()?;
        }
        if ticks + 1 < TURNS * voters.len() {
            self.elections.loss = Some(LeaderLoss { leader, ticks: ticks + 1 });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::node::io::{Input, Problem};
    use crate::node::tests::harness::{Cluster, HEARTBEAT};
    use crate::node::timings::ELECTION_TICKS;
    use crate::types::membership::NodeId;

    fn lose(cluster: &mut Cluster, leader: NodeId, at: &[NodeId]) {
        for follower in at {
            let problem = Problem { reason: "reset".to_owned(), refused: false };
            cluster.input(*follower, Input::Unreachable { peer: leader, problem });
            cluster.settle();
        }
    }

    fn followers(leader: NodeId) -> Vec<NodeId> {
        (1..=3).filter(|id| *id != leader).collect()
    }

    #[test]
    fn the_followers_of_a_killed_leader_do_not_wait_for_an_election_timeout() {
        for first in [0, 1] {
            let mut cluster = Cluster::new(3);
            let leader = cluster.elect();
            let mut followers = followers(leader);
            followers.rotate_left(first);
            cluster.kill(leader);
            lose(&mut cluster, leader, &followers);
            let mut ticks = 0;
            while cluster.leader().is_none() {
                cluster.advance(HEARTBEAT);
                ticks += 1;
                assert!(ticks < ELECTION_TICKS / 2, "no leader after {ticks} ticks");
            }
        }
    }

    #[test]
    fn a_follower_that_alone_loses_its_connection_disturbs_nobody() {
        let mut cluster = Cluster::new(3);
        let leader = cluster.elect();
        let term = cluster.node(leader).status().term;
        for follower in followers(leader) {
            lose(&mut cluster, leader, &[follower]);
            cluster.advance(HEARTBEAT * 3 * ELECTION_TICKS as u32);
            assert_eq!(cluster.leader(), Some(leader));
            let status = cluster.node(follower).status();
            assert_eq!((status.term, status.leader), (term, Some(leader)));
        }
    }

    /// The first follower to notice asks while the others still follow the dead leader and refuse.
    #[test]
    fn followers_that_notice_the_loss_later_are_asked_again() {
        let mut cluster = Cluster::new(5);
        let leader = cluster.elect();
        cluster.kill(leader);
        let others: Vec<NodeId> = (1..=5).filter(|id| *id != leader).collect();
        lose(&mut cluster, leader, &others[..1]);
        cluster.advance(HEARTBEAT * 3);
        assert_eq!(cluster.leader(), None, "the others still follow the one that was killed");
        lose(&mut cluster, leader, &others[1..]);
        let mut ticks = 0;
        while cluster.leader().is_none() {
            cluster.advance(HEARTBEAT);
            ticks += 1;
            assert!(ticks < ELECTION_TICKS, "no leader after {ticks} ticks");
        }
    }
}
