//! The cost of a large tree: memory, reads, writes, checkpoints, a restart, and a member with an empty
//! disk.
//!
//! `cargo bench --bench large` fills one member with a million znodes of 100 B, with a real disk,
//! and prints each figure beside those of a tree of a thousand znodes, of 100,000 children of
//! one parent, and of 100,000 znodes below a thousand parents. Then members with a thousand, 100,000 and a million znodes,
//! each in a process of its own, set random ones and the same thousand of them in turn, since what is in a processor's
//! caches varies with the minute. Then it compares the writes below a parent with a thousand and with 100,000 children,
//! and of 100,000 znodes below a thousand parents. It compares znodes whose paths were chosen to have one hash with
//! others of the same length. At last a follower of three with a million znodes begins with
//! an empty disk, while three threads write at the others.
//!
//! `cargo bench --bench large -- 200000` takes another number of znodes; `-- spread`, `-- wide`, `-- turns`, `-- parents`,
//! `-- hashes` and `-- rejoin` do a part alone.

#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quorate::{Coordinator, CreateMode, Pending, Session};

#[path = "../src/machine/tests/colliding.rs"]
mod colliding;

const SMALL: usize = 1000;
const WIDE: usize = 100_000;
const DATA: [u8; 100] = [7; 100];
/// How many writes are in flight at a time.
const WINDOW: usize = 1000;
/// How often each of some members sets znodes in turn.
const TURNS: usize = 15;

const CASE: &str = "QUORATE_BENCH_CASE";

fn main() {
    if let Ok(case) = std::env::var(CASE) {
        let words: Vec<&str> = case.split(' ').collect();
        let (count, seconds) = (words[1].parse().unwrap(), words[3].parse().unwrap());
        let wide = ["wide", "parents"].contains(&words[0]);
        let case = Case { wide, count, time: Duration::from_secs(seconds) };
        return match words[4] {
            "fill" => case.fill(words[2]),
            "restart" => case.restart(words[2]),
            "turns" => case.turns(words[2]),
            "worker" => case.work(words[2]),
            "parents" => case.parents(words[2]),
            "hashes" => case.hashes(words[2]),
            _ => case.rejoin(words[2]),
        };
    }
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test --benches` only sees whether this runs.
    let short = !arguments.iter().any(|argument| argument == "--bench");
    let asked = arguments.iter().find_map(|argument| argument.parse().ok());
    let (large, wide, seconds) = match short {
        true => (2 * SMALL, 2 * SMALL, 0),
        false => (asked.unwrap_or(1_000_000), WIDE, 10),
    };
    let named = |form: &str| arguments.iter().any(|argument| argument == form);
    let is_asked = |form| {
        let forms = ["spread", "wide", "turns", "parents", "hashes", "rejoin"];
        named(form) || !forms.iter().any(|form| named(form))
    };
    let cases: [(&str, usize, &[&str]); 8] = [
        ("spread", SMALL, &["fill", "restart"]),
        ("wide", wide, &["fill", "restart"]),
        ("spread", wide, &["fill", "restart"]),
        ("spread", large, &["fill", "restart"]),
        ("turns", large, &["turns"]),
        ("parents", wide, &["parents"]),
        ("hashes", wide / 5, &["hashes"]),
        ("rejoin", large, &["rejoin"]),
    ];
    for (form, count, steps) in cases.into_iter().filter(|(form, ..)| is_asked(*form)) {
        let dir = tempfile::tempdir().unwrap();
        println!("{count} znodes, {form}:");
        // Each step is a process of its own, so that it inherits no memory of the one before.
        for step in steps {
            let case = format!("{form} {count} {} {seconds} {step}", dir.path().display());
            assert!(process(&case).status().unwrap().success());
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

    /// Random paths of the tree.
    fn paths(&self) -> Vec<String> {
        let mut random = Random(1);
        (0..self.count.min(200_000)).map(|_| self.path(random.below(self.count))).collect()
    }

    fn create_parents(&self, session: &Session) {
        let parents = (0..1000).map(|n| format!("/d/{n:03}"));
        let parents = if self.wide { Vec::new() } else { parents.collect() };
        for parent in ["/d".to_owned()].into_iter().chain(parents) {
            session.create(&parent, b"", CreateMode::Persistent).wait().unwrap();
        }
    }

    fn fill(&self, dir: &str) {
        let coordinator = join(Path::new(dir));
        let session = coordinator.session();
        println!(
            "  {:>9.1} MiB of memory of a process with an empty member",
            mebibytes(resident())
        );
        self.create_parents(&session);
        let (before, start) = (resident(), Instant::now());
        fill(&session, self.count, &|n| self.path(n));
        let rate = self.count as f64 / start.elapsed().as_secs_f64();
        let bytes = resident().saturating_sub(before) / self.count;
        println!("  {bytes:>9} B of memory for each");
        println!("  {rate:>9.0} creates a second, 1,000 to a request");

        let paths = self.paths();
        let reads = Spread::of(|| {
            let rounds = 200_000_usize.div_ceil(paths.len());
            let start = Instant::now();
            for path in (0..rounds).flat_map(|_| &paths) {
                std::hint::black_box(session.get(path).wait().unwrap());
            }
            start.elapsed().as_nanos() as f64 / (rounds * paths.len()) as f64
        });
        println!("  {reads} ns for a read, random");
        // Until the files of the log are there, as after the fill of a large tree.
        pipelined(&session, &paths, self.time);
        let checkpoints = coordinator.metrics().wait().unwrap().checkpoints;
        let pause = sequential(&session, &paths, self.time).as_secs_f64() * 1e3;
        let checkpoints = coordinator.metrics().wait().unwrap().checkpoints - checkpoints;
        println!(
            "  {pause:>9.1} ms at most for a set, one after the other, {checkpoints} checkpoints"
        );
        drop(session);
        coordinator.close().wait().unwrap();
    }

    fn restart(&self, dir: &str) {
        let (before, start) = (resident(), Instant::now());
        let coordinator = join(Path::new(dir));
        coordinator.session().get(&self.path(0)).wait().unwrap();
        println!("  {:>9.2} s from a restart to the first read", start.elapsed().as_secs_f64());
        let bytes = resident().saturating_sub(before) / self.count;
        println!("  {bytes:>9} B of memory for each, then");
        coordinator.close().wait().unwrap();
    }

    /// Members in processes of their own set znodes in turn.
    fn turns(&self, dir: &str) {
        let counts = [SMALL, WIDE.min(self.count), self.count];
        let mut workers: Vec<Worker> = counts
            .iter()
            .enumerate()
            .map(|(place, count)| {
                let dir = Path::new(dir).join(place.to_string());
                std::fs::create_dir(&dir).unwrap();
                let seconds = self.time.as_secs();
                Worker::start(&format!("spread {count} {} {seconds} worker", dir.display()))
            })
            .collect();
        for (kind, name) in [("random", "random ones"), ("same", "the same 1000")] {
            let rounds: Vec<Vec<f64>> = (0..TURNS)
                .map(|_| workers.iter_mut().map(|worker| worker.ask(kind)).collect())
                .collect();
            for (place, count) in counts.iter().enumerate() {
                let rates = Spread(rounds.iter().map(|round| round[place]).collect());
                let ratio = Spread(rounds.iter().map(|round| round[place] / round[0]).collect());
                println!("  {rates} sets a second, pipelined, {name} of {count}: {ratio:.2}");
            }
        }
        workers.into_iter().for_each(Worker::end);
    }

    /// One of these members.
    fn work(&self, dir: &str) {
        let coordinator = join(Path::new(dir));
        let session = coordinator.session();
        self.create_parents(&session);
        fill(&session, self.count, &|n| self.path(n));
        let paths = self.paths();
        let same: Vec<String> = (0..SMALL).map(|n| self.path(n * (self.count / SMALL))).collect();
        // Until the files of the log are there, as after the fill of a large tree.
        pipelined(&session, &paths, self.time);
        println!("ready");
        for kind in std::io::stdin().lines() {
            let paths = if kind.unwrap() == "random" { &paths } else { &same };
            println!("{}", pipelined(&session, paths, self.time / 5));
        }
        drop(session);
        coordinator.close().wait().unwrap();
    }

    /// Members on their own, which write in turn: with few children of one parent, with many, and with as
    /// many znodes below a thousand parents.
    fn parents(&self, dir: &str) {
        let small = Case { count: SMALL, ..*self };
        let spread = Case { wide: false, ..*self };
        let cases = [("below one", &small), ("below one", self), ("below 1,000 parents", &spread)];
        let members = cases.map(|(name, case)| {
            let dir = Path::new(dir).join(format!("{name} {}", case.count));
            std::fs::create_dir(&dir).unwrap();
            let coordinator = join(&dir);
            let session = coordinator.session();
            case.create_parents(&session);
            fill(&session, case.count, &|n| case.path(n));
            (coordinator, session, case, case.paths())
        });
        let time = self.time / 5;
        type Rate<'a> = &'a dyn Fn(&Session, &Case, &[String]) -> f64;
        let kinds: [(&str, Rate<'_>); 2] = [
            ("sets", &|session, _, paths| pipelined(session, paths, time)),
            ("creates", &|session, case, _| case.creates(session, time)),
        ];
        for (kind, rate) in kinds {
            let mut rates = [Vec::new(), Vec::new(), Vec::new()];
            for _ in 0..5 {
                for ((_, session, case, paths), rates) in members.iter().zip(&mut rates) {
                    rates.push(rate(session, case, paths));
                }
            }
            for ((name, case), each) in cases.into_iter().zip(&rates) {
                let ratios = each.iter().zip(&rates[0]).map(|(rate, first)| rate / first);
                let (rates, ratios) = (Spread(each.clone()), Spread(ratios.collect()));
                println!(
                    "  {rates} {kind} a second, pipelined, of {} {name}: {ratios:.2}",
                    case.count
                );
            }
        }
        for (coordinator, session, ..) in members {
            drop(session);
            coordinator.close().wait().unwrap();
        }
    }

    /// Znodes whose paths somebody has chosen to have one hash, and as many with other paths of the same length.
    fn hashes(&self, dir: &str) {
        for (name, is_chosen) in [("one hash", true), ("different ones", false)] {
            let dir = Path::new(dir).join(name);
            std::fs::create_dir(&dir).unwrap();
            let paths: Vec<String> = (0..self.count)
                .zip(colliding::colliding("/d"))
                .map(|(n, path)| match is_chosen {
                    true => path,
                    false => format!("/d/{n:06}{}", &path["/d/".len() + 6..]),
                })
                .collect();
            let coordinator = join(&dir);
            let session = coordinator.session();
            session.create("/d", b"", CreateMode::Persistent).wait().unwrap();
            let rates = paths.chunks(WINDOW).map(|paths| {
                let start = Instant::now();
                fill(&session, paths.len(), &|n| paths[n].clone());
                paths.len() as f64 / start.elapsed().as_secs_f64()
            });
            let rates: Vec<f64> = rates.collect();
            let (first, last) = (rates[0], rates[rates.len() - 1]);
            println!("  {first:>9.0} creates a second of the first, {last:.0} of the last, {name}");
            let start = Instant::now();
            for path in &paths {
                std::hint::black_box(session.get(path).wait().unwrap());
            }
            let read = start.elapsed().as_nanos() as f64 / paths.len() as f64;
            println!("  {read:>9.0} ns for a read, {name}");
            let rate = pipelined(&session, &paths, self.time / 5);
            println!("  {rate:>9.0} sets a second, pipelined, {name}");
            drop(session);
            coordinator.close().wait().unwrap();
            let start = Instant::now();
            let coordinator = join(&dir);
            coordinator.session().get(&paths[0]).wait().unwrap();
            let restart = start.elapsed().as_secs_f64();
            println!("  {restart:>9.2} s from a restart to the first read, {name}");
            coordinator.close().wait().unwrap();
        }
    }

    /// The number of creates per second, 1,000 at a time. The znodes are deleted again.
    fn creates(&self, session: &Session, time: Duration) -> f64 {
        let calls = &session;
        let (mut spent, mut done) = (Duration::ZERO, 0);
        while done < WINDOW || spent < time {
            let start = Instant::now();
            let new = (self.count..self.count + WINDOW).map(|n| self.path(n));
            let creates: Vec<_> =
                new.map(|path| calls.create(&path, DATA, CreateMode::Persistent)).collect();
            for create in creates {
                create.wait().unwrap();
            }
            (spent, done) = (spent + start.elapsed(), done + WINDOW);
            let new = (self.count..self.count + WINDOW).map(|n| self.path(n));
            let multi = new.fold(session.multi(), |multi, path| multi.delete(&path));
            multi.commit().wait().unwrap();
        }
        done as f64 / spent.as_secs_f64()
    }

    /// A follower of three comes back with an empty disk, while three threads write at the others.
    fn rejoin(&self, dir: &str) {
        let peers = addresses(3);
        // The empty disk is another directory, since deleting the old one would keep the disk busy.
        let start = |place: usize, disk: usize| {
            let data = Path::new(dir).join(format!("{place}-{disk}"));
            Coordinator::builder()
                .advertise(&peers[place])
                .data_dir(data)
                .join(&peers)
                .wait()
                .unwrap()
        };
        let mut members: Vec<Coordinator> = (0..3).map(|place| start(place, 0)).collect();
        for member in &members {
            member.wait_ready(Duration::from_secs(60)).wait().unwrap();
        }
        let session = members[0].session();
        self.create_parents(&session);
        fill(&session, self.count, &|n| self.path(n));
        let paths = self.paths();
        for window in [1, WINDOW] {
            let leader = members.iter().position(|member| member.status().is_leader).unwrap();
            let (other, away) = ((leader + 1) % 3, (leader + 2) % 3);
            let term = members[leader].status().term;
            let (writes, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
            thread::scope(|scope| {
                for (writer, at) in [leader, other, leader].into_iter().enumerate() {
                    let session = members[at].open_session().unwrap();
                    let own = paths.iter().cycle().skip(writer * paths.len() / 3);
                    let (writes, is_over) = (&writes, &is_over);
                    scope.spawn(move || {
                        let mut under_way = VecDeque::new();
                        for path in own.take_while(|_| !is_over.load(Ordering::Relaxed)) {
                            under_way.push_back(session.set(path, DATA));
                            if under_way.len() == window {
                                under_way.pop_front().unwrap().wait().unwrap();
                                writes.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        for set in under_way {
                            set.wait().unwrap();
                        }
                    });
                }
                let rate = |run: &mut dyn FnMut()| {
                    let (before, start) = (writes.load(Ordering::Relaxed), Instant::now());
                    run();
                    let done = writes.load(Ordering::Relaxed) - before;
                    (done as f64 / start.elapsed().as_secs_f64(), start.elapsed().as_secs_f64())
                };
                let (before, _) = rate(&mut || thread::sleep(self.time));
                members[away].close().wait().unwrap();
                let fresh = start(away, window);
                let (during, level) = rate(&mut || loop {
                    let zxid = members[leader].status().zxid;
                    thread::sleep(Duration::from_millis(10));
                    if fresh.status().zxid >= zxid {
                        break;
                    }
                });
                let (_, placed) =
                    rate(&mut || fresh.wait_ready(Duration::from_secs(60)).wait().unwrap());
                let (after, _) = rate(&mut || thread::sleep(self.time));
                println!("  {level:>9.1} s until an empty member is level, 3 writers of {window}");
                println!("  {:>9.1} s until it votes", level + placed);
                println!(
                    "  {during:>9.0} sets a second until then, {before:.0} before, {after:.0} after"
                );
                is_over.store(true, Ordering::Relaxed);
                let status = members[leader].status();
                assert!(status.is_leader && status.term == term, "nobody else was elected");
                members[away] = fresh;
            });
        }
        drop(session);
        members.iter().for_each(|member| member.close().wait().unwrap());
    }
}

/// A process of [`Case::work`].
struct Worker {
    process: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn start(case: &str) -> Worker {
        let mut process =
            process(case).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut worker = Worker { process, answers };
        assert_eq!(worker.answer(), "ready");
        worker
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The number of sets per second.
    fn ask(&mut self, kind: &str) -> f64 {
        writeln!(self.process.stdin.as_mut().unwrap(), "{kind}").unwrap();
        self.answer().parse().unwrap()
    }

    fn end(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

/// This program, with a case to run.
fn process(case: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(CASE, case);
    command
}

/// The median of some figures, and the least and the greatest.
struct Spread(Vec<f64>);

impl Spread {
    fn of(figure: impl FnMut() -> f64) -> Spread {
        Spread(std::iter::repeat_with(figure).take(5).collect())
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let (least, greatest) = (sorted[0], sorted[sorted.len() - 1]);
        let digits = f.precision().unwrap_or(0);
        let median = sorted[sorted.len() / 2];
        write!(f, "{median:>9.digits$} [{least:.digits$}..{greatest:.digits$}]")
    }
}

fn addresses(count: usize) -> Vec<String> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

fn join(dir: &Path) -> Coordinator {
    // The port must be the same after a restart, as it is the member's address.
    let file = dir.join("address");
    let address = std::fs::read_to_string(&file).unwrap_or_else(|_| addresses(1).remove(0));
    std::fs::write(file, &address).unwrap();
    let data = dir.join("data");
    let builder = Coordinator::builder().advertise(&address).data_dir(data);
    let coordinator = builder.join([address.as_str()]).wait().unwrap();
    coordinator.wait_ready(Duration::from_secs(60)).wait().unwrap();
    coordinator
}

fn fill(session: &Session, count: usize, path: &dyn Fn(usize) -> String) {
    let mut under_way = VecDeque::new();
    for from in (0..count).step_by(WINDOW) {
        let mut multi = session.multi();
        for n in from..count.min(from + WINDOW) {
            multi = multi.create(&path(n), DATA, CreateMode::Persistent);
        }
        under_way.push_back(multi.commit());
        if under_way.len() > 4 {
            under_way.pop_front().unwrap().wait().unwrap();
        }
    }
    for request in under_way {
        request.wait().unwrap();
    }
}

/// The number of writes per second.
fn pipelined(session: &Session, paths: &[String], time: Duration) -> f64 {
    let calls = &session;
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

/// The longest time of one write.
fn sequential(session: &Session, paths: &[String], time: Duration) -> Duration {
    let (start, mut longest) = (Instant::now(), Duration::ZERO);
    for path in paths.iter().cycle() {
        let before = Instant::now();
        session.set(path, DATA).wait().unwrap();
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

fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The memory of this process in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
    kib.unwrap_or(0) * 1024
}
