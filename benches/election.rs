//! The time until there is a leader again: after the process of an elected leader was killed, and
//! after a planned close of the Raft leader.
//!
//! `cargo bench --bench election -- planned` prints only the second. Three instances with real disks run
//! in this process, two threads of each write without a pause, and the instance that leads Raft is
//! closed and started again. The figures are the longest time in which no write of any instance was
//! done, and the time that `close` took.
//!
//! `cargo bench --bench election` prints both. The first figure is the median and the longest time of
//! several rounds, for two session timeouts. Three processes over TCP with real disks, all on this
//! machine, campaign, and the leader is killed with SIGKILL. Its session must expire first; the time
//! beyond the session's timeout is the cost of the take-over.

#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use quorate::recipes::LeaderLatch;
use quorate::{Coordinator, CreateMode, WatchMode};

const PEERS: &str = "QUORATE_BENCH_PEERS";
const ADDRESS: &str = "QUORATE_BENCH_ADDRESS";
const TIMEOUT: &str = "QUORATE_BENCH_TIMEOUT_MS";
const ROUNDS: usize = 6;
const PLANNED_ROUNDS: usize = 10;

fn main() {
    if let (Ok(peers), Ok(address)) = (std::env::var(PEERS), std::env::var(ADDRESS)) {
        return worker(&peers, &address);
    }
    let only_planned = std::env::args().any(|arg| arg == "planned");
    let is_bench = only_planned || std::env::args().any(|arg| arg == "--bench");
    planned_close(if is_bench { PLANNED_ROUNDS } else { 1 });
    if only_planned {
        return;
    }
    // `cargo test --benches` only sees whether this runs.
    let (timeouts, rounds): (&[u64], usize) = match is_bench {
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
        .wait()
        .unwrap();
    coordinator.wait_ready(Duration::from_secs(60)).wait().unwrap();
    let session = coordinator.session();
    session.sync().wait().unwrap();
    let latch = LeaderLatch::new(&session, "/leader", address).unwrap();
    let changes = session.watch("/leader", WatchMode::PersistentRecursive).wait().unwrap();
    let is_candidate = || {
        let candidates = latch.candidates().wait().unwrap();
        candidates.iter().any(|candidate| *candidate.id == *address.as_bytes())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_candidate() {
                changes.recv().wait().expect("the session lives");
            }
            println!("campaigns");
        });
        let leadership = latch.campaign().wait().unwrap();
        println!("leads {} {}", session.timeout().as_millis(), coordinator.status().is_leader);
        leadership.wait_lost().wait().unwrap();
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

/// Addresses with three free ports.
fn addresses() -> Vec<String> {
    let listeners: Vec<TcpListener> =
        (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

/// Returns the timeout that the sessions really have, and two lists of times: those after the kill of a
/// follower, and those after the kill of a process that also led Raft when it was elected.
fn take_over(timeout: u64, rounds: usize) -> (String, Vec<Duration>, Vec<Duration>) {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses();
    let (sender, lines) = channel();
    let mut workers: Vec<Worker> =
        (0..3).map(|place| start(dir.path(), &peers, place, timeout, &sender)).collect();
    let (mut others, mut raft) = (Vec::new(), Vec::new());
    let mut granted = String::new();
    let (mut leads, mut campaigning) = (None, 0);
    for _ in 0..rounds {
        // The process that was started last is a candidate too.
        while campaigning < workers.len() || leads.is_none() {
            let (_, place, line) = next(&lines);
            match line.starts_with("leads") {
                true => leads = Some((place, line)),
                false => campaigning += 1,
            }
        }
        let (leader, leader_line): (usize, String) = leads.take().expect("one leads");
        let killed = Instant::now();
        workers[leader].0.kill().unwrap();
        let (at, place, line) = next(&lines);
        assert!(line.starts_with("leads"), "all others were candidates already");
        let each = if leader_line.ends_with("true") { &mut raft } else { &mut others };
        each.push(at - killed);
        granted = line.split(' ').nth(1).unwrap_or("unknown").to_owned();
        workers[leader] = start(dir.path(), &peers, leader, timeout, &sender);
        (leads, campaigning) = (Some((place, line)), workers.len() - 1);
    }
    (granted, others, raft)
}

/// One instance of a cluster in this process, and the threads that write there.
struct Instance {
    coordinator: Coordinator,
    writers: Vec<std::thread::JoinHandle<()>>,
}

/// Writes until the instance is closed, in a new session whenever the last one has ended, like a thread
/// that does not know of the shutdown. Panics if a write fails before.
fn write_on(coordinator: &Coordinator, path: &str, acks: &Sender<Instant>, closing: &AtomicBool) {
    loop {
        match coordinator.session().create_or_set(path, vec![7; 100], CreateMode::Persistent).wait()
        {
            Ok(_) => drop(acks.send(Instant::now())),
            Err(error) => {
                assert!(closing.load(Ordering::SeqCst), "a write failed: {error}");
                if coordinator.status().stopped.is_some() {
                    return;
                }
            }
        }
    }
}

impl Instance {
    fn start(
        dir: &Path,
        peers: &[String],
        place: usize,
        acks: &Sender<Instant>,
        closing: &Arc<AtomicBool>,
    ) -> Instance {
        let coordinator = Coordinator::builder()
            .advertise(&peers[place])
            .data_dir(dir.join(place.to_string()))
            .join(peers)
            .wait()
            .unwrap();
        let writer = |thread: usize| {
            let (coordinator, acks) = (coordinator.clone(), acks.clone());
            let (closing, path) = (Arc::clone(closing), format!("/writer-{place}-{thread}"));
            std::thread::spawn(move || write_on(&coordinator, &path, &acks, &closing))
        };
        let writers = (0..2).map(writer).collect();
        Instance { coordinator, writers }
    }
}

/// The longest time in which no write was done, in the two seconds from `begin` on.
fn longest_gap(acked: &Receiver<Instant>, begin: Instant) -> Duration {
    let (mut last, mut gap) = (begin, Duration::ZERO);
    while last < begin + Duration::from_secs(2) {
        let at = acked.recv().expect("they write");
        gap = gap.max(at.saturating_duration_since(last));
        last = last.max(at);
    }
    gap
}

fn planned_close(rounds: usize) {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses();
    let (acks, acked) = channel();
    let flags: Vec<Arc<AtomicBool>> = (0..3).map(|_| Arc::default()).collect();
    let begin = |place: usize| Instance::start(dir.path(), &peers, place, &acks, &flags[place]);
    let mut instances: Vec<Instance> = (0..3).map(begin).collect();
    let (mut gaps, mut closes) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        for instance in &instances {
            instance.coordinator.wait_ready(Duration::from_secs(60)).wait().unwrap();
        }
        // Two seconds of writes, so that each instance knows the state of the others.
        let usual = longest_gap(&acked, Instant::now());
        let leads = |instance: &Instance| instance.coordinator.status().is_leader;
        let leader = instances.iter().position(leads).expect("one leads");
        flags[leader].store(true, Ordering::SeqCst);
        let closing = Instant::now();
        instances[leader].coordinator.close().wait().unwrap();
        closes.push(closing.elapsed());
        let gap = longest_gap(&acked, closing);
        gaps.push((gap, usual));
        instances[leader].writers.drain(..).for_each(|writer| writer.join().unwrap());
        flags[leader].store(false, Ordering::SeqCst);
        instances[leader] = begin(leader);
    }
    flags.iter().for_each(|flag| flag.store(true, Ordering::SeqCst));
    for instance in &mut instances {
        instance.coordinator.close().wait().unwrap();
        instance.writers.drain(..).for_each(|writer| writer.join().unwrap());
    }
    for ((gap, usual), close) in gaps.iter().zip(closes) {
        println!(
            "planned close of the leader: no write for {gap:.1?} at most, {usual:.1?} before; it took \
             {close:.1?}"
        );
    }
}
