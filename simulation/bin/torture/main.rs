//! Runs faults against a cluster of real processes, and checks what its clients saw.
//!
//! ```text
//! cargo run --release -p quorate-simulation --bin torture -- [OPTIONS]
//!
//! --minutes M   how long faults happen (3)
//! --seconds S   the same, in seconds
//! --seed N      the order of the faults (random); their moments depend on the machine
//! --keep        keeps the instances' data and logs
//! --check FILE  only checks the operations in this file, written by an earlier run whose check failed
//! --lasting     never kills the first instance, which shows its resources over the whole run
//! ```
//!
//! Five processes on loopback addresses, with real sockets and real disks, are killed (SIGKILL), paused
//! (SIGSTOP) and isolated from each other in one or both directions, and a disk gets full. On Linux, with a C
//! compiler, a preloaded library ([`disk`]) also cuts the power of one or all, so that what was not synced is
//! lost, in part or entirely, often shortly after the end of a process that left it; and lets syncs, reads
//! and writes fail.
//!
//! Clients in each process write and read shared znodes and acquire a lock all the time. At the end the
//! cluster must recover within a minute, and all replicas must be equal. The clients' operations must be
//! linearizable, and no two holders of the lock may have overlapped. The checker is the simulator's. Each
//! minute the program prints the resources of the instances.
//!
//! The instances are this program, started with a role in the environment.

#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "it runs in real time")]

mod curve;
mod disk;
mod faults;
mod instance;
mod processes;
mod proxy;
mod quota;
mod record;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use curve::Curve;
use disk::{Failed, Undone};
use faults::Undo;
use processes::Process;
use proxy::Proxy;
use quorate_simulation::simulation::linearizability::Verdict;
use quota::Quota;
use record::{Record, operations_text};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The number of instances.
const NODES: usize = 5;
/// How long a cluster may take to recover.
const PATIENCE: Duration = Duration::from_secs(60);
/// After which time an instance that has ended by itself is started again.
const RESTART: Duration = Duration::from_millis(100);

struct Options {
    length: Duration,
    seed: u64,
    keep: bool,
    lasting: bool,
    check: Option<PathBuf>,
}

fn parse() -> Result<Options, String> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|error| error.to_string())?;
    let seed = u64::from_le_bytes(seed) >> 16;
    let length = Duration::from_secs(180);
    let mut options = Options { length, seed, keep: false, lasting: false, check: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        match option.as_str() {
            "--keep" => {
                options.keep = true;
                continue;
            }
            "--lasting" => {
                options.lasting = true;
                continue;
            }
            _ => {}
        }
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
        if option == "--check" {
            options.check = Some(value.into());
            continue;
        }
        let number: u64 =
            value.parse().map_err(|_| format!("{option}: {value:?} is not a number"))?;
        match option.as_str() {
            "--minutes" => options.length = Duration::from_secs(60 * number),
            "--seconds" => options.length = Duration::from_secs(number),
            "--seed" => options.seed = number,
            _ => return Err(format!("unknown option {option}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let result = match std::env::var(instance::ROLE) {
        Ok(role) => instance::run(&role),
        Err(_) => parse().map_err(Into::into).and_then(|options| match &options.check {
            Some(file) => check_again(file),
            None => run_torture(&options),
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The random choices of a run: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn place(&mut self) -> usize {
        self.below(NODES as u64) as usize
    }

    fn milliseconds(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

struct Torture {
    random: Random,
    processes: Vec<Process>,
    proxy: Proxy,
    quota: Option<Quota>,
    record: Record,
    undo: Vec<(Instant, Undo)>,
    /// Whether the first instance is never killed.
    lasting: bool,
    curve: Curve,
    /// The faults so far, by name.
    faults: Vec<&'static str>,
    /// What power cuts have undone.
    undone: Undone,
}

/// Checks the operations in a file that an earlier run has written.
fn check_again(file: &Path) -> Outcome<()> {
    let mut record = Record::default();
    for line in std::fs::read_to_string(file)?.lines() {
        record.add_line(0, 0, line)?;
    }
    println!("{}", record.summary());
    match record.history().check() {
        Verdict::Linearizable(_) => Ok(()),
        verdict => Err(format!("{verdict}").into()),
    }
}

fn run_torture(options: &Options) -> Outcome<()> {
    let dir = tempfile::Builder::new().prefix("quorate-torture-").tempdir()?;
    let addresses = processes::addresses(NODES);
    let proxy = Proxy::start(&addresses)?;
    // The disk of the last instance is small enough to be filled.
    let quota = match Quota::new(&processes::directory(dir.path(), NODES - 1)) {
        Ok(quota) => Some(quota),
        Err(reason) => {
            println!("no disk gets full: {reason}");
            None
        }
    };
    let library = match disk::build_library(dir.path()) {
        Ok(library) => Some(library),
        Err(reason) => {
            println!("no power is cut, and no disk fails: {reason}");
            None
        }
    };
    let begun = instance::now();
    let processes: Result<Vec<Process>, _> = (0..NODES)
        .map(|place| Process::new(dir.path(), &addresses, place, begun, library.as_deref()))
        .collect();
    let mut torture = Torture {
        random: Random(options.seed),
        processes: processes?,
        proxy,
        quota,
        record: Record::default(),
        undo: Vec::new(),
        lasting: options.lasting,
        curve: Curve::new(),
        faults: Vec::new(),
        undone: Undone::default(),
    };
    println!("seed {}, {} s", options.seed, options.length.as_secs());
    let result = torture.run(options.length, dir.path());
    torture.summary();
    drop(torture);
    if options.keep || result.is_err() {
        println!("data and logs are in {}", dir.keep().display());
    }
    result
}

impl Torture {
    fn run(&mut self, length: Duration, dir: &Path) -> Outcome<()> {
        for process in &mut self.processes {
            process.start()?;
        }
        let begun = Instant::now();
        while !self.record.is_busy() {
            if begun.elapsed() > PATIENCE {
                return Err("no operation succeeded at first".into());
            }
            self.process_until(Instant::now() + Duration::from_millis(50))?;
        }
        let end = Instant::now() + length;
        while Instant::now() < end {
            self.check_directories()?;
            self.inject_fault()?;
            let instances = self.processes.iter().filter_map(Process::started);
            self.curve.print_if_due(self.record.operations(), self.faults.len(), instances);
            let pause = self.random.milliseconds(50, 1_500);
            self.process_until(Instant::now() + pause)?;
        }
        self.repair()?;
        self.settle()?;
        self.check(dir)
    }

    /// Processes the output of the instances until some time, and undoes faults when they are due.
    fn process_until(&mut self, until: Instant) -> Outcome<()> {
        loop {
            let now = Instant::now();
            for undo in self.undo.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
                self.undo(undo.1)?;
            }
            let next = self.undo.iter().map(|(at, _)| *at).min().map_or(until, |at| at.min(until));
            let mut received = false;
            for place in 0..NODES {
                received |= self.take_lines(place)?;
                // An instance may end only because its disk is full or fails: that stops its node.
                if let Some(status) = self.processes[place].ended()? {
                    self.take_lines(place)?;
                    let may_be_full = place == NODES - 1 && self.quota.is_some();
                    if !may_be_full && !self.processes[place].has_failed_disk()? {
                        return Err(
                            format!("instance {place} has ended by itself: {status}").into()
                        );
                    }
                    self.undo.push((now + RESTART, Undo::Start(place)));
                }
            }
            if now >= until {
                return Ok(());
            }
            if !received {
                let wait = next.saturating_duration_since(now).min(Duration::from_millis(20));
                std::thread::sleep(wait);
            }
        }
    }

    /// Processes what an instance has printed. Returns whether that is anything.
    fn take_lines(&mut self, place: usize) -> Outcome<bool> {
        let (life, lines) = (self.processes[place].life, self.processes[place].lines());
        for line in &lines {
            self.record.add_line(place, life, line)?;
        }
        Ok(!lines.is_empty())
    }

    fn check_directories(&mut self) -> Outcome<()> {
        self.processes.iter_mut().try_for_each(Process::check_directory)
    }

    /// Waits until clients have finished and all replicas are equal.
    fn settle(&mut self) -> Outcome<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            self.check_directories()?;
            let missing: Vec<usize> =
                (0..NODES).filter(|place| !self.record.has_finished(*place)).collect();
            for place in &missing {
                // Repeats this, because an instance whose disk was full may have been restarted.
                self.processes[*place].order("finish")?;
            }
            if missing.is_empty() && self.record.replicas_agree() {
                return Ok(());
            }
            if Instant::now() > until {
                let states = self.record.states();
                return Err(format!("not well again: {missing:?} not ready, {states:?}").into());
            }
            if missing.is_empty() {
                for process in &mut self.processes {
                    process.order("state")?;
                }
            }
            self.process_until(Instant::now() + Duration::from_millis(200))?;
        }
    }

    fn check(&self, dir: &Path) -> Outcome<()> {
        self.record.check_locks()?;
        let verdict = self.record.history().check();
        let path = match &verdict {
            Verdict::Linearizable(_) => return Ok(()),
            Verdict::Not(anomaly) => &anomaly.path,
            Verdict::Undecided(path) => path,
        };
        let file = dir.join("history");
        std::fs::write(&file, operations_text(self.record.history().operations(path), path))?;
        Err(format!("{verdict}; its operations are in {}", file.display()).into())
    }

    fn summary(&self) {
        let mut names = self.faults.clone();
        names.sort_unstable();
        let faults: Vec<String> = names
            .chunk_by(|one, two| one == two)
            .map(|same| format!("{} {}", same[0], same.len()))
            .collect();
        println!("faults: {}", faults.join(", "));
        let failed: Vec<Failed> =
            self.processes.iter().filter_map(|process| process.failures().ok()).collect();
        let sum = |one: fn(&Failed) -> u32| failed.iter().map(one).sum::<u32>();
        println!(
            "power cuts undid {} pages and {} names; {} syncs and {} reads failed, {} calls found no space",
            self.undone.pages,
            self.undone.names,
            sum(|failed| failed.syncs),
            sum(|failed| failed.reads),
            sum(|failed| failed.refused),
        );
        println!("{}", self.record.summary());
    }
}
