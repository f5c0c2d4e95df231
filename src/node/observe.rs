//! What a simulator inspects: the positions of the log and the state machine.

use raft::{GetEntriesContext, Storage};

use super::Node;
use crate::node::leader::Leading;
use crate::node::raft::log::Position;
use crate::node::stored::{HardState, LogEntry, Voting};

impl Node {
    /// The last entry that was applied.
    pub(crate) fn applied(&self) -> Position {
        self.raw.store().applied()
    }

    /// The log time that this node stamps, if it serves as the leader.
    pub(crate) fn stamps(&self) -> Option<u64> {
        let leading = self.leading.as_ref().filter(|leading| leading.serves());
        leading.filter(|_| self.stopped.is_none()).map(Leading::log_time)
    }

    /// The voters and learners, as far as this replica has applied the log.
    pub(crate) fn voting(&self) -> Voting {
        Voting::from(self.raw.store().conf_state())
    }

    /// The node's hard state, and the end of its log.
    pub(crate) fn recovered(&self) -> (HardState, u64) {
        (super::hard_state(&self.raw), self.raw.raft.raft_log.last_index())
    }

    /// The bytes of the entries in memory.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.raw.store().bytes()
    }

    /// The applied entries after `after`, as far as they are still in memory.
    pub(crate) fn applied_after(&self, after: u64) -> Vec<LogEntry> {
        let log = self.raw.store();
        let first = log.first_index().unwrap_or(u64::MAX).max(after + 1);
        let next = log.applied().index + 1;
        if first >= next {
            return Vec::new();
        }
        let entries = log.entries(first, next, None, GetEntriesContext::empty(false));
        entries.unwrap_or_default().iter().map(LogEntry::from).collect()
    }
}
