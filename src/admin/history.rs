//! The last hour of this instance: a sample of its figures every five seconds, in the memory of its process.
//!
//! A page that is opened during an incident shows what was before it. Only figures of the instance itself are
//! kept, so that sampling sends no messages. The samples are a ring of [`SAMPLES_MAX`]: about 70 KiB.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use serde_json::{Value, json};

use super::routes::Routes;
use crate::api::coordinator::Coordinator;
use crate::runtime::port::Serving;
use crate::types::metrics::Metrics;
use crate::types::metrics::histogram::Histogram;

/// How often a sample is taken.
pub(super) const PERIOD: Duration = Duration::from_secs(5);
/// How many samples are kept: an hour of them.
const SAMPLES_MAX: usize = 720;
/// How many different leaders are named. Further ones are reported as unknown.
const LEADERS_MAX: usize = 64;

/// The figures of one moment. Latencies are in microseconds, of the time since the sample before.
struct Sample {
    /// When it was taken: milliseconds since the Unix epoch.
    time: u64,
    /// The place of the leader's address in [`Ring::leaders`].
    leader: Option<usize>,
    zxid: Option<u64>,
    commit_us: Option<u64>,
    disk_us: Option<u64>,
    stale_ms: Option<u64>,
    sessions: Option<u64>,
    znodes: Option<u64>,
}

#[derive(Default)]
struct Ring {
    samples: VecDeque<Sample>,
    leaders: Vec<String>,
    /// When the last sample was taken, and its metrics: the latencies of the next one are those since then.
    last: Option<(Duration, Metrics)>,
}

impl Ring {
    fn is_due(&self, now: Duration) -> bool {
        self.last.as_ref().is_none_or(|(at, _)| now.saturating_sub(*at) >= PERIOD)
    }

    fn add(&mut self, now: Duration, time: u64, leader: Option<String>, metrics: Metrics) {
        let leader = leader.and_then(|leader| self.place(leader));
        let before = self.last.as_ref().map(|(_, metrics)| metrics);
        let millis = |time: Duration| u64::try_from(time.as_millis()).ok();
        self.samples.push_back(Sample {
            time,
            leader,
            zxid: metrics.zxid,
            commit_us: p99_us(&metrics.commit, before.map(|before| &before.commit)),
            disk_us: p99_us(&metrics.disk_sync, before.map(|before| &before.disk_sync)),
            stale_ms: metrics.stale_by.and_then(millis),
            sessions: metrics.sessions,
            znodes: metrics.znodes,
        });
        while self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.last = Some((now, metrics));
    }

    fn place(&mut self, leader: String) -> Option<usize> {
        let known = self.leaders.iter().position(|known| *known == leader);
        if known.is_none() && self.leaders.len() < LEADERS_MAX {
            self.leaders.push(leader);
            return Some(self.leaders.len() - 1);
        }
        known
    }
}

/// The samples of one endpoint.
pub(super) struct SampleHistory {
    coordinator: Coordinator,
    ring: Mutex<Ring>,
}

/// Starts the thread that takes the samples, and looks for what the metrics tell of recipes. It ends when the sender is dropped.
pub(super) fn start(routes: &Arc<Routes>, serving: &mut Serving) -> io::Result<Sender<()>> {
    let (sender, ended) = bounded(0);
    let routes = Arc::clone(routes);
    serving.spawn("quorate-admin-past", move || {
        let mut next_look = None;
        loop {
            routes.history().sample();
            routes.look(&mut next_look);
            if ended.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    })?;
    Ok(sender)
}

/// The 99th percentile of the durations since an earlier state; `None` if there are none.
fn p99_us(now: &Histogram, before: Option<&Histogram>) -> Option<u64> {
    let since = before.map(|before| now.without(before));
    let quantile = since.as_ref().unwrap_or(now).quantile(0.99)?;
    u64::try_from(quantile.as_micros()).ok()
}

impl SampleHistory {
    pub(super) fn new(coordinator: Coordinator) -> SampleHistory {
        SampleHistory { coordinator, ring: Mutex::default() }
    }

    /// Takes a sample, unless the last one is more recent than [`PERIOD`].
    pub(super) fn sample(&self) {
        let clock = &self.coordinator.shared().clock;
        if !self.ring().is_due(clock.now()) {
            return;
        }
        // This waits for the node's thread, so the ring is not locked meanwhile.
        let (metrics, leader) =
            (self.coordinator.shared().metrics(), self.coordinator.status().leader);
        let (now, time) = (clock.now(), clock.wall_ms());
        let mut ring = self.ring();
        // Another request may have taken one.
        if ring.is_due(now) {
            ring.add(now, time, leader, metrics);
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The samples after a time in milliseconds, as one list for each figure.
    pub(super) fn shown(&self, after: u64) -> Value {
        self.sample();
        let ring = self.ring();
        let samples = || ring.samples.iter().filter(|sample| sample.time > after);
        let list = |of: fn(&Sample) -> Option<u64>| samples().map(of).collect::<Vec<_>>();
        let leader = |sample: &Sample| sample.leader.map(|place| &ring.leaders[place]);
        json!({
            "address": self.coordinator.address(),
            "period_ms": PERIOD.as_millis() as u64,
            "samples_max": SAMPLES_MAX,
            "time": list(|sample| Some(sample.time)),
            "leader": samples().map(leader).collect::<Vec<_>>(),
            "zxid": list(|sample| sample.zxid),
            "commit_p99_us": list(|sample| sample.commit_us),
            "disk_sync_p99_us": list(|sample| sample.disk_us),
            "stale_by_ms": list(|sample| sample.stale_ms),
            "sessions": list(|sample| sample.sessions),
            "znodes": list(|sample| sample.znodes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept_and_latencies_are_those_since_the_sample_before() {
        let mut ring = Ring::default();
        let mut metrics = Metrics::default();
        for number in 0..2 * SAMPLES_MAX as u64 {
            metrics.zxid = Some(number);
            if number == 1000 {
                metrics.disk_sync.record(Duration::from_millis(40));
            }
            let now = PERIOD * u32::try_from(number).unwrap();
            assert!(
                ring.is_due(now) && (number == 0 || !ring.is_due(now - Duration::from_millis(1)))
            );
            let leader = format!("10.0.0.{}:7400", number % 100);
            ring.add(now, number, Some(leader), metrics.clone());
        }
        assert_eq!((ring.samples.len(), ring.leaders.len()), (SAMPLES_MAX, LEADERS_MAX));
        assert_eq!(ring.samples[0].zxid, Some(SAMPLES_MAX as u64));
        let slow = ring.samples.iter().filter(|sample| sample.disk_us.is_some());
        let slow: Vec<_> = slow.map(|sample| (sample.time, sample.disk_us)).collect();
        assert_eq!(slow, [(1000, Some(40_000))]);
        assert_eq!(ring.samples[0].leader, Some(20));
        // More leaders than are named.
        assert_eq!(ring.samples[59].leader, None);
    }
}
