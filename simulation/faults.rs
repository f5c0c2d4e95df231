//! All faults and their rates.
//!
//! To add one, write a variant, a row in [`TABLE`], and an arm in the world's `inject`. For faults
//! of a message or a sync, add it where those are handled.

use super::random::Random;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A message is lost.
    Loss,
    /// A message comes twice.
    Duplicate,
    /// A message is late by up to a few seconds.
    DelaySpike,
    /// Messages overtake each other.
    Reorder,
    /// Messages from some nodes to the others are lost.
    PartitionOneWay,
    /// Messages between some nodes and the others are lost, in both directions.
    PartitionTwoWay,
    /// A node is slow in everything.
    SlowNode,
    /// Some nodes are killed and restarted later.
    Crash,
    /// A node is killed between two effects of one of its steps.
    CrashInStep,
    /// A node is closed in an orderly way and restarted later.
    Close,
    /// A process is paused for a while.
    Pause,
    /// A monotonic clock changes its rate.
    ClockDrift,
    /// A wall clock jumps.
    WallJump,
    /// A node is killed, and a part of its unsynced writes is lost. A write may be torn.
    TornWrite,
    /// A disk is slow for a while.
    SlowDisk,
    /// A sync fails.
    FailedSync,
    /// A disk is full for a while.
    FullDisk,
    /// The disk of a node cannot be read at one of its starts.
    ReadError,
    /// Data on a disk is corrupted. The node must refuse to start from it and begins again.
    BitRot,
    /// A disk has lost synced data. The node must refuse to start from it and begins again.
    LostWrites,
    /// A disk is replaced by an empty one. The node that starts from it has a new id.
    Wipe,
    /// An instance starts at a new place and joins.
    Join,
    /// An instance leaves. It comes back later as another member.
    Leave,
    /// An instance restarts with another address.
    Move,
    /// A leader is asked to resign.
    Resign,
    /// A session is expired before its time.
    Expire,
    /// No more files can be opened for a while.
    NoDescriptors,
    /// A page of a disk cannot be read any more.
    BadSector,
    /// A part of a log that its store does not need any more is damaged.
    SpareDamaged,
    /// A system writes some pages by itself, and drops those that it need not write.
    CacheDropped,
}

/// The unit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Per million messages, syncs and so on.
    PerMillion,
    /// Per thousand minutes.
    PerThousandMinutes,
}

/// One row: the fault, its name, the percentage of seeds that have it, and the range of its rate
/// there.
pub(crate) struct Row {
    pub(crate) fault: Fault,
    pub(crate) name: &'static str,
    percent: u64,
    unit: Unit,
    rate: (u64, u64),
}

const fn row(fault: Fault, name: &'static str, percent: u64, unit: Unit, rate: (u64, u64)) -> Row {
    Row { fault, name, percent, unit, rate }
}

use Unit::{PerMillion, PerThousandMinutes};

pub(crate) const TABLE: [Row; 30] = [
    row(Fault::Loss, "messages lost", 50, PerMillion, (100, 50_000)),
    row(Fault::Duplicate, "messages doubled", 50, PerMillion, (100, 50_000)),
    row(Fault::DelaySpike, "messages late", 50, PerMillion, (100, 10_000)),
    row(Fault::Reorder, "messages overtaken", 50, PerMillion, (1_000, 300_000)),
    row(Fault::PartitionOneWay, "one-way partitions", 40, PerThousandMinutes, (100, 2_000)),
    row(Fault::PartitionTwoWay, "two-way partitions", 60, PerThousandMinutes, (100, 3_000)),
    row(Fault::SlowNode, "slow nodes", 40, PerThousandMinutes, (100, 1_000)),
    row(Fault::Crash, "crashes", 70, PerThousandMinutes, (100, 3_000)),
    row(Fault::CrashInStep, "crashes in a step", 40, PerMillion, (10, 1_000)),
    row(Fault::Close, "closes", 30, PerThousandMinutes, (100, 1_000)),
    row(Fault::Pause, "pauses", 50, PerThousandMinutes, (100, 2_000)),
    row(Fault::ClockDrift, "clock rates changed", 50, PerThousandMinutes, (100, 2_000)),
    row(Fault::WallJump, "wall clocks moved", 30, PerThousandMinutes, (100, 1_000)),
    row(Fault::TornWrite, "torn writes", 50, PerMillion, (20, 4_000)),
    row(Fault::SlowDisk, "slow disks", 40, PerThousandMinutes, (100, 1_500)),
    row(Fault::FailedSync, "failed syncs", 25, PerMillion, (10, 500)),
    row(Fault::FullDisk, "full disks", 20, PerThousandMinutes, (50, 400)),
    row(Fault::ReadError, "read errors", 20, PerMillion, (50_000, 500_000)),
    row(Fault::BitRot, "rotten disks", 20, PerThousandMinutes, (50, 200)),
    row(Fault::LostWrites, "disks rolled back", 15, PerThousandMinutes, (50, 200)),
    row(Fault::Wipe, "wiped disks", 30, PerThousandMinutes, (50, 500)),
    row(Fault::Join, "instances joined", 50, PerThousandMinutes, (100, 1_000)),
    row(Fault::Leave, "instances left", 40, PerThousandMinutes, (50, 1_000)),
    row(Fault::Move, "instances moved", 30, PerThousandMinutes, (50, 500)),
    row(Fault::Resign, "operators' actions", 40, PerThousandMinutes, (200, 3_000)),
    row(Fault::Expire, "sessions expired", 30, PerThousandMinutes, (200, 3_000)),
    row(Fault::NoDescriptors, "limits of open files", 20, PerThousandMinutes, (50, 400)),
    row(Fault::BadSector, "bad sectors", 20, PerThousandMinutes, (50, 200)),
    row(Fault::SpareDamaged, "spare segments damaged", 30, PerThousandMinutes, (200, 3_000)),
    row(Fault::CacheDropped, "caches dropped", 40, PerThousandMinutes, (200, 3_000)),
];

/// The rate of each fault in one world.
#[derive(Clone, Debug)]
pub(crate) struct Rates([u64; TABLE.len()]);

impl Rates {
    /// Draws which faults there are, and their rates (swarm testing: Groce et al. 2012).
    pub(crate) fn draw(random: &Random) -> Rates {
        let quiet = random.percent(5);
        Rates(std::array::from_fn(|place| {
            let row = &TABLE[place];
            let (has, from, to) = (random.percent(row.percent), row.rate.0, row.rate.1);
            // All orders of magnitude are equally likely.
            let doublings = (to / from).max(1).ilog2();
            let base = from << random.below(u64::from(doublings) + 1);
            let rate = random.within(base..base * 2).min(to);
            if has && !quiet { rate } else { 0 }
        }))
    }

    /// High rates of the faults that instances notice, without those that cost a member its disk.
    pub(crate) fn fleet() -> Rates {
        Rates(std::array::from_fn(|place| match TABLE[place].fault {
            Fault::Loss | Fault::Duplicate => 200,
            Fault::DelaySpike | Fault::Reorder => 100,
            Fault::PartitionTwoWay | Fault::Crash => 4_000,
            Fault::PartitionOneWay | Fault::Leave | Fault::Resign | Fault::SlowNode => 1_000,
            Fault::Close | Fault::Pause | Fault::ClockDrift => 1_500,
            _ => 0,
        }))
    }

    /// No faults.
    pub(crate) fn none() -> Rates {
        Rates([0; TABLE.len()])
    }

    /// All faults except these.
    pub(crate) fn without(&self, faults: &[Fault]) -> Rates {
        let kept = |place: usize| !faults.contains(&TABLE[place].fault);
        Rates(std::array::from_fn(|place| if kept(place) { self.0[place] } else { 0 }))
    }

    pub(crate) fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// The mean time between two of these faults, if they happen at random times.
    pub(crate) fn period(&self, fault: Fault) -> Option<super::clock::Nanos> {
        let timed = TABLE[fault as usize].unit == PerThousandMinutes;
        let rate = self.of(fault);
        (timed && rate > 0).then(|| 60_000 * super::clock::SECOND / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_faults() {
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.fault as usize, place, "{:?}", row.fault);
        }
    }
}
