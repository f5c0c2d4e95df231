//! What a node does as the leader: it admits requests to the log, expires sessions, deletes znodes
//! whose time is over, maintains the membership, and confirms that it still leads.
//!
//! One value, [`Leading`], holds everything that belongs to one term of leadership. The node makes it
//! when it becomes the leader and drops it when it loses the leadership or leads in another term. So
//! nothing of a former term has to be reset.
//!
//! A leader *serves* once it has applied an entry of its own term. raft-rs must have handed that entry
//! out, so the leader's disk has it and all entries before it. Until then the leader's state may lack
//! acknowledged writes, and requests wait.

pub(crate) mod admission;
mod disks;
pub(in crate::node) mod expired;
pub(crate) mod expiry;
pub(crate) mod log_clock;
pub(crate) mod members;
pub(crate) mod planner;
pub(in crate::node) mod preference;
pub(crate) mod proposed;
pub(crate) mod read_index;
pub(crate) mod reaper;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::machine::command::{Batch, Command, Request};
use crate::machine::{Machine, SessionRecord};
use crate::node::clocks::Clocks;
use crate::node::config::NodeConfig;
use crate::node::context::Context;
use crate::node::io::{Now, Time};
use crate::node::leader::admission::Admission;
use crate::node::leader::expiry::ExpiryTable;
use crate::node::leader::log_clock::LogClock;
use crate::node::leader::members::Observed;
use crate::node::leader::proposed::Proposed;
use crate::node::leader::read_index::{Confirmations, ReceivedReadIndex};
use crate::node::leader::reaper::Reaper;
use crate::node::membership::Membership;
use crate::node::message::COMMAND_BYTES_MAX;
use crate::node::raft::core::Raft;
use crate::node::raft::replication::Replication;
use crate::node::room::Room;
use crate::node::sessions::WINDOW;
use crate::node::versions::Versions;
use crate::types::membership::{Named, NodeId};
use crate::types::znode::SessionId;

/// How long a successor may take to become the leader before another one is chosen, in heartbeats.
const SUCCESSOR_TICKS: u32 = 2;
/// Forwarded requests that a new leader holds until it serves.
const EARLY_MAX: usize = 65_536;
const EARLY_BYTES_MAX: usize = 64 << 20;
/// The same for ReadIndex requests.
const EARLY_READS_MAX: usize = 1024;

/// One term of leadership.
#[derive(Debug)]
pub(in crate::node) struct Leading {
    term: u64,
    /// Since when it serves.
    pub(in crate::node) serves_since: Option<Time>,
    pub(in crate::node) clock: LogClock,
    pub(in crate::node) admission: Admission,
    pub(in crate::node) proposed: Proposed,
    confirmations: Confirmations,
    expiry: ExpiryTable,
    /// Sessions whose expiry is proposed: no longer renewed.
    expiring: BTreeSet<SessionId>,
    /// Its log lines about expired sessions.
    expired: expired::Lines,
    reaper: Reaper,
    pub(in crate::node) members: Observed,
    /// Since when leadership is being handed to the present successor.
    successor_since: Time,
    pub(in crate::node) replication: Replication,
    /// Requests that came before it served.
    before_serving: BeforeServing,
}

#[derive(Debug, Default)]
struct BeforeServing {
    requests: VecDeque<(NodeId, Request)>,
    bytes: usize,
    read_index: Vec<(ReceivedReadIndex, Vec<SessionId>)>,
}

impl Leading {
    pub(in crate::node) fn new(term: u64, now: Now, config: &NodeConfig) -> Leading {
        Leading {
            term,
            serves_since: None,
            clock: LogClock::begin(now, 0, None),
            admission: Admission::default(),
            proposed: Proposed::default(),
            confirmations: Confirmations::new(term),
            expiry: ExpiryTable::new(config.heartbeat),
            expiring: BTreeSet::new(),
            expired: expired::Lines::default(),
            reaper: Reaper::new(config.container_period),
            members: Observed::default(),
            successor_since: Time::ZERO,
            replication: Replication::new(term, config.heartbeat),
            before_serving: BeforeServing::default(),
        }
    }

    pub(in crate::node) fn serves(&self) -> bool {
        self.serves_since.is_some()
    }

    /// The leader has applied an entry of its own term. Earlier requests have their turn now.
    pub(in crate::node) fn serve(&mut self, now: Now, machine: &Machine, clocks: &Clocks) {
        self.serves_since = Some(now.mono);
        self.clock = LogClock::begin(now, machine.time(), clocks.believed_ms(now.mono));
        self.reaper.lead(now.mono);
        self.renew_all(machine, now.mono);
        let before = std::mem::take(&mut self.before_serving);
        for (from, request) in before.requests {
            self.take_forwarded(from, request, machine);
        }
        for (asked, sessions) in before.read_index {
            self.take_read_index(asked, sessions, now.mono);
        }
    }

    pub(in crate::node) fn take_forwarded(
        &mut self,
        from: NodeId,
        request: Request,
        machine: &Machine,
    ) {
        if !may_ask(from, &request) {
            tracing::warn!(from = %Named::of(from), "refused a request that its sender may not make");
        } else if self.serves() {
            self.admission.admit(request, machine);
        } else {
            let size = request.command.size();
            let before = &mut self.before_serving;
            if before.requests.len() < EARLY_MAX && before.bytes + size <= EARLY_BYTES_MAX {
                before.bytes += size;
                before.requests.push_back((from, request));
            }
        }
    }

    /// A node or a client asks whether this node still leads, and renews these sessions.
    pub(in crate::node) fn take_read_index(
        &mut self,
        mut asked: ReceivedReadIndex,
        sessions: Vec<SessionId>,
        now: Time,
    ) {
        if !self.serves() {
            // A client soon asks again.
            if asked.client.is_none() && self.before_serving.read_index.len() < EARLY_READS_MAX {
                self.before_serving.read_index.push((asked, sessions));
            }
            return;
        }
        let owner = asked.client.unwrap_or(asked.from);
        for session in sessions {
            if self.expiring.contains(&session) || !self.expiry.renew(session, owner, now) {
                asked.refused.push(session);
            }
        }
        self.confirmations.ask(asked);
    }

    /// The log time, which this leader stamps on batches.
    pub(in crate::node) fn log_time(&self) -> u64 {
        self.clock.time_ms()
    }

    /// When it may delete a znode next: not before that.
    pub(in crate::node) fn reaps_at(&self, machine: &Machine, now: Time) -> Time {
        self.reaper.next_at(now, &machine.tree(), self.log_time())
    }

    /// Expires the sessions that nobody has renewed in time, and returns them.
    pub(in crate::node) fn expire_sessions(
        &mut self,
        machine: &Machine,
        now: Time,
    ) -> Vec<SessionId> {
        let expired = self.expiry.take_expired(now);
        for session in &expired {
            self.expire(*session, machine, now);
        }
        expired
    }

    /// When the session expires unless it is renewed.
    pub(in crate::node) fn session_ends(&self, session: SessionId) -> Option<Time> {
        self.expiry.deadline(session)
    }

    pub(in crate::node) fn expire(&mut self, session: SessionId, machine: &Machine, now: Time) {
        let Some(record) = machine.session(session) else { return };
        let holder = record.holder;
        // In case the expiry is refused (the session was resumed at the same moment).
        self.grant(session, record, now);
        self.expiring.insert(session);
        let command = Command::Expire { term: self.term };
        let request = Request { session, holder, seq: 0, acked: 0, command };
        self.admission.admit(request, machine);
    }

    /// Gives every session its full timeout again.
    pub(in crate::node) fn renew_all(&mut self, machine: &Machine, now: Time) {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        let now = unless!(NewLeaderForgetsSessions, now, now + YEAR);
        if self.serves() {
            for (session, record) in machine.sessions() {
                self.grant(session, record, now);
            }
        }
    }

    /// Gives a session its full timeout.
    fn grant(&mut self, session: SessionId, record: &SessionRecord, now: Time) {
        let timeout = Duration::from_millis(u64::from(record.timeout_ms));
        let timeout = timeout / if planted!(ExpiryEarly) { 8 } else { 1 };
        self.expiry.grant(session, record.owner, timeout, now);
    }

    /// A session was opened or resumed.
    pub(in crate::node) fn session_held(
        &mut self,
        session: SessionId,
        record: &SessionRecord,
        now: Time,
    ) {
        if self.serves() {
            self.grant(session, record, now);
        }
        self.expiring.remove(&session);
    }

    pub(in crate::node) fn session_gone(&mut self, session: SessionId) {
        self.expiry.forget(session);
        self.expiring.remove(&session);
        self.admission.forget(session);
    }

    /// The log has refused to expire the session.
    pub(in crate::node) fn expiry_refused(&mut self, session: SessionId) {
        self.expiring.remove(&session);
    }

    /// Proposes the deletion of the znodes that are due, see [`reaper`]. `applied` is the last
    /// applied entry, and `last` the last of the log.
    pub(in crate::node) fn reap(&mut self, applied: u64, last: u64, machine: &Machine, now: Time) {
        if !self.reaper.is_time(now, applied) {
            return;
        }
        let time = self.log_time();
        for path in self.reaper.take_due(now, last, &machine.tree(), time) {
            self.admission.admit(own_request(Command::Reap { path }), machine);
        }
    }
}

/// Whether a node or a client may make this request. Only the leader expires sessions, each node opens sessions only for
/// itself, and none has let a command pass that is too large, or sent more than it may before it acknowledges results.
pub(in crate::node) fn may_ask(from: NodeId, request: &Request) -> bool {
    let command = &request.command;
    let is_theirs = match command {
        Command::Open { owner, .. } | Command::Resume { owner, .. } => *owner == from,
        Command::Close | Command::Op(_) | Command::Multi(_) | Command::Authenticate { .. } => true,
        Command::Expire { .. }
        | Command::Reap { .. }
        | Command::RaiseVersion { .. }
        | Command::Configure { .. } => false,
    };
    is_theirs
        && request.seq.saturating_sub(request.acked) < WINDOW
        && command.too_large(COMMAND_BYTES_MAX).is_none()
}

/// The state of this term, if this node serves as the leader.
pub(in crate::node) fn serving(leading: &mut Option<Leading>) -> Option<&mut Leading> {
    leading.as_mut().filter(|leading| leading.serves())
}

/// A request that the leader makes for no session.
fn own_request(command: Command) -> Request {
    Request { session: SessionId(0), holder: 0, seq: 0, acked: 0, command }
}

impl Leading {
    /// Raises the cluster's version to the one that all members support, by an entry of its own,
    /// which older members can read.
    pub(in crate::node) fn raise_version(
        &mut self,
        raft: &mut Raft,
        machine: &Machine,
        versions: &Versions,
    ) {
        if !self.serves() || versions.own() <= machine.version() {
            return;
        }
        let common = versions.common(raft.others());
        let present = machine.version().max(self.admission.raised_to());
        let Some(version) = common.filter(|all| *all > present) else { return };
        let requests = vec![own_request(Command::RaiseVersion { version })];
        let batch = Batch { time: self.log_time(), requests };
        // Refused while leadership is handed over. Then the next step or the next leader does it.
        if raft.propose(batch.encode()) {
            tracing::info!(from = present, to = version, "raising the cluster's version");
            self.admission.raise(version);
        }
    }

    /// Proposes what was admitted.
    pub(in crate::node) fn propose(&mut self, raft: &mut Raft, machine: &Machine, now: Time) {
        if !self.serves() {
            return;
        }
        self.admission.committed(raft.committed());
        while let Some(batch) = self.admission.next_batch(self.log_time(), machine) {
            // Refused while too much is uncommitted, or while leadership is handed over.
            if !raft.propose(batch.encode()) {
                return self.admission.put_back(batch);
            }
            let at = (raft.last_index(), raft.term());
            self.admission.proposed(at.0, &batch);
            self.proposed.push(at, batch, now);
        }
    }

    /// Has raft-rs confirm that this node still leads, if somebody asks. `boot` distinguishes this start of
    /// the node.
    pub(in crate::node) fn read_index(&mut self, boot: u64, raft: &mut Raft, cx: &Context) {
        if !self.serves() {
            return;
        }
        let patience = cx.config.heartbeat;
        if let Some(read) = self.confirmations.next_read(cx.now.mono, patience) {
            raft.read_index([boot.to_be_bytes(), read.to_be_bytes()].concat());
        }
    }

    /// The requests that are confirmed with this context.
    pub(in crate::node) fn reads_confirmed(
        &mut self,
        context: &[u8],
        boot: u64,
    ) -> Vec<ReceivedReadIndex> {
        let read = context.strip_prefix(&boot.to_be_bytes());
        let read = read.and_then(|read| read.try_into().ok());
        read.map_or_else(Vec::new, |read| self.confirmations.confirmed(u64::from_be_bytes(read)))
    }

    /// Hands leadership over to one successor, until another node leads. May be called again and again.
    ///
    /// In the meantime raft-rs takes no proposals. It brings the successor level with the log and sends
    /// it one message to stand for election. A successor that does not lead after [`SUCCESSOR_TICKS`] has
    /// died or has not received the message, and one that is being closed refuses it. Then another voter is
    /// chosen, if there is one.
    pub(in crate::node) fn resign(
        &mut self,
        raft: &mut Raft,
        membership: &Membership,
        room: &Room,
        cx: &Context,
    ) {
        if !raft.leads() {
            return;
        }
        let now = cx.now.mono;
        let last = raft.successor();
        let waits = now < self.successor_since + cx.config.heartbeat * SUCCESSOR_TICKS;
        if last.is_some_and(|successor| waits && !membership.closing.is_closing(successor)) {
            return;
        }
        raft.abort_transfer();
        if let Some(successor) = self.successor(last, raft, membership, room, cx) {
            self.hand_over_to(successor, raft, cx.now.mono);
        }
    }

    /// Hands leadership over to this voter, also if another successor was chosen before.
    pub(in crate::node) fn hand_over_to(&mut self, successor: NodeId, raft: &mut Raft, now: Time) {
        self.successor_since = now;
        raft.transfer_to(successor);
    }

    /// The voter that can lead soonest: one that answers, is not being closed, and has the most of the log.
    fn successor(
        &self,
        last: Option<NodeId>,
        raft: &Raft,
        membership: &Membership,
        room: &Room,
        cx: &Context,
    ) -> Option<NodeId> {
        let voters = &raft.log().voting().voters;
        let candidates = raft.all_progress().filter(|(id, progress)| {
            // raft-rs forgets in each election timeout who was active.
            let is_alive = progress.is_active || membership.answers(*id, cx);
            *id != cx.id && voters.contains(id) && is_alive && !membership.closing.is_closing(*id)
        });
        let best = candidates.max_by_key(|(id, progress)| {
            let has_room = !self.is_disk_low(*id, room, cx);
            (Some(*id) != last, membership.answers(*id, cx), has_room, progress.matched, *id)
        });
        best.map(|(id, _)| id)
    }
}
