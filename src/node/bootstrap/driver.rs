//! How a node without a cluster comes to one: [`formation`](super::formation) decides, and this does.

use crate::machine::Machine;
use crate::node::bootstrap::Outcome;
use crate::node::bootstrap::message::Word;
use crate::node::io::DiskOp;
use crate::node::message::PeerMessage;
use crate::node::raft::log::Position;
use crate::node::start::raft;
use crate::node::stored::Boot;
use crate::node::{Leadership, Node};
use crate::planted::{Bug, planted};
use crate::types::membership::{Genesis, NodeId, Promise};

/// What of its cluster a node has told its disk.
#[derive(Debug, Default)]
pub(in crate::node) struct Identified {
    /// The cluster that it belongs to, or wants to; 0: none yet.
    pub(in crate::node) cluster: u64,
    /// The disk operation that makes it durable, until it is.
    pub(in crate::node) writing: Option<u64>,
    /// The disk operation of the promise that is being written, and its number as a promise.
    pub(in crate::node) promising: Option<(u64, u64)>,
}

impl Node {
    /// The cluster that this node belongs to, once that is durable; 0: none.
    pub(crate) fn cluster(&self) -> u64 {
        if self.identified.writing.is_some() { 0 } else { self.identified.cluster }
    }

    pub(in crate::node) fn take_word(&mut self, from: NodeId, word: Word) {
        if let Some(formation) = &mut self.formation {
            formation.take(from, word);
        } else if word.cluster == 0 && self.cluster() != 0 {
            self.note_newcomer(from);
            let word = Word {
                member: self.membership.me.clone(),
                list: Vec::new(),
                cluster: self.cluster(),
                promise: Promise::default(),
            };
            self.effects.messages.push((from, PeerMessage::Meet { word }));
        }
    }

    /// The disk has written all up to this.
    pub(in crate::node) fn kept(&mut self) {
        let written = self.written;
        if let Some((_, number)) = self.identified.promising.take_if(|(op, _)| *op <= written)
            && let Some(formation) = &mut self.formation
        {
            formation.written(number);
        }
        if self.identified.writing.take_if(|op| *op <= written).is_some() {
            self.effects.cluster = Some(self.identified.cluster);
        }
    }

    /// Goes on towards a cluster, while there is none.
    pub(in crate::node) fn form(&mut self) -> Result<(), String> {
        let Some(formation) = &mut self.formation else {
            return Ok(());
        };
        let todo = formation.step(self.now.mono);
        let words = todo.tell.into_iter();
        let words = words.map(|(to, word)| (to, PeerMessage::Meet { word }));
        self.effects.messages.extend(words);
        self.form_at = todo.wake_at;
        if let Some((number, promise)) = todo.keep {
            self.disk_number += 1;
            self.identified.promising = Some((self.disk_number, number));
            let number = self.disk_number;
            self.effects.disk.push(DiskOp::Promise { number, promise });
        }
        match todo.outcome {
            None => Ok(()),
            Some(Outcome::Found(genesis)) => self.found(&genesis),
            Some(Outcome::Join { cluster }) => {
                tracing::info!(node = self.id, cluster, "joining a cluster");
                self.formation = None;
                self.joins = true;
                self.belong_to(cluster);
                Ok(())
            }
        }
    }

    /// Starts from this genesis, in place of the nothing that there was.
    fn found(&mut self, genesis: &Genesis) -> Result<(), String> {
        tracing::info!(node = self.id, cluster = genesis.cluster, "founding a cluster");
        self.formation = None;
        let (hard_state, meta, state) = genesis.start();
        let checkpoint = Position { index: meta.index, term: meta.term };
        let boot = Boot { hard_state, checkpoint: meta.clone(), entries: Vec::new() };
        self.raw = raft(self.id, &boot, checkpoint)?;
        self.machine = Machine::from_state(state.clone());
        // The node had nothing to say before, in Raft's terms.
        self.undurable.clear();
        self.leadership = Leadership { term: self.raw.raft.term, leader: 0 };
        self.leading = None;
        self.checkpoint = checkpoint;
        self.checkpoint_at = self.now.mono;
        self.history.begin_after(self.machine.zxid());
        self.published = None;
        // If it stops between the two, its pledge tells which cluster the state is of.
        self.disk_number += 1;
        let number = self.disk_number;
        self.effects.disk.push(DiskOp::Install { number, hard_state, meta, state });
        self.belong_to(genesis.cluster);
        self.members_changed();
        if self.raw.store().conf_state().voters == [self.id] {
            self.raw.campaign().map_err(|error| format!("Raft does not start: {error}"))?;
        }
        Ok(())
    }

    /// From now on the node is of this cluster and can be of no other.
    pub(in crate::node) fn belong_to(&mut self, cluster: u64) {
        self.identity.cluster = cluster;
        self.identified.cluster = cluster;
        if planted(Bug::ClusterForgotten) {
            self.effects.cluster = Some(cluster);
            return;
        }
        self.disk_number += 1;
        self.identified.writing = Some(self.disk_number);
        let (number, identity) = (self.disk_number, self.identity.clone());
        self.effects.disk.push(DiskOp::Identify { number, identity });
    }
}
