//! Peers over TCP.
//!
//! One thread does everything: it listens, dials, encodes, writes, reads and decodes for all peers,
//! and runs its [`Handler`], the node, in between. So a message passes between the socket and the
//! node without another thread. Two nodes share two connections, one made by each. Messages go only
//! from the node that made a connection to the other; only the answer to the handshake and the
//! answers to pings come back.
//!
//! Peers come in four kinds:
//! - A *member* is listed, with its id and address.
//! - A *seed* is an address whose node is not known. The node that answers there is a peer as long
//!   as the connection lasts.
//! - An *unlisted* peer has completed a handshake but is not listed, or not yet. It is dialled back
//!   at the address it gave, and forgotten some time after it has left.
//! - A *client* is an unlisted peer that does not listen. Messages to it go over the connection
//!   that it has made (`client_connection`).
//!
//! Nodes of another cluster are refused. A node that has no cluster yet talks to all, but messages
//! that only members of one cluster may send are dropped on receipt from anybody else.
//!
//! ```text
//! dialling node                      listening node
//!    hello            ------------>
//!                     <------------  answer: welcome, or refused and why
//!    messages         ------------>
//!    empty frame      ------------>  now and then, when everything before it is written:
//!                     <------------  answered by an empty frame at once
//! ```
//!
//! The empty frames detect a peer whose machine or cable is gone. Without them no error would show
//! that for many minutes, since the system accepts and buffers what is written. A connection that
//! neither takes bytes nor answers for `stall_timeout` is closed and made again.
//!
//! Other threads wake this one for the handler by [`Wake`]. While the handler takes its turn,
//! nothing is read: the peers' sockets fill up, and they drop messages in turn. A turn longer than
//! `stall_timeout` looks like a dead machine to the peers, and they connect again.
//!
//! A name is looked up on a thread of its own, `quorate-dns`, since a resolver may take minutes.
//! There is one for each peer or seed, and `LOOK_UPS_MAX` in all. It cannot be interrupted and is
//! not joined: it ends when the resolver returns, possibly after the transport.
//!
//! Invariants:
//! - Memory is bounded. Bytes that wait for a peer: `queue_bytes_max`. Bytes received over a
//!   connection: 32 KiB before it is welcomed (4 KiB and one read, without keys), and one message
//!   and one read after that. Connections not yet welcomed: `handshakes_max`, and
//!   `handshakes_per_address_max` for each address. Unlisted peers: `unlisted_max`.
//! - Clients leave places and files of the process to others: see `places`.
//! - At most `received_per_second_max` bytes are read from a peer that connects; each message
//!   counts 512 bytes on top. The peer has to hold back the rest.
//! - No bytes from the network cause a panic, and an error of one connection ends only that
//!   connection.
//! - Urgent messages ([`PeerMessage::is_urgent`]) are written before all others that wait for the
//!   peer.
//! - Messages for a peer that is not connected are dropped at once: they would be stale when they
//!   arrived, and Raft sends again what still matters.
//! - Two processes that run as one node are never both connected to this one, nor one of them by the connection that
//!   it has made and the other by that of this node (`processes`).
//! - With nothing to do, the thread sleeps. It wakes for its handler; to dial peers that it cannot
//!   reach, at most every `retry_min` and at least every `retry_max`; and to check unlisted peers
//!   every `unlisted_timeout`.
//!
//! Not here: the bytes (`frame`, `handshake`, `PeerMessage`), keys (`secure`, `crate::security`), the
//! node's side (`handler`), the loop and the start of its thread (`event_loop`), the state that all its
//! parts use (`context`) or that other threads use (`shared`), outgoing connections (`outgoing`, `seeds`, `peer`, `look_up`, `reports`,
//! `outgoing_connection`), incoming connections (`incoming`, `handshake_queue`, `processes`,
//! `incoming_connection`, `client_connection`), what waits to be written to either (`writer`,
//! `queue`), who may make them (`known_peers`), and for whom there is room (`places`).

mod client_connection;
mod context;
mod event_loop;
mod failure;
mod handler;
mod handshake_queue;
mod incoming;
mod incoming_connection;
mod known_peers;
mod look_up;
mod outgoing;
mod outgoing_connection;
mod peer;
mod places;
mod processes;
mod queue;
mod rate;
mod renewal;
mod reports;
mod seeds;
mod shared;
mod sockets;
mod stream;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "deadlines of tests")]
mod tests;
mod writer;

use std::io;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use mio::{Poll, Waker};

pub(crate) use self::handler::{Handler, Network};
use self::shared::{Counters, NetworkShared, WAKER};
use crate::types::metrics::Metrics;

/// Wakes the network thread for its handler.
pub(crate) type Wake = Arc<NetworkShared>;

/// Messages between this node and its peers, over TCP.
pub(crate) struct TcpTransport {
    poll: Poll,
    shared: Arc<NetworkShared>,
}

impl TcpTransport {
    /// Creates a transport that is not started.
    pub(crate) fn new() -> io::Result<TcpTransport> {
        let poll = Poll::new()?;
        let shared = Arc::new(NetworkShared {
            waker: Waker::new(poll.registry(), WAKER)?,
            awake: AtomicBool::new(true),
            look_ups: AtomicUsize::new(0),
            counters: Counters::default(),
            #[cfg(test)]
            turns: AtomicU64::new(0),
        });
        Ok(TcpTransport { poll, shared })
    }

    pub(crate) fn wake(&self) -> Wake {
        Arc::clone(&self.shared)
    }

    /// Returns a function that adds this transport's counters to the metrics.
    pub(crate) fn meter(&self) -> impl Fn(&mut Metrics) + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move |metrics| {
            let counters = &shared.counters;
            metrics.messages_sent = counters.messages_sent.load(Relaxed);
            metrics.sent_bytes = counters.bytes_sent.load(Relaxed);
            metrics.messages_received = counters.messages_received.load(Relaxed);
            metrics.received_bytes = counters.bytes_received.load(Relaxed);
            metrics.messages_dropped = counters.messages_dropped.load(Relaxed);
            metrics.connections_refused = counters.connections_refused.load(Relaxed);
        }
    }
}
