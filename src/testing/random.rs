//! The random numbers of seeded tests.

use std::cell::Cell;

/// Numbers from a seed: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub(crate) struct Random(Cell<u64>);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(Cell::new(seed))
    }

    /// A generator for one concern, so that more draws for one concern do not change the others.
    pub(crate) fn fork(&self, salt: u64) -> Random {
        Random::new(mix(self.next() ^ mix(salt)))
    }

    fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.0.set(state);
        mix(state)
    }

    /// A number below `bound`, or 0 if there is none.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        // The bias is negligible for bounds far below 2^64.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn within(&self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    pub(crate) fn index(&self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True with a probability of this many millionths.
    pub(crate) fn chance(&self, ppm: u64) -> bool {
        self.below(1_000_000) < ppm
    }

    pub(crate) fn percent(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}

fn mix(mut mixed: u64) -> u64 {
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
