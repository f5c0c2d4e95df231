//! Which member serves a client, and what the client does with the messages of that member.

use super::{Client, PeerMessage, Time, ToClient};
use crate::node::client_message::{FromClient, HeldWatch, Redirect, UpTo, are_members};
use crate::node::io::{Problem, QuorumState, WatchId};
use crate::node::message::in_parts;
use crate::node::replica::server::CLAIMS_BYTES_MAX;
use crate::node::versions::PATIENCE_TICKS;
use crate::types::membership;
use crate::types::membership::{MEMBERS_MAX, Named, NodeId};
use crate::types::session::SessionState;

/// For how many heartbeats a member that was asked may be silent or know no leader.
const PATIENCE_BEATS: u32 = 15;
/// After how many heartbeats the client gives up a member that has never answered, and asks it or
/// another one.
const FIRST_BEATS: u32 = 5;
/// For how many heartbeats a member that has failed to serve is not asked again.
const AVOIDED_BEATS: u32 = 30;
/// For how many heartbeats an unreachable member is not dialled, if there are others.
const UNREACHED_BEATS: u32 = 10;
/// About how many bytes one message carries. A single write may be larger.
const MESSAGE_BYTES: usize = 256 << 10;
/// After receiving this many bytes, the client sends an acknowledgement.
const ACKNOWLEDGED_BYTES: usize = 256 << 10;
/// The most bytes of a group of updates: more than any member sends.
const GROUP_BYTES_MAX: usize = 64 << 20;

/// The member that serves this client, or is asked to.
#[derive(Debug, Default)]
pub(super) struct Attachment {
    pub(super) member: NodeId,
    pub(super) id: u64,
    /// The numbers of the next message to the member, and from it.
    pub(super) next_sent: u64,
    pub(super) next_received: u64,
    /// The member has replied that it serves.
    pub(super) serves: bool,
    /// The updates of a group that is not complete yet.
    updates: Vec<ToClient>,
    group_bytes: usize,
    /// The bytes received since the last acknowledgement.
    unacknowledged_bytes: usize,
    begun_at: Time,
    /// Since when the member owes a message.
    asked_at: Option<Time>,
    leaderless_since: Option<Time>,
    /// The client has left another member for this one, so what that one reported holds until this
    /// one serves.
    pub(super) is_move: bool,
}

impl Attachment {
    /// The member knows no leader.
    pub(super) fn is_leaderless(&self) -> bool {
        self.leaderless_since.is_some()
    }
}

impl Client {
    pub(super) fn take_message(&mut self, from: NodeId, message: PeerMessage) {
        match message {
            PeerMessage::ToClient { attachment, number, updates, up_to } => {
                let Some(attached) = &mut self.attached else { return };
                if attached.member != from || attached.id != attachment {
                    return;
                }
                if number != attached.next_received && !planted!(ClientLossUnnoticed) {
                    // A message was lost on the way, which is not the member's fault.
                    return self.lose_member(from, Time::ZERO);
                }
                attached.next_received = number + 1;
                // A member that does not serve yet still owes a message: its next one may be lost.
                attached.asked_at = (!attached.serves).then_some(self.now.mono);
                let bytes: usize = updates.iter().map(ToClient::size).sum();
                attached.unacknowledged_bytes += bytes;
                attached.group_bytes += bytes;
                attached.updates.extend(updates);
                if attached.group_bytes > GROUP_BYTES_MAX {
                    return self.lose_member(from, self.avoided_until());
                }
                if let Some(up_to) = up_to {
                    attached.group_bytes = 0;
                    let updates = std::mem::take(&mut attached.updates);
                    self.take_updates(updates, up_to);
                }
            }
            PeerMessage::LetGo { attachment, reason, redirect } => {
                let ours = |of: &super::Attachment| of.member == from && of.id == attachment;
                if self.attached.as_ref().is_some_and(ours) {
                    tracing::debug!(client = %Named::of(self.id), member = %self.named(from), reason, "let go");
                    if let Some(redirect) = redirect {
                        self.follow_redirect(from, *redirect);
                    }
                    self.lose_member(from, self.avoided_until());
                }
            }
            PeerMessage::AdminReply { number, replies } => {
                self.take_admin_reply(from, number, replies);
            }
            // The other messages are for members.
            _ => {}
        }
    }

    /// A member serves as many clients as it can, and names the others.
    fn follow_redirect(&mut self, from: NodeId, redirect: Redirect) {
        let Redirect { cluster, members, availability, leader } = redirect;
        if self.cluster == 0 || self.cluster == cluster {
            self.note_leader(leader);
            self.learn(members, availability);
            self.note_full(from);
        }
    }

    /// A peer cannot be reached. One that is not a member is forgotten.
    pub(super) fn missed(&mut self, peer: NodeId, problem: Problem) {
        if !self.wants(peer) {
            return;
        }
        let is_member = self.roster.contains_key(&peer);
        if !is_member && (!self.roster.is_empty() || self.members.len() >= MEMBERS_MAX) {
            self.members.remove(&peer);
            return;
        }
        let member = self.members.entry(peer).or_default();
        (member.is_up, member.problem) = (false, Some(problem));
        self.note_failure(peer, self.now.mono + self.config.heartbeat * UNREACHED_BEATS);
    }

    /// Takes in the members that a member reports.
    fn learn(&mut self, members: Vec<membership::Member>, availability: QuorumState) {
        if !are_members(&members, &availability) {
            tracing::warn!(client = %Named::of(self.id), "a member reports an impossible list of members");
            if let Some(member) = self.attached.as_ref().map(|attached| attached.member) {
                self.lose_member(member, self.avoided_until());
            }
            return;
        }
        self.roster = members.iter().map(|member| (member.node, member.clone())).collect();
        let error = availability.refuses_writes.then(|| {
            let low = availability.disk_low.iter().copied().collect();
            let address = |node| Some(self.roster.get(&node)?.address.clone());
            crate::node::room::disk_low(&low, address)
        });
        self.local.refuse_writes(error);
        self.availability = availability;
        self.choice.is_due = true;
        let roster = &self.roster;
        self.members.retain(|peer, of| of.is_up || roster.contains_key(peer));
        for node in roster.keys() {
            self.members.entry(*node).or_default();
        }
        self.effects.members = Some(members);
    }

    /// Whether the serving member is of this client's cluster, the first that has served it. The client
    /// leaves any other member and ignores what it sends.
    fn is_of(&mut self, cluster: u64) -> bool {
        if self.cluster == 0 && cluster != 0 {
            tracing::info!(client = %Named::of(self.id), cluster = format_args!("{cluster:016x}"), "attached");
            self.cluster = cluster;
            self.effects.cluster = Some(cluster);
        }
        if self.cluster == cluster {
            return true;
        }
        if let Some(member) = self.attached.as_ref().map(|attached| attached.member) {
            let reason = format!(
                "it belongs to another cluster ({cluster:016x}, not {:016x})",
                self.cluster
            );
            tracing::warn!(client = %Named::of(self.id), member = %self.named(member), reason, "the client leaves a member");
            self.lose_member(member, self.avoided_until());
            self.missed(member, Problem { reason, refused: true });
        }
        false
    }

    fn avoided_until(&self) -> Time {
        self.now.mono + self.config.heartbeat * AVOIDED_BEATS
    }

    /// The member serves no longer, if it did. The client looks for another one.
    pub(super) fn lose_member(&mut self, member: NodeId, avoided_until: Time) {
        if self.attached.as_ref().is_some_and(|attached| attached.member == member) {
            tracing::debug!(client = %Named::of(self.id), member = %self.named(member), "lost its member");
            self.forget_member();
        }
        if avoided_until > Time::ZERO {
            self.note_failure(member, avoided_until);
        }
    }

    fn forget_member(&mut self) {
        self.choice.is_due = true;
        self.attached = None;
        self.messages.clear();
        self.claimed.clear();
    }

    /// Leaves its member and notifies it, so that the member need not wait for the client's
    /// silence.
    pub(super) fn part(&mut self) {
        let Some(attached) = &self.attached else { return };
        let (attachment, number, received) =
            (attached.id, attached.next_sent, attached.next_received);
        let messages = vec![FromClient::End];
        let end = PeerMessage::FromClient { attachment, number, received, messages };
        self.effects.messages.push((attached.member, end));
        self.forget_member();
    }

    /// Leaves a member that sends nothing, or that knows no leader.
    pub(super) fn check_member(&mut self) {
        let now = self.now.mono;
        let patience = self.config.heartbeat * PATIENCE_BEATS;
        let Some(attached) = &self.attached else { return };
        let over = |since: Option<Time>| since.is_some_and(|since| now >= since + patience);
        let member = attached.member;
        let answers_soon = self.config.heartbeat * FIRST_BEATS;
        if !attached.serves
            && attached.next_received == 0
            && now >= attached.begun_at + answers_soon
        {
            // The member may not have been able to answer yet, for example just after it was
            // connected.
            return self.lose_member(member, now + answers_soon);
        }
        if over(attached.asked_at) || over(attached.leaderless_since) && self.others(member) {
            self.lose_member(member, self.avoided_until());
        }
    }

    /// Whether another member could be asked.
    fn others(&self, member: NodeId) -> bool {
        let now = self.now.mono;
        self.members.iter().any(|(id, of)| *id != member && of.may_serve(now))
    }

    /// Asks the best connected member to serve, if none serves yet.
    pub(super) fn attach(&mut self) {
        if self.attached.is_some() {
            return;
        }
        let now = self.now.mono;
        let there = self.members.iter().filter(|(_, member)| member.may_serve(now));
        let there = there.map(|(id, _)| *id);
        // An instance at an address of the list need not be a member.
        if let Some(best) = there.min_by_key(|id| (!self.roster.contains_key(id), self.rank(*id))) {
            self.attach_to(best);
        }
    }

    pub(super) fn attach_to(&mut self, member: NodeId) {
        let now = self.now.mono;
        // A later attachment has a greater number, also after a restart of this client, so that no
        // member has to remember the former process.
        self.attachments += 1;
        self.attached = Some(Attachment {
            member,
            id: self.attachments,
            begun_at: now,
            asked_at: Some(now),
            ..Attachment::default()
        });
        self.forget_sent_calls();
        let (seen, cluster, name) = (self.seen, self.cluster, self.config.name.clone());
        self.messages.push(FromClient::Begin { seen, cluster, name });
        for claim in self.local.claims() {
            self.claimed.insert(claim.session_holder);
            self.messages.push(FromClient::Claim(claim));
        }
        debug_assert!(self.watch_bytes <= CLAIMS_BYTES_MAX, "calls are refused before");
        for watch in self.watches.values() {
            let held = HeldWatch { from: self.seen, ..watch.clone() };
            self.messages.push(FromClient::Watch(held));
        }
        self.messages.push(FromClient::Begun);
    }

    /// Sends the messages that have gathered, and acknowledges.
    pub(super) fn send_messages(&mut self) {
        let Some(attached) = &mut self.attached else { return };
        if self.messages.is_empty() && attached.unacknowledged_bytes < ACKNOWLEDGED_BYTES {
            return;
        }
        let owes = self
            .messages
            .iter()
            .any(|message| matches!(message, FromClient::ReadIndex { .. } | FromClient::Begun));
        if owes {
            attached.asked_at.get_or_insert(self.now.mono);
        }
        attached.unacknowledged_bytes = 0;
        let (attachment, received, member) = (attached.id, attached.next_received, attached.member);
        for messages in in_parts(self.messages.drain(..), MESSAGE_BYTES, FromClient::size) {
            let number = attached.next_sent;
            attached.next_sent += 1;
            let message = PeerMessage::FromClient { attachment, number, received, messages };
            self.effects.messages.push((member, message));
        }
    }

    /// Takes a complete group of updates: events first, since the answers show their changes.
    fn take_updates(&mut self, updates: Vec<ToClient>, up_to: UpTo) {
        let now = self.now.mono;
        let mut clusters = updates.iter().filter_map(|update| match update {
            ToClient::Cluster { cluster } => Some(*cluster),
            _ => None,
        });
        if let Some(cluster) = clusters.next_back()
            && !self.is_of(cluster)
        {
            return;
        }
        // A member that has not attached the client yet sends no events. If it never does, the next
        // member sends the missed events.
        let begins = updates.iter().any(|update| matches!(update, ToClient::Attached));
        let serves = begins || self.attached.as_ref().is_some_and(|attached| attached.serves);
        if serves {
            self.seen = unless!(ClientSeesOlder, self.seen.max(up_to.zxid), up_to.zxid);
        }
        if begins || self.leader != up_to.leader {
            self.settled_at = now + self.config.tick * PATIENCE_TICKS;
        }
        (self.version, self.leader) = (self.version.max(up_to.version), up_to.leader);
        self.note_leader(up_to.leader);
        if let Some(attached) = &mut self.attached {
            if up_to.leader == 0 {
                attached.leaderless_since.get_or_insert(now);
            } else {
                attached.leaderless_since = None;
            }
        }
        for update in updates {
            // The answers of this group come from a state that has this zxid.
            self.effects.zxid = self.effects.zxid.max(update.shows());
            match update {
                ToClient::Attached => {
                    if let Some(attached) = &mut self.attached {
                        attached.serves = true;
                        attached.asked_at = None;
                        #[cfg(any(test, feature = "simulator"))]
                        {
                            self.served = Some((attached.member, attached.id));
                        }
                    }
                    self.local.rest_on(self.seen);
                    self.local.send_again(now);
                }
                ToClient::Held { session_holder, ids } => {
                    if !ids.is_empty() {
                        self.effects.ids.push((session_holder, ids));
                    }
                }
                ToClient::Outcome(outcome) => {
                    self.local.outcome(&outcome, now, self.seen, &mut self.effects);
                }
                ToClient::Ended { session_holder, moved, known } => {
                    let state = if moved { SessionState::Moved } else { SessionState::Expired };
                    if !self.local.holds(session_holder) {
                        continue;
                    }
                    if known {
                        self.local.end(session_holder.session, state, &mut self.effects);
                    } else {
                        let reason = "the session ended while this client had no member";
                        let session = session_holder.session;
                        self.local.end_unknown(session, state, reason, &mut self.effects);
                    }
                }
                ToClient::Unseen { session_holder } => {
                    if self.local.holds(session_holder) {
                        self.local.unseen(session_holder.session);
                    }
                }
                ToClient::Event { watch, event } => {
                    self.effects.events.push((WatchId(watch), event));
                }
                ToClient::Over { watch } => self.watch_over(watch),
                ToClient::Names { request, names } => self.take_pieces(request, names, Vec::new()),
                ToClient::Znodes { request, znodes } => {
                    self.take_pieces(request, Vec::new(), znodes);
                }
                ToClient::Answer { request, answer } => self.take_answer(request, answer),
                ToClient::Confirmed { boot, read_index, refused } => {
                    let confirmed = self.local.read_index.confirmed(boot, read_index);
                    let Some(mut request) = confirmed else {
                        continue;
                    };
                    if planted!(ClientLeaseFromAnswer) {
                        request.sent = now;
                    }
                    self.metrics.sync.record(now.saturating_sub(request.sent));
                    self.local.renewed_by(&request, &refused, now, &mut self.effects);
                    self.fresh_at = self.fresh_at.max(Some(request.sent));
                }
                ToClient::Again => self.local.send_again(now),
                ToClient::Members { members, availability } => self.learn(members, availability),
                // Handled above.
                ToClient::Cluster { .. } => {}
            }
        }
    }
}
