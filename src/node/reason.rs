//! Why a node is not ready, from the facts in its status. Everybody who tells a reason has it from here: the
//! handles of the node, its report to operators, and the errors of calls that wait.

use std::time::Duration;

use crate::node::io::{NodeStatus, Time};
use crate::types::error::Error;
use crate::types::membership::NodeId;
use crate::types::reason::{Reason, ReasonKind};
use crate::types::start_error::StartError;

/// A node whose replica is older than this is not ready.
const FRESH_WITHIN: Duration = Duration::from_secs(5);

/// Whether a node that was up to date at this time counts as ready.
pub(super) fn is_fresh(at: Option<Time>, now: Time) -> bool {
    at.is_some_and(|at| now.saturating_sub(at) < FRESH_WITHIN)
}

impl NodeStatus {
    /// Why the node is not ready; `None` if it is.
    pub(crate) fn not_ready(
        &self,
        now: Time,
        address: impl Fn(NodeId) -> Option<String>,
    ) -> Option<Reason> {
        if self.leader.is_none() {
            return Some(self.no_leader(address));
        }
        let is_fresh = is_fresh(self.fresh_at, now);
        let (kind, text) = match (is_fresh, self.is_placed) {
            (true, true) => return None,
            (true, false) => (
                ReasonKind::Unplaced,
                "its replica is up to date, but it is not settled yet whether it votes",
            ),
            (false, _) if self.is_client => (
                ReasonKind::NoLeader,
                "the member that serves this client has not shown lately that it knows a leader",
            ),
            (false, _) => (ReasonKind::CatchingUp, "its replica is not up to date"),
        };
        Some(Reason::new(kind, format!("{text}; {}", self.waiting_for(address))))
    }

    /// Why the node has no leader, or none that it hears of.
    pub(crate) fn no_leader(&self, address: impl Fn(NodeId) -> Option<String>) -> Reason {
        let is_refused = self.refusal(&address).is_some();
        let kind = match (&self.bootstrap_problem, &self.quorum_loss) {
            _ if self.leader.is_some() => ReasonKind::NoLeader,
            (Some(_), _) if is_refused => ReasonKind::Refused,
            (Some(_), _) if self.is_client => ReasonKind::NoMember,
            (Some(_), _) => ReasonKind::Founding,
            (None, Some(_)) if is_refused => ReasonKind::Refused,
            (None, Some(_)) if self.joins => ReasonKind::Joining,
            (None, Some(_)) => ReasonKind::VotersMissing,
            (None, None) if self.is_client => ReasonKind::NoLeader,
            (None, None) => ReasonKind::Election,
        };
        let text = self.waiting_for(address);
        match self.leader {
            Some(_) => Reason::new(kind, format!("nothing comes from the leader; {text}")),
            None => Reason::new(kind, text),
        }
    }

    /// The error for a peer that refuses this node, if there is one.
    pub(crate) fn refusal(&self, address: impl Fn(NodeId) -> Option<String>) -> Option<Error> {
        if let Some((peer, problem)) = self.seeds.iter().find(|(_, problem)| problem.refused) {
            let (peer, reason) = (peer.clone(), problem.reason.clone());
            return Some(Error::Start(StartError::PeerRefused { peer, reason }));
        }
        self.peers.iter().find_map(|(peer, problem)| {
            let problem = problem.as_ref().filter(|problem| problem.refused)?;
            let (peer, reason) = (address(*peer)?, problem.reason.clone());
            Some(Error::Start(StartError::PeerRefused { peer, reason }))
        })
    }

    /// A description of the other instances that the node waits for.
    pub(crate) fn waiting_for(&self, address: impl Fn(NodeId) -> Option<String>) -> String {
        if let Some(reason) = self.bootstrap_problem.clone() {
            let seeds = self.seeds.iter();
            let seeds = seeds.map(|(address, problem)| format!("{address}: {}", problem.reason));
            let seeds: Vec<String> = seeds.collect();
            return match seeds.as_slice() {
                [] => reason,
                seeds => format!("{reason} ({})", seeds.join("; ")),
            };
        }
        let unreachable = self.peers.iter().filter_map(|(peer, problem)| {
            let address = address(*peer).unwrap_or_else(|| "a peer".to_owned());
            problem.as_ref().map(|problem| format!("{address}: {}", problem.reason))
        });
        let unreachable: Vec<String> = unreachable.collect();
        let mut peers = match unreachable.len() {
            0 if self.peers.is_empty() => "no peers are known yet".to_owned(),
            0 => "all peers are connected".to_owned(),
            count => format!(
                "{count} of {} peers unreachable: {}",
                self.peers.len(),
                unreachable.join(", ")
            ),
        };
        for duplicate in &self.duplicates {
            peers = format!("{peers}; {duplicate}");
        }
        match (self.leader.and_then(&address), &self.quorum_loss) {
            (Some(leader), _) => format!("the leader is {leader}; {peers}"),
            (None, Some(loss)) if self.peers.is_empty() => format!("there is no leader; {loss}"),
            (None, Some(loss)) => format!("there is no leader; {loss}; {peers}"),
            (None, None) if self.is_client => format!("there is no leader; {peers}"),
            (None, None) => {
                format!("there is no leader; most voters are reached, and elect one; {peers}")
            }
        }
    }
}
