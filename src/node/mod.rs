//! One node of the cluster, without threads, clocks, disks or sockets.
//!
//! [`Node::step`] takes what has happened (messages, requests, completed disk writes) and the time. It
//! returns what must be done. [`io`] lists both. The same inputs at the same times give the same
//! effects, whatever drives the node: the threads of a process, an in-memory cluster, or the simulator.
//!
//! A node is a short list of parts, each in a folder of its own:
//!
//! | part | what it does |
//! | --- | --- |
//! | [`raft`] | drives raft-rs: the log, the handling of each `Ready`, elections, persistence, snapshots |
//! | [`leader`] | what one term of leadership needs: admission, expiry, reaping, membership changes |
//! | [`sessions`] | the sessions of this node's own users: numbering, resending, leases, reads in turn |
//! | [`replica`] | what the replica offers: watches, their history, service to clients |
//! | [`client`] | an instance without a replica |
//! | [`admin`] | reports of all members, and an operator's actions |
//! | [`bootstrap`] | how the instances of one list found one cluster |
//!
//! A step works in this order: it starts a checkpoint if one is due, takes the inputs, passes a tick if one
//! is due, steps the bootstrap, and then drives Raft until Raft has nothing more to do. Driving sends
//! requests to the leader, proposes batches if this node leads, and applies what is committed. At the end
//! it answers waiting requests, publishes the tree, and has the disk read log entries that peers lack.
//!
//! A write takes this path. Its session numbers it. It goes to the leader, here or by a `Forward`
//! message. The leader admits it once and proposes it in a batch. Raft replicates the entry while the
//! disk writes it. Every replica applies it, and the node that holds the session answers when its own
//! replica has applied it. No node answers another node, so no answer can be lost between nodes.
//!
//! Messages that Raft may send only after something is durable wait in [`raft::persistence`] for
//! [`io::Input::Written`]. The host cannot get that order wrong.
//!
//! Invariants: a node proposes only while it leads and has applied an entry of its own term. Only an
//! entry of the deciding leader's own term expires a session. A tree is published after the watch
//! events of its changes. A broken invariant, a failed disk or lost data stops the node for good, and
//! not the host process.

pub(crate) mod admin;
pub(crate) mod bootstrap;
pub(crate) mod client;
pub(crate) mod client_message;
mod closing;
mod config;
pub(crate) mod io;
pub(crate) mod leader;
pub(crate) mod log_outline;
pub(crate) mod membership;
pub(crate) mod message;
#[cfg(any(test, feature = "simulator"))]
mod observe;
pub(crate) mod query;
pub(crate) mod raft;
mod reason;
mod receive;
pub(crate) mod replica;
mod room;
pub(crate) mod session_timers;
pub(crate) mod sessions;
mod start;
mod status;
pub(crate) mod stored;
#[cfg(test)]
mod tests;
mod ticks;
pub(crate) mod timings;
mod versions;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use self::admin::Administration;
use self::bootstrap::driver::Bootstrap;
use self::closing::Closing;
pub(crate) use self::config::{LogLimits, NodeConfig, TimeoutBounds};
use self::io::{DiskOp, Effects, Input, Now, Problem, Time};
use self::leader::Leading;
pub(crate) use self::leader::planner::MembershipPolicy;
pub(crate) use self::leader::reaper::CONTAINER_PERIOD;
use self::membership::Membership;
pub(crate) use self::membership::REMOVED;
use self::raft::core::Raft;
use self::raft::divergence::Hashes;
use self::raft::elections::{ELECTION_TICKS, Elections};
use self::raft::heartbeats::LastAnswer;
use self::raft::persistence::Persistence;
use self::raft::quorum_loss::QuorumLoss;
use self::raft::snapshot_transfer::{Incoming, Received};
use self::replica::Replica;
use self::room::Room;
use self::sessions::{LocalSessions, users};
pub(crate) use self::start::Origin;
use self::ticks::Ticks;
use self::versions::Versions;
use crate::machine::command::Batch;
use crate::machine::{Machine, State};
use crate::planted::{Bug, planted};
use crate::types::error::Error;
use crate::types::membership::{Member, NodeId};
use crate::types::metrics::Metrics;

/// About how many bytes one `Forward` message has.
const FORWARD_BYTES_MAX: usize = 256 << 10;
/// A node sends a ReadIndex request at least this often. That bounds how stale local reads may be.
const READ_INDEX_PERIOD: Duration = Duration::from_secs(2);

/// The leader as this node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leadership {
    term: u64,
    leader: NodeId,
}

pub(crate) struct Node {
    id: NodeId,
    /// This node as a member.
    me: Member,
    config: NodeConfig,
    raft: Raft,
    machine: Machine,
    now: Now,
    ticks: Ticks,
    elections: Elections,
    last_answer: LastAnswer,
    leadership: Leadership,

    persistence: Persistence,

    // This node's users.
    local: LocalSessions,

    versions: Versions,
    membership: Membership,
    closing: Closing,
    room: Room,
    quorum_loss: QuorumLoss,
    bootstrap: Bootstrap,
    administration: Administration,

    /// Present while this node is the leader.
    leading: Option<Leading>,
    replica: Replica,

    /// The entry that is being prepared: see [`Machine::prepare`].
    preparing: Option<(u64, Batch)>,
    /// How many requests this step has applied, and whether it leaves some to the next.
    applied_now: usize,
    applies_on: bool,
    incoming: Incoming,
    /// A state built from a leader's chunks, until Raft takes or refuses its snapshot.
    staged: Option<Received>,
    /// The state that a leader's state has replaced, until it is no longer published.
    replaced: Option<State>,
    /// Transfers that failed and are still to be reported to raft-rs.
    failed_transfers: Vec<NodeId>,
    hashes: Hashes,
    /// All other members, each with what keeps this node from reaching it.
    peer_problems: Vec<(NodeId, Option<Problem>)>,
    effects: Effects,
    metrics: Metrics,
    stopped: Option<String>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("id", &self.id)
            .field("leadership", &self.leadership)
            .field("applied", &self.raft.log().applied())
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

impl Node {
    /// Takes in what has happened by `now`, in order (possibly nothing), and returns what must be
    /// done.
    ///
    /// It must be called at `Effects::wake_at`, and may be called at any time before.
    pub(crate) fn step(&mut self, now: Now, inputs: impl IntoIterator<Item = Input>) -> Effects {
        let mut inputs = inputs.into_iter();
        if self.stopped.is_none() {
            // raft-rs panics on states that it considers impossible. The node is not used after a
            // panic.
            match catch_unwind(AssertUnwindSafe(|| self.try_step(now, &mut inputs))) {
                Ok(Ok(())) => {}
                Ok(Err(reason)) => self.stop(reason),
                Err(panic) => {
                    let what = panic.downcast_ref::<String>().map(String::as_str);
                    let what = what.or_else(|| panic.downcast_ref::<&str>().copied());
                    let what = what.unwrap_or("no message");
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

    fn try_step(
        &mut self,
        now: Now,
        inputs: &mut dyn Iterator<Item = Input>,
    ) -> Result<(), String> {
        let paused = now.mono.saturating_sub(self.now.mono);
        (self.now, self.applied_now) = (now, 0);
        self.effects.zxid = self.machine.zxid();
        if let Some(leading) = &mut self.leading {
            leading.clock.advance(now);
            // The process was stopped for a while, and messages that sessions' nodes sent during
            // that time are still unread. So their silence proves nothing.
            if paused > self.config.timings().election() && !planted(Bug::PausedLeaderExpires) {
                leading.renew_all(&self.machine, now.mono);
            }
        }
        self.tidy_log();
        let leader = self.leadership.leader;
        let mut from_leader = false;
        for input in inputs {
            from_leader |= matches!(&input, Input::Peer { from, .. } if *from == leader);
            self.take(input)?;
        }
        if self.ticks.take(now.mono, from_leader) {
            if self.may_campaign() || (self.persistence.installing.is_none() && self.raft.leads()) {
                self.elections.tick(&mut self.raft);
                self.raft.tick();
            }
            self.hasten_election()?;
            self.tick();
        }
        self.step_bootstrap()?;
        self.drive()?;
        self.elections.draw_timeout(&mut self.raft);
        self.finish();
        Ok(())
    }

    /// Whether this node may stand for election: only if its whole log is on its disk. raft-rs
    /// relies on that, and a node that cannot write should not lead. Neither should one that is being closed.
    fn may_campaign(&self) -> bool {
        self.persistence.installing.is_none()
            && self.raft.persisted() == self.raft.last_index()
            && !self.leaves_election()
    }

    fn take(&mut self, input: Input) -> Result<(), String> {
        match input {
            Input::Peer { from, message } => {
                self.received_from(from);
                self.take_message(from, message)?;
            }
            Input::SeedUnreachable { address, problem } => {
                if let Some(founding) = &mut self.bootstrap.founding {
                    founding.unreachable(address, problem);
                }
            }
            Input::Connected { peer, version } => {
                self.note_peer(peer, None);
                if let Some(founding) = &mut self.bootstrap.founding {
                    founding.connected(peer);
                }
                self.versions.connected(peer, version, self.versions_settled_at());
                self.closer_back(peer);
                self.announce_to_connected(peer);
                self.ask_to_join(peer);
                if peer == self.raft.leader() {
                    self.local.send_again(self.now.mono);
                    self.replica.clients.again();
                }
                self.connection_made(peer)?;
            }
            Input::Unreachable { peer, problem } => {
                self.note_peer(peer, Some(problem));
                if let Some(founding) = &mut self.bootstrap.founding {
                    founding.lost(peer);
                }
                self.versions.lost(peer);
                if !self.is_member(peer) {
                    self.versions.forget(peer);
                }
                self.replica.drop_client(peer);
                self.admin_peer_lost(peer);
                self.closer_gone(peer);
                self.raft.unreachable(peer);
                if let Some(leading) = &mut self.leading {
                    leading.probes.lost(peer);
                    if leading.outgoing.abort(peer, None) {
                        self.raft.state_sent(peer, false);
                    }
                }
                self.connection_lost(peer)?;
            }
            Input::Client(request) => self.take_request(request),
            Input::Written { number } => {
                self.persistence.written = self.persistence.written.max(number);
                self.settle();
                self.promises_written();
            }
            Input::CheckpointDone { index, bytes } => {
                let took = self.now.mono.saturating_sub(self.persistence.checkpoint_at);
                tracing::info!(node = %self.named(self.id), index, bytes, ?took, "a checkpoint");
                self.persistence.checkpoint_done(index, bytes, self.now.mono);
            }
            Input::Read { from, entries } => self.take_read(from, &entries),
            Input::Built { transfer, machine } => self.take_built(transfer, machine)?,
            Input::Rotten { what, below } => {
                tracing::warn!(
                    node = %self.named(self.id),
                    what,
                    "what was written to the disk is damaged; a new checkpoint replaces it"
                );
                self.metrics.scrub_errors += 1;
                self.persistence.abandon_below(below);
                if let Some(leading) = &mut self.leading {
                    // A read that has found the damage has no other answer.
                    leading.reads.clear();
                }
            }
            Input::DiskSpace { free, total } => self.take_disk_space(free, total),
            Input::Failed { reason } => return Err(reason),
            Input::Expire { session } => {
                if let Some(leading) = leader::serving(&mut self.leading) {
                    leading.expire(session, &self.machine, self.now.mono);
                }
            }
            Input::Resign => self.resign(),
            Input::Closing { done, resigns } => self.close(done, resigns),
            Input::Leave => self.leave()?,
            Input::Hindered(hindrance) => {
                if let Some(founding) = &mut self.bootstrap.founding {
                    founding.hinder(hindrance);
                }
            }
            Input::Discovered(discovered) => {
                if let Some(founding) = &mut self.bootstrap.founding {
                    founding.discovered(discovered);
                }
            }
        }
        Ok(())
    }

    fn note_peer(&mut self, peer: NodeId, problem: Option<Problem>) {
        if let Some((_, known)) = self.peer_problems.iter_mut().find(|(id, _)| *id == peer) {
            *known = problem;
        }
    }

    /// Until when the versions of members stay unsettled after a change at this moment.
    fn versions_settled_at(&self) -> Time {
        self.now.mono + self.config.tick * versions::PATIENCE_TICKS
    }

    /// The members except this node.
    fn others(&self) -> impl Iterator<Item = NodeId> {
        let members = self.raft.log().voting();
        let lists = [&members.voters, &members.learners, &members.voters_outgoing];
        lists.into_iter().flatten().copied().filter(|member| *member != self.id)
    }

    /// Does the work of each tick, once a heartbeat.
    fn tick(&mut self) {
        let now = self.now.mono;
        // Elections take this long, so a request that takes longer may be lost.
        let patience = self.patience();
        for session in self.local.tick(patience, now, &mut self.effects) {
            self.end_watches(session);
        }
        let mut expired = Vec::new();
        if let Some(leading) = &mut self.leading {
            for peer in leading.outgoing.take_stalled(now.saturating_sub(patience * 4)) {
                self.raft.state_sent(peer, false);
            }
            if leading.serves() {
                expired = leading.expire_sessions(&self.machine, now);
                let last = self.raft.last_index();
                leading.reap(self.raft.log().applied().index, last, &self.machine, now);
            }
        }
        self.note_expired(&expired);
        self.end_gathered();
        self.send_membership_requests();
        self.tick_closing();
        self.judge_room();
        self.report_room();
        self.keep_members();
        self.replica.drop_silent_clients(now, self.config.tick, &mut self.effects);
    }

    /// Runs Raft until it has nothing more to do.
    fn drive(&mut self) -> Result<(), String> {
        // The `Ready` of raft-rs goes first: a snapshot in it is of the present state.
        if self.applies_on && !self.raft.has_ready() {
            self.go_on_applying()?;
        }
        loop {
            self.observe_leader();
            if self.leadership.leader == self.id {
                self.elections.led_at = self.now.mono;
            }
            self.send_requests();
            self.raise_version();
            self.propose();
            self.request_read_index();
            self.read_index();
            if !self.raft.has_ready() {
                return Ok(());
            }
            while self.raft.has_ready() {
                self.ready()?;
            }
        }
    }

    fn observe_leader(&mut self) {
        let leadership = Leadership { term: self.raft.term(), leader: self.raft.leader() };
        if leadership != self.leadership {
            self.leadership = leadership;
            let Leadership { term, leader } = leadership;
            let leads = leader == self.id;
            self.elections.knew_leader |= leader != 0;
            self.leading = leads.then(|| Leading::new(term, self.now, &self.config));
            self.versions.unsettle(self.versions_settled_at());
            self.local.send_again(self.now.mono);
            if !leads {
                self.replica.clients.again();
            }
            self.metrics.leader_changes += u64::from(leader != 0);
            self.metrics.elections_won += u64::from(leads);
            let (node, named) = (self.named(self.id), self.named(leader));
            match leader {
                0 => tracing::info!(%node, term, "there is no leader"),
                _ if leads => tracing::info!(%node, term, "this member leads"),
                _ => tracing::info!(%node, leader = %named, term, "this member follows"),
            }
        }
        if let Some(leading) = self.leading.as_mut().filter(|leading| !leading.serves())
            && self.raft.has_committed_in_term()
        {
            leading.serve(self.now, &self.machine);
            self.replica.clients.again();
        }
    }

    /// The end of a step.
    fn finish(&mut self) {
        // raft-rs hands out the entries on this disk. A member whose disk hangs still applies the
        // log. It must not count as fresh, since the cluster cannot rely on its disk.
        self.local.read_index.applied(self.raft.handed_out());
        self.note_place();
        self.answer_waits();
        self.metrics.watch_events += self.effects.events.len() as u64;
        self.local.forget_settled();
        if self.replica.published != Some(self.machine.zxid()) {
            self.replica.published = Some(self.machine.zxid());
            self.effects.tree = Some(self.machine.tree());
            self.hand_members();
        }
        self.update_clients();
        self.read_log();
        let follows = ![0, self.id].contains(&self.leadership.leader);
        let wake_at = self.ticks.wake_at(follows).min(self.bootstrap.next_at);
        self.effects.wake_at = if self.applies_on { self.now.mono } else { wake_at };
    }

    /// Stops for good: answers all requests and makes no more promises.
    fn stop(&mut self, reason: String) {
        if reason == membership::REMOVED && self.membership.leaving {
            tracing::info!(node = %self.named(self.id), "the node has left its cluster, and stops");
        } else {
            tracing::error!(node = %self.named(self.id), reason, "the node stops");
        }
        // Discards what this step had decided before it failed.
        self.effects.messages.clear();
        self.effects.disk.clear();
        if reason == membership::REMOVED {
            let number = self.persistence.next_number();
            self.effects.disk.push(DiskOp::Removed { number });
        }
        let error = Error::Stopped { reason: reason.clone() };
        for session in self.local.ids() {
            self.effects.ended.extend(self.replica.watches.end_session(session));
        }
        self.local.stop(&error, &mut self.effects);
        self.refuse_gathered(&error);
        self.replica.let_all_go("the member has stopped", &mut self.effects);
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
