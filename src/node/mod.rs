//! One member of the cluster, without threads, clocks, disks or sockets.
//!
//! [`Node::step`] takes what has happened (messages, requests, the disk's word)
//! and the time, and returns what must be done: [`io`] has both lists. The same
//! inputs at the same times give the same effects, whatever runs the node: the
//! threads of a process, an in-memory cluster, or a simulator.
//!
//! A write's way: its session numbers it ([`local`]); it goes to the leader,
//! here or by a `Forward` message; the leader lets it in once ([`admission`]) and
//! proposes it to Raft in a batch; Raft replicates the entry while the disk
//! writes it; every replica applies it, and the one that holds the session
//! answers its user when its own replica has applied it. Nothing is answered to
//! a node by a node, so no answer can be lost.
//!
//! [`users`] is what the node does for its own users, [`lead`] what it does as the
//! leader ([`expiry`] of sessions, [`reap`] of znodes), [`receive`] what its peers say, [`ready`]
//! what Raft wants done, [`versions`] which of its users' requests all members know.
//!
//! What Raft wants sent only after something is durable waits in
//! `Node::undurable` for [`io::Input::Written`]; the shell cannot get that order wrong.
//!
//! Invariants: a node proposes only while it leads and has applied an entry of
//! its own term; a session is expired only by an entry of the deciding leader's
//! own term; what is published for reads comes after the watch events of it. A
//! broken invariant, a failed disk and lost data stop the node for good; the
//! host process goes on.

pub(crate) mod bootstrap;
pub(crate) mod client;
pub(crate) mod client_message;
pub(crate) mod io;
pub(crate) mod leader;
mod membership;
pub(crate) mod message;
#[cfg(any(test, feature = "simulator"))]
mod observe;
pub(crate) mod raft;
mod receive;
pub(crate) mod replica;
pub(crate) mod sessions;
mod start;
pub(crate) mod stored;
#[cfg(test)]
mod tests;
mod versions;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ::raft::eraftpb::{self};
use ::raft::{RawNode, SnapshotStatus, StateRole};

use self::bootstrap::Formation;
use self::bootstrap::driver::Identified;
use self::io::{DiskOp, Effects, Input, NodeStatus, Now, Problem, Time};
use self::leader::Leading;
pub(crate) use self::leader::planner::Keeping;
use self::leader::read_index::Rounds;
pub(crate) use self::leader::reaper::CONTAINER_PERIOD;
use self::membership::Membership;
pub(crate) use self::membership::REMOVED;
use self::raft::divergence::Hashes;
use self::raft::leader_loss::LeaderLoss;
use self::raft::log::{MemLog, Position};
use self::raft::quorum_loss::QuorumLoss;
use self::raft::snapshot_transfer::Incoming;
use self::replica::history::History;
use self::replica::server::Guests;
use self::replica::watches::WatchTable;
use self::sessions::{LocalSessions, users};
pub(crate) use self::start::Origin;
use self::stored::{HardState, Identity, SnapshotMeta};
use self::versions::Versions;
use crate::machine::Machine;
use crate::types::error::Error;
use crate::types::membership::{Member, NodeId};
use crate::types::metrics::Metrics;
use crate::types::watch::{HISTORY_BYTES, HISTORY_CHANGES, WatchInfo};
use crate::types::znode::Zxid;

/// An election starts after this many heartbeats of silence, or up to [`ELECTION_SPREAD`] more.
const ELECTION_TICKS: usize = 10;
/// How far followers draw their timeouts apart, in heartbeats. Two that stand at once do no harm
/// but to take longer (a pre-vote changes no term), and a wide spread makes every election longer.
const ELECTION_SPREAD: u64 = 6;
/// The bytes of one `Forward` message, about.
const FORWARD_BYTES_MAX: usize = 256 << 10;
/// A round at least this often: it bounds how stale local reads may be.
const ROUND_PERIOD: Duration = Duration::from_secs(1);

/// The settings of a node. Times are durations, not ticks.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    /// The pulse: a leader's heartbeat, and the unit of election timeouts (10 to 20 of them).
    pub(crate) heartbeat: Duration,
    /// ZooKeeper's tick: session timeouts lie between 2 and 20 of them.
    pub(crate) tick: Duration,
    /// How often a leader looks for containers that are not used any more.
    pub(crate) container_period: Duration,
    /// The highest version that it supports: [`VERSION`](crate::types::version::VERSION). Tests run
    /// nodes of other versions.
    pub(crate) version: u16,
    /// Seeds the node's own choices (election timeouts) and tells this start from earlier ones.
    /// Random, drawn anew for each start.
    pub(crate) seed: u64,
    pub(crate) log: LogLimits,
    /// How the members are kept, while it leads.
    pub(crate) keeping: Keeping,
    /// The peers that it was given, among whom it founds a cluster if there is none yet.
    pub(crate) peers: Vec<String>,
    /// After this time without a cluster, most of the peers found one.
    pub(crate) majority_after: Option<Duration>,
    /// Where it is, so that voters are not all in one place; empty: not told.
    pub(crate) zone: String,
}

/// When a checkpoint is due: after so many entries, so many bytes of them, or so long with any at
/// all; each member waits for a share of that around the whole. And what of the log is kept behind it, for peers that lag a little, and of the changes made
/// for watches that begin in the past.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogLimits {
    pub(crate) checkpoint_entries: u64,
    pub(crate) checkpoint_bytes: usize,
    pub(crate) checkpoint_age: Duration,
    pub(crate) retained_entries: usize,
    pub(crate) retained_bytes: usize,
    pub(crate) history_changes: usize,
    pub(crate) history_bytes: usize,
}

impl Default for LogLimits {
    fn default() -> LogLimits {
        LogLimits {
            checkpoint_entries: 20_000,
            checkpoint_bytes: 16 << 20,
            checkpoint_age: Duration::from_secs(600),
            retained_entries: 5_000,
            retained_bytes: 4 << 20,
            history_changes: HISTORY_CHANGES,
            history_bytes: HISTORY_BYTES,
        }
    }
}

/// A ready round of Raft that is not known to be durable yet.
#[derive(Debug)]
struct Undurable {
    ready: u64,
    /// The disk operation that it waits for, besides all earlier ones.
    disk: Option<u64>,
    /// The index of the snapshot in it.
    snapshot: Option<u64>,
    messages: Vec<eraftpb::Message>,
}

/// Whom this node takes for its leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leadership {
    term: u64,
    leader: NodeId,
}

pub(crate) struct Node {
    id: NodeId,
    config: NodeConfig,
    raw: RawNode<MemLog>,
    machine: Machine,
    now: Now,
    next_tick: Time,
    random: u64,
    /// Our own election timeout, in ticks, and what it was drawn for.
    election_timeout: usize,
    timeout_grounds: (u64, StateRole, NodeId),
    leaderless_ticks: usize,
    leader_loss: Option<LeaderLoss>,
    /// When something last came from a leader, or this node led. (For a learner, Raft never takes a
    /// leader for gone.)
    led_at: Time,
    leadership: Leadership,

    // What waits for the disk.
    disk_number: u64,
    written: u64,
    undurable: VecDeque<Undurable>,
    /// The index of a snapshot that the disk is taking. Raft counts it as applied only afterwards,
    /// and must not campaign before: it would look for the entries in between.
    installing: Option<u64>,
    checkpoint: Position,
    checkpoint_at: Time,
    checkpointing: Option<u64>,

    // This node's users.
    local: LocalSessions,
    watches: WatchTable,
    history: History,
    /// The clients that it serves.
    guests: Guests,
    rounds: Rounds,
    /// Rounds confirmed at an index that is not applied yet, and when they were sent.
    fresh_soon: Vec<(u64, Time)>,
    fresh_at: Option<Time>,

    versions: Versions,
    membership: Membership,
    quorum_loss: QuorumLoss,
    identity: Identity,
    identified: Identified,
    /// As long as it has no cluster, and the time of its next step.
    formation: Option<Formation>,
    form_at: Time,
    /// Not a member of its cluster yet, it wants to be one.
    joins: bool,

    /// While it is the leader.
    leading: Option<Leading>,

    incoming: Incoming,
    /// A state put together from a leader's chunks, until Raft takes its snapshot (or not).
    staged: Option<(SnapshotMeta, Machine)>,
    /// Transfers that failed while raft-rs could not be told.
    failed_transfers: Vec<NodeId>,
    hashes: Hashes,
    unreachable: Vec<(NodeId, Option<Problem>)>,
    /// The zxid of the tree that was published last. Whatever takes a zxid is published, though it
    /// changes no znode that a watch tells of: a sync may tell that zxid.
    published: Option<Zxid>,
    effects: Effects,
    metrics: Metrics,
    stopped: Option<String>,
    #[cfg(any(test, feature = "simulator"))]
    late_events: Vec<(io::WatchId, crate::types::watch::WatchEvent)>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("id", &self.id)
            .field("leadership", &self.leadership)
            .field("applied", &self.raw.store().applied())
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

impl Node {
    /// Takes in what has happened by `now`, in order (possibly nothing), and says what to do.
    ///
    /// It wants to be called when `Effects::wake_at` comes, and may be called at any time before.
    pub(crate) fn step(&mut self, now: Now, inputs: impl IntoIterator<Item = Input>) -> Effects {
        let mut inputs = inputs.into_iter();
        if self.stopped.is_none() {
            // raft-rs panics on states that it holds impossible. The node is not used after that.
            let stepped = catch_unwind(AssertUnwindSafe(|| self.try_step(now, &mut inputs)));
            match stepped {
                Ok(Ok(())) => {}
                Ok(Err(reason)) => self.stop(reason),
                Err(panic) => {
                    let what = panic
                        .downcast_ref::<String>()
                        .map(String::as_str)
                        .or_else(|| panic.downcast_ref::<&str>().copied())
                        .unwrap_or("no message");
                    self.stop(format!("a broken invariant: {what}"));
                }
            }
        }
        if let Some(reason) = self.stopped.clone() {
            // There is nothing left to wake up for.
            self.effects.wake_at = Time::MAX;
            for input in inputs {
                if let Input::Client(request) = input {
                    users::refuse(&mut self.effects, request, &reason);
                }
            }
        }
        std::mem::take(&mut self.effects)
    }

    /// What it has counted, but for the network's part.
    pub(crate) fn metrics(&self) -> Metrics {
        Metrics {
            watches: self.watches.len() as u64,
            znodes: self.machine.tree().len() as u64,
            sessions: self.machine.session_count() as u64,
            zxid: self.machine.zxid(),
            ..self.metrics.clone()
        }
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How this node is put down as a member.
    pub(crate) fn member(&self) -> &Member {
        &self.membership.me
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    #[cfg(test)]
    pub(crate) fn watch_count(&self) -> usize {
        self.watches.len()
    }

    /// The end of the log.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn committed(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn term_at(&self, index: u64) -> Option<u64> {
        self.raw.raft.raft_log.term(index).ok()
    }

    /// The state machine, to be looked at.
    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The watches that its users have set, by their paths.
    pub(crate) fn watches(&self) -> impl Iterator<Item = WatchInfo> {
        self.watches.infos()
    }

    /// The term, the leader (0: none known) and whether that is this node.
    pub(crate) fn leadership(&self) -> (u64, NodeId, bool) {
        let raft = &self.raw.raft;
        (raft.term, raft.leader_id, raft.state == StateRole::Leader)
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let raft = &self.raw.raft;
        let leads = raft.state == StateRole::Leader;
        NodeStatus {
            leader: (raft.leader_id != 0 && self.stopped.is_none()).then_some(raft.leader_id),
            is_leader: leads && self.stopped.is_none(),
            term: raft.term,
            zxid: self.machine.zxid(),
            hash: self.machine.hash(),
            fresh_at: self.fresh_at,
            sessions: self.machine.session_count(),
            znodes: self.machine.tree().len(),
            peers: self.unreachable.clone(),
            version: self.machine.version(),
            own_version: self.versions.own(),
            availability: self.availability(),
            is_placed: self.membership.is_placed(),
            forming: self.formation.as_ref().and_then(Formation::problem),
            quorum_loss: self.quorum_loss(),
            blank: self.blank(),
            versions: self
                .unreachable
                .iter()
                .filter_map(|(peer, _)| Some((*peer, self.versions.of(*peer)?)))
                .collect(),
        }
    }

    fn try_step(
        &mut self,
        now: Now,
        inputs: &mut dyn Iterator<Item = Input>,
    ) -> Result<(), String> {
        let paused = now.mono.saturating_sub(self.now.mono);
        self.now = now;
        if paused > self.config.heartbeat * ELECTION_TICKS as u32 {
            // The process was stopped for a while, and what its sessions' nodes sent meanwhile
            // is still to be read: their silence proves nothing.
            if let Some(leading) = &mut self.leading {
                leading.renew_all(&self.machine, now.mono);
            }
        }
        if let Some(leading) = &mut self.leading {
            leading.advance(now);
        }
        for input in inputs {
            self.take(input)?;
        }
        if now.mono >= self.next_tick {
            // One tick however late it is: ticks missed while paused must not start an election
            // before the messages that wait are read.
            self.next_tick = now.mono + self.config.heartbeat;
            if self.may_campaign() || (self.installing.is_none() && raft_leads(&self.raw)) {
                self.leaderless_ticks += usize::from(self.raw.raft.leader_id == 0);
                self.draw_timeout();
                self.raw.tick();
            }
            self.hasten_election()?;
            self.pulse();
        }
        self.form()?;
        self.drive()?;
        self.draw_timeout();
        self.finish();
        Ok(())
    }

    /// Whether this node may stand for election: only with a log that is all on its disk. raft-rs
    /// relies on it, and a node that cannot write should not lead.
    fn may_campaign(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        self.installing.is_none() && log.persisted == log.last_index()
    }

    /// Puts our own election timeout in the place of the one that raft-rs draws from a generator
    /// that cannot be seeded. Ours changes with the term, the role and the leader, and while there
    /// is no leader now and then, so that two nodes do not block each other for long.
    fn draw_timeout(&mut self) {
        let raft = &mut self.raw.raft;
        let grounds = (raft.term, raft.state, raft.leader_id);
        let tired = self.leaderless_ticks >= 2 * ELECTION_TICKS;
        if grounds != self.timeout_grounds || tired {
            self.timeout_grounds = grounds;
            self.leaderless_ticks = 0;
            self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
            self.election_timeout =
                ELECTION_TICKS + (mixed(self.random) % ELECTION_SPREAD) as usize;
        }
        raft.set_randomized_election_timeout(self.election_timeout);
    }

    fn take(&mut self, input: Input) -> Result<(), String> {
        match input {
            Input::Peer { from, message } => {
                self.heard_of(from);
                self.take_message(from, message)?;
            }
            Input::Connected { peer, version } => {
                self.note_peer(peer, None);
                if let Some(formation) = &mut self.formation {
                    formation.connected(peer);
                }
                self.versions.connected(peer, version, self.versions_settled_at());
                if peer == self.raw.raft.leader_id {
                    self.send_again();
                    self.guests.again();
                }
            }
            Input::Unreachable { peer, problem } => {
                self.note_peer(peer, Some(problem));
                if let Some(formation) = &mut self.formation {
                    formation.lost(peer);
                }
                self.versions.lost(peer);
                if !self.is_member(peer) {
                    self.versions.forget(peer);
                }
                self.drop_guest(peer);
                self.raw.report_unreachable(peer);
                if let Some(leading) = &mut self.leading
                    && leading.outgoing.abort(peer, None)
                {
                    self.raw.report_snapshot(peer, SnapshotStatus::Failure);
                }
                self.connection_lost(peer)?;
            }
            Input::Client(request) => self.take_request(request),
            Input::Written { number } => {
                self.written = self.written.max(number);
                self.settle();
                self.kept();
            }
            Input::CheckpointDone { index } => {
                if self.checkpointing == Some(index) {
                    self.checkpointing = None;
                    let keep_from = self.raw.store().keep_from(
                        self.checkpoint.index,
                        self.config.log.retained_entries,
                        self.config.log.retained_bytes,
                    );
                    let handed_out = self.raw.raft.raft_log.applied;
                    self.raw.mut_store().compact(keep_from, handed_out);
                }
            }
            Input::Failed { reason } => return Err(reason),
            Input::Expire { session } => {
                if let Some(leading) = self.leading.as_mut().filter(|leading| leading.serves()) {
                    leading.expire(session, &self.machine, self.now.mono);
                }
            }
            Input::Resign => self.resign(),
            Input::Leave => self.leave()?,
            Input::Hindered(hindrance) => {
                if let Some(formation) = &mut self.formation {
                    formation.hinder(hindrance);
                }
            }
        }
        Ok(())
    }

    fn note_peer(&mut self, peer: NodeId, problem: Option<Problem>) {
        if let Some((_, known)) = self.unreachable.iter_mut().find(|(id, _)| *id == peer) {
            *known = problem;
        }
    }

    /// When it is settled what follows from news of now.
    fn versions_settled_at(&self) -> Time {
        self.now.mono + self.config.tick * versions::PATIENCE_TICKS
    }

    /// The members but for this one.
    fn others(&self) -> impl Iterator<Item = NodeId> {
        let members = self.raw.store().conf_state();
        let lists = [&members.voters, &members.learners, &members.voters_outgoing];
        lists.into_iter().flatten().copied().filter(|member| *member != self.id)
    }

    /// What is done once a heartbeat.
    fn pulse(&mut self) {
        let now = self.now.mono;
        for session in self.local.check_deadlines(now, &mut self.effects) {
            self.local.lose(session, &mut self.effects);
            self.end_watches(session);
        }
        // Elections take this long, so a round or a request that takes longer may be lost.
        let election = self.config.heartbeat * (2 * ELECTION_TICKS as u32);
        self.rounds.restart_older(now.saturating_sub(election));
        self.local.send_stuck_again(now);
        if let Some(leading) = &mut self.leading {
            for peer in leading.outgoing.take_stalled(now.saturating_sub(election * 4)) {
                self.raw.report_snapshot(peer, SnapshotStatus::Failure);
            }
            if leading.serves() {
                leading.expire_sessions(&self.machine, now);
                let last = self.raw.raft.raft_log.last_index();
                leading.reap(self.raw.store().applied().index, last, &self.machine, now);
            }
        }
        self.tell_wish();
        self.keep_members();
        self.drop_silent_guests();
    }

    /// Runs Raft until it wants nothing more.
    fn drive(&mut self) -> Result<(), String> {
        loop {
            self.observe_leader();
            if self.leadership.leader == self.id {
                self.led_at = self.now.mono;
            }
            self.send_requests();
            self.raise_version();
            self.propose();
            self.ask_round();
            self.read_index();
            if !self.raw.has_ready() {
                return Ok(());
            }
            while self.raw.has_ready() {
                self.ready()?;
            }
        }
    }

    fn observe_leader(&mut self) {
        let raft = &self.raw.raft;
        let leadership = Leadership { term: raft.term, leader: raft.leader_id };
        if leadership != self.leadership {
            self.leadership = leadership;
            self.leading = (leadership.leader == self.id).then(|| {
                let (heartbeat, period) = (self.config.heartbeat, self.config.container_period);
                Leading::new(leadership.term, self.now, heartbeat, period)
            });
            self.versions.unsettle(self.versions_settled_at());
            self.send_again();
            if leadership.leader != self.id {
                self.guests.again();
            }
            if leadership.leader != 0 {
                self.metrics.leaders_known += 1;
                self.metrics.elections_won += u64::from(leadership.leader == self.id);
                tracing::info!(
                    node = self.id,
                    leader = leadership.leader,
                    term = leadership.term,
                    "a leader"
                );
            }
        }
        if let Some(leading) = self.leading.as_mut().filter(|leading| !leading.serves())
            && self.raw.raft.apply_to_current_term()
        {
            leading.serve(self.now, &self.machine);
            self.guests.again();
        }
    }

    /// The last things of a step.
    fn finish(&mut self) {
        let applied = self.raw.store().applied();
        let fresh = self.fresh_soon.extract_if(.., |(index, _)| *index <= applied.index);
        self.fresh_at = fresh.map(|(_, sent)| sent).max().max(self.fresh_at);
        self.note_place();
        self.answer_waits();
        self.metrics.watch_events += self.effects.events.len() as u64;
        self.local.forget_settled();
        if self.published != Some(self.machine.zxid()) {
            self.published = Some(self.machine.zxid());
            self.effects.tree = Some(self.machine.tree());
            self.hand_members();
        }
        self.tell_guests();
        self.maybe_checkpoint(applied);
        self.effects.wake_at = self.next_tick.min(self.form_at);
        #[cfg(any(test, feature = "simulator"))]
        if crate::planted::planted(crate::planted::Bug::EventLate) {
            std::mem::swap(&mut self.late_events, &mut self.effects.events);
        }
    }

    /// Stops for good: everything is answered, nothing is promised any more.
    fn stop(&mut self, reason: String) {
        if reason == membership::REMOVED && self.membership.leaving {
            tracing::info!(node = self.id, "the node has left its cluster, and stops");
        } else {
            tracing::error!(node = self.id, reason, "the node stops");
        }
        // What this step had decided before it failed is not to be done.
        self.effects.messages.clear();
        self.effects.disk.clear();
        if reason == membership::REMOVED {
            self.disk_number += 1;
            self.effects.disk.push(DiskOp::Removed { number: self.disk_number });
        }
        let error = Error::Stopped { reason: reason.clone() };
        for session in self.local.ids() {
            self.effects.ended.extend(self.watches.end_session(session));
        }
        self.local.stop(&error, &mut self.effects);
        self.let_all_go("the member has stopped");
        self.effects.wake_at = Time::MAX;
        self.effects.stopped = Some(reason.clone());
        self.stopped = Some(reason);
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn mixed(state: u64) -> u64 {
    let mut mixed = state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn raft_leads(raw: &RawNode<MemLog>) -> bool {
    raw.raft.state == StateRole::Leader
}

/// A session timeout as ZooKeeper negotiates it: between 2 and 20 ticks.
pub(crate) fn negotiated(timeout: Duration, tick: Duration) -> Duration {
    timeout.clamp(tick * 2, tick * 20)
}

fn hard_state(raw: &RawNode<MemLog>) -> HardState {
    own_hard_state(&raw.raft.hard_state())
}

fn own_hard_state(raft: &eraftpb::HardState) -> HardState {
    HardState { term: raft.term, vote: raft.vote, commit: raft.commit }
}
