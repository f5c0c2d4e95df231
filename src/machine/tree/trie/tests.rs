use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;

use super::bucket::Bucket;
use super::buffer::BUFFER_DEPTH;
use super::*;
use crate::machine::tests::colliding::colliding;

/// A key and a value.
type Pair = Arc<(Vec<u8>, u32)>;

impl TrieEntry for Pair {
    fn key(&self) -> &[u8] {
        &self.0
    }

    fn count(&self) -> usize {
        Arc::strong_count(self)
    }

    fn is_large(&self) -> bool {
        self.1 % 8 == 7
    }
}

/// All entries, and how many are in buffers. Checks the invariants.
fn all(trie: &Trie<Pair>) -> (BTreeMap<Vec<u8>, u32>, usize) {
    fn collect(node: &TrieNode<Pair>, depth: u32, all: &mut BTreeMap<Vec<u8>, u32>) -> usize {
        match node {
            TrieNode::Empty => 0,
            TrieNode::Bucket(bucket) => {
                assert!(depth < DEPTH_MAX);
                all.extend(pairs(bucket));
                0
            }
            TrieNode::Ordered(entries) => {
                assert!(depth == DEPTH_MAX && !entries.is_empty());
                all.extend(entries.iter().map(|pair| (**pair).clone()));
                0
            }
            TrieNode::Inner(children) => {
                assert_ne!(depth, BUFFER_DEPTH);
                assert!(!children.iter().all(TrieNode::is_empty));
                children.iter().map(|child| collect(child, depth + 1, all)).sum()
            }
            TrieNode::Buffered(node) => {
                assert_eq!(depth, BUFFER_DEPTH);
                assert!(!node.is_empty());
                let children = node.children.iter();
                let below: usize = children.map(|child| collect(child, depth + 1, all)).sum();
                assert_eq!(below, 0);
                let Some(buffer) = &node.buffer else { return 0 };
                for (key, value) in pairs(buffer) {
                    let hidden = all.insert(key, value);
                    assert!(hidden.is_none_or(|hidden| !Arc::new((Vec::new(), hidden)).is_large()));
                }
                buffer.entries().len()
            }
        }
    }
    fn pairs(bucket: &Bucket<Pair>) -> impl Iterator<Item = (Vec<u8>, u32)> {
        assert!((1..=BUCKET_MAX).contains(&bucket.entries().len()));
        bucket.entries().iter().map(|pair| (**pair.as_ref().unwrap()).clone())
    }
    let mut all = BTreeMap::new();
    let buffered = collect(&trie.root, 0, &mut all);
    assert_eq!(all.len(), trie.len());
    (all, buffered)
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
                    let keys: Vec<_> = numbers.iter().map(|n| key(*n)).collect();
                    trie.warm(keys.iter().map(Vec::as_slice));
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
                Step::Clone => {
                    clones.push((trie.clone(), map.clone()));
                    // Comparing more of them takes most of the time, and nodes should lose readers, too.
                    if clones.len() > 8 {
                        clones.swap_remove(value as usize % 8);
                    }
                }
            }
            prop_assert_eq!(trie.len(), map.len());
        }
        for n in 0..keys {
            let found = trie.get(&key(n)).map(|pair| &pair.1);
            prop_assert_eq!(found, map.get(&key(n)));
            let with_hash: Vec<&Pair> = trie.with_hash(hash(&key(n)), |_| true).collect();
            prop_assert_eq!(with_hash, trie.get(&key(n)).into_iter().collect::<Vec<&Pair>>());
        }
        prop_assert_eq!(all(&trie).0, map);
        for (trie, map) in clones {
            prop_assert_eq!(all(&trie).0, map);
        }
    }
}

/// An entry that counts how often a key was read, which is once or twice for each comparison, and how often an entry
/// was copied.
#[derive(Debug)]
struct Counted(Pair);

thread_local! {
    static READS: Cell<usize> = const { Cell::new(0) };
    static COPIES: Cell<usize> = const { Cell::new(0) };
}

fn reads_and_copies() -> (usize, usize) {
    (READS.take(), COPIES.take())
}

impl Clone for Counted {
    fn clone(&self) -> Counted {
        COPIES.set(COPIES.get() + 1);
        Counted(self.0.clone())
    }
}

impl TrieEntry for Counted {
    fn key(&self) -> &[u8] {
        READS.set(READS.get() + 1);
        self.0.key()
    }

    fn count(&self) -> usize {
        self.0.count()
    }

    fn is_large(&self) -> bool {
        self.0.is_large()
    }
}

/// Whoever chooses the keys can choose them so that all have the same hash.
#[test]
fn the_cost_of_a_change_is_bounded_for_keys_with_one_hash() {
    let count = 5000;
    let keys: Vec<Vec<u8>> = colliding("").take(count).map(String::into_bytes).collect();
    assert!(keys.iter().all(|key| hash(key) == hash(&keys[0])));
    let entry = |n: usize, value| Counted(Arc::new((keys[n].clone(), value)));
    let mut trie = Trie::new();
    // A version for readers shares all nodes, so each change copies what is on its way.
    let mut published = trie.clone();
    let (mut worst, mut all) = ((0, 0), 0);
    let mut cost = |trie: &Trie<Counted>, published: &mut Trie<Counted>| {
        let (reads, copies) = reads_and_copies();
        worst = (worst.0.max(reads), worst.1.max(copies));
        all += reads;
        *published = trie.clone();
    };
    for n in 0..count {
        assert!(trie.insert(entry(n * 7 % count, 0)).is_none());
        cost(&trie, &mut published);
    }
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(trie.update(key, |known| Arc::make_mut(&mut known.0).1 += 1), Some(()));
        cost(&trie, &mut published);
        assert_eq!(trie.update_again(key, |known| known.0.1), Some(1));
        cost(&trie, &mut published);
        assert_eq!(trie.insert(entry(n, 2)).map(|former| former.0.1), Some(1));
        cost(&trie, &mut published);
        assert_eq!(trie.get(key).map(|known| known.0.1), Some(2));
        cost(&trie, &mut published);
    }
    assert_eq!(trie.with_hash(hash(&keys[0]), |_| true).count(), count);
    reads_and_copies();
    assert!(trie.get(b"none").is_none());
    for key in &keys[..count / 2] {
        assert_eq!(trie.remove(key).map(|known| known.0.1), Some(2));
        cost(&trie, &mut published);
        assert_eq!(trie.remove(key).map(|known| known.0.1), None);
        cost(&trie, &mut published);
    }
    assert_eq!(trie.len(), count - count / 2);
    // The most is when 33 entries are split, on each of the sixteen levels.
    assert!(worst.0 < 2000 && worst.1 < 40, "{worst:?} of keys read and entries copied");
    // In an ordered tree of 5000, no way is longer than 26.
    assert!(all < 60 * 7 * count, "{all} keys read");

    // Together they are inserted in a time that is not quadratic, too.
    let new =
        |value| (0..).zip(0..count).map(|(place, n)| New::of(entry(n, value), place)).collect();
    let mut trie = Trie::new();
    for value in 1..3 {
        let mut replaced = 0;
        reads_and_copies();
        trie.insert_all(new(value), |former: &Counted, _, place| {
            assert_eq!((&former.0.0, former.0.1), (&keys[place as usize], value - 1));
            replaced += 1;
        });
        let (reads, copies) = reads_and_copies();
        assert_eq!((replaced, trie.len()), (count * (value as usize - 1), count));
        assert!(reads < count * 60 && copies < count * 30, "{reads} keys read, {copies} copied");
    }
}

/// A table of so many entries with the value 0, without buffers.
fn filled(count: u32) -> Trie<Pair> {
    let mut trie = Trie::new();
    trie.insert_all(new(0..count), |_, _, _| panic!("all are new"));
    trie
}

fn new(numbers: Range<u32>) -> Vec<New<Pair>> {
    numbers.map(|n| New::of(Arc::new((n.to_le_bytes().to_vec(), 0)), n)).collect()
}

fn set(trie: &mut Trie<Pair>, n: u32, value: u32) {
    trie.update(&n.to_le_bytes(), |pair| *pair = Arc::new((pair.0.clone(), value))).unwrap();
}

#[test]
fn changes_of_the_same_entries_stay_in_the_buffers_and_others_are_merged() {
    let mut trie = filled(2000);
    assert_eq!(all(&trie).1, 0);
    // Sixteen buffers of 32. What is changed once does not come into them.
    (0..100).for_each(|n| set(&mut trie, n, 1));
    assert_eq!(all(&trie).1, 0);
    (0..100).for_each(|n| set(&mut trie, n, 2));
    assert_eq!(all(&trie).1, 100);
    let before = trie.clone();
    (0..2000).for_each(|n| set(&mut trie, n, 4));
    let (after, buffered) = all(&trie);
    assert!(buffered <= 16 * BUCKET_MAX && after.values().all(|value| *value == 4));
    // Another version is what it was.
    let (before, buffered) = all(&before);
    assert_eq!(buffered, 100);
    assert_eq!(before.values().filter(|value| **value == 2).count(), 100);
    assert_eq!(before.values().sum::<u32>(), 200);
    // Those that are set now move into the buffers in place of others.
    (0..10).for_each(|_| (500..600).for_each(|n| set(&mut trie, n, 6)));
    let is_buffered =
        |n: &u32| trie.find(hash(&n.to_le_bytes()), &n.to_le_bytes()).unwrap().in_buffer;
    assert_eq!((500..600).filter(is_buffered).count(), 100);
}

#[test]
fn an_entry_that_is_large_is_changed_where_it_is() {
    let mut trie = filled(2000);
    [1, 7].iter().for_each(|value| (0..100).for_each(|n| set(&mut trie, n, *value)));
    let (_, buffered) = all(&trie);
    assert_eq!(buffered, 100);
    // Merges them.
    trie.insert_all(new(100..2000), |_, _, _| {});
    assert_eq!(all(&trie).1, 0);
    (0..2).for_each(|_| (0..100).for_each(|n| set(&mut trie, n, 7)));
    (0..100).for_each(|n| set(&mut trie, n, 1));
    assert_eq!(all(&trie).1, 0);
    assert_eq!(all(&trie).0.values().sum::<u32>(), 100);
}

#[test]
fn a_removed_entry_is_gone_from_the_buffer_and_from_below_it() {
    let mut trie = filled(2000);
    (0..2).for_each(|_| (0..100).for_each(|n| set(&mut trie, n, 1)));
    assert_eq!(all(&trie).1, 100);
    for n in 0..100u32 {
        assert_eq!(trie.remove(&n.to_le_bytes()).map(|pair| pair.1), Some(1));
        assert_eq!(trie.get(&n.to_le_bytes()), None);
        assert_eq!(trie.remove(&n.to_le_bytes()), None);
    }
    assert_eq!((all(&trie).1, trie.len()), (0, 1900));
}
