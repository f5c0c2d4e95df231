//! The states that nodes start from: a founded cluster, a restored one, or nothing.

use crate::machine::{Machine, State};
use crate::node::stored::{HardState, SnapshotMeta, Voting};
use crate::types::membership::{Genesis, NodeId, Roster, Seat};

/// The first content of the store of a node without a cluster.
pub(crate) fn nothing() -> (HardState, SnapshotMeta, State) {
    start_at(0, Machine::new().state(), Voting::default())
}

impl Genesis {
    /// The start of every founding member: a snapshot with the full membership.
    pub(crate) fn start(&self) -> (HardState, SnapshotMeta, State) {
        self.start_from(Machine::new().state())
    }

    /// The same for a cluster that goes on from the state of a lost one.
    pub(crate) fn start_from(&self, state: State) -> (HardState, SnapshotMeta, State) {
        let seats = self.members.iter().map(|member| Seat { member: member.clone(), votes: true });
        let state = Machine::founded_from(state, &Roster::new(seats.collect())).state();
        let mut voters: Vec<NodeId> = self.members.iter().map(|member| member.node).collect();
        voters.sort_unstable();
        start_at(1, state, Voting { voters, ..Voting::default() })
    }
}

/// A log that begins behind this index, in the term of the same number.
fn start_at(index: u64, state: State, voting: Voting) -> (HardState, SnapshotMeta, State) {
    let (zxid, hash) = (state.zxid(), state.hash());
    let hard_state = HardState { term: index, vote: 0, commit: index };
    (hard_state, SnapshotMeta { index, term: index, zxid, hash, voting }, state)
}
