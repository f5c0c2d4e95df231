//! Which records hold which entries of the log, and where they are.
//!
//! A record is one append, and replaces the log from its first entry on. So only those entries of a
//! record are valid that no later record replaces. Consecutive records are joined in one span, up to
//! [`SPAN_BYTES`]. Spans are dropped from the front only, and only when none of their entries is needed.

use std::collections::VecDeque;

/// The place of records: a range of bytes in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) struct SegmentRange {
    pub(in crate::storage) segment: u64,
    pub(in crate::storage) offset: u64,
    pub(in crate::storage) bytes: u64,
}

/// One record, or several consecutive ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) struct Span {
    /// The sequence number of the first.
    pub(in crate::storage) seq: u64,
    /// The index of the first entry, and the index after the last one that was not replaced.
    pub(in crate::storage) first: u64,
    pub(in crate::storage) end: u64,
    pub(in crate::storage) place: SegmentRange,
}

/// A span is extended up to this many bytes.
const SPAN_BYTES: u64 = 64 << 10;

impl Span {
    pub(in crate::storage) fn is_empty(&self) -> bool {
        self.first >= self.end
    }

    /// Joins a later span to this one if it continues this one. Returns whether it does.
    fn take(&mut self, later: &Span) -> bool {
        let SegmentRange { segment, offset, bytes } = self.place;
        let place = later.place;
        let adjoins = segment == place.segment && offset + bytes == place.offset;
        let follows = later.is_empty() || (!self.is_empty() && self.end == later.first);
        if !adjoins || !follows || bytes >= SPAN_BYTES {
            return false;
        }
        self.place.bytes += place.bytes;
        self.end = self.end.max(later.end);
        true
    }
}

/// The records, oldest first.
#[derive(Debug, Default)]
pub(in crate::storage) struct LogIndex {
    spans: VecDeque<Span>,
    /// The next record is not joined to the last span.
    sealed: bool,
}

impl LogIndex {
    /// Adds the newest record; one without entries has `first == end`.
    pub(in crate::storage) fn push(&mut self, span: Span) {
        let sealed = std::mem::take(&mut self.sealed);
        if !sealed && self.spans.back_mut().is_some_and(|last| last.take(&span)) {
            return;
        }
        if !span.is_empty() {
            for older in self.spans.iter_mut().rev() {
                if !older.is_empty() {
                    if older.end <= span.first {
                        break;
                    }
                    older.end = older.first.max(span.first);
                }
            }
        }
        self.spans.push_back(span);
    }

    /// Lets the next record begin a span, so that the present ones can be dropped without it.
    pub(in crate::storage) fn seal(&mut self) {
        self.sealed = true;
    }

    /// The records with the entries from this index on.
    pub(in crate::storage) fn from(&self, index: u64) -> impl Iterator<Item = &Span> {
        // A span whose entries were all replaced is empty, but its `end` may be after `index`.
        let start = self.spans.iter().position(|span| !span.is_empty() && span.end > index);
        let spans = self.spans.range(start.unwrap_or(self.spans.len())..);
        spans.filter(|span| !span.is_empty())
    }

    /// The index after the last entry in the segments up to this one; 0 if there is none.
    pub(in crate::storage) fn end_up_to(&self, segment: u64) -> u64 {
        let spans = self.spans.iter().take_while(|span| span.place.segment <= segment);
        spans.map(|span| span.end).max().unwrap_or(0)
    }

    /// How many of the oldest spans can be dropped when entries below `from` are not needed.
    pub(in crate::storage) fn droppable(&self, from: u64) -> usize {
        self.spans.iter().take_while(|span| span.is_empty() || span.end <= from).count()
    }

    /// Forgets that many of the oldest spans.
    pub(in crate::storage) fn drop_oldest(&mut self, count: usize) {
        self.spans.drain(..count);
    }

    /// All spans, oldest first.
    pub(in crate::storage) fn spans(&self) -> impl Iterator<Item = &Span> {
        self.spans.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(ranges: &[(u64, u64)]) -> LogIndex {
        let mut index = LogIndex::default();
        for (seq, &(first, end)) in ranges.iter().enumerate() {
            // Each in a segment of its own.
            let place = SegmentRange { segment: seq as u64, offset: 512, bytes: 80 };
            index.push(Span { seq: seq as u64, first, end, place });
        }
        index
    }

    #[test]
    fn log_index_drops_what_no_entry_needs() {
        assert_eq!(index(&[(1, 11), (11, 12)]).droppable(11), 1);
        assert_eq!(index(&[(1, 11), (11, 12)]).droppable(10), 0);
        // The second record replaced the end of the first, so neither is needed from index 7 on.
        assert_eq!(index(&[(1, 11), (5, 7), (7, 9)]).droppable(7), 2);
        assert_eq!(index(&[(1, 11), (5, 7), (7, 9)]).droppable(6), 1);
        // All entries of the second record were replaced, and the third has only a hard state.
        assert_eq!(index(&[(1, 11), (8, 9), (0, 0), (3, 5)]).droppable(3), 3);
        assert_eq!(index(&[(1, 11), (8, 9), (0, 0), (3, 5)]).droppable(2), 0);
    }
    #[test]
    fn log_index_joins_consecutive_records() {
        let mut index = LogIndex::default();
        let mut push = |seq: u64, first, end| {
            let place = SegmentRange { segment: 1, offset: seq * 80, bytes: 80 };
            index.push(Span { seq, first, end, place });
        };
        push(1, 1, 3);
        push(2, 3, 5);
        push(3, 0, 0);
        push(4, 5, 6);
        // This record replaces an entry, and after it a record is missing.
        push(5, 4, 6);
        push(7, 6, 9);
        let spans: Vec<_> = index.spans().map(|span| (span.seq, span.first, span.end)).collect();
        assert_eq!(spans, [(1, 1, 4), (5, 4, 6), (7, 6, 9)]);
        assert_eq!(index.spans().next().map(|span| span.place.bytes), Some(4 * 80));
        let from = |at| index.from(at).map(|span| span.seq).collect::<Vec<_>>();
        assert_eq!((from(3), from(4), from(8)), (vec![1, 5, 7], vec![5, 7], vec![7]));
        assert!(from(9).is_empty());
    }
}
