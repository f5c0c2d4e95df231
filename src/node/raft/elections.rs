//! When this node stands for election, and how long it waits for a leader before that.

use crate::node::io::Time;
use crate::node::mixed;
use crate::node::raft::core::{Raft, Role};
use crate::node::raft::leader_loss::LeaderLoss;
use crate::types::membership::NodeId;

/// An election starts after this many heartbeats of silence, or up to [`ELECTION_SPREAD`] more.
pub(in crate::node) const ELECTION_TICKS: usize = 5;
/// How far apart followers draw their timeouts, in heartbeats. Two candidates at once only take
/// longer (a pre-vote changes no term), and a wide spread makes every election longer. In silence, the ticks
/// of two followers are apart as well (see [`Ticks`](crate::node::ticks::Ticks)).
const ELECTION_SPREAD: u64 = 3;

#[derive(Debug)]
pub(in crate::node) struct Elections {
    random: u64,
    /// Our own election timeout, in ticks, and the term, role and leader it was drawn for.
    timeout: usize,
    drawn_for: (u64, Role, NodeId),
    leaderless_ticks: usize,
    /// The loss of the connection to the leader.
    pub(in crate::node) loss: Option<LeaderLoss>,
    /// When this node last received something from a leader, or led. (On a learner, Raft never
    /// counts a leader as lost.)
    pub(in crate::node) led_at: Time,
    /// Whether this node has known a leader since it started.
    pub(in crate::node) knew_leader: bool,
}

impl Elections {
    pub(in crate::node) fn new(seed: u64, id: NodeId, now: Time) -> Elections {
        Elections {
            random: seed.rotate_left(32) ^ id,
            timeout: ELECTION_TICKS,
            drawn_for: (0, Role::Leader, 0),
            leaderless_ticks: 0,
            loss: None,
            led_at: now,
            knew_leader: false,
        }
    }

    /// A tick is about to pass.
    pub(in crate::node) fn tick(&mut self, raft: &mut Raft) {
        self.leaderless_ticks += usize::from(raft.leader() == 0);
        self.draw_timeout(raft);
    }

    /// Replaces the election timeout that raft-rs draws from a generator that cannot be seeded.
    /// Ours changes with the term, the role and the leader. It also changes now and then while
    /// there is no leader, so that two nodes do not block each other for long.
    pub(in crate::node) fn draw_timeout(&mut self, raft: &mut Raft) {
        let drawn_for = (raft.term(), raft.role(), raft.leader());
        let tired = self.leaderless_ticks >= 2 * ELECTION_TICKS;
        if drawn_for != self.drawn_for || tired {
            self.drawn_for = drawn_for;
            self.leaderless_ticks = 0;
            self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
            self.timeout = ELECTION_TICKS + (mixed(self.random) % ELECTION_SPREAD) as usize;
        }
        raft.set_election_timeout(self.timeout);
    }
}
