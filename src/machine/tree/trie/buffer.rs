//! The buffers: the entries that were changed lately, above the buckets where they belong.
//!
//! An entry comes into the buffer when it is changed for the second time within some changes. To put every entry there
//! would double the cost of sets of random znodes: each is copied into the buffer first, then into its bucket, and by
//! then the former one is in no cache any more.

use triomphe::Arc;

use super::bucket::Bucket;
use super::node::{TrieNode, Way, insert_below};
use super::{BITS, BUCKET_MAX, New, TrieEntry, WIDTH, branch, own, sort};

/// The depth at which inner nodes have buffers: 256 of them, whose tags fit into a processor's own cache. In tests,
/// small tables have them too.
pub(super) const BUFFER_DEPTH: u32 = if cfg!(test) { 1 } else { 2 };
/// A buffer has at most so many entries, which is one bucket ...
const BUFFER_MAX: usize = BUCKET_MAX;
/// ... and at most one for so many below it: this bounds the memory for hidden entries.
const SHARE: usize = if cfg!(test) { 2 } else { 8 };
/// Buffers with fewer entries below them than this are not used: those are in the caches.
const BELOW_MIN: usize = if cfg!(test) { 8 } else { 128 };
/// How many changes past a buffer it remembers.
const PASSED: usize = 32;

/// An inner node with a buffer.
#[derive(Clone)]
pub(super) struct Buffered<T: TrieEntry> {
    /// The newest entries.
    pub(super) buffer: Option<Bucket<T>>,
    passed: Passed,
    pub(super) children: Arc<[TrieNode<T>; WIDTH]>,
}

/// The last changes that have gone past a buffer.
#[derive(Clone, Default)]
struct Passed {
    /// A part of the hash of each.
    hashes: [u16; PASSED],
    /// Where the next one is written.
    next: u8,
}

/// A part of the hash that neither the tags nor the upper levels use.
fn part(hash: u64) -> u16 {
    (hash >> 32) as u16
}

/// The most entries in a buffer, in a table with so many entries; 0 if buffers are not used. Hashes are spread evenly,
/// so nobody needs to count what is below a buffer.
pub(super) fn buffer_max(len: usize) -> usize {
    let below = len >> (BITS * BUFFER_DEPTH);
    if below < BELOW_MIN { 0 } else { (below / SHARE).min(BUFFER_MAX) }
}

impl<T: TrieEntry> Buffered<T> {
    pub(super) fn new(children: Arc<[TrieNode<T>; WIDTH]>) -> Buffered<T> {
        Buffered { buffer: None, passed: Passed::default(), children }
    }

    /// Whether a change of an entry with this hash has gone past the buffer lately.
    pub(super) fn has_passed(&self, hash: u64) -> bool {
        self.passed.hashes.contains(&part(hash))
    }

    pub(super) fn pass(&mut self, hash: u64) {
        let Passed { hashes, next } = &mut self.passed;
        let at = usize::from(*next) % PASSED;
        hashes[at] = part(hash);
        *next = next.wrapping_add(1);
    }

    /// As [`TrieNode::insert_all`].
    pub(super) fn insert_all(
        &mut self,
        new: &mut [New<T>],
        depth: u32,
        way: Way,
        replaced: &mut impl FnMut(&T, &mut T, u32),
    ) -> usize {
        match way {
            Way::Buffer { max } => {
                let mut total = Bucket::assign(self.buffer.as_ref(), new, max);
                if total > max {
                    self.merge(depth);
                    total = Bucket::assign(None, new, usize::MAX);
                }
                self.buffer = Some(Bucket::with(self.buffer.as_mut(), new, total, replaced));
                return 0;
            }
            Way::Past => new.iter().for_each(|new| self.pass(new.hash)),
            Way::After => self.merge(depth),
        }
        insert_below(&mut self.children, new, depth, way, replaced)
    }

    /// Moves the entries of the buffer to where they belong below it.
    fn merge(&mut self, depth: u32) {
        let Some(mut buffer) = self.buffer.take() else { return };
        let entries = buffer.take().1.into_iter().flatten();
        let mut entries: Vec<New<T>> = entries.map(|entry| New::of(entry, 0)).collect();
        sort(&mut entries);
        insert_below(&mut self.children, &mut entries, depth, Way::Past, &mut |_, _, _| {});
    }

    /// Removes the entry from the buffer, and a hidden one from below it.
    pub(super) fn remove(&mut self, hash: u64, key: &[u8], depth: u32) -> Option<T> {
        let mut removed = None;
        if let Some(buffer) = &mut self.buffer
            && let Some(place) = buffer.find(hash, key)
        {
            removed = buffer.remove(place);
            if buffer.entries().is_empty() {
                self.buffer = None;
            }
        }
        // Nothing is copied where it is not.
        if self.children[branch(hash, depth)].has(hash, key, depth + 1) {
            let child = &mut own(&mut self.children)[branch(hash, depth)];
            let hidden = child.remove(hash, key, depth + 1);
            removed = removed.or(hidden);
        }
        removed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_none() && self.children.iter().all(TrieNode::is_empty)
    }
}
