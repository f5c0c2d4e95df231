//! What a simulator inspects: the positions of the log and the state machine.

use super::Node;
use crate::node::leader::Leading;
use crate::node::raft::log::Position;
use crate::node::stored::{HardState, LogEntry, Voting};

impl Node {
    /// The last entry that was applied.
    pub(crate) fn applied(&self) -> Position {
        self.raft.log().applied()
    }

    /// The log time that this node stamps, if it serves as the leader.
    pub(crate) fn stamps(&self) -> Option<u64> {
        let leading = self.leading.as_ref().filter(|leading| leading.serves());
        leading.filter(|_| self.stopped.is_none()).map(Leading::log_time)
    }

    /// The voters and learners, as far as this replica has applied the log.
    pub(crate) fn voting(&self) -> Voting {
        self.raft.log().voting().clone()
    }

    /// The node's hard state, and the end of its log.
    pub(crate) fn recovered(&self) -> (HardState, u64) {
        (self.raft.hard_state(), self.raft.last_index())
    }

    /// The bytes of the entries in memory.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.raft.log().bytes()
    }

    /// The applied entries after `after`, as far as they are still in memory.
    pub(crate) fn applied_after(&self, after: u64) -> Vec<LogEntry> {
        self.raft.log().applied_after(after)
    }
}
