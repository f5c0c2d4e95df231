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
//! As in a node, each part owns its state and borrows what else it needs. Methods of [`Client`] itself only put
//! parts in order, here and in `receive` (what comes in).
//!
//! Invariants: the messages of a member count only in whole groups, each of which ends with the zxid
//! up to which all events were sent (`cluster`). Nothing of a former attachment counts. A client stays
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
mod cluster;
#[cfg(test)]
mod identity_tests;
mod members;
mod receive;
#[cfg(test)]
mod storm_tests;
mod watches;

use std::collections::BTreeSet;
use std::time::Duration;

use self::admin::OpenAdminRequests;
use self::attach::Attachment;
use self::calls::Calls;
use self::choice::Choice;
use self::cluster::Cluster;
use self::members::Members;
use super::io::{Effects, Input, NodeStatus, Now, SessionHolder, Time, WatchId};
use super::reason::is_fresh;
use super::timings::ELECTION_TICKS;
use crate::node::TimeoutBounds;
use crate::node::client_message::FromClient;
use crate::node::sessions::{LocalSessions, users};
use crate::types::error::Error;
use crate::types::membership::{Named, NodeId};
use crate::types::metrics::Metrics;
use crate::types::session::SessionState;
use crate::types::watch::WatchInfo;
use crate::types::znode::Zxid;

/// Why a client stops after it was asked to leave.
pub(crate) const LEFT: &str = "it has left";

/// A client sends a ReadIndex request at least this often, so that it notices a silent member.
const READ_INDEX_PERIOD: Duration = Duration::from_secs(2);

/// What all parts of a client need in a step.
type Context = super::context::Context<ClientConfig>;

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
    cx: Context,
    next_tick: Time,
    cluster: Cluster,
    members: Members,
    choice: Choice,
    attached: Option<Attachment>,
    attachments: u64,
    local: LocalSessions,
    calls: Calls,
    administration: OpenAdminRequests,
    /// The member that served it last, and the number of that attachment.
    #[cfg(any(test, feature = "simulator"))]
    served: Option<(NodeId, u64)>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.cx.id)
            .field("member", &self.member())
            .field("seen", &self.cluster.seen())
            .finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(id: NodeId, config: ClientConfig, now: Now) -> Client {
        let patience = config.heartbeat * ELECTION_TICKS as u32;
        Client {
            next_tick: now.mono,
            cluster: Cluster::new(),
            members: Members::new(),
            choice: Choice::new(config.seed),
            attached: None,
            attachments: 0,
            local: LocalSessions::new(patience, config.audit, config.seed),
            calls: Calls::default(),
            administration: OpenAdminRequests::default(),
            #[cfg(any(test, feature = "simulator"))]
            served: None,
            cx: Context::new(id, config, now),
        }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.cx.id
    }

    /// The member that serves it.
    pub(crate) fn member(&self) -> Option<NodeId> {
        self.attached.as_ref().filter(|of| of.serves()).map(|of| of.member)
    }

    /// The attachment, the number of the next expected message, and the member.
    #[cfg(test)]
    fn expects(&self) -> (u64, u64, NodeId) {
        self.attached.as_ref().expect("a member serves it").expects()
    }

    /// The version that the cluster acts by, as last reported.
    pub(crate) fn version(&self) -> u16 {
        self.cluster.version()
    }

    /// Whether its member has shown lately that it knows a leader.
    pub(crate) fn is_fresh(&self, now: Time) -> bool {
        is_fresh(self.cluster.fresh_at(), now)
    }

    /// The leader, as its member last reported; 0: none known.
    pub(crate) fn leader(&self) -> NodeId {
        let is_reported = self.attached.as_ref().is_some_and(Attachment::knows_leader);
        if is_reported { self.cluster.leader() } else { 0 }
    }

    /// The watches that its users have set after this one, by their numbers.
    pub(crate) fn watches_after(
        &self,
        after: Option<WatchId>,
    ) -> impl Iterator<Item = (WatchId, WatchInfo)> {
        self.calls.watches.after(after)
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let leader = Some(self.leader()).filter(|of| *of != 0 && self.cx.stopped.is_none());
        NodeStatus {
            leader,
            zxid: self.cluster.seen(),
            fresh_at: self.cluster.fresh_at(),
            version: self.cluster.version(),
            own_version: self.cx.config.version,
            is_client: true,
            // A client takes no voter's place.
            is_placed: true,
            ..self.members.status(leader.is_some(), &self.cx)
        }
    }

    /// The zxid up to which all events have been received.
    pub(crate) fn seen(&self) -> Zxid {
        self.cluster.seen()
    }

    /// Takes in what has happened by `now`, in order, and returns what must be done.
    pub(crate) fn step(&mut self, now: Now, inputs: impl IntoIterator<Item = Input>) -> Effects {
        self.cx.now = now;
        self.cx.effects.zxid = self.cluster.seen();
        for input in inputs {
            if let Some(reason) = self.cx.stopped.clone() {
                if let Input::Client(request) = input {
                    users::refuse(&mut self.cx.effects, request, &reason);
                }
                continue;
            }
            self.take(input);
        }
        if self.cx.stopped.is_some() {
            self.cx.effects.wake_at = Time::MAX;
            return std::mem::take(&mut self.cx.effects);
        }
        if now.mono >= self.next_tick {
            self.next_tick = now.mono + self.cx.config.heartbeat;
            self.tick();
        }
        self.administration.end(&mut self.members, &mut self.cx);
        self.choose();
        self.attach();
        self.send();
        self.end_sessions();
        self.local.forget_settled();
        if let Some(attached) = &mut self.attached {
            attached.leave_sessions(&self.local);
            attached.send(now.mono, &mut self.cx.effects);
        }
        let (cluster, server) = (self.cluster.id(), self.member());
        self.administration.send(cluster, server, &self.members, &mut self.cx);
        self.cx.effects.wake_at = self.next_tick;
        self.cx.metrics.watch_events += self.cx.effects.events.len() as u64;
        std::mem::take(&mut self.cx.effects)
    }

    /// The metrics that an instance without a replica has.
    pub(crate) fn metrics(&self) -> Metrics {
        Metrics { watches: self.calls.watches.len() as u64, ..self.cx.metrics.clone() }
    }

    /// Does the work of each tick, once a heartbeat.
    fn tick(&mut self) {
        let patience = self.cx.config.heartbeat * (2 * ELECTION_TICKS as u32);
        self.local.tick(patience, self.cx.now.mono, &mut self.cx.effects);
        if let Some(attached) = &self.attached
            && let Some(avoided_until) = attached.given_up_until(&self.members, &self.cx)
        {
            self.lose_member(attached.member, avoided_until);
        }
        self.members.have_changed = true;
    }

    /// The members that it is to be connected with, so that they can be asked for reports.
    pub(crate) fn asked_members(&self) -> BTreeSet<NodeId> {
        self.administration.asked_members(&self.members, self.cx.now.mono)
    }

    /// Decides which members to be connected with, and moves to a better member when that is due.
    fn choose(&mut self) {
        let is_due = std::mem::take(&mut self.members.have_changed);
        if !is_due || self.members.all().next().is_none() {
            return;
        }
        let ranked = self.members.ranked(&self.cx);
        let attached = self.attached.as_ref().map(|attached| attached.member);
        if let Some(former) = attached.filter(|member| !ranked.contains(member)) {
            self.lose_member(former, Time::ZERO);
            return self.choose();
        }
        let (attached, asked) = (self.attached.as_ref(), self.asked_members());
        let (members, cx) = (&mut self.members, &mut self.cx);
        if let Some(best) = self.choice.choose(attached, &ranked, &asked, members, cx) {
            self.part();
            self.attach_to(best, true);
        }
    }

    /// The member serves no longer, if it did. The client looks for another one.
    fn lose_member(&mut self, member: NodeId, avoided_until: Time) {
        if self.attached.take_if(|attached| attached.member == member).is_some() {
            let named = self.members.named(member);
            tracing::debug!(client = %Named::of(self.cx.id), member = %named, "lost its member");
            self.members.have_changed = true;
        }
        if avoided_until > Time::ZERO {
            self.members.note_failure(member, avoided_until, self.cx.now.mono);
        }
    }

    /// Leaves its member.
    fn part(&mut self) {
        if let Some(attached) = self.attached.take() {
            attached.end(&mut self.cx.effects);
            self.members.have_changed = true;
        }
    }

    /// Asks the best connected member to serve, if none serves yet.
    fn attach(&mut self) {
        if self.attached.is_none()
            && let Some(best) = self.members.best(&self.cx)
        {
            self.attach_to(best, false);
        }
    }

    fn attach_to(&mut self, member: NodeId, is_move: bool) {
        // A later attachment has a greater number, also after a restart of this client, so that no
        // member has to remember the former process.
        self.attachments += 1;
        self.calls.forget_sent();
        let (seen, cluster, name) =
            (self.cluster.seen(), self.cluster.id(), self.cx.config.name.clone());
        let mut attached = Attachment::new(member, self.attachments, is_move, self.cx.now.mono);
        attached.messages.push(FromClient::Begin { seen, cluster, name });
        for claim in self.local.claims() {
            attached.push_of(claim.session_holder, FromClient::Claim(claim));
        }
        attached.messages.extend(self.calls.watches.from(seen).map(FromClient::Watch));
        attached.messages.push(FromClient::Begun);
        self.attached = Some(attached);
    }

    /// Gathers the messages to the member.
    fn send(&mut self) {
        let Some(attached) = self.attached.as_mut().filter(|of| of.serves()) else { return };
        let now = self.cx.now.mono;
        self.calls.send(attached, &mut self.local);
        if self.local.has_unsent() {
            for request in self.local.take_unsent(self.cluster.gate(&self.cx), now) {
                let (session, holder) = (request.session, request.holder);
                attached.push_of(SessionHolder { session, holder }, FromClient::Write(request));
            }
        }
        if let Some((read_index, sessions)) = self.local.next_read_index(now, READ_INDEX_PERIOD) {
            let boot = self.local.read_index.boot();
            attached.messages.push(FromClient::ReadIndex { boot, read_index, sessions });
        }
    }

    /// Ends the queries and watches of all sessions that have ended in this step.
    fn end_sessions(&mut self) {
        let over = self.cx.effects.sessions.iter().filter(|(_, state)| state.is_final());
        let over: Vec<(SessionHolder, SessionState)> = over.copied().collect();
        for (SessionHolder { session, holder }, state) in over {
            let (attached, effects) = (self.attached.as_mut(), &mut self.cx.effects);
            self.calls.end((session, Some(holder)), state, attached, effects);
        }
    }

    fn stop(&mut self, reason: String) {
        if reason == LEFT {
            tracing::info!(client = %Named::of(self.cx.id), "the client has left, and stops");
        } else {
            tracing::error!(client = %Named::of(self.cx.id), reason, "the client stops");
        }
        let error = Error::Stopped { reason: reason.clone() };
        self.local.stop(&error, &mut self.cx.effects);
        self.administration.stop(&error, &mut self.cx.effects);
        self.calls.stop(&error, &mut self.cx.effects);
        self.part();
        self.cx.effects.stopped = Some(reason.clone());
        self.cx.stopped = Some(reason);
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
