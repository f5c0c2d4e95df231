//! The clocks: the only place that reads them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{self, Duration};

use super::uptime::uptime;

/// Monotonic time since some moment before the clock was created, and the wall clock. Time in which
/// the machine is suspended counts, if the system allows it: see `uptime`.
///
/// A test clock runs in real time and can also be advanced.
///
/// A clock also knows its process: the node does not run in a fork of it.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    source: Arc<dyn TimeSource>,
    process: u32,
}

/// What a clock reads: see the methods of [`Clock`].
pub(crate) trait TimeSource: std::fmt::Debug + Send + Sync {
    fn now(&self) -> Duration;

    fn wall_ms(&self) -> u64;

    fn advance(&self, _by: Duration) {}

    fn park_until(&self, deadline: Option<Duration>);

    /// The first time for which a thread is parked, as far as this is known.
    fn first_deadline(&self) -> Option<Duration> {
        None
    }
}

/// The machine's clocks.
#[derive(Debug)]
struct SystemTime {
    start: Duration,
}

/// The machine's clocks, which can be advanced.
#[derive(Debug)]
struct TestTime {
    system: SystemTime,
    state: Mutex<TestState>,
}

#[derive(Debug, Default)]
struct TestState {
    ahead: Duration,
    /// Threads that wait for a time. They have to check it again when the clock is advanced.
    parked: Vec<(Thread, Duration)>,
}

/// What the clock shows at its start: room for events "before".
const BASE: Duration = Duration::from_secs(3600);

impl Clock {
    pub(crate) fn real() -> Clock {
        Clock::new(Arc::new(SystemTime { start: uptime() }))
    }

    pub(crate) fn manual() -> Clock {
        let system = SystemTime { start: uptime() };
        Clock::new(Arc::new(TestTime { system, state: Mutex::default() }))
    }

    pub(crate) fn new(source: Arc<dyn TimeSource>) -> Clock {
        Clock { source, process: std::process::id() }
    }

    pub(crate) fn now(&self) -> Duration {
        self.source.now()
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
        self.source.wall_ms()
    }

    /// Advances a test clock; does nothing to a real one.
    pub(crate) fn advance(&self, by: Duration) {
        self.source.advance(by);
    }

    /// The first time for which a thread waits, of a test clock.
    pub(crate) fn first_deadline(&self) -> Option<Duration> {
        self.source.first_deadline()
    }

    /// Parks this thread until it is unparked or the time has come, or spuriously: the caller must
    /// check again. A suspend of the machine counts for the clock but not for this wait, which may
    /// end later by the time of the suspend.
    pub(crate) fn park_until(&self, deadline: Option<Duration>) {
        self.source.park_until(deadline);
    }
}

impl TimeSource for SystemTime {
    fn now(&self) -> Duration {
        BASE + uptime().saturating_sub(self.start)
    }

    fn wall_ms(&self) -> u64 {
        #[expect(clippy::disallowed_methods, reason = "this is where the clock is read")]
        let now = time::SystemTime::now();
        let since = now.duration_since(time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn park_until(&self, deadline: Option<Duration>) {
        match deadline {
            None => std::thread::park(),
            Some(deadline) => std::thread::park_timeout(deadline.saturating_sub(self.now())),
        }
    }
}

impl TestTime {
    fn state(&self) -> MutexGuard<'_, TestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TimeSource for TestTime {
    fn now(&self) -> Duration {
        self.system.now() + self.state().ahead
    }

    fn wall_ms(&self) -> u64 {
        let ahead = u64::try_from(self.state().ahead.as_millis()).unwrap_or(u64::MAX);
        self.system.wall_ms().saturating_add(ahead)
    }

    fn advance(&self, by: Duration) {
        let mut state = self.state();
        state.ahead += by;
        for (thread, _) in &state.parked {
            thread.unpark();
        }
    }

    fn park_until(&self, deadline: Option<Duration>) {
        let Some(deadline) = deadline else {
            std::thread::park();
            return;
        };
        let this = std::thread::current();
        self.state().parked.push((this.clone(), deadline));
        std::thread::park_timeout(deadline.saturating_sub(self.now()));
        let mut state = self.state();
        if let Some(place) = state.parked.iter().position(|(parked, _)| parked.id() == this.id()) {
            state.parked.swap_remove(place);
        }
    }

    fn first_deadline(&self) -> Option<Duration> {
        self.state().parked.iter().map(|(_, deadline)| *deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_can_be_advanced_and_wakes_waiting_threads() {
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
