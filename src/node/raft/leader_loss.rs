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
//! at once, or as soon as its log is on its disk. One that notices the loss later answers the pre-vote that it has ignored
//! until then. If the next one has a longer log, its turn comes at once. Each starts again if the others have not noticed
//! the loss yet. After a few turns only the usual election timeouts are left.
//!
//! Voters that have all just started know of no leader either. They take turns in the same way from the
//! moment on at which they reach a majority, and do not wait for a silence that has no end. Once a node has
//! known a leader, connections cause no election any more.

use crate::node::context::Context;
use crate::node::membership::Membership;
use crate::node::message::RaftBody;
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
        self.unreachable(peer);
        if peer != self.leader() || peer == cx.id {
            return Ok(());
        }
        self.forget_leader();
        self.elections.loss = Some(LeaderLoss { leader: peer, ticks: 0, is_due: false });
        if let Some((from, term, body)) = self.elections.asked.take() {
            // Like any message, raft-rs may refuse it.
            let _ = self.take_vote(from, term, &body, membership, cx);
        }
        self.hasten_election(membership, cx)
    }

    /// Takes in a request for a vote.
    ///
    /// raft-rs ignores a pre-vote while this node follows a leader. The one that asks may only have noticed first that
    /// this leader is gone.
    pub(in crate::node) fn take_vote(
        &mut self,
        from: NodeId,
        term: u64,
        body: &RaftBody,
        membership: &Membership,
        cx: &Context,
    ) -> Result<(), String> {
        let RaftBody::Vote { pre: true, index, log_term, .. } = *body else {
            return self.step(from, term, body);
        };
        if self.leader() != 0 && !self.leads() {
            self.elections.asked = Some((from, term, body.clone()));
        }
        self.step(from, term, body)?;
        let last = self.last_index();
        let is_refused = (log_term, index) < (self.term_at(last).unwrap_or(0), last);
        if let Some(mut loss) = self.elections.loss.filter(|_| is_refused && self.leader() == 0) {
            loss.is_due |= self.is_next(from, loss.leader);
            self.elections.loss = Some(loss);
        }
        self.campaign_if_due(membership, cx)
    }

    /// Whether this node's turn comes after that of another one.
    fn is_next(&self, other: NodeId, lost: NodeId) -> bool {
        let voters = self.turns(lost);
        let place = |id| voters.iter().position(|voter| *voter == id);
        place(other).is_some_and(|other| place(self.id()) == Some((other + 1) % voters.len()))
    }

    /// The voters in the order of their turns, without the leader that is lost.
    fn turns(&self, lost: NodeId) -> Vec<NodeId> {
        let mut voters: Vec<NodeId> = self.log().voting().voters.clone();
        voters.retain(|voter| *voter != lost);
        voters.sort_unstable();
        voters
    }

    /// Campaigns if this node's turn has come before its log was on its disk. Called when more of it is.
    pub(in crate::node) fn campaign_if_due(
        &mut self,
        membership: &Membership,
        cx: &Context,
    ) -> Result<(), String> {
        let Some(loss) = self.elections.loss.filter(|loss| loss.is_due) else { return Ok(()) };
        if self.leader() != 0 || self.leads() || !self.may_campaign(membership, cx) {
            return Ok(());
        }
        self.elections.loss = Some(LeaderLoss { is_due: false, ..loss });
        self.campaign()
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
        self.elections.loss = Some(LeaderLoss { leader: 0, ticks: 0, is_due: false });
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
    pub(super) fn hasten_election(
        &mut self,
        membership: &Membership,
        cx: &Context,
    ) -> Result<(), String> {
        let Some(LeaderLoss { leader, ticks, .. }) = self.elections.loss.take() else {
            return Ok(());
        };
        let voters = self.turns(leader);
        let place = voters.iter().position(|voter| *voter == cx.id);
        let (Some(place), 0, false) = (place, self.leader(), self.leads()) else {
            return Ok(());
        };
        let turns = TURNS * voters.len();
        let passes = self.elections.stands_last && ticks < voters.len();
        let is_due = !passes && ticks < turns && ticks % voters.len() == place;
        if is_due || ticks + 1 < turns {
            self.elections.loss = Some(LeaderLoss { leader, ticks: ticks + 1, is_due });
        }
        self.campaign_if_due(membership, cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::node::io::{Input, Problem};
    use crate::node::tests::harness::{Cluster, HEARTBEAT};
    use crate::node::timings::ELECTION_TICKS;
    use crate::types::membership::NodeId;
    use crate::types::znode::CreateMode;

    const SESSION: Duration = Duration::from_secs(10);

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

    /// If the one whose turn it was noticed the loss first, it waited for its next turn, a heartbeat or two.
    #[test]
    fn the_followers_of_a_killed_leader_do_not_wait_for_a_tick() {
        for first in [0, 1] {
            let mut cluster = Cluster::new(3);
            let leader = cluster.elect();
            let mut followers = followers(leader);
            followers.rotate_left(first);
            cluster.kill(leader);
            lose(&mut cluster, leader, &followers);
            assert!(cluster.leader().is_some(), "no leader without a tick");
        }
    }

    /// It waited for its next turn, two heartbeats, although most writes are on the disk within a millisecond.
    #[test]
    fn a_turn_that_comes_while_a_write_is_under_way_begins_when_it_is_done() {
        let mut cluster = Cluster::new(3);
        let leader = cluster.elect();
        let session = cluster.open(leader, 1, SESSION);
        let followers = followers(leader);
        let first = followers[0];
        cluster.hosts.get_mut(&first).unwrap().disk_stalled = true;
        cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
        cluster.settle();
        cluster.kill(leader);
        lose(&mut cluster, leader, &followers);
        assert_eq!(cluster.leader(), None, "its log is not on its disk");
        cluster.hosts.get_mut(&first).unwrap().disk_stalled = false;
        cluster.step(first);
        cluster.settle();
        assert_eq!(cluster.leader(), Some(first));
    }

    /// It waited for the next tick.
    #[test]
    fn the_turn_of_one_with_a_longer_log_comes_at_once() {
        let mut cluster = Cluster::new(3);
        let leader = cluster.elect();
        let session = cluster.open(leader, 1, SESSION);
        let followers = followers(leader);
        cluster.isolate(followers[0]);
        cluster.create(leader, session, "/a", CreateMode::Persistent).unwrap();
        cluster.settle();
        cluster.kill(leader);
        cluster.heal();
        lose(&mut cluster, leader, &followers);
        assert_eq!(cluster.leader(), Some(followers[1]));
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
