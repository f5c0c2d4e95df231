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
//! - At most `received_per_second_max` bytes are read from a peer that connects; each message
//!   counts 512 bytes on top. The peer has to hold back the rest.
//! - No bytes from the network cause a panic, and an error of one connection ends only that
//!   connection.
//! - Urgent messages ([`PeerMessage::is_urgent`]) are written before all others that wait for the
//!   peer.
//! - Messages for a peer that is not connected are dropped at once: they would be stale when they
//!   arrived, and Raft sends again what still matters.
//! - Two processes that run as one node are never both connected to this one.
//! - With nothing to do, the thread sleeps. It wakes for its handler; to dial peers that it cannot
//!   reach, at most every `retry_min` and at least every `retry_max`; and to check unlisted peers
//!   every `unlisted_timeout`.
//!
//! Not here: the bytes (`frame`, `handshake`, `PeerMessage`), keys (`secure`, `crate::security`),
//! the loop (`event_loop`), outgoing connections (`outgoing`, `seeds`, `peer`, `look_up`, `reports`,
//! `outgoing_connection`), incoming connections (`incoming`, `handshake_queue`,
//! `incoming_connection`, `client_connection`), what waits to be written to either (`writer`,
//! `queue`), and who may make them (`known_peers`).

mod client_connection;
mod event_loop;
mod failure;
mod handshake_queue;
mod incoming;
mod incoming_connection;
mod known_peers;
mod look_up;
mod outgoing;
mod outgoing_connection;
mod peer;
mod queue;
mod rate;
#[cfg(feature = "tls")]
mod renewal;
mod reports;
mod seeds;
mod sockets;
mod stream;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "deadlines of tests")]
mod tests;
mod writer;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::{Poll, Token, Waker};

use self::event_loop::EventLoop;
use self::peer::Target;
use super::{LocalPeer, RemotePeer, TransportEvent, TransportOptions};
use crate::node::message::PeerMessage;
use crate::types::membership::NodeId;
use crate::types::metrics::Metrics;

/// Connections have the tokens above these.
const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);

/// What a helper thread has found for the network thread.
enum HelperResult {
    /// The content of the certificate files, if it has changed, or why they cannot be used.
    #[cfg(feature = "tls")]
    Certificates(Result<Option<crate::security::Loaded>, String>),
    Resolved {
        target: Target,
        attempt: Token,
        addresses: Result<Vec<SocketAddr>, String>,
    },
}

/// What the network thread shares with other threads, beside the channel.
#[derive(Debug)]
pub(crate) struct NetworkShared {
    waker: Waker,
    /// The thread will check the channel before it sleeps, so it need not be woken.
    awake: AtomicBool,
    /// How many names are being looked up.
    look_ups: AtomicUsize,
    counters: Counters,
    /// How many times the network thread's loop has run.
    #[cfg(test)]
    turns: AtomicU64,
}

impl NetworkShared {
    /// Makes the network thread check its channels and its handler. Call it after storing the data
    /// that the thread is woken for.
    pub(crate) fn wake(&self) {
        if !self.awake.swap(true, AcqRel)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "cannot wake the network thread");
        }
    }
}

/// What a transport has sent and received since its start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) messages_sent: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) messages_received: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    /// Messages not sent: no connection, no room, or too long.
    pub(crate) messages_dropped: AtomicU64,
    /// Messages that only members of this cluster may send, received from others.
    pub(crate) messages_foreign: AtomicU64,
    /// Incoming connections closed because of what they sent or did not send.
    pub(crate) connections_refused: AtomicU64,
}

impl Counters {
    fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Relaxed);
    }
}

/// What runs on the network thread beside the sockets: the node.
pub(crate) trait Handler: Send {
    /// Takes an event, to handle it in the next turn.
    fn take(&mut self, event: TransportEvent);

    /// Does its work, and returns the time until its next turn. The next turn comes sooner if an
    /// event arrives or another thread wakes this one. `None` ends the transport.
    fn turn(&mut self, network: &mut dyn Network) -> Option<Duration>;

    /// Whether there is work to do at once. Must be true from before another thread wakes this one
    /// for the work until the turn that does it.
    fn is_busy(&self) -> bool;

    /// Called once the sockets are closed. `failure` is the reason if the thread could not continue.
    fn end(self: Box<Self>, failure: Option<String>) {
        drop(failure);
    }
}

/// What a [`Handler`] may do in its turn.
pub(crate) trait Network {
    /// Sends messages, or drops them; messages to one peer keep their order. Never blocks: bytes
    /// that a socket does not take now wait for it.
    fn send(&mut self, messages: Vec<(NodeId, PeerMessage)>);

    /// Replaces the list of members. A member whose listed address has changed is connected again.
    /// One that gave another address itself stays connected there until its entry changes. One that
    /// is no longer listed is disconnected, or becomes an unlisted peer if it is connected to this
    /// node.
    fn set_peers(&mut self, peers: Vec<RemotePeer>);

    /// Starts or stops the search for nodes at the seeds' addresses; a new transport searches. When
    /// the search stops, peers that were found there and are not members are disconnected.
    fn set_seeking(&mut self, seeks: bool);

    /// Sets the cluster of this node, which had none. Peers learn the cluster over new connections,
    /// and peers of other clusters are disconnected. A client stays connected to the members of its
    /// own cluster, since they need not know.
    fn set_cluster(&mut self, cluster: u64);

    /// Looks for nodes at these addresses too. They replace the addresses of the last call; nodes
    /// that were found at those stay connected.
    fn look_at(&mut self, addresses: Vec<String>);

    /// Listens from now on. The transport did not listen before.
    fn listen(&mut self, listener: std::net::TcpListener) -> io::Result<()>;
}

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

    /// Starts a thread of this name. It listens on `listener`, if there is one, connects to
    /// `peers`, looks for nodes at the addresses of `seeds`, and runs `handler` to its end.
    #[expect(
        clippy::too_many_arguments,
        reason = "called once; a struct would only repeat the fields"
    )]
    pub(crate) fn start(
        self,
        name: &str,
        listener: impl Into<Option<std::net::TcpListener>>,
        local: LocalPeer,
        peers: Vec<RemotePeer>,
        seeds: Vec<String>,
        options: TransportOptions,
        handler: Box<dyn Handler>,
    ) -> io::Result<JoinHandle<()>> {
        let listener = listener.into();
        let event_loop = EventLoop::new(self, listener, local, peers, seeds, options, handler)?;
        std::thread::Builder::new().name(name.to_owned()).spawn(move || event_loop.run())
    }
}
