//! What a peer sends over the connection that this node has made: the answer to the hello, the
//! answers to pings, and to a client all messages.

use std::io;

use super::{DialledPeer, Link, READS_MAX, Target};
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::transport::TransportEvent;
use crate::transport::handshake::{self, Answer};
use crate::transport::tcp::Counters;
use crate::transport::tcp::event_loop::Context;
use crate::transport::tcp::failure::Failure;
use crate::transport::tcp::outgoing_connection::Phase;

impl DialledPeer {
    /// Reads the answer to the hello, and the answers to pings. A client also receives the peer's
    /// messages here; to others the peer may send nothing else.
    pub(super) fn read(&mut self, context: &mut Context) -> Result<(), Failure> {
        for _ in 0..READS_MAX {
            if !self.take_frames(context)? {
                return Ok(());
            }
            let Link::Open(connection) = &mut self.link else {
                return Ok(());
            };
            match connection.stream.read(&mut context.scratch, &mut connection.reader) {
                Ok(0) => {
                    return Err(Failure::passing(match connection.phase {
                        Phase::Up { .. } => "the peer closed the connection",
                        _ => "the peer closed the connection instead of answering",
                    }));
                }
                Ok(bytes) => {
                    Counters::add(&context.shared.counters.bytes_received, bytes);
                    // As good as the answer, which may be behind many other bytes.
                    connection.pinged_at = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some((version, responder)) = self.greeted.take() {
                        self.welcome(context, version, Some(responder));
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        if context.is_client() {
            self.has_unread = true;
            return Ok(());
        }
        Err(Failure::passing("the peer sends what it was not asked for"))
    }

    /// Takes the frames that have arrived whole. Returns whether there may be more for this peer.
    fn take_frames(&mut self, context: &mut Context) -> Result<bool, Failure> {
        let mut received = 0;
        let goes_on = loop {
            let Link::Open(connection) = &mut self.link else {
                break false;
            };
            let Some(frame) = connection
                .reader
                .next_frame()
                .map_err(|error| Failure::passing(format!("the peer sent {error}")))?
            else {
                break true;
            };
            if connection.phase == Phase::Greeting {
                let (node, version, responder) = match Answer::decode(frame) {
                    Some((version, Answer::Welcome(responder))) => {
                        let to = self.target.id();
                        let node = handshake::check_responder(&context.local, to, &responder)
                            .map_err(Failure::from)?;
                        (node, version, responder)
                    }
                    Some((version, Answer::Refused(refusal))) => {
                        return self.refused(context, version, &refusal).map(|()| false);
                    }
                    None => return Err(Failure::passing("the peer is not a quorate node")),
                };
                let subject = connection.stream.subject();
                context.subjects.check(node, subject).map_err(Failure::permanent)?;
                connection.stream.trust();
                connection.phase = Phase::Up { since: context.now };
                connection.cluster = responder.cluster;
                if !context.is_client() {
                    // The limit of 0 admits only answers to pings.
                    connection.reader.set_limit(0);
                    self.greeted = Some((version, responder));
                    continue;
                }
                connection.reader.set_limit(MESSAGE_BYTES_MAX);
                self.welcome(context, version, Some(responder));
                if self.found.is_some() {
                    // The following frames are for the peer that was found here.
                    break false;
                }
            } else if !frame.is_empty() {
                let message = PeerMessage::decode(frame).map_err(|why| {
                    Failure::passing(format!("the peer sent what cannot be read: {why}"))
                })?;
                received += 1;
                if message.is_of_cluster() {
                    Counters::add(&context.shared.counters.messages_foreign, 1);
                } else if let Target::Node(from) = self.target {
                    context.emit(TransportEvent::Received { from, message });
                }
            }
        };
        Counters::add(&context.shared.counters.messages_received, received);
        Ok(goes_on)
    }

    /// Reads and writes as much as is ready.
    pub(in crate::transport::tcp) fn proceed(
        &mut self,
        context: &mut Context,
    ) -> Result<(), Failure> {
        if matches!(&self.link, Link::Open(connection) if connection.phase != Phase::Connecting) {
            self.read(context)?;
        }
        self.flush(context)
    }
}
