//! An operator's actions, on the leader.

use crate::node::admin::message::AdminReply;
use crate::node::context::Context;
use crate::node::leader::Leading;
use crate::node::membership::Membership;
use crate::node::raft::core::Raft;
use crate::types::membership::NodeId;

/// How many entries a voter may lack to be handed the leadership.
const LACKED_MAX: u64 = 1000;

impl Leading {
    /// Hands leadership over to a voter that can take it.
    pub(in crate::node) fn move_leader(
        &mut self,
        to: NodeId,
        raft: &mut Raft,
        membership: &Membership,
        cx: &Context,
    ) -> AdminReply {
        let refused = |reason: &str| AdminReply::Refused { reason: reason.to_owned() };
        let not_yet = |reason: &str| AdminReply::NotYet { reason: reason.to_owned() };
        if to == cx.id {
            return AdminReply::Gone;
        }
        if !raft.is_member(to) {
            return refused("it is not a member");
        }
        if !raft.log().voting().voters.contains(&to) {
            return refused("it has no vote, and only voters can lead");
        }
        if !membership.answers(to, cx) {
            return not_yet("it does not answer the leader");
        }
        if membership.closing.is_closing(to) {
            return not_yet("it is being closed");
        }
        // Writes wait until the new leader has all of the log, and fail if that takes long.
        let last = raft.last_index();
        let matched = raft.progress(to).map_or(0, |progress| progress.matched);
        if last.saturating_sub(matched) > LACKED_MAX {
            return not_yet("it lacks much of the log; try again when it has caught up");
        }
        self.hand_over_to(to, raft, cx.now.mono);
        AdminReply::Begun
    }

    /// A voter's removal must leave a majority that answers.
    pub(in crate::node) fn remove_dead(
        &mut self,
        member: NodeId,
        raft: &Raft,
        membership: &Membership,
        cx: &Context,
    ) -> AdminReply {
        // After a pause of its process, or of its machine, a leader takes living members for dead; and for a
        // moment, a member that has just died for a living one.
        let not_yet = |reason: String| AdminReply::NotYet { reason };
        if !raft.is_member(member) {
            return AdminReply::Gone;
        }
        if member == cx.id || !self.is_silent(member, membership, cx) {
            return not_yet(
                "it is alive, or was a moment ago: have it leave (Coordinator::leave), or stop it and \
                 try again after some seconds"
                    .to_owned(),
            );
        }
        let voters = &raft.log().voting().voters;
        let left: Vec<NodeId> = voters.iter().copied().filter(|node| *node != member).collect();
        let alive =
            left.iter().filter(|node| **node == cx.id || membership.answers(**node, cx)).count();
        if 2 * alive <= left.len() {
            return not_yet(format!(
                "of the {} voters that would be left only {alive} answer, so the cluster would have no \
                 quorum; start the others first",
                left.len()
            ));
        }
        self.members.give_up(member, cx.now.mono);
        AdminReply::Begun
    }
}
