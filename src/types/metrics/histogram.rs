//! Histograms of durations, with fixed buckets.

use std::time::Duration;

/// The upper bounds of the buckets, in microseconds: 1, 2 and 5 of each power of ten, from 10 µs to 100 s.
/// Above the last one there is one more bucket.
const BOUNDS_US: [u64; 22] = {
    let mut bounds = [0; 22];
    let mut place = 0;
    while place < bounds.len() {
        bounds[place] = [10, 20, 50][place % 3] * 10_u64.pow(place as u32 / 3);
        place += 1;
    }
    bounds
};

/// How often durations of each length occurred: one of the histograms of [`Metrics`](crate::operate::Metrics).
///
/// It counts by buckets, whose bounds are 1, 2 and 5 of each power of ten from 10 µs to 100 s. Counts,
/// sum and maximum are exact. A quantile is an estimate within the bucket in which it lies: the true
/// one, if it is between 10 µs and 100 s, is at most 2.5 times larger or smaller.
///
/// ```
/// use quorate::{CreateMode, testing::Cluster};
///
/// let cluster = Cluster::new(1);
/// cluster.node(0).session().create("/app", b"", CreateMode::Persistent).wait()?;
/// let commits = cluster.node(0).metrics().wait().unwrap().commit;
/// assert!(commits.count() >= 1);
/// assert!(commits.quantile(0.5) <= commits.quantile(0.99));
/// assert!(commits.quantile(0.99) <= Some(commits.max()));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BOUNDS_US.len() + 1],
    sum_ns: u64,
    max_ns: u64,
}

impl Histogram {
    /// How many durations were recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// The longest duration; zero if none was recorded.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// The duration that this share of all durations does not exceed, about: 0.99 for the 99th
    /// percentile. A share outside of 0 to 1 counts as the nearer of the two. `None` if no duration was
    /// recorded.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let share = if share.is_nan() { 1.0 } else { share.clamp(0.0, 1.0) };
        let rank = ((share * count as f64).ceil() as u64).clamp(1, count);
        let mut before = 0;
        for (place, within) in self.buckets.iter().enumerate() {
            if rank <= before + within {
                let (from, to) = (floor(place), self.ceiling(place));
                let part = u128::from(to.saturating_sub(from)) * u128::from(rank - before);
                let part = u64::try_from(part / u128::from(*within)).unwrap_or(u64::MAX);
                return Some(Duration::from_nanos(from.saturating_add(part)));
            }
            before += within;
        }
        Some(self.max())
    }

    /// The buckets: the upper bound of each (`None`: without one), and how many durations lie in it and
    /// in no lower one. They are always the same, in this order.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        let counts = self.buckets.iter().copied().enumerate();
        counts
            .map(|(place, count)| (BOUNDS_US.get(place).copied().map(Duration::from_micros), count))
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let us = ns.div_ceil(1000);
        // There is one more bucket above the last bound.
        self.buckets[BOUNDS_US.partition_point(|bound| *bound < us)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// The durations recorded since `earlier`, an earlier state of this histogram: for each bucket, their
    /// approximate length and their number.
    #[cfg_attr(
        not(feature = "metrics"),
        allow(dead_code, reason = "only the metrics facade calls it")
    )]
    pub(crate) fn since<'a>(
        &'a self,
        earlier: &'a Histogram,
    ) -> impl Iterator<Item = (Duration, u64)> + 'a {
        let both = self.buckets.iter().zip(&earlier.buckets).enumerate();
        both.filter_map(|(place, (now, then))| {
            let added = now.checked_sub(*then).filter(|added| *added > 0)?;
            let (from, to) = (floor(place), self.ceiling(place));
            Some((Duration::from_nanos(from + to.saturating_sub(from) / 2), added))
        })
    }

    /// The durations recorded since `earlier`, an earlier state of this histogram. The maximum is the same,
    /// since that of the difference is not known.
    pub(crate) fn without(&self, earlier: &Histogram) -> Histogram {
        let mut rest = self.clone();
        for (bucket, before) in rest.buckets.iter_mut().zip(&earlier.buckets) {
            *bucket = bucket.saturating_sub(*before);
        }
        rest.sum_ns = rest.sum_ns.saturating_sub(earlier.sum_ns);
        rest
    }

    /// The longest duration that can be in this bucket, in nanoseconds.
    fn ceiling(&self, place: usize) -> u64 {
        BOUNDS_US.get(place).map_or(self.max_ns, |us| (us * 1000).min(self.max_ns))
    }
}

/// The upper bound of the bucket before this one, in nanoseconds.
fn floor(place: usize) -> u64 {
    place.checked_sub(1).and_then(|before| BOUNDS_US.get(before)).map_or(0, |us| us * 1000)
}

/// Durations as whole microseconds: most are shorter than a millisecond.
impl serde::Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let mut form = serializer.serialize_struct("Histogram", 5)?;
        form.serialize_field("count", &self.count())?;
        form.serialize_field("sum_us", &us(self.sum()))?;
        form.serialize_field("max_us", &us(self.max()))?;
        form.serialize_field("p50_us", &self.quantile(0.5).map(us))?;
        form.serialize_field("p99_us", &self.quantile(0.99).map(us))?;
        form.end()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn each_duration_is_in_the_lowest_bucket_that_has_room_for_it() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.quantile(0.5), histogram.max()), (None, Duration::ZERO));
        for duration in [Duration::ZERO, US(10), US(10) + Duration::from_nanos(1), Duration::MAX] {
            histogram.record(duration);
        }
        let filled: Vec<_> = histogram.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(Some(US(10)), 2), (Some(US(20)), 1), (None, 1)]);
        assert_eq!((histogram.count(), histogram.sum()), (4, Duration::from_nanos(u64::MAX)));
        assert!(BOUNDS_US.is_sorted_by(|one, next| one < next && *next * 2 <= *one * 5));
    }

    #[test]
    fn a_difference_is_computed_for_each_bucket() {
        let mut histogram = Histogram::default();
        histogram.record(US(150));
        let earlier = histogram.clone();
        histogram.record(US(180));
        histogram.record(US(700));
        let added: Vec<_> = histogram.since(&earlier).collect();
        assert_eq!(added, [(US(150), 1), (US(600), 1)]);
        assert_eq!(histogram.since(&histogram).count(), 0);
    }

    proptest! {
        #[test]
        fn a_quantile_is_near_the_true_one(
            durations in proptest::collection::vec(11_u64..200_000_000, 1..100),
            share in 0.0_f64..=1.0,
        ) {
            let mut histogram = Histogram::default();
            durations.iter().for_each(|us| histogram.record(US(*us)));
            let mut sorted = durations;
            sorted.sort_unstable();
            let rank = ((share * sorted.len() as f64).ceil() as usize).max(1);
            let (truth, found) = (US(sorted[rank - 1]), histogram.quantile(share).unwrap());
            prop_assert!(found <= histogram.max());
            prop_assert!(found <= truth * 5 / 2 && truth <= found * 5 / 2, "{found:?}, not {truth:?}");
            prop_assert_eq!(histogram.quantile(1.0), Some(histogram.max()));
        }
    }
}
