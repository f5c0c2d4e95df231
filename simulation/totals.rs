//! Counters of runs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::faults::TABLE;

/// The counters of one or more runs.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// The number of seeds.
    pub seeds: u64,
    /// The simulated time.
    pub virtual_time: Duration,
    /// The faults, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// The clients' operations that were checked, by kind.
    pub operations: BTreeMap<&'static str, u64>,
    /// Observed events of the engine, by name. They show what was never reached.
    pub events: BTreeMap<&'static str, u64>,
    /// The watch events that were checked.
    pub watch_events: u64,
    /// The log entries.
    pub entries: u64,
    /// The steps of nodes.
    pub steps: u64,
}

pub(super) fn faults(counts: &[u64; TABLE.len()]) -> BTreeMap<&'static str, u64> {
    TABLE.iter().map(|row| (row.name, counts[row.fault as usize])).collect()
}

impl Totals {
    /// Adds the counters of another run.
    pub fn add(&mut self, other: &Totals) {
        self.seeds += other.seeds;
        self.virtual_time += other.virtual_time;
        self.watch_events += other.watch_events;
        self.entries += other.entries;
        self.steps += other.steps;
        for (name, count) in &other.faults {
            *self.faults.entry(name).or_default() += count;
        }
        for (name, count) in &other.events {
            *self.events.entry(name).or_default() += count;
        }
        for (name, count) in &other.operations {
            *self.operations.entry(name).or_default() += count;
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.virtual_time.as_secs_f64() / 3600.0;
        writeln!(
            f,
            "{} seeds, {hours:.2} virtual hours, {} steps of nodes",
            self.seeds, self.steps
        )?;
        let list = |counts: &BTreeMap<&str, u64>| {
            let words: Vec<String> =
                counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            words.join(", ")
        };
        writeln!(f, "faults: {}", list(&self.faults))?;
        writeln!(f, "reached: {}", list(&self.events))?;
        let (operations, events) = (list(&self.operations), self.watch_events);
        write!(f, "checked: {operations}, watch events {events}, log entries {}", self.entries)
    }
}
