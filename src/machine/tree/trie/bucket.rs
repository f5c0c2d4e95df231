//! The ends of the table: a few entries, with one byte of each hash.

use triomphe::{Arc, ThinArc};

use super::{BUCKET_MAX, New, TrieEntry, read_counters, tag};

/// At most [`BUCKET_MAX`] entries, in no particular order. Their tags come first, so that a look-up usually reads only the
/// entry that it looks for.
#[derive(Clone)]
pub(super) struct Bucket<T>(ThinArc<Tags, Option<T>>);

pub(super) type Tags = [u8; BUCKET_MAX];

impl<T: TrieEntry> Bucket<T> {
    pub(super) fn new(tags: Tags, entries: Vec<Option<T>>) -> Bucket<T> {
        Bucket(ThinArc::from_header_and_iter(tags, entries.into_iter()))
    }

    /// Finds the places for new entries in a bucket that has these, or in an empty one. Entries with the same key get
    /// the same place. Returns how many entries there will be, or more than `max` if it is more.
    pub(super) fn assign(bucket: Option<&Bucket<T>>, new: &mut [New<T>], max: usize) -> usize {
        let mut total = bucket.map_or(0, |bucket| bucket.entries().len());
        for nth in 0..new.len() {
            let (before, rest) = new.split_at_mut(nth);
            let Some(New { hash, at, entry: Some(entry), .. }) = rest.first_mut() else { continue };
            // Equal hashes are neighbours.
            let mut twins = before.iter().rev().take_while(|twin| twin.hash == *hash);
            let is_twin =
                |twin: &&New<T>| twin.entry.as_ref().is_some_and(|twin| twin.key() == entry.key());
            let known = twins.find(is_twin).map(|twin| twin.at);
            let known = known.or_else(|| bucket?.find(*hash, entry.key()));
            *at = known.unwrap_or(total);
            total += usize::from(known.is_none());
            if total > max {
                break;
            }
        }
        total
    }

    /// Puts new entries at their places in this bucket, or in an empty one. Returns the bucket, which has so many
    /// entries in `total` then.
    pub(super) fn with(
        bucket: Option<&mut Bucket<T>>,
        new: &mut [New<T>],
        total: usize,
        replaced: &mut impl FnMut(&T, &mut T, u32),
    ) -> Bucket<T> {
        let Some(former) = bucket else {
            let mut bucket = Bucket::of_places([0; BUCKET_MAX], total, |_| None);
            bucket.place(new, &[], replaced);
            return bucket;
        };
        // These are not copied.
        let is_new = new
            .iter()
            .fold(0, |bits: u64, new| bits | u64::checked_shl(1, new.at as u32).unwrap_or(0));
        let is_kept =
            |at: usize| u64::checked_shl(1, at as u32).is_none_or(|bit| is_new & bit == 0);
        let tags = former.0.header.header;
        let own = former.0.with_arc_mut(|bucket| {
            let entries = Arc::get_mut(bucket)?.slice_mut();
            let own = |at| entries.get_mut(at).filter(|_| is_kept(at))?.take();
            Some(Bucket::of_places(tags, total, own))
        });
        let mut bucket = own.unwrap_or_else(|| {
            let entries = former.entries();
            read_counters(entries.iter().flatten().map(TrieEntry::count));
            let copy = |at| entries.get(at).filter(|_| is_kept(at))?.clone();
            Bucket::of_places(tags, total, copy)
        });
        bucket.place(new, former.entries(), replaced);
        bucket
    }

    fn of_places(tags: Tags, count: usize, entry: impl FnMut(usize) -> Option<T>) -> Bucket<T> {
        Bucket(ThinArc::from_header_and_iter(tags, (0..count).map(entry)))
    }

    /// Puts new entries at their places, each of which is free or has a former entry, perhaps still in the former
    /// bucket.
    fn place(
        &mut self,
        new: &mut [New<T>],
        former: &[Option<T>],
        replaced: &mut impl FnMut(&T, &mut T, u32),
    ) {
        self.0.with_arc_mut(|bucket| {
            // The bucket is new, so it is not shared.
            let Some(bucket) = Arc::get_mut(bucket) else { return };
            for New { hash, place, at, entry } in new {
                let Some(mut entry) = entry.take() else { continue };
                if let Some(tag_of) = bucket.header_mut().get_mut(*at) {
                    *tag_of = tag(*hash);
                }
                let Some(free) = bucket.slice_mut().get_mut(*at) else { continue };
                let hidden = former.get(*at).and_then(Option::as_ref);
                if let Some(former) = free.as_ref().or(hidden) {
                    replaced(former, &mut entry, *place);
                }
                *free = Some(entry);
            }
        });
    }

    /// The entries, which are `None` only while the bucket is replaced.
    pub(super) fn entries(&self) -> &[Option<T>] {
        &self.0.slice
    }

    /// The number of clones.
    pub(super) fn count(&self) -> usize {
        ThinArc::strong_count(&self.0)
    }

    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let has_key = |entry: &Option<T>| entry.as_ref().is_some_and(|entry| entry.key() == key);
        let mut tagged = self.0.header.header.iter().zip(self.entries());
        tagged.position(|(of_entry, entry)| *of_entry == tag(hash) && has_key(entry))
    }

    /// The entries whose keys may have this hash.
    pub(super) fn tagged(&self, hash: u64) -> impl Iterator<Item = &T> {
        let tagged = self.0.header.header.iter().zip(self.entries());
        tagged
            .filter(move |(of_entry, _)| **of_entry == tag(hash))
            .filter_map(|(_, entry)| entry.as_ref())
    }

    /// The tags and entries, to make another bucket of them.
    pub(super) fn take(&mut self) -> (Tags, Vec<Option<T>>) {
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

    /// Removes the entry at this place.
    pub(super) fn remove(&mut self, place: usize) -> Option<T> {
        let (mut tags, mut entries) = self.take();
        tags.swap(place, entries.len() - 1);
        let removed = entries.swap_remove(place);
        *self = Bucket::new(tags, entries);
        removed
    }

    /// Changes the entry at this place, in a copy if the bucket is shared.
    pub(super) fn change<R>(
        &mut self,
        place: usize,
        change: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        if ThinArc::strong_count(&self.0) > 1 {
            read_counters(self.entries().iter().flatten().map(TrieEntry::count));
            let copies = self.entries().iter().cloned();
            self.0 = ThinArc::from_header_and_iter(self.0.header.header, copies);
        }
        // The bucket is not shared now.
        self.0.with_arc_mut(|bucket| {
            let entries = Arc::get_mut(bucket)?.slice_mut();
            entries.get_mut(place)?.as_mut().map(change)
        })
    }
}
