//! What is sent to clients: over the connections that they have made, since they listen nowhere.
//!
//! Such a connection carries messages both ways, and is otherwise as any other that was made to
//! this node. Nothing is written back before the client has said something behind its hello: it has
//! our welcome then, and believes more than a stranger may say. Empty frames from the client are
//! answered in their order. Whether the client is alive is not asked: it says something every now
//! and then, or is forgotten as a silent guest.
//!
//! Invariants: what waits for a client is bounded by [`BACK_BYTES_MAX`], and by what the node lets
//! its guests leave unheard; its memory is given back when it is written; while the socket takes
//! nothing, a timer runs.

use std::io;
use std::time::Instant;

use mio::{Interest, Token};

use super::Counters;
use super::driver::{Context, Timer};
use super::incoming::Incoming;
use super::incoming_connection::{Closed, Connection};
use super::outgoing_connection::WRITES_PER_TURN;
use super::queue::WriteQueue;
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::types::membership::NodeId;

/// How much may wait for one client. The node lets it leave half of that unheard before it lets it go.
const BACK_BYTES_MAX: usize = 32 << 20;

/// What waits to be written back.
#[derive(Debug)]
pub(super) struct Back {
    queue: WriteQueue,
    /// The client has said something since it was welcomed.
    pub(super) is_open: bool,
    writable: bool,
    /// When the socket last took bytes, or the first were queued.
    progress_at: Instant,
    /// Whether it is in the list of those to be flushed.
    is_unflushed: bool,
    /// When it is looked whether the socket has taken anything.
    timer: Option<Instant>,
}

impl Connection {
    /// What is for the other end is sent over this connection from now on.
    pub(super) fn send_back_too(&mut self, context: &mut Context) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        context.registry.reregister(&mut self.stream.socket, self.token, both)?;
        self.back = Some(Box::new(Back {
            queue: WriteQueue::new(BACK_BYTES_MAX.min(context.options.queue_bytes_max)),
            is_open: false,
            writable: true,
            progress_at: context.now,
            is_unflushed: false,
            timer: None,
        }));
        Ok(())
    }

    pub(super) fn is_both_ways(&self) -> bool {
        self.back.is_some()
    }

    /// Whether it is to be put into the list of those to be flushed; then it counts as put there.
    pub(super) fn wants_flush(&mut self) -> bool {
        let pending = self.stream.has_pending();
        let Some(back) = &mut self.back else {
            return false;
        };
        let wants = back.is_open
            && back.writable
            && !back.is_unflushed
            && (pending || !back.queue.is_empty());
        back.is_unflushed |= wants;
        wants
    }

    /// It is about to be closed.
    pub(super) fn part(&mut self, context: &mut Context) {
        if let Some(at) = self.back.as_mut().and_then(|back| back.timer.take()) {
            context.timers.remove(at, Timer::Stall(self.token));
        }
    }

    /// Writes until the queue is empty or the socket full, but not for ever.
    fn write_back(&mut self, context: &mut Context) -> io::Result<()> {
        let Some(back) = &mut self.back else {
            return Ok(());
        };
        let mut took = back.writable && self.stream.flush_pending()?;
        for _ in 0..WRITES_PER_TURN {
            if !back.writable || back.queue.is_empty() {
                break;
            }
            match back.queue.write_to(&mut self.stream) {
                Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(bytes) => {
                    Counters::add(&context.shared.counters.bytes_sent, bytes);
                    took = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => back.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // The socket did not take all: it says when it takes more.
        back.writable &= !self.stream.has_pending();
        if took {
            back.progress_at = context.now;
        }
        if back.queue.is_empty() {
            back.queue.give_back();
        }
        let waits = !back.queue.is_empty() || self.stream.has_pending();
        if waits && back.timer.is_none() {
            let at = back.progress_at + context.options.stall_timeout;
            back.timer = Some(at);
            context.timers.insert(at, Timer::Stall(self.token));
        }
        Ok(())
    }
}

impl Back {
    /// Queues the answer to an empty frame. If there is no room, there is enough on its way that shows
    /// the same.
    pub(super) fn answer(&mut self, now: Instant) {
        if self.queue.is_empty() {
            self.progress_at = now;
        }
        let _ = self.queue.push(0, |buffer| buffer);
    }
}

impl Incoming {
    /// Closes what one that is reached nowhere has connected to us as this node.
    pub(super) fn disconnect_nowhere(&mut self, context: &mut Context, node: NodeId) {
        let connection = self.by_peer.get(&node).and_then(|token| self.connections.get(token));
        if connection.is_some_and(Connection::is_both_ways) {
            self.disconnect(context, node);
        }
    }

    /// Queues a message for a client, or drops it; `false` if there is no client of this id.
    pub(super) fn send_back(
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
        let Some(back) = &mut connection.back else {
            return false;
        };
        if back.queue.is_empty() {
            back.progress_at = context.now;
        }
        match back.queue.push(MESSAGE_BYTES_MAX, |buffer| message.encode(buffer)) {
            Ok(()) => Counters::add(&context.shared.counters.messages_sent, 1),
            // The client finds out by the next that it gets, and begins anew.
            Err(rejected) => {
                Counters::add(&context.shared.counters.messages_dropped, 1);
                tracing::debug!(peer = node, ?rejected, "a message for a client was dropped");
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
            && let Some(back) = &mut connection.back
        {
            back.writable = true;
            if connection.wants_flush() {
                self.unflushed.push(token);
            }
        }
    }

    /// Writes what was queued for clients.
    pub(super) fn flush(&mut self, context: &mut Context) {
        for token in std::mem::take(&mut self.unflushed) {
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            if let Some(back) = &mut connection.back {
                back.is_unflushed = false;
            }
            if let Err(error) = connection.write_back(context) {
                self.close(context, token, Closed::Failed(error));
            } else if connection.wants_flush() {
                self.unflushed.push(token);
            }
        }
    }

    /// A client's socket had bytes to take: looks whether it has taken any.
    pub(super) fn stalled(&mut self, context: &mut Context, token: Token) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if let Some(back) = &mut connection.back {
            back.timer = None;
            // The thread may have been held up itself: the socket tells what is the case now.
            back.writable = true;
        }
        let written = connection.write_back(context);
        let timeout = context.options.stall_timeout;
        let Some(back) = &connection.back else {
            return;
        };
        let is_dead = back.timer.is_some() && back.progress_at + timeout <= context.now;
        if let Err(error) = written {
            self.close(context, token, Closed::Failed(error));
        } else if is_dead {
            self.close(context, token, Closed::Failed(io::ErrorKind::TimedOut.into()));
        } else if connection.wants_flush() {
            self.unflushed.push(token);
        }
    }
}
