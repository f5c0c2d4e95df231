//! A few short seeds with every `cargo test`; the example runs as many as wanted.

use std::time::Duration;

use super::*;
use crate::planted::Bug;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn the_same_seed_gives_the_same_trace() {
    let one = run_once(7, MINUTE, Words::None, Kind::Usual);
    // Another seed in between, so that whatever it left behind would show.
    let other = run_once(8, MINUTE, Words::None, Kind::Usual);
    let again = run_once(7, MINUTE, Words::All, Kind::Usual);
    assert_eq!(one.trace_hash, again.trace_hash);
    assert_eq!(one.totals.operations, again.totals.operations);
    assert_ne!(one.trace_hash, other.trace_hash);
}

/// All of them are hunted by the example, which is not built for debugging: see `.ci/run`.
#[test]
fn a_planted_bug_is_found() {
    let hunt = hunt(Bug::EventTwice, 0..20, MINUTE, Words::None);
    let failure = hunt.found.and_then(|report| report.failure).unwrap();
    assert!(failure.starts_with("W"), "{failure}");
    assert_eq!(run(hunt.seeds - 1, MINUTE, Kind::Usual).failure, None, "it is gone again");
}

/// Instances are rolled by their readiness alone, in most worlds with empty disks.
#[test]
fn short_seeds_of_rolled_clusters_find_nothing() {
    for seed in 1..=4 {
        let report = run(seed, MINUTE, Kind::Rolled);
        assert_eq!(report.failure, None, "seed {seed}:\n{}", report.timeline.join("\n"));
    }
}

/// Under load a second is as long as a minute elsewhere.
#[test]
fn short_seeds_under_load_find_nothing() {
    for seed in 1..=3 {
        let report = run(seed, MINUTE / 4, Kind::Loaded);
        assert_eq!(report.failure, None, "seed {seed}:\n{}", report.timeline.join("\n"));
        assert!(report.totals.operations["set"] > 200, "seed {seed} did next to nothing");
    }
}

#[test]
fn short_seeds_find_nothing() {
    for seed in 1..=6 {
        let report = run(seed, MINUTE, Kind::Usual);
        assert_eq!(report.failure, None, "seed {seed}:\n{}", report.timeline.join("\n"));
        assert!(report.totals.entries > 10, "seed {seed} did next to nothing");
    }
}
