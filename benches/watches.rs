//! What a million watches cost: memory, and nothing for the writes that they do not concern.
//!
//! `cargo bench --bench watches` sets them on paths of their own, on one node of a cluster in memory,
//! and prints the bytes that each takes and how long a write elsewhere takes without and with them.

#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::time::Instant;

use quorate::testing::Cluster;
use quorate::{CreateMode, Pending, Session, Watch, WatchMode};

const WATCHES: usize = 1_000_000;
const WRITES: usize = 200_000;
/// How many requests are under way at a time.
const WINDOW: usize = 1024;

fn main() {
    // `cargo test --benches` only sees whether this runs.
    let short = !std::env::args().any(|arg| arg == "--bench");
    let (watches, writes) = if short { (1000, 1000) } else { (WATCHES, WRITES) };
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).unwrap();
    session.create("/a/b", b"", CreateMode::Persistent).unwrap();
    // So that what fills up anyway is full.
    write(&session, writes);
    println!("{:44} {:>10}", "", "a write");
    report("without watches", &session, writes);
    let before = resident();
    for (name, set) in KINDS {
        let held = set_all(&session, watches, set);
        report(&format!("with {watches} {name} watches"), &session, writes);
        // Only the first takes its memory from the system.
        if name == KINDS[0].0 {
            let bytes = resident().saturating_sub(before) / watches;
            println!("{:44} {bytes:>10}", "bytes of each, its handle and path included");
        }
        drop(held);
        session.sync().unwrap();
    }
    report("without them again", &session, writes);
}

type Set = fn(&Session, &str) -> Pending<Watch>;

const KINDS: [(&str, Set); 2] = [
    ("persistent", |session, path| session.nonblocking().watch(path, WatchMode::Persistent)),
    ("recursive", |session, path| {
        session.nonblocking().watch(path, WatchMode::PersistentRecursive)
    }),
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
        let window: Vec<_> = (from..count.min(from + WINDOW))
            .map(|_| session.nonblocking().set("/a/b", b"data"))
            .collect();
        for set in window {
            set.wait().unwrap();
        }
    }
}

fn report(name: &str, session: &Session, writes: usize) {
    // The best of a few: others use this machine too.
    let time = (0..5).map(|_| {
        let start = Instant::now();
        write(session, writes);
        start.elapsed() / writes as u32
    });
    println!("{name:44} {:>10.2?}", time.min().unwrap());
}

/// The memory of this process, where the system says so.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
    kib.unwrap_or(0) * 1024
}
