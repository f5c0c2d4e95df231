//! What a node tells of itself: its status, its metrics, and its replies to operators.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::machine::Machine;
use crate::node::Node;
use crate::node::admin::message::{
    Action, AdminReply, AdminRequest, Asker, Report, SESSIONS_LISTED, SessionReport,
};
use crate::node::admin::{GATHERED_MAX, GATHERED_OF_CLIENTS_MAX, ReplyReceiver, printable};
use crate::node::bootstrap::Founding;
use crate::node::clocks;
use crate::node::io::{NodeStatus, QuorumState, Time, WatchId};
use crate::node::leader;
use crate::node::leader::expired::{Holder, host_of};
use crate::node::reason::is_fresh;
use crate::node::sessions::audit::{AdminLine, Origin};
use crate::node::stored::Identity;
use crate::types::membership::{Member, NodeId};
use crate::types::metrics::Metrics;
use crate::types::right::Right;
use crate::types::watch::WatchInfo;
use crate::types::znode::SessionId;
#[cfg(any(test, feature = "simulator"))]
use {
    crate::node::leader::Leading,
    crate::node::raft::log::Position,
    crate::node::stored::{HardState, LogEntry, Voting},
};

impl Node {
    /// All metrics except those of the host and of the network.
    pub(crate) fn metrics(&self) -> Metrics {
        Metrics {
            watches: self.replica.watches.len() as u64,
            znodes: Some(self.machine.tree().len() as u64),
            znode_bytes: Some(self.machine.tree().bytes()),
            sessions: Some(self.machine.session_count() as u64),
            clients: self.replica.clients.count() as u64,
            zxid: Some(self.machine.zxid()),
            applied_index: Some(self.raft.log().applied().index),
            durable_index: Some(self.raft.persisted()),
            log_bytes: Some(self.raft.log().disk_bytes()),
            checkpoint_bytes: Some(self.raft.checkpoints.state_bytes()),
            disk_free_bytes: self.room.free(),
            disk_low: self.room.is_low,
            clock_ahead_ms: self.clock_ahead_ms(),
            ..self.cx.metrics.clone()
        }
    }

    /// How far this node's wall clock is ahead of the log's time, in milliseconds; `None` before it knows that.
    fn clock_ahead_ms(&self) -> Option<i64> {
        match &self.leading {
            Some(leading) if leading.serves() => {
                Some(clocks::difference(self.cx.now.wall_ms, leading.log_time()))
            }
            _ => self.membership.clocks.ahead_ms(),
        }
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.bootstrap.identity
    }

    /// This node as a member.
    pub(crate) fn member(&self) -> &Member {
        &self.membership.me
    }

    pub(crate) fn id(&self) -> NodeId {
        self.cx.id
    }

    #[cfg(test)]
    pub(crate) fn watch_count(&self) -> usize {
        self.replica.watches.len()
    }

    /// How many entries of its log it has not applied.
    pub(crate) fn unapplied(&self) -> u64 {
        self.raft.last_index().saturating_sub(self.raft.log().applied().index)
    }

    /// The end of the log.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn last_index(&self) -> u64 {
        self.raft.last_index()
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn committed(&self) -> u64 {
        self.raft.committed()
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn term_at(&self, index: u64) -> Option<u64> {
        self.raft.term_at(index)
    }

    /// Whether its replica was up to date lately.
    pub(crate) fn is_fresh(&self, now: Time) -> bool {
        is_fresh(self.local.read_index.fresh_at(), now)
    }

    /// When this node may delete a znode next, if it leads: not before that.
    pub(crate) fn reaps_at(&self) -> Time {
        let leading = self.leading.as_ref();
        leading.map_or(Time::MAX, |leading| leading.reaps_at(&self.machine, self.cx.now.mono))
    }

    /// The state machine.
    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The watches that its users have set after this one, by their numbers.
    pub(crate) fn watches_after(
        &self,
        after: Option<WatchId>,
    ) -> impl Iterator<Item = (WatchId, WatchInfo)> {
        self.replica.watches.infos_after(after)
    }

    /// The term, the leader (0: none known) and whether that is this node.
    pub(crate) fn leadership(&self) -> (u64, NodeId, bool) {
        let raft = &self.raft;
        (raft.term(), raft.leader(), raft.leads())
    }

    /// Whether it has a leader, as far as it knows.
    pub(crate) fn has_leader(&self) -> bool {
        self.raft.leader() != 0
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let raft = &self.raft;
        let leads = raft.leads();
        let peers = self.membership.contacts.problems().iter().map(|(peer, _)| *peer);
        NodeStatus {
            leader: (raft.leader() != 0 && self.cx.stopped.is_none()).then_some(raft.leader()),
            is_leader: leads && self.cx.stopped.is_none(),
            leads_since: self.leading.as_ref().and_then(|leading| leading.serves_since),
            term: raft.term(),
            zxid: self.machine.zxid(),
            hash: self.machine.hash(),
            fresh_at: self.local.read_index.fresh_at(),
            sessions: self.machine.session_count(),
            znodes: self.machine.tree().len(),
            peers: self.membership.others(),
            last_reports: self.last_reports().collect(),
            version: self.machine.version(),
            own_version: self.membership.versions.own(),
            availability: self.availability(),
            is_placed: self.membership.is_placed,
            bootstrap_problem: self.bootstrap.founding.as_ref().and_then(Founding::problem),
            seeds: self.bootstrap.founding.iter().flat_map(Founding::not_reached).collect(),
            is_client: false,
            joins: !self.raft.is_own_member(),
            quorum_loss: self.why_no_quorum(),
            duplicates: self.membership.contacts.duplicates(self.cx.now.mono),
            versions: peers
                .filter_map(|peer| Some((peer, self.membership.versions.of(peer)?)))
                .collect(),
        }
    }

    /// What members that cannot be reached have last told of what was wrong with them, and when.
    fn last_reports(&self) -> impl Iterator<Item = (NodeId, (Time, String))> {
        let problems =
            self.membership.contacts.problems().iter().filter(|(_, problem)| problem.is_some());
        problems.filter_map(|(peer, _)| Some((*peer, self.troubles.last(*peer)?.clone())))
    }

    fn why_no_quorum(&self) -> Option<String> {
        if self.bootstrap.founding.is_some() {
            return None;
        }
        self.membership.why_no_quorum(&self.raft, &self.machine, self.cx.now.mono)
    }

    /// Whether the cluster can decide, and how many members it could still lose.
    pub(super) fn availability(&self) -> QuorumState {
        self.membership.availability(&self.raft, &self.room, &self.cx)
    }

    /// The cluster that this node belongs to, once that is durable; 0: none.
    pub(crate) fn cluster(&self) -> u64 {
        self.bootstrap.cluster()
    }

    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        self.raft.is_member(node)
    }

    /// Whether this member may not stop yet although its sessions are closed. `led`: it has led since it began
    /// to close. See [`closing`](super::closing).
    pub(crate) fn is_needed_to_close(&self, led: bool) -> bool {
        self.membership.is_needed_to_close(led, &self.raft, &self.cx)
    }

    /// Whether other members that are being closed still close sessions, and cannot do so without this one.
    pub(crate) fn is_needed_by_closers(&self) -> bool {
        self.membership.is_needed_by_closers(&self.raft, &self.cx)
    }

    /// Whether this voter had a leader until a moment ago, so that an election may be under way.
    pub(crate) fn was_led_lately(&self, now: Time) -> bool {
        let since = now.saturating_sub(self.raft.elections.led_at);
        self.raft.is_voter(self.cx.id) && since < self.cx.patience()
    }

    /// Whether nothing can be decided any more, since a majority has been closed.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.membership.closing.is_abandoned(&self.raft)
    }

    /// Whether stopping this voter now would end the majority, while stopping it a little later would not.
    pub(crate) fn must_stay(&self) -> bool {
        self.membership.must_stay(&self.raft, &self.room, &self.cx)
    }

    /// A peer asks for this member's reply, or (`relay`) for the replies of all members concerned.
    pub(super) fn take_admin_request(
        &mut self,
        (from, asker): (NodeId, Option<Asker>),
        number: u64,
        cluster: u64,
        relay: bool,
        asked: &AdminRequest,
    ) {
        if cluster != 0 && cluster != self.bootstrap.cluster() {
            return ReplyReceiver::Peer { node: from, number }.reply(Vec::new(), &mut self.cx);
        }
        // Only a member is believed whom it asks for.
        let asker = asker.filter(|_| self.raft.is_member(from)).or_else(|| self.asker(from));
        if let Some(reason) = self.replica.clients.rights.refusal(from, asked) {
            if let Some(suppressed) = self.administration.refusals.permit(self.cx.now.mono) {
                let result = format!("refused: {reason}");
                self.note_admin((from, asker.as_ref()), asked, None, result, Some(suppressed));
            }
            let replies = vec![(self.cx.id, AdminReply::Refused { reason })];
            return ReplyReceiver::Peer { node: from, number }.reply(replies, &mut self.cx);
        }
        if relay && !matches!(asked, AdminRequest::Image { .. }) {
            return self.gather(ReplyReceiver::Peer { node: from, number }, asked);
        }
        let replies = vec![(self.cx.id, self.admin_reply(from, asker.as_ref(), asked))];
        ReplyReceiver::Peer { node: from, number }.reply(replies, &mut self.cx);
    }

    /// A client, as the audit log names it; `None` for a member.
    fn asker(&self, peer: NodeId) -> Option<Asker> {
        let connection = self.replica.clients.rights.connection(peer)?.clone();
        (!self.raft.is_member(peer)).then_some(Asker { client: peer, connection })
    }

    /// Writes a line about what a peer has asked for, perhaps for a client.
    fn note_admin(
        &self,
        (from, asker): (NodeId, Option<&Asker>),
        asked: &AdminRequest,
        held_by: Option<String>,
        result: String,
        suppressed: Option<u64>,
    ) {
        let named = self.membership.named(from);
        let by = match asked {
            AdminRequest::Act { by, .. } => printable(by),
            _ => String::new(),
        };
        let (origin, via) = match asker {
            Some(of) => (Origin::client(of.client, &of.connection), Some(named)),
            None => (Origin::member(&named), None),
        };
        let via = via.filter(|_| self.raft.is_member(from) && from != self.cx.id);
        AdminLine { action: asked.action(), by: &by, origin, via, held_by, result }
            .write(suppressed);
    }

    /// All members, each with whether it votes. An instance that is no member yet knows itself and, while it
    /// founds a cluster, the peers that it has met.
    fn known(&self) -> Vec<(Member, bool)> {
        let (roster, _) = self.machine.roster();
        if !roster.seats.is_empty() {
            let of = |member: Member| {
                let votes = self.raft.is_voter(member.node);
                (member, votes)
            };
            return roster.seats.into_iter().map(|seat| of(seat.member)).collect();
        }
        let met = self.bootstrap.founding.iter().flat_map(Founding::met);
        met.chain([&self.membership.me]).map(|member| (member.clone(), false)).collect()
    }

    pub(super) fn gather(&mut self, asker: ReplyReceiver, asked: &AdminRequest) {
        let is_client = |node| self.replica.clients.rights.of(node) == Right::Client;
        let crowds = matches!(asker, ReplyReceiver::Peer { node, .. } if is_client(node))
            && self.administration.of_clients(is_client) >= GATHERED_OF_CLIENTS_MAX;
        if crowds || self.administration.is_full() {
            let reason =
                format!("the member already works on {GATHERED_MAX} such requests; try again");
            let replies = vec![(self.cx.id, AdminReply::Refused { reason })];
            return asker.reply(replies, &mut self.cx);
        }
        let is_action = matches!(asked, AdminRequest::Act { .. });
        let targets: Vec<NodeId> = match is_action {
            true => vec![self.raft.leader()],
            false => self.known().into_iter().map(|(member, _)| member.node).collect(),
        };
        let mut replies = Vec::new();
        if !is_action {
            let members = self.known();
            replies.push((self.cx.id, AdminReply::Members { members }));
        }
        let of = match asker {
            ReplyReceiver::User(_) => None,
            ReplyReceiver::Peer { node, .. } => self.asker(node),
        };
        if targets.contains(&self.cx.id) || targets == [0] {
            replies.push((self.cx.id, self.admin_reply(self.cx.id, of.as_ref(), asked)));
        }
        let others = targets.into_iter().filter(|to| *to != self.cx.id);
        let waiting: BTreeSet<NodeId> =
            others.filter(|to| self.membership.versions.is_connected(*to)).collect();
        let of = (self.bootstrap.cluster(), asked, of);
        self.administration.gather(asker, replies, waiting, of, &mut self.cx);
    }

    /// This member's own reply.
    fn admin_reply(
        &mut self,
        from: NodeId,
        asker: Option<&Asker>,
        asked: &AdminRequest,
    ) -> AdminReply {
        match asked {
            AdminRequest::Report => AdminReply::Report(Box::new(self.report())),
            AdminRequest::Sessions { after } => self.report_sessions(*after),
            AdminRequest::Image { transfer, piece, .. } => {
                let (of, now, machine) = ((from, *transfer), self.cx.now.mono, &self.machine);
                let right = self.replica.clients.rights.of(from);
                let images = &mut self.administration.images;
                let reply = images.piece(of, *piece, || machine.state(), right, now);
                let result = match &reply {
                    AdminReply::Refused { reason } => Some(format!("refused: {reason}")),
                    _ if *piece == 0 => Some("begun".to_owned()),
                    AdminReply::Image { end: Some(end), .. } => {
                        Some(format!("complete, with zxid {}", end.zxid))
                    }
                    _ => None,
                };
                if let Some(result) = result {
                    self.note_admin((from, asker), asked, None, result, None);
                }
                reply
            }
            AdminRequest::Act { action, after, .. } => {
                let held_by = match action {
                    Action::Expire { session } => self.holder_of(*session),
                    Action::MoveLeader { .. } | Action::Remove { .. } => None,
                };
                let reply = self.act(action);
                if !after.is_some_and(|after| after.is_repeated(&reply)) {
                    let held_by = held_by.map(|of| of.to_string());
                    self.note_admin((from, asker), asked, held_by, format!("{reply:?}"), None);
                }
                reply
            }
        }
    }

    /// Begins an operator's action, or returns why not.
    fn act(&mut self, action: &Action) -> AdminReply {
        let leading = leader::serving(&mut self.leading).filter(|_| self.raft.leads());
        let Some(leading) = leading else { return AdminReply::NoLeader };
        let (raft, membership, cx) = (&mut self.raft, &self.membership, &self.cx);
        match *action {
            Action::MoveLeader { to } => leading.move_leader(to, raft, membership, cx),
            Action::Remove { member } => leading.remove_dead(member, raft, membership, cx),
            Action::Expire { session } if self.machine.session(session).is_none() => {
                AdminReply::Gone
            }
            Action::Expire { session } => {
                leading.expire(session, &self.machine, cx.now.mono);
                AdminReply::Begun
            }
        }
    }

    fn holder_of(&self, session: SessionId) -> Option<Holder> {
        let record = self.machine.session(session)?;
        Some(Holder::of(record, self.local.from(session), &self.membership))
    }

    /// This member's report to operators.
    fn report(&self) -> Report {
        let (raft, log) = (&self.raft, self.raft.log());
        let now = self.cx.now.mono;
        let (commit, disk_sync) = self.administration.recent.latencies(&self.cx.metrics);
        Report {
            version: self.machine.version(),
            term: raft.term(),
            leader: raft.leader(),
            zxid: self.machine.zxid(),
            last: raft.last_index(),
            durable: raft.persisted(),
            committed: raft.committed(),
            applied: raft.handed_out(),
            stale_by: self.local.read_index.fresh_at().map(|fresh| now.saturating_sub(fresh)),
            sessions: (self.local.len() + self.replica.clients.session_count()) as u64,
            clients: self.replica.clients.count() as u64,
            watches: self.replica.watches.len() as u64,
            znodes: self.machine.tree().len() as u64,
            log_bytes: log.bytes() + log.outline().bytes_between(0, u64::MAX),
            checkpoint_bytes: self.raft.checkpoints.state_bytes(),
            checkpoint_age: self.raft.checkpoints.age(now),
            checkpoint_error: self.raft.checkpoints.error.clone(),
            disk_free: self.room.free(),
            disk_low: self.room.is_low,
            disk_waits: self.troubles.disk_waits(now),
            former_directories: self.troubles.facts.former_directories,
            certificate: {
                let first = self.troubles.certificate(self.cx.now.wall_ms);
                first.map(|(name, expires_in)| (name.to_owned(), expires_in))
            },
            clock_ahead_ms: self.clock_ahead_ms(),
            commit,
            disk_sync,
            refuses_writes: self.room.refuses_writes,
            unreachable: {
                let others = self.membership.others().into_iter();
                others.filter_map(|(peer, problem)| Some((peer, problem?))).collect()
            },
            last_reports: {
                let age = |at| now.saturating_sub(at);
                self.last_reports().map(|(peer, (at, text))| (peer, age(at), text)).collect()
            },
            duplicates: self.membership.contacts.duplicates(now),
            admin: self.administration.endpoint(),
            not_ready: self.status().not_ready(now, |node| self.membership.named(node).address),
        }
    }

    /// The name of the instance that holds this session here; empty if it has none.
    fn name_of(&self, session: SessionId) -> &str {
        match self.local.has(session) {
            // That of a gateway's client is not this instance's.
            true if self.local.from(session).is_some() => "",
            true => &self.cx.config.name,
            false => self.replica.clients.name_of(session),
        }
    }

    fn report_sessions(&self, after: Option<SessionId>) -> AdminReply {
        let mut sessions = self.machine.sessions_after(after);
        let first = sessions.by_ref().take(SESSIONS_LISTED).map(|(session, record)| {
            let timeout = Duration::from_millis(u64::from(record.timeout_ms));
            let leading = self.leading.as_ref().filter(|leading| leading.serves());
            let ends = leading.and_then(|leading| leading.session_ends(session));
            let since = |ends: Time| (self.cx.now.mono + timeout).saturating_sub(ends);
            let rate = self.local.rate(session).or_else(|| self.replica.clients.rate(session));
            SessionReport {
                session,
                owner: record.owner,
                timeout_ms: record.timeout_ms,
                age: Duration::from_millis(self.cx.now.wall_ms.saturating_sub(record.opened)),
                ephemerals: record.ephemerals.size() as u64,
                renewed: ends.map(since),
                watches: rate.map(|_| self.replica.watches.count_of(session) as u64),
                requests_per_second: rate.map(|of| of.per_second(self.cx.now.mono)),
                name: Some(self.name_of(session))
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned),
                from: host_of(record, self.local.from(session)).map(str::to_owned),
            }
        });
        let first = first.collect();
        let more = sessions.next().is_some();
        let leads = self.leading.as_ref().is_some_and(|leading| leading.serves());
        AdminReply::Sessions { sessions: first, more, leads, zxid: self.machine.zxid() }
    }
}

/// What a simulator inspects: the positions of the log and the state machine.
#[cfg(any(test, feature = "simulator"))]
impl Node {
    /// The last entry that was applied.
    pub(crate) fn applied(&self) -> Position {
        self.raft.log().applied()
    }

    /// The log time that this node stamps, if it serves as the leader.
    pub(crate) fn stamps(&self) -> Option<u64> {
        let leading = self.leading.as_ref().filter(|leading| leading.serves());
        leading.filter(|_| self.cx.stopped.is_none()).map(Leading::log_time)
    }

    /// The voters and learners, as far as this replica has applied the log.
    pub(crate) fn voting(&self) -> Voting {
        self.raft.log().voting().clone()
    }

    /// The node's hard state, and the end of its log.
    pub(crate) fn recovered(&self) -> (HardState, u64) {
        (self.raft.hard_state(), self.raft.last_index())
    }

    /// The bytes of the entries in memory.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.raft.log().bytes()
    }

    /// How many bytes of the log make a checkpoint due.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn checkpoint_due_bytes(&self) -> u64 {
        self.cx.config.log.due_bytes(self.machine.bytes())
    }

    /// The applied entries after `after`, as far as they are still in memory.
    pub(crate) fn applied_after(&self, after: u64) -> Vec<LogEntry> {
        self.raft.log().applied_after(after)
    }
}
