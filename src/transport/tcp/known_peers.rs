//! Which nodes may connect: the members that this node knows, and unlisted peers.

use std::collections::BTreeSet;

use crate::transport::handshake::{Hello, Refusal, RefusalCode};
use crate::types::membership::NodeId;

/// Members are listed by [`set_peers`](super::TcpTransport::set_peers). An unlisted peer has
/// completed a handshake and is not listed, or not yet: it wants to join, it is a member that this
/// node has not learned of, it was a member, it founds the cluster together with this node, or it
/// is a client.
#[derive(Debug)]
pub(super) struct KnownPeers {
    unlisted_max: usize,
    members: BTreeSet<NodeId>,
    /// Each has a timer for its next check.
    pub(super) unlisted: BTreeSet<NodeId>,
}

impl KnownPeers {
    pub(super) fn new(unlisted_max: usize) -> KnownPeers {
        KnownPeers { unlisted_max, members: BTreeSet::new(), unlisted: BTreeSet::new() }
    }

    pub(super) fn is_known(&self, node: NodeId) -> bool {
        self.members.contains(&node) || self.unlisted.contains(&node)
    }

    pub(super) fn is_full(&self) -> bool {
        self.unlisted.len() >= self.unlisted_max
    }

    /// Whether the sender of this hello is known or could become an unlisted peer.
    pub(super) fn check(&self, hello: &Hello) -> Result<(), Refusal> {
        let node = hello.from;
        if self.members.contains(&node) && hello.run.is_client() {
            let text = format!("node {node:016x} is a member, but its hello has no address");
            return Err(Refusal::new(RefusalCode::UnknownPeer, text));
        }
        if self.is_known(node) || !self.is_full() {
            return Ok(());
        }
        let text = format!(
            "node {node:016x} is not a member known here, and there are too many such nodes"
        );
        Err(Refusal::new(RefusalCode::UnknownPeer, text))
    }

    /// Replaces the members. Returns the nodes that are no longer members.
    pub(super) fn set_members(&mut self, members: BTreeSet<NodeId>) -> Vec<NodeId> {
        let former = std::mem::replace(&mut self.members, members);
        former.difference(&self.members).copied().collect()
    }
}
