//! What a leader knows of the room on the members' disks.

use std::collections::BTreeSet;

use crate::node::context::Context;
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
        let until = self.members.disk_low.get(&node);
        until.is_some_and(|until| cx.now.mono < *until)
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
        let others = self.members.disk_low.keys().copied();
        let low: BTreeSet<NodeId> =
            others.chain([cx.id]).filter(|node| self.is_disk_low(*node, room, cx)).collect();
        let voting = raft.log().voting();
        let lacks_room = |voters: &[NodeId]| {
            let have =
                voters.iter().filter(|voter| !low.contains(voter) && !silent.contains(voter));
            2 * have.count() <= voters.len() && voters.iter().any(|voter| low.contains(voter))
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
