//! The metrics that are published to a recorder of the crate `metrics`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use quorate::CreateMode;
use quorate::testing::Cluster;

/// The recorded values by a metric's name and labels: a value, or the count and the sum of a histogram.
#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<BTreeMap<String, (f64, f64)>>>);

impl Recorded {
    fn of(&self, name: &str) -> Option<(f64, f64)> {
        self.0.lock().unwrap().get(name).copied()
    }

    fn handle(&self, key: &Key) -> Arc<Handle> {
        let labels: Vec<&str> = key.labels().flat_map(|of| [of.key(), of.value()]).collect();
        let name = [&[key.name()], labels.as_slice()].concat().join(" ");
        Arc::new(Handle { name, all: self.clone() })
    }
}

struct Handle {
    name: String,
    all: Recorded,
}

impl Handle {
    fn put(&self, value: f64) {
        self.all.0.lock().unwrap().insert(self.name.clone(), (value, 0.0));
    }
}

impl CounterFn for Handle {
    fn increment(&self, _: u64) {
        panic!("{} is set", self.name);
    }

    fn absolute(&self, value: u64) {
        self.put(value as f64);
    }
}

impl GaugeFn for Handle {
    fn increment(&self, _: f64) {
        panic!("{} is set", self.name);
    }

    fn decrement(&self, _: f64) {
        panic!("{} is set", self.name);
    }

    fn set(&self, value: f64) {
        self.put(value);
    }
}

impl HistogramFn for Handle {
    fn record(&self, value: f64) {
        let mut all = self.all.0.lock().unwrap();
        let (count, sum) = all.entry(self.name.clone()).or_default();
        (*count, *sum) = (*count + 1.0, *sum + value);
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.handle(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.handle(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.handle(key))
    }
}

#[test]
fn every_metric_of_the_text_is_published_and_each_duration_once() {
    let cluster = Cluster::new(1);
    let coordinator = cluster.node(0);
    let recorded = Recorded::default();
    let publish = || metrics::with_local_recorder(&recorded, || coordinator.publish_metrics());
    let session = coordinator.open_session().unwrap();
    for n in 0..5 {
        session.create(&format!("/{n}"), b"", CreateMode::Persistent).wait().unwrap();
        publish();
    }
    // No more writes and syncs follow.
    let shown = coordinator.metrics().wait().unwrap();
    publish();
    assert_eq!(recorded.of("quorate_znodes_created_total"), Some((5.0, 0.0)));
    assert_eq!(recorded.of("quorate_has_leader"), Some((1.0, 0.0)));
    assert_eq!(recorded.of("quorate_znode_changes_total below /3"), Some((1.0, 0.0)));
    let (count, sum) = recorded.of("quorate_commit_seconds").unwrap();
    assert_eq!(count, shown.commit.count() as f64);
    // The published values have the precision of the buckets.
    let true_sum = shown.commit.sum().as_secs_f64();
    assert!(sum <= true_sum * 2.5 + count * 1e-5 && true_sum <= sum * 2.5, "{sum}, not {true_sum}");
    let text = shown.to_string();
    for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, _) = name.split_once(' ').unwrap();
        // Others have a value for each label, or none yet; a histogram without durations records nothing.
        let has_value = text.lines().any(|line| line.starts_with(&format!("{name} ")));
        assert!(!has_value || recorded.of(name).is_some(), "{name}");
    }
}
