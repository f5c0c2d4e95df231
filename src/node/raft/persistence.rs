//! Messages and snapshots that wait until something is durable on this disk, and when a checkpoint
//! is due.

use std::collections::VecDeque;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::machine::{Machine, State};
use crate::node::LogLimits;
use crate::node::context::Context;
use crate::node::io::{DiskOp, Time};
use crate::node::membership::Membership;
use crate::node::raft::core::{Raft, Sends};
use crate::node::raft::log::Position;
use crate::node::raft::wire::Message;
use crate::node::room::Room;
use crate::node::stored::SnapshotMeta;
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
    /// The index of a snapshot that the disk is writing. Raft counts it as applied only afterwards,
    /// and must not campaign before: it would look for the entries in between.
    pub(in crate::node) installing: Option<u64>,
    /// The last checkpoint that was requested or came as a snapshot, and when.
    pub(in crate::node) checkpoint: Position,
    pub(in crate::node) checkpoint_at: Time,
    /// The bytes of the entries that were applied since.
    applied_bytes: u64,
    /// The index of the checkpoint being written.
    checkpointing: Option<u64>,
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
        self.applied_bytes = 0;
        self.checkpointing = None;
        self.rotten_below = 0;
        self.keeps_from = 0;
    }

    /// An entry of this many bytes was applied.
    pub(in crate::node) fn applied(&mut self, bytes: u64) {
        self.applied_bytes += bytes;
    }

    /// Whether a checkpoint is due for node `id`, with the log applied up to `applied`.
    pub(in crate::node) fn is_checkpoint_due(
        &self,
        id: NodeId,
        limits: &LogLimits,
        applied: Position,
        now: Time,
        makes_room: bool,
    ) -> bool {
        let entries = applied.index - self.checkpoint.index;
        let share = checkpoint_share(id, self.checkpoint.index);
        let of = |limit: u64| limit.saturating_mul(share) / SHARE;
        let age: Duration = limits.checkpoint_age * share as u32 / SHARE as u32;
        let old = now >= self.checkpoint_at + age;
        let due = entries >= of(limits.checkpoint_entries)
            || (entries > 0 && (old || makes_room))
            || self.applied_bytes >= of(limits.checkpoint_bytes)
            // The damaged entries must be applied first.
            || (self.rotten_below > 0 && applied.index + 1 >= self.rotten_below);
        due && self.checkpointing.is_none()
    }

    /// `image`: how many bytes the state takes, about.
    pub(in crate::node) fn checkpoint_begun(&mut self, at: Position, image: u64, now: Time) {
        self.checkpoint_image = image;
        self.checkpoint = at;
        self.checkpoint_at = now;
        self.applied_bytes = 0;
        self.checkpointing = Some(at.index);
        if at.index + 1 >= self.rotten_below {
            self.rotten_below = 0;
        }
    }

    /// The checkpoint at this index is durable, and takes so many bytes.
    pub(in crate::node) fn checkpoint_done(&mut self, index: u64, bytes: u64, now: Time) {
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
        let keeps_from = self.persistence.keeps_from;
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
        let makes_room = room.wants_checkpoint(machine, self.persistence.checkpoint_image);
        if !self.persistence.is_checkpoint_due(cx.id, &limits, applied, now, makes_room) {
            return;
        }
        // A damaged part that is not applied yet is dropped by a later checkpoint.
        let sound_from = self.persistence.rotten_below;
        let sound_from = if sound_from <= applied.index + 1 { sound_from } else { 0 };
        let keep_from = self.keep_from(applied, membership, cx).max(sound_from);
        // From now on no peer is sent entries that the disk is about to drop.
        let handed_out = self.handed_out();
        self.log_mut().compact(keep_from, handed_out);
        cx.metrics.checkpoints += 1;
        self.persistence.checkpoint_begun(applied, machine.bytes(), now);
        self.persistence.keeps_from = keep_from;
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
        let retained = self.persistence.retained_bytes(limits);
        let keep_from = log.keep_from(applied.index, retained);
        if !self.leads() {
            return keep_from;
        }
        let bound = log.keep_from(applied.index, limits.catch_up_bytes.max(retained));
        let since = cx.now.mono.saturating_sub(cx.patience());
        let alive = |peer: &NodeId| membership.last_received(*peer).is_some_and(|at| at >= since);
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
        let mut voting = self.log().voting().clone();
        if planted!(LearnersForgotten) {
            voting.learners.clear();
        }
        if planted!(JointForgotten) {
            voting.voters_outgoing.clear();
        }
        SnapshotMeta { index, term, zxid: machine.zxid(), hash: machine.hash(), voting }
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
