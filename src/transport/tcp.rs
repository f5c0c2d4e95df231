//! Peers over TCP.
//!
//! One thread does everything: it listens, dials, encodes, writes, reads and
//! decodes for all peers, and runs its [`Handler`] in between: the node. So a
//! message goes from the socket to the node, and from the node to the socket,
//! without another thread. Between two nodes there are two connections, one made
//! by each, and messages go only from the node that made it to the other; what
//! comes back is the answer to the handshake, and signs of life.
//!
//! A node talks to three kinds of peers. *Members* are listed, with id and
//! address. A *seed* is an address whose node is not known: it is dialled for
//! whoever is there, and who answers is a peer as long as the connection stands.
//! A *client* listens nowhere: what is for it goes over the connection that it
//! has made (`client_connection`).
//! A *guest* has introduced itself and is not listed, or not yet; it is dialled
//! back where it says it is, and forgotten a while after it has left. Whoever
//! has another cluster is refused; a node that has none yet talks to all, but
//! what only members of one cluster may say to each other is dropped on receipt
//! from anybody else.
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
//! The empty frames are there for a peer whose machine or cable is gone. No
//! error would tell of it for many minutes, since the system takes and keeps
//! what is written; so a connection that neither takes bytes nor answers for
//! `stall_timeout` is given up and made anew.
//!
//! What others have for the handler wakes the thread by [`Wake`]. While the
//! handler takes its turn, nothing is read: the peers' sockets fill, and they
//! in turn drop. A turn that takes longer than `stall_timeout` looks like a dead
//! machine to the peers, who connect again.
//!
//! A name is looked up on a thread of its own, `quorate-dns`, since a resolver
//! may take minutes: one for each peer or seed, and `look_ups_max` in all. It
//! cannot be interrupted and is not joined: it ends after the transport when
//! the resolver gives up.
//!
//! Invariants:
//! - Memory is bounded: what waits for a peer by `queue_bytes_max`; what a connection
//!   has sent by 32 KiB before it is welcomed (4 KiB and one read, without keys)
//!   and one message and one read after; the connections that are not welcomed by
//!   `strangers_max`, and for each address by `strangers_per_address_max`; the
//!   guests by `guests_max`.
//! - A peer that connects is read from at most `received_per_second_max`, in bytes,
//!   with 512 for each message on top. More than that it has to keep to itself.
//! - Nothing from the network panics, and nothing that one connection does
//!   ends more than that connection.
//! - Messages for a peer that is not connected are dropped at once: they would
//!   be stale when they arrived, and Raft sends again what still matters.
//! - Two processes that run as one node are never both connected to this one.
//! - With nothing to do, the thread sleeps without waking, but for its handler; for what it cannot
//!   reach: that it tries again, at most every `retry_min` and at least every
//!   `retry_max`; and for guests, which it looks after every `guest_timeout`.
//!
//! Not here: the bytes (`frame`, `handshake`, `PeerMessage`), keys (`secure`,
//! `crate::security`), the loop (`driver`), the connections we make (`outgoing`,
//! `seeds`, `peer`, `outgoing_connection`, `queue`) and get (`incoming`, `handshake_queue`,
//! `incoming_connection`, `client_connection`), and who may make them (`known_peers`).

mod client_connection;
mod driver;
mod failure;
mod handshake_queue;
mod incoming;
mod incoming_connection;
mod known_peers;
mod outgoing;
mod outgoing_connection;
mod peer;
mod queue;
mod rate;
#[cfg(feature = "tls")]
mod renewal;
mod seeds;
mod stream;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "deadlines of tests")]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use mio::{Poll, Token, Waker};

use self::driver::Driver;
use self::peer::Target;
use super::{LocalPeer, RemotePeer, TransportEvent, TransportOptions};
use crate::node::message::PeerMessage;
use crate::types::membership::NodeId;
use crate::types::metrics::Metrics;

/// The tokens above are the connections'.
const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);

/// What the helpers of the network thread have found for it.
enum Command {
    /// What the files of certificates hold, if that has changed, or why that cannot be used.
    #[cfg(feature = "tls")]
    Certificates(Result<Option<crate::security::Loaded>, String>),
    Resolved {
        target: Target,
        attempt: Token,
        addresses: Result<Vec<SocketAddr>, String>,
    },
}

/// What the network thread and the others see of each other, beside the channel.
#[derive(Debug)]
struct Shared {
    waker: Waker,
    /// The thread will look at the channel before it sleeps, so it need not be woken.
    awake: AtomicBool,
    /// How many names are being looked up.
    look_ups: AtomicUsize,
    counters: Counters,
    /// How often the network thread has gone round.
    #[cfg(test)]
    turns: AtomicU64,
}

impl Shared {
    /// Makes the network thread look at its channels. To be called after the push.
    fn wake(&self) {
        if !self.awake.swap(true, AcqRel)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "cannot wake the network thread");
        }
    }
}

/// What has passed through a transport since it was started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) messages_sent: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) messages_received: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    /// Messages not sent: no connection, no room, or too long.
    pub(crate) messages_dropped: AtomicU64,
    /// Messages received that only members of this cluster may send, and others have.
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
    /// Takes what has happened, to do something about it in its next turn.
    fn take(&mut self, event: TransportEvent);

    /// Does what there is to do, and says after what time it wants its next turn. It has one sooner
    /// if something has happened, or somebody woke the thread. `None` is the end.
    fn turn(&mut self, network: &mut dyn Network) -> Option<Duration>;

    /// Whether there is something to do at once. To be true from before somebody wakes the thread for
    /// it until the turn that does it.
    fn is_busy(&self) -> bool;

    /// Ends, once the sockets are closed. `failure` says why, if the thread could not go on.
    fn end(self: Box<Self>, failure: Option<String>) {
        drop(failure);
    }
}

/// What a [`Handler`] may ask for in its turn.
pub(crate) trait Network {
    /// Sends messages, or drops them; those to one peer keep their order. Never blocks: what a socket
    /// does not take now waits for it.
    fn send(&mut self, messages: Vec<(NodeId, PeerMessage)>);

    /// Replaces the list of members. Those whose address has changed are connected again. A member
    /// that is reached elsewhere, since it has said so itself, is left there as long as the list has
    /// not changed for it. One that is in the list no longer is disconnected, or a guest if it is
    /// connected to us.
    fn set_peers(&mut self, peers: Vec<RemotePeer>);

    /// Sets the cluster that this node has had none of. It is sent to peers over new connections, and those
    /// of other clusters are disconnected. A client stays connected to the members of its own, which
    /// need not know.
    fn set_cluster(&mut self, cluster: u64);
}

/// Wakes the network thread for its handler.
#[derive(Clone, Debug)]
pub(crate) struct Wake(Arc<Shared>);

impl Wake {
    /// To be called after that for which the handler is woken is in its place.
    pub(crate) fn wake(&self) {
        self.0.wake();
    }
}

/// Messages between this node and its peers, over TCP.
pub(crate) struct TcpTransport {
    poll: Poll,
    shared: Arc<Shared>,
}

impl TcpTransport {
    /// One that is still to be started.
    pub(crate) fn new() -> io::Result<TcpTransport> {
        let poll = Poll::new()?;
        let shared = Arc::new(Shared {
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
        Wake(Arc::clone(&self.shared))
    }

    /// Tells what has passed so far, for as long as anybody asks.
    pub(crate) fn meter(&self) -> impl Fn(&mut Metrics) + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move |metrics| {
            let counters = &shared.counters;
            metrics.messages_sent = counters.messages_sent.load(Relaxed);
            metrics.bytes_sent = counters.bytes_sent.load(Relaxed);
            metrics.messages_received = counters.messages_received.load(Relaxed);
            metrics.bytes_received = counters.bytes_received.load(Relaxed);
            metrics.messages_dropped = counters.messages_dropped.load(Relaxed);
            metrics.connections_refused = counters.connections_refused.load(Relaxed);
        }
    }

    /// Starts a thread of this name, which listens on `listener`, if there is one, connects to
    /// `peers`, looks for others at the addresses of `seeds`, and runs `handler` to its end.
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
        let TcpTransport { poll, shared } = self;
        let listener = listener.into();
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
        }
        // Helpers -> network thread: an answer for each look-up under way, and what was read of
        // certificates.
        let (commands_tx, commands_rx) = unbounded();
        let listener = listener.map(mio::net::TcpListener::from_std);
        let to_whom = (peers, seeds);
        let commands: (Sender<Command>, Receiver<Command>) = (commands_tx, commands_rx);
        let driver =
            Driver::new(poll, listener, local, to_whom, options, shared, commands, handler)?;
        std::thread::Builder::new().name(name.to_owned()).spawn(move || driver.run())
    }
}

impl fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpTransport")
            .field("counters", &self.shared.counters)
            .finish_non_exhaustive()
    }
}
