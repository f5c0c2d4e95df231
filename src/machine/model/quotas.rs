//! Quotas in the model: the usage is counted anew each time.

use super::Model;
use crate::machine::command::{ChangeKind, OpError};
use crate::types::path;

impl Model {
    /// The path itself and the paths above it whose usage is counted.
    fn counted_for(&self, path: &str) -> Vec<String> {
        let mut above = Vec::new();
        let mut at = Some(path);
        while let Some(path) = at {
            let own = if path == "/" { "" } else { path };
            if self.znodes.contains_key(&format!("/zookeeper/quota{own}/zookeeper_stats")) {
                above.push(own.to_owned());
            }
            at = path::parent(path);
        }
        above.retain(|_| path != "/zookeeper" && !path.starts_with("/zookeeper/"));
        above
    }

    /// The znodes that show the usage of a path.
    pub(crate) fn usage_znodes(&self) -> Vec<String> {
        let below = self.znodes.range("/zookeeper/quota".to_owned()..);
        let paths = below.map(|(path, _)| path).take_while(|path| path.starts_with("/zookeeper/"));
        paths.filter(|path| shows_usage(path)).cloned().collect()
    }

    /// How many znodes and bytes are at a path (the root's is empty) and below it.
    pub(super) fn usage(&self, of: &str) -> (u64, u64) {
        let inside_of = format!("{of}/");
        let below = self.znodes.iter().filter(|(path, _)| {
            let path = path.as_str();
            let inside = path == of || path.starts_with(&inside_of);
            inside && path != "/zookeeper" && !path.starts_with("/zookeeper/")
        });
        below
            .fold((0, 0), |(count, bytes), (_, znode)| (count + 1, bytes + znode.data.len() as u64))
    }

    /// The limits of a quota: soft for count and bytes, then hard for count and bytes.
    fn limits(&self, of: &str) -> [Option<u64>; 4] {
        let znode = self.znodes.get(&format!("/zookeeper/quota{of}/zookeeper_limits"));
        let text = znode.map(|znode| String::from_utf8_lossy(&znode.data)).unwrap_or_default();
        ["count=", "bytes=", "countHardLimit=", "byteHardLimit="].map(|key| {
            let parts = text.split([',', ';']);
            let number = parts.filter_map(|part| part.strip_prefix(key)).next_back()?;
            number.trim_end_matches('=').parse().ok()
        })
    }

    /// Fails if a write that adds so much would exceed a hard limit.
    pub(super) fn afford(
        &self,
        path: &str,
        count: u64,
        bytes: u64,
        freed: u64,
    ) -> Result<(), OpError> {
        for of in self.counted_for(path).into_iter().filter(|_| !self.exempt) {
            let [.., count_limit, bytes_limit] = self.limits(&of);
            let usage = self.usage(&of);
            let (count_needed, bytes_needed) = (usage.0 + count, usage.1 + bytes - freed);
            let path = if of.is_empty() { "/".to_owned() } else { of };
            if let Some(limit) = count_limit.filter(|limit| count > 0 && count_needed > *limit) {
                let needed = count_needed;
                return Err(OpError::QuotaExceeded { path, bytes: false, limit, needed });
            }
            if let Some(limit) = bytes_limit.filter(|limit| bytes > freed && bytes_needed > *limit)
            {
                let needed = bytes_needed;
                return Err(OpError::QuotaExceeded { path, bytes: true, limit, needed });
            }
        }
        Ok(())
    }

    /// Updates the usage znodes after a change of this path.
    pub(super) fn recount(&mut self, zxid: u64, path: &str) {
        for of in self.counted_for(path) {
            let stats = format!("/zookeeper/quota{of}/zookeeper_stats");
            let [count, bytes, count_hard, bytes_hard] = self.limits(&of);
            let over = |(used, used_bytes): (u64, u64)| {
                let count_over = count_hard.is_none() && count.is_some_and(|limit| used > limit);
                let bytes_over =
                    bytes_hard.is_none() && bytes.is_some_and(|limit| used_bytes > limit);
                (count_over, bytes_over)
            };
            let (count, bytes) = self.usage(&of);
            let time = self.time;
            let znode = self.znodes.get_mut(&stats).expect("it is counted by this znode");
            let before = String::from_utf8_lossy(&znode.data).into_owned();
            let (count_before, bytes_before) =
                before.strip_prefix("count=").and_then(|rest| rest.split_once(",bytes=")).unwrap();
            let before = (count_before.parse().unwrap(), bytes_before.parse().unwrap());
            znode.data = format!("count={count},bytes={bytes}").into();
            if over(before) != over((count, bytes)) {
                znode.stat.version += 1;
                znode.stat.mzxid = zxid;
                znode.stat.mtime = time;
                self.change(zxid, ChangeKind::DataChanged, &stats);
            }
        }
    }
}

/// Whether a znode shows the usage of the path of a quota.
pub(super) fn shows_usage(path: &str) -> bool {
    let of = path.strip_prefix("/zookeeper/quota");
    let of = of.and_then(|path| path.strip_suffix("/zookeeper_stats"));
    let is_path = |of: &str| of.is_empty() || of.starts_with('/');
    of.is_some_and(|of| is_path(of) && of != "/zookeeper" && !of.starts_with("/zookeeper/"))
}
