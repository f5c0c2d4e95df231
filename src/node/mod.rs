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
//! Each part owns its state. Its methods borrow what else they need: [`Raft`], the state machine, other parts,
//! and the [`Context`] of the step. Methods of [`Node`] itself only put parts in order. They are in this file
//! and in three others: `receive` (what comes in), `apply` (what the log decides) and `status` (what the node
//! tells of itself).
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
mod apply;
pub(crate) mod bootstrap;
pub(crate) mod client;
pub(crate) mod client_message;
mod clocks;
mod closing;
mod config;
mod contacts;
mod context;
pub(crate) mod io;
mod joining;
pub(crate) mod leader;
pub(crate) mod log_outline;
pub(crate) mod membership;
pub(crate) mod message;
#[cfg(test)]
mod message_tests;
pub(crate) mod query;
pub(crate) mod raft;
mod random;
mod reason;
mod receive;
pub(crate) mod replica;
pub(crate) mod request;
mod room;
pub(crate) mod session_timers;
pub(crate) mod sessions;
mod status;
pub(crate) mod stored;
#[cfg(test)]
mod tests;
mod ticks;
pub(crate) mod timings;
pub(crate) mod troubles;
mod versions;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use self::admin::Administration;
use self::apply::Applying;
use self::bootstrap::driver::Bootstrap;
use self::bootstrap::{BootstrapOutcome, Founding};
use self::client_message::UpTo;
pub(crate) use self::config::{LogLimits, NodeConfig, TimeoutBounds};
use self::context::Context;
use self::io::{DiskOp, Effects, Input, Now, Time};
use self::leader::Leading;
use self::leader::members::MembershipPlan;
pub(crate) use self::leader::planner::MembershipPolicy;
use self::leader::planner::PlannedAction;
use self::leader::read_index::ReceivedReadIndex;
pub(crate) use self::leader::reaper::CONTAINER_PERIOD;
use self::membership::Membership;
pub(crate) use self::membership::REMOVED;
use self::message::{PeerMessage, in_parts};
use self::raft::core::Raft;
use self::raft::state::KnownLeader;
use self::random::mixed;
use self::replica::Replica;
use self::replica::history::History;
use self::room::Room;
use self::sessions::{LocalSessions, users};
use self::stored::{Boot, Identity};
use self::ticks::Ticks;
use self::troubles::Troubles;

use crate::machine::Machine;
use crate::types::error::Error;
use crate::types::membership::{Genesis, Member, NodeId, Promise};

/// About how many bytes one `Forward` message has.
const FORWARD_BYTES_MAX: usize = 256 << 10;
/// A node sends a ReadIndex request at least this often. That bounds how stale local reads may be.
const READ_INDEX_PERIOD: Duration = Duration::from_secs(2);

/// The identity of a node on its disk.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) identity: Identity,
    pub(crate) promise: Promise,
}

pub(crate) struct Node {
    cx: Context,
    ticks: Ticks,
    raft: Raft,
    machine: Machine,
    applying: Applying,
    /// This node's users.
    local: LocalSessions,
    replica: Replica,
    /// Present while this node is the leader.
    leading: Option<Leading>,
    membership: Membership,
    bootstrap: Bootstrap,
    room: Room,
    troubles: Troubles,
    administration: Administration,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("id", &self.cx.id)
            .field("leadership", &self.raft.elections.observed)
            .field("applied", &self.raft.log().applied())
            .field("stopped", &self.cx.stopped)
            .finish_non_exhaustive()
    }
}

impl Node {
    /// The node of this origin, started from its disk. `machine` is the state of the checkpoint.
    ///
    /// # Errors
    /// The contradiction on disk. raft-rs must not be started from it.
    pub(crate) fn new(
        config: NodeConfig,
        origin: Origin,
        boot: Boot,
        machine: Machine,
        now: Now,
    ) -> Result<Node, String> {
        let Origin { identity, promise } = origin;
        let id = identity.node;
        let me = Member {
            node: id,
            uid: identity.uid,
            address: identity.address.clone(),
            zone: config.zone.clone(),
            leader_priority: config.leader_priority,
        };
        let raft = Raft::start(id, &boot, &config, now.mono)?;
        let voting = &boot.checkpoint.voting;
        let members = voting.voters.iter().chain(&voting.learners).chain(&voting.voters_outgoing);
        let members: BTreeSet<NodeId> = members.copied().collect();
        let founded = promise.pledge.as_ref().map(|pledge| pledge.genesis.cluster);
        let founding = members.is_empty().then(|| {
            let (list, majority_after) = (&config.peers, config.majority_after);
            let (me, cluster) = (me.clone(), identity.cluster);
            Founding::new(me, list, cluster, majority_after, promise, config.seed, now.mono)
        });
        let others = members.into_iter().filter(|member| *member != id);
        let (changes, bytes) = (config.log.history_changes, config.log.history_bytes);
        let history = History::new(machine.zxid(), changes, bytes);
        let mut node = Node {
            ticks: Ticks::new(config.heartbeat, mixed(config.seed), now.mono),
            local: LocalSessions::new(config.timings().election(), config.audit, config.seed),
            membership: Membership::new(me, config.version, others),
            replica: Replica::new(history),
            bootstrap: Bootstrap::new(identity, founding),
            applying: Applying::default(),
            leading: None,
            room: Room::default(),
            troubles: Troubles::default(),
            administration: Administration::default(),
            cx: Context::new(id, config, now),
            raft,
            machine,
        };
        if node.bootstrap.founding.is_none() && node.bootstrap.identity.cluster == 0 {
            // The node stopped between writing the founding state and the cluster's id.
            node.belong_to(founded.ok_or("a state of no cluster")?);
        }
        node.raft.pace();
        node.guarded(Node::apply_known);
        if voting.voters == [id] && node.cx.stopped.is_none() {
            // No other node could lead or vote.
            node.raft.campaign()?;
        }
        Ok(node)
    }

    /// Puts the next step's effects into this memory.
    pub(crate) fn reuse(&mut self, empty: Effects) {
        self.cx.effects = empty;
    }

    /// Takes in what has happened by `now`, in order (possibly nothing), and returns what must be
    /// done.
    ///
    /// It must be called at `Effects::wake_at`, and may be called at any time before.
    pub(crate) fn step(&mut self, now: Now, inputs: impl IntoIterator<Item = Input>) -> Effects {
        let mut inputs = inputs.into_iter();
        if self.cx.stopped.is_none() {
            self.guarded(|node| node.try_step(now, &mut inputs));
        }
        if let Some(reason) = self.cx.stopped.clone() {
            // There is nothing left to wake up for.
            self.cx.effects.wake_at = Time::MAX;
            for input in inputs {
                if let Input::Client(request) = input {
                    users::refuse(&mut self.cx.effects, request, &reason);
                }
            }
        }
        std::mem::take(&mut self.cx.effects)
    }

    /// Stops the node if this fails. raft-rs panics on states that it considers impossible. The node is not
    /// used after a panic.
    fn guarded(&mut self, work: impl FnOnce(&mut Node) -> Result<(), String>) {
        match catch_unwind(AssertUnwindSafe(|| work(self))) {
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

    fn try_step(
        &mut self,
        now: Now,
        inputs: &mut dyn Iterator<Item = Input>,
    ) -> Result<(), String> {
        let paused = now.mono.saturating_sub(self.cx.now.mono);
        (self.cx.now, self.applying.applied_now) = (now, 0);
        self.cx.effects.zxid = self.machine.zxid();
        if let Some(leading) = &mut self.leading {
            leading.clock.advance(now);
            // The process was stopped for a while, and messages that sessions' nodes sent during
            // that time are still unread. So their silence proves nothing.
            if paused > self.cx.config.timings().election() {
                leading.renew_all(&self.machine, now.mono);
            }
        }
        let (room, membership) = (&self.room, &self.membership);
        self.raft.tidy_log(&mut self.machine, room, membership, &mut self.cx);
        let leader = self.raft.elections.observed.leader;
        let mut from_leader = false;
        for input in inputs {
            from_leader |= matches!(&input, Input::Peer { from, .. } if *from == leader);
            self.take(input)?;
        }
        if self.ticks.take(now.mono, from_leader) {
            self.raft.tick_elections(&self.membership, &self.cx)?;
            self.tick();
        }
        self.step_bootstrap()?;
        self.drive()?;
        self.hasten_members()?;
        self.raft.draw_timeout();
        self.finish();
        Ok(())
    }

    /// Does the work of each tick, once a heartbeat.
    fn tick(&mut self) {
        let (now, patience) = (self.cx.now.mono, self.cx.patience());
        // Elections take this long, so a request that takes longer may be lost.
        for session in self.local.tick(patience, now, &mut self.cx.effects) {
            self.end_watches(session);
        }
        if let Some(leading) = &mut self.leading {
            let mut expired = Vec::new();
            leading.replication.end_stalled(&mut self.raft, &self.cx);
            if leading.serves() {
                expired = leading.expire_sessions(&self.machine, now);
                let last = self.raft.last_index();
                leading.reap(self.raft.log().applied().index, last, &self.machine, now);
            }
            let from = |session| self.local.from(session);
            leading.note_expired(&expired, &self.machine, from, &self.membership, now);
        }
        let (raft, machine, cx) = (&self.raft, &self.machine, &mut self.cx);
        self.administration.end_gathered(cx);
        let (joins, leading) = (self.bootstrap.joins, &mut self.leading);
        self.membership.send_requests(joins, leading, raft, machine, cx);
        self.membership.closing.tick(raft, cx);
        self.room.judge(raft, machine, &self.membership, cx);
        self.room.report(&raft.elections.observed, cx);
        self.troubles.tell(raft, &self.room, cx);
        self.keep_members();
        let (tick, effects) = (self.cx.config.tick, &mut self.cx.effects);
        self.replica.drop_silent_clients(now, tick, effects);
    }

    /// Plans changes of the members without waiting for the next tick, if an instance asks to join or a change was
    /// applied.
    fn hasten_members(&mut self) -> Result<(), String> {
        let applied = self.raft.log().applied().index;
        if self.leading.as_mut().is_some_and(|leading| leading.members.needs_plan(applied)) {
            self.keep_members();
            self.drive()?;
        }
        Ok(())
    }

    /// While this node leads, observes the members and makes the next change.
    fn keep_members(&mut self) {
        let Some(leading) = &mut self.leading else { return };
        let (raft, machine) = (&mut self.raft, &self.machine);
        let plan = leading.observe_members(raft, machine, &self.membership, &self.room, &self.cx);
        let Some(MembershipPlan { placed, action }) = plan else { return };
        let membership = &mut self.membership;
        let disks = leading.report_health(placed, raft, membership, &self.room, &mut self.cx);
        if let Some((low, refuses_writes)) = disks {
            self.note_room(low, refuses_writes);
        }
        let now = self.cx.now.mono;
        let is_due = |action: &PlannedAction| match action {
            PlannedAction::Prefer(successor) => self.membership.preference.offers(*successor, now),
            _ => true,
        };
        if let Some(action) = action.filter(is_due)
            && let Some(leading) = &mut self.leading
        {
            tracing::info!(node = %self.membership.own_name(), ?action, "a change of the members");
            let known = (&self.membership, &self.room);
            leading.change_members(action, &mut self.raft, &self.machine, known, &self.cx);
        }
    }

    /// Notes which members have little room on their disks, and whether writes are refused for that.
    fn note_room(&mut self, low: BTreeSet<NodeId>, refuses_writes: bool) {
        let (machine, membership) = (&self.machine, &self.membership);
        self.room.note_report(low, refuses_writes, machine, membership, &mut self.local);
    }

    /// If this node leads, it hands over.
    fn resign(&mut self) {
        if let Some(leading) = &mut self.leading {
            leading.resign(&mut self.raft, &self.membership, &self.room, &self.cx);
        }
    }

    /// Whether this node serves as the leader.
    fn serves(&self) -> bool {
        self.leading.as_ref().is_some_and(Leading::serves)
    }

    /// Steps the bootstrap, while the node has no cluster.
    fn step_bootstrap(&mut self) -> Result<(), String> {
        match self.bootstrap.step(&mut self.raft.persistence, &mut self.cx) {
            None => Ok(()),
            Some(BootstrapOutcome::Found(genesis)) => self.found(&genesis),
            Some(BootstrapOutcome::Join { cluster }) => {
                let node = self.membership.own_name();
                tracing::info!(%node, cluster = format_args!("{cluster:016x}"), "joining a cluster");
                self.bootstrap.joins = true;
                self.belong_to(cluster);
                Ok(())
            }
        }
    }

    /// Starts from this genesis, in place of the empty state.
    fn found(&mut self, genesis: &Genesis) -> Result<(), String> {
        let (node, cluster) = (self.membership.own_name(), genesis.cluster);
        tracing::info!(%node, cluster = format_args!("{cluster:016x}"), "founding a cluster");
        let (hard_state, meta, state) = genesis.start();
        let boot = Boot::without_log(hard_state, meta.clone());
        self.raft.restart(&boot, self.cx.now.mono)?;
        self.machine = Machine::from_state(state.clone());
        self.leading = None;
        self.replica.history.begin_after(self.machine.zxid());
        self.replica.published = None;
        // If the node stops between the two writes, its pledge names the state's cluster.
        let number = self.raft.persistence.next_number();
        self.cx.effects.disk.push(DiskOp::Install { number, hard_state, meta, state });
        self.belong_to(cluster);
        self.members_changed();
        if self.raft.log().voting().voters == [self.cx.id] {
            self.raft.campaign()?;
        }
        Ok(())
    }

    fn belong_to(&mut self, cluster: u64) {
        let (versions, persistence) = (&self.membership.versions, &mut self.raft.persistence);
        self.bootstrap.belong_to(cluster, versions, persistence, &mut self.cx);
    }

    /// Runs Raft until it has nothing more to do.
    fn drive(&mut self) -> Result<(), String> {
        // The `Ready` of raft-rs goes first: a snapshot in it is of the present state.
        if self.applying.goes_on && !self.raft.has_ready() {
            self.go_on_applying()?;
        }
        loop {
            self.observe_leader();
            if self.raft.elections.observed.leader == self.cx.id {
                self.raft.elections.led_at = self.cx.now.mono;
            }
            self.send_requests();
            self.propose();
            self.request_read_index();
            if let Some(leading) = &mut self.leading {
                leading.read_index(self.local.read_index.boot(), &mut self.raft, &self.cx);
            }
            if !self.raft.has_ready() {
                return Ok(());
            }
            while self.raft.has_ready() {
                self.ready()?;
            }
        }
    }

    /// The leader to send requests to, if it takes them.
    fn asked_leader(&self) -> Option<NodeId> {
        let leader = self.raft.elections.observed.leader;
        (leader != 0 && (leader != self.cx.id || self.serves())).then_some(leader)
    }

    /// Sends the users' requests to the leader.
    fn send_requests(&mut self) {
        let Some(leader) = self.asked_leader().filter(|_| self.local.has_unsent()) else { return };
        let (now, version) = (self.cx.now.mono, self.machine.version());
        let gate = self.membership.versions.gate(version, self.raft.others(), now);
        let requests = self.local.take_unsent(gate, now);
        if let Some(leading) = &mut self.leading {
            for request in requests {
                leading.admission.admit(request, &self.machine);
            }
            return;
        }
        if requests.is_empty() {
            return;
        }
        for requests in in_parts(requests, FORWARD_BYTES_MAX, |of| of.command.size()) {
            self.cx.send(leader, PeerMessage::Forward { requests });
        }
    }

    /// Proposes what the leader has admitted.
    fn propose(&mut self) {
        let is_late = self.applies_too_late();
        let Some(leading) = &mut self.leading else { return };
        leading.raise_version(&mut self.raft, &self.machine, &self.membership.versions);
        if !is_late {
            leading.propose(&mut self.raft, &self.machine, self.cx.now.mono);
        }
    }

    fn request_read_index(&mut self) {
        let Some(leader) = self.asked_leader() else { return };
        let next = self.local.next_read_index(self.cx.now.mono, READ_INDEX_PERIOD);
        let Some((read_index, sessions)) = next else {
            return;
        };
        let boot = self.local.read_index.boot();
        if leader == self.cx.id {
            self.take_read_index(ReceivedReadIndex::new(leader, None, boot, read_index), sessions);
        } else {
            self.cx.send(leader, PeerMessage::ReadIndex { boot, read_index, sessions });
        }
    }

    fn observe_leader(&mut self) {
        let leadership = KnownLeader { term: self.raft.term(), leader: self.raft.leader() };
        if leadership != self.raft.elections.observed {
            self.raft.elections.observed = leadership;
            let KnownLeader { term, leader } = leadership;
            let leads = leader == self.cx.id;
            self.raft.elections.knew_leader |= leader != 0;
            self.leading = leads.then(|| Leading::new(term, self.cx.now, &self.cx.config));
            self.membership.versions.unsettle(versions::settled_at(&self.cx));
            self.local.send_again(self.cx.now.mono);
            if !leads {
                self.replica.clients.again();
            }
            self.cx.metrics.leader_changes += u64::from(leader != 0);
            self.cx.metrics.elections_won += u64::from(leads);
            let (node, named) = (self.membership.own_name(), self.membership.named(leader));
            match leader {
                0 => tracing::info!(%node, term, "there is no leader"),
                _ if leads => tracing::info!(%node, term, "this member leads"),
                _ => tracing::info!(%node, leader = %named, term, "this member follows"),
            }
        }
        if let Some(leading) = self.leading.as_mut().filter(|leading| !leading.serves())
            && self.raft.has_committed_in_term()
        {
            leading.serve(self.cx.now, &self.machine, &self.membership.clocks);
            self.replica.clients.again();
        }
    }

    /// The end of a step.
    fn finish(&mut self) {
        // raft-rs hands out the entries on this disk. A member whose disk hangs still applies the
        // log. It must not count as fresh, since the cluster cannot rely on its disk.
        self.local.read_index.applied(self.raft.handed_out());
        let is_fresh = self.local.read_index.fresh_at().is_some();
        self.membership.note_place(is_fresh, &self.raft);
        self.answer_waits();
        self.cx.metrics.watch_events += self.cx.effects.events.len() as u64;
        self.local.forget_settled();
        if self.replica.published != Some(self.machine.zxid()) {
            self.replica.published = Some(self.machine.zxid());
            self.cx.effects.tree = Some(self.machine.tree());
            self.membership.hand_members(&self.machine, &mut self.cx);
        }
        self.update_clients();
        if self.raft.log().take_wants_disk()
            && let Some(leading) = &mut self.leading
        {
            leading.replication.read_log(&mut self.raft, &mut self.cx);
        }
        let follows = ![0, self.cx.id].contains(&self.raft.elections.observed.leader);
        let wake_at = self.ticks.wake_at(follows).min(self.bootstrap.next_at);
        self.cx.effects.wake_at = if self.applying.goes_on { self.cx.now.mono } else { wake_at };
    }

    /// Sends the clients their updates.
    fn update_clients(&mut self) {
        if !self.replica.has_clients() {
            return;
        }
        let (cluster, effects) = (self.bootstrap.cluster(), &mut self.cx.effects);
        self.replica.begin_clients(&self.machine, cluster, effects);
        self.answer_clients();
        let leader = self.raft.elections.observed.leader;
        let up_to = UpTo { zxid: self.machine.zxid(), version: self.machine.version(), leader };
        let (availability, effects) = (self.availability(), &mut self.cx.effects);
        self.replica.update_clients(self.membership.members(), availability, up_to, effects);
    }

    /// Stops for good: answers all requests and makes no more promises.
    fn stop(&mut self, reason: String) {
        if reason == membership::REMOVED && self.membership.leaving {
            tracing::info!(node = %self.membership.own_name(), "the node has left its cluster, and stops");
        } else {
            tracing::error!(node = %self.membership.own_name(), reason, "the node stops");
        }
        // Discards what this step had decided before it failed.
        self.cx.effects.messages.clear();
        self.cx.effects.disk.clear();
        if reason == membership::REMOVED {
            let number = self.raft.persistence.next_number();
            self.cx.effects.disk.push(DiskOp::Removed { number });
        } else {
            self.troubles.stop(&reason, &self.raft, &mut self.cx);
        }
        let error = Error::Stopped { reason: reason.clone() };
        for session in self.local.ids() {
            self.cx.effects.ended.extend(self.replica.watches.end_session(session));
        }
        self.local.stop(&error, &mut self.cx.effects);
        self.administration.refuse_gathered(&error, &mut self.cx.effects);
        self.replica.let_all_go("the member has stopped", &mut self.cx.effects);
        self.cx.effects.stopped = Some(reason.clone());
        self.cx.stopped = Some(reason);
    }
}
