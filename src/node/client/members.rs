//! The members that a client knows, and the order in which it prefers them.
//!
//! Every client ranks the members for itself. Learners come first, then voters, then the leader, so
//! that what clients cost falls on the members that have the least to do. Among equals the client's
//! id decides by rendezvous hashing (Thaler and Ravishankar, 1998): the clients spread evenly, and
//! those of a lost member spread over all others.
//!
//! A member that fails the client ranks behind all others for a while, so a client that is not served
//! tries every member before it tries one again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Context;
use crate::node::io::{Dial, NodeStatus, Problem, QuorumState, Time};
use crate::node::random::mixed;
use crate::node::room::disk_low;
use crate::types::error::Error;
use crate::types::membership::{MEMBERS_MAX, Member, Named, NodeId};

/// How long a member that was full counts as full.
const FULL_FOR: Duration = Duration::from_secs(600);
/// For how many heartbeats an unreachable member is not dialled, if there are others.
const UNREACHED_BEATS: u32 = 10;

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
struct KnownMember {
    is_up: bool,
    problem: Option<Problem>,
    version: u16,
    /// Until when it is not asked to serve, since it has refused or could not be reached.
    avoided_until: Time,
    full_until: Time,
    /// The sequence number of its last failure; 0: it has not failed lately.
    failure: u64,
}

/// Which members there are, which of them are connected, and which ones are preferred.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// The members of the cluster, as a serving member last reported them; none before.
    roster: BTreeMap<NodeId, Member>,
    /// These, and other instances that are connected.
    known: BTreeMap<NodeId, KnownMember>,
    /// Whether the members can decide, by the same report.
    availability: QuorumState,
    /// The leader, as last known.
    leader: NodeId,
    /// The addresses of the list where no member was found, since one was found last, and why.
    seeds: BTreeMap<String, Problem>,
    /// The connections last requested from the transport.
    dial: Dial,
    failures: u64,
    failed_at: Time,
    /// Something has changed since the last choice.
    pub(super) have_changed: bool,
}

impl Members {
    pub(super) fn new() -> Members {
        Members { dial: Dial::seeking(), ..Members::default() }
    }

    /// What the client reports of them.
    pub(super) fn status(&self, has_leader: bool, cx: &Context) -> NodeStatus {
        let linked = || self.known.iter().filter(|(_, of)| of.is_up || of.problem.is_some());
        let mut peers: BTreeMap<NodeId, Option<Problem>> =
            linked().map(|(id, of)| (*id, of.problem.clone())).collect();
        for node in &self.availability.silent {
            let reason = "it is silent to the leader".to_owned();
            peers.entry(*node).or_insert(Some(Problem { reason, refused: false }));
        }
        let of = &self.availability;
        let has_leader = has_leader && of.has_leader;
        let is_missing = self.known.is_empty() && cx.stopped.is_none();
        NodeStatus {
            peers: peers.into_iter().collect(),
            versions: linked().map(|(id, of)| (*id, of.version)).collect(),
            availability: QuorumState {
                has_leader,
                is_reported: has_leader && of.is_reported,
                ..of.clone()
            },
            bootstrap_problem: is_missing
                .then(|| "no member of the cluster has been found yet".to_owned()),
            seeds: self.seeds.iter().map(|(at, why)| (at.clone(), why.clone())).collect(),
            ..NodeStatus::default()
        }
    }

    /// A member, as a log line names it.
    pub(super) fn named(&self, node: NodeId) -> Named {
        Named { node, address: self.roster.get(&node).map(|member| member.address.clone()) }
    }

    /// All members of the cluster.
    pub(super) fn all(&self) -> impl Iterator<Item = NodeId> {
        self.roster.keys().copied()
    }

    /// The connected ones.
    pub(super) fn up(&self) -> impl Iterator<Item = NodeId> {
        self.known.iter().filter(|(_, of)| of.is_up).map(|(node, _)| *node)
    }

    /// Those that may be asked to serve.
    fn servers(&self, now: Time) -> impl Iterator<Item = NodeId> {
        let may_serve = move |of: &KnownMember| of.is_up && of.avoided_until <= now;
        self.known.iter().filter(move |(_, of)| may_serve(of)).map(|(node, _)| *node)
    }

    /// Whether another member could be asked to serve.
    pub(super) fn has_other(&self, member: NodeId, now: Time) -> bool {
        self.servers(now).any(|other| other != member)
    }

    /// The best that may be asked to serve. An instance at an address of the list need not be a member.
    pub(super) fn best(&self, cx: &Context) -> Option<NodeId> {
        let there = self.servers(cx.now.mono);
        there.min_by_key(|id| (!self.roster.contains_key(id), self.rank(*id, cx)))
    }

    /// The best that may be asked to serve and is better than this one.
    pub(super) fn better_than(&self, member: NodeId, cx: &Context) -> Option<NodeId> {
        let rank = self.rank(member, cx);
        let there = self.servers(cx.now.mono).map(|node| self.rank(node, cx));
        there.filter(|other| *other < rank).min().map(|(_, _, _, node)| node)
    }

    fn role(&self, node: NodeId, now: Time) -> ServerRole {
        let full_until = self.known.get(&node).map_or(Time::ZERO, |of| of.full_until);
        if full_until > now || self.availability.silent.contains(&node) {
            ServerRole::Unavailable
        } else if node == self.leader {
            ServerRole::Leader
        } else if self.availability.learners.contains(&node) {
            ServerRole::Learner
        } else {
            ServerRole::Voter
        }
    }

    pub(super) fn rank(&self, node: NodeId, cx: &Context) -> Rank {
        let failure = self.known.get(&node).map_or(0, |member| member.failure);
        let role = unless!(ClientsAnywhere, self.role(node, cx.now.mono), ServerRole::Voter);
        (failure, role, mixed(mixed(cx.id) ^ node), node)
    }

    /// The members that the client could dial, the best first.
    pub(super) fn ranked(&self, cx: &Context) -> Vec<NodeId> {
        let known = self.roster.values().filter(|member| !member.address.is_empty());
        let mut ranks: Vec<Rank> = known.map(|member| self.rank(member.node, cx)).collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, _, _, node)| node).collect()
    }

    pub(super) fn is_avoided(&self, node: NodeId, now: Time) -> bool {
        self.known.get(&node).is_some_and(|of| of.avoided_until > now)
    }

    /// The requested connections.
    pub(super) fn dial(&self) -> &Dial {
        &self.dial
    }

    pub(super) fn connected(&mut self, peer: NodeId, version: u16) {
        // Errors that still occur are reported again.
        self.seeds.clear();
        if self.dial.wants(peer) {
            let member = self.known.entry(peer).or_default();
            (member.is_up, member.problem, member.version) = (true, None, version);
            member.avoided_until = Time::ZERO;
            self.have_changed = true;
        }
    }

    pub(super) fn seed_missed(&mut self, address: String, problem: Problem) {
        self.seeds.insert(address, problem);
    }

    /// A peer cannot be reached. One that is not a member is forgotten.
    pub(super) fn missed(&mut self, peer: NodeId, problem: Problem, cx: &Context) {
        if !self.dial.wants(peer) {
            return;
        }
        let is_member = self.roster.contains_key(&peer);
        if !is_member && (!self.roster.is_empty() || self.known.len() >= MEMBERS_MAX) {
            self.known.remove(&peer);
            return;
        }
        let member = self.known.entry(peer).or_default();
        (member.is_up, member.problem) = (false, Some(problem));
        let now = cx.now.mono;
        self.note_failure(peer, now + cx.config.heartbeat * UNREACHED_BEATS, now);
    }

    /// Takes in a report. Returns the error with which writes are refused, if they are.
    pub(super) fn learn(&mut self, members: &[Member], availability: QuorumState) -> Option<Error> {
        self.roster = members.iter().map(|member| (member.node, member.clone())).collect();
        let roster = &self.roster;
        let refused = availability.refuses_writes.then(|| {
            let low = availability.disk_low.iter().copied().collect();
            disk_low(&low, |node| Some(roster.get(&node)?.address.clone()))
        });
        (self.availability, self.have_changed) = (availability, true);
        self.known.retain(|peer, of| of.is_up || roster.contains_key(peer));
        for node in roster.keys() {
            self.known.entry(*node).or_default();
        }
        refused
    }

    pub(super) fn note_leader(&mut self, leader: NodeId) {
        if leader != 0 {
            self.have_changed |= leader != self.leader;
            self.leader = leader;
        }
    }

    /// Notes that a member did not serve or could not be reached.
    pub(super) fn note_failure(&mut self, member: NodeId, avoided_until: Time, now: Time) {
        self.failures += 1;
        (self.failed_at, self.have_changed) = (now, true);
        if let Some(member) = self.known.get_mut(&member) {
            member.failure = self.failures;
            member.avoided_until = member.avoided_until.max(avoided_until);
        }
    }

    /// Forgets which members have failed, if none has for this long.
    pub(super) fn forgive(&mut self, after: Duration, now: Time) {
        if now >= self.failed_at + after {
            self.known.values_mut().for_each(|of| of.failure = 0);
        }
    }

    pub(super) fn note_full(&mut self, member: NodeId, now: Time) {
        if let Some(member) = self.known.get_mut(&member) {
            member.full_until = now + FULL_FOR;
        }
    }

    /// Has the transport connect with these, and look for members at the addresses of the list if it `seeks`.
    pub(super) fn connect_with(&mut self, wanted: &[NodeId], seeks: bool, cx: &mut Context) {
        let members = wanted.iter().filter_map(|node| self.roster.get(node).cloned());
        let mut dial = Dial { members: members.collect(), seeks };
        dial.members.sort_unstable_by_key(|member| member.node);
        if self.dial == dial {
            return;
        }
        let former = std::mem::replace(&mut self.dial, dial.clone());
        let roster = &self.roster;
        self.known.retain(|node, _| seeks || roster.contains_key(node));
        for (node, member) in &mut self.known {
            if !dial.names(*node) && (former.names(*node) || !seeks) {
                (member.is_up, member.problem) = (false, None);
            } else if dial.names(*node) && !member.is_up && member.problem.is_none() {
                member.problem = Some(Problem::not_yet());
            }
        }
        cx.effects.dial = Some(dial);
    }
}
