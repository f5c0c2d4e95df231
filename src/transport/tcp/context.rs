//! The state that all parts of the network thread use: sockets, timers, who is known, and the
//! events for the handler.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;
use mio::Token;

use super::known_peers::KnownPeers;
use super::queue::Rejected;
use super::shared::{Counters, NetworkShared, WAKER};
use super::sockets::Sockets;
use crate::node::message::MESSAGE_BYTES_MAX;
use crate::security::{Reading, Security};
use crate::transport::secure::Subjects;
use crate::transport::{LocalPeer, TransportEvent, TransportOptions};
use crate::types::membership::{Named, NodeId};
use crate::types::warnings::Warnings;

/// The most bytes read from a socket at once.
const READ_BYTES: usize = 64 << 10;

/// What a helper thread has found for the network thread.
pub(super) enum HelperResult {
    /// The security with what its files have now.
    Security(Reading<Security>),
    Resolved {
        target: Target,
        attempt: Token,
        addresses: Result<Vec<SocketAddr>, String>,
    },
}

/// The target of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Node(NodeId),
    /// Whichever node is at the address of the seed with this index.
    Seed(usize),
}

impl Target {
    /// The id that a hello to the target names.
    pub(super) fn id(self) -> NodeId {
        match self {
            Target::Node(node) => node,
            Target::Seed(_) => 0,
        }
    }
}

/// The state that all parts of the network thread use.
pub(super) struct NetworkContext {
    pub(super) sockets: Box<dyn Sockets>,
    pub(super) local: LocalPeer,
    pub(super) options: TransportOptions,
    pub(super) shared: Arc<NetworkShared>,
    /// Helper threads send their results here.
    pub(super) results_tx: Sender<HelperResult>,
    pub(super) timers: NetworkTimers,
    /// The time: when this turn of the loop began, or later.
    pub(super) now: Instant,
    /// The buffer for socket reads; one for all connections.
    pub(super) scratch: Box<[u8]>,
    /// The targets of the connections made by this node.
    pub(super) dialled: BTreeMap<Token, Target>,
    /// The nodes that may connect to this one.
    pub(super) known_peers: KnownPeers,
    /// Why the node has stopped, if it has: then this transport is only there to say so.
    pub(super) stopped: Option<String>,
    /// The subject of each peer's certificate.
    pub(super) subjects: Subjects,
    /// Events for the handler: no more than one turn of the loop reads.
    pub(super) events: Vec<TransportEvent>,
    next_token: usize,
    /// The lines about messages that were too long.
    too_long: Warnings<Instant>,
}

impl NetworkContext {
    pub(super) fn new(
        sockets: Box<dyn Sockets>,
        local: LocalPeer,
        options: TransportOptions,
        shared: Arc<NetworkShared>,
        results_tx: Sender<HelperResult>,
        now: Instant,
    ) -> NetworkContext {
        NetworkContext {
            sockets,
            local,
            known_peers: KnownPeers::new(options.unlisted_max),
            options,
            shared,
            results_tx,
            timers: NetworkTimers::default(),
            now,
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            dialled: BTreeMap::new(),
            stopped: None,
            subjects: Subjects::default(),
            events: Vec::new(),
            next_token: WAKER.0,
            too_long: Warnings::default(),
        }
    }

    /// Whether this is a client, which receives messages over the connections that it makes.
    pub(super) fn is_client(&self) -> bool {
        self.local.address.is_empty()
    }

    /// A token that was never used, so that a late event of a closed connection matches no other
    /// connection.
    pub(super) fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    /// Called when a node is welcomed. Unless it is a member, it becomes an unlisted peer.
    pub(super) fn admit(&mut self, node: NodeId) {
        if !self.known_peers.is_known(node) {
            self.remember_unlisted(node);
        }
    }

    /// Remembers an unlisted peer, and sets the timer that checks it.
    pub(super) fn remember_unlisted(&mut self, node: NodeId) {
        self.known_peers.unlisted.insert(node);
        self.timers.set(NetworkTimer::Unlisted(node), self.now + self.options.unlisted_timeout);
    }

    pub(super) fn forget_unlisted(&mut self, node: NodeId) {
        self.known_peers.unlisted.remove(&node);
        self.timers.cancel(NetworkTimer::Unlisted(node));
    }

    /// A message to this node was dropped. One that is too long can never be sent, and whoever waits for it waits in vain:
    /// a node must not make one.
    pub(super) fn dropped(&mut self, node: NodeId, rejected: Option<Rejected>) {
        Counters::add(&self.shared.counters.messages_dropped, 1);
        if let Some(Rejected::TooLong { bytes }) = rejected
            && let Some(suppressed) = self.too_long.permit(self.now)
        {
            let (peer, limit) = (Named::of(node), MESSAGE_BYTES_MAX);
            tracing::error!(%peer, bytes, limit, suppressed, "a message is too long to be sent, and is lost");
        }
    }

    /// Passes an event to the handler, before its next turn.
    pub(super) fn emit(&mut self, event: TransportEvent) {
        self.events.push(event);
    }
}

/// The timers of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NetworkTimer {
    /// The next step of the connection to this peer or seed.
    Peer(Target),
    /// This unlisted peer may have left.
    Unlisted(NodeId),
    /// A connection waits while it is checked whether this peer's former connection is alive.
    Duplicate(NodeId),
    /// An incoming handshake must be finished.
    Handshake(Token),
    /// This connection had used up its rate, and is read again.
    Resume(Token),
    /// The client that made this connection may have stopped reading.
    Stall(Token),
    /// The listener accepts connections again after an error.
    Accept,
    /// The files of secrets and certificates are read again.
    Credentials,
}

/// The timers that are set, each to one time.
#[derive(Debug, Default)]
pub(super) struct NetworkTimers {
    times: BTreeMap<NetworkTimer, Instant>,
    in_order: BTreeSet<(Instant, NetworkTimer)>,
}

impl NetworkTimers {
    /// Sets a timer, which may be set already, to this time.
    pub(super) fn set(&mut self, timer: NetworkTimer, at: Instant) {
        self.cancel(timer);
        self.times.insert(timer, at);
        self.in_order.insert((at, timer));
    }

    pub(super) fn cancel(&mut self, timer: NetworkTimer) {
        if let Some(at) = self.times.remove(&timer) {
            self.in_order.remove(&(at, timer));
        }
    }

    /// When this timer fires, if it is set.
    pub(super) fn at(&self, timer: NetworkTimer) -> Option<Instant> {
        self.times.get(&timer).copied()
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.in_order.first().map(|(at, _)| *at)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<NetworkTimer> {
        let (_, timer) = self.in_order.first().filter(|(at, _)| *at <= now).copied()?;
        self.cancel(timer);
        Some(timer)
    }
}
