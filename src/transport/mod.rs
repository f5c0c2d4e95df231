//! Moving messages between nodes.
//!
//! A transport carries [`PeerMessage`]s to peers. It keeps the order of those it delivers to one
//! peer over one connection, and may drop any of them: Raft and the node send again what matters.
//! It never blocks the node, and holds at most a fixed number of bytes for a peer.

pub(crate) mod files;
pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod secure;
pub(crate) mod send;
pub(crate) mod tcp;

use std::time::Duration;

use crate::addressing::names::Resolver;
use crate::node::message::PeerMessage;
use crate::node::replica::server::CLIENTS_MAX;
use crate::security::Security;
use crate::types::membership::NodeId;
use crate::types::right::Connection;

/// Whether a read that does not fill its buffer has emptied the socket, so that the next event comes with the
/// next bytes: with epoll and kqueue. Elsewhere, another read must fail first.
pub(crate) const SHORT_READ_DRAINS: bool = cfg!(any(
    target_os = "linux",
    target_os = "android",
    target_os = "macos",
    target_os = "ios",
    target_os = "freebsd",
    target_os = "netbsd",
    target_os = "openbsd",
    target_os = "dragonfly",
));

/// Places for operators, and for nodes that want to join or do not know of their removal. As many as clients leave:
/// see [`files::room`].
const OTHERS_MAX: usize = 128;

/// How a node presents itself to its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalPeer {
    /// 0 for a node that has no cluster yet.
    pub(crate) cluster: u64,
    pub(crate) node: NodeId,
    pub(crate) incarnation: u64,
    /// The highest version that it supports: see `crate::types::version`.
    pub(crate) version: u16,
    /// Where others reach it, `host:port`; empty for a client, which does not listen.
    pub(crate) address: String,
    /// Random, chosen at each start.
    pub(crate) boot: u64,
}

/// A member: its id, and its address (`host:port`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemotePeer {
    pub(crate) node: NodeId,
    pub(crate) address: String,
}

/// What a transport reports to the node.
#[derive(Debug)]
pub(crate) enum TransportEvent {
    /// A message of an authenticated peer.
    Received { from: NodeId, message: PeerMessage },
    /// The connection to this peer is up: messages to it are expected to arrive from now on. The
    /// peer supports this version. It is a member, an unlisted peer, or a node found at a seed's
    /// address.
    Connected { peer: NodeId, version: u16 },
    /// A peer has made this connection, over which its messages come from now on; `None`: it has ended.
    Authenticated { peer: NodeId, connection: Option<Connection> },
    /// This peer cannot be reached. It is tried again after a while. `reason` is for people.
    /// `permanent` means that trying again does not help unless something is reconfigured (another
    /// cluster, another version, another identity).
    Unreachable { peer: NodeId, reason: String, permanent: bool },
    /// Two processes run as one node, a peer or this one, and one of them was refused. `reason` is for people.
    /// Repeated for as long as the refused one tries.
    Duplicate { reason: String },
    /// No node was found at the address of this seed. The fields are those of
    /// [`TransportEvent::Unreachable`].
    SeedUnreachable { address: String, reason: String, permanent: bool },
}

/// The limits and intervals of a transport.
#[derive(Clone, Debug)]
pub(crate) struct TransportOptions {
    /// How peers are authenticated.
    pub(crate) security: Security,
    /// How names are looked up.
    pub(crate) resolver: Resolver,
    /// How often the files of secrets and certificates are read again.
    pub(crate) reload_interval: Duration,
    /// The most bytes waiting to be written to one peer. Messages above that are dropped.
    pub(crate) queue_bytes_max: usize,
    /// The most unlisted peers at a time: clients, and nodes that are not, or no longer, members.
    pub(crate) unlisted_max: usize,
    /// The most incoming connections at a time whose handshake is not finished.
    pub(crate) handshakes_max: usize,
    /// The most such connections from one address.
    pub(crate) handshakes_per_address_max: usize,
    /// The most bytes read from one peer, on average over a second. [`tcp`] describes what a
    /// message adds. The rest waits in the socket, and then at the peer.
    pub(crate) received_per_second_max: u64,
    /// How long an incoming handshake may take.
    pub(crate) handshake_timeout: Duration,
    /// How long connecting may take.
    pub(crate) connect_timeout: Duration,
    /// The shortest and the longest pause before a new attempt; it doubles in between.
    pub(crate) retry_min: Duration,
    pub(crate) retry_max: Duration,
    /// How long a peer may neither take bytes nor answer before its connection counts as dead.
    pub(crate) stall_timeout: Duration,
    /// How long an unlisted peer is remembered while it is neither reachable nor sends anything.
    pub(crate) unlisted_timeout: Duration,
}

impl Default for TransportOptions {
    fn default() -> TransportOptions {
        TransportOptions {
            security: Security::default(),
            resolver: Resolver::default(),
            reload_interval: Duration::from_secs(5),
            queue_bytes_max: 64 << 20,
            // Room for the clients that this member serves, for as many that have it as their spare,
            // and for others.
            unlisted_max: 2 * CLIENTS_MAX + OTHERS_MAX,
            handshakes_max: 256,
            handshakes_per_address_max: 64,
            received_per_second_max: 256 << 20,
            handshake_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            retry_min: Duration::from_millis(50),
            retry_max: Duration::from_secs(2),
            stall_timeout: Duration::from_secs(5),
            unlisted_timeout: Duration::from_secs(30),
        }
    }
}
