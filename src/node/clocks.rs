//! This node's wall clock beside the log's time, and beside the wall clocks of leaders.
//!
//! The leader sends the log's time and its own wall clock with each report of health. Times to live, delays and timers
//! follow the log's time, so operators should know of a clock that differs from it: of the one member that has the wrong
//! time, or of all, if the log's time is wrong.
//!
//! A member whose clock differs from the leader's does not stand for election first. If it comes to lead all the same, it
//! does not move the log's time to its own clock at once, see [`Clocks::believed_ms`].

use std::time::Duration;

use super::io::{Now, Time};
use crate::types::membership::Named;

/// A clock that differs by more is wrong. Messages may take a while.
const WRONG: Duration = Duration::from_secs(60);
/// It is reported once it was wrong for so long.
const REPORTED_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Clocks {
    received: Option<LeaderTime>,
    /// How far this node's wall clock was ahead of the log's time at that moment, in milliseconds.
    ahead_ms: i64,
    wrong_since: Option<Time>,
    is_reported: bool,
}

/// What a leader has sent of its clocks, and when.
#[derive(Clone, Copy, Debug)]
struct LeaderTime {
    at: Time,
    log_ms: u64,
    wall_ms: u64,
}

impl Clocks {
    /// A leader has sent its clocks, or this node leads: then it knows no other's wall clock.
    pub(super) fn received(&mut self, log_ms: u64, wall_ms: Option<u64>, now: Now, own: Named) {
        let wall_ms = wall_ms.unwrap_or(log_ms);
        self.received = Some(LeaderTime { at: now.mono, log_ms, wall_ms });
        self.ahead_ms = difference(now.wall_ms, log_ms);
        if self.ahead_ms.unsigned_abs() <= millis(WRONG) {
            self.wrong_since = None;
            if std::mem::take(&mut self.is_reported) {
                tracing::info!(node = %own, "this machine's clock shows the log's time again");
            }
            return;
        }
        let since = *self.wrong_since.get_or_insert(now.mono);
        if now.mono.saturating_sub(since) >= REPORTED_AFTER && !self.is_reported {
            self.is_reported = true;
            let by = Duration::from_millis(self.ahead_ms.unsigned_abs());
            let side = if self.ahead_ms > 0 { "ahead of" } else { "behind" };
            tracing::warn!(
                node = %own,
                ?by,
                "this machine's clock is {side} the log's time, which timers and times to live follow: `quorate \
                 doctor` compares all clocks"
            );
        }
    }

    /// How far this node's wall clock is ahead of the log's time, in milliseconds; `None` before it knows that.
    pub(super) fn ahead_ms(&self) -> Option<i64> {
        self.received.map(|_| self.ahead_ms)
    }

    /// Whether this node's wall clock differs from the leader's, or did when there was one.
    pub(super) fn differs_from_leader(&self, now: Now) -> bool {
        self.received.is_some_and(|from| {
            let wall_ms = from.later(from.wall_ms, now.mono);
            difference(now.wall_ms, wall_ms).unsigned_abs() > millis(WRONG)
        })
    }

    /// The latest that the log's time may be now, as far as other clocks tell: the later one of the log's time and of the
    /// leader's wall clock. So one wall clock that is ahead moves nothing by a leap, while one of a leader that has been set
    /// right, with the log's time behind it, does. `None` before any leader was known: then this node's clock is all there
    /// is.
    pub(super) fn believed_ms(&self, now: Time) -> Option<u64> {
        self.received.map(|from| from.later(from.log_ms.max(from.wall_ms), now))
    }
}

impl LeaderTime {
    fn later(&self, ms: u64, now: Time) -> u64 {
        ms.saturating_add(millis(now.saturating_sub(self.at)))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// By how many milliseconds one time is after another one.
pub(super) fn difference(of: u64, from: u64) -> i64 {
    i64::try_from(i128::from(of) - i128::from(from)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn at(seconds: u64, wall_ms: u64) -> Now {
        Now { mono: Duration::from_secs(seconds), wall_ms }
    }

    fn own() -> Named {
        Named::of(1)
    }

    #[test]
    fn a_clock_that_is_ahead_alone_is_not_believed() {
        let mut clocks = Clocks::default();
        assert_eq!((clocks.ahead_ms(), clocks.believed_ms(Time::ZERO)), (None, None));
        let now = at(10, 2 * HOUR_MS);
        clocks.received(HOUR_MS, Some(HOUR_MS + 5), now, own());
        assert_eq!(clocks.ahead_ms(), Some(HOUR_MS as i64));
        assert!(clocks.differs_from_leader(now));
        assert_eq!(clocks.believed_ms(Duration::from_secs(12)), Some(HOUR_MS + 2005));
        assert!(!clocks.differs_from_leader(at(12, HOUR_MS + 2000)));
    }

    #[test]
    fn a_leader_s_clock_that_was_set_right_is_believed() {
        let mut clocks = Clocks::default();
        clocks.received(HOUR_MS, Some(3 * HOUR_MS), at(0, 3 * HOUR_MS), own());
        assert_eq!(clocks.believed_ms(Time::ZERO), Some(3 * HOUR_MS));
        assert!(!clocks.differs_from_leader(at(0, 3 * HOUR_MS)));
        assert_eq!(clocks.ahead_ms(), Some(2 * HOUR_MS as i64));
    }

    #[test]
    fn what_lasts_is_reported_once() {
        let mut clocks = Clocks::default();
        let mut reported = Vec::new();
        for second in 0..20 {
            let wall_ms = if second < 15 { HOUR_MS } else { 0 };
            clocks.received(0, Some(0), at(second, wall_ms), own());
            reported.push(clocks.is_reported);
        }
        let expected: Vec<bool> = (0..20).map(|second| (5..15).contains(&second)).collect();
        assert_eq!(reported, expected);
    }
}
