//! Runs worlds of the deterministic simulator, each a cluster with its faults and clients.
//!
//! ```text
//! cargo run --release -p quorate-simulation -- [OPTIONS]
//!
//! --seed N          this seed; may be given several times
//! --seeds FROM..TO  these seeds
//! --random COUNT    this many random seeds
//! --found           the seeds that have found bugs before
//! --minutes M       how long faults happen in each world (10; of a fleet or under load, 1; for
//!                   planted bugs, 2)
//! --fleet           worlds of 1,000 instances: 5 voters, 15 learners and 980 clients without a
//!                   replica, which are cut off, crash and lose their members, many at a time
//! --clients N       with --fleet: N clients watch one znode; counts what a change costs the leader,
//!                   and how soon all clients are served again after the death of a member
//! --rolled          worlds in which an operator restarts the members in turn, guided by their
//!                   readiness alone, in most of them with empty disks
//! --loaded          worlds whose clients write without a pause while disks are slow and members
//!                   are away; steps, messages and writes take time in proportion to their work
//! --disks           worlds of one disk: the store's own code, and every fault of a file system and of a
//!                   device
//! --jobs J          worker threads, each with a world of its own (1)
//! --trace           prints all events, also of seeds that do not fail;
//!                   with --planted, the events that led to a failure
//! --planted COUNT   plants each of the known bugs, or those that show in the chosen kind of world, and
//!                   expects that one of its checks finds it about as soon as docs/planted.md says,
//!                   in at most this many worlds
//! --renew           with --planted, gives rows whose seeds miss their bug now the seeds that have found it
//! --each            with --planted, expects that each of its checks finds it
//! --find COUNT      plants the same bugs in this many worlds each, and writes to docs/planted.md in
//!                   how many each was found; fewer worlds are enough for a bug that is found often,
//!                   and one that is not found gets more, until it is
//! --bug NAME        only this bug
//! --checks          lists the bugs that each check must find
//! ```

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quorate_simulation::simulation::{
    Bug, FOUND, Kind, Report, Table, Totals, Verbosity, Verdict, hunt, judge, kind_of, measure,
    run, run_once,
};

/// The page with the table of planted bugs.
const PAGE: &str = "docs/planted.md";
/// How long faults happen by default.
const MINUTES: u64 = 10;
const MINUTES_OF_LARGE: u64 = 1;
/// Most planted bugs show soon or never, so many short worlds find them sooner than a few long ones.
const MINUTES_OF_HUNTS: u64 = 2;

/// The kinds of worlds other than the default one, and their options.
const KINDS: [(Kind, &str); 4] = [
    (Kind::Fleet, "--fleet"),
    (Kind::Rolled, "--rolled"),
    (Kind::Loaded, "--loaded"),
    (Kind::Disk, "--disks"),
];

#[derive(Default)]
struct Options {
    seeds: Vec<u64>,
    kind: Kind,
    length: Duration,
    jobs: usize,
    trace: bool,
    /// Whether to list the checks and their bugs and do nothing else.
    checks: bool,
    /// The number of worlds within which a planted bug must be found.
    planted: Option<u64>,
    /// The number of worlds in which each planted bug is looked for.
    find: Option<u64>,
    /// Whether each of a bug's checks must find it.
    each: bool,
    /// Whether to replace the seeds of rows that miss their bug now.
    renew: bool,
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
        if option == "--each" {
            options.each = true;
            continue;
        }
        if option == "--renew" {
            options.renew = true;
            continue;
        }
        if option == "--checks" {
            options.checks = true;
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
            "--find" => options.find = Some(number(&value)?),
            "--bug" => {
                let named = |bug: &&Bug| format!("{bug:?}") == value;
                let bug = Bug::ALL.iter().find(named).ok_or_else(|| format!("no bug {value:?}"))?;
                if bug.checks().is_empty() {
                    return Err(format!("a test finds {value}, and no check here"));
                }
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
        Kind::Usual | Kind::Rolled | Kind::Disk => MINUTES,
    };
    let hunts = options.planted.is_some() || options.find.is_some();
    let usual = if hunts { MINUTES_OF_HUNTS } else { usual };
    options.length = Duration::from_secs(60 * minutes.unwrap_or(usual));
    if options.seeds.is_empty() && !hunts && !options.checks {
        let which = "which seeds? --seed N, --seeds FROM..TO, --random COUNT, --found, \
                     --planted COUNT or --find COUNT";
        return Err(which.to_owned());
    }
    Ok(options)
}

/// The options of this kind of world.
fn options_of(kind: Kind) -> String {
    if let Kind::FanOut(clients) = kind {
        return format!("--fleet --clients {clients} ");
    }
    let name = KINDS.iter().find(|(known, _)| *known == kind);
    name.map_or(String::new(), |(_, name)| format!("{name} "))
}

fn print_report(report: &Report, options: &Options) {
    for line in &report.timeline {
        println!("| {line}");
    }
    if let Some(failure) = &report.failure {
        println!("seed {} FAILED: {failure}", report.seed);
        println!(
            "replay: cargo run --release -p quorate-simulation -- {}--minutes {} \
             --seed {}",
            options_of(options.kind),
            options.length.as_secs() / 60,
            report.seed
        );
    }
}

/// Prints each check with the bugs that it must find.
fn print_checks() {
    let mut bugs: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for bug in Bug::ALL {
        bug.checks()
            .iter()
            .for_each(|check| bugs.entry(check).or_default().push(format!("{bug:?}")));
    }
    for (check, bugs) in bugs {
        println!("{check:45} {}", bugs.join(", "));
    }
}

/// The bugs to plant.
fn hunted(options: &Options) -> Vec<Bug> {
    if !options.bugs.is_empty() {
        return options.bugs.clone();
    }
    let shows = |bug: &Bug| options.kind == Kind::Usual || kind_of(*bug) == options.kind;
    Bug::ALL.iter().copied().filter(|bug| !bug.checks().is_empty() && shows(bug)).collect()
}

/// Calls `work` with each bug, in several threads.
fn for_each(bugs: &[Bug], jobs: usize, work: impl Fn(Bug) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(*bug);
                }
            });
        }
    });
}

/// Prints the first run in which a bug was found.
fn print_found(name: &str, report: &Report) {
    report.timeline.iter().for_each(|line| println!("| {line}"));
    let failure = report.failure.iter().flat_map(|failure| failure.chars());
    let failure: String = failure.take(90).collect();
    println!("{name:26} found by seed {:2}: {failure}", report.seed);
}

/// Plants every bug. Returns whether the checks have found all, as soon as the table says.
fn hunt_all(options: &Options, worlds: u64) -> Result<bool, String> {
    let hunted = hunted(options);
    let table = Table::built_in();
    let renewed = Mutex::new(Vec::new());
    let [missed, unknown, rare, stale] = [const { AtomicUsize::new(0) }; 4];
    for_each(&hunted, options.jobs, |bug| {
        let verbosity = if options.trace { Verbosity::Last } else { Verbosity::None };
        let name = format!("{bug:?}");
        let row = table.row(bug).filter(|row| row.found() > 0 && !options.each);
        if let Some(row) = row {
            let judged = judge(row, worlds, options.length, verbosity);
            judged.found.first().into_iter().for_each(|report| print_found(&name, report));
            stale.fetch_add(usize::from(judged.is_stale), Ordering::Relaxed);
            if judged.is_stale && judged.verdict == Verdict::AsBefore {
                let mut row = row.clone();
                row.renew(&judged.found);
                renewed.lock().expect("no worker panics while it holds this").push(row);
            }
            if let Verdict::TooRare(needed) = judged.verdict {
                println!(
                    "{name:26} is too rare for {worlds} worlds, and its seeds miss it now: write its row again, \
                     or use --planted {needed} --bug {name}"
                );
                rare.fetch_add(1, Ordering::Relaxed);
            }
            if judged.verdict == Verdict::Harder {
                println!(
                    "{name:26} HARDER TO FIND: in {} of {} worlds; by docs/planted.md in {} of {}: {}",
                    judged.found.len(),
                    judged.worlds,
                    row.found(),
                    row.worlds,
                    bug.story()
                );
                missed.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        let hunt = hunt(bug, 0..worlds, options.length, verbosity, options.each);
        hunt.found.iter().for_each(|report| print_found(&name, report));
        for check in &hunt.missed {
            println!(
                "{name:26} NOT FOUND by {check:?} in {} worlds ({:?} instead): {}",
                hunt.worlds,
                hunt.others,
                bug.story()
            );
        }
        if !options.each && table.row(bug).is_none() {
            println!(
                "{name:26} has no row in docs/planted.md: add it with --find 100 --bug {name}"
            );
            unknown.fetch_add(1, Ordering::Relaxed);
        }
        missed.fetch_add(usize::from(!hunt.missed.is_empty()), Ordering::Relaxed);
    });
    let [missed, unknown, rare, stale] =
        [missed, unknown, rare, stale].map(AtomicUsize::into_inner);
    println!("{} of {} planted bugs found", hunted.len() - missed - rare, hunted.len());
    println!("the seeds of {stale} rows miss their bug now, which takes longer: see --renew");
    if options.renew {
        let rows = renewed.into_inner().expect("no worker panics while it holds this");
        let mut table = read_page()?;
        rows.into_iter().for_each(|row| table.put(row));
        write_page(&table)?;
    }
    Ok(missed == 0 && (unknown == 0 || !options.bugs.is_empty()))
}

fn read_page() -> Result<Table, String> {
    let page = std::fs::read_to_string(PAGE).map_err(|error| format!("{PAGE}: {error}"))?;
    Ok(Table::read(&page))
}

fn write_page(table: &Table) -> Result<(), String> {
    std::fs::write(PAGE, table.to_string()).map_err(|error| format!("{PAGE}: {error}"))
}

/// Plants every bug in many worlds, and writes the table of how often each is found. It writes after
/// each bug, so that it may be interrupted.
fn find_all(options: &Options, worlds: u64) -> Result<(), String> {
    let before = read_page()?;
    let mut hunted = hunted(options);
    // The longest first.
    hunted.sort_by_key(|bug| Reverse(before.row(*bug).map_or(u64::MAX, |row| row.worlds)));
    let table = Mutex::new((before.clone(), Ok(())));
    for_each(&hunted, options.jobs, |bug| {
        let row = measure(bug, worlds, options.length);
        let mut table = table.lock().expect("no worker panics while it holds this");
        println!("{row}");
        if let Some(former) = before.row(bug)
            && former.rate() >= 5.0 * row.rate()
            && former.rate() > 0.0
        {
            println!("{bug:?} is harder to find. It was:\n{former}");
        }
        table.0.put(row);
        table.1 = write_page(&table.0);
    });
    let (_, written) = table.into_inner().expect("no worker panics while it holds this");
    written
}

#[expect(clippy::disallowed_methods, reason = "it prints its speed")]
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
    // The report of a world contains its panic and its seed.
    std::panic::set_hook(Box::new(|_| {}));
    if options.checks {
        print_checks();
    }
    let hunted = options.planted.map_or(Ok(true), |worlds| hunt_all(&options, worlds));
    let found = options.find.map_or(Ok(()), |worlds| find_all(&options, worlds));
    for error in [hunted.as_ref().err(), found.as_ref().err()].into_iter().flatten() {
        eprintln!("{error}");
    }
    if hunted != Ok(true) || found.is_err() {
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
                        true => run_once(*seed, options.length, Verbosity::All, options.kind),
                    };
                    let mut done = done.lock().expect("no worker panics while it holds this");
                    done.0.add(&report.totals);
                    if options.seeds.len() == 1 {
                        println!("seed {seed}: trace {:016x}", report.trace_hash);
                    }
                    print_report(&report, &options);
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
