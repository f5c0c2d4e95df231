//! A persistent hash table: a trie over the bits of a key's hash, with small buckets at its ends, and buffers
//! on the way to them. Every look-up and change takes logarithmic time, whatever the keys and their hashes are.
//!
//! A clone shares everything. A change copies the nodes on its way that are shared, and changes the
//! others in place.
//!
//! In a large tree, cache misses cost more than instructions. So a look-up of one key among a million
//! reads only two places outside of the caches: its bucket, which has one byte of each hash beside the
//! pointers, and the entry itself, which is one allocation. Before a node is copied, the counters of all
//! its targets are read (`read_counters`), since the processor reads many places at a time but increments
//! them one after the other. And before some entries are changed, all of them are looked up together (`warm`): one
//! look-up alone is a chain of reads, each of which waits for the one before.
//!
//! To copy a bucket for one changed entry is expensive in a large tree: its entries are in no cache. So each inner
//! node at one depth has a buffer, as those of a Bε-tree (`buffer`): a bucket of entries that are changed again and
//! again, which are changed there from then on. The former entry stays in the bucket below, hidden. When a buffer is
//! full, it is merged into the buckets below it. So the changes of some thousand entries cost little more beside a
//! million others than without them. Those of random ones gain nothing, so they go past the buffers. A small table
//! has none.
//!
//! Invariants:
//! - An entry is in the bucket that the bits of its hash lead to, from the lowest ones up, or in the buffer on the way
//!   there. If it is in both, the one in the buffer is the newest.
//! - A bucket has 1 to [`BUCKET_MAX`] entries. Where all bits of the hash are used, there is no bucket: any number of
//!   entries are there, ordered by their keys (`ordered`).
//! - Not all children of an inner node are empty, unless it has a buffer, which is not.
//! - No hidden entry [`is_large`](TrieEntry::is_large): such an entry is changed where it is.

mod bucket;
mod buffer;
mod node;
mod ordered;

use std::hint::black_box;
use std::{mem, ptr};

use triomphe::Arc;
use xxhash_rust::xxh3::xxh3_64;

use buffer::buffer_max;
use node::{Leaf, TrieNode, Way};

/// An entry: a pointer to the value, which contains the key.
pub(super) trait TrieEntry: Clone {
    fn key(&self) -> &[u8];

    /// The number of clones.
    fn count(&self) -> usize;

    /// Whether it would take much memory to keep the entry while a newer one hides it.
    fn is_large(&self) -> bool;
}

/// The bits of the hash that each level uses.
const BITS: u32 = 4;
const WIDTH: usize = 1 << BITS;
/// The depth at which no bits are left.
const DEPTH_MAX: u32 = u64::BITS / BITS;
/// A table with fewer entries is in the caches.
const WARM_MIN: usize = if cfg!(test) { 8 } else { 32_768 };
/// A bucket with more entries becomes an inner node with [`WIDTH`] buckets.
const BUCKET_MAX: usize = 32;

#[derive(Clone)]
pub(super) struct Trie<T: TrieEntry> {
    root: TrieNode<T>,
    len: usize,
}

/// An entry for [`Trie::insert_all`].
#[derive(Debug)]
pub(super) struct New<T> {
    hash: u64,
    /// Its place among those that are inserted together.
    place: u32,
    /// Its place in its bucket, once it is known.
    at: usize,
    /// `None` once it is in the table.
    entry: Option<T>,
}

impl<T: TrieEntry> New<T> {
    pub(super) fn of(entry: T, place: u32) -> New<T> {
        New { hash: hash(entry.key()), place, at: 0, entry: Some(entry) }
    }
}

/// The newest entry with a key.
struct Found<'a, T> {
    entry: &'a T,
    in_buffer: bool,
    /// Its place in its bucket, if it is in one.
    place: usize,
}

/// The hash of a key: the same everywhere and always. Anybody can make keys with any hash.
pub(super) fn hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// The bits that are used last to find a bucket.
fn tag(hash: u64) -> u8 {
    hash.to_be_bytes()[0]
}

/// The child in an inner node at this depth that the hash leads to.
fn branch(hash: u64, depth: u32) -> usize {
    (hash >> (depth * BITS)) as usize % WIDTH
}

/// The bits that are used first come first, so the entries of each node are neighbours.
fn sort<T>(new: &mut [New<T>]) {
    new.sort_by_key(|new| new.hash.reverse_bits());
}

impl<T: TrieEntry> Trie<T> {
    pub(super) fn new() -> Trie<T> {
        Trie { root: TrieNode::Empty, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&T> {
        Some(self.find(hash(key), key)?.entry)
    }

    /// The wanted entries whose keys have this hash.
    pub(super) fn with_hash(
        &self,
        of: u64,
        is_wanted: impl Fn(&T) -> bool,
    ) -> impl Iterator<Item = &T> {
        let tagged = self.root.leaves(of, 0).flat_map(move |leaf| leaf.tagged(of));
        // One below a buffer may be hidden.
        tagged.filter(move |entry| {
            let newest = || self.find(of, entry.key()).map(|newest| newest.entry);
            is_wanted(entry)
                && hash(entry.key()) == of
                && newest().is_some_and(|newest| ptr::eq(newest, *entry))
        })
    }

    /// The newest entry with this key.
    fn find(&self, hash: u64, key: &[u8]) -> Option<Found<'_, T>> {
        #[cfg(test)]
        LOOKUPS.set(LOOKUPS.get() + 1);
        self.root.leaves(hash, 0).find_map(|leaf| {
            let (entry, place) = leaf.find(hash, key)?;
            Some(Found { entry, in_buffer: matches!(leaf, Leaf::Buffer(_)), place })
        })
    }

    /// Has the processor read what changes of these entries will need, level by level for all of them. Changes
    /// nothing.
    pub(super) fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        if self.len < WARM_MIN {
            return;
        }
        let mut lookups: Vec<(u64, &TrieNode<T>, bool)> =
            keys.map(|key| (hash(key), &self.root, false)).collect();
        if lookups.len() < 2 {
            return;
        }
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        for depth in 0..DEPTH_MAX {
            lookups.retain_mut(|(hash, node, is_shared)| {
                let Some(children) = node.children_below_buffer(*hash) else { return false };
                *is_shared |= node.count() > 1;
                *node = &children[branch(*hash, depth)];
                match node {
                    TrieNode::Bucket(bucket) if *is_shared => shared.push((children, bucket)),
                    TrieNode::Bucket(bucket) => own.push((*hash, bucket)),
                    _ => {}
                }
                true
            });
            if lookups.is_empty() {
                break;
            }
        }
        read_counters(own.iter().flat_map(|(hash, bucket)| bucket.tagged(*hash)).map(T::count));
        // A copy of a node counts one more of each target.
        read_counters(shared.iter().flat_map(|(children, _)| *children).map(TrieNode::count));
        let entries = shared.iter().flat_map(|(_, bucket)| bucket.entries().iter().flatten());
        read_counters(entries.map(T::count));
    }

    /// Inserts one entry. Only in a buffer may it have a former one below it.
    fn put(&mut self, hash: u64, entry: T, way: Way) {
        let mut new = [New { hash, place: 0, at: 0, entry: Some(entry) }];
        self.root.insert_all(&mut new, 0, way, &mut |_, _, _| {});
    }

    /// The way into the buffer for an entry that is not in it; `None` if it does not go there.
    fn way_to_buffer(&self, hash: u64) -> Option<Way> {
        let max = buffer_max(self.len);
        let admits = max > 0 && self.root.buffered(hash)?.has_passed(hash);
        admits.then_some(Way::Buffer { max })
    }

    /// Returns the entry that had the key before.
    pub(super) fn insert(&mut self, entry: T) -> Option<T> {
        let hash = hash(entry.key());
        if self.find(hash, entry.key()).is_none() {
            self.put(hash, entry, self.way_to_buffer(hash).unwrap_or(Way::Past));
            self.len += 1;
            return None;
        }
        let with_key = entry.clone();
        self.update(with_key.key(), |known| mem::replace(known, entry))
    }

    /// Inserts many entries, in a fraction of the time that it takes to insert each of them: every bucket is
    /// changed once. If an entry with the same key is there, or comes before, it is passed to `replaced` first, with
    /// the one that takes its place and with that one's place.
    pub(super) fn insert_all(
        &mut self,
        mut new: Vec<New<T>>,
        mut replaced: impl FnMut(&T, &mut T, u32),
    ) {
        if new.is_empty() {
            return;
        }
        sort(&mut new);
        self.len += self.root.insert_all(&mut new, 0, Way::After, &mut replaced);
    }

    /// Changes an entry, but not its key; `None` if there is no such entry.
    pub(super) fn update<R>(&mut self, key: &[u8], change: impl FnOnce(&mut T) -> R) -> Option<R> {
        let hash = hash(key);
        let Found { entry: found, in_buffer, place } = self.find(hash, key)?;
        if let Some(way) = self.way_to_buffer(hash).filter(|_| !in_buffer && !found.is_large()) {
            let mut entry = found.clone();
            let result = change(&mut entry);
            self.put(hash, entry, way);
            return Some(result);
        }
        self.root.change((hash, key), (in_buffer, place), true, change)
    }

    /// The same for an entry that was just changed, and that stays where it is.
    pub(super) fn update_again<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        let hash = hash(key);
        let Found { in_buffer, place, .. } = self.find(hash, key)?;
        self.root.change((hash, key), (in_buffer, place), false, change)
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<T> {
        // Nothing is copied for a missing key.
        let hash = hash(key);
        self.find(hash, key)?;
        let removed = self.root.remove(hash, key, 0);
        self.len -= usize::from(removed.is_some());
        removed
    }
}

/// The targets of a node, to change them; a copy of it if it is shared.
fn own<T: TrieEntry>(children: &mut Arc<[TrieNode<T>; WIDTH]>) -> &mut [TrieNode<T>; WIDTH] {
    if !children.is_unique() {
        read_counters(children.iter().map(TrieNode::count));
    }
    Arc::make_mut(children)
}

fn read_counters(counts: impl Iterator<Item = usize>) {
    black_box(counts.fold(0, usize::wrapping_add));
}

#[cfg(test)]
thread_local! {
    /// How many look-ups there were.
    pub(in crate::machine) static LOOKUPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests;
