//! What an instance counts and measures besides its node.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use once_cell::sync::OnceCell;

use crate::types::metrics::Metrics;
use crate::types::metrics::histogram::Histogram;
use crate::types::metrics::recipes::RecipeFigures;

/// For so long the metrics have what was found when this instance looked at all recipes.
const LOOK_KEPT: Duration = Duration::from_secs(300);

/// Adds figures of the transport to metrics.
type Meter = Box<dyn Fn(&mut Metrics) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Figures {
    meter: OnceCell<Meter>,
    /// The connections of gateways that have ended, by reason.
    ended: Mutex<BTreeMap<&'static str, u64>>,
    measured: Mutex<HostMeasurements>,
    /// What was found when this instance last looked at all recipes, and when that was.
    looked: Mutex<(Duration, RecipeFigures)>,
    /// Calls for permits of a rate limiter that got none.
    pub(crate) permits_refused: AtomicU64,
    /// The metrics that were last published to the facade.
    #[cfg(feature = "metrics")]
    pub(crate) published: Mutex<Metrics>,
}

/// What the host measures itself.
#[derive(Debug, Default)]
pub(super) struct HostMeasurements {
    pub(super) apply: Histogram,
    pub(super) watch_delivery: Histogram,
    pub(super) requests_refused: u64,
}

fn lock<T>(figures: &Mutex<T>) -> MutexGuard<'_, T> {
    figures.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Figures {
    /// Sets the function that adds the network's counters.
    pub(super) fn set_meter(&self, meter: impl Fn(&mut Metrics) + Send + Sync + 'static) {
        let _ = self.meter.set(Box::new(meter));
    }

    /// Counts a connection of a gateway that has ended for this reason, or none so far.
    #[cfg(feature = "gateway")]
    pub(crate) fn count_ended(&self, reason: &'static str, connections: u64) {
        *lock(&self.ended).entry(reason).or_default() += connections;
    }

    pub(super) fn measured(&self) -> MutexGuard<'_, HostMeasurements> {
        lock(&self.measured)
    }

    /// Keeps what a look at all recipes has found, for the metrics.
    pub(crate) fn has_looked(&self, now: Duration, mut found: RecipeFigures) {
        found.shorten();
        *lock(&self.looked) = (now, found);
    }

    pub(super) fn add_to(&self, metrics: &mut Metrics, now: Duration) {
        let ended = lock(&self.ended);
        metrics.gateway_connections_ended =
            ended.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect();
        drop(ended);
        let HostMeasurements { apply, watch_delivery, requests_refused } = &*self.measured();
        metrics.apply = apply.clone();
        metrics.watch_delivery = watch_delivery.clone();
        metrics.requests_refused = *requests_refused;
        let looked = lock(&self.looked);
        if now.saturating_sub(looked.0) < LOOK_KEPT {
            metrics.recipes = looked.1.clone();
        }
        drop(looked);
        metrics.permits_refused = self.permits_refused.load(Ordering::Relaxed);
        if let Some(meter) = self.meter.get() {
            meter(metrics);
        }
    }
}
