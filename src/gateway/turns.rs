//! Whose turn it is at a gateway.

use std::collections::BTreeSet;
use std::time::Duration;

/// How often connections are checked for silent clients. The thread wakes at least this often.
pub(super) const SWEEP: Duration = Duration::from_millis(500);

/// Which clients are served next, and when all are looked at.
pub(super) struct Turns {
    /// The clients whose turn it is.
    touched: BTreeSet<u64>,
    /// When the last turn began, and the last sweep.
    turned: Duration,
    swept: Duration,
}

impl Turns {
    pub(super) fn new(now: Duration) -> Turns {
        Turns { touched: BTreeSet::new(), turned: now, swept: now }
    }

    /// Something has happened to this client.
    pub(super) fn touch(&mut self, number: u64) {
        self.touched.insert(number);
    }

    pub(super) fn is_touched(&self, number: u64) -> bool {
        self.touched.contains(&number)
    }

    /// Whether some clients have had no turn since something happened to them.
    pub(super) fn is_busy(&self) -> bool {
        !self.touched.is_empty()
    }

    pub(super) fn take(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.touched)
    }

    /// A turn begins. Returns whether the thread was delayed.
    pub(super) fn begin(&mut self, now: Duration) -> bool {
        let former = std::mem::replace(&mut self.turned, now);
        now.saturating_sub(former) > SWEEP * 3 / 2
    }

    pub(super) fn swept(&mut self, now: Duration) {
        self.swept = now;
    }

    /// The time until the next sweep.
    pub(super) fn next_sweep(&self, now: Duration) -> Duration {
        (self.swept + SWEEP).saturating_sub(now)
    }
}
