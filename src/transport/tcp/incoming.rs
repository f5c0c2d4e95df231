//! The connections that other nodes make to this one, to send messages.
//!
//! A connection is in handshake for at most `handshake_timeout`, until its hello is checked
//! (`handshake_queue`). When too many are in handshake, the oldest is closed, so that no number of
//! silent connections keeps a peer out.
//!
//! Invariants: a peer has at most one connection, its latest. There are at most as many peers as
//! `known_peers` admits, and at most `handshakes_max` connections in handshake. A connection in
//! handshake has a timer, a peer's has none.
//!
//! Not here: the work of one connection (`incoming_connection`), and for whom there is room (`places`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mio::Token;

use super::context::{NetworkContext, NetworkTimer};
use super::incoming_connection::{Closed, ConnectionState, IncomingConnection, ReadOutcome};
use super::known_peers::{handshakes_max, rank_of_client};
use super::outgoing::Outgoing;
use super::shared::Counters;
use super::sockets::{Polled, Socket};
use super::stream::Stream;
use crate::security::Security;
use crate::transport::files;
use crate::transport::handshake::{self, Hello};
use crate::transport::secure::Side;
use crate::transport::{RemotePeer, TransportEvent};
use crate::types::membership::{Named, NodeId};
use crate::types::right::Right;
use crate::types::warnings::{AUDIT, Warnings};

/// The most connections accepted before existing ones have their turn.
const ACCEPTS_PER_TURN: usize = 64;

/// The pause after an error of the listener, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// Not for a client, nor for a member that cannot listen yet.
    listens: bool,
    /// Whether the listener may have connections waiting.
    acceptable: bool,
    pub(super) connections: BTreeMap<Token, IncomingConnection>,
    pub(super) by_peer: BTreeMap<NodeId, Token>,
    /// The connections in handshake. Tokens grow, so the first is the oldest.
    pub(super) handshaking: BTreeSet<Token>,
    /// The connections that wait for an answer, by the node they claim to be.
    pub(super) duplicates: BTreeMap<NodeId, DuplicateConnection>,
    /// The connections that may have bytes to read, in the order of their turns.
    pub(super) readable: VecDeque<Token>,
    /// Clients' connections that may have bytes to write and room for them.
    pub(super) unflushed: BTreeSet<Token>,
    /// The connections of clients, by what they may use: see `places`.
    pub(super) clients: BTreeSet<(Right, IpAddr, Token)>,
    /// Peers whose handshake has just succeeded, with the addresses of their hellos.
    pub(super) welcomed: Vec<RemotePeer>,
    junk: Warnings<Instant>,
    refusals: Warnings<Instant>,
    pub(super) failures: Warnings<Instant>,
}

/// A connection that waits for the answer to its hello.
#[derive(Debug)]
pub(super) struct DuplicateConnection {
    pub(super) token: Token,
    pub(super) hello: Hello,
}

impl Incoming {
    /// Accepts connections here from now on.
    pub(super) fn listen(
        &mut self,
        context: &mut NetworkContext,
        listener: std::net::TcpListener,
    ) -> io::Result<()> {
        context.sockets.listen(listener)?;
        self.begin();
        Ok(())
    }

    /// The sockets accept connections from now on.
    pub(super) fn begin(&mut self) {
        (self.listens, self.acceptable) = (true, true);
    }

    /// The connection that this node has made, if there is one.
    pub(super) fn of_peer(&self, node: NodeId) -> Option<&IncomingConnection> {
        self.connections.get(self.by_peer.get(&node)?)
    }

    pub(super) fn of_peer_mut(&mut self, node: NodeId) -> Option<&mut IncomingConnection> {
        self.connections.get_mut(self.by_peer.get(&node)?)
    }

    /// Closes this node's incoming connection.
    pub(super) fn disconnect(&mut self, context: &mut NetworkContext, node: NodeId) {
        if let Some(token) = self.by_peer.get(&node).copied() {
            self.remove(context, token);
        }
    }

    /// Closes all connections.
    pub(super) fn disconnect_all(&mut self, context: &mut NetworkContext) {
        for token in self.connections.keys().copied().collect::<Vec<_>>() {
            self.remove(context, token);
        }
    }

    /// Closes the connections of nodes of other clusters, made while this node had none.
    pub(super) fn disconnect_other_clusters(&mut self, context: &mut NetworkContext) {
        let own = context.local.cluster;
        let is_other = |one: &&IncomingConnection| {
            one.peer().is_some_and(|identity| !handshake::may_connect(identity.cluster, own))
        };
        let others = self.connections.values().filter(is_other);
        for token in others.map(|connection| connection.token).collect::<Vec<_>>() {
            self.remove(context, token);
        }
    }

    /// Closes the connections whose right is withdrawn or has changed, since the security has.
    pub(super) fn check_rights(&mut self, context: &mut NetworkContext, former: &Security) {
        let security = &context.options.security;
        let verifies = security.has_other_rights(former);
        let mut withdrawn = Vec::new();
        for connection in self.connections.values() {
            let Some(identity) = connection.peer() else { continue };
            if !verifies {
                // Most changes are of the own certificate or of the list. Thousands of chains need not be
                // verified for these, on the thread that keeps the node alive.
                let refusal = connection.stream.refusal(security);
                withdrawn.extend(refusal.map(|reason| (connection.token, reason)));
                continue;
            }
            match connection.stream.right(security) {
                Ok(right) if right == identity.right => {}
                Ok(right) => {
                    let reason = format!("its credential is that of {} now", right.one());
                    withdrawn.push((connection.token, reason));
                }
                Err(reason) => withdrawn.push((connection.token, reason)),
            }
        }
        for (token, reason) in withdrawn {
            self.close(context, token, Closed::Refused(reason));
        }
    }

    pub(super) fn listener_ready(&mut self) {
        self.acceptable = self.listens;
    }

    /// `ends`: the other end has closed the connection, or it is broken.
    pub(super) fn ready(&mut self, token: Token, ends: bool) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        connection.ends |= ends;
        if !connection.is_readable {
            connection.is_readable = true;
            self.readable.push_back(token);
        }
    }

    /// Whether there is work to do at once.
    pub(super) fn is_busy(&self) -> bool {
        self.acceptable || !self.readable.is_empty() || !self.unflushed.is_empty()
    }

    /// Accepts new connections.
    pub(super) fn accept(&mut self, context: &mut NetworkContext) {
        for _ in 0..ACCEPTS_PER_TURN {
            if !self.acceptable {
                return;
            }
            match context.sockets.accept() {
                Ok((socket, address)) => self.admit(context, socket, address),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.acceptable = false,
                    // An error of that one connection.
                    io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset => {}
                    _ if files::is_exhausted(&error) && self.free_file(context) => {}
                    // Trying again at once would fail the same way.
                    _ => {
                        self.acceptable = false;
                        context.timers.set(NetworkTimer::Accept, context.now + ACCEPT_PAUSE);
                        if let Some(suppressed) = self.failures.permit(context.now) {
                            tracing::warn!(%error, suppressed, "cannot accept connections");
                        }
                    }
                },
            }
        }
    }

    /// The oldest connection in handshake from this address, if there are too many.
    fn oldest_of_address(&self, max: usize, address: IpAddr) -> Option<Token> {
        let mut same_address = self.handshaking.iter().filter(|token| {
            self.connections.get(token).is_some_and(|one| one.address.ip() == address)
        });
        let oldest = same_address.next().copied();
        oldest.filter(|_| same_address.count() >= max.saturating_sub(1))
    }

    fn admit(
        &mut self,
        context: &mut NetworkContext,
        mut socket: Box<dyn Socket>,
        address: SocketAddr,
    ) {
        let [handshakes_max, of_address_max] =
            handshakes_max(&context.options, socket.open_files());
        if self.handshaking.len() >= handshakes_max
            && let Some(oldest) = self.handshaking.first().copied()
        {
            Counters::add(&context.shared.counters.connections_refused, 1);
            if let Some(suppressed) = self.failures.permit(context.now) {
                tracing::warn!(%address, handshakes_max, suppressed, "too many connections in handshake");
            }
            self.remove(context, oldest);
        }
        if let Some(oldest) = self.oldest_of_address(of_address_max, address.ip()) {
            Counters::add(&context.shared.counters.connections_refused, 1);
            if let Some(suppressed) = self.failures.permit(context.now) {
                tracing::warn!(
                    %address,
                    max = of_address_max,
                    suppressed,
                    "too many connections in handshake from one address",
                );
            }
            self.remove(context, oldest);
        }
        let token = context.token();
        // A failure does not matter: without this option small frames arrive later.
        let _ = socket.set_nodelay();
        let stream = socket
            .register(token, Polled::ForReading)
            .and_then(|()| Stream::new(socket, &context.options.security, Side::Listens));
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                if let Some(suppressed) = self.failures.permit(context.now) {
                    tracing::warn!(%error, suppressed, "cannot register or secure a connection");
                }
                return;
            }
        };
        let until = context.now + context.options.handshake_timeout;
        context.timers.set(NetworkTimer::Handshake(token), until);
        self.handshaking.insert(token);
        self.connections.insert(token, IncomingConnection::new(context, stream, token, address));
    }

    /// The pause that a connection's rate demanded is over.
    pub(super) fn resume(&mut self, token: Token) {
        if self.connections.contains_key(&token) {
            self.readable.push_back(token);
        }
    }

    /// A handshake took too long.
    pub(super) fn overdue(&mut self, context: &mut NetworkContext, token: Token) {
        let why = "no hello in time".to_owned();
        self.close(context, token, Closed::Junk(why));
    }

    /// Gives each readable connection a turn.
    pub(super) fn read(&mut self, context: &mut NetworkContext, outgoing: &mut Outgoing) {
        for _ in 0..self.readable.len() {
            let Some(token) = self.readable.pop_front() else {
                return;
            };
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            if matches!(connection.state, ConnectionState::Duplicate { .. }) {
                // It stays marked readable, so it is not listed again until it has its answer.
                continue;
            }
            let turn = connection.turn(context);
            connection.is_readable = !matches!(turn, Ok(ReadOutcome::Drained));
            if connection.wants_flush() {
                self.unflushed.insert(token);
            }
            if let Some(identity) = connection.peer()
                && connection.challenge.is_some_and(|challenge| challenge.answered)
            {
                let alive = connection.listens_at.clone();
                self.refuse_duplicate(context, identity.node, &alive);
            }
            match turn {
                Ok(ReadOutcome::Drained) => {}
                Ok(ReadOutcome::More) => self.readable.push_back(token),
                // It stays marked readable, so it is not listed again until it is resumed.
                Ok(ReadOutcome::Paused(until)) => {
                    context.timers.set(NetworkTimer::Resume(token), until)
                }
                Ok(ReadOutcome::Hello(hello)) => self.answer_hello(context, outgoing, token, hello),
                Err(closed) => self.close(context, token, closed),
            }
        }
    }

    pub(super) fn close(&mut self, context: &mut NetworkContext, token: Token, closed: Closed) {
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        let address = connection.address;
        let peer = connection.peer();
        let peer = peer.map(|identity| tracing::field::display(Named::of(identity.node)));
        match closed {
            Closed::End => tracing::debug!(%address, peer, "connection closed"),
            Closed::Failed(error) => tracing::debug!(%address, peer, %error, "connection failed"),
            Closed::Junk(why) => {
                Counters::add(&context.shared.counters.connections_refused, 1);
                if let Some(suppressed) = self.junk.permit(context.now) {
                    tracing::warn!(%address, peer, suppressed, "connection closed: it sent {why}");
                }
            }
            // A node dials all addresses that it was given, including its own.
            Closed::Itself => tracing::debug!(%address, "this node has reached itself"),
            Closed::Refused(reason) => {
                Counters::add(&context.shared.counters.connections_refused, 1);
                if let Some(suppressed) = self.refusals.permit(context.now) {
                    tracing::warn!(%address, peer, reason, suppressed, "connection refused");
                    let subject = connection.stream.subject();
                    let result = format!("refused: {reason}");
                    let right = connection.peer().map(|of| tracing::field::display(of.right));
                    tracing::info!(
                        target: AUDIT, from = %address, right, subject, client = peer, result, suppressed, "a connection"
                    );
                }
            }
        }
        self.remove(context, token);
    }

    pub(super) fn remove(&mut self, context: &mut NetworkContext, token: Token) {
        let Some(mut connection) = self.connections.remove(&token) else {
            return;
        };
        match connection.state {
            ConnectionState::Handshaking => self.end_handshake(context, token),
            ConnectionState::Duplicate { node } => {
                if self.duplicates.get(&node).is_some_and(|duplicate| duplicate.token == token) {
                    self.take_duplicate(context, node);
                }
            }
            ConnectionState::Peer(identity) => {
                context.timers.cancel(NetworkTimer::Stall(token));
                if connection.is_client() {
                    let address = connection.address.ip();
                    self.clients.remove(&(rank_of_client(identity.right), address, token));
                }
                if self.by_peer.get(&identity.node) == Some(&token) {
                    self.by_peer.remove(&identity.node);
                    context.known_peers.connected.remove(&identity.node);
                    let peer = identity.node;
                    context.emit(TransportEvent::Authenticated { peer, connection: None });
                    if connection.is_client() {
                        let (peer, reason) = (identity.node, "its connection has ended".to_owned());
                        let permanent = false;
                        context.emit(TransportEvent::Unreachable { peer, reason, permanent });
                        // Others may need its place.
                        context.forget_unlisted(peer);
                        context.subjects.forget(peer);
                    }
                    if self.duplicates.contains_key(&identity.node) {
                        context.timers.set(NetworkTimer::Duplicate(identity.node), context.now);
                    }
                }
            }
        }
        connection.stream.socket.deregister();
    }

    /// A connection is no longer in handshake.
    pub(super) fn end_handshake(&mut self, context: &mut NetworkContext, token: Token) {
        self.handshaking.remove(&token);
        context.timers.cancel(NetworkTimer::Handshake(token));
    }
}
