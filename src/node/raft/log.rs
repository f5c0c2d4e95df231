//! The Raft log as raft-rs reads it: its end in memory, and the outline of what only the disk has.
//!
//! An entry is put here before the disk has it. Actions that depend on its durability wait in
//! [`persistence`](super::persistence). Once it is applied and durable, it may leave the memory. If a
//! peer needs such an entry, it is read from the disk: see [`log_reads`](super::log_reads).
//!
//! Invariants: the log is contiguous from `base.index + 1`, the outline first and then the entries in
//! memory. `base` is an entry (or the checkpoint) whose term is known though its data is gone. Entries that
//! are in the outline are committed, so they are never replaced.

use std::cell::Cell;
use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::node::log_outline::LogOutline;
use crate::node::stored::{LogEntry, Voting};

/// An entry's place in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) index: u64,
    pub(crate) term: u64,
}

/// Whether an entry changes who votes; all others are for the state machine.
pub(crate) fn changes_voting(entry: &Entry) -> bool {
    entry.get_entry_type() != EntryType::EntryNormal
}

/// About how many bytes an entry takes besides its data, in memory, in a message and on disk.
const ENTRY_BYTES: u64 = 64;

pub(crate) fn size(entry: &Entry) -> u64 {
    (entry.data.len() + entry.context.len()) as u64 + ENTRY_BYTES
}

#[derive(Debug)]
pub(crate) struct MemLog {
    base: Position,
    /// The entries after `base` that only the disk has.
    outline: LogOutline,
    entries: VecDeque<Entry>,
    /// The bytes of `entries`.
    bytes: u64,
    hard_state: HardState,
    voting: Voting,
    /// The position of the state machine, which a snapshot made now would have.
    applied: Position,
    /// Entries of the outline that were read from the disk and are being handed to raft-rs.
    read: Vec<Entry>,
    /// Whether raft-rs was refused entries because only the disk has them.
    wants_disk: Cell<bool>,
}

impl MemLog {
    pub(crate) fn new(
        base: Position,
        outline: LogOutline,
        entries: impl IntoIterator<Item = Entry>,
        hard_state: HardState,
        voting: Voting,
        applied: Position,
    ) -> MemLog {
        let entries: VecDeque<Entry> = entries.into_iter().collect();
        let bytes = entries.iter().map(size).sum();
        let log = MemLog {
            base,
            outline,
            entries,
            bytes,
            hard_state,
            voting,
            applied,
            read: Vec::new(),
            wants_disk: Cell::new(false),
        };
        debug_assert!(log.is_contiguous());
        log
    }

    fn is_contiguous(&self) -> bool {
        let starts = self.outline.first().is_none_or(|first| first == self.base.index + 1);
        let follows =
            self.entries.front().is_none_or(|first| first.index == self.disk_only().index + 1);
        starts && follows
    }

    /// The last entry that is not in memory.
    fn disk_only(&self) -> Position {
        self.outline.last().map_or(self.base, |(index, term)| Position { index, term })
    }

    pub(crate) fn last(&self) -> Position {
        let in_memory = self.entries.back();
        let in_memory = in_memory.map(|last| Position { index: last.index, term: last.term });
        in_memory.unwrap_or_else(|| self.disk_only())
    }

    /// The bytes of the entries in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// About how many bytes all entries take that the disk has or will have.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.outline.bytes() + self.bytes
    }

    /// The entries that only the disk has.
    pub(crate) fn outline(&self) -> &LogOutline {
        &self.outline
    }

    /// The term of the entry at `index`, if the log knows it.
    pub(crate) fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        match index.checked_sub(self.disk_only().index + 1) {
            Some(place) => self.entries.get(usize::try_from(place).ok()?).map(|entry| entry.term),
            None => self.outline.term_at(index),
        }
    }

    /// Appends entries, replacing everything from the first one's index on.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(
            first.index > self.disk_only().index && first.index <= self.last().index + 1,
            "entry {} does not follow a log of {}..={}",
            first.index,
            self.disk_only().index + 1,
            self.last().index
        );
        while self.last().index >= first.index {
            let dropped = self.entries.pop_back();
            self.bytes -= dropped.as_ref().map_or(0, size);
        }
        self.bytes += entries.iter().map(size).sum::<u64>();
        self.entries.extend(entries.iter().cloned());
    }

    pub(crate) fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    pub(crate) fn set_applied(&mut self, applied: Position) {
        self.applied = applied;
    }

    pub(crate) fn set_voting(&mut self, voting: Voting) {
        self.voting = voting;
    }

    pub(crate) fn applied(&self) -> Position {
        self.applied
    }

    /// The voters and learners, as far as the log is applied.
    pub(crate) fn voting(&self) -> &Voting {
        &self.voting
    }

    /// The applied entries after this one, as far as they are still in memory.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn applied_after(&self, after: u64) -> Vec<LogEntry> {
        let is_meant = |entry: &&Entry| entry.index > after && entry.index <= self.applied.index;
        self.entries.iter().filter(is_meant).map(LogEntry::from).collect()
    }

    /// Forgets all entries: the state at `base` came from a leader.
    pub(crate) fn reset(&mut self, base: Position, voting: Voting) {
        self.outline.clear();
        self.entries.clear();
        self.bytes = 0;
        self.base = base;
        self.applied = base;
        self.voting = voting;
        self.hard_state.commit = self.hard_state.commit.max(base.index);
    }

    /// The first index to keep when the log up to `upto` is cut. The newest entries up to there are
    /// kept, about this many bytes at most, so that a peer which lags by less needs no snapshot.
    pub(crate) fn keep_from(&self, upto: u64, bytes: u64) -> u64 {
        if self.bytes <= bytes && self.disk_only().index <= upto {
            let newest = self.outline.newest(bytes - self.bytes);
            return newest.max(self.base.index + 1).min(upto + 1);
        }
        let mut keep_from = upto + 1;
        let mut kept = 0;
        for entry in self.entries.iter().rev().skip_while(|entry| entry.index > upto) {
            kept += size(entry);
            if kept > bytes {
                break;
            }
            keep_from = entry.index;
        }
        keep_from
    }

    /// The first entry that is committed and not applied yet, unless it changes the voters. Such an entry
    /// waits until raft-rs hands it out.
    ///
    /// raft-rs hands out only entries on this member's own disk. An entry that a majority has is
    /// committed even without this disk, so the state machine need not wait.
    pub(crate) fn next_to_apply(&self, committed: u64) -> Option<Entry> {
        let from = self.applied.index.saturating_sub(self.disk_only().index);
        let next = self.entries.get(from as usize).filter(|_| committed > self.applied.index);
        next.filter(|entry| !changes_voting(entry)).cloned()
    }

    /// Drops the entries below `index`, which the disk may drop. Those after `handed_out` stay,
    /// since raft-rs has still to hand them out.
    pub(crate) fn compact(&mut self, index: u64, handed_out: u64) {
        let before = index.min(handed_out + 1).saturating_sub(1);
        let Some(term) = self.term_at(before).filter(|_| before > self.base.index) else { return };
        self.base = Position { index: before, term };
        self.outline.drop_before(before + 1);
        while let Some(first) = self.entries.front()
            && first.index <= before
        {
            self.bytes -= size(first);
            self.entries.pop_front();
        }
    }

    /// Takes the oldest entries out of memory while all take more than `bytes`. Those after
    /// `handed_out` stay: the disk may not have them yet, and raft-rs has still to hand them out.
    pub(crate) fn trim(&mut self, bytes: u64, handed_out: u64) {
        while self.bytes > bytes
            && let Some(first) = self.entries.front()
            && first.index <= handed_out
        {
            let taken = size(first);
            self.outline.push(first.index, first.term, taken);
            self.bytes -= taken;
            self.entries.pop_front();
        }
    }

    /// Whether raft-rs was refused entries since the last call because only the disk has them.
    pub(crate) fn take_wants_disk(&self) -> bool {
        self.wants_disk.take()
    }

    /// Makes raft-rs ask again. It is refused again if it needs more.
    pub(crate) fn want_disk(&self) {
        self.wants_disk.set(true);
    }

    /// Hands entries that were read from the disk to raft-rs, until the next call. Returns whether they
    /// belong to this log.
    pub(crate) fn lend(&mut self, entries: &[LogEntry]) -> bool {
        let ours =
            entries.iter().all(|entry| self.outline.term_at(entry.index) == Some(entry.term));
        self.read = entries.iter().filter(|_| ours).map(Entry::from).collect();
        ours
    }
}

impl Storage for MemLog {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), ConfState::from(&self.voting)))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base.index {
            return Err(StorageError::Compacted.into());
        }
        if high > self.last().index + 1 {
            return Err(StorageError::Unavailable.into());
        }
        let max_size = max_size.into().unwrap_or(u64::MAX);
        let count = usize::try_from(high - low).unwrap_or(usize::MAX);
        let in_memory = self.disk_only().index + 1;
        if let Some(start) = low.checked_sub(in_memory) {
            return Ok(within(self.entries.iter().skip(start as usize).take(count), max_size));
        }
        let read = self.read.iter().skip_while(|entry| entry.index < low).take(count);
        let read = within(read, max_size);
        if self.read.first().is_some_and(|first| first.index <= low) && !read.is_empty() {
            return Ok(read);
        }
        debug_assert!(context.can_async(), "{low} is handed out, and only peers lag behind that");
        self.wants_disk.set(true);
        Err(StorageError::LogTemporarilyUnavailable.into())
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

    /// Only returns the position of the state machine. The node sends the state in its own way.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        if self.applied.index < request_index {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        let mut snapshot = Snapshot::default();
        let meta = snapshot.mut_metadata();
        meta.index = self.applied.index;
        meta.term = self.applied.term;
        meta.set_conf_state(ConfState::from(&self.voting));
        Ok(snapshot)
    }
}

/// As many of these entries as take this many bytes, but at least one.
fn within<'a>(entries: impl Iterator<Item = &'a Entry>, max_size: u64) -> Vec<Entry> {
    let mut bytes = 0;
    let within = entries.enumerate().take_while(|(place, entry)| {
        bytes += size(entry);
        *place == 0 || bytes <= max_size
    });
    within.map(|(_, entry)| entry.clone()).collect()
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
        let (hard_state, voting) = (HardState::default(), Voting::default());
        MemLog::new(position, LogOutline::default(), entries, hard_state, voting, position)
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
        assert_eq!(log.bytes(), 22 + 4 * ENTRY_BYTES);
    }

    #[test]
    fn entries_are_limited_but_never_none() {
        let log = log(0, 5);
        assert_eq!(log.entries(1, 6, None, context()).unwrap().len(), 5);
        assert_eq!(log.entries(1, 6, Some(0), context()).unwrap().len(), 1);
        assert_eq!(log.entries(2, 6, Some(2 * (10 + ENTRY_BYTES)), context()).unwrap().len(), 2);
        assert!(log.entries(0, 3, None, context()).is_err());
        assert!(log.entries(1, 7, None, context()).is_err());
    }

    #[test]
    fn compaction_keeps_what_is_not_handed_out_and_what_laggards_need() {
        let mut log = log(0, 10);
        log.set_applied(Position { index: 6, term: 1 });
        assert_eq!(log.keep_from(6, 2 * (10 + ENTRY_BYTES)), 5);
        assert_eq!(log.keep_from(6, 0), 7);
        assert_eq!(log.keep_from(6, 100_000), 1);
        log.compact(9, 6);
        assert_eq!(log.first_index().unwrap(), 7);
        assert_eq!(log.term(6).unwrap(), 1);
        assert!(log.term(5).is_err());
        assert_eq!(log.bytes(), 4 * (10 + ENTRY_BYTES));
    }

    #[test]
    fn entries_out_of_memory_are_wanted_from_the_disk() {
        let mut log = log(0, 10);
        let all = log.entries(1, 11, None, context()).unwrap();
        log.set_applied(Position { index: 6, term: 1 });
        log.trim(0, 6);
        assert_eq!(log.bytes(), 4 * (10 + ENTRY_BYTES));
        assert_eq!((log.first_index().unwrap(), log.last().index), (1, 10));
        assert_eq!(log.term(3).unwrap(), 1);
        assert_eq!(log.entries(7, 11, None, context()).unwrap(), all[6..]);
        assert!(!log.take_wants_disk());
        let wanted = log.entries(3, 11, None, GetEntriesContext::empty(true));
        assert_eq!(wanted, Err(StorageError::LogTemporarilyUnavailable.into()));
        assert!(log.take_wants_disk() && !log.take_wants_disk());
        let ours: Vec<LogEntry> = all.iter().map(LogEntry::from).collect();
        assert!(log.lend(&ours[2..5]));
        assert_eq!(log.entries(3, 11, None, GetEntriesContext::empty(true)).unwrap(), all[2..5]);
        assert_eq!(log.entries(4, 11, Some(0), context()).unwrap(), all[3..4]);
        assert!(log.entries(6, 11, None, GetEntriesContext::empty(true)).is_err());
        assert!(!log.lend(&[LogEntry::from(&entry(3, 2, 10))]), "of another term");
        // Runs are kept or dropped as a whole.
        assert_eq!((log.keep_from(6, 100_000), log.keep_from(6, 5 * (10 + ENTRY_BYTES))), (1, 7));
        log.compact(4, 6);
        assert_eq!((log.first_index().unwrap(), log.term(3).unwrap()), (4, 1));
        log.compact(100, 8);
        assert_eq!((log.first_index().unwrap(), log.bytes()), (9, 2 * (10 + ENTRY_BYTES)));
    }

    #[test]
    fn committed_entries_are_applied_up_to_a_change_of_the_voters() {
        let mut log = log(3, 8);
        let change = Entry { entry_type: EntryType::EntryConfChangeV2, ..entry(7, 1, 0) };
        log.append(&[change, entry(8, 1, 1)]);
        for (applied, committed, next) in [
            (3, 6, Some(4)),
            (5, 6, Some(6)),
            (5, 20, Some(6)),
            (5, 5, None),
            (6, 20, None),
            (8, 20, None),
        ] {
            log.set_applied(Position { index: applied, term: 1 });
            let entry = log.next_to_apply(committed);
            assert_eq!(entry.map(|entry| entry.index), next, "{applied} {committed}");
        }
    }

    #[test]
    fn a_snapshot_stands_for_what_is_applied() {
        let mut log = log(0, 10);
        log.set_applied(Position { index: 4, term: 1 });
        assert_eq!(log.snapshot(0, 2).unwrap().get_metadata().index, 4);
        assert!(log.snapshot(5, 2).is_err());
        log.reset(Position { index: 20, term: 3 }, Voting::default());
        assert_eq!(log.last(), Position { index: 20, term: 3 });
        assert_eq!(log.first_index().unwrap(), 21);
    }
}
