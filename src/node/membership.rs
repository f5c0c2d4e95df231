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
use std::time::Duration;

use super::clocks::Clocks;
use super::closing::{ClosingMembers, ClosingProgress};
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
/// How long a process that was refused as a copy is remembered. It tries again sooner.
const DUPLICATE_TIME: Duration = Duration::from_secs(30);

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
    /// All other members, each with what keeps this node from reaching it.
    pub(super) problems: Vec<(NodeId, Option<Problem>)>,
    pub(super) closing: ClosingMembers,
    pub(super) clocks: Clocks,
    /// The offers of the lead that this node has made.
    pub(super) preference: Preference,
    pub(super) quorum_loss: QuorumLoss,
    /// The members as which two processes run, as sentences, each until when it is forgotten.
    duplicates: BTreeMap<String, Time>,
    /// Whether this node is to leave.
    pub(super) leaving: bool,
    /// When the node next sends its requests.
    pub(super) send_at: Time,
    /// When each member was last received from.
    last_received: BTreeMap<NodeId, Time>,
    /// The voters that do not answer the leader, or store nothing, as it last reported.
    pub(super) silent: Option<BTreeSet<NodeId>>,
    /// Whether this node has been settled since it started: see [`Membership::note_place`].
    pub(super) is_placed: bool,
    /// When an instance that is not a member last asked to join.
    pub(super) newcomer_at: Option<Time>,
    /// The term of the leader that reported `silent`.
    pub(super) health_of: u64,
    /// The nodes that were sent [`PeerMessage::Removed`], and when.
    notified_removed: BTreeMap<NodeId, Time>,
    /// The members as they were last handed to the host.
    pub(super) handed: Option<Vec<Member>>,
    /// The last change of the roster that was looked at for that.
    handed_at: Option<Zxid>,
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
            problems: others.map(|member| (member, Some(Problem::not_yet()))).collect(),
            closing: ClosingMembers::default(),
            clocks: Clocks::default(),
            preference: Preference::default(),
            quorum_loss: QuorumLoss::default(),
            duplicates: BTreeMap::new(),
            leaving: false,
            send_at: Time::ZERO,
            last_received: BTreeMap::new(),
            silent: None,
            is_placed: false,
            newcomer_at: None,
            health_of: 0,
            notified_removed: BTreeMap::new(),
            handed: None,
            handed_at: None,
        }
    }

    /// When this node last received something from a member.
    pub(super) fn last_received(&self, node: NodeId) -> Option<Time> {
        self.last_received.get(&node).copied()
    }

    /// The voters that do not answer the leader of this term, or store nothing.
    pub(super) fn note_silent(&mut self, silent: BTreeSet<NodeId>, term: u64) {
        self.silent = Some(silent);
        self.health_of = term;
    }

    /// The members as they were last handed to the host.
    pub(super) fn members(&self) -> &[Member] {
        self.handed.as_deref().unwrap_or_default()
    }
}

impl Membership {
    /// A node, as a log line names it.
    pub(super) fn named(&self, node: NodeId) -> Named {
        let known = self.handed.iter().flatten().find(|member| member.node == node);
        let own = (node == self.me.node).then_some(&self.me);
        let address = known.or(own).map(|member| member.address.clone());
        Named { node, address }
    }

    /// This node, as a log line names it.
    pub(super) fn own_name(&self) -> Named {
        self.named(self.me.node)
    }

    /// Notes what keeps this node from reaching a member; `None`: nothing does.
    pub(super) fn note_peer(&mut self, peer: NodeId, problem: Option<Problem>) {
        if let Some((_, known)) = self.problems.iter_mut().find(|(id, _)| *id == peer) {
            *known = problem;
        }
    }

    /// Notes that a process was refused, since another one runs with a copy of its directory.
    pub(super) fn note_duplicate(&mut self, reason: String, now: Time) {
        self.duplicates.retain(|_, until| now < *until);
        if self.duplicates.len() < MEMBERS_MAX {
            self.duplicates.insert(reason, now + DUPLICATE_TIME);
        }
    }

    /// The members as which two processes run.
    pub(super) fn duplicates(&self, now: Time) -> Vec<String> {
        let lasting = self.duplicates.iter().filter(|(_, until)| now < **until);
        lasting.map(|(reason, _)| reason.clone()).collect()
    }

    /// The other members, and why this node cannot reach them: not the one whose place it takes at its own address.
    pub(super) fn others(&self) -> Vec<(NodeId, Option<Problem>)> {
        let own = Some(&self.me.address).filter(|own| !own.is_empty());
        let is_here = |node| own.is_some() && self.named(node).address.as_ref() == own;
        self.problems.iter().filter(|(node, _)| !is_here(*node)).cloned().collect()
    }

    /// Notes that something came from a peer.
    pub(super) fn received_from(&mut self, peer: NodeId, raft: &Raft, now: Time) {
        if let Some(at) = self.last_received.get_mut(&peer) {
            *at = now;
        } else if raft.is_member(peer) {
            self.last_received.insert(peer, now);
        }
    }

    /// Every member sends something at this moment.
    pub(super) fn received_from_all(&mut self, at: Time) {
        self.last_received.values_mut().for_each(|last| *last = at);
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
        let is_old = index <= raft.log().applied().index && !planted!(RemovalOutdated);
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
        let last = self.last_received.get(&node);
        let recent = |at: &Time| cx.now.mono <= *at + cx.config.timings().answer();
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

    /// The members have changed: forgets the peers that are no longer members.
    pub(super) fn members_changed(&mut self, raft: &Raft) {
        let others: Vec<NodeId> = raft.others().collect();
        self.last_received.retain(|peer, _| others.contains(peer));
        self.problems.retain(|(peer, _)| others.contains(peer));
        for peer in others {
            let known = self.problems.iter().any(|(known, _)| *known == peer);
            if !known {
                let connected = self.versions.is_connected(peer);
                self.problems.push((peer, (!connected).then(Problem::not_yet)));
            }
        }
    }

    /// Hands the members to the host, when they have changed.
    pub(super) fn hand_members(&mut self, machine: &Machine, cx: &mut Context) {
        let changed_at = machine.roster_changed();
        if changed_at == self.handed_at {
            return;
        }
        let (roster, _) = machine.roster();
        let members: Vec<Member> = roster.members().cloned().collect();
        // Without a cluster there are none. Those of its founding have the same zxid.
        if members.is_empty() {
            return;
        }
        self.handed_at = changed_at;
        if self.handed.as_ref() != Some(&members) {
            self.handed = Some(members.clone());
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
        let is_reached = |node| {
            let mut known = self.problems.iter();
            known.any(|(peer, problem)| *peer == node && problem.is_none())
        };
        let successor =
            raft.others().any(|node| is_reached(node) && !self.closing.is_closing(node));
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
