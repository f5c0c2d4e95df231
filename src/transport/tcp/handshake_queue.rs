//! Handshakes: how an incoming connection becomes a peer's.
//!
//! A hello is answered at once, with one exception. If a data directory was copied, two processes
//! run as one node, which would break what the node has promised. So while another run of a node's
//! process is connected, a hello of that node waits until it is known whether that run is alive:
//!
//! ```text
//! the former connection ends                 the new one is welcomed: the process was restarted
//! it is silent for stall_timeout             the new one is welcomed, and the former closed
//! it sends what cannot have been on its way  the new one is refused
//! when the new hello came
//! ```
//!
//! Invariants: at most one connection waits for each node; it has a timer, and nothing is read from
//! it.

use mio::Token;

use super::event_loop::{Context, Timer};
use super::incoming::{Incoming, WelcomedPeer};
use super::incoming_connection::{Closed, ConnectionState, PeerIdentity};
use crate::transport::TransportEvent;
use crate::transport::handshake::{self, Answer, Hello, Refusal, RefusalCode, Responder};
use crate::types::membership::NodeId;

/// A connection that waits for the answer to its hello.
#[derive(Debug)]
pub(super) struct Rival {
    pub(super) token: Token,
    hello: Hello,
    /// When its timer fires.
    pub(super) at: std::time::Instant,
}

impl Incoming {
    /// This connection has sent a hello.
    pub(super) fn answer_hello(&mut self, context: &mut Context, token: Token, hello: Hello) {
        match self.check_hello(context, token, &hello) {
            Ok(true) => self.welcome(context, token, &hello),
            Ok(false) => self.wait_as_rival(context, token, hello),
            Err(refusal) => self.refuse(context, token, refusal),
        }
    }

    /// Whether to welcome it; `false` if that is not known yet.
    fn check_hello(
        &mut self,
        context: &mut Context,
        token: Token,
        hello: &Hello,
    ) -> Result<bool, Refusal> {
        handshake::check(&context.local, hello)?;
        context.known_peers.check(hello)?;
        let Some(connection) = self.connections.get(&token) else {
            return Ok(true);
        };
        context
            .subjects
            .check(hello.from, connection.stream.subject())
            .map_err(|reason| Refusal::new(RefusalCode::Identity, reason))?;
        let former = self.by_peer.get(&hello.from).and_then(|one| self.connections.get_mut(one));
        let Some(former) = former else {
            return Ok(true);
        };
        match former.state {
            ConnectionState::Peer(PeerIdentity { boot, .. }) if boot != hello.run.boot => {
                Ok(former.is_dead(context.now, &context.options))
            }
            _ => Ok(true),
        }
    }

    fn welcome(&mut self, context: &mut Context, token: Token, hello: &Hello) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let node = hello.from;
        context.admit(node);
        let answer = Answer::Welcome(Responder::of(&context.local));
        let identity = PeerIdentity {
            node,
            incarnation: hello.incarnation,
            cluster: hello.cluster,
            boot: hello.run.boot,
        };
        let was = connection.state;
        if let Err(closed) = connection.welcome(context.local.version, &answer, identity) {
            return self.close(context, token, closed);
        }
        if let ConnectionState::Handshaking { until } = was {
            self.handshaking.remove(&token);
            context.timers.remove(until, Timer::Handshake(token));
        }
        // What arrived along with the hello is still to be read.
        connection.is_readable = true;
        self.readable.push_back(token);
        let is_client = hello.run.is_client();
        if is_client && let Err(error) = connection.start_sending(context) {
            return self.close(context, token, Closed::Failed(error));
        }
        let former = self.by_peer.insert(node, token);
        if let Some(former) = former {
            self.supersede(context, former, node, hello);
        }
        if is_client {
            let version = hello.version;
            tracing::debug!(peer = node, version, "a client is connected");
            context.emit(TransportEvent::Connected { peer: node, version });
        } else {
            let address = hello.run.address.clone();
            self.welcomed.push(WelcomedPeer { node, address });
        }
    }

    /// Closes a peer's former connection in favour of its new one.
    fn supersede(&mut self, context: &mut Context, former: Token, node: NodeId, hello: &Hello) {
        if let Some(connection) = self.connections.get(&former)
            && let ConnectionState::Peer(PeerIdentity { incarnation, .. }) = connection.state
            && incarnation != hello.incarnation
        {
            tracing::warn!(
                peer = node,
                former = %connection.address,
                "another incarnation of the peer replaces the one that was connected",
            );
        }
        self.remove(context, former);
        // The process in question has just made a connection.
        self.refuse_rival(context, node);
    }

    fn refuse(&mut self, context: &mut Context, token: Token, refusal: Refusal) {
        if let Some(connection) = self.connections.get_mut(&token) {
            let closed = connection.refuse(context.local.version, refusal);
            self.close(context, token, closed);
        }
    }

    /// Lets a connection wait for its answer. It replaces an earlier one of the same node.
    fn wait_as_rival(&mut self, context: &mut Context, token: Token, hello: Hello) {
        let node = hello.from;
        let former = self.by_peer.get(&node).and_then(|former| self.connections.get(former));
        let Some(at) = former.map(|one| one.ask_again_at(context.now, &context.options)) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        tracing::info!(
            peer = node,
            address = %connection.address,
            "another process says that it is this peer; waiting whether the former one is alive",
        );
        if let ConnectionState::Handshaking { until } = connection.state {
            self.handshaking.remove(&token);
            context.timers.remove(until, Timer::Handshake(token));
        }
        connection.state = ConnectionState::Rival { node };
        if let Some(earlier) = self.take_rival(context, node) {
            self.close(context, earlier.token, Closed::End);
        }
        context.timers.insert(at, Timer::Rival(node));
        self.rivals.insert(node, Rival { token, hello, at });
    }

    /// Checks whether the former connection of this node is alive, for the one that waits.
    pub(super) fn contest(&mut self, context: &mut Context, node: NodeId) {
        let Some(rival) = self.rivals.get_mut(&node) else {
            return;
        };
        let former = self.by_peer.get(&node).copied();
        if let Some(token) = former
            && let Some(former) = self.connections.get_mut(&token)
            && !former.is_dead(context.now, &context.options)
        {
            rival.at = former.ask_again_at(context.now, &context.options);
            context.timers.insert(rival.at, Timer::Rival(node));
            // Reading finds out whether it is empty.
            self.ready(token);
        } else if let Some(rival) = self.take_rival(context, node) {
            self.answer_hello(context, rival.token, rival.hello);
        }
    }

    /// The former connection of this node, or the process that made it, is alive.
    pub(super) fn refuse_rival(&mut self, context: &mut Context, node: NodeId) {
        let Some(former) = self.by_peer.get(&node).and_then(|one| self.connections.get_mut(one))
        else {
            return;
        };
        former.challenge = None;
        let refusal = Refusal::duplicate(node, former.address.ip());
        if let Some(rival) = self.take_rival(context, node) {
            self.refuse(context, rival.token, refusal);
        }
    }

    pub(super) fn take_rival(&mut self, context: &mut Context, node: NodeId) -> Option<Rival> {
        let rival = self.rivals.remove(&node)?;
        context.timers.remove(rival.at, Timer::Rival(node));
        Some(rival)
    }
}
