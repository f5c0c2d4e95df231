//! How much memory a member has after it has read its checkpoint.

#![allow(clippy::disallowed_methods, reason = "deadlines of tests")]

use std::time::{Duration, Instant};

use quorate::{Coordinator, CreateMode};

use crate::common::{PATIENCE, addresses};
use crate::{allocated, alone};

const DATA_BYTES: usize = 1000;
const COUNT_MIN: usize = 96_000;

/// sled once kept the whole checkpoint in memory, in addition to the znodes.
#[test]
fn a_checkpoint_that_was_read_does_not_stay_in_memory() {
    alone(concat!(module_path!(), "::a_checkpoint_that_was_read_does_not_stay_in_memory"), || {
        let dir = tempfile::tempdir().unwrap();
        let address = addresses::address();
        let join = || {
            let builder = Coordinator::builder().data_dir(dir.path().join("data"));
            let member = builder.advertise(&address).join([&address]).wait().unwrap();
            member.wait_ready(PATIENCE).wait().unwrap();
            member
        };
        let member = join();
        let metrics = member.metrics().wait().unwrap();
        let mut checkpoints =
            Checkpoints { count: metrics.checkpoints, bytes: metrics.checkpoint_bytes };
        let mut count = 0;
        // Until all of it is in a checkpoint, so that no other one, which takes memory too, begins afterwards.
        while !has_checkpoint(&member, &mut checkpoints) || count < COUNT_MIN {
            let session = member.session();
            let mut multi = session.multi();
            for n in count..count + 500 {
                multi = multi.create(&format!("/{n}"), [7; DATA_BYTES], CreateMode::Persistent);
            }
            multi.commit().wait().unwrap();
            count += 500;
        }
        member.close().wait().unwrap();
        drop(member);
        let before = allocated();
        let member = join();
        let taken = allocated() - before;
        assert_eq!(member.metrics().wait().unwrap().checkpoints, 0);
        assert!(taken > count * DATA_BYTES, "it has not read the whole checkpoint: {taken}");
        // In memory are the znodes with their paths and stats.
        assert!(taken < count * DATA_BYTES * 5 / 3, "{taken} bytes");
        member.close().wait().unwrap();
    });
}

/// Whether there are more checkpoints than before. Waits until the last one is on the disk.
fn has_checkpoint(member: &Coordinator, before: &mut Checkpoints) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let metrics = member.metrics().wait().unwrap();
        if metrics.checkpoints == before.count {
            return false;
        }
        if metrics.checkpoint_bytes != before.bytes {
            *before = Checkpoints { count: metrics.checkpoints, bytes: metrics.checkpoint_bytes };
            return true;
        }
        assert!(Instant::now() < deadline, "the checkpoint is not on the disk");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The checkpoints of a member: how many have begun, and the bytes of the last one on the disk.
struct Checkpoints {
    count: u64,
    bytes: Option<u64>,
}
