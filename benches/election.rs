//! How long it takes from the death of a leader's process to the next candidate's lead.
//!
//! `cargo bench --bench election` prints the median and the longest of some rounds, for two session
//! timeouts: three processes over TCP with real disks, all on this machine, campaign, and whoever
//! leads is killed with SIGKILL. The session of the dead one must expire first; what is beyond its
//! timeout is the cost of the take-over.

#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use quorate::recipes::LeaderLatch;
use quorate::{Coordinator, WatchMode};

const PEERS: &str = "QUORATE_BENCH_PEERS";
const ADDRESS: &str = "QUORATE_BENCH_ADDRESS";
const TIMEOUT: &str = "QUORATE_BENCH_TIMEOUT_MS";
const ROUNDS: usize = 6;

fn main() {
    if let (Ok(peers), Ok(address)) = (std::env::var(PEERS), std::env::var(ADDRESS)) {
        return worker(&peers, &address);
    }
    // `cargo test --benches` only sees whether this runs.
    let (timeouts, rounds): (&[u64], usize) = match std::env::args().any(|arg| arg == "--bench") {
        true => (&[4_000, 10_000], ROUNDS),
        false => (&[4_000], 1),
    };
    for timeout in timeouts {
        let (timeout, mut others, mut raft) = take_over(*timeout, rounds);
        for (name, each) in [("a follower", &mut others), ("the Raft leader too", &mut raft)] {
            each.sort_unstable();
            if let (Some(median), Some(longest)) = (each.get(each.len() / 2), each.last()) {
                println!(
                    "session timeout {timeout} ms, {name} killed: next leads after {median:.2?} \
                     (median of {}), {longest:.2?} at most",
                    each.len()
                );
            }
        }
    }
}

fn worker(peers: &str, address: &str) {
    let timeout: u64 = std::env::var(TIMEOUT).unwrap().parse().unwrap();
    let coordinator = Coordinator::builder()
        .advertise(address)
        .session_timeout(Duration::from_millis(timeout))
        .join(peers.split(','))
        .unwrap();
    coordinator.wait_ready(Duration::from_secs(60)).unwrap();
    let session = coordinator.session();
    session.sync().unwrap();
    let latch = LeaderLatch::new(&session, "/leader", address).unwrap();
    let changes = session.watch("/leader", WatchMode::PersistentRecursive).unwrap();
    let is_in_line = || {
        let candidates = latch.candidates().unwrap();
        candidates.iter().any(|candidate| *candidate.id == *address.as_bytes())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_in_line() {
                changes.recv().expect("the session lives");
            }
            println!("campaigns");
        });
        let leadership = latch.campaign().unwrap();
        println!("leads {} {}", session.timeout().as_millis(), coordinator.status().is_leader);
        leadership.wait_lost();
    });
}

type Lines = Receiver<(Instant, usize, String)>;

struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(
    dir: &Path,
    peers: &[String],
    place: usize,
    timeout: u64,
    lines: &Sender<(Instant, usize, String)>,
) -> Worker {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .env(PEERS, peers.join(","))
        .env(ADDRESS, &peers[place])
        .env(TIMEOUT, timeout.to_string())
        .current_dir(dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let lines = lines.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if lines.send((Instant::now(), place, line)).is_err() {
                return;
            }
        }
    });
    Worker(child)
}

fn next(lines: &Lines) -> (Instant, usize, String) {
    lines.recv_timeout(Duration::from_secs(120)).expect("a line")
}

/// The times, by whether the one that was killed led the Raft cluster as well when it came to lead.
/// First the timeout that the sessions really have.
fn take_over(timeout: u64, rounds: usize) -> (String, Vec<Duration>, Vec<Duration>) {
    let dir = tempfile::tempdir().unwrap();
    let listeners: Vec<TcpListener> =
        (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let peers: Vec<String> =
        listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    drop(listeners);
    let (sender, lines) = channel();
    let mut workers: Vec<Worker> =
        (0..3).map(|place| start(dir.path(), &peers, place, timeout, &sender)).collect();
    let (mut others, mut raft) = (Vec::new(), Vec::new());
    let mut granted = String::new();
    let (mut leads, mut campaigning) = (None, 0);
    for _ in 0..rounds {
        // The one that was started last is in the line as well.
        while campaigning < workers.len() || leads.is_none() {
            let (_, place, says) = next(&lines);
            match says.starts_with("leads") {
                true => leads = Some((place, says)),
                false => campaigning += 1,
            }
        }
        let (leader, said): (usize, String) = leads.take().expect("one leads");
        let killed = Instant::now();
        workers[leader].0.kill().unwrap();
        let (at, place, says) = next(&lines);
        assert!(says.starts_with("leads"), "all others were in the line already");
        let each = if said.ends_with("true") { &mut raft } else { &mut others };
        each.push(at - killed);
        granted = says.split(' ').nth(1).unwrap_or("unknown").to_owned();
        workers[leader] = start(dir.path(), &peers, leader, timeout, &sender);
        (leads, campaigning) = (Some((place, says)), workers.len() - 1);
    }
    (granted, others, raft)
}
