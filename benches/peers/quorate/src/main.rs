//! quorate's side of the comparison: the workloads and the output of `zk/ZkBench.java` and
//! `etcd/main.go`.
//!
//! ```text
//! quorate-peers member --peers A,B,C --me A --dir DIR --control PORT   takes orders at PORT
//! quorate-peers client --servers CONTROL,... NAME[:KEY=VALUE]...       runs the workloads
//! quorate-peers floor DIR SECONDS                                      runs none: see floor.rs
//! ```
//!
//! quorate has no servers. The callers are threads inside the members, as an application's are;
//! `client` tells the members what to do and when, and collects the figures. All times are of
//! CLOCK_MONOTONIC, which the processes of a machine share.

#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

mod client;
mod figures;
mod floor;
mod member;
mod options;

use rustix::time::{ClockId, clock_gettime};

/// The keys `/bench/k/0000` and on, which the workloads set.
const KEYS: u64 = 1000;
/// Those of them that are set to large values.
const LARGE_KEYS: u64 = 16;

/// Nanoseconds on a clock that all processes of this machine share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn key_path(key: u64) -> String {
    format!("/bench/k/{:04}", key % KEYS)
}

/// A child of a parent that has many.
fn child_path(parent: &str, key: u64) -> String {
    format!("{parent}/{key:05}")
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("member") => member::main(&args[1..]),
        Some("client") => client::main(&args[1..]),
        Some("floor") => floor::main(args[1].as_ref(), args[2].parse().unwrap()),
        _ => panic!("what to do: member, client or floor"),
    }
}
