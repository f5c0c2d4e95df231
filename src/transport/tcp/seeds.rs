//! Addresses at which this node looks for others.

use std::time::Duration;

use super::driver::Context;
use super::outgoing::Outgoing;
use super::peer::{Peer, Target};
use crate::transport::handshake::Host;
use crate::types::membership::NodeId;

/// Where somebody may be.
#[derive(Debug)]
pub(super) struct Seed {
    pub(super) peer: Peer,
    /// Who was found there, or is dialled there: the seed rests as long as that is so.
    rests_for: Option<NodeId>,
}

impl Outgoing {
    pub(super) fn set_seeds(&mut self, context: &mut Context, addresses: Vec<String>) {
        for address in addresses {
            let place = self.seeds.len();
            let peer = Peer::new(Target::Seed(place), address, context.now);
            self.seeds.push(Seed { peer, rests_for: None });
            if !self.may_rest(place) {
                self.with(context, Target::Seed(place), Peer::redial);
            }
        }
    }

    /// Lets a seed that is not being dialled rest if a peer is dialled there.
    pub(super) fn may_rest(&mut self, place: usize) -> bool {
        let Some(seed) = self.seeds.get_mut(place).filter(|seed| seed.peer.is_waiting()) else {
            return false;
        };
        let address = &seed.peer.address;
        let dialled = |peer: &Peer| {
            let is_listed_and_up = peer.listed.as_ref() == Some(address) && peer.is_up();
            (peer.address == *address || is_listed_and_up) && !peer.is_elsewhere
        };
        seed.rests_for = self.peers.iter().find(|(_, peer)| dialled(peer)).map(|(node, _)| *node);
        seed.rests_for.is_some()
    }

    /// Lets the seeds rest at whose address this peer is dialled.
    pub(super) fn rest_seeds(&mut self, context: &mut Context, node: NodeId) {
        let Some(peer) = self.peers.get(&node) else {
            return;
        };
        for seed in &mut self.seeds {
            if seed.peer.address == peer.address && seed.rests_for.is_none() {
                seed.peer.disconnect(context);
                seed.rests_for = Some(node);
            }
        }
    }

    /// Dials the seeds again that rested for this peer: it is none any longer, or not there.
    /// `lasted` says whether it had been for long.
    pub(super) fn wake_seeds(&mut self, context: &mut Context, node: NodeId, lasted: bool) {
        for seed in &mut self.seeds {
            if seed.rests_for == Some(node) {
                seed.rests_for = None;
                seed.peer.resume(context, lasted, Duration::ZERO);
            }
        }
    }

    /// Dials the seeds again at which this peer was found and is not dialled: it was lost. It has
    /// the first try, since two at a time would disturb each other.
    pub(super) fn wake_other_seeds(&mut self, context: &mut Context, node: NodeId) {
        let Some(peer) = self.peers.get(&node) else {
            return;
        };
        let at_least = context.options.retry_max;
        for seed in &mut self.seeds {
            if seed.rests_for == Some(node) && seed.peer.address != peer.address {
                seed.rests_for = None;
                seed.peer.resume(context, true, at_least);
            }
        }
    }

    /// At this seed's address a node has welcomed us, which is a peer now.
    pub(super) fn found(&mut self, context: &mut Context, place: usize, host: Host, version: u16) {
        let Some(seed) = self.seeds.get_mut(place) else {
            return;
        };
        let Some(connection) = seed.peer.release(context) else {
            return;
        };
        let node = host.node;
        let address = host.run.address;
        if self.peers.get(&node).is_some_and(|peer| peer.address != address) {
            self.relocate(context, node, address.clone(), true);
        }
        let new = || Peer::new(Target::Node(node), address, context.now);
        self.peers.entry(node).or_insert_with(new).adopt(context, connection, version);
        self.rest_seeds(context, node);
        if let Some(seed) = self.seeds.get_mut(place) {
            seed.rests_for = Some(node);
        }
        // It may have been made ready in the meantime, and have said more than that it is there.
        self.with(context, Target::Node(node), Peer::proceed);
    }
}
