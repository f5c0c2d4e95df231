//! How a node without a cluster founds or joins one. [`Founding`] decides; this file writes what it decides,
//! and tells others. The node starts from a new cluster's state (`Node::found`).

use std::collections::BTreeSet;

use crate::node::bootstrap::message::Announcement;
use crate::node::bootstrap::{BootstrapOutcome, Founding};
use crate::node::context::Context;
use crate::node::io::{DiskOp, Time};
use crate::node::membership::Membership;
use crate::node::message::PeerMessage;
use crate::node::raft::core::Raft;
use crate::node::raft::persistence::Persistence;
use crate::node::stored::Identity;
use crate::node::versions::Versions;
use crate::types::membership::{MEMBERS_MAX, Member, NodeId, Promise};

/// The identity of a node, and its way into a cluster.
#[derive(Debug)]
pub(in crate::node) struct Bootstrap {
    /// Its cluster is the one that the node belongs to or wants to join; 0: none yet.
    pub(in crate::node) identity: Identity,
    /// The disk operation that makes the cluster durable, until it is.
    writing: Option<u64>,
    /// The disk operation of the promise that is being written.
    promising: Option<u64>,
    /// While it has no cluster.
    pub(in crate::node) founding: Option<Founding>,
    pub(in crate::node) next_at: Time,
    /// Whether it is not a member of its cluster yet and asks to become one.
    pub(in crate::node) joins: bool,
    /// The peers that were connected when this node found or founded its cluster, and those that have announced
    /// themselves since without one, before it was durable or before this node was connected to them. The cluster is
    /// announced to them once it is durable, and again when a connection to them is made. Those for which there is no
    /// room announce themselves again.
    waiting: BTreeSet<NodeId>,
}

impl Bootstrap {
    pub(in crate::node) fn new(identity: Identity, founding: Option<Founding>) -> Bootstrap {
        Bootstrap {
            identity,
            writing: None,
            promising: None,
            founding,
            next_at: Time::MAX,
            joins: false,
            waiting: BTreeSet::new(),
        }
    }

    /// The cluster that this node belongs to, once that is durable; 0: none.
    pub(in crate::node) fn cluster(&self) -> u64 {
        if self.writing.is_some() { 0 } else { self.identity.cluster }
    }

    pub(in crate::node) fn take_announcement(
        &mut self,
        from: NodeId,
        announcement: Announcement,
        membership: &mut Membership,
        raft: &Raft,
        cx: &mut Context,
    ) {
        if let Some(founding) = &mut self.founding {
            founding.take(from, announcement);
        } else if announcement.cluster == 0 {
            let is_durable = self.cluster() != 0;
            if is_durable {
                membership.note_newcomer(from, raft, cx.now.mono);
                self.announce_cluster(from, &membership.me, cx);
            }
            // The reply is lost if this node is not connected to the peer yet.
            let is_sent = is_durable && membership.versions.is_connected(from);
            if !is_sent && self.waiting.len() < MEMBERS_MAX {
                self.waiting.insert(from);
            }
        }
    }

    fn announce_cluster(&self, to: NodeId, me: &Member, cx: &mut Context) {
        let announcement = Announcement {
            member: me.clone(),
            list: Vec::new(),
            cluster: self.cluster(),
            promise: Promise::default(),
        };
        cx.send(to, PeerMessage::Announce { announcement });
    }

    /// A connection to a peer was made, perhaps anew since this node has a cluster.
    pub(in crate::node) fn announce_to_connected(
        &mut self,
        peer: NodeId,
        me: &Member,
        cx: &mut Context,
    ) {
        if self.cluster() != 0 && self.waiting.remove(&peer) {
            self.announce_cluster(peer, me, cx);
        }
    }

    /// The disk has completed writes up to this one, perhaps of a promise or the cluster's id.
    pub(in crate::node) fn written(&mut self, written: u64, me: &Member, cx: &mut Context) {
        if self.promising.take_if(|op| *op <= written).is_some()
            && let Some(founding) = &mut self.founding
        {
            founding.written();
        }
        if self.writing.take_if(|op| *op <= written).is_some() {
            cx.effects.cluster = Some(self.identity.cluster);
            for peer in self.waiting.clone() {
                self.announce_cluster(peer, me, cx);
            }
        }
    }

    /// Steps the bootstrap, while the node has no cluster. Returns what it has come to.
    pub(in crate::node) fn step(
        &mut self,
        persistence: &mut Persistence,
        cx: &mut Context,
    ) -> Option<BootstrapOutcome> {
        let todo = self.founding.as_mut()?.step(cx.now.mono);
        for (to, announcement) in todo.messages {
            cx.send(to, PeerMessage::Announce { announcement });
        }
        self.next_at = todo.wake_at;
        if let Some(promise) = todo.write {
            let number = persistence.next_number();
            self.promising = Some(number);
            cx.effects.disk.push(DiskOp::Promise { number, promise });
        }
        todo.outcome
    }

    /// From now on the node is of this cluster and can be of no other.
    pub(in crate::node) fn belong_to(
        &mut self,
        cluster: u64,
        versions: &Versions,
        persistence: &mut Persistence,
        cx: &mut Context,
    ) {
        self.founding = None;
        self.identity.cluster = cluster;
        self.waiting = versions.connected_peers().take(MEMBERS_MAX).collect();
        let (number, identity) = (persistence.next_number(), self.identity.clone());
        self.writing = Some(number);
        cx.effects.disk.push(DiskOp::Identify { number, identity });
    }
}
