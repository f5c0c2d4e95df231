//! The outline of entries that only the disk has: their terms, and about how many bytes they take.

use std::collections::VecDeque;

/// Consecutive entries of one term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TermRun {
    first: u64,
    term: u64,
    bytes: u64,
}

/// A run grows up to this many bytes. Byte counts are exact to about that.
const RUN_BYTES: u64 = 64 << 10;

/// Contiguous entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogOutline {
    runs: VecDeque<TermRun>,
    /// The index after the last entry.
    end: u64,
    bytes: u64,
}

impl LogOutline {
    /// Adds an entry. It follows the last one, unless there is none.
    pub(crate) fn push(&mut self, index: u64, term: u64, bytes: u64) {
        debug_assert!(self.runs.is_empty() || index == self.end, "{index} after {}", self.end);
        self.end = index + 1;
        self.bytes += bytes;
        match self.runs.back_mut() {
            Some(last) if last.term == term && last.bytes < RUN_BYTES => last.bytes += bytes,
            _ => self.runs.push_back(TermRun { first: index, term, bytes }),
        }
    }

    /// About how many bytes all entries take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The index of the first entry.
    pub(crate) fn first(&self) -> Option<u64> {
        self.runs.front().map(|run| run.first)
    }

    /// The index and the term of the last entry.
    pub(crate) fn last(&self) -> Option<(u64, u64)> {
        self.runs.back().map(|run| (self.end - 1, run.term))
    }

    pub(crate) fn contains(&self, index: u64) -> bool {
        self.first().is_some_and(|first| (first..self.end).contains(&index))
    }

    pub(crate) fn term_at(&self, index: u64) -> Option<u64> {
        if !self.contains(index) {
            return None;
        }
        let place = self.runs.partition_point(|run| run.first <= index);
        self.runs.get(place.checked_sub(1)?).map(|run| run.term)
    }

    /// Whether no entry is of an earlier term than the one before it.
    pub(crate) fn is_in_order(&self) -> bool {
        self.runs.iter().zip(self.runs.iter().skip(1)).all(|(run, next)| run.term <= next.term)
    }

    pub(crate) fn clear(&mut self) {
        *self = LogOutline::default();
    }

    /// Drops the entries below `index`.
    pub(crate) fn drop_before(&mut self, index: u64) {
        if index >= self.end {
            return self.clear();
        }
        while let Some(second) = self.runs.get(1)
            && second.first <= index
        {
            self.bytes -= self.runs.pop_front().map_or(0, |run| run.bytes);
        }
        if let Some(first) = self.runs.front_mut() {
            first.first = first.first.max(index);
        }
    }

    /// Drops the entries from `index` on.
    pub(crate) fn drop_from(&mut self, index: u64) {
        while let Some(last) = self.runs.back()
            && last.first >= index
        {
            self.bytes -= self.runs.pop_back().map_or(0, |run| run.bytes);
        }
        self.end = self.end.min(index);
    }

    /// The first index from which on the entries take this many bytes, at most.
    pub(crate) fn newest(&self, bytes: u64) -> u64 {
        let mut kept = 0;
        let within = self.runs.iter().rev().take_while(|run| {
            kept += run.bytes;
            kept <= bytes
        });
        within.last().map_or(self.end, |run| run.first)
    }

    /// About how many bytes the entries from one index to another take, without the latter.
    pub(crate) fn bytes_between(&self, from: u64, upto: u64) -> u64 {
        let runs = self.runs.iter().rev().skip_while(|run| run.first >= upto);
        runs.take_while(|run| run.first >= from).map(|run| run.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries from 11 on, 20 of each term, each a quarter of a run.
    fn outline(upto: u64) -> LogOutline {
        let mut outline = LogOutline::default();
        (11..=upto).for_each(|index| outline.push(index, 1 + (index - 11) / 20, RUN_BYTES / 4));
        outline
    }

    #[test]
    fn terms_are_known_at_every_index() {
        let mut outline = outline(60);
        let terms: Vec<u64> = (11..=60).filter_map(|index| outline.term_at(index)).collect();
        assert_eq!(terms, (0..50).map(|place| 1 + place / 20).collect::<Vec<_>>());
        assert_eq!((outline.term_at(10), outline.term_at(61)), (None, None));
        assert_eq!(outline.last(), Some((60, 3)));
        assert!(outline.is_in_order());
        outline.drop_from(43);
        assert_eq!((outline.last(), outline.term_at(43)), (Some((42, 2)), None));
        outline.push(43, 9, 1);
        assert_eq!((outline.term_at(42), outline.term_at(43)), (Some(2), Some(9)));
        outline.push(44, 8, 1);
        assert!(!outline.is_in_order());
    }

    #[test]
    fn entries_are_dropped_at_both_ends() {
        let mut outline = outline(30);
        outline.drop_before(17);
        assert_eq!(
            (outline.first(), outline.term_at(16), outline.term_at(17)),
            (Some(17), None, Some(1))
        );
        outline.drop_from(18);
        assert!(outline.contains(17) && !outline.contains(18));
        outline.drop_before(18);
        assert_eq!(outline, LogOutline::default());
    }

    #[test]
    fn bytes_are_counted_by_runs() {
        let outline = outline(30);
        assert_eq!(outline.newest(0), 31);
        assert_eq!(outline.newest(RUN_BYTES * 2), 23);
        assert_eq!(outline.newest(u64::MAX), 11);
        assert_eq!(outline.bytes_between(15, 23), 2 * RUN_BYTES);
        assert_eq!(outline.bytes_between(0, 100), 5 * RUN_BYTES);
    }
}
