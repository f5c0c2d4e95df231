//! A node's part in the membership: joining, leaving, and being a member. The leader's part is in
//! `leader`.
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

use super::Node;
use super::io::{Availability, Time};
use super::message::PeerMessage;
use crate::node::leader::{self, Leading};
use crate::planted::{Bug, planted};
use crate::types::membership::{MEMBERS_MAX, Member, NodeId};
use crate::types::znode::Zxid;

/// Why a node stops that was a member.
pub(crate) const REMOVED: &str = "this instance is not a member of the cluster any more: it has left, or was replaced after it \
     had been away for long; join again, and it comes back as a new member";
/// How often a request to join or to leave is sent, and how long it holds without being repeated.
pub(crate) const REQUEST_PERIOD: Duration = Duration::from_secs(1);
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(5);

/// How many messages with entries may be under way to a voter, each with [`MESSAGE_ENTRIES_BYTES`]
/// or one entry.
///
/// [`MESSAGE_ENTRIES_BYTES`]: super::raft::core::MESSAGE_ENTRIES_BYTES
pub(super) const VOTER_WINDOW: usize = 256;
/// The same for a learner. There may be many slow learners, and no write waits for them. Later
/// entries go into the next message.
pub(super) const LEARNER_WINDOW: usize = 8;

/// What a node knows of the members besides the log.
#[derive(Debug, Default)]
pub(super) struct Membership {
    /// Whether this node is to leave.
    pub(super) leaving: bool,
    /// When the node next sends its requests.
    send_at: Time,
    /// When each member was last received from.
    last_received: BTreeMap<NodeId, Time>,
    /// The voters that do not answer the leader, or store nothing, as it last reported.
    pub(super) silent: Option<BTreeSet<NodeId>>,
    /// Whether this node has been settled since it started: see [`Node::note_place`].
    pub(super) is_placed: bool,
    /// When an instance that is not a member last asked to join.
    newcomer_at: Option<Time>,
    /// The term of the leader that reported `silent`.
    health_of: u64,
    /// The nodes that were sent [`PeerMessage::Removed`], and when.
    notified_removed: BTreeMap<NodeId, Time>,
    /// The members as they were last handed to the host.
    pub(super) handed: Option<Vec<Member>>,
    /// The last change of the roster that was looked at for that.
    handed_at: Option<Zxid>,
}

impl Membership {
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

impl Node {
    /// Whether a node is a voter, by the present or the former members of a joint change.
    pub(crate) fn is_voter(&self, node: NodeId) -> bool {
        let members = self.raft.log().voting();
        members.voters.contains(&node) || members.voters_outgoing.contains(&node)
    }

    /// Whether a node is a member by this one's log.
    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        let members = self.raft.log().voting();
        let lists = [&members.voters, &members.learners, &members.voters_outgoing];
        lists.iter().any(|list| list.contains(&node)) || members.learners_next.contains(&node)
    }

    /// Notes that something came from a peer.
    pub(super) fn received_from(&mut self, peer: NodeId) {
        let now = self.now.mono;
        if let Some(at) = self.membership.last_received.get_mut(&peer) {
            *at = now;
        } else if self.is_member(peer) {
            self.membership.last_received.insert(peer, now);
        }
    }

    /// An instance asks to be a member.
    pub(super) fn take_join(&mut self, from: NodeId, member: Member) {
        let node = member.node;
        // A member forwards the request of an instance that is no member yet.
        let handed_on = self.is_member(from) && !self.is_member(node);
        if (node != from && !handed_on) || !member.is_valid() {
            tracing::warn!(from = %self.named(from), "refused a request to join that is not the sender's own");
            return;
        }
        self.note_newcomer(node);
        if !self.serves() {
            self.note_blank(from, &member);
            // The instance may reach only a follower.
            let leader = self.raft.leader();
            if node == from && ![0, self.id, from].contains(&leader) {
                self.effects.messages.push((leader, PeerMessage::Join { member }));
            }
            return;
        }
        if let Some(leading) = &mut self.leading {
            leading.members.wants_to_join(member, self.now.mono);
        }
    }

    /// Notes an instance that looks for its cluster or asks to join.
    pub(super) fn note_newcomer(&mut self, node: NodeId) {
        if !self.is_member(node) {
            self.membership.newcomer_at = Some(self.now.mono);
        }
    }

    /// A node that is a member by its own log sends its address and zone.
    pub(super) fn take_present(&mut self, from: NodeId, member: Member) {
        if !self.is_member(from) {
            self.send_removed(from);
        } else if member.node == from
            && member.is_valid()
            && let Some(leading) = leader::serving(&mut self.leading)
        {
            leading.members.presents_itself(member, self.now.mono);
        }
    }

    pub(super) fn take_leave(&mut self, from: NodeId) {
        if !self.is_member(from) {
            self.send_removed(from);
        } else if let Some(leading) = leader::serving(&mut self.leading) {
            leading.members.wants_to_leave(from, self.now.mono);
        }
    }

    /// Replies to a node that is not a member by this node's log, and may not know it. Every member
    /// replies, since the node may reach no other member. The index in the reply lets a node that
    /// became a member later ignore it.
    pub(super) fn send_removed(&mut self, to: NodeId) {
        let now = self.now.mono;
        let gone = &mut self.membership.notified_removed;
        gone.retain(|_, sent_at| now < *sent_at + REQUEST_PERIOD);
        if gone.contains_key(&to) || gone.len() >= MEMBERS_MAX {
            return;
        }
        gone.insert(to, now);
        if !self.is_member(self.id) {
            return;
        }
        let index = self.raft.log().applied().index;
        self.effects.messages.push((to, PeerMessage::Removed { index }));
    }

    /// A member reports that this node was no longer a member after this entry. A sender that this
    /// node does not know as a member is believed only while there is no leader: all members that
    /// this node knows may have been replaced while it was away.
    pub(super) fn take_removed(&mut self, from: NodeId, index: u64) -> Result<(), String> {
        if !self.is_member(from) && !self.lacks_leader() {
            tracing::warn!(from = %self.named(from), "ignored a report of a removal that came from no member");
            return Ok(());
        }
        let is_old = index <= self.raft.log().applied().index && !planted(Bug::RemovalOutdated);
        if !self.is_member(self.id) || is_old {
            return Ok(());
        }
        Err(REMOVED.to_owned())
    }

    pub(super) fn take_health(&mut self, from: NodeId, silent: Vec<NodeId>, placed: &[NodeId]) {
        if from == self.raft.leader() {
            if placed.contains(&self.id) && !self.membership.is_placed {
                self.membership.is_placed = true;
                let node = self.named(self.id);
                tracing::info!(%node, "this member is level with the cluster, and has no vote");
            }
            self.membership.note_silent(silent.into_iter().collect(), self.raft.term());
        }
    }

    /// This node wants to leave for good. It repeats its request until it has left.
    ///
    /// # Errors
    /// [`REMOVED`], if this node is not a member.
    pub(super) fn leave(&mut self) -> Result<(), String> {
        self.membership.leaving = true;
        self.membership.send_at = self.now.mono;
        if self.is_member(self.id) { Ok(()) } else { Err(REMOVED.to_owned()) }
    }

    /// A connection to a peer was made: a node that wants to be a member need not wait to ask for it.
    pub(super) fn ask_to_join(&mut self, peer: NodeId) {
        if self.bootstrap.joins && !self.membership.leaving && !self.is_member(self.id) {
            let member = self.me.clone();
            self.effects.messages.push((peer, PeerMessage::Join { member }));
        }
    }

    /// Sends this node's requests, with its address and zone, to all connected peers, since any of
    /// them may be the leader.
    pub(super) fn send_membership_requests(&mut self) {
        let now = self.now.mono;
        if now < self.membership.send_at {
            return;
        }
        self.membership.send_at = now + REQUEST_PERIOD;
        let (leaving, member) = (self.membership.leaving, self.me.clone());
        let mut requests = Vec::new();
        if self.is_member(self.id) {
            let (roster, _) = self.machine.roster();
            let differs = roster.get(self.id).is_none_or(|seat| seat.member != member);
            if differs || self.lacks_leader() {
                requests.push(PeerMessage::Present { member });
            }
            if leaving {
                requests.push(PeerMessage::Leave);
            }
        } else if self.bootstrap.joins && !leaving {
            requests.push(PeerMessage::Join { member });
        }
        if let Some(Leading { members, .. }) = leader::serving(&mut self.leading) {
            for request in requests {
                match request {
                    PeerMessage::Present { member } => members.presents_itself(member, now),
                    _ => members.wants_to_leave(self.id, now),
                }
            }
            return;
        }
        let to: Vec<NodeId> = self.versions.connected_peers().collect();
        for request in requests {
            self.effects.messages.extend(to.iter().map(|peer| (*peer, request.clone())));
        }
    }

    /// Whether this node has long received nothing from a leader. A removed node receives nothing
    /// any more. A removed learner does not stand for election, so no member notices it either.
    fn lacks_leader(&self) -> bool {
        !planted(Bug::RemovedUnaware)
            && self.now.mono.saturating_sub(self.elections.led_at) >= self.patience()
    }

    /// See [`Timings::patience`](super::timings::Timings::patience).
    pub(super) fn patience(&self) -> Duration {
        self.config.timings().patience()
    }

    /// Whether a member is connected and has sent something within the last few heartbeats.
    pub(super) fn answers(&self, node: NodeId) -> bool {
        let last = self.membership.last_received.get(&node);
        let recent = |at: &Time| self.now.mono <= *at + self.config.timings().answer();
        self.versions.is_connected(node) && last.is_some_and(recent)
    }

    /// Notes whether this node is settled: it is up to date and votes, with no joint change under
    /// way, or it is a learner and the leader reports that it is to stay one (`View::placed`).
    ///
    /// An instance with an empty disk at a voter's address begins as a learner, while its former
    /// self still counts as the voter. Until the instance has the vote, losing one more voter may
    /// end the majority for good.
    pub(super) fn note_place(&mut self) {
        if self.membership.is_placed || self.local.read_index.fresh_at().is_none() {
            return;
        }
        let voting = self.raft.log().voting();
        let votes = voting.voters.contains(&self.id) && voting.voters_outgoing.is_empty();
        self.membership.is_placed = votes || planted(Bug::ReadyBeforePlace);
        if self.membership.is_placed {
            tracing::info!(node = %self.named(self.id), "this member is level with the cluster, and votes");
        }
    }

    /// Whether stopping this voter now would end the majority, while stopping it a little later
    /// would not: an instance that could vote in the place of a silent voter has joined or asks to,
    /// or a change of the voters is under way.
    pub(crate) fn must_stay(&self) -> bool {
        let seen = self.availability();
        if !seen.has_leader || !self.is_voter(self.id) {
            return false;
        }
        let joint = !seen.outgoing.is_empty();
        let asked = self.membership.newcomer_at.is_some_and(|at| self.now.mono < at + REQUEST_TIME);
        // Those that are being closed take no vote.
        let learners = seen.learners.iter().any(|learner| !self.is_closing(*learner));
        if !joint && !asked && !learners {
            return false;
        }
        // If this voter is always needed, as one of two, waiting gains nothing.
        let could_go = joint || seen.spare(|voter| voter == self.id).is_some();
        let lost = |voter| voter == self.id || seen.silent.contains(&voter);
        could_go && (!seen.is_reported || seen.spare(lost).is_none())
    }

    /// Sets how much may be under way to each member while this node leads.
    pub(super) fn pace(&mut self) {
        let others: Vec<NodeId> = self.others().collect();
        for peer in others {
            let window = if self.is_voter(peer) { VOTER_WINDOW } else { LEARNER_WINDOW };
            self.raft.set_window(peer, window);
        }
    }

    /// The members have changed: forgets the peers that are no longer members.
    pub(super) fn members_changed(&mut self) {
        self.bootstrap.joins &= !self.is_member(self.id);
        let others: Vec<NodeId> = self.others().collect();
        self.pace();
        self.membership.last_received.retain(|peer, _| others.contains(peer));
        self.peer_problems.retain(|(peer, _)| others.contains(peer));
        for peer in others {
            let known = self.peer_problems.iter().any(|(known, _)| *known == peer);
            if !known {
                let connected = self.versions.is_connected(peer);
                let problem = (!connected).then(super::io::Problem::not_yet);
                self.peer_problems.push((peer, problem));
            }
        }
    }

    /// Hands the members to the host, when they have changed.
    pub(super) fn hand_members(&mut self) {
        let changed_at = self.machine.roster_changed();
        if changed_at == self.membership.handed_at {
            return;
        }
        let (roster, _) = self.machine.roster();
        let members: Vec<Member> = roster.members().cloned().collect();
        // Without a cluster there are none. Those of its founding have the same zxid.
        if members.is_empty() {
            return;
        }
        self.membership.handed_at = changed_at;
        if self.membership.handed.as_ref() != Some(&members) {
            self.membership.handed = Some(members.clone());
            self.effects.members = Some(members);
        }
    }

    /// Whether the cluster can decide, and how many members it could still lose.
    pub(super) fn availability(&self) -> Availability {
        let voting = self.raft.log().voting();
        let silent = self.membership.silent.iter().flatten().copied();
        Availability {
            voters: voting.voters.clone(),
            learners: voting.learners.clone(),
            outgoing: voting.voters_outgoing.clone(),
            silent: silent.filter(|node| self.is_voter(*node)).collect(),
            // During an election, the former leader still counts.
            is_reported: self.membership.health_of == self.raft.term(),
            has_leader: self.stopped.is_none() && !voting.voters.is_empty() && !self.lacks_leader(),
            disk_low: self.room.all_low(self.id).into_iter().collect(),
            refuses_writes: self.room.refuses_writes,
        }
    }
}
