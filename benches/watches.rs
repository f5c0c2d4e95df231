//! The cost of a million watches: memory, and no time for writes that they do not concern.
//!
//! `cargo bench --bench watches` sets them on paths of their own, on one node of a cluster in memory. It
//! prints the bytes that each takes, and the time of a write elsewhere in the tree. A second cluster has
//! no watches; the two write in turn.

#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::process::Command;
use std::time::Instant;

use quorate::testing::Cluster;
use quorate::{CreateMode, Pending, Session, Watch, WatchMode};

const WATCHES: usize = 1_000_000;
const WRITES: usize = 200_000;
const ROUNDS: usize = 9;
/// How many requests are in flight at a time.
const WINDOW: usize = 1024;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test --benches` only sees whether this runs.
    let short = !arguments.iter().any(|argument| argument == "--bench");
    let (watches, writes) = if short { (1000, 1000) } else { (WATCHES, WRITES) };
    if let Some((name, set)) = KINDS.iter().find(|(name, _)| arguments.iter().any(|it| it == name))
    {
        return measure(name, *set, watches, writes);
    }
    // Each kind has a process of its own, since a million watches that were dropped leave gaps in the heap.
    for (name, _) in KINDS {
        let run =
            Command::new(std::env::current_exe().unwrap()).args(&arguments[1..]).arg(name).status();
        assert!(run.unwrap().success());
    }
}

fn measure(name: &str, set: Set, watches: usize, writes: usize) {
    let clusters = [Cluster::new(1), Cluster::new(1)];
    let [without, with] = clusters.each_ref().map(|cluster| {
        let session = cluster.node(0).session();
        session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
        session.create("/a/b", b"", CreateMode::Persistent).wait().unwrap();
        // Fills the log and the caches, so that they do not grow during the measurements.
        write(&session, writes);
        session
    });
    println!("{:44} {:>30} {:>30} {:>24}", "a write", "without", "with", "with / without");
    compare("without any", &without, &with, writes);
    let before = resident();
    let held = set_all(&with, watches, set);
    compare(&format!("with {watches} {name} watches"), &without, &with, writes);
    let bytes = resident().saturating_sub(before) / watches;
    println!("{:44} {bytes:>10}", "bytes of each, its handle and path included");
    drop(held);
    with.sync().wait().unwrap();
    compare("without any again", &without, &with, writes);
}

type Set = fn(&Session, &str) -> Pending<'static, Watch>;

const KINDS: [(&str, Set); 2] = [
    ("persistent", |session, path| session.watch(path, WatchMode::Persistent)),
    ("recursive", |session, path| session.watch(path, WatchMode::PersistentRecursive)),
];

fn set_all(session: &Session, count: usize, set: Set) -> Vec<Watch> {
    let mut held = Vec::with_capacity(count);
    for from in (0..count).step_by(WINDOW) {
        let window: Vec<_> = (from..count.min(from + WINDOW))
            .map(|n| set(session, &format!("/services/backend/node-{n:07}")))
            .collect();
        held.extend(window.into_iter().map(|watch| watch.wait().unwrap()));
    }
    held
}

fn write(session: &Session, count: usize) {
    for from in (0..count).step_by(WINDOW) {
        let window: Vec<_> =
            (from..count.min(from + WINDOW)).map(|_| session.set("/a/b", b"data")).collect();
        for set in window {
            set.wait().unwrap();
        }
    }
}

/// Prints the times of both in nanoseconds, and their ratio, over several rounds.
fn compare(name: &str, without: &Session, with: &Session, writes: usize) {
    let time = |session: &Session| {
        let start = Instant::now();
        write(session, writes);
        start.elapsed().as_nanos() as f64 / writes as f64
    };
    let rounds: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (time(without), time(with))).collect();
    let [one, other] = [
        rounds.iter().map(|round| round.0).collect(),
        rounds.iter().map(|round| round.1).collect(),
    ]
    .map(|times| spread(times, 0));
    let ratio = spread(rounds.iter().map(|(without, with)| with / without).collect(), 2);
    println!("{name:44} {one:>30} {other:>30} {ratio:>24}");
}

/// The median, the least and the greatest.
fn spread(mut each: Vec<f64>, digits: usize) -> String {
    each.sort_unstable_by(f64::total_cmp);
    let (least, greatest) = (each[0], each[each.len() - 1]);
    format!("{:.digits$} [{least:.digits$}..{greatest:.digits$}]", each[each.len() / 2])
}

/// The memory of this process in bytes; 0 if the system does not report it.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
    kib.unwrap_or(0) * 1024
}
