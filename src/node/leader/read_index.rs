//! How the leader confirms that it still leads, by Raft's ReadIndex (Raft thesis 6.4): a quorum
//! answers a heartbeat that was sent after the request came. `sessions::read_index` is the
//! requesting side.

use std::collections::VecDeque;

use crate::node::io::Time;
use crate::node::raft::numbers_of;
use crate::types::membership::NodeId;
use crate::types::znode::SessionId;

/// The leader's side: the ReadIndex requests of nodes.
#[derive(Debug)]
pub(crate) struct Confirmations {
    queue: Vec<ReceivedReadIndex>,
    /// The requests under way, by the context given to Raft, oldest first.
    under_way: VecDeque<(u64, Time, Vec<ReceivedReadIndex>)>,
    next: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedReadIndex {
    pub(crate) from: NodeId,
    /// The client for which the request was made.
    pub(crate) client: Option<NodeId>,
    pub(crate) boot: u64,
    pub(crate) read_index: u64,
    /// Sessions of the ReadIndex request that could not be renewed.
    pub(crate) refused: Vec<SessionId>,
}

impl ReceivedReadIndex {
    pub(crate) fn new(
        from: NodeId,
        client: Option<NodeId>,
        boot: u64,
        read_index: u64,
    ) -> ReceivedReadIndex {
        ReceivedReadIndex { from, client, boot, read_index, refused: Vec::new() }
    }
}

impl Confirmations {
    /// The confirmations of a term. Contexts begin with the term, so none is used twice.
    pub(crate) fn new(term: u64) -> Confirmations {
        Confirmations { queue: Vec::new(), under_way: VecDeque::new(), next: numbers_of(term) }
    }

    pub(crate) fn ask(&mut self, asked: ReceivedReadIndex) {
        /// Nodes ask again after a while, so dropping the oldest of too many loses nothing.
        const QUEUE_MAX: usize = 4096;
        if self.queue.len() >= QUEUE_MAX {
            self.queue.remove(0);
        }
        self.queue.push(asked);
    }

    /// The context for Raft's next read, if one is needed. One read at a time carries all gathered
    /// requests, unless the last read is older than `patience` and so probably lost.
    pub(crate) fn next_read(&mut self, now: Time, patience: Time) -> Option<u64> {
        let busy = self.under_way.back().is_some_and(|(_, since, _)| now < *since + patience);
        if self.queue.is_empty() || busy {
            return None;
        }
        self.next += 1;
        self.under_way.push_back((self.next, now, std::mem::take(&mut self.queue)));
        Some(self.next)
    }

    /// Raft has confirmed the read of this context, and with it every earlier one.
    pub(crate) fn confirmed(&mut self, context: u64) -> Vec<ReceivedReadIndex> {
        let confirmed = self.under_way.partition_point(|(read, _, _)| *read <= context);
        let mut asked: Vec<ReceivedReadIndex> =
            self.under_way.drain(..confirmed).flat_map(|(_, _, asked)| asked).collect();
        if planted!(RoundConfirmsLater) {
            asked.append(&mut self.queue);
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::{Bug, claims};

    const S: Time = Time::from_secs(1);

    fn asked(read_index: u64) -> ReceivedReadIndex {
        ReceivedReadIndex { from: 2, client: None, boot: 7, read_index, refused: vec![] }
    }

    #[test]
    fn the_leader_gathers_while_a_read_is_under_way() {
        let mut leader = Confirmations::new(1);
        assert_eq!(leader.next_read(Time::ZERO, S), None);
        leader.ask(asked(1));
        let first = leader.next_read(Time::ZERO, S).unwrap();
        leader.ask(asked(2));
        assert_eq!(leader.next_read(Time::ZERO, S), None);
        let second = leader.next_read(S, S).unwrap();
        assert_ne!(first, second);
        assert_eq!(leader.confirmed(second), [asked(1), asked(2)]);
        assert_eq!(leader.confirmed(first), []);
    }

    /// With this bug, a leader that was deposed while it was frozen confirmed what was asked after it went on, by
    /// answers to heartbeats from before. No test of the leader noticed.
    #[test]
    fn a_round_confirms_nothing_that_was_asked_after_it_began() {
        let claim = || {
            let mut leader = Confirmations::new(1);
            leader.ask(asked(1));
            let first = leader.next_read(Time::ZERO, S).unwrap();
            leader.ask(asked(2));
            assert_eq!(leader.confirmed(first), [asked(1)]);
            let second = leader.next_read(Time::ZERO, S).unwrap();
            assert_eq!(leader.confirmed(second), [asked(2)]);
        };
        claims(claim, Bug::RoundConfirmsLater);
    }
}
