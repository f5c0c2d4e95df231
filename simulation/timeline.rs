//! The queue of future events. Of two events at the same time, the one added first comes first.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::clock::Nanos;

#[derive(Debug)]
pub(crate) struct Timeline<T> {
    due: BinaryHeap<Reverse<Due<T>>>,
    sequence: u64,
}

#[derive(Debug)]
struct Due<T> {
    at: Nanos,
    sequence: u64,
    what: T,
}

impl<T> Default for Timeline<T> {
    fn default() -> Timeline<T> {
        Timeline { due: BinaryHeap::new(), sequence: 0 }
    }
}

impl<T> Timeline<T> {
    pub(crate) fn add(&mut self, at: Nanos, what: T) {
        self.sequence += 1;
        self.due.push(Reverse(Due { at, sequence: self.sequence, what }));
    }

    /// When the next event is due.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.due.peek().map(|Reverse(due)| due.at)
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.due.pop().map(|Reverse(due)| due.what)
    }
}

impl<T> PartialEq for Due<T> {
    fn eq(&self, other: &Due<T>) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl<T> Eq for Due<T> {}

impl<T> PartialOrd for Due<T> {
    fn partial_cmp(&self, other: &Due<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Due<T> {
    fn cmp(&self, other: &Due<T>) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}
