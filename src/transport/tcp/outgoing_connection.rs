//! One connection that this node has made: its socket, the bytes that wait to be written, and what
//! the peer sends back: the answer to the hello, answers to pings, and to a client all messages.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::Token;

use super::context::NetworkContext;
use super::failure::Failure;
use super::incoming_connection::{Challenge, transit};
use super::queue::Rejected;
use super::shared::Counters;
use super::sockets::Polled;
use super::stream::Stream;
use super::writer::SocketWriter;
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::transport::frame::FrameReader;
use crate::transport::handshake::{
    HANDSHAKE_BYTES_MAX, Hello, HelloReply, ProcessRun, Responder, check_responder,
};
use crate::transport::secure::Side;
use crate::types::membership::NodeId;

/// How often a connection in use is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct OutgoingConnection {
    pub(super) stream: Stream,
    pub(super) token: Token,
    pub(super) phase: OutgoingState,
    /// The cluster of the node that has answered; 0 if it has none or has not welcomed this node.
    pub(super) cluster: u64,
    /// The process that has welcomed this node.
    pub(super) run: Option<ProcessRun>,
    /// Set while it is in question whether that process is alive.
    pub(super) challenge: Option<Challenge>,
    /// More addresses to try if this one does not answer.
    pub(super) rest: std::vec::IntoIter<SocketAddr>,
    /// The welcome, until a read shows that the peer did not close the connection right after it.
    pub(super) pending_welcome: Option<(u16, Responder)>,
    pub(super) writer: SocketWriter,
    reader: FrameReader,
    /// When the unanswered ping was sent, if there is one.
    pinged_at: Option<Instant>,
    ping_due: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutgoingState {
    Connecting,
    Handshaking,
    Up { since: Instant },
}

/// What the peer has sent.
#[derive(Debug)]
pub(super) enum Received {
    /// The answer to the hello, and the highest version that the peer supports. After a welcome it
    /// takes messages.
    Answer(u16, HelloReply),
    Message(PeerMessage),
}

impl OutgoingConnection {
    /// Starts to connect to `address`.
    pub(super) fn begin(
        context: &mut NetworkContext,
        address: SocketAddr,
    ) -> io::Result<OutgoingConnection> {
        let mut socket = context.sockets.connect(address)?;
        let token = context.token();
        socket.register(token, Polled::ForBoth)?;
        let stream = Stream::new(socket, &context.options.security, Side::Connects)?;
        let queue_bytes_max = context.options.queue_bytes_max.max(HANDSHAKE_BYTES_MAX);
        Ok(OutgoingConnection {
            stream,
            token,
            phase: OutgoingState::Connecting,
            cluster: 0,
            run: None,
            challenge: None,
            rest: Vec::new().into_iter(),
            pending_welcome: None,
            reader: FrameReader::new(HANDSHAKE_BYTES_MAX),
            writer: SocketWriter::new(queue_bytes_max, false, context.now),
            pinged_at: None,
            ping_due: context.now,
        })
    }

    /// Whether the connection is made; an error if it never will be.
    pub(super) fn is_connected(&self) -> io::Result<bool> {
        if let Some(error) = self.stream.socket.take_error()? {
            return Err(error);
        }
        match self.stream.socket.peer_address() {
            // Where nobody listens on a port of the ephemeral range, a socket can connect to
            // itself. It would also keep the peer from listening there again.
            Ok(address) if address == self.stream.socket.local_address()? => {
                Err(io::ErrorKind::ConnectionRefused.into())
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.phase, OutgoingState::Up { .. })
    }

    /// The connection is made: sends the hello.
    pub(super) fn send_hello(&mut self, now: Instant, hello: &Hello) -> Result<(), Failure> {
        self.stream.socket.set_nodelay()?;
        self.phase = OutgoingState::Handshaking;
        self.writer.writable = true;
        self.writer
            .push(now, false, HANDSHAKE_BYTES_MAX, |buffer| hello.encode(buffer))
            .map_err(|rejected| Failure::passing(format!("cannot send the hello: {rejected:?}")))
    }

    /// Queues a message.
    pub(super) fn send(
        &mut self,
        context: &NetworkContext,
        message: &PeerMessage,
    ) -> Result<(), Rejected> {
        self.writer.send(context, message.is_urgent(), message)
    }

    /// Queues a ping, if there is room. Returns whether there was.
    pub(super) fn ping(&mut self, now: Instant) -> bool {
        let queued = self.writer.ping(now).is_ok();
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

    /// Whether there are bytes to write and the socket takes some.
    pub(super) fn has_more_to_write(&self) -> bool {
        self.writer.has_more(&self.stream)
    }

    /// Writes as many bytes as the socket takes, and after them a ping if one is due.
    pub(super) fn flush(&mut self, context: &NetworkContext) -> io::Result<()> {
        let written = self.writer.write(context, &mut self.stream)?;
        let is_empty = self.writer.queue.is_empty();
        if written && is_empty && self.is_up() && self.ping_if_due(context.now) {
            self.writer.write(context, &mut self.stream)?;
        }
        Ok(())
    }

    /// Reads from the socket once. Returns `false` if it has nothing left.
    pub(super) fn read(&mut self, context: &mut NetworkContext) -> Result<bool, Failure> {
        match self.stream.read(&mut context.scratch, &mut self.reader) {
            Ok(0) if self.is_up() => Err(Failure::passing("the peer closed the connection")),
            Ok(0) => Err(Failure::passing("the peer closed the connection instead of answering")),
            Ok(bytes) => {
                Counters::add(&context.shared.counters.bytes_received, bytes);
                // Any bytes show that the peer is alive. The answer to the ping may be behind many.
                self.pinged_at = None;
                if let Some(challenge) = &mut self.challenge {
                    challenge.answered |= challenge.drained;
                }
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
        context: &mut NetworkContext,
        to: NodeId,
    ) -> Result<Option<Received>, Failure> {
        while let Some(frame) = self
            .reader
            .next_frame()
            .map_err(|error| Failure::passing(format!("the peer sent {error}")))?
        {
            if self.phase == OutgoingState::Handshaking {
                let (version, answer) = HelloReply::decode(frame)
                    .ok_or_else(|| Failure::passing("the peer is not a quorate node"))?;
                if let HelloReply::Welcome(responder) = &answer {
                    self.welcomed(context, to, responder)?;
                }
                return Ok(Some(Received::Answer(version, answer)));
            }
            // An empty frame is the answer to a ping.
            if !frame.is_empty() {
                let message = PeerMessage::decode(frame).map_err(|why| {
                    Failure::passing(format!("the peer sent a message that cannot be read: {why}"))
                })?;
                return Ok(Some(Received::Message(message)));
            }
        }
        Ok(None)
    }

    /// Checks the node that has welcomed this one. Messages may be sent from now on.
    fn welcomed(
        &mut self,
        context: &mut NetworkContext,
        to: NodeId,
        responder: &Responder,
    ) -> Result<(), Failure> {
        let node = check_responder(&context.local, to, responder)?;
        self.stream.right(&context.options.security).map_err(Failure::permanent)?;
        let subject = self.stream.subject();
        context.subjects.check(node, subject).map_err(Failure::permanent)?;
        self.stream.trust();
        self.phase = OutgoingState::Up { since: context.now };
        self.cluster = responder.cluster;
        self.run = Some(responder.run.clone());
        // The limit of 0 admits only answers to pings.
        self.reader.set_limit(if context.is_client() { MESSAGE_BYTES_MAX } else { 0 });
        Ok(())
    }

    /// Another process claims to be this peer: starts to check whether the one that has welcomed this node is alive,
    /// or goes on with it. Everything that has arrived by now must be read.
    pub(super) fn challenge(&mut self, context: &NetworkContext) {
        let now = context.now;
        let challenge = self.challenge.get_or_insert(Challenge::new(now));
        challenge.drained |= challenge.since + transit(&context.options) <= now;
        // Without room for a ping, the peer takes nothing, and will count as dead.
        if challenge.drained && self.pinged_at.is_none() {
            self.ping(now);
        }
    }

    /// When the peer counts as dead if nothing changes until then.
    pub(super) fn dead_at(&self, context: &NetworkContext) -> Option<Instant> {
        let blocked_since = self.writer.waits_since(&self.stream);
        let waiting_since = [blocked_since, self.pinged_at].into_iter().flatten().min();
        waiting_since.map(|since| since + context.options.stall_timeout)
    }
}
