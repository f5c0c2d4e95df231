//! skeleton
pub(crate) mod io;
pub(crate) mod message;
use crate::machine::command::NodeId;
use io::{Effects, Input, NodeStatus, Now};

/// skeleton
#[derive(Debug)]
pub(crate) struct Node;

impl Node {
    /// Takes in what has happened by `now`, in order (possibly nothing), and says what to do.
    pub(crate) fn step(&mut self, _now: Now, _inputs: impl IntoIterator<Item = Input>) -> Effects {
        todo!()
    }
    pub(crate) fn status(&self) -> NodeStatus {
        todo!()
    }
    pub(crate) fn id(&self) -> NodeId {
        todo!()
    }
}

/// The settings of a node. Times are durations, not ticks.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    /// The pulse: a leader's heartbeat, and the unit of election timeouts (10 to 20 of them).
    pub(crate) heartbeat: std::time::Duration,
    /// ZooKeeper's tick: session timeouts lie between 2 and 20 of them.
    pub(crate) tick: std::time::Duration,
    /// Seeds the node's own random choices (election timeouts). Drawn anew for each start.
    pub(crate) seed: u64,
}
