//! Moments as people read them.

use std::time::Duration;

use super::cluster::duration;

const DAY: u64 = 86_400;

/// A moment in milliseconds since the Unix epoch, in UTC, and how long ago it was at `now`, since the epoch, too.
pub(super) fn when(millis: u64, now: Duration) -> String {
    // The znodes that a cluster begins with have no moment.
    if millis == 0 {
        return "with the cluster".to_owned();
    }
    let seconds = millis / 1000;
    let (year, month, day) = civil(seconds / DAY);
    let time = seconds % DAY;
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let ago = duration(now.saturating_sub(Duration::from_millis(millis)));
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC, {ago} ago")
}

/// The year, the month and the day of a number of days since the Unix epoch.
///
/// Source: Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // The year begins in March, so that the leap day is its last.
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
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
            // The leader's clock is ahead.
            (1_800_000_001, "2027-01-15 08:00:01 UTC, 0 ms ago"),
        ] {
            assert_eq!(when(seconds * 1000, now), expected, "{seconds}");
        }
    }
}
