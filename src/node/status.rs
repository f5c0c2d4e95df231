//! The status and metrics of a node.

use crate::machine::Machine;
use crate::node::Node;
use crate::node::bootstrap::Founding;
use crate::node::io::{NodeStatus, WatchId};
use crate::node::raft::core::Role;
use crate::node::stored::Identity;
use crate::planted::{Bug, planted};
use crate::types::membership::{Member, Named, NodeId};
use crate::types::metrics::Metrics;
use crate::types::watch::WatchInfo;

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
            checkpoint_bytes: Some(self.persistence.state_bytes),
            disk_free_bytes: self.room.free,
            disk_low: self.room.is_low,
            ..self.metrics.clone()
        }
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.bootstrap.identity
    }

    /// This node as a member.
    pub(crate) fn member(&self) -> &Member {
        &self.me
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    #[cfg(test)]
    pub(crate) fn watch_count(&self) -> usize {
        self.replica.watches.len()
    }

    /// A node, as a log line names it.
    pub(in crate::node) fn named(&self, node: NodeId) -> Named {
        let known = self.membership.handed.iter().flatten().find(|member| member.node == node);
        let own = (node == self.id).then_some(&self.me);
        let address = known.or(own).map(|member| member.address.clone());
        Named { node, address }
    }

    /// How many entries of its log it has not applied.
    pub(crate) fn unapplied(&self) -> u64 {
        self.raft.last_index().saturating_sub(self.raft.handed_out())
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
        let wrong = planted(Bug::PreCandidateLeads) && raft.role() == Role::PreCandidate;
        (raft.term(), raft.leader(), raft.leads() || wrong)
    }

    /// Whether it has a leader, as far as it knows.
    pub(crate) fn has_leader(&self) -> bool {
        self.raft.leader() != 0
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let raft = &self.raft;
        let leads = raft.leads();
        let peers = self.peer_problems.iter().map(|(peer, _)| *peer);
        NodeStatus {
            leader: (raft.leader() != 0 && self.stopped.is_none()).then_some(raft.leader()),
            is_leader: leads && self.stopped.is_none(),
            leads_since: self.leading.as_ref().and_then(|leading| leading.serves_since),
            term: raft.term(),
            zxid: self.machine.zxid(),
            hash: self.machine.hash(),
            fresh_at: self.local.read_index.fresh_at(),
            sessions: self.machine.session_count(),
            znodes: self.machine.tree().len(),
            peers: self.peer_problems.clone(),
            version: self.machine.version(),
            own_version: self.versions.own(),
            availability: self.availability(),
            is_placed: self.membership.is_placed,
            bootstrap_problem: self.bootstrap.founding.as_ref().and_then(Founding::problem),
            seeds: self.bootstrap.founding.iter().flat_map(Founding::not_reached).collect(),
            is_client: false,
            joins: !self.is_member(self.id),
            quorum_loss: self.quorum_loss(),
            blank: self.blank(),
            versions: peers.filter_map(|peer| Some((peer, self.versions.of(peer)?))).collect(),
        }
    }
}
