//! Changes of the voters, as entries of the log.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::types::encoding;
use crate::types::membership::{MEMBERS_MAX, Named, NodeId};

/// The part of a node after a change of the voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NodeRole {
    Voter,
    Learner,
    /// Not a member any more.
    Gone,
}

/// A change of the voters, as one entry of the log. A change of more than one step uses joint
/// consensus (Raft thesis, section 4.3). A change without steps leaves the joint configuration.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VotingChange {
    pub(crate) steps: Vec<(NodeId, NodeRole)>,
}

/// As log lines show it.
impl fmt::Debug for VotingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.iter().map(|(node, part)| format!("{} {part:?}", Named::of(*node)));
        f.debug_set().entries(steps).finish()
    }
}

impl VotingChange {
    pub(crate) fn of(steps: impl IntoIterator<Item = (NodeId, NodeRole)>) -> VotingChange {
        VotingChange { steps: steps.into_iter().collect() }
    }

    /// The entry's data. A change without steps has no data, as in raft-rs.
    pub(crate) fn encode(&self) -> Vec<u8> {
        if self.steps.is_empty() {
            return Vec::new();
        }
        encoding::append(self, Vec::new())
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<VotingChange, String> {
        if bytes.is_empty() {
            return Ok(VotingChange::default());
        }
        let change: VotingChange = match postcard::take_from_bytes(bytes) {
            Ok((change, [])) => change,
            Ok((_, rest)) => return Err(format!("{} bytes too many", rest.len())),
            Err(error) => return Err(error.to_string()),
        };
        let nodes: BTreeSet<NodeId> = change.steps.iter().map(|(node, _)| *node).collect();
        if nodes.is_empty() || nodes.len() != change.steps.len() || nodes.contains(&0) {
            return Err("a change of nobody, of node 0, or twice of the same".to_owned());
        }
        if nodes.len() > MEMBERS_MAX {
            return Err("a change of too many".to_owned());
        }
        Ok(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_decoded_as_it_was_encoded_and_nothing_else_is() {
        let change =
            VotingChange::of([(7, NodeRole::Voter), (8, NodeRole::Gone), (9, NodeRole::Learner)]);
        assert_eq!(VotingChange::decode(&change.encode()), Ok(change.clone()));
        assert!(VotingChange::default().encode().is_empty());
        assert_eq!(VotingChange::decode(&[]), Ok(VotingChange::default()));
        for bad in [
            VotingChange::of([(7, NodeRole::Voter), (7, NodeRole::Gone)]),
            VotingChange::of([(0, NodeRole::Voter)]),
            VotingChange::of((1..100).map(|node| (node, NodeRole::Voter))),
        ] {
            assert!(VotingChange::decode(&bad.encode()).is_err(), "{bad:?}");
        }
        let mut long = change.encode();
        long.push(0);
        assert!(VotingChange::decode(&long).is_err());
        assert!(VotingChange::decode(&[0]).is_err());
    }
}
