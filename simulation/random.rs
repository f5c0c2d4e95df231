//! The random numbers of a world.

use std::cell::Cell;
use std::ops::Range;

/// Numbers from a seed: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub(crate) struct Random {
    state: Cell<u64>,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random { state: Cell::new(seed) }
    }

    /// A generator for one concern, so that more draws for one concern do not change the others.
    pub(crate) fn fork(&self, salt: u64) -> Random {
        Random::new(mix(self.next() ^ mix(salt)))
    }

    pub(crate) fn next(&self) -> u64 {
        let state = self.state.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.state.set(state);
        mix(state)
    }

    /// A number below `bound`, or 0 if there is none.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        // The bias is negligible for bounds far below 2^64.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub(crate) fn within(&self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    pub(crate) fn index(&self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True with a probability of this many millionths.
    pub(crate) fn chance(&self, ppm: u64) -> bool {
        ppm > 0 && self.below(1_000_000) < ppm
    }

    pub(crate) fn percent(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }

    /// A number around `mean`, now and then several times as large, like the time between rare
    /// events. It uses integers only, because a seed must give the same result on every machine.
    pub(crate) fn around(&self, mean: u64) -> u64 {
        // The geometric distribution of halvings is close enough to the exponential one.
        let halvings = u64::from(self.next().leading_zeros());
        let fraction = self.below(1 << 20);
        let scaled = u128::from(mean) * u128::from((halvings << 20) + fraction) * 2 / 3;
        (scaled >> 20) as u64
    }
}

fn mix(mut mixed: u64) -> u64 {
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_within_bounds_and_around_means() {
        let random = Random::new(1);
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert_eq!(random.below(0), 0);
        let sum: u64 = (0..100_000).map(|_| random.around(1_000_000)).sum();
        assert!((900_000..1_100_000).contains(&(sum / 100_000)), "{}", sum / 100_000);
    }
}
