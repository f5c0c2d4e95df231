//! Peers over TCP.
//!
//! One thread, `quorate-net`, does everything: it listens, dials, encodes,
//! writes, reads and decodes for all peers. Between two nodes there are two
//! connections, one made by each, and messages go only from the node that made
//! it to the other; what comes back is the answer to the handshake, and signs
//! of life.
//!
//! A node talks to three kinds of peers. *Members* are listed, with id and
//! address. A *seed* is an address whose node is not known: it is dialled for
//! whoever is there, and who answers is a peer as long as the connection stands.
//! A *client* listens nowhere: what is for it goes over the connection that it
//! has made (`back`).
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
//! Threads and channels. [`TcpTransport::send`] hands messages over through an
//! unbounded channel, whose content is bounded by bytes; it never blocks.
//! Events go to a callback on the network thread, and if that blocks, nothing
//! is read meanwhile, so that the peers' sockets fill and they in turn drop.
//! A name is looked up on a thread of its own, `quorate-dns`, since a resolver
//! may take minutes: one for each peer or seed, and `look_ups_max` in all. It
//! cannot be interrupted and is not joined: it ends after the transport when
//! the resolver gives up.
//!
//! Invariants:
//! - Memory is bounded: what waits for a peer by `queue_bytes_max`; what is
//!   handed over and not yet encoded by the same number, for all peers
//!   together, and by half of it for those that are no voters; what a connection
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
//! - With nothing to do, the thread sleeps without waking, but for what it cannot
//!   reach: that it tries again, at most every `retry_min` and at least every
//!   `retry_max`; and for guests, which it looks after every `guest_timeout`.
//!
//! Not here: the bytes (`frame`, `handshake`, `PeerMessage`), keys (`secure`,
//! `crate::security`), the loop (`driver`), the connections we make (`outgoing`,
//! `seeds`, `peer`, `link`, `queue`) and get (`incoming`, `introductions`,
//! `caller`, `back`), and who may make them (`circle`).

mod back;
mod caller;
mod circle;
mod driver;
mod failure;
mod incoming;
mod introductions;
mod link;
mod outgoing;
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
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, unbounded};
use mio::{Poll, Token, Waker};

use self::driver::Driver;
use self::peer::Target;
use super::{LocalPeer, RemotePeer, TransportEvent, TransportOptions};
use crate::machine::command::{self, NodeId, Op, Request};
use crate::metrics::Metrics;
use crate::node::guests::wire::{Ask, News};
use crate::node::message::{PeerMessage, RaftBody};

/// The tokens above are the connections'.
const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);

/// What the network thread is asked to do.
enum Command {
    Send {
        messages: Vec<(NodeId, PeerMessage)>,
        weight: usize,
    },
    Peers(Vec<RemotePeer>),
    Cluster(u64),
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
    closing: AtomicBool,
    /// What is in the channel, about.
    handed_bytes: AtomicUsize,
    /// How many names are being looked up.
    look_ups: AtomicUsize,
    counters: Counters,
    /// How often the network thread has gone round.
    #[cfg(test)]
    turns: AtomicU64,
}

impl Shared {
    /// Makes the network thread look at its channel. To be called after the push.
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

/// Messages between this node and its peers, over TCP.
pub(crate) struct TcpTransport {
    commands_tx: Sender<Command>,
    shared: Arc<Shared>,
    handed_bytes_max: usize,
    thread: Option<JoinHandle<()>>,
}

impl TcpTransport {
    /// Listens on `listener`, if there is one, connects to `peers`, and looks for others at the
    /// addresses of `seeds`.
    ///
    /// `events` is called on the network thread. It may block to slow the peers down, but never for
    /// the sake of a thread that is in [`TcpTransport::close`]. By `false` it says that the
    /// receiver is gone; the transport then ends by itself.
    pub(crate) fn start(
        listener: impl Into<Option<std::net::TcpListener>>,
        local: LocalPeer,
        peers: Vec<RemotePeer>,
        seeds: Vec<String>,
        options: TransportOptions,
        events: impl Fn(TransportEvent) -> bool + Send + 'static,
    ) -> io::Result<TcpTransport> {
        let listener = listener.into();
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
        }
        let poll = Poll::new()?;
        let shared = Arc::new(Shared {
            waker: Waker::new(poll.registry(), WAKER)?,
            awake: AtomicBool::new(true),
            closing: AtomicBool::new(false),
            handed_bytes: AtomicUsize::new(0),
            look_ups: AtomicUsize::new(0),
            counters: Counters::default(),
            #[cfg(test)]
            turns: AtomicU64::new(0),
        });
        // Node -> network thread. Bounded by `handed_bytes`: what is above it is dropped.
        let (commands_tx, commands_rx) = unbounded();
        let handed_bytes_max = options.queue_bytes_max;
        let driver = Driver::new(
            poll,
            listener.map(mio::net::TcpListener::from_std),
            local,
            (peers, seeds),
            options,
            Arc::clone(&shared),
            (commands_tx.clone(), commands_rx),
            Box::new(events),
        )?;
        let thread = std::thread::Builder::new()
            .name("quorate-net".to_owned())
            .spawn(move || driver.run())?;
        Ok(TcpTransport { commands_tx, shared, handed_bytes_max, thread: Some(thread) })
    }

    /// Sends messages, or drops them. Never blocks; those to one peer keep their order.
    pub(crate) fn send(&self, messages: Vec<(NodeId, PeerMessage)>) {
        self.hand(messages, self.handed_bytes_max);
    }

    /// The same for peers of which there may be many, and without which the cluster decides: what is
    /// under way to them fills half of the room at most, so that there always is some for the others.
    pub(crate) fn send_to_many(&self, messages: Vec<(NodeId, PeerMessage)>) {
        self.hand(messages, self.handed_bytes_max / 2);
    }

    fn hand(&self, mut messages: Vec<(NodeId, PeerMessage)>, bytes_max: usize) {
        // Several senders may each find the same room; that they exceed it by one call does no harm.
        let room = bytes_max.saturating_sub(self.shared.handed_bytes.load(Acquire));
        let offered = messages.len();
        let mut handed = 0;
        messages.retain(|(_, message)| {
            let bytes = weight(message);
            let fits = handed + bytes <= room;
            if fits {
                handed += bytes;
            }
            fits
        });
        Counters::add(&self.shared.counters.messages_dropped, offered - messages.len());
        if !messages.is_empty() {
            self.shared.handed_bytes.fetch_add(handed, AcqRel);
            self.ask(Command::Send { messages, weight: handed });
        }
    }

    /// Replaces the list of members. Those whose address has changed are connected anew. A member
    /// that is reached elsewhere, since it has said so itself, is left there as long as the list has
    /// not changed for it. One that is in the list no longer is disconnected, or a guest if it is
    /// connected to us.
    pub(crate) fn set_peers(&self, peers: Vec<RemotePeer>) {
        self.ask(Command::Peers(peers));
    }

    /// Sets the cluster that this node has had none of. Peers are told by new connections, and those
    /// of other clusters are disconnected. A client stays connected to the members of its own, which
    /// need not know.
    pub(crate) fn set_cluster(&self, cluster: u64) {
        self.ask(Command::Cluster(cluster));
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

    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Ends the network thread and waits until it has, which is soon: see [`TcpTransport::start`].
    #[cfg(test)]
    pub(crate) fn close(self) {
        drop(self);
    }

    fn ask(&self, command: Command) {
        // The thread may have ended since nobody listens; then nobody minds this either.
        if self.commands_tx.send(command).is_ok() {
            self.shared.wake();
        }
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.shared.closing.store(true, Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the network thread had panicked");
        }
    }
}

impl fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpTransport")
            .field("counters", &self.shared.counters)
            .finish_non_exhaustive()
    }
}

/// What a message takes in memory, about: enough to bound what is handed over.
fn weight(message: &PeerMessage) -> usize {
    const FIXED: usize = size_of::<(NodeId, PeerMessage)>();
    FIXED
        + match message {
            PeerMessage::Raft { body, .. } => match body {
                RaftBody::Append { entries, .. } => {
                    entries.iter().map(|entry| 64 + entry.data.len()).sum()
                }
                RaftBody::Heartbeat { context, .. }
                | RaftBody::HeartbeatResponse { context, .. } => context.len(),
                RaftBody::Snapshot { meta, .. } => 8 * meta.voting.voters.len(),
                RaftBody::AppendResponse { .. }
                | RaftBody::Vote { .. }
                | RaftBody::VoteResponse { .. }
                | RaftBody::TimeoutNow => 0,
            },
            PeerMessage::Forward { requests } | PeerMessage::GuestForward { requests, .. } => {
                requests.iter().map(request_weight).sum()
            }
            PeerMessage::Round { sessions, .. } | PeerMessage::GuestRound { sessions, .. } => {
                8 * sessions.len()
            }
            PeerMessage::Ask { asks, .. } => asks.iter().map(Ask::size).sum(),
            PeerMessage::Tell { news, .. } => news.iter().map(News::size).sum(),
            PeerMessage::LetGo { reason, .. } => reason.len(),
            PeerMessage::SnapshotChunk { bytes, .. } => bytes.len(),
            PeerMessage::Join { member } | PeerMessage::Present { member } => {
                member.address.len() + member.zone.len()
            }
            PeerMessage::Health { silent, placed } => 8 * (silent.len() + placed.len()),
            // A word is bounded, and one is told a second.
            PeerMessage::Meet { word } => 64 * (1 + word.list.len()),
            PeerMessage::RoundConfirmed { .. }
            | PeerMessage::GuestConfirmed { .. }
            | PeerMessage::Leave
            | PeerMessage::Gone { .. }
            | PeerMessage::StateHash { .. }
            | PeerMessage::SnapshotAck { .. }
            | PeerMessage::SnapshotAbort { .. } => 0,
        }
}

fn request_weight(request: &Request) -> usize {
    let op_weight = |op: &Op| size_of::<Op>() + op.path().len() + op.content_bytes();
    size_of::<Request>()
        + match &request.command {
            command::Command::Op(op) => op_weight(op),
            command::Command::Multi(ops) => ops.iter().map(op_weight).sum(),
            command::Command::Open { .. }
            | command::Command::Resume { .. }
            | command::Command::Close
            | command::Command::RaiseVersion { .. }
            | command::Command::Expire { .. } => 0,
            command::Command::Reap { path } => path.len(),
            command::Command::Configure { seats, .. } => {
                seats.iter().map(|seat| size_of_val(seat) + seat.member.address.len()).sum()
            }
            command::Command::Authenticate { ids } => {
                ids.iter().map(|id| size_of_val(id) + id.scheme.len() + id.id.len()).sum()
            }
        }
}
