//! Shared state: no addition to a counter is lost or counted twice, no id is given twice, a cache
//! follows the tree, and a transaction has one outcome, for which all participants have voted.

use std::collections::{BTreeMap, BTreeSet};

use super::{Violation, require};
use crate::api::snapshot::Snapshot;
use crate::recipes::{Change, Entry, Phase, Vote};
use crate::simulation::oracle::Oracle;
use crate::types::znode::{SessionId, Zxid};

/// A transaction: its path and the zxid that created it.
pub(crate) type Transaction = (String, Zxid);

#[derive(Debug, Default)]
pub(crate) struct State {
    /// The value after each addition, and the value before it.
    counted: BTreeMap<i64, i64>,
    ids: BTreeSet<u64>,
    /// For the last number of a list, the one that an update has put after it.
    updates: BTreeMap<u64, u64>,
    /// The sessions whose instances were registered.
    registered: BTreeSet<SessionId>,
    transactions: BTreeMap<Transaction, Agreement>,
}

#[derive(Debug, Default)]
struct Agreement {
    decided: Option<Phase>,
    /// The participants that were about to vote yes.
    for_it: BTreeSet<&'static str>,
    /// The participants whose vote against it was recorded.
    against_it: BTreeSet<&'static str>,
}

impl State {
    /// The intervals of all additions are disjoint. So none was lost and none counted twice.
    pub(crate) fn counted(&mut self, after: i64, number: i64) -> Result<(), Violation> {
        let before = after - number;
        let overlaps = self.counted.range(before + 1..).next().filter(|(_, found)| **found < after);
        require(overlaps.is_none(), "I9 counters", || {
            format!("{number} was added from {before} to {after}, beside {overlaps:?}")
        })?;
        self.counted.insert(after, before);
        Ok(())
    }

    /// Each update adds a number to the list that the last one has left, and keeps its last few.
    pub(crate) fn updated(&mut self, list: &[u64]) -> Result<(), Violation> {
        let [.., before, own] = list else { return Ok(()) };
        let other = self.updates.insert(*before, *own);
        require(other.is_none_or(|other| other == *own), "I9 updates", || {
            format!("both {own} and {other:?} were written over {before}")
        })
    }

    pub(crate) fn id_given(&mut self, id: u64) -> Result<(), Violation> {
        require(self.ids.insert(id), "ids are given once", || format!("{id} was given again"))
    }

    pub(crate) fn registered(&mut self, session: SessionId) {
        self.registered.insert(session);
    }

    /// The registered sessions that are over by now.
    pub(crate) fn ended(&self, oracle: &Oracle) -> Vec<SessionId> {
        self.registered.iter().copied().filter(|session| !oracle.is_open(*session)).collect()
    }

    fn agreement(&mut self, of: &Transaction) -> &mut Agreement {
        self.transactions.entry(of.clone()).or_default()
    }

    pub(crate) fn voting(&mut self, of: &Transaction, site: &'static str, vote: Vote) {
        if vote == Vote::Yes {
            self.agreement(of).for_it.insert(site);
        }
    }

    pub(crate) fn voted(
        &mut self,
        of: &Transaction,
        site: &'static str,
        vote: Vote,
    ) -> Result<(), Violation> {
        let agreement = self.agreement(of);
        if vote == Vote::No {
            agreement.against_it.insert(site);
        }
        agreement.check(of, &[])
    }

    pub(crate) fn decided(
        &mut self,
        of: &Transaction,
        phase: Phase,
        sites: &[&'static str],
    ) -> Result<(), Violation> {
        if phase == Phase::Voting {
            return Ok(());
        }
        let agreement = self.agreement(of);
        let before = *agreement.decided.get_or_insert(phase);
        require(before == phase, "transactions have one outcome", || {
            format!("{of:?} was {before:?}, and now {phase:?}")
        })?;
        agreement.check(of, sites)
    }
}

impl Agreement {
    fn check(&self, of: &Transaction, sites: &[&'static str]) -> Result<(), Violation> {
        let committed = self.decided == Some(Phase::Committed);
        let all = sites.iter().all(|site| self.for_it.contains(site));
        require(
            !committed || (all && self.against_it.is_empty()),
            "all have voted for what is committed",
            || format!("{of:?} is committed: {self:?}"),
        )
    }
}

/// The contents of a cache, by its reports: the zxids that created and last changed each znode.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mirror(BTreeMap<String, (Zxid, Zxid)>);

impl Mirror {
    pub(crate) fn new(view: &Snapshot, root: &str) -> Mirror {
        let walk = view.walk(root).into_iter().flatten();
        Mirror(walk.map(|(path, _, stat)| (path.to_owned(), (stat.czxid, stat.mzxid))).collect())
    }

    /// Each reported change applies to the state before it.
    pub(crate) fn follow(&mut self, changes: &[Change]) -> Result<(), Violation> {
        let state = |entry: &Entry| (entry.stat.czxid, entry.stat.mzxid);
        let mut last = 0;
        for change in changes {
            let (old, new) = match change {
                Change::Added { new, .. } => (None, Some(new)),
                Change::Changed { old, new, .. } => (Some(old), Some(new)),
                Change::Removed { old, .. } => (Some(old), None),
            };
            let path = change.path().to_owned();
            let found = match new {
                Some(new) => self.0.insert(path, state(new)),
                None => self.0.remove(&path),
            };
            let fits = found == old.map(state) && last <= change.zxid();
            require(fits, "caches follow", || format!("{change:?} found {found:?}"))?;
            last = change.zxid();
        }
        Ok(())
    }

    pub(crate) fn shows(&self, latest: &Snapshot, root: &str) -> Result<(), Violation> {
        let there = Mirror::new(latest, root).0;
        require(self.0 == there, "caches follow", || {
            format!("by the events there is {:?}, and there is {there:?}", self.0)
        })
    }
}
