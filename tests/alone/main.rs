//! Tests that measure a whole process, or that need what a process has once: each runs in a process of its own,
//! this program started again.

#[cfg(feature = "tls")]
#[path = "../port/authority.rs"]
mod authority;
#[path = "../common/mod.rs"]
mod common;

mod audit;
mod checkpoint_memory;
mod events;
#[cfg(unix)]
mod fork;
mod logs;
mod port_memory;
mod quiet;
#[cfg(target_os = "linux")]
mod resources;
#[cfg(target_os = "linux")]
mod write_cost;

use std::alloc::System;
use std::process::Command;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

const ALONE: &str = "QUORATE_TEST_ALONE";

/// Counts the allocations of this process.
#[global_allocator]
static ALLOCATED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The bytes that this process has allocated and not freed.
fn allocated() -> usize {
    let stats = ALLOCATED.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// Runs the body of this test (`concat!(module_path!(), "::name")`) in a process of its own.
fn alone(test: &'static str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", common::name_of(test), "--nocapture"];
    let ran = Command::new(program).args(arguments).env(ALONE, "1").output().unwrap();
    let printed = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    print!("{}", printed[0]);
    let has_run = printed[0].contains("1 passed");
    assert!(ran.status.success() && has_run, "{}", printed[1]);
}
