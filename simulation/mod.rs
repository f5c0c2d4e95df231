//! The simulator: a whole cluster in one thread, in which one seed decides every random choice.
//!
//! It runs the library's own code, from the handles of users down to what a node hands to its disk
//! and its network. It replaces only these two, the clocks, and the operating system's random
//! numbers. The same seed gives the same trace, byte for byte, so that a failure can be replayed:
//!
//! ```text
//! cargo run --release -p quorate-simulation -- --seed N
//! ```
//!
//! A run has two halves, as TigerBeetle's has. First, faults of all kinds happen while clients work,
//! and every check must hold all the time. Then the faults end, and the cluster must recover, answer
//! everything and make its replicas equal, within a bounded time. These bounds are computed from the
//! times that the engine itself uses ([`Timings`](crate::node::timings::Timings)).
//!
//! | where | what |
//! | --- | --- |
//! | `world` | the events, and the nodes as their threads would run them |
//! | `process`, `disk`, `network`, `clock` | the environment of a node |
//! | `traffic`, `sync` | how messages and writes travel through it |
//! | `faults`, `inject` | all faults, their rates and their effects |
//! | `members` | which member is at which place: instances that join, leave and move, disks that are lost |
//! | `damages` | damaged disks: when a disk is put aside, all disks damaged at once, repairs |
//! | `client_instances` | clients: instances without a replica |
//! | `rolls` | an operator who restarts the instances in turn |
//! | `load`, `episodes` | writers that never pause, and the faults that they meet |
//! | `costs` | the time that a step, a message and a write take |
//! | `upgrades` | members of several versions |
//! | `plan` | what a seed draws: sizes, settings, rates |
//! | `kernel`, `executor`, `timeline`, `client` | the clients' tasks and handles |
//! | `workload` | the workloads of clients, one file for each area |
//! | `oracle` | a plain model that replays the committed log |
//! | `checks` | the invariants, one file for each concern |
//! | `linearizability` | whether the replies to clients are linearizable, without a look at the log |
//! | `trace` | the hash of everything that happened, and the last events as text |
//! | `disk_world`, `disk_spoils`, `disk_threads`, `durable` | worlds of one disk: the store's own code on a simulated file system |
//! | `hunt` | the search for planted bugs, which tests the checks |
//! | `surroundings` | planted bugs of disks, of the network, and of the delivery of events |
//!
//! Caveats. In worlds of clusters the store is a model; worlds of one disk run its own code. Connections
//! are not simulated either: messages go through the real codec, but not through a socket. Threads
//! are simulated as events, so the simulator does not find races between threads.

mod audits;
mod checks;
mod client;
mod client_instances;
mod clock;
mod costs;
mod damages;
mod disk_spoils;
mod disk_threads;
mod disk_world;
mod durable;
mod episodes;
mod executor;
mod fan_out;
mod faults;
mod hunt;
mod inject;
mod kernel;
pub mod linearizability;
mod load;
mod members;
mod network;
mod oracle;
mod plan;
mod process;
pub(crate) mod random;
mod rolls;
mod seeds;
mod starts;
mod stops;
mod surroundings;
mod sync;
mod timeline;
mod totals;
mod trace;
mod traffic;
mod upgrades;
mod workload;
mod world;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use checks::Violation;
use clock::{Nanos, SECOND, nanos};
use kernel::Phase;
use world::World;

pub use crate::planted::Bug;
pub use hunt::{Hunt, Judgement, Row, Table, Verdict, hunt, judge, kind_of, measure};
pub use seeds::FOUND;
pub use totals::Totals;
pub use trace::Verbosity;

/// The result of one seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The hash of everything that happened: the same in every run of the seed.
    pub trace_hash: u64,
    /// The check that failed, if one did.
    pub check: Option<&'static str>,
    /// The name of the check, and what it found.
    pub failure: Option<String>,
    /// Every fault and the last other events as text. Only of a failed run.
    pub timeline: Vec<String>,
    /// Counters of the run.
    pub totals: Totals,
}

/// The kind of world in which a seed runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A few members, their clients, and all kinds of faults.
    #[default]
    Usual,
    /// A thousand instances: 5 voters, 15 learners and 980 clients.
    Fleet,
    /// This many clients that all watch one znode, with 5 voters and 15 learners. It checks which
    /// members serve them and what a change costs the leader.
    FanOut(usize),
    /// A few members that an operator restarts in turn, guided by their readiness alone, in most
    /// worlds with empty disks.
    Rolled,
    /// A few members whose clients write without a pause while disks are slow and members are away.
    Loaded,
    /// One disk, with the store's own code and every fault of a file system and of a device.
    Disk,
}

/// Runs one seed, with faults for this time. A seed that fails runs again, for its timeline.
pub fn run(seed: u64, length: Duration, kind: Kind) -> Report {
    let report = run_once(seed, length, Verbosity::None, kind);
    if report.failure.is_none() {
        return report;
    }
    let again = run_once(seed, length, Verbosity::Last, kind);
    if again.trace_hash == report.trace_hash {
        return again;
    }
    let failure = report.failure.as_deref().unwrap_or_default();
    let failure = format!("{failure} (and a second run of the seed went differently)");
    Report { failure: Some(failure), ..again }
}

/// Runs one seed and keeps as much text as requested.
pub fn run_once(seed: u64, length: Duration, verbosity: Verbosity, kind: Kind) -> Report {
    run_with(seed, length, verbosity, kind, None)
}

/// The same, with all checks or with these alone.
fn run_with(
    seed: u64,
    length: Duration,
    verbosity: Verbosity,
    kind: Kind,
    only: Option<&'static [&'static str]>,
) -> Report {
    let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX / 4);
    if kind == Kind::Disk {
        return run_disk(seed, verbosity, only);
    }
    let mut world = World::new(seed, length, verbosity, kind);
    world.kernel.only.set(only);
    if verbosity != Verbosity::None {
        world.kernel.trace.log_fault(format_args!("{:?}", world.kernel.plan));
    }
    let lived = catch_unwind(AssertUnwindSafe(|| match kind {
        Kind::FanOut(_) => fan_out::run_to_end(&mut world),
        Kind::Usual | Kind::Fleet | Kind::Rolled | Kind::Loaded | Kind::Disk => {
            run_to_end(&mut world);
        }
    }));
    if let Err(panic) = lived {
        let what = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        world.kernel.fail(Violation::new("a panic", what));
    }
    let kernel = &world.kernel;
    let checks = kernel.checks.try_borrow();
    for _ in checks.iter().flat_map(|checks| &checks.agreement.leaders) {
        kernel.count_event("elections");
    }
    let totals = Totals {
        seeds: 1,
        virtual_time: Duration::from_nanos(kernel.now()),
        faults: totals::faults(&kernel.fault_counts()),
        operations: kernel.operation_counts(),
        events: kernel.event_counts(),
        watch_events: checks.as_ref().map_or(0, |checks| checks.watches.events),
        entries: checks.as_ref().map_or(0, |checks| checks.oracle.last()),
        steps: world.steps,
    };
    drop(checks);
    let violation = kernel.take_violation();
    Report {
        seed,
        trace_hash: kernel.trace.hash(),
        check: violation.as_ref().map(|violation| violation.check),
        failure: violation.map(|violation| violation.to_string()),
        timeline: kernel.trace.timeline(),
        totals,
    }
}

/// Runs the world of one disk.
fn run_disk(seed: u64, verbosity: Verbosity, only: Option<&'static [&'static str]>) -> Report {
    let lived = catch_unwind(AssertUnwindSafe(|| disk_world::run(seed)));
    let outcome = lived.unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().map_or("no message", String::as_str);
        let violation = Some(Violation::new("a panic", what));
        disk_world::Outcome { violation, ..disk_world::Outcome::default() }
    });
    let counts = |violation: &Violation| only.is_none_or(|only| only.contains(&violation.check));
    let violation = outcome.violation.filter(counts);
    let timeline = match verbosity {
        Verbosity::None => Vec::new(),
        _ => outcome.story.into_iter().collect(),
    };
    Report {
        seed,
        trace_hash: outcome.trace ^ outcome.steps,
        check: violation.as_ref().map(|violation| violation.check),
        failure: violation.map(|violation| violation.to_string()),
        timeline,
        totals: Totals {
            seeds: 1,
            virtual_time: Duration::from_nanos(outcome.time),
            events: outcome.events,
            steps: outcome.steps,
            ..Totals::default()
        },
    }
}

/// How often [`await_until`] checks its condition.
const CHECK_INTERVAL: Nanos = SECOND / 10;

/// Runs a world to its end or to the first failed check.
fn run_to_end(world: &mut World) {
    let kernel = std::rc::Rc::clone(&world.kernel);
    // The longest session timeout.
    let timeout = kernel.plan.session_timeout * 2;
    let timeout = nanos(timeout);
    world.begin_chaos();
    while world.now() < kernel.plan.length && !kernel.has_failed() {
        world.run_until((world.now() + SECOND).min(kernel.plan.length));
    }
    world.end_chaos();
    let recovery = kernel.plan.recovery();
    // Sessions that were lost meanwhile expire, and their ephemerals are deleted.
    await_until(world, recovery, "I31 the cluster comes back", World::has_leader);
    let known = recovery + world.removal_time();
    await_until(world, known, "I32 the version is that of all", World::has_its_version);
    let repair_time = world.repair_time();
    await_until(world, repair_time, "I25 the members are as they should be", World::is_whole);
    run_for(world, 3 * timeout);
    enter(world, Phase::Calm);
    // Longer than it takes others to do what members that hang do not do.
    let with_hung = if kernel.plan.partitions { 25 * SECOND } else { 0 };
    run_for(world, 2 * timeout + 5 * SECOND + with_hung);
    enter(world, Phase::Drain);
    let done = |world: &World| world.kernel.executor.is_empty();
    await_until(world, recovery + 20 * kernel.plan.think, "I31 everything is answered", done);
    enter(world, Phase::Settle);
    run_for(world, 2 * timeout);
    await_until(world, recovery, "I31 replicas come together", World::is_settled);
    await_until(world, recovery, "I31 clients receive all events", World::clients_know_all);
    // One container after another: each may have been the only child of the next.
    let tidied = recovery + 3 * nanos(kernel.plan.container_period);
    await_until(world, tidied, "I31 what is not used any more is deleted", World::is_tidy);
    if !kernel.has_failed() {
        let audit = world.audit();
        kernel.check(audit);
    }
}

fn enter(world: &World, phase: Phase) {
    world.kernel.phase.set(phase);
    world.kernel.trace.log_fault(format_args!("{phase:?}"));
}

fn run_for(world: &mut World, time: Nanos) {
    world.run_until(world.now() + time);
}

/// Lets time pass until `is_so` holds, which must happen within `time`.
fn await_until(
    world: &mut World,
    time: Nanos,
    check: &'static str,
    is_so: impl Fn(&World) -> bool,
) {
    let until = world.now() + time;
    while !world.kernel.has_failed() && !is_so(world) {
        if world.now() < until {
            world.run_until(world.now() + CHECK_INTERVAL);
            continue;
        }
        let what = {
            const SHOWN: usize = 40;
            let mut waits = world.kernel.waits();
            waits.truncate(SHOWN);
            let nodes: Vec<String> = world.processes.iter().map(describe).collect();
            let (members, clients) = (world.describe_members(), world.describe_clients());
            let time = time / SECOND;
            format!(
                "not within {time} s; {waits:?} are waited for; {nodes:?}; {members}; {clients:?}"
            )
        };
        world.kernel.fail(Violation::new(check, what));
        return;
    }
}

fn describe(process: &process::Process) -> String {
    match &process.life {
        None => "down".to_owned(),
        Some(life) => {
            let node = life.host.node();
            format!("{:?} at {}", node.leadership(), node.applied().index)
        }
    }
}
