//! The divergence check: comparing the state hashes of the replicas.
//!
//! Replicas that applied the same entries have the same state and the same hash. Each node sends its
//! hash to the others at the same few indexes. A node that finds itself alone against a majority has
//! diverged, by a broken disk, broken memory or a broken build. It stops before it passes its state
//! on.

use std::collections::BTreeMap;

use crate::types::membership::NodeId;

/// Hashes are exchanged at the multiples of this index.
pub(crate) const EVERY: u64 = 1024;

/// Hashes of indexes further ahead are not kept. They would displace those that are needed first.
pub(crate) const AHEAD_MAX: u64 = EVERY * KEPT as u64;

/// How many indexes are kept, the newest ones.
const KEPT: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Hashes {
    at: BTreeMap<u64, BTreeMap<NodeId, u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Agree,
    /// Some replicas disagree, and it is not settled which are wrong.
    Disagree,
    /// A majority of the voters agree with each other and not with this node.
    Diverged,
}

impl Hashes {
    /// Notes a hash and compares all that are known at this index.
    pub(crate) fn note(
        &mut self,
        index: u64,
        of: NodeId,
        hash: u64,
        own: NodeId,
        voters: &[NodeId],
    ) -> Verdict {
        if !index.is_multiple_of(EVERY) {
            return Verdict::Agree;
        }
        self.at.entry(index).or_default().insert(of, hash);
        while self.at.len() > KEPT {
            self.at.pop_first();
        }
        let known = self.at.get(&index).and_then(|known| Some((known, known.get(&own)?)));
        let Some((known, ours)) = known else { return Verdict::Agree };
        if known.values().all(|hash| hash == ours) {
            return Verdict::Agree;
        }
        let votes = |hash: u64| {
            known.iter().filter(|(id, other)| voters.contains(id) && **other == hash).count()
        };
        let others = known.values().filter(|hash| *hash != ours);
        if others.map(|hash| votes(*hash)).any(|count| count * 2 > voters.len()) {
            Verdict::Diverged
        } else {
            Verdict::Disagree
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_against_a_majority_has_diverged() {
        let mut hashes = Hashes::default();
        let voters = [1, 2, 3];
        let mut note = |of, hash| hashes.note(1024, of, hash, 1, &voters);
        assert_eq!(note(2, 7), Verdict::Agree);
        assert_eq!(note(1, 8), Verdict::Disagree);
        assert_eq!(note(4, 7), Verdict::Disagree);
        assert_eq!(note(3, 7), Verdict::Diverged);
    }

    #[test]
    fn the_majority_does_not_stop() {
        let mut hashes = Hashes::default();
        for (of, hash) in [(1, 7), (2, 7), (3, 8)] {
            assert_ne!(hashes.note(2048, of, hash, 1, &[1, 2, 3]), Verdict::Diverged);
        }
        assert_eq!(hashes.note(5, 2, 1, 1, &[1, 2, 3]), Verdict::Agree);
    }
}
