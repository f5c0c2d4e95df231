//! Messages to clients, which do not listen: they go over the connections that clients have made.
//!
//! Such a connection carries messages both ways, and is otherwise like any incoming one. Nothing is
//! written before the client has sent something after its hello: only then is it known to have the
//! welcome, before which it accepts only short frames. Empty frames from the client are answered in
//! order. The member does not ping a client: a client sends something now and then, or is forgotten
//! as a silent unlisted peer.
//!
//! Invariants: what waits for a client is bounded by [`CLIENT_BYTES_MAX`], and by what the node
//! sends without an acknowledgement; a drained queue frees its memory; while the socket takes
//! nothing, a timer runs.

use std::io;
use std::time::Instant;

use mio::{Interest, Token};

use super::Counters;
use super::event_loop::{Context, Timer};
use super::incoming::Incoming;
use super::incoming_connection::{Closed, IncomingConnection};
use super::outgoing_connection::WRITES_PER_TURN;
use super::queue::WriteQueue;
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::types::membership::{Named, NodeId};

/// How much may wait for one client. The node drops a client that leaves half of that
/// unacknowledged.
const CLIENT_BYTES_MAX: usize = 32 << 20;

/// Bytes that wait to be written to a client.
#[derive(Debug)]
pub(super) struct ClientWriter {
    queue: WriteQueue,
    /// The client has sent something since it was welcomed.
    pub(super) is_open: bool,
    writable: bool,
    /// When the socket last took bytes, or the first were queued.
    progress_at: Instant,
    /// Whether the connection is listed for a flush.
    is_unflushed: bool,
    /// When to check whether the socket has taken anything.
    timer: Option<Instant>,
}

impl IncomingConnection {
    /// From now on, messages to the other end go over this connection.
    pub(super) fn start_sending(&mut self, context: &mut Context) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        context.registry.reregister(&mut self.stream.socket, self.token, both)?;
        self.client_writer = Some(Box::new(ClientWriter {
            queue: WriteQueue::new(CLIENT_BYTES_MAX.min(context.options.queue_bytes_max)),
            is_open: false,
            writable: true,
            progress_at: context.now,
            is_unflushed: false,
            timer: None,
        }));
        Ok(())
    }

    pub(super) fn is_client(&self) -> bool {
        self.client_writer.is_some()
    }

    /// Whether to list the connection for a flush; if so, it counts as listed.
    pub(super) fn wants_flush(&mut self) -> bool {
        let pending = self.stream.has_pending();
        let Some(client_writer) = &mut self.client_writer else {
            return false;
        };
        let wants = client_writer.is_open
            && client_writer.writable
            && !client_writer.is_unflushed
            && (pending || !client_writer.queue.is_empty());
        client_writer.is_unflushed |= wants;
        wants
    }

    /// Cancels the timer of a connection that is about to be closed.
    pub(super) fn cancel_timer(&mut self, context: &mut Context) {
        if let Some(at) =
            self.client_writer.as_mut().and_then(|client_writer| client_writer.timer.take())
        {
            context.timers.remove(at, Timer::Stall(self.token));
        }
    }

    /// Writes until the queue is empty or the socket full, for a limited number of writes.
    fn write_to_client(&mut self, context: &mut Context) -> io::Result<()> {
        let Some(client_writer) = &mut self.client_writer else {
            return Ok(());
        };
        let mut took = client_writer.writable && self.stream.flush_pending()?;
        for _ in 0..WRITES_PER_TURN {
            if !client_writer.writable || client_writer.queue.is_empty() {
                break;
            }
            match client_writer.queue.write_to(&mut self.stream) {
                Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(bytes) => {
                    Counters::add(&context.shared.counters.bytes_sent, bytes);
                    took = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    client_writer.writable = false
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // The socket did not take all, and reports when it takes more.
        client_writer.writable &= !self.stream.has_pending();
        if took {
            client_writer.progress_at = context.now;
        }
        if client_writer.queue.is_empty() {
            client_writer.queue.give_back();
        }
        let waits = !client_writer.queue.is_empty() || self.stream.has_pending();
        if waits && client_writer.timer.is_none() {
            let at = client_writer.progress_at + context.options.stall_timeout;
            client_writer.timer = Some(at);
            context.timers.insert(at, Timer::Stall(self.token));
        }
        Ok(())
    }
}

impl ClientWriter {
    /// Queues the answer to an empty frame. If there is no room, frames already queued show the
    /// same.
    pub(super) fn answer(&mut self, now: Instant) {
        if self.queue.is_empty() {
            self.progress_at = now;
        }
        let _ = self.queue.push(0, |buffer| buffer);
    }
}

impl Incoming {
    /// Closes the connection of a client that claims to be this node.
    pub(super) fn disconnect_client(&mut self, context: &mut Context, node: NodeId) {
        let connection = self.by_peer.get(&node).and_then(|token| self.connections.get(token));
        if connection.is_some_and(IncomingConnection::is_client) {
            self.disconnect(context, node);
        }
    }

    /// Queues a message for a client, or drops it; `false` if no client has this id.
    pub(super) fn send_to_client(
        &mut self,
        context: &mut Context,
        node: NodeId,
        message: &PeerMessage,
    ) -> bool {
        let Some(token) = self.by_peer.get(&node).copied() else {
            return false;
        };
        let Some(connection) = self.connections.get_mut(&token) else {
            return false;
        };
        let Some(client_writer) = &mut connection.client_writer else {
            return false;
        };
        if client_writer.queue.is_empty() {
            client_writer.progress_at = context.now;
        }
        match client_writer.queue.push(MESSAGE_BYTES_MAX, |buffer| message.encode(buffer)) {
            Ok(()) => Counters::add(&context.shared.counters.messages_sent, 1),
            // The client notices at its next message, and starts again.
            Err(rejected) => {
                Counters::add(&context.shared.counters.messages_dropped, 1);
                tracing::debug!(peer = %Named::of(node), ?rejected, "a message for a client was dropped");
            }
        }
        if connection.wants_flush() {
            self.unflushed.push(token);
        }
        true
    }

    /// The socket of a client takes more.
    pub(super) fn writable(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(&token)
            && let Some(client_writer) = &mut connection.client_writer
        {
            client_writer.writable = true;
            if connection.wants_flush() {
                self.unflushed.push(token);
            }
        }
    }

    /// Writes what is queued for clients.
    pub(super) fn flush(&mut self, context: &mut Context) {
        for token in std::mem::take(&mut self.unflushed) {
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            if let Some(client_writer) = &mut connection.client_writer {
                client_writer.is_unflushed = false;
            }
            if let Err(error) = connection.write_to_client(context) {
                self.close(context, token, Closed::Failed(error));
            } else if connection.wants_flush() {
                self.unflushed.push(token);
            }
        }
    }

    /// Checks whether a client's socket has taken any of the bytes that waited for it.
    pub(super) fn stalled(&mut self, context: &mut Context, token: Token) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if let Some(client_writer) = &mut connection.client_writer {
            client_writer.timer = None;
            // This thread itself may have been delayed: ask the socket for its present state.
            client_writer.writable = true;
        }
        let written = connection.write_to_client(context);
        let timeout = context.options.stall_timeout;
        let Some(client_writer) = &connection.client_writer else {
            return;
        };
        let is_dead =
            client_writer.timer.is_some() && client_writer.progress_at + timeout <= context.now;
        if let Err(error) = written {
            self.close(context, token, Closed::Failed(error));
        } else if is_dead {
            self.close(context, token, Closed::Failed(io::ErrorKind::TimedOut.into()));
        } else if connection.wants_flush() {
            self.unflushed.push(token);
        }
    }
}
