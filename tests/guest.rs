//! A good guest in its host's process: threads, files and memory come back.
//!
//! One test, since it looks at the whole process.

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "a deadline for the threads to come and go")]

use std::time::{Duration, Instant};

use quorate::{Coordinator, CreateMode, Error};

fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let mut names: Vec<String> = tasks
        .filter_map(|task| name(task.ok()?))
        .map(|name| name.trim().to_owned())
        .filter(|name| name.starts_with("quorate"))
        .collect();
    names.sort();
    names
}

/// A thread gives itself its name once it runs, and leaves the list a moment after it was joined.
fn wait_threads(expected: &[&str]) {
    let end = Instant::now() + Duration::from_secs(10);
    while threads() != expected {
        assert!(Instant::now() < end, "{:?} instead of {expected:?}", threads());
        std::thread::yield_now();
    }
}

fn files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_coordinator_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    // This process's own loopback address.
    let pid = std::process::id();
    let address = format!("127.{}.{}.{}:20000", 1 + (pid >> 16) % 250, (pid >> 8) & 255, pid & 255);
    let join =
        || Coordinator::builder().data_dir(dir.path().join("data")).join([&address]).unwrap();
    let mut files_before = 0;
    for round in 0..30 {
        let coordinator = join();
        let session = coordinator.session();
        session.create(&format!("/n{round}"), b"", CreateMode::Persistent).unwrap();
        let held = session.lock("/lock").unwrap().acquire().unwrap();
        wait_threads(&["quorate-disk", "quorate-net", "quorate-node"]);
        if round % 2 == 0 {
            coordinator.close();
            assert!(!held.is_held());
            assert!(session.get("/").is_err_and(|error| error.is_session_lost()));
            assert!(session.set("/", b"").is_err_and(|error| error.is_session_lost()));
            let late = coordinator.session().set("/", b"");
            assert!(matches!(late, Err(Error::Stopped { .. })), "{late:?}");
        } else {
            // The last handle may be any of them.
            drop((coordinator, held));
            drop(session);
        }
        wait_threads(&[]);
        match round {
            0..3 => files_before = files(),
            _ => assert!(files() <= files_before, "round {round}: {} files", files()),
        }
    }
    let coordinator = join();
    coordinator.wait_ready(Duration::from_secs(30)).unwrap();
    assert_eq!(coordinator.session().children("/").unwrap().len(), 30 + 2);
}
