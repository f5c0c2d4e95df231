//! Messages to clients, which do not listen: they go over the connections that clients have made.
//!
//! Such a connection carries messages both ways, and is otherwise like any incoming one. The member
//! writes nothing before the client has sent something after its hello: only then is the client
//! known to have the welcome, before which it accepts only short frames. Empty frames from the
//! client are answered in order. The member does not ping a client: a client sends pings itself, or
//! is forgotten as a silent unlisted peer.
//!
//! Invariants: the bytes that wait for a client are bounded by [`CLIENT_BYTES_MAX`], and by what the
//! node sends without an acknowledgement; a drained queue frees its memory; while the socket takes
//! nothing, a timer runs.

use std::io;

use mio::Token;

use super::context::{NetworkContext, NetworkTimer};
use super::incoming::Incoming;
use super::incoming_connection::{ClientWriter, Closed, IncomingConnection};
use super::sockets::Polled;
use super::writer::SocketWriter;
use crate::node::message::PeerMessage;
use crate::types::membership::{Named, NodeId};

/// The most bytes that may wait for one client. The node drops a client that leaves half of that
/// unacknowledged.
const CLIENT_BYTES_MAX: usize = 32 << 20;

impl IncomingConnection {
    /// Sends messages to the client over this connection from now on.
    pub(super) fn start_sending(&mut self, context: &mut NetworkContext) -> io::Result<()> {
        self.stream.socket.reregister(self.token, Polled::ForBoth)?;
        let queue_bytes_max = CLIENT_BYTES_MAX.min(context.options.queue_bytes_max);
        self.client_writer = Some(Box::new(ClientWriter {
            writer: SocketWriter::new(queue_bytes_max, true, context.now),
            is_open: false,
        }));
        Ok(())
    }

    pub(super) fn is_client(&self) -> bool {
        self.client_writer.is_some()
    }

    /// Whether to list the connection for a flush.
    pub(super) fn wants_flush(&self) -> bool {
        let client_writer = self.client_writer.as_ref();
        client_writer.is_some_and(|one| one.is_open && one.writer.has_more(&self.stream))
    }

    /// Writes until nothing waits or the socket is full, for a limited number of writes.
    fn write_to_client(&mut self, context: &mut NetworkContext) -> io::Result<()> {
        let Some(ClientWriter { writer, .. }) = self.client_writer.as_deref_mut() else {
            return Ok(());
        };
        writer.write(context, &mut self.stream)?;
        if writer.queue.is_empty() {
            writer.queue.give_back();
        }
        let timer = NetworkTimer::Stall(self.token);
        if let Some(since) = writer.waits_since(&self.stream)
            && context.timers.at(timer).is_none()
        {
            context.timers.set(timer, since + context.options.stall_timeout);
        }
        Ok(())
    }
}

impl Incoming {
    /// Closes the connection of a client that claims to be this node.
    pub(super) fn disconnect_client(&mut self, context: &mut NetworkContext, node: NodeId) {
        if self.of_peer(node).is_some_and(IncomingConnection::is_client) {
            self.disconnect(context, node);
        }
    }

    /// Queues a message for a client, or drops it; `false` if no client has this id.
    pub(super) fn send_to_client(
        &mut self,
        context: &mut NetworkContext,
        node: NodeId,
        message: &PeerMessage,
    ) -> bool {
        let Some(connection) = self.of_peer_mut(node) else {
            return false;
        };
        let Some(client_writer) = &mut connection.client_writer else {
            return false;
        };
        // The client notices the dropped message when it receives the next one, and attaches again.
        if let Err(rejected) = client_writer.writer.send(context, false, message) {
            context.dropped(node, Some(rejected));
            tracing::debug!(peer = %Named::of(node), ?rejected, "a message for a client was dropped");
        }
        let token = connection.token;
        if connection.wants_flush() {
            self.unflushed.insert(token);
        }
        true
    }

    /// The socket of a client takes bytes again.
    pub(super) fn writable(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(&token)
            && let Some(client_writer) = &mut connection.client_writer
        {
            client_writer.writer.writable = true;
            if connection.wants_flush() {
                self.unflushed.insert(token);
            }
        }
    }

    /// Writes the bytes that are queued for clients.
    pub(super) fn flush(&mut self, context: &mut NetworkContext) {
        for token in std::mem::take(&mut self.unflushed) {
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            if let Err(error) = connection.write_to_client(context) {
                self.close(context, token, Closed::Failed(error));
            } else if connection.wants_flush() {
                self.unflushed.insert(token);
            }
        }
    }

    /// Checks whether a client's socket has taken any of the bytes that waited for it.
    pub(super) fn stalled(&mut self, context: &mut NetworkContext, token: Token) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if let Some(client_writer) = &mut connection.client_writer {
            // This thread itself may have been delayed: ask the socket for its present state.
            client_writer.writer.writable = true;
        }
        let written = connection.write_to_client(context);
        let timeout = context.options.stall_timeout;
        let writer = connection.client_writer.as_ref().map(|client_writer| &client_writer.writer);
        let waits_since = writer.and_then(|writer| writer.waits_since(&connection.stream));
        let is_dead = waits_since.is_some_and(|since| since + timeout <= context.now);
        if let Err(error) = written {
            self.close(context, token, Closed::Failed(error));
        } else if is_dead {
            self.close(context, token, Closed::Failed(io::ErrorKind::TimedOut.into()));
        } else if connection.wants_flush() {
            self.unflushed.insert(token);
        }
    }
}
