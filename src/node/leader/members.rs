//! How the leader changes the membership. It observes which members are alive and how far each has
//! the log, and makes one change at a time towards the membership that [`planner`](super::planner)
//! asks for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::machine::command::{Batch, Command};
use crate::node::Node;
use crate::node::io::Time;
use crate::node::leader::planner::{Action, Sight, View, plan};
use crate::node::leader::{Leading, own_request};
use crate::node::membership::REQUEST_TIME;
use crate::node::message::PeerMessage;
use crate::node::raft::persistence::BACKLOG_BYTES_MAX;
use crate::planted::{Bug, planted};
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
    /// The other members whose disks are nearly full, and until when each report holds.
    pub(in crate::node) disk_low: BTreeMap<NodeId, Time>,
    /// The entry of a change that is not applied yet.
    changing: Option<u64>,
    health_at: Time,
    /// The settled learners, as last reported.
    placed: BTreeSet<NodeId>,
}

impl Observed {
    /// An instance that is no member yet asks to be one. There is room for a bounded number.
    pub(in crate::node) fn wants_to_join(&mut self, member: Member, now: Time) {
        let reports = &mut self.reports;
        if reports.contains_key(&member.node) || reports.len() < MEMBERS_MAX {
            reports.insert(member.node, (member, now + REQUEST_TIME));
        }
    }

    /// A member reports its address and zone.
    pub(in crate::node) fn presents_itself(&mut self, member: Member, now: Time) {
        self.reports.insert(member.node, (member, now + REQUEST_TIME));
    }

    pub(in crate::node) fn wants_to_leave(&mut self, node: NodeId, now: Time) {
        self.leavers.insert(node, now + REQUEST_TIME);
        self.given_up.remove(&node);
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
        let ended = if planted(Bug::LevelByEntries) { self.ends.back() } else { self.ends.front() };
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
        self.disk_low.retain(|node, until| now < *until && matched.contains_key(node));
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

impl Node {
    /// Observes the members and makes the next change, once a heartbeat.
    pub(in crate::node) fn keep_members(&mut self) {
        let patience = self.patience();
        let Some(leading) = &mut self.leading else { return };
        let (raft, now) = (&self.raft, self.now.mono);
        let others = raft.all_progress().filter(|(node, _)| *node != self.id);
        let matched = others.map(|(node, progress)| (node, progress.matched)).collect();
        let before = now.saturating_sub(self.config.timings().election());
        leading.members.look(&matched, raft.last_index(), now, before);
        leading.members.note_committed(raft.committed(), raft.last_index(), now);
        leading.members.note_own_disk(raft.persisted(), raft.committed(), now);
        // This also counts before the leader serves, which takes until its own disk has the first entry
        // of its term.
        if self.is_in_the_way() {
            tracing::warn!(node = %self.named(self.id), "a leader that cannot commit makes way for another");
            self.raft.step_down();
            return;
        }
        if self.has_the_slow_disk() {
            let first = self.raft.heir().is_none();
            self.resign();
            if first && self.raft.heir().is_some() {
                tracing::warn!(node = %self.named(self.id), "a leader with a slow disk hands over to another");
            }
        }
        if self.has_the_full_disk() {
            self.resign();
        }

        let Some(leading) = &mut self.leading else { return };
        let Some(serves_since) = leading.serves_since else { return };
        let (raft, voting) = (&self.raft, self.raft.log().voting());
        let busy = !leading.members.may_change(self.raft.log().applied().index)
            || !voting.voters_outgoing.is_empty()
            || raft.is_changing()
            || raft.heir().is_some();
        // A new leader has not observed the members yet: a leaving voter may have an heir that is
        // not known to be level.
        if now < serves_since + patience + self.config.heartbeat || busy {
            return self.report_health(BTreeSet::new());
        }
        let Some(view) = self.view() else { return };
        let action = plan(&view, &self.config.policy);
        self.report_health(view.placed(&self.config.policy));
        if let Some(action) = action {
            tracing::info!(node = %self.named(self.id), ?action, "a change of the members");
            self.change_members(action);
        }
    }

    fn change_members(&mut self, action: Action) {
        let Some(leading) = &mut self.leading else { return };
        let proposed = match action {
            Action::Configure(seats) => {
                let (_, version) = self.machine.roster();
                let requests = vec![own_request(Command::Configure { version, seats })];
                let batch = Batch { time: leading.log_time(), requests };
                self.raft.propose(batch.encode())
            }
            // raft-rs may put an empty entry in its place. Then the next heartbeat proposes it
            // again.
            Action::Vote(change) => self.raft.propose_change(&change),
            Action::HandOver => return self.resign(),
        };
        if proposed {
            leading.members.changing = Some(self.raft.last_index());
        }
    }

    /// Whether a member has stored nothing for longer than an election takes, though it lacks
    /// entries.
    fn stores_nothing(&self, leading: &Leading, node: NodeId) -> bool {
        let stored = leading.members.stored.get(&node);
        stored.is_some_and(|(_, since)| self.now.mono.saturating_sub(*since) > self.patience())
    }

    /// Whether this leader has listened for a member for long enough without receiving anything.
    pub(in crate::node) fn is_silent(&self, node: NodeId) -> bool {
        let leading = self.leading.as_ref();
        leading.is_some_and(|leading| !self.sight(leading, node).silent.is_zero())
    }

    fn sight(&self, leading: &Leading, node: NodeId) -> Sight {
        let now = self.now.mono;
        let since = |at: &Time| now.saturating_sub(*at);
        let (received, seen) = (self.membership.last_received(node), &leading.members);
        let silent = received.as_ref().max(seen.listening.get(&node)).map_or(Duration::ZERO, since);
        let silent = if silent > self.patience() { silent } else { Duration::ZERO };
        let sends =
            received.is_some_and(|at| since(&at) <= self.patience()) || planted(Bug::PresumedAlive);
        let level = seen.level_since.get(&node).map_or(Duration::ZERO, since);
        let answers = self.answers(node);
        Sight {
            silent,
            sends,
            answers,
            level: answers && level >= self.config.timings().answer(),
            // A vote given to a dead member may cost the majority.
            caught_up: answers && level >= self.patience(),
        }
    }

    fn view(&self) -> Option<View> {
        let leading = self.leading.as_ref()?;
        let voting = self.raft.log().voting();
        let others = || voting.voters.iter().chain(&voting.learners).filter(|id| **id != self.id);
        let (roster, _) = self.machine.roster();
        let Observed { reports, leavers, given_up, .. } = &leading.members;
        let is_back = |node: &NodeId| given_up.contains(node) && !self.is_silent(*node);
        Some(View {
            own: self.id,
            voters: voting.voters.iter().copied().collect(),
            learners: voting.learners.iter().copied().collect(),
            sights: others().map(|id| (*id, self.sight(leading, *id))).collect(),
            roster,
            reports: reports.iter().map(|(id, (member, _))| (*id, member.clone())).collect(),
            leaving: leavers.keys().copied().filter(|node| !is_back(node)).collect(),
        })
    }

    /// Whether this leader has committed nothing for long, and other voters may be a majority without
    /// it: those that have stored more than is committed, and those that it does not reach.
    ///
    /// Voters whose disks hang still answer heartbeats, so the leader keeps its quorum. That is right
    /// while no other voter could lead.
    fn is_in_the_way(&self) -> bool {
        let Some(leading) = &self.leading else { return false };
        let stuck = leading.members.stuck.is_some_and(|(_, since)| {
            self.now.mono.saturating_sub(since) >= self.config.timings().stuck()
        });
        let raft = &self.raft;
        let has_more =
            |voter| raft.progress(voter).is_some_and(|has| has.matched > raft.committed());
        stuck && self.others_decide(|voter| has_more(voter) || !self.answers(voter))
    }

    /// Whether the other voters for which `holds` is true are a majority.
    pub(in crate::node) fn others_decide(&self, holds: impl Fn(NodeId) -> bool) -> bool {
        let voting = self.raft.log().voting();
        let decide = |voters: &[NodeId]| {
            let of = voters.iter().filter(|voter| **voter != self.id && holds(**voter));
            voters.is_empty() || 2 * of.count() > voters.len()
        };
        decide(&voting.voters) && decide(&voting.voters_outgoing)
    }

    /// Whether this leader's own disk is far behind those of the others, so that one of them should lead.
    ///
    /// At first nothing waits for that disk, since the others are a majority. But a leader proposes
    /// nothing more once too much waits for its own disk.
    fn has_the_slow_disk(&self) -> bool {
        let Some(leading) = &self.leading else { return false };
        let patience = self.patience();
        let late = |(_, since): (u64, Time)| self.now.mono.saturating_sub(since) > patience;
        let seen = &leading.members;
        let (raft, outline) = (&self.raft, self.raft.log().outline());
        let lacks = outline.bytes_between(raft.persisted() + 1, raft.committed() + 1);
        let behind = seen.own_disk.is_some_and(late) || lacks > BACKLOG_BYTES_MAX as u64 / 2;
        // If another needed disk is as slow, an election would only cost time.
        let is_level = |voter| self.is_level(leading, voter);
        behind && self.others_decide(is_level) && !planted(Bug::SlowLeaderStays)
    }

    /// Whether a voter answers, and has stored the log as it was an election time ago.
    pub(in crate::node) fn is_level(&self, leading: &Leading, voter: NodeId) -> bool {
        let progress = self.raft.progress(voter).zip(leading.members.level());
        self.answers(voter) && progress.is_some_and(|(progress, level)| progress.matched >= level)
    }

    /// Sends the members the leader's view of them: every [`HEALTH_PERIOD`], and at once when the
    /// silent voters or the settled learners change.
    fn report_health(&mut self, placed: BTreeSet<NodeId>) {
        let now = self.now.mono;
        let Some(leading) = &self.leading else { return };
        if leading.serves_since.is_none_or(|since| now < since + self.patience()) {
            // The leader does not know the members' health yet.
            return;
        }
        let is_silent = |voter: &NodeId| {
            !self.sight(leading, *voter).silent.is_zero() || self.stores_nothing(leading, *voter)
        };
        let voters = self.others().filter(|node| self.is_voter(*node));
        let silent: BTreeSet<NodeId> = voters.filter(is_silent).collect();
        let (disk_low, refuses_writes) = self.room_report(leading, &silent);
        let is_news = self.membership.silent.as_ref() != Some(&silent)
            || !placed.is_subset(&leading.members.placed)
            || self.room.differs(&disk_low, refuses_writes);
        if !is_news && now < leading.members.health_at {
            return;
        }
        let message = PeerMessage::Health {
            silent: silent.iter().copied().collect(),
            placed: placed.iter().copied().collect(),
            disk_low: disk_low.iter().copied().collect(),
            refuses_writes,
        };
        self.note_room_report(disk_low, refuses_writes);
        self.membership.note_silent(silent, self.raft.term());
        if let Some(leading) = &mut self.leading {
            leading.members.health_at = now + HEALTH_PERIOD;
            leading.members.placed = placed;
        }
        for peer in self.others().collect::<Vec<_>>() {
            self.effects.messages.push((peer, message.clone()));
        }
    }
}
