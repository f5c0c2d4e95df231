//! A process that gets no file descriptor for a while: its node goes on, and operations that needed a file
//! succeed once descriptors are available again.
//!
//! That process is this test program itself: see `worker`. The test sets its limit to nothing from outside,
//! by `prlimit`, so that it cannot reuse a descriptor that it closes.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use crate::common;
use crate::common::{PATIENCE, Process, addresses, name_of, node, place};
use quorate::{Coordinator, CreateMode, Session};

const WORKER: &str = name_of(concat!(module_path!(), "::worker"));

/// A checkpoint is due after 16 MiB and 500 entries. It starts a new generation once the writes since the
/// last new generation come to more than 1 MiB, each znode counted once.
const ZNODES: usize = 64;
const BYTES: usize = 40_000;

/// Writes all znodes this many times.
fn write(session: &Session, times: usize) {
    for _ in 0..times {
        let set = |number| session.set(&format!("/n{number}"), vec![7; BYTES]);
        let pending: Vec<_> = (0..ZNODES).map(set).collect();
        for one in pending {
            one.wait().unwrap();
        }
    }
}

/// The storage generations that have a database. The call takes no descriptor.
fn generations(current: &Path) -> Vec<u32> {
    let exists = |number: &u32| current.join(format!("gen-{number:06}/db")).exists();
    (1..1000).filter(exists).collect()
}

/// Not a test of its own: the code of the process with the low limit.
#[test]
fn worker() {
    let Some((peers, address)) = place() else { return };
    common::log();
    let coordinator = node(&address).data_dir("data").join(peers).wait().unwrap();
    coordinator.wait_ready(PATIENCE).wait().unwrap();
    let current = common::data_dir::current(Path::new("data"));
    let session = coordinator.session();
    for number in 0..ZNODES {
        session.create(&format!("/n{number}"), b"", CreateMode::Persistent).wait().unwrap();
    }
    let mut before = Vec::new();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "look" => {
                before = generations(&current);
                println!("@looked {}", std::fs::File::open("/dev/null").is_ok());
            }
            // After that a new generation is due.
            "write" => {
                write(&session, 30);
                println!("@written {}", coordinator.status().stopped.is_none());
            }
            "compare" => println!("@compared {}", generations(&current) == before),
            "go on" => {
                while generations(&current) == before {
                    write(&session, 1);
                }
                println!("@went on {}", coordinator.status().stopped.is_none());
            }
            other => panic!("{other}"),
        }
    }
    coordinator.close().wait().unwrap();
}

/// Limits how many files the process may have open from now on. Open files stay open.
fn limit(process: &Process, files: &str) {
    let set = Command::new("prlimit")
        .args(["--pid", &process.child.id().to_string(), &format!("--nofile={files}:")])
        .status();
    assert!(set.expect("the program prlimit, of util-linux").success());
}

/// A checkpoint that was due while the process had no descriptors stopped the node for good.
#[test]
fn a_member_survives_a_shortage_of_file_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let [address] = &addresses(1)[..] else { panic!() };
    let mut process = Process::start(WORKER, dir.path(), &[address.to_owned()], address);
    process.order("look");
    assert_eq!(process.wait("looked"), "looked true");
    limit(&process, "0");
    process.order("look");
    assert_eq!(process.wait("looked"), "looked false");
    // New connections wait in the socket's queue.
    let client = Coordinator::builder().client().join([address]).wait().unwrap();
    process.order("write");
    assert_eq!(process.wait("written"), "written true");
    process.order("compare");
    assert_eq!(process.wait("compared"), "compared true", "no generation could be made");
    limit(&process, "1024");
    process.order("go on");
    assert_eq!(process.wait("went on"), "went on true");
    client.wait_ready(PATIENCE).wait().unwrap();
    assert_eq!(client.session().get("/n0").wait().unwrap().0.len(), BYTES);
    client.close().wait().unwrap();
    process.kill();
    let again = node(address).data_dir(dir.path().join("data")).join([address]).wait().unwrap();
    again.wait_ready(PATIENCE).wait().unwrap();
    assert_eq!(again.session().get("/n0").wait().unwrap().0.len(), BYTES);
}
