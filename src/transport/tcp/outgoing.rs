//! The connections that this node makes, one to each peer, to send on.
//!
//! The steps of one peer are in `peer`. This module finds peers by their id, and turns a step that
//! fails into a pause and a report.
//!
//! A peer is a member, an unlisted peer, or a node found at a seed's address; the last is forgotten
//! with its connection. A seed is dialled until a node is found there. That node becomes a peer and
//! owns the connection; when it is lost, the seed is dialled again. While a peer is dialled at the
//! same address, the seed rests (`seeds`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::context::{NetworkContext, Target};
use super::failure::Failure;
use super::peer::DialledPeer;
use super::sockets::SocketEvent;
use crate::node::message::PeerMessage;
use crate::transport::RemotePeer;
use crate::types::membership::{Named, NodeId};

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) peers: BTreeMap<NodeId, DialledPeer>,
    pub(super) seeds: Vec<Seed>,
    /// Whether seeds are dialled.
    pub(super) seeks: bool,
    /// Peers that may have bytes to write and room for them.
    unflushed: Targets,
    /// Peers that may have more to read at once.
    unread: Targets,
    /// Peers whose connection has come up or was lost, or whose process has shown that it is alive (`processes`).
    pub(super) changed: Vec<NodeId>,
}

/// Some connections, each once. There are few, and most writes need them, so their memory is kept.
#[derive(Debug, Default)]
struct Targets(Vec<Target>);

impl Targets {
    fn add(&mut self, target: Target) {
        if !self.0.contains(&target) {
            self.0.push(target);
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An address where a node may be.
#[derive(Debug)]
pub(super) struct Seed {
    pub(super) peer: DialledPeer,
    /// The peer found or dialled at the address. While there is one, the seed rests: nobody dials it.
    pub(super) rests_for: Option<NodeId>,
    /// Whether it was given at the start. `look_at` may replace the others.
    pub(super) is_initial: bool,
}

impl Outgoing {
    /// Replaces the members; `known_peers` has them already.
    pub(super) fn set_peers(&mut self, context: &mut NetworkContext, remotes: Vec<RemotePeer>) {
        let remotes: BTreeMap<NodeId, String> =
            remotes.into_iter().map(|remote| (remote.node, remote.address)).collect();
        let mut gone = Vec::new();
        for (node, peer) in &mut self.peers {
            if peer.listed.is_some() && !remotes.contains_key(node) {
                peer.listed = None;
                gone.extend((!context.known_peers.is_known(*node)).then_some(*node));
            }
        }
        for node in gone {
            self.remove(context, node, true);
        }
        for (node, address) in remotes {
            let peer = match self.peers.entry(node) {
                Entry::Vacant(vacant) => {
                    let mut peer =
                        DialledPeer::new(Target::Node(node), address.clone(), context.now);
                    peer.listed = Some(address);
                    vacant.insert(peer);
                    self.dial(context, node);
                    continue;
                }
                Entry::Occupied(peer) => peer.into_mut(),
            };
            let former = peer.listed.replace(address.clone());
            // A peer that has moved is at the address it gave, until its entry in the list changes.
            if former.as_ref() == Some(&address) || peer.address == address {
                continue;
            }
            // The peer was found at a seed, or has connected to this node: its connection may stay.
            let stays = former.is_none() && peer.is_up();
            self.relocate(context, node, address, stays);
        }
    }

    /// An incoming handshake succeeded, so the peer is alive: dials it before the pause is over.
    pub(super) fn peer_welcomed(&mut self, context: &mut NetworkContext, peer: RemotePeer) {
        let RemotePeer { node, address } = peer;
        if !context.known_peers.is_known(node) {
            return;
        }
        match self.peers.entry(node) {
            Entry::Vacant(vacant) => {
                vacant.insert(DialledPeer::new(Target::Node(node), address, context.now));
                self.dial(context, node);
            }
            Entry::Occupied(peer) if peer.get().address != address => {
                let stays = peer.get().is_up();
                tracing::info!(peer = %Named::of(node), address, "the peer has moved");
                self.relocate(context, node, address, stays);
            }
            Entry::Occupied(_) => {}
        }
        self.with(context, Target::Node(node), DialledPeer::nudge);
    }

    /// This node now has a cluster: sends a new hello to peers that know it without one.
    pub(super) fn send_hello_again(&mut self, context: &mut NetworkContext) {
        let peers = self.peers.keys().map(|node| Target::Node(*node));
        let targets: Vec<Target> = peers.chain((0..self.seeds.len()).map(Target::Seed)).collect();
        for target in targets {
            self.with(context, target, DialledPeer::send_hello_again);
        }
    }

    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(DialledPeer::is_up)
    }

    /// Forgets an unlisted peer that is neither reachable nor sends anything.
    pub(super) fn forget(&mut self, context: &mut NetworkContext, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.give_up(context, "it was neither reachable nor sent anything for a while");
            self.remove(context, node, true);
        }
    }

    /// Changes where a peer is dialled; `stays` keeps its present connection.
    pub(super) fn relocate(
        &mut self,
        context: &mut NetworkContext,
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

    /// Dials a peer at an address at which it was not dialled before.
    fn dial(&mut self, context: &mut NetworkContext, node: NodeId) {
        self.rest_seeds(context, node);
        self.with(context, Target::Node(node), DialledPeer::redial);
    }

    /// Removes a peer. `lasted`: whether it had been a peer for long.
    pub(super) fn remove(&mut self, context: &mut NetworkContext, node: NodeId, lasted: bool) {
        if let Some(mut peer) = self.peers.remove(&node) {
            peer.disconnect(context);
            context.subjects.forget(node);
            self.wake_seeds(context, node, lasted);
        }
    }

    /// Queues a message for a peer, or drops it.
    pub(super) fn send(
        &mut self,
        context: &mut NetworkContext,
        node: NodeId,
        message: &PeerMessage,
    ) {
        let sent = self.peers.get_mut(&node).and_then(|peer| peer.send(context, message));
        if sent == Some(Ok(())) {
            self.unflushed.add(Target::Node(node));
            return;
        }
        context.dropped(node, sent.and_then(Result::err));
    }

    pub(super) fn flush(&mut self, context: &mut NetworkContext) {
        let mut targets = std::mem::take(&mut self.unflushed.0);
        for target in targets.drain(..) {
            self.with(context, target, DialledPeer::flush);
        }
        targets.append(&mut self.unflushed.0);
        self.unflushed.0 = targets;
    }

    /// Continues reading where a turn ended before the socket was empty.
    pub(super) fn read(&mut self, context: &mut NetworkContext) {
        let mut targets = std::mem::take(&mut self.unread.0);
        for target in targets.drain(..) {
            self.with(context, target, DialledPeer::proceed);
        }
        targets.append(&mut self.unread.0);
        self.unread.0 = targets;
    }

    /// Whether there is work to do at once.
    pub(super) fn is_busy(&self) -> bool {
        !self.unflushed.is_empty() || !self.unread.is_empty() || !self.changed.is_empty()
    }

    pub(super) fn ready(
        &mut self,
        context: &mut NetworkContext,
        target: Target,
        ready: SocketEvent,
    ) {
        self.with(context, target, |peer, context| peer.ready(context, ready));
    }

    pub(super) fn timer(&mut self, context: &mut NetworkContext, target: Target) {
        if let Target::Seed(place) = target
            && self.may_rest(place)
        {
            return;
        }
        self.with(context, target, DialledPeer::timer);
    }

    /// Closes the connections to nodes that are no longer accepted, or that were made with a credential that
    /// is no longer this node's. They are made again with the present one.
    pub(super) fn check_rights(&mut self, context: &mut NetworkContext) {
        let nodes = self.peers.keys().map(|node| Target::Node(*node));
        let targets: Vec<Target> = nodes.chain((0..self.seeds.len()).map(Target::Seed)).collect();
        for target in targets {
            self.with(context, target, DialledPeer::check_right);
        }
    }

    fn get_mut(&mut self, target: Target) -> Option<&mut DialledPeer> {
        match target {
            Target::Node(node) => self.peers.get_mut(&node),
            Target::Seed(place) => self.seeds.get_mut(place).map(|seed| &mut seed.peer),
        }
    }

    /// Takes one step with a peer. If the step fails, so does the peer's connection.
    pub(super) fn with(
        &mut self,
        context: &mut NetworkContext,
        target: Target,
        step: impl FnOnce(&mut DialledPeer, &mut NetworkContext) -> Result<(), Failure>,
    ) {
        let Some(peer) = self.get_mut(target) else {
            return;
        };
        let was_up = peer.is_up();
        if let Err(failure) = step(peer, context) {
            let lasted = peer.fail(context, &failure);
            // That nobody answers says something at a recorded address alone.
            let changes = was_up || peer.listed.is_some();
            if let Target::Node(node) = target {
                self.changed.extend(changes.then_some(node));
                self.lost(context, node, lasted, failure.is_elsewhere());
            }
            return;
        }
        let (unflushed, unread) = (peer.has_more_to_write(), std::mem::take(&mut peer.has_unread));
        let found = peer.found.take();
        if let (Target::Node(node), Some(connection)) = (target, peer.up())
            && (!was_up || connection.challenge.is_some_and(|challenge| challenge.answered))
        {
            self.changed.push(node);
        }
        if unflushed {
            self.unflushed.add(target);
        }
        if unread {
            self.unread.add(target);
        }
        if let (Target::Seed(place), Some((version, responder))) = (target, found) {
            self.found(context, place, version, responder);
        }
    }

    /// A peer's connection or attempt has failed. `lasted`: whether it had been connected for long.
    /// `elsewhere`: whether another node has answered.
    fn lost(&mut self, context: &mut NetworkContext, node: NodeId, lasted: bool, elsewhere: bool) {
        if !context.known_peers.is_known(node) {
            // The node was found at a seed's address, and can be found there again.
            self.remove(context, node, lasted);
        } else if elsewhere {
            self.wake_seeds(context, node, true);
        } else {
            self.wake_other_seeds(context, node);
        }
    }
}
