//! How many requests a second a session makes, as the member sees it that holds or serves the session.

use crate::node::io::Time;

/// The rate is that of this many seconds.
const PERIOD_SECS: u64 = 10;
const PERIOD_MS: u64 = PERIOD_SECS * 1000;

/// The requests of the present period and of the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::node) struct RequestRate {
    period: u64,
    count: u64,
    before: u64,
}

impl RequestRate {
    pub(in crate::node) fn note(&mut self, now: Time) {
        *self = self.at(now);
        self.count += 1;
    }

    /// The requests a second of the last ten seconds. Those of the period before count as if they had come evenly.
    pub(in crate::node) fn per_second(self, now: Time) -> u64 {
        let of = self.at(now);
        let left = PERIOD_MS - now.as_millis() as u64 % PERIOD_MS;
        (of.count + of.before * left / PERIOD_MS) / PERIOD_SECS
    }

    fn at(self, now: Time) -> RequestRate {
        let period = now.as_secs() / PERIOD_SECS;
        match period.saturating_sub(self.period) {
            0 => self,
            1 => RequestRate { period, count: 0, before: self.count },
            _ => RequestRate { period, ..RequestRate::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_follows_the_requests_of_ten_seconds() {
        let ms = Time::from_millis;
        let mut rate = RequestRate::default();
        (100_000..130_000).for_each(|at| rate.note(ms(at)));
        for at in [120_000, 124_321, 129_999] {
            let mut so_far = RequestRate::default();
            (100_000..at).for_each(|at| so_far.note(ms(at)));
            assert!((999..=1000).contains(&so_far.per_second(ms(at))), "{so_far:?} at {at}");
        }
        assert_eq!([135, 140, 150].map(|at| rate.per_second(Time::from_secs(at))), [500, 0, 0]);
    }
}
