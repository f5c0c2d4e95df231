//! Which records hold which entries of the log.
//!
//! A record is one append and replaces the log from its first entry on. So of each record, the
//! entries count that no later record replaces. Records are dropped from the front only, and only
//! when none of their entries is needed; the rest is still the same log.

use std::collections::VecDeque;

/// One log record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) seq: u64,
    /// The index of its first entry, and the index after its last one that was not replaced.
    pub(super) first: u64,
    pub(super) end: u64,
}

/// The records, oldest first.
#[derive(Debug, Default)]
pub(super) struct LogIndex {
    spans: VecDeque<Span>,
}

impl LogIndex {
    /// Adds the newest record; one without entries has `first == end`.
    pub(super) fn push(&mut self, span: Span) {
        if span.first < span.end {
            for older in self.spans.iter_mut().rev() {
                if older.first < older.end {
                    if older.end <= span.first {
                        break;
                    }
                    older.end = older.first.max(span.first);
                }
            }
        }
        self.spans.push_back(span);
    }

    /// How many of the oldest records can be dropped when entries below `from` are not needed.
    pub(super) fn droppable(&self, from: u64) -> usize {
        self.spans.iter().take_while(|span| span.first >= span.end || span.end <= from).count()
    }

    /// Forgets that many of the oldest records.
    pub(super) fn drop_oldest(&mut self, count: usize) {
        self.spans.drain(..count);
    }

    /// All records, oldest first.
    pub(super) fn spans(&self) -> impl Iterator<Item = &Span> {
        self.spans.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(ranges: &[(u64, u64)]) -> LogIndex {
        let mut index = LogIndex::default();
        for (seq, &(first, end)) in ranges.iter().enumerate() {
            index.push(Span { seq: seq as u64, first, end });
        }
        index
    }

    #[test]
    fn log_index_drops_what_no_entry_needs() {
        assert_eq!(index(&[(1, 11), (11, 12)]).droppable(11), 1);
        assert_eq!(index(&[(1, 11), (11, 12)]).droppable(10), 0);
        // The second record cut the first short, so index 7 needs neither.
        assert_eq!(index(&[(1, 11), (5, 7), (7, 9)]).droppable(7), 2);
        assert_eq!(index(&[(1, 11), (5, 7), (7, 9)]).droppable(6), 1);
        // The middle one was overwritten whole, and one holds a hard state only.
        assert_eq!(index(&[(1, 11), (8, 9), (0, 0), (3, 5)]).droppable(3), 3);
        assert_eq!(index(&[(1, 11), (8, 9), (0, 0), (3, 5)]).droppable(2), 0);
    }
}
