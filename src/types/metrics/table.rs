//! The table of all metrics, from which the text of `Metrics`, the facade and the documentation are made.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::types::metrics::{Histogram, Metrics};

/// The name of a metric, its help, and how it is read. Names follow Prometheus's conventions: the unit
/// comes last, and counters have `total` after it.
type Metric = (&'static str, &'static str, Value);

/// How a metric is read. `None` and absent numbers are those that this instance does not have.
pub(crate) enum Value {
    Counter(fn(&Metrics) -> Option<u64>),
    /// Counters, by the value of this label.
    By(&'static str, fn(&Metrics) -> &BTreeMap<String, u64>),
    Gauge(fn(&Metrics) -> Option<i64>),
    /// Gauges, by the value of this label.
    GaugeBy(&'static str, fn(&Metrics) -> &BTreeMap<String, i64>),
    /// Seconds, by the value of this label.
    SecondsBy(&'static str, fn(&Metrics) -> &BTreeMap<String, i64>),
    Seconds(fn(&Metrics) -> Option<Duration>),
    Histogram(fn(&Metrics) -> &Histogram),
}

use Value::{By, Counter, Gauge, GaugeBy, Histogram as Distribution, Seconds, SecondsBy};

/// A number that an instance without a replica does not have.
fn replicas(metrics: &Metrics, number: u64) -> Option<u64> {
    metrics.applied_index.map(|_| number)
}

fn gauge(number: u64) -> Option<i64> {
    Some(i64::try_from(number).unwrap_or(i64::MAX))
}

fn replicas_gauge(metrics: &Metrics, number: u64) -> Option<i64> {
    replicas(metrics, number).and_then(gauge)
}

pub(crate) const METRICS: &[Metric] = &[
    (
        "quorate_has_leader",
        "Whether this instance knows a leader.",
        Gauge(|of| gauge(of.has_leader.into())),
    ),
    (
        "quorate_is_leader",
        "Whether this instance is the leader.",
        Gauge(|of| gauge(of.is_leader.into())),
    ),
    ("quorate_members", "Members of the cluster.", Gauge(|of| gauge(of.members))),
    (
        "quorate_unreachable_members",
        "Members that this instance cannot reach.",
        Gauge(|of| gauge(of.unreachable_members)),
    ),
    (
        "quorate_spare_voters",
        "Voters that may still be lost before writes end; -1: they have ended.",
        Gauge(|of| of.spare_voters.map_or(Some(-1), gauge)),
    ),
    (
        "quorate_refuses_writes",
        "Whether writes are refused, because the disks of too many voters are nearly full.",
        Gauge(|of| gauge(of.refuses_writes.into())),
    ),
    (
        "quorate_stale_seconds",
        "An upper bound for the age of this replica's state.",
        Seconds(|of| of.stale_by),
    ),
    (
        "quorate_leader_changes_total",
        "How often this instance came to know a leader.",
        Counter(|of| replicas(of, of.leader_changes)),
    ),
    (
        "quorate_elections_won_total",
        "How often this instance became the leader.",
        Counter(|of| replicas(of, of.elections_won)),
    ),
    (
        "quorate_commit_seconds",
        "From proposing a batch until the leader has applied it.",
        Distribution(|of| &of.commit),
    ),
    (
        "quorate_disk_sync_seconds",
        "From handing a write of the log out until it is durable.",
        Distribution(|of| &of.disk_sync),
    ),
    (
        "quorate_apply_seconds",
        "Time of the node's steps that applied writes.",
        Distribution(|of| &of.apply),
    ),
    (
        "quorate_sync_seconds",
        "From asking whether the leader leads until it is confirmed.",
        Distribution(|of| &of.sync),
    ),
    (
        "quorate_watch_delivery_seconds",
        "From learning of a commit until its events were delivered.",
        Distribution(|of| &of.watch_delivery),
    ),
    (
        "quorate_zxid",
        "The number of the last write that this replica has applied.",
        Gauge(|of| of.zxid.and_then(gauge)),
    ),
    (
        "quorate_applied_index",
        "The last entry of the log that this replica has applied.",
        Gauge(|of| of.applied_index.and_then(gauge)),
    ),
    (
        "quorate_durable_index",
        "The last entry of the log that is on this instance's disk.",
        Gauge(|of| of.durable_index.and_then(gauge)),
    ),
    (
        "quorate_log_bytes",
        "Bytes of the log's entries on this instance's disk, about.",
        Gauge(|of| of.log_bytes.and_then(gauge)),
    ),
    (
        "quorate_checkpoint_bytes",
        "Bytes of the last checkpoint.",
        Gauge(|of| of.checkpoint_bytes.and_then(gauge)),
    ),
    (
        "quorate_disk_free_bytes",
        "Bytes of room in the file system of the data directory, or of the log if that has less.",
        Gauge(|of| of.disk_free_bytes.and_then(gauge)),
    ),
    (
        "quorate_disk_low",
        "Whether this instance's disk is nearly full.",
        Gauge(|of| replicas_gauge(of, of.disk_low.into())),
    ),
    (
        "quorate_clock_ahead_seconds",
        "By how much this instance's wall clock is ahead of the log's time; negative: behind.",
        Gauge(|of| of.clock_ahead_ms.map(|ms| ms / 1000)),
    ),
    (
        "quorate_former_directories",
        "Directories with former data of this instance, which was damaged.",
        Gauge(|of| replicas_gauge(of, of.former_directories)),
    ),
    (
        "quorate_certificate_expires_seconds",
        "Seconds until a certificate that this instance uses expires; negative once it has.",
        SecondsBy("certificate", |of| &of.certificates_expire),
    ),
    (
        "quorate_scrub_errors_total",
        "Damages found in the log or the checkpoint on disk; a new checkpoint repairs each.",
        Counter(|of| replicas(of, of.scrub_errors)),
    ),
    (
        "quorate_checkpoints_total",
        "Checkpoints started to be written to disk.",
        Counter(|of| replicas(of, of.checkpoints)),
    ),
    (
        "quorate_snapshots_sent_total",
        "Snapshots started to be sent to others.",
        Counter(|of| replicas(of, of.snapshots_sent)),
    ),
    (
        "quorate_snapshots_installed_total",
        "Snapshots installed from others.",
        Counter(|of| replicas(of, of.snapshots_installed)),
    ),
    ("quorate_znodes", "Znodes.", Gauge(|of| of.znodes.and_then(gauge))),
    (
        "quorate_znode_bytes",
        "Bytes of the paths and the data of all znodes.",
        Gauge(|of| of.znode_bytes.and_then(gauge)),
    ),
    (
        "quorate_znodes_created_total",
        "Znodes created, counted by every replica.",
        Counter(|of| replicas(of, of.znodes_created)),
    ),
    (
        "quorate_znodes_changed_total",
        "Writes of the data of znodes, counted by every replica.",
        Counter(|of| replicas(of, of.znodes_changed)),
    ),
    (
        "quorate_znodes_deleted_total",
        "Znodes deleted, counted by every replica.",
        Counter(|of| replicas(of, of.znodes_deleted)),
    ),
    (
        "quorate_znode_changes_total",
        "Changes of znodes by the first component of their paths.",
        By("below", |of| &of.changes_below),
    ),
    (
        "quorate_requests_refused_total",
        "Writes that this instance's users asked for and that failed.",
        Counter(|of| Some(of.requests_refused)),
    ),
    ("quorate_sessions", "Sessions of the cluster.", Gauge(|of| of.sessions.and_then(gauge))),
    (
        "quorate_sessions_opened_total",
        "Sessions opened or resumed, counted by every replica.",
        Counter(|of| replicas(of, of.sessions_opened)),
    ),
    (
        "quorate_sessions_ended_total",
        "Sessions closed or expired, counted by every replica.",
        Counter(|of| replicas(of, of.sessions_ended)),
    ),
    (
        "quorate_sessions_expired_total",
        "Sessions that this instance has expired as the leader.",
        Counter(|of| replicas(of, of.sessions_expired)),
    ),
    ("quorate_watches", "Watches of this instance's sessions.", Gauge(|of| gauge(of.watches))),
    (
        "quorate_watch_events_total",
        "Events delivered by this instance's watches.",
        Counter(|of| Some(of.watch_events)),
    ),
    (
        "quorate_clients",
        "Instances without a replica that this one serves.",
        Gauge(|of| replicas_gauge(of, of.clients)),
    ),
    (
        "quorate_partitions_without_owner",
        "Partitions without an owner, at the last look.",
        GaugeBy("path", |of| &of.recipes.orphans),
    ),
    (
        "quorate_partition_members_silent",
        "Members of partitions that are in no call of their shares, at the last look.",
        GaugeBy("path", |of| &of.recipes.silent_members),
    ),
    (
        "quorate_timers_late_seconds",
        "By how much the latest timer of a schedule was late, at the last look.",
        SecondsBy("path", |of| &of.recipes.timers_late),
    ),
    (
        "quorate_queue_items",
        "Items of a queue that waited for a consumer, at the last look.",
        GaugeBy("path", |of| &of.recipes.queue_items),
    ),
    (
        "quorate_permits_refused_total",
        "Calls of this instance's rate limiters that got no permits.",
        Counter(|of| Some(of.permits_refused)),
    ),
    (
        "quorate_messages_sent_total",
        "Messages sent to peers.",
        Counter(|of| Some(of.messages_sent)),
    ),
    ("quorate_sent_bytes_total", "Bytes sent to peers.", Counter(|of| Some(of.sent_bytes))),
    (
        "quorate_messages_received_total",
        "Messages received from peers.",
        Counter(|of| Some(of.messages_received)),
    ),
    (
        "quorate_received_bytes_total",
        "Bytes received from peers.",
        Counter(|of| Some(of.received_bytes)),
    ),
    (
        "quorate_messages_dropped_total",
        "Messages not sent: no connection, no room, or too long.",
        Counter(|of| Some(of.messages_dropped)),
    ),
    (
        "quorate_connections_refused_total",
        "Incoming connections closed for what they sent or did not send.",
        Counter(|of| Some(of.connections_refused)),
    ),
    (
        "quorate_gateway_connections_ended_total",
        "Connections of this instance's gateways that have ended, by reason.",
        By("reason", |of| &of.gateway_connections_ended),
    ),
];
