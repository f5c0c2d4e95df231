//! The connection to one peer: made, greeted, written to, and made again.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::{Dialler, Order};
use crate::machine::command::NodeId;
use crate::node::io::Problem;
use crate::node::message::PeerMessage;
use crate::transport::frame::{FrameReader, write_frame};
use crate::transport::handshake::{Answer, Hello, Unreadable};
use crate::transport::{LocalPeer, RemotePeer, TransportEvent, TransportOptions};

/// A peer that takes nothing of what waits for it for so long is taken for dead.
const STALL: Duration = Duration::from_secs(5);

/// What a resolver found for a peer's name.
pub(super) struct Resolved {
    pub(super) peer: NodeId,
    found: Result<Vec<SocketAddr>, String>,
}

pub(super) struct Outgoing {
    peer: RemotePeer,
    local: Arc<LocalPeer>,
    options: TransportOptions,
    dialler: Dialler,
    state: State,
    retry: Duration,
    /// What was last said to be wrong.
    reason: Option<String>,
    events: Vec<TransportEvent>,
    closed: Option<Token>,
    dropped: u64,
}

enum State {
    Waiting {
        until: Option<Instant>,
    },
    Resolving,
    /// Addresses that are left to try.
    Dial {
        addresses: Vec<SocketAddr>,
    },
    Connecting {
        link: Link,
        addresses: Vec<SocketAddr>,
        deadline: Instant,
    },
    Greeting {
        link: Link,
        reader: FrameReader,
        deadline: Instant,
    },
    Up {
        link: Link,
    },
}

struct Link {
    stream: TcpStream,
    token: Token,
    /// What waits to be written, from `written` on.
    buffer: Vec<u8>,
    written: usize,
    /// Since when nothing of it could be written.
    stuck: Option<Instant>,
    ready: bool,
}

impl Outgoing {
    pub(super) fn new(
        peer: RemotePeer,
        local: Arc<LocalPeer>,
        options: TransportOptions,
        dialler: Dialler,
    ) -> Outgoing {
        Outgoing {
            retry: options.retry_min,
            peer,
            local,
            options,
            dialler,
            state: State::Waiting { until: None },
            reason: None,
            events: Vec::new(),
            closed: None,
            dropped: 0,
        }
    }

    pub(super) fn is(&self, node: NodeId) -> bool {
        self.peer.node == node
    }

    /// When something is due though nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting { until } => *until,
            State::Resolving | State::Dial { .. } => None,
            State::Connecting { deadline, .. } | State::Greeting { deadline, .. } => {
                Some(*deadline)
            }
            State::Up { link } => link.stuck.map(|since| since + STALL),
        }
    }

    /// The connection that was given up since the last call.
    pub(super) fn take_closed(&mut self) -> Option<Token> {
        self.closed.take()
    }

    pub(super) fn ready(&mut self, token: Token) {
        if let State::Connecting { link, .. } | State::Greeting { link, .. } | State::Up { link } =
            &mut self.state
            && link.token == token
        {
            link.ready = true;
        }
    }

    /// Appends a message to what waits, unless that is too much already or nobody is connected.
    pub(super) fn queue(&mut self, message: &PeerMessage) {
        let State::Up { link } = &mut self.state else {
            return;
        };
        if link.buffer.len() - link.written > self.options.queue_bytes_max {
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                let (peer, dropped) = (&self.peer.address, self.dropped);
                tracing::warn!(peer, dropped, "a peer does not read; messages are dropped");
            }
            return;
        }
        let buffer = std::mem::take(&mut link.buffer);
        link.buffer = write_frame(buffer, |buffer| message.encode(buffer));
    }

    pub(super) fn resolved(&mut self, resolved: Resolved) {
        if matches!(self.state, State::Resolving) {
            match resolved.found {
                Ok(addresses) => self.state = State::Dial { addresses },
                Err(reason) => self.fail(format!("its name does not resolve: {reason}"), false),
            }
        }
    }

    /// Does what is due. `token` names a new connection.
    pub(super) fn work(
        &mut self,
        now: Instant,
        registry: &Registry,
        mut token: impl FnMut() -> Token,
    ) -> Vec<TransportEvent> {
        // Each turn moves on to another state, or leaves.
        while self.turn(now, registry, &mut token) {}
        std::mem::take(&mut self.events)
    }

    fn turn(
        &mut self,
        now: Instant,
        registry: &Registry,
        token: &mut impl FnMut() -> Token,
    ) -> bool {
        match std::mem::replace(&mut self.state, State::Waiting { until: None }) {
            State::Waiting { until } if until.is_some_and(|until| until > now) => {
                self.state = State::Waiting { until };
                false
            }
            State::Waiting { .. } => {
                self.resolve();
                !matches!(self.state, State::Resolving)
            }
            State::Resolving => {
                self.state = State::Resolving;
                false
            }
            State::Dial { mut addresses } => {
                if addresses.is_empty() {
                    // Every address has failed, and each has said why.
                    self.fail(self.reason.clone().unwrap_or_default(), false);
                    return false;
                }
                let address = addresses.remove(0);
                match connect(address, registry, token()) {
                    Ok(link) => {
                        let deadline = now + self.options.connect_timeout;
                        self.state = State::Connecting { link, addresses, deadline };
                    }
                    Err(error) => self.next_address(error.to_string(), addresses),
                }
                true
            }
            State::Connecting { link, addresses, deadline } => {
                self.connecting(now, link, addresses, deadline)
            }
            State::Greeting { link, reader, deadline } => {
                self.greeting(now, link, reader, deadline)
            }
            State::Up { link } => {
                self.up(now, link);
                false
            }
        }
    }

    fn resolve(&mut self) {
        if let Ok(address) = self.peer.address.parse() {
            self.state = State::Dial { addresses: vec![address] };
            return;
        }
        // A resolver may take its time, so it gets a thread of its own, for as long.
        let (peer, name) = (self.peer.node, self.peer.address.clone());
        let dialler = self.dialler.clone();
        let resolver =
            std::thread::Builder::new().name("quorate-dns".to_owned()).spawn(move || {
                let found = match name.to_socket_addrs() {
                    Ok(found) => Ok(found.collect()),
                    Err(error) => Err(error.to_string()),
                };
                let _ = dialler.orders.send(Order::Resolved(Resolved { peer, found }));
                dialler.wake.wake();
            });
        match resolver {
            Ok(_) => self.state = State::Resolving,
            Err(error) => self.fail(format!("no thread to resolve its name: {error}"), false),
        }
    }

    fn connecting(
        &mut self,
        now: Instant,
        mut link: Link,
        addresses: Vec<SocketAddr>,
        deadline: Instant,
    ) -> bool {
        if !link.ready && now < deadline {
            self.state = State::Connecting { link, addresses, deadline };
            return false;
        }
        let failed = match link.stream.take_error() {
            Ok(Some(error)) | Err(error) => Some(error.to_string()),
            Ok(None) => match link.stream.peer_addr() {
                Ok(_) => None,
                Err(_) if now >= deadline => Some("it takes too long to connect".to_owned()),
                Err(_) => {
                    link.ready = false;
                    self.state = State::Connecting { link, addresses, deadline };
                    return false;
                }
            },
        };
        if let Some(reason) = failed {
            self.closed = Some(link.token);
            self.next_address(reason, addresses);
            return true;
        }
        // Small messages are not held back to be joined.
        let _ = link.stream.set_nodelay(true);
        let hello = Hello {
            cluster: self.local.cluster,
            from: self.local.node,
            to: self.peer.node,
            incarnation: self.local.incarnation,
        };
        link.buffer = write_frame(Vec::new(), |buffer| hello.encode(buffer));
        let deadline = now + self.options.handshake_timeout;
        self.state = State::Greeting { link, reader: FrameReader::new(), deadline };
        true
    }

    fn greeting(
        &mut self,
        now: Instant,
        mut link: Link,
        mut reader: FrameReader,
        deadline: Instant,
    ) -> bool {
        let answer = link.flush(now).and_then(|()| link.read_answer(&mut reader));
        match answer {
            Ok(Some(Answer::Welcome)) => {
                tracing::info!(peer = self.peer.address, "connected");
                self.retry = self.options.retry_min;
                self.reason = None;
                self.events.push(TransportEvent::Connected { peer: self.peer.node });
                self.state = State::Up { link };
                true
            }
            Ok(Some(Answer::Refused { reason })) => {
                self.closed = Some(link.token);
                self.fail(format!("it refuses this node: {reason}"), true);
                false
            }
            Ok(None) if now < deadline => {
                link.ready = false;
                self.state = State::Greeting { link, reader, deadline };
                false
            }
            Ok(None) => {
                self.closed = Some(link.token);
                self.fail("it does not answer the greeting".to_owned(), false);
                false
            }
            Err(reason) => {
                self.closed = Some(link.token);
                self.fail(reason, false);
                false
            }
        }
    }

    fn up(&mut self, now: Instant, mut link: Link) {
        let stuck = link.stuck.is_some_and(|since| now >= since + STALL);
        let mut alive = link.flush(now);
        if std::mem::take(&mut link.ready) {
            alive = alive.and_then(|()| link.check_open());
        }
        if stuck && link.stuck.is_some() {
            alive = Err("it takes nothing of what is sent".to_owned());
        }
        match alive {
            Ok(()) => self.state = State::Up { link },
            Err(reason) => {
                self.closed = Some(link.token);
                self.fail(reason, false);
            }
        }
    }

    fn next_address(&mut self, reason: String, addresses: Vec<SocketAddr>) {
        if addresses.is_empty() {
            self.fail(reason, false);
        } else {
            self.state = State::Dial { addresses };
        }
    }

    /// Tries again later, and says why, once for each reason.
    fn fail(&mut self, reason: String, permanent: bool) {
        let pause = if permanent { self.options.retry_max } else { self.retry };
        self.retry = (self.retry * 2).min(self.options.retry_max);
        self.state = State::Waiting { until: Some(super::now() + pause) };
        if self.reason.as_ref() == Some(&reason) {
            return;
        }
        let peer = &self.peer.address;
        if permanent {
            tracing::error!(peer, reason, "a peer cannot be reached");
        } else {
            tracing::info!(peer, reason, "a peer is out of reach; trying again");
        }
        self.reason = Some(reason.clone());
        let problem = Problem { reason, refused: permanent };
        self.events.push(TransportEvent::Unreachable { peer: self.peer.node, problem });
    }
}

fn connect(address: SocketAddr, registry: &Registry, token: Token) -> std::io::Result<Link> {
    let mut stream = TcpStream::connect(address)?;
    registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
    Ok(Link { stream, token, buffer: Vec::new(), written: 0, stuck: None, ready: false })
}

impl Link {
    /// Writes what the socket takes.
    fn flush(&mut self, now: Instant) -> Result<(), String> {
        while self.written < self.buffer.len() {
            match self.stream.write(&self.buffer[self.written..]) {
                Ok(0) => return Err("the connection takes nothing".to_owned()),
                Ok(count) => {
                    self.written += count;
                    self.stuck = None;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stuck.get_or_insert(now);
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("the connection broke: {error}")),
            }
        }
        /// What has been written is dropped when it has grown to this.
        const SLACK: usize = 1 << 20;
        if self.written == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(SLACK);
            self.written = 0;
            self.stuck = None;
        } else if self.written >= SLACK {
            self.buffer.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }

    fn read_answer(&mut self, reader: &mut FrameReader) -> Result<Option<Answer>, String> {
        let mut bytes = [0; 512];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err("it closed the connection".to_owned()),
                Ok(count) => reader.push(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("the connection broke: {error}")),
            }
            match reader.next() {
                Ok(None) => {}
                Ok(Some(payload)) => {
                    return match Answer::decode(payload) {
                        Ok(answer) => Ok(Some(answer)),
                        Err(Unreadable::Version(theirs)) => Ok(Some(Answer::other_version(theirs))),
                        Err(Unreadable::Noise) => Err("it is not a peer of this kind".to_owned()),
                    };
                }
                Err(error) => return Err(format!("it is not a peer of this kind: {error}")),
            }
        }
    }

    /// Nothing more is expected from the other side: anything but silence ends the connection.
    fn check_open(&mut self) -> Result<(), String> {
        match self.stream.read(&mut [0]) {
            Ok(0) => Err("it closed the connection".to_owned()),
            Ok(_) => Err("it speaks out of turn".to_owned()),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(())
            }
            Err(error) => Err(format!("the connection broke: {error}")),
        }
    }
}
