//! The connections that peers make to us: accepted, introduced, read.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};

use super::EventSink;
use crate::machine::command::NodeId;
use crate::node::message::PeerMessage;
use crate::transport::frame::{FrameReader, write_frame};
use crate::transport::handshake::{self, Answer, Hello, Unreadable};
use crate::transport::{LocalPeer, TransportEvent, TransportOptions};

/// How much is read from one connection before it is another's turn.
const TURN_BYTES: usize = 256 << 10;
/// The pause after the system had no connection to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Refusals are logged this often at most.
const LOG_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Server {
    listener: TcpListener,
    local: Arc<LocalPeer>,
    known: Vec<NodeId>,
    options: TransportOptions,
    accept: Accept,
    connections: BTreeMap<Token, Connection>,
    /// Connections that may have something to read.
    ready: BTreeSet<Token>,
    scratch: Vec<u8>,
    logged: Option<Instant>,
    unlogged: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Accept {
    Idle,
    Now,
    After(Instant),
}

struct Connection {
    stream: TcpStream,
    reader: FrameReader,
    /// Who it is, once it has said so.
    peer: Option<NodeId>,
    /// By when it must have said so.
    deadline: Instant,
}

/// Why a connection ends.
enum End {
    /// The peer closed it, or it broke: nothing to tell.
    Closed,
    /// It is not welcome, for this reason.
    Refused(String),
    /// Nobody listens to us any more.
    Over,
}

impl Server {
    pub(super) fn new(
        listener: TcpListener,
        local: Arc<LocalPeer>,
        known: Vec<NodeId>,
        options: TransportOptions,
    ) -> Server {
        Server {
            listener,
            local,
            known,
            options,
            accept: Accept::Now,
            connections: BTreeMap::new(),
            ready: BTreeSet::new(),
            scratch: vec![0; 64 << 10],
            logged: None,
            unlogged: 0,
        }
    }

    pub(super) fn want_accept(&mut self) {
        if self.accept == Accept::Idle {
            self.accept = Accept::Now;
        }
    }

    pub(super) fn ready(&mut self, token: Token) {
        if self.connections.contains_key(&token) {
            self.ready.insert(token);
        }
    }

    /// Whether something was left unread for the sake of others.
    pub(super) fn has_more(&self) -> bool {
        !self.ready.is_empty() || self.accept == Accept::Now
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let strangers = self.connections.values().filter(|connection| connection.peer.is_none());
        let first = strangers.map(|connection| connection.deadline).min();
        match self.accept {
            Accept::After(at) => Some(first.map_or(at, |first| first.min(at))),
            Accept::Idle | Accept::Now => first,
        }
    }

    /// Does what is due; `false` when nobody listens any more.
    pub(super) fn work(
        &mut self,
        now: Instant,
        registry: &Registry,
        next_token: &mut usize,
        events: &EventSink,
    ) -> bool {
        if self.accept == Accept::Now || matches!(self.accept, Accept::After(at) if now >= at) {
            self.accept_all(now, registry, next_token);
        }
        for token in std::mem::take(&mut self.ready) {
            match self.read(token, events) {
                Ok(true) => {
                    self.ready.insert(token);
                }
                Ok(false) => {}
                Err(end) => {
                    self.connections.remove(&token);
                    match end {
                        End::Closed => {}
                        End::Refused(reason) => self.log(now, &reason),
                        End::Over => return false,
                    }
                }
            }
        }
        let late: Vec<Token> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.peer.is_none() && now >= connection.deadline)
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            self.connections.remove(&token);
            self.log(now, "it did not introduce itself in time");
        }
        true
    }

    fn accept_all(&mut self, now: Instant, registry: &Registry, next_token: &mut usize) {
        loop {
            match self.listener.accept() {
                Ok((mut stream, _)) => {
                    let token = Token(*next_token);
                    *next_token += 1;
                    if let Err(error) = registry.register(&mut stream, token, Interest::READABLE) {
                        self.log(now, &format!("it cannot be listened to: {error}"));
                        continue;
                    }
                    self.make_room(now);
                    let connection = Connection {
                        stream,
                        reader: FrameReader::new(),
                        peer: None,
                        deadline: now + self.options.handshake_timeout,
                    };
                    self.connections.insert(token, connection);
                    self.ready.insert(token);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.accept = Accept::Idle;
                    return;
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    // Out of file descriptors, most likely: trying at once would only burn time.
                    self.log(now, &format!("no connection can be accepted: {error}"));
                    self.accept = Accept::After(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// When there are too many connections, the oldest stranger goes.
    fn make_room(&mut self, now: Instant) {
        if self.connections.len() < self.options.connections_max {
            return;
        }
        let strangers = self.connections.iter().filter(|(_, connection)| connection.peer.is_none());
        // Tokens grow, so the first is the oldest. Peers are few: each has one connection.
        if let Some(oldest) = strangers.map(|(token, _)| *token).next() {
            self.connections.remove(&oldest);
            self.log(now, "too many connections: the oldest that had not introduced itself goes");
        }
    }

    /// Reads a turn's worth; whether there may be more.
    fn read(&mut self, token: Token, events: &EventSink) -> Result<bool, End> {
        let mut read = 0;
        loop {
            let Some(connection) = self.connections.get_mut(&token) else {
                return Ok(false);
            };
            match connection.stream.read(&mut self.scratch) {
                Ok(0) => return Err(End::Closed),
                Ok(count) => {
                    read += count;
                    connection.reader.push(&self.scratch[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Err(End::Closed),
            }
            if connection.peer.is_none() {
                self.introduce(token)?;
            }
            self.deliver(token, events)?;
            if read >= TURN_BYTES {
                return Ok(true);
            }
        }
    }

    /// Takes the greeting, if it is here, and answers it.
    fn introduce(&mut self, token: Token) -> Result<(), End> {
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(());
        };
        let refused = |error: String| End::Refused(error);
        let Some(payload) = connection.reader.next().map_err(|error| refused(error.to_string()))?
        else {
            return Ok(());
        };
        let known = &self.known;
        let checked = match Hello::decode(payload) {
            Ok(hello) => handshake::check(&hello, &self.local, |node| known.contains(&node)),
            Err(Unreadable::Noise) => return Err(refused("not a peer".to_owned())),
            Err(Unreadable::Version(theirs)) => match Answer::other_version(theirs) {
                Answer::Refused { reason } => Err(reason),
                Answer::Welcome => Ok(0),
            },
        };
        let answer = match &checked {
            Ok(_) => Answer::Welcome,
            Err(reason) => Answer::Refused { reason: reason.clone() },
        };
        let bytes = write_frame(Vec::new(), |buffer| answer.encode(buffer));
        // A few bytes, the first on this connection: a socket that does not take them is broken.
        if connection.stream.write_all(&bytes).is_err() {
            return Err(End::Closed);
        }
        let peer = checked.map_err(|reason| refused(format!("refused: {reason}")))?;
        connection.peer = Some(peer);
        connection.reader.trust();
        let _ = connection.stream.set_nodelay(true);
        // It has restarted, or lost its former connection: that one is dead.
        self.connections
            .retain(|other, connection| *other == token || connection.peer != Some(peer));
        Ok(())
    }

    fn deliver(&mut self, token: Token, events: &EventSink) -> Result<(), End> {
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(());
        };
        let Some(from) = connection.peer else {
            return Ok(());
        };
        while let Some(payload) =
            connection.reader.next().map_err(|error| End::Refused(error.to_string()))?
        {
            let message = PeerMessage::decode(payload).map_err(|error| {
                End::Refused(format!("a message that does not decode: {error}"))
            })?;
            if !events(TransportEvent::Received { from, message }) {
                return Err(End::Over);
            }
        }
        Ok(())
    }

    fn log(&mut self, now: Instant, reason: &str) {
        if self.logged.is_some_and(|last| now < last + LOG_EVERY) {
            self.unlogged += 1;
            return;
        }
        let more = std::mem::take(&mut self.unlogged);
        self.logged = Some(now);
        tracing::warn!(reason, more, "an incoming connection was closed");
    }
}
