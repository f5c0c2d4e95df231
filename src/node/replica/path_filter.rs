//! Decides quickly, for any number of watches, that a path is not watched, which is nearly always
//! the case.
//!
//! It counts the watched paths by their hash, with at least [`ROOM`] places for each path. A count of
//! zero means that no such path is watched.

use xxhash_rust::xxh3::xxh3_64;

/// Places per watched path. One in this many unwatched paths is looked up without need.
const ROOM: usize = 8;
/// The fewest places, once there is a path.
const PLACES_MIN: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct PathFilter {
    /// A power of two of counts, or none. A count that has reached its maximum stays there.
    counts: Vec<u8>,
    paths: usize,
}

impl PathFilter {
    fn with_room(paths: usize) -> PathFilter {
        let places = (paths * ROOM).next_power_of_two().max(PLACES_MIN);
        PathFilter { counts: vec![0; places], paths: 0 }
    }

    fn place(&self, path: &str) -> usize {
        // The length is a power of two, and never 0 here.
        xxh3_64(path.as_bytes()) as usize & (self.counts.len() - 1)
    }

    /// Whether the path may be watched. `false` is certain.
    pub(crate) fn may_hold(&self, path: &str) -> bool {
        self.paths > 0 && self.counts[self.place(path)] > 0
    }

    /// Adds a path that is watched from now on. `all` are the other paths, in case the filter has
    /// to grow.
    pub(crate) fn add<'a>(&mut self, path: &str, all: impl Iterator<Item = &'a str>) {
        if (self.paths + 1) * ROOM > self.counts.len() {
            let mut larger = PathFilter::with_room(2 * (self.paths + 1));
            all.for_each(|path| larger.count(path));
            *self = larger;
        }
        self.count(path);
    }

    fn count(&mut self, path: &str) {
        let place = self.place(path);
        self.counts[place] = self.counts[place].saturating_add(1);
        self.paths += 1;
    }

    /// Removes an added path, which is no longer watched.
    pub(crate) fn remove(&mut self, path: &str) {
        let place = self.place(path);
        let count = &mut self.counts[place];
        if *count < u8::MAX {
            *count -= 1;
        }
        self.paths -= 1;
        if self.paths == 0 {
            self.counts = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn path(number: usize) -> String {
        format!("/services/node-{number}")
    }

    #[test]
    fn watched_paths_are_found_and_most_others_are_not() {
        let mut filter = PathFilter::default();
        let mut held: BTreeSet<String> = BTreeSet::new();
        assert!(!filter.may_hold("/"));
        for number in 0..10_000 {
            filter.add(&path(number), held.iter().map(String::as_str));
            held.insert(path(number));
            if number % 3 == 0 {
                let gone = path(number / 2);
                if held.remove(&gone) {
                    filter.remove(&gone);
                }
            }
        }
        assert!(held.len() > 6_000 && filter.paths == held.len());
        assert!(held.iter().all(|path| filter.may_hold(path)));
        let wrong = (10_000..20_000).filter(|number| filter.may_hold(&path(*number))).count();
        assert!(wrong < 10_000 / ROOM * 3 / 2, "{wrong}");
        for path in held {
            filter.remove(&path);
        }
        assert!(!filter.may_hold(&path(9_999)) && filter.counts.is_empty());
    }

    /// A place whose count has reached its maximum keeps it, and so never misses a watched path.
    #[test]
    fn a_full_place_stays_full() {
        let mut filter = PathFilter::with_room(1);
        for _ in 0..300 {
            filter.count("/a");
        }
        for _ in 0..299 {
            filter.remove("/a");
        }
        assert!(filter.may_hold("/a"));
    }
}
