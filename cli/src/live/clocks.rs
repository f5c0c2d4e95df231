//! What `doctor` says of clocks: each member reports how far its own is ahead of the log's time.

use std::time::Duration;

use quorate::operate::MemberReport;

use super::cluster::duration;
use super::findings::Finding;

/// A clock that differs by more is wrong.
const WRONG_MS: i64 = 60_000;

/// What most members' clocks show is taken for right: one finding if the log's time is not that, and one for each member
/// whose clock is not.
pub(super) fn examine(members: &[MemberReport], findings: &mut Vec<Finding>) {
    let ahead = |of: &MemberReport| of.state.as_ref()?.clock_ahead_ms;
    let known = || members.iter().filter_map(|of| Some((&of.address, ahead(of)?)));
    let mut all: Vec<i64> = known().map(|of| of.1).collect();
    all.sort_unstable();
    let middle = all.len() / 2;
    // Of two, the one that is closer to the log's time.
    let middles = all.get(all.len().saturating_sub(1) / 2..=middle).unwrap_or_default();
    let Some(most) = middles.iter().copied().min_by_key(|ahead| ahead.unsigned_abs()) else {
        return;
    };
    if most.abs() > WRONG_MS {
        let (side, advice) = match most < 0 {
            true => (
                "ahead of",
                "If the clocks are right, a member's was ahead when it began to lead. The log's time never goes back: it \
                 approaches by a tenth of the time that passes. If that takes too long: `quorate backup`, and `quorate \
                 restore --set-time-back` found a cluster that goes on from the clock.",
            ),
            false => (
                "behind",
                "If the clocks are right, it approaches by a tenth of the time that passes. `quorate move-leader` sets it at \
                 once.",
            ),
        };
        let by = by(most);
        findings.push(Finding::new(
            "log time",
            format!("The log's time is {by} {side} the members' clocks: timers and times to live follow it."),
            advice,
        ));
    }
    for (address, ahead) in known() {
        let differs = ahead.saturating_sub(most);
        if differs.abs() > WRONG_MS {
            let side = if differs > 0 { "ahead of" } else { "behind" };
            findings.push(Finding::new(
                format!("clock {address}"),
                format!("The clock of {address} is {} {side} those of most members.", by(differs)),
                "Set it: look at its time service (NTP). Timers and times to live follow the clock of the leader.",
            ));
        }
    }
}

fn by(ahead_ms: i64) -> String {
    duration(Duration::from_millis(ahead_ms.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use quorate::CreateMode;
    use quorate::testing::Cluster;

    use super::*;

    fn found(ahead: [Option<i64>; 3]) -> Vec<(String, String)> {
        let cluster = Cluster::new(3);
        let session = cluster.node(0).session();
        session.create("/a", b"", CreateMode::Persistent).wait().expect("it has a quorum");
        let mut members = cluster.node(0).reports().wait().expect("all report");
        for (member, ahead) in members.iter_mut().zip(ahead) {
            member.state.as_mut().expect("all report").clock_ahead_ms = ahead;
        }
        let mut findings = Vec::new();
        examine(&members, &mut findings);
        findings.into_iter().map(|of| (of.wrong, of.advice)).collect()
    }

    #[test]
    fn a_clock_of_one_and_a_time_of_all_are_told_apart() {
        assert_eq!(found([None, Some(30_000), Some(-30_000)]), []);
        let one = found([Some(10), Some(3_600_010), Some(-10)]);
        assert_eq!(one.len(), 1);
        assert!(one[0].0.ends_with("is 60 min ahead of those of most members."), "{one:?}");
        const DECADES: i64 = 74 * 365 * 24 * 3_600_000;
        let all = found([Some(-DECADES), Some(-DECADES - 900), Some(-DECADES + 900)]);
        assert_eq!(all.len(), 1);
        assert!(all[0].0.starts_with("The log's time is 27010 d ahead of the members'"), "{all:?}");
        assert!(all[0].1.contains("--set-time-back"));
        let behind = found([Some(3_600_000), None, Some(3_600_900)]);
        assert!(behind[0].0.contains("60 min behind") && behind[0].1.contains("move-leader"));
        // The one whose clock is ahead was the first to lead.
        let both = found([Some(-3_600_000), Some(5), Some(-3_600_000)]);
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both[0].0.starts_with("The log's time is 60 min ahead"), "{both:?}");
        assert!(both[1].0.contains("60 min ahead of those of most"), "{both:?}");
        assert_eq!(found([Some(0), None, Some(3_600_000)]).len(), 1, "one of two");
    }
}
