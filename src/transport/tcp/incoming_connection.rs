//! One connection that another node has made to this one.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::Token;

use super::Counters;
use super::client_connection::Back;
use super::driver::Context;
use super::rate::Rate;
use super::stream::Stream;
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::transport::frame::{FrameReader, HEADER_BYTES, append_frame};
use crate::transport::handshake::{Answer, HANDSHAKE_BYTES_MAX, Hello, Refusal, RefusalCode};
use crate::transport::secure::Fault;
use crate::transport::{TransportEvent, TransportOptions};
use crate::types::membership::NodeId;
use crate::types::version::OLDEST;

/// The most reads from one connection before the others have their turn.
const READS_PER_TURN: usize = 4;

/// What a message costs beside its bytes, in bytes: it has to be decoded, and the node has to look
/// at it.
const MESSAGE_COST: usize = 512;

const TOOK_NO_ANSWERS: &str = "requests, and took no answers";

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) token: Token,
    pub(super) address: SocketAddr,
    reader: FrameReader,
    pub(super) from: From,
    rate: Rate,
    /// There may be something to read, now or when it is its turn again.
    pub(super) is_readable: bool,
    /// When it last delivered anything.
    pub(super) heard_at: Instant,
    /// Whether it is alive is in question.
    pub(super) challenge: Option<Challenge>,
    /// What is sent to a client, which is reached over this connection alone.
    pub(super) back: Option<Box<Back>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum From {
    Stranger {
        until: Instant,
    },
    /// It has said hello as this node, and another process that is connected has as well.
    Rival {
        node: NodeId,
    },
    Peer(Introduced),
}

/// What a peer has said of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Introduced {
    pub(super) node: NodeId,
    pub(super) incarnation: u64,
    /// 0: none when it said so.
    pub(super) cluster: u64,
    /// Of a version that says so.
    pub(super) boot: Option<u64>,
}

/// Another process has said that it is the node of a connection. If the one that made the
/// connection is dead, nothing comes any more but what was on its way; and that has come once the
/// socket was found empty a while later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Challenge {
    since: Instant,
    drained: bool,
    /// Something came after that.
    pub(super) answered: bool,
}

/// How long what a dead process has sent may be on its way.
pub(super) fn transit(options: &TransportOptions) -> Duration {
    (options.stall_timeout / 10).max(Duration::from_millis(1))
}

/// What a connection's turn has come to.
pub(super) enum Turn {
    /// There is nothing left to read.
    Drained,
    /// There may be more.
    More,
    /// There may be more, but it has to wait until then.
    Paused(Instant),
    /// A stranger has said hello, and there may be more.
    Greeted(Hello),
}

/// Why a connection is closed.
pub(super) enum Closed {
    /// By the other end.
    End,
    Failed(io::Error),
    /// It has sent what no peer would.
    Junk(String),
    /// It has not shown that it is one of the cluster.
    Unproven(Fault),
    Refused(Refusal),
}

impl Connection {
    pub(super) fn new(
        context: &Context,
        stream: Stream,
        token: Token,
        address: SocketAddr,
        until: Instant,
    ) -> Connection {
        Connection {
            stream,
            token,
            address,
            reader: FrameReader::new(HANDSHAKE_BYTES_MAX),
            from: From::Stranger { until },
            rate: Rate::new(context.now),
            is_readable: false,
            heard_at: context.now,
            challenge: None,
            back: None,
        }
    }

    /// Reads for a while, and passes on what is whole.
    pub(super) fn turn(&mut self, context: &mut Context) -> Result<Turn, Closed> {
        for _ in 0..READS_PER_TURN {
            // What came along with the hello is still in the reader.
            let room = match self.from {
                From::Stranger { .. } => {
                    if let Some(hello) = self.hear_hello(context)? {
                        return Ok(Turn::Greeted(hello));
                    }
                    HEADER_BYTES + HANDSHAKE_BYTES_MAX
                }
                From::Rival { .. } => return Ok(Turn::Drained),
                From::Peer(from) => {
                    self.hear_messages(context, from)?;
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
                    self.heard_at = context.now;
                    if let Some(challenge) = &mut self.challenge {
                        challenge.answered |= challenge.drained;
                    }
                    if self.stream.has_pending() && self.back.is_none() {
                        return Err(Closed::Junk(TOOK_NO_ANSWERS.to_owned()));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(challenge) = &mut self.challenge {
                        let transited = challenge.since + transit(&context.options);
                        challenge.drained |= context.now >= transited;
                    }
                    return Ok(Turn::Drained);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(Turn::More)
    }

    /// Another process says that it is the node of this connection: begins to watch whether this one
    /// is alive, if that is not watched already. Whether it has been silent for so long that it counts
    /// as dead.
    pub(super) fn is_dead(&mut self, now: Instant, options: &TransportOptions) -> bool {
        let new = Challenge { since: now, drained: false, answered: false };
        let challenge = self.challenge.get_or_insert(new);
        challenge.drained && now >= challenge.since + options.stall_timeout
    }

    /// When to ask again; later than now.
    pub(super) fn ask_again_at(&self, now: Instant, options: &TransportOptions) -> Instant {
        match self.challenge {
            Some(challenge) if challenge.drained => challenge.since + options.stall_timeout,
            _ => now + transit(options),
        }
    }

    fn hear_hello(&mut self, context: &Context) -> Result<Option<Hello>, Closed> {
        let frame = self.reader.next_frame().map_err(|error| Closed::Junk(error.to_string()))?;
        let Some(frame) = frame else {
            return Ok(None);
        };
        let own = context.local.version;
        match Hello::decode(frame, OLDEST..=own) {
            Ok(hello) => Ok(Some(hello)),
            Err(refusal) => Err(self.refuse(own, refusal)),
        }
    }

    /// Tells the other end that it is refused, and by whom: a node that can do this version.
    pub(super) fn refuse(&mut self, own: u16, refusal: Refusal) -> Closed {
        match self.answer(own, &Answer::Refused(refusal.clone())) {
            Ok(()) => Closed::Refused(refusal),
            Err(closed) => closed,
        }
    }

    /// Tells the other end that it is welcome, and hears its messages from now on.
    pub(super) fn welcome(
        &mut self,
        own: u16,
        welcome: &Answer,
        from: Introduced,
    ) -> Result<(), Closed> {
        self.stream.trust();
        self.answer(own, welcome)?;
        self.from = From::Peer(from);
        self.reader.set_limit(MESSAGE_BYTES_MAX);
        Ok(())
    }

    /// Passes on all messages that have arrived whole.
    fn hear_messages(&mut self, context: &mut Context, from: Introduced) -> Result<(), Closed> {
        let own = context.local.cluster;
        // What members say to each other is not for a client to say, whose ever it is.
        let is_of_ours = from.cluster == own && own != 0 && self.back.is_none();
        let mut asked = false;
        let mut received = 0;
        let mut foreign = 0;
        while let Some(frame) =
            self.reader.next_frame().map_err(|error| Closed::Junk(error.to_string()))?
        {
            if let Some(back) = &mut self.back {
                back.is_open = true;
            }
            if frame.is_empty() {
                asked = true;
                continue;
            }
            let message = PeerMessage::decode(frame)
                .map_err(|why| Closed::Junk(format!("a message that cannot be read: {why}")))?;
            received += 1;
            if message.is_of_cluster() && !is_of_ours {
                foreign += 1;
                continue;
            }
            context.emit(TransportEvent::Received { from: from.node, message });
        }
        Counters::add(&context.shared.counters.messages_received, received);
        Counters::add(&context.shared.counters.messages_foreign, foreign);
        self.rate.count(received * MESSAGE_COST, context.now, &context.options);
        if asked {
            // One for many is enough: only that there is one matters.
            match &mut self.back {
                Some(back) => back.answer(context.now),
                None => self.write_frame(|buffer| buffer)?,
            }
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
