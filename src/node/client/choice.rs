//! Which members a client is connected with: the one that serves it, and a spare.
//!
//! Every client ranks the members for itself. Learners come first, then voters, then the leader, so
//! that what clients cost falls on the members that have the least to do. Among equals the client's
//! id decides by rendezvous hashing (Thaler and Ravishankar, 1998): the clients spread evenly, and
//! those of a lost member spread over all others.
//!
//! The spare is the best member besides the one that serves. It is connected, so a client whose
//! member dies goes on with one message: no name is looked up, nothing is dialled, and no keys are
//! exchanged while a member has just been lost. An idle connection costs the spare little memory,
//! and a ping now and then.
//!
//! Actions that many clients would take at the same time, and that can wait, happen at random times: a
//! spare is replaced within [`SPARE_WITHIN`], and a client that is not served by its best member goes
//! there after [`HOME_AFTER`] to [`HOME_WITHIN`]. So neither a new leader nor a member that is back
//! makes many clients move at once. Only a client that has just started goes to its best member as soon
//! as that is connected.
//!
//! A member that fails the client ranks behind all others for a while, so a client that is not served
//! tries every member before it tries one again. It also looks for members at the addresses of its own
//! list then, as long as it is not served.

use std::time::Duration;

use super::Client;
use crate::node::io::{Dial, Problem, Time};
use crate::node::random::mixed;
use crate::types::membership::NodeId;

/// How many members a client is connected with once it knows the members, except while it asks all of
/// them for reports.
const CONNECTED_MAX: usize = 2;
/// The time within which a served client replaces its spare.
const SPARE_WITHIN: Duration = Duration::from_secs(10);
/// When a client goes to its best member, if another one serves it.
const HOME_AFTER: Duration = Duration::from_secs(30);
const HOME_WITHIN: Duration = Duration::from_secs(300);
/// After being served for this long without a failure, the client forgets which members have failed.
const FORGIVEN_AFTER: Duration = Duration::from_secs(120);
/// How long a member that was full counts as full.
const FULL_FOR: Duration = Duration::from_secs(600);
/// After this many heartbeats without a member, the client looks for members at the addresses of
/// its list.
const SEEK_BEATS: u32 = 15;

/// The order in which a client prefers members: the least comes first.
pub(super) type Rank = (u64, ServerRole, u64, NodeId);

/// What a member does, in the order in which clients prefer members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ServerRole {
    Learner,
    Voter,
    Leader,
    /// It serves as many clients as it can, or is silent to the leader.
    Unavailable,
}

/// A member that the client knows.
#[derive(Debug, Default)]
pub(super) struct KnownMember {
    pub(super) is_up: bool,
    pub(super) problem: Option<Problem>,
    pub(super) version: u16,
    /// Until when it is not asked to serve, since it has refused or could not be reached.
    pub(super) avoided_until: Time,
    full_until: Time,
    /// The sequence number of its last failure; 0: it has not failed lately.
    failure: u64,
}

impl KnownMember {
    pub(super) fn may_serve(&self, now: Time) -> bool {
        self.is_up && self.avoided_until <= now
    }
}

/// The members that the client is connected with, and when they change.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// The connections last requested from the transport.
    dial: Dial,
    /// Something has changed since the last choice.
    pub(super) is_due: bool,
    failures: u64,
    failed_at: Time,
    unserved_since: Option<Time>,
    /// When the spare is replaced by a better member, and when the client moves to its best member.
    spare_at: Option<Time>,
    home_at: Option<Time>,
    /// Whether it has been served by its best known member.
    is_settled: bool,
    /// The leader, as last known.
    leader: NodeId,
}

impl Choice {
    pub(super) fn new() -> Choice {
        Choice { dial: Dial::seeking(), ..Choice::default() }
    }
}

impl Client {
    /// Whether the client wants a connection with this peer.
    pub(super) fn wants(&self, peer: NodeId) -> bool {
        self.choice.dial.wants(peer)
    }

    pub(super) fn note_leader(&mut self, leader: NodeId) {
        if leader != 0 {
            self.choice.is_due |= leader != self.choice.leader;
            self.choice.leader = leader;
        }
    }

    /// Notes that a member did not serve or could not be reached.
    pub(super) fn note_failure(&mut self, member: NodeId, avoided_until: Time) {
        self.choice.failures += 1;
        self.choice.failed_at = self.now.mono;
        self.choice.is_due = true;
        let failures = self.choice.failures;
        if let Some(member) = self.members.get_mut(&member) {
            member.failure = failures;
            member.avoided_until = member.avoided_until.max(avoided_until);
        }
    }

    pub(super) fn note_full(&mut self, member: NodeId) {
        let until = self.now.mono + FULL_FOR;
        if let Some(member) = self.members.get_mut(&member) {
            member.full_until = until;
        }
    }

    fn role(&self, node: NodeId) -> ServerRole {
        let full_until = self.members.get(&node).map_or(Time::ZERO, |of| of.full_until);
        if full_until > self.now.mono || self.availability.silent.contains(&node) {
            ServerRole::Unavailable
        } else if node == self.choice.leader {
            ServerRole::Leader
        } else if self.availability.learners.contains(&node) {
            ServerRole::Learner
        } else {
            ServerRole::Voter
        }
    }

    pub(super) fn rank(&self, node: NodeId) -> Rank {
        let failure = self.members.get(&node).map_or(0, |member| member.failure);
        let role = unless!(ClientsAnywhere, self.role(node), ServerRole::Voter);
        (failure, role, mixed(mixed(self.id) ^ node), node)
    }

    /// The members that the client could dial, the best first.
    fn ranked(&self) -> Vec<NodeId> {
        let known = self.roster.values().filter(|member| !member.address.is_empty());
        let mut ranks: Vec<Rank> = known.map(|member| self.rank(member.node)).collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, _, _, node)| node).collect()
    }

    fn is_avoided(&self, node: NodeId) -> bool {
        self.members.get(&node).is_some_and(|of| of.avoided_until > self.now.mono)
    }

    /// Decides which members to be connected with, and moves to a better member when that is due.
    pub(super) fn choose(&mut self) {
        let is_due = std::mem::take(&mut self.choice.is_due);
        if !is_due || self.roster.is_empty() || planted!(ClientKeepsToItsList) {
            return;
        }
        let now = self.now.mono;
        let ranked = self.ranked();
        let attached = self.attached.as_ref().map(|attached| attached.member);
        if let Some(former) = attached.filter(|member| !ranked.contains(member)) {
            self.lose_member(former, Time::ZERO);
            return self.choose();
        }
        let is_calm = self.attached.as_ref().is_some_and(|of| of.serves && !of.is_leaderless());
        let mut wanted = match attached.filter(|_| is_calm) {
            _ if planted!(ClientDialsAll) => ranked.clone(),
            Some(member) => self.keep_or_improve(member, &ranked),
            None => self.find(attached, &ranked),
        };
        for node in self.asked_members() {
            if ranked.contains(&node) && !wanted.contains(&node) {
                wanted.push(node);
            }
        }
        let beats = self.config.heartbeat * SEEK_BEATS;
        let seeks = match self.member() {
            Some(_) => {
                self.choice.unserved_since = None;
                false
            }
            None => {
                let since = *self.choice.unserved_since.get_or_insert(now);
                self.choice.dial.seeks || now >= since + beats
            }
        };
        self.connect_with(&wanted, seeks);
        self.go_home();
    }

    /// The members wanted by a served client: its own, and soon the best other one.
    fn keep_or_improve(&mut self, member: NodeId, ranked: &[NodeId]) -> Vec<NodeId> {
        let now = self.now.mono;
        if now >= self.choice.failed_at + FORGIVEN_AFTER {
            self.members.values_mut().for_each(|of| of.failure = 0);
        }
        let mut others = ranked.iter().copied().filter(|other| *other != member);
        let best = others.find(|other| !self.is_avoided(*other));
        let mut spare = self.choice.dial.members.iter().map(|dialled| dialled.node);
        let spare = spare.find(|spare| *spare != member && ranked.contains(spare));
        let is_better = best.is_some_and(|best| self.rank(best) < self.rank(member));
        if !is_better {
            self.choice.home_at = None;
            self.choice.is_settled = true;
        } else if !self.choice.is_settled {
            self.choice.home_at = Some(now);
        } else if self.choice.home_at.is_none() {
            let within = HOME_WITHIN.saturating_sub(HOME_AFTER);
            self.choice.home_at = Some(now + HOME_AFTER + self.some_time(within));
        }
        let is_due = if best == spare || best.is_none() {
            self.choice.spare_at = None;
            false
        } else if self.choice.is_settled {
            let at = self.choice.spare_at.unwrap_or_else(|| now + self.some_time(SPARE_WITHIN));
            self.choice.spare_at = Some(at).filter(|at| now < *at);
            now >= at
        } else {
            true
        };
        let spare = if is_due { best } else { spare };
        std::iter::once(member).chain(spare).collect()
    }

    /// The members wanted by a client that is not served, or served by a member that knows no
    /// leader: those that it dials already, unless they have failed, and then the best.
    fn find(&mut self, attached: Option<NodeId>, ranked: &[NodeId]) -> Vec<NodeId> {
        (self.choice.spare_at, self.choice.home_at) = (None, None);
        let dialled = ranked.iter().filter(|node| self.choice.dial.names(**node));
        let mut wanted: Vec<NodeId> = attached.into_iter().collect();
        let untried = dialled.clone().chain(ranked).filter(|node| !self.is_avoided(**node));
        for node in untried.chain(dialled.clone()).chain(ranked) {
            if wanted.len() < CONNECTED_MAX && !wanted.contains(node) {
                wanted.push(*node);
            }
        }
        wanted
    }

    fn connect_with(&mut self, wanted: &[NodeId], seeks: bool) {
        let members = wanted.iter().filter_map(|node| self.roster.get(node).cloned());
        let mut dial = Dial { members: members.collect(), seeks };
        dial.members.sort_unstable_by_key(|member| member.node);
        if self.choice.dial == dial {
            return;
        }
        let former = std::mem::replace(&mut self.choice.dial, dial.clone());
        let roster = &self.roster;
        self.members.retain(|node, _| seeks || roster.contains_key(node));
        for (node, member) in &mut self.members {
            if !dial.names(*node) && (former.names(*node) || !seeks) {
                (member.is_up, member.problem) = (false, None);
            } else if dial.names(*node) && !member.is_up && member.problem.is_none() {
                member.problem = Some(Problem::not_yet());
            }
        }
        self.effects.dial = Some(dial);
    }

    /// Moves to the best member, if that is due and the member is connected.
    fn go_home(&mut self) {
        let now = self.now.mono;
        let Some(member) =
            self.member().filter(|_| self.choice.home_at.is_some_and(|at| now >= at))
        else {
            return;
        };
        let there = self.members.iter().filter(|(_, of)| of.may_serve(now)).map(|(node, _)| *node);
        let better = there.filter(|node| self.rank(*node) < self.rank(member));
        if let Some(best) = better.min_by_key(|node| self.rank(*node)) {
            self.choice.home_at = None;
            self.part();
            self.attach_to(best);
            if let Some(attached) = &mut self.attached {
                attached.is_move = true;
            }
        }
    }

    /// A random time below this one.
    fn some_time(&mut self, below: Duration) -> Duration {
        let millis = u64::try_from(below.as_millis()).unwrap_or(u64::MAX).max(1);
        Duration::from_millis(self.draw() % millis)
    }
}
