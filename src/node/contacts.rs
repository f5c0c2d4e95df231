//! How a node reaches the other members, and hears from them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::io::{Problem, Time};
use super::raft::core::Raft;
use super::versions::Versions;
use crate::types::membership::{MEMBERS_MAX, NodeId};

/// How long a process that was refused as a copy is remembered. It tries again sooner.
const DUPLICATE_TIME: Duration = Duration::from_secs(30);

/// What keeps a node from reaching each other member, and when that last sent something.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    /// All other members.
    problems: Vec<(NodeId, Option<Problem>)>,
    /// When each member was last received from.
    last_received: BTreeMap<NodeId, Time>,
    /// The members as which two processes run, as sentences, each until when it is forgotten.
    duplicates: BTreeMap<String, Time>,
}

impl Contacts {
    pub(super) fn new(others: impl Iterator<Item = NodeId>) -> Contacts {
        let problems = others.map(|member| (member, Some(Problem::not_yet()))).collect();
        Contacts { problems, ..Contacts::default() }
    }

    /// All other members, each with what keeps this node from reaching it.
    pub(super) fn problems(&self) -> &[(NodeId, Option<Problem>)] {
        &self.problems
    }

    pub(super) fn is_reached(&self, node: NodeId) -> bool {
        self.problems.iter().any(|(peer, problem)| *peer == node && problem.is_none())
    }

    /// When this node last received something from a member.
    pub(super) fn last_received(&self, node: NodeId) -> Option<Time> {
        self.last_received.get(&node).copied()
    }

    /// Notes what keeps this node from reaching a member; `None`: nothing does.
    pub(super) fn note_peer(&mut self, peer: NodeId, problem: Option<Problem>) {
        if let Some((_, known)) = self.problems.iter_mut().find(|(id, _)| *id == peer) {
            *known = problem;
        }
    }

    /// Notes that a process was refused, since another one runs with a copy of its directory.
    pub(super) fn note_duplicate(&mut self, reason: String, now: Time) {
        self.duplicates.retain(|_, until| now < *until);
        if self.duplicates.len() < MEMBERS_MAX {
            self.duplicates.insert(reason, now + DUPLICATE_TIME);
        }
    }

    /// The members as which two processes run.
    pub(super) fn duplicates(&self, now: Time) -> Vec<String> {
        let lasting = self.duplicates.iter().filter(|(_, until)| now < **until);
        lasting.map(|(reason, _)| reason.clone()).collect()
    }

    /// Notes that something came from a peer.
    pub(super) fn received_from(&mut self, peer: NodeId, raft: &Raft, now: Time) {
        if let Some(at) = self.last_received.get_mut(&peer) {
            *at = now;
        } else if raft.is_member(peer) {
            self.last_received.insert(peer, now);
        }
    }

    /// Every member sends something at this moment.
    pub(super) fn received_from_all(&mut self, at: Time) {
        self.last_received.values_mut().for_each(|last| *last = at);
    }

    /// The members have changed: forgets the peers that are no longer members.
    pub(super) fn members_changed(&mut self, raft: &Raft, versions: &Versions) {
        let others: Vec<NodeId> = raft.others().collect();
        self.last_received.retain(|peer, _| others.contains(peer));
        self.problems.retain(|(peer, _)| others.contains(peer));
        for peer in others {
            let known = self.problems.iter().any(|(known, _)| *known == peer);
            if !known {
                let connected = versions.is_connected(peer);
                self.problems.push((peer, (!connected).then(Problem::not_yet)));
            }
        }
    }
}
