//! Handshakes: how an incoming connection becomes a peer's.
//!
//! A hello is answered at once, with one exception. If a data directory was copied, two processes
//! run as one node, and would break its promises, such as its vote in a term. So while another run
//! of a node's process is connected, a hello of that node waits until it is known whether that run
//! is alive:
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

use mio::Token;

use super::context::{NetworkContext, NetworkTimer};
use super::incoming::{DuplicateConnection, Incoming};
use super::incoming_connection::{Closed, ConnectionState, PeerIdentity};
use super::known_peers::rank;
use crate::transport::handshake::{self, Hello, Refusal, RefusalCode};
use crate::transport::{RemotePeer, TransportEvent};
use crate::types::membership::{Named, NodeId};
use crate::types::right::{Connection, Right};

impl Incoming {
    /// Answers a hello, or lets its connection wait for the answer.
    pub(super) fn answer_hello(
        &mut self,
        context: &mut NetworkContext,
        token: Token,
        hello: Hello,
    ) {
        match self.check_hello(context, token, &hello) {
            Ok(Some(right)) => self.welcome(context, token, &hello, right),
            Ok(None) => self.wait_as_duplicate(context, token, hello),
            Err(refusal) => self.refuse(context, token, refusal),
        }
    }

    /// The right with which to welcome the connection; `None` if it is not known yet whether to.
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
        let is_free = self.of_peer_mut(hello.from).is_none_or(|former| {
            former.peer().is_none_or(|identity| identity.boot == hello.run.boot)
                || former.is_dead(context.now, &context.options)
        });
        self.take_place(context, token, hello, right, is_free)?;
        Ok(is_free.then_some(right))
    }

    fn welcome(&mut self, context: &mut NetworkContext, token: Token, hello: &Hello, right: Right) {
        self.end_handshake(context, token);
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let node = hello.from;
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
        self.refuse_duplicate(context, node);
    }

    fn refuse(&mut self, context: &mut NetworkContext, token: Token, refusal: Refusal) {
        if let Some(connection) = self.connections.get_mut(&token) {
            let closed = connection.refuse(context, refusal);
            self.close(context, token, closed);
        }
    }

    /// Lets a connection wait for its answer. It replaces an earlier one of the same node.
    fn wait_as_duplicate(&mut self, context: &mut NetworkContext, token: Token, hello: Hello) {
        let node = hello.from;
        let Some(former) = self.of_peer(node) else {
            return;
        };
        let at = former.check_again_at(context.now, &context.options);
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        tracing::info!(
            peer = %Named::of(node),
            address = %connection.address,
            "another process claims to be this peer; checking whether the former one is alive",
        );
        connection.state = ConnectionState::Duplicate { node };
        self.end_handshake(context, token);
        if let Some(earlier) = self.take_duplicate(context, node) {
            self.close(context, earlier.token, Closed::End);
        }
        context.timers.set(NetworkTimer::Duplicate(node), at);
        self.duplicates.insert(node, DuplicateConnection { token, hello });
    }

    /// Checks whether the former connection of this node is alive, for the one that waits.
    pub(super) fn check_duplicate(&mut self, context: &mut NetworkContext, node: NodeId) {
        if let Some(former) = self.of_peer_mut(node)
            && !former.is_dead(context.now, &context.options)
        {
            let at = former.check_again_at(context.now, &context.options);
            let token = former.token;
            context.timers.set(NetworkTimer::Duplicate(node), at);
            // Reading shows whether the socket is empty.
            self.ready(token, false);
        } else if let Some(duplicate) = self.take_duplicate(context, node) {
            self.answer_hello(context, duplicate.token, duplicate.hello);
        }
    }

    /// The former connection of this node, or the process that made it, is alive.
    pub(super) fn refuse_duplicate(&mut self, context: &mut NetworkContext, node: NodeId) {
        let Some(former) = self.of_peer_mut(node) else {
            return;
        };
        former.challenge = None;
        let refusal = Refusal::duplicate(node, former.address.ip());
        if let Some(duplicate) = self.take_duplicate(context, node) {
            self.refuse(context, duplicate.token, refusal);
        }
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
