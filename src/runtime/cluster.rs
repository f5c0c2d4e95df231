//! What an instance knows of its cluster: which one it is, its members, and who of them it is itself.

use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use once_cell::sync::OnceCell;

use crate::types::membership::{Member, NodeId};

pub(crate) struct KnownCluster {
    id: AtomicU64,
    /// This instance.
    pub(crate) node: NodeId,
    /// The members, as this replica or a client's member knows them.
    pub(crate) members: ArcSwap<Vec<Member>>,
    /// The address of this instance, used while it is not in the list of members.
    own_address: OnceCell<String>,
}

impl KnownCluster {
    pub(super) fn new(node: NodeId, members: Vec<Member>) -> KnownCluster {
        KnownCluster {
            id: AtomicU64::new(0),
            node,
            members: ArcSwap::from_pointee(members),
            own_address: OnceCell::new(),
        }
    }

    /// The cluster's id; 0 while it is not known.
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    pub(crate) fn set_id(&self, id: u64) {
        self.id.store(id, Ordering::Relaxed);
    }

    pub(crate) fn address(&self, node: NodeId) -> Option<String> {
        let members = self.members.load();
        let member = members.iter().find(|member| member.node == node)?;
        Some(member.address.clone())
    }

    /// The address by which others reach this instance.
    pub(crate) fn own_address(&self) -> String {
        let listed = self.address(self.node);
        listed.or_else(|| self.own_address.get().cloned()).unwrap_or_default()
    }

    /// Sets the address by which others reach this instance, unless the list of members has another
    /// one.
    pub(crate) fn set_own_address(&self, address: String) {
        let _ = self.own_address.set(address);
    }
}
