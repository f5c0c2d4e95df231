//! Rate limits: no span of the log's time has more permits of a limit, or of one key, than the burst and the rate allow,
//! and none is used long after its moment.

use std::collections::BTreeMap;

use super::{Violation, require};
use crate::simulation::clock::{Nanos, SECOND};

/// What the limiters of the workload allow: one permit in this time ...
pub(crate) const INTERVAL: u64 = 250_000_000;
/// ... and so many at once.
pub(crate) const BURST: u32 = 8;

/// More than is promised, since the log's time is seen only when a client of the workload looks.
const USED_WITHIN: Nanos = 5 * SECOND;

#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// For each key, and for the limit without keys: how many permits were used of those for a moment of the log's time,
    /// in nanoseconds.
    used: BTreeMap<Option<&'static str>, BTreeMap<u64, u64>>,
    /// When a time of the log was first seen.
    seen: BTreeMap<u64, Nanos>,
}

impl Limits {
    /// Takes note of the log's time.
    pub(crate) fn sees(&mut self, log_nanos: u64, now: Nanos) {
        self.seen.entry(log_nanos).or_insert(now);
    }

    /// Permits are used that were granted for this moment.
    pub(crate) fn used(
        &mut self,
        key: Option<&'static str>,
        (at, permits): (u64, u32),
        now: Nanos,
    ) -> Result<(), Violation> {
        // The log's time may stand at this moment for a while, under a leader whose clock is behind.
        let passed = self.seen.range(at + 1..).next().map(|(_, seen)| *seen);
        require(
            passed.is_none_or(|seen| now <= seen + USED_WITHIN),
            "permits are used in time",
            || {
                format!(
                    "{permits} of {key:?} for {at} were used at {now}, and it was later already at {passed:?}"
                )
            },
        )?;
        let used = self.used.entry(key).or_default();
        *used.entry(at).or_default() += u64::from(permits);
        let most = INTERVAL * u64::from(BURST);
        let mut full = 0;
        for (at, permits) in &*used {
            full = (*at).max(full) + permits * INTERVAL;
            require(full <= at + most, "a rate is never passed", || {
                format!("{permits} of {key:?} for {at} are {} ns too many", full - at - most)
            })?;
        }
        Ok(())
    }
}
