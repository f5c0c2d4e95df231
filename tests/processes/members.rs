//! Real processes, real sockets, real disks: killed with SIGKILL, restarted, and run out of disk.
//!
//! The processes are this test program itself: see `worker`.

#![cfg(unix)]

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common;
use crate::common::{PATIENCE, addresses, name_of, node, place};
use quorate::StartError;
use quorate::recipes::{Group, LeaderLatch};
use quorate::{Coordinator, CreateMode, Error, Session};

const WORKER: &str = name_of(concat!(module_path!(), "::worker"));

/// Not a test of its own: the code of the other processes. Lines for the test begin with '@'.
#[test]
fn worker() {
    let Some((peers, address)) = place() else { return };
    let coordinator = node(&address).join(peers).wait().unwrap_or_else(|error| panic!("{error}"));
    let session = coordinator.session();
    let name = address.rsplit(':').next().unwrap().to_owned();
    println!("@started");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "ready" => {
                coordinator.wait_ready(PATIENCE).wait().unwrap();
                println!("@ready");
            }
            "write" => write(&session, &name, 100),
            "fill" => {
                write(&session, &name, 50_000);
                println!("@status {}", coordinator.status());
            }
            "list" => {
                session.sync().wait().unwrap();
                for child in session.children("/").wait().unwrap() {
                    println!("@has /{child}");
                }
                println!("@listed");
            }
            "hold" => {
                let guard = session.lock("/lock").unwrap().acquire().wait().unwrap();
                println!("@held {}", guard.fencing_token());
                guard.wait_lost().wait().unwrap();
                println!("@lost {}", guard.is_held());
            }
            "lead" => {
                let group = Group::new(&session, "/members").unwrap();
                let _member = group.join(&name, b"").wait().unwrap();
                let latch = LeaderLatch::new(&session, "/election", &name).unwrap();
                println!("@campaigns");
                let leadership = latch.campaign().wait().unwrap();
                println!("@leads {}", leadership.fencing_token());
                leadership.wait_lost().wait().unwrap();
                println!("@led {}", leadership.is_held());
            }
            "observe" => {
                let latch = LeaderLatch::new(&session, "/election", "").unwrap();
                let mut changes = latch.watch();
                loop {
                    let leader = changes.recv().wait().unwrap();
                    match leader {
                        Some(leader) => println!("@observed {}", leader.fencing_token().unwrap()),
                        None => println!("@nobody"),
                    }
                }
            }
            "metrics" => {
                let metrics = coordinator.metrics().wait().unwrap();
                println!("@metrics {}", metrics.sent_bytes > 0 && metrics.messages_received > 0);
            }
            "leader" => println!("@leader {}", coordinator.status().is_leader),
            "close" => {
                coordinator.close().wait().unwrap();
                println!("@closed");
            }
            other => panic!("unknown order {other}"),
        }
    }
}

/// Writes until the process is killed or a write fails.
fn write(session: &Session, name: &str, bytes: usize) {
    let run = session.id().number();
    for n in 0.. {
        let path = format!("/{name}-{run:x}-{n}");
        match session.create(&path, vec![7; bytes], CreateMode::Persistent).wait() {
            Ok(_) => println!("@ack {path}"),
            Err(error) => {
                println!("@failed {error}");
                return;
            }
        }
    }
}

/// A process, and the paths whose writes it has reported as acknowledged.
struct Process {
    process: common::Process,
    acked: BTreeSet<String>,
}

impl Deref for Process {
    type Target = common::Process;

    fn deref(&self) -> &common::Process {
        &self.process
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut common::Process {
        &mut self.process
    }
}

impl Process {
    fn start(dir: &Path, peers: &[String], address: &str) -> Process {
        let process = common::Process::start(WORKER, dir, peers, address);
        Process { process, acked: BTreeSet::new() }
    }

    /// In this process, a write over the limit of a file's size fails, and does not end the process.
    fn start_limitable(dir: &Path, peers: &[String], address: &str) -> Process {
        let mut command = Command::new("sh");
        command
            .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap());
        let process = common::Process::run(WORKER, &mut command, dir, peers, address);
        Process { process, acked: BTreeSet::new() }
    }

    /// The next line that begins with this. Records acknowledged writes on the way.
    fn wait(&mut self, start: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {start:?}"));
            if let Some(path) = line.strip_prefix("ack ") {
                self.acked.insert(path.to_owned());
            }
            if line.starts_with(start) {
                return line;
            }
        }
    }

    fn wait_acks(&mut self, count: usize) {
        for _ in 0..count {
            self.wait("ack ");
        }
    }

    fn kill(&mut self) {
        for line in self.process.kill() {
            if let Some(path) = line.strip_prefix("ack ") {
                self.acked.insert(path.to_owned());
            }
        }
    }

    fn list(&mut self) -> BTreeSet<String> {
        self.order("list");
        let mut paths = BTreeSet::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("the list");
            match line.strip_prefix("has ") {
                Some(path) => {
                    paths.insert(path.to_owned());
                }
                None if line == "listed" => return paths,
                None => {}
            }
        }
    }
}

#[test]
fn no_acknowledged_write_is_lost_whoever_is_killed_and_whenever() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let start = |place: usize| Process::start(dir.path(), &peers, &peers[place]);
    let mut processes: Vec<Process> = (0..3).map(start).collect();
    let mut acked = BTreeSet::new();
    for process in &mut processes {
        process.order("ready");
        process.wait("ready");
        process.order("metrics");
        assert_eq!(process.wait("metrics"), "metrics true");
        process.order("write");
    }
    for round in 0..9 {
        let victim = round % 3;
        // Killed in the middle of its writes, and of the others'.
        processes[victim].wait_acks(20 + round * 7);
        processes[victim].kill();
        acked.append(&mut processes[victim].acked);
        let other = (victim + 1) % 3;
        processes[other].wait_acks(20);
        processes[victim] = start(victim);
        processes[victim].order("write");
    }
    for process in &mut processes {
        process.wait_acks(10);
    }
    // Then all at once.
    for process in &mut processes {
        process.kill();
        acked.append(&mut process.acked);
    }
    let mut processes: Vec<Process> = (0..3).map(start).collect();
    for process in &mut processes {
        let missing: Vec<String> = acked.difference(&process.list()).cloned().collect();
        assert!(missing.is_empty(), "{} of {} lost: {missing:?}", missing.len(), acked.len());
    }
    assert!(acked.len() > 300);
}

#[test]
fn a_killed_holder_s_lock_goes_to_the_next_with_a_larger_token() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let mut processes: Vec<Process> =
        (0..3).map(|place| Process::start(dir.path(), &peers, &peers[place])).collect();
    let token = |line: String| -> u64 { line.rsplit(' ').next().unwrap().parse().unwrap() };
    processes[0].order("hold");
    let first = token(processes[0].wait("held"));
    processes[1].order("hold");
    processes[0].kill();
    let second = token(processes[1].wait("held"));
    assert!(second > first);
    // The quorum is lost too: the holder is notified of the loss of its lock after its session's timeout.
    processes[2].kill();
    assert_eq!(processes[1].wait("lost"), "lost false");
}

#[test]
fn the_lead_of_a_killed_process_goes_to_the_next_candidate() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let mut processes: Vec<Process> =
        (0..3).map(|place| Process::start(dir.path(), &peers, &peers[place])).collect();
    let token = |line: String| -> u64 { line.rsplit(' ').next().unwrap().parse().unwrap() };
    processes[0].order("lead");
    let first = token(processes[0].wait("leads"));
    processes[1].order("lead");
    processes[1].wait("campaigns");
    processes[2].order("observe");
    assert_eq!(token(processes[2].wait("observed")), first);
    processes[0].kill();
    let second = token(processes[1].wait("leads"));
    assert!(second > first);
    assert_eq!(token(processes[2].wait("observed")), second);
    // After a restart it is another candidate, and waits.
    processes[0] = Process::start(dir.path(), &peers, &peers[0]);
    processes[0].order("lead");
    processes[0].wait("campaigns");
    processes[1].signal("STOP");
    let third = token(processes[0].wait("leads"));
    assert!(third > second);
    processes[1].signal("CONT");
    assert_eq!(processes[1].wait("led"), "led false");
    assert_eq!(token(processes[2].wait("observed")), third);
}

#[test]
fn a_holder_that_was_paused_for_long_knows_that_it_has_lost_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let mut processes: Vec<Process> =
        (0..3).map(|place| Process::start(dir.path(), &peers, &peers[place])).collect();
    processes[0].order("hold");
    processes[0].wait("held");
    processes[1].order("hold");
    processes[0].signal("STOP");
    processes[1].wait("held");
    processes[0].signal("CONT");
    assert_eq!(processes[0].wait("lost"), "lost false");
}

#[test]
fn a_closing_leader_hands_over_and_frees_its_locks() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let mut processes: Vec<Process> =
        (0..3).map(|place| Process::start(dir.path(), &peers, &peers[place])).collect();
    for process in &mut processes {
        process.order("ready");
        process.wait("ready");
    }
    let leader = (0..3)
        .cycle()
        .find(|place| {
            processes[*place].order("leader");
            processes[*place].wait("leader") == "leader true"
        })
        .unwrap();
    processes[leader].order("close");
    processes[leader].wait("closed");
    let next = (leader + 1) % 3;
    processes[next].order("hold");
    processes[next].wait("held");
}

#[cfg(target_os = "linux")]
#[test]
fn a_log_that_cannot_be_written_stops_the_node_and_harms_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(1);
    let mut process = Process::start_limitable(dir.path(), &peers, &peers[0]);
    process.order("fill");
    process.wait_acks(5);
    // From now on, half of a segment of the log can be written.
    let pid = process.child.id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &pid, "--fsize=2000000"]).status();
    assert!(limited.unwrap().success());
    let failed = process.wait("failed");
    assert!(failed.contains("the node has stopped: the disk failed"), "{failed}");
    let status = process.wait("status");
    assert!(status.contains("has stopped"), "{status}");
    let acked = std::mem::take(&mut process.acked);
    assert!(acked.len() > 10);
    process.kill();
    // With free space again, all acknowledged writes are there.
    let mut process = Process::start(dir.path(), &peers, &peers[0]);
    let missing: Vec<String> = acked.difference(&process.list()).cloned().collect();
    assert!(missing.is_empty(), "{missing:?}");
    process.order("write");
    process.wait_acks(5);
}

#[test]
fn an_invalid_join_is_refused_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let data = dir.path().join("data");
    let builder = || Coordinator::builder().data_dir(&data);
    let none: [&str; 0] = [];
    assert_eq!(Coordinator::join(none).wait().unwrap_err(), Error::Start(StartError::NoPeers));

    let taken = TcpListener::bind(&peers[1]).unwrap();
    match builder().advertise(&peers[1]).join(&peers).wait() {
        Err(Error::Start(StartError::CannotListen { address, .. })) => {
            assert_eq!(address, peers[1])
        }
        other => panic!("{other:?}"),
    }
    match builder().join([&peers[1]]).wait() {
        Err(Error::Start(StartError::NotAPeer { detail, .. })) => {
            assert!(detail.contains("in use"), "{detail}")
        }
        other => panic!("{other:?}"),
    }
    drop(taken);
    let running = builder().advertise(&peers[0]).join(&peers).wait().unwrap();
    match builder().advertise(&peers[1]).join(&peers).wait() {
        Err(Error::Start(StartError::DataDirInUse { dir, .. })) => assert_eq!(dir, data),
        other => panic!("{other:?}"),
    }
    running.close().wait().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let unusable = Coordinator::builder().data_dir(file.join("x")).join([&peers[0]]).wait();
    assert!(
        matches!(unusable, Err(Error::Start(StartError::DataDirUnusable { .. }))),
        "{unusable:?}"
    );
    let invalid = Coordinator::builder().heartbeat(Duration::ZERO).join(&peers);
    assert!(matches!(invalid.wait(), Err(Error::InvalidSetting { setting: "heartbeat", .. })));
}

#[test]
fn peers_with_different_lists_found_no_cluster_and_report_it() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let join = |place: usize, list: &[String]| {
        Coordinator::builder()
            .advertise(&peers[place])
            .data_dir(dir.path().join(place.to_string()))
            .join(list)
            .wait()
            .unwrap()
    };
    let one = join(0, &peers[..2]);
    let other = join(1, &peers);
    // A condition to wait for: the other one has been reached and has sent its list.
    let reason = loop {
        match one.wait_ready(Duration::from_millis(50)).wait() {
            Err(Error::Timeout { reason, .. }) if reason.contains(&peers[2]) => break reason,
            Err(Error::Timeout { .. }) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(reason.contains("no cluster yet"), "{reason}");
    assert!(reason.contains(&peers[1]), "{reason}");
    other.close().wait().unwrap();
    // With the same list, they found a cluster.
    let other = join(1, &peers[..2]);
    one.wait_ready(Duration::from_secs(60)).wait().unwrap();
    other.wait_ready(Duration::from_secs(60)).wait().unwrap();
    other.close().wait().unwrap();
    one.close().wait().unwrap();
}
