//! The trace of a run: a hash of everything that happened and, on request, the last events as text.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::Arguments;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::clock::{Nanos, TrueTime};

/// How much of a run is kept as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// Nothing.
    None,
    /// Every fault, and the last other events.
    Last,
    /// Everything.
    All,
}

/// How many of the last lines of each kind a timeline keeps.
const EVENTS_KEPT: usize = 400;
const FAULTS_KEPT: usize = 4000;

/// The trace of one run.
#[derive(Debug)]
pub(crate) struct Trace {
    time: TrueTime,
    hash: Cell<u64>,
    /// `None` unless somebody will read the run: text takes longer than the run itself.
    lines: Option<RefCell<Lines>>,
}

#[derive(Debug, Default)]
struct Lines {
    events_kept: usize,
    events: VecDeque<(u64, String)>,
    faults: VecDeque<(u64, String)>,
    count: u64,
}

impl Trace {
    pub(crate) fn new(time: TrueTime, verbosity: Verbosity) -> Trace {
        let events_kept = match verbosity {
            Verbosity::None => None,
            Verbosity::Last => Some(EVENTS_KEPT),
            Verbosity::All => Some(usize::MAX),
        };
        let lines =
            events_kept.map(|events_kept| RefCell::new(Lines { events_kept, ..Lines::default() }));
        Trace { time, hash: Cell::new(0), lines }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.get()
    }

    /// Adds an event to the hash.
    pub(crate) fn note(&self, words: [u64; 3]) {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.time.now().to_le_bytes());
        for (part, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        self.hash.set(xxh3_64_with_seed(&bytes, self.hash.get()));
    }

    /// Adds an event as text, if somebody will read the run.
    pub(crate) fn log(&self, line: Arguments<'_>) {
        if let Some(lines) = &self.lines {
            let mut lines = lines.borrow_mut();
            lines.count += 1;
            let (count, line) = (lines.count, at(self.time.now(), line));
            if lines.events.len() == lines.events_kept {
                lines.events.pop_front();
            }
            lines.events.push_back((count, line));
        }
    }

    /// The same for a fault, or for another event that every timeline must show.
    pub(crate) fn log_fault(&self, line: Arguments<'_>) {
        if let Some(lines) = &self.lines {
            let mut lines = lines.borrow_mut();
            lines.count += 1;
            let (count, line) = (lines.count, at(self.time.now(), line));
            if lines.faults.len() == FAULTS_KEPT {
                lines.faults.pop_front();
            }
            lines.faults.push_back((count, line));
        }
    }

    /// All faults and the last other events, in order.
    pub(crate) fn timeline(&self) -> Vec<String> {
        let Some(lines) = &self.lines else {
            return Vec::new();
        };
        let lines = lines.borrow();
        let mut all: Vec<&(u64, String)> = lines.events.iter().chain(&lines.faults).collect();
        all.sort_unstable_by_key(|(count, _)| *count);
        all.into_iter().map(|(_, line)| line.clone()).collect()
    }
}

fn at(now: Nanos, line: Arguments<'_>) -> String {
    format!("{:>12.6}s  {line}", now as f64 / 1e9)
}
