//! A persistent hash table: a trie over the bits of a key's hash, with small buckets at its ends.
//!
//! A clone shares everything. A change copies the nodes on its way that are shared, and changes the
//! others in place.
//!
//! In a large tree, cache misses cost more than instructions. So a look-up of one key among a million
//! reads only two places outside of the caches: its bucket, which has one byte of each hash beside the
//! pointers, and the entry itself, which is one allocation. Before a node is copied, the counters of all
//! its targets are read (`read_counters`), since the processor reads many places at a time but increments
//! them one after the other.
//!
//! Invariants:
//! - An entry is in the bucket that the bits of its hash lead to, from the lowest ones up.
//! - A bucket has 1 to [`BUCKET_MAX`] entries, or more where all bits of the hash are used.
//! - Not all children of an inner node are empty.

use std::hint::black_box;
use std::iter;

use triomphe::{Arc, ThinArc};
use xxhash_rust::xxh3::xxh3_64;

/// An entry: a pointer to the value, which contains the key.
pub(super) trait TrieEntry: Clone {
    fn key(&self) -> &[u8];

    /// The number of clones.
    fn count(&self) -> usize;
}

/// The bits of the hash that each level uses.
const BITS: u32 = 4;
const WIDTH: usize = 1 << BITS;
/// The depth at which no bits are left.
const DEPTH_MAX: u32 = u64::BITS / BITS;
/// A bucket with more entries becomes an inner node with [`WIDTH`] buckets.
const BUCKET_MAX: usize = 32;

#[derive(Clone)]
pub(super) struct Trie<T> {
    root: TrieNode<T>,
    len: usize,
}

#[derive(Clone)]
enum TrieNode<T> {
    Empty,
    Bucket(Bucket<T>),
    Inner(Arc<[TrieNode<T>; WIDTH]>),
}

/// Some entries, in no particular order. Their tags come first, so that a look-up usually reads only the
/// entry that it looks for.
#[derive(Clone)]
struct Bucket<T>(ThinArc<Tags, Option<T>>);

type Tags = [u8; BUCKET_MAX];

/// An entry for [`Trie::insert_all`].
#[derive(Debug)]
pub(super) struct New<T> {
    hash: u64,
    /// Its place among those that are inserted together.
    place: u32,
    /// `None` once it is in the table.
    entry: Option<T>,
}

impl<T: TrieEntry> New<T> {
    pub(super) fn of(entry: T, place: u32) -> New<T> {
        New { hash: hash(entry.key()), place, entry: Some(entry) }
    }
}

/// The hash of a key: the same everywhere and always.
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

impl<T: TrieEntry> Trie<T> {
    pub(super) fn new() -> Trie<T> {
        Trie { root: TrieNode::Empty, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&T> {
        let hash = hash(key);
        let bucket = self.bucket(hash)?;
        bucket.entries().get(bucket.find(hash, key)?)?.as_ref()
    }

    /// The entries whose keys have this hash.
    pub(super) fn with_hash(&self, of: u64) -> impl Iterator<Item = &T> {
        let tagged = self.bucket(of).into_iter().flat_map(move |bucket| bucket.tagged(of));
        tagged.filter(move |entry| hash(entry.key()) == of)
    }

    /// The bucket for keys of this hash, if there is one.
    fn bucket(&self, hash: u64) -> Option<&Bucket<T>> {
        let (mut node, mut depth) = (&self.root, 0);
        loop {
            match node {
                TrieNode::Empty => return None,
                TrieNode::Bucket(bucket) => return Some(bucket),
                TrieNode::Inner(children) => node = &children[branch(hash, depth)],
            }
            depth += 1;
        }
    }

    /// The place for keys of this hash, a bucket or empty, and its depth.
    fn leaf(&mut self, hash: u64) -> (&mut TrieNode<T>, u32) {
        let (mut node, mut depth) = (&mut self.root, 0);
        loop {
            match node {
                TrieNode::Inner(children) => node = &mut own(children)[branch(hash, depth)],
                leaf => return (leaf, depth),
            }
            depth += 1;
        }
    }

    /// Returns the entry that had the key before.
    pub(super) fn insert(&mut self, entry: T) -> Option<T> {
        let hash = hash(entry.key());
        let (leaf, depth) = self.leaf(hash);
        let (mut tags, mut entries) = match leaf {
            TrieNode::Bucket(bucket) => {
                if let Some(place) = bucket.find(hash, entry.key()) {
                    return bucket.change(|entries| entries.get_mut(place)?.replace(entry));
                }
                bucket.take()
            }
            _ => ([tag(hash); BUCKET_MAX], Vec::new()),
        };
        if let Some(free) = tags.get_mut(entries.len()) {
            *free = tag(hash);
        }
        entries.push(Some(entry));
        *leaf = match entries.len() > BUCKET_MAX && depth < DEPTH_MAX {
            true => TrieNode::split(entries, depth),
            false => TrieNode::Bucket(Bucket::new(tags, entries)),
        };
        self.len += 1;
        None
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
        // The bits that are used first come first, so the entries of each node are neighbours.
        new.sort_by_key(|new| new.hash.reverse_bits());
        self.len += self.root.insert_all(&mut new, 0, &mut replaced);
    }

    /// Changes an entry, but not its key; `None` if there is no such entry.
    pub(super) fn update<R>(&mut self, key: &[u8], change: impl FnOnce(&mut T) -> R) -> Option<R> {
        let hash = hash(key);
        let (TrieNode::Bucket(bucket), _) = self.leaf(hash) else { return None };
        let place = bucket.find(hash, key)?;
        bucket.change(|entries| entries.get_mut(place)?.as_mut().map(change))
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<T> {
        // Nothing is copied for a missing key.
        self.get(key)?;
        let removed = self.root.remove(hash(key), key, 0);
        self.len -= usize::from(removed.is_some());
        removed
    }
}

impl<T: TrieEntry> TrieNode<T> {
    /// The entries of a full bucket, in buckets at the next depth.
    fn split(entries: Vec<Option<T>>, depth: u32) -> TrieNode<T> {
        let mut parts: [(Vec<u8>, Vec<Option<T>>); WIDTH] = Default::default();
        for entry in entries.into_iter().flatten() {
            let hash = hash(entry.key());
            let (tags, entries) = &mut parts[branch(hash, depth)];
            tags.push(tag(hash));
            entries.push(Some(entry));
        }
        TrieNode::Inner(Arc::new(parts.map(|(tags, entries)| {
            if entries.is_empty() {
                return TrieNode::Empty;
            }
            // All entries may be equal in these bits.
            if entries.len() > BUCKET_MAX && depth + 1 < DEPTH_MAX {
                return TrieNode::split(entries, depth + 1);
            }
            let mut all_tags = [0; BUCKET_MAX];
            all_tags.iter_mut().zip(tags).for_each(|(place, tag)| *place = tag);
            TrieNode::Bucket(Bucket::new(all_tags, entries))
        })))
    }

    /// Returns how many entries have no former one.
    fn insert_all(
        &mut self,
        new: &mut [New<T>],
        depth: u32,
        replaced: &mut impl FnMut(&T, &mut T, u32),
    ) -> usize {
        let (tags, entries) = match self {
            TrieNode::Inner(children) => {
                let (children, mut rest, mut added) = (own(children), new, 0);
                while let Some(first) = rest.first() {
                    let branch = |new: &New<T>| branch(new.hash, depth);
                    let of = branch(first);
                    let count = rest.partition_point(|new| branch(new) == of);
                    let (part, others) = rest.split_at_mut(count);
                    added += children[of].insert_all(part, depth + 1, replaced);
                    rest = others;
                }
                return added;
            }
            TrieNode::Bucket(bucket) => bucket.take(),
            TrieNode::Empty => ([0; BUCKET_MAX], Vec::new()),
        };
        if entries.len() + new.len() > BUCKET_MAX && depth < DEPTH_MAX {
            *self = TrieNode::split(entries, depth);
            return self.insert_all(new, depth, replaced);
        }
        let (bucket, added) = Bucket::with(tags, entries, new, replaced);
        *self = TrieNode::Bucket(bucket);
        added
    }

    fn remove(&mut self, hash: u64, key: &[u8], depth: u32) -> Option<T> {
        let (removed, is_empty) = match self {
            TrieNode::Empty => return None,
            TrieNode::Bucket(bucket) => {
                let place = bucket.find(hash, key)?;
                let (mut tags, mut entries) = bucket.take();
                let last = tags.get(entries.len() - 1).copied().unwrap_or(tag(hash));
                if let Some(tag) = tags.get_mut(place) {
                    *tag = last;
                }
                let removed = entries.swap_remove(place);
                let is_empty = entries.is_empty();
                *bucket = Bucket::new(tags, entries);
                (removed, is_empty)
            }
            TrieNode::Inner(children) => {
                let children = own(children);
                let removed = children[branch(hash, depth)].remove(hash, key, depth + 1);
                (removed, children.iter().all(|child| matches!(child, TrieNode::Empty)))
            }
        };
        if is_empty {
            *self = TrieNode::Empty;
        }
        removed
    }

    fn count(&self) -> usize {
        match self {
            TrieNode::Empty => 0,
            TrieNode::Bucket(bucket) => ThinArc::strong_count(&bucket.0),
            TrieNode::Inner(children) => Arc::strong_count(children),
        }
    }
}

impl<T: TrieEntry> Bucket<T> {
    fn new(tags: Tags, entries: Vec<Option<T>>) -> Bucket<T> {
        Bucket(ThinArc::from_header_and_iter(tags, entries.into_iter()))
    }

    /// A bucket with these entries and new ones, and how many of these have no former one.
    fn with(
        mut tags: Tags,
        mut entries: Vec<Option<T>>,
        new: &mut [New<T>],
        replaced: &mut impl FnMut(&T, &mut T, u32),
    ) -> (Bucket<T>, usize) {
        let before = entries.len();
        entries.reserve_exact(new.len());
        for New { hash, place, entry } in new {
            let Some(mut entry) = entry.take() else { continue };
            let tag = tag(*hash);
            let former = entries.iter_mut().enumerate().find_map(|(at, former)| {
                let is_tagged = tags.get(at).is_none_or(|of_entry| *of_entry == tag);
                former.as_mut().filter(|former| is_tagged && former.key() == entry.key())
            });
            if let Some(former) = former {
                replaced(former, &mut entry, *place);
                *former = entry;
                continue;
            }
            if let Some(free) = tags.get_mut(entries.len()) {
                *free = tag;
            }
            entries.push(Some(entry));
        }
        let added = entries.len() - before;
        (Bucket::new(tags, entries), added)
    }

    /// The entries, which are `None` only while the bucket is replaced.
    fn entries(&self) -> &[Option<T>] {
        &self.0.slice
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let has_key = |entry: &Option<T>| entry.as_ref().is_some_and(|entry| entry.key() == key);
        let mut tagged = self.tags(hash).zip(self.entries());
        tagged.position(|(of_entry, entry)| of_entry == tag(hash) && has_key(entry))
    }

    /// The entries whose keys may have this hash.
    fn tagged(&self, hash: u64) -> impl Iterator<Item = &T> {
        let tagged = self.tags(hash).zip(self.entries());
        tagged
            .filter(move |(of_entry, _)| *of_entry == tag(hash))
            .filter_map(|(_, entry)| entry.as_ref())
    }

    /// The tags of the entries, for a look-up of this hash. Entries beyond the stored tags match always.
    fn tags(&self, hash: u64) -> impl Iterator<Item = u8> {
        self.0.header.header.iter().copied().chain(iter::repeat(tag(hash)))
    }

    /// The tags and entries, to make another bucket of them.
    fn take(&mut self) -> (Tags, Vec<Option<T>>) {
        let own = self.0.with_arc_mut(|bucket| {
            let bucket = Arc::get_mut(bucket)?;
            Some(bucket.slice_mut().iter_mut().map(Option::take).collect())
        });
        let entries = own.unwrap_or_else(|| {
            read_counters(self.entries().iter().flatten().map(TrieEntry::count));
            self.entries().to_vec()
        });
        (self.0.header.header, entries)
    }

    /// Changes the entries in place, in a copy if the bucket is shared.
    fn change<R>(&mut self, change: impl FnOnce(&mut [Option<T>]) -> Option<R>) -> Option<R> {
        if ThinArc::strong_count(&self.0) > 1 {
            read_counters(self.entries().iter().flatten().map(TrieEntry::count));
            let copies = self.entries().iter().cloned();
            self.0 = ThinArc::from_header_and_iter(self.0.header.header, copies);
        }
        // The bucket is not shared now.
        self.0.with_arc_mut(|bucket| change(Arc::get_mut(bucket)?.slice_mut()))
    }
}

/// The children, to change them; a copy of them if they are shared.
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
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A key and a value.
    type Pair = Arc<(Vec<u8>, u32)>;

    impl TrieEntry for Pair {
        fn key(&self) -> &[u8] {
            &self.0
        }

        fn count(&self) -> usize {
            Arc::strong_count(self)
        }
    }

    fn all(trie: &Trie<Pair>) -> BTreeMap<Vec<u8>, u32> {
        fn collect(node: &TrieNode<Pair>, all: &mut BTreeMap<Vec<u8>, u32>) {
            match node {
                TrieNode::Empty => {}
                TrieNode::Bucket(bucket) => {
                    assert!(!bucket.entries().is_empty());
                    let pairs = bucket.entries().iter().map(|pair| pair.as_ref().unwrap());
                    all.extend(pairs.map(|pair| (**pair).clone()));
                }
                TrieNode::Inner(children) => {
                    assert!(children.iter().any(|child| !matches!(child, TrieNode::Empty)));
                    children.iter().for_each(|child| collect(child, all));
                }
            }
        }
        let mut all = BTreeMap::new();
        collect(&trie.root, &mut all);
        assert_eq!(all.len(), trie.len());
        all
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u16),
        Update(u16),
        Remove(u16),
        RemoveAllBelow(u16),
        InsertAll(Vec<u16>),
        Clone,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => any::<u16>().prop_map(Step::Insert),
            2 => any::<u16>().prop_map(Step::Update),
            4 => any::<u16>().prop_map(Step::Remove),
            1 => any::<u16>().prop_map(Step::RemoveAllBelow),
            1 => prop::collection::vec(any::<u16>(), 0..300).prop_map(Step::InsertAll),
            1 => Just(Step::Clone),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_a_map(steps in prop::collection::vec(step(), 0..2000), keys in 1..2000u16) {
            let key = |n: u16| (n % keys).to_le_bytes().to_vec();
            let (mut trie, mut map) = (Trie::new(), BTreeMap::new());
            let mut clones = Vec::new();
            for (value, step) in (0..).zip(steps) {
                match step {
                    Step::Insert(n) => {
                        let before = trie.insert(Arc::new((key(n), value)));
                        prop_assert_eq!(before.map(|pair| pair.1), map.insert(key(n), value));
                    }
                    Step::Update(n) => {
                        let old = trie.update(&key(n), |pair| Arc::make_mut(pair).1 += 7);
                        let expected = map.get_mut(&key(n)).map(|known| *known += 7);
                        prop_assert_eq!(old, expected);
                    }
                    Step::Remove(n) => {
                        let removed = trie.remove(&key(n)).map(|pair| pair.1);
                        prop_assert_eq!(removed, map.remove(&key(n)));
                    }
                    Step::RemoveAllBelow(n) => {
                        for n in 0..n % keys {
                            let removed = trie.remove(&key(n)).map(|pair| pair.1);
                            prop_assert_eq!(removed, map.remove(&key(n)));
                        }
                    }
                    Step::InsertAll(numbers) => {
                        let places = numbers.iter().zip(0..);
                        let new =
                            places.map(|(n, place)| New::of(Arc::new((key(*n), value)), place));
                        let mut replaced = Vec::new();
                        trie.insert_all(new.collect(), |former, pair, place| {
                            assert_eq!(former.0, pair.0);
                            replaced.push((place, former.1));
                        });
                        replaced.sort_unstable();
                        let known = numbers.iter().zip(0..).filter_map(|(n, place)| {
                            Some((place, map.insert(key(*n), value)?))
                        });
                        prop_assert_eq!(replaced, known.collect::<Vec<(u32, u32)>>());
                    }
                    Step::Clone => clones.push((trie.clone(), map.clone())),
                }
                prop_assert_eq!(trie.len(), map.len());
            }
            for n in 0..keys {
                let found = trie.get(&key(n)).map(|pair| &pair.1);
                prop_assert_eq!(found, map.get(&key(n)));
            }
            prop_assert_eq!(all(&trie), map);
            for (trie, map) in clones {
                prop_assert_eq!(all(&trie), map);
            }
        }
    }

    #[test]
    fn a_bucket_holds_any_number_of_equal_hashes() {
        // No keys with equal hashes are known, so the test builds the bucket directly.
        let pairs = (0..100u8).map(|n| Some(Arc::new((vec![n], 0))));
        let bucket: Bucket<Pair> = Bucket::new([tag(hash(&[70])); BUCKET_MAX], pairs.collect());
        assert_eq!(bucket.find(hash(&[70]), &[70]), Some(70));
        assert_eq!(bucket.find(hash(&[70]), &[5]), Some(5));
        assert_eq!(bucket.find(hash(&[70]), &[200]), None);
    }

    #[test]
    fn any_number_of_entries_with_equal_hashes_is_inserted_together() {
        let pairs = (0..100u8).map(|n| Arc::new((vec![n % 80], u32::from(n))));
        let new = pairs.zip(0..).map(|(pair, place)| New { hash: 7, place, entry: Some(pair) });
        let (mut new, mut replaced) = (new.collect::<Vec<New<Pair>>>(), Vec::new());
        let mut node = TrieNode::Empty;
        let added = node.insert_all(&mut new, DEPTH_MAX, &mut |former, pair, place| {
            assert_eq!((former.0[0], pair.0[0]), (place as u8 - 80, place as u8 - 80));
            replaced.push(place);
        });
        assert_eq!((added, replaced), (80, (80..100).collect()));
        let TrieNode::Bucket(bucket) = node else { panic!("not a bucket") };
        let values = bucket.entries().iter().flatten().map(|pair| pair.1).collect::<Vec<u32>>();
        assert_eq!(values, (80..100).chain(20..80).collect::<Vec<u32>>());
    }
}
