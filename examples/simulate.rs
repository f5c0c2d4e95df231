//! Runs worlds of the deterministic simulator.
//!
//! ```text
//! cargo run --release --features simulator --example simulate -- [OPTIONS]
//!
//! --seed N          this seed; may be given several times
//! --seeds FROM..TO  these seeds
//! --random COUNT    so many fresh seeds
//! --found           the seeds that have found something before
//! --minutes M       how long faults happen in each world (10; of a fleet or under load, 1)
//! --fleet           worlds of 1,000 instances: 5 voters, 15 learners and 980 clients without a
//!                   replica, which are cut off, crash and lose their members many at a time
//! --clients N       with --fleet: N clients that watch one znode; counts what a change costs the leader,
//!                   and how soon all are served again after the death of a member
//! --rolled          worlds in which an operator stops and starts the members in turn, by their
//!                   readiness alone, in most of them with empty disks
//! --loaded          worlds whose clients write without a pause while disks are slow and members away;
//!                   steps, messages and writes take time by what they carry
//! --jobs J          worker threads, each with a world of its own (1)
//! --trace           all that happens in words, of seeds that do not fail too;
//!                   with --planted, how it came to what was found
//! --planted COUNT   plants each of the known bugs, and expects to find it in so many seeds
//! --bug NAME        only this one of them
//! ```

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quorate::planted::Bug;
use quorate::simulation::{FOUND, Kind, Report, Totals, Words, hunt, run, run_once};

/// How long faults happen, unless told otherwise.
const MINUTES: u64 = 10;
const MINUTES_OF_LARGE: u64 = 1;

/// The kinds of worlds besides the usual one, and their options.
const KINDS: [(Kind, &str); 3] =
    [(Kind::Fleet, "--fleet"), (Kind::Rolled, "--rolled"), (Kind::Loaded, "--loaded")];

#[derive(Default)]
struct Options {
    seeds: Vec<u64>,
    kind: Kind,
    length: Duration,
    jobs: usize,
    trace: bool,
    /// How many seeds a planted bug may take to be found.
    planted: Option<u64>,
    bugs: Vec<Bug>,
}

fn parse() -> Result<Options, String> {
    let mut options = Options { jobs: 1, ..Options::default() };
    let (mut minutes, mut clients) = (None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        if option == "--trace" {
            options.trace = true;
            continue;
        }
        let kind = KINDS.iter().find(|(_, name)| *name == option);
        if let Some((kind, _)) = kind {
            options.kind = *kind;
            continue;
        }
        if option == "--found" {
            options.seeds.extend(FOUND.iter().map(|(seed, _)| *seed));
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
        let number = |text: &str| {
            text.parse::<u64>().map_err(|_| format!("{option}: {text:?} is not a number"))
        };
        match option.as_str() {
            "--seed" => options.seeds.push(number(&value)?),
            "--seeds" => {
                let (from, to) =
                    value.split_once("..").ok_or_else(|| format!("{option} needs FROM..TO"))?;
                options.seeds.extend(number(from)?..number(to)?);
            }
            "--random" => {
                for _ in 0..number(&value)? {
                    let mut bytes = [0; 8];
                    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
                    options.seeds.push(u64::from_le_bytes(bytes));
                }
            }
            "--clients" => {
                clients =
                    Some(usize::try_from(number(&value)?).map_err(|error| error.to_string())?);
            }
            "--minutes" => minutes = Some(number(&value)?),
            "--planted" => options.planted = Some(number(&value)?),
            "--bug" => {
                let named = |bug: &&Bug| format!("{bug:?}") == value;
                let bug = Bug::ALL.iter().find(named).ok_or_else(|| format!("no bug {value:?}"))?;
                options.bugs.push(*bug);
            }
            "--jobs" => options.jobs = usize::try_from(number(&value)?).unwrap_or(1).max(1),
            _ => return Err(format!("unknown option {option}")),
        }
    }
    if let Some(clients) = clients {
        if options.kind != Kind::Fleet {
            return Err("--clients is for --fleet".to_owned());
        }
        options.kind = Kind::FanOut(clients);
    }
    let usual = match options.kind {
        Kind::Fleet | Kind::FanOut(_) | Kind::Loaded => MINUTES_OF_LARGE,
        Kind::Usual | Kind::Rolled => MINUTES,
    };
    options.length = Duration::from_secs(60 * minutes.unwrap_or(usual));
    if options.seeds.is_empty() && options.planted.is_none() {
        let which =
            "which seeds? --seed N, --seeds FROM..TO, --random COUNT, --found or --planted COUNT";
        return Err(which.to_owned());
    }
    Ok(options)
}

/// The options of this kind of world.
fn words_of(kind: Kind) -> String {
    if let Kind::FanOut(clients) = kind {
        return format!("--fleet --clients {clients} ");
    }
    let name = KINDS.iter().find(|(known, _)| *known == kind);
    name.map_or(String::new(), |(_, name)| format!("{name} "))
}

fn show(report: &Report, options: &Options) {
    for line in &report.timeline {
        println!("| {line}");
    }
    if let Some(failure) = &report.failure {
        println!("seed {} FAILED: {failure}", report.seed);
        println!(
            "replay: cargo run --release --features simulator --example simulate -- {}--minutes {} \
             --seed {}",
            words_of(options.kind),
            options.length.as_secs() / 60,
            report.seed
        );
    }
}

/// Hunts every planted bug; whether all were found.
fn hunt_all(options: &Options, seeds: u64) -> bool {
    let bugs = if options.bugs.is_empty() { &Bug::ALL } else { options.bugs.as_slice() };
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let words = if options.trace { Words::Last } else { Words::None };
                    let hunt = hunt(*bug, 0..seeds, options.length, words);
                    let (name, story) = (format!("{bug:?}"), bug.story());
                    match hunt.found.as_ref().and_then(|report| report.failure.as_ref()) {
                        Some(failure) => {
                            let timeline = hunt.found.iter().flat_map(|report| &report.timeline);
                            timeline.for_each(|line| println!("| {line}"));
                            let failure: String = failure.chars().take(90).collect();
                            println!("{name:26} found by seed {:2}: {failure}", hunt.seeds - 1);
                        }
                        None => {
                            println!("{name:26} NOT FOUND in {} seeds: {story}", hunt.seeds);
                            missed.lock().expect("no worker panics with it").push(*bug);
                        }
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("no worker panics with it");
    println!("{} of {} planted bugs found", bugs.len() - missed.len(), bugs.len());
    missed.is_empty()
}

#[expect(clippy::disallowed_methods, reason = "it says how fast it is")]
fn now() -> Instant {
    Instant::now()
}

fn main() -> ExitCode {
    let options = match parse() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    // A panic in a world is reported with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    if let Some(seeds) = options.planted
        && !hunt_all(&options, seeds)
    {
        return ExitCode::FAILURE;
    }
    if options.seeds.is_empty() {
        return ExitCode::SUCCESS;
    }
    let start = now();
    let next = AtomicUsize::new(0);
    let done = Mutex::new((Totals::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while let Some(seed) = options.seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = match options.trace {
                        false => run(*seed, options.length, options.kind),
                        true => run_once(*seed, options.length, Words::All, options.kind),
                    };
                    let mut done = done.lock().expect("no worker panics while it holds this");
                    done.0.add(&report.totals);
                    if options.seeds.len() == 1 {
                        println!("seed {seed}: trace {:016x}", report.trace_hash);
                    }
                    show(&report, &options);
                    if report.failure.is_some() {
                        done.1.push(report.seed);
                    }
                }
            });
        }
    });
    let (totals, failed) = done.into_inner().expect("no worker panics while it holds this");
    let took = start.elapsed().as_secs_f64();
    println!("{totals}");
    println!(
        "{took:.1} s: {:.2} seeds a second, {:.0} virtual seconds a second",
        totals.seeds as f64 / took,
        totals.virtual_time.as_secs_f64() / took
    );
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("{} seeds failed: {failed:?}", failed.len());
    ExitCode::FAILURE
}
