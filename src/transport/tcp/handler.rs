//! What the node and the network thread ask of each other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::node::message::PeerMessage;
use crate::transport::{RemotePeer, TransportEvent};
use crate::types::certificate::Expiry;
use crate::types::membership::NodeId;

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
    fn send(&mut self, messages: &[(NodeId, PeerMessage)]);

    /// The node has stopped, for this reason: closes all connections, and refuses new ones with the reason. The
    /// handler gets its turns still.
    fn stop(&mut self, reason: String);

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

    /// When the certificates expire that it uses now.
    fn certificates(&self) -> Arc<[Expiry]>;
}
