//! Checks the checks: each planted bug must be found, by the checks that its row in `planted` names, and about
//! as soon as the table in `docs/planted.md` says.
//!
//! | where | what |
//! | --- | --- |
//! | `table` | the table: for each bug, in how many worlds it was found, and by which checks |
//! | `harder` | the test whether a bug has become harder to find |

mod harder;
mod table;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::{Kind, Report, Verbosity, run_with};
use crate::planted::{Bug, plant};

use harder::{Comparison, Outcome};

pub use table::{Row, Table};

/// How long a world under load lasts.
const LOADED: Duration = Duration::from_secs(60);

/// How long a world lasts in which a member that is alive may be replaced.
const LONG: Duration = Duration::from_secs(600);

/// The number of clients in worlds for bugs of clients.
const CLIENTS: usize = 60;

/// Checks that see later, or in another way, what another check sees first. They run alone, without
/// the violations of the others.
static ALONE: [&str; 24] = [
    "I1 I2 linearizable",
    "I3 reads do not go back",
    "S4 open means caught up",
    "I31 clients receive all events",
    "K1 all clients see a change",
    "K5 no session is lost",
    "W6 what was shown is not future",
    "I13 no acknowledgement before the sync",
    "I19 no early expiry",
    "I20 a session needs its password",
    "I22 the last one releases",
    "I31 replicas come together",
    "I32 nobody is left behind",
    "I7 machine invariants",
    "K4 clients cost the leader nothing",
    "W3 nothing after the last",
    "W4 all events come before the last",
    "elections: lost stays lost",
    "elections: reported in order",
    "what is done does not come again",
    "items leave when they are done",
    "items come in their order",
    "items are not taken before they are due",
    "queues are never too full",
];

/// The result of the hunt for a planted bug.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The bug.
    pub bug: Bug,
    /// The number of worlds that were run.
    pub worlds: u64,
    /// For each check of the bug, the first run in which it failed, in the order of seeds.
    pub found: Vec<Report>,
    /// The checks of the bug that failed in no run. Empty if one check was enough.
    pub missed: Vec<&'static str>,
    /// The number of runs in which other checks failed, by check.
    pub others: BTreeMap<&'static str, u64>,
}

/// Plants a bug and runs seeds in this thread until one of its checks has found it, or each of
/// them.
///
/// A check has found the bug if it is the first to fail in a world. Failures of other checks do not
/// count.
pub fn hunt(
    bug: Bug,
    seeds: Range<u64>,
    length: Duration,
    verbosity: Verbosity,
    each: bool,
) -> Hunt {
    let missed = bug.checks().to_vec();
    let mut hunt = Hunt { bug, worlds: 0, found: Vec::new(), missed, others: BTreeMap::new() };
    let alone = ALONE.iter().filter(|check| bug.checks().contains(check));
    for only in [None].into_iter().chain(alone.map(Some)) {
        let is_asked = |check: &&str| only.map_or(!ALONE.contains(check), |only| only == check);
        for seed in seeds.clone() {
            if !hunt.missed.iter().any(is_asked) {
                break;
            }
            let report = run_planted(bug, seed, length, verbosity, only.map(std::slice::from_ref));
            hunt.worlds += 1;
            let Some(failed) = report.check else { continue };
            let before = hunt.missed.len();
            hunt.missed.retain(|check| *check != failed);
            match hunt.missed.len() < before {
                true => {
                    hunt.found.push(report);
                    if !each {
                        hunt.missed.clear();
                    }
                }
                false => *hunt.others.entry(failed).or_default() += 1,
            }
        }
    }
    hunt
}

/// Plants a bug and runs the seeds from 0 on in this thread, until there are enough worlds to tell how
/// often it is found: see [`Row::is_enough`].
pub fn measure(bug: Bug, worlds: u64, length: Duration) -> Row {
    let mut row = Row::new(bug);
    while !row.is_enough(worlds) {
        let seed = row.worlds;
        row.add(&run_planted(bug, seed, length, Verbosity::None, filter(bug)));
    }
    row
}

/// Whether a bug is still found about as often as its row says.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// The number of worlds that were run.
    pub worlds: u64,
    /// The runs in which a check of the bug failed.
    pub found: Vec<Report>,
    /// Whether the row's own seeds miss the bug now.
    pub is_stale: bool,
    /// What they say.
    pub verdict: Verdict,
}

/// Whether a planted bug is found about as often as its row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is, or its row's seeds still find it.
    AsBefore,
    /// It has become five times harder to find, or was not found at all.
    Harder,
    /// Its row's seeds miss it now, and it is so rare that more worlds are needed to tell: so many.
    TooRare(u64),
}

/// How many of a row's seeds must find its bug again, so that no other worlds are needed.
const KNOWN: usize = 2;

/// A row with so many finds says enough for a sequential test.
const FINDS_ENOUGH: u64 = 15;

/// A bug that is found as often as its row of fewer finds says is missed by so many times the worlds of a find
/// once in 20,000 times.
const FINDS_MISSED: u64 = 10;

/// Plants the bug of a row, and runs worlds in this thread until they tell whether it has become five times
/// harder to find, or `worlds` of them.
///
/// The seeds of the row come first. If they find the bug again, it is found as before. Any change of
/// what worlds do may make them miss it. Then the seeds from 0 on decide.
pub fn judge(row: &Row, worlds: u64, length: Duration, verbosity: Verbosity) -> Judgement {
    let verdict = Verdict::AsBefore;
    let mut judgement = Judgement { worlds: 0, found: Vec::new(), is_stale: false, verdict };
    let mut finds = |seed| {
        let report = run_planted(row.bug, seed, length, verbosity, filter(row.bug));
        judgement.worlds += 1;
        let found = report.check.is_some_and(|check| row.bug.checks().contains(&check));
        if found {
            judgement.found.push(report);
        }
        found
    };
    let known = &row.seeds[..row.seeds.len().min(KNOWN)];
    let is_stale = known.is_empty() || !known.iter().all(|seed| finds(*seed));
    if is_stale {
        judgement.verdict = match row.found() {
            FINDS_ENOUGH.. => compare(row, worlds, finds),
            _ => look_again(row, worlds, finds),
        };
    }
    judgement.is_stale = is_stale;
    judgement
}

/// The judgement of a bug whose row tells its rate.
fn compare(row: &Row, worlds: u64, mut finds: impl FnMut(u64) -> bool) -> Verdict {
    let mut comparison = Comparison::with(row.found(), row.worlds);
    let mut is_found = false;
    let outcome = (0..worlds).find_map(|seed| {
        let finds = finds(seed);
        is_found |= finds;
        comparison.add(finds)
    });
    match outcome {
        Some(Outcome::AsBefore) => Verdict::AsBefore,
        Some(Outcome::Harder) => Verdict::Harder,
        None if is_found => Verdict::AsBefore,
        None => Verdict::Harder,
    }
}

/// The judgement of a bug whose row has few finds: one more is enough, if the rate until then is not five times
/// lower. The row's own may have been luck, so all worlds are run before it counts as harder to find.
fn look_again(row: &Row, worlds: u64, mut finds: impl FnMut(u64) -> bool) -> Verdict {
    let needed = FINDS_MISSED * row.worlds.max(1).div_ceil(row.found().max(1));
    if needed > worlds {
        return Verdict::TooRare(needed);
    }
    let mut times = 0.0;
    let is_as_before = (0..worlds).any(|seed| {
        let finds = finds(seed);
        times += f64::from(u8::from(finds));
        finds && 5.0 * times >= row.rate() * (seed + 1) as f64
    });
    if is_as_before { Verdict::AsBefore } else { Verdict::Harder }
}

/// The checks that count in the worlds of a bug, if not all do: its own alone, if one of them sees later than
/// others do.
fn filter(bug: Bug) -> Option<&'static [&'static str]> {
    bug.checks().iter().any(|check| ALONE.contains(check)).then(|| bug.checks())
}

/// Runs one world with a planted bug.
fn run_planted(
    bug: Bug,
    seed: u64,
    length: Duration,
    verbosity: Verbosity,
    only: Option<&'static [&'static str]>,
) -> Report {
    let kind = kind_of(bug);
    let length = match kind {
        Kind::Loaded => length.min(LOADED),
        _ if bug == Bug::LivingReplaced => length.max(LONG),
        _ => length,
    };
    plant(Some(bug));
    let report = run_with(seed, length, verbosity, kind, only);
    plant(None);
    report
}

/// The kind of worlds in which a bug shows: some show only where an operator restarts the instances, under
/// load, or on a disk.
pub fn kind_of(bug: Bug) -> Kind {
    match bug {
        Bug::ReadyBeforePlace
        | Bug::ClosesWithoutHandover
        | Bug::ClosersLead
        | Bug::NewcomersUnready
        | Bug::CloserLeavesOthers
        | Bug::CloseLingers => Kind::Rolled,
        Bug::AnswersAwaitDisk
        | Bug::CutUnderTransfer
        | Bug::LevelByEntries
        | Bug::LogUntrimmed
        | Bug::SlowLeaderStays
        | Bug::FullDisksIgnored
        | Bug::StepDawdles
        | Bug::UrgentWaits => Kind::Loaded,
        Bug::ClientClings
        | Bug::ClientDialsAll
        | Bug::ClientsAnywhere
        | Bug::ElectionMovesClients
        | Bug::SessionsDieWithConnection
        | Bug::ChangeUntold => Kind::FanOut(CLIENTS),
        Bug::StartTrustsRead
        | Bug::PartOfNoTerm
        | Bug::WitnessOneSlot
        | Bug::ReadUnverified
        | Bug::RotAccepted
        | Bug::AppendUnsynced
        | Bug::NamesUnsynced
        | Bug::FailedSyncIgnored
        | Bug::CurrentEarly
        | Bug::MergeForgetsHardState => Kind::Disk,
        _ => Kind::Usual,
    }
}
