//! True time, and the clocks of the nodes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::runtime::clock::TimeSource;

/// Nanoseconds since the start of the world.
pub(crate) type Nanos = u64;

pub(crate) const MICRO: Nanos = 1_000;
pub(crate) const MILLI: Nanos = 1_000_000;
pub(crate) const SECOND: Nanos = 1_000_000_000;

/// Converts a duration of the engine.
pub(crate) fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(Nanos::MAX / 8)
}

/// What a monotonic clock shows at the start. It is not 0, so that no code can take 0 for "before
/// everything".
const BASE: Nanos = 3600 * SECOND;
/// The wall clocks' start: 2026.
const EPOCH_MS: u64 = 1_767_225_600_000;

/// True time. No node sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrueTime(Arc<AtomicU64>);

impl TrueTime {
    pub(crate) fn now(&self) -> Nanos {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, now: Nanos) {
        self.0.store(now, Ordering::Relaxed);
    }
}

/// The clocks of one node. The monotonic clock runs at its own rate, and the wall clock jumps.
#[derive(Debug)]
pub(crate) struct NodeClock {
    time: TrueTime,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// A moment at which both values are known.
    since: Nanos,
    shown: Nanos,
    /// The rate in millionths of true time's.
    rate_ppm: u64,
    wall_offset_ms: i64,
}

impl NodeClock {
    pub(crate) fn new(time: TrueTime, ahead: Nanos, rate_ppm: u64) -> NodeClock {
        let state = State { since: 0, shown: BASE + ahead, rate_ppm, wall_offset_ms: 0 };
        NodeClock { time, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_rate(&self, rate_ppm: u64) {
        let now = self.time.now();
        let mut state = self.lock();
        state.shown = shown(&state, now);
        state.since = now;
        state.rate_ppm = rate_ppm;
    }

    pub(crate) fn jump_wall_clock(&self, by_ms: i64) {
        let mut state = self.lock();
        state.wall_offset_ms = state.wall_offset_ms.saturating_add(by_ms);
    }

    /// The true time at which the clock will show `local`, at its present rate.
    pub(crate) fn when(&self, local: Duration) -> Nanos {
        let local = u64::try_from(local.as_nanos()).unwrap_or(u64::MAX);
        let state = self.lock();
        let ahead = u128::from(local.saturating_sub(state.shown));
        let wait = (ahead * 1_000_000).div_ceil(u128::from(state.rate_ppm));
        state.since.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

fn shown(state: &State, now: Nanos) -> Nanos {
    let passed = u128::from(now.saturating_sub(state.since));
    state.shown + (passed * u128::from(state.rate_ppm) / 1_000_000) as u64
}

impl TimeSource for NodeClock {
    fn park_until(&self, _deadline: Option<Duration>) {
        panic!("a blocking call in a simulation would block all of it");
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(shown(&self.lock(), self.time.now()))
    }

    fn wall_ms(&self) -> u64 {
        let offset = self.lock().wall_offset_ms;
        (EPOCH_MS + self.time.now() / MILLI).saturating_add_signed(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_runs_at_its_rate_and_computes_when_it_shows_a_time() {
        let time = TrueTime::default();
        let clock = NodeClock::new(time.clone(), 0, 1_030_000);
        let start = clock.now();
        time.set(100 * SECOND);
        assert_eq!(clock.now() - start, Duration::from_secs(103));
        clock.set_rate(900_000);
        let later = clock.now() + Duration::from_secs(9);
        assert_eq!(clock.when(later), 110 * SECOND);
        time.set(clock.when(later + Duration::from_nanos(1)));
        assert!(clock.now() > later);
    }
}
