//! How ZooKeeper's own clients reach an instance: a port that speaks their protocol.
//!
//! See [`guide::gateway`](crate::guide::gateway), and [`Gateway`] for an example.
//!
//! A client's session is a session of the cluster, held by this instance for as long as the client is
//! connected. The gateway decides nothing about znodes: the node answers, in the order of the requests.

// ```text
// socket -> server -> clients -> connection -> requests -> node        (in order, many at once)
// node -> mailbox -> clients -> connection: replies + events -> server -> socket
// ```
//
// - `wire` is the protocol: bytes to requests, replies to bytes. It knows no session and no socket.
// - `server` is the thread with the sockets, `stream` is one socket, and `tls` has the
//   certificates.
// - `clients` are all clients together: who may connect, whose turn it is, and who is disconnected. Neither it
//   nor what follows has a thread, a socket or a clock.
// - `connection` is one client: its pending requests (`waiting`), its watches, and the order of its replies
//   and events.
// - `greeting` is its first packet, which opens its session.
// - `output` is what waits for a client, and `memory` the bound for what waits for all of them.
// - `requests` and `multi` convert its requests to those of a session, and `replies` the answers to
//   replies.
// - `ending` has the reasons for which connections end.
// - `authentication` checks credentials on a thread, in the order of `fair_queue`.
// - `quorum` decides which clients are served, and `read_only` stands in for the node while there is no
//   quorum.
// - `convert` converts values that differ: errors, stats, access lists.
// - `words` answers the four-letter words, from the figures of `counts`.
// - `import` is a client itself: it copies a tree out of a ZooKeeper.

mod admission;
mod authentication;
mod clients;
mod connection;
mod convert;
mod counts;
mod ending;
mod events;
mod fair_queue;
mod greeting;
pub mod import;
mod memory;
mod multi;
mod output;
mod quorum;
mod read_only;
mod replies;
mod requests;
mod server;
mod session;
mod stream;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), allow(dead_code, reason = "the fuzz targets need some of it"))]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod turns;
mod waiting;
mod watches;
mod wire;
mod words;

#[cfg(any(test, fuzzing))]
pub(crate) use self::tests::conversations::conversation;

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use self::server::Server;
#[cfg(feature = "tls")]
pub use self::tls::{ClientCertificates, GatewayTls};
use crate::Coordinator;
use crate::runtime::port::{self, Serving, cannot_listen, refused};
use crate::types::acl::Id;
use crate::types::error::Result;

/// Reads arbitrary bytes as those of a client, and as what an import reads.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    wire::fuzz(bytes);
    import::fuzz(bytes);
}

/// A port of this instance for ZooKeeper's own clients: `zkCli`, kazoo, Curator and the others.
///
/// The clients have sessions of the cluster, see the same znodes as the sessions of the application, and can take
/// the same locks. A client that loses this instance continues at another one with its session, its ephemeral znodes and its
/// watches. Dropping the gateway ends the connections, not the sessions. The drop waits for the gateway's
/// thread, unless the coordinator was joined by [`Coordinator::join`](crate::Coordinator::join).
///
/// Locks of Curator, kazoo and the Go client at the path of a [`Lock`](crate::recipes::Lock) are the same lock, and
/// elections are the same election: see [`guide::shared_recipes`](crate::guide::shared_recipes).
///
/// Without [certificates](GatewayBuilder::tls), anybody who reaches the port can open sessions: keep the port
/// on the loopback interface or in a trusted network, and protect znodes by ACLs. For the differences from a
/// ZooKeeper server, see [`guide::gateway`](crate::guide::gateway).
///
/// ```
/// use quorate::gateway::Gateway;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0")?;
/// println!("zkCli -server {}", gateway.address());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct Gateway {
    serving: Serving,
}

/// The settings of a gateway: see [`Gateway::builder`].
///
/// ```
/// use quorate::gateway::Gateway;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(1);
/// let builder = Gateway::builder().connections_max(100).packet_bytes_max(4 << 20);
/// let gateway = builder.serve(&cluster.node(0), "127.0.0.1:0")?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GatewayBuilder {
    connections_max: usize,
    connections_per_address_max: usize,
    packet_bytes_max: usize,
    buffer_bytes_max: usize,
    words: Vec<[u8; 4]>,
    read_only: bool,
    skips_acl: bool,
    #[cfg(feature = "tls")]
    tls: Option<GatewayTls>,
}

impl Gateway {
    /// Serves ZooKeeper's clients at an address; port 0 takes a free port. Returns as soon as clients
    /// can connect. Clients get a session once the cluster has a leader; after a
    /// [tick](crate::Builder::tick) without one, they are refused.
    ///
    /// # Errors
    /// [`StartError::CannotListen`](crate::StartError::CannotListen) if the address cannot be bound.
    pub fn serve(coordinator: &Coordinator, address: impl ToSocketAddrs) -> Result<Gateway> {
        Gateway::builder().serve(coordinator, address)
    }

    /// Returns the settings, to change them before the gateway is opened.
    pub fn builder() -> GatewayBuilder {
        GatewayBuilder {
            connections_max: 10_000,
            connections_per_address_max: 0,
            packet_bytes_max: wire::frame::JUTE_MAXBUFFER,
            buffer_bytes_max: memory::BYTES_MAX,
            words: words::named(words::HARMLESS),
            read_only: false,
            skips_acl: false,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.serving.address()
    }
}

impl GatewayBuilder {
    fn super_user(&self) -> Option<Id> {
        #[cfg(feature = "tls")]
        return self.tls.as_ref()?.super_user_id();
        #[cfg(not(feature = "tls"))]
        None
    }

    fn is_secure(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    /// The most clients that may be connected at the same time: 10,000 by default. Further clients are
    /// disconnected at once, and try another instance.
    ///
    /// There are fewer, with a warning in the log, if the process may not have so many files open (`ulimit -n`):
    /// the gateway leaves 128 of them to everything else, whoever has opened the others. A connection that comes
    /// then may still send a four-letter word.
    #[must_use]
    pub fn connections_max(mut self, most: usize) -> GatewayBuilder {
        self.connections_max = most;
        self
    }

    /// The same for each address that clients come from; 0, the default, is no limit. (ZooKeeper's
    /// `maxClientCnxns` is 60.)
    #[must_use]
    pub fn connections_per_address_max(mut self, most: usize) -> GatewayBuilder {
        self.connections_per_address_max = most;
        self
    }

    /// The longest packet that a client may send, in bytes: 1,048,575 by default, as ZooKeeper's
    /// `jute.maxbuffer`. A client that sends a longer one is disconnected. Replies may be longer, up to 256
    /// MiB: the names of many children, for example. (Clients have limits of their own for what they read.)
    ///
    /// Data of more than 1 MiB, and requests of more than 3 MiB in all, get the error `BadArguments`, whatever this
    /// is.
    #[must_use]
    pub fn packet_bytes_max(mut self, most: usize) -> GatewayBuilder {
        self.packet_bytes_max = most;
        self
    }

    /// How many bytes may wait for all clients together, which have not read them: 256 MiB by default. Requests
    /// that are in progress and replies and events that are not sent count. With more, the client that holds most
    /// of them is disconnected, and then the next one. It connects again, here or elsewhere, with its session.
    ///
    /// A client alone is bounded, too: to 16 MiB of events that it does not read, and to one reply besides 4 MiB
    /// of others. The data of a znode and an event count once, for however many clients they wait.
    #[must_use]
    pub fn buffer_bytes_max(mut self, most: usize) -> GatewayBuilder {
        self.buffer_bytes_max = most;
        self
    }

    /// Which four-letter words are answered; `*` is all that are known. By default: `ruok`, `isro`, `srvr`,
    /// `stat`, `mntr`, `envi`, `conf`, `dirs`, `wchs`, `hash` and `gtmk`. Further ones are `cons` and `dump`, which
    /// name the sessions, `wchc` and `wchp`, which name what they watch, `crst` and `srst`, which set counters back,
    /// and `stmk`, which sets a mask that has no effect.
    ///
    /// Anybody who reaches the port may send them. `mntr` and `dump` look at every session.
    #[must_use]
    pub fn four_letter_words(mut self, words: &[impl AsRef<str>]) -> GatewayBuilder {
        self.words = words::named(words);
        self
    }

    /// Whether all clients may do everything, regardless of ACLs, as a [super
    /// user](crate::Builder::super_user) does: not by default. Use it only if the port can be reached by
    /// trusted clients alone.
    ///
    /// Source: ZooKeeper, `skipACL`.
    #[must_use]
    pub fn skip_acl(mut self, skips: bool) -> GatewayBuilder {
        self.skips_acl = skips;
        self
    }

    /// Whether clients that allow it are served reads while this instance has no quorum: not by default.
    ///
    /// When there has been no quorum for a [tick](crate::Builder::tick), all clients are disconnected, and
    /// refused until there is one. With this mode, those that allow read-only service can connect again. They
    /// read this instance's replica, which may be old, under a session that is not one of the cluster; writes
    /// fail with `NotReadOnly`. When there is a quorum again, they are disconnected once more, so that they
    /// reconnect with their sessions.
    ///
    /// Without a replica, as on a [client](crate::Builder::client), it has no effect.
    ///
    /// Source: ZooKeeper, `readonlymode.enabled`.
    #[must_use]
    pub fn read_only_mode(mut self, enabled: bool) -> GatewayBuilder {
        self.read_only = enabled;
        self
    }

    /// Serves clients over TLS only: see [`GatewayTls`]. For clients without TLS, open another gateway at
    /// another port. A client has ten seconds for its handshake.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: GatewayTls) -> GatewayBuilder {
        self.tls = Some(tls);
        self
    }

    /// As [`Gateway::serve`], with these settings.
    ///
    /// # Errors
    /// [`StartError::CannotListen`](crate::StartError::CannotListen) if the address cannot be bound.
    pub fn serve(self, coordinator: &Coordinator, address: impl ToSocketAddrs) -> Result<Gateway> {
        let address = port::resolve(address).map_err(cannot_listen("the gateway's address"))?;
        let shared = coordinator.shared();
        let server =
            Server::bind(Arc::clone(shared), address, self).map_err(cannot_listen(address))?;
        let mut serving = server.port.serving(shared);
        let started = serving.spawn("quorate-gateway", || server.run());
        started.map_err(refused("the gateway's thread"))?;
        Ok(Gateway { serving })
    }
}
