//! The wall clock by which certificates are valid. `rustls` has a reading of its own, which panics before 1970.

use std::time::SystemTime;

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// The clock of the connections.
#[derive(Debug)]
pub(crate) struct WallClock;

impl WallClock {
    /// 1970, when no certificate is valid yet, if the clock is before that.
    pub(crate) fn now() -> UnixTime {
        #[expect(clippy::disallowed_methods, reason = "certificates are valid by the wall clock")]
        WallClock::of(SystemTime::now())
    }

    fn of(time: SystemTime) -> UnixTime {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        UnixTime::since_unix_epoch(since)
    }
}

impl TimeProvider for WallClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(WallClock::now())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The thread of the connections panicked, and the node stopped.
    #[test]
    fn a_clock_before_1970_shows_1970() {
        let second = Duration::from_secs(1);
        assert_eq!(WallClock::of(SystemTime::UNIX_EPOCH - second).as_secs(), 0);
        assert_eq!(WallClock::of(SystemTime::UNIX_EPOCH + second).as_secs(), 1);
    }
}
