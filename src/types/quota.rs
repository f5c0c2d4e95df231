//! Quotas: how much may be at and below a path, and how much is.
//!
//! As with ZooKeeper they are znodes themselves: `/zookeeper/quota<path>/zookeeper_limits` holds
//! what is allowed, `zookeeper_stats` beside it what is there, both as text. The state machine looks
//! at the former and keeps the latter. Here is that text, and what the two mean together.

use std::fmt;

const ROOT: &str = "/zookeeper/quota";
const LIMITS: &str = "/zookeeper_limits";
const STATS: &str = "/zookeeper_stats";

/// How much may be at a path and below it, the znode there included.
///
/// Of each, a **hard** limit is kept: what would go beyond it fails with
/// [`Error::QuotaExceeded`](crate::Error::QuotaExceeded). A **soft** one is told of only, by a
/// warning in the log of each instance and by an event to the watches of [`Quota::stats_path`], each
/// time that it is overstepped and when it is kept again. Where there is a hard limit, the soft one
/// is not looked at.
///
/// The numbers are exact, also within a multi and for writes under way at the same time. Ephemerals
/// count, bytes are those of data, and what is below `/zookeeper` is not counted. Where a path above
/// has a quota too, both hold.
///
/// Source: ZooKeeper Quota's Guide. There, hard limits need a setting and miss what is under way, and
/// of the quotas on the way to the root only one may be.
///
/// ```
/// use quorate::{CreateMode, Error, Quota};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.create("/jobs", b"", CreateMode::Persistent)?;
/// session.set_quota("/jobs", &Quota::new().znodes_hard(3).bytes(1 << 20))?;
/// session.create("/jobs/1", b"x", CreateMode::Persistent)?;
/// session.create("/jobs/2", b"y", CreateMode::Persistent)?;
/// let failed = session.create("/jobs/3", b"z", CreateMode::Persistent).unwrap_err();
/// let (path, resource) = ("/jobs".into(), "znodes");
/// assert_eq!(failed, Error::QuotaExceeded { path, resource, limit: 3, needed: 4 });
/// let (_, usage) = session.quota("/jobs")?.unwrap();
/// assert_eq!((usage.znodes, usage.bytes), (3, 2));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Quota {
    pub(crate) znodes: Option<u64>,
    pub(crate) bytes: Option<u64>,
    pub(crate) znodes_hard: Option<u64>,
    pub(crate) bytes_hard: Option<u64>,
}

impl Quota {
    /// No limit of any kind.
    pub fn new() -> Quota {
        Quota::default()
    }

    /// So many znodes, or there is a warning.
    #[must_use]
    pub fn znodes(self, limit: u64) -> Quota {
        Quota { znodes: Some(limit), ..self }
    }

    /// So many bytes of data, or there is a warning.
    #[must_use]
    pub fn bytes(self, limit: u64) -> Quota {
        Quota { bytes: Some(limit), ..self }
    }

    /// So many znodes and no more.
    #[must_use]
    pub fn znodes_hard(self, limit: u64) -> Quota {
        Quota { znodes_hard: Some(limit), ..self }
    }

    /// So many bytes of data and no more.
    #[must_use]
    pub fn bytes_hard(self, limit: u64) -> Quota {
        Quota { bytes_hard: Some(limit), ..self }
    }

    /// The znode that says what is at and below a path that has a quota. Its data follows each
    /// change, its stat and its watches only those that overstep a soft limit or keep it again.
    pub fn stats_path(path: &str) -> String {
        format!("{ROOT}{}{STATS}", path.trim_end_matches('/'))
    }

    /// The znode that says what is allowed.
    pub(crate) fn limits_path(path: &str) -> String {
        format!("{ROOT}{}{LIMITS}", path.trim_end_matches('/'))
    }

    /// The znode below which both are.
    pub(crate) fn base_path(path: &str) -> String {
        format!("{ROOT}{}", path.trim_end_matches('/'))
    }

    /// The quota that a znode's data stands for. What is not understood is no limit.
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

    /// The first hard limit that a write would go beyond that needs so much more of it, with its
    /// name, and how much would be needed.
    pub(crate) fn exceeded(
        &self,
        used: Usage,
        more: (i64, i64),
    ) -> Option<(&'static str, u64, u64)> {
        let exceeded = |limit: Option<u64>, used: u64, more: i64| {
            let needed = used.saturating_add_signed(more);
            limit.filter(|limit| more > 0 && needed > *limit).map(|limit| (limit, needed))
        };
        let znodes = exceeded(self.znodes_hard, used.znodes, more.0);
        let bytes = || exceeded(self.bytes_hard, used.bytes, more.1);
        znodes
            .map(|(limit, needed)| ("znodes", limit, needed))
            .or_else(|| bytes().map(|(limit, needed)| ("bytes", limit, needed)))
    }

    /// Which soft limits are overstepped: of znodes, of bytes.
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

/// As ZooKeeper's `StatsTrack` writes it.
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

/// How much is at a path and below it: see [`Quota`].
///
/// ```
/// use quorate::{CreateMode, Quota};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.create("/a", b"four", CreateMode::Persistent)?;
/// session.set_quota("/a", &Quota::new())?;
/// let (_, usage) = session.quota("/a")?.unwrap();
/// assert_eq!((usage.znodes, usage.bytes), (1, 4));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Usage {
    /// How many znodes, the one at the path included.
    pub znodes: u64,
    /// How many bytes of data they have.
    pub bytes: u64,
}

impl Usage {
    pub(crate) fn parse(data: &[u8]) -> Usage {
        let Quota { znodes, bytes, .. } = Quota::parse(data);
        Usage { znodes: znodes.unwrap_or(0), bytes: bytes.unwrap_or(0) }
    }

    /// With so many more, or fewer.
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

/// The path whose use a znode tells, if it is one that does.
pub(crate) fn of_stats(path: &str) -> Option<&str> {
    let of = path.strip_prefix(ROOT)?.strip_suffix(STATS)?;
    match of {
        "" => Some("/"),
        of if of.starts_with('/') && is_counted(of) => Some(of),
        _ => None,
    }
}

/// Whether it counts for anybody's quota.
pub(crate) fn is_counted(path: &str) -> bool {
    !crate::types::path::is_below(path, "/zookeeper")
}

/// `key=number` each, between commas and semicolons; a number below zero is none.
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

    /// S31: the text is ZooKeeper's.
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
    fn a_hard_limit_stops_what_needs_more_and_a_soft_one_tells() {
        let quota = Quota::new().znodes(1).znodes_hard(2).bytes(10);
        let used = |znodes, bytes| Usage { znodes, bytes };
        assert_eq!(quota.exceeded(used(1, 0), (1, 5)), None);
        assert_eq!(quota.exceeded(used(2, 0), (1, 0)), Some(("znodes", 2, 3)));
        // What is over it already may change as long as it does not grow.
        assert_eq!(quota.exceeded(used(9, 0), (0, 5)), None);
        assert_eq!(Quota::new().bytes_hard(4).exceeded(used(1, 3), (0, 2)), Some(("bytes", 4, 5)));
        assert_eq!(quota.overstepped(used(2, 10)), (false, false));
        assert_eq!(quota.overstepped(used(2, 11)), (false, true));
        assert_eq!(Quota::new().znodes(1).overstepped(used(2, 0)), (true, false));
    }
}
