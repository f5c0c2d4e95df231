//! A histogram of durations, in buckets with a width of about 1.6 %.

use std::time::Duration;

/// Each power of two has 2^PARTS buckets.
const PARTS: u32 = 6;
/// One bucket for each value below 2^PARTS, and then the buckets of each power of two.
const BUCKETS: usize = ((64 - PARTS as usize) + 1) << PARTS;

#[derive(Clone, Debug)]
pub(super) struct FineHistogram {
    counts: Vec<u64>,
    max: u64,
}

impl FineHistogram {
    pub(super) fn new() -> FineHistogram {
        FineHistogram { counts: vec![0; BUCKETS], max: 0 }
    }

    pub(super) fn record(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.max = self.max.max(nanos);
    }

    pub(super) fn add(&mut self, other: &FineHistogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.max = self.max.max(other.max);
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// A quantile: so many of a thousand operations took no longer than this, up to the width of a bucket;
    /// 0 if there were none.
    pub(super) fn permille(&self, permille: u64) -> Duration {
        let wanted = (u128::from(self.count()) * u128::from(permille)).div_ceil(1000);
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += u128::from(*count);
            if below >= wanted {
                return Duration::from_nanos(last_of(bucket).min(self.max));
            }
        }
        self.max()
    }
}

fn bucket(nanos: u64) -> usize {
    // Below 2^PARTS, each value has its own bucket.
    let shift = (nanos | 1).ilog2().saturating_sub(PARTS);
    if nanos >> PARTS == 0 {
        return nanos as usize;
    }
    ((shift as usize + 1) << PARTS) + ((nanos >> shift) & ((1 << PARTS) - 1)) as usize
}

/// The highest value of a bucket.
fn last_of(bucket: usize) -> u64 {
    let Some(shift) = (bucket >> PARTS).checked_sub(1) else { return bucket as u64 };
    let part = (bucket & ((1 << PARTS) - 1)) as u64;
    let first = ((1 << PARTS) | part) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{BUCKETS, FineHistogram, bucket, last_of};

    #[test]
    fn buckets_are_in_order_without_gaps_and_narrow() {
        assert_eq!((bucket(0), last_of(0), bucket(u64::MAX)), (0, 0, BUCKETS - 1));
        assert_eq!(last_of(BUCKETS - 1), u64::MAX);
        for place in 0..BUCKETS - 1 {
            let last = last_of(place);
            assert_eq!((bucket(last), bucket(last + 1)), (place, place + 1));
            let width = last_of(place + 1) - last;
            assert!(width <= 1 || width <= last / 32, "{place}: {width} at {last}");
        }
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let (mut low, mut high) = (FineHistogram::new(), FineHistogram::new());
        assert_eq!(low.permille(500), Duration::ZERO);
        (1..=500).for_each(|millis| low.record(Duration::from_millis(millis)));
        (501..=1000).for_each(|millis| high.record(Duration::from_millis(millis)));
        low.add(&high);
        assert_eq!((low.count(), low.max()), (1000, Duration::from_secs(1)));
        for permille in [1, 500, 990, 999] {
            let (found, exact) = (low.permille(permille), Duration::from_millis(permille));
            assert!(found >= exact && found <= exact * 102 / 100, "{permille}: {found:?}");
        }
        assert_eq!(low.permille(1000), Duration::from_secs(1));
    }
}
