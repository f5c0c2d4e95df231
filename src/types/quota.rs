//! Quotas: limits for a path and everything below it, and the usage.
//!
//! As in ZooKeeper, they are znodes themselves: `/zookeeper/quota<path>/zookeeper_limits` holds the
//! limits, and `zookeeper_stats` beside it the usage, both as text. The state machine reads the
//! former and maintains the latter. This module has the text format, and compares usage with
//! quotas.

use std::fmt;

const ROOT: &str = "/zookeeper/quota";
const LIMITS: &str = "/zookeeper_limits";
const STATS: &str = "/zookeeper_stats";

/// Limits for the znode at a path and everything below it.
///
/// A **hard** limit is enforced: a write that would exceed it fails with
/// [`Error::QuotaExceeded`](crate::Error::QuotaExceeded). A **soft** limit is only reported, by a
/// warning in the log of each instance and by an event to the watches of [`Quota::stats_path`],
/// each time that it is exceeded and when usage is within it again. If there is a hard limit, the
/// soft one is ignored.
///
/// The numbers are exact, also within a multi and for concurrent writes. Ephemerals count. Bytes
/// are those of data. Znodes below `/zookeeper` are not counted. If a path above has a quota too,
/// both apply.
///
/// Source: ZooKeeper Quota's Guide. There, hard limits have to be enabled and miss concurrent
/// writes, and only one path on the way to the root may have a quota.
///
/// ```
/// use quorate::quota::Quota;
/// use quorate::{CreateMode, Error};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.create("/jobs", b"", CreateMode::Persistent).wait()?;
/// session.set_quota("/jobs", &Quota::new().znodes_hard(3).bytes(1 << 20)).wait()?;
/// session.create("/jobs/1", b"x", CreateMode::Persistent).wait()?;
/// session.create("/jobs/2", b"y", CreateMode::Persistent).wait()?;
/// let failed = session.create("/jobs/3", b"z", CreateMode::Persistent).wait().unwrap_err();
/// let (path, resource) = ("/jobs".into(), "znodes");
/// assert_eq!(failed, Error::QuotaExceeded { path, resource, limit: 3, needed: 4 });
/// let (_, usage) = session.quota("/jobs").wait()?.unwrap();
/// assert_eq!((usage.znodes, usage.bytes), (3, 2));
/// # Ok::<(), Error>(())
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Quota {
    pub(crate) znodes: Option<u64>,
    pub(crate) bytes: Option<u64>,
    pub(crate) znodes_hard: Option<u64>,
    pub(crate) bytes_hard: Option<u64>,
}

impl Quota {
    /// No limits.
    pub fn new() -> Quota {
        Quota::default()
    }

    /// Sets a soft limit of znodes.
    #[must_use]
    pub fn znodes(self, limit: u64) -> Quota {
        Quota { znodes: Some(limit), ..self }
    }

    /// Sets a soft limit of bytes of data.
    #[must_use]
    pub fn bytes(self, limit: u64) -> Quota {
        Quota { bytes: Some(limit), ..self }
    }

    /// Sets a hard limit of znodes.
    #[must_use]
    pub fn znodes_hard(self, limit: u64) -> Quota {
        Quota { znodes_hard: Some(limit), ..self }
    }

    /// Sets a hard limit of bytes of data.
    #[must_use]
    pub fn bytes_hard(self, limit: u64) -> Quota {
        Quota { bytes_hard: Some(limit), ..self }
    }

    /// The znode with the usage of a path that has a quota. Its data follows each change; its stat
    /// and its watches only those that exceed a soft limit or return within it.
    pub fn stats_path(path: &str) -> String {
        format!("{ROOT}{}{STATS}", path.trim_end_matches('/'))
    }

    /// The znode with the limits of a path.
    pub(crate) fn limits_path(path: &str) -> String {
        format!("{ROOT}{}{LIMITS}", path.trim_end_matches('/'))
    }

    /// The parent of both.
    pub(crate) fn base_path(path: &str) -> String {
        format!("{ROOT}{}", path.trim_end_matches('/'))
    }

    /// Parses a znode's data. Parts that cannot be parsed set no limit.
    pub(crate) fn parse(data: &[u8]) -> Quota {
        let mut quota = Quota::default();
        for (key, number) in numbers(data) {
            match key {
                "count" => quota.znodes = number,
                "bytes" => quota.bytes = number,
                "countHardLimit" => quota.znodes_hard = number,
                "byteHardLimit" => quota.bytes_hard = number,
                _ => {}
            }
        }
        quota
    }

    /// The first hard limit that a write would exceed: whether it is that of bytes, the limit, and the
    /// amount needed. `more` is the write's addition.
    pub(crate) fn exceeded(&self, used: Usage, more: (i64, i64)) -> Option<(bool, u64, u64)> {
        let exceeded = |bytes: bool, limit: Option<u64>, used: u64, more: i64| {
            let needed = used.saturating_add_signed(more);
            let limit = limit.filter(|limit| more > 0 && needed > *limit)?;
            Some((bytes, limit, needed))
        };
        exceeded(false, self.znodes_hard, used.znodes, more.0)
            .or_else(|| exceeded(true, self.bytes_hard, used.bytes, more.1))
    }

    /// Which soft limits are exceeded: of znodes, of bytes.
    pub(crate) fn overstepped(&self, used: Usage) -> (bool, bool) {
        let over = |hard: Option<u64>, soft: Option<u64>, used| {
            hard.is_none() && soft.is_some_and(|limit| used > limit)
        };
        (
            over(self.znodes_hard, self.znodes, used.znodes),
            over(self.bytes_hard, self.bytes, used.bytes),
        )
    }
}

/// In the format of ZooKeeper's `StatsTrack`.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |limit: Option<u64>| limit.map_or("-1".to_owned(), |limit| limit.to_string());
        write!(f, "count={},bytes={}", number(self.znodes), number(self.bytes))?;
        if self.znodes_hard.is_some() || self.bytes_hard.is_some() {
            let (bytes, znodes) = (number(self.bytes_hard), number(self.znodes_hard));
            write!(f, "=;byteHardLimit={bytes};countHardLimit={znodes}")?;
        }
        Ok(())
    }
}

/// The usage of a path and everything below it: see [`Quota`].
///
/// ```
/// use quorate::quota::Quota;
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.create("/a", b"four", CreateMode::Persistent).wait()?;
/// session.set_quota("/a", &Quota::new()).wait()?;
/// let (_, usage) = session.quota("/a").wait()?.unwrap();
/// assert_eq!((usage.znodes, usage.bytes), (1, 4));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[non_exhaustive]
pub struct Usage {
    /// The number of znodes, including the one at the path.
    pub znodes: u64,
    /// The bytes of their data.
    pub bytes: u64,
}

impl Usage {
    pub(crate) fn parse(data: &[u8]) -> Usage {
        let Quota { znodes, bytes, .. } = Quota::parse(data);
        Usage { znodes: znodes.unwrap_or(0), bytes: bytes.unwrap_or(0) }
    }

    /// The sum with a change.
    pub(crate) fn and(self, (znodes, bytes): (i64, i64)) -> Usage {
        Usage {
            znodes: self.znodes.saturating_add_signed(znodes),
            bytes: self.bytes.saturating_add_signed(bytes),
        }
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "count={},bytes={}", self.znodes, self.bytes)
    }
}

/// The path whose usage this znode holds, if it is a usage znode.
pub(crate) fn of_stats(path: &str) -> Option<&str> {
    let of = path.strip_prefix(ROOT)?.strip_suffix(STATS)?;
    match of {
        "" => Some("/"),
        of if of.starts_with('/') && is_counted(of) => Some(of),
        _ => None,
    }
}

/// Whether this znode counts for quotas.
pub(crate) fn is_counted(path: &str) -> bool {
    !crate::types::path::is_below(path, "/zookeeper")
}

/// Pairs `key=number` between commas and semicolons; a negative number gives `None`.
fn numbers(data: &[u8]) -> impl Iterator<Item = (&str, Option<u64>)> {
    let text = std::str::from_utf8(data).unwrap_or_default();
    text.split([',', ';']).filter_map(|part| {
        let (key, number) = part.split_once('=')?;
        Some((key, number.trim_end_matches('=').parse().ok()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S31: the text format is ZooKeeper's.
    #[test]
    fn limits_are_written_as_zookeeper_does() {
        let soft = Quota::new().znodes(5);
        let all = Quota::new().znodes(5).bytes(6).znodes_hard(7).bytes_hard(8);
        for (quota, text) in [
            (Quota::new(), "count=-1,bytes=-1"),
            (soft, "count=5,bytes=-1"),
            (all, "count=5,bytes=6=;byteHardLimit=8;countHardLimit=7"),
            (soft.bytes_hard(9), "count=5,bytes=-1=;byteHardLimit=9;countHardLimit=-1"),
        ] {
            assert_eq!(quota.to_string(), text);
            assert_eq!(Quota::parse(text.as_bytes()), quota);
        }
        for nonsense in [&b""[..], b"\xff", b"count", b"count=x,bytes=-5", b"=3;;,", b"other=1"] {
            assert_eq!(Quota::parse(nonsense), Quota::new());
        }
        let usage = Usage { znodes: 3, bytes: 40 };
        assert_eq!(Usage::parse(usage.to_string().as_bytes()), usage);
    }

    #[test]
    fn paths_go_there_and_back() {
        for path in ["/", "/a", "/a/b"] {
            assert_eq!(of_stats(&Quota::stats_path(path)), Some(path));
            assert!(crate::types::path::validate(&Quota::limits_path(path)).is_ok());
        }
        for path in [
            "/zookeeper/quota/a/zookeeper_limits",
            "/zookeeper/quota/a",
            "/zookeeper/quotas/zookeeper_stats",
            "/zookeeper/quota-backup/a/zookeeper_stats",
            "/a/zookeeper_stats",
            "/zookeeper/quota/zookeeper/quota/zookeeper_stats",
        ] {
            assert_eq!(of_stats(path), None);
        }
    }

    #[test]
    fn a_hard_limit_refuses_writes_and_a_soft_one_is_reported() {
        let quota = Quota::new().znodes(1).znodes_hard(2).bytes(10);
        let used = |znodes, bytes| Usage { znodes, bytes };
        assert_eq!(quota.exceeded(used(1, 0), (1, 5)), None);
        assert_eq!(quota.exceeded(used(2, 0), (1, 0)), Some((false, 2, 3)));
        // Usage above the limit may change as long as it does not grow.
        assert_eq!(quota.exceeded(used(9, 0), (0, 5)), None);
        assert_eq!(Quota::new().bytes_hard(4).exceeded(used(1, 3), (0, 2)), Some((true, 4, 5)));
        assert_eq!(quota.overstepped(used(2, 10)), (false, false));
        assert_eq!(quota.overstepped(used(2, 11)), (false, true));
        assert_eq!(Quota::new().znodes(1).overstepped(used(2, 0)), (true, false));
    }
}
