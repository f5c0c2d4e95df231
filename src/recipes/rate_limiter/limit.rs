//! A rate and a burst.

use std::time::Duration;

use crate::types::error::{Error, Result};

/// For so long one block may keep the others waiting, at the whole rate.
const BLOCK_NANOS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// The time of one permit, in nanoseconds.
    pub(super) interval: u64,
    pub(super) burst: u32,
}

impl Limit {
    /// See [`RateLimiter::new`](super::RateLimiter::new).
    pub(super) fn new(permits: u32, per: Duration) -> Result<Limit> {
        const YEAR: u128 = 365 * 24 * 3600 * 1_000_000_000;
        let (time, count) = (per.as_nanos(), u128::from(permits));
        let interval = (count > 0 && time >= count).then(|| time.div_ceil(count));
        let interval = interval.filter(|interval| *interval <= YEAR);
        let Some(interval) = interval.and_then(|interval| u64::try_from(interval).ok()) else {
            let reason =
                format!("{permits} in {per:?} is no rate between one a nanosecond and one a year");
            return Err(Error::InvalidSetting { setting: "permits", reason });
        };
        Ok(Limit { interval, burst: permits })
    }

    /// See [`RateLimiter::with_burst`](super::RateLimiter::with_burst).
    pub(super) fn with_burst(mut self, burst: u32) -> Result<Limit> {
        const CENTURY: u64 = 100 * 365 * 24 * 3600 * 1_000_000_000;
        self.burst = burst;
        if burst == 0 || self.time_of(burst) > CENTURY {
            let reason = format!("{burst} is not between 1 and a hundred years of permits");
            return Err(Error::InvalidSetting { setting: "burst", reason });
        }
        Ok(self)
    }

    pub(super) fn check(self, permits: u32) -> Result<()> {
        if permits == 0 || permits > self.burst {
            let reason = format!("{permits} is not between 1 and the burst, {}", self.burst);
            return Err(Error::InvalidSetting { setting: "permits", reason });
        }
        Ok(())
    }

    /// In nanoseconds.
    pub(super) fn time_of(self, permits: u32) -> u64 {
        self.interval.saturating_mul(u64::from(permits))
    }

    /// The permits of the longest time for which one instance may keep others waiting, at least one.
    pub(super) fn block_max(self) -> u32 {
        let max = BLOCK_NANOS / self.interval;
        u32::try_from(max).unwrap_or(u32::MAX).clamp(1, self.burst)
    }
}
