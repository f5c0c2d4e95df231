//! Who the members of a cluster are, and what it is founded from.

#![allow(dead_code, reason = "until clusters are founded by it")]

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::machine::command::NodeId;
use crate::machine::{Machine, State};
use crate::node::message::{HardState, SnapshotMeta, Voting};

/// A member of the cluster. Its id never changes and is never given to another; all else may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Drawn from `uid` and the incarnation of its data directory: the member's id in Raft.
    pub(crate) node: NodeId,
    /// Stays with an instance whose directory was damaged and begun anew.
    pub(crate) uid: u64,
    /// `host:port`, where peers reach it.
    pub(crate) address: String,
    /// Voters are spread over different ones of these; empty: not told.
    pub(crate) zone: String,
}

impl Member {
    /// One of no zone, whose directory was never begun anew.
    pub(crate) fn new(node: NodeId, address: impl Into<String>) -> Member {
        Member { node, uid: node, address: address.into(), zone: String::new() }
    }
}

/// The id of the member whose instance and data directory drew these: never 0, and another one for
/// each directory that is begun anew.
pub(crate) fn node_id(uid: u64, incarnation: u64) -> NodeId {
    let bytes = [uid.to_le_bytes(), incarnation.to_le_bytes()].concat();
    xxh3_64(&bytes).max(1)
}

/// A cluster as it is founded: all of its members start from this, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Genesis {
    /// Drawn at random; never 0.
    pub(crate) cluster: u64,
    /// In the order of their ids.
    pub(crate) members: Vec<Member>,
}

impl Genesis {
    /// What every founding member starts from: a snapshot with the full membership.
    pub(crate) fn start(&self) -> (HardState, SnapshotMeta, State) {
        self.start_from(Machine::new().state())
    }

    /// The same of a cluster that goes on from the state of another one, which is lost.
    pub(crate) fn start_from(&self, state: State) -> (HardState, SnapshotMeta, State) {
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

/// The place of a proposal among all that there ever are, in the order of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Ballot {
    pub(crate) round: u64,
    pub(crate) proposer: NodeId,
}

/// That a node will start from this genesis, if all of its members pledge the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pledge {
    pub(crate) ballot: Ballot,
    pub(crate) genesis: Genesis,
}

/// What a node without a cluster keeps to, whatever happens: it is on its disk before it is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Promise {
    /// It takes no part in any earlier proposal.
    pub(crate) ballot: Ballot,
    /// Of that ballot or an earlier one.
    pub(crate) pledge: Option<Pledge>,
}
