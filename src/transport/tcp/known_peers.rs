//! Who may introduce itself: the members that this node knows, and guests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::transport::handshake::{Hello, Refusal, RefusalCode, Run};
use crate::types::membership::NodeId;

/// Members are listed by [`set_peers`](super::TcpTransport::set_peers). A guest is a node that
/// has introduced itself and is not listed, or not yet: one that wants to join, that is a member
/// which this node has not heard of, that was one, that founds the cluster together with it, or a
/// client.
#[derive(Debug)]
pub(super) struct Circle {
    guests_max: usize,
    members: BTreeSet<NodeId>,
    /// With the time at which it is looked after.
    guests: BTreeMap<NodeId, Instant>,
}

impl Circle {
    pub(super) fn new(guests_max: usize) -> Circle {
        Circle { guests_max, members: BTreeSet::new(), guests: BTreeMap::new() }
    }

    pub(super) fn is_known(&self, node: NodeId) -> bool {
        self.members.contains(&node) || self.guests.contains_key(&node)
    }

    pub(super) fn is_guest(&self, node: NodeId) -> bool {
        self.guests.contains_key(&node)
    }

    pub(super) fn is_full(&self) -> bool {
        self.guests.len() >= self.guests_max
    }

    /// Whether the node that says this is known or could be a guest.
    pub(super) fn check(&self, hello: &Hello) -> Result<(), Refusal> {
        let node = hello.from;
        let is_nowhere = hello.run.as_ref().is_some_and(Run::is_nowhere);
        if self.members.contains(&node) && is_nowhere {
            let text = format!("node {node} is a member, and says that it is reached nowhere");
            return Err(Refusal::new(RefusalCode::UnknownPeer, text));
        }
        if self.is_known(node) {
            return Ok(());
        }
        let why = if hello.run.is_none() {
            "and does not say where it is"
        } else if self.is_full() {
            "and there are too many such ones"
        } else {
            return Ok(());
        };
        let text = format!("node {node} is not a member known here, {why}");
        Err(Refusal::new(RefusalCode::UnknownPeer, text))
    }

    /// Makes a guest of this node, to be looked after then. When it was to be until now, if it
    /// was one.
    pub(super) fn invite(&mut self, node: NodeId, at: Instant) -> Option<Instant> {
        self.guests.insert(node, at)
    }

    /// When it was to be looked after, if it was a guest.
    pub(super) fn dismiss(&mut self, node: NodeId) -> Option<Instant> {
        self.guests.remove(&node)
    }

    /// Replaces the members. Returns those that are none any longer.
    pub(super) fn set_members(&mut self, members: BTreeSet<NodeId>) -> Vec<NodeId> {
        let former = std::mem::replace(&mut self.members, members);
        former.difference(&self.members).copied().collect()
    }
}
