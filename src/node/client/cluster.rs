//! The cluster that serves a client, as far as its members have reported it.

use super::Context;
use crate::node::client_message::UpTo;
use crate::node::io::Time;
use crate::node::versions::{Gate, PATIENCE_TICKS};
use crate::types::membership::{Named, NodeId};
use crate::types::version::FIRST;
use crate::types::znode::Zxid;

/// Which cluster the client stays with, what it has seen of it, and which requests the members may understand.
#[derive(Debug)]
pub(super) struct Cluster {
    /// The one that first served the client; 0: none has yet.
    id: u64,
    /// All events up to this zxid have been received.
    seen: Zxid,
    /// The version and the leader, as last reported.
    version: u16,
    leader: NodeId,
    /// Until when the version may still be raised: see `versions`.
    settled_at: Time,
    /// The client has had everything that was acknowledged at this time.
    fresh_at: Option<Time>,
}

impl Cluster {
    pub(super) fn new() -> Cluster {
        let (version, settled_at, fresh_at) = (FIRST, Time::ZERO, None);
        Cluster { id: 0, seen: 0, version, leader: 0, settled_at, fresh_at }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn seen(&self) -> Zxid {
        self.seen
    }

    pub(super) fn version(&self) -> u16 {
        self.version
    }

    pub(super) fn leader(&self) -> NodeId {
        self.leader
    }

    pub(super) fn fresh_at(&self) -> Option<Time> {
        self.fresh_at
    }

    /// Whether this may be the client's cluster.
    pub(super) fn may_be(&self, cluster: u64) -> bool {
        self.id == 0 || self.id == cluster
    }

    /// Whether this is the client's cluster. The client stays with the first that serves it.
    pub(super) fn stays_with(&mut self, cluster: u64, cx: &mut Context) -> bool {
        if self.id == 0 && cluster != 0 {
            tracing::info!(client = %Named::of(cx.id), cluster = format_args!("{cluster:016x}"), "attached");
            self.id = cluster;
            cx.effects.cluster = Some(cluster);
        }
        self.id == cluster
    }

    /// Takes the end of a group of updates. A member that does not serve the client yet sends no events. If it never
    /// does, the next member sends the missed ones.
    pub(super) fn take(&mut self, up_to: UpTo, serves: bool, begins: bool, cx: &Context) {
        if serves {
            self.seen = unless!(ClientSeesOlder, self.seen.max(up_to.zxid), up_to.zxid);
        }
        if begins || self.leader != up_to.leader {
            self.settled_at = cx.now.mono + cx.config.tick * PATIENCE_TICKS;
        }
        (self.version, self.leader) = (self.version.max(up_to.version), up_to.leader);
    }

    pub(super) fn was_fresh(&mut self, at: Time) {
        self.fresh_at = self.fresh_at.max(Some(at));
    }

    /// Which requests may be sent now. A client does not know which version each member supports,
    /// so its requests of a later version wait until the version is settled.
    pub(super) fn gate(&self, cx: &Context) -> Gate {
        let is_settled = cx.now.mono >= self.settled_at;
        let possible = if is_settled { 0 } else { cx.config.version };
        Gate { version: self.version, possible: possible.max(self.version) }
    }
}
