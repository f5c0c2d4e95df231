//! How a node without a cluster founds or joins one. [`Founding`] decides; this file carries its
//! decisions out.

use std::collections::BTreeSet;

use crate::machine::Machine;
use crate::node::bootstrap::message::Announcement;
use crate::node::bootstrap::{Founding, Outcome};
use crate::node::io::{DiskOp, Time};
use crate::node::message::PeerMessage;
use crate::node::raft::core::Raft;
use crate::node::raft::log::Position;
use crate::node::stored::{Boot, Identity};
use crate::node::{Leadership, Node};
use crate::types::membership::{Genesis, MEMBERS_MAX, NodeId, Promise};

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
    /// themselves since without one. The cluster is announced to them once it is durable, and again over the
    /// connection that is made anew for it. Those for which there is no room announce themselves again.
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
}

impl Node {
    /// The cluster that this node belongs to, once that is durable; 0: none.
    pub(crate) fn cluster(&self) -> u64 {
        if self.bootstrap.writing.is_some() { 0 } else { self.bootstrap.identity.cluster }
    }

    pub(in crate::node) fn take_announcement(&mut self, from: NodeId, announcement: Announcement) {
        if let Some(founding) = &mut self.bootstrap.founding {
            founding.take(from, announcement);
        } else if announcement.cluster == 0 && self.cluster() != 0 {
            self.note_newcomer(from);
            self.announce_cluster(from);
        } else if announcement.cluster == 0 && self.bootstrap.waiting.len() < MEMBERS_MAX {
            self.bootstrap.waiting.insert(from);
        }
    }

    fn announce_cluster(&mut self, to: NodeId) {
        let announcement = Announcement {
            member: self.me.clone(),
            list: Vec::new(),
            cluster: self.cluster(),
            promise: Promise::default(),
        };
        self.effects.messages.push((to, PeerMessage::Announce { announcement }));
    }

    /// A connection to a peer was made, perhaps anew since this node has a cluster.
    pub(in crate::node) fn announce_to_connected(&mut self, peer: NodeId) {
        if self.cluster() != 0 && self.bootstrap.waiting.remove(&peer) {
            self.announce_cluster(peer);
        }
    }

    /// The disk has completed writes, perhaps of a promise or the cluster's id.
    pub(in crate::node) fn promises_written(&mut self) {
        let written = self.persistence.written;
        if self.bootstrap.promising.take_if(|op| *op <= written).is_some()
            && let Some(founding) = &mut self.bootstrap.founding
        {
            founding.written();
        }
        if self.bootstrap.writing.take_if(|op| *op <= written).is_some() {
            self.effects.cluster = Some(self.bootstrap.identity.cluster);
            for peer in self.bootstrap.waiting.clone() {
                self.announce_cluster(peer);
            }
        }
    }

    /// Steps the bootstrap, while the node has no cluster.
    pub(in crate::node) fn step_bootstrap(&mut self) -> Result<(), String> {
        let Some(founding) = &mut self.bootstrap.founding else {
            return Ok(());
        };
        let todo = founding.step(self.now.mono);
        for (to, announcement) in todo.messages {
            self.effects.messages.push((to, PeerMessage::Announce { announcement }));
        }
        self.bootstrap.next_at = todo.wake_at;
        if let Some(promise) = todo.write {
            let number = self.persistence.next_number();
            self.bootstrap.promising = Some(number);
            self.effects.disk.push(DiskOp::Promise { number, promise });
        }
        match todo.outcome {
            None => Ok(()),
            Some(Outcome::Found(genesis)) => self.found(&genesis),
            Some(Outcome::Join { cluster }) => {
                tracing::info!(node = %self.named(self.id), cluster = format_args!("{cluster:016x}"), "joining a cluster");
                self.bootstrap.founding = None;
                self.bootstrap.joins = true;
                self.belong_to(cluster);
                Ok(())
            }
        }
    }

    /// Starts from this genesis, in place of the empty state.
    fn found(&mut self, genesis: &Genesis) -> Result<(), String> {
        tracing::info!(node = %self.named(self.id), cluster = format_args!("{:016x}", genesis.cluster), "founding a cluster");
        self.bootstrap.founding = None;
        let (hard_state, meta, state) = genesis.start();
        let checkpoint = Position { index: meta.index, term: meta.term };
        self.raft = Raft::start(self.id, &Boot::without_log(hard_state, meta.clone()))?;
        self.machine = Machine::from_state(state.clone());
        // Without a cluster, Raft had no messages to send.
        self.persistence.awaiting.clear();
        self.leadership = Leadership { term: self.raft.term(), leader: 0 };
        self.leading = None;
        self.persistence.replaced(checkpoint, 0, self.now.mono);
        self.replica.history.begin_after(self.machine.zxid());
        self.replica.published = None;
        // If the node stops between the two writes, its pledge names the state's cluster.
        let number = self.persistence.next_number();
        self.effects.disk.push(DiskOp::Install { number, hard_state, meta, state });
        self.belong_to(genesis.cluster);
        self.members_changed();
        if self.raft.log().voting().voters == [self.id] {
            self.raft.campaign()?;
        }
        Ok(())
    }

    /// From now on the node is of this cluster and can be of no other.
    pub(in crate::node) fn belong_to(&mut self, cluster: u64) {
        self.bootstrap.identity.cluster = cluster;
        self.bootstrap.waiting = self.versions.connected_peers().take(MEMBERS_MAX).collect();
        let (number, identity) = (self.persistence.next_number(), self.bootstrap.identity.clone());
        self.bootstrap.writing = Some(number);
        self.effects.disk.push(DiskOp::Identify { number, identity });
    }
}
