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
mod expired;
pub(crate) mod expiry;
pub(crate) mod log_clock;
pub(crate) mod members;
pub(crate) mod planner;
pub(crate) mod proposed;
pub(crate) mod read_index;
pub(crate) mod reaper;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::machine::command::{Batch, Command, Request};
use crate::machine::{Machine, SessionRecord};
use crate::node::io::{Now, Time};
use crate::node::leader::admission::Admission;
use crate::node::leader::expiry::ExpiryTable;
use crate::node::leader::log_clock::LogClock;
use crate::node::leader::members::Observed;
use crate::node::leader::proposed::Proposed;
use crate::node::leader::read_index::{Asked, Confirmations};
use crate::node::leader::reaper::Reaper;
use crate::node::message::PeerMessage;
use crate::node::raft::probes::Probes;
use crate::node::raft::snapshot_transfer::Outgoing;
use crate::node::{Node, NodeConfig};
use crate::planted::{Bug, planted, unless};
use crate::types::membership::{Named, NodeId};
use crate::types::znode::SessionId;

/// How long an heir may take to become the leader before another one is chosen, in heartbeats.
const HEIR_TICKS: u32 = 2;
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
    /// Since when leadership is being handed to the present heir.
    heir_since: Time,
    pub(in crate::node) outgoing: Outgoing,
    pub(in crate::node) probes: Probes,
    /// The first indexes of log reads that the disk has not answered yet.
    pub(in crate::node) reads: BTreeSet<u64>,
    /// Peers for which nothing is read, since they have not acknowledged earlier entries: how far each
    /// has stored the log, and since when.
    pub(in crate::node) unacknowledged: BTreeMap<NodeId, (u64, Time)>,
    /// Requests that came before it served.
    before_serving: BeforeServing,
}

#[derive(Debug, Default)]
struct BeforeServing {
    requests: VecDeque<(NodeId, Request)>,
    bytes: usize,
    read_index: Vec<(Asked, Vec<SessionId>)>,
}

impl Leading {
    pub(in crate::node) fn new(term: u64, now: Now, config: &NodeConfig) -> Leading {
        Leading {
            term,
            serves_since: None,
            clock: LogClock::begin(now, 0),
            admission: Admission::default(),
            proposed: Proposed::default(),
            confirmations: Confirmations::new(term),
            expiry: ExpiryTable::new(config.heartbeat),
            expiring: BTreeSet::new(),
            expired: expired::Lines::default(),
            reaper: Reaper::new(config.container_period),
            members: Observed::default(),
            heir_since: Time::ZERO,
            outgoing: Outgoing::new(term, config.heartbeat),
            probes: Probes::default(),
            reads: BTreeSet::new(),
            unacknowledged: BTreeMap::new(),
            before_serving: BeforeServing::default(),
        }
    }

    pub(in crate::node) fn serves(&self) -> bool {
        self.serves_since.is_some()
    }

    /// The leader has applied an entry of its own term. Earlier requests have their turn now.
    pub(in crate::node) fn serve(&mut self, now: Now, machine: &Machine) {
        self.serves_since = Some(now.mono);
        self.clock = LogClock::begin(now, machine.time());
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
        if !may_ask(from, &request.command) {
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
        mut asked: Asked,
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
        let now = unless(Bug::NewLeaderForgetsSessions, now, now + YEAR);
        if self.serves() {
            for (session, record) in machine.sessions() {
                self.grant(session, record, now);
            }
        }
    }

    /// Gives a session its full timeout.
    fn grant(&mut self, session: SessionId, record: &SessionRecord, now: Time) {
        let timeout = Duration::from_millis(u64::from(record.timeout_ms));
        let timeout = timeout / if planted(Bug::ExpiryEarly) { 8 } else { 1 };
        self.expiry.grant(session, record.owner, timeout, now);
    }

    /// A session was opened or resumed.
    pub(in crate::node) fn session_held(
        &mut self,
        session: SessionId,
        record: &SessionRecord,
        now: Time,
    ) {
        if self.serves() && !planted(Bug::SessionNotGranted) {
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

/// Whether a node or a client may request this command. Only the leader expires sessions, and each
/// node opens sessions only for itself.
pub(in crate::node) fn may_ask(from: NodeId, command: &Command) -> bool {
    match command {
        Command::Open { owner, .. } | Command::Resume { owner, .. } => *owner == from,
        Command::Close | Command::Op(_) | Command::Multi(_) | Command::Authenticate { .. } => true,
        Command::Expire { .. }
        | Command::Reap { .. }
        | Command::RaiseVersion { .. }
        | Command::Configure { .. } => false,
    }
}

/// The state of this term, if this node serves as the leader.
pub(in crate::node) fn serving(leading: &mut Option<Leading>) -> Option<&mut Leading> {
    leading.as_mut().filter(|leading| leading.serves())
}

/// A request that the leader makes for no session.
fn own_request(command: Command) -> Request {
    Request { session: SessionId(0), holder: 0, seq: 0, acked: 0, command }
}

impl Node {
    /// Requests of the sessions of a node, or of a client.
    pub(in crate::node) fn take_forwarded(&mut self, from: NodeId, requests: Vec<Request>) {
        if let Some(leading) = &mut self.leading {
            for request in requests {
                leading.take_forwarded(from, request, &self.machine);
            }
        }
    }

    pub(in crate::node) fn take_read_index(&mut self, asked: Asked, sessions: Vec<SessionId>) {
        if let Some(leading) = &mut self.leading {
            leading.take_read_index(asked, sessions, self.now.mono);
        }
    }

    /// Whether this node serves as the leader.
    pub(in crate::node) fn serves(&self) -> bool {
        self.leading.as_ref().is_some_and(Leading::serves)
    }

    /// Raises the cluster's version to the one that all members support, by an entry of its own,
    /// which older members can read.
    pub(super) fn raise_version(&mut self) {
        if !self.serves() || self.versions.own() <= self.machine.version() {
            return;
        }
        let common = self.versions.common(self.others());
        let Some(leading) = serving(&mut self.leading) else { return };
        let present = self.machine.version().max(leading.admission.raised_to());
        let Some(version) = common.filter(|all| *all > present) else { return };
        let requests = vec![own_request(Command::RaiseVersion { version })];
        let batch = Batch { time: leading.log_time(), requests };
        // Refused while leadership is handed over. Then the next step or the next leader does it.
        if self.raft.propose(batch.encode()) {
            tracing::info!(from = present, to = version, "raising the cluster's version");
            leading.admission.raise(version);
        }
    }

    pub(super) fn propose(&mut self) {
        if self.applies_too_late() {
            return;
        }
        let Some(leading) = serving(&mut self.leading) else { return };
        while let Some(batch) = leading.admission.next_batch(leading.log_time(), &self.machine) {
            // Refused while too much is uncommitted, or while leadership is handed over.
            if !self.raft.propose(batch.encode()) {
                return leading.admission.put_back(batch);
            }
            let at = (self.raft.last_index(), self.raft.term());
            leading.proposed.push(at, batch, self.now.mono);
        }
    }

    pub(super) fn read_index(&mut self) {
        let Some(leading) = serving(&mut self.leading) else { return };
        let patience = self.config.heartbeat;
        if let Some(read) = leading.confirmations.next_read(self.now.mono, patience) {
            let boot = self.local.read_index.boot();
            self.raft.read_index([boot.to_be_bytes(), read.to_be_bytes()].concat());
        }
    }

    pub(super) fn reads_confirmed(&mut self, context: &[u8], index: u64) {
        let read = context.strip_prefix(&self.local.read_index.boot().to_be_bytes());
        let Some(read) = read.and_then(|read| read.try_into().ok()) else { return };
        let Some(leading) = &mut self.leading else { return };
        for asked in leading.confirmations.confirmed(u64::from_be_bytes(read)) {
            let Asked { from, client, boot, read_index, refused } = asked;
            if from == self.id {
                match client {
                    Some(client) => self.client_confirmed(client, boot, read_index, index, refused),
                    None => self.read_index_confirmed(boot, read_index, index, &refused),
                }
                continue;
            }
            let message = match client {
                Some(client) => PeerMessage::ClientReadIndexConfirmed {
                    client,
                    boot,
                    read_index,
                    index,
                    refused,
                },
                None => PeerMessage::ReadIndexConfirmed { boot, read_index, index, refused },
            };
            self.effects.messages.push((from, message));
        }
    }

    /// Hands leadership over to one heir, until another node leads. May be called again and again.
    ///
    /// In the meantime raft-rs takes no proposals. It brings the heir level with the log and sends
    /// it one message to stand for election. An heir that does not lead after [`HEIR_TICKS`] has
    /// died or has not received the message, and one that is being closed refuses it. Then another voter is
    /// chosen, if there is one.
    pub(super) fn resign(&mut self) {
        if !self.raft.leads() {
            return;
        }
        let now = self.now.mono;
        let since = self.leading.as_ref().map_or(Time::ZERO, |leading| leading.heir_since);
        let last = self.raft.heir();
        let waits = now < since + self.config.heartbeat * HEIR_TICKS;
        if last.is_some_and(|heir| waits && !self.is_closing(heir)) {
            return;
        }
        self.raft.abort_transfer();
        if let Some(heir) = self.heir(last) {
            self.hand_over_to(heir);
        }
    }

    /// Hands leadership over to this voter, also if another heir was chosen before.
    pub(super) fn hand_over_to(&mut self, heir: NodeId) {
        if let Some(leading) = &mut self.leading {
            leading.heir_since = self.now.mono;
        }
        self.raft.transfer_to(heir);
    }

    /// The voter that can lead soonest: one that answers, is not being closed, and has the most of the log.
    fn heir(&self, last: Option<NodeId>) -> Option<NodeId> {
        let voters = &self.raft.log().voting().voters;
        let candidates = self.raft.all_progress().filter(|(id, progress)| {
            // raft-rs forgets in each election timeout who was active.
            let is_alive = progress.is_active || self.answers(*id);
            *id != self.id && voters.contains(id) && is_alive && !self.is_closing(*id)
        });
        let best = candidates.max_by_key(|(id, progress)| {
            let has_room = !self.is_disk_low(*id);
            (Some(*id) != last, self.answers(*id), has_room, progress.matched, *id)
        });
        best.map(|(id, _)| id)
    }
}
