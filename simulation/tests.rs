//! A few short seeds with every `cargo test`; the example runs as many as wanted.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::planted::Bug;

const MINUTE: Duration = Duration::from_secs(60);
/// What is not optimised takes long.
const SHORT: Duration = Duration::from_secs(20);

#[test]
fn the_same_seed_gives_the_same_trace() {
    let one = run_once(7, SHORT, Verbosity::None, Kind::Usual);
    // Another seed in between would show any state that the first run leaves behind.
    let other = run_once(8, SHORT, Verbosity::None, Kind::Usual);
    let again = run_once(7, SHORT, Verbosity::All, Kind::Usual);
    assert_eq!(one.trace_hash, again.trace_hash);
    assert_eq!(one.totals.operations, again.totals.operations);
    assert_ne!(one.trace_hash, other.trace_hash);
}

#[test]
fn worlds_of_one_disk_find_nothing() {
    for seed in 0..12 {
        let report = run(seed, MINUTE, Kind::Disk);
        assert_eq!(report.failure, None, "seed {seed}: {:#?}", report.timeline);
    }
    let again = || run_once(7, MINUTE, Verbosity::None, Kind::Disk).trace_hash;
    assert_eq!(again(), again());
}

/// The names of all checks: the string after the condition of a `require`, and so on.
fn checks_in(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (call, first) in [("require(", false), ("Violation::new(", true), ("await_until(", false)] {
        // Not a condition of a multi.
        let calls = source.match_indices(call).filter(|(at, _)| !source[..*at].ends_with('.'));
        for (_, after) in calls.map(|(at, _)| source.split_at(at + call.len())) {
            let mut pieces = after.split('"');
            let mut before = pieces.next().unwrap_or_default();
            while let (Some(text), Some(next)) = (pieces.next(), pieces.next()) {
                let (begins, follows) =
                    (before.trim().is_empty(), before.trim_end().ends_with(','));
                if begins || follows {
                    found.push(text.to_owned());
                }
                if first || begins || follows {
                    break;
                }
                before = next;
            }
        }
    }
    found
}

/// A check that no bug trips may check nothing at all.
#[test]
fn a_bug_is_planted_for_each_check() {
    fn walk(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => walk(&path, found),
                Some(rs) if rs == "rs" && !path.ends_with("tests.rs") => {
                    found.extend(checks_in(&std::fs::read_to_string(&path).unwrap()));
                }
                _ => {}
            }
        }
    }
    let mut checks = BTreeSet::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("simulation"), &mut checks);
    assert!(checks.contains("I23 one holder at a time") && checks.len() > 100, "{checks:?}");
    let named = Bug::ALL.iter().flat_map(|bug| bug.checks()).copied();
    let named: BTreeSet<String> = named.map(str::to_owned).collect();
    let unknown: Vec<_> = named.difference(&checks).collect();
    assert!(unknown.is_empty(), "there are no checks {unknown:?}");
    let blind: Vec<_> = checks.difference(&named).collect();
    assert!(blind.is_empty(), "no bug is planted for {blind:?}");
}

/// Instances are restarted by their readiness alone, in most worlds with empty disks.
#[test]
fn a_short_seed_of_rolled_clusters_finds_nothing() {
    let report = run(1, SHORT, Kind::Rolled);
    assert_eq!(report.failure, None, "{}", report.timeline.join("\n"));
}

/// A second under load costs as much as a minute elsewhere.
#[test]
fn a_short_seed_under_load_finds_nothing() {
    let report = run(1, MINUTE / 4, Kind::Loaded);
    assert_eq!(report.failure, None, "{}", report.timeline.join("\n"));
    assert!(report.totals.operations["set"] > 200, "it did next to nothing");
}

#[test]
fn short_seeds_find_nothing() {
    for seed in 1..=2 {
        let report = run(seed, SHORT, Kind::Usual);
        assert_eq!(report.failure, None, "seed {seed}:\n{}", report.timeline.join("\n"));
        assert!(report.totals.entries > 10, "seed {seed} did next to nothing");
    }
}
