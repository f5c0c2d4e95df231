//! Writing the bytes that wait for one connection, as far as its socket takes them.

use std::io;
use std::time::Instant;

use super::context::NetworkContext;
use super::queue::{Rejected, WriteQueue};
use super::shared::Counters;
use super::stream::Stream;
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};

/// The most writes to one connection before the others have their turn.
const WRITES_PER_TURN: usize = 16;

#[derive(Debug)]
pub(super) struct SocketWriter {
    pub(super) queue: WriteQueue,
    /// Whether the socket may take bytes.
    pub(super) writable: bool,
    /// When the socket last took bytes, or the first were queued.
    progress_at: Instant,
}

impl SocketWriter {
    pub(super) fn new(bytes_max: usize, writable: bool, now: Instant) -> SocketWriter {
        SocketWriter { queue: WriteQueue::new(bytes_max), writable, progress_at: now }
    }

    /// Queues a frame: see [`WriteQueue::push`].
    pub(super) fn push(
        &mut self,
        now: Instant,
        urgent: bool,
        payload_bytes_max: usize,
        write: impl FnOnce(Vec<u8>) -> Vec<u8>,
    ) -> Result<(), Rejected> {
        if self.queue.is_empty() {
            self.progress_at = now;
        }
        self.queue.push(urgent, payload_bytes_max, write)
    }

    /// Queues a message.
    pub(super) fn send(
        &mut self,
        context: &NetworkContext,
        urgent: bool,
        message: &PeerMessage,
    ) -> Result<(), Rejected> {
        self.push(context.now, urgent, MESSAGE_BYTES_MAX, |buffer| message.encode(buffer))?;
        Counters::add(&context.shared.counters.messages_sent, 1);
        Ok(())
    }

    /// Queues an empty frame: a ping, or the answer to one.
    pub(super) fn ping(&mut self, now: Instant) -> Result<(), Rejected> {
        self.push(now, false, 0, |buffer| buffer)
    }

    /// Whether there are bytes to write and the socket takes some.
    pub(super) fn has_more(&self, stream: &Stream) -> bool {
        self.writable && self.waits_since(stream).is_some()
    }

    /// Since when bytes wait for the socket, if there are some.
    pub(super) fn waits_since(&self, stream: &Stream) -> Option<Instant> {
        (!self.queue.is_empty() || stream.has_pending()).then_some(self.progress_at)
    }

    /// Writes until the queue is empty or the socket full, for a limited number of writes. Returns
    /// whether any of the queue was written.
    pub(super) fn write(
        &mut self,
        context: &NetworkContext,
        stream: &mut Stream,
    ) -> io::Result<bool> {
        let mut written = false;
        let flushed = self.writable && stream.flush_pending()?;
        for _ in 0..WRITES_PER_TURN {
            if !self.writable || self.queue.is_empty() {
                break;
            }
            match self.queue.write_to(&mut *stream) {
                Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(bytes) => {
                    Counters::add(&context.shared.counters.bytes_sent, bytes);
                    written = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // The socket did not take all, and reports when it takes more.
        self.writable &= !stream.has_pending();
        if written || flushed {
            self.progress_at = context.now;
        }
        Ok(written)
    }
}
