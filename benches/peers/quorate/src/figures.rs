//! Latencies, and the JSON line that tells them.

use std::collections::BTreeMap;

/// How often each latency in nanoseconds was seen, to nine significant bits.
#[derive(Default)]
pub(crate) struct Latencies(BTreeMap<u64, u64>);

impl Latencies {
    pub(crate) fn add(&mut self, ns: u64) {
        let shift = (64 - ns.leading_zeros()).saturating_sub(9);
        *self.0.entry(ns >> shift << shift).or_default() += 1;
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The form in which members send them.
    pub(crate) fn text(&self) -> String {
        let pairs: Vec<String> = self.0.iter().map(|(ns, count)| format!("{ns}:{count}")).collect();
        pairs.join(" ")
    }

    /// Adds those of a [`Self::text`].
    pub(crate) fn merge(&mut self, text: &str) {
        for pair in text.split_whitespace() {
            let (ns, count) = pair.split_once(':').unwrap();
            *self.0.entry(ns.parse().unwrap()).or_default() += count.parse::<u64>().unwrap();
        }
    }

    fn at_us(&self, share: f64) -> f64 {
        let mut left = (self.count() as f64 * share) as u64;
        for (ns, count) in &self.0 {
            if left < *count {
                return *ns as f64 / 1e3;
            }
            left -= count;
        }
        self.0.keys().last().map_or(0.0, |ns| *ns as f64 / 1e3)
    }
}

/// A line of output.
pub(crate) struct Line(String);

impl Line {
    pub(crate) fn new(row: &str) -> Line {
        Line(format!("{{\"row\":{row:?}"))
    }

    pub(crate) fn number(&mut self, key: &str, value: f64) {
        self.0 += &format!(",\"{key}\":{value:.3}");
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        let value = value.replace(['"', '\\', '\n'], " ");
        self.0 += &format!(",\"{key}\":\"{value}\"");
    }

    pub(crate) fn latencies(&mut self, prefix: &str, latencies: &Latencies) {
        if latencies.count() > 0 {
            for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)] {
                self.number(&format!("{prefix}{name}_us"), latencies.at_us(share));
            }
        }
    }

    pub(crate) fn rate(&mut self, count: u64, seconds: f64) {
        self.number("ops_per_s", count as f64 / seconds);
    }

    pub(crate) fn print(&self) {
        println!("{}}}", self.0);
    }
}
