//! Replicas agree: one leader in each term, one log, one state (I11, I15).

use std::collections::BTreeMap;

use super::{Violation, require};
use crate::node::Node;
use crate::node::io::DiskOp;
use crate::simulation::checks::durability;
use crate::simulation::checks::membership::Membership;
use crate::simulation::clock::Nanos;
use crate::simulation::durable::Durable;
use crate::simulation::oracle::{Oracle, digest};
use crate::types::membership::NodeId;

/// What a node had applied before a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    pub(crate) applied: u64,
    pub(crate) zxid: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Agreement {
    pub(crate) leaders: BTreeMap<u64, NodeId>,
    /// The digest of every entry ever written to a log, by index and term.
    written: BTreeMap<(u64, u64), u64>,
}

impl Agreement {
    /// Called after each step and at each start. The entries that the node has applied go to the
    /// oracle, or equal those that it already has. Returns whether any was new.
    pub(crate) fn stepped(
        &mut self,
        oracle: &mut Oracle,
        membership: &mut Membership,
        node: &Node,
        before: Before,
        now: Nanos,
        disks: &BTreeMap<NodeId, Durable>,
    ) -> Result<bool, Violation> {
        let (term, _, leads) = node.leadership();
        if leads || strikes!(FollowerLeads, 1_000) {
            let leader = *self.leaders.entry(term).or_insert(node.id());
            require(leader == node.id(), "I11 one leader a term", || {
                format!("nodes {leader} and {} both lead in term {term}", node.id())
            })?;
        }
        let applied = node.applied();
        if applied.index == before.applied {
            return Ok(false);
        }
        let mut changed = false;
        for entry in node.applied_after(before.applied) {
            match oracle.entry(entry.index) {
                Some(known) => {
                    require(known == (entry.term, digest(&entry)), "I11 one log", || {
                        format!("node {} applied another entry {}", node.id(), entry.index)
                    })?;
                }
                None => {
                    require(entry.index == oracle.last() + 1, "I11 no gap", || {
                        format!("entry {} after {}", entry.index, oracle.last())
                    })?;
                    durability::on_majority(membership, disks, entry.index, entry.term)?;
                    oracle.take(&entry)?;
                    membership.committed(&entry, now)?;
                    changed = true;
                }
            }
        }
        if applied.index == oracle.last() {
            membership.follows(node)?;
        }
        same_state(oracle, node)?;
        Ok(changed)
    }

    /// Log matching: entries that two nodes write at the same index and term are equal.
    pub(crate) fn writing(&mut self, op: &DiskOp) -> Result<(), Violation> {
        let DiskOp::Write { write, .. } = op else {
            return Ok(());
        };
        for entry in &write.entries {
            let digest = digest(entry);
            let known = *self.written.entry((entry.index, entry.term)).or_insert(digest);
            require(known == digest, "I11 log matching", || {
                format!("two entries {} of term {}", entry.index, entry.term)
            })?;
        }
        Ok(())
    }
}

/// I15: equal logs lead to equal states.
pub(crate) fn same_state(oracle: &Oracle, node: &Node) -> Result<(), Violation> {
    let applied = node.applied().index;
    let Some((hash, zxid)) = oracle.state_at(applied) else {
        return require(applied <= oracle.last(), "I11 no gap", || {
            format!("node {} is at {applied}, the log ends at {}", node.id(), oracle.last())
        });
    };
    let machine = node.machine();
    require((machine.hash(), machine.zxid()) == (hash, zxid), "I15 equal states", || {
        format!(
            "node {} at index {applied}: hash {:x} and zxid {}, not {hash:x} and {zxid}",
            node.id(),
            machine.hash(),
            machine.zxid()
        )
    })
}
