//! One connection that this node has made: its socket, and what waits to be written to it.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use mio::{Interest, Token};

use super::Counters;
use super::event_loop::Context;
use super::queue::WriteQueue;
use super::stream::Stream;
use crate::transport::frame::FrameReader;
use crate::transport::handshake::HANDSHAKE_BYTES_MAX;
use crate::transport::secure::Side;

/// The most writes to one connection before the others have their turn.
pub(super) const WRITES_PER_TURN: usize = 16;

#[derive(Debug)]
pub(super) struct OutgoingConnection {
    pub(super) stream: Stream,
    pub(super) token: Token,
    pub(super) phase: Phase,
    /// The cluster of the node that has welcomed us; 0 if it has none or that is not known.
    pub(super) cluster: u64,
    /// More addresses to try if this one does not answer.
    pub(super) rest: std::vec::IntoIter<SocketAddr>,
    pub(super) reader: FrameReader,
    pub(super) queue: WriteQueue,
    pub(super) writable: bool,
    /// When the socket last took bytes, or the first bytes were queued.
    pub(super) progress_at: Instant,
    /// When the ping was sent that is not answered yet.
    pub(super) pinged_at: Option<Instant>,
    pub(super) ping_due: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Greeting,
    Up { since: Instant },
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

    /// Writes until the queue is empty or the socket full, for a limited number of writes. Returns
    /// whether anything was written.
    pub(super) fn write(&mut self, context: &mut Context) -> io::Result<bool> {
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
