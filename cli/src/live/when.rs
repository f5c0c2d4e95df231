//! Moments as people read them.

use std::time::Duration;

use jiff::Timestamp;

use super::cluster::duration;

/// A moment in milliseconds since the Unix epoch, in UTC, and how long ago it was at `now`, since the epoch, too.
pub(super) fn when(millis: u64, now: Duration) -> String {
    // The znodes that a cluster begins with have no moment.
    if millis == 0 {
        return "with the cluster".to_owned();
    }
    let then = Duration::from_millis(millis);
    format!("{}, {} ago", utc(then), duration(now.saturating_sub(then)))
}

/// The date and time of a moment since the Unix epoch, in UTC. What lies beyond the year 9999 is shown as its end.
pub(super) fn utc(since_epoch: Duration) -> String {
    let moment = since_epoch.try_into().and_then(Timestamp::from_duration);
    moment.unwrap_or(Timestamp::MAX).strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `stat` printed milliseconds, and the root was 20,782 days old in `top`.
    #[test]
    fn moments_are_dates() {
        let now = Duration::from_secs(1_800_000_000);
        for (seconds, expected) in [
            (0, "with the cluster"),
            (1, "1970-01-01 00:00:01 UTC, 20833 d ago"),
            (951_782_399, "2000-02-28 23:59:59 UTC, 9817 d ago"),
            (951_782_400, "2000-02-29 00:00:00 UTC, 9817 d ago"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC, 1050 d ago"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC, 379 d ago"),
            (1_799_999_990, "2027-01-15 07:59:50 UTC, 10 s ago"),
            // Whatever a znode holds.
            (u64::MAX / 1000, "9999-12-30 22:00:00 UTC, 0 ms ago"),
            // The leader's clock is ahead.
            (1_800_000_001, "2027-01-15 08:00:01 UTC, 0 ms ago"),
        ] {
            assert_eq!(when(seconds * 1000, now), expected, "{seconds}");
        }
    }
}
