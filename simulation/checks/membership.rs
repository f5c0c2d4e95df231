//! There is one cluster, whatever members join and leave (I25, I26). Its log alone determines who
//! votes.

use std::collections::{BTreeMap, BTreeSet};

use super::{Violation, require};
use crate::node::Node;
use crate::node::io::DiskOp;
use crate::node::raft::configuration::{NodeRole, VotingChange};
use crate::node::stored::{EntryKind, LogEntry, Voting};
use crate::simulation::clock::Nanos;
use crate::simulation::oracle::Oracle;
use crate::types::membership::NodeId;

#[derive(Debug, Default)]
pub(crate) struct Membership {
    cluster: Option<u64>,
    /// The hash of the founding state, and the voters at that time.
    genesis: Option<(u64, Voting)>,
    /// The voters after the last committed entry, and the voters before the last change.
    voting: Voting,
    before: Voting,
    /// The index of that change.
    pub(crate) changed_at: u64,
    /// The last change that a leader has proposed, and when.
    proposed: (u64, Nanos),
    /// When each member was admitted, in true time.
    since: BTreeMap<NodeId, Nanos>,
    /// Nodes that have ever been voters.
    voted: BTreeSet<NodeId>,
    /// Nodes whose removal a leader has proposed, whether it was committed or not.
    gone: BTreeSet<NodeId>,
    /// Every id that any disk has ever had.
    ids: BTreeSet<NodeId>,
}

impl Membership {
    /// The cluster exists from the start.
    pub(crate) fn begins(&mut self, cluster: u64, hash: u64, voting: Voting) {
        self.cluster = Some(cluster);
        self.genesis = Some((hash, voting.clone()));
        (self.voting, self.changed_at) = (voting, 1);
        self.note_voters();
    }

    fn note_voters(&mut self) {
        self.voted.extend(&self.voting.voters);
    }

    pub(crate) fn is_founded(&self) -> bool {
        self.genesis.is_some()
    }

    pub(crate) fn voting(&self) -> &Voting {
        &self.voting
    }

    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        let Voting { voters, learners, voters_outgoing, .. } = &self.voting;
        [voters, learners, voters_outgoing].iter().any(|list| list.contains(&node))
    }

    /// I34: a damaged disk is put aside only for a member that a leader has admitted.
    pub(crate) fn putting_aside(&self, new: NodeId) -> Result<(), Violation> {
        require(self.is_member(new), "I34 nothing is put aside without a leader", || {
            format!(
                "a damaged disk is put aside for {new:x}, and the members are {:x?}",
                self.voting
            )
        })
    }

    /// I34: a disk that was put aside is deleted only when its instance has been a voter again, as
    /// the node `since`, or when its cluster has removed the member.
    pub(crate) fn deleting(&self, former: NodeId, since: NodeId) -> Result<(), Violation> {
        require(self.voted.contains(&since), "I34 former data is kept", || {
            format!("the data of {former:x} is deleted, and {since:x} has never voted")
        })
    }

    /// Whether this node has ever voted or may vote soon.
    pub(crate) fn may_vote(&self, node: NodeId) -> bool {
        self.voted.contains(&node) || self.proposed.0 > self.changed_at
    }

    /// Whether this node may have stopped because it is no longer a member.
    pub(crate) fn may_be_gone(&self, node: NodeId) -> bool {
        self.gone.contains(&node)
    }

    /// The sets of nodes of which a majority each must agree.
    pub(crate) fn quorums(&self) -> impl Iterator<Item = &[NodeId]> {
        quorums(&self.voting)
    }

    /// Whether no change is under way and none was within this time.
    pub(crate) fn is_quiet(&self, now: Nanos, time: Nanos) -> bool {
        let (index, at) = self.proposed;
        self.voting.voters_outgoing.is_empty() && index <= self.changed_at && at + time < now
    }

    /// I26: a disk that starts again from nothing has an id that no disk has had.
    pub(crate) fn new_disk(&mut self, node: NodeId) -> Result<(), Violation> {
        require(node != 0 && self.ids.insert(node), "I26 an id is of one disk", || {
            format!("a new disk has the id {node:x}, which another one had")
        })
    }

    /// I25: only one cluster is ever founded or joined.
    pub(crate) fn writing(&mut self, op: &DiskOp, oracle: &mut Oracle) -> Result<(), Violation> {
        match op {
            DiskOp::Identify { identity, .. } if identity.cluster != 0 => {
                let cluster = *self.cluster.get_or_insert(identity.cluster);
                require(cluster == identity.cluster, "I25 one cluster", || {
                    let (node, other) = (identity.node, identity.cluster);
                    format!("there is {cluster:x}, and node {node:x} belongs to {other:x}")
                })
            }
            DiskOp::Install { meta, state, .. } if (meta.index, meta.term) == (1, 1) => {
                let genesis = (meta.hash, meta.voting.clone());
                if let Some(known) = &self.genesis {
                    return require(*known == genesis, "I25 one genesis", || {
                        format!("{known:?} was founded, and now {genesis:?} is")
                    });
                }
                (self.voting, self.changed_at) = (meta.voting.clone(), 1);
                self.genesis = Some(genesis);
                self.note_voters();
                oracle.found(state.clone());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// I25: no node reports another cluster.
    pub(crate) fn reported(&self, cluster: Option<u64>) -> Result<(), Violation> {
        require(cluster.is_none() || cluster == self.cluster, "I25 one cluster", || {
            format!("there is {:x?}, and somebody says {cluster:x?}", self.cluster)
        })
    }

    /// I12: whether a committed entry is on a majority of the voters. A leader counts by the
    /// configuration that it has applied, which may be the one before the last change.
    pub(crate) fn decides(&self, mut holds: impl FnMut(NodeId) -> bool) -> bool {
        let mut decide = |voting: &Voting| {
            let mut quorums = quorums(voting).peekable();
            quorums.peek().is_some()
                && quorums.all(|voters| {
                    2 * voters.iter().filter(|node| holds(**node)).count() > voters.len()
                })
        };
        decide(&self.voting) || decide(&self.before)
    }

    /// An entry is committed.
    pub(crate) fn committed(&mut self, entry: &LogEntry, now: Nanos) -> Result<(), Violation> {
        if entry.kind != EntryKind::Membership {
            return Ok(());
        }
        let change = VotingChange::decode(&entry.data).expect("a node has decoded and applied it");
        if let Some(after) = changed(&self.voting, &change) {
            self.before = std::mem::replace(&mut self.voting, after);
            self.changed_at = entry.index;
            self.note_voters();
            for (node, part) in change.steps {
                match part {
                    NodeRole::Gone => {
                        self.since.remove(&node);
                    }
                    NodeRole::Voter | NodeRole::Learner => {
                        self.since.entry(node).or_insert(now);
                    }
                }
            }
        }
        Ok(())
    }

    /// I25: the voters of a replica are those of its log.
    pub(crate) fn follows(&self, node: &Node) -> Result<(), Violation> {
        let (ours, theirs) = (sorted(&self.voting), sorted(&node.voting()));
        require(ours == theirs, "I25 who votes follows from the log", || {
            format!("node {:x} has {theirs:?}, and not {ours:?}", node.id())
        })
    }

    /// I25: when a leader proposes a change, a majority of the voters after it is alive. The entry
    /// that ends a change is exempt: it has no steps, removes the outgoing voters and needs no
    /// other votes.
    pub(crate) fn proposing(
        &mut self,
        op: &DiskOp,
        node: &Node,
        leads_in: Option<u64>,
        known: &WorldView<'_>,
    ) -> Result<(), Violation> {
        let DiskOp::Write { write, .. } = op else {
            return Ok(());
        };
        for entry in &write.entries {
            if entry.kind != EntryKind::Membership || Some(entry.term) != leads_in {
                continue;
            }
            let now = known.now;
            self.proposed = (entry.index.max(self.proposed.0), now);
            let Ok(change) = VotingChange::decode(&entry.data) else {
                continue;
            };
            let gone = change.steps.iter().filter(|(_, part)| *part == NodeRole::Gone);
            self.gone.extend(gone.map(|(node, _)| *node));
            let before = node.voting();
            let Some(after) = changed(&before, &change) else {
                continue;
            };
            for (node, part) in &change.steps {
                let settled =
                    self.since.get(node).is_some_and(|at| at + known.caught_up_for <= now);
                let voted = self.genesis.iter().any(|(_, voting)| voting.voters.contains(node));
                require(
                    *part != NodeRole::Voter || settled || voted,
                    "I25 voters were learners",
                    || {
                        format!(
                            "{node:x} is to vote, and is a member since {:?}",
                            self.since.get(node)
                        )
                    },
                )?;
                require(
                    *part != NodeRole::Gone || (known.may_go)(*node),
                    "I25 the living stay",
                    || format!("{node:x} was alive just now, and has not left: {change:?}"),
                )?;
            }
            for voters in quorums(&after).filter(|_| !change.steps.is_empty()) {
                let alive = voters.iter().filter(|voter| (known.is_alive)(**voter)).count();
                require(2 * alive > voters.len(), "I25 a majority is alive", || {
                    format!("after {change:?} {alive} of {voters:x?} would be")
                })?;
            }
        }
        Ok(())
    }
}

/// The state of all nodes, as the world knows it.
pub(crate) struct WorldView<'a> {
    pub(crate) now: Nanos,
    /// The shortest time for which a learner must have been caught up before it votes.
    pub(crate) caught_up_for: Nanos,
    pub(crate) is_alive: &'a dyn Fn(NodeId) -> bool,
    /// Whether a leader may give its place to another.
    pub(crate) may_go: &'a dyn Fn(NodeId) -> bool,
}

fn quorums(voting: &Voting) -> impl Iterator<Item = &[NodeId]> {
    let lists = [voting.voters.as_slice(), voting.voters_outgoing.as_slice()];
    lists.into_iter().filter(|list| !list.is_empty())
}

fn sorted(voting: &Voting) -> [Vec<NodeId>; 4] {
    let Voting { voters, learners, voters_outgoing, learners_next, .. } = voting.clone();
    let mut lists = [voters, learners, voters_outgoing, learners_next];
    lists.iter_mut().for_each(|list| list.sort_unstable());
    lists
}

/// The voters after a change, by the rules of the Raft thesis and without raft-rs's code. `None` if
/// the change is not possible.
fn changed(voting: &Voting, change: &VotingChange) -> Option<Voting> {
    let mut after = voting.clone();
    let joint = !voting.voters_outgoing.is_empty();
    if change.steps.is_empty() {
        after.learners.append(&mut after.learners_next);
        after.voters_outgoing.clear();
        return joint.then_some(after);
    }
    if change.steps.len() > 1 {
        after.voters_outgoing = voting.voters.clone();
    }
    for (node, part) in &change.steps {
        for list in [&mut after.voters, &mut after.learners, &mut after.learners_next] {
            list.retain(|member| member != node);
        }
        match part {
            NodeRole::Voter => after.voters.push(*node),
            // It votes in the outgoing half for as long as there is one.
            NodeRole::Learner if after.voters_outgoing.contains(node) => {
                after.learners_next.push(*node)
            }
            NodeRole::Learner => after.learners.push(*node),
            NodeRole::Gone => {}
        }
    }
    (!joint && !after.voters.is_empty()).then_some(after)
}
