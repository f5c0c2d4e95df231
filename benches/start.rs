//! The time until instances are ready: three that found a cluster, all three when they start again, and one
//! more.
//!
//! `cargo bench --bench start` prints the median and the longest of ten rounds. All instances run in this
//! process, over TCP with real disks, and each round has new directories. The figures count from the first
//! call of `join` until the last `wait_ready` returns.

#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use quorate::Coordinator;

const ROUNDS: usize = 10;

fn main() {
    // `cargo test --benches` only sees whether this runs.
    let rounds = if std::env::args().any(|arg| arg == "--bench") { ROUNDS } else { 1 };
    let names = ["three found a cluster", "all three start again", "one more joins"];
    let mut times: [Vec<Duration>; 3] = Default::default();
    for _ in 0..rounds {
        for (times, time) in times.iter_mut().zip(round()) {
            times.push(time);
        }
    }
    for (name, times) in names.iter().zip(&mut times) {
        times.sort_unstable();
        let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{name}: ready after {median:.0?} (median of {rounds}), {longest:.0?} at most");
    }
}

fn round() -> [Duration; 3] {
    let dir = tempfile::tempdir().unwrap();
    let listeners: Vec<_> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let all: Vec<_> = listeners.iter().map(|one| one.local_addr().unwrap().to_string()).collect();
    drop(listeners);
    let peers = &all[..3];
    let (members, founded) = start(dir.path(), peers, peers);
    members.iter().for_each(|member| member.close().wait().unwrap());
    drop(members);
    let (members, again) = start(dir.path(), peers, peers);
    // Until then a new leader changes no members, since it does not know yet which of them are alive.
    std::thread::sleep(Duration::from_secs(2));
    let (further, joined) = start(dir.path(), peers, &all[3..]);
    further.iter().chain(&members).for_each(|member| member.close().wait().unwrap());
    [founded, again, joined]
}

/// Starts instances at these addresses, and waits until all are ready.
fn start(dir: &Path, peers: &[String], addresses: &[String]) -> (Vec<Coordinator>, Duration) {
    let begun = Instant::now();
    let join = |address: &String| {
        let builder = Coordinator::builder().advertise(address);
        builder.data_dir(dir.join(address.replace(':', "_"))).join(peers).wait().unwrap()
    };
    let instances: Vec<Coordinator> = addresses.iter().map(join).collect();
    for instance in &instances {
        instance.wait_ready(Duration::from_secs(60)).wait().unwrap();
    }
    (instances, begun.elapsed())
}
