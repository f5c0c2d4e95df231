//! Raft, as the rest of the node uses it.
//!
//! raft-rs is used here and in three files beside this one: `log` (what it reads), `ready` (what it wants done)
//! and `wire` (its types and ours).

use std::collections::VecDeque;

use raft::eraftpb::{self, MessageType};
use raft::{RawNode, ReadOnlyOption, SnapshotStatus, StateRole};

use crate::node::config::NodeConfig;
use crate::node::io::Time;
use crate::node::message::RaftBody;
use crate::node::raft::checkpoints::Checkpoints;
use crate::node::raft::configuration::VotingChange;
use crate::node::raft::log::{MemLog, Position};
use crate::node::raft::logger;
use crate::node::raft::persistence::Persistence;
use crate::node::raft::snapshot_transfer::IncomingSnapshots;
use crate::node::raft::state::{Elections, KnownLeader, LastAnswer, Progress, RaftRole, Sends};
use crate::node::stored::{Boot, HardState, Voting};
use crate::node::timings::ELECTION_TICKS;
use crate::types::membership::NodeId;

/// The most bytes of entries in a message, unless a single entry is larger.
pub(in crate::node) const MESSAGE_ENTRIES_BYTES: u64 = 1 << 20;

/// How many messages with entries may be under way to a voter, each with [`MESSAGE_ENTRIES_BYTES`]
/// or one entry.
pub(in crate::node) const VOTER_WINDOW: usize = 256;
/// The same for a learner. There may be many slow learners, and no write waits for them. Later
/// entries go into the next message.
pub(in crate::node) const LEARNER_WINDOW: usize = 8;

/// See the module's documentation.
pub(in crate::node) struct Raft {
    /// For the files of this folder that handle raft-rs's own types.
    pub(super) raw: RawNode<MemLog>,
    /// The entries that raft-rs has handed out and that are not applied yet.
    pub(super) unapplied: VecDeque<eraftpb::Entry>,
    /// This follower's last answer to a heartbeat.
    pub(super) last_answer: LastAnswer,
    /// Peers to which a state was not sent, and for which raft-rs does not know that yet.
    pub(super) failed_transfers: Vec<NodeId>,
    pub(in crate::node) elections: Elections,
    pub(in crate::node) persistence: Persistence,
    pub(in crate::node) checkpoints: Checkpoints,
    /// A leader's state that comes in.
    pub(in crate::node) incoming: IncomingSnapshots,
}

impl Raft {
    /// Raft, started from what the disk has.
    ///
    /// # Errors
    /// The contradiction on disk. raft-rs must not be started from it.
    pub(in crate::node) fn start(
        id: NodeId,
        boot: &Boot,
        config: &NodeConfig,
        now: Time,
    ) -> Result<Raft, String> {
        let raw = start(id, boot)?;
        let checkpoint = Position { index: boot.checkpoint.index, term: boot.checkpoint.term };
        Ok(Raft {
            elections: Elections::new(config.seed, id, now, raw.raft.term),
            persistence: Persistence::default(),
            checkpoints: Checkpoints::new(checkpoint, boot.checkpoint_bytes, now),
            raw,
            unapplied: VecDeque::new(),
            last_answer: LastAnswer::default(),
            failed_transfers: Vec::new(),
            incoming: IncomingSnapshots::default(),
        })
    }

    /// Raft, started again from what the disk will have, in place of an empty log.
    ///
    /// # Errors
    /// The contradiction in it.
    pub(in crate::node) fn restart(&mut self, boot: &Boot, now: Time) -> Result<(), String> {
        self.raw = start(self.id(), boot)?;
        self.unapplied.clear();
        self.persistence.forget_awaiting();
        self.elections.observed = KnownLeader { term: self.term(), leader: 0 };
        let checkpoint = Position { index: boot.checkpoint.index, term: boot.checkpoint.term };
        self.checkpoints.replaced(checkpoint, 0, now);
        Ok(())
    }

    pub(in crate::node) fn id(&self) -> NodeId {
        self.raw.raft.id
    }

    pub(in crate::node) fn log(&self) -> &MemLog {
        self.raw.store()
    }

    pub(in crate::node) fn log_mut(&mut self) -> &mut MemLog {
        self.raw.mut_store()
    }

    pub(in crate::node) fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// The leader; 0 if none is known.
    pub(in crate::node) fn leader(&self) -> NodeId {
        self.raw.raft.leader_id
    }

    pub(in crate::node) fn role(&self) -> RaftRole {
        match self.raw.raft.state {
            StateRole::Leader => RaftRole::Leader,
            StateRole::Follower => RaftRole::Follower,
            StateRole::Candidate => RaftRole::Candidate,
            StateRole::PreCandidate => RaftRole::PreCandidate,
        }
    }

    pub(in crate::node) fn leads(&self) -> bool {
        self.role() == RaftRole::Leader
    }

    /// Whether this node leads and has committed an entry of its own term.
    pub(in crate::node) fn has_committed_in_term(&self) -> bool {
        self.raw.raft.apply_to_current_term()
    }

    pub(in crate::node) fn hard_state(&self) -> HardState {
        HardState::from(&self.raw.raft.hard_state())
    }

    pub(in crate::node) fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    pub(in crate::node) fn committed(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    /// The last entry that is on this disk.
    pub(in crate::node) fn persisted(&self) -> u64 {
        self.raw.raft.raft_log.persisted
    }

    /// The last entry that raft-rs has handed out as committed, and that is on this disk.
    pub(in crate::node) fn handed_out(&self) -> u64 {
        self.raw.raft.raft_log.applied
    }

    /// The term of an entry, if the log knows it.
    pub(in crate::node) fn term_at(&self, index: u64) -> Option<u64> {
        self.raw.raft.raft_log.term(index).ok()
    }

    /// Whether a received state is to be installed, and is this one.
    pub(in crate::node) fn takes_state(&self, at: Position) -> bool {
        let taken = self.raw.raft.raft_log.unstable.snapshot.as_ref();
        let taken = taken.map(eraftpb::Snapshot::get_metadata);
        taken.is_some_and(|taken| taken.index == at.index && taken.term == at.term)
    }

    /// How far a peer has the log, if this node leads and the peer is a member.
    pub(in crate::node) fn progress(&self, peer: NodeId) -> Option<Progress> {
        self.raw.raft.prs().get(peer).map(progress)
    }

    /// How far each member has the log, this node included.
    pub(in crate::node) fn all_progress(&self) -> impl Iterator<Item = (NodeId, Progress)> + '_ {
        self.raw.raft.prs().iter().map(|(peer, known)| (*peer, progress(known)))
    }

    /// Whether a node is a voter, by the present or the former members of a joint change.
    pub(in crate::node) fn is_voter(&self, node: NodeId) -> bool {
        let members = self.log().voting();
        members.voters.contains(&node) || members.voters_outgoing.contains(&node)
    }

    /// Whether a node is a member by this one's log.
    pub(in crate::node) fn is_member(&self, node: NodeId) -> bool {
        let members = self.log().voting();
        let lists = [&members.voters, &members.learners, &members.voters_outgoing];
        lists.iter().any(|list| list.contains(&node)) || members.learners_next.contains(&node)
    }

    /// Whether this node is a member by its own log.
    pub(in crate::node) fn is_own_member(&self) -> bool {
        self.is_member(self.id())
    }

    /// The members except this node.
    pub(in crate::node) fn others(&self) -> impl Iterator<Item = NodeId> + use<'_> {
        let (members, id) = (self.log().voting(), self.id());
        let lists = [&members.voters, &members.learners, &members.voters_outgoing];
        lists.into_iter().flatten().copied().filter(move |member| *member != id)
    }

    /// Whether the other voters for which `holds` is true are a majority.
    pub(in crate::node) fn others_decide(&self, holds: impl Fn(NodeId) -> bool) -> bool {
        let (voting, id) = (self.log().voting(), self.id());
        let decide = |voters: &[NodeId]| {
            let of = voters.iter().filter(|voter| **voter != id && holds(**voter));
            voters.is_empty() || 2 * of.count() > voters.len()
        };
        decide(&voting.voters) && decide(&voting.voters_outgoing)
    }

    /// Whether a change of the voters is not applied yet.
    pub(in crate::node) fn is_changing(&self) -> bool {
        self.raw.raft.has_pending_conf()
    }

    /// The voter to which leadership is being handed over.
    pub(in crate::node) fn successor(&self) -> Option<NodeId> {
        self.raw.raft.lead_transferee
    }

    /// Hands leadership over. In the meantime proposals are refused.
    pub(in crate::node) fn transfer_to(&mut self, successor: NodeId) {
        self.raw.transfer_leader(successor);
    }

    pub(in crate::node) fn abort_transfer(&mut self) {
        self.raw.raft.abort_leader_transfer();
    }

    pub(in crate::node) fn campaign(&mut self) -> Result<(), String> {
        self.raw.campaign().map_err(|error| format!("Raft does not campaign: {error}"))
    }

    /// Ceases to lead in this term.
    pub(in crate::node) fn step_down(&mut self) {
        let term = self.term();
        self.raw.raft.become_follower(term, 0);
    }

    /// The leader is lost. Another one is known once it sends something.
    pub(super) fn forget_leader(&mut self) {
        self.raw.raft.leader_id = 0;
    }

    /// Appends an entry to the log, if this node leads. Returns whether it did: not while too much is
    /// uncommitted, or while leadership is handed over.
    #[must_use]
    pub(in crate::node) fn propose(&mut self, data: Vec<u8>) -> bool {
        self.raw.propose(Vec::new(), data).is_ok()
    }

    /// Appends a change of the voters. raft-rs may put an empty entry in its place. Returns whether it
    /// appended something.
    #[must_use]
    pub(in crate::node) fn propose_change(&mut self, change: &VotingChange) -> bool {
        self.raw.propose_conf_change(change.encode(), change.to_raft()).is_ok()
    }

    /// Changes who votes, as an applied entry says. If this node does not any more, it ceases to lead.
    ///
    /// # Errors
    /// Why the change is impossible.
    pub(in crate::node) fn apply_change(&mut self, change: &VotingChange) -> Result<(), String> {
        let voting = self.raw.apply_conf_change(&change.to_raft());
        if self.leads() && !self.raw.raft.prs().conf().voters().contains(self.id()) {
            // Only the former leader can have proposed that. raft-rs would go on leading, and
            // panic.
            self.step_down();
        }
        let voting = voting.map_err(|error| error.to_string())?;
        self.log_mut().set_voting(Voting::from(&voting));
        Ok(())
    }

    /// Asks whether this node still leads. The answer has this context.
    pub(in crate::node) fn read_index(&mut self, context: Vec<u8>) {
        self.raw.read_index(context);
    }

    pub(in crate::node) fn has_ready(&self) -> bool {
        self.raw.has_ready()
    }

    pub(super) fn tick(&mut self) {
        self.raw.tick();
    }

    /// Sets the election timeout in place of the one that raft-rs draws.
    pub(super) fn set_election_timeout(&mut self, ticks: usize) {
        self.raw.raft.set_randomized_election_timeout(ticks);
    }

    /// What was sent to a peer may be lost.
    pub(super) fn unreachable(&mut self, peer: NodeId) {
        self.raw.report_unreachable(peer);
    }

    /// A peer has received a state, or it was not sent.
    pub(in crate::node) fn state_sent(&mut self, peer: NodeId, received: bool) {
        let status = if received { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw.report_snapshot(peer, status);
    }

    /// Sets how many appends may be under way to each member while this node leads.
    pub(in crate::node) fn pace(&mut self) {
        for peer in self.others().collect::<Vec<_>>() {
            let window = if self.is_voter(peer) { VOTER_WINDOW } else { LEARNER_WINDOW };
            self.raw.raft.adjust_max_inflight_msgs(peer, window);
        }
    }

    /// Sends a peer what it lacks.
    pub(in crate::node) fn send_entries(&mut self, peer: NodeId) {
        self.raw.raft.send_append(peer);
    }

    /// Takes in a message that the guard has let pass.
    ///
    /// # Errors
    /// Why raft-rs did not take it.
    pub(in crate::node) fn step(
        &mut self,
        from: NodeId,
        term: u64,
        body: &RaftBody,
    ) -> Result<(), String> {
        let message = body.to_raft(from, self.raw.raft.id, term);
        self.raw.step(message).map_err(|error| error.to_string())
    }

    /// Takes in a heartbeat. `answers` says whether it is to be answered, if raft-rs would answer it.
    pub(super) fn step_heartbeat(
        &mut self,
        from: NodeId,
        term: u64,
        body: &RaftBody,
        answers: impl FnOnce() -> bool,
    ) -> Result<(), String> {
        let before = self.raw.raft.msgs.len();
        let result = self.step(from, term, body);
        let is_answer =
            |made: &eraftpb::Message| made.get_msg_type() == MessageType::MsgHeartbeatResponse;
        if self.raw.raft.msgs[before..].iter().any(is_answer) && !answers() {
            self.drop_made(before, MessageType::MsgHeartbeatResponse);
        }
        result
    }

    /// Takes in an answer to a heartbeat, after which a peer is sent an append of so many bytes; `None`: it is
    /// sent none.
    pub(super) fn step_with_append_of(
        &mut self,
        bytes: Option<u64>,
        from: NodeId,
        term: u64,
        body: &RaftBody,
    ) -> Result<(), String> {
        let before = self.raw.raft.msgs.len();
        // raft-rs copies the entries of each append. It always sends at least one.
        self.raw.raft.r.max_msg_size = bytes.unwrap_or(0);
        let result = self.step(from, term, body);
        self.raw.raft.r.max_msg_size = MESSAGE_ENTRIES_BYTES;
        if bytes.is_none() {
            self.drop_made(before, MessageType::MsgAppend);
        }
        result
    }

    /// Drops messages of a kind that were made since, as if they were lost.
    fn drop_made(&mut self, since: usize, kind: MessageType) {
        let made = self.raw.raft.msgs.split_off(since);
        let others = made.into_iter().filter(|made| made.get_msg_type() != kind);
        self.raw.raft.msgs.extend(others);
    }
}

fn start(id: NodeId, boot: &Boot) -> Result<RawNode<MemLog>, String> {
    let log = boot_log(boot)?;
    let raft_config = raft::Config {
        id,
        election_tick: ELECTION_TICKS,
        min_election_tick: ELECTION_TICKS,
        max_election_tick: 2 * ELECTION_TICKS,
        heartbeat_tick: 1,
        applied: boot.checkpoint.index,
        max_size_per_msg: MESSAGE_ENTRIES_BYTES,
        max_inflight_msgs: VOTER_WINDOW,
        check_quorum: true,
        pre_vote: true,
        read_only_option: ReadOnlyOption::Safe,
        max_uncommitted_size: 64 << 20,
        max_committed_size_per_ready: 4 << 20,
        ..raft::Config::default()
    };
    RawNode::new(&raft_config, log, &logger::logger())
        .map_err(|error| format!("Raft does not start: {error}"))
}

fn progress(known: &raft::Progress) -> Progress {
    let sends = match known.state {
        raft::ProgressState::Probe => Sends::Probes,
        raft::ProgressState::Replicate => Sends::Entries,
        raft::ProgressState::Snapshot => Sends::State(known.pending_snapshot),
    };
    Progress {
        matched: known.matched,
        next: known.next_idx,
        sends,
        is_paused: known.is_paused(),
        is_active: known.recent_active,
    }
}

/// The log that the disk held, checked so that raft-rs can start from it.
fn boot_log(boot: &Boot) -> Result<MemLog, String> {
    let checkpoint = Position { index: boot.checkpoint.index, term: boot.checkpoint.term };
    let mut outline = boot.outline.clone();
    let mut base = checkpoint;
    // Only the term of the first entry that was kept for lagging peers is used, since that of the entry
    // before it is not known.
    if let (Some(first), Some(last)) = (outline.first(), outline.last()) {
        if last != (checkpoint.index, checkpoint.term) || !outline.is_in_order() {
            return Err(format!(
                "the log {outline:?} does not lead to the checkpoint {checkpoint:?}"
            ));
        }
        let term = outline.term_at(first).unwrap_or(checkpoint.term);
        base = Position { index: first, term };
        outline.drop_before(first + 1);
    }
    let mut before = checkpoint;
    for entry in &boot.entries {
        if entry.index != before.index + 1 || entry.term < before.term {
            return Err(format!("entry {} does not follow {before:?}", entry.index));
        }
        before = Position { index: entry.index, term: entry.term };
    }
    if boot.hard_state.term < before.term {
        return Err(format!("term {} is before that of {before:?}", boot.hard_state.term));
    }
    let HardState { term, vote, commit } = boot.hard_state;
    let commit = commit.max(checkpoint.index);
    if commit > before.index {
        return Err(format!("entry {commit} is committed but the log ends at {}", before.index));
    }
    let hard_state = eraftpb::HardState { term, vote, commit, ..Default::default() };
    let entries = boot.entries.iter().map(eraftpb::Entry::from);
    let voting = boot.checkpoint.voting.clone();
    Ok(MemLog::new(base, outline, entries, hard_state, voting, checkpoint))
}
