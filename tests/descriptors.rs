//! A process that gets no file descriptor for a while: its node continues, and operations that
//! needed a file are done once there are some again.
//!
//! The process without them is this test program itself: see `worker`. Its limit is set to nothing
//! from outside, by `prlimit`, so that no descriptor that it closes meanwhile can be opened again.

#![cfg(target_os = "linux")]

mod common;

use std::path::Path;
use std::process::Command;

use common::{PATIENCE, Process, addresses, node, place};
use quorate::{Coordinator, CreateMode, Session};

/// A checkpoint is due after 16 MiB and 500 entries. It begins a new generation if what was written
/// since the last one that did comes to more than 1 MiB, each znode counted once.
const ZNODES: usize = 64;
const BYTES: usize = 40_000;

/// Writes all znodes so often.
fn write(session: &Session, rounds: usize) {
    for _ in 0..rounds {
        let set = |number| session.nonblocking().set(&format!("/n{number}"), vec![7; BYTES]);
        let pending: Vec<_> = (0..ZNODES).map(set).collect();
        for one in pending {
            one.wait().unwrap();
        }
    }
}

/// The storage generations that have a database. It takes no descriptor to look.
fn generations() -> Vec<u32> {
    let exists = |number: &u32| Path::new(&format!("data/gen-{number:06}/db")).exists();
    (1..1000).filter(exists).collect()
}

/// Not a test of its own: what the process with the low limit does.
#[test]
fn worker() {
    let Some((peers, address)) = place() else { return };
    common::log();
    let coordinator = node(&address).data_dir("data").join(peers).unwrap();
    coordinator.wait_ready(PATIENCE).unwrap();
    let session = coordinator.session();
    for number in 0..ZNODES {
        session.create(&format!("/n{number}"), b"", CreateMode::Persistent).unwrap();
    }
    let mut before = Vec::new();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "look" => {
                before = generations();
                println!("@looked {}", std::fs::File::open("/dev/null").is_ok());
            }
            // After that, a new generation is due.
            "write" => {
                write(&session, 30);
                println!("@written {}", coordinator.status().stopped.is_none());
            }
            "compare" => println!("@compared {}", generations() == before),
            "go on" => {
                while generations() == before {
                    write(&session, 1);
                }
                println!("@went on {}", coordinator.status().stopped.is_none());
            }
            other => panic!("{other}"),
        }
    }
    coordinator.close();
}

/// How many files the process may have open from now on. Those that are open stay open.
fn limit(process: &Process, files: &str) {
    let set = Command::new("prlimit")
        .args(["--pid", &process.child.id().to_string(), &format!("--nofile={files}:")])
        .status();
    assert!(set.expect("the program prlimit, of util-linux").success());
}

/// A checkpoint that was due while the process had no descriptor left stopped the node for good.
#[test]
fn a_moment_without_descriptors_is_outlived() {
    let dir = tempfile::tempdir().unwrap();
    let [address] = &addresses(1)[..] else { panic!() };
    let mut process = Process::start(dir.path(), &[address.to_owned()], address);
    process.order("look");
    assert_eq!(process.wait("looked"), "looked true");
    limit(&process, "0");
    process.order("look");
    assert_eq!(process.wait("looked"), "looked false");
    // Whoever wants to connect waits in the socket's queue.
    let client = Coordinator::builder().client().join([address]).unwrap();
    process.order("write");
    assert_eq!(process.wait("written"), "written true");
    process.order("compare");
    assert_eq!(process.wait("compared"), "compared true", "no generation could be made");
    limit(&process, "1024");
    process.order("go on");
    assert_eq!(process.wait("went on"), "went on true");
    client.wait_ready(PATIENCE).unwrap();
    assert_eq!(client.session().get("/n0").unwrap().0.len(), BYTES);
    client.close();
    process.kill();
    let again = node(address).data_dir(dir.path().join("data")).join([address]).unwrap();
    again.wait_ready(PATIENCE).unwrap();
    assert_eq!(again.session().get("/n0").unwrap().0.len(), BYTES);
}
