//! One connection that this node has made: its socket, what waits to be written to it, and what
//! the peer sends back: the answer to the hello, answers to pings, and to a client all messages.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::{Interest, Token};

use super::Counters;
use super::event_loop::Context;
use super::failure::Failure;
use super::queue::{Rejected, WriteQueue};
use super::stream::Stream;
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::transport::frame::FrameReader;
use crate::transport::handshake::{
    Answer, HANDSHAKE_BYTES_MAX, Hello, Refusal, Responder, check_responder,
};
use crate::transport::secure::Side;
use crate::types::membership::NodeId;

/// The most writes to one connection before the others have their turn.
pub(super) const WRITES_PER_TURN: usize = 16;

/// How often a connection in use is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct OutgoingConnection {
    pub(super) stream: Stream,
    pub(super) token: Token,
    pub(super) phase: Phase,
    /// The cluster of the node that has welcomed us; 0 if it has none or that is not known.
    pub(super) cluster: u64,
    /// More addresses to try if this one does not answer.
    pub(super) rest: std::vec::IntoIter<SocketAddr>,
    /// The welcome, until it is known that the peer has not closed the connection with it.
    pub(super) greeted: Option<(u16, Responder)>,
    pub(super) writable: bool,
    reader: FrameReader,
    queue: WriteQueue,
    /// When the socket last took bytes, or the first bytes were queued.
    progress_at: Instant,
    /// When the ping was sent that is not answered yet.
    pinged_at: Option<Instant>,
    ping_due: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Greeting,
    Up { since: Instant },
}

/// What the peer has sent.
#[derive(Debug)]
pub(super) enum Received {
    /// It takes messages from now on.
    Welcome {
        version: u16,
        responder: Responder,
    },
    /// It refuses this node, and supports this version.
    Refusal {
        version: u16,
        refusal: Refusal,
    },
    Message(PeerMessage),
    /// The answer to a ping.
    Pong,
}

impl OutgoingConnection {
    /// Starts to connect to `address`.
    pub(super) fn begin(
        context: &mut Context,
        address: SocketAddr,
        rest: std::vec::IntoIter<SocketAddr>,
    ) -> io::Result<OutgoingConnection> {
        let mut socket = mio::net::TcpStream::connect(address)?;
        let token = context.token();
        context.registry.register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        let stream = Stream::new(socket, &context.options.security, Side::Connects)?;
        Ok(OutgoingConnection {
            stream,
            token,
            phase: Phase::Connecting,
            cluster: 0,
            rest,
            greeted: None,
            reader: FrameReader::new(HANDSHAKE_BYTES_MAX),
            queue: WriteQueue::new(context.options.queue_bytes_max.max(HANDSHAKE_BYTES_MAX)),
            writable: false,
            progress_at: context.now,
            pinged_at: None,
            ping_due: context.now,
        })
    }

    /// Whether the connection is made; an error if it never will be.
    pub(super) fn is_connected(&self) -> io::Result<bool> {
        if let Some(error) = self.stream.socket.take_error()? {
            return Err(error);
        }
        match self.stream.socket.peer_addr() {
            // Where nobody listens on a port of the ephemeral range, a socket can connect to
            // itself. It would also keep the peer from listening there again.
            Ok(address) if address == self.stream.socket.local_addr()? => {
                Err(io::ErrorKind::ConnectionRefused.into())
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up { .. })
    }

    /// The connection is made: sends the hello.
    pub(super) fn greet(&mut self, hello: &Hello) -> Result<(), Failure> {
        self.stream.socket.set_nodelay(true)?;
        self.phase = Phase::Greeting;
        self.writable = true;
        self.queue
            .push(HANDSHAKE_BYTES_MAX, |buffer| hello.encode(buffer))
            .map_err(|rejected| Failure::passing(format!("cannot greet: {rejected:?}")))
    }

    /// Queues a message; `Err(None)` if the peer has not welcomed this node.
    pub(super) fn send(
        &mut self,
        context: &Context,
        message: &PeerMessage,
    ) -> Result<(), Option<Rejected>> {
        if !self.is_up() {
            return Err(None);
        }
        if self.queue.is_empty() {
            self.progress_at = context.now;
        }
        self.queue
            .push_to(message.is_urgent(), MESSAGE_BYTES_MAX, |buffer| message.encode(buffer))
            .map_err(Some)?;
        Counters::add(&context.shared.counters.messages_sent, 1);
        Ok(())
    }

    /// Queues a ping, if there is room. Returns whether there was.
    pub(super) fn ping(&mut self, now: Instant) -> bool {
        let queued = self.queue.push(0, |buffer| buffer).is_ok();
        if queued {
            self.pinged_at = Some(now);
            self.ping_due = now + PING_INTERVAL;
        }
        queued
    }

    /// Queues a ping, unless the last one was just now or is not answered.
    pub(super) fn ping_if_due(&mut self, now: Instant) -> bool {
        self.pinged_at.is_none() && now >= self.ping_due && self.ping(now)
    }

    /// Whether the socket takes bytes, and there are some.
    pub(super) fn has_more_to_write(&self) -> bool {
        self.writable && (!self.queue.is_empty() || self.stream.has_pending())
    }

    /// Writes what the socket takes, and now and then a ping behind it.
    pub(super) fn flush(&mut self, context: &mut Context) -> io::Result<()> {
        let written = self.write(context)?;
        if written && self.queue.is_empty() && self.is_up() && self.ping_if_due(context.now) {
            self.write(context)?;
        }
        Ok(())
    }

    /// Reads from the socket once. Returns `false` if it has nothing left.
    pub(super) fn read(&mut self, context: &mut Context) -> Result<bool, Failure> {
        match self.stream.read(&mut context.scratch, &mut self.reader) {
            Ok(0) if self.is_up() => Err(Failure::passing("the peer closed the connection")),
            Ok(0) => Err(Failure::passing("the peer closed the connection instead of answering")),
            Ok(bytes) => {
                Counters::add(&context.shared.counters.bytes_received, bytes);
                // As good as the answer, which may be behind many other bytes.
                self.pinged_at = None;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// The next frame that has arrived whole, decoded. `to` is the node that this connection is
    /// for; 0 for any.
    pub(super) fn receive(
        &mut self,
        context: &mut Context,
        to: NodeId,
    ) -> Result<Option<Received>, Failure> {
        let Some(frame) = self
            .reader
            .next_frame()
            .map_err(|error| Failure::passing(format!("the peer sent {error}")))?
        else {
            return Ok(None);
        };
        if self.phase != Phase::Greeting {
            if frame.is_empty() {
                return Ok(Some(Received::Pong));
            }
            let message = PeerMessage::decode(frame).map_err(|why| {
                Failure::passing(format!("the peer sent what cannot be read: {why}"))
            })?;
            return Ok(Some(Received::Message(message)));
        }
        match Answer::decode(frame) {
            Some((version, Answer::Welcome(responder))) => {
                self.welcomed(context, to, &responder)?;
                Ok(Some(Received::Welcome { version, responder }))
            }
            Some((version, Answer::Refused(refusal))) => {
                Ok(Some(Received::Refusal { version, refusal }))
            }
            None => Err(Failure::passing("the peer is not a quorate node")),
        }
    }

    /// Checks who has welcomed this node. Messages may be sent from now on.
    fn welcomed(
        &mut self,
        context: &mut Context,
        to: NodeId,
        responder: &Responder,
    ) -> Result<(), Failure> {
        let node = check_responder(&context.local, to, responder)?;
        let subject = self.stream.subject();
        context.subjects.check(node, subject).map_err(Failure::permanent)?;
        self.stream.trust();
        self.phase = Phase::Up { since: context.now };
        self.cluster = responder.cluster;
        // The limit of 0 admits only answers to pings.
        self.reader.set_limit(if context.is_client() { MESSAGE_BYTES_MAX } else { 0 });
        Ok(())
    }

    /// Writes until the queue is empty or the socket full, for a limited number of writes. Returns
    /// whether anything was written.
    fn write(&mut self, context: &mut Context) -> io::Result<bool> {
        let mut written = 0;
        let flushed = self.writable && self.stream.flush_pending()?;
        for _ in 0..WRITES_PER_TURN {
            if !self.writable || self.queue.is_empty() {
                break;
            }
            match self.queue.write_to(&mut self.stream) {
                Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // The socket did not take all, and reports when it takes more.
        self.writable &= !self.stream.has_pending();
        if written > 0 || flushed {
            self.progress_at = context.now;
            Counters::add(&context.shared.counters.bytes_sent, written);
        }
        Ok(written > 0)
    }

    /// When the peer counts as dead if nothing changes until then.
    pub(super) fn dead_at(&self, context: &Context) -> Option<Instant> {
        let blocked = !self.queue.is_empty() || self.stream.has_pending();
        let blocked_since = blocked.then_some(self.progress_at);
        let waiting_since = [blocked_since, self.pinged_at].into_iter().flatten().min();
        waiting_since.map(|since| since + context.options.stall_timeout)
    }
}
