//! The entries where all bits of the hash are used, in the order of their keys.
//!
//! By chance no such place has more than one entry, so a table usually has no such place at all. But the hash function
//! is public, and anybody can make any number of paths that have one hash. In this order, a look-up and a change of
//! one of them takes logarithmic time, as elsewhere.

use std::borrow::Borrow;
use std::cmp::Ordering;

use rpds::RedBlackTreeSetSync;

use super::{New, TrieEntry};

#[derive(Clone)]
pub(super) struct Ordered<T: TrieEntry>(RedBlackTreeSetSync<ByKey<T>>);

/// Entries are equal if their keys are.
#[derive(Clone)]
struct ByKey<T>(T);

impl<T: TrieEntry> Ordered<T> {
    pub(super) fn new() -> Ordered<T> {
        Ordered(RedBlackTreeSetSync::new_sync())
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&T> {
        self.0.get(key).map(|ByKey(entry)| entry)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|ByKey(entry)| entry)
    }

    /// An entry with the same key is replaced.
    pub(super) fn insert(&mut self, entry: T) {
        self.0.insert_mut(ByKey(entry));
    }

    /// As [`TrieNode::insert_all`](super::node::TrieNode::insert_all).
    pub(super) fn insert_all(
        &mut self,
        new: &mut [New<T>],
        replaced: &mut impl FnMut(&T, &mut T, u32),
    ) -> usize {
        let before = self.0.size();
        for New { place, entry, .. } in new {
            let Some(mut entry) = entry.take() else { continue };
            if let Some(former) = self.get(entry.key()) {
                replaced(former, &mut entry, *place);
            }
            self.insert(entry);
        }
        self.0.size() - before
    }

    pub(super) fn change<R>(&mut self, key: &[u8], change: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut entry = self.get(key)?.clone();
        let result = change(&mut entry);
        self.insert(entry);
        Some(result)
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<T> {
        let entry = self.get(key)?.clone();
        self.0.remove_mut(key);
        Some(entry)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: TrieEntry> Borrow<[u8]> for ByKey<T> {
    fn borrow(&self) -> &[u8] {
        self.0.key()
    }
}

impl<T: TrieEntry> PartialEq for ByKey<T> {
    fn eq(&self, other: &ByKey<T>) -> bool {
        self.0.key() == other.0.key()
    }
}

impl<T: TrieEntry> Eq for ByKey<T> {}

impl<T: TrieEntry> PartialOrd for ByKey<T> {
    fn partial_cmp(&self, other: &ByKey<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: TrieEntry> Ord for ByKey<T> {
    fn cmp(&self, other: &ByKey<T>) -> Ordering {
        self.0.key().cmp(other.0.key())
    }
}
