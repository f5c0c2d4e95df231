//! When the log is cut: when a checkpoint is due, what the disk keeps of the log behind them, and what memory keeps.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::machine::Machine;
use crate::machine::command::{Applied, Change, ChangeKind};
use crate::node::config::LogLimits;
use crate::node::context::Context;
use crate::node::io::{DiskOp, Time};
use crate::node::membership::Membership;
use crate::node::raft::core::Raft;
use crate::node::raft::log::Position;
use crate::node::raft::state::Sends;
use crate::node::room::Room;
use crate::node::stored::SnapshotMeta;
use crate::types::membership::NodeId;

/// The time within which a replaced checkpoint is deleted.
const DISPOSED_WITHIN: Duration = Duration::from_secs(10);
/// The denominator of a share of a limit.
const SHARE: u64 = 1024;

/// When a checkpoint is due, and what the disk keeps by the last one.
#[derive(Debug, Default)]
pub(in crate::node) struct Checkpoints {
    /// The last checkpoint that was requested or came as a snapshot, and when.
    last: Position,
    begun_at: Time,
    /// The bytes of the entries that were applied since, and their changes.
    applied_bytes: u64,
    applied_changes: u64,
    /// The index of the checkpoint being written.
    writing: Option<u64>,
    /// Why it could not be written when that was last tried.
    pub(in crate::node) error: Option<String>,
    /// When the last checkpoint was complete.
    done_at: Time,
    /// How many bytes the state took at the last checkpoint, by the same measure as it takes now.
    image: u64,
    /// The first index of the log that the disk keeps after the last checkpoint.
    keeps_from: u64,
    /// How many bytes a state takes, by the last one that was written or received.
    state_bytes: u64,
    /// The log on the disk is damaged below this entry. The next checkpoint, which is due at once, drops
    /// that part. 0: no damage.
    rotten_below: u64,
}

impl Checkpoints {
    pub(in crate::node) fn new(last: Position, state_bytes: u64, now: Time) -> Checkpoints {
        Checkpoints { last, begun_at: now, state_bytes, ..Checkpoints::default() }
    }

    /// The last checkpoint that was requested or came as a snapshot.
    #[cfg(test)]
    pub(in crate::node) fn last(&self) -> Position {
        self.last
    }

    /// How long ago the last checkpoint was requested or came as a snapshot.
    pub(in crate::node) fn age(&self, now: Time) -> Duration {
        now.saturating_sub(self.begun_at)
    }

    pub(in crate::node) fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    pub(in crate::node) fn applied_changes(&self) -> u64 {
        self.applied_changes
    }

    /// The log below this entry is damaged on the disk.
    pub(in crate::node) fn abandon_below(&mut self, below: u64) {
        self.rotten_below = self.rotten_below.max(below);
    }

    /// Whether the log is damaged on the disk at this entry.
    pub(in crate::node) fn is_rotten(&self, index: u64) -> bool {
        index < self.rotten_below
    }

    /// The content of the disk is replaced by a state of this many bytes at this index.
    pub(in crate::node) fn replaced(&mut self, at: Position, bytes: u64, now: Time) {
        let (done_at, image) = (self.done_at, self.image);
        *self = Checkpoints { done_at, image, ..Checkpoints::new(at, bytes, now) };
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
    fn is_due(
        &self,
        id: NodeId,
        limits: &LogLimits,
        applied: Position,
        now: Time,
        state_bytes: u64,
        makes_room: bool,
    ) -> bool {
        let entries = applied.index - self.last.index;
        let share = checkpoint_share(id, self.last.index);
        let of = |limit: u64| limit.saturating_mul(share) / SHARE;
        let age: Duration = limits.checkpoint_age * share as u32 / SHARE as u32;
        let old = now >= self.begun_at + age;
        let due = entries >= of(limits.due_entries(state_bytes))
            || (entries > 0 && (old || makes_room))
            || self.applied_bytes >= of(limits.due_bytes(state_bytes))
            || self.applied_changes >= of(limits.checkpoint_changes_max)
            // The damaged entries must be applied first.
            || (self.rotten_below > 0 && applied.index + 1 >= self.rotten_below);
        due && self.writing.is_none()
    }

    /// `image`: how many bytes the state takes, about. `keeps_from`: the first index of the log that is kept.
    fn begun(&mut self, at: Position, image: u64, keeps_from: u64, now: Time) {
        (self.image, self.keeps_from) = (image, keeps_from);
        self.last = at;
        self.begun_at = now;
        (self.applied_bytes, self.applied_changes) = (0, 0);
        self.writing = Some(at.index);
        if at.index + 1 >= self.rotten_below {
            self.rotten_below = 0;
        }
    }

    /// The checkpoint at this index is durable, and takes so many bytes.
    pub(in crate::node) fn done(&mut self, index: u64, bytes: u64, now: Time) {
        self.error = None;
        if self.writing.take_if(|writing| *writing == index).is_some() {
            self.state_bytes = bytes;
            self.done_at = now;
        }
    }

    /// Whether there are two checkpoints on the disk, or were a moment ago.
    pub(in crate::node) fn are_two(&self, now: Time) -> bool {
        self.writing.is_some() || now < self.done_at + DISPOSED_WITHIN
    }

    /// How many bytes of the log are retained behind a checkpoint.
    fn retained_bytes(&self, limits: &LogLimits) -> u64 {
        self.state_bytes.min(limits.retained_bytes_max).max(limits.retained_bytes_min)
    }
}

impl Raft {
    /// Starts a checkpoint if one is due, and drops entries from memory that are not needed there. The
    /// entries that the last step applied were in memory until now.
    pub(in crate::node) fn tidy_log(
        &mut self,
        machine: &mut Machine,
        room: &Room,
        membership: &Membership,
        cx: &mut Context,
    ) {
        if let Some(state) = self.persistence.former.take() {
            cx.effects.disk.push(DiskOp::Drop { state });
        }
        let applied = self.log().applied();
        self.maybe_checkpoint(applied, machine, room, membership, cx);
        let handed_out = self.handed_out().min(applied.index);
        // With a slow disk, raft-rs hands out some of the cut entries only later.
        let keeps_from = self.checkpoints.keeps_from;
        self.log_mut().compact(keeps_from, handed_out);
        let memory_bytes = unless!(LogUntrimmed, cx.config.log.memory_bytes, u64::MAX);
        self.log_mut().trim(memory_bytes, handed_out);
    }

    fn maybe_checkpoint(
        &mut self,
        applied: Position,
        machine: &mut Machine,
        room: &Room,
        membership: &Membership,
        cx: &mut Context,
    ) {
        let (limits, now) = (cx.config.log, cx.now.mono);
        let makes_room = room.wants_checkpoint(machine, self.checkpoints.image);
        // On a disk with little room, the log is cut as early as with a small state.
        let state_bytes = if room.is_low { 0 } else { machine.bytes() };
        if !self.checkpoints.is_due(cx.id, &limits, applied, now, state_bytes, makes_room) {
            return;
        }
        // A damaged part that is not applied yet is dropped by a later checkpoint.
        let sound_from = self.checkpoints.rotten_below;
        let sound_from = if sound_from <= applied.index + 1 { sound_from } else { 0 };
        let keep_from = self.keep_from(applied, membership, cx).max(sound_from);
        // From now on no peer is sent entries that the disk is about to drop.
        let handed_out = self.handed_out();
        self.log_mut().compact(keep_from, handed_out);
        cx.metrics.checkpoints += 1;
        self.checkpoints.begun(applied, machine.bytes(), keep_from, now);
        cx.effects.disk.push(DiskOp::Checkpoint {
            meta: self.snapshot_meta(machine),
            state: machine.state(),
            dirty: machine.take_dirty(),
            keep_from,
        });
    }

    /// The first index of the log on disk after a checkpoint of the applied state.
    ///
    /// A state of a few gigabytes takes minutes to send. While it is under way, and while its receiver
    /// catches up with later entries, the log is kept. Otherwise the receiver would need another state at
    /// the end, and would never be level as long as others write. The same holds for a peer that is sent
    /// the log. A peer that falls behind by more than the bound starts again with a new state.
    fn keep_from(&self, applied: Position, membership: &Membership, cx: &Context) -> u64 {
        let (log, limits) = (self.log(), &cx.config.log);
        let retained = self.checkpoints.retained_bytes(limits);
        let keep_from = log.keep_from(applied.index, retained);
        if !self.leads() {
            return keep_from;
        }
        let bound = log.keep_from(applied.index, limits.catch_up_bytes.max(retained));
        let since = cx.now.mono.saturating_sub(cx.patience());
        let alive =
            |peer: &NodeId| membership.contacts.last_received(*peer).is_some_and(|at| at >= since);
        let needed = self.others().filter(alive).filter_map(|peer| {
            let progress = self.progress(peer)?;
            Some(match progress.sends {
                Sends::State(index) => index + 1,
                // The peer has all of a state, and its disk may still be writing it.
                Sends::Probes => progress.next,
                Sends::Entries => progress.matched + 1,
            })
        });
        let kept = needed.filter(|index| *index >= bound).fold(keep_from, u64::min);
        unless!(CutUnderTransfer, kept, log.keep_from(applied.index, 0))
    }

    /// The metadata of a snapshot or a checkpoint of the present state.
    pub(in crate::node) fn snapshot_meta(&self, machine: &Machine) -> SnapshotMeta {
        let Position { index, term } = self.log().applied();
        let voting = self.log().voting().clone();
        SnapshotMeta { index, term, zxid: machine.zxid(), hash: machine.hash(), voting }
    }
}

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
        let mut checkpoints = Checkpoints::default();
        let applied = Position { index: 1, term: 1 };
        let is_due = |checkpoints: &Checkpoints| {
            checkpoints.is_due(1, &limits, applied, Time::ZERO, 1 << 40, false)
        };
        let changes = |kind, count| {
            let path = "/a".into();
            let change = Change { zxid: 1, kind, path, position: 0, acl: None, parent_acl: None };
            Applied { changes: vec![change; count], ..Applied::default() }
        };
        // A multi's changes count, and not the one request.
        checkpoints.worked(&changes(ChangeKind::Created, 374));
        assert!(!is_due(&checkpoints));
        checkpoints.worked(&changes(ChangeKind::DataChanged, 501));
        assert!(is_due(&checkpoints));
        checkpoints.begun(applied, 0, 0, Time::ZERO);
        checkpoints.done(1, 0, Time::ZERO);
        assert!(!is_due(&checkpoints));
    }
}
