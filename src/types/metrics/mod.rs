//! The metrics of an instance. The numbers are here, their names and meanings in [`table`].

pub(crate) mod histogram;
pub(crate) mod recipes;
pub(crate) mod table;
mod text;

use std::collections::BTreeMap;
use std::time::Duration;

use self::histogram::Histogram;
use self::recipes::RecipeFigures;

/// An instance's counters and histograms since its start, and some current numbers:
/// [`Coordinator::metrics`](crate::Coordinator::metrics).
///
/// Its text form (`to_string`) is Prometheus's exposition format, for the application to serve
/// beside its own metrics. [`guide::metrics`](crate::guide::metrics) lists the names.
///
/// Changes of znodes and of sessions are counted by every replica, for all of the cluster: do not add
/// them up over instances. All others are the instance's own. An instance without a replica has
/// counted none of what a replica counts; in the text, what it cannot know is absent.
///
/// Times are those of the node's clock. In an in-memory cluster that is the cluster's, which only
/// passes by itself as real time does.
///
/// ```
/// use quorate::{CreateMode, testing::Cluster};
///
/// let cluster = Cluster::new(1);
/// let coordinator = cluster.node(0);
/// coordinator.session().create("/app/a", b"", CreateMode::Persistent).wait().unwrap_err();
/// coordinator.session().create("/app", b"", CreateMode::Persistent).wait()?;
/// let metrics = coordinator.metrics().wait()?;
/// assert_eq!((metrics.znodes_created, metrics.requests_refused), (1, 1));
/// assert_eq!(metrics.changes_below["/app"], 1);
/// assert!(metrics.to_string().contains("\nquorate_znodes_created_total 1\n"));
/// println!("half of all commits took at most {:?}", metrics.commit.quantile(0.5));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Metrics {
    /// Znodes created.
    pub znodes_created: u64,
    /// Writes of the data of a znode.
    pub znodes_changed: u64,
    /// Znodes deleted, including those of ended sessions.
    pub znodes_deleted: u64,
    /// Writes that failed when they were applied, for example by a version: those that users of this
    /// instance asked for. Writes of recipes do not count: they fail whenever another
    /// writer comes first, and are tried again.
    pub requests_refused: u64,
    /// Sessions opened or resumed.
    pub sessions_opened: u64,
    /// Sessions closed or expired.
    pub sessions_ended: u64,
    /// Sessions that this instance, as the leader, has expired: no sign of life came within their
    /// timeout.
    pub sessions_expired: u64,
    /// Changes of znodes, by the first component of their paths. After 256 different ones, all
    /// others count as `/*`.
    pub changes_below: BTreeMap<String, u64>,
    /// How often this instance has come to know a leader.
    pub leader_changes: u64,
    /// How often it became the leader itself.
    pub elections_won: u64,
    /// Snapshots started to be sent to others.
    pub snapshots_sent: u64,
    /// Snapshots installed from others.
    pub snapshots_installed: u64,
    /// Checkpoints started to be written to disk.
    pub checkpoints: u64,
    /// Damages found in its log or its checkpoint on disk while it ran. A new checkpoint repairs each.
    pub scrub_errors: u64,
    /// Events delivered by its watches.
    pub watch_events: u64,
    /// Current watches of its sessions.
    pub watches: u64,
    /// Current znodes. This and the three below are `None` without a replica.
    pub znodes: Option<u64>,
    /// The bytes of the paths and the data of all current znodes.
    pub znode_bytes: Option<u64>,
    /// Current sessions of the cluster.
    pub sessions: Option<u64>,
    /// Writes that its replica has applied: the number of the last one.
    pub zxid: Option<u64>,
    /// The clients that it serves now: instances without a replica.
    pub clients: u64,
    /// Whether a leader is known.
    pub has_leader: bool,
    /// Whether it is this instance.
    pub is_leader: bool,
    /// The members of the cluster; 0 while they are not known.
    pub members: u64,
    /// The members that this instance cannot reach.
    pub unreachable_members: u64,
    /// How many more voters may be lost before writes end, as in
    /// [`Availability`](crate::Availability): a voter whose disk is nearly full counts as lost. `None` if they have
    /// ended, which the text shows as -1.
    pub spare_voters: Option<u64>,
    /// Whether writes are refused, because the disks of too many voters are nearly full: see
    /// [`Availability::WritesRefused`](crate::Availability::WritesRefused).
    pub refuses_writes: bool,
    /// An upper bound for the age of this replica's state, as in
    /// [`Status::stale_by`](crate::operate::Status::stale_by).
    #[serde(with = "crate::types::serde_form::Millis")]
    pub stale_by: Option<Duration>,
    /// The last entry of the log that this replica has applied. This and the three below are `None`
    /// without a replica.
    pub applied_index: Option<u64>,
    /// The last entry of the log that is on this instance's disk.
    pub durable_index: Option<u64>,
    /// The bytes of the log's entries on its disk, about: its files are larger.
    pub log_bytes: Option<u64>,
    /// The bytes of the last checkpoint that was written or received.
    pub checkpoint_bytes: Option<u64>,
    /// From when this instance, as the leader, proposed a batch of writes until it has applied it.
    pub commit: Histogram,
    /// From when the node handed a write of its log out until it was durable: the wait for the disk's
    /// thread, and `fdatasync`.
    pub disk_sync: Histogram,
    /// The time of the node's steps that applied writes, a few milliseconds' work at most. They also
    /// read messages and answer requests.
    pub apply: Histogram,
    /// From when the node asked the leader to confirm its leadership until the confirmation. A
    /// [`Session::sync`](crate::Session::sync) waits for it.
    pub sync: Histogram,
    /// From the beginning of a step that applied writes until the events of all of them were put into
    /// the channels of their watches.
    pub watch_delivery: Histogram,
    /// Bytes of room that the file system of the data directory has for this process, or that of the log
    /// ([`Builder::log_dir`](crate::Builder::log_dir)) if it has less; `None` where that is not known.
    pub disk_free_bytes: Option<u64>,
    /// Whether that is so little that the disk counts as nearly full, see
    /// [`Builder::disk_low`](crate::Builder::disk_low).
    pub disk_low: bool,
    /// By how many milliseconds this instance's wall clock is ahead of the log's time, and negative if it is behind;
    /// `None` without a replica, or before a leader was known.
    pub clock_ahead_ms: Option<i64>,
    /// The directories with former data of this instance that were damaged: see
    /// [`Status::former_data`](crate::operate::Status::former_data).
    pub former_directories: u64,
    /// In how many seconds the certificates expire that this instance uses, by what they are for: `member`,
    /// `authority`, `operators`, `clients`, `gateway`, `gateway_clients`. Of several in one file, the first of them.
    /// Negative once it has expired.
    pub certificates_expire: BTreeMap<String, i64>,
    /// Messages sent to peers. This and the following are 0 in an in-memory cluster.
    pub messages_sent: u64,
    /// Bytes sent to peers.
    pub sent_bytes: u64,
    /// Messages received from peers.
    pub messages_received: u64,
    /// Bytes received from peers.
    pub received_bytes: u64,
    /// Messages not sent: no connection, no room, or too long.
    pub messages_dropped: u64,
    /// Incoming connections closed because of what they sent or did not send.
    pub connections_refused: u64,
    /// Calls of this instance's rate limiters that got no permits: `false` of `try_acquire` and `acquire_within`.
    pub permits_refused: u64,
    /// What this instance's last look at all recipes has found.
    pub recipes: RecipeFigures,
    /// Connections of this instance's gateways that have ended, by reason. The guide lists the reasons.
    pub gateway_connections_ended: BTreeMap<String, u64>,
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
        let quoted = "quorate_znode_changes_total{below=\"/\\\"q\\\\\"} 1\n";
        assert!(text.contains(quoted), "{text}");
        for n in 0..1000 {
            metrics.count_below(&format!("/n{n}/x"));
        }
        assert_eq!(metrics.changes_below.len(), SUBTREES_MAX + 1);
        assert_eq!(metrics.changes_below.values().sum::<u64>(), 1005);
    }
}
