//! The announcements of a node without a cluster to its peers.

use serde::{Deserialize, Serialize};

use crate::types::membership::{Genesis, Member, NodeId, Pledge, Promise};

/// The most members that a cluster is founded with.
pub(crate) const LIST_MAX: usize = 64;

/// The longest address: a host name has 253 characters at most. The same bound holds for zones.
const TEXT_BYTES_MAX: usize = 260;

/// The highest valid round. A proposer counts up by one, so no correct cluster reaches it.
const ROUND_MAX: u64 = 1 << 48;

/// All that a node announces about founding a cluster. Each message is complete, so loss, duplication
/// and delay do no harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcement {
    /// Who announces it.
    pub(crate) member: Member,
    /// The peers that the member was given: see [`normalised`].
    pub(crate) list: Vec<String>,
    /// The cluster that the member belongs to, or 0.
    pub(crate) cluster: u64,
    /// As it is on the member's disk.
    pub(crate) promise: Promise,
}

impl Announcement {
    /// Whether an instance may have sent it, and it is not too long. It came from `from`.
    pub(crate) fn is_valid(&self, from: NodeId) -> bool {
        let Promise { ballot, pledge } = &self.promise;
        // None has promised less than it pledges.
        let may_pledge = |pledge: &Pledge| pledge.ballot <= *ballot && may_found(&pledge.genesis);
        self.member.node == from
            && from != 0
            && is_short(&self.member)
            && self.list.len() <= LIST_MAX
            && self.list.iter().all(|address| address.len() <= TEXT_BYTES_MAX)
            && self.list.is_sorted_by(|one, next| one < next)
            && ballot.round <= ROUND_MAX
            && pledge.as_ref().is_none_or(may_pledge)
    }

    /// Whether its member takes part in founding: one that is not on its own list only joins.
    pub(super) fn founds(&self) -> bool {
        self.list.contains(&normal(&self.member.address))
    }
}

fn may_found(Genesis { cluster, members }: &Genesis) -> bool {
    *cluster != 0
        && (1..=LIST_MAX).contains(&members.len())
        && members.iter().all(|member| member.node != 0 && is_short(member))
        && members.is_sorted_by(|one, next| one.node < next.node)
}

fn is_short(member: &Member) -> bool {
    member.address.len() <= TEXT_BYTES_MAX && member.zone.len() <= TEXT_BYTES_MAX
}

/// A list as all instances write it that were given the same peers: sorted, each of them once.
pub(crate) fn normalised<A: AsRef<str>>(list: &[A]) -> Vec<String> {
    let mut list: Vec<String> = list.iter().map(|address| normal(address.as_ref())).collect();
    list.sort_unstable();
    list.dedup();
    list
}

/// Host names are the same in upper and lower case.
pub(super) fn normal(address: &str) -> String {
    address.trim().to_ascii_lowercase()
}
