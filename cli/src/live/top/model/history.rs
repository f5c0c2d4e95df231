//! A member's writes a second and its lag, second by second.

use std::collections::VecDeque;
use std::time::Duration;

use quorate::operate::MemberReport;

/// How many values are kept.
pub(in super::super) const KEPT: usize = 120;

#[derive(Clone, Copy, Debug)]
struct Point {
    writes: Option<u64>,
    lag: Option<u64>,
}

/// The last values of a member, the oldest first. `None` is a missing report.
#[derive(Debug, Default)]
pub(in super::super) struct MemberHistory {
    points: VecDeque<Point>,
    /// The time of the last report, and the zxid that the member had applied.
    last: Option<(Duration, u64)>,
}

impl MemberHistory {
    pub(super) fn push(&mut self, member: &MemberReport, now: Duration) {
        let last = member.state.as_ref().map(|state| (now, state.zxid));
        let rate = |((from, before), (to, after)): ((Duration, u64), (Duration, u64))| {
            let seconds = to.saturating_sub(from).as_secs_f64();
            // The zxid goes back if the member has lost its data.
            let writes = after.checked_sub(before)?;
            (seconds > 0.0).then(|| (writes as f64 / seconds).round() as u64)
        };
        let writes = self.last.zip(last).and_then(rate);
        self.last = last;
        if self.points.len() == KEPT {
            self.points.pop_front();
        }
        self.points.push_back(Point { writes, lag: member.lag });
    }

    pub(in super::super) fn writes(&self) -> impl DoubleEndedIterator<Item = Option<u64>> {
        self.points.iter().map(|point| point.writes)
    }

    pub(in super::super) fn lags(&self) -> impl DoubleEndedIterator<Item = Option<u64>> {
        self.points.iter().map(|point| point.lag)
    }
}
