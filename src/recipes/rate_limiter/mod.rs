//! A rate that all instances share.
//!
//! The znode holds one time, as a leaky bucket does (the generic cell rate algorithm of ITU-T I.371): the moment at
//! which all permits granted so far would be used up at the rate. Granting permits moves it on by one interval each,
//! from the log's time on if that is later, and at most to a burst after the log's time. That is one operation of the
//! cluster, applied at its place in the log, so instances do not conflict. Permits that are granted for a later moment
//! are a reservation, in the order of the log.
//!
//! Permits are granted in blocks and used without messages. A block is as large as the last ones were used up quickly,
//! and its permits are void soon after their moment. So what an instance does not use, or takes with it when it dies,
//! is lost for the others for one block at most, and a partition cannot save permits up.
//!
//! Durations on this instance's clock are those of the log's time with a margin: that runs at nine to eleven tenths of
//! the rate of a monotonic clock (see `docs/limits.md#the-clusters-time`).
//!
//! Of a limit for many keys, each key has such a znode with a time to live: it ends when the time in it has passed at the
//! latest, and what is missing counts as a time that has passed. So a znode that is gone grants nothing more.
//!
//! `limit` has the rate, `blocks` the permits that an instance has, `bucket` the requests to the cluster, `keyed` the
//! keys, and `agreement` what their users agree on.

mod agreement;
mod blocks;
mod bucket;
mod keyed;
mod limit;
mod table;

use std::time::Duration;

#[cfg(any(test, feature = "simulator"))]
use self::blocks::Grant;
use self::bucket::Bucket;
pub use self::keyed::KeyedRateLimiter;
use self::limit::Limit;
pub(super) use self::table::{may_be_limit, table};
use crate::api::session::Session;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::path;

/// A limit for what all instances do together: at most so many permits in a time, with a burst.
///
/// Instances take permits from the cluster in blocks, by one write each, and use them without messages. An instance
/// that needs few takes one at a time; a busy one takes up to a tenth of a second's. Handles are clones and share their
/// permits.
///
/// **What is promised.** In any span of the log's time, at most `burst + rate × span` permits are granted, whatever
/// fails: instances, leaders, networks. Each is used near its moment or not at all, so that at most
/// `burst + rate × (span + 2 s)` are used, as long as the rates of clocks differ by less than a tenth. A new leader whose wall clock is ahead may grant one burst more
/// ([the cluster's time](https://github.com/quorate/quorate/blob/main/docs/limits.md#the-clusters-time)).
///
/// **Turns.** Instances get permits in the order in which they ask the cluster, up to two seconds ahead; who would have
/// to wait for longer asks again later. Each asks once at a time, for the permits of a tenth of a second at most, so a
/// busy one does not keep others waiting for longer. Callers of one instance have no order.
///
/// Permits that are not used within that time, or whose instance dies, are lost: up to one block for each instance.
/// If the cluster takes more than 0.8 s for an answer, its permits are lost, too.
///
/// All users of a path need the same rate and burst. For a limit of each user or tenant, see [`RateLimiter::keyed`].
///
/// ```
/// use std::time::Duration;
///
/// use quorate::{recipes::RateLimiter, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let second = Duration::from_secs(1);
/// let here = RateLimiter::new(&cluster.node(0).session(), "/limits/mail", 2, second)?;
/// let there = RateLimiter::new(&cluster.node(1).session(), "/limits/mail", 2, second)?;
/// assert!(here.try_acquire(1).wait()? && there.try_acquire(1).wait()?);
/// assert!(!here.try_acquire(1).wait()?, "two a second, on all instances together");
/// assert!(here.acquire_within(1, second).wait()?, "waits for half a second");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RateLimiter {
    bucket: Bucket,
}

impl RateLimiter {
    /// Returns the limit at this path: `permits` in each `per`, and a burst of as many. The time of one permit is rounded
    /// up to whole nanoseconds. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath); [`Error::InvalidSetting`](crate::Error::InvalidSetting) if there are no permits, or more than one in a nanosecond, or
    /// if one takes more than a year.
    pub fn new(session: &Session, path: &str, permits: u32, per: Duration) -> Result<RateLimiter> {
        path::validate(path)?;
        let limit = Limit::new(permits, per)?;
        Ok(RateLimiter { bucket: Bucket::new(&session.for_recipe(), path, limit) })
    }

    /// Returns a limit for each key at this path, for example for each user: `permits` in each `per`, and a burst of as
    /// many. Sends nothing.
    ///
    /// # Errors
    /// As [`RateLimiter::new`]; [`Error::InvalidSetting`](crate::Error::InvalidSetting), too, if the permits of a burst take more than 34 years.
    pub fn keyed(
        session: &Session,
        path: &str,
        permits: u32,
        per: Duration,
    ) -> Result<KeyedRateLimiter> {
        path::validate(path)?;
        KeyedRateLimiter::new(&session.for_recipe(), path, Limit::new(permits, per)?)
    }

    /// The same limit with another burst: as many permits may be used at once after a time without any.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting) if it is 0, or if its permits take more than a hundred years.
    pub fn with_burst(mut self, burst: u32) -> Result<RateLimiter> {
        let limit = self.bucket.limit.with_burst(burst)?;
        self.bucket = Bucket::new(&self.bucket.session, &self.bucket.path, limit);
        Ok(self)
    }

    pub(crate) fn path(&self) -> &str {
        &self.bucket.path
    }

    /// Uses permits if they are there now; otherwise returns `false`. Sends nothing while a block has enough, nor
    /// while the cluster has said that nothing is to be had; otherwise asks.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting) if it is none, or more than the burst; [`Error::InvalidData`](crate::Error::InvalidData) if the znode does
    /// not hold a time; otherwise as [`Session::set`].
    pub fn try_acquire(&self, permits: u32) -> Pending<'_, bool> {
        self.session().steps("try_acquire", self.path(), self.bucket.trying(permits))
    }

    /// Uses permits as soon as they are there. Waits until then, for as long as the session lives.
    ///
    /// # Errors
    /// As [`RateLimiter::try_acquire`].
    pub fn acquire(&self, permits: u32) -> Pending<'_, ()> {
        self.session().steps("acquire", self.path(), self.bucket.acquiring(permits)).unlimited()
    }

    /// [`RateLimiter::acquire`], if the permits come within this time: otherwise `false`, at once if that is
    /// known. None are used then; a block that was asked for stays for the other callers of this instance.
    ///
    /// # Errors
    /// As [`RateLimiter::try_acquire`].
    pub fn acquire_within(&self, permits: u32, time: Duration) -> Pending<'_, bool> {
        let steps = self.bucket.acquiring_within(permits, time);
        self.session().steps("acquire_within", self.path(), steps).unlimited()
    }

    pub(crate) fn session(&self) -> &Session {
        &self.bucket.session
    }

    /// Uses permits as soon as they are there; `None` if they are not by this time of the clock.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) async fn take(&self, permits: u32, by: Option<Duration>) -> Result<Option<Grant>> {
        self.bucket.take(permits, by).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::types::error::Error;
    use crate::types::znode::CreateMode;

    #[test]
    fn a_rate_and_a_burst_have_bounds() {
        let session = Cluster::new(1).node(0).session();
        let second = Duration::from_secs(1);
        let of = |permits, per| RateLimiter::new(&session, "/limit", permits, per);
        for (permits, per) in [(0, second), (1, Duration::MAX), (3, Duration::from_nanos(2))] {
            assert!(matches!(of(permits, per), Err(Error::InvalidSetting { .. })), "{per:?}");
        }
        assert_eq!(
            of(3, second).unwrap().bucket.limit.interval,
            333_333_334,
            "at most three a second"
        );
        let limiter = of(1, Duration::from_nanos(1)).unwrap();
        assert!(matches!(limiter.clone().with_burst(0), Err(Error::InvalidSetting { .. })));
        let limiter = limiter.with_burst(u32::MAX).unwrap();
        assert!(matches!(limiter.try_acquire(0).wait(), Err(Error::InvalidSetting { .. })));
        assert_eq!(limiter.try_acquire(u32::MAX).wait(), Ok(true));
        let daily = of(1, Duration::from_secs(86_400)).unwrap();
        assert!(matches!(daily.try_acquire(2).wait(), Err(Error::InvalidSetting { .. })));
    }

    #[test]
    fn data_that_are_no_time_are_left_alone() {
        let session = Cluster::new(1).node(0).session();
        session.create("/limit", b"abc", CreateMode::Persistent).wait().unwrap();
        let limiter = RateLimiter::new(&session, "/limit", 5, Duration::from_secs(1)).unwrap();
        assert!(matches!(limiter.try_acquire(1).wait(), Err(Error::InvalidData { .. })));
        assert_eq!(&session.get("/limit").wait().unwrap().0[..], b"abc");
    }
}
