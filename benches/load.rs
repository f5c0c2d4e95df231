//! The cost of many sessions, ephemerals and watches, and of a slow disk, for three members over TCP with
//! real disks.
//!
//! `cargo bench --bench load` prints the processor time of idle members without and with many sessions, the
//! time of a `sync` beside them, and what other writers notice when a session with many ephemerals ends and
//! when a change concerns many watches. All members run in this process.
//!
//! `cargo bench --bench load -- idle` measures the idle members alone, `cargo bench --bench load -- sessions` the
//! sessions.
//!
//! `cargo bench --bench load -- values` measures values of 1 MB, and what the disk makes of the same bytes alone.
//!
//! Then it slows down the disk of a follower, by 400 ms for each sync. This needs Linux and a C compiler.
//! `cargo bench --bench load -- slow-disk` does that alone.

#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::collections::VecDeque;
use std::io::{Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use quorate::{Coordinator, CreateMode, Pending, Session, SessionState, WatchMode};

/// How many requests are in flight at a time.
const WINDOW: usize = 1024;
const OPENERS: usize = 32;
/// The bytes of a large value: as many as make the rates MB a second.
const VALUE: usize = 1_000_000;
/// A link to the directory whose disk is slow: see `slow_disk.c`.
const SLOW: &str = "QUORATE_BENCH_SLOW";

/// The numbers of sessions, ephemerals and watches, and how long to stay idle.
struct Size {
    sessions: usize,
    ephemerals: usize,
    watches: usize,
    idle: Duration,
    values: Duration,
}

fn main() {
    let full = Size {
        sessions: 50_000,
        ephemerals: 100_000,
        watches: 100_000,
        idle: Duration::from_secs(10),
        values: Duration::from_secs(15),
    };
    let (idle, values_for) = (Duration::ZERO, Duration::ZERO);
    let short = Size { sessions: 64, ephemerals: 64, watches: 64, idle, values: values_for };
    // `cargo test --benches` only sees whether this runs.
    let size = if std::env::args().any(|arg| arg == "--bench") { full } else { short };
    if let Some(link) = std::env::var_os(SLOW) {
        return slow_disk(Path::new(&link), size.idle);
    }
    if std::env::args().any(|arg| arg == "idle") {
        return drop(idle_members(&size));
    }
    if std::env::args().any(|arg| arg == "values") {
        return values(size.values);
    }
    if std::env::args().any(|arg| arg == "sessions") {
        let (members, session) = idle_members(&size);
        return drop(many_sessions(&members, &session, &size));
    }
    if !std::env::args().any(|arg| arg == "slow-disk") {
        many(&size);
    }
    with_slow_disk();
}

fn idle_members(size: &Size) -> (Members, Session) {
    let members = Members::start(3);
    let session = members.all[(members.leader() + 1) % 3].session();
    session.create("/set", b"", CreateMode::Persistent).wait().unwrap();
    idle("three idle members, a session each", size.idle);
    (members, session)
}

fn many(size: &Size) {
    let (members, session) = idle_members(size);
    let (leader, follower) = (members.leader(), (members.leader() + 1) % 3);
    drop(many_sessions(&members, &session, size));
    ephemerals(&members, follower, size.ephemerals);
    watches(&members, leader, follower, size.watches);
    assert!(members.all[leader].status().is_leader, "nobody else was elected");
}

/// Measures the cost of many sessions. Returns them, still open.
fn many_sessions(members: &Members, session: &Session, size: &Size) -> Vec<Session> {
    syncs("sync at a follower, a session each", session);
    let held = open(members, size.sessions);
    idle(&format!("the same with {} sessions", held.len()), size.idle);
    syncs("sync at a follower beside them", session);
    held
}

struct Members {
    all: Vec<Coordinator>,
    dir: tempfile::TempDir,
}

impl Members {
    fn start(count: usize) -> Members {
        let listeners: Vec<TcpListener> =
            (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let peers: Vec<String> =
            listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
        drop(listeners);
        let dir = tempfile::tempdir().unwrap();
        let join = |address: &String| {
            let data = dir.path().join(data_dir(address));
            Coordinator::builder().advertise(address).data_dir(data).join(&peers).wait().unwrap()
        };
        let all: Vec<Coordinator> = peers.iter().map(join).collect();
        for member in &all {
            member.wait_ready(Duration::from_secs(60)).wait().unwrap();
        }
        Members { all, dir }
    }

    fn leader(&self) -> usize {
        self.all.iter().position(|member| member.status().is_leader).expect("somebody leads")
    }
}

fn data_dir(address: &str) -> String {
    address.replace(':', "-")
}

/// The processor time of this process, and how often its threads were switched, as Linux counts them.
fn usage() -> (Duration, u64) {
    let (mut nanos, mut switches) = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        // Its first field is the time on a processor.
        let times = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        nanos += times.split_whitespace().next().and_then(|time| time.parse().ok()).unwrap_or(0);
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        let numbers = counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
        switches += numbers.sum::<u64>();
    }
    (Duration::from_nanos(nanos), switches)
}

fn idle(name: &str, time: Duration) {
    // Wait until the work of earlier steps is over: leases, checkpoints, the files of the log.
    thread::sleep(time / 2);
    let (busy, switches) = usage();
    thread::sleep(time);
    let (busy_after, switches_after) = usage();
    let share = (busy_after - busy).as_secs_f64() / time.as_secs_f64().max(1e-9);
    let switches = (switches_after - switches) as f64 / time.as_secs_f64().max(1e-9);
    let memory = resident() as f64 / f64::from(1 << 20);
    println!(
        "{name:52} {:>9.2} % of a core, {switches:.0} switches a second, {memory:.1} MiB",
        share * 100.0
    );
}

/// The bytes of memory that this process has.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
    kib.unwrap_or(0) * 1024
}

fn report(name: &str, mut each: Vec<Duration>) {
    each.sort_unstable();
    let at = |share: f64| each[((each.len() - 1) as f64 * share) as usize];
    println!("{name:52} p50 {:>9.1?}, p99 {:>9.1?}, worst {:>9.1?}", at(0.5), at(0.99), at(1.0));
}

fn syncs(name: &str, session: &Session) {
    let mut each = Vec::new();
    for _ in 0..2000 {
        let start = Instant::now();
        session.sync().wait().unwrap();
        each.push(start.elapsed());
    }
    report(name, each);
}

/// Opens sessions at all members.
fn open(members: &Members, count: usize) -> Vec<Session> {
    thread::scope(|scope| {
        let openers: Vec<_> = (0..OPENERS)
            .map(|opener| {
                let member = &members.all[opener % members.all.len()];
                let own = count / OPENERS;
                scope.spawn(move || {
                    (0..own).map(|_| member.open_session().unwrap()).collect::<Vec<_>>()
                })
            })
            .collect();
        openers.into_iter().flat_map(|opener| opener.join().unwrap()).collect()
    })
}

/// Runs a step while another session writes, and prints the time of the step and of the writes.
fn beside_writes(name: &str, members: &Members, run: impl FnOnce()) {
    let other = members.all.last().expect("there are some").open_session().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let (is_over, began) = (Arc::clone(&over), Arc::new(Barrier::new(2)));
    let begins = Arc::clone(&began);
    let writer = thread::spawn(move || {
        let mut each = Vec::new();
        while each.len() < 100 || !is_over.load(Ordering::Relaxed) {
            if each.len() == 50 {
                begins.wait();
            }
            let start = Instant::now();
            other.set("/set", b"data").wait().unwrap();
            each.push(start.elapsed());
        }
        each
    });
    began.wait();
    let start = Instant::now();
    run();
    println!("{name:52} {:>9.1?}", start.elapsed());
    over.store(true, Ordering::Relaxed);
    report("  writes of another session at the same time", writer.join().unwrap());
}

/// Values of 1 MB, several outstanding, into one znode and into a hundred, whose state is so large that each checkpoint
/// writes every value once more. Then the same bytes without anything else: see [`bare_writes`].
fn values(time: Duration) {
    const OUTSTANDING: usize = 16;
    let data = vec![7; VALUE];
    for znodes in [1, 100] {
        let members = Members::start(3);
        let session = members.all[members.leader()].session();
        for number in 0..znodes {
            session.create(&format!("/{number}"), b"", CreateMode::Persistent).wait().unwrap();
        }
        let (mut under_way, mut sent) = (VecDeque::new(), 0);
        let mut set = || {
            sent += 1;
            session.set(&format!("/{}", sent % znodes), &data)
        };
        under_way.extend((0..OUTSTANDING).map(|_| set()));
        let (start, mut done) = (Instant::now(), 0);
        while done == 0 || start.elapsed() < time {
            let first: Pending<_> = under_way.pop_front().expect("as many are under way as before");
            first.wait().unwrap();
            under_way.push_back(set());
            done += 1;
        }
        let rate = done as f64 / start.elapsed().as_secs_f64();
        println!("{:52} {rate:.0} MB/s", format!("values of 1 MB into {znodes} znodes"));
        for each in under_way {
            each.wait().unwrap();
        }
    }
    for (name, rewritten) in [("in place", true), ("into new files", false)] {
        let rate = bare_writes(time / 2, rewritten);
        println!("{:52} {rate:.0} MB/s", format!("such values twice to three files each, {name}"));
    }
}

/// Three threads write values of 1 MB as three members do, without anything else: each one to a log that is there already,
/// with an `fdatasync`, and once more for a checkpoint, of which every third is synced. The checkpoints are `rewritten` in
/// turn, or each is a new file, and the one before the last is removed. Returns the MB that each writes to its log in a
/// second.
fn bare_writes(time: Duration, rewritten: bool) -> f64 {
    const IN_LOG: u64 = 64;
    const IN_CHECKPOINT: u64 = 100;
    let (dir, value) = (tempfile::tempdir().unwrap(), vec![7; VALUE]);
    let ready = Barrier::new(3);
    let write = |member: usize| {
        let path = |kind: &str, number: u64| dir.path().join(format!("{member}-{kind}-{number}"));
        let open = |path: &Path| {
            let mut options = std::fs::OpenOptions::new();
            options.create(true).truncate(false).write(true).open(path).unwrap()
        };
        let put = |file: &mut std::fs::File, at: u64| {
            file.seek(SeekFrom::Start(at * VALUE as u64)).unwrap();
            file.write_all(&value).unwrap();
        };
        let mut log = open(&path("log", 0));
        (0..IN_LOG).for_each(|at| put(&mut log, at));
        if rewritten {
            for number in 0..2 {
                let mut file = open(&path("checkpoint", number));
                (0..IN_CHECKPOINT).for_each(|at| put(&mut file, at));
                file.sync_all().unwrap();
            }
        }
        log.sync_all().unwrap();
        ready.wait();
        let (start, mut done) = (Instant::now(), 0);
        let mut checkpoint = open(&path("checkpoint", 0));
        while done == 0 || start.elapsed() < time {
            put(&mut log, done % IN_LOG);
            log.sync_data().unwrap();
            let (number, at) = (done / IN_CHECKPOINT, done % IN_CHECKPOINT);
            if at == 0 {
                let number = if rewritten { number % 2 } else { number };
                checkpoint = open(&path("checkpoint", number));
                if number > 1 {
                    std::fs::remove_file(path("checkpoint", number - 2)).unwrap();
                }
            }
            put(&mut checkpoint, at);
            if at % 3 == 2 {
                checkpoint.sync_data().unwrap();
            }
            done += 1;
        }
        done as f64 / start.elapsed().as_secs_f64()
    };
    thread::scope(|scope| {
        let write = &write;
        let writers: Vec<_> = (0..3).map(|member| scope.spawn(move || write(member))).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).fold(f64::MAX, f64::min)
    })
}

fn ephemerals(members: &Members, at: usize, count: usize) {
    let session = members.all[at].open_session().unwrap();
    session.create("/ephemerals", b"", CreateMode::Persistent).wait().unwrap();
    for from in (0..count).step_by(WINDOW) {
        let window: Vec<_> = (from..count.min(from + WINDOW))
            .map(|n| {
                let path = format!("/ephemerals/{n:07}");
                session.create(&path, b"", CreateMode::Ephemeral)
            })
            .collect();
        for create in window {
            create.wait().unwrap();
        }
    }
    let name = format!("the end of a session with {count} ephemerals");
    beside_writes(&name, members, || session.close().wait().unwrap());
}

fn watches(members: &Members, leader: usize, at: usize, count: usize) {
    let session = members.all[at].session();
    let mut held = Vec::with_capacity(count);
    for from in (0..count).step_by(WINDOW) {
        let window: Vec<_> = (from..count.min(from + WINDOW))
            .map(|_| session.watch("/watched", WatchMode::Persistent))
            .collect();
        held.extend(window.into_iter().map(|watch| watch.wait().unwrap()));
    }
    let writer = members.all[leader].session();
    writer.create("/watched", b"", CreateMode::Persistent).wait().unwrap();
    for watch in &held {
        watch.recv().wait().unwrap();
    }
    let term = members.all[leader].status().term;
    let name = format!("a set until the last of {count} watches has its event");
    for _ in 0..5 {
        beside_writes(&name, members, || {
            writer.set("/watched", b"data").wait().unwrap();
            for watch in &held {
                watch.recv().wait().unwrap();
            }
        });
    }
    assert_eq!(members.all[leader].status().term, term, "there was no election");
}

/// Runs `slow_disk` in a process whose library calls can slow a disk down.
fn with_slow_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("slow_disk.c"), dir.path().join("slow_disk.so"));
    std::fs::write(&source, include_str!("slow_disk.c")).unwrap();
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    if !cfg!(target_os = "linux") || !compiled.is_ok_and(|status| status.success()) {
        return println!("no disk is slowed down: this needs Linux and a C compiler");
    }
    let mut run = Command::new(std::env::current_exe().unwrap());
    run.args(std::env::args().skip(1)).env("LD_PRELOAD", library);
    assert!(run.env(SLOW, dir.path().join("slow")).status().unwrap().success());
}

/// Measures how much a follower whose disk takes 400 ms for each sync slows the others down, with and
/// without the third member.
#[cfg(unix)]
fn slow_disk(link: &Path, time: Duration) {
    let members = Members::start(3);
    let leader = members.leader();
    let (slow, third) = (&members.all[(leader + 1) % 3], &members.all[(leader + 2) % 3]);
    let leader = &members.all[leader];
    let held: Vec<Session> =
        [leader, slow].iter().map(|member| member.open_session().unwrap()).collect();
    let session = leader.session();
    session.create("/set", b"", CreateMode::Persistent).wait().unwrap();
    let term = leader.status().term;
    sets("set at the leader, three disks", &session, time);
    let directory =
        members.dir.path().canonicalize().unwrap().join(data_dir(&slow.status().address));
    std::os::unix::fs::symlink(&directory, link).unwrap();
    sets("the same, a follower's disk takes 400 ms", &session, 2 * time);
    std::fs::remove_file(link).unwrap();
    sets("the same, three disks again", &session, time);
    third.close().wait().unwrap();
    sets("the same, the third member closed", &session, time);
    std::os::unix::fs::symlink(&directory, link).unwrap();
    sets("the same, and the other's disk takes 400 ms", &session, 3 * time);
    std::fs::remove_file(link).unwrap();
    let lost = held.iter().filter(|session| session.state() != SessionState::Connected).count();
    println!(
        "{:52} {:>9} elections, {lost} sessions lost",
        "in this time",
        leader.status().term.unwrap_or(0) - term.unwrap_or(0)
    );
}

#[cfg(not(unix))]
fn slow_disk(_link: &Path, _time: Duration) {}

fn sets(name: &str, session: &Session, time: Duration) {
    let (start, mut each) = (Instant::now(), Vec::new());
    while each.is_empty() || start.elapsed() < time {
        let before = Instant::now();
        session.set("/set", b"data").wait().unwrap();
        each.push(before.elapsed());
    }
    report(name, each);
}
