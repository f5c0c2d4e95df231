//! What all users of a keyed limit agree on: the data of the znode above those of the keys.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::blocks::RESERVED_MAX;
use super::limit::Limit;
use crate::api::multi::Multi;
use crate::api::session::Session;
use crate::recipes::errors::{if_exists, is_root_missing};
use crate::recipes::parents::{Parents, ROOT};
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::{Condition, CreateMode};

/// What the data begin with.
const BEGIN: &str = "one permit in ";

#[derive(Debug)]
pub(super) struct Agreement {
    pub(super) path: String,
    pub(super) limit: Limit,
    /// Of the keys' znodes.
    time_to_live: Duration,
    /// The czxid of the znode that has this limit; 0 before it was seen.
    znode: AtomicU64,
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BEGIN}{} ns, burst {}", self.limit.interval, self.limit.burst)
    }
}

impl Agreement {
    /// The lengths of its data.
    pub(super) const LENGTHS: RangeInclusive<u32> = 27..=52;

    /// The time of a permit in nanoseconds, and the burst, of data with a limit.
    pub(super) fn parse(data: &[u8]) -> Option<(u64, u64)> {
        let limit = std::str::from_utf8(data).ok()?.strip_prefix(BEGIN)?;
        let (interval, burst) = limit.split_once(" ns, burst ")?;
        Some((interval.parse().ok()?, burst.parse().ok()?))
    }

    /// # Errors
    /// [`Error::InvalidSetting`] if no time to live is as long as it must be.
    pub(super) fn new(path: &str, limit: Limit) -> Result<Agreement> {
        // No grant moves the time further than that after the log's time, so it has passed by then.
        let full = Duration::from_nanos(limit.time_of(limit.burst)) + RESERVED_MAX;
        // In whole milliseconds.
        let time_to_live = full + Duration::from_millis(1);
        if time_to_live > CreateMode::TTL_MAX {
            let reason =
                format!("the permits of the burst, {}, take more than 34 years", limit.burst);
            return Err(Error::InvalidSetting { setting: "burst", reason });
        }
        Ok(Agreement { path: path.to_owned(), limit, time_to_live, znode: AtomicU64::new(0) })
    }

    pub(super) fn path_of(&self, name: &str) -> String {
        path::join(&self.path, name)
    }

    pub(super) fn is_made(&self) -> bool {
        self.znode.load(Ordering::Relaxed) != 0
    }

    /// Creates the znode of a key, as long as this limit is the one of the path.
    pub(super) fn create<'a>(&self, multi: Multi<'a>, key: &str) -> Multi<'a> {
        multi.require(&self.path, Condition::Czxid(self.znode.load(Ordering::Relaxed))).create(
            key,
            b"",
            CreateMode::PersistentWithTtl(self.time_to_live),
        )
    }

    /// Makes sure that the path has this limit.
    pub(super) async fn make(&self, session: &Session) -> Result<()> {
        let (calls, limit) = (session.in_turn(), self.to_string());
        let mut parents = Parents::of(session, path::parent(&self.path).unwrap_or(ROOT));
        let mut is_synced = false;
        loop {
            let written = match if_exists(calls.get(&self.path).await)? {
                Some((data, stat)) if *data == *limit.as_bytes() => {
                    self.znode.store(stat.czxid, Ordering::Relaxed);
                    return Ok(());
                }
                // Somebody has created it beforehand, for example with an ACL.
                Some((data, stat)) if data.is_empty() => {
                    calls.set_if(&self.path, &limit, stat.version).await.map(drop)
                }
                Some((data, _)) if is_synced => return Err(self.differs(&data)),
                // This replica may show what was there before.
                Some(_) => {
                    session.sync().await?;
                    is_synced = true;
                    continue;
                }
                None => {
                    parents.make().await?;
                    calls.create(&self.path, &limit, CreateMode::Persistent).await.map(drop)
                }
            };
            match written {
                Err(error) if is_root_missing(&error) => return Err(error),
                // A parent is missing, or another write came first: look again.
                Err(Error::NoNode { .. } | Error::NodeExists { .. } | Error::BadVersion { .. })
                | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn differs(&self, data: &[u8]) -> Error {
        let path = self.path.clone();
        match std::str::from_utf8(data) {
            Ok(other) if other.starts_with(BEGIN) => {
                let reason =
                    format!("{path} was created with \"{other}\", and not with \"{self}\"");
                Error::InvalidSetting { setting: "permits", reason }
            }
            _ => Error::InvalidData { path, reason: "it is not the limit of keys".to_owned() },
        }
    }
}
