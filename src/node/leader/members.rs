//! How the leader changes the membership. It observes which members are alive and how far each has
//! the log, and makes one change at a time towards the membership that [`planner`](super::planner)
//! asks for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::machine::Machine;
use crate::machine::command::{Batch, Command};
use crate::node::context::Context;
use crate::node::io::Time;
use crate::node::leader::planner::{PeerHealth, PlanInputs, PlannedAction, plan};
use crate::node::leader::{Leading, own_request};
use crate::node::membership::Membership;
use crate::node::message::PeerMessage;
use crate::node::raft::core::Raft;
use crate::node::raft::persistence::BACKLOG_BYTES_MAX;
use crate::node::room::Room;
use crate::node::timings::REQUEST_TIME;
use crate::types::membership::{MEMBERS_MAX, Member, NodeId};

/// How often the leader reports the health of the members.
const HEALTH_PERIOD: Duration = Duration::from_secs(1);

/// What a leader has observed of the members since it leads.
#[derive(Debug, Default)]
pub(in crate::node) struct Observed {
    /// Since when this leader has listened for each member. A member's silence counts from then on.
    listening: BTreeMap<NodeId, Time>,
    /// Where the log ended at the last looks, oldest first.
    ends: VecDeque<(Time, u64)>,
    /// Since when each learner is level with the log.
    level_since: BTreeMap<NodeId, Time>,
    /// The commit index while later entries wait for commit, and since when it has not moved.
    stuck: Option<(u64, Time)>,
    /// An entry that was committed before this member's own disk stored it, and since when.
    own_disk: Option<(u64, Time)>,
    /// For each member that has not stored the whole log: its last stored entry, and since when. A
    /// member with a hanging disk sends messages but stores nothing.
    stored: BTreeMap<NodeId, (u64, Time)>,
    /// The instances that ask to be a member or report a new address or zone, and until when each
    /// report holds.
    reports: BTreeMap<NodeId, (Member, Time)>,
    /// The members that ask to leave, and until when each request holds.
    leavers: BTreeMap<NodeId, Time>,
    /// The members among them that an operator removes as dead: no longer once they answer.
    given_up: BTreeSet<NodeId>,
    /// The other members whose disks are nearly full, since when, and until when each report holds.
    pub(super) disk_low: BTreeMap<NodeId, (Time, Time)>,
    /// The entry of a change that is not applied yet.
    changing: Option<u64>,
    /// Whether an instance has asked to be a member for the first time, and nothing was planned since.
    has_new_request: bool,
    health_at: Time,
    /// The settled learners, as last reported.
    placed: BTreeSet<NodeId>,
}

impl Observed {
    /// An instance that is no member yet asks to be one. There is room for a bounded number.
    pub(in crate::node) fn wants_to_join(&mut self, member: Member, now: Time) {
        let reports = &mut self.reports;
        let is_new = !reports.contains_key(&member.node);
        if !is_new || reports.len() < MEMBERS_MAX {
            reports.insert(member.node, (member, now + REQUEST_TIME));
            self.has_new_request |= is_new;
        }
    }

    /// Whether to plan before the next heartbeat: an instance asks to be a member, or a change was applied, so the
    /// next one can follow.
    pub(in crate::node) fn needs_plan(&mut self, applied: u64) -> bool {
        std::mem::take(&mut self.has_new_request)
            | self.changing.take_if(|index| *index <= applied).is_some()
    }

    /// A member reports its address and zone.
    pub(in crate::node) fn presents_itself(&mut self, member: Member, now: Time) {
        self.reports.insert(member.node, (member, now + REQUEST_TIME));
    }

    pub(in crate::node) fn wants_to_leave(&mut self, node: NodeId, now: Time) {
        self.leavers.insert(node, now + REQUEST_TIME);
        self.given_up.remove(&node);
    }

    /// A member reports whether its disk is nearly full.
    pub(in crate::node) fn reports_disk(&mut self, node: NodeId, low: bool, now: Time) {
        match low {
            true => self.disk_low.entry(node).or_insert((now, now)).1 = now + REQUEST_TIME,
            false => drop(self.disk_low.remove(&node)),
        }
    }

    /// An operator removes a member that is dead.
    pub(in crate::node) fn give_up(&mut self, node: NodeId, now: Time) {
        self.wants_to_leave(node, now);
        self.given_up.insert(node);
    }

    /// Forgets the requests of a removed member, which would be taken in again under its old id
    /// otherwise.
    pub(in crate::node) fn forget(&mut self, gone: NodeId) {
        self.reports.remove(&gone);
        self.leavers.remove(&gone);
    }

    /// Where the log ended an election time ago.
    fn level(&self) -> Option<u64> {
        let ended = if planted!(LevelByEntries) { self.ends.back() } else { self.ends.front() };
        ended.map(|(_, end)| *end)
    }

    /// Notes which members there are and which are level with the log. The log ends with the entry
    /// `last`. Only the ends since the time `before` are kept. `matched` has the other members and
    /// how far each has stored the log.
    fn look(&mut self, matched: &BTreeMap<NodeId, u64>, last: u64, now: Time, before: Time) {
        self.ends.push_back((now, last));
        while self.ends.get(1).is_some_and(|(at, _)| *at <= before) {
            self.ends.pop_front();
        }
        let level = self.level().unwrap_or(last);
        self.reports.retain(|_, (_, until)| now < *until);
        self.leavers.retain(|_, until| now < *until);
        self.disk_low.retain(|node, (_, until)| now < *until && matched.contains_key(node));
        self.listening.retain(|node, _| matched.contains_key(node));
        self.level_since.retain(|node, _| matched.contains_key(node));
        self.stored.retain(|node, _| matched.contains_key(node));
        for (node, matched) in matched {
            self.listening.entry(*node).or_insert(now);
            if *matched >= last {
                self.stored.remove(node);
            } else {
                let stored = self.stored.entry(*node).or_insert((*matched, now));
                if stored.0 != *matched {
                    *stored = (*matched, now);
                }
            }
            if *matched > 0 && *matched >= level {
                self.level_since.entry(*node).or_insert(now);
            } else {
                self.level_since.remove(node);
            }
        }
    }

    /// Notes the commit index.
    fn note_committed(&mut self, committed: u64, last: u64, now: Time) {
        let stuck = self.stuck.filter(|(before, _)| *before == committed);
        self.stuck = (committed < last).then(|| stuck.unwrap_or((committed, now)));
    }

    /// Notes how far this member's own disk has the log.
    fn note_own_disk(&mut self, stored: u64, committed: u64, now: Time) {
        let waits = self.own_disk.filter(|(entry, _)| *entry > stored);
        self.own_disk = (committed > stored).then(|| waits.unwrap_or((committed, now)));
    }

    /// Whether a change may be proposed: no earlier one of this term is still to be applied.
    fn may_change(&mut self, applied: u64) -> bool {
        self.changing = self.changing.filter(|index| *index > applied);
        self.changing.is_none()
    }
}

/// What an observation of the members leads to.
pub(in crate::node) struct MembershipPlan {
    /// The settled learners.
    pub(in crate::node) placed: BTreeSet<NodeId>,
    /// The next change.
    pub(in crate::node) action: Option<PlannedAction>,
}

impl Leading {
    /// Observes the members, at least once a heartbeat, and plans the next change. `None`: it knows too little yet, or
    /// has ceased to lead.
    pub(in crate::node) fn observe_members(
        &mut self,
        raft: &mut Raft,
        machine: &Machine,
        membership: &Membership,
        room: &Room,
        cx: &Context,
    ) -> Option<MembershipPlan> {
        let now = cx.now.mono;
        let others = raft.all_progress().filter(|(node, _)| *node != cx.id);
        let matched = others.map(|(node, progress)| (node, progress.matched)).collect();
        let before = now.saturating_sub(cx.config.timings().election());
        self.members.look(&matched, raft.last_index(), now, before);
        self.members.note_committed(raft.committed(), raft.last_index(), now);
        self.members.note_own_disk(raft.persisted(), raft.committed(), now);
        // This also counts before the leader serves, which takes until its own disk has the first entry
        // of its term.
        if self.is_in_the_way(raft, membership, cx) {
            tracing::warn!(node = %membership.own_name(), "a leader that cannot commit makes way for another");
            raft.step_down();
            return None;
        }
        if self.has_the_slow_disk(raft, membership, cx) {
            let first = raft.successor().is_none();
            self.resign(raft, membership, room, cx);
            if first && raft.successor().is_some() {
                tracing::warn!(node = %membership.own_name(), "a leader with a slow disk hands over to another");
            }
        }
        if self.has_the_full_disk(raft, membership, room, cx) {
            self.resign(raft, membership, room, cx);
        }

        let serves_since = self.serves_since?;
        let busy = !self.members.may_change(raft.log().applied().index)
            || !raft.log().voting().voters_outgoing.is_empty()
            || raft.is_changing()
            || raft.successor().is_some();
        // A new leader has not observed the members yet: a leaving voter may have a successor that is
        // not known to be level.
        if now < serves_since + cx.patience() + cx.config.heartbeat || busy {
            return Some(MembershipPlan { placed: BTreeSet::new(), action: None });
        }
        let view = self.view(raft, machine, (membership, room), cx);
        let action = plan(&view, &cx.config.policy);
        Some(MembershipPlan { placed: view.placed(&cx.config.policy), action })
    }

    /// Makes a change of the members.
    pub(in crate::node) fn change_members(
        &mut self,
        action: PlannedAction,
        raft: &mut Raft,
        machine: &Machine,
        (membership, room): (&Membership, &Room),
        cx: &Context,
    ) {
        let proposed = match action {
            PlannedAction::Configure(seats) => {
                let (_, version) = machine.roster();
                let requests = vec![own_request(Command::Configure { version, seats })];
                let batch = Batch { time: self.log_time(), requests };
                raft.propose(batch.encode())
            }
            // raft-rs may put an empty entry in its place. Then the next heartbeat proposes it
            // again.
            PlannedAction::Vote(change) => raft.propose_change(&change),
            PlannedAction::HandOver => return self.resign(raft, membership, room, cx),
            PlannedAction::Prefer(successor) => {
                return self.hand_over_to(successor, raft, cx.now.mono);
            }
        };
        if proposed {
            self.members.changing = Some(raft.last_index());
        }
    }

    /// Whether a member has stored nothing for longer than an election takes, though it lacks
    /// entries.
    fn stores_nothing(&self, node: NodeId, cx: &Context) -> bool {
        let stored = self.members.stored.get(&node);
        stored.is_some_and(|(_, since)| cx.now.mono.saturating_sub(*since) > cx.patience())
    }

    /// Whether this leader has listened for a member for long enough without receiving anything.
    pub(in crate::node) fn is_silent(
        &self,
        node: NodeId,
        membership: &Membership,
        cx: &Context,
    ) -> bool {
        !self.health(node, membership, cx).silent.is_zero()
    }

    fn health(&self, node: NodeId, membership: &Membership, cx: &Context) -> PeerHealth {
        let now = cx.now.mono;
        let since = |at: &Time| now.saturating_sub(*at);
        let (received, seen) = (membership.contacts.last_received(node), &self.members);
        let silent = received.as_ref().max(seen.listening.get(&node)).map_or(Duration::ZERO, since);
        let silent = if silent > cx.patience() { silent } else { Duration::ZERO };
        let sends = received.is_some_and(|at| since(&at) <= cx.patience());
        let level = seen.level_since.get(&node).map_or(Duration::ZERO, since);
        let answers = membership.answers(node, cx);
        PeerHealth {
            silent,
            sends,
            answers,
            level: answers && level >= cx.config.timings().answer(),
            // A vote given to a dead member may cost the majority.
            caught_up: answers && level >= cx.patience(),
            is_fit: false,
        }
    }

    /// The same, and whether the member is fit to lead.
    fn health_for_lead(
        &self,
        node: NodeId,
        membership: &Membership,
        room: &Room,
        cx: &Context,
    ) -> PeerHealth {
        let health = self.health(node, membership, cx);
        let is_whole = !self.is_disk_low(node, room, cx) && !membership.closing.is_closing(node);
        PeerHealth { is_fit: health.caught_up && is_whole, ..health }
    }

    fn view(
        &self,
        raft: &Raft,
        machine: &Machine,
        (membership, room): (&Membership, &Room),
        cx: &Context,
    ) -> PlanInputs {
        let voting = raft.log().voting();
        let others = || voting.voters.iter().chain(&voting.learners).filter(|id| **id != cx.id);
        let (roster, _) = machine.roster();
        let Observed { reports, leavers, given_up, .. } = &self.members;
        let is_back =
            |node: &NodeId| given_up.contains(node) && !self.is_silent(*node, membership, cx);
        PlanInputs {
            own: cx.id,
            voters: voting.voters.iter().copied().collect(),
            learners: voting.learners.iter().copied().collect(),
            health: others()
                .map(|id| (*id, self.health_for_lead(*id, membership, room, cx)))
                .collect(),
            roster,
            reports: reports.iter().map(|(id, (member, _))| (*id, member.clone())).collect(),
            leaving: leavers.keys().copied().filter(|node| !is_back(node)).collect(),
            disk_low: self.disks_low(room, cx),
        }
    }

    /// Whether this leader has committed nothing for long, and other voters may be a majority without
    /// it: those that have stored more than is committed, and those that it does not reach.
    ///
    /// Voters whose disks hang still answer heartbeats, so the leader keeps its quorum. That is right
    /// while no other voter could lead.
    fn is_in_the_way(&self, raft: &Raft, membership: &Membership, cx: &Context) -> bool {
        let stuck = self.members.stuck.is_some_and(|(_, since)| {
            cx.now.mono.saturating_sub(since) >= cx.config.timings().stuck()
        });
        let has_more =
            |voter| raft.progress(voter).is_some_and(|has| has.matched > raft.committed());
        stuck && raft.others_decide(|voter| has_more(voter) || !membership.answers(voter, cx))
    }

    /// Whether this leader's own disk is far behind those of the others, so that one of them should lead.
    ///
    /// At first nothing waits for that disk, since the others are a majority. But a leader proposes
    /// nothing more once too much waits for its own disk.
    fn has_the_slow_disk(&self, raft: &Raft, membership: &Membership, cx: &Context) -> bool {
        let patience = cx.patience();
        let late = |(_, since): (u64, Time)| cx.now.mono.saturating_sub(since) > patience;
        let (seen, outline) = (&self.members, raft.log().outline());
        let lacks = outline.bytes_between(raft.persisted() + 1, raft.committed() + 1);
        let behind = seen.own_disk.is_some_and(late) || lacks > BACKLOG_BYTES_MAX as u64 / 2;
        // If another needed disk is as slow, an election would only cost time.
        let is_level = |voter| self.is_level(voter, raft, membership, cx);
        behind && raft.others_decide(is_level) && !planted!(SlowLeaderStays)
    }

    /// Whether a voter answers, and has stored the log as it was an election time ago.
    pub(super) fn is_level(
        &self,
        voter: NodeId,
        raft: &Raft,
        membership: &Membership,
        cx: &Context,
    ) -> bool {
        let progress = raft.progress(voter).zip(self.members.level());
        membership.answers(voter, cx)
            && progress.is_some_and(|(progress, level)| progress.matched >= level)
    }

    /// Sends the members the leader's view of them: every [`HEALTH_PERIOD`], and at once when the
    /// silent voters or the settled learners change. Returns what it has sent of the room on disks: the
    /// members with little, and whether writes are refused for that.
    pub(in crate::node) fn report_health(
        &mut self,
        placed: BTreeSet<NodeId>,
        raft: &Raft,
        membership: &mut Membership,
        room: &Room,
        cx: &mut Context,
    ) -> Option<(BTreeSet<NodeId>, bool)> {
        let now = cx.now.mono;
        if self.serves_since.is_none_or(|since| now < since + cx.patience()) {
            // The leader does not know the members' health yet.
            return None;
        }
        let is_silent = |voter: &NodeId| {
            self.is_silent(*voter, membership, cx) || self.stores_nothing(*voter, cx)
        };
        let voters = raft.others().filter(|node| raft.is_voter(*node));
        let silent: BTreeSet<NodeId> = voters.filter(is_silent).collect();
        let (disk_low, refuses_writes) = self.room_report(&silent, raft, room, cx);
        let is_news = membership.silent() != Some(&silent)
            || !placed.is_subset(&self.members.placed)
            || room.differs(&disk_low, refuses_writes);
        if !is_news && now < self.members.health_at {
            return None;
        }
        let message = PeerMessage::Health {
            silent: silent.iter().copied().collect(),
            placed: placed.iter().copied().collect(),
            disk_low: disk_low.iter().copied().collect(),
            refuses_writes,
            log_ms: self.log_time(),
            wall_ms: cx.now.wall_ms,
        };
        membership.clocks.received(self.log_time(), None, cx.now, membership.own_name());
        membership.note_silent(silent, raft.term());
        self.members.health_at = now + HEALTH_PERIOD;
        self.members.placed = placed;
        cx.send_all(raft.others(), &message);
        Some((disk_low, refuses_writes))
    }
}
