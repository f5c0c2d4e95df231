//! Checks the checks: a planted bug must be found, and by the checks that its row names.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::{Kind, Report, Words, run_with};
use crate::planted::{Bug, plant};

/// How long a world under load lasts.
const LOADED: Duration = Duration::from_secs(60);

/// Checks that see later, or by other means, what another check sees first: they are asked alone. What
/// the others find is passed over meanwhile.
const ALONE: [&str; 13] = [
    "I1 I2 linearizable",
    "I13 no acknowledgement before the sync",
    "I19 no early expiry",
    "I20 a session needs its password",
    "I22 the last one releases",
    "I31 replicas come together",
    "I32 nobody is left behind",
    "I7 machine invariants",
    "W3 nothing after the last",
    "W4 all is told before the last",
    "elections: lost stays lost",
    "elections: told in order",
    "what is done does not come again",
];

/// Checks that no planted bug fails, and why. All others are named by a bug.
pub const UNTRIPPED: [(&str, &str); 10] = [
    ("I18 ephemerals go with their session", "it looks at the model, which has no bugs planted"),
    ("I28 entries decode", "a node has decoded what it has applied, or has stopped"),
    ("I3 reads do not go back", "a replica shows what it has applied, and I15 looks at that first"),
    ("I31 clients are told of all", "a client that is not told is not answered either"),
    ("I31 no client stops by itself", "nothing that a client receives stops it"),
    ("M2 whoever is replaced becomes ready", "what keeps it from that keeps the first members too"),
    ("M3 a planned close is short", "its bound has room for an election without a handover"),
    (
        "U3 no session ends for another's disk",
        "a leader that hears too late is unseated before (U2)",
    ),
    (
        "W6 net changes after a move",
        "few clients move to a member that has forgotten what they saw",
    ),
    ("W6 what was shown is not future", "its session is opened by a later write, which is applied"),
];

/// How the hunt for a planted bug went.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The bug.
    pub bug: Bug,
    /// How many worlds were run.
    pub worlds: u64,
    /// For each of its checks the first run that it failed, in the order of their seeds.
    pub found: Vec<Report>,
    /// Its checks that failed no run.
    pub missed: Vec<&'static str>,
    /// How many runs which other check failed.
    pub others: BTreeMap<&'static str, u64>,
}

/// Plants a bug and runs seeds until each of its checks has found it, in this thread.
///
/// A check has found it in a world in which no other check failed before. What another one finds
/// counts for nothing.
pub fn hunt(bug: Bug, seeds: Range<u64>, length: Duration, words: Words) -> Hunt {
    // These show only where an operator restarts the instances, or under load.
    let kind = match bug {
        Bug::ReadyBeforePlace | Bug::ClosesWithoutHandover => Kind::Rolled,
        Bug::AnswersAwaitDisk
        | Bug::CutUnderTransfer
        | Bug::LeaderAwaitsDisk
        | Bug::LevelByEntries
        | Bug::LogUntrimmed
        | Bug::StepDawdles => Kind::Loaded,
        _ => Kind::Usual,
    };
    let length = if kind == Kind::Loaded { length.min(LOADED) } else { length };
    let missed = bug.checks().to_vec();
    let mut hunt = Hunt { bug, worlds: 0, found: Vec::new(), missed, others: BTreeMap::new() };
    let alone = ALONE.into_iter().filter(|check| bug.checks().contains(check)).map(Some);
    for only in alone.chain([None]) {
        let is_asked = |check: &&str| only.map_or(!ALONE.contains(check), |only| **check == *only);
        for seed in seeds.clone() {
            if !hunt.missed.iter().any(is_asked) {
                break;
            }
            plant(Some(bug));
            let report = run_with(seed, length, words, kind, only);
            plant(None);
            hunt.worlds += 1;
            let Some(failed) = report.check else { continue };
            let before = hunt.missed.len();
            hunt.missed.retain(|check| *check != failed);
            match hunt.missed.len() < before {
                true => hunt.found.push(report),
                false => *hunt.others.entry(failed).or_default() += 1,
            }
        }
    }
    hunt
}
