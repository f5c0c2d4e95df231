//! The connections that this node makes, one to each peer, to send on.
//!
//! Each peer takes its steps by itself (`peer`); here they are found by their
//! number, and what fails in a step is turned into a pause and a report.
//!
//! A peer is a member, a guest, or was found at a seed's address; the last is
//! forgotten with its connection. A seed is dialled until somebody is found
//! there, who then is a peer, and has the connection; and again when that one
//! is lost. Until then, and as long as a peer is dialled at the same address,
//! the seed rests (`seeds`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;

use mio::Token;
use mio::event::Event;

use super::Counters;
use super::driver::{Context, Warnings};
use super::failure::Failure;
use super::incoming::Met;
use super::peer::{Peer, Target};
use super::queue::Rejected;
use super::seeds::Seed;
use crate::node::message::PeerMessage;
use crate::transport::RemotePeer;
use crate::types::membership::NodeId;

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) peers: BTreeMap<NodeId, Peer>,
    pub(super) seeds: Vec<Seed>,
    /// Those that may have bytes to write and room to write them to.
    unflushed: Vec<Target>,
    /// Those that may have more to be read at once.
    unread: Vec<Target>,
    too_long: Warnings,
}

impl Outgoing {
    /// Replaces the members; the circle knows them already.
    pub(super) fn set_peers(&mut self, context: &mut Context, remotes: Vec<RemotePeer>) {
        let remotes: BTreeMap<NodeId, String> =
            remotes.into_iter().map(|remote| (remote.node, remote.address)).collect();
        let mut gone = Vec::new();
        for (node, peer) in &mut self.peers {
            if peer.listed.is_some() && !remotes.contains_key(node) {
                peer.listed = None;
                gone.extend((!context.circle.is_known(*node)).then_some(*node));
            }
        }
        for node in gone {
            self.remove(context, node, true);
        }
        for (node, address) in remotes {
            let peer = match self.peers.entry(node) {
                Entry::Vacant(vacant) => {
                    let mut peer = Peer::new(Target::Node(node), address.clone(), context.now);
                    peer.listed = Some(address);
                    vacant.insert(peer);
                    self.dial(context, node);
                    continue;
                }
                Entry::Occupied(peer) => peer.into_mut(),
            };
            let former = peer.listed.replace(address.clone());
            // One that has moved is where it says, until the list says otherwise.
            if former.as_ref() == Some(&address) || peer.address == address {
                continue;
            }
            // It was found, or has introduced itself, and may go on as it is.
            let stays = former.is_none() && peer.is_up();
            self.relocate(context, node, address, stays);
        }
    }

    /// A peer has introduced itself: it is alive, and worth a try before the pause is over.
    pub(super) fn met(&mut self, context: &mut Context, met: Met) {
        let Met { node, address } = met;
        if !context.circle.is_known(node) {
            return;
        }
        match self.peers.entry(node) {
            Entry::Vacant(vacant) => {
                vacant.insert(Peer::new(Target::Node(node), address, context.now));
                self.dial(context, node);
            }
            Entry::Occupied(peer) if peer.get().address != address => {
                let stays = peer.get().is_up();
                tracing::info!(peer = node, address, "the peer has moved");
                self.relocate(context, node, address, stays);
            }
            Entry::Occupied(_) => {}
        }
        self.with(context, Target::Node(node), Peer::nudge);
    }

    /// This node has a cluster now: says so to those who have heard that it had none.
    pub(super) fn greet_anew(&mut self, context: &mut Context) {
        let peers = self.peers.keys().map(|node| Target::Node(*node));
        let targets: Vec<Target> = peers.chain((0..self.seeds.len()).map(Target::Seed)).collect();
        for target in targets {
            self.with(context, target, Peer::greet_anew);
        }
    }

    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(Peer::is_up)
    }

    /// Forgets a guest that is neither reached nor heard.
    pub(super) fn forget(&mut self, context: &mut Context, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.give_up(context, "it was neither reached nor heard for a while");
            self.remove(context, node, true);
        }
    }

    /// Changes where a peer is dialled; `stays` says whether the connection that there is stays.
    pub(super) fn relocate(
        &mut self,
        context: &mut Context,
        node: NodeId,
        address: String,
        stays: bool,
    ) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.move_to(address);
            self.wake_seeds(context, node, true);
            if !stays {
                self.dial(context, node);
            }
        }
    }

    /// Dials a peer that was not dialled at this address before.
    fn dial(&mut self, context: &mut Context, node: NodeId) {
        self.rest_seeds(context, node);
        self.with(context, Target::Node(node), Peer::redial);
    }

    /// `lasted` says whether it had been a peer for long.
    fn remove(&mut self, context: &mut Context, node: NodeId, lasted: bool) {
        if let Some(mut peer) = self.peers.remove(&node) {
            peer.disconnect(context);
            context.subjects.forget(node);
            self.wake_seeds(context, node, lasted);
        }
    }

    /// Queues a message, or drops it.
    pub(super) fn send(&mut self, context: &mut Context, node: NodeId, message: &PeerMessage) {
        let rejected = match self.peers.get_mut(&node) {
            Some(peer) => match peer.send(context, message) {
                Ok(()) => {
                    if !peer.is_unflushed {
                        peer.is_unflushed = true;
                        self.unflushed.push(Target::Node(node));
                    }
                    return;
                }
                Err(rejected) => rejected,
            },
            None => None,
        };
        Counters::add(&context.shared.counters.messages_dropped, 1);
        if let Some(Rejected::TooLong { bytes }) = rejected
            && let Some(suppressed) = self.too_long.permit(context.now)
        {
            tracing::warn!(peer = node, bytes, suppressed, "message too long to send");
        }
    }

    /// Writes what was queued.
    pub(super) fn flush(&mut self, context: &mut Context) {
        for target in std::mem::take(&mut self.unflushed) {
            if let Some(peer) = self.get_mut(target) {
                peer.is_unflushed = false;
                self.with(context, target, Peer::flush);
            }
        }
    }

    /// Reads on where there was more than is read at a time.
    pub(super) fn read(&mut self, context: &mut Context) {
        for target in std::mem::take(&mut self.unread) {
            if self.get_mut(target).is_some_and(|peer| std::mem::take(&mut peer.has_unread)) {
                self.with(context, target, Peer::proceed);
            }
        }
    }

    /// Whether something can be written or read at once.
    pub(super) fn is_busy(&self) -> bool {
        !self.unflushed.is_empty() || !self.unread.is_empty()
    }

    pub(super) fn ready(&mut self, context: &mut Context, target: Target, event: &Event) {
        self.with(context, target, |peer, context| peer.ready(context, event));
    }

    pub(super) fn timer(&mut self, context: &mut Context, target: Target) {
        if let Target::Seed(place) = target
            && self.may_rest(place)
        {
            return;
        }
        self.with(context, target, Peer::timer);
    }

    pub(super) fn resolved(
        &mut self,
        context: &mut Context,
        target: Target,
        attempt: Token,
        addresses: Result<Vec<SocketAddr>, String>,
    ) {
        self.with(context, target, |peer, context| peer.resolved(context, attempt, addresses));
    }

    fn get_mut(&mut self, target: Target) -> Option<&mut Peer> {
        match target {
            Target::Node(node) => self.peers.get_mut(&node),
            Target::Seed(place) => self.seeds.get_mut(place).map(|seed| &mut seed.peer),
        }
    }

    /// Takes one step with a peer; if it fails, so does the peer's connection.
    pub(super) fn with(
        &mut self,
        context: &mut Context,
        target: Target,
        step: impl FnOnce(&mut Peer, &mut Context) -> Result<(), Failure>,
    ) {
        let Some(peer) = self.get_mut(target) else {
            return;
        };
        if let Err(failure) = step(peer, context) {
            let lasted = peer.fail(context, &failure);
            if let Target::Node(node) = target {
                self.lost(context, node, lasted, failure.is_elsewhere());
            }
            return;
        }
        let unread = peer.has_unread;
        let unflushed = peer.has_more_to_write() && !peer.is_unflushed;
        peer.is_unflushed |= unflushed;
        let found = peer.found.take();
        if unflushed {
            self.unflushed.push(target);
        }
        if unread && !self.unread.contains(&target) {
            self.unread.push(target);
        }
        if let (Target::Seed(place), Some((host, version))) = (target, found) {
            self.found(context, place, host, version);
        }
    }

    /// A peer is not connected any longer, or has not come to be; `lasted` says whether it had been
    /// for long, and `elsewhere` whether another node has answered.
    fn lost(&mut self, context: &mut Context, node: NodeId, lasted: bool, elsewhere: bool) {
        if !context.circle.is_known(node) {
            // It was found at a seed's address, and is to be found there again.
            self.remove(context, node, lasted);
        } else if elsewhere {
            self.wake_seeds(context, node, true);
        } else {
            self.wake_other_seeds(context, node);
        }
    }
}
