//! The version that each peer supports, and the one that the cluster may act by: see
//! `crate::types::version`.
//!
//! A node learns its peers' versions from the handshakes of its own connections. The leader raises
//! the cluster's version with a log entry once all members are connected and support a higher one.
//! Every replica takes the version from the log.
//!
//! A node does not send a request that needs a higher version than its replica has seen. The request
//! waits at its node while the version may still be raised, since the members need a moment to
//! connect after a start. It waits at most [`PATIENCE_TICKS`] after the last change (of the leader,
//! or of a member's version), and not at all if a member is known to be too old. Then it is refused.
//!
//! Invariant: every member has announced at least the version that is proposed, over a connection
//! that is still open. (A member that is taken back to an older build at that moment stops.)

use std::collections::BTreeMap;

use crate::node::context::Context;
use crate::node::io::Time;
use crate::types::membership::NodeId;

/// How many ticks the members have to connect to each other: the usual value of ZooKeeper's
/// `syncLimit`.
pub(crate) const PATIENCE_TICKS: u32 = 5;

#[derive(Debug)]
pub(crate) struct Versions {
    /// The version that this node supports.
    own: u16,
    /// The versions that peers last reported, and whether they are connected.
    reported: BTreeMap<NodeId, (u16, bool)>,
    /// Until when members may still connect.
    settled_at: Time,
}

/// Which of a node's requests may be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gate {
    /// The cluster's version as this replica has seen it. Requests that need no later one are sent.
    pub(crate) version: u16,
    /// The version that the cluster may have soon. Requests that need a later version are refused, and
    /// those in between wait.
    pub(crate) possible: u16,
}

/// Until when the versions of members stay unsettled after a change at this moment.
pub(in crate::node) fn settled_at(cx: &Context) -> Time {
    cx.now.mono + cx.config.tick * PATIENCE_TICKS
}

impl Versions {
    pub(crate) fn new(own: u16) -> Versions {
        Versions { own, reported: BTreeMap::new(), settled_at: Time::ZERO }
    }

    pub(crate) fn own(&self) -> u16 {
        self.own
    }

    /// Notes a connection to a peer of this version. If that changes anything, the versions count as
    /// unsettled until `settled_at`.
    pub(crate) fn connected(&mut self, peer: NodeId, version: u16, settled_at: Time) {
        let before = self.reported.insert(peer, (version, true));
        if before.is_none_or(|(before, _)| before != version) {
            self.unsettle(settled_at);
        }
    }

    /// Notes that a peer is not connected. It may come back with another version.
    pub(crate) fn lost(&mut self, peer: NodeId) {
        if let Some((_, connected)) = self.reported.get_mut(&peer) {
            *connected = false;
        }
    }

    /// Forgets a peer that is not a member.
    pub(crate) fn forget(&mut self, peer: NodeId) {
        self.reported.remove(&peer);
    }

    pub(crate) fn is_connected(&self, peer: NodeId) -> bool {
        self.reported.get(&peer).is_some_and(|(_, connected)| *connected)
    }

    pub(crate) fn connected_peers(&self) -> impl Iterator<Item = NodeId> {
        self.reported.iter().filter(|(_, (_, connected))| *connected).map(|(peer, _)| *peer)
    }

    /// Notes a change of the leader: members have until `settled_at` to connect.
    pub(crate) fn unsettle(&mut self, settled_at: Time) {
        self.settled_at = self.settled_at.max(settled_at);
    }

    /// The version that the peer last reported, if it ever has.
    pub(crate) fn of(&self, peer: NodeId) -> Option<u16> {
        self.reported.get(&peer).map(|(version, _)| *version)
    }

    /// The version that all members support, if each of the others is connected.
    pub(crate) fn common(&self, others: impl Iterator<Item = NodeId>) -> Option<u16> {
        let mut others = others.skip(usize::from(planted!(VersionUnknown)));
        others.try_fold(self.own, |lowest, peer| match self.reported.get(&peer) {
            Some((version, true)) if !planted!(VersionStays) => Some(lowest.min(*version)),
            _ => None,
        })
    }

    /// Which requests may be sent now, by this replica's state.
    pub(crate) fn gate(
        &self,
        version: u16,
        mut others: impl Iterator<Item = NodeId>,
        now: Time,
    ) -> Gate {
        let may_rise = version < self.own && now < self.settled_at;
        let lowest = || {
            others.try_fold(self.own, |lowest, peer| {
                let reported = self.of(peer).unwrap_or(lowest);
                (reported > version).then_some(lowest.min(reported))
            })
        };
        Gate { version, possible: may_rise.then(lowest).flatten().unwrap_or(version) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Time = Time::from_secs(1);

    #[test]
    fn all_members_must_be_connected_and_have_reported_their_version() {
        let mut versions = Versions::new(3);
        let common = |versions: &Versions| versions.common([2, 3].into_iter());
        assert_eq!(common(&versions), None);
        versions.connected(2, 2, S);
        assert_eq!(common(&versions), None);
        versions.connected(3, 4, S);
        assert_eq!(common(&versions), Some(2));
        versions.lost(3);
        assert_eq!(common(&versions), None);
        versions.connected(3, 1, S);
        assert_eq!(common(&versions), Some(1), "it was taken back");
        assert_eq!(versions.common([].into_iter()), Some(3), "alone");
    }

    #[test]
    fn requests_wait_only_while_their_version_may_still_come() {
        let mut versions = Versions::new(2);
        versions.unsettle(10 * S);
        let gate =
            |versions: &Versions, version, now| versions.gate(version, [2, 3].into_iter(), now);
        let waits = Gate { version: 1, possible: 2 };
        let refuses = Gate { version: 1, possible: 1 };
        assert_eq!(gate(&versions, 1, S), waits, "no peer has reported yet");
        versions.connected(2, 2, 10 * S);
        assert_eq!(gate(&versions, 1, S), waits);
        assert_eq!(gate(&versions, 1, 10 * S), refuses, "it took too long");
        versions.connected(3, 1, 20 * S);
        versions.lost(3);
        assert_eq!(gate(&versions, 1, S), refuses, "it may come back as another, but is not there");
        versions.connected(3, 9, 30 * S);
        assert_eq!(gate(&versions, 1, 29 * S), waits, "the entry is under way");
        versions.connected(3, 9, 40 * S);
        assert_eq!(
            gate(&versions, 1, 30 * S),
            refuses,
            "a change to the same version changes nothing"
        );
        assert_eq!(gate(&versions, 2, S), Gate { version: 2, possible: 2 });
        assert_eq!(gate(&Versions::new(1), 1, S), refuses, "this node itself is too old");
    }
}
