//! The messages to a client.

use std::collections::VecDeque;

use super::MESSAGE_BYTES;
use crate::node::client_message::{ToClient, UpTo};
use crate::node::message::{PeerMessage, in_parts};

/// What a client is sent next, and what it was sent and has not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    next_number: u64,
    /// The unacknowledged messages: their numbers and bytes.
    unacknowledged: VecDeque<(u64, usize)>,
    unacknowledged_bytes: usize,
    updates: Vec<ToClient>,
    update_bytes: usize,
    /// Whether the client waits for a message, even an empty one.
    pub(super) is_awaited: bool,
}

impl Outgoing {
    pub(super) fn new() -> Outgoing {
        Outgoing { is_awaited: true, ..Outgoing::default() }
    }

    pub(super) fn push(&mut self, update: ToClient) {
        self.update_bytes += update.size();
        self.updates.push(update);
    }

    /// The bytes that were sent, or are about to be, and are not acknowledged.
    pub(super) fn bytes(&self) -> usize {
        self.unacknowledged_bytes + self.update_bytes
    }

    /// Whether a message is due.
    pub(super) fn is_due(&self) -> bool {
        self.is_awaited || !self.updates.is_empty()
    }

    /// The client has the messages before this number.
    pub(super) fn acknowledged(&mut self, received: u64) {
        while let Some((number, bytes)) = self.unacknowledged.front().copied()
            && number < received
        {
            self.unacknowledged.pop_front();
            self.unacknowledged_bytes -= bytes;
        }
    }

    /// The messages to send now. All of the updates have happened up to `up_to`.
    pub(super) fn take(
        &mut self,
        attachment: u64,
        up_to: UpTo,
    ) -> impl Iterator<Item = PeerMessage> + '_ {
        (self.is_awaited, self.update_bytes) = (false, 0);
        let parts = in_parts(self.updates.drain(..), MESSAGE_BYTES, ToClient::message_bytes);
        let last = self.next_number + parts.len() as u64 - 1;
        parts.into_iter().map(move |updates| {
            let number = self.next_number;
            self.next_number += 1;
            let bytes = updates.iter().map(ToClient::size).sum::<usize>() + 64;
            self.unacknowledged.push_back((number, bytes));
            self.unacknowledged_bytes += bytes;
            let up_to = (number == last).then_some(up_to);
            PeerMessage::ToClient { attachment, number, updates, up_to }
        })
    }
}
