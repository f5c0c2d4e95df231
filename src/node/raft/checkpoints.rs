//! When the log is cut: checkpoints, what the disk keeps of the log behind them, and what memory keeps.

use crate::machine::Machine;
use crate::node::context::Context;
use crate::node::io::DiskOp;
use crate::node::membership::Membership;
use crate::node::raft::core::Raft;
use crate::node::raft::log::Position;
use crate::node::raft::state::Sends;
use crate::node::room::Room;
use crate::node::stored::SnapshotMeta;
use crate::types::membership::NodeId;

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
        // On a disk with little room, the log is cut as early as with a small state.
        let state_bytes = if room.is_low { 0 } else { machine.bytes() };
        let due = &self.persistence;
        if !due.is_checkpoint_due(cx.id, &limits, applied, now, state_bytes, makes_room) {
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
