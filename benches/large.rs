//! What a large tree costs: memory, reads, writes, checkpoints and a restart.
//!
//! `cargo bench --bench large` fills one member with a million znodes of 100 B, with a real disk,
//! and prints each figure beside those of a tree of a thousand znodes, and of 100,000 children of
//! one parent. `cargo bench --bench large -- 200000` takes another number of znodes.

#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::collections::VecDeque;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use quorate::{Coordinator, CreateMode, Pending, Session};

const SMALL: usize = 1000;
const WIDE: usize = 100_000;
const DATA: [u8; 100] = [7; 100];
/// How many writes are under way at a time.
const WINDOW: usize = 1000;

const CASE: &str = "QUORATE_BENCH_CASE";

fn main() {
    if let Ok(case) = std::env::var(CASE) {
        let words: Vec<&str> = case.split(' ').collect();
        let (count, seconds) = (words[1].parse().unwrap(), words[3].parse().unwrap());
        let case = Case { wide: words[0] == "wide", count, time: Duration::from_secs(seconds) };
        return match words[4] {
            "fill" => case.fill(words[2]),
            _ => case.restart(words[2]),
        };
    }
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test --benches` only sees whether this runs.
    let short = !arguments.iter().any(|argument| argument == "--bench");
    let asked = arguments.iter().find_map(|argument| argument.parse().ok());
    let (large, wide, seconds) = match short {
        true => (2 * SMALL, SMALL, 0),
        false => (asked.unwrap_or(1_000_000), WIDE, 10),
    };
    for (form, count) in [("spread", SMALL), ("wide", wide), ("spread", large)] {
        let dir = tempfile::tempdir().unwrap();
        println!("{count} znodes, {form}:");
        // Processes of their own, so that no memory of one is left for the next.
        for step in ["fill", "restart"] {
            let case = format!("{form} {count} {} {seconds} {step}", dir.path().display());
            let run = Command::new(std::env::current_exe().unwrap()).env(CASE, case).status();
            assert!(run.unwrap().success());
        }
    }
}

/// A tree: a thousand parents, or one.
struct Case {
    wide: bool,
    count: usize,
    time: Duration,
}

impl Case {
    fn path(&self, n: usize) -> String {
        if self.wide { format!("/d/{n:09}") } else { format!("/d/{:03}/{n:09}", n % 1000) }
    }

    fn fill(&self, dir: &str) {
        let coordinator = join(dir);
        let session = coordinator.session();
        let parents = (0..1000).map(|n| format!("/d/{n:03}"));
        for parent in ["/d".to_owned()].into_iter().chain(parents) {
            session.create(&parent, b"", CreateMode::Persistent).unwrap();
        }
        let (before, start) = (resident(), Instant::now());
        fill(&session, self.count, &|n| self.path(n));
        let rate = self.count as f64 / start.elapsed().as_secs_f64();
        let bytes = resident().saturating_sub(before) / self.count;
        println!("  {bytes:>9} B of memory for each");
        println!("  {rate:>9.0} creates a second, 1,000 to a request");

        let mut random = Random(1);
        let some = self.count.min(200_000);
        let paths: Vec<String> = (0..some).map(|_| self.path(random.below(self.count))).collect();
        let start = Instant::now();
        for path in &paths {
            std::hint::black_box(session.get(path).unwrap());
        }
        println!(
            "  {:>9.0} ns for a read, random",
            start.elapsed().as_nanos() as f64 / some as f64
        );
        println!(
            "  {:>9.0} sets a second, pipelined, random",
            pipelined(&session, &paths, self.time)
        );
        let checkpoints = coordinator.metrics().checkpoints;
        let pause = sequential(&session, &paths, self.time).as_secs_f64() * 1e3;
        let checkpoints = coordinator.metrics().checkpoints - checkpoints;
        println!(
            "  {pause:>9.1} ms at most for a set, one after the other, {checkpoints} checkpoints"
        );
        drop(session);
        coordinator.close();
    }

    fn restart(&self, dir: &str) {
        let (before, start) = (resident(), Instant::now());
        let coordinator = join(dir);
        coordinator.session().get(&self.path(0)).unwrap();
        println!("  {:>9.2} s from a restart to the first read", start.elapsed().as_secs_f64());
        let bytes = resident().saturating_sub(before) / self.count;
        println!("  {bytes:>9} B of memory for each, then");
        coordinator.close();
    }
}

fn join(dir: &str) -> Coordinator {
    // The port must be the same after a restart, as it is the member's address.
    let file = std::path::Path::new(dir).join("address");
    let address = std::fs::read_to_string(&file).unwrap_or_else(|_| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    });
    std::fs::write(file, &address).unwrap();
    let data = std::path::Path::new(dir).join("data");
    let builder = Coordinator::builder().advertise(&address).data_dir(data);
    let coordinator = builder.join([address.as_str()]).unwrap();
    coordinator.wait_ready(Duration::from_secs(60)).unwrap();
    coordinator
}

fn fill(session: &Session, count: usize, path: &dyn Fn(usize) -> String) {
    let mut under_way = VecDeque::new();
    for from in (0..count).step_by(WINDOW) {
        let mut multi = session.multi();
        for n in from..count.min(from + WINDOW) {
            multi = multi.create(&path(n), DATA, CreateMode::Persistent);
        }
        under_way.push_back(multi.submit());
        if under_way.len() > 4 {
            under_way.pop_front().unwrap().wait().unwrap();
        }
    }
    for request in under_way {
        request.wait().unwrap();
    }
}

/// How many a second.
fn pipelined(session: &Session, paths: &[String], time: Duration) -> f64 {
    let calls = session.nonblocking();
    let mut under_way: VecDeque<Pending<_>> = VecDeque::new();
    let (start, mut done) = (Instant::now(), 0);
    while done < WINDOW || start.elapsed() < time {
        if under_way.len() == WINDOW {
            under_way.pop_front().unwrap().wait().unwrap();
            done += 1;
        }
        under_way.push_back(calls.set(&paths[done % paths.len()], DATA));
    }
    f64::from(u32::try_from(done).unwrap()) / start.elapsed().as_secs_f64()
}

/// The longest that one took.
fn sequential(session: &Session, paths: &[String], time: Duration) -> Duration {
    let (start, mut longest) = (Instant::now(), Duration::ZERO);
    for path in paths.iter().cycle() {
        let before = Instant::now();
        session.set(path, DATA).unwrap();
        longest = longest.max(before.elapsed());
        if start.elapsed() >= time {
            break;
        }
    }
    longest
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// The bytes of memory that this process has.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
    kib.unwrap_or(0) * 1024
}
