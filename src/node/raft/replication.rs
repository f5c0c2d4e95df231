//! What a leader has under way to its peers: states, appends whose position is not known, and entries that
//! the disk reads for them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::node::context::Context;
use crate::node::io::Time;
use crate::node::raft::core::Raft;
use crate::node::raft::probes::Probes;
use crate::node::raft::snapshot_transfer::OutgoingSnapshots;
use crate::types::membership::NodeId;

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::node) struct Replication {
    pub(super) outgoing: OutgoingSnapshots,
    pub(super) probes: Probes,
    /// The first indexes of log reads that the disk has not answered yet.
    pub(super) reads: BTreeSet<u64>,
    /// Peers for which nothing is read, since they have not acknowledged earlier entries: how far each
    /// has stored the log, and since when.
    pub(super) unacknowledged: BTreeMap<NodeId, (u64, Time)>,
}

impl Replication {
    pub(in crate::node) fn new(term: u64, heartbeat: Duration) -> Replication {
        Replication {
            outgoing: OutgoingSnapshots::new(term, heartbeat),
            probes: Probes::default(),
            reads: BTreeSet::new(),
            unacknowledged: BTreeMap::new(),
        }
    }

    /// The connection to a peer has ended.
    pub(in crate::node) fn lost(&mut self, peer: NodeId, raft: &mut Raft) {
        self.probes.lost(peer);
        self.aborted(peer, None, raft);
    }

    /// The state is no longer sent to a peer: this transfer, or whichever is under way.
    pub(in crate::node) fn aborted(
        &mut self,
        peer: NodeId,
        transfer: Option<u64>,
        raft: &mut Raft,
    ) {
        if self.outgoing.abort(peer, transfer) {
            raft.state_sent(peer, false);
        }
    }

    /// A peer has taken the chunks of a state up to this one: sends it more.
    pub(in crate::node) fn acked(
        &mut self,
        from: NodeId,
        transfer: u64,
        next: u32,
        raft: &mut Raft,
        cx: &mut Context,
    ) {
        let (more, done) = self.outgoing.acked(from, transfer, next, cx.now.mono);
        cx.effects.messages.extend(more.into_iter().map(|message| (from, message)));
        if done {
            raft.state_sent(from, true);
        }
    }

    /// Gives up the transfers that have not moved for long.
    pub(in crate::node) fn end_stalled(&mut self, raft: &mut Raft, cx: &Context) {
        for peer in self.outgoing.take_stalled(cx.now.mono.saturating_sub(cx.patience() * 4)) {
            raft.state_sent(peer, false);
        }
    }

    /// A part of the log on the disk is damaged: a read that has found that has no other answer.
    pub(in crate::node) fn forget_reads(&mut self) {
        self.reads.clear();
    }

    #[cfg(test)]
    pub(in crate::node) fn transfers(&self) -> usize {
        self.outgoing.count()
    }
}
