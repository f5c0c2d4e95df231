//! The nodes of the table, from a root down to the buckets.

use std::iter;

use triomphe::Arc;

use super::bucket::Bucket;
use super::buffer::{BUFFER_DEPTH, Buffered};
use super::ordered::Ordered;
use super::{BUCKET_MAX, DEPTH_MAX, New, TrieEntry, WIDTH, branch, hash, own, tag};

#[derive(Clone)]
pub(super) enum TrieNode<T: TrieEntry> {
    Empty,
    Bucket(Bucket<T>),
    Inner(Arc<[TrieNode<T>; WIDTH]>),
    Buffered(Arc<Buffered<T>>),
    /// At the depth where no bits are left.
    Ordered(Arc<Ordered<T>>),
}

/// Where entries are.
pub(super) enum Leaf<'a, T: TrieEntry> {
    Buffer(&'a Bucket<T>),
    Bucket(&'a Bucket<T>),
    Ordered(&'a Ordered<T>),
}

impl<'a, T: TrieEntry> Leaf<'a, T> {
    /// The entry with this key, and its place if this is a bucket.
    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<(&'a T, usize)> {
        match *self {
            Leaf::Buffer(bucket) | Leaf::Bucket(bucket) => {
                let place = bucket.find(hash, key)?;
                Some((bucket.entries().get(place)?.as_ref()?, place))
            }
            Leaf::Ordered(entries) => Some((entries.get(key)?, 0)),
        }
    }

    /// The entries whose keys may have this hash.
    pub(super) fn tagged(&self, hash: u64) -> impl Iterator<Item = &'a T> + use<'a, T> {
        let (bucket, ordered) = match *self {
            Leaf::Buffer(bucket) | Leaf::Bucket(bucket) => (Some(bucket), None),
            Leaf::Ordered(entries) => (None, Some(entries)),
        };
        let tagged = bucket.into_iter().flat_map(move |bucket| bucket.tagged(hash));
        tagged.chain(ordered.into_iter().flat_map(Ordered::iter))
    }
}

/// Where new entries go.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// Into the buffer on the way, which has at most so many entries.
    Buffer { max: usize },
    /// Past the buffer, which does not have their keys.
    Past,
    /// Past the buffer, after its entries.
    After,
}

impl<T: TrieEntry> TrieNode<T> {
    /// Where keys of this hash are, below a node at this depth: in a buffer, if there is one, and then below it.
    pub(super) fn leaves(&self, hash: u64, mut depth: u32) -> impl Iterator<Item = Leaf<'_, T>> {
        let mut node = Some(self);
        iter::from_fn(move || {
            loop {
                match node? {
                    TrieNode::Empty => return None,
                    TrieNode::Bucket(bucket) => {
                        node = None;
                        return Some(Leaf::Bucket(bucket));
                    }
                    TrieNode::Ordered(entries) => {
                        node = None;
                        return Some(Leaf::Ordered(entries));
                    }
                    TrieNode::Inner(children) => node = Some(&children[branch(hash, depth)]),
                    TrieNode::Buffered(buffered) => {
                        node = Some(&buffered.children[branch(hash, depth)]);
                        if let Some(buffer) = &buffered.buffer {
                            depth += 1;
                            return Some(Leaf::Buffer(buffer));
                        }
                    }
                }
                depth += 1;
            }
        })
    }

    /// Changes the entry with this key in the buffer on the way, or below it, where it has this place.
    /// `passes`: the buffer remembers that a change has gone past it.
    pub(super) fn change<R>(
        &mut self,
        (hash, key): (u64, &[u8]),
        (in_buffer, place): (bool, usize),
        passes: bool,
        change: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        let (mut node, mut depth) = (self, 0);
        loop {
            node = match node {
                TrieNode::Empty => return None,
                TrieNode::Bucket(bucket) => return bucket.change(place, change),
                TrieNode::Ordered(entries) => return Arc::make_mut(entries).change(key, change),
                TrieNode::Inner(children) => &mut own(children)[branch(hash, depth)],
                TrieNode::Buffered(node) => {
                    let node = Arc::make_mut(node);
                    if in_buffer {
                        return node.buffer.as_mut()?.change(place, change);
                    }
                    if passes {
                        node.pass(hash);
                    }
                    &mut own(&mut node.children)[branch(hash, depth)]
                }
            };
            depth += 1;
        }
    }

    /// The node with a buffer on the way to this hash.
    pub(super) fn buffered(&self, hash: u64) -> Option<&Buffered<T>> {
        let (mut node, mut depth) = (self, 0);
        loop {
            match node {
                TrieNode::Empty | TrieNode::Bucket(_) | TrieNode::Ordered(_) => return None,
                TrieNode::Inner(children) => node = &children[branch(hash, depth)],
                TrieNode::Buffered(buffered) => return Some(buffered),
            }
            depth += 1;
        }
    }

    /// The entries of a full bucket, in buckets at the next depth.
    fn split(entries: Vec<Option<T>>, depth: u32) -> TrieNode<T> {
        let mut parts: [(Vec<u8>, Vec<Option<T>>); WIDTH] = Default::default();
        for entry in entries.into_iter().flatten() {
            let hash = hash(entry.key());
            let (tags, entries) = &mut parts[branch(hash, depth)];
            tags.push(tag(hash));
            entries.push(Some(entry));
        }
        let children = Arc::new(parts.map(|(tags, entries)| {
            if entries.is_empty() {
                return TrieNode::Empty;
            }
            if depth + 1 == DEPTH_MAX {
                let mut ordered = Ordered::new();
                entries.into_iter().flatten().for_each(|entry| ordered.insert(entry));
                return TrieNode::Ordered(Arc::new(ordered));
            }
            // All entries may be equal in these bits.
            if entries.len() > BUCKET_MAX {
                return TrieNode::split(entries, depth + 1);
            }
            let mut all_tags = [0; BUCKET_MAX];
            all_tags.iter_mut().zip(tags).for_each(|(place, tag)| *place = tag);
            TrieNode::Bucket(Bucket::new(all_tags, entries))
        }));
        match depth {
            BUFFER_DEPTH => TrieNode::Buffered(Arc::new(Buffered::new(children))),
            _ => TrieNode::Inner(children),
        }
    }

    /// Returns how many entries have no former one, if they go past the buffers.
    pub(super) fn insert_all(
        &mut self,
        new: &mut [New<T>],
        depth: u32,
        way: Way,
        replaced: &mut impl FnMut(&T, &mut T, u32),
    ) -> usize {
        let bucket = match self {
            TrieNode::Inner(children) => return insert_below(children, new, depth, way, replaced),
            TrieNode::Buffered(node) => {
                return Arc::make_mut(node).insert_all(new, depth, way, replaced);
            }
            TrieNode::Ordered(entries) => return Arc::make_mut(entries).insert_all(new, replaced),
            TrieNode::Bucket(bucket) => Some(bucket),
            TrieNode::Empty if depth == DEPTH_MAX => {
                *self = TrieNode::Ordered(Arc::new(Ordered::new()));
                return self.insert_all(new, depth, way, replaced);
            }
            TrieNode::Empty => None,
        };
        let before = bucket.as_ref().map_or(0, |bucket| bucket.entries().len());
        let total = Bucket::assign(bucket.as_deref(), new, BUCKET_MAX);
        if total > BUCKET_MAX {
            let entries = bucket.map(|bucket| bucket.take().1).unwrap_or_default();
            *self = TrieNode::split(entries, depth);
            return self.insert_all(new, depth, way, replaced);
        }
        *self = TrieNode::Bucket(Bucket::with(bucket, new, total, replaced));
        total - before
    }

    /// Copies the nodes on the way even if there is no such entry.
    pub(super) fn remove(&mut self, hash: u64, key: &[u8], depth: u32) -> Option<T> {
        let (removed, is_empty) = match self {
            TrieNode::Empty => return None,
            TrieNode::Bucket(bucket) => {
                let place = bucket.find(hash, key)?;
                let removed = bucket.remove(place);
                (removed, bucket.entries().is_empty())
            }
            TrieNode::Ordered(entries) => {
                let entries = Arc::make_mut(entries);
                (entries.remove(key), entries.is_empty())
            }
            TrieNode::Inner(children) => {
                let children = own(children);
                let removed = children[branch(hash, depth)].remove(hash, key, depth + 1);
                (removed, children.iter().all(TrieNode::is_empty))
            }
            TrieNode::Buffered(node) => {
                let node = Arc::make_mut(node);
                (node.remove(hash, key, depth), node.is_empty())
            }
        };
        if is_empty {
            *self = TrieNode::Empty;
        }
        removed
    }

    /// Whether the key is here, at this depth.
    pub(super) fn has(&self, hash: u64, key: &[u8], depth: u32) -> bool {
        self.leaves(hash, depth).any(|leaf| leaf.find(hash, key).is_some())
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, TrieNode::Empty)
    }

    /// The children of an inner node, unless its buffer may have the entry with this hash.
    pub(super) fn children_below_buffer(&self, hash: u64) -> Option<&[TrieNode<T>; WIDTH]> {
        match self {
            TrieNode::Inner(children) => Some(children),
            TrieNode::Buffered(node) => {
                let is_tagged = |buffer: &Bucket<T>| buffer.tagged(hash).next().is_some();
                let is_above = node.buffer.as_ref().is_some_and(is_tagged);
                (!is_above).then_some(&*node.children)
            }
            TrieNode::Empty | TrieNode::Bucket(_) | TrieNode::Ordered(_) => None,
        }
    }

    pub(super) fn count(&self) -> usize {
        match self {
            TrieNode::Empty => 0,
            TrieNode::Bucket(bucket) => bucket.count(),
            TrieNode::Inner(children) => Arc::strong_count(children),
            TrieNode::Buffered(node) => Arc::strong_count(node),
            TrieNode::Ordered(entries) => Arc::strong_count(entries),
        }
    }
}

/// As [`TrieNode::insert_all`], for the children of an inner node at this depth.
pub(super) fn insert_below<T: TrieEntry>(
    children: &mut Arc<[TrieNode<T>; WIDTH]>,
    new: &mut [New<T>],
    depth: u32,
    way: Way,
    replaced: &mut impl FnMut(&T, &mut T, u32),
) -> usize {
    let (children, mut rest, mut added) = (own(children), new, 0);
    while let Some(first) = rest.first() {
        let branch = |new: &New<T>| branch(new.hash, depth);
        let of = branch(first);
        let count = rest.partition_point(|new| branch(new) == of);
        let (part, others) = rest.split_at_mut(count);
        added += children[of].insert_all(part, depth + 1, way, replaced);
        rest = others;
    }
    added
}
