//! The connections that peers make to this node, to send on.
//!
//! A connection is a stranger until its hello was checked, for at most
//! `handshake_timeout` (`introductions`). When there are too many of them, the oldest
//! makes room: so a crowd of silent strangers keeps no peer out.
//!
//! Invariants: a peer has at most one connection, its latest, and there are no more
//! peers than the circle takes, nor strangers than `strangers_max`;
//! a stranger has a timer, a peer has none.
//!
//! Not here: what is done with one connection (`caller`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Interest, Token};

use super::driver::{Context, Timer, Warnings};
use super::handshake_queue::Rival;
use super::incoming_connection::{Closed, Connection, From, Turn};
use super::stream::Stream;
use super::{Counters, LISTENER};
use crate::transport::TransportEvent;
use crate::transport::handshake::{self, RefusalCode};
use crate::transport::secure::Side;
use crate::types::membership::NodeId;

/// The most connections taken before those there are have their turn.
const ACCEPTS_PER_TURN: usize = 64;

/// The pause after an error of the listener, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Incoming {
    /// A client has none.
    listener: Option<TcpListener>,
    /// The listener may have connections for us.
    acceptable: bool,
    pub(super) connections: BTreeMap<Token, Connection>,
    pub(super) by_peer: BTreeMap<NodeId, Token>,
    /// The connections not introduced; tokens grow, so the first is the oldest.
    pub(super) strangers: BTreeSet<Token>,
    /// Those that wait for an answer, by the node that they say they are.
    pub(super) rivals: BTreeMap<NodeId, Rival>,
    /// The connections that may have something to read, in the order of their turns.
    pub(super) readable: VecDeque<Token>,
    /// Clients' connections that may have bytes to write and room to write them to.
    pub(super) unflushed: Vec<Token>,
    /// Peers that have just introduced themselves.
    pub(super) welcomed: Vec<Met>,
    junk: Warnings,
    refusals: Warnings,
    failures: Warnings,
}

/// A peer that has introduced itself.
#[derive(Debug)]
pub(super) struct Met {
    pub(super) node: NodeId,
    /// Where it says that it is, if it does.
    pub(super) address: Option<String>,
}

impl Incoming {
    pub(super) fn new(
        context: &mut Context,
        mut listener: Option<TcpListener>,
    ) -> io::Result<Incoming> {
        if let Some(listener) = &mut listener {
            context.registry.register(listener, LISTENER, Interest::READABLE)?;
        }
        Ok(Incoming {
            acceptable: listener.is_some(),
            listener,
            connections: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            strangers: BTreeSet::new(),
            rivals: BTreeMap::new(),
            readable: VecDeque::new(),
            unflushed: Vec::new(),
            welcomed: Vec::new(),
            junk: Warnings::default(),
            refusals: Warnings::default(),
            failures: Warnings::default(),
        })
    }

    /// Closes what this node has connected to us.
    pub(super) fn disconnect(&mut self, context: &mut Context, node: NodeId) {
        if let Some(token) = self.by_peer.get(&node).copied() {
            self.remove(context, token);
        }
    }

    /// Closes what nodes of other clusters have connected to us while we had none.
    pub(super) fn disconnect_strange(&mut self, context: &mut Context) {
        let own = context.local.cluster;
        let strange: Vec<Token> = self
            .connections
            .values()
            .filter(|one| match one.from {
                From::Peer(from) => !handshake::fit(from.cluster, own),
                From::Stranger { .. } | From::Rival { .. } => false,
            })
            .map(|connection| connection.token)
            .collect();
        for token in strange {
            self.remove(context, token);
        }
    }

    /// Whether this node is connected to us and has said where it is.
    pub(super) fn could_be_guest(&self, node: NodeId) -> bool {
        let connection = self.by_peer.get(&node).and_then(|token| self.connections.get(token));
        connection.is_some_and(|one| matches!(one.from, From::Peer(from) if from.boot.is_some()))
    }

    /// When the connection of this node last delivered anything, or was made.
    pub(super) fn heard_at(&self, node: NodeId) -> Option<Instant> {
        let connection = self.by_peer.get(&node).and_then(|token| self.connections.get(token));
        connection.map(|connection| connection.heard_at)
    }

    pub(super) fn listener_ready(&mut self) {
        self.acceptable = self.listener.is_some();
    }

    pub(super) fn ready(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(&token)
            && !connection.is_readable
        {
            connection.is_readable = true;
            self.readable.push_back(token);
        }
    }

    /// Whether there is something to do at once.
    pub(super) fn is_busy(&self) -> bool {
        self.acceptable || !self.readable.is_empty() || !self.unflushed.is_empty()
    }

    pub(super) fn take_welcomed(&mut self) -> Vec<Met> {
        std::mem::take(&mut self.welcomed)
    }

    /// Takes new connections.
    pub(super) fn accept(&mut self, context: &mut Context) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listener.as_ref().filter(|_| self.acceptable) else {
                return;
            };
            match listener.accept() {
                Ok((stream, address)) => self.admit(context, stream, address),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.acceptable = false,
                    // The fault of that one connection, or nobody's.
                    io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset => {}
                    // Asking again at once would meet the same error: too many open files.
                    _ => {
                        self.acceptable = false;
                        context.timers.insert(context.now + ACCEPT_PAUSE, Timer::Accept);
                        if let Some(suppressed) = self.failures.permit(context.now) {
                            tracing::warn!(%error, suppressed, "cannot accept connections");
                        }
                    }
                },
            }
        }
    }

    /// The oldest stranger of this address, if there are too many.
    fn crowd(&self, context: &Context, address: IpAddr) -> Option<Token> {
        let mut crowd = self.strangers.iter().filter(|token| {
            self.connections.get(token).is_some_and(|one| one.address.ip() == address)
        });
        let oldest = crowd.next().copied();
        let others_max = context.options.strangers_per_address_max.saturating_sub(1);
        oldest.filter(|_| crowd.count() >= others_max)
    }

    fn admit(
        &mut self,
        context: &mut Context,
        mut socket: mio::net::TcpStream,
        address: SocketAddr,
    ) {
        let strangers_max = context.options.strangers_max;
        if self.strangers.len() >= strangers_max
            && let Some(oldest) = self.strangers.first().copied()
        {
            Counters::add(&context.shared.counters.connections_refused, 1);
            if let Some(suppressed) = self.failures.permit(context.now) {
                tracing::warn!(%address, strangers_max, suppressed, "too many strangers");
            }
            self.remove(context, oldest);
        }
        if let Some(oldest) = self.crowd(context, address.ip()) {
            Counters::add(&context.shared.counters.connections_refused, 1);
            if let Some(suppressed) = self.failures.permit(context.now) {
                let max = context.options.strangers_per_address_max;
                tracing::warn!(%address, max, suppressed, "too many strangers of one address");
            }
            self.remove(context, oldest);
        }
        let token = context.token();
        // Without it our few bytes would still arrive, so a failure is none of the connection.
        let _ = socket.set_nodelay(true);
        if let Err(error) = context.registry.register(&mut socket, token, Interest::READABLE) {
            if let Some(suppressed) = self.failures.permit(context.now) {
                tracing::warn!(%error, suppressed, "cannot watch a connection");
            }
            return;
        }
        let stream = match Stream::new(socket, &context.options.security, Side::Listens) {
            Ok(stream) => stream,
            Err(error) => {
                if let Some(suppressed) = self.failures.permit(context.now) {
                    tracing::warn!(%error, suppressed, "cannot make a connection secure");
                }
                return;
            }
        };
        let until = context.now + context.options.handshake_timeout;
        context.timers.insert(until, Timer::Introduction(token));
        self.strangers.insert(token);
        let connection = Connection::new(context, stream, token, address, until);
        self.connections.insert(token, connection);
    }

    /// A connection has waited as long as it had to.
    pub(super) fn resume(&mut self, token: Token) {
        if self.connections.contains_key(&token) {
            self.readable.push_back(token);
        }
    }

    /// A stranger has had its time.
    pub(super) fn overdue(&mut self, context: &mut Context, token: Token) {
        let why = "nothing that would introduce it in time".to_owned();
        self.close(context, token, Closed::Junk(why));
    }

    /// Gives each connection that has something to read a turn.
    pub(super) fn read(&mut self, context: &mut Context) {
        for _ in 0..self.readable.len() {
            let Some(token) = self.readable.pop_front() else {
                return;
            };
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            if matches!(connection.from, From::Rival { .. }) {
                // It stays readable, and so out of the list until it has its answer.
                continue;
            }
            let turn = connection.turn(context);
            if connection.wants_flush() {
                self.unflushed.push(token);
            }
            if let From::Peer(from) = connection.from
                && connection.challenge.is_some_and(|challenge| challenge.answered)
            {
                self.settle_against(context, from.node);
            }
            match turn {
                Ok(Turn::Drained) => {
                    if let Some(connection) = self.connections.get_mut(&token) {
                        connection.is_readable = false;
                    }
                }
                Ok(Turn::More) => self.readable.push_back(token),
                // It stays readable, and so out of the list until it is resumed.
                Ok(Turn::Paused(until)) => context.timers.insert(until, Timer::Resume(token)),
                Ok(Turn::Greeted(hello)) => self.introduce(context, token, hello),
                Err(closed) => self.close(context, token, closed),
            }
        }
    }

    pub(super) fn close(&mut self, context: &mut Context, token: Token, closed: Closed) {
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        let address = connection.address;
        let peer = match connection.from {
            From::Peer(from) => Some(from.node),
            From::Stranger { .. } | From::Rival { .. } => None,
        };
        match closed {
            Closed::End => tracing::debug!(%address, peer, "connection closed"),
            Closed::Failed(error) => tracing::debug!(%address, peer, %error, "connection failed"),
            Closed::Junk(why) => {
                Counters::add(&context.shared.counters.connections_refused, 1);
                if let Some(suppressed) = self.junk.permit(context.now) {
                    tracing::warn!(%address, peer, suppressed, "connection closed: it sent {why}");
                }
            }
            Closed::Unproven(fault) => {
                Counters::add(&context.shared.counters.connections_refused, 1);
                if let Some(suppressed) = self.refusals.permit(context.now) {
                    tracing::warn!(%address, peer, reason = %fault, suppressed, "connection refused");
                }
            }
            // A node looks at all addresses that it was given, and so at its own.
            Closed::Refused(refusal) if refusal.code == RefusalCode::OwnId => {
                tracing::debug!(%address, "this node has reached itself");
            }
            Closed::Refused(refusal) => {
                Counters::add(&context.shared.counters.connections_refused, 1);
                if let Some(suppressed) = self.refusals.permit(context.now) {
                    let reason = refusal.text;
                    tracing::warn!(%address, reason, suppressed, "connection refused");
                }
            }
        }
        self.remove(context, token);
    }

    pub(super) fn remove(&mut self, context: &mut Context, token: Token) {
        let Some(mut connection) = self.connections.remove(&token) else {
            return;
        };
        match connection.from {
            From::Stranger { until } => {
                self.strangers.remove(&token);
                context.timers.remove(until, Timer::Introduction(token));
            }
            From::Rival { node } => {
                if self.rivals.get(&node).is_some_and(|rival| rival.token == token) {
                    self.take_rival(context, node);
                }
            }
            From::Peer(from) => {
                connection.part(context);
                if self.by_peer.get(&from.node) == Some(&token) {
                    self.by_peer.remove(&from.node);
                    if connection.is_both_ways() {
                        let (peer, reason) = (from.node, "its connection has ended".to_owned());
                        context.emit(TransportEvent::Unreachable {
                            peer,
                            reason,
                            permanent: false,
                        });
                    }
                    if let Some(rival) = self.rivals.get_mut(&from.node) {
                        context.timers.remove(rival.at, Timer::Rival(from.node));
                        rival.at = context.now;
                        context.timers.insert(rival.at, Timer::Rival(from.node));
                    }
                }
            }
        }
        // It is closed next, which deregisters it in any case.
        let _ = context.registry.deregister(&mut connection.stream.socket);
    }
}
