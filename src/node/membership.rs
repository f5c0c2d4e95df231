//! A node's part in the membership: what it knows of the members, and whether it is one. Its requests to
//! join and to leave are in `joining`, the leader's part is in `leader`.
//!
//! A node that is not a member of its cluster sends [`PeerMessage::Join`] to all peers that it
//! reaches, again and again, until the log that it receives makes it one. A member sends
//! [`PeerMessage::Present`] while its address or zone differs from the roster, and while it receives
//! nothing from a leader. Only the leader acts on either. A request to join or to leave is forgotten
//! when it is not repeated.
//!
//! A member that receives from a node which is not a member replies with [`PeerMessage::Removed`]. A
//! node that was removed while it was away, and is still a member by its own log, learns it in this
//! way: it stops, and its directory is marked. It can never come back under its old id, because it
//! has voted under that id, and the log has removed it.

use std::collections::{BTreeMap, BTreeSet};

use super::clocks::Clocks;
use super::closing::{ClosingMembers, ClosingProgress};
use super::contacts::Contacts;
use super::context::Context;
use super::io::{Problem, Time};
use super::leader::preference::Preference;
use super::message::PeerMessage;
use super::raft::core::Raft;
use super::timings::REQUEST_PERIOD;
use super::versions::Versions;
use crate::machine::Machine;
use crate::types::membership::{MEMBERS_MAX, Member, Named, NodeId};
use crate::types::znode::Zxid;

/// Why a node stops that was a member.
pub(crate) const REMOVED: &str = "this instance is not a member of the cluster any more: it has left, or was replaced after it \
     had been away for long; join again, and it comes back as a new member";
/// What is known of a cluster without a leader. Each item is forgotten unless it is repeated.
#[derive(Debug, Default)]
pub(super) struct QuorumLoss {
    /// The addresses of instances that asked to join, by their ids.
    pub(super) blank: BTreeMap<NodeId, (String, Time)>,
    /// How many voters there are and which of them are missing, as reported by members.
    pub(super) reports: BTreeMap<NodeId, (usize, Vec<String>, Time)>,
}

/// What a node knows of the members besides the log.
#[derive(Debug)]
pub(super) struct Membership {
    /// This node as a member.
    pub(super) me: Member,
    /// The versions of connected peers.
    pub(super) versions: Versions,
    pub(super) contacts: Contacts,
    pub(super) closing: ClosingMembers,
    pub(super) clocks: Clocks,
    /// The offers of the lead that this node has made.
    pub(super) preference: Preference,
    pub(super) quorum_loss: QuorumLoss,
    /// Whether this node is to leave.
    pub(super) leaving: bool,
    /// When the node next sends its requests.
    pub(super) send_at: Time,
    /// The voters that do not answer the leader, or store nothing, and the term of the leader that last reported that.
    silent: Option<(BTreeSet<NodeId>, u64)>,
    /// Whether this node has been settled since it started: see [`Membership::note_place`].
    pub(super) is_placed: bool,
    /// When an instance that is not a member last asked to join.
    pub(super) newcomer_at: Option<Time>,
    /// The nodes that were sent [`PeerMessage::Removed`], and when.
    notified_removed: BTreeMap<NodeId, Time>,
    /// The members as they were last handed to the host, and the last change of the roster that was looked at for
    /// that.
    handed: (Option<Vec<Member>>, Option<Zxid>),
}

impl Membership {
    /// What a node knows that has just started, with these other members.
    pub(super) fn new(
        me: Member,
        version: u16,
        others: impl Iterator<Item = NodeId>,
    ) -> Membership {
        Membership {
            me,
            versions: Versions::new(version),
            contacts: Contacts::new(others),
            closing: ClosingMembers::default(),
            clocks: Clocks::default(),
            preference: Preference::default(),
            quorum_loss: QuorumLoss::default(),
            leaving: false,
            send_at: Time::ZERO,
            silent: None,
            is_placed: false,
            newcomer_at: None,
            notified_removed: BTreeMap::new(),
            handed: (None, None),
        }
    }

    /// The voters that do not answer the leader of this term, or store nothing.
    pub(super) fn note_silent(&mut self, silent: BTreeSet<NodeId>, term: u64) {
        self.silent = Some((silent, term));
    }

    /// The voters that do not answer the leader, or store nothing, as it last reported.
    pub(super) fn silent(&self) -> Option<&BTreeSet<NodeId>> {
        self.silent.as_ref().map(|(silent, _)| silent)
    }

    /// The term of the leader that reported it.
    pub(super) fn silent_in(&self) -> u64 {
        self.silent.as_ref().map_or(0, |(_, term)| *term)
    }

    /// The members as they were last handed to the host.
    pub(super) fn members(&self) -> &[Member] {
        self.handed.0.as_deref().unwrap_or_default()
    }
}

impl Membership {
    /// A node, as a log line names it.
    pub(super) fn named(&self, node: NodeId) -> Named {
        let known = self.members().iter().find(|member| member.node == node);
        let own = (node == self.me.node).then_some(&self.me);
        let address = known.or(own).map(|member| member.address.clone());
        Named { node, address }
    }

    /// This node, as a log line names it.
    pub(super) fn own_name(&self) -> Named {
        self.named(self.me.node)
    }

    /// The other members, and why this node cannot reach them: not the one whose place it takes at its own address.
    pub(super) fn others(&self) -> Vec<(NodeId, Option<Problem>)> {
        let own = Some(&self.me.address).filter(|own| !own.is_empty());
        let is_here = |node| own.is_some() && self.named(node).address.as_ref() == own;
        self.contacts.problems().iter().filter(|(node, _)| !is_here(*node)).cloned().collect()
    }

    /// Notes an instance that looks for its cluster or asks to join.
    pub(super) fn note_newcomer(&mut self, node: NodeId, raft: &Raft, now: Time) {
        if !raft.is_member(node) {
            self.newcomer_at = Some(now);
        }
    }

    /// Replies to a node that is not a member by this node's log, and may not know it. Every member
    /// replies, since the node may reach no other member. The index in the reply lets a node that
    /// became a member later ignore it.
    pub(super) fn send_removed(&mut self, to: NodeId, raft: &Raft, cx: &mut Context) {
        let now = cx.now.mono;
        let gone = &mut self.notified_removed;
        gone.retain(|_, sent_at| now < *sent_at + REQUEST_PERIOD);
        if gone.contains_key(&to) || gone.len() >= MEMBERS_MAX {
            return;
        }
        gone.insert(to, now);
        if !raft.is_own_member() {
            return;
        }
        let index = raft.log().applied().index;
        cx.send(to, PeerMessage::Removed { index });
    }

    /// A member reports that this node was no longer a member after this entry. A sender that this
    /// node does not know as a member is believed only while there is no leader: all members that
    /// this node knows may have been replaced while it was away.
    pub(super) fn take_removed(
        &self,
        from: NodeId,
        index: u64,
        raft: &Raft,
        cx: &Context,
    ) -> Result<(), String> {
        if !raft.is_member(from) && !raft.lacks_leader(cx) {
            tracing::warn!(from = %self.named(from), "ignored a report of a removal that came from no member");
            return Ok(());
        }
        let is_old = index <= raft.log().applied().index;
        if !raft.is_own_member() || is_old {
            return Ok(());
        }
        Err(REMOVED.to_owned())
    }

    /// The leader reports which voters are silent, and which learners are settled.
    pub(super) fn take_health(&mut self, silent: Vec<NodeId>, placed: &[NodeId], term: u64) {
        if placed.contains(&self.me.node) && !self.is_placed {
            self.is_placed = true;
            let node = self.own_name();
            tracing::info!(%node, "this member is level with the cluster, and has no vote");
        }
        self.note_silent(silent.into_iter().collect(), term);
    }

    /// This node wants to leave for good. It repeats its request until it has left.
    ///
    /// # Errors
    /// [`REMOVED`], if this node is not a member.
    pub(super) fn leave(&mut self, raft: &Raft, now: Time) -> Result<(), String> {
        self.leaving = true;
        self.send_at = now;
        if raft.is_own_member() { Ok(()) } else { Err(REMOVED.to_owned()) }
    }

    /// A connection to a peer was made: a node that wants to be a member need not wait to ask for it.
    pub(super) fn ask_to_join(&self, peer: NodeId, joins: bool, raft: &Raft, cx: &mut Context) {
        if joins && !self.leaving && !raft.is_own_member() {
            let member = self.me.clone();
            cx.send(peer, PeerMessage::Join { member });
        }
    }

    /// Whether a member is connected and has sent something within the last few heartbeats.
    pub(super) fn answers(&self, node: NodeId, cx: &Context) -> bool {
        let last = self.contacts.last_received(node);
        let recent = |at| cx.now.mono <= at + cx.config.timings().answer();
        self.versions.is_connected(node) && last.is_some_and(recent)
    }

    /// Notes whether this node is settled: it is up to date and votes, with no joint change under
    /// way, or it is a learner and the leader reports that it is to stay one (`PlanInputs::placed`).
    ///
    /// An instance with an empty disk at a voter's address begins as a learner, while its former
    /// self still counts as the voter. Until the instance has the vote, losing one more voter may
    /// end the majority for good.
    pub(super) fn note_place(&mut self, is_fresh: bool, raft: &Raft) {
        if self.is_placed || !is_fresh {
            return;
        }
        let voting = raft.log().voting();
        let votes = voting.voters.contains(&self.me.node) && voting.voters_outgoing.is_empty();
        self.is_placed = votes || planted!(ReadyBeforePlace);
        if self.is_placed {
            tracing::info!(node = %self.own_name(), "this member is level with the cluster, and votes");
        }
    }

    /// Hands the members to the host, when they have changed.
    pub(super) fn hand_members(&mut self, machine: &Machine, cx: &mut Context) {
        let changed_at = machine.roster_changed();
        if changed_at == self.handed.1 {
            return;
        }
        let (roster, _) = machine.roster();
        let members: Vec<Member> = roster.members().cloned().collect();
        // Without a cluster there are none. Those of its founding have the same zxid.
        if members.is_empty() {
            return;
        }
        self.handed.1 = changed_at;
        if self.handed.0.as_ref() != Some(&members) {
            self.handed.0 = Some(members.clone());
            cx.effects.members = Some(members);
        }
    }
}

impl Membership {
    /// Whether this member leaves an election to others: it is being closed, and has nothing left to do or
    /// another voter may stand. The others get the time of one election timeout more. If none of them can
    /// win, since only this member has the whole log, it stands after that.
    pub(super) fn leaves_election(&self, raft: &Raft, cx: &Context) -> bool {
        let Some(done) = self.closing.own.filter(|_| !planted!(ClosersLead)) else {
            return false;
        };
        // Followers send each other nothing, so whether one answers is not known.
        let could = |node| {
            let is_connected = self.versions.is_connected(node);
            raft.is_voter(node) && is_connected && !self.closing.is_closing(node)
        };
        let head_start = raft.elections.led_at + cx.config.timings().election();
        done || (cx.now.mono < head_start && raft.others().any(could))
    }

    /// Whether this member may not stop yet although its sessions are closed: it hands over, or others that
    /// are being closed need it. `led`: it has led since it began to close, so that its vote may be needed to
    /// elect the next leader.
    pub(super) fn is_needed_to_close(&self, led: bool, raft: &Raft, cx: &Context) -> bool {
        let leads = raft.leads();
        let may_lead = |node| self.contacts.is_reached(node) && !self.closing.is_closing(node);
        let successor = raft.others().any(may_lead);
        (successor && (leads || (led && raft.leader() == 0))) || self.is_needed_by_closers(raft, cx)
    }

    /// Whether other members that are being closed still close sessions, and cannot do so without this one.
    pub(super) fn is_needed_by_closers(&self, raft: &Raft, cx: &Context) -> bool {
        let busy = |node| self.closing.is(node, ClosingProgress::Busy);
        // All others that are being closed may be done, and stop, at the same moment as this one: the last entries
        // would lack a majority.
        let stays = |node| self.answers(node, cx) && !self.closing.is_closing(node);
        raft.is_voter(cx.id)
            && raft.others().any(busy)
            && (raft.leads() || !raft.others_decide(stays))
            && !planted!(CloserLeavesOthers)
    }
}
