//! Checks the checks: each planted bug must be found, and by the checks that its row names.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::{Kind, Report, Verbosity, run_with};
use crate::planted::{Bug, plant};

/// How long a world under load lasts.
const LOADED: Duration = Duration::from_secs(60);

/// Seeds that find bugs that are seldom found. They are tried first, to save time. Any change of
/// what worlds do makes them stale, which costs that time again.
const FOUND_BY: [(Bug, u64); 52] = [
    (Bug::LivingReplaced, 212),
    (Bug::LeaderChangeMissed, 180),
    (Bug::EndedSessionReopens, 85),
    (Bug::MoveFires, 80),
    (Bug::PresumedAlive, 51),
    (Bug::QueueReturnUnnoticed, 51),
    (Bug::VoterRemovedBelowQuorum, 51),
    (Bug::ClientReadUnopened, 47),
    (Bug::UrgentWaits, 32),
    (Bug::ClientLossUnnoticed, 31),
    (Bug::RemovalOutdated, 22),
    (Bug::ClientWatchFromNow, 19),
    (Bug::FenceUnchecked, 18),
    (Bug::LastForLeader, 17),
    (Bug::ClosesWithoutHandover, 15),
    (Bug::EventsLostAtSnapshot, 15),
    (Bug::ClientWriteAgain, 14),
    (Bug::UpdateLost, 14),
    (Bug::ReadWithoutQuorum, 13),
    (Bug::DowngradeLetsGo, 12),
    (Bug::PredecessorMissed, 12),
    (Bug::RevocationLost, 12),
    (Bug::SemaphoreOneMore, 12),
    (Bug::GoneMemberShown, 11),
    (Bug::UsageUnchecked, 10),
    (Bug::RemovedUnaware, 8),
    (Bug::SentRefused, 8),
    (Bug::CutUnderTransfer, 7),
    (Bug::GapLate, 7),
    (Bug::LossUnreported, 7),
    (Bug::ProbesUnbounded, 7),
    (Bug::VersionLostAtSnapshot, 7),
    (Bug::VoteLostAtInstall, 7),
    (Bug::ChrootIgnored, 6),
    (Bug::LogTimeBack, 6),
    (Bug::SyncWithoutCatchingUp, 6),
    (Bug::ClientLeaseFromAnswer, 5),
    (Bug::LeaseTooLong, 5),
    (Bug::LevelByEntries, 5),
    (Bug::LockDelaySkipped, 5),
    (Bug::TwoLeaders, 5),
    (Bug::VoteLost, 5),
    (Bug::ZonesIgnored, 5),
    (Bug::AckBeforeDurable, 4),
    (Bug::ClientSeesOlder, 4),
    (Bug::CloneHoldsApart, 4),
    (Bug::FormerDataDeleted, 4),
    (Bug::LogUntrimmed, 4),
    (Bug::MarkBelieved, 4),
    (Bug::OwnPromiseIgnored, 4),
    (Bug::RotAccepted, 4),
    (Bug::SnapshotAhead, 4),
];

/// The number of clients in worlds for bugs of clients.
const CLIENTS: usize = 60;

/// Checks that see later, or in another way, what another check sees first. They run alone, without
/// the violations of the others.
const ALONE: [&str; 20] = [
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

/// The kind of worlds in which a bug shows: some show only where an operator restarts the instances, under
/// load, or on a disk.
pub fn kind_of(bug: Bug) -> Kind {
    match bug {
        Bug::ReadyBeforePlace
        | Bug::ClosesWithoutHandover
        | Bug::NewcomersUnready
        | Bug::ClosersLead
        | Bug::CloserLeavesOthers
        | Bug::CloseLingers => Kind::Rolled,
        Bug::AnswersAwaitDisk
        | Bug::CutUnderTransfer
        | Bug::LeaderAwaitsDisk
        | Bug::LevelByEntries
        | Bug::LogUntrimmed
        | Bug::SlowLeaderStays
        | Bug::FullDisksIgnored
        | Bug::StepDawdles
        | Bug::UrgentWaits => Kind::Loaded,
        Bug::ClientDialsAll
        | Bug::ClientsAnywhere
        | Bug::ClientClings
        | Bug::ElectionMovesClients
        | Bug::SessionsDieWithConnection
        | Bug::ChangeUntold => Kind::FanOut(CLIENTS),
        Bug::StartTrustsRead
        | Bug::PartOfNoTerm
        | Bug::AppendUnsynced
        | Bug::SegmentEndUnsynced
        | Bug::SegmentNameUnsynced
        | Bug::FrameUnsynced
        | Bug::FrameNameUnsynced
        | Bug::FailedSyncIgnored
        | Bug::CheckpointUnsynced
        | Bug::FinishedUnsynced
        | Bug::MovesUnannounced
        | Bug::ReadErrorIsDamage
        | Bug::SpareDamageCounts
        | Bug::ReadUnverified
        | Bug::RotStops
        | Bug::LimitIsFailure
        | Bug::ChangeNotRetried
        | Bug::CheckpointNotRetried
        | Bug::InstallBesideCheckpoint
        | Bug::MergeForgetsHardState
        | Bug::MergeKeepsReplaced
        | Bug::WitnessOneSlot
        | Bug::WitnessStays => Kind::Disk,
        _ => Kind::Usual,
    }
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
    let kind = kind_of(bug);
    let length = if kind == Kind::Loaded { length.min(LOADED) } else { length };
    let missed = bug.checks().to_vec();
    let mut hunt = Hunt { bug, worlds: 0, found: Vec::new(), missed, others: BTreeMap::new() };
    let alone = ALONE.into_iter().filter(|check| bug.checks().contains(check)).map(Some);
    for only in [None].into_iter().chain(alone) {
        let is_asked = |check: &&str| only.map_or(!ALONE.contains(check), |only| **check == *only);
        let hint = FOUND_BY.iter().find(|(of, _)| *of == bug).map(|(_, seed)| *seed);
        let hint = hint.filter(|seed| seeds.contains(seed));
        for seed in hint.into_iter().chain(seeds.clone()) {
            if !hunt.missed.iter().any(is_asked) {
                break;
            }
            plant(Some(bug));
            let report = run_with(seed, length, verbosity, kind, only);
            plant(None);
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
