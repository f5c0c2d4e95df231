//! A real disk that gets full: a file system of 32 MiB in memory, if the test may mount one.

#![allow(clippy::disallowed_methods, reason = "deadlines of tests")]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use quorate::{Availability, Coordinator, CreateMode, Error};

use crate::common::addresses::address;

/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Mount(PathBuf);

impl Mount {
    fn new(at: &Path) -> Result<Mount, String> {
        run("mount", &["-t", "tmpfs", "-o", "size=32m", "tmpfs", at.to_str().unwrap()])?;
        Ok(Mount(at.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = run("umount", &["-l", self.0.to_str().unwrap()]) {
            println!("{error}");
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

/// Repeats a check until it succeeds.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let (_open, pause) = mpsc::channel::<()>();
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        let _ = pause.recv_timeout(Duration::from_millis(20));
    }
}

#[test]
fn a_disk_that_becomes_full_refuses_writes_and_takes_them_again() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("disk");
    std::fs::create_dir(&at).unwrap();
    let mount = match Mount::new(&at) {
        Ok(mount) => mount,
        Err(reason) => {
            println!("skipped: no file system can be mounted here: {reason}");
            return;
        }
    };
    let address = address();
    let join = || Coordinator::builder().data_dir(at.join("data")).join([&address]).wait().unwrap();
    let coordinator = join();
    let session = coordinator.session();
    session.create("/before", b"1", CreateMode::Persistent).wait().unwrap();
    until("the room is known", || coordinator.metrics().wait().unwrap().disk_free_bytes.is_some());
    assert!(!coordinator.metrics().wait().unwrap().disk_low);

    let ballast = at.join("ballast");
    let mut file = File::create(&ballast).unwrap();
    let block = vec![1; 64 << 10];
    // Until no space is left.
    while file.write_all(&block).is_ok() {}
    until("writes are refused", || coordinator.status().refuses_writes);
    let mut refused = None;
    until("a write is refused", || {
        refused = session.set("/before", b"2").wait().err();
        refused.is_some()
    });
    let own = coordinator.status().address;
    assert_eq!(refused, Some(Error::DiskLow { members: vec![own] }));
    assert!(
        coordinator.metrics().wait().unwrap().disk_low && coordinator.status().members[0].disk_low
    );
    // Every write was refused, and the cluster was called healthy.
    let availability = coordinator.availability();
    assert!(matches!(&availability, Availability::WritesRefused { .. }), "{availability}");
    assert!(availability.to_string().contains("make room there"), "{availability}");
    assert!(coordinator.metrics().wait().unwrap().refuses_writes);
    session.sync().wait().unwrap();
    assert!(session.get("/before").wait().is_ok());
    let other = coordinator.open_session().unwrap();
    session.delete("/before").wait().unwrap();
    other.close().wait().unwrap();
    assert_eq!(coordinator.status().stopped, None);

    std::fs::remove_file(&ballast).unwrap();
    drop(file);
    until("writes are taken again", || {
        session.create_or_set("/after", b"1", CreateMode::Persistent).wait().is_ok()
    });
    coordinator.close().wait().unwrap();
    let coordinator = join();
    let session = coordinator.session();
    session.sync().wait().unwrap();
    assert_eq!(
        (
            session.exists("/before").wait().unwrap(),
            session.exists("/after").wait().unwrap().is_some()
        ),
        (None, true)
    );
    coordinator.close().wait().unwrap();
    drop(mount);
}
