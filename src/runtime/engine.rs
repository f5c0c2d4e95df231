//! The engine of a host: a member of the cluster, or a client of one.

use crate::machine::{Machine, Tree};
use crate::node::Node;
use crate::node::client::Client;
use crate::node::io::{Effects, Input, NodeStatus, Now, Time, WatchId};
use crate::types::membership::NodeId;
use crate::types::metrics::Metrics;
use crate::types::watch::WatchInfo;
use crate::types::znode::Zxid;

/// How many watches are listed in one call. The number is limited so that other work of the node's
/// thread does not wait for long.
pub(crate) const WATCHES_LISTED: usize = 4096;

/// A member or a client. Both take the same inputs and have the same effects.
#[derive(Debug)]
pub(crate) enum Engine {
    Node(Box<Node>),
    Client(Box<Client>),
}

impl From<Node> for Engine {
    fn from(node: Node) -> Engine {
        Engine::Node(Box::new(node))
    }
}

impl From<Client> for Engine {
    fn from(client: Client) -> Engine {
        Engine::Client(Box::new(client))
    }
}

impl Engine {
    pub(crate) fn step(&mut self, now: Now, inputs: impl IntoIterator<Item = Input>) -> Effects {
        match self {
            Engine::Node(node) => node.step(now, inputs),
            Engine::Client(client) => client.step(now, inputs),
        }
    }

    /// Puts the next effects into this memory.
    pub(crate) fn reuse(&mut self, empty: Effects) {
        if let Engine::Node(node) = self {
            node.reuse(empty);
        }
    }

    pub(crate) fn id(&self) -> NodeId {
        match self {
            Engine::Node(node) => node.id(),
            Engine::Client(client) => client.id(),
        }
    }

    pub(crate) fn node(&self) -> Option<&Node> {
        match self {
            Engine::Node(node) => Some(node),
            Engine::Client(_) => None,
        }
    }

    /// All metrics but those of the host and of the network.
    pub(crate) fn metrics(&self) -> Metrics {
        match self {
            Engine::Node(node) => node.metrics(),
            Engine::Client(client) => client.metrics(),
        }
    }

    /// The client; `None` for a member.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn client(&self) -> Option<&Client> {
        match self {
            Engine::Node(_) => None,
            Engine::Client(client) => Some(client),
        }
    }

    /// The replica; an empty tree for a client, which has none.
    pub(crate) fn tree(&self) -> Tree {
        self.node().map_or_else(|| Machine::new().tree(), |node| node.machine().tree())
    }

    pub(crate) fn status(&self) -> NodeStatus {
        match self {
            Engine::Node(node) => node.status(),
            Engine::Client(client) => client.status(),
        }
    }

    /// The term (0 if unknown), the leader (0 if unknown) and whether that is this node.
    pub(crate) fn leadership(&self) -> (u64, NodeId, bool) {
        match self {
            Engine::Node(node) => node.leadership(),
            Engine::Client(client) => (0, client.leader(), false),
        }
    }

    /// The last write that the replica, or a client's member, has shown.
    pub(crate) fn zxid(&self) -> Zxid {
        match self {
            Engine::Node(node) => node.machine().zxid(),
            Engine::Client(client) => client.seen(),
        }
    }

    /// The version that the cluster uses.
    pub(crate) fn version(&self) -> u16 {
        match self {
            Engine::Node(node) => node.machine().version(),
            Engine::Client(client) => client.version(),
        }
    }

    /// Whether it was up to date lately.
    pub(crate) fn is_fresh(&self, now: Time) -> bool {
        match self {
            Engine::Node(node) => node.is_fresh(now),
            Engine::Client(client) => client.is_fresh(now),
        }
    }

    /// The cluster of a member; 0 if it has none yet, and for a client.
    pub(crate) fn cluster(&self) -> u64 {
        self.node().map_or(0, Node::cluster)
    }

    /// The first [`WATCHES_LISTED`] watches of users after this one, in the order of their numbers.
    pub(crate) fn watches_after(&self, after: Option<WatchId>) -> Vec<(WatchId, WatchInfo)> {
        match self {
            Engine::Node(node) => node.watches_after(after).take(WATCHES_LISTED).collect(),
            Engine::Client(client) => client.watches_after(after).take(WATCHES_LISTED).collect(),
        }
    }
}
