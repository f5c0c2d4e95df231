//! Which instances should be members, and which members should vote: the leader's plan.
//!
//! The leader observes the members and takes one action at a time. [`plan`] returns the next action.
//! It is a pure function, so tests can check for every situation what it must never do. In this
//! order:
//!
//! 1. An instance that asks to be a member is entered in the roster, then becomes a learner.
//! 2. If a newer member has the address or the uid of an older one (whose disk was wiped or
//!    replaced), it takes the place of the older one by one joint change, once it has caught up.
//! 3. A member that wants to leave gives up its vote first, to a learner that has caught up if there
//!    is one. Then it is removed.
//! 4. If there are too many voters, one of them becomes a learner.
//! 5. A voter that was silent for `replace_after`, or whose disk was nearly full for as long, gives its vote to a
//!    learner that has caught up.
//! 6. If there are too few voters, learners that have caught up become voters, so that their number
//!    is odd.
//! 7. If voters are spread badly over the zones, a vote moves from one zone to another that has fewer
//!    votes by two or more.
//! 8. A learner that was silent for ten times `replace_after` is removed.
//! 9. If a voter that is fit to lead has a higher priority than the leader, it gets the lead.
//!
//! The plan never makes a change after which the live voters are no majority of the voters, because
//! then nothing could be decided, and the change could not be taken back. Nor does it make one after which most
//! disks of the voters have no room, so that writes are refused. It makes no change while
//! another one is under way. It never takes the vote of the leader itself, which hands over first. It
//! never gives away the place of a member that is alive.
//!
//! Source: Raft thesis, sections 4.1 to 4.3; Consul's autopilot for what happens automatically.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::node::io::spare;
use crate::node::raft::configuration::{NodeRole, VotingChange};
use crate::types::membership::{MEMBERS_MAX, Member, NodeId, Roster, Seat};

/// The policy by which the leader changes the membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MembershipPolicy {
    /// 1, 3, 5 or 7.
    pub(crate) max_voters: usize,
    /// How long a voter may be silent before a learner votes in its place.
    pub(crate) replace_after: Duration,
}

impl Default for MembershipPolicy {
    fn default() -> MembershipPolicy {
        MembershipPolicy { max_voters: 5, replace_after: Duration::from_secs(60) }
    }
}

/// A learner that was silent for this many times [`MembershipPolicy::replace_after`] is removed.
pub(crate) const FORGET_FACTOR: u32 = 10;

/// What a leader observes of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerHealth {
    /// For how long it is known to be silent; zero: it may be alive.
    pub(crate) silent: Duration,
    /// Whether it has sent something lately, so it is alive.
    pub(crate) sends: bool,
    /// Whether it has answered within the last few heartbeats.
    pub(crate) answers: bool,
    /// Whether it answers, and was level with the log for at least as long as a member may take to answer.
    pub(crate) level: bool,
    /// Whether it has been level with the log for a while, and answers: it could vote.
    pub(crate) caught_up: bool,
    /// Whether it has caught up, its disk is not nearly full, and it is not being closed: it could lead.
    pub(crate) is_fit: bool,
}

/// All inputs of a plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlanInputs {
    pub(crate) own: NodeId,
    pub(crate) voters: BTreeSet<NodeId>,
    pub(crate) learners: BTreeSet<NodeId>,
    /// One for each voter and learner except this node.
    pub(crate) health: BTreeMap<NodeId, PeerHealth>,
    pub(crate) roster: Roster,
    /// The instances that ask to be a member or report a new address or zone.
    pub(crate) reports: BTreeMap<NodeId, Member>,
    pub(crate) leaving: BTreeSet<NodeId>,
    /// The members whose disks are nearly full, and for how long.
    pub(crate) disk_low: BTreeMap<NodeId, Duration>,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlannedAction {
    /// These are the members from now on.
    Configure(Vec<Seat>),
    Vote(VotingChange),
    /// Another node is to lead, since this node is to leave.
    HandOver,
    /// This voter is to lead, since its priority is higher.
    Prefer(NodeId),
}

impl PlanInputs {
    fn is_member(&self, node: NodeId) -> bool {
        self.voters.contains(&node) || self.learners.contains(&node)
    }

    fn is_alive(&self, node: NodeId) -> bool {
        node == self.own || self.health.get(&node).is_some_and(|health| health.silent.is_zero())
    }

    /// Whether no other member may take its place.
    fn keeps_place(&self, node: NodeId) -> bool {
        self.is_alive(node) && !planted!(LivingReplaced)
    }

    /// Whether the member has sent something lately. A new leader does not know that of the others:
    /// they may be alive, or dead for long.
    fn sends(&self, node: NodeId) -> bool {
        node == self.own || self.health.get(&node).is_some_and(|health| health.sends)
    }

    /// The settled learners: they are level with the log, every voter answers, and nothing is left to
    /// do, nor will be once they have been level for longer.
    ///
    /// A level learner was observed for as long as a voter may take to answer. So a voter that had
    /// stopped before the learner started no longer counts as one that answers.
    pub(crate) fn placed(&self, policy: &MembershipPolicy) -> BTreeSet<NodeId> {
        let answers = |voter: &NodeId| {
            *voter == self.own || self.health.get(voter).is_some_and(|health| health.answers)
        };
        let level = |node: &&NodeId| self.health.get(node).is_some_and(|health| health.level);
        let learners: BTreeSet<NodeId> = self.learners.iter().filter(level).copied().collect();
        if learners.is_empty() || !self.voters.iter().all(answers) {
            return BTreeSet::new();
        }
        let mut later = self.clone();
        for learner in &learners {
            later.health.entry(*learner).or_default().caught_up = true;
        }
        match plan(&later, policy) {
            // Who leads does not matter to them.
            None | Some(PlannedAction::Prefer(_)) => learners,
            Some(_) => BTreeSet::new(),
        }
    }

    fn silent_for(&self, node: NodeId, time: Duration) -> bool {
        node != self.own && self.health.get(&node).is_some_and(|health| health.silent >= time)
    }

    fn zone(&self, node: NodeId) -> &str {
        let seat = self.roster.get(node);
        seat.map_or("", |seat| &seat.member.zone)
    }

    /// How many of these voters are in the node's zone. A node without a zone is alone in its own.
    fn crowd(&self, voters: &BTreeSet<NodeId>, node: NodeId) -> usize {
        let zone = self.zone(node);
        if zone.is_empty() {
            return usize::from(voters.contains(&node));
        }
        voters.iter().filter(|voter| self.zone(**voter) == zone).count()
    }

    /// Learners that could vote.
    fn candidates(&self) -> impl Iterator<Item = NodeId> {
        let could = |node: &NodeId| {
            let caught_up = self.health.get(node).is_some_and(|health| health.caught_up);
            (caught_up || planted!(LearnerPromotedBehind))
                && self.is_alive(*node)
                && !self.leaving.contains(node)
        };
        self.learners.iter().copied().filter(could)
    }

    fn is_low(&self, node: NodeId) -> bool {
        self.disk_low.contains_key(&node)
    }

    /// The best candidate: with room on its disk, in a zone with the fewest voters, not counting one that is to
    /// leave, and then by its id.
    fn successor(&self, leaver: Option<NodeId>) -> Option<NodeId> {
        let stays = |voter: &NodeId| Some(*voter) != leaver;
        let voters: BTreeSet<NodeId> = self.voters.iter().copied().filter(stays).collect();
        let crowd = |node: &NodeId| self.crowd(&voters, *node);
        self.candidates().min_by_key(|node| (self.is_low(*node), crowd(node), *node))
    }

    /// The voter, other than this node, that is worst by this measure.
    fn worst<K: Ord>(&self, measure: impl Fn(NodeId) -> K) -> Option<NodeId> {
        let others = self.voters.iter().copied().filter(|voter| *voter != self.own);
        others.max_by_key(|node| (measure(*node), *node))
    }

    /// How many of these voters may be lost before writes end; `None` if they have ended.
    fn spare(&self, voters: &BTreeSet<NodeId>) -> Option<usize> {
        spare(voters.iter().copied(), |voter| !self.sends(voter) || self.is_low(voter))
    }

    /// Whether the live voters can still decide during and after this change, and write if they can now.
    fn is_safe(&self, change: &VotingChange) -> bool {
        let mut after = self.voters.clone();
        for (node, part) in &change.steps {
            match part {
                NodeRole::Voter => after.insert(*node),
                NodeRole::Learner | NodeRole::Gone => after.remove(node),
            };
        }
        let is_any = planted!(VoterRemovedBelowQuorum);
        let decides = |voters: &BTreeSet<NodeId>| {
            spare(voters.iter().copied(), |voter| !self.sends(voter)).is_some() || is_any
        };
        let writes = self.spare(&after).is_some() || self.spare(&self.voters).is_none() || is_any;
        !after.is_empty() && decides(&after) && decides(&self.voters) && writes
    }

    /// A change, if it is safe.
    fn vote(&self, steps: impl IntoIterator<Item = (NodeId, NodeRole)>) -> Option<PlannedAction> {
        let change = VotingChange::of(steps);
        (!change.steps.is_empty() && self.is_safe(&change)).then_some(PlannedAction::Vote(change))
    }

    /// Whether a member that was at another address reports that it is now at this member's.
    fn was_moved_to(&self, member: &Member) -> bool {
        let moved = |(node, reported): (&NodeId, &Member)| {
            let before = self.roster.get(*node).filter(|_| self.is_member(*node));
            *node != member.node
                && reported.address == member.address
                && before.is_some_and(|before| before.member.address != reported.address)
        };
        self.reports.iter().any(moved)
    }

    /// The member whose place this one takes: a member with the same address or uid.
    fn replaces(&self, new: &Member) -> Option<NodeId> {
        let same =
            |old: &&Member| old.node != new.node && (old.is_at(&new.address) || old.uid == new.uid);
        self.roster.members().find(same).map(|old| old.node)
    }
}

/// The leader's next action, if any.
pub(crate) fn plan(view: &PlanInputs, policy: &MembershipPolicy) -> Option<PlannedAction> {
    configure(view)
        .or_else(|| admit(view))
        .or_else(|| replace(view))
        .or_else(|| let_go(view))
        .or_else(|| demote(view, policy))
        .or_else(|| relieve(view, policy))
        .or_else(|| promote(view, policy))
        .or_else(|| spread(view))
        .or_else(|| forget(view, policy))
        .or_else(|| prefer(view))
}

/// Brings the roster up to date with the members and their own reports.
fn configure(view: &PlanInputs) -> Option<PlannedAction> {
    let mut seats: Vec<Seat> = Vec::new();
    for seat in &view.roster.seats {
        let node = seat.member.node;
        // An instance that is in the roster and no member yet stays only while it asks to be one.
        if view.is_member(node) || view.reports.contains_key(&node) {
            let mut member = view.reports.get(&node).unwrap_or(&seat.member).clone();
            // Another member is at this member's address now. This member will report its new one.
            if !view.reports.contains_key(&node) && view.was_moved_to(&member) {
                member.address.clear();
            }
            seats.push(Seat { member, votes: view.voters.contains(&node) });
        }
    }
    for (node, member) in &view.reports {
        if view.roster.get(*node).is_none() && seats.len() < MEMBERS_MAX {
            let old = view.replaces(member);
            // Two instances have one address or uid and the older one is alive, so one of them is a
            // copy.
            if old.is_some_and(|old| view.is_member(old) && view.keeps_place(old)) {
                continue;
            }
            seats.push(Seat { member: member.clone(), votes: view.voters.contains(node) });
        }
    }
    seats.sort_unstable_by_key(|seat| seat.member.node);
    (seats != view.roster.seats).then_some(PlannedAction::Configure(seats))
}

/// An instance that is in the roster and asks to be a member becomes a learner.
fn admit(view: &PlanInputs) -> Option<PlannedAction> {
    let wanted = view.reports.keys().find(|node| {
        view.roster.get(**node).is_some() && !view.is_member(**node) && !view.leaving.contains(node)
    })?;
    let part = if planted!(JoinsAsVoter) { NodeRole::Voter } else { NodeRole::Learner };
    view.vote([(*wanted, part)])
}

/// A newer member takes the place of its former self.
fn replace(view: &PlanInputs) -> Option<PlannedAction> {
    let mut members = view.voters.iter().chain(&view.learners);
    members.find_map(|old| replace_one(view, *old))
}

fn replace_one(view: &PlanInputs, old: NodeId) -> Option<PlannedAction> {
    let seat = view.roster.get(old).filter(|_| !view.keeps_place(old))?;
    let took = |new: &&Member| {
        new.node != old
            && view.is_member(new.node)
            && view.is_alive(new.node)
            && (seat.member.is_at(&new.address) || new.uid == seat.member.uid)
    };
    let new = view.roster.members().find(took)?.node;
    if !view.voters.contains(&old) {
        view.vote([(old, NodeRole::Gone)])
    } else if view.voters.contains(&new) {
        view.vote([(old, NodeRole::Learner)])
    } else if view.candidates().any(|candidate| candidate == new) {
        // Not removed at once: see `let_go`.
        view.vote([(old, NodeRole::Learner), (new, NodeRole::Voter)])
    } else {
        None
    }
}

fn let_go(view: &PlanInputs) -> Option<PlannedAction> {
    let leaver = view.leaving.iter().copied().find(|node| view.is_member(*node))?;
    if view.learners.contains(&leaver) {
        return view.vote([(leaver, NodeRole::Gone)]);
    }
    if leaver == view.own {
        let another = view.voters.iter().any(|voter| *voter != leaver && view.is_alive(*voter));
        if another {
            return Some(PlannedAction::HandOver);
        }
        // A learner must vote before this node can go.
        let successor = view.successor(Some(leaver))?;
        return view.vote([(successor, NodeRole::Voter)]);
    }
    // A member acts by the changes that it knows to be committed, and after a crash it may not know
    // of the last one. The leaver's vote must not be needed any more once it has gone. So the
    // leaver loses its vote by a separate change, which is known to be committed wherever the next
    // one is on disk.
    if let Some(successor) = view.successor(Some(leaver)) {
        return view.vote([(leaver, NodeRole::Learner), (successor, NodeRole::Voter)]);
    }
    (view.voters.len() > 1).then(|| view.vote([(leaver, NodeRole::Learner)])).flatten()
}

fn demote(view: &PlanInputs, policy: &MembershipPolicy) -> Option<PlannedAction> {
    if view.voters.len() <= policy.max_voters {
        return None;
    }
    let crowd = |node| view.crowd(&view.voters, node);
    let worst = view.worst(|node| (!view.is_alive(node), view.is_low(node), crowd(node)))?;
    view.vote([(worst, NodeRole::Learner)])
}

/// A voter that has been silent for long hands its vote to a learner, and one without room to a learner with
/// room.
fn relieve(view: &PlanInputs, policy: &MembershipPolicy) -> Option<PlannedAction> {
    let silent = |voter: &NodeId| view.silent_for(*voter, policy.replace_after);
    let full = |voter: &NodeId| {
        let low_for = view.disk_low.get(voter);
        *voter != view.own && low_for.is_some_and(|time| *time >= policy.replace_after)
    };
    let voters = || view.voters.iter().copied();
    let lost = voters().find(silent).or_else(|| voters().find(full))?;
    let successor = view.successor(Some(lost))?;
    if !silent(&lost) && view.is_low(successor) {
        return None;
    }
    view.vote([(lost, NodeRole::Learner), (successor, NodeRole::Voter)])
}

/// Makes as many voters as allowed, in an odd number. Not so many that fewer of them may be lost, since their
/// disks are nearly full.
///
/// Not while a voter is silent: it would stay a voter for ever if no learner were left to vote in
/// its place.
fn promote(view: &PlanInputs, policy: &MembershipPolicy) -> Option<PlannedAction> {
    if view.voters.iter().any(|voter| !view.is_alive(*voter)) {
        return None;
    }
    // One at a time: each promotion changes which learner is the best next.
    let mut after = view.clone();
    let (mut steps, mut best) = (Vec::new(), (view.spare(&view.voters), 0));
    while after.voters.len() < policy.max_voters
        && let Some(next) = after.successor(None)
    {
        after.learners.remove(&next);
        after.voters.insert(next);
        steps.push((next, NodeRole::Voter));
        let spare = view.spare(&after.voters);
        if !after.voters.len().is_multiple_of(2) && spare >= best.0 {
            best = (spare, steps.len());
        }
    }
    steps.truncate(best.1);
    view.vote(steps)
}

/// A voter of a zone with many voters hands its vote to a learner of a zone with few. Each time the
/// two counts come closer, so this ends. It never moves from a disk with room to one without.
fn spread(view: &PlanInputs) -> Option<PlannedAction> {
    if view.voters.iter().any(|voter| !view.is_alive(*voter)) {
        return None;
    }
    let worst = view.worst(|node| (view.crowd(&view.voters, node), view.is_low(node)))?;
    let successor = view.successor(None)?;
    if view.is_low(successor) && !view.is_low(worst) {
        return None;
    }
    let (few, many) = (view.crowd(&view.voters, successor), view.crowd(&view.voters, worst));
    (few + 2 <= many)
        .then(|| view.vote([(worst, NodeRole::Learner), (successor, NodeRole::Voter)]))
        .flatten()
}

/// A learner that was silent for very long is removed. A learner that is not in the roster has no
/// place for a newer one to take, and is removed sooner.
fn forget(view: &PlanInputs, policy: &MembershipPolicy) -> Option<PlannedAction> {
    let patience = |learner: NodeId| match view.roster.get(learner) {
        Some(_) => policy.replace_after.saturating_mul(FORGET_FACTOR),
        None => policy.replace_after,
    };
    let is_lost = |learner: &&NodeId| view.silent_for(**learner, patience(**learner));
    let lost = view.learners.iter().find(is_lost)?;
    view.vote([(*lost, NodeRole::Gone)])
}

/// The fit voter of the highest priority, if that is higher than the leader's own.
fn prefer(view: &PlanInputs) -> Option<PlannedAction> {
    let priority = |node: NodeId| {
        let seat = view.roster.get(node);
        seat.map_or(0, |seat| seat.member.leader_priority)
    };
    let is_fit = |voter: &NodeId| {
        let health = view.health.get(voter);
        health.is_some_and(|health| health.is_fit) && !view.leaving.contains(voter)
    };
    let fit = view.voters.iter().copied().filter(is_fit);
    let best = fit.max_by_key(|voter| (priority(*voter), *voter))?;
    (priority(best) > priority(view.own) && !planted!(LeadPriorityIgnored))
        .then_some(PlannedAction::Prefer(best))
}

#[cfg(test)]
mod tests;
