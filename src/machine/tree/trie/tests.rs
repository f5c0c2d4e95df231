use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;

use super::bucket::Bucket;
use super::buffer::BUFFER_DEPTH;
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
                all.extend(pairs(bucket));
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
            let with_hash: Vec<&Pair> = trie.with_hash(hash(&key(n))).collect();
            prop_assert_eq!(with_hash, trie.get(&key(n)).into_iter().collect::<Vec<&Pair>>());
        }
        prop_assert_eq!(all(&trie).0, map);
        for (trie, map) in clones {
            prop_assert_eq!(all(&trie).0, map);
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
    let new = pairs.zip(0..).map(|(pair, place)| New { hash: 7, place, at: 0, entry: Some(pair) });
    let (mut new, mut replaced) = (new.collect::<Vec<New<Pair>>>(), Vec::new());
    let mut node = TrieNode::Empty;
    let added = node.insert_all(&mut new, DEPTH_MAX, Way::Past, &mut |former, pair, place| {
        assert_eq!((former.0[0], pair.0[0]), (place as u8 - 80, place as u8 - 80));
        replaced.push(place);
    });
    assert_eq!((added, replaced), (80, (80..100).collect()));
    let TrieNode::Bucket(bucket) = node else { panic!("not a bucket") };
    let values = bucket.entries().iter().flatten().map(|pair| pair.1).collect::<Vec<u32>>();
    assert_eq!(values, (80..100).chain(20..80).collect::<Vec<u32>>());
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
