//! A cluster over TCP with real disks, all of its members on this machine.
//!
//! `cargo bench --bench cluster` prints, for each kind of operation, the number per second, and the
//! median and the 99th percentile of the time that one takes. The members run in one process, except
//! for the last figure, for which one member's process is killed.

#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use quorate::{Builder, Coordinator, CreateMode, Session, WatchMode};

const PEERS: &str = "QUORATE_BENCH_PEERS";
const DATA: [u8; 100] = [7; 100];
const TIME: Duration = Duration::from_secs(3);

fn main() {
    if let Ok(peers) = std::env::var(PEERS) {
        return worker(&peers);
    }
    // `cargo test --benches` only sees whether this runs.
    let time = if std::env::args().any(|arg| arg == "--bench") { TIME } else { Duration::ZERO };
    println!("{:44} {:>10} {:>10} {:>10}", "", "a second", "p50", "p99");
    let one = Members::start(1);
    sequential("sequential write, 1 member", &one.session(0), time);
    pipelined("pipelined writes of 100 B, 1 member", &[one.session(0)], time);
    drop(one);
    encrypted(time);
    let three = Members::start(3);
    let (leader, follower) = (three.leader(), (three.leader() + 1) % 3);
    reads("read", &three.session(leader), time);
    sequential("sequential write, 3 members, at the leader", &three.session(leader), time);
    sequential("sequential write, 3 members, at another", &three.session(follower), time);
    concurrent("64 concurrent writers, 3 members", &three, time);
    pipelined("pipelined writes of 100 B, at the leader", &[three.session(leader)], time);
    pipelined("pipelined writes of 100 B, at another", &[three.session(follower)], time);
    let all: Vec<Session> = (0..3).map(|place| three.session(place)).collect();
    pipelined("pipelined writes of 100 B, at all three", &all, time);
    syncs("sync, at another than the leader", &three.session(follower), time);
    watch("set to event at another member", &three.session(leader), &three.session(follower), time);
    uncontended("lock acquired and released, uncontended", &three.session(follower), time);
    hand_off("lock handed over between two members", &three, time);
    drop(three);
    if !time.is_zero() {
        learners(time);
        take_over("leader killed to next write", 5);
    }
}

/// The same writes with encryption at rest.
fn encrypted(time: Duration) {
    let key = *b"0123456789abcdef0123456789abcdef";
    let keys = move || Ok::<_, String>(vec![("k1".to_owned(), key)]);
    let builder = Coordinator::builder().encryption(quorate::encryption::AtRest::new(keys));
    let one = Members::start_with(1, builder);
    sequential("sequential write, 1 member, encrypted", &one.session(0), time);
    pipelined("pipelined writes of 100 B, 1, encrypted", &[one.session(0)], time);
}

struct Members {
    builder: Builder,
    members: Vec<Coordinator>,
    peers: Vec<String>,
    dir: tempfile::TempDir,
}

impl Members {
    fn start(count: usize) -> Members {
        Members::start_with(count, Coordinator::builder())
    }

    fn start_with(count: usize, builder: Builder) -> Members {
        let (members, dir) = (Vec::new(), tempfile::tempdir().unwrap());
        let mut started = Members { builder, members, peers: addresses(count), dir };
        started.join(&started.peers.clone());
        started
    }

    /// Starts instances at these addresses.
    fn join(&mut self, addresses: &[String]) {
        let join = |address: &String| {
            let data = self.dir.path().join(address.replace(':', "-"));
            let builder = self.builder.clone().advertise(address).data_dir(data);
            builder.join(&self.peers).wait().unwrap()
        };
        let members: Vec<Coordinator> = addresses.iter().map(join).collect();
        self.members.extend(members);
        for member in &self.members {
            member.wait_ready(Duration::from_secs(60)).wait().unwrap();
        }
    }

    /// Starts this many more instances, and waits until they are members.
    fn grow(&mut self, more: usize) {
        self.join(&addresses(more));
        let config =
            self.session(0).watch("/zookeeper/config", WatchMode::Persistent).wait().unwrap();
        while self.members[0].status().members.len() < self.members.len() {
            config.recv().wait().expect("the session lives");
        }
        // And until they have the whole log.
        for member in &self.members {
            member.session().sync().wait().unwrap();
        }
    }

    fn session(&self, place: usize) -> Session {
        self.members[place].session()
    }

    fn leader(&self) -> usize {
        self.members.iter().position(|member| member.status().is_leader).expect("somebody leads")
    }
}

fn addresses(count: usize) -> Vec<String> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

/// Prints the number per second, and returns it.
fn report(name: &str, took: Duration, mut each: Vec<Duration>) -> f64 {
    each.sort_unstable();
    let at = |share: f64| each[((each.len() - 1) as f64 * share) as usize];
    let rate = each.len() as f64 / took.as_secs_f64();
    println!("{name:44} {rate:>10.0} {:>10.1?} {:>10.1?}", at(0.5), at(0.99));
    rate
}

/// Runs an operation again and again, one after the other. Returns the number per second.
fn repeat(name: &str, time: Duration, mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut each = Vec::new();
    while each.is_empty() || start.elapsed() < time {
        let begun = Instant::now();
        run();
        each.push(begun.elapsed());
    }
    report(name, start.elapsed(), each)
}

fn znode(session: &Session, path: &str) {
    if session.exists(path).wait().unwrap().is_none() {
        session.create(path, DATA, CreateMode::Persistent).wait().unwrap();
    }
    session.sync().wait().unwrap();
}

fn reads(name: &str, session: &Session, time: Duration) {
    znode(session, "/read");
    // A single read is too short to be measured.
    const BATCH: u32 = 1000;
    let start = Instant::now();
    let mut each = Vec::new();
    while each.is_empty() || start.elapsed() < time {
        let begun = Instant::now();
        for _ in 0..BATCH {
            std::hint::black_box(session.get("/read").wait().unwrap());
        }
        each.push(begun.elapsed() / BATCH);
    }
    let count = each.len() as f64 * f64::from(BATCH);
    each.sort_unstable();
    let at = |share: f64| each[((each.len() - 1) as f64 * share) as usize];
    let rate = count / start.elapsed().as_secs_f64();
    println!("{name:44} {rate:>10.0} {:>10.1?} {:>10.1?}", at(0.5), at(0.99));
}

fn sequential(name: &str, session: &Session, time: Duration) -> f64 {
    znode(session, "/sequential");
    repeat(name, time, || {
        session.set("/sequential", DATA).wait().unwrap();
    })
}

fn syncs(name: &str, session: &Session, time: Duration) {
    repeat(name, time, || {
        session.sync().wait().unwrap();
    });
}

fn concurrent(name: &str, members: &Members, time: Duration) {
    const WRITERS: usize = 64;
    let start = Instant::now();
    let each = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let session = members.session(writer % 3);
                scope.spawn(move || {
                    let path = format!("/writer-{writer}");
                    znode(&session, &path);
                    let mut each = Vec::new();
                    while each.is_empty() || start.elapsed() < time {
                        let begun = Instant::now();
                        session.set(&path, DATA).wait().unwrap();
                        each.push(begun.elapsed());
                    }
                    each
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    report(name, start.elapsed(), each);
}

/// Keeps a window of writes in flight in each session.
fn pipelined(name: &str, sessions: &[Session], time: Duration) -> f64 {
    const WINDOW: usize = 1024;
    znode(&sessions[0], "/pipelined");
    let start = Instant::now();
    let each = std::thread::scope(|scope| {
        let writers: Vec<_> = sessions
            .iter()
            .map(|session| {
                scope.spawn(move || {
                    let (mut each, mut under_way) = (Vec::new(), VecDeque::new());
                    while start.elapsed() < time || each.is_empty() {
                        while under_way.len() < WINDOW {
                            let set = session.set("/pipelined", DATA);
                            under_way.push_back((Instant::now(), set));
                        }
                        // Waits for half a window at a time, so that the writer does not wake for each.
                        for _ in 0..WINDOW / 2 {
                            if let Some((begun, set)) = under_way.pop_front() {
                                set.wait().unwrap();
                                each.push(begun.elapsed());
                            }
                        }
                    }
                    for (begun, set) in under_way {
                        set.wait().unwrap();
                        each.push(begun.elapsed());
                    }
                    each
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    report(name, start.elapsed(), each)
}

/// Measures how much learners slow the leader's writers down.
fn learners(time: Duration) {
    const MORE: usize = 15;
    let mut members = Members::start(5);
    let measure = |members: &Members, with: &str| {
        let leader = members.session(members.leader());
        let one = sequential(&format!("sequential write, 5 voters, {with}"), &leader, time);
        let name = format!("pipelined writes of 100 B, 5 voters, {with}");
        (one, pipelined(&name, &[leader], time))
    };
    let alone = measure(&members, "no learner");
    members.grow(MORE);
    let with_learners = measure(&members, &format!("{MORE} learners"));
    println!(
        "with {MORE} learners as many a second: {:.2} of sequential writes, {:.2} of pipelined ones",
        with_learners.0 / alone.0,
        with_learners.1 / alone.1
    );
}

fn watch(name: &str, writer: &Session, reader: &Session, time: Duration) {
    znode(writer, "/watched");
    reader.sync().wait().unwrap();
    let watch = reader.watch("/watched", WatchMode::Persistent).wait().unwrap();
    repeat(name, time, || {
        drop(writer.set("/watched", DATA));
        watch.recv().wait().unwrap();
    });
}

fn uncontended(name: &str, session: &Session, time: Duration) {
    let lock = session.lock("/uncontended").unwrap();
    repeat(name, time, || lock.acquire().wait().unwrap().release().wait().unwrap());
}

fn hand_off(name: &str, members: &Members, time: Duration) {
    let start = Instant::now();
    let each = std::thread::scope(|scope| {
        let (released, last) = channel();
        let contenders: Vec<_> = (0..2)
            .map(|place| {
                let lock = members.session(place).lock("/handed").unwrap();
                let released = released.clone();
                scope.spawn(move || {
                    let mut turns = 0;
                    while turns < 2 || start.elapsed() < time {
                        let guard = lock.acquire().wait().unwrap();
                        let token = guard.fencing_token();
                        let acquired = Instant::now();
                        let begun = Instant::now();
                        guard.release().wait().unwrap();
                        released.send((token, acquired, begun)).unwrap();
                        turns += 1;
                    }
                })
            })
            .collect();
        drop(released);
        for contender in contenders {
            contender.join().unwrap();
        }
        let mut turns: Vec<_> = last.iter().collect();
        turns.sort_by_key(|(token, _, _)| *token);
        turns.windows(2).map(|turn| turn[1].1.saturating_duration_since(turn[0].2)).collect()
    });
    report(name, start.elapsed(), each);
}

// ---- A member in a process of its own, which can be killed. ----

fn worker(peers: &str) {
    let coordinator = Coordinator::join(peers.split(',')).wait().unwrap();
    coordinator.wait_ready(Duration::from_secs(30)).wait().unwrap();
    let session = coordinator.session();
    let path = format!("/{}", coordinator.address());
    znode(&session, &path);
    loop {
        session.set(&path, DATA).wait().unwrap();
        println!("{}", coordinator.status().is_leader);
    }
}

struct Worker {
    child: Child,
    lines: Receiver<(Instant, bool)>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    fn start(dir: &Path, peers: &[String]) -> Worker {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(PEERS, peers.join(","))
            .current_dir(dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::Builder::new()
            .spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if sender.send((Instant::now(), line == "true")).is_err() {
                        return;
                    }
                }
            })
            .unwrap();
        Worker { child, lines }
    }
}

fn take_over(name: &str, rounds: usize) {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let mut workers: Vec<Worker> = (0..3).map(|_| Worker::start(dir.path(), &peers)).collect();
    let start = Instant::now();
    let mut each = Vec::new();
    for _ in 0..rounds {
        // After this, each worker has written, so all are up.
        let leader = loop {
            let leads: Vec<bool> =
                workers.iter().map(|worker| worker.lines.recv().unwrap().1).collect();
            if let Some(leader) = leads.iter().position(|leads| *leads) {
                break leader;
            }
        };
        drop(workers.remove(leader));
        let killed = Instant::now();
        let next = |worker: &Worker| {
            worker.lines.iter().map(|(at, _)| at).find(|at| *at > killed + Duration::from_millis(5))
        };
        let first = workers.iter().filter_map(next).min().unwrap();
        each.push(first - killed);
        workers.push(Worker::start(dir.path(), &peers));
    }
    report(name, start.elapsed(), each);
}
