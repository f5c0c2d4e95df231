//! The library in its host's process: it gives threads, files and memory back.

#![allow(clippy::disallowed_methods, reason = "a deadline for the threads to come and go")]

use std::time::{Duration, Instant};

use quorate::{Coordinator, CreateMode, Error};

use crate::alone;
use crate::common::tasks;

/// All threads of this process.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let mut names: Vec<String> =
        tasks.filter_map(|task| name(task.ok()?)).map(|name| name.trim().to_owned()).collect();
    names.sort();
    names
}

/// The thread pool that sled starts with the first database of a process, and never ends.
const POOL: [&str; 7] =
    ["sled-io-0", "sled-io-1", "sled-io-2", "sled-io-3", "sled-io-4", "sled-io-5", "sled-io-6"];

/// The threads that each coordinator starts.
const OWN: [&str; 4] = ["quorate-disk", "quorate-files", "quorate-node", "quorate-state"];

/// Waits until the process has exactly these threads in addition to the earlier ones. A thread gets its name
/// only when it runs, and stays in the list for a moment after it was joined.
fn wait_threads(before: &[String], more: &[&str]) {
    let mut expected: Vec<String> = before.to_vec();
    expected.extend(more.iter().chain(&POOL).map(|&name| name.to_owned()));
    expected.sort();
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
    alone(concat!(module_path!(), "::a_coordinator_leaves_nothing_behind"), || {
        let dir = tempfile::tempdir().unwrap();
        // The test's own thread, and the one that runs it.
        let before = threads();
        assert!(before.iter().all(|name| !name.starts_with("quorate")), "{before:?}");
        // This process's own loopback address.
        let pid = std::process::id();
        let address =
            format!("127.{}.{}.{}:20000", 1 + (pid >> 16) % 250, (pid >> 8) & 255, pid & 255);
        let join = || {
            Coordinator::builder()
                .data_dir(dir.path().join("data"))
                .join([&address])
                .wait()
                .unwrap()
        };
        let mut files_before = 0;
        for round in 0..30 {
            let coordinator = join();
            let session = coordinator.session();
            session.create(&format!("/n{round}"), b"", CreateMode::Persistent).wait().unwrap();
            let held = session.lock("/lock").unwrap().acquire().wait().unwrap();
            wait_threads(&before, &OWN);
            if round % 3 == 0 {
                coordinator.close().wait().unwrap();
                assert!(!held.is_held());
                assert!(session.get("/").wait().is_err_and(|error| error.is_session_lost()));
                assert!(session.set("/", b"").wait().is_err_and(|error| error.is_session_lost()));
                let late = coordinator.session().set("/", b"").wait();
                assert!(matches!(late, Err(Error::Stopped { .. })), "{late:?}");
            } else if round % 3 == 1 {
                // Any handle may be the last one.
                drop((coordinator, held));
                drop(session);
            } else {
                drop((coordinator, held, session));
                // The same in a task, whose thread does not block for the end.
                let builder = Coordinator::builder().data_dir(dir.path().join("data"));
                let task = async {
                    let coordinator = builder.join([&address]).await.unwrap();
                    let session = coordinator.session();
                    session.set("/n0", b"").await.unwrap();
                    session.lock("/lock").unwrap().acquire().await.unwrap();
                };
                std::thread::scope(|scope| scope.spawn(|| tasks::block_on(task)).join().unwrap());
                // Without that wait, the directory would still be in use.
                drop(join());
            }
            wait_threads(&before, &[]);
            match round {
                0..3 => files_before = files_before.max(files()),
                _ => assert!(files() <= files_before, "round {round}: {} files", files()),
            }
        }
        let coordinator = join();
        coordinator.wait_ready(Duration::from_secs(30)).wait().unwrap();
        assert_eq!(coordinator.session().children("/").wait().unwrap().len(), 30 + 2);
    });
}
