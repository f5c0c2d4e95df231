//! The states that nodes start from: a founded cluster, a restored one, or nothing.

use crate::machine::{Machine, State};
use crate::node::stored::{HardState, SnapshotMeta, Voting};
use crate::types::membership::{Genesis, NodeId, Roster, Seat};

/// What the store of a node without a cluster begins with.
pub(crate) fn nothing() -> (HardState, SnapshotMeta, State) {
    let machine = Machine::new();
    let meta = SnapshotMeta {
        index: 0,
        term: 0,
        zxid: machine.zxid(),
        hash: machine.hash(),
        voting: Voting::default(),
    };
    (HardState::default(), meta, machine.state())
}

impl Genesis {
    /// What every founding member starts from: a snapshot with the full membership.
    pub(crate) fn start(&self) -> (HardState, SnapshotMeta, State) {
        self.start_from(Machine::new().state())
    }

    /// The same of a cluster that goes on from the state of another one, which is lost.
    pub(crate) fn start_from(&self, state: State) -> (HardState, SnapshotMeta, State) {
        let seats = self.members.iter().map(|member| Seat { member: member.clone(), votes: true });
        let state = Machine::founded_from(state, &Roster::new(seats.collect())).state();
        let mut voters: Vec<NodeId> = self.members.iter().map(|member| member.node).collect();
        voters.sort_unstable();
        let meta = SnapshotMeta {
            index: 1,
            term: 1,
            zxid: state.zxid(),
            hash: state.hash(),
            voting: Voting { voters, ..Voting::default() },
        };
        (HardState { term: 1, vote: 0, commit: 1 }, meta, state)
    }
}
