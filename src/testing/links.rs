//! The network of an in-memory cluster: who reaches whom, and the messages that take their time.
//!
//! Nodes are named by their index.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::node::io::Time;
use crate::node::message::PeerMessage;
use crate::types::membership::NodeId;

/// From one node to another.
pub(super) type Link = (usize, usize);

/// A message, and the ids of the nodes that sent it and are to get it: both may have been replaced meanwhile.
pub(super) struct Letter {
    pub(super) link: Link,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) message: PeerMessage,
}

#[derive(Default)]
pub(super) struct Links {
    /// Nodes of one group reach each other; those that are not here are in group 0.
    groups: Vec<usize>,
    /// What is sent here is lost, and nobody notices.
    cuts: BTreeSet<Link>,
    delays: BTreeMap<Link, Duration>,
    /// By their arrival, and in the order in which they were sent.
    under_way: BTreeMap<(Time, u64), Letter>,
    sent: u64,
}

impl Links {
    pub(super) fn regroup(&mut self, groups: Vec<usize>) {
        self.groups = groups;
        let lost = |letter: &Letter| !Links::connects(&self.groups, letter.link);
        self.under_way.retain(|_, letter| !lost(letter));
    }

    /// Ends all cuts and delays. Messages that are under way arrive in their time.
    pub(super) fn heal(&mut self) {
        self.cuts.clear();
        self.delays.clear();
    }

    pub(super) fn cut(&mut self, link: Link) {
        self.cuts.insert(link);
    }

    pub(super) fn delay(&mut self, link: Link, by: Duration) {
        self.delays.insert(link, by);
    }

    fn connects(groups: &[usize], (one, other): Link) -> bool {
        let group = |node: usize| groups.get(node).copied().unwrap_or(0);
        group(one) == group(other)
    }

    /// Whether nodes have a connection.
    pub(super) fn has(&self, link: Link) -> bool {
        Links::connects(&self.groups, link)
    }

    pub(super) fn is_cut(&self, link: Link) -> bool {
        self.cuts.contains(&link)
    }

    /// Whether everybody reaches everybody at once.
    pub(super) fn are_sound(&self) -> bool {
        let connected = self.groups.iter().all(|group| *group == self.groups[0]);
        connected && self.cuts.is_empty() && self.delays.is_empty() && self.under_way.is_empty()
    }

    /// Sends a message; returns it if it arrives at once.
    pub(super) fn send(&mut self, letter: Letter, now: Time) -> Option<Letter> {
        let link = letter.link;
        let mut before = self.under_way.iter().rev();
        let last = before.find(|(_, before)| before.link == link).map(|((at, _), _)| *at);
        let delay = self.delays.get(&link).copied().unwrap_or_default();
        if last.is_none() && delay.is_zero() {
            return Some(letter);
        }
        self.sent += 1;
        // No message overtakes another one on its connection.
        let at = last.max(Some(now + delay)).unwrap_or(now);
        self.under_way.insert((at, self.sent), letter);
        None
    }

    /// The next message that has arrived by now.
    pub(super) fn take_arrived(&mut self, now: Time) -> Option<Letter> {
        let first = self.under_way.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    /// When the next message arrives.
    pub(super) fn next_at(&self) -> Option<Time> {
        self.under_way.first_key_value().map(|((at, _), _)| *at)
    }
}
