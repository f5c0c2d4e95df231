//! Which nodes may connect, and as which process each has: the members that this node knows, and unlisted peers.

use std::collections::{BTreeMap, BTreeSet};

use crate::transport::handshake::{Hello, Refusal, RefusalCode};
use crate::transport::{TransportOptions, files};
use crate::types::membership::NodeId;
use crate::types::right::Right;

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
    /// The run of the process that has connected as each peer.
    pub(super) connected: BTreeMap<NodeId, u64>,
}

impl KnownPeers {
    pub(super) fn new(unlisted_max: usize) -> KnownPeers {
        let (members, unlisted, connected) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        KnownPeers { unlisted_max, members, unlisted, connected }
    }

    pub(super) fn is_known(&self, node: NodeId) -> bool {
        self.members.contains(&node) || self.unlisted.contains(&node)
    }

    pub(super) fn is_full(&self) -> bool {
        self.unlisted.len() >= self.unlisted_max
    }

    /// How many unlisted peers there may be before another one with this right is refused.
    fn room(&self, right: Right) -> usize {
        match right {
            Right::Member => self.unlisted_max,
            Right::Operator | Right::Client => files::room(self.unlisted_max, right),
        }
    }

    /// Whether there is a place for this node.
    pub(super) fn has_room(&self, node: NodeId, right: Right) -> bool {
        self.is_known(node) || self.unlisted.len() < self.room(right)
    }

    /// Whether the sender of this hello could become an unlisted peer, or is known.
    pub(super) fn check(&self, hello: &Hello) -> Result<(), Refusal> {
        let node = hello.from;
        if self.members.contains(&node) && hello.run.is_client() {
            let text = format!("node {node:016x} is a member, but its hello has no address");
            return Err(Refusal::new(RefusalCode::UnknownPeer, text));
        }
        Ok(())
    }

    /// Replaces the members. Returns the nodes that are no longer members.
    pub(super) fn set_members(&mut self, members: BTreeSet<NodeId>) -> Vec<NodeId> {
        let former = std::mem::replace(&mut self.members, members);
        former.difference(&self.members).copied().collect()
    }
}

/// What the sender of this hello may use.
pub(super) fn rank(hello: &Hello, right: Right) -> Right {
    if hello.run.is_client() { rank_of_client(right) } else { Right::Member }
}

pub(super) fn rank_of_client(right: Right) -> Right {
    right.min(Right::Operator)
}

/// The most connections in handshake, in all and from one address, with so many files open. Nobody is known before
/// the handshake, so few of the files that clients leave are for that.
pub(super) fn handshakes_max(options: &TransportOptions, open_files: usize) -> [usize; 2] {
    let max = [options.handshakes_max, options.handshakes_per_address_max];
    let Some(most) = files::files_max().filter(|most| is_short(*most, Right::Client, open_files))
    else {
        return max;
    };
    let few = (most - files::room(most, Right::Operator)).max(2);
    [max[0].min(few), max[1].min(few / 2)]
}

/// Whether so many files are open that none is left for this right.
pub(super) fn is_short(files_max: usize, right: Right, open_files: usize) -> bool {
    open_files >= files::room(files_max, right)
}
