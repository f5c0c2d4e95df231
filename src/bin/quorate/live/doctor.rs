//! `doctor`: finds problems of a cluster, and advises what to do.

use std::fmt::Write;
use std::time::Duration;

use quorate::{MemberReport, MemberState, Result, Role, SessionInfo};
use serde::Serialize;
use serde_json::json;

use super::cluster::{bytes, duration, leader, reports, short};
use super::{Cluster, Shown, json};
use crate::Exit;
use crate::text::line;

/// A member lags if it lacks more entries than this, or if its replica is too old.
const LAG: u64 = 1000;
const STALE: Duration = Duration::from_secs(5);
/// A log with more bytes means that no checkpoints are made.
const LOG_BYTES: u64 = 4 << 30;
const SLOW_DISK: &str =
    "Look at the disk; if the member leads, hand the lead to another: quorate move-leader ADDRESS";

/// A disk is slow if half of its syncs take longer than the first of these times or, if there are
/// enough syncs, one in a hundred takes longer than the second.
const SLOW_SYNCS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));
const SYNCS: u64 = 100;

/// A problem.
#[derive(Debug, Serialize)]
struct Finding {
    /// The problem.
    wrong: String,
    /// The advice.
    advice: String,
}

impl Finding {
    fn new(wrong: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { wrong: wrong.into(), advice: advice.into() }
    }
}

pub(super) fn run(cluster: &Cluster) -> Result<Exit> {
    let coordinator = cluster.coordinator()?;
    let members = reports(cluster, &coordinator)?;
    let sessions = coordinator.sessions();
    let mut findings = examine(&members, sessions.as_deref().unwrap_or_default());
    if let Err(error) = &sessions {
        findings.push(Finding::new(
            format!("The sessions cannot be listed: {error}."),
            "Look again when what is above is mended.",
        ));
    }
    let mut text = String::new();
    for Finding { wrong, advice } in &findings {
        let _ = writeln!(text, "- {}\n  {}", line(wrong), line(advice));
    }
    if findings.is_empty() {
        let _ = writeln!(text, "nothing is wrong: {} members report", members.len());
    }
    let exit = if findings.is_empty() { Exit::Well } else { Exit::Failed };
    cluster.print(Shown { exit, ..Shown::new(text, json!({ "findings": json(&findings) })) })
}

fn examine(members: &[MemberReport], sessions: &[SessionInfo]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let voters = members.iter().filter(|member| member.role != Role::Learner);
    let silent: Vec<&str> =
        voters.clone().filter(|of| of.is_silent).map(|of| of.address.as_str()).collect();
    let count = voters.clone().count();
    let leader = leader(members);
    if leader.is_none() {
        let advice = match silent.is_empty() {
            true => "An election may be under way: look again in a few seconds.".to_owned(),
            false => format!(
                "Start {}. If their disks are lost for good, see `quorate recover`.",
                silent.join(" and ")
            ),
        };
        findings.push(Finding::new("There is no leader: nothing can be written.", advice));
    } else if !silent.is_empty() && count - silent.len() == count / 2 + 1 {
        findings.push(Finding::new(
            match silent[..] {
                [one] => format!(
                    "Of {count} voters {one} is silent: the loss of one more ends the quorum."
                ),
                _ => format!(
                    "Of {count} voters {} are silent: the loss of one more ends the quorum.",
                    silent.len()
                ),
            },
            "Start them, or let other instances take their votes.",
        ));
    }
    if leader.is_some() && count < 3 {
        findings.push(Finding::new(
            format!("The voters are {count}: none may be lost."),
            "Start more instances, until three vote.",
        ));
    }
    for member in members {
        match &member.state {
            None => findings.push(Finding::new(
                format!("{} ({}) does not report.", member.address, member.role),
                format!(
                    "Look at its process and at the network. If it is gone for good: quorate \
                     remove-member {}",
                    member.address
                ),
            )),
            Some(state) => {
                // Without a leader, every replica is out of date.
                if leader.is_some() {
                    examine_lag(member, state, &mut findings);
                }
                examine_member(member, state, &mut findings);
            }
        }
    }
    let mut versions: Vec<u16> =
        members.iter().filter_map(|of| of.state.as_ref()).map(|of| of.version).collect();
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        findings.push(Finding::new(
            format!("The members take the cluster for one of versions {versions:?}."),
            "One of them lags: see above.",
        ));
    }
    let quiet = sessions.iter().filter(|of| of.renewed.is_some_and(|ago| ago > of.timeout * 2 / 3));
    let quiet = quiet.count();
    if quiet > 0 {
        findings.push(Finding::new(
            format!("{quiet} of {} sessions are about to expire.", sessions.len()),
            "Their instances are dead, paused or cut off: `quorate sessions` shows who holds them.",
        ));
    }
    findings
}

fn examine_lag(member: &MemberReport, state: &MemberState, findings: &mut Vec<Finding>) {
    let is_far = member.lag.is_some_and(|lag| lag > LAG);
    let is_old = state.stale_by.is_some_and(|stale| stale > STALE);
    if is_far || is_old {
        let lacks = match member.lag {
            Some(lag) => format!("it lacks {lag} entries"),
            None => "it lacks entries".to_owned(),
        };
        let level = match state.stale_by {
            Some(stale) => format!("was level {} ago", duration(stale)),
            None => "has not been level since it started".to_owned(),
        };
        findings.push(Finding::new(
            format!("{} lags: {lacks}, and {level}.", member.address),
            "It catches up by itself if its disk, its processor and its network can: look at them.",
        ));
    }
}

fn examine_member(member: &MemberReport, state: &MemberState, findings: &mut Vec<Finding>) {
    let address = &member.address;
    let mut found = |wrong: String, advice: &str| findings.push(Finding::new(wrong, advice));
    if let Some(sync) = state.disk_sync
        && (sync.p50 > SLOW_SYNCS.0 || (sync.count >= SYNCS && sync.p99 > SLOW_SYNCS.1))
    {
        found(
            format!(
                "{address} has a slow disk: of its last {} syncs half took {} or more, and one in a \
                 hundred {}.",
                sync.count,
                short(sync.p50),
                short(sync.p99)
            ),
            SLOW_DISK,
        );
    }
    if state.disk_low {
        let free = state.disk_free_bytes.map_or_else(|| "little".to_owned(), bytes);
        found(
            format!("The disk of {address} is nearly full: it has {free} of room."),
            "Make room there: writes are refused once most voters have so little.",
        );
    }
    let not_persisted = state.last_index.saturating_sub(state.durable_index);
    if not_persisted > LAG {
        found(
            format!("{address} has a slow disk: {not_persisted} entries wait for it."),
            SLOW_DISK,
        );
    }
    if state.log_bytes > LOG_BYTES {
        found(
            format!(
                "The log of {address} takes {}; its last checkpoint was {} ago.",
                bytes(state.log_bytes),
                duration(state.checkpoint_age)
            ),
            "Its log says why it makes no checkpoint: a full disk, or no file descriptors.",
        );
    }
    for peer in &state.unreachable {
        found(
            format!("{address} cannot reach {peer}."),
            "If the other one reports, the network between the two is at fault.",
        );
    }
}

#[cfg(test)]
mod tests {
    use quorate::CreateMode;
    use quorate::testing::Cluster;

    use super::*;

    fn found(change: impl FnOnce(&mut MemberState)) -> Vec<String> {
        let cluster = Cluster::new(3);
        let session = cluster.node(0).session();
        session.create("/a", b"", CreateMode::Persistent).expect("it has a quorum");
        let mut members = cluster.node(0).reports().expect("all report");
        // The durations of an in-memory cluster follow its clock, which stands still or leaps.
        for state in members.iter_mut().filter_map(|of| of.state.as_mut()) {
            state.stale_by = Some(Duration::ZERO);
            for of in [&mut state.disk_sync, &mut state.commit].into_iter().flatten() {
                (of.p50, of.p99) = (Duration::from_millis(1), Duration::from_millis(2));
            }
        }
        change(members[0].state.as_mut().expect("all report"));
        examine(&members, &[]).into_iter().map(|of| of.wrong).collect()
    }

    #[test]
    fn a_healthy_cluster_has_nothing_wrong() {
        assert_eq!(found(|_| ()), [""; 0]);
    }

    #[test]
    fn a_lagging_member_is_found_if_somebody_leads() {
        let cluster = Cluster::new(3);
        cluster.node(0).session().sync().expect("it has a quorum");
        let mut members = cluster.node(0).reports().expect("all report");
        let at = members.iter().position(|member| member.role == Role::Voter).expect("two follow");
        for state in members.iter_mut().filter_map(|of| of.state.as_mut()) {
            state.stale_by = Some(Duration::ZERO);
            state.disk_sync = None;
        }
        members[at].lag = Some(5000);
        members[at].state.as_mut().expect("all report").stale_by = None;
        let lag = |members: &[MemberReport]| -> Vec<String> {
            examine(members, &[])
                .into_iter()
                .map(|of| of.wrong)
                .filter(|of| of.contains("lags"))
                .collect()
        };
        let expected = format!(
            "{} lags: it lacks 5000 entries, and has not been level since it started.",
            members[at].address
        );
        assert_eq!(lag(&members), [expected]);
        for member in &mut members {
            (member.role, member.lag) = (Role::Voter, None);
            member.state.as_mut().expect("all report").stale_by = Some(Duration::from_secs(60));
        }
        assert_eq!(lag(&members), [""; 0]);
    }

    #[test]
    fn a_slow_disk_that_keeps_up_is_found() {
        let wrong = found(|state| {
            let sync = state.disk_sync.as_mut().expect("it has written");
            (sync.count, sync.p50, sync.p99) =
                (7, Duration::from_millis(80), Duration::from_millis(900));
        });
        assert_eq!(wrong.len(), 1);
        let text = "has a slow disk: of its last 7 syncs half took 80 ms or more, and one in a hundred 900 ms";
        assert!(wrong[0].contains(text), "{wrong:?}");
    }

    #[test]
    fn a_single_slow_sync_is_not_a_slow_disk() {
        let hiccup = |count: u64| {
            move |state: &mut MemberState| {
                let sync = state.disk_sync.as_mut().expect("it has written");
                (sync.count, sync.p99) = (count, Duration::from_millis(900));
            }
        };
        assert_eq!(found(hiccup(99)), [""; 0]);
        assert_eq!(found(hiccup(100)).len(), 1);
    }

    #[test]
    fn a_disk_without_room_is_found() {
        let wrong = found(|state| (state.disk_low, state.disk_free_bytes) = (true, Some(3 << 20)));
        assert_eq!(wrong.len(), 1);
        assert!(wrong[0].contains("nearly full: it has 3.0 MiB of room"), "{wrong:?}");
    }
}
