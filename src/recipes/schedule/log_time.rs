//! An estimate of the log's time: what an answer of the cluster has told, and the time that has passed since then on
//! this instance's clock. Every claim is checked by the cluster; the estimate only decides when to try.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::api::multi::Multi;
use crate::api::session::Session;
use crate::recipes::errors::{is_overtaken, missing_nanos};
use crate::types::error::{Error, Result};

/// An estimate is used for so long. Meanwhile the log's time may have run a tenth faster or slower, by a clock that is
/// as wrong: the error stays below the ten seconds in which a fire is in time.
pub(super) const USED: Duration = Duration::from_secs(30);

/// The log's time in milliseconds, and when it was that on this instance's clock.
#[derive(Debug, Default)]
pub(super) struct LogTime(Mutex<Option<(i64, Duration)>>);

impl LogTime {
    fn lock(&self) -> MutexGuard<'_, Option<(i64, Duration)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was this time not long ago.
    pub(super) fn was(&self, ms: i64, now: Duration) {
        *self.lock() = Some((ms, now));
    }

    /// The estimate was wrong.
    pub(super) fn forget(&self) {
        *self.lock() = None;
    }

    /// `None` if the last answer is too old.
    pub(super) fn estimate(&self, now: Duration) -> Option<i64> {
        let (ms, at) = (*self.lock())?;
        let passed = now.saturating_sub(at);
        let passed = Some(passed).filter(|passed| *passed < USED)?.as_millis();
        Some(ms.saturating_add(i64::try_from(passed).ok()?))
    }

    /// Asks the cluster, by a write that requires a time that never comes, and so has no effect. `multi` puts
    /// `i64::MAX` into the znode at `path`. `None` if that fails since another write came first.
    pub(super) async fn ask(
        &self,
        session: &Session,
        multi: Multi<'_>,
        path: &str,
    ) -> Result<Option<i64>> {
        match multi.require_time(path, i64::MAX).commit().await {
            Err(Error::Multi { error, .. }) => {
                match (missing_nanos(&error), is_overtaken(&error)) {
                    (Some(missing), _) => {
                        let now = (i64::MAX - missing) / 1_000_000;
                        self.was(now, session.shared().clock.now());
                        Ok(Some(now))
                    }
                    (None, true) => Ok(None),
                    (None, false) => Err(*error),
                }
            }
            Err(error) => Err(error),
            // Never: the log's time is later than all others.
            Ok(_) => Ok(None),
        }
    }
}

/// The data of a znode with this time in milliseconds.
pub(super) fn written(ms: i64) -> [u8; 8] {
    ms.saturating_mul(1_000_000).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::types::znode::CreateMode;

    #[test]
    fn a_write_may_come_only_between_two_times_of_the_log() {
        let session = Cluster::new(1).node(0).session();
        let created = session.create_or_set("/next", b"", CreateMode::Persistent).wait().unwrap();
        let now = i64::try_from(created.stat.mtime).unwrap();
        let minute = 60_000;
        let between = |from: i64, until: i64| {
            let multi = session.multi().set("/next", written(from));
            let multi = multi.require_time("/next", until.saturating_mul(1_000_000));
            match multi.set("/next", b"").commit().wait() {
                Err(Error::Multi { index: 1, error }) => Err(*error),
                done => done.map(drop),
            }
        };
        assert_eq!(between(now - minute, now + minute), Ok(()));
        assert_eq!(between(now, i64::MAX), Ok(()), "it has come, and may be later");
        let late = between(now - 2 * minute, now - minute);
        assert!(matches!(late, Err(Error::InvalidData { .. })), "{late:?}");
        let early = between(now + minute, now + 2 * minute).unwrap_err();
        let missing = missing_nanos(&early).unwrap() / 1_000_000;
        assert!((minute / 2..=minute).contains(&missing), "{missing} ms are missing");
        assert!(session.get("/next").wait().unwrap().0.is_empty(), "refused, it changes nothing");
    }

    #[test]
    fn an_estimate_grows_with_the_clock_and_gets_old() {
        let (time, second) = (LogTime::default(), Duration::from_secs(1));
        assert_eq!(time.estimate(second), None);
        time.was(7_000, second);
        assert_eq!(time.estimate(3 * second), Some(9_000));
        assert_eq!(time.estimate(second + USED), None);
        time.was(7_000, second);
        time.forget();
        assert_eq!(time.estimate(second), None);
    }
}
