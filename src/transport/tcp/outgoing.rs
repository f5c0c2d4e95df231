//! The connections that this node makes, one to each peer, to send on.
//!
//! Each peer takes its steps by itself (`peer`); here they are found by their
//! number, and what fails in a step is turned into a pause and a report.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;

use mio::Token;
use mio::event::Event;

use super::Counters;
use super::driver::{Context, Warnings};
use super::peer::{Failure, Peer};
use super::queue::Rejected;
use crate::machine::command::NodeId;
use crate::node::message::PeerMessage;
use crate::transport::RemotePeer;

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    peers: BTreeMap<NodeId, Peer>,
    /// Peers that may have bytes to write and room to write them to.
    unflushed: Vec<NodeId>,
    too_long: Warnings,
}

impl Outgoing {
    pub(super) fn set_peers(&mut self, context: &mut Context, remotes: Vec<RemotePeer>) {
        let remotes: BTreeMap<NodeId, RemotePeer> =
            remotes.into_iter().map(|remote| (remote.node, remote)).collect();
        self.peers.retain(|node, peer| {
            let stays = remotes.get(node) == Some(&peer.remote);
            if !stays {
                peer.disconnect(context);
            }
            stays
        });
        for (node, remote) in remotes {
            if let Entry::Vacant(vacant) = self.peers.entry(node) {
                vacant.insert(Peer::new(remote, context.now));
                self.with(context, node, Peer::dial);
            }
        }
    }

    /// Queues a message, or drops it.
    pub(super) fn send(&mut self, context: &mut Context, node: NodeId, message: &PeerMessage) {
        let rejected = match self.peers.get_mut(&node) {
            Some(peer) => match peer.send(context, message) {
                Ok(()) => {
                    if !peer.is_unflushed {
                        peer.is_unflushed = true;
                        self.unflushed.push(node);
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
        for node in std::mem::take(&mut self.unflushed) {
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.is_unflushed = false;
                self.with(context, node, |peer, context| peer.flush(context));
            }
        }
    }

    /// Whether something can be written at once.
    pub(super) fn is_busy(&self) -> bool {
        !self.unflushed.is_empty()
    }

    pub(super) fn ready(&mut self, context: &mut Context, node: NodeId, event: &Event) {
        self.with(context, node, |peer, context| peer.ready(context, event));
    }

    pub(super) fn timer(&mut self, context: &mut Context, node: NodeId) {
        self.with(context, node, Peer::timer);
    }

    pub(super) fn resolved(
        &mut self,
        context: &mut Context,
        node: NodeId,
        attempt: Token,
        addresses: Result<Vec<SocketAddr>, String>,
    ) {
        self.with(context, node, |peer, context| peer.resolved(context, attempt, addresses));
    }

    /// This peer has just reached us, so it is alive, and worth a try before the pause is over.
    pub(super) fn nudge(&mut self, context: &mut Context, node: NodeId) {
        self.with(context, node, Peer::nudge);
    }

    /// Takes one step with a peer; if it fails, so does the peer's connection.
    fn with(
        &mut self,
        context: &mut Context,
        node: NodeId,
        step: impl FnOnce(&mut Peer, &mut Context) -> Result<(), Failure>,
    ) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if let Err(failure) = step(peer, context) {
            peer.fail(context, failure);
        } else if peer.has_more_to_write() && !peer.is_unflushed {
            peer.is_unflushed = true;
            self.unflushed.push(node);
        }
    }
}
