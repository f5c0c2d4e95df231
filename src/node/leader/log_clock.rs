//! The log time, which a leader stamps on each batch.
//!
//! Times to live, the delays of queue items and lock delays are measured in this log time, so it must
//! advance at about the rate of real time. The leader's wall clock alone does not ensure that. If
//! somebody sets it forward by mistake, all of them end at once. If it is then set back, the log time
//! stands still until the wall clock has caught up, because the log time never goes back.
//!
//! So the log time advances with the leader's monotonic clock and only leans towards the wall clock:
//! a tenth faster while the wall clock is ahead, a tenth slower while it is behind. `adjtime` and NTP
//! daemons correct a clock in the same way. (A hybrid logical clock, as CockroachDB has it, is never
//! behind any wall clock, but it stands still while it is ahead of them. It orders events and does
//! not measure time.)
//!
//! A new leader starts from its wall clock, or from the log time if that is later. It does not start later than
//! what it has received of its predecessor's clocks (`node::clocks`): so a wall clock that is alone in being ahead does
//! not move the log time at once. After a restart of all members nobody knows a predecessor, and no monotonic clock
//! how long there was no leader. Only then can one wall clock that is ahead move the log time forward at once.
//!
//! Invariants: while one node leads, the log time advances at nine to eleven tenths of the rate of
//! that node's monotonic clock. It never goes back.

use std::time::Duration;

use crate::node::io::{Now, Time};

/// The log time runs a tenth faster or slower to approach the wall clock.
const LEAN: u32 = 10;

#[derive(Debug)]
pub(crate) struct LogClock {
    /// A moment, and the log time at that moment since the Unix epoch. It keeps fractions of a
    /// millisecond, which would otherwise be lost with each step.
    at: Time,
    time: Duration,
}

impl LogClock {
    /// The clock of a node that begins to lead at this log time, and is not to be ahead of `believed_ms`.
    pub(crate) fn begin(now: Now, log_ms: u64, believed_ms: Option<u64>) -> LogClock {
        let log_ms = unless!(LogTimeBack, log_ms, 0);
        let wall_ms = now.wall_ms.min(believed_ms.unwrap_or(u64::MAX));
        LogClock { at: now.mono, time: Duration::from_millis(wall_ms.max(log_ms)) }
    }

    /// Advances to this moment.
    pub(crate) fn advance(&mut self, now: Now) {
        let elapsed = now.mono.saturating_sub(self.at);
        let lean = elapsed / if planted!(LogTimeStands) { 1 } else { LEAN };
        let wall = Duration::from_millis(now.wall_ms);
        self.at = now.mono;
        let passed = self.time.saturating_add(elapsed);
        self.time = wall.clamp(passed - lean, passed.saturating_add(lean));
    }

    /// The log's time in milliseconds.
    pub(crate) fn time_ms(&self) -> u64 {
        u64::try_from(self.time.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn at(mono_us: u64, wall_ms: u64) -> Now {
        Now { mono: Duration::from_micros(mono_us), wall_ms }
    }

    #[test]
    fn it_begins_with_the_later_of_the_wall_clock_and_the_log() {
        assert_eq!(LogClock::begin(at(5, 100), 70, None).time_ms(), 100);
        assert_eq!(LogClock::begin(at(5, 70), 100, None).time_ms(), 100);
        assert_eq!(LogClock::begin(at(5, HOUR_MS), 70, Some(80)).time_ms(), 80);
        assert_eq!(LogClock::begin(at(5, 75), 70, Some(80)).time_ms(), 75);
    }

    #[test]
    fn it_shows_the_wall_clock_while_that_runs_as_the_monotonic_one() {
        let mut clock = LogClock::begin(at(0, 1000), 0, None);
        for ms in 0..5000 {
            // A wall clock that is a twentieth faster.
            let wall = 1000 + ms * 21 / 20;
            clock.advance(at(ms * 1000, wall));
            assert!(clock.time_ms().abs_diff(wall) <= 1, "{} at {wall}", clock.time_ms());
        }
    }

    /// With any wall clock, and steps of any length.
    #[test]
    fn an_hour_takes_about_an_hour() {
        for step_us in [300, 7_000, 100_000, 60_000_000] {
            for wall in [0, 1, u64::MAX] {
                let mut clock = LogClock::begin(at(0, HOUR_MS), 0, None);
                let mut now_us = 0;
                let mut before = clock.time_ms();
                while now_us < HOUR_MS * 1000 / 60 {
                    now_us += step_us;
                    clock.advance(at(now_us, wall));
                    assert!(clock.time_ms() >= before, "it goes back");
                    before = clock.time_ms();
                }
                let passed = (before - HOUR_MS) * 1000;
                let expected = if wall == u64::MAX { now_us / 10 * 11 } else { now_us / 10 * 9 };
                assert!(passed.abs_diff(expected) <= 2000, "{passed} of {now_us} by {wall}");
            }
        }
    }

    /// A wall clock that is a day ahead for half a second moves the log time by a twentieth of a
    /// second. The log time soon returns to the wall clock.
    #[test]
    fn a_moment_s_mistake_leaves_no_trace() {
        let day = 24 * HOUR_MS;
        let mut clock = LogClock::begin(at(0, 1000), 0, None);
        clock.advance(at(500_000, 1500 + day));
        assert_eq!(clock.time_ms(), 1550);
        clock.advance(at(600_000, 1600));
        assert_eq!(clock.time_ms(), 1640);
        clock.advance(at(1_100_000, 2100));
        assert_eq!(clock.time_ms(), 2100);
    }
}
