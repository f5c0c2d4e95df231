//! What comes in: requests of users, and messages of members.

use super::attach::avoided_until;
use super::{Client, LEFT};
use crate::node::client_message::{Redirect, ToClient, UpTo, are_members};
use crate::node::io::{Input, Problem, QuorumState, Time, WatchId};
use crate::node::message::PeerMessage;
use crate::node::request::{ClientRequest, RequestBody};
use crate::types::membership::{Member, Named, NodeId};
use crate::types::session::SessionState;

impl Client {
    pub(super) fn take(&mut self, input: Input) {
        match input {
            Input::Peer { from, message } => self.take_message(from, message),
            Input::SeedUnreachable { address, problem } => {
                self.members.seed_missed(address, problem);
            }
            Input::Connected { peer, version } => {
                // Messages of the former connection may be lost.
                self.lose_member(peer, Time::ZERO);
                self.members.connected(peer, version);
            }
            Input::Unreachable { peer, problem } => {
                self.lose_member(peer, Time::ZERO);
                self.members.missed(peer, problem, &self.cx);
            }
            Input::Client(request) => self.take_request(request),
            Input::Unwatch(watch) => self.calls.unwatch(watch, self.attached.as_mut()),
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
        let (seen, effects) = (self.cluster.seen(), &mut self.cx.effects);
        match body {
            RequestBody::Admin(asked) => self.administration.ask(id, asked, self.cx.now.mono),
            RequestBody::Query(query) => {
                self.calls.query((id, session), query, seen, &mut self.local, effects);
            }
            of_log => {
                if matches!(of_log, RequestBody::Begin { .. }) {
                    let attached = self.attached.as_mut();
                    self.calls.end((session, None), SessionState::Moved, attached, effects);
                }
                let request = ClientRequest { id, session, body: of_log };
                let bounds = self.cx.config.timeouts;
                self.local.take_request(request, self.cx.id, seen, bounds, effects);
            }
        }
    }

    fn take_message(&mut self, from: NodeId, message: PeerMessage) {
        match message {
            PeerMessage::ToClient { attachment, number, updates, up_to } => {
                let attached = self.attached.as_mut().filter(|of| of.is(from, attachment));
                let Some(attached) = attached else { return };
                match attached.receive(number, updates, up_to, &self.cx) {
                    Ok(Some((updates, up_to))) => self.take_updates(updates, up_to),
                    Ok(None) => {}
                    Err(avoided_until) => self.lose_member(from, avoided_until),
                }
            }
            PeerMessage::LetGo { attachment, reason, redirect }
                if self.attached.as_ref().is_some_and(|of| of.is(from, attachment)) =>
            {
                tracing::debug!(client = %Named::of(self.cx.id), member = %self.members.named(from), reason, "let go");
                if let Some(redirect) = redirect {
                    self.follow_redirect(from, *redirect);
                }
                self.lose_member(from, avoided_until(&self.cx));
            }
            PeerMessage::AdminReply { number, replies } => {
                self.administration.take_reply(from, number, replies, self.cx.now.mono);
            }
            // The other messages are for members.
            _ => {}
        }
    }

    /// A member serves as many clients as it can, and names the others.
    fn follow_redirect(&mut self, from: NodeId, redirect: Redirect) {
        let Redirect { cluster, members, availability, leader } = redirect;
        if self.cluster.may_be(cluster) {
            self.members.note_leader(leader);
            self.learn(members, availability);
            self.members.note_full(from, self.cx.now.mono);
        }
    }

    /// Takes in the members that a member reports.
    fn learn(&mut self, members: Vec<Member>, availability: QuorumState) {
        if !are_members(&members, &availability) {
            tracing::warn!(client = %Named::of(self.cx.id), "a member reports an impossible list of members");
            if let Some(member) = self.attached.as_ref().map(|attached| attached.member) {
                self.lose_member(member, avoided_until(&self.cx));
            }
            return;
        }
        self.local.refuse_writes(self.members.learn(&members, availability));
        self.cx.effects.members = Some(members);
    }

    /// Leaves its member, which is of another cluster than the client.
    fn leave_cluster(&mut self, cluster: u64) {
        if let Some(member) = self.attached.as_ref().map(|attached| attached.member) {
            let ours = self.cluster.id();
            let reason = format!("it belongs to another cluster ({cluster:016x}, not {ours:016x})");
            tracing::warn!(client = %Named::of(self.cx.id), member = %self.members.named(member), reason, "the client leaves a member");
            self.lose_member(member, avoided_until(&self.cx));
            self.members.missed(member, Problem { reason, refused: true }, &self.cx);
        }
    }

    /// Takes a complete group of updates: events first, since the answers show their changes.
    fn take_updates(&mut self, updates: Vec<ToClient>, up_to: UpTo) {
        let now = self.cx.now.mono;
        let mut clusters = updates.iter().filter_map(|update| match update {
            ToClient::Cluster { cluster } => Some(*cluster),
            _ => None,
        });
        if let Some(cluster) = clusters.next_back()
            && !self.cluster.stays_with(cluster, &mut self.cx)
        {
            return self.leave_cluster(cluster);
        }
        let begins = updates.iter().any(|update| matches!(update, ToClient::Attached));
        self.cluster.take(up_to, begins || self.member().is_some(), begins, &self.cx);
        self.members.note_leader(up_to.leader);
        if let Some(attached) = &mut self.attached {
            attached.note_leader(up_to.leader, now);
        }
        for update in updates {
            // The answers of this group come from a state that has this zxid.
            self.cx.effects.zxid = self.cx.effects.zxid.max(update.shows());
            self.take_update(update);
        }
    }

    fn take_update(&mut self, update: ToClient) {
        let (now, seen, effects) = (self.cx.now.mono, self.cluster.seen(), &mut self.cx.effects);
        match update {
            ToClient::Attached => {
                if let Some(attached) = &mut self.attached {
                    attached.serve();
                    #[cfg(any(test, feature = "simulator"))]
                    {
                        self.served = Some((attached.member, attached.id));
                    }
                }
                self.local.rest_on(seen);
                self.local.send_again(now);
            }
            ToClient::Held { session_holder, ids } => {
                if !ids.is_empty() {
                    effects.ids.push((session_holder, ids));
                }
            }
            ToClient::Outcome(outcome) => self.local.outcome(&outcome, now, seen, effects),
            ToClient::Ended { session_holder, moved, known } => {
                let state = if moved { SessionState::Moved } else { SessionState::Expired };
                if !self.local.holds(session_holder) {
                    return;
                }
                let session = session_holder.session;
                if known {
                    self.local.end(session, state, effects);
                } else {
                    let reason = "the session ended while this client had no member";
                    self.local.end_unknown(session, state, reason, effects);
                }
            }
            ToClient::Unseen { session_holder } => {
                if self.local.holds(session_holder) {
                    self.local.unseen(session_holder.session);
                }
            }
            ToClient::Event { watch, event } => effects.events.push((WatchId(watch), event)),
            ToClient::Over { watch } => {
                self.calls.watches.end(WatchId(watch));
                effects.ended.push(WatchId(watch));
            }
            ToClient::Names { request, names } => {
                self.calls.take_pieces(request, names, Vec::new());
            }
            ToClient::Znodes { request, znodes } => {
                self.calls.take_pieces(request, Vec::new(), znodes);
            }
            ToClient::Answer { request, answer } => {
                self.calls.take_answer(request, answer, effects);
            }
            ToClient::Confirmed { boot, read_index, refused } => {
                let confirmed = self.local.read_index.confirmed(boot, read_index);
                let Some(mut request) = confirmed else { return };
                if planted!(ClientLeaseFromAnswer) {
                    request.sent = now;
                }
                self.cx.metrics.sync.record(now.saturating_sub(request.sent));
                self.local.renewed_by(&request, &refused, now, effects);
                self.cluster.was_fresh(request.sent);
            }
            ToClient::Again => self.local.send_again(now),
            ToClient::Members { members, availability } => self.learn(members, availability),
            // It decided whether the group counts.
            ToClient::Cluster { .. } => {}
        }
    }
}
