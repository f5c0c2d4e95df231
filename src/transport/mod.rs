//! Moving messages between nodes.
//!
//! A transport carries [`PeerMessage`]s to peers, keeps the order of those it
//! delivers to one peer over one connection, and may drop any of them: Raft
//! and the node send again what matters. It never blocks the node and never
//! holds more than a fixed number of bytes for a peer.

pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod names;
pub(crate) mod peers;
pub(crate) mod secure;
pub(crate) mod tcp;

use std::time::Duration;

use crate::node::message::PeerMessage;
use crate::node::replica::server::GUESTS_MAX as CLIENTS_MAX;
use crate::security::Security;
use crate::transport::names::Resolver;
use crate::types::membership::NodeId;

/// Guests that are no clients: nodes that want to join, or do not know that they were removed.
const OTHERS_MAX: usize = 64;

/// Who a node is, towards its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalPeer {
    /// 0: none yet.
    pub(crate) cluster: u64,
    pub(crate) node: NodeId,
    pub(crate) incarnation: u64,
    /// The highest version that it can do: see `crate::types::version`.
    pub(crate) version: u16,
    /// Where others reach it, `host:port`; empty for a client, who listens nowhere.
    pub(crate) address: String,
    /// Drawn at each start.
    pub(crate) boot: u64,
}

/// A member: its id, and where it is reached (`host:port`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemotePeer {
    pub(crate) node: NodeId,
    pub(crate) address: String,
}

/// What a transport tells the node.
#[derive(Debug)]
pub(crate) enum TransportEvent {
    /// A message of an authenticated peer.
    Received { from: NodeId, message: PeerMessage },
    /// What is sent to this peer now reaches it, as far as can be told. It can do this version. It
    /// is a member, a guest, or was found at the address of a seed.
    Connected { peer: NodeId, version: u16 },
    /// This peer cannot be reached; it is tried again after a while. `reason` is for people.
    /// `permanent` says that trying again will not help unless something is reconfigured
    /// (another cluster, another version, another identity).
    Unreachable { peer: NodeId, reason: String, permanent: bool },
    /// Nobody was found at the address of this seed; otherwise as [`TransportEvent::Unreachable`].
    SeedUnreachable { address: String, reason: String, permanent: bool },
}

/// The limits and intervals of a transport.
#[derive(Clone, Debug)]
pub(crate) struct TransportOptions {
    /// What keeps strangers out.
    pub(crate) security: Security,
    /// Who looks names up.
    pub(crate) resolver: Resolver,
    /// The most names that are looked up at a time.
    pub(crate) look_ups_max: usize,
    /// How often files of certificates are read again.
    #[cfg(feature = "tls")]
    pub(crate) reload_interval: Duration,
    /// The most bytes waiting to be written to one peer; what comes on top is dropped.
    pub(crate) queue_bytes_max: usize,
    /// The most guests at a time: clients, and nodes that are no members yet or any more.
    pub(crate) guests_max: usize,
    /// The most incoming connections at a time that are not yet introduced.
    pub(crate) strangers_max: usize,
    /// The most of them from one address.
    pub(crate) strangers_per_address_max: usize,
    /// The most that is read from one peer, on average over a second; each message counts as
    /// [`tcp`] says. What is above waits in the peer's socket, and then at the peer.
    pub(crate) received_per_second_max: u64,
    /// How long a connection may take to introduce itself.
    pub(crate) handshake_timeout: Duration,
    /// How long a connection may take to be made.
    pub(crate) connect_timeout: Duration,
    /// The pause before the first new try, and the longest; it doubles in between.
    pub(crate) retry_min: Duration,
    pub(crate) retry_max: Duration,
    /// How long a peer may neither take what is sent to it nor answer before its connection
    /// counts as dead.
    pub(crate) stall_timeout: Duration,
    /// How long a guest is remembered that is neither reached nor heard.
    pub(crate) guest_timeout: Duration,
}

impl Default for TransportOptions {
    fn default() -> TransportOptions {
        TransportOptions {
            security: Security::default(),
            resolver: Resolver::default(),
            look_ups_max: 128,
            #[cfg(feature = "tls")]
            reload_interval: Duration::from_secs(10),
            queue_bytes_max: 64 << 20,
            guests_max: CLIENTS_MAX + OTHERS_MAX,
            strangers_max: 256,
            strangers_per_address_max: 64,
            received_per_second_max: 256 << 20,
            handshake_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            retry_min: Duration::from_millis(50),
            retry_max: Duration::from_secs(2),
            stall_timeout: Duration::from_secs(5),
            guest_timeout: Duration::from_secs(30),
        }
    }
}
