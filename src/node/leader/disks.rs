//! What a leader knows of the room on the members' disks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::node::context::Context;
use crate::node::io::spare;
use crate::node::leader::Leading;
use crate::node::membership::Membership;
use crate::node::raft::core::Raft;
use crate::node::room::Room;
use crate::types::membership::NodeId;

impl Leading {
    /// Whether this leader knows that a member has little room.
    pub(super) fn is_disk_low(&self, node: NodeId, room: &Room, cx: &Context) -> bool {
        if node == cx.id {
            return room.is_low;
        }
        self.members.disk_low.get(&node).is_some_and(|(_, until)| cx.now.mono < *until)
    }

    /// The members with little room, and for how long as far as this leader knows.
    pub(super) fn disks_low(&self, room: &Room, cx: &Context) -> BTreeMap<NodeId, Duration> {
        let since = self.members.disk_low.iter().map(|(node, (since, _))| (*node, *since));
        let low = since.chain([(cx.id, cx.now.mono)]);
        let low = low.filter(|(node, _)| self.is_disk_low(*node, room, cx));
        low.map(|(node, since)| (node, cx.now.mono.saturating_sub(since))).collect()
    }

    /// This leader's report: the members with little room, and whether too few voters answer and have
    /// room.
    pub(super) fn room_report(
        &self,
        silent: &BTreeSet<NodeId>,
        raft: &Raft,
        room: &Room,
        cx: &Context,
    ) -> (BTreeSet<NodeId>, bool) {
        let low: BTreeSet<NodeId> = self.disks_low(room, cx).into_keys().collect();
        let voting = raft.log().voting();
        let lacks_room = |voters: &[NodeId]| {
            let is_lost = |voter: NodeId| low.contains(&voter) || silent.contains(&voter);
            let has_low = voters.iter().any(|voter| low.contains(voter));
            has_low && spare(voters.iter().copied(), is_lost).is_none()
        };
        let refuses = lacks_room(&voting.voters) || lacks_room(&voting.voters_outgoing);
        (low, refuses && !planted!(FullDisksIgnored))
    }

    /// Whether this leader has little room, and another voter that could lead has enough. Handing over
    /// gains nothing if writes are refused.
    pub(super) fn has_the_full_disk(
        &self,
        raft: &Raft,
        membership: &Membership,
        room: &Room,
        cx: &Context,
    ) -> bool {
        // Others have had the time to report their disks, and this leader has reported its own.
        let knows = room.has_reported(cx.id) && !room.refuses_writes;
        let could = |voter| {
            !self.is_disk_low(voter, room, cx) && self.is_level(voter, raft, membership, cx)
        };
        room.is_low && knows && raft.others_decide(could)
    }
}
