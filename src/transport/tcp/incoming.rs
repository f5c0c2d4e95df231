//! The connections that peers make to this node, to send on.
//!
//! A connection is a stranger until its hello was checked, for at most
//! `handshake_timeout`. When there are too many connections, the oldest
//! stranger makes room: so a crowd of silent strangers keeps no peer out.
//!
//! Invariants: a peer has at most one connection, its latest; no more than
//! `connections_max` are open (or one for each peer, if these are more);
//! a stranger has a timer, a peer has none.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Interest, Token};

use super::driver::{Context, Timer, Warnings};
use super::rate::Rate;
use super::stream::Stream;
use super::{Counters, LISTENER};
use crate::machine::command::NodeId;
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::transport::TransportEvent;
use crate::transport::frame::{FrameReader, HEADER_BYTES, append_frame};
use crate::transport::handshake::{self, Answer, HANDSHAKE_BYTES_MAX, Hello, Refusal, RefusalCode};
use crate::transport::secure::{Fault, Side};
use crate::version::OLDEST;

/// The most reads from one connection before the others have their turn.
const READS_PER_TURN: usize = 4;

/// The most connections taken before those there are have their turn.
const ACCEPTS_PER_TURN: usize = 64;

/// The pause after an error of the listener, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// What a message costs beside its bytes, in bytes: it has to be decoded, and the node has to look
/// at it.
const MESSAGE_COST: usize = 512;

const TOOK_NO_ANSWERS: &str = "requests, and took no answers";

#[derive(Debug)]
pub(super) struct Incoming {
    listener: TcpListener,
    /// The listener may have connections for us.
    acceptable: bool,
    /// Whose hello is accepted.
    known: BTreeSet<NodeId>,
    connections: BTreeMap<Token, Connection>,
    by_peer: BTreeMap<NodeId, Token>,
    /// The connections not introduced; tokens grow, so the first is the oldest.
    strangers: BTreeSet<Token>,
    /// The connections that may have something to read, in the order of their turns.
    readable: VecDeque<Token>,
    /// Peers that have just introduced themselves.
    welcomed: Vec<NodeId>,
    junk: Warnings,
    refusals: Warnings,
    failures: Warnings,
}

#[derive(Debug)]
struct Connection {
    stream: Stream,
    token: Token,
    address: SocketAddr,
    reader: FrameReader,
    from: From,
    rate: Rate,
    is_readable: bool,
}

#[derive(Clone, Copy, Debug)]
enum From {
    Stranger { until: Instant },
    Peer { node: NodeId, incarnation: u64 },
}

/// What a connection's turn has come to.
enum Turn {
    /// There is nothing left to read.
    Drained,
    /// There may be more.
    More,
    /// There may be more, but it has to wait until then.
    Paused(Instant),
    /// It was a stranger and is a peer now, and there may be more.
    Introduced(Hello),
}

/// Why a connection is closed.
enum Closed {
    /// By the other end.
    End,
    Failed(io::Error),
    /// It has sent what no peer would.
    Junk(String),
    /// It has not shown that it is one of the cluster.
    Unproven(Fault),
    Refused(Refusal),
}

impl Incoming {
    pub(super) fn new(context: &mut Context, mut listener: TcpListener) -> io::Result<Incoming> {
        context.registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Incoming {
            listener,
            acceptable: true,
            known: BTreeSet::new(),
            connections: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            strangers: BTreeSet::new(),
            readable: VecDeque::new(),
            welcomed: Vec::new(),
            junk: Warnings::default(),
            refusals: Warnings::default(),
            failures: Warnings::default(),
        })
    }

    pub(super) fn set_peers(&mut self, context: &mut Context, peers: impl Iterator<Item = NodeId>) {
        self.known = peers.collect();
        let gone: Vec<Token> = self
            .by_peer
            .iter()
            .filter(|(node, _)| !self.known.contains(node))
            .map(|(_, token)| *token)
            .collect();
        for token in gone {
            self.remove(context, token);
        }
    }

    pub(super) fn listener_ready(&mut self) {
        self.acceptable = true;
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
        self.acceptable || !self.readable.is_empty()
    }

    pub(super) fn take_welcomed(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.welcomed)
    }

    /// Takes new connections.
    pub(super) fn accept(&mut self, context: &mut Context) {
        for _ in 0..ACCEPTS_PER_TURN {
            if !self.acceptable {
                return;
            }
            match self.listener.accept() {
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
        let connections_max = context.options.connections_max.max(self.known.len() + 1);
        if self.connections.len() >= connections_max {
            Counters::add(&context.shared.counters.connections_refused, 1);
            if let Some(suppressed) = self.failures.permit(context.now) {
                tracing::warn!(%address, connections_max, suppressed, "too many connections");
            }
            match self.strangers.first().copied() {
                Some(oldest) => self.remove(context, oldest),
                None => return,
            }
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
        self.connections.insert(
            token,
            Connection {
                stream,
                token,
                address,
                reader: FrameReader::new(HANDSHAKE_BYTES_MAX),
                from: From::Stranger { until },
                rate: Rate::new(context.now),
                is_readable: false,
            },
        );
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
            match connection.turn(context, &self.known) {
                Ok(Turn::Drained) => connection.is_readable = false,
                Ok(Turn::More) => self.readable.push_back(token),
                // It stays readable, and so out of the list until it is resumed.
                Ok(Turn::Paused(until)) => context.timers.insert(until, Timer::Resume(token)),
                Ok(Turn::Introduced(hello)) => {
                    self.readable.push_back(token);
                    self.introduce(context, token, &hello);
                }
                Err(closed) => self.close(context, token, closed),
            }
            if !context.is_heard {
                return;
            }
        }
    }

    fn introduce(&mut self, context: &mut Context, token: Token, hello: &Hello) {
        self.strangers.remove(&token);
        self.welcomed.push(hello.from);
        if let Some(former) = self.by_peer.insert(hello.from, token) {
            if let Some(Connection { from: From::Peer { incarnation, .. }, address, .. }) =
                self.connections.get(&former)
                && *incarnation != hello.incarnation
            {
                tracing::warn!(
                    peer = hello.from,
                    former = %address,
                    "another incarnation of the peer replaces the one that was connected",
                );
            }
            self.remove(context, former);
        }
    }

    fn close(&mut self, context: &mut Context, token: Token, closed: Closed) {
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        let address = connection.address;
        let peer = match connection.from {
            From::Peer { node, .. } => Some(node),
            From::Stranger { .. } => None,
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

    fn remove(&mut self, context: &mut Context, token: Token) {
        let Some(mut connection) = self.connections.remove(&token) else {
            return;
        };
        match connection.from {
            From::Stranger { until } => {
                self.strangers.remove(&token);
                context.timers.remove(until, Timer::Introduction(token));
            }
            From::Peer { node, .. } => {
                if self.by_peer.get(&node) == Some(&token) {
                    self.by_peer.remove(&node);
                }
            }
        }
        // It is closed next, which deregisters it in any case.
        let _ = context.registry.deregister(&mut connection.stream.socket);
    }
}

impl Connection {
    /// Reads for a while, and passes on what is whole.
    fn turn(&mut self, context: &mut Context, known: &BTreeSet<NodeId>) -> Result<Turn, Closed> {
        for _ in 0..READS_PER_TURN {
            // What came along with the hello is still in the reader.
            let introduced = match self.from {
                From::Stranger { until } => self.hear_hello(context, until, known)?,
                From::Peer { node, .. } => {
                    self.hear_messages(context, node)?;
                    None
                }
            };
            if let Some(hello) = introduced {
                return Ok(Turn::Introduced(hello));
            }
            if !context.is_heard {
                return Ok(Turn::Drained);
            }
            let room = match self.from {
                From::Stranger { .. } => HEADER_BYTES + HANDSHAKE_BYTES_MAX,
                From::Peer { .. } => {
                    if let Some(until) = self.rate.pause(context.now) {
                        return Ok(Turn::Paused(until));
                    }
                    context.scratch.len()
                }
            };
            match self.stream.read(&mut context.scratch[..room], &mut self.reader) {
                Ok(0) if self.reader.is_midway() => {
                    return Err(Closed::Junk("a part of a frame".to_owned()));
                }
                Ok(0) => return Err(Closed::End),
                Ok(bytes) => {
                    Counters::add(&context.shared.counters.bytes_received, bytes);
                    self.rate.count(bytes, context.now, &context.options);
                    if self.stream.has_pending() {
                        return Err(Closed::Junk(TOOK_NO_ANSWERS.to_owned()));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Turn::Drained);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(Turn::More)
    }

    fn hear_hello(
        &mut self,
        context: &mut Context,
        until: Instant,
        known: &BTreeSet<NodeId>,
    ) -> Result<Option<Hello>, Closed> {
        let frame = self.reader.next_frame().map_err(|error| Closed::Junk(error.to_string()))?;
        let Some(frame) = frame else {
            return Ok(None);
        };
        let own = context.local.version;
        let checked = Hello::decode(frame, OLDEST..=own).and_then(|hello| {
            handshake::check(&context.local, &hello, |node| known.contains(&node))?;
            let subject = self.stream.subject();
            context
                .subjects
                .check(hello.from, subject)
                .map_err(|reason| Refusal::new(RefusalCode::Identity, reason))?;
            Ok(hello)
        });
        match checked {
            Ok(hello) => {
                self.stream.trust();
                self.answer(own, &Answer::Welcome)?;
                context.timers.remove(until, Timer::Introduction(self.token));
                self.from = From::Peer { node: hello.from, incarnation: hello.incarnation };
                self.reader.set_limit(MESSAGE_BYTES_MAX);
                Ok(Some(hello))
            }
            Err(refusal) => {
                self.answer(own, &Answer::Refused(refusal.clone()))?;
                Err(Closed::Refused(refusal))
            }
        }
    }

    /// Passes on all messages that have arrived whole.
    fn hear_messages(&mut self, context: &mut Context, from: NodeId) -> Result<(), Closed> {
        let mut asked = false;
        let mut received = 0;
        while context.is_heard
            && let Some(frame) =
                self.reader.next_frame().map_err(|error| Closed::Junk(error.to_string()))?
        {
            if frame.is_empty() {
                asked = true;
                continue;
            }
            let message = PeerMessage::decode(frame)
                .map_err(|why| Closed::Junk(format!("a message that cannot be read: {why}")))?;
            received += 1;
            context.emit(TransportEvent::Received { from, message });
        }
        Counters::add(&context.shared.counters.messages_received, received);
        self.rate.count(received * MESSAGE_COST, context.now, &context.options);
        if asked {
            // One for many is enough: only that there is one matters.
            self.write_frame(|buffer| buffer)?;
        }
        Ok(())
    }

    /// Why a read failed. A stranger that cannot know why is told.
    fn failed(&mut self, error: io::Error) -> Closed {
        let Some(fault) = Fault::of(&error) else {
            return Closed::Failed(error);
        };
        if fault.needs_plain_answer() {
            let refusal = Refusal::new(RefusalCode::Security, fault.to_string());
            let mut frame = Vec::new();
            append_frame(&mut frame, |buffer| Answer::Refused(refusal).encode(OLDEST, buffer));
            // Whether it arrives or not, the connection ends.
            let _ = self.stream.socket.write(&frame);
        }
        Closed::Unproven(fault.clone())
    }

    fn answer(&mut self, own: u16, answer: &Answer) -> Result<(), Closed> {
        self.write_frame(|buffer| answer.encode(own, buffer))
    }

    /// Writes a small frame at once. A socket that has no room for it is not read from by the
    /// other end, as no peer's is.
    fn write_frame(&mut self, write: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Result<(), Closed> {
        let mut frame = Vec::new();
        append_frame(&mut frame, write);
        match self.stream.write(&frame) {
            Ok(bytes) if bytes == frame.len() && !self.stream.has_pending() => Ok(()),
            Ok(_) => Err(Closed::Junk(TOOK_NO_ANSWERS.to_owned())),
            Err(error) => Err(Closed::Failed(error)),
        }
    }
}
