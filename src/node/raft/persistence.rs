//! Messages and snapshots that wait until something is durable on this disk, and when a checkpoint
//! is due.

use std::collections::VecDeque;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::machine::State;
use crate::machine::command::{Applied, Change, ChangeKind};
use crate::node::config::LogLimits;
use crate::node::io::Time;
use crate::node::raft::log::Position;
use crate::node::raft::wire::Message;
use crate::types::membership::NodeId;

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

#[derive(Debug, Default)]
pub(in crate::node) struct Persistence {
    /// The number of the last requested disk operation.
    last: u64,
    /// All disk operations up to this one are durable.
    pub(in crate::node) written: u64,
    pub(in crate::node) awaiting: VecDeque<AwaitingPersistence>,
    /// The bytes of all entries in `awaiting`.
    pub(in crate::node) backlog_bytes: usize,
    /// The index of a snapshot that the disk is writing. Raft counts it as applied only afterwards.
    pub(in crate::node) installing: Option<u64>,
    /// The last checkpoint that was requested or came as a snapshot, and when.
    pub(in crate::node) checkpoint: Position,
    pub(in crate::node) checkpoint_at: Time,
    /// The bytes of the entries that were applied since, and their changes.
    applied_bytes: u64,
    pub(in crate::node) applied_changes: u64,
    /// The index of the checkpoint being written.
    checkpointing: Option<u64>,
    /// Why it could not be written when that was last tried.
    pub(in crate::node) checkpoint_error: Option<String>,
    /// When the last checkpoint was complete.
    checkpoint_done_at: Time,
    /// How many bytes the state took at the last checkpoint, by the same measure as it takes now.
    pub(in crate::node) checkpoint_image: u64,
    /// The first index of the log that the disk keeps after the last checkpoint.
    pub(in crate::node) keeps_from: u64,
    /// How many bytes a state takes, by the last one that was written or received.
    pub(in crate::node) state_bytes: u64,
    /// The log on the disk is damaged below this entry. The next checkpoint, which is due at once, drops
    /// that part. 0: no damage.
    pub(in crate::node) rotten_below: u64,
    /// The state that a leader's state has replaced, until it is no longer published.
    pub(in crate::node) former: Option<State>,
}

impl Persistence {
    pub(in crate::node) fn new(checkpoint: Position, state_bytes: u64, now: Time) -> Persistence {
        Persistence { checkpoint, checkpoint_at: now, state_bytes, ..Persistence::default() }
    }

    /// The log below this entry is damaged on the disk.
    pub(in crate::node) fn abandon_below(&mut self, below: u64) {
        self.rotten_below = self.rotten_below.max(below);
    }

    /// Whether the disk is so far behind that the node takes no more entries from a leader for now.
    pub(in crate::node) fn is_full(&self) -> bool {
        self.backlog_bytes >= BACKLOG_BYTES_MAX
    }

    pub(in crate::node) fn hold_until_written(&mut self, ready: AwaitingPersistence) {
        self.backlog_bytes += ready.bytes;
        self.awaiting.push_back(ready);
    }

    /// The number of the next disk operation.
    pub(in crate::node) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The content of the disk is replaced by a state of this many bytes at this index.
    pub(in crate::node) fn replaced(&mut self, at: Position, bytes: u64, now: Time) {
        self.state_bytes = bytes;
        self.checkpoint = at;
        self.checkpoint_at = now;
        (self.applied_bytes, self.applied_changes) = (0, 0);
        (self.checkpointing, self.checkpoint_error) = (None, None);
        self.rotten_below = 0;
        self.keeps_from = 0;
    }

    /// An entry of this many bytes was applied.
    pub(in crate::node) fn applied(&mut self, bytes: u64) {
        self.applied_bytes += bytes;
    }

    /// A batch was applied. It counts as at least as many changes as it has requests.
    pub(in crate::node) fn worked(&mut self, applied: &Applied) {
        let cost = |change: &Change| match change.kind {
            ChangeKind::DataChanged => 1,
            // The parent changes, too.
            ChangeKind::Created | ChangeKind::Deleted => 2,
        };
        let changes: u64 = applied.changes.iter().map(cost).sum();
        self.applied_changes += changes.max(applied.outcomes.len() as u64);
    }

    /// Whether a checkpoint is due for node `id`, with the log applied up to `applied`. `state_bytes`: how
    /// many bytes a state may take for which the log is let grow.
    pub(in crate::node) fn is_checkpoint_due(
        &self,
        id: NodeId,
        limits: &LogLimits,
        applied: Position,
        now: Time,
        state_bytes: u64,
        makes_room: bool,
    ) -> bool {
        let entries = applied.index - self.checkpoint.index;
        let share = checkpoint_share(id, self.checkpoint.index);
        let of = |limit: u64| limit.saturating_mul(share) / SHARE;
        let age: Duration = limits.checkpoint_age * share as u32 / SHARE as u32;
        let old = now >= self.checkpoint_at + age;
        let due = entries >= of(limits.due_entries(state_bytes))
            || (entries > 0 && (old || makes_room))
            || self.applied_bytes >= of(limits.due_bytes(state_bytes))
            || self.applied_changes >= of(limits.checkpoint_changes_max)
            // The damaged entries must be applied first.
            || (self.rotten_below > 0 && applied.index + 1 >= self.rotten_below);
        due && self.checkpointing.is_none()
    }

    /// `image`: how many bytes the state takes, about.
    pub(in crate::node) fn checkpoint_begun(&mut self, at: Position, image: u64, now: Time) {
        self.checkpoint_image = image;
        self.checkpoint = at;
        self.checkpoint_at = now;
        (self.applied_bytes, self.applied_changes) = (0, 0);
        self.checkpointing = Some(at.index);
        if at.index + 1 >= self.rotten_below {
            self.rotten_below = 0;
        }
    }

    /// The checkpoint at this index is durable, and takes so many bytes.
    pub(in crate::node) fn checkpoint_done(&mut self, index: u64, bytes: u64, now: Time) {
        self.checkpoint_error = None;
        if self.checkpointing.take_if(|writing| *writing == index).is_some() {
            self.state_bytes = bytes;
            self.checkpoint_done_at = now;
        }
    }

    /// Whether there are two checkpoints on the disk, or were a moment ago.
    pub(in crate::node) fn has_two_checkpoints(&self, now: Time) -> bool {
        self.checkpointing.is_some() || now < self.checkpoint_done_at + DISPOSED_WITHIN
    }

    /// How many bytes of the log are retained behind a checkpoint.
    pub(in crate::node) fn retained_bytes(&self, limits: &LogLimits) -> u64 {
        self.state_bytes.min(limits.retained_bytes_max).max(limits.retained_bytes_min)
    }
}

/// The time within which a replaced checkpoint is deleted.
const DISPOSED_WITHIN: Duration = Duration::from_secs(10);
/// The denominator of a share of a limit.
const SHARE: u64 = 1024;

/// The share of the limits that a member waits for before its next checkpoint: from three quarters
/// to five quarters. It differs for each member and each checkpoint, so that not all disks are busy
/// at once.
fn checkpoint_share(node: NodeId, checkpoint: u64) -> u64 {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&node.to_le_bytes());
    both[8..].copy_from_slice(&checkpoint.to_le_bytes());
    let drawn = xxh3_64(&both);
    SHARE * 3 / 4 + drawn % (SHARE / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A start applies them once more, and a large state alone would let gigabytes of them gather.
    #[test]
    fn very_many_small_changes_make_a_checkpoint_due() {
        let limits = LogLimits { checkpoint_changes_max: 1000, ..LogLimits::default() };
        let mut persistence = Persistence::default();
        let applied = Position { index: 1, term: 1 };
        let is_due = |persistence: &Persistence| {
            persistence.is_checkpoint_due(1, &limits, applied, Time::ZERO, 1 << 40, false)
        };
        let changes = |kind, count| {
            let path = "/a".into();
            let change = Change { zxid: 1, kind, path, position: 0, acl: None, parent_acl: None };
            Applied { changes: vec![change; count], ..Applied::default() }
        };
        // A multi's changes count, and not the one request.
        persistence.worked(&changes(ChangeKind::Created, 374));
        assert!(!is_due(&persistence));
        persistence.worked(&changes(ChangeKind::DataChanged, 501));
        assert!(is_due(&persistence));
        persistence.checkpoint_begun(applied, 0, Time::ZERO);
        persistence.checkpoint_done(1, 0, Time::ZERO);
        assert!(!is_due(&persistence));
    }
}
