//! A node's part in the membership: as one that joins or leaves, as a member, and as the leader
//! that keeps the members as they should be ([`members`](super::members) says how).
//!
//! Whoever is not a member of the cluster that it knows tells all whom it reaches that it wants to be
//! one ([`PeerMessage::Join`]), again and again, until the log that it is sent says so. A member tells
//! who it is ([`PeerMessage::Present`]) while the roster has something else of it (its address has
//! changed, say), and while it hears of no leader. Only the leader acts on either. Wishes are
//! forgotten when they are not repeated.
//!
//! A leader that hears of one who is not a member, and takes itself for one, says so
//! ([`PeerMessage::Gone`]). One that was removed while it was away, and by its own log still is a
//! member, learns by that that it is not: it stops, and its directory is marked. It is never taken in
//! again under its old id, under which it has voted, and which has an end in the log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::io::{Availability, Time};
use super::members::{Action, Keeping, Sight, View, plan};
use super::message::PeerMessage;
use super::{ELECTION_TICKS, Node};
use crate::machine::command::{Batch, Command, NodeId, Request};
use crate::membership::{MEMBERS_MAX, Member, Roster, Seat};
use crate::planted::{Bug, planted};
use crate::version::MEMBERS_SINCE;
use crate::znode::SessionId;

/// Why a node stops that was a member.
pub(crate) const REMOVED: &str = "this instance is not a member of the cluster any more: it has left, or was replaced after it \
     had been away for long; join again, and it comes back as a new member";
/// How often a wish is told, and how long it holds without being told again.
const WISH_PERIOD: Duration = Duration::from_secs(1);
pub(super) const WISH_TIME: Duration = Duration::from_secs(5);
/// How often the leader tells how the members are.
const HEALTH_PERIOD: Duration = Duration::from_secs(1);

/// How many messages with entries may be under way to a voter, each of [`MESSAGE_ENTRIES_BYTES`] or
/// one entry.
///
/// [`MESSAGE_ENTRIES_BYTES`]: super::start::MESSAGE_ENTRIES_BYTES
pub(super) const VOTER_WINDOW: usize = 256;
/// The same to a learner: there may be many, which are all slow, and nobody waits for them. What is
/// written meanwhile goes into the next message.
pub(super) const LEARNER_WINDOW: usize = 8;

/// What a node knows of the members beside the log.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) me: Member,
    pub(super) keeping: Keeping,
    /// This node is to leave.
    pub(super) leaving: bool,
    /// When it tells its wish the next time.
    tell_at: Time,
    /// When something was last heard of a member.
    heard: BTreeMap<NodeId, Time>,
    /// Since when it would have been noticed if nothing was.
    listening: BTreeMap<NodeId, Time>,
    /// Since when a learner is level with the log.
    level_since: BTreeMap<NodeId, Time>,
    /// Up to which entry a member that has not stored all has done so, and since when. One whose disk
    /// hangs is heard of, and stores nothing.
    stored: BTreeMap<NodeId, (u64, Time)>,
    /// Who asks for something, until when that holds.
    wishes: BTreeMap<NodeId, (Member, Time)>,
    leavers: BTreeMap<NodeId, Time>,
    /// The entry of a change that is not applied yet.
    changing: Option<u64>,
    health_at: Time,
    /// The voters that do not answer the leader, or store nothing, as it last reported.
    silent: Option<BTreeSet<NodeId>>,
    /// The learners that have their place, as this node last reported as the leader.
    placed: BTreeSet<NodeId>,
    /// Whether this node has had its place since it started: see [`Node::note_place`].
    is_placed: bool,
    /// When an instance that is not a member was last met.
    newcomer_at: Option<Time>,
    /// The term of the leader that told it.
    health_of: u64,
    /// Who was told that it is gone, and when.
    told_gone: BTreeMap<NodeId, Time>,
    /// The members as they were last handed to the shell.
    handed: Option<Vec<Member>>,
}

impl Membership {
    pub(super) fn new(me: Member, keeping: Keeping) -> Membership {
        Membership {
            me,
            keeping,
            leaving: false,
            tell_at: Time::ZERO,
            heard: BTreeMap::new(),
            listening: BTreeMap::new(),
            level_since: BTreeMap::new(),
            stored: BTreeMap::new(),
            wishes: BTreeMap::new(),
            leavers: BTreeMap::new(),
            changing: None,
            health_at: Time::ZERO,
            silent: None,
            placed: BTreeSet::new(),
            is_placed: false,
            newcomer_at: None,
            health_of: 0,
            told_gone: BTreeMap::new(),
            handed: None,
        }
    }

    /// There is another leader, or none: what was known as the former one's is known no more.
    pub(super) fn unsettle(&mut self) {
        self.changing = None;
        self.level_since.clear();
        self.stored.clear();
        self.health_at = Time::ZERO;
        self.placed.clear();
        // Nobody is taken for dead for what this node did not listen for.
        self.listening.clear();
    }

    pub(super) fn is_placed(&self) -> bool {
        self.is_placed
    }

    /// The members as they were last handed to the shell; none where versions know none.
    pub(super) fn members(&self) -> &[Member] {
        self.handed.as_deref().unwrap_or_default()
    }
}

impl Node {
    fn knows_members(&self) -> bool {
        self.machine.version() >= MEMBERS_SINCE
    }

    /// Whether the cluster needs this node to decide, by the members as they are or were.
    pub(crate) fn is_voter(&self, node: NodeId) -> bool {
        let members = self.raw.store().conf_state();
        members.voters.contains(&node) || members.voters_outgoing.contains(&node)
    }

    /// Whether a node is a member by this one's log.
    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        let members = self.raw.store().conf_state();
        let lists = [&members.voters, &members.learners, &members.voters_outgoing];
        lists.iter().any(|list| list.contains(&node)) || members.learners_next.contains(&node)
    }

    /// Only planted: some voter in the place of a learner.
    pub(super) fn stand_in(&self, learner: NodeId) -> NodeId {
        let members = self.raw.store().conf_state();
        let voter = members.voters.iter().find(|voter| **voter != self.id);
        if members.learners.contains(&learner) {
            voter.copied().unwrap_or(learner)
        } else {
            learner
        }
    }

    /// Something was heard of a peer.
    pub(super) fn heard_of(&mut self, peer: NodeId) {
        let now = self.now.mono;
        if let Some(heard) = self.membership.heard.get_mut(&peer) {
            *heard = now;
        } else if self.is_member(peer) {
            self.membership.heard.insert(peer, now);
        }
    }

    /// Somebody wants to be a member, or tells who it is.
    pub(super) fn take_join(&mut self, from: NodeId, member: Member) {
        let node = member.node;
        // A member hands on what one has told that is none yet.
        let handed_on = self.is_member(from) && !self.is_member(node);
        if (node != from && !handed_on) || !member.is_valid() {
            tracing::warn!(from, "refused a wish to join that is not the sender's own");
            return;
        }
        self.note_newcomer(node);
        if !self.serving {
            self.note_blank(from, &member);
            // Who wants to join may reach a follower only.
            let leader = self.raw.raft.leader_id;
            let forward = node == from && ![0, self.id, from].contains(&leader);
            if forward && self.versions.of(leader).is_some_and(|has| has >= MEMBERS_SINCE) {
                self.effects.messages.push((leader, PeerMessage::Join { member }));
            }
            return;
        }
        let wishes = &mut self.membership.wishes;
        if self.machine.version() >= MEMBERS_SINCE
            && (wishes.contains_key(&node) || wishes.len() < MEMBERS_MAX)
        {
            wishes.insert(node, (member, self.now.mono + WISH_TIME));
        }
    }

    /// An instance that looks for its cluster, or asks to join, was met.
    pub(super) fn note_newcomer(&mut self, node: NodeId) {
        if !self.is_member(node) {
            self.membership.newcomer_at = Some(self.now.mono);
        }
    }

    /// One that is a member by its own log tells who it is.
    pub(super) fn take_present(&mut self, from: NodeId, member: Member) {
        if !self.is_member(from) {
            self.tell_gone(from);
        } else if self.serving && member.node == from && member.is_valid() {
            let until = self.now.mono + WISH_TIME;
            self.membership.wishes.insert(from, (member, until));
        }
    }

    pub(super) fn take_leave(&mut self, from: NodeId) {
        if !self.is_member(from) {
            self.tell_gone(from);
        } else if self.serving {
            self.membership.leavers.insert(from, self.now.mono + WISH_TIME);
        }
    }

    /// Something came from one who is not a member by this node's log, and may not know. Every
    /// member tells it, since it may reach nobody else: by the entry that it tells, one that was
    /// made a member later knows better.
    pub(super) fn tell_gone(&mut self, to: NodeId) {
        let now = self.now.mono;
        let gone = &mut self.membership.told_gone;
        gone.retain(|_, told| now < *told + WISH_PERIOD);
        if gone.contains_key(&to) || gone.len() >= MEMBERS_MAX {
            return;
        }
        gone.insert(to, now);
        if !self.is_member(self.id) {
            return;
        }
        let index = self.raw.store().applied().index;
        self.effects.messages.push((to, PeerMessage::Gone { index }));
    }

    /// A member says that this node was not one any more after it had applied this entry. Who is not
    /// known as a member here is believed only while there is no leader: all whom this node knows may
    /// have been replaced while it was away.
    pub(super) fn take_gone(&mut self, from: NodeId, index: u64) -> Result<(), String> {
        if !self.is_member(from) && !self.is_lonely() {
            tracing::warn!(from, "somebody who is no member says that this instance is none");
            return Ok(());
        }
        if !self.is_member(self.id) || index <= self.raw.store().applied().index {
            return Ok(());
        }
        Err(REMOVED.to_owned())
    }

    pub(super) fn take_health(&mut self, from: NodeId, silent: Vec<NodeId>, placed: &[NodeId]) {
        if from == self.raw.raft.leader_id {
            self.membership.is_placed |= placed.contains(&self.id);
            self.membership.silent = Some(silent.into_iter().collect());
            self.membership.health_of = self.raw.raft.term;
        }
    }

    /// This node wants to go for good. Told again and again, until it is gone.
    ///
    /// # Errors
    /// That it is gone, if it never was a member.
    pub(super) fn leave(&mut self) -> Result<(), String> {
        self.membership.leaving = true;
        self.membership.tell_at = self.now.mono;
        if self.is_member(self.id) { Ok(()) } else { Err(REMOVED.to_owned()) }
    }

    /// What is done about the members once a heartbeat.
    pub(super) fn keep_members(&mut self) {
        self.tell_wish();
        if !self.serving || !self.knows_members() {
            return;
        }
        self.look_at_members();
        // A new leader knows nobody yet: who leaves now may have an heir that it has not seen level.
        let settled = self.leads_since + self.patience() + self.config.heartbeat * 2;
        if self.now.mono < settled || !self.may_change() {
            return self.report_health(BTreeSet::new());
        }
        let view = self.view();
        let action = plan(&view, &self.membership.keeping);
        self.report_health(view.placed(action.as_ref()));
        let Some(action) = action else {
            return;
        };
        tracing::info!(?action, "a change of the members");
        match action {
            Action::Configure(seats) => {
                let (_, version) = self.machine.roster();
                let command = Command::Configure { version, seats };
                let request =
                    Request { session: SessionId(0), holder: 0, seq: 0, acked: 0, command };
                let batch = Batch { time: self.log_time(), requests: vec![request] };
                if self.raw.propose(Vec::new(), batch.encode()).is_ok() {
                    self.membership.changing = Some(self.raw.raft.raft_log.last_index());
                }
            }
            Action::Vote(change) => {
                let ours = change.encode();
                if self.raw.propose_conf_change(ours, change.to_raft()).is_ok() {
                    // raft-rs may have put an empty entry in its place; then by the next look.
                    self.membership.changing = Some(self.raw.raft.raft_log.last_index());
                }
            }
            Action::HandOver => self.resign(),
        }
    }

    /// Whether a change may be proposed: there is none under way, nor half of one.
    fn may_change(&mut self) -> bool {
        let applied = self.raw.store().applied().index;
        self.membership.changing = self.membership.changing.filter(|index| *index > applied);
        let joint = !self.raw.store().conf_state().voters_outgoing.is_empty();
        self.membership.changing.is_none()
            && !joint
            && !self.raw.raft.has_pending_conf()
            && self.raw.raft.lead_transferee.is_none()
    }

    /// Tells the leader, whoever it is, what this node wants and who it is.
    fn tell_wish(&mut self) {
        let now = self.now.mono;
        if now < self.membership.tell_at {
            return;
        }
        self.membership.tell_at = now + WISH_PERIOD;
        let (leaving, member) = (self.membership.leaving, self.membership.me.clone());
        let mut wishes = Vec::new();
        if self.is_member(self.id) {
            let (roster, _) = self.machine.roster();
            let differs = roster.get(self.id).is_none_or(|seat| seat.member != member);
            // A cluster of a version that knows no members is not told of any. It may know them by now
            // without this node's having heard of it.
            if (self.knows_members() && differs) || self.is_lonely() {
                wishes.push(PeerMessage::Present { member });
            }
            if leaving {
                wishes.push(PeerMessage::Leave);
            }
        } else if self.joins && !leaving {
            wishes.push(PeerMessage::Join { member });
        }
        if self.serving {
            let until = now + WISH_TIME;
            for wish in wishes {
                match wish {
                    PeerMessage::Present { member } => {
                        self.membership.wishes.insert(self.id, (member, until));
                    }
                    _ => drop(self.membership.leavers.insert(self.id, until)),
                }
            }
            return;
        }
        let to: Vec<NodeId> = self.versions.connected_with(MEMBERS_SINCE).collect();
        for wish in wishes {
            self.effects.messages.extend(to.iter().map(|peer| (*peer, wish.clone())));
        }
    }

    /// Whether nothing was heard of a leader for long. One that was removed hears nothing any more,
    /// and if it is a learner, nobody hears of it either: it does not stand for election.
    fn is_lonely(&self) -> bool {
        !planted(Bug::RemovedUnaware)
            && self.now.mono.saturating_sub(self.led_at) >= self.patience()
    }

    /// Notes who is there and who is level with the log.
    fn look_at_members(&mut self) {
        let now = self.now.mono;
        let membership = &mut self.membership;
        membership.wishes.retain(|_, (_, until)| now < *until);
        membership.leavers.retain(|_, until| now < *until);
        let last = self.raw.raft.raft_log.last_index();
        let progress = self.raw.raft.prs();
        let members: BTreeSet<NodeId> = progress.iter().map(|(id, _)| *id).collect();
        membership.heard.retain(|node, _| members.contains(node));
        membership.listening.retain(|node, _| members.contains(node));
        membership.level_since.retain(|node, _| members.contains(node));
        membership.stored.retain(|node, _| members.contains(node));
        for (node, progress) in progress.iter().filter(|(node, _)| **node != self.id) {
            membership.listening.entry(*node).or_insert(now);
            if progress.matched >= last {
                membership.stored.remove(node);
            } else {
                let stored = membership.stored.entry(*node).or_insert((progress.matched, now));
                if stored.0 != progress.matched {
                    *stored = (progress.matched, now);
                }
            }
            // What was proposed in the last moment nobody can have yet.
            let level = progress.matched > 0 && progress.matched + LEVEL_ENTRIES >= last;
            if level {
                membership.level_since.entry(*node).or_insert(now);
            } else {
                membership.level_since.remove(node);
            }
        }
    }

    /// How long a member may be silent and still count as alive: as long as a leader.
    fn patience(&self) -> Duration {
        self.config.heartbeat * (2 * ELECTION_TICKS as u32)
    }

    /// Whether a member has stored nothing for longer than an election takes, though there is something.
    fn stores_nothing(&self, node: NodeId) -> bool {
        let stored = self.membership.stored.get(&node);
        stored.is_some_and(|(_, since)| self.now.mono.saturating_sub(*since) > self.patience())
    }

    /// Whether a member is connected and was heard of within the last few heartbeats.
    pub(super) fn answers(&self, node: NodeId) -> bool {
        let heard = self.membership.heard.get(&node);
        let recent = |at: &Time| self.now.mono <= *at + self.config.heartbeat * 3;
        self.versions.is_connected(node) && heard.is_some_and(recent)
    }

    fn sight(&self, node: NodeId) -> Sight {
        let now = self.now.mono;
        let since = |at: &Time| now.saturating_sub(*at);
        let heard = self.membership.heard.get(&node);
        let silent = heard.max(self.membership.listening.get(&node)).map_or(Duration::ZERO, since);
        let silent = if silent > self.patience() { silent } else { Duration::ZERO };
        let heard = heard.is_some_and(|heard| since(heard) <= self.patience())
            || planted(Bug::PresumedAlive);
        let level = self.membership.level_since.get(&node).map_or(Duration::ZERO, since);
        // A vote that is given to the dead may be the one that decides.
        let caught_up = level >= self.patience() && self.answers(node);
        Sight { silent, heard, caught_up }
    }

    fn view(&self) -> View {
        let voting = self.raw.store().conf_state();
        let others = || voting.voters.iter().chain(&voting.learners).filter(|id| **id != self.id);
        let (roster, _) = self.machine.roster();
        let wishes = self.membership.wishes.iter();
        View {
            own: self.id,
            voters: voting.voters.iter().copied().collect(),
            learners: voting.learners.iter().copied().collect(),
            sights: others().map(|id| (*id, self.sight(*id))).collect(),
            roster,
            wishes: wishes.map(|(id, (member, _))| (*id, member.clone())).collect(),
            leaving: self.membership.leavers.keys().copied().collect(),
        }
    }

    /// Sends the members the leader's view of them: every [`HEALTH_PERIOD`], and at once when more
    /// voters or fewer are silent, or another learner has its place.
    fn report_health(&mut self, placed: BTreeSet<NodeId>) {
        let now = self.now.mono;
        if now < self.leads_since + self.patience() {
            // It does not know yet.
            return;
        }
        let voting = self.raw.store().conf_state();
        let silent: BTreeSet<NodeId> = voting
            .voters
            .iter()
            .chain(&voting.voters_outgoing)
            .copied()
            .filter(|voter| *voter != self.id)
            .filter(|voter| !self.sight(*voter).silent.is_zero() || self.stores_nothing(*voter))
            .collect();
        let is_news = self.membership.silent.as_ref() != Some(&silent)
            || !placed.is_subset(&self.membership.placed);
        if !is_news && now < self.membership.health_at {
            return;
        }
        self.membership.health_at = now + HEALTH_PERIOD;
        let message = PeerMessage::Health {
            silent: silent.iter().copied().collect(),
            placed: placed.iter().copied().collect(),
        };
        self.membership.silent = Some(silent);
        self.membership.placed = placed;
        self.membership.health_of = self.raw.raft.term;
        for peer in self.others().collect::<Vec<_>>() {
            if self.versions.of(peer).is_some_and(|version| version >= MEMBERS_SINCE) {
                self.effects.messages.push((peer, message.clone()));
            }
        }
    }

    /// Notes whether this node has its place: it is up to date and votes, with no joint change under
    /// way, or it is a learner and the leader has said that it is to stay one ([`View::placed`]).
    ///
    /// An instance with an empty disk at a voter's address begins as a learner, while its former self
    /// still counts as the voter. Until the vote is its own, the loss of one more voter may end the
    /// majority for good.
    pub(super) fn note_place(&mut self) {
        if self.membership.is_placed || self.fresh_at.is_none() {
            return;
        }
        let voting = self.raw.store().conf_state();
        let votes = voting.voters.contains(&self.id) && voting.voters_outgoing.is_empty();
        self.membership.is_placed = votes || planted(Bug::ReadyBeforePlace);
    }

    /// Whether to stop this voter now would end the majority, though it need not a little later: an
    /// instance that could vote in the place of a silent voter has joined or asks to, or a change of
    /// the voters is half made.
    pub(crate) fn must_stay(&self) -> bool {
        let seen = self.availability();
        let is_voter = seen.voters.contains(&self.id) || seen.outgoing.contains(&self.id);
        if !seen.has_leader || !is_voter {
            return false;
        }
        let joint = !seen.outgoing.is_empty();
        let asked = self.membership.newcomer_at.is_some_and(|at| self.now.mono < at + WISH_TIME);
        if !joint && !asked && seen.learners.is_empty() {
            return false;
        }
        // Where this voter is always needed, as one of two, nothing is gained by waiting.
        let could_go = joint || seen.spare(|voter| voter == self.id).is_some();
        let lost = |voter| voter == self.id || seen.silent.contains(&voter);
        could_go && (!seen.is_told || seen.spare(lost).is_none())
    }

    /// How much may be under way to each member, should this node lead.
    pub(super) fn pace(&mut self) {
        let others: Vec<NodeId> = self.others().collect();
        for peer in others {
            let window = if self.is_voter(peer) { VOTER_WINDOW } else { LEARNER_WINDOW };
            self.raw.raft.adjust_max_inflight_msgs(peer, window);
        }
    }

    /// What one asked for who is gone now would have it taken in again under its old id.
    pub(super) fn forget_wishes(&mut self, gone: NodeId) {
        self.membership.wishes.remove(&gone);
        self.membership.leavers.remove(&gone);
    }

    /// The members have changed: peers that are not there any more are forgotten.
    pub(super) fn members_changed(&mut self) {
        self.joins &= !self.is_member(self.id);
        let others: Vec<NodeId> = self.others().collect();
        self.pace();
        self.membership.heard.retain(|peer, _| others.contains(peer));
        self.unreachable.retain(|(peer, _)| others.contains(peer));
        for peer in others {
            let known = self.unreachable.iter().any(|(known, _)| *known == peer);
            if !known {
                let connected = self.versions.is_connected(peer);
                let problem = (!connected).then(super::io::Problem::not_yet);
                self.unreachable.push((peer, problem));
            }
        }
    }

    /// Hands the members to the shell, when they have changed.
    pub(super) fn hand_members(&mut self) {
        let (Roster { seats }, _) = self.machine.roster();
        if seats.is_empty() {
            return;
        }
        let members: Vec<Member> = seats.into_iter().map(|Seat { member, .. }| member).collect();
        if self.membership.handed.as_ref() != Some(&members) {
            self.membership.handed = Some(members.clone());
            self.effects.members = Some(members);
        }
    }

    /// Whether the cluster can decide, and what it could lose and still do.
    pub(super) fn availability(&self) -> Availability {
        let voting = self.raw.store().conf_state();
        let silent = self.membership.silent.iter().flatten();
        let votes =
            |node: &&NodeId| voting.voters.contains(node) || voting.voters_outgoing.contains(node);
        Availability {
            voters: voting.voters.clone(),
            learners: voting.learners.clone(),
            outgoing: voting.voters_outgoing.clone(),
            silent: silent.filter(votes).copied().collect(),
            // For as long as an election takes, the former one counts.
            is_told: self.membership.health_of == self.raw.raft.term,
            has_leader: self.stopped.is_none() && !voting.voters.is_empty() && !self.is_lonely(),
        }
    }
}

/// A learner that lags by no more entries is level with the log.
const LEVEL_ENTRIES: u64 = 64;
