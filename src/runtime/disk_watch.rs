//! Whether a disk hangs: decides when its node hands over, and when it stops. It has no thread, disk or clock;
//! `node_thread` passes it the time and the calls of the store in progress.

use std::time::Duration;

use crate::node::io::Input;
use crate::runtime::watchdog::Watchdog;

/// A write that takes this long makes a leader hand over; a longer one stops the node. Only time in
/// which this thread was running counts.
pub(crate) const DISK_SLOW: Duration = Duration::from_secs(10);
pub(crate) const DISK_DEAD: Duration = Duration::from_secs(60);
/// One that takes this long is reported to operators, and to the other members.
const DISK_HANGS: Duration = Duration::from_secs(2);
/// A step of a checkpoint that takes this long stops the node, since its log only grows until then. The
/// limit is this long because no write waits for a checkpoint, and because the hanging disk may belong
/// to another coordinator: sled has one lock for all databases of a process.
const CHECKPOINT_DEAD: Duration = Duration::from_secs(600);

/// Watches the calls of a store.
#[derive(Debug, Default)]
pub(crate) struct DiskWatch {
    /// Those of writes and of checkpoints.
    watchdogs: [Watchdog; 2],
    /// The node was asked to hand over since the disk became slow.
    resigned: bool,
}

impl DiskWatch {
    /// Looks at the calls in progress: of a write, and of a checkpoint. Returns what the node must know.
    pub(crate) fn look(&mut self, now: Duration, under_way: [Option<u64>; 2]) -> Option<Input> {
        let [log, checkpoint] = under_way;
        let [log_watchdog, checkpoint_watchdog] = &mut self.watchdogs;
        let busy = log_watchdog.look(now, log);
        match disk_health(busy, checkpoint_watchdog.look(now, checkpoint)) {
            DiskHealth::Failed { reason } => Some(Input::Failed { reason }),
            DiskHealth::Slow => {
                let is_first = !std::mem::replace(&mut self.resigned, true);
                if is_first {
                    tracing::warn!(
                        ?busy,
                        "the disk is slow; handing over leadership, if it is ours"
                    );
                }
                is_first.then_some(Input::Resign)
            }
            DiskHealth::Healthy => {
                self.resigned = false;
                None
            }
        }
    }

    /// For how long the disk has not answered a write, if that is long enough to be reported.
    pub(crate) fn hangs(&self) -> Option<Duration> {
        let [log, _] = &self.watchdogs;
        Some(log.seen()).filter(|busy| *busy >= DISK_HANGS)
    }

    /// Whether a call was in progress at the last look, so that the next one is due within
    /// [`GAP_MAX`](crate::runtime::watchdog::GAP_MAX).
    pub(crate) fn is_on(&self) -> bool {
        self.watchdogs.iter().any(Watchdog::is_on)
    }
}

/// Whether a disk is fast enough for its node.
#[derive(Debug, PartialEq, Eq)]
enum DiskHealth {
    Healthy,
    Slow,
    Failed { reason: String },
}

/// The health of a disk, by how long a write and a step of a checkpoint have been in progress.
fn disk_health(write: Duration, checkpoint: Duration) -> DiskHealth {
    let dead = |what, time: Duration| {
        let reason = format!("the disk failed: {what} has been under way for {time:?}");
        DiskHealth::Failed { reason }
    };
    if write > DISK_DEAD {
        dead("a write", write)
    } else if checkpoint > CHECKPOINT_DEAD {
        dead("a step of a checkpoint", checkpoint)
    } else if write > DISK_SLOW {
        DiskHealth::Slow
    } else {
        DiskHealth::Healthy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::watchdog::GAP_MAX;
    use crate::simulation::random::Random;

    /// The hanging disk of another coordinator in the process delayed this coordinator's checkpoint. The
    /// node stopped, though it could write.
    #[test]
    fn a_checkpoint_that_hangs_does_not_stop_a_node_that_can_write() {
        let seconds = Duration::from_secs;
        assert_eq!(disk_health(seconds(1), seconds(599)), DiskHealth::Healthy);
        assert_eq!(disk_health(seconds(11), seconds(61)), DiskHealth::Slow);
        let reason = |verdict| match verdict {
            DiskHealth::Failed { reason } => reason,
            other => panic!("{other:?}"),
        };
        assert!(reason(disk_health(seconds(61), seconds(0))).contains("a write"));
        assert!(reason(disk_health(seconds(0), seconds(601))).contains("checkpoint"));
    }

    /// What a run has seen.
    #[derive(Debug, Default)]
    struct Seen {
        resigned: u32,
        failed: u32,
        pauses: u32,
    }

    /// A store that is quick, slow or hangs, and a node that looks at times, or was stopped for long. Knows since when
    /// each call has been under way, and for how long the node was stopped meanwhile.
    fn run(seed: u64, seen: &mut Seen) {
        let random = Random::new(seed);
        let (mut watch, mut now) = (DiskWatch::default(), Duration::from_secs(3600));
        let mut calls: [Option<(u64, Duration)>; 2] = [None, None];
        // For how long the node was stopped since the call began.
        let mut stopped = [Duration::ZERO; 2];
        let (mut last, mut asked) = (0, false);
        for _ in 0..2_000 {
            let pause = match random.below(1_000) {
                0..3 => Duration::from_secs(random.below(3_600)),
                _ => Duration::from_millis(1 + random.below(1_000)),
            };
            let is_stopped = pause > GAP_MAX;
            seen.pauses += u32::from(is_stopped);
            now += pause;
            for (place, call) in calls.iter_mut().enumerate() {
                if is_stopped {
                    stopped[place] += pause - GAP_MAX;
                }
                // Some last for long.
                let ends = call.is_some_and(|(number, _)| {
                    random.chance(if number % 7 == 0 { 4_000 } else { 500_000 })
                });
                if ends || (call.is_none() && random.percent(30)) {
                    last += 1;
                    *call = random.percent(60).then_some((last, now));
                    stopped[place] = Duration::ZERO;
                }
            }
            let input = watch.look(now, calls.map(|call| call.map(|(number, _)| number)));
            let busy = |place: usize| {
                calls[place].map_or(Duration::ZERO, |(_, since)| now - since - stopped[place])
            };
            let [write, checkpoint] = [busy(0), busy(1)];
            assert_eq!(watch.is_on(), calls.iter().any(Option::is_some));
            assert_eq!(watch.hangs(), Some(write).filter(|write| *write >= DISK_HANGS));
            let is_dead = write > DISK_DEAD || checkpoint > CHECKPOINT_DEAD;
            let is_slow = !is_dead && write > DISK_SLOW;
            let expected = if is_dead {
                "failed"
            } else if is_slow && !asked {
                "resign"
            } else {
                ""
            };
            let got = match &input {
                Some(Input::Failed { reason }) => {
                    assert!(reason.contains("the disk failed"), "{reason}");
                    "failed"
                }
                Some(Input::Resign) => "resign",
                None => "",
                Some(other) => panic!("{other:?}"),
            };
            assert_eq!(got, expected, "seed {seed}: {write:?} and {checkpoint:?}");
            asked = is_slow || (is_dead && asked);
            seen.resigned += u32::from(got == "resign");
            seen.failed += u32::from(got == "failed");
        }
    }

    /// `QUORATE_SEED` and `QUORATE_SEEDS` set the first seed and their number.
    #[test]
    fn a_disk_that_hangs_is_told_from_a_node_that_was_stopped() {
        let number = |name: &str, otherwise: u64| {
            std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
        };
        let (from, count) = (number("QUORATE_SEED", 1), number("QUORATE_SEEDS", 50));
        let mut seen = Seen::default();
        (from..from + count).for_each(|seed| run(seed, &mut seen));
        let Seen { resigned, failed, pauses } = seen;
        let is_much = [resigned, failed, pauses].into_iter().all(|seen| u64::from(seen) >= count);
        assert!(is_much, "little was tested: {seen:?}");
    }
}
