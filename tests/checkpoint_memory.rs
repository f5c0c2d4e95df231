//! How much memory a member has after it has read its checkpoint. One test, since it counts the
//! allocations of the whole process.

#[path = "common/addresses.rs"]
mod addresses;

use std::alloc::System;
use std::time::Duration;

use quorate::{Coordinator, CreateMode};

const PATIENCE: Duration = Duration::from_secs(60);
const DATA_BYTES: usize = 1000;
const COUNT: usize = 96_000;

/// Counts the allocations of this process.
#[global_allocator]
static ALLOCATED: cap::Cap<System> = cap::Cap::new(System, usize::MAX);

/// sled once kept the whole checkpoint in memory, in addition to the znodes.
#[test]
fn a_checkpoint_that_was_read_does_not_stay_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let address = addresses::address();
    let join = || {
        let builder = Coordinator::builder().data_dir(dir.path().join("data"));
        let member = builder.advertise(&address).join([&address]).unwrap();
        member.wait_ready(PATIENCE).unwrap();
        member
    };
    let member = join();
    for from in (0..COUNT).step_by(500) {
        let session = member.session();
        let mut multi = session.multi();
        for n in from..from + 500 {
            multi = multi.create(&format!("/{n}"), [7; DATA_BYTES], CreateMode::Persistent);
        }
        multi.commit().unwrap();
    }
    member.close();
    drop(member);
    let before = ALLOCATED.allocated();
    let member = join();
    let taken = ALLOCATED.allocated() - before;
    assert!(taken > COUNT * DATA_BYTES, "it has not read the whole checkpoint: {taken}");
    // In memory are the znodes with their paths and stats, the end of the log (16 MiB), and as much of the
    // checkpoint.
    assert!(taken < COUNT * DATA_BYTES * 5 / 3, "{taken} bytes");
    member.close();
}
