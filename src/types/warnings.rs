//! How many log lines of one kind are written.

use std::ops::Add;
use std::time::Duration;

/// Lets a number of lines through in each interval, and counts the others. `T` is a time.
#[derive(Debug)]
pub(crate) struct Warnings<T> {
    /// The lines of an interval.
    most: u32,
    /// The end of the interval that the last line began, and its lines so far.
    until: Option<T>,
    lines: u32,
    suppressed: u64,
}

/// The target of the lines about who did, or wanted, what.
pub(crate) const AUDIT: &str = "quorate::audit";

/// Begins with the first line.
const INTERVAL: Duration = Duration::from_secs(5);

impl<T: Copy + PartialOrd + Add<Duration, Output = T>> Warnings<T> {
    /// For this many lines in each interval of five seconds.
    pub(crate) fn new(most: u32) -> Warnings<T> {
        Warnings { most, until: None, lines: 0, suppressed: 0 }
    }

    /// Returns the number of lines suppressed since the last one, if this one may be written.
    pub(crate) fn permit(&mut self, now: T) -> Option<u64> {
        if self.until.is_none_or(|until| until <= now) {
            (self.until, self.lines) = (Some(now + INTERVAL), 0);
        }
        if self.lines == self.most {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Returns the number of lines suppressed in an interval that is over, once.
    pub(crate) fn rest(&mut self, now: T) -> Option<u64> {
        let is_over = self.until.is_some_and(|until| until <= now);
        (is_over && self.suppressed > 0).then(|| std::mem::take(&mut self.suppressed))
    }
}

/// One line in each interval.
impl<T: Copy + PartialOrd + Add<Duration, Output = T>> Default for Warnings<T> {
    fn default() -> Warnings<T> {
        Warnings::new(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_lines_of_an_interval_are_counted_and_reported_once() {
        let mut warnings: Warnings<Duration> = Warnings::new(2);
        let at = Duration::from_secs;
        let permitted = [1, 2, 3, 5].map(|second| warnings.permit(at(second)));
        assert_eq!(permitted, [Some(0), Some(0), None, None]);
        assert_eq!(warnings.rest(at(5)), None, "the interval is not over");
        assert_eq!([at(6), at(7)].map(|now| warnings.rest(now)), [Some(2), None]);
        let permitted = [8, 9, 10, 13].map(|second| warnings.permit(at(second)));
        assert_eq!(permitted, [Some(0), Some(0), None, Some(1)]);
    }
}
