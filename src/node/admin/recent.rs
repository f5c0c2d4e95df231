//! How long commits and disk syncs took lately.

use std::time::Duration;

use super::message::LatencySummary;
use crate::node::io::Time;
use crate::types::metrics::Metrics;
use crate::types::metrics::histogram::Histogram;

/// The latencies cover at least this time, and at most twice as much.
const PERIOD: Duration = Duration::from_secs(30);

/// The histograms as they were up to two periods ago.
#[derive(Debug, Default)]
pub(in crate::node) struct RecentHistograms {
    since: Time,
    before: Histograms,
    last: Histograms,
}

#[derive(Clone, Debug, Default)]
struct Histograms {
    commit: Histogram,
    disk_sync: Histogram,
}

impl RecentHistograms {
    /// Notes the present histograms, once in a period.
    pub(super) fn note(&mut self, metrics: &Metrics, now: Time) {
        if now < self.since + PERIOD {
            return;
        }
        self.since = now;
        let (commit, disk_sync) = (metrics.commit.clone(), metrics.disk_sync.clone());
        self.before = std::mem::replace(&mut self.last, Histograms { commit, disk_sync });
    }

    /// The latencies of commits and of disk syncs since one to two periods ago.
    pub(in crate::node) fn latencies(
        &self,
        metrics: &Metrics,
    ) -> (Option<LatencySummary>, Option<LatencySummary>) {
        let of = |all: &Histogram, before| LatencySummary::of(&all.without(before));
        (of(&metrics.commit, &self.before.commit), of(&metrics.disk_sync, &self.before.disk_sync))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_slow_long_ago_is_forgotten() {
        let (mut recent, mut metrics) = (RecentHistograms::default(), Metrics::default());
        let mut now = Time::ZERO;
        let mut after = |recent: &mut RecentHistograms, metrics: &Metrics, seconds| {
            for _ in 0..seconds {
                now += Duration::from_secs(1);
                recent.note(metrics, now);
            }
            recent.latencies(metrics)
        };
        metrics.disk_sync.record(Duration::from_secs(1));
        let (commit, disk_sync) = after(&mut recent, &metrics, 59);
        assert_eq!((commit, disk_sync.map(|of| of.count)), (None, Some(1)));
        metrics.disk_sync.record(Duration::from_micros(15));
        let (_, disk_sync) = after(&mut recent, &metrics, 20);
        let disk_sync = disk_sync.expect("one came lately");
        assert_eq!(disk_sync.count, 1);
        assert!(disk_sync.p99 <= Duration::from_micros(20), "{disk_sync:?}");
        assert_eq!(after(&mut recent, &metrics, 60), (None, None));
    }
}
