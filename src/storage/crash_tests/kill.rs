//! Kills a process while it writes, repeatedly on the same directory.

use std::thread;
use std::time::Duration;

use super::super::FsPath;
use super::super::model::Random;
use super::{SEED, START, STEPS, Script, Seen, child, count, lines, open_and_load};

const KILL_SEED: u64 = 404;

#[test]
fn kill_loses_nothing_acknowledged() {
    kills("data");
}

#[test]
fn kill_loses_nothing_acknowledged_with_the_log_elsewhere() {
    kills(super::APART);
}

#[test]
fn kill_loses_nothing_acknowledged_when_sealed() {
    kills(super::SEALED);
}

fn kills(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join(name);
    let mut random = Random(KILL_SEED);
    let mut script = Script::new(KILL_SEED);
    let mut acked = None;
    for round in 0..count("QUORATE_CRASH_KILLS", 15) {
        let mut command = child("work", &dir);
        command.env(SEED, KILL_SEED.to_string()).env(STEPS, "1000000");
        if let Some(step) = acked {
            command.env(START, u64::to_string(&step));
        }
        let mut child = command.spawn().unwrap();
        let wanted = random.below(40);
        let mut seen = 0;
        let mut lines = lines(&mut child);
        let mut ack = |line: &str| {
            if let Some(step) = line.strip_prefix("ack ") {
                acked = Some(step.parse().unwrap());
                seen += 1;
            }
            seen
        };
        for line in lines.by_ref() {
            if ack(&line) > wanted {
                break;
            }
        }
        // The kill comes in the middle of a write; in the first rounds, at the end of founding or loading.
        thread::sleep(Duration::from_micros(random.below(3_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        // The acknowledgements that the child had sent before it died.
        for line in lines {
            ack(&line);
        }
        let found = open_and_load(&dir);
        assert_ne!(found, Seen::Blank, "round {round}");
        acked = script
            .step_after_crash(acked, &found)
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}

#[test]
fn kill_while_founding_leaves_blank_or_founded() {
    kills_while_founding("data");
}

#[test]
fn kill_while_founding_leaves_blank_or_founded_when_sealed() {
    kills_while_founding(super::SEALED);
}

#[test]
fn kill_while_founding_leaves_blank_or_founded_with_the_log_elsewhere() {
    kills_while_founding(super::APART);
}

fn kills_while_founding(name: &str) {
    let mut random = Random(KILL_SEED);
    let mut script = Script::new(KILL_SEED);
    for round in 0..count("QUORATE_CRASH_KILLS", 15) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        let mut command = child("work", &path);
        command.env(SEED, KILL_SEED.to_string()).env(STEPS, "0");
        let mut child = command.spawn().unwrap();
        thread::sleep(Duration::from_micros(random.below(40_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let acked = lines(&mut child).any(|line| line == "ack 0").then_some(0);
        let found = open_and_load(&path);
        if let Err(error) = script.step_after_crash(acked, &found) {
            panic!("round {round}: {error}");
        }
        // A blank directory can still be founded.
        if found == Seen::Blank {
            let mut store =
                super::DiskStore::open(&FsPath::system(&path), super::options(&path)).unwrap();
            super::found(&mut store).unwrap();
            drop(store);
            assert_eq!(open_and_load(&path), Seen::Digest(script.digest(0)));
        }
    }
}
