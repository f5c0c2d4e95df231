//! The Raft log since the last checkpoint, in memory: what raft-rs reads.
//!
//! The disk holds the same entries, but is read only at start-up. An entry is put here before the
//! disk has it. What depends on its durability waits in [`persistence`](super::persistence).
//!
//! Invariants: entries are contiguous from `base.index + 1`. `base` is an entry (or the checkpoint)
//! whose term is known though its data is gone.

use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

/// An entry's place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) index: u64,
    pub(crate) term: u64,
}

/// Whether an entry changes who votes; all others are for the state machine.
pub(crate) fn changes_voting(entry: &Entry) -> bool {
    entry.get_entry_type() != EntryType::EntryNormal
}

#[derive(Debug)]
pub(crate) struct MemLog {
    base: Position,
    entries: VecDeque<Entry>,
    /// The bytes of data in `entries`.
    bytes: usize,
    hard_state: HardState,
    conf_state: ConfState,
    /// Where the state machine stands: what a snapshot made now stands for.
    applied: Position,
}

impl MemLog {
    pub(crate) fn new(
        base: Position,
        entries: impl IntoIterator<Item = Entry>,
        hard_state: HardState,
        conf_state: ConfState,
        applied: Position,
    ) -> MemLog {
        let entries: VecDeque<Entry> = entries.into_iter().collect();
        let bytes = entries.iter().map(|entry| entry.data.len()).sum();
        MemLog { base, entries, bytes, hard_state, conf_state, applied }
    }

    pub(crate) fn last(&self) -> Position {
        self.entries
            .back()
            .map_or(self.base, |last| Position { index: last.index, term: last.term })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The term of the entry at `index`, if the log knows it.
    pub(crate) fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        let offset = index.checked_sub(self.base.index + 1)?;
        self.entries.get(usize::try_from(offset).ok()?).map(|entry| entry.term)
    }

    /// Appends entries, replacing everything from the first one's index on.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(
            first.index > self.base.index && first.index <= self.last().index + 1,
            "entry {} does not follow a log of {}..={}",
            first.index,
            self.base.index + 1,
            self.last().index
        );
        while self.last().index >= first.index {
            let dropped = self.entries.pop_back();
            self.bytes -= dropped.map_or(0, |entry| entry.data.len());
        }
        self.bytes += entries.iter().map(|entry| entry.data.len()).sum::<usize>();
        self.entries.extend(entries.iter().cloned());
    }

    pub(crate) fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    pub(crate) fn set_applied(&mut self, applied: Position) {
        self.applied = applied;
    }

    pub(crate) fn set_conf_state(&mut self, conf_state: ConfState) {
        self.conf_state = conf_state;
    }

    pub(crate) fn applied(&self) -> Position {
        self.applied
    }

    pub(crate) fn conf_state(&self) -> &ConfState {
        &self.conf_state
    }

    /// Forgets all entries: the state at `base` came from a leader.
    pub(crate) fn reset(&mut self, base: Position, conf_state: ConfState) {
        self.entries.clear();
        self.bytes = 0;
        self.base = base;
        self.applied = base;
        self.conf_state = conf_state;
        self.hard_state.commit = self.hard_state.commit.max(base.index);
    }

    /// The first index to keep so that entries up to `upto` go but for the newest ones among them,
    /// at most `count` and `bytes` of data: a peer that lags by less needs no snapshot.
    pub(crate) fn keep_from(&self, upto: u64, count: usize, bytes: usize) -> u64 {
        let mut keep_from = upto + 1;
        let mut kept = 0;
        let below = usize::try_from(upto.saturating_sub(self.base.index)).unwrap_or(usize::MAX);
        for entry in self.entries.iter().take(below).rev().take(count) {
            kept += entry.data.len();
            if kept > bytes {
                break;
            }
            keep_from = entry.index;
        }
        keep_from
    }

    /// The entries that are committed and not applied yet, up to the first that changes the voters: that
    /// one waits until raft-rs hands it out.
    ///
    /// raft-rs hands out what this member's own disk has. What a majority has is committed whether
    /// or not this disk is part of it, and the state machine need not wait.
    pub(crate) fn to_apply(&self, committed: u64) -> Vec<Entry> {
        let from = self.applied.index.saturating_sub(self.base.index);
        let count = committed.saturating_sub(self.applied.index);
        let entries = self.entries.iter().skip(from as usize).take(count as usize);
        entries.take_while(|entry| !changes_voting(entry)).cloned().collect()
    }

    /// Drops the entries below `index`; those after `handed_out`, which raft-rs has still to hand
    /// out, stay.
    pub(crate) fn compact(&mut self, index: u64, handed_out: u64) {
        while let Some(first) = self.entries.front() {
            if first.index >= index || first.index > handed_out {
                break;
            }
            self.base = Position { index: first.index, term: first.term };
            self.bytes -= first.data.len();
            self.entries.pop_front();
        }
    }
}

impl Storage for MemLog {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base.index {
            return Err(StorageError::Compacted.into());
        }
        if high > self.last().index + 1 {
            return Err(StorageError::Unavailable.into());
        }
        /// What an entry takes in a message besides its data, at most.
        const OVERHEAD: u64 = 32;
        let max_size = max_size.into().unwrap_or(u64::MAX);
        let mut size = 0;
        let start = (low - self.base.index - 1) as usize;
        let entries = self.entries.range(start..start + (high - low) as usize);
        let within = entries.enumerate().take_while(|(place, entry)| {
            size += entry.data.len() as u64 + OVERHEAD;
            *place == 0 || size <= max_size
        });
        Ok(within.map(|(_, entry)| entry.clone()).collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        match self.term_at(index) {
            Some(term) => Ok(term),
            None if index < self.base.index => Err(StorageError::Compacted.into()),
            None => Err(StorageError::Unavailable.into()),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last().index)
    }

    /// Only says where the state machine stands; the node sends the state its own way.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        if self.applied.index < request_index {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        let mut snapshot = Snapshot::default();
        let meta = snapshot.mut_metadata();
        meta.index = self.applied.index;
        meta.term = self.applied.term;
        meta.set_conf_state(self.conf_state.clone());
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64, bytes: usize) -> Entry {
        Entry { index, term, data: vec![0; bytes].into(), ..Entry::default() }
    }

    fn log(base: u64, upto: u64) -> MemLog {
        let position = Position { index: base, term: 1 };
        let entries = (base + 1..=upto).map(|index| entry(index, 1, 10));
        MemLog::new(position, entries, HardState::default(), ConfState::default(), position)
    }

    fn context() -> GetEntriesContext {
        GetEntriesContext::empty(false)
    }

    #[test]
    fn append_replaces_a_suffix() {
        let mut log = log(5, 10);
        log.append(&[entry(8, 2, 1), entry(9, 2, 1)]);
        assert_eq!(log.last(), Position { index: 9, term: 2 });
        assert_eq!(log.term_at(7), Some(1));
        assert_eq!(log.term_at(8), Some(2));
        assert_eq!(log.term_at(10), None);
        assert_eq!(log.bytes(), 22);
    }

    #[test]
    fn entries_are_limited_but_never_none() {
        let log = log(0, 5);
        assert_eq!(log.entries(1, 6, None, context()).unwrap().len(), 5);
        assert_eq!(log.entries(1, 6, Some(0), context()).unwrap().len(), 1);
        assert_eq!(log.entries(2, 6, Some(84), context()).unwrap().len(), 2);
        assert!(log.entries(0, 3, None, context()).is_err());
        assert!(log.entries(1, 7, None, context()).is_err());
    }

    #[test]
    fn compaction_keeps_what_is_not_handed_out_and_what_laggards_need() {
        let mut log = log(0, 10);
        log.set_applied(Position { index: 6, term: 1 });
        assert_eq!(log.keep_from(6, 2, 1000), 5);
        assert_eq!(log.keep_from(6, 100, 25), 5);
        assert_eq!(log.keep_from(6, 0, 0), 7);
        log.compact(9, 6);
        assert_eq!(log.first_index().unwrap(), 7);
        assert_eq!(log.term(6).unwrap(), 1);
        assert!(log.term(5).is_err());
        assert_eq!(log.bytes(), 40);
    }

    #[test]
    fn what_is_committed_is_applied_up_to_a_change_of_the_voters() {
        let mut log = log(3, 8);
        let indexes = |log: &MemLog, committed| -> Vec<u64> {
            log.to_apply(committed).iter().map(|entry| entry.index).collect()
        };
        assert_eq!(indexes(&log, 6), [4, 5, 6]);
        log.set_applied(Position { index: 5, term: 1 });
        assert_eq!(indexes(&log, 20), [6, 7, 8]);
        assert!(indexes(&log, 5).is_empty());
        let change = Entry { entry_type: EntryType::EntryConfChangeV2, ..entry(7, 1, 0) };
        log.append(&[change, entry(8, 1, 1)]);
        assert_eq!(indexes(&log, 20), [6]);
    }

    #[test]
    fn a_snapshot_stands_for_what_is_applied() {
        let mut log = log(0, 10);
        log.set_applied(Position { index: 4, term: 1 });
        assert_eq!(log.snapshot(0, 2).unwrap().get_metadata().index, 4);
        assert!(log.snapshot(5, 2).is_err());
        log.reset(Position { index: 20, term: 3 }, ConfState::default());
        assert_eq!(log.last(), Position { index: 20, term: 3 });
        assert_eq!(log.first_index().unwrap(), 21);
    }
}
