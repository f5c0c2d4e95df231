//! When this node stands for election, and how long it waits for a leader before that.

use crate::node::context::Context;
use crate::node::membership::Membership;
use crate::node::raft::core::Raft;
use crate::node::random::mixed;
use crate::node::timings::ELECTION_TICKS;

/// How far apart followers draw their timeouts, in heartbeats. Two candidates at once only take
/// longer (a pre-vote changes no term), and a wide spread makes every election longer. In silence, the ticks
/// of two followers are apart as well (see [`Ticks`](crate::node::ticks::Ticks)).
const ELECTION_SPREAD: u64 = 3;

/// How much longer a node waits that does not stand first. raft-rs takes no timeout of twice [`ELECTION_TICKS`].
const LAST: usize = 2;

impl Raft {
    /// A tick passes, for elections and heartbeats. Campaigns if it is this node's turn.
    pub(in crate::node) fn tick_elections(
        &mut self,
        membership: &Membership,
        cx: &Context,
    ) -> Result<(), String> {
        let leads = !self.persistence.installs() && self.leads();
        if leads || self.may_campaign(membership, cx) {
            self.elections.leaderless_ticks += usize::from(self.leader() == 0);
            self.elections.asked = None;
            self.draw_timeout();
            self.tick();
        }
        self.elections.stands_last = membership.clocks.differs_from_leader(cx.now);
        self.hasten_election(membership, cx)
    }

    /// Replaces the election timeout that raft-rs draws from a generator that cannot be seeded.
    /// Ours changes with the term, the role and the leader. It also changes now and then while
    /// there is no leader, so that two nodes do not block each other for long.
    pub(in crate::node) fn draw_timeout(&mut self) {
        let drawn_for = (self.term(), self.role(), self.leader());
        let elections = &mut self.elections;
        let tired = elections.leaderless_ticks >= 2 * ELECTION_TICKS;
        if drawn_for != elections.drawn_for || tired {
            elections.drawn_for = drawn_for;
            elections.leaderless_ticks = 0;
            elections.random = elections.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
            elections.timeout =
                ELECTION_TICKS + (mixed(elections.random) % ELECTION_SPREAD) as usize;
        }
        let timeout = elections.timeout + if elections.stands_last { LAST } else { 0 };
        self.set_election_timeout(timeout);
    }

    /// Whether this node may stand for election: only if its whole log is on its disk, or the state
    /// that replaces it. raft-rs relies on that, and a node that cannot write should not lead. Neither
    /// should one that is being closed.
    pub(super) fn may_campaign(&self, membership: &Membership, cx: &Context) -> bool {
        self.persisted() == self.last_index() && !membership.leaves_election(self, cx)
    }

    /// Whether this node has long received nothing from a leader. A removed node receives nothing
    /// any more. A removed learner does not stand for election, so no member notices it either.
    pub(in crate::node) fn lacks_leader(&self, cx: &Context) -> bool {
        cx.now.mono.saturating_sub(self.elections.led_at) >= cx.patience()
    }
}
