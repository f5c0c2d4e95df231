//! Which process is a peer.
//!
//! A data directory can be copied: with its machine, with its volume, or by mistake. Then two processes have one id,
//! and this node must not send to one of them and receive from the other: neither would get answers. So the process
//! that has welcomed this node and the one that has connected to it must be of one run:
//!
//! ```text
//! the process that answers where the peer is dialled    is the peer; another one's connection is closed
//! a hello of another process than that                  waits: refused when that one proves to be alive,
//!                                                       and welcomed when that one is gone
//! a hello while nobody answers                          is welcomed, unless another process is connected
//!                                                       (`handshake_queue`)
//! ```
//!
//! A member is dialled at its recorded address. A process that says hello from elsewhere has moved, or is a copy: it is
//! welcomed once the recorded address was asked and nobody has answered there at once. The peer is then dialled where
//! that process listens, until its record changes or a process claims to be at the recorded address.
//!
//! Each node decides for itself. The recorded address is in the log, so nodes that reach it decide alike.

use std::time::Instant;

use super::context::{NetworkContext, Target};
use super::failure::Failure;
use super::incoming::Incoming;
use super::incoming_connection::{IncomingConnection, transit};
use super::outgoing::Outgoing;
use super::peer::DialledPeer;
use crate::transport::handshake::{ProcessRun, Responder};
use crate::types::membership::{Named, NodeId};

/// What the connection to a peer says of a process that claims to be the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialled {
    /// This process has answered.
    ThisRun,
    /// Another one has answered, or the recorded address was not asked yet. Look again then.
    NotKnown(Instant),
    Nobody,
}

impl Outgoing {
    /// Whether this process is the one that answers where the peer is dialled.
    pub(super) fn judge(
        &mut self,
        context: &mut NetworkContext,
        node: NodeId,
        run: &ProcessRun,
    ) -> Dialled {
        let Some(peer) = self.peers.get_mut(&node) else {
            return Dialled::Nobody;
        };
        let (target, later) = (Target::Node(node), context.now + transit(&context.options));
        let listed = peer.listed.clone();
        let is_at_listed = listed.as_ref() == Some(&peer.address);
        let claims_listed = listed.as_ref() == Some(&run.address);
        if let Some(connection) = peer.up() {
            if connection.run.as_ref().is_some_and(|other| other.boot == run.boot) {
                return Dialled::ThisRun;
            }
            if let Some(listed) = listed.filter(|_| claims_listed && !is_at_listed) {
                self.relocate(context, node, listed, false);
            } else {
                self.with(context, target, DialledPeer::challenge);
            }
            return Dialled::NotKnown(later);
        }
        let asked_until = peer.tried_at + transit(&context.options);
        match peer.is_waiting() {
            _ if !is_at_listed || claims_listed => Dialled::Nobody,
            true if asked_until <= context.now => {
                self.with(context, target, DialledPeer::dial);
                Dialled::NotKnown(later)
            }
            false if context.now < asked_until => Dialled::NotKnown(asked_until),
            _ => Dialled::Nobody,
        }
    }

    /// Why a process that was found at a seed's address is not taken for the peer. It sends a hello, too, if it can,
    /// and that decides.
    pub(super) fn conflict(
        &mut self,
        context: &mut NetworkContext,
        responder: &Responder,
    ) -> Option<Failure> {
        let Responder { node, run, .. } = responder;
        match self.judge(context, *node, run) {
            Dialled::ThisRun => None,
            Dialled::Nobody
                if context.known_peers.connected.get(node).is_none_or(|boot| *boot == run.boot) =>
            {
                None
            }
            Dialled::NotKnown(_) if !self.is_up(*node) => {
                let reason =
                    format!("node {node:016x} is there, and is dialled at its address first");
                Some(Failure::passing(reason))
            }
            Dialled::NotKnown(_) | Dialled::Nobody => {
                let reason = format!(
                    "node {node:016x} is there, and another process is connected as that node"
                );
                Some(Failure::elsewhere(reason))
            }
        }
    }

    /// Closes all connections for good.
    pub(super) fn stop(&mut self, context: &mut NetworkContext) {
        self.set_seeking(context, false);
        for node in self.peers.keys().copied().collect::<Vec<_>>() {
            // What the system has still to send is lost if something is left to read.
            self.with(context, Target::Node(node), DialledPeer::proceed);
            self.remove(context, node, true);
        }
    }
}

impl DialledPeer {
    /// Another process claims to be this peer: checks whether the one that has answered is alive.
    fn challenge(&mut self, context: &mut NetworkContext) -> Result<(), Failure> {
        self.proceed(context)?;
        if let Some(connection) = self.up() {
            connection.challenge(context);
        }
        self.flush(context)
    }
}

impl Incoming {
    /// The connection to this peer has come up or was lost, or its process has shown that it is alive.
    pub(super) fn peer_changed(
        &mut self,
        context: &mut NetworkContext,
        outgoing: &mut Outgoing,
        node: NodeId,
    ) {
        let Some(peer) = outgoing.peers.get_mut(&node) else { return };
        let address = peer.address.clone();
        let Some(connection) = peer.up() else {
            // Whoever is connected is there.
            let Some(connected) = self.of_peer(node) else {
                return self.check_duplicate(context, outgoing, node);
            };
            let listens_at = connected.listens_at.clone();
            if !listens_at.is_empty() && listens_at != address {
                outgoing.relocate(context, node, listens_at, false);
            }
            // Another process waits until it is known whether this one is alive.
            return;
        };
        let boot = connection.run.as_ref().map(|run| run.boot);
        let is_alive = connection.challenge.is_some_and(|challenge| challenge.answered);
        if is_alive {
            connection.challenge = None;
        }
        let is_other = |one: &IncomingConnection| {
            !one.is_client() && one.peer().map(|identity| identity.boot) != boot
        };
        if let Some(former) = self.of_peer(node).filter(|one| is_other(one)) {
            tracing::info!(
                peer = %Named::of(node),
                address,
                former = former.listens_at,
                "another process answers where the peer is dialled: the connection of the former one is closed"
            );
            let token = former.token;
            self.remove(context, token);
        }
        let waits =
            self.duplicates.get(&node).is_some_and(|waits| Some(waits.hello.run.boot) != boot);
        if is_alive && waits {
            return self.refuse_duplicate(context, node, &address);
        }
        self.check_duplicate(context, outgoing, node);
    }
}
