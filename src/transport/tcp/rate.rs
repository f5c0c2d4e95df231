//! A limit on how much a peer may send.

use std::time::{Duration, Instant};

use crate::transport::TransportOptions;

/// How much of its unused share a peer may save up.
const SAVED: Duration = Duration::from_secs(1);

/// The time up to which a peer has used its share. It is in the past if some of the share is left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    used_until: Instant,
}

impl Rate {
    pub(super) fn new(now: Instant) -> Rate {
        Rate { used_until: now }
    }

    /// Counts bytes received.
    pub(super) fn count(&mut self, bytes: usize, now: Instant, options: &TransportOptions) {
        let nanos = (bytes as u64).saturating_mul(1_000_000_000);
        let share = Duration::from_nanos(nanos / options.received_per_second_max.max(1));
        let saved_since = now.checked_sub(SAVED).unwrap_or(now);
        self.used_until = self.used_until.max(saved_since) + share;
    }

    /// Returns the time until which nothing more may be read.
    pub(super) fn pause(&self, now: Instant) -> Option<Instant> {
        (self.used_until > now).then_some(self.used_until)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any moment will do")]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_over_a_long_time_match_the_rate() {
        let options =
            TransportOptions { received_per_second_max: 1000, ..TransportOptions::default() };
        let start = Instant::now() + SAVED;
        let mut now = start;
        let mut rate = Rate::new(now);
        let mut read = 0;
        while now < start + Duration::from_secs(100) {
            match rate.pause(now) {
                Some(until) => now = until,
                None => {
                    rate.count(77, now, &options);
                    read += 77;
                }
            }
        }
        assert!((100_000..=100_077).contains(&read), "{read}");
        // After a pause, a peer may send the bytes of one second at once, and no more.
        now += Duration::from_secs(50);
        let mut burst = 0;
        while rate.pause(now).is_none() {
            rate.count(77, now, &options);
            burst += 77;
        }
        assert!((1000..=1077).contains(&burst), "{burst}");
    }
}
