//! Handshakes: how an incoming connection becomes a peer's.
//!
//! A hello is answered at once, with one exception. If a data directory was copied, two processes
//! run as one node, and would break its promises, such as its vote in a term. So while another run
//! of a node's process is connected, a hello of that node waits until it is known whether that run
//! is alive. Who answers where the node is dialled comes first (`processes`); otherwise:
//!
//! ```text
//! the former connection ends          the new one is welcomed: the process was restarted
//! it is silent for stall_timeout      the new one is welcomed, and the former closed
//! it sends bytes that were not in     the new one is refused
//! flight when the new hello arrived
//! ```
//!
//! Invariants: at most one connection waits for each node. It has a timer, and no bytes are read from
//! it.

use std::time::Instant;

use mio::Token;

use super::context::{NetworkContext, NetworkTimer};
use super::incoming::{DuplicateConnection, Incoming};
use super::incoming_connection::{Closed, ConnectionState, PeerIdentity};
use super::known_peers::rank;
use super::outgoing::Outgoing;
use super::processes::Dialled;
use crate::transport::handshake::{self, Hello, Refusal, RefusalCode};
use crate::transport::{RemotePeer, TransportEvent};
use crate::types::membership::{Named, NodeId};
use crate::types::right::{Connection, Right};

impl Incoming {
    /// Answers a hello, or lets its connection wait for the answer.
    pub(super) fn answer_hello(
        &mut self,
        context: &mut NetworkContext,
        outgoing: &mut Outgoing,
        token: Token,
        hello: Hello,
    ) {
        let right = match self.check_hello(context, token, &hello) {
            Ok(Some(right)) => right,
            Ok(None) => return,
            Err(refusal) => return self.refuse(context, token, refusal),
        };
        let waits_until = self.undecided_until(context, outgoing, &hello);
        if let Err(refusal) = self.take_place(context, token, &hello, right, waits_until.is_none())
        {
            return self.refuse(context, token, refusal);
        }
        match waits_until {
            None => self.welcome(context, token, &hello, right),
            Some(at) => self.wait_as_duplicate(context, token, hello, at),
        }
    }

    /// The right with which to welcome the connection, if its process is the peer; `None` if it is gone.
    fn check_hello(
        &mut self,
        context: &mut NetworkContext,
        token: Token,
        hello: &Hello,
    ) -> Result<Option<Right>, Refusal> {
        handshake::check(&context.local, hello)?;
        context.known_peers.check(hello)?;
        handshake::check_client(hello)?;
        let Some(connection) = self.connections.get(&token) else {
            return Ok(None);
        };
        let right = connection.stream.right(&context.options.security);
        let right = right.map_err(|reason| Refusal::new(RefusalCode::Security, reason))?;
        if right < Right::Member && !hello.run.is_client() {
            return Err(Refusal::not_a_member(right));
        }
        context
            .subjects
            .check(hello.from, connection.stream.subject())
            .map_err(|reason| Refusal::new(RefusalCode::Identity, reason))?;
        if let Some(reason) = &context.stopped {
            let text = format!("it has stopped: {reason}");
            return Err(Refusal::new(RefusalCode::Stopped, text));
        }
        Ok(Some(right))
    }

    /// When to look again whether the process of this hello is the peer; `None` if it is.
    fn undecided_until(
        &mut self,
        context: &mut NetworkContext,
        outgoing: &mut Outgoing,
        hello: &Hello,
    ) -> Option<Instant> {
        let dialled = match hello.run.is_client() {
            true => Dialled::Nobody,
            false => outgoing.judge(context, hello.from, &hello.run),
        };
        let asked_until = match dialled {
            Dialled::ThisRun => return None,
            Dialled::NotKnown(at) => Some(at),
            Dialled::Nobody => None,
        };
        let (now, options) = (context.now, &context.options);
        let former = self
            .of_peer_mut(hello.from)
            .filter(|former| former.peer().is_some_and(|identity| identity.boot != hello.run.boot));
        let former = former.and_then(|former| {
            (!former.is_dead(now, options)).then(|| former.check_again_at(now, options))
        });
        asked_until.into_iter().chain(former).min()
    }

    fn welcome(&mut self, context: &mut NetworkContext, token: Token, hello: &Hello, right: Right) {
        self.end_handshake(context, token);
        let node = hello.from;
        if self.duplicates.get(&node).is_some_and(|waits| waits.hello.run == hello.run)
            && let Some(earlier) = self.take_duplicate(context, node)
        {
            self.close(context, earlier.token, Closed::End);
        }
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        connection.listens_at = hello.run.address.clone();
        context.admit(node);
        let identity = PeerIdentity {
            node,
            incarnation: hello.incarnation,
            cluster: hello.cluster,
            boot: hello.run.boot,
            right,
        };
        if let Err(closed) = connection.welcome(context, identity) {
            return self.close(context, token, closed);
        }
        // Bytes that arrived along with the hello are still to be read.
        connection.is_readable = true;
        self.readable.push_back(token);
        let is_client = hello.run.is_client();
        if is_client && let Err(error) = connection.start_sending(context) {
            return self.close(context, token, Closed::Failed(error));
        }
        context.known_peers.connected.insert(node, hello.run.boot);
        let (subject, address) = (connection.stream.subject(), connection.address);
        if is_client {
            self.clients.insert((rank(hello, right), address.ip(), token));
        }
        if let Some(former) = self.by_peer.insert(node, token) {
            self.supersede(context, former, node, hello);
        }
        let connection = Some(Connection::new(address, subject.as_deref(), right));
        context.emit(TransportEvent::Authenticated { peer: node, connection });
        if is_client {
            let version = hello.version;
            tracing::debug!(peer = %Named::of(node), version, %right, "a client is connected");
            context.emit(TransportEvent::Connected { peer: node, version });
        } else {
            let address = hello.run.address.clone();
            self.welcomed.push(RemotePeer { node, address });
        }
    }

    /// Closes a peer's former connection in favour of its new one.
    fn supersede(
        &mut self,
        context: &mut NetworkContext,
        former: Token,
        node: NodeId,
        hello: &Hello,
    ) {
        if let Some(connection) = self.connections.get(&former)
            && connection.peer().is_some_and(|peer| peer.incarnation != hello.incarnation)
        {
            tracing::warn!(
                peer = %Named::of(node),
                former = %connection.address,
                "another incarnation of the peer replaces the one that was connected",
            );
        }
        if !planted!(FormerConnectionRead) {
            self.remove(context, former);
        }
        // The former process is alive: it has just made this connection.
        self.refuse_duplicate(context, node, &hello.run.address);
    }

    fn refuse(&mut self, context: &mut NetworkContext, token: Token, refusal: Refusal) {
        if let Some(connection) = self.connections.get_mut(&token) {
            if refusal.code == RefusalCode::Duplicate {
                context.emit(TransportEvent::Duplicate { reason: refusal.text.clone() });
            }
            let closed = connection.refuse(context, refusal);
            self.close(context, token, closed);
        }
    }

    /// Lets a connection wait for its answer. It replaces an earlier one of the same node.
    fn wait_as_duplicate(
        &mut self,
        context: &mut NetworkContext,
        token: Token,
        hello: Hello,
        at: Instant,
    ) {
        let node = hello.from;
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if matches!(connection.state, ConnectionState::Handshaking) {
            tracing::info!(
                peer = %Named::of(node),
                address = hello.run.address,
                "this process claims to be the peer; checking whether another one is",
            );
        }
        connection.state = ConnectionState::Duplicate { node };
        self.end_handshake(context, token);
        if let Some(earlier) = self.take_duplicate(context, node) {
            self.close(context, earlier.token, Closed::End);
        }
        context.timers.set(NetworkTimer::Duplicate(node), at);
        self.duplicates.insert(node, DuplicateConnection { token, hello });
    }

    /// Looks again whether the process that waits is this node.
    pub(super) fn check_duplicate(
        &mut self,
        context: &mut NetworkContext,
        outgoing: &mut Outgoing,
        node: NodeId,
    ) {
        let Some(duplicate) = self.take_duplicate(context, node) else { return };
        if let Some(former) = self.of_peer(node) {
            // Reading shows whether the socket is empty.
            let token = former.token;
            self.ready(token, false);
        }
        self.answer_hello(context, outgoing, duplicate.token, duplicate.hello);
    }

    /// The process of this node that listens at `alive` is alive.
    pub(super) fn refuse_duplicate(
        &mut self,
        context: &mut NetworkContext,
        node: NodeId,
        alive: &str,
    ) {
        if let Some(former) = self.of_peer_mut(node) {
            former.challenge = None;
        }
        let Some(duplicate) = self.take_duplicate(context, node) else { return };
        let mut address = duplicate.hello.run.address;
        if address == alive
            && let Some(connection) = self.connections.get(&duplicate.token)
        {
            // The copy has the settings, too.
            address = format!("{address} ({})", connection.address.ip());
        }
        self.refuse(context, duplicate.token, Refusal::duplicate(node, alive, &address));
    }

    pub(super) fn take_duplicate(
        &mut self,
        context: &mut NetworkContext,
        node: NodeId,
    ) -> Option<DuplicateConnection> {
        let duplicate = self.duplicates.remove(&node)?;
        context.timers.cancel(NetworkTimer::Duplicate(node));
        Some(duplicate)
    }
}
