//! Counters for the four-letter words.

use std::time::Duration;

use crate::types::znode::Zxid;

/// ZooKeeper's trace mask, unless it was set: it traces the requests and the sessions of clients, and
/// warnings.
const TRACE_MASK: i64 = 306;

/// The packets of one connection, or of all, since the beginning or the last reset.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PacketCounts {
    pub(super) received: u64,
    pub(super) sent: u64,
    /// The latency of replies: from the arrival of the request until the reply is written.
    latency: Option<ReplyLatency>,
    pub(super) last: Option<LastReply>,
}

/// What the words report of all connections together.
pub(super) struct Totals {
    pub(super) counts: PacketCounts,
    /// When the gateway began.
    pub(super) since: Duration,
    /// What clients have set by `stmk`. It has no effect.
    pub(super) trace_mask: i64,
}

impl Totals {
    pub(super) fn new(now: Duration) -> Totals {
        Totals { counts: PacketCounts::default(), since: now, trace_mask: TRACE_MASK }
    }
}

#[derive(Clone, Copy, Debug)]
struct ReplyLatency {
    count: u64,
    total: Duration,
    least: Duration,
    most: Duration,
}

/// The reply that was sent last.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastReply {
    /// The op as the client sent it.
    pub(super) op: i32,
    pub(super) xid: i32,
    pub(super) zxid: Zxid,
    pub(super) at: Duration,
    pub(super) latency: Duration,
}

impl PacketCounts {
    pub(super) fn replied(&mut self, reply: LastReply) {
        let (total, least, most) = (reply.latency, reply.latency, reply.latency);
        self.add_latency(ReplyLatency { count: 1, total, least, most });
        self.last = Some(reply);
    }

    /// Adds later counts.
    pub(super) fn add(&mut self, later: &PacketCounts) {
        self.received += later.received;
        self.sent += later.sent;
        if let Some(latency) = later.latency {
            self.add_latency(latency);
        }
        self.last = later.last.or(self.last);
    }

    fn add_latency(&mut self, other: ReplyLatency) {
        let sum = self.latency.map_or(other, |own| ReplyLatency {
            count: own.count + other.count,
            total: own.total + other.total,
            least: own.least.min(other.least),
            most: own.most.max(other.most),
        });
        self.latency = Some(sum);
    }

    /// The minimum, the mean and the maximum, in milliseconds; 0 if there was no reply.
    pub(super) fn latency_ms(&self) -> (u128, f64, u128) {
        self.latency.map_or((0, 0.0, 0), |latency| {
            let mean = latency.total.as_secs_f64() * 1000.0 / latency.count as f64;
            let mean = (mean * 10_000.0).round() / 10_000.0;
            (latency.least.as_millis(), mean, latency.most.as_millis())
        })
    }
}
