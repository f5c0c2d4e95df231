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
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Token};

use super::driver::{Context, Timer, Warnings};
use super::{Counters, LISTENER};
use crate::machine::command::NodeId;
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::transport::TransportEvent;
use crate::transport::frame::{FrameReader, HEADER_BYTES, append_frame};
use crate::transport::handshake::{self, Answer, HANDSHAKE_BYTES_MAX, Hello, Refusal};
use crate::version::OLDEST;

/// The most reads from one connection before the others have their turn.
const READS_PER_TURN: usize = 4;

/// The most connections taken before those there are have their turn.
const ACCEPTS_PER_TURN: usize = 64;

/// The pause after an error of the listener, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

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
    stream: TcpStream,
    token: Token,
    address: SocketAddr,
    reader: FrameReader,
    from: From,
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

    fn admit(&mut self, context: &mut Context, mut stream: TcpStream, address: SocketAddr) {
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
        let token = context.token();
        // Without it our few bytes would still arrive, so a failure is none of the connection.
        let _ = stream.set_nodelay(true);
        if let Err(error) = context.registry.register(&mut stream, token, Interest::READABLE) {
            if let Some(suppressed) = self.failures.permit(context.now) {
                tracing::warn!(%error, suppressed, "cannot watch a connection");
            }
            return;
        }
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
                is_readable: false,
            },
        );
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
        let _ = context.registry.deregister(&mut connection.stream);
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
                From::Peer { .. } => context.scratch.len(),
            };
            match self.stream.read(&mut context.scratch[..room]) {
                Ok(0) if self.reader.is_midway() => {
                    return Err(Closed::Junk("a part of a frame".to_owned()));
                }
                Ok(0) => return Err(Closed::End),
                Ok(bytes) => {
                    Counters::add(&context.shared.counters.bytes_received, bytes);
                    self.reader.push(&context.scratch[..bytes]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Turn::Drained);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Closed::Failed(error)),
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
            Ok(hello)
        });
        match checked {
            Ok(hello) => {
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
        if asked {
            // One for many is enough: only that there is one matters.
            self.write_frame(|buffer| buffer)?;
        }
        Ok(())
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
            Ok(bytes) if bytes == frame.len() => Ok(()),
            Ok(_) => Err(Closed::Junk("requests, and took no answers".to_owned())),
            Err(error) => Err(Closed::Failed(error)),
        }
    }
}
