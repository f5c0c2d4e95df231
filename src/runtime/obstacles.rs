//! The obstacles between a node and its peers: addresses without a node, and a name that does not lead to
//! this host yet.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::node::io::NodeStatus;
use crate::types::error::Error;
use crate::types::membership::NodeId;

#[derive(Debug, Default)]
pub(crate) struct Obstacles {
    /// For addresses of the list without a node: why, and whether a peer there refuses this node, so that
    /// waiting does not help.
    seeds: Mutex<BTreeMap<String, (String, bool)>>,
    /// Why this member does not listen yet; `None` if it does.
    not_listening: Mutex<Option<String>>,
}

impl Obstacles {
    /// Notes that no node was found at this address of the list.
    pub(crate) fn seed_unreachable(&self, address: String, reason: String, refused: bool) {
        self.seeds().insert(address, (reason, refused));
    }

    /// Clears the errors, since a node was found. Errors that still occur are reported again.
    pub(crate) fn seed_found(&self) {
        self.seeds().clear();
    }

    /// Sets why this member does not listen yet; `None` if it does.
    pub(crate) fn set_not_listening(&self, reason: Option<String>) {
        let mut current = self.not_listening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = reason.as_ref().filter(|reason| current.as_ref() != Some(*reason)) {
            tracing::warn!("{reason}");
        }
        *current = reason;
    }

    /// Why nobody can connect to this member yet.
    pub(crate) fn not_listening(&self) -> Option<String> {
        self.not_listening.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn seeds(&self) -> MutexGuard<'_, BTreeMap<String, (String, bool)>> {
        self.seeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error for a peer that refuses this node, if there is one.
    pub(crate) fn refusal(
        &self,
        status: &NodeStatus,
        address: impl Fn(NodeId) -> Option<String>,
    ) -> Option<Error> {
        let of_seed = |(peer, (reason, refused)): (&String, &(String, bool))| {
            let (peer, reason) = (peer.clone(), reason.clone());
            refused.then_some(Error::PeerRefused { peer, reason })
        };
        if let Some(error) = self.seeds().iter().find_map(of_seed) {
            return Some(error);
        }
        status.peers.iter().find_map(|(peer, problem)| {
            let problem = problem.as_ref().filter(|problem| problem.refused)?;
            // An instance that has lost its data refuses peers that still believe it to be a voter.
            // The missing peers are the better reason.
            let peer = address(*peer).filter(|peer| !status.blank.contains(peer))?;
            Some(Error::PeerRefused { peer, reason: problem.reason.clone() })
        })
    }

    /// A description of the other instances that the node waits for.
    pub(crate) fn waiting_for(
        &self,
        status: &NodeStatus,
        address: impl Fn(NodeId) -> Option<String>,
    ) -> String {
        let others = self.waiting_for_peers(status, address);
        match self.not_listening() {
            Some(reason) => format!("{reason}; {others}"),
            None => others,
        }
    }

    fn waiting_for_peers(
        &self,
        status: &NodeStatus,
        address: impl Fn(NodeId) -> Option<String>,
    ) -> String {
        if let Some(reason) = status.bootstrap_problem.clone() {
            let seeds = self.seeds();
            let seeds = seeds.iter().map(|(address, (reason, _))| format!("{address}: {reason}"));
            let seeds: Vec<String> = seeds.collect();
            return match seeds.as_slice() {
                [] => reason,
                seeds => format!("{reason} ({})", seeds.join("; ")),
            };
        }
        let unreachable = status.peers.iter().filter_map(|(peer, problem)| {
            let address = address(*peer).unwrap_or_else(|| "a peer".to_owned());
            problem.as_ref().map(|problem| format!("{address}: {}", problem.reason))
        });
        let unreachable: Vec<String> = unreachable.collect();
        let peers = match unreachable.len() {
            0 if status.peers.is_empty() => "no peers are known yet".to_owned(),
            0 => "all peers are connected".to_owned(),
            count => format!(
                "{count} of {} peers unreachable: {}",
                status.peers.len(),
                unreachable.join(", ")
            ),
        };
        match (status.leader.and_then(&address), &status.quorum_loss) {
            (Some(leader), _) => format!("the leader is {leader}; {peers}"),
            (None, Some(loss)) if status.peers.is_empty() => format!("there is no leader; {loss}"),
            (None, Some(loss)) => format!("there is no leader; {loss}; {peers}"),
            (None, None) => format!("there is no leader; {peers}"),
        }
    }
}
