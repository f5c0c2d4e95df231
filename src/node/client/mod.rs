//! An instance without a replica. It holds its sessions itself and asks a member for the rest.
//!
//! [`Client::step`] takes the same inputs as [`Node::step`](super::Node::step) and returns the same
//! effects, so whatever runs nodes also runs clients. A client's sessions are [`LocalSessions`], as a
//! node's are: it numbers their writes and keeps them until the log has decided them, and it counts
//! their leases from the moment at which it sent a ReadIndex request. The member only forwards
//! (`replica::server`).
//!
//! Moving to another member is to a client what a change of leaders is to a node. It asks again for
//! everything that is not answered, and the state machine runs each write once. It does not see what
//! the log decided in between. So the new member reports what has become of each session, as a node
//! learns it from a snapshot. The client sets its watches again from the zxid up to which it has
//! received all events, and its reads are answered by a replica that has reached that zxid.
//!
//! Invariants: the messages of a member count only in whole groups, each of which ends with the zxid
//! up to which all events were sent (`seen`). Nothing of a former attachment counts. A client stays
//! with the cluster that served it first, whichever instance answers at its addresses later.

mod admin;
#[cfg(test)]
mod admin_tests;
mod attach;
mod calls;
mod choice;
#[cfg(test)]
mod choice_tests;
#[cfg(test)]
mod client_tests;
#[cfg(test)]
mod identity_tests;
#[cfg(test)]
mod storm_tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use super::io::{
    Effects, Input, NodeStatus, Now, Problem, QuorumState, SessionHolder, Time, WatchId,
};
use super::message::PeerMessage;
use super::reason::is_fresh;
use super::timings::ELECTION_TICKS;
use super::versions::Gate;
use crate::node::TimeoutBounds;
use crate::node::client_message::{FromClient, HeldWatch, ToClient};
use crate::node::request::{ClientRequest, RequestBody};
use crate::node::sessions::{LocalSessions, users};
use crate::types::error::Error;
use crate::types::membership;
use crate::types::membership::{Named, NodeId};
use crate::types::metrics::Metrics;
use crate::types::session::SessionState;
use crate::types::version::FIRST;
use crate::types::watch::WatchInfo;
use crate::types::znode::Zxid;
use attach::Attachment;
use calls::Outstanding;
use choice::{Choice, KnownMember};

/// Why a client stops after it was asked to leave.
pub(crate) const LEFT: &str = "it has left";

/// A client sends a ReadIndex request at least this often, so that it notices a silent member.
const READ_INDEX_PERIOD: Duration = Duration::from_secs(2);

/// The settings of a client.
#[derive(Clone, Debug)]
pub(crate) struct ClientConfig {
    /// The period of the client's own tick, and the unit of its timeouts.
    pub(crate) heartbeat: Duration,
    /// The tick of the members.
    pub(crate) tick: Duration,
    /// The bounds of the timeouts of sessions that begin here.
    pub(crate) timeouts: TimeoutBounds,
    /// The highest version that it supports.
    pub(crate) version: u16,
    /// What its user calls this instance, in lists of sessions; empty: nothing.
    pub(crate) name: String,
    /// Whether it writes an audit log.
    pub(crate) audit: bool,
    /// A random number for each start.
    pub(crate) seed: u64,
}

pub(crate) struct Client {
    id: NodeId,
    config: ClientConfig,
    now: Now,
    next_tick: Time,
    random: u64,
    /// The cluster that first served it; 0: none has yet.
    cluster: u64,
    /// The members of the cluster, and other instances that are connected.
    members: BTreeMap<NodeId, KnownMember>,
    /// The members of the cluster, as a serving member last reported them; none before.
    roster: BTreeMap<NodeId, membership::Member>,
    choice: Choice,
    /// Whether the members can decide, by the same report.
    availability: QuorumState,
    /// The addresses of the list where no member was found, since one was found last, and why.
    seeds: BTreeMap<String, Problem>,
    attached: Option<Attachment>,
    attachments: u64,
    local: LocalSessions,
    /// The sessions that the member knows of.
    claimed: BTreeSet<SessionHolder>,
    /// Requests that the member answers, in order.
    calls: BTreeMap<u64, Outstanding>,
    next_call: u64,
    /// Requests before this one were sent to the member, the others were not.
    first_unsent: u64,
    /// The bytes of the sent queries.
    sent_bytes: usize,
    /// The bytes of the paths of its watches, and of requested watches, and how many these are.
    watch_bytes: usize,
    asked_watch_bytes: usize,
    asked_watches: usize,
    /// Watches that were over before the calls that set them were answered.
    over: BTreeSet<WatchId>,
    watches: BTreeMap<WatchId, HeldWatch>,
    /// The messages to be sent next.
    messages: Vec<FromClient>,
    /// All events up to this zxid have been received.
    seen: Zxid,
    /// The cluster's version and leader, as last reported.
    version: u16,
    leader: NodeId,
    /// Until when the cluster's version may still be raised: see `versions`.
    settled_at: Time,
    fresh_at: Option<Time>,
    administration: admin::OpenAdminRequests,
    metrics: Metrics,
    effects: Effects,
    stopped: Option<String>,
    /// The member that served it last, and the number of that attachment.
    #[cfg(any(test, feature = "simulator"))]
    served: Option<(NodeId, u64)>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id)
            .field("member", &self.member())
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(id: NodeId, config: ClientConfig, now: Now) -> Client {
        Client {
            id,
            now,
            next_tick: now.mono,
            random: config.seed,
            cluster: 0,
            members: BTreeMap::new(),
            roster: BTreeMap::new(),
            choice: Choice::new(),
            availability: QuorumState::default(),
            seeds: BTreeMap::new(),
            attached: None,
            attachments: 0,
            local: LocalSessions::new(
                config.heartbeat * ELECTION_TICKS as u32,
                config.audit,
                config.seed,
            ),
            claimed: BTreeSet::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            first_unsent: 0,
            sent_bytes: 0,
            watch_bytes: 0,
            asked_watch_bytes: 0,
            asked_watches: 0,
            over: BTreeSet::new(),
            watches: BTreeMap::new(),
            messages: Vec::new(),
            seen: 0,
            version: FIRST,
            leader: 0,
            settled_at: Time::ZERO,
            fresh_at: None,
            administration: admin::OpenAdminRequests::default(),
            metrics: Metrics::default(),
            effects: Effects::default(),
            stopped: None,
            #[cfg(any(test, feature = "simulator"))]
            served: None,
            config,
        }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    /// The member that serves it.
    pub(crate) fn member(&self) -> Option<NodeId> {
        self.attached.as_ref().filter(|of| of.serves).map(|of| of.member)
    }

    /// The attachment, the number of the next expected message, and the member.
    #[cfg(test)]
    fn expects(&self) -> (u64, u64, NodeId) {
        let attached = self.attached.as_ref().expect("a member serves it");
        (attached.id, attached.next_received, attached.member)
    }

    /// The version that the cluster acts by, as last reported.
    pub(crate) fn version(&self) -> u16 {
        self.version
    }

    /// Whether its member has shown lately that it knows a leader.
    pub(crate) fn is_fresh(&self, now: Time) -> bool {
        is_fresh(self.fresh_at, now)
    }

    /// The leader, as its member last reported; 0: none known.
    pub(crate) fn leader(&self) -> NodeId {
        let is_reported = self.attached.as_ref().is_some_and(|of| of.serves || of.is_move);
        if is_reported { self.leader } else { 0 }
    }

    /// The watches that its users have set after this one, by their numbers.
    pub(crate) fn watches_after(
        &self,
        after: Option<WatchId>,
    ) -> impl Iterator<Item = (WatchId, WatchInfo)> {
        let after = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.watches.range(after).map(|(id, watch)| {
            let (path, session) = ((*watch.path).to_owned(), watch.session_holder.session);
            (*id, WatchInfo { path, kind: watch.kind.of_type(), session })
        })
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let leader = self.leader();
        NodeStatus {
            leader: (leader != 0 && self.stopped.is_none()).then_some(leader),
            zxid: self.seen,
            fresh_at: self.fresh_at,
            peers: self.problems(),
            version: self.version,
            own_version: self.config.version,
            versions: self.linked().map(|(id, of)| (*id, of.version)).collect(),
            availability: self.availability(leader != 0),
            bootstrap_problem: self.missing(),
            seeds: self.seeds.iter().map(|(at, why)| (at.clone(), why.clone())).collect(),
            is_client: true,
            // A client takes no voter's place.
            is_placed: true,
            ..NodeStatus::default()
        }
    }

    /// The problems of members that the client connects with, and of those that are silent to the
    /// leader.
    fn problems(&self) -> Vec<(NodeId, Option<Problem>)> {
        let own = self.linked().map(|(id, of)| (*id, of.problem.clone()));
        let mut all: BTreeMap<NodeId, Option<Problem>> = own.collect();
        for node in &self.availability.silent {
            let reason = "it is silent to the leader".to_owned();
            all.entry(*node).or_insert(Some(Problem { reason, refused: false }));
        }
        all.into_iter().collect()
    }

    /// A member, as a log line names it.
    fn named(&self, node: NodeId) -> Named {
        Named { node, address: self.roster.get(&node).map(|member| member.address.clone()) }
    }

    /// The members that it is connected with, or has tried to reach.
    fn linked(&self) -> impl Iterator<Item = (&NodeId, &KnownMember)> {
        self.members.iter().filter(|(_, of)| of.is_up || of.problem.is_some())
    }

    /// Whether the cluster can decide, by its member's last report; not while it has no member.
    fn availability(&self, has_leader: bool) -> QuorumState {
        let up_to = &self.availability;
        let has_leader = has_leader && up_to.has_leader && self.stopped.is_none();
        QuorumState { has_leader, is_reported: has_leader && up_to.is_reported, ..up_to.clone() }
    }

    /// What it waits for before it has found any member.
    fn missing(&self) -> Option<String> {
        let found = !self.members.is_empty() || self.stopped.is_some();
        (!found).then(|| "no member of the cluster has been found yet".to_owned())
    }

    /// The zxid up to which all events have been received.
    pub(crate) fn seen(&self) -> Zxid {
        self.seen
    }

    /// Takes in what has happened by `now`, in order, and returns what must be done.
    pub(crate) fn step(&mut self, now: Now, inputs: impl IntoIterator<Item = Input>) -> Effects {
        self.now = now;
        self.effects.zxid = self.seen;
        for input in inputs {
            if let Some(reason) = self.stopped.clone() {
                if let Input::Client(request) = input {
                    users::refuse(&mut self.effects, request, &reason);
                }
                continue;
            }
            self.take(input);
        }
        if self.stopped.is_some() {
            self.effects.wake_at = Time::MAX;
            return std::mem::take(&mut self.effects);
        }
        if now.mono >= self.next_tick {
            self.next_tick = now.mono + self.config.heartbeat;
            self.tick();
        }
        self.end_admin_requests();
        self.choose();
        self.attach();
        self.send();
        self.end_sessions();
        self.local.forget_settled();
        self.leave_sessions();
        self.send_messages();
        self.send_admin_requests();
        self.effects.wake_at = self.next_tick;
        self.metrics.watch_events += self.effects.events.len() as u64;
        std::mem::take(&mut self.effects)
    }

    /// The metrics that an instance without a replica has.
    pub(crate) fn metrics(&self) -> Metrics {
        Metrics { watches: self.watches.len() as u64, ..self.metrics.clone() }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Peer { from, message } => self.take_message(from, message),
            Input::SeedUnreachable { address, problem } => {
                self.seeds.insert(address, problem);
            }
            Input::Connected { peer, version } => {
                // Errors that still occur are reported again.
                self.seeds.clear();
                // Messages of the former connection may be lost.
                self.lose_member(peer, Time::ZERO);
                if self.wants(peer) {
                    let member = self.members.entry(peer).or_default();
                    (member.is_up, member.problem, member.version) = (true, None, version);
                    member.avoided_until = Time::ZERO;
                    self.choice.is_due = true;
                }
            }
            Input::Unreachable { .. } if planted!(ClientClings) => {}
            Input::Unreachable { peer, problem } => {
                self.lose_member(peer, Time::ZERO);
                self.missed(peer, problem);
            }
            Input::Client(request) => self.take_request(request),
            Input::Unwatch(watch) => self.unwatch(watch),
            Input::Failed { reason } => self.stop(reason),
            // A client has no disk, does not lead and is no member.
            Input::Duplicate { .. }
            | Input::Written { .. }
            | Input::CheckpointDone { .. }
            | Input::CheckpointDelayed { .. }
            | Input::Read { .. }
            | Input::Built { .. }
            | Input::DiskSpace { .. }
            | Input::LogSpace { .. }
            | Input::Host(_)
            | Input::AdminEndpoint { .. }
            | Input::Idle { .. }
            | Input::Rotten { .. }
            | Input::Expire { .. }
            | Input::Resign
            | Input::Authenticated { .. }
            | Input::Closing { .. }
            | Input::Hindered(_)
            | Input::Discovered(_) => {}
            Input::Leave => self.stop(LEFT.to_owned()),
        }
    }

    fn take_request(&mut self, request: ClientRequest) {
        let ClientRequest { id, session, body } = request;
        match body {
            RequestBody::Admin(asked) => self.admin_asked(id, asked),
            RequestBody::Query(query) => self.query(id, session, query),
            of_log => {
                if matches!(of_log, RequestBody::Begin { .. }) {
                    self.end_calls(session, None, SessionState::Moved);
                }
                let request = ClientRequest { id, session, body: of_log };
                let bounds = self.config.timeouts;
                self.local.take_request(request, self.id, self.seen, bounds, &mut self.effects);
            }
        }
    }

    /// Does the work of each tick, once a heartbeat.
    fn tick(&mut self) {
        let now = self.now.mono;
        let patience = self.config.heartbeat * (2 * ELECTION_TICKS as u32);
        self.local.tick(patience, now, &mut self.effects);
        self.check_member();
        self.choice.is_due = true;
    }

    /// Gathers the messages to the member.
    fn send(&mut self) {
        if self.member().is_none() {
            return;
        }
        self.send_calls();
        if self.local.has_unsent() {
            for request in self.local.take_unsent(self.gate(), self.now.mono) {
                let (session, holder) = (request.session, request.holder);
                self.claimed.insert(SessionHolder { session, holder });
                self.messages.push(FromClient::Write(request));
            }
        }
        let next = self.local.next_read_index(self.now.mono, READ_INDEX_PERIOD);
        if let Some((read_index, sessions)) = next {
            let boot = self.local.read_index.boot();
            self.messages.push(FromClient::ReadIndex { boot, read_index, sessions });
        }
    }

    /// Which requests may be sent now. A client does not know which version each member supports,
    /// so its requests of a later version wait until the version is settled.
    fn gate(&self) -> Gate {
        let is_settled = self.now.mono >= self.settled_at;
        let possible = if is_settled { 0 } else { self.config.version };
        Gate { version: self.version, possible: possible.max(self.version) }
    }

    fn stop(&mut self, reason: String) {
        if reason == LEFT {
            tracing::info!(client = %Named::of(self.id), "the client has left, and stops");
        } else {
            tracing::error!(client = %Named::of(self.id), reason, "the client stops");
        }
        let error = Error::Stopped { reason: reason.clone() };
        self.local.stop(&error, &mut self.effects);
        self.refuse_administration(&error);
        for (_, call) in std::mem::take(&mut self.calls) {
            self.effects.reply(call.request, Err(error.clone()));
        }
        self.effects.ended.extend(std::mem::take(&mut self.watches).into_keys());
        self.part();
        self.effects.stopped = Some(reason.clone());
        self.stopped = Some(reason);
    }

    /// The next of its own random numbers.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        super::random::mixed(self.random)
    }
}

/// What the simulator inspects.
#[cfg(any(test, feature = "simulator"))]
impl Client {
    /// The member that served it last, perhaps no longer, and the number of that attachment.
    pub(crate) fn served(&self) -> Option<(NodeId, u64)> {
        self.served
    }

    /// How often it has attached to a member.
    pub(crate) fn attachments(&self) -> u64 {
        self.attachments
    }
}
