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

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use common::alone;

/// Counts the allocations of this process.
#[global_allocator]
static ALLOCATED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The bytes that this process has allocated and not freed.
fn allocated() -> usize {
    let stats = ALLOCATED.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}
