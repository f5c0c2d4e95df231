//! The settings of a node.

use std::time::Duration;

use crate::node::leader::planner::MembershipPolicy;
use crate::node::leader::reaper::CONTAINER_PERIOD;
use crate::node::timings::Timings;
use crate::types::version::VERSION;
use crate::types::watch::{HISTORY_BYTES, HISTORY_CHANGES};

/// The settings of a node. Times are durations, not ticks.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    /// The period of a leader's heartbeats, and the unit of election timeouts.
    pub(crate) heartbeat: Duration,
    /// ZooKeeper's tick.
    pub(crate) tick: Duration,
    /// The bounds of the timeouts of sessions that begin here.
    pub(crate) timeouts: TimeoutBounds,
    /// How often a leader looks for containers that are no longer used.
    pub(crate) container_period: Duration,
    /// The highest version that this node supports: [`VERSION`](crate::types::version::VERSION),
    /// except in tests of other builds.
    pub(crate) version: u16,
    /// A random number for each start. It seeds the election timeouts and distinguishes this start
    /// from earlier ones.
    pub(crate) seed: u64,
    pub(crate) log: LogLimits,
    /// Whether it writes an audit log.
    pub(crate) audit: bool,
    /// The policy of membership changes while it leads.
    pub(crate) policy: MembershipPolicy,
    /// The peers that the user listed. They found a cluster if there is none yet.
    pub(crate) peers: Vec<String>,
    /// After this time without a cluster, a majority of the peers may found one.
    pub(crate) majority_after: Option<Duration>,
    /// The zone of this instance, so that voters are spread over zones; empty: unknown.
    pub(crate) zone: String,
    /// What its user calls this instance, in lists of sessions; empty: nothing.
    pub(crate) name: String,
    /// Among voters that are fit to lead, one of the highest leads before long.
    pub(crate) leader_priority: i32,
    /// With fewer free bytes than this, the disk counts as nearly full; 0: never. `None`: depends
    /// on the state's size.
    pub(crate) disk_low: Option<u64>,
}

impl NodeConfig {
    /// The settings of a node on whose builder nothing was set.
    pub(crate) fn new(heartbeat: Duration, tick: Duration, seed: u64) -> NodeConfig {
        NodeConfig {
            heartbeat,
            tick,
            timeouts: TimeoutBounds::of(tick),
            container_period: CONTAINER_PERIOD,
            version: VERSION,
            seed,
            log: LogLimits::default(),
            audit: false,
            policy: MembershipPolicy::default(),
            peers: Vec::new(),
            majority_after: None,
            zone: String::new(),
            name: String::new(),
            leader_priority: 0,
            disk_low: None,
        }
    }

    pub(crate) fn timings(&self) -> Timings {
        Timings::new(self.heartbeat)
    }
}

/// The shortest and the longest timeout of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeoutBounds {
    pub(crate) least: Duration,
    pub(crate) most: Duration,
}

impl TimeoutBounds {
    /// ZooKeeper's defaults: 2 and 20 ticks.
    pub(crate) fn of(tick: Duration) -> TimeoutBounds {
        TimeoutBounds { least: tick.saturating_mul(2), most: tick.saturating_mul(20) }
    }

    /// The timeout of a session that asks for this one.
    pub(crate) fn negotiated(self, timeout: Duration) -> Duration {
        timeout.clamp(self.least, self.most)
    }
}

/// When a checkpoint is due, how much of the log is retained for lagging peers, and how many changes
/// are retained for watches that begin in the past.
///
/// A checkpoint is due after so many entries, after so many bytes of entries, or after some time
/// with any entry at all. With a large state, it is due after more entries and bytes
/// ([`LogLimits::due_bytes`]). Each member draws its own share of these limits, close to one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogLimits {
    pub(crate) checkpoint_entries: u64,
    pub(crate) checkpoint_bytes: u64,
    /// The most bytes and the most changes of the log after a checkpoint, however large the state is. A start
    /// has the bytes in memory and makes the changes once more. A create or a delete counts as two.
    pub(crate) checkpoint_bytes_max: u64,
    pub(crate) checkpoint_changes_max: u64,
    pub(crate) checkpoint_age: Duration,
    /// The log's newest entries stay in memory up to this many bytes. Entries that are not durable or
    /// not applied stay in any case.
    pub(crate) memory_bytes: u64,
    /// Behind a checkpoint, the disk retains as many bytes of the log as the state takes, within these
    /// bounds. To send more of the log would cost more than to send the state.
    pub(crate) retained_bytes_min: u64,
    pub(crate) retained_bytes_max: u64,
    /// A leader's disk retains this many bytes for peers that are being brought up to date.
    pub(crate) catch_up_bytes: u64,
    pub(crate) history_changes: usize,
    pub(crate) history_bytes: usize,
}

impl Default for LogLimits {
    fn default() -> LogLimits {
        LogLimits {
            checkpoint_entries: 20_000,
            checkpoint_bytes: 16 << 20,
            checkpoint_bytes_max: 256 << 20,
            checkpoint_changes_max: 500_000,
            checkpoint_age: Duration::from_secs(600),
            memory_bytes: 16 << 20,
            retained_bytes_min: 64 << 20,
            retained_bytes_max: 1 << 30,
            catch_up_bytes: 2 << 30,
            history_changes: HISTORY_CHANGES,
            history_bytes: HISTORY_BYTES,
        }
    }
}

/// A checkpoint may write this share of the log's bytes, as far as the other limits allow.
const CHECKPOINT_SHARE: u64 = 8;
/// Up to this many times the least bytes of the log, a checkpoint writes at most that share.
const CHECKPOINT_GROWTH: u64 = 4;

impl LogLimits {
    /// How many bytes of the log make a checkpoint due with a state of this many bytes.
    ///
    /// A checkpoint writes what has changed, which is the whole state at most. So with a large state it would
    /// write each change once more, if it came after as few bytes as with a small one. But a start has the
    /// bytes after the last checkpoint in memory: these are either few, or at most as many as the state's.
    pub(in crate::node) fn due_bytes(&self, state_bytes: u64) -> u64 {
        let worth = state_bytes.saturating_mul(CHECKPOINT_SHARE);
        let few = self.checkpoint_bytes.saturating_mul(CHECKPOINT_GROWTH);
        let most = few.max(state_bytes).min(self.checkpoint_bytes_max);
        worth.min(most).max(self.checkpoint_bytes)
    }

    /// How many entries make a checkpoint due. They grow with the bytes.
    pub(in crate::node) fn due_entries(&self, state_bytes: u64) -> u64 {
        let growth = self.due_bytes(state_bytes) / self.checkpoint_bytes.max(1);
        self.checkpoint_entries.saturating_mul(growth.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_before_a_checkpoint_grows_with_the_state() {
        const MIB: u64 = 1 << 20;
        let limits = LogLimits::default();
        let cases =
            [(0, 16), (2, 16), (4, 32), (8, 64), (64, 64), (100, 100), (256, 256), (9000, 256)];
        for (state, due) in cases {
            assert_eq!(limits.due_bytes(state * MIB), due * MIB, "with {state} MiB");
        }
        assert_eq!(limits.due_entries(0), 20_000);
        assert_eq!(limits.due_entries(8 * MIB), 80_000);
        assert_eq!(limits.due_entries(u64::MAX), 320_000);
    }
}
