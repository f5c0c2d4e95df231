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
//! What Raft wants sent only after something is durable waits in
//! `Node::undurable` for [`io::Input::Written`]; the shell cannot get that order wrong.
//!
//! Invariants: a node proposes only while it leads and has applied an entry of
//! its own term; a session is expired only by an entry of the deciding leader's
//! own term; what is published for reads comes after the watch events of it. A
//! broken invariant, a failed disk and lost data stop the node for good; the
//! host process goes on.

mod admission;
mod expiry;
mod guard;
#[cfg(test)]
mod harness;
mod hashes;
pub(crate) mod io;
mod local;
mod log;
pub(crate) mod message;
mod raft_log;
mod rounds;
#[cfg(test)]
mod tests;
mod transfer;
mod watches;

use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use raft::eraftpb::{self, EntryType, MessageType};
use raft::{RawNode, SnapshotStatus, StateRole};

use crate::error::Error;
use crate::machine::Machine;
use crate::machine::command::{Applied, Batch, Command, NodeId, Request, SessionChange};
use crate::session::SessionState;
use crate::storage::{Boot, LogWrite};
use crate::watch::WatchMode;
use crate::znode::SessionId;
use admission::Admission;
use expiry::ExpiryTable;
use guard::{View, Violation};
use hashes::{Hashes, Verdict};
use io::{ClientRequest, DiskOp, Effects, Input, NodeStatus, Now, Time};
use local::LocalSessions;
use log::{MemLog, Position};
use message::{HardState, LogEntry, PeerMessage, RaftBody, SnapshotMeta, Voting};
use rounds::{Asked, Confirmations, Rounds};
use transfer::{Incoming, Outgoing};
use watches::{Fired, WatchKind, WatchTable};

/// An election starts after this many heartbeats of silence, and up to twice as many.
const ELECTION_TICKS: usize = 10;
/// A checkpoint is due after so many entries, so many bytes of them, or so long with any at all.
const CHECKPOINT_ENTRIES: u64 = 20_000;
const CHECKPOINT_BYTES: usize = 16 << 20;
const CHECKPOINT_AGE: Duration = Duration::from_secs(600);
/// What of the log is kept behind a checkpoint, for peers that lag a little.
const RETAINED_ENTRIES: usize = 5_000;
const RETAINED_BYTES: usize = 4 << 20;
/// The bytes of one `Forward` message, about.
const FORWARD_BYTES_MAX: usize = 256 << 10;
/// Forwarded requests that a new leader holds until it may propose.
const EARLY_MAX: usize = 65_536;
/// The same for rounds.
const EARLY_ROUNDS_MAX: usize = 1024;
/// A round at least this often: it bounds how stale local reads may be.
const ROUND_PERIOD: Duration = Duration::from_secs(1);

/// The settings of a node. Times are durations, not ticks.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    /// The pulse: a leader's heartbeat, and the unit of election timeouts (10 to 20 of them).
    pub(crate) heartbeat: Duration,
    /// ZooKeeper's tick: session timeouts lie between 2 and 20 of them.
    pub(crate) tick: Duration,
    /// Seeds the node's own choices (election timeouts) and tells this start from earlier ones.
    /// Random, drawn anew for each start.
    pub(crate) seed: u64,
}

/// A ready round of Raft that is not known to be durable yet.
#[derive(Debug)]
struct Undurable {
    ready: u64,
    /// The disk operation that it waits for, besides all earlier ones.
    disk: Option<u64>,
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
    leadership: Leadership,

    // What waits for the disk.
    disk_number: u64,
    written: u64,
    undurable: VecDeque<Undurable>,
    checkpoint: Position,
    checkpoint_at: Time,
    checkpointing: Option<u64>,

    // This node's users.
    local: LocalSessions,
    watches: WatchTable,
    rounds: Rounds,
    /// When writes of ours last moved, and how long to wait before they are sent again.
    moved_at: Time,
    patience: Duration,
    /// Rounds confirmed at an index that is not applied yet, and when they were sent.
    fresh_soon: Vec<(u64, Time)>,
    fresh_at: Option<Time>,

    // As the leader.
    /// It has applied an entry of its own term, and so all before it.
    serving: bool,
    admission: Admission,
    early: VecDeque<(NodeId, Request)>,
    early_rounds: Vec<(NodeId, u64, u64, Vec<SessionId>)>,
    confirmations: Confirmations,
    expiry: ExpiryTable,
    /// Sessions whose expiry is proposed: no longer renewed.
    expiring: BTreeSet<SessionId>,
    outgoing: Outgoing,

    incoming: Incoming,
    /// A state put together from a leader's chunks, until Raft takes its snapshot (or not).
    staged: Option<(SnapshotMeta, Machine)>,
    /// Transfers that failed while raft-rs could not be told.
    failed_transfers: Vec<NodeId>,
    hashes: Hashes,
    unreachable: Vec<(NodeId, Option<String>)>,
    tree_changed: bool,
    effects: Effects,
    stopped: Option<String>,
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
    /// The node `id` as its disk left it: `machine` is what the checkpoint held.
    ///
    /// # Errors
    /// Says what on disk contradicts itself; raft-rs must not be started from that.
    pub(crate) fn new(
        config: NodeConfig,
        id: NodeId,
        boot: Boot,
        machine: Machine,
        now: Now,
    ) -> Result<Node, String> {
        let checkpoint = Position { index: boot.checkpoint.index, term: boot.checkpoint.term };
        let log = boot_log(&boot, checkpoint)?;
        let raft_config = raft::Config {
            id,
            election_tick: ELECTION_TICKS,
            min_election_tick: ELECTION_TICKS,
            max_election_tick: 2 * ELECTION_TICKS,
            heartbeat_tick: 1,
            applied: checkpoint.index,
            max_size_per_msg: 1 << 20,
            max_inflight_msgs: 256,
            check_quorum: true,
            pre_vote: true,
            max_uncommitted_size: 64 << 20,
            max_committed_size_per_ready: 4 << 20,
            ..raft::Config::default()
        };
        let raw = RawNode::new(&raft_config, log, &raft_log::logger())
            .map_err(|error| format!("Raft does not start: {error}"))?;
        let members: BTreeSet<NodeId> = boot
            .checkpoint
            .voting
            .voters
            .iter()
            .chain(&boot.checkpoint.voting.learners)
            .copied()
            .collect();
        let unreachable = members
            .into_iter()
            .filter(|member| *member != id)
            .map(|member| (member, Some("not connected yet".to_owned())));
        let mut node = Node {
            id,
            random: config.seed.rotate_left(32) ^ id,
            election_timeout: ELECTION_TICKS,
            timeout_grounds: (0, StateRole::Leader, 0),
            leaderless_ticks: 0,
            leadership: Leadership { term: raw.raft.term, leader: 0 },
            next_tick: now.mono + config.heartbeat,
            disk_number: 0,
            written: 0,
            undurable: VecDeque::new(),
            checkpoint,
            checkpoint_at: now.mono,
            checkpointing: None,
            local: LocalSessions::default(),
            watches: WatchTable::default(),
            rounds: Rounds::new(config.seed),
            moved_at: now.mono,
            patience: config.heartbeat * ELECTION_TICKS as u32,
            fresh_soon: Vec::new(),
            fresh_at: None,
            serving: false,
            admission: Admission::default(),
            early: VecDeque::new(),
            early_rounds: Vec::new(),
            confirmations: Confirmations::default(),
            expiry: ExpiryTable::new(config.heartbeat),
            expiring: BTreeSet::new(),
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            staged: None,
            failed_transfers: Vec::new(),
            hashes: Hashes::default(),
            unreachable: unreachable.collect(),
            tree_changed: true,
            effects: Effects::default(),
            stopped: None,
            config,
            raw,
            machine,
            now,
        };
        if boot.checkpoint.voting.voters == [id] {
            // Nobody else could lead or be asked.
            node.raw.campaign().map_err(|error| format!("Raft does not start: {error}"))?;
        }
        Ok(node)
    }

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
            for input in inputs {
                if let Input::Client(request) = input {
                    self.refuse(request, &reason);
                }
            }
        }
        std::mem::take(&mut self.effects)
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    /// The state machine, to be looked at.
    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
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
            self.renew_all();
        }
        for input in inputs {
            self.take(input)?;
        }
        if now.mono >= self.next_tick {
            // One tick however late it is: ticks missed while paused must not start an election
            // before the messages that wait are read.
            self.next_tick = now.mono + self.config.heartbeat;
            self.leaderless_ticks += usize::from(self.raw.raft.leader_id == 0);
            self.draw_timeout();
            self.raw.tick();
            self.pulse();
        }
        self.drive()?;
        self.draw_timeout();
        self.finish();
        Ok(())
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
            // SplitMix64 (Steele, Lea, Flood 2014).
            let mut mixed = self.random;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            mixed ^= mixed >> 31;
            self.election_timeout = ELECTION_TICKS + (mixed % ELECTION_TICKS as u64) as usize;
        }
        raft.set_randomized_election_timeout(self.election_timeout);
    }

    fn take(&mut self, input: Input) -> Result<(), String> {
        match input {
            Input::Peer { from, message } => self.take_message(from, message)?,
            Input::Connected { peer } => {
                self.note_peer(peer, None);
                if peer == self.raw.raft.leader_id {
                    self.send_again();
                }
            }
            Input::Unreachable { peer, reason } => {
                self.note_peer(peer, Some(reason));
                self.raw.report_unreachable(peer);
                if self.outgoing.abort(peer, None) {
                    self.raw.report_snapshot(peer, SnapshotStatus::Failure);
                }
            }
            Input::Client(request) => self.take_request(request),
            Input::Written { number } => {
                self.written = self.written.max(number);
                self.settle();
            }
            Input::CheckpointDone { index } => {
                if self.checkpointing == Some(index) {
                    self.checkpointing = None;
                    let keep_from = self.raw.store().keep_from(
                        self.checkpoint.index,
                        RETAINED_ENTRIES,
                        RETAINED_BYTES,
                    );
                    self.raw.mut_store().compact(keep_from);
                }
            }
            Input::StorageFailed { reason } => return Err(format!("the disk failed: {reason}")),
            Input::Expire { session } => {
                if self.serving {
                    self.expire(session);
                }
            }
            Input::Resign => self.resign(),
        }
        Ok(())
    }

    fn note_peer(&mut self, peer: NodeId, problem: Option<String>) {
        match self.unreachable.iter_mut().find(|(id, _)| *id == peer) {
            Some((_, known)) => *known = problem,
            None => self.unreachable.push((peer, problem)),
        }
    }

    /// Hands leadership to the voter that has most of the log.
    fn resign(&mut self) {
        if self.raw.raft.state != StateRole::Leader {
            return;
        }
        let progress = self.raw.raft.prs();
        let heir = progress
            .iter()
            .filter(|(id, progress)| **id != self.id && progress.recent_active)
            .filter(|(id, _)| self.raw.store().conf_state().voters.contains(id))
            .max_by_key(|(id, progress)| (progress.matched, **id))
            .map(|(id, _)| *id);
        if let Some(heir) = heir {
            self.raw.transfer_leader(heir);
        }
    }

    fn take_request(&mut self, request: ClientRequest) {
        let effects = &mut self.effects;
        match request {
            ClientRequest::Open { request, session, holder, secret, timeout } => {
                let timeout = negotiated(timeout, self.config.tick);
                let timeout_ms = local::milliseconds(timeout);
                let (owner, base) = (self.id, self.machine.zxid());
                let command = Command::Open { secret, timeout_ms, owner, base };
                self.local.open(request, session, holder, timeout, command, effects);
            }
            ClientRequest::Resume { request, session, holder, secret, timeout } => {
                let timeout = negotiated(timeout, self.config.tick);
                let timeout_ms = local::milliseconds(timeout);
                let command = Command::Resume { secret, timeout_ms, owner: self.id };
                effects.ended.extend(self.watches.end_session(session));
                self.local.open(request, session, holder, timeout, command, effects);
            }
            ClientRequest::Write { request, session, command } => {
                self.local.write(request, session, command, effects);
            }
            ClientRequest::Read { request, session, read, watch } => {
                self.local.read(request, session, read, watch, effects);
            }
            ClientRequest::Watch { request, session, watch, path, mode } => {
                let kind = match mode {
                    WatchMode::Persistent => WatchKind::Persistent,
                    WatchMode::PersistentRecursive => WatchKind::Recursive,
                };
                self.local.watch(request, session, watch, path, kind, effects);
            }
            ClientRequest::Unwatch { watch } => self.watches.remove(watch),
            ClientRequest::Sync { request, session } => {
                if let Some(ticket) = self.local.sync(request, session, effects) {
                    self.rounds.wait(ticket);
                }
            }
        }
    }

    fn refuse(&mut self, request: ClientRequest, reason: &str) {
        let request = match request {
            ClientRequest::Open { request, .. }
            | ClientRequest::Resume { request, .. }
            | ClientRequest::Write { request, .. }
            | ClientRequest::Read { request, .. }
            | ClientRequest::Watch { request, .. }
            | ClientRequest::Sync { request, .. } => request,
            ClientRequest::Unwatch { .. } => return,
        };
        let error = Error::Stopped { reason: reason.to_owned() };
        self.effects.replies.push((request, Err(error)));
    }

    fn take_message(&mut self, from: NodeId, message: PeerMessage) -> Result<(), String> {
        match message {
            PeerMessage::Raft { term, body } => self.take_raft(from, term, &body)?,
            PeerMessage::Forward { requests } => {
                if self.raw.raft.state == StateRole::Leader {
                    for request in requests {
                        self.take_forwarded(from, request);
                    }
                }
            }
            PeerMessage::Round { boot, round, sessions } => {
                if self.serving {
                    self.take_round(from, boot, round, &sessions);
                } else if raft_leads(&self.raw) && self.early_rounds.len() < EARLY_ROUNDS_MAX {
                    self.early_rounds.push((from, boot, round, sessions));
                }
            }
            PeerMessage::RoundConfirmed { boot, round, index, refused } => {
                self.round_confirmed(boot, round, index, &refused);
            }
            PeerMessage::StateHash { index, hash } => self.compare_hash(index, from, hash)?,
            PeerMessage::SnapshotChunk { transfer, number, bytes } => {
                let answer = self.incoming.chunk(from, transfer, number, &bytes);
                self.effects.messages.push((from, answer));
            }
            PeerMessage::SnapshotAck { transfer, next } => {
                let (more, done) = self.outgoing.acked(from, transfer, next, self.now.mono);
                self.effects.messages.extend(more.into_iter().map(|message| (from, message)));
                if done {
                    self.raw.report_snapshot(from, SnapshotStatus::Finish);
                }
            }
            PeerMessage::SnapshotAbort { transfer } => {
                self.incoming.abort(from, transfer);
                if self.outgoing.abort(from, Some(transfer)) {
                    self.raw.report_snapshot(from, SnapshotStatus::Failure);
                }
            }
        }
        Ok(())
    }

    fn take_forwarded(&mut self, from: NodeId, request: Request) {
        // Only a leader decides that a session has expired, and a node opens sessions for itself.
        let forged = match request.command {
            Command::Expire { .. } => true,
            Command::Open { owner, .. } | Command::Resume { owner, .. } => owner != from,
            _ => false,
        };
        if forged {
            tracing::warn!(from, "refused a request that its sender may not make");
        } else if self.serving {
            self.admission.admit(request, &self.machine);
        } else if self.early.len() < EARLY_MAX {
            self.early.push_back((from, request));
        }
    }

    fn take_raft(&mut self, from: NodeId, term: u64, body: &RaftBody) -> Result<(), String> {
        let raft = &self.raw.raft;
        let view = View {
            id: self.id,
            term: raft.term,
            leader: raft.leader_id,
            is_leader: raft.state == StateRole::Leader,
            last_index: raft.raft_log.last_index(),
            committed: raft.raft_log.committed,
            term_at: &|index| raft.raft_log.term(index).ok(),
        };
        match guard::check(&view, from, term, body) {
            Ok(()) => {}
            Err(Violation::Refused(reason)) => {
                tracing::warn!(from, term, reason, "refused a message");
                return Ok(());
            }
            Err(Violation::DataLost { known, have }) => {
                return Err(format!(
                    "the leader knows this node to have had entry {known}, but its log ends at \
                     {have}: acknowledged data was lost here (a wiped or rolled back disk?)"
                ));
            }
        }
        if let RaftBody::Snapshot { transfer, chunks, meta } = body {
            let Some(machine) = self.incoming.finish(from, *transfer, *chunks, meta) else {
                let abort = PeerMessage::SnapshotAbort { transfer: *transfer };
                self.effects.messages.push((from, abort));
                return Ok(());
            };
            self.staged = Some((meta.clone(), machine));
        }
        let message = body.to_raft(from, self.id, term);
        if let Err(error) = self.raw.step(message) {
            tracing::debug!(from, %error, "raft did not take a message");
        }
        Ok(())
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
        if !self.local.is_waiting() {
            self.moved_at = now;
        } else if now >= self.moved_at + self.patience {
            self.moved_at = now;
            self.patience = (self.patience * 2).min(election * 4);
            self.local.send_again();
        }
        for peer in self.outgoing.take_stalled(now.saturating_sub(election * 4)) {
            self.raw.report_snapshot(peer, SnapshotStatus::Failure);
        }
        if self.serving {
            self.expire_sessions();
        }
    }

    fn expire_sessions(&mut self) {
        for session in self.expiry.take_expired(self.now.mono) {
            self.expire(session);
        }
    }

    fn expire(&mut self, session: SessionId) {
        let Some(record) = self.machine.session(session) else {
            return;
        };
        let holder = record.holder;
        // In case it comes to nothing (it was resumed in the same moment).
        let timeout = Duration::from_millis(u64::from(record.timeout_ms));
        self.expiry.touch(session, timeout, self.now.mono);
        self.expiring.insert(session);
        let command = Command::Expire { term: self.raw.raft.term };
        let request = Request { session, holder, seq: 0, acked: 0, command };
        self.admission.admit(request, &self.machine);
    }

    /// Runs Raft until it wants nothing more.
    fn drive(&mut self) -> Result<(), String> {
        loop {
            self.observe_leader();
            self.send_requests();
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
            self.serving = false;
            self.admission.reset();
            self.early.clear();
            self.early_rounds.clear();
            self.confirmations.clear();
            self.expiry.clear();
            self.expiring.clear();
            self.outgoing.clear();
            self.send_again();
            if leadership.leader != 0 {
                tracing::info!(
                    node = self.id,
                    leader = leadership.leader,
                    term = leadership.term,
                    "a leader"
                );
            }
        }
        if raft_leads(&self.raw) && !self.serving && self.raw.raft.apply_to_current_term() {
            self.serving = true;
            self.renew_all();
            for (from, request) in std::mem::take(&mut self.early) {
                self.take_forwarded(from, request);
            }
            for (from, boot, round, sessions) in std::mem::take(&mut self.early_rounds) {
                self.take_round(from, boot, round, &sessions);
            }
        }
    }

    /// Gives every session its full timeout again.
    fn renew_all(&mut self) {
        if self.serving {
            for (session, record) in self.machine.sessions() {
                let timeout = Duration::from_millis(u64::from(record.timeout_ms));
                self.expiry.touch(session, timeout, self.now.mono);
            }
        }
    }

    fn send_again(&mut self) {
        self.moved_at = self.now.mono;
        self.patience = self.config.heartbeat * ELECTION_TICKS as u32;
        self.local.send_again();
        self.rounds.restart(self.now.mono);
    }

    fn send_requests(&mut self) {
        let leader = self.leadership.leader;
        if leader == 0 || !self.local.has_unsent() || (leader == self.id && !self.serving) {
            return;
        }
        let requests = self.local.take_unsent(self.now.mono);
        if leader == self.id {
            for request in requests {
                self.admission.admit(request, &self.machine);
            }
            return;
        }
        let mut bytes = 0;
        let mut part = Vec::new();
        for request in requests {
            bytes += admission::size(&request);
            if bytes > FORWARD_BYTES_MAX && !part.is_empty() {
                let requests = std::mem::take(&mut part);
                self.effects.messages.push((leader, PeerMessage::Forward { requests }));
                bytes = admission::size(&request);
            }
            part.push(request);
        }
        if !part.is_empty() {
            self.effects.messages.push((leader, PeerMessage::Forward { requests: part }));
        }
    }

    fn propose(&mut self) {
        while self.serving {
            let Some(batch) = self.admission.next_batch(self.now.wall_ms) else {
                return;
            };
            // Refused while too much is uncommitted, or while leadership is handed over.
            if self.raw.propose(Vec::new(), batch.encode()).is_err() {
                self.admission.put_back(batch);
                return;
            }
        }
    }

    fn ask_round(&mut self) {
        let leader = self.leadership.leader;
        let now = self.now.mono;
        if leader == 0 || !self.rounds.is_due(now) || (leader == self.id && !self.serving) {
            return;
        }
        let quarter = self.local.shortest_timeout().map(|timeout| timeout / 4);
        let period = quarter.unwrap_or(ROUND_PERIOD).min(ROUND_PERIOD);
        let sessions = self.local.living();
        let round = self.rounds.ask(now, now + period, sessions.clone());
        let boot = self.rounds.boot();
        if leader == self.id {
            self.take_round(self.id, boot, round, &sessions);
        } else {
            self.effects.messages.push((leader, PeerMessage::Round { boot, round, sessions }));
        }
    }

    fn take_round(&mut self, from: NodeId, boot: u64, round: u64, sessions: &[SessionId]) {
        let mut refused = Vec::new();
        for session in sessions {
            match self.machine.session(*session) {
                Some(record) if record.owner == from && !self.expiring.contains(session) => {
                    let timeout = Duration::from_millis(u64::from(record.timeout_ms));
                    self.expiry.touch(*session, timeout, self.now.mono);
                }
                _ => refused.push(*session),
            }
        }
        self.confirmations.ask(Asked { from, boot, round, refused });
    }

    fn read_index(&mut self) {
        if !self.serving {
            return;
        }
        let patience = self.config.heartbeat * 2;
        if let Some(read) = self.confirmations.next_read(self.now.mono, patience) {
            let mut context = self.rounds.boot().to_be_bytes().to_vec();
            context.extend(read.to_be_bytes());
            self.raw.read_index(context);
        }
    }

    fn reads_confirmed(&mut self, context: &[u8], index: u64) {
        let parts = context.split_first_chunk::<8>();
        let Some((boot, rest)) = parts else { return };
        let Ok(read) = <[u8; 8]>::try_from(rest).map(u64::from_be_bytes) else {
            return;
        };
        if u64::from_be_bytes(*boot) != self.rounds.boot() {
            return;
        }
        for asked in self.confirmations.confirmed(read) {
            let Asked { from, boot, round, refused } = asked;
            if from == self.id {
                self.round_confirmed(boot, round, index, &refused);
            } else {
                let message = PeerMessage::RoundConfirmed { boot, round, index, refused };
                self.effects.messages.push((from, message));
            }
        }
    }

    fn round_confirmed(&mut self, boot: u64, round: u64, index: u64, refused: &[SessionId]) {
        let Some(round) = self.rounds.confirmed(boot, round) else {
            return;
        };
        for session in &round.sessions {
            if !refused.contains(session) {
                self.local.renew(*session, round.sent, &mut self.effects);
            }
        }
        for ticket in round.tickets {
            self.local.synced(ticket, index);
        }
        self.fresh_soon.push((index, round.sent));
    }

    /// One ready round of Raft: raft-rs's contract is `RawNode`'s documentation.
    fn ready(&mut self) -> Result<(), String> {
        let mut ready = self.raw.ready();
        self.post(ready.take_messages());
        for read in ready.take_read_states() {
            self.reads_confirmed(&read.request_ctx, read.index);
        }
        let mut disk = None;
        if *ready.snapshot() != eraftpb::Snapshot::default() {
            disk = Some(self.install(&ready)?);
        }
        let store = self.raw.mut_store();
        store.append(ready.entries());
        if let Some(hard_state) = ready.hs() {
            store.set_hard_state(hard_state.clone());
        }
        let only_installed = disk.is_some() && ready.entries().is_empty();
        if ready.must_sync() && !only_installed {
            let write = LogWrite {
                hard_state: Some(hard_state(&self.raw)),
                entries: ready.entries().iter().map(LogEntry::from).collect(),
            };
            self.disk_number += 1;
            disk = Some(self.disk_number);
            self.effects.disk.push(DiskOp::Write { number: self.disk_number, write });
        }
        let messages = ready.take_persisted_messages();
        let committed = ready.take_committed_entries();
        self.undurable.push_back(Undurable { ready: ready.number(), disk, messages });
        self.raw.advance_append_async(ready);
        for peer in std::mem::take(&mut self.failed_transfers) {
            self.raw.report_snapshot(peer, SnapshotStatus::Failure);
        }
        self.apply(committed)?;
        self.settle();
        Ok(())
    }

    /// Sends what waited for the disk, as far as the disk has got.
    fn settle(&mut self) {
        while let Some(first) = self.undurable.front() {
            if first.disk.is_some_and(|number| number > self.written) {
                return;
            }
            let Some(durable) = self.undurable.pop_front() else {
                return;
            };
            self.post(durable.messages);
            self.raw.on_persist_ready(durable.ready);
        }
    }

    fn post(&mut self, messages: Vec<eraftpb::Message>) {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.post_snapshot(&message);
            } else if let Some(body) = RaftBody::from_raft(&message) {
                let term = message.term;
                self.effects.messages.push((message.to, PeerMessage::Raft { term, body }));
            }
        }
    }

    /// Raft wants a peer to have a snapshot: the state goes out in chunks.
    fn post_snapshot(&mut self, message: &eraftpb::Message) {
        let applied = self.raw.store().applied();
        let current =
            raft_leads(&self.raw) && message.get_snapshot().get_metadata().index == applied.index;
        if !current {
            self.failed_transfers.push(message.to);
            return;
        }
        let meta = self.meta(applied);
        let (term, state) = (message.term, self.machine.state());
        tracing::info!(to = message.to, index = meta.index, "sending a snapshot");
        let messages = self.outgoing.begin(message.to, term, meta, state, self.now.mono);
        self.effects.messages.extend(messages.into_iter().map(|part| (message.to, part)));
    }

    fn meta(&self, at: Position) -> SnapshotMeta {
        SnapshotMeta {
            index: at.index,
            term: at.term,
            zxid: self.machine.zxid(),
            hash: self.machine.hash(),
            voting: Voting::from(self.raw.store().conf_state()),
        }
    }

    /// Raft has taken the snapshot that was staged: it replaces everything.
    fn install(&mut self, ready: &raft::Ready) -> Result<u64, String> {
        let raft_meta = ready.snapshot().get_metadata();
        let staged = self
            .staged
            .take()
            .filter(|(meta, _)| meta.index == raft_meta.index && meta.term == raft_meta.term);
        let Some((meta, machine)) = staged else {
            return Err("Raft restored a snapshot that was not received".to_owned());
        };
        tracing::info!(index = meta.index, zxid = meta.zxid, "installing a snapshot");
        let position = Position { index: meta.index, term: meta.term };
        let old = self.machine.tree();
        self.machine = machine;
        // The disk gets the whole state; deltas count from here.
        let _ = self.machine.take_dirty();
        self.raw.mut_store().reset(position, raft_meta.get_conf_state().clone());
        self.checkpoint = position;
        self.checkpoint_at = self.now.mono;
        self.checkpointing = None;
        self.tree_changed = true;
        let mut fired = Fired::default();
        self.watches.fire_net(&old, &self.machine.tree(), &mut fired);
        self.tell(fired);
        self.reconcile_sessions();
        self.local.applied();
        self.disk_number += 1;
        let number = self.disk_number;
        let mut hard_state = ready.hs().map_or_else(|| hard_state(&self.raw), own_hard_state);
        hard_state.commit = hard_state.commit.max(position.index);
        let state = self.machine.state();
        self.effects.disk.push(DiskOp::Install { number, hard_state, meta, state });
        Ok(number)
    }

    /// What the entries that the snapshot stands for did to this node's sessions.
    fn reconcile_sessions(&mut self) {
        for session in self.local.ids() {
            let Some(held) = self.local.get(session) else {
                continue;
            };
            let (holder, open) = (held.holder, held.opened());
            match self.machine.session(session) {
                Some(record) if record.holder == holder => {
                    let opened = Ok(crate::machine::command::Reply::Session {
                        timeout_ms: record.timeout_ms,
                    });
                    self.local.outcome(session, holder, 0, &opened, &mut self.effects);
                    let Some(held) = self.local.get(session) else {
                        continue;
                    };
                    for seq in held.applied() + 1..=record.last_seq {
                        if let Some(result) = record.result_of(seq) {
                            self.local.outcome(session, holder, seq, result, &mut self.effects);
                        }
                    }
                }
                Some(_) if open => self.end_local(session, SessionState::Moved),
                None if open => {
                    // It ended in what the snapshot stands for, and whether its last writes came
                    // before that is not recorded any more.
                    let reason = "the session ended while this replica was out of reach";
                    self.local.end_unknown(session, reason, &mut self.effects);
                    self.end_watches(session);
                }
                // Its open is not in the log yet, or will be answered when it is.
                Some(_) | None => {}
            }
        }
    }

    fn apply(&mut self, entries: Vec<eraftpb::Entry>) -> Result<(), String> {
        let Some(last) = entries.last().map(|entry| entry.index) else {
            return Ok(());
        };
        for entry in entries {
            if entry.get_entry_type() != EntryType::EntryNormal {
                return Err(format!("entry {} is of a kind unknown to this version", entry.index));
            }
            // A new leader's first entry is empty.
            if !entry.data.is_empty() {
                let batch = Batch::decode(&entry.data).map_err(|reason| {
                    format!("entry {} is not readable by this version: {reason}", entry.index)
                })?;
                self.apply_batch(entry.term, batch);
            }
            let position = Position { index: entry.index, term: entry.term };
            self.raw.mut_store().set_applied(position);
            if entry.index.is_multiple_of(hashes::EVERY) {
                self.share_hash(entry.index)?;
            }
        }
        self.raw.advance_apply_to(last);
        self.local.applied();
        Ok(())
    }

    fn apply_batch(&mut self, term: u64, batch: Batch) {
        if !self.local.has_waits() {
            let applied = self.machine.apply(term, &batch);
            self.take_applied(applied);
            return;
        }
        // A read sees what was asked for before it and nothing asked for after it. A batch is
        // nothing but its requests, so it can be applied one by one.
        for request in batch.requests {
            let one = Batch { time: batch.time, requests: vec![request] };
            let applied = self.machine.apply(term, &one);
            self.take_applied(applied);
            self.answer_waits();
        }
    }

    fn answer_waits(&mut self) {
        let index = self.raw.store().applied().index;
        let tree = self.machine.tree();
        self.local.answer_waits(&tree, index, &mut self.watches, &mut self.effects);
    }

    fn take_applied(&mut self, applied: Applied) {
        self.tree_changed |= !applied.changes.is_empty();
        let mut fired = Fired::default();
        for change in &applied.changes {
            self.watches.fire(change, &mut fired);
        }
        self.tell(fired);
        for outcome in applied.outcomes {
            let (session, holder) = (outcome.session, outcome.holder);
            if matches!(outcome.result, Err(crate::machine::command::OpError::StaleExpiry)) {
                self.expiring.remove(&session);
            } else if self.local.outcome(
                session,
                holder,
                outcome.seq,
                &outcome.result,
                &mut self.effects,
            ) {
                self.moved_at = self.now.mono;
                self.patience = self.config.heartbeat * ELECTION_TICKS as u32;
            }
        }
        for change in applied.sessions {
            match change {
                SessionChange::Held(session) => {
                    let Some(record) = self.machine.session(session) else {
                        continue;
                    };
                    let holder = record.holder;
                    let timeout = Duration::from_millis(u64::from(record.timeout_ms));
                    if self.serving {
                        self.expiry.touch(session, timeout, self.now.mono);
                    }
                    self.expiring.remove(&session);
                    if self
                        .local
                        .get(session)
                        .is_some_and(|held| held.opened() && held.holder != holder)
                    {
                        self.end_local(session, SessionState::Moved);
                    }
                }
                SessionChange::Gone(session) => {
                    self.expiry.forget(session);
                    self.expiring.remove(&session);
                    self.admission.forget(session);
                    self.end_local(session, SessionState::Expired);
                }
            }
        }
    }

    fn end_local(&mut self, session: SessionId, state: SessionState) {
        self.local.end(session, state, &mut self.effects);
        self.end_watches(session);
    }

    fn end_watches(&mut self, session: SessionId) {
        self.effects.ended.extend(self.watches.end_session(session));
    }

    fn tell(&mut self, fired: Fired) {
        self.effects.events.extend(fired.events);
        self.effects.ended.extend(fired.ended);
    }

    fn share_hash(&mut self, index: u64) -> Result<(), String> {
        let hash = self.machine.hash();
        for (peer, _) in &self.unreachable {
            self.effects.messages.push((*peer, PeerMessage::StateHash { index, hash }));
        }
        self.compare_hash(index, self.id, hash)
    }

    fn compare_hash(&mut self, index: u64, of: NodeId, hash: u64) -> Result<(), String> {
        let voters = &self.raw.store().conf_state().voters;
        match self.hashes.note(index, of, hash, self.id, voters) {
            Verdict::Agree => Ok(()),
            Verdict::Disagree => {
                tracing::error!(index, peer = of, "replicas disagree on the state at this index");
                Ok(())
            }
            Verdict::Diverged => Err(format!(
                "this replica's state at entry {index} is not the majority's: it has diverged"
            )),
        }
    }

    /// The last things of a step.
    fn finish(&mut self) {
        let applied = self.raw.store().applied();
        let fresh = self.fresh_soon.extract_if(.., |(index, _)| *index <= applied.index);
        self.fresh_at = fresh.map(|(_, sent)| sent).max().max(self.fresh_at);
        self.answer_waits();
        self.local.forget_settled();
        if std::mem::take(&mut self.tree_changed) {
            self.effects.tree = Some(self.machine.tree());
        }
        self.maybe_checkpoint(applied);
        self.effects.wake_at = self.next_tick;
    }

    fn maybe_checkpoint(&mut self, applied: Position) {
        let entries = applied.index - self.checkpoint.index;
        let old = self.now.mono >= self.checkpoint_at + CHECKPOINT_AGE;
        let due = entries >= CHECKPOINT_ENTRIES
            || (entries > 0 && old)
            || (entries >= RETAINED_ENTRIES as u64 / 10
                && self.raw.store().bytes() > CHECKPOINT_BYTES);
        if !due || self.checkpointing.is_some() {
            return;
        }
        let keep_from = self.raw.store().keep_from(applied.index, RETAINED_ENTRIES, RETAINED_BYTES);
        self.checkpoint = applied;
        self.checkpoint_at = self.now.mono;
        self.checkpointing = Some(applied.index);
        self.effects.disk.push(DiskOp::Checkpoint {
            meta: self.meta(applied),
            state: self.machine.state(),
            dirty: self.machine.take_dirty(),
            keep_from,
        });
    }

    /// Stops for good: everything is answered, nothing is promised any more.
    fn stop(&mut self, reason: String) {
        tracing::error!(node = self.id, reason, "the node stops");
        // What this step had decided before it failed is not to be done.
        self.effects.messages.clear();
        self.effects.disk.clear();
        let error = Error::Stopped { reason: reason.clone() };
        for session in self.local.ids() {
            self.effects.ended.extend(self.watches.end_session(session));
        }
        self.local.stop(&error, &mut self.effects);
        self.effects.wake_at = Time::MAX;
        self.effects.stopped = Some(reason.clone());
        self.stopped = Some(reason);
    }
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

/// The log that the disk held, checked so that raft-rs can start from it.
fn boot_log(boot: &Boot, checkpoint: Position) -> Result<MemLog, String> {
    // Entries behind the checkpoint were kept for laggards. The first of them then only says its
    // term, since that of the one before it is not known.
    let first = boot.entries.first().map_or(checkpoint.index + 1, |entry| entry.index);
    let (base, skip) = if first == checkpoint.index + 1 {
        (checkpoint, 0)
    } else if first <= checkpoint.index {
        (Position { index: first, term: boot.entries[0].term }, 1)
    } else {
        return Err(format!("the log begins at {first}, after the checkpoint at {checkpoint:?}"));
    };
    let mut before = base;
    for entry in &boot.entries[skip..] {
        if entry.index != before.index + 1 || entry.term < before.term {
            return Err(format!("entry {} does not follow {before:?}", entry.index));
        }
        before = Position { index: entry.index, term: entry.term };
    }
    if boot.hard_state.term < before.term {
        return Err(format!("term {} is before that of {before:?}", boot.hard_state.term));
    }
    let mut hard_state = eraftpb::HardState::default();
    hard_state.term = boot.hard_state.term;
    hard_state.vote = boot.hard_state.vote;
    hard_state.commit = boot.hard_state.commit.max(checkpoint.index);
    if hard_state.commit > before.index {
        return Err(format!(
            "entry {} is committed but the log ends at {}",
            hard_state.commit, before.index
        ));
    }
    let entries = boot.entries[skip..].iter().map(eraftpb::Entry::from);
    let conf_state = eraftpb::ConfState::from(&boot.checkpoint.voting);
    Ok(MemLog::new(base, entries, hard_state, conf_state, checkpoint))
}
