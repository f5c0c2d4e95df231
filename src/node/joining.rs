//! The requests by which a node joins, moves or leaves, sent and received, and whether a voter may go now.

use super::context::Context;
use super::io::QuorumState;
use super::leader::{self, Leading};
use super::membership::Membership;
use super::message::PeerMessage;
use super::raft::core::Raft;
use super::room::Room;
use super::timings::{REQUEST_PERIOD, REQUEST_TIME};
use crate::machine::Machine;
use crate::types::membership::{Member, NodeId};

impl Membership {
    /// An instance asks to be a member.
    pub(super) fn take_join(
        &mut self,
        from: NodeId,
        member: Member,
        leading: &mut Option<Leading>,
        raft: &Raft,
        machine: &Machine,
        cx: &mut Context,
    ) {
        let node = member.node;
        // A member forwards the request of an instance that is no member yet.
        let handed_on = raft.is_member(from) && !raft.is_member(node);
        if (node != from && !handed_on) || !member.is_valid() {
            tracing::warn!(from = %self.named(from), "refused a request to join that is not the sender's own");
            return;
        }
        self.note_newcomer(node, raft, cx.now.mono);
        let Some(leading) = leader::serving(leading) else {
            self.note_blank(from, &member, raft, machine, cx);
            // The instance may reach only a follower.
            let leader = raft.leader();
            if node == from && ![0, cx.id, from].contains(&leader) {
                cx.send(leader, PeerMessage::Join { member });
            }
            return;
        };
        leading.members.wants_to_join(member, cx.now.mono);
    }

    /// A node that is a member by its own log sends its address and zone.
    pub(super) fn take_present(
        &mut self,
        from: NodeId,
        member: Member,
        leading: &mut Option<Leading>,
        raft: &Raft,
        cx: &mut Context,
    ) {
        if !raft.is_member(from) {
            self.send_removed(from, raft, cx);
        } else if member.node == from
            && member.is_valid()
            && let Some(leading) = leader::serving(leading)
        {
            leading.members.presents_itself(member, cx.now.mono);
        }
    }

    pub(super) fn take_leave(
        &mut self,
        from: NodeId,
        leading: &mut Option<Leading>,
        raft: &Raft,
        cx: &mut Context,
    ) {
        if !raft.is_member(from) {
            self.send_removed(from, raft, cx);
        } else if let Some(leading) = leader::serving(leading) {
            leading.members.wants_to_leave(from, cx.now.mono);
        }
    }

    /// Sends this node's requests, with its address and zone, to all connected peers, since any of
    /// them may be the leader.
    pub(super) fn send_requests(
        &mut self,
        joins: bool,
        leading: &mut Option<Leading>,
        raft: &Raft,
        machine: &Machine,
        cx: &mut Context,
    ) {
        let now = cx.now.mono;
        if now < self.send_at {
            return;
        }
        self.send_at = now + REQUEST_PERIOD;
        let (leaving, member) = (self.leaving, self.me.clone());
        let mut requests = Vec::new();
        if raft.is_own_member() {
            let (roster, _) = machine.roster();
            let differs = roster.get(cx.id).is_none_or(|seat| seat.member != member);
            if differs || raft.lacks_leader(cx) {
                requests.push(PeerMessage::Present { member });
            }
            if leaving {
                requests.push(PeerMessage::Leave);
            }
        } else if joins && !leaving {
            requests.push(PeerMessage::Join { member });
        }
        if let Some(Leading { members, .. }) = leader::serving(leading) {
            for request in requests {
                match request {
                    PeerMessage::Present { member } => members.presents_itself(member, now),
                    _ => members.wants_to_leave(cx.id, now),
                }
            }
            return;
        }
        let to: Vec<NodeId> = self.versions.connected_peers().collect();
        for request in requests {
            cx.effects.messages.extend(to.iter().map(|peer| (*peer, request.clone())));
        }
    }

    /// Whether stopping this voter now would end the majority, or writes, while stopping it a little later
    /// would not: an instance that could vote in the place of a silent voter has joined or asks to,
    /// or a change of the voters is under way.
    pub(super) fn must_stay(&self, raft: &Raft, room: &Room, cx: &Context) -> bool {
        let seen = self.availability(raft, room, cx);
        if !seen.has_leader || !raft.is_voter(cx.id) {
            return false;
        }
        let joint = !seen.outgoing.is_empty();
        let asked = self.newcomer_at.is_some_and(|at| cx.now.mono < at + REQUEST_TIME);
        // Those that are being closed take no vote.
        let learners = seen.learners.iter().any(|learner| !self.closing.is_closing(*learner));
        if !joint && !asked && !learners {
            return false;
        }
        // If this voter is always needed, as one of two, waiting gains nothing.
        let could_go = joint || seen.could_decide_without(cx.id);
        could_go && (!seen.is_reported || seen.spare(Some(cx.id)).is_none())
    }

    /// Whether the cluster can decide, and how many members it could still lose.
    pub(super) fn availability(&self, raft: &Raft, room: &Room, cx: &Context) -> QuorumState {
        let voting = raft.log().voting();
        let silent = self.silent().into_iter().flatten().copied();
        QuorumState {
            voters: voting.voters.clone(),
            learners: voting.learners.clone(),
            outgoing: voting.voters_outgoing.clone(),
            silent: silent.filter(|node| raft.is_voter(*node)).collect(),
            // During an election, the former leader still counts.
            is_reported: self.silent_in() == raft.term(),
            has_leader: cx.stopped.is_none() && !voting.voters.is_empty() && !raft.lacks_leader(cx),
            disk_low: room.all_low(cx.id).into_iter().collect(),
            refuses_writes: room.refuses_writes,
        }
    }
}
