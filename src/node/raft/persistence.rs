//! Messages and snapshots that wait until something is durable on this disk.

use std::collections::VecDeque;

use crate::machine::State;
use crate::node::io::Time;
use crate::node::raft::wire::Message;

/// How many bytes of entries may wait for the disk of a follower, or to be applied. A follower's answers to
/// heartbeats do not wait, so the leader goes on sending to one with a hanging disk. A leader hands over if its
/// own disk lacks half of this of committed entries.
pub(in crate::node) const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// A `Ready` of raft-rs that is not known to be durable yet.
#[derive(Debug)]
pub(in crate::node) struct AwaitingPersistence {
    pub(in crate::node) ready: u64,
    /// The disk operation that it waits for, besides all earlier ones.
    pub(in crate::node) disk: Option<u64>,
    /// When the operation was handed out, if it writes the log.
    pub(in crate::node) write_at: Option<Time>,
    /// The index of its snapshot.
    pub(in crate::node) snapshot: Option<u64>,
    /// The bytes of its entries.
    pub(in crate::node) bytes: usize,
    pub(in crate::node) messages: Vec<Message>,
}

/// Which operations of the disk are done, and what waits for the others.
#[derive(Debug, Default)]
pub(in crate::node) struct Persistence {
    /// The number of the last requested disk operation.
    last: u64,
    /// All disk operations up to this one are durable.
    written: u64,
    awaiting: VecDeque<AwaitingPersistence>,
    /// The bytes of all entries in `awaiting`.
    backlog_bytes: usize,
    /// The index of a snapshot that the disk is writing. Raft counts it as applied only afterwards.
    installing: Option<u64>,
    /// The state that a leader's state has replaced, until it is no longer published.
    pub(in crate::node) former: Option<State>,
}

impl Persistence {
    /// Whether the disk is so far behind that the node takes no more entries from a leader for now.
    pub(in crate::node) fn is_full(&self) -> bool {
        self.backlog_bytes >= BACKLOG_BYTES_MAX
    }

    /// Whether the disk is writing a snapshot.
    pub(in crate::node) fn installs(&self) -> bool {
        self.installing.is_some()
    }

    pub(in crate::node) fn hold_until_written(&mut self, ready: AwaitingPersistence) {
        self.backlog_bytes += ready.bytes;
        self.installing = ready.snapshot.or(self.installing);
        self.awaiting.push_back(ready);
    }

    /// The number of the next disk operation.
    pub(in crate::node) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The operation of this number is durable. Returns up to which one all are.
    pub(in crate::node) fn written(&mut self, number: u64) -> u64 {
        self.written = self.written.max(number);
        self.written
    }

    /// The next `Ready` that is durable.
    pub(in crate::node) fn next_durable(&mut self) -> Option<AwaitingPersistence> {
        let is_written = self.awaiting.front()?.disk.is_none_or(|number| number <= self.written);
        if !is_written && !planted!(AckBeforeDurable) {
            return None;
        }
        let durable = self.awaiting.pop_front()?;
        self.backlog_bytes -= durable.bytes;
        self.installing.take_if(|newest| durable.snapshot == Some(*newest));
        Some(durable)
    }

    /// Nothing waits any more: Raft starts again, and had no messages to send.
    pub(in crate::node) fn forget_awaiting(&mut self) {
        self.awaiting.clear();
    }
}
