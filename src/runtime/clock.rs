//! The clocks: the only place that reads them.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::uptime::uptime;

/// Monotonic time since some moment before the clock was created, and the wall clock. Time in which
/// the machine is suspended counts, if the system allows it: see `uptime`.
///
/// A test clock runs in real time and can also be advanced.
///
/// A clock also knows its process: in a fork of that, the node does not run.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    start: Duration,
    process: u32,
    manual: Option<Arc<Manual>>,
    #[cfg(any(test, feature = "simulator"))]
    simulated: Option<Arc<dyn Simulated>>,
}

/// A clock that a simulator controls: it is independent of the machine's time, and nobody can wait
/// by it.
#[cfg(any(test, feature = "simulator"))]
pub(crate) trait Simulated: std::fmt::Debug + Send + Sync {
    fn now(&self) -> Duration;
    fn wall_ms(&self) -> u64;
}

#[derive(Debug, Default)]
struct Manual {
    state: Mutex<ManualState>,
}

#[derive(Debug, Default)]
struct ManualState {
    ahead: Duration,
    /// Threads that wait for a time: they must check again when the clock is advanced.
    parked: Vec<Thread>,
}

/// What the clock shows at its start: room for events "before".
const BASE: Duration = Duration::from_secs(3600);

impl Clock {
    pub(crate) fn real() -> Clock {
        Clock {
            start: uptime(),
            process: std::process::id(),
            manual: None,
            #[cfg(any(test, feature = "simulator"))]
            simulated: None,
        }
    }

    pub(crate) fn manual() -> Clock {
        Clock { manual: Some(Arc::default()), ..Clock::real() }
    }

    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn simulated(clock: Arc<dyn Simulated>) -> Clock {
        Clock { simulated: Some(clock), ..Clock::real() }
    }

    pub(crate) fn now(&self) -> Duration {
        #[cfg(any(test, feature = "simulator"))]
        if let Some(simulated) = &self.simulated {
            return simulated.now();
        }
        BASE + uptime().saturating_sub(self.start) + self.ahead()
    }

    /// Whether this process is a fork of the clock's: it has copies of the handles, but not the
    /// threads that serve them. A system call, so too slow for every read.
    pub(crate) fn is_forked(&self) -> bool {
        cfg!(unix) && std::process::id() != self.process
    }

    /// The reason why nothing works in a fork.
    pub(crate) fn fork_reason(&self) -> String {
        format!(
            "it runs in process {}, and this process is a fork of that one, which has no node, \
             session or lock; fork before joining, or join here as a client",
            self.process
        )
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn wall_ms(&self) -> u64 {
        #[cfg(any(test, feature = "simulator"))]
        if let Some(simulated) = &self.simulated {
            return simulated.wall_ms();
        }
        #[expect(clippy::disallowed_methods, reason = "this is where the clock is read")]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from((since + self.ahead()).as_millis()).unwrap_or(u64::MAX)
    }

    fn ahead(&self) -> Duration {
        let Some(manual) = &self.manual else {
            return Duration::ZERO;
        };
        manual.state.lock().unwrap_or_else(PoisonError::into_inner).ahead
    }

    /// Advances a test clock; does nothing to a real one.
    pub(crate) fn advance(&self, by: Duration) {
        let Some(manual) = &self.manual else { return };
        let mut state = manual.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ahead += by;
        for thread in &state.parked {
            thread.unpark();
        }
    }

    /// Parks this thread until it is unparked or the time has come, or spuriously: the caller must
    /// check again. A suspend of the machine counts for the clock but not for this wait, which may
    /// end later by as much.
    pub(crate) fn park_until(&self, deadline: Option<Duration>) {
        #[cfg(any(test, feature = "simulator"))]
        assert!(self.simulated.is_none(), "a blocking call in a simulation would block all of it");
        let Some(deadline) = deadline else {
            std::thread::park();
            return;
        };
        let Some(manual) = &self.manual else {
            std::thread::park_timeout(deadline.saturating_sub(self.now()));
            return;
        };
        let this = std::thread::current();
        {
            let mut state = manual.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.parked.push(this.clone());
        }
        std::thread::park_timeout(deadline.saturating_sub(self.now()));
        let mut state = manual.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = state.parked.iter().position(|parked| parked.id() == this.id()) {
            state.parked.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_when_told_and_wakes_who_waits() {
        let clock = Clock::manual();
        let deadline = clock.now() + Duration::from_secs(3600);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                while clock.now() < deadline {
                    clock.park_until(Some(deadline));
                }
            });
            clock.advance(Duration::from_secs(3600));
            waiter.join().unwrap();
        });
        assert!(clock.now() >= deadline);
    }
}
