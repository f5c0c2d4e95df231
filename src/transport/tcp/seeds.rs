//! Addresses that this node dials to find other nodes.

use std::time::Duration;

use super::context::{NetworkContext, Target};
use super::outgoing::{Outgoing, Seed};
use super::peer::DialledPeer;
use crate::transport::handshake::Responder;
use crate::types::membership::NodeId;

/// How long a client waits for the node at one address before it dials the next (RFC 8305, section 5).
const SEED_PAUSE: Duration = Duration::from_millis(250);

impl Outgoing {
    pub(super) fn set_seeds(&mut self, context: &mut NetworkContext, addresses: Vec<String>) {
        for address in addresses {
            let place = self.seeds.len();
            let peer = DialledPeer::new(Target::Seed(place), address, context.now);
            self.seeds.push(Seed { peer, rests_for: None, is_initial: true });
        }
        self.set_seeking(context, true);
    }

    /// Dials these addresses too. They replace addresses of an earlier call that are not among them.
    pub(super) fn look_at(&mut self, context: &mut NetworkContext, addresses: Vec<String>) {
        for address in &addresses {
            if self.seeds.iter().any(|seed| seed.peer.address == *address) {
                continue;
            }
            let is_free = |seed: &Seed| !seed.is_initial && !addresses.contains(&seed.peer.address);
            let place = self.seeds.iter().position(is_free).unwrap_or(self.seeds.len());
            let peer = DialledPeer::new(Target::Seed(place), address.clone(), context.now);
            let seed = Seed { peer, rests_for: None, is_initial: false };
            match self.seeds.get_mut(place) {
                Some(former) => {
                    former.peer.disconnect(context);
                    *former = seed;
                }
                None => self.seeds.push(seed),
            }
            if self.seeks && !self.may_rest(place) {
                self.with(context, Target::Seed(place), DialledPeer::redial);
            }
        }
    }

    /// Dials the seeds; or stops, and disconnects the peers that were found there and are not listed.
    pub(super) fn set_seeking(&mut self, context: &mut NetworkContext, seeks: bool) {
        if std::mem::replace(&mut self.seeks, seeks) == seeks {
            return;
        }
        if seeks {
            return self.dial_seeds(context);
        }
        for seed in &mut self.seeds {
            seed.peer.disconnect(context);
        }
        let found = self.peers.iter().filter(|(_, peer)| peer.listed.is_none());
        for node in found.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.remove(context, node, true);
        }
    }

    /// A member needs all nodes that it can find, and dials all seeds at once. A client needs one node,
    /// and dials one seed after the other until `set_seeking` stops it. Clients with the same list do
    /// not begin with the same address.
    fn dial_seeds(&mut self, context: &mut NetworkContext) {
        let (count, is_client) = (self.seeds.len(), context.is_client());
        let first = if is_client { context.local.node as usize } else { 0 };
        for turn in 0..count {
            let place = first.wrapping_add(turn) % count;
            if self.may_rest(place) {
                continue;
            }
            if is_client && turn > 0 {
                let pause = SEED_PAUSE * u32::try_from(turn).unwrap_or(u32::MAX);
                self.seeds[place].peer.dial_in(context, pause);
            } else {
                self.with(context, Target::Seed(place), DialledPeer::redial);
            }
        }
    }

    /// Lets a seed rest if it is not being dialled and a peer is dialled at its address.
    pub(super) fn may_rest(&mut self, place: usize) -> bool {
        let Some(seed) = self.seeds.get_mut(place).filter(|seed| seed.peer.is_waiting()) else {
            return false;
        };
        let address = &seed.peer.address;
        let dialled = |peer: &DialledPeer| {
            let is_listed_and_up = peer.listed.as_ref() == Some(address) && peer.is_up();
            (peer.address == *address || is_listed_and_up) && !peer.is_elsewhere
        };
        seed.rests_for = self.peers.iter().find(|(_, peer)| dialled(peer)).map(|(node, _)| *node);
        seed.rests_for.is_some()
    }

    /// Lets the seeds rest whose address is the one at which this peer is dialled.
    pub(super) fn rest_seeds(&mut self, context: &mut NetworkContext, node: NodeId) {
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

    /// Dials the seeds again that rested for this peer, which is gone or is not at their address.
    /// `lasted`: whether the peer had been connected for long.
    pub(super) fn wake_seeds(&mut self, context: &mut NetworkContext, node: NodeId, lasted: bool) {
        for seed in &mut self.seeds {
            if seed.rests_for == Some(node) {
                seed.rests_for = None;
                if self.seeks {
                    seed.peer.resume(context, lasted, Duration::ZERO);
                }
            }
        }
    }

    /// A peer was lost: dials the other seeds again at which it was found. The peer itself is
    /// dialled first, since two attempts at a time would disturb each other.
    pub(super) fn wake_other_seeds(&mut self, context: &mut NetworkContext, node: NodeId) {
        let Some(peer) = self.peers.get(&node) else {
            return;
        };
        let at_least = context.options.retry_max;
        for seed in &mut self.seeds {
            if seed.rests_for == Some(node) && seed.peer.address != peer.address {
                seed.rests_for = None;
                if self.seeks {
                    seed.peer.resume(context, true, at_least);
                }
            }
        }
    }

    /// A node at this seed's address has welcomed this node, and becomes a peer.
    pub(super) fn found(
        &mut self,
        context: &mut NetworkContext,
        place: usize,
        version: u16,
        responder: Responder,
    ) {
        if let Some(failure) = self.conflict(context, &responder) {
            return self.with(context, Target::Seed(place), |_, _| Err(failure));
        }
        let Some(seed) = self.seeds.get_mut(place) else {
            return;
        };
        seed.peer.reports.reached();
        let Some(connection) = seed.peer.release(context) else {
            return;
        };
        let node = responder.node;
        let address = responder.run.address;
        if self.peers.get(&node).is_some_and(|peer| peer.address != address) {
            self.relocate(context, node, address.clone(), true);
        }
        let new = || DialledPeer::new(Target::Node(node), address, context.now);
        self.peers.entry(node).or_insert_with(new).adopt(context, connection, version);
        self.changed.push(node);
        self.rest_seeds(context, node);
        if let Some(seed) = self.seeds.get_mut(place) {
            seed.rests_for = Some(node);
        }
        // The socket may have become ready in the meantime, and have more to read than the welcome.
        self.with(context, Target::Node(node), DialledPeer::proceed);
    }
}
