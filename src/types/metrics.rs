//! The metrics of an instance.

use std::collections::BTreeMap;
use std::fmt;

/// An instance's counters since its start, and some current numbers:
/// [`Coordinator::metrics`](crate::Coordinator::metrics).
///
/// Its text form (`to_string`) is Prometheus's exposition format, for the application to serve
/// beside its own metrics.
///
/// Metrics of writes are counted by every replica, for all writes of the cluster: do not add them
/// up over instances. All others are the instance's own.
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
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Metrics {
    /// Znodes created.
    pub znodes_created: u64,
    /// Writes of the data of a znode.
    pub znodes_changed: u64,
    /// Znodes deleted, including those of ended sessions.
    pub znodes_deleted: u64,
    /// Requests that failed when they were applied, for example by a version.
    pub requests_refused: u64,
    /// Sessions opened or resumed.
    pub sessions_opened: u64,
    /// Sessions closed or expired.
    pub sessions_ended: u64,
    /// Changes of znodes, by the first component of their paths. After 256 different ones, all
    /// others count as `/*`.
    pub changes_below: BTreeMap<String, u64>,
    /// How often this instance has come to know a leader.
    pub leaders_known: u64,
    /// How often it became the leader itself.
    pub elections_won: u64,
    /// Snapshots started to be sent to others.
    pub snapshots_sent: u64,
    /// Snapshots installed from others.
    pub snapshots_installed: u64,
    /// Checkpoints started to be written to disk.
    pub checkpoints: u64,
    /// Damages found in its log on disk while it ran. A checkpoint repairs each.
    pub scrub_errors: u64,
    /// Events delivered by its watches.
    pub watch_events: u64,
    /// Current watches of its sessions.
    pub watches: u64,
    /// Current znodes.
    pub znodes: u64,
    /// The bytes of the paths and the data of all current znodes.
    pub znode_bytes: u64,
    /// Current sessions of the cluster.
    pub sessions: u64,
    /// The clients that it serves now: instances without a replica.
    pub clients: u64,
    /// Writes that its replica has applied: the number of the last one.
    pub zxid: u64,
    /// Bytes of room that the file system of the data directory has for this process; `None` where
    /// that is not known.
    pub disk_free_bytes: Option<u64>,
    /// Whether that is so little that the disk counts as nearly full, see
    /// [`Builder::disk_low`](crate::Builder::disk_low).
    pub disk_low: bool,
    /// Messages sent to peers. This and the following are 0 in an in-memory cluster.
    pub messages_sent: u64,
    /// Bytes sent to peers.
    pub bytes_sent: u64,
    /// Messages received from peers.
    pub messages_received: u64,
    /// Bytes received from peers.
    pub bytes_received: u64,
    /// Messages not sent: no connection, no room, or too long.
    pub messages_dropped: u64,
    /// Incoming connections closed because of what they sent or did not send.
    pub connections_refused: u64,
}

/// How many different first components of paths are counted.
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
            ("scrub_errors", self.scrub_errors),
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
            ("znode_bytes", self.znode_bytes),
            ("sessions", self.sessions),
            ("clients", self.clients),
            ("zxid", self.zxid),
            ("disk_low", u64::from(self.disk_low)),
        ];
        for (name, value) in gauges {
            line(f, name, "gauge", value)?;
        }
        if let Some(free) = self.disk_free_bytes {
            line(f, "disk_free_bytes", "gauge", free)?;
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
