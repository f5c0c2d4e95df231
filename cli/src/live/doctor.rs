//! `doctor`: finds problems of a cluster, and advises what to do.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use quorate::operate::{MemberReport, MemberState, ReasonKind, SessionInfo, Unreachable};
use quorate::{Coordinator, Result};
use serde_json::json;

use super::cluster::{bytes, duration, reports};
use super::findings::{Finding, Findings};
use super::leadership::{counts, no_leader, why_silent};
use super::member_findings;
use super::when::utc;
use super::{ClusterArgs, Shown, interrupted, json, print, tables};
use crate::Exit;
use crate::text::{json_line, line};

/// A member lags if it lacks more entries than this, or if its replica is too old.
const LAG: u64 = 1000;
const STALE: Duration = Duration::from_secs(5);
/// A log with more bytes means that no checkpoints are made.
const LOG_BYTES: u64 = 4 << 30;

const REFUSED: &str = "Waiting does not help: correct that at one of the two. Files of secrets and certificates are read again within \
     seconds; after another change, start it again. The logs of both have the reason.";

/// How often it looks while it waits whether something lasts.
const EACH: Duration = Duration::from_secs(1);
/// A look at a cluster with a member that hangs takes some seconds.
const SLACK: Duration = Duration::from_secs(10);
/// How often it looks whether to end.
const PERIOD: Duration = Duration::from_millis(50);

/// For how long it looks.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Counts only what is still wrong after this time, for example 30s: a failover is over by then. Ends as soon as
    /// nothing is wrong, and soon after twice this time at the latest.
    #[arg(long = "for", value_name = "TIME", default_value = "0s", value_parser = seconds)]
    lasting: Duration,
    /// Looks again every so many seconds, and prints what changes, until it is interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "5",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    watch: Option<u64>,
}

/// A number of seconds, or of what its letter says: `30`, `30s`, `5m`, `1h`.
fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) => (number, text.as_bytes()[number.len()]),
        None => (text, b's'),
    };
    let one = match unit {
        b'm' => 60,
        b'h' => 3600,
        _ => 1,
    };
    let number: Option<u64> = number.parse().ok().and_then(|of: u64| of.checked_mul(one));
    let time = number.filter(|of| *of <= 86_400).map(Duration::from_secs);
    time.ok_or_else(|| "a time is 30s, 5m or 1h, and at most a day".to_owned())
}

#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
fn now() -> Instant {
    Instant::now()
}

/// What is printed beside a change.
#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
fn time_of_day() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[expect(clippy::disallowed_methods, reason = "a program that looks again has nothing to wait for")]
fn sleep(time: Duration) {
    std::thread::sleep(time);
}

impl DoctorArgs {
    pub(super) fn run(&self, cluster: &ClusterArgs) -> Result<Exit> {
        let coordinator = cluster.coordinator()?;
        if let Some(every) = self.watch {
            return self.follow(cluster, &coordinator, Duration::from_secs(every));
        }
        if self.lasting.is_zero() {
            let (members, findings) = find(cluster, &coordinator)?;
            return show(cluster, members, &findings);
        }
        let (mut findings, begin) = (Findings::new(self.lasting), now());
        loop {
            let (members, found) = find_anyhow(cluster, &coordinator);
            findings.look(begin.elapsed(), found);
            // A frozen leader is an election first, and then a silent member. What goes on like this is for the next run.
            if !findings.is_undecided() || begin.elapsed() > self.lasting * 2 + SLACK {
                return show(cluster, members, &findings.counting());
            }
            sleep(EACH);
        }
    }

    /// Prints what changes, until it is interrupted. The exit code is that of the last look.
    fn follow(
        &self,
        cluster: &ClusterArgs,
        coordinator: &Coordinator,
        every: Duration,
    ) -> Result<Exit> {
        let (is_over, begin) = (interrupted()?, now());
        let mut findings = Findings::new(self.lasting);
        let mut is_first = true;
        loop {
            let (members, found) = find_anyhow(cluster, coordinator);
            let nothing = is_first && found.is_empty();
            let changes = findings.look(begin.elapsed(), found);
            let time = time_of_day();
            let mut text = String::new();
            if cluster.json {
                for (name, list) in [("begun", &changes.begun), ("over", &changes.over)] {
                    for finding in list {
                        let one = json!({ "time": time, name: json(finding) });
                        let _ = writeln!(text, "{}", json_line(&one));
                    }
                }
            } else {
                if nothing {
                    let _ = writeln!(text, "{time}  nothing is wrong: {members} members report");
                }
                for Finding { wrong, advice, .. } in &changes.begun {
                    let _ = writeln!(text, "{time}  {}\n  {}", line(wrong), line(advice));
                }
                for Finding { wrong, .. } in &changes.over {
                    let _ = writeln!(text, "{time}  over: {}", line(wrong));
                }
            }
            print(text.as_bytes())?;
            is_first = false;
            let until = now() + every;
            while now() < until && !is_over.load(Ordering::Relaxed) {
                sleep(PERIOD);
            }
            if is_over.load(Ordering::Relaxed) {
                let is_well = findings.counting().is_empty();
                return Ok(if is_well { Exit::Well } else { Exit::Failed });
            }
        }
    }
}

/// The number of members, and what is wrong.
fn find(cluster: &ClusterArgs, coordinator: &Coordinator) -> Result<(usize, Vec<Finding>)> {
    let members = reports(cluster, coordinator)?;
    let sessions = coordinator.sessions().wait();
    let mut findings = examine(&members, sessions.as_deref().unwrap_or_default());
    if MemberReport::leader(&members).is_some() {
        findings.extend(tables::find(cluster, coordinator));
    }
    if let Err(error) = &sessions {
        findings.push(Finding::new(
            "sessions",
            format!("The sessions cannot be listed: {error}."),
            "Look again once there is a leader.",
        ));
    }
    Ok((members.len(), findings))
}

/// The same; that nobody answers is a finding, too.
fn find_anyhow(cluster: &ClusterArgs, coordinator: &Coordinator) -> (usize, Vec<Finding>) {
    find(cluster, coordinator).unwrap_or_else(|error| {
        let wrong = format!("No member can be asked: {error}");
        (
            0,
            vec![Finding::new(
                "reach",
                wrong,
                "Look at the members' processes, and at the way to them.",
            )],
        )
    })
}

fn show(cluster: &ClusterArgs, members: usize, findings: &[Finding]) -> Result<Exit> {
    let mut text = String::new();
    for Finding { wrong, advice, .. } in findings {
        let _ = writeln!(text, "- {}\n  {}", line(wrong), line(advice));
    }
    if findings.is_empty() {
        let _ = writeln!(text, "nothing is wrong: {members} members report");
    }
    let exit = match findings {
        [] => Exit::Well,
        [one] if one.cause == "reach" => Exit::Unavailable,
        _ => Exit::Failed,
    };
    cluster.print(Shown { exit, ..Shown::new(text, json!({ "findings": json(findings) })) })
}

fn examine(members: &[MemberReport], sessions: &[SessionInfo]) -> Vec<Finding> {
    let (mut findings, returning) = (Vec::new(), returning(members));
    let leader = MemberReport::leader(members);
    let refuses =
        leader.and_then(|leader| leader.state.as_ref()).is_some_and(|of| of.refuses_writes);
    match leader {
        // The reason covers everybody who is silent or cut off.
        None => findings.push(without_leader(members)),
        Some(_) => {
            examine_silent(members, &returning, &mut findings);
            examine_pairs(members, &returning, &mut findings);
            examine_count(members, &mut findings);
        }
    }
    examine_duplicates(members, &mut findings);
    if refuses {
        findings.push(full_disks(members));
    }
    for member in members {
        let Some(state) = &member.state else { continue };
        // Without a leader, every replica is out of date.
        if leader.is_some()
            && state.disk_waits.is_none()
            && !returning.contains(member.address.as_str())
        {
            examine_lag(member, state, &mut findings);
        }
        if state.disk_low && !refuses {
            let free = state.disk_free_bytes.map_or_else(|| "little".to_owned(), bytes);
            let risk = risk(members, member);
            findings.push(Finding::new(
                format!("disk {}", member.address),
                format!("The disk of {} is nearly full: it has {free} of room.{risk}", member.address),
                "Make room there, on the device of its data directory or of its log: a voter without room counts as lost, and \
                 writes are refused once too few have room.",
            ));
        }
        examine_member(member, state, &mut findings);
    }
    super::clocks::examine(members, &mut findings);
    let mut versions: Vec<u16> =
        members.iter().filter_map(|of| of.state.as_ref()).map(|of| of.version).collect();
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        findings.push(Finding::new(
            "versions",
            format!("The members report different versions of the cluster: {versions:?}."),
            "One of them lags: see above.",
        ));
    }
    let quiet = sessions.iter().filter(|of| of.renewed.is_some_and(|ago| ago > of.timeout * 2 / 3));
    let quiet = quiet.count();
    if quiet > 0 {
        findings.push(Finding::new(
            "quiet sessions",
            format!("{quiet} of {} sessions are about to expire.", sessions.len()),
            "Their instances are dead, paused or cut off: `quorate sessions` shows who holds them.",
        ));
    }
    findings
}

/// Why there is no leader, and what to do about it.
fn without_leader(members: &[MemberReport]) -> Finding {
    let reason = no_leader(members);
    let advice = match reason.kind {
        ReasonKind::Election => {
            "Look again in some seconds. Writes wait until then, and do not fail.".to_owned()
        }
        ReasonKind::Founding => {
            "Start the instances that are missing, or correct what differs: the cluster is founded once all of \
             the list are there."
                .to_owned()
        }
        ReasonKind::Refused => REFUSED.to_owned(),
        ReasonKind::VotersMissing => {
            let silent = members.iter().filter(|member| member.votes() && member.is_silent);
            let silent: Vec<&str> = silent.map(|member| member.address.as_str()).collect();
            match silent[..] {
                [] => "Look at the network between the voters.".to_owned(),
                _ => format!(
                    "Start {}. If their disks are lost for good, see `quorate recover`.",
                    silent.join(" and ")
                ),
            }
        }
        _ => "Look at the logs of the instances, and at their disks and their network.".to_owned(),
    };
    let wrong = format!("There is no leader, so nothing can be written: {reason}.");
    Finding::new("leader", wrong, advice)
}

/// What the loss of one more voter would do, if this one counts as lost and it would end something.
fn risk(members: &[MemberReport], lost: &MemberReport) -> String {
    if !lost.votes() || MemberReport::spare(members) != Some(0) {
        return String::new();
    }
    let (voters, _) = counts(members);
    let is_low = |of: &MemberReport| of.votes() && of.state.as_ref().is_some_and(|of| of.disk_low);
    let ends = if members.iter().any(is_low) { "stops all writes" } else { "ends the quorum" };
    format!(" Of {voters} voters, the loss of one more {ends}.")
}

/// The addresses of members that are back with an empty or a damaged disk: each has a new id, beside its former one,
/// which is silent.
fn returning(members: &[MemberReport]) -> BTreeSet<&str> {
    let is_back = |former: &&MemberReport| {
        let mut reporting = members.iter().filter(|of| !of.is_silent);
        former.is_silent && reporting.any(|of| of.address == former.address)
    };
    members.iter().filter(is_back).map(|former| former.address.as_str()).collect()
}

/// The members that do not report: one finding each, with the reason that the others have.
fn examine_silent(
    members: &[MemberReport],
    returning: &BTreeSet<&str>,
    findings: &mut Vec<Finding>,
) {
    for member in members.iter().filter(|member| member.is_silent) {
        let (address, role) = (&member.address, member.role);
        let risk = risk(members, member);
        if returning.contains(address.as_str()) {
            findings.push(Finding::new(
                format!("returns {address}"),
                format!("{address} is back without its former data, and has not taken its former place yet.{risk}"),
                "It takes its former place by itself, once it has received the state: look again in some seconds. If it lasts, \
                 look at its log.",
            ));
            continue;
        }
        let (is_refused, why) = why_silent(members, member);
        findings.push(match is_refused {
            true => Finding::new(
                format!("silent {address}"),
                format!("{address} ({role}) and the other members refuse each other: {why}.{risk}"),
                REFUSED,
            ),
            false => {
                let why = if why.is_empty() { "nobody has lost its connection" } else { &why };
                let first = match member.last_report {
                    Some(_) => "Mend what its last report says first. ",
                    None => "",
                };
                Finding::new(
                    format!("silent {address}"),
                    format!("{address} ({role}) does not report: {why}.{risk}"),
                    format!(
                        "{first}Look at its process, its machine and its network, and start it again. If its disk is \
                         lost, start it with an empty one: it takes its former place. If it never comes \
                         back: quorate remove-member {address}"
                    ),
                )
            }
        });
    }
}

/// Pairs of members that report, and do not reach each other: one finding for each pair.
fn examine_pairs(
    members: &[MemberReport],
    returning: &BTreeSet<&str>,
    findings: &mut Vec<Finding>,
) {
    let mut seen = BTreeSet::new();
    for (member, state) in members.iter().filter_map(|of| Some((of, of.state.as_ref()?))) {
        for Unreachable { address, reason } in &state.unreachable {
            if returning.contains(address.as_str()) || returning.contains(member.address.as_str()) {
                continue;
            }
            let other = members.iter().find(|other| other.address == *address);
            let pair = [&member.address, address];
            let pair = (pair.into_iter().min(), pair.into_iter().max());
            if other.is_none_or(|other| other.is_silent) || !seen.insert(pair) {
                continue;
            }
            let own = &member.address;
            let cause = format!("link {} {}", pair.0.unwrap_or(own), pair.1.unwrap_or(own));
            findings.push(match reason.kind {
                ReasonKind::Refused => Finding::new(
                    cause,
                    format!("{own} and {address} refuse each other: {reason}."),
                    REFUSED,
                ),
                _ => Finding::new(
                    cause,
                    format!("{own} cannot reach {address}: {reason}."),
                    "Both report, so the network between the two is at fault.",
                ),
            });
        }
    }
}

/// Processes that run with copies of one data directory.
fn examine_duplicates(members: &[MemberReport], findings: &mut Vec<Finding>) {
    let states = members.iter().filter_map(|member| member.state.as_ref());
    let duplicates: BTreeSet<&String> = states.flat_map(|state| &state.duplicates).collect();
    for text in duplicates {
        findings.push(Finding::new(
            format!("duplicate {text}"),
            format!("{text}."),
            "A directory was copied, with its machine or its volume, or is mounted at two hosts. The members go on with \
             the process at the member's recorded address. See docs/storage.md.",
        ));
    }
}

fn examine_count(members: &[MemberReport], findings: &mut Vec<Finding>) {
    let wrong = match counts(members).0 {
        1 => "There is one voter, and it must not be lost.",
        2 => "There are two voters, and neither may be lost.",
        _ => return,
    };
    findings.push(Finding::new("voters", wrong, "Start more instances, until three vote."));
}

/// That writes are refused.
fn full_disks(members: &[MemberReport]) -> Finding {
    let states = members.iter().filter_map(|of| Some((&of.address, of.state.as_ref()?)));
    let full = states.filter(|(_, state)| state.disk_low).map(|(address, state)| {
        let free = state.disk_free_bytes.map_or_else(|| "little".to_owned(), bytes);
        format!("{address}: {free} of room")
    });
    let full = full.collect::<Vec<_>>().join(", ");
    Finding::new(
        "writes",
        format!("Writes are refused: the disks of members are nearly full ({full})."),
        "Make room there, or delete znodes: writes are accepted again once most voters have room.",
    )
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
            format!("lag {}", member.address),
            format!("{} lags: {lacks}, and {level}.", member.address),
            "It catches up by itself if its disk, its processor and its network can: look at them.",
        ));
    }
}

fn examine_member(member: &MemberReport, state: &MemberState, findings: &mut Vec<Finding>) {
    let address = &member.address;
    findings.extend(member_findings::disk(address, state));
    findings.extend(member_findings::certificate(address, state));
    findings.extend(member_findings::former_data(address, state));
    if let Some(reason) = &state.checkpoint_error {
        findings.push(Finding::new(
            format!("checkpoint {address}"),
            format!(
                "{address} cannot write a checkpoint: {reason}. Its log grows until it can, and has {}.",
                bytes(state.log_bytes)
            ),
            "It tries again by itself. Make room on the device of its data directory, or raise its limit of open files \
             (LimitNOFILE of systemd).",
        ));
    } else if state.log_bytes > LOG_BYTES {
        findings.push(Finding::new(
            format!("log {address}"),
            format!(
                "The log of {address} takes {}; its last checkpoint was {} ago.",
                bytes(state.log_bytes),
                duration(state.checkpoint_age)
            ),
            "Its log says why it makes no checkpoint: a full disk, or no file descriptors.",
        ));
    }
}

#[cfg(test)]
mod tests {
    use quorate::CreateMode;
    use quorate::operate::{LastReport, Reason, Role};
    use quorate::testing::Cluster;

    use super::*;

    fn found(change: impl FnOnce(&mut MemberState)) -> Vec<String> {
        let cluster = Cluster::new(3);
        let session = cluster.node(0).session();
        session.create("/a", b"", CreateMode::Persistent).wait().expect("it has a quorum");
        let mut members = cluster.node(0).reports().wait().expect("all report");
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
    fn times_have_units() {
        assert_eq!(seconds("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(seconds("7"), Ok(Duration::from_secs(7)));
        assert_eq!(seconds("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(seconds("1h"), Ok(Duration::from_secs(3600)));
        for wrong in ["", "s", "1d", "-1", "1.5s", "25h", "18446744073709551615m"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_healthy_cluster_has_nothing_wrong() {
        assert_eq!(found(|_| ()), [""; 0]);
    }

    #[test]
    fn a_lagging_member_is_found_if_somebody_leads() {
        let cluster = Cluster::new(3);
        cluster.node(0).session().sync().wait().expect("it has a quorum");
        let mut members = cluster.node(0).reports().wait().expect("all report");
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

    /// A member with another secret, and one that is stopped, were several findings each, with the wrong advice.
    #[test]
    fn one_cause_is_one_finding() {
        let cluster = Cluster::new(3);
        cluster.node(0).session().sync().wait().expect("it has a quorum");
        let mut members = cluster.node(0).reports().wait().expect("all report");
        for state in members.iter_mut().filter_map(|of| of.state.as_mut()) {
            (state.stale_by, state.disk_sync) = (Some(Duration::ZERO), None);
        }
        let at = members.iter().position(|member| member.role == Role::Voter).expect("two follow");
        let silent = members[at].address.clone();
        (members[at].is_silent, members[at].state) = (true, None);
        let mut told = |kind, text: &str| {
            let reason = Reason { kind, text: text.to_owned() };
            let other = Unreachable { address: silent.clone(), reason };
            for state in members.iter_mut().filter_map(|of| of.state.as_mut()) {
                state.unreachable = vec![other.clone()];
            }
            examine(&members, &[])
        };
        let [stopped] = &told(ReasonKind::Unreachable, "connection refused")[..] else { panic!() };
        let risk = "Of 3 voters, the loss of one more ends the quorum.";
        let expected = format!("{silent} (voter) does not report: connection refused. {risk}");
        assert_eq!(stopped.wrong, expected);
        let [refused] = &told(ReasonKind::Refused, "another secret")[..] else { panic!() };
        let expected = format!(
            "{silent} (voter) and the other members refuse each other: another secret. {risk}"
        );
        assert_eq!((refused.wrong.as_str(), refused.advice.as_str()), (expected.as_str(), REFUSED));
    }

    /// No member had a file for a checkpoint, and nothing was found until a log had 4 GiB.
    #[test]
    fn a_checkpoint_that_cannot_be_written_is_found() {
        let reason = "creating a generation: Too many open files (os error 24)";
        let wrong = found(|state| state.checkpoint_error = Some(reason.to_owned()));
        assert_eq!(wrong.len(), 1);
        assert!(wrong[0].contains(&format!("cannot write a checkpoint: {reason}")), "{wrong:?}");
    }

    #[test]
    fn a_disk_without_room_is_found() {
        let wrong = found(|state| (state.disk_low, state.disk_free_bytes) = (true, Some(3 << 20)));
        assert_eq!(wrong.len(), 1);
        let text = "nearly full: it has 3.0 MiB of room. Of 3 voters, the loss of one more stops all writes.";
        assert!(wrong[0].ends_with(text), "{wrong:?}");
    }

    fn three() -> Vec<MemberReport> {
        let cluster = Cluster::new(3);
        cluster.node(0).session().sync().wait().expect("it has a quorum");
        let mut members = cluster.node(0).reports().wait().expect("all report");
        for state in members.iter_mut().filter_map(|of| of.state.as_mut()) {
            (state.stale_by, state.disk_sync) = (Some(Duration::ZERO), None);
        }
        members.sort_by_key(|member| member.role);
        members
    }

    /// A member that came back with an empty disk was four findings, with the advice that waiting does not help.
    #[test]
    fn a_member_that_returns_without_its_data_is_one_finding() {
        let mut members = three();
        let mut former = members[2].clone();
        (former.is_silent, former.state, former.id) = (true, None, "0f".to_owned());
        (members[2].role, members[2].lag) = (Role::Learner, Some(5000));
        let text = "the peer refused: this is node 1, not 2".to_owned();
        let refused = Unreachable {
            address: former.address.clone(),
            reason: Reason { kind: ReasonKind::Refused, text },
        };
        for state in members.iter_mut().filter_map(|of| of.state.as_mut()) {
            state.unreachable = vec![refused.clone()];
        }
        members.push(former);
        let found = examine(&members, &[]);
        let [returns] = &found[..] else { panic!("{found:?}") };
        assert!(returns.wrong.contains("is back without its former data"), "{returns:?}");
        assert!(returns.wrong.ends_with("the loss of one more ends the quorum."), "{returns:?}");
        assert!(!returns.advice.contains("does not help"), "{returns:?}");
    }

    /// A member that had filled its disk, and stopped, was only one that refuses connections.
    #[test]
    fn a_silent_member_is_shown_with_its_last_report() {
        let mut members = three();
        let silent = members[2].address.clone();
        (members[2].is_silent, members[2].state) = (true, None);
        let text = "its disk is nearly full: 0 B of room".to_owned();
        members[2].last_report = Some(LastReport { age: Duration::from_secs(40), text });
        let text = "connection refused".to_owned();
        let reason = Reason { kind: ReasonKind::Unreachable, text };
        for state in members.iter_mut().filter_map(|of| of.state.as_mut()) {
            state.unreachable =
                vec![Unreachable { address: silent.clone(), reason: reason.clone() }];
        }
        let found = examine(&members, &[]);
        let [stopped] = &found[..] else { panic!("{found:?}") };
        let text = "(voter) does not report: connection refused; its last report, 40 s ago: its disk is nearly full: 0 B of \
                    room. Of 3 voters, the loss of one more ends the quorum.";
        assert!(stopped.wrong.ends_with(text), "{stopped:?}");
        assert!(stopped.advice.starts_with("Mend what its last report says first."), "{stopped:?}");
    }
}
