//! Metrics for the facade `metrics`.

use std::sync::PoisonError;

use ::metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram};
use ::metrics::{gauge, histogram};

use crate::api::coordinator::Coordinator;
use crate::types::metrics::table::{METRICS, Value};

impl Coordinator {
    /// Publishes this instance's metrics to the recorder of the crate [`metrics`](::metrics) that the
    /// application has installed; does nothing if there is no recorder. The names are those in the
    /// text form of [`Metrics`](crate::operate::Metrics).
    ///
    /// Nothing is published between calls: call it before each scrape, or every few seconds. A
    /// histogram receives the durations recorded since the last call, rounded to the buckets of
    /// [`Histogram`](crate::operate::Histogram). So a recorder that is installed later misses what was published
    /// before.
    ///
    /// The metrics have no label for the instance. With several coordinators in one process, use a
    /// recorder for each (`metrics::with_local_recorder`). Blocks until the node's thread answers.
    ///
    /// ```
    /// # use quorate::testing::Cluster;
    /// // In practice the recorder of your monitoring system, for example that of `metrics-exporter-prometheus`.
    /// let recorder = metrics::NoopRecorder;
    /// metrics::set_global_recorder(recorder).expect("it is the first one");
    /// let cluster = Cluster::new(1);
    /// cluster.node(0).publish_metrics();
    /// ```
    pub fn publish_metrics(&self) {
        let shared = self.shared();
        // Two threads that publish at once must not record the same durations.
        let mut published = shared.figures.published.lock().unwrap_or_else(PoisonError::into_inner);
        let metrics = shared.metrics();
        for &(name, help, ref value) in METRICS {
            match value {
                Value::Counter(of) => {
                    let Some(value) = of(&metrics) else { continue };
                    describe_counter!(name, help);
                    counter!(name).absolute(value);
                }
                Value::By(label, of) => {
                    describe_counter!(name, help);
                    for (key, count) in of(&metrics) {
                        counter!(name, *label => key.clone()).absolute(*count);
                    }
                }
                Value::Gauge(of) => {
                    let Some(value) = of(&metrics) else { continue };
                    describe_gauge!(name, help);
                    gauge!(name).set(value as f64);
                }
                Value::GaugeBy(label, of) => {
                    describe_gauge!(name, help);
                    // What is not there any more is none.
                    for key in of(&published).keys() {
                        gauge!(name, *label => key.clone()).set(0.0);
                    }
                    for (key, value) in of(&metrics) {
                        gauge!(name, *label => key.clone()).set(*value as f64);
                    }
                }
                Value::SecondsBy(label, of) => {
                    describe_gauge!(name, Unit::Seconds, help);
                    for (key, seconds) in of(&metrics) {
                        gauge!(name, *label => key.clone()).set(*seconds as f64);
                    }
                }
                Value::Seconds(of) => {
                    let Some(value) = of(&metrics) else { continue };
                    describe_gauge!(name, Unit::Seconds, help);
                    gauge!(name).set(value.as_secs_f64());
                }
                Value::Histogram(of) => {
                    describe_histogram!(name, Unit::Seconds, help);
                    let recorded = histogram!(name);
                    for (about, count) in of(&metrics).since(of(&published)) {
                        let count = usize::try_from(count).unwrap_or(usize::MAX);
                        recorded.record_many(about.as_secs_f64(), count);
                    }
                }
            }
        }
        *published = metrics;
    }
}
