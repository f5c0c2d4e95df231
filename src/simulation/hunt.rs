//! Checks the checks: a planted bug must be found.

use std::ops::Range;
use std::time::Duration;

use super::{Kind, Report, Words, run_once};
use crate::planted::{Bug, plant};

/// How long a world under load lasts.
const LOADED: Duration = Duration::from_secs(60);

/// How the hunt for a planted bug went.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The bug.
    pub bug: Bug,
    /// How many seeds were run, including the one that found it.
    pub seeds: u64,
    /// The run that found it, if one did.
    pub found: Option<Report>,
}

/// Plants a bug and runs seeds until a check finds something wrong, in this thread.
///
/// The check that finds it need not be the one that its name suggests: a lost write may show first as
/// two replicas that differ.
pub fn hunt(bug: Bug, seeds: Range<u64>, length: Duration, words: Words) -> Hunt {
    let mut hunt = Hunt { bug, seeds: 0, found: None };
    // These show only where an operator restarts the instances, or under load.
    let kind = match bug {
        Bug::ReadyBeforePlace | Bug::ClosesWithoutHandover => Kind::Rolled,
        Bug::AnswersAwaitDisk
        | Bug::LevelByEntries
        | Bug::ProbesUnbounded
        | Bug::SlowLeaderStays => Kind::Loaded,
        _ => Kind::Usual,
    };
    let length = if kind == Kind::Loaded { length.min(LOADED) } else { length };
    for seed in seeds {
        plant(Some(bug));
        let report = run_once(seed, length, words, kind);
        plant(None);
        hunt.seeds += 1;
        if report.failure.is_some() {
            hunt.found = Some(report);
            break;
        }
    }
    hunt
}
