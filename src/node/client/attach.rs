//! The member that serves a client, and the messages between the two.

use std::collections::BTreeSet;

use super::Context;
use super::members::Members;
use crate::node::client_message::{FromClient, ToClient, UpTo};
use crate::node::io::{Effects, SessionHolder, Time};
use crate::node::message::{PeerMessage, in_parts};
use crate::node::sessions::LocalSessions;
use crate::types::membership::NodeId;

/// For how many heartbeats a member that was asked may be silent or know no leader.
const PATIENCE_BEATS: u32 = 15;
/// After how many heartbeats the client gives up a member that has never answered, and asks it or
/// another one.
const FIRST_BEATS: u32 = 5;
/// For how many heartbeats a member that has failed to serve is not asked again.
const AVOIDED_BEATS: u32 = 30;
/// About how many bytes one message carries. A single write may be larger.
const MESSAGE_BYTES: usize = 256 << 10;
/// After receiving this many bytes, the client sends an acknowledgement.
const ACKNOWLEDGED_BYTES: usize = 256 << 10;
/// The most bytes of a group of updates: more than any member sends.
const GROUP_BYTES_MAX: usize = 64 << 20;

/// The member that serves this client, or is asked to: which of its messages count, and when it is given up.
#[derive(Debug, Default)]
pub(super) struct Attachment {
    pub(super) member: NodeId,
    pub(super) id: u64,
    /// The messages to be sent next.
    pub(super) messages: Vec<FromClient>,
    /// The sessions that the member knows of.
    claimed: BTreeSet<SessionHolder>,
    /// The numbers of the next message to the member, and from it.
    next_sent: u64,
    next_received: u64,
    /// The member has replied that it serves.
    serves: bool,
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
    is_move: bool,
}

/// Until when a member that has failed to serve is not asked again.
pub(super) fn avoided_until(cx: &Context) -> Time {
    cx.now.mono + cx.config.heartbeat * AVOIDED_BEATS
}

impl Attachment {
    pub(super) fn new(member: NodeId, id: u64, is_move: bool, now: Time) -> Attachment {
        let (begun_at, asked_at) = (now, Some(now));
        Attachment { member, id, is_move, begun_at, asked_at, ..Attachment::default() }
    }

    pub(super) fn serves(&self) -> bool {
        self.serves
    }

    /// The member serves and knows a leader.
    pub(super) fn is_calm(&self) -> bool {
        self.serves && self.leaderless_since.is_none()
    }

    /// What was last reported of the leader still holds.
    pub(super) fn knows_leader(&self) -> bool {
        self.serves || self.is_move
    }

    /// Whether messages from this member, of the attachment of this number, count.
    pub(super) fn is(&self, member: NodeId, id: u64) -> bool {
        (self.member, self.id) == (member, id)
    }

    /// The number of the next expected message.
    #[cfg(test)]
    pub(super) fn expects(&self) -> (u64, u64, NodeId) {
        (self.id, self.next_received, self.member)
    }

    /// Takes the next message. Returns the group of updates that it completes, or until when the member that sent it
    /// is to be avoided.
    pub(super) fn receive(
        &mut self,
        number: u64,
        updates: Vec<ToClient>,
        up_to: Option<UpTo>,
        cx: &Context,
    ) -> Result<Option<(Vec<ToClient>, UpTo)>, Time> {
        if number != self.next_received && !planted!(ClientLossUnnoticed) {
            // A message was lost on the way, which is not the member's fault.
            return Err(Time::ZERO);
        }
        self.next_received = number + 1;
        // A member that does not serve yet still owes a message: its next one may be lost.
        self.asked_at = (!self.serves).then_some(cx.now.mono);
        let bytes: usize = updates.iter().map(ToClient::size).sum();
        self.unacknowledged_bytes += bytes;
        self.group_bytes += bytes;
        self.updates.extend(updates);
        if self.group_bytes > GROUP_BYTES_MAX {
            return Err(avoided_until(cx));
        }
        Ok(up_to.map(|up_to| {
            self.group_bytes = 0;
            (std::mem::take(&mut self.updates), up_to)
        }))
    }

    /// The member has replied that it serves.
    pub(super) fn serve(&mut self) {
        (self.serves, self.asked_at) = (true, None);
    }

    /// The member knows this leader; 0: none.
    pub(super) fn note_leader(&mut self, leader: NodeId, now: Time) {
        let since = self.leaderless_since.unwrap_or(now);
        self.leaderless_since = (leader == 0).then_some(since);
    }

    /// Until when the member is avoided, if it is given up, since it sends nothing or knows no leader.
    pub(super) fn given_up_until(&self, members: &Members, cx: &Context) -> Option<Time> {
        let (now, heartbeat) = (cx.now.mono, cx.config.heartbeat);
        let answers_soon = heartbeat * FIRST_BEATS;
        if !self.serves && self.next_received == 0 && now >= self.begun_at + answers_soon {
            // The member may not have been able to answer yet, for example just after it was
            // connected.
            return Some(now + answers_soon);
        }
        let over = |at: Option<Time>| at.is_some_and(|at| now >= at + heartbeat * PATIENCE_BEATS);
        let is_over = over(self.asked_at)
            || over(self.leaderless_since) && members.has_other(self.member, now);
        is_over.then(|| avoided_until(cx))
    }

    /// Sends this next, which makes the session known to the member.
    pub(super) fn push_of(&mut self, session_holder: SessionHolder, message: FromClient) {
        self.claimed.insert(session_holder);
        self.messages.push(message);
    }

    /// Reports to the member which sessions this client no longer holds.
    pub(super) fn leave_sessions(&mut self, local: &LocalSessions) {
        self.claimed.retain(|session_holder| {
            let holds = local.holds(*session_holder);
            if !holds {
                self.messages.push(FromClient::Leave { session_holder: *session_holder });
            }
            holds
        });
    }

    /// Sends the messages that have gathered, and acknowledges.
    pub(super) fn send(&mut self, now: Time, effects: &mut Effects) {
        if self.messages.is_empty() && self.unacknowledged_bytes < ACKNOWLEDGED_BYTES {
            return;
        }
        let is_question =
            |of: &FromClient| matches!(of, FromClient::ReadIndex { .. } | FromClient::Begun);
        if self.messages.iter().any(is_question) {
            self.asked_at.get_or_insert(now);
        }
        self.unacknowledged_bytes = 0;
        for messages in in_parts(self.messages.drain(..), MESSAGE_BYTES, FromClient::size) {
            self.post(messages, effects);
        }
    }

    /// Notifies the member that the client leaves, so that it need not wait for the client's silence.
    pub(super) fn end(mut self, effects: &mut Effects) {
        self.post(vec![FromClient::End], effects);
    }

    fn post(&mut self, messages: Vec<FromClient>, effects: &mut Effects) {
        let (attachment, number, received) = (self.id, self.next_sent, self.next_received);
        self.next_sent += 1;
        let message = PeerMessage::FromClient { attachment, number, received, messages };
        effects.messages.push((self.member, message));
    }
}
