//! One connection that another node has made to this one.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::Token;

use super::context::NetworkContext;
use super::rate::Rate;
use super::shared::Counters;
use super::stream::Stream;
use super::writer::SocketWriter;
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::transport::frame::{FrameReader, HEADER_BYTES, append_frame};
use crate::transport::handshake::{
    HANDSHAKE_BYTES_MAX, Hello, HelloReply, Refusal, RefusalCode, Responder,
};
use crate::transport::secure::SecurityError;
use crate::transport::{SHORT_READ_DRAINS, TransportEvent, TransportOptions};
use crate::types::membership::NodeId;
use crate::types::right::Right;
use crate::types::version::OLDEST;

/// The most reads from one connection before the others have their turn.
const READS_PER_TURN: usize = 4;

/// The bytes that a message counts in addition to its length: the node has to decode and process it.
const MESSAGE_COST: usize = 512;

const READ_NO_ANSWERS: &str = "requests, but did not read the answers";

#[derive(Debug)]
pub(super) struct IncomingConnection {
    pub(super) stream: Stream,
    pub(super) token: Token,
    pub(super) address: SocketAddr,
    /// Where the peer listens, by its hello; empty for a client, and before it is welcomed.
    pub(super) listens_at: String,
    reader: FrameReader,
    pub(super) state: ConnectionState,
    rate: Rate,
    /// Whether there may be bytes to read, now or at its next turn.
    pub(super) is_readable: bool,
    /// Whether it was reported as closed or broken. Nothing more is reported then, so it is read to its end.
    pub(super) ends: bool,
    /// When bytes last arrived.
    pub(super) received_at: Instant,
    /// Set while it is in question whether the connection is alive.
    pub(super) challenge: Option<Challenge>,
    /// Writes to a client, which is reached over this connection alone.
    pub(super) client_writer: Option<Box<ClientWriter>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionState {
    Handshaking,
    /// Its hello names a node that is connected already, as another process.
    Duplicate {
        node: NodeId,
    },
    Peer(PeerIdentity),
}

/// What a peer's hello states about the peer, and its right.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerIdentity {
    pub(super) node: NodeId,
    pub(super) incarnation: u64,
    /// 0 if it had none at the handshake.
    pub(super) cluster: u64,
    pub(super) boot: u64,
    /// By its credential.
    pub(super) right: Right,
}

/// Another process claims to be the node of this connection. If the process that made the
/// connection is dead, only bytes that were in flight still arrive. All of them have arrived once
/// the socket is found empty after [`transit`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Challenge {
    pub(super) since: Instant,
    pub(super) drained: bool,
    /// Whether anything arrived after that.
    pub(super) answered: bool,
}

impl Challenge {
    pub(super) fn new(since: Instant) -> Challenge {
        Challenge { since, drained: false, answered: false }
    }
}

/// How long bytes of a dead process may be in flight.
pub(super) fn transit(options: &TransportOptions) -> Duration {
    (options.stall_timeout / 10).max(Duration::from_millis(1))
}

/// The result of a connection's turn.
pub(super) enum ReadOutcome {
    /// Nothing is left to read.
    Drained,
    /// There may be more.
    More,
    /// There may be more, but reading must wait until then.
    Paused(Instant),
    /// A hello has arrived, and there may be more.
    Hello(Hello),
}

/// Why a connection is closed.
pub(super) enum Closed {
    /// By the other end.
    End,
    Failed(io::Error),
    /// It has sent something that no peer sends.
    Junk(String),
    /// It is not accepted, for this reason.
    Refused(String),
    /// This node itself has made it.
    Itself,
}

/// Bytes that wait to be written to a client.
#[derive(Debug)]
pub(super) struct ClientWriter {
    pub(super) writer: SocketWriter,
    /// The client has sent something since it was welcomed.
    pub(super) is_open: bool,
}

impl IncomingConnection {
    pub(super) fn new(
        context: &NetworkContext,
        stream: Stream,
        token: Token,
        address: SocketAddr,
    ) -> IncomingConnection {
        IncomingConnection {
            stream,
            token,
            address,
            listens_at: String::new(),
            reader: FrameReader::new(HANDSHAKE_BYTES_MAX),
            state: ConnectionState::Handshaking,
            rate: Rate::new(context.now),
            is_readable: false,
            ends: false,
            received_at: context.now,
            challenge: None,
            client_writer: None,
        }
    }

    /// The peer that has made this connection, once it is welcomed.
    pub(super) fn peer(&self) -> Option<PeerIdentity> {
        match self.state {
            ConnectionState::Peer(identity) => Some(identity),
            ConnectionState::Handshaking | ConnectionState::Duplicate { .. } => None,
        }
    }

    /// Reads a limited amount, and passes on whole messages.
    pub(super) fn turn(&mut self, context: &mut NetworkContext) -> Result<ReadOutcome, Closed> {
        let mut is_drained = false;
        for _ in 0..READS_PER_TURN {
            // Frames that arrived along with the hello are still in the reader.
            let room = match self.state {
                ConnectionState::Handshaking => {
                    if let Some(hello) = self.receive_hello(context)? {
                        return Ok(ReadOutcome::Hello(hello));
                    }
                    HEADER_BYTES + HANDSHAKE_BYTES_MAX
                }
                ConnectionState::Duplicate { .. } => return Ok(ReadOutcome::Drained),
                ConnectionState::Peer(identity) => {
                    self.receive_messages(context, identity)?;
                    if let Some(until) = self.rate.pause(context.now) {
                        return Ok(ReadOutcome::Paused(until));
                    }
                    context.scratch.len()
                }
            };
            if is_drained {
                return Ok(self.drained(context));
            }
            match self.stream.read(&mut context.scratch[..room], &mut self.reader) {
                Ok(0) if self.reader.is_midway() => {
                    return Err(Closed::Junk("a part of a frame".to_owned()));
                }
                Ok(0) => return Err(Closed::End),
                Ok(bytes) => {
                    is_drained = SHORT_READ_DRAINS && bytes < room && !self.ends;
                    Counters::add(&context.shared.counters.bytes_received, bytes);
                    self.rate.count(bytes, context.now, &context.options);
                    self.received_at = context.now;
                    if let Some(challenge) = &mut self.challenge {
                        challenge.answered |= challenge.drained;
                    }
                    if self.stream.has_pending() && self.client_writer.is_none() {
                        return Err(Closed::Junk(READ_NO_ANSWERS.to_owned()));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(self.drained(context));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(ReadOutcome::More)
    }

    /// The socket has nothing left.
    fn drained(&mut self, context: &NetworkContext) -> ReadOutcome {
        if let Some(challenge) = &mut self.challenge {
            let transited = challenge.since + transit(&context.options);
            challenge.drained |= context.now >= transited;
        }
        ReadOutcome::Drained
    }

    /// Another process claims to be the node of this connection. Starts to check whether this
    /// connection is alive, unless a check runs already. Returns whether it has been silent for so
    /// long that it counts as dead.
    pub(super) fn is_dead(&mut self, now: Instant, options: &TransportOptions) -> bool {
        let challenge = self.challenge.get_or_insert(Challenge::new(now));
        challenge.drained && now >= challenge.since + options.stall_timeout
    }

    /// When to check again; later than now.
    pub(super) fn check_again_at(&self, now: Instant, options: &TransportOptions) -> Instant {
        match self.challenge {
            Some(challenge) if challenge.drained => challenge.since + options.stall_timeout,
            _ => now + transit(options),
        }
    }

    fn receive_hello(&mut self, context: &NetworkContext) -> Result<Option<Hello>, Closed> {
        let frame = self.reader.next_frame().map_err(|error| Closed::Junk(error.to_string()))?;
        let hello = frame.map(|frame| Hello::decode(frame, OLDEST..=context.local.version));
        hello.transpose().map_err(|refusal| self.refuse(context, refusal))
    }

    /// Refuses the other end, and reports the highest version that this node supports.
    pub(super) fn refuse(&mut self, context: &NetworkContext, refusal: Refusal) -> Closed {
        match self.answer(context, &HelloReply::Refused(refusal.clone())) {
            Ok(()) if refusal.code == RefusalCode::OwnId => Closed::Itself,
            Ok(()) if refusal.code == RefusalCode::Stopped => Closed::End,
            Ok(()) => Closed::Refused(refusal.text),
            Err(closed) => closed,
        }
    }

    /// Welcomes the other end, and receives its messages from now on.
    pub(super) fn welcome(
        &mut self,
        context: &NetworkContext,
        identity: PeerIdentity,
    ) -> Result<(), Closed> {
        self.stream.trust();
        self.answer(context, &HelloReply::Welcome(Responder::of(&context.local)))?;
        self.state = ConnectionState::Peer(identity);
        self.reader.set_limit(MESSAGE_BYTES_MAX);
        Ok(())
    }

    /// Passes on all messages that have arrived whole.
    fn receive_messages(
        &mut self,
        context: &mut NetworkContext,
        identity: PeerIdentity,
    ) -> Result<(), Closed> {
        let own = context.local.cluster;
        // A client may not send messages that are for members only, whatever its cluster is.
        let is_of_own_cluster = identity.cluster == own && own != 0 && self.client_writer.is_none();
        let mut pinged = false;
        let mut received = 0;
        let mut foreign = 0;
        while let Some(frame) =
            self.reader.next_frame().map_err(|error| Closed::Junk(error.to_string()))?
        {
            if let Some(client_writer) = &mut self.client_writer {
                client_writer.is_open = true;
            }
            if frame.is_empty() {
                pinged = true;
                continue;
            }
            received += 1;
            let may_any = identity.right == Right::Member;
            if !may_any && !PeerMessage::may_a_client_send_encoded(frame) {
                foreign += 1;
                continue;
            }
            let decode = if may_any { PeerMessage::decode } else { PeerMessage::decode_of_client };
            let message = decode(frame)
                .map_err(|why| Closed::Junk(format!("a message that cannot be read: {why}")))?;
            if message.is_of_cluster() && !is_of_own_cluster {
                foreign += 1;
                continue;
            }
            context.emit(TransportEvent::Received { from: identity.node, message });
        }
        Counters::add(&context.shared.counters.messages_received, received);
        Counters::add(&context.shared.counters.messages_foreign, foreign);
        self.rate.count(received * MESSAGE_COST, context.now, &context.options);
        if pinged {
            // One answer to several pings is enough. If there is no room for it, the frames already
            // queued show as well that this node is alive.
            match &mut self.client_writer {
                Some(client_writer) => _ = client_writer.writer.ping(context.now),
                None => self.write_frame(|buffer| buffer)?,
            }
        }
        Ok(())
    }

    /// Converts a read error. Sends a refusal to an end that cannot learn the reason otherwise.
    fn failed(&mut self, error: io::Error) -> Closed {
        let Some(fault) = SecurityError::of(&error) else {
            return Closed::Failed(error);
        };
        if fault.needs_plain_answer() {
            let refusal = Refusal::new(RefusalCode::Security, fault.to_string());
            let mut frame = Vec::new();
            append_frame(&mut frame, |buffer| HelloReply::Refused(refusal).encode(OLDEST, buffer));
            // The connection ends whether the refusal arrives or not.
            let _ = self.stream.socket.write(&frame);
        }
        Closed::Refused(fault.to_string())
    }

    fn answer(&mut self, context: &NetworkContext, answer: &HelloReply) -> Result<(), Closed> {
        self.write_frame(|buffer| answer.encode(context.local.version, buffer))
    }

    /// Writes a small frame at once. A full socket is an error: the other end does not read its
    /// answers.
    fn write_frame(&mut self, write: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Result<(), Closed> {
        let mut frame = Vec::new();
        append_frame(&mut frame, write);
        match self.stream.write(&frame) {
            Ok(bytes) if bytes == frame.len() && !self.stream.has_pending() => Ok(()),
            Ok(_) => Err(Closed::Junk(READ_NO_ANSWERS.to_owned())),
            Err(error) => Err(Closed::Failed(error)),
        }
    }
}
