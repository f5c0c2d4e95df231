//! A limit for each of many keys.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::agreement::Agreement;
#[cfg(any(test, feature = "simulator"))]
use super::blocks::Grant;
use super::bucket::Bucket;
use super::limit::Limit;
use crate::api::session::Session;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::path;

/// So many keys, and as many older ones, are known here.
const KEYS_MAX: usize = 8192;

/// A limit for each of many keys, as users, tenants or addresses: see [`RateLimiter::keyed`](super::RateLimiter::keyed).
///
/// Keys need no set-up and no end. What is promised for a [`RateLimiter`](super::RateLimiter) holds for each key, and each
/// key has its own blocks of permits, so that one write takes many. A key is any text. Its znode below the path has its
/// name, where each byte but letters, digits and the others of `-._~@:+=` is escaped as in URLs (`%2F`).
///
/// **Memory.** A key's znode goes some seconds after the key could use its whole burst again: a key without a znode can
/// use all of it. 1,000 of them may go in a second. So the cluster has the keys of that time, of a few hundred bytes each;
/// a [quota](crate::Session::set_quota) of the path bounds them, and then a further key gets
/// [`Error::QuotaExceeded`](crate::Error::QuotaExceeded). A handle and its clones know the 8,192 keys that were used last,
/// and at most as many older ones. A key that they have forgotten loses what it has left of a block, and costs a write.
///
/// **The limit** is stored in the cluster at the first use. Whoever comes with another one is refused. To change it, take
/// another path, or delete the path with all below it: then all keys have their whole burst again.
///
/// ```
/// use std::time::Duration;
///
/// use quorate::{Error, recipes::RateLimiter, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let second = Duration::from_secs(1);
/// let here = RateLimiter::keyed(&cluster.node(0).session(), "/limits/users", 2, second)?;
/// let there = RateLimiter::keyed(&cluster.node(1).session(), "/limits/users", 2, second)?;
/// assert!(here.try_acquire("ann", 1).wait()? && there.try_acquire("ann", 1).wait()?);
/// assert!(!here.try_acquire("ann", 1).wait()?, "two a second, on all instances together");
/// assert!(here.try_acquire("bob", 2).wait()?, "another key");
///
/// let other = RateLimiter::keyed(&cluster.node(2).session(), "/limits/users", 3, second)?;
/// assert!(matches!(other.try_acquire("ann", 1).wait(), Err(Error::InvalidSetting { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyedRateLimiter {
    session: Session,
    agreement: Arc<Agreement>,
    keys: Arc<Mutex<KnownKeys>>,
}

/// The keys that were used last.
#[derive(Debug, Default)]
struct KnownKeys {
    recent: BTreeMap<String, Bucket>,
    /// Those that were the recent ones before. They are forgotten when there are as many recent ones again.
    older: BTreeMap<String, Bucket>,
}

impl KeyedRateLimiter {
    pub(super) fn new(session: &Session, path: &str, limit: Limit) -> Result<KeyedRateLimiter> {
        let agreement = Arc::new(Agreement::new(path, limit)?);
        Ok(KeyedRateLimiter { session: session.clone(), agreement, keys: Arc::default() })
    }

    /// The same limits with another burst: as many permits of a key may be used at once after a time without any.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting) if it is 0, or if its permits take more than 34 years.
    pub fn with_burst(self, burst: u32) -> Result<KeyedRateLimiter> {
        let limit = self.agreement.limit.with_burst(burst)?;
        KeyedRateLimiter::new(&self.session, &self.agreement.path, limit)
    }

    pub(crate) fn path(&self) -> &str {
        &self.agreement.path
    }

    /// Uses permits of a key if they are there now: as [`RateLimiter::try_acquire`](super::RateLimiter::try_acquire).
    ///
    /// # Errors
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting) if it is none, or more than the burst, or if the path
    /// was created with another limit; [`Error::InvalidData`](crate::Error::InvalidData) if it has something else;
    /// [`Error::InvalidPath`](crate::Error::InvalidPath) if the key's path has more than 4,096 bytes; otherwise as
    /// [`Session::create`].
    pub fn try_acquire<'a>(&'a self, key: &'a str, permits: u32) -> Pending<'a, bool> {
        self.session().steps("try_acquire", self.path(), self.trying(key, permits))
    }

    /// Uses permits of a key as soon as they are there. Waits until then, for as long as the session lives.
    ///
    /// # Errors
    /// As [`KeyedRateLimiter::try_acquire`].
    pub fn acquire<'a>(&'a self, key: &'a str, permits: u32) -> Pending<'a, ()> {
        self.session().steps("acquire", self.path(), self.acquiring(key, permits)).unlimited()
    }

    async fn trying(&self, key: &str, permits: u32) -> Result<bool> {
        self.bucket(key)?.trying(permits).await
    }

    async fn acquiring(&self, key: &str, permits: u32) -> Result<()> {
        self.bucket(key)?.acquiring(permits).await
    }

    /// [`KeyedRateLimiter::acquire`], if the permits come within this time: as
    /// [`RateLimiter::acquire_within`](super::RateLimiter::acquire_within).
    ///
    /// # Errors
    /// As [`KeyedRateLimiter::try_acquire`].
    pub fn acquire_within<'a>(
        &'a self,
        key: &'a str,
        permits: u32,
        time: Duration,
    ) -> Pending<'a, bool> {
        let steps = async move { self.bucket(key)?.acquiring_within(permits, time).await };
        self.session().steps("acquire_within", self.path(), steps).unlimited()
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// [`KeyedRateLimiter::acquire`], by this time of the clock.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) async fn take(
        &self,
        key: &str,
        permits: u32,
        by: Option<Duration>,
    ) -> Result<Option<Grant>> {
        self.bucket(key)?.take(permits, by).await
    }

    fn bucket(&self, key: &str) -> Result<Bucket> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).bucket(key, || {
            let bucket = Bucket::of_key(&self.session, &name_of(key), &self.agreement);
            path::validate(&bucket.path).map(|()| bucket)
        })
    }
}

impl KnownKeys {
    fn bucket(&mut self, key: &str, new: impl FnOnce() -> Result<Bucket>) -> Result<Bucket> {
        if let Some(bucket) = self.recent.get(key) {
            return Ok(bucket.clone());
        }
        let bucket = self.older.remove(key).map_or_else(new, Ok)?;
        if self.recent.len() >= KEYS_MAX {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key.to_owned(), bucket.clone());
        Ok(bucket)
    }
}

/// The name of a key's znode: another one for each key.
fn name_of(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    let only_dots = matches!(key, "." | "..");
    for byte in key.bytes() {
        match byte {
            b'.' if only_dots => name.push_str("%2E"),
            b'-' | b'.' | b'_' | b'~' | b'@' | b':' | b'+' | b'=' => name.push(byte.into()),
            byte if byte.is_ascii_alphanumeric() => name.push(byte.into()),
            // Writing to a string cannot fail.
            byte => drop(write!(name, "%{byte:02X}")),
        }
    }
    // No other key has that name.
    if name.is_empty() { "%".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::recipes::RateLimiter;
    use crate::testing::Cluster;

    #[test]
    fn the_names_of_keys_can_be_read() {
        for (key, name) in [
            ("", "%"),
            ("%", "%25"),
            ("..", "%2E%2E"),
            ("...", "..."),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("a/b c", "a%2Fb%20c"),
            ("é", "%C3%A9"),
        ] {
            assert_eq!(name_of(key), name);
        }
    }

    proptest! {
        #[test]
        fn each_key_has_a_name_of_its_own(one in ".{0,8}", other in ".{0,8}") {
            path::validate(&path::join("/", &name_of(&one))).unwrap();
            prop_assert!(!name_of(&one).contains('/'));
            prop_assert_eq!(one == other, name_of(&one) == name_of(&other));
        }
    }

    #[test]
    fn a_handle_knows_a_bounded_number_of_keys() {
        let session = Cluster::new(1).node(0).session();
        let hour = Duration::from_secs(3600);
        let limiter = RateLimiter::keyed(&session, "/limit", 1, hour).unwrap();
        assert_eq!(limiter.try_acquire("first", 1).wait(), Ok(true));
        let known = || limiter.keys.lock().unwrap();
        for number in 0..3 * KEYS_MAX {
            limiter.bucket(&number.to_string()).unwrap();
            // Who is used stays.
            limiter.bucket("used").unwrap();
            assert!(known().recent.len() <= KEYS_MAX && known().older.len() <= KEYS_MAX);
        }
        assert!(known().recent.contains_key("used") && !known().older.contains_key("first"));
        // It has forgotten that nothing is to be had, and asks.
        assert_eq!(limiter.try_acquire("first", 1).wait(), Ok(false));
    }
}
