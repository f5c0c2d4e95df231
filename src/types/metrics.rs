//! What an instance counts.

use std::collections::BTreeMap;
use std::fmt;

/// What an instance has counted since it was started, and how much it has of some things now:
/// [`Coordinator::metrics`](crate::Coordinator::metrics).
///
/// Its text (by `to_string`) is Prometheus's exposition format, to be served by the application
/// beside its own.
///
/// What concerns writes is counted by every replica, of all writes of the cluster: do not add up
/// the instances. Everything else is the instance's own.
///
/// ```
/// use quorate::{CreateMode, testing::Cluster};
///
/// let cluster = Cluster::new(1);
/// let coordinator = cluster.node(0);
/// coordinator.session().create("/app/a", b"", CreateMode::Persistent).unwrap_err();
/// coordinator.session().create("/app", b"", CreateMode::Persistent)?;
/// let metrics = coordinator.metrics();
/// assert_eq!((metrics.znodes_created, metrics.requests_refused), (1, 1));
/// assert_eq!(metrics.changes_below["/app"], 1);
/// assert!(metrics.to_string().contains("\nquorate_znodes_created_total 1\n"));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Znodes that were created.
    pub znodes_created: u64,
    /// Writes of the data of a znode.
    pub znodes_changed: u64,
    /// Znodes that were deleted, those of ended sessions included.
    pub znodes_deleted: u64,
    /// Requests that failed when they were applied, by a version say.
    pub requests_refused: u64,
    /// Sessions that were opened or resumed.
    pub sessions_opened: u64,
    /// Sessions that were closed or have expired.
    pub sessions_ended: u64,
    /// The same of the changes of znodes, by the first part of their paths. After 256 different ones
    /// all others are counted as `/*`.
    pub changes_below: BTreeMap<String, u64>,
    /// How often this instance has come to know a leader.
    pub leaders_known: u64,
    /// How often it became the leader itself.
    pub elections_won: u64,
    /// Snapshots that it began to send to others.
    pub snapshots_sent: u64,
    /// Snapshots that it has taken from others.
    pub snapshots_installed: u64,
    /// Checkpoints that it began to write to its disk.
    pub checkpoints: u64,
    /// Events that its watches were told.
    pub watch_events: u64,
    /// Watches that its sessions have now.
    pub watches: u64,
    /// Znodes that there are now.
    pub znodes: u64,
    /// Sessions that the cluster has now.
    pub sessions: u64,
    /// Writes that its replica has applied: the number of the last one.
    pub zxid: u64,
    /// Messages that were sent to peers; 0 in memory, and so for the following.
    pub messages_sent: u64,
    /// Bytes that were sent to peers.
    pub bytes_sent: u64,
    /// Messages that came from peers.
    pub messages_received: u64,
    /// Bytes that came from peers.
    pub bytes_received: u64,
    /// Messages that were not sent: no connection, no room, or too long.
    pub messages_dropped: u64,
    /// Incoming connections that were closed for what they sent, or did not send.
    pub connections_refused: u64,
}

/// How many different first parts of paths are counted.
const SUBTREES_MAX: usize = 256;

impl Metrics {
    /// Counts a change of a znode.
    pub(crate) fn count_below(&mut self, path: &str) {
        let end = path[1..].find('/').map_or(path.len(), |slash| slash + 1);
        let top = &path[..end];
        if let Some(count) = self.changes_below.get_mut(top) {
            *count += 1;
        } else if self.changes_below.len() < SUBTREES_MAX {
            self.changes_below.insert(top.to_owned(), 1);
        } else {
            *self.changes_below.entry("/*".to_owned()).or_default() += 1;
        }
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counters = [
            ("znodes_created", self.znodes_created),
            ("znodes_changed", self.znodes_changed),
            ("znodes_deleted", self.znodes_deleted),
            ("requests_refused", self.requests_refused),
            ("sessions_opened", self.sessions_opened),
            ("sessions_ended", self.sessions_ended),
            ("leaders_known", self.leaders_known),
            ("elections_won", self.elections_won),
            ("snapshots_sent", self.snapshots_sent),
            ("snapshots_installed", self.snapshots_installed),
            ("checkpoints", self.checkpoints),
            ("watch_events", self.watch_events),
            ("messages_sent", self.messages_sent),
            ("bytes_sent", self.bytes_sent),
            ("messages_received", self.messages_received),
            ("bytes_received", self.bytes_received),
            ("messages_dropped", self.messages_dropped),
            ("connections_refused", self.connections_refused),
        ];
        let line = |f: &mut fmt::Formatter<'_>, name: &str, kind: &str, value: u64| {
            writeln!(f, "# TYPE quorate_{name} {kind}\nquorate_{name} {value}")
        };
        for (name, value) in counters {
            line(f, &format!("{name}_total"), "counter", value)?;
        }
        writeln!(f, "# TYPE quorate_changes_total counter")?;
        for (path, count) in &self.changes_below {
            let path = path.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            writeln!(f, "quorate_changes_total{{below=\"{path}\"}} {count}")?;
        }
        let gauges = [
            ("watches", self.watches),
            ("znodes", self.znodes),
            ("sessions", self.sessions),
            ("zxid", self.zxid),
        ];
        for (name, value) in gauges {
            line(f, name, "gauge", value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted_by_the_first_part_of_their_paths_and_bounded() {
        let mut metrics = Metrics::default();
        for path in ["/", "/a", "/a/b/c", "/ab", "/\"q\\"] {
            metrics.count_below(path);
        }
        let below = |path: &str| metrics.changes_below[path];
        assert_eq!([below("/"), below("/a"), below("/ab")], [1, 2, 1]);
        let text = metrics.to_string();
        assert!(text.contains("quorate_changes_total{below=\"/\\\"q\\\\\"} 1\n"), "{text}");
        for n in 0..1000 {
            metrics.count_below(&format!("/n{n}/x"));
        }
        assert_eq!(metrics.changes_below.len(), SUBTREES_MAX + 1);
        assert_eq!(metrics.changes_below.values().sum::<u64>(), 1005);
    }
}
