//! How long a step of another thread has been in progress, as observed by a running watcher.
//!
//! If a process is stopped for a minute (by a signal, a debugger, a paused or suspended machine),
//! it resumes in a step that was started a minute ago, and nothing is wrong. So the clock's time does not
//! count. Instead, the times between the watcher's own checks count, at most [`GAP_MAX`] each: a running
//! watcher would have checked again by then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often to check, at least, while a step is in progress. More time than this between two checks does
/// not count.
pub(crate) const GAP_MAX: Duration = Duration::from_secs(1);

/// The number of the step in progress; 0 if there is none. Written only by the thread that takes
/// the steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    under_way: Arc<AtomicU64>,
}

impl Steps {
    /// The end of the thread that takes the steps.
    pub(crate) fn stepper(&self) -> Stepper {
        Stepper { steps: self.clone(), last: 0 }
    }

    pub(crate) fn under_way(&self) -> Option<u64> {
        // `Relaxed` suffices: no other memory depends on this value.
        Some(self.under_way.load(Ordering::Relaxed)).filter(|step| *step != 0)
    }
}

/// Counts a thread's steps.
#[derive(Debug)]
pub(crate) struct Stepper {
    steps: Steps,
    last: u64,
}

impl Stepper {
    /// The next step starts, whether or not one was in progress.
    pub(crate) fn begin(&mut self) {
        self.last += 1;
        self.steps.under_way.store(self.last, Ordering::Relaxed);
    }

    /// Ends the step in progress, if there is one.
    pub(crate) fn end(&self) {
        self.steps.under_way.store(0, Ordering::Relaxed);
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        self.end();
    }
}

/// Adds up the time of the step in progress.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    step: Option<u64>,
    seen: Duration,
    looked_at: Duration,
}

impl Watchdog {
    /// Checks the step in progress, and returns the time that counts for it.
    pub(crate) fn look(&mut self, now: Duration, step: Option<u64>) -> Duration {
        if step.is_none() || step != self.step {
            self.step = step;
            self.seen = Duration::ZERO;
        } else {
            self.seen += now.saturating_sub(self.looked_at).min(GAP_MAX);
        }
        self.looked_at = now;
        self.seen
    }

    /// The time that counts for the step in progress, as of the last check.
    pub(crate) fn seen(&self) -> Duration {
        self.seen
    }

    /// Whether a step was in progress at the last check, so that the next check is due within
    /// [`GAP_MAX`].
    pub(crate) fn is_on(&self) -> bool {
        self.step.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_time_of_a_hanging_step_counts() {
        let mut watchdog = Watchdog::default();
        for tenth in 0..=700 {
            assert_eq!(watchdog.look(tenth * SECOND / 10, Some(1)), tenth * SECOND / 10);
        }
    }

    /// The process was stopped for an hour during a write. The node considered the disk dead, and stopped.
    #[test]
    fn a_pause_of_the_watcher_does_not_count() {
        let mut watchdog = Watchdog::default();
        watchdog.look(SECOND, Some(1));
        watchdog.look(2 * SECOND, Some(1));
        let hour = 3600 * SECOND;
        assert_eq!(watchdog.look(hour, Some(1)), SECOND + GAP_MAX);
        assert_eq!(watchdog.look(hour + SECOND / 2, Some(1)), SECOND + GAP_MAX + SECOND / 2);
    }

    #[test]
    fn many_steps_are_not_one_long_one() {
        let steps = Steps::default();
        let mut stepper = steps.stepper();
        let mut watchdog = Watchdog::default();
        for second in 0..200 {
            if second % 5 == 0 {
                stepper.begin();
            }
            assert!(watchdog.look(second * SECOND, steps.under_way()) < 5 * SECOND);
            assert!(watchdog.is_on());
        }
        stepper.end();
        assert_eq!(watchdog.look(300 * SECOND, steps.under_way()), Duration::ZERO);
        assert!(!watchdog.is_on());
        // After a end, the time starts again.
        stepper.begin();
        assert_eq!(watchdog.look(400 * SECOND, steps.under_way()), Duration::ZERO);
    }
}
