//! Reports of the members, and an operator's actions.
//!
//! A request comes from a user of this node, or from a client. The node that gets it passes it on to
//! all members, or to the leader alone, and gathers their replies for as long as [`PATIENCE`]. So
//! this works without a leader, and a user who reaches one member gets the reports of all.
//!
//! Requests and replies are not in the log. An action makes its changes by the leader's own
//! entries.

mod images;
pub(crate) mod message;
mod recent;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::node::Node;
use crate::node::bootstrap::Founding;
use crate::node::io::{RequestId, Time};
use crate::node::leader;
use crate::node::message::PeerMessage;
use crate::node::query::Answer;
use crate::node::sessions::audit;
use crate::types::error::Error;
use crate::types::membership::{Member, NodeId};
use crate::types::znode::SessionId;
use images::Images;
use message::{Action, AdminReply, AdminRequest, Report, SESSIONS_LISTED, SessionReport};
use recent::Recent;

/// How long replies are waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How many requests may wait for replies.
const GATHERED_MAX: usize = 64;
/// How many entries a voter may lack to be handed the leadership.
const LACKED_MAX: u64 = 1000;
/// The longest name of the operator who asks for an action, in bytes.
const NAME_MAX: usize = 200;

/// The requests that wait for replies of other members.
#[derive(Debug, Default)]
pub(in crate::node) struct Administration {
    last: u64,
    open: BTreeMap<u64, Gathered>,
    images: Images,
    recent: Recent,
}

#[derive(Debug)]
struct Gathered {
    asker: Asker,
    until: Time,
    waiting: BTreeSet<NodeId>,
    replies: Vec<(NodeId, AdminReply)>,
}

/// The receiver of the replies.
#[derive(Clone, Copy, Debug)]
enum Asker {
    User(RequestId),
    Peer { node: NodeId, number: u64 },
}

impl Node {
    /// A user of this node asks.
    pub(in crate::node) fn admin_asked(&mut self, request: RequestId, asked: &AdminRequest) {
        self.gather(Asker::User(request), asked);
    }

    /// A peer asks for this member's reply, or (`relay`) for the replies of all members concerned.
    pub(in crate::node) fn take_admin_request(
        &mut self,
        from: NodeId,
        number: u64,
        cluster: u64,
        relay: bool,
        asked: &AdminRequest,
    ) {
        if cluster != 0 && cluster != self.cluster() {
            return self.reply_to(Asker::Peer { node: from, number }, Vec::new());
        }
        if relay && !matches!(asked, AdminRequest::Image { .. }) {
            return self.gather(Asker::Peer { node: from, number }, asked);
        }
        let replies = vec![(self.id, self.admin_reply(from, asked))];
        self.reply_to(Asker::Peer { node: from, number }, replies);
    }

    pub(in crate::node) fn take_admin_reply(
        &mut self,
        from: NodeId,
        number: u64,
        replies: Vec<(NodeId, AdminReply)>,
    ) {
        let Some(gathered) = self.administration.open.get_mut(&number) else { return };
        if gathered.waiting.remove(&from) {
            gathered.replies.extend(replies.into_iter().filter(|(node, _)| *node == from).take(1));
        }
        self.end_gathered();
    }

    /// This peer will not reply.
    pub(in crate::node) fn admin_peer_lost(&mut self, peer: NodeId) {
        for gathered in self.administration.open.values_mut() {
            gathered.waiting.remove(&peer);
        }
        self.end_gathered();
    }

    /// Replies to the requests that wait for no member any more, or have waited for too long.
    pub(in crate::node) fn end_gathered(&mut self) {
        let now = self.now.mono;
        self.administration.images.tidy(now);
        self.administration.recent.note(&self.metrics, now);
        let all = std::mem::take(&mut self.administration.open).into_iter();
        let is_done = |(_, of): &(u64, Gathered)| of.waiting.is_empty() || of.until <= now;
        let (done, open): (BTreeMap<_, _>, BTreeMap<_, _>) = all.partition(is_done);
        self.administration.open = open;
        for gathered in done.into_values() {
            self.reply_to(gathered.asker, gathered.replies);
        }
    }

    /// All members, each with whether it votes. An instance that is no member yet knows itself and, while it
    /// founds a cluster, the peers that it has met.
    fn known(&self) -> Vec<(Member, bool)> {
        let (roster, _) = self.machine.roster();
        if !roster.seats.is_empty() {
            let of = |member: Member| {
                let votes = self.is_voter(member.node);
                (member, votes)
            };
            return roster.seats.into_iter().map(|seat| of(seat.member)).collect();
        }
        let met = self.bootstrap.founding.iter().flat_map(Founding::met);
        met.chain([&self.me]).map(|member| (member.clone(), false)).collect()
    }

    fn gather(&mut self, asker: Asker, asked: &AdminRequest) {
        if self.administration.open.len() >= GATHERED_MAX {
            let reason =
                format!("the member already works on {GATHERED_MAX} such requests; try again");
            return self.reply_to(asker, vec![(self.id, AdminReply::Refused { reason })]);
        }
        let is_action = matches!(asked, AdminRequest::Act { .. });
        let targets: Vec<NodeId> = match is_action {
            true => vec![self.raft.leader()],
            false => self.known().into_iter().map(|(member, _)| member.node).collect(),
        };
        let mut replies = Vec::new();
        if !is_action {
            let members = self.known();
            replies.push((self.id, AdminReply::Members { members }));
        }
        if targets.contains(&self.id) || targets == [0] {
            replies.push((self.id, self.admin_reply(self.id, asked)));
        }
        let others = targets.into_iter().filter(|to| *to != self.id);
        let waiting: BTreeSet<NodeId> =
            others.filter(|to| self.versions.is_connected(*to)).collect();
        if waiting.is_empty() {
            return self.reply_to(asker, replies);
        }
        self.administration.last += 1;
        let number = self.administration.last;
        for to in &waiting {
            let (cluster, asked) = (self.cluster(), asked.clone());
            let message = PeerMessage::AdminRequest { number, cluster, relay: false, asked };
            self.effects.messages.push((*to, message));
        }
        let until = self.now.mono + PATIENCE;
        self.administration.open.insert(number, Gathered { asker, until, waiting, replies });
    }

    /// Replies to all waiting requests, since this member stops.
    pub(in crate::node) fn refuse_gathered(&mut self, error: &Error) {
        for gathered in std::mem::take(&mut self.administration.open).into_values() {
            match gathered.asker {
                Asker::User(request) => self.effects.reply(request, Err(error.clone())),
                // A client asks another member when it has lost this one.
                Asker::Peer { .. } => {}
            }
        }
    }

    fn reply_to(&mut self, asker: Asker, replies: Vec<(NodeId, AdminReply)>) {
        match asker {
            Asker::User(request) => self.effects.reply(request, Ok(Answer::Admin(replies))),
            Asker::Peer { node, number } => {
                let reply = PeerMessage::AdminReply { number, replies };
                self.effects.messages.push((node, reply));
            }
        }
    }

    /// This member's own reply.
    fn admin_reply(&mut self, from: NodeId, asked: &AdminRequest) -> AdminReply {
        match asked {
            AdminRequest::Report => AdminReply::Report(Box::new(self.report())),
            AdminRequest::Sessions { after } => self.report_sessions(*after),
            AdminRequest::Image { transfer, piece, .. } => {
                if *piece == 0 {
                    let from = self.named(from);
                    tracing::info!(target: audit::TARGET, %from, "a client makes a backup");
                }
                let (of, now, machine) = ((from, *transfer), self.now.mono, &self.machine);
                self.administration.images.piece(of, *piece, || machine.state(), now)
            }
            AdminRequest::Act { action, by, again } => {
                let by: String = by.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
                let held_by = match action {
                    Action::Expire { session } => self.holder_of(*session),
                    Action::MoveLeader { .. } | Action::Remove { .. } => None,
                };
                let reply = self.act(action);
                if *again && matches!(reply, AdminReply::Begun | AdminReply::NoLeader) {
                    return reply;
                }
                tracing::info!(
                    target: audit::TARGET,
                    ?action,
                    held_by = held_by.map(tracing::field::display),
                    by,
                    from = %self.named(from),
                    result = ?reply,
                    "an operator's action"
                );
                reply
            }
        }
    }

    fn report(&self) -> Report {
        let (raft, log) = (&self.raft, self.raft.log());
        let now = self.now.mono;
        let (commit, disk_sync) = self.administration.recent.latencies(&self.metrics);
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
            checkpoint_bytes: self.persistence.state_bytes,
            checkpoint_age: now.saturating_sub(self.persistence.checkpoint_at),
            disk_free: self.room.free,
            disk_low: self.room.is_low,
            commit,
            disk_sync,
            refuses_writes: self.room.refuses_writes,
            unreachable: {
                let problems = self.peer_problems.iter();
                problems.filter_map(|(peer, problem)| Some((*peer, problem.clone()?))).collect()
            },
            not_ready: self.status().not_ready(now, |node| self.named(node).address),
        }
    }

    fn report_sessions(&self, after: Option<SessionId>) -> AdminReply {
        let mut sessions = self.machine.sessions_after(after);
        let first = sessions.by_ref().take(SESSIONS_LISTED).map(|(session, record)| {
            let timeout = Duration::from_millis(u64::from(record.timeout_ms));
            let leading = self.leading.as_ref().filter(|leading| leading.serves());
            let ends = leading.and_then(|leading| leading.session_ends(session));
            let since = |ends: Time| (self.now.mono + timeout).saturating_sub(ends);
            let is_here = self.local.has(session) || self.replica.clients.serves(session);
            SessionReport {
                session,
                owner: record.owner,
                timeout_ms: record.timeout_ms,
                age: Duration::from_millis(self.now.wall_ms.saturating_sub(record.opened)),
                ephemerals: record.ephemerals.size() as u64,
                renewed: ends.map(since),
                watches: is_here.then(|| self.replica.watches.count_of(session) as u64),
                from: self.host_of(session, record).map(str::to_owned),
            }
        });
        let first = first.collect();
        let more = sessions.next().is_some();
        let leads = self.leading.as_ref().is_some_and(|leading| leading.serves());
        AdminReply::Sessions { sessions: first, more, leads, zxid: self.machine.zxid() }
    }

    /// Begins an operator's action, or returns why not.
    fn act(&mut self, action: &Action) -> AdminReply {
        if leader::serving(&mut self.leading).is_none() || !self.raft.leads() {
            return AdminReply::NoLeader;
        }
        match *action {
            Action::MoveLeader { to } => self.move_leader(to),
            Action::Remove { member } => self.remove_dead(member),
            Action::Expire { session } if self.machine.session(session).is_none() => {
                AdminReply::Gone
            }
            Action::Expire { session } => {
                let now = self.now.mono;
                if let Some(leading) = leader::serving(&mut self.leading) {
                    leading.expire(session, &self.machine, now);
                }
                AdminReply::Begun
            }
        }
    }

    fn move_leader(&mut self, to: NodeId) -> AdminReply {
        let refused = |reason: &str| AdminReply::Refused { reason: reason.to_owned() };
        if to == self.id {
            return AdminReply::Gone;
        }
        if !self.is_member(to) {
            return refused("it is not a member");
        }
        if !self.raft.log().voting().voters.contains(&to) {
            return refused("it has no vote, and only voters can lead");
        }
        if !self.answers(to) {
            return refused("it does not answer the leader");
        }
        if self.is_closing(to) {
            return refused("it is being closed");
        }
        // Writes wait until the new leader has all of the log, and fail if that takes long.
        let last = self.raft.last_index();
        let matched = self.raft.progress(to).map_or(0, |progress| progress.matched);
        if last.saturating_sub(matched) > LACKED_MAX {
            return refused("it lacks much of the log; try again when it has caught up");
        }
        self.hand_over_to(to);
        AdminReply::Begun
    }

    /// A voter's removal must leave a majority that answers.
    fn remove_dead(&mut self, member: NodeId) -> AdminReply {
        let refused = |reason: String| AdminReply::Refused { reason };
        if !self.is_member(member) {
            return AdminReply::Gone;
        }
        if member == self.id || !self.is_silent(member) {
            return refused(
                "it is alive, or was a moment ago: have it leave (Coordinator::leave), or stop it and \
                 try again after some seconds"
                    .to_owned(),
            );
        }
        let voters = &self.raft.log().voting().voters;
        let left: Vec<NodeId> = voters.iter().copied().filter(|node| *node != member).collect();
        let alive = left.iter().filter(|node| **node == self.id || self.answers(**node)).count();
        if 2 * alive <= left.len() {
            return refused(format!(
                "of the {} voters that would be left only {alive} answer, so the cluster would have no \
                 quorum; start the others first",
                left.len()
            ));
        }
        let now = self.now.mono;
        if let Some(leading) = &mut self.leading {
            leading.members.give_up(member, now);
        }
        AdminReply::Begun
    }
}
