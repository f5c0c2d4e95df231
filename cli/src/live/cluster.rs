//! Views of the cluster: `status`, `members`; and how figures are shown.

use std::fmt::Write;
use std::time::{Duration, Instant};

use quorate::operate::{Latency, MemberReport, MemberState, Reason, ReasonKind};
use quorate::{Availability, Coordinator, Error, Result};
use serde_json::json;

use super::leadership::{counts, no_leader, why_silent};
use super::{ClusterArgs, Shown, json};
use crate::Exit;
use crate::text::line;

pub(super) fn status(cluster: &ClusterArgs, coordinator: &Coordinator) -> Result<Exit> {
    let members = reports(cluster, coordinator)?;
    let leader = MemberReport::leader(&members);
    // Without a leader there is nothing to wait for.
    let problem = leader.and_then(|_| coordinator.wait_ready(cluster.wait()).wait().err());
    let (voters, silent) = counts(&members);
    let availability = match leader {
        Some(_) => with_silent(coordinator.availability(), &members),
        None => Availability::NoQuorum { reason: no_leader(&members) },
    };
    let mut text = String::new();
    let _ = writeln!(text, "quorum       {}", line(&availability.to_string()));
    let address = leader.map(|leader| leader.address.as_str());
    let _ = writeln!(text, "leader       {}", line(address.unwrap_or("none")));
    let _ = writeln!(text, "members      {} ({voters} vote, {silent} silent)", members.len());
    for member in members.iter().filter(|member| member.is_silent) {
        let (_, why) = why_silent(&members, member);
        let _ = writeln!(text, "silent       {}", line(&format!("{}: {why}", member.address)));
    }
    let state = leader.and_then(|leader| leader.state.as_ref());
    if let Some(state) = state {
        let _ = writeln!(text, "term         {}", state.term);
        let _ = writeln!(text, "zxid         {}", state.zxid);
        let _ = writeln!(text, "znodes       {}", state.znodes);
    }
    if let Some(problem) = &problem {
        let _ = writeln!(text, "problem      {}", line(&problem.to_string()));
    }
    let json = json!({
        "availability": json(&availability),
        "problem": problem.as_ref().map(ToString::to_string),
        "leader": address,
        "term": state.map(|state| state.term),
        "zxid": state.map(|state| state.zxid),
        "znodes": state.map(|state| state.znodes),
        "members": json(&members),
    });
    let exit = match &availability {
        _ if problem.is_some() => Exit::Unavailable,
        Availability::NoQuorum { reason } if reason.kind == ReasonKind::Election => Exit::Election,
        Availability::NoQuorum { .. } => Exit::Unavailable,
        Availability::WritesRefused { .. } => Exit::WritesRefused,
        _ => Exit::Well,
    };
    cluster.print(Shown { exit, ..Shown::new(text, json) })
}

/// The availability with what the reports have just shown: a leader notices a second later that a voter is silent.
fn with_silent(availability: Availability, members: &[MemberReport]) -> Availability {
    let is_silent = |member: &&MemberReport| member.votes() && member.is_silent;
    let silent: Vec<&str> =
        members.iter().filter(is_silent).map(|member| member.address.as_str()).collect();
    if silent.is_empty() || !matches!(availability, Availability::Healthy { .. }) {
        return availability;
    }
    let more = match MemberReport::spare(members) {
        Some(0) | None => "the loss of one more stops it".to_owned(),
        Some(spare) => format!("it survives the loss of {spare} more"),
    };
    let (voters, silent) = (counts(members).0, silent.join(", "));
    let text = format!("of {voters} voters, these do not report: {silent}; {more}");
    Availability::AtRisk { reason: Reason { kind: ReasonKind::VotersSilent, text } }
}

#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
/// The reports of all members. They need no quorum, so this does not wait for one.
pub(super) fn reports(
    cluster: &ClusterArgs,
    coordinator: &Coordinator,
) -> Result<Vec<MemberReport>> {
    let until = Instant::now() + cluster.wait();
    loop {
        match coordinator.reports().wait() {
            Err(Error::Timeout { .. }) if Instant::now() < until => {}
            reports => return reports,
        }
    }
}

pub(super) fn members(cluster: &ClusterArgs, coordinator: &Coordinator) -> Result<Exit> {
    let members = reports(cluster, coordinator)?;
    let titles = MEMBER.map(|(title, ..)| title).join(", ");
    let table = table(&titles, members.iter().map(|member| MEMBER.map(|(.., cell)| cell(member))));
    let exit =
        if MemberReport::leader(&members).is_some() { Exit::Well } else { Exit::Unavailable };
    let json = json!({ "members": json(&members) });
    cluster.print(Shown { exit, ..Shown::new(table, json) })
}

/// A column of members: its title, its rank in `top` (see `Column`), which leaves some out, and its cells.
type MemberColumn = (&'static str, Option<u8>, fn(&MemberReport) -> String);

/// What is shown of a member.
pub(super) const MEMBER: [MemberColumn; 14] = [
    ("ADDRESS", Some(0), |member| member.address.clone()),
    ("ROLE", Some(0), role),
    ("ZONE", Some(7), |member| member.zone.clone()),
    ("LAG", Some(1), |member| or_unknown(member.lag.map(|lag| lag.to_string()))),
    ("STALE", Some(2), |member| of(member, |state| or_unknown(state.stale_by.map(duration)))),
    ("COMMIT", None, |member| of(member, |state| latency(state.commit))),
    ("DISK SYNC", Some(3), |member| {
        of(member, |state| state.disk_sync.map_or_else(|| "-".to_owned(), |of| short(of.p99)))
    }),
    ("SESSIONS", Some(4), |member| of(member, |state| state.sessions.to_string())),
    ("CLIENTS", Some(6), |member| of(member, |state| state.clients.to_string())),
    ("WATCHES", Some(8), |member| of(member, |state| state.watches.to_string())),
    ("LOG", Some(5), |member| of(member, |state| bytes(state.log_bytes))),
    ("CHECKPOINT", Some(9), |member| {
        of(member, |state| match state.checkpoint_bytes {
            0 => "none yet".to_owned(),
            size => format!("{}, {} ago", bytes(size), duration(state.checkpoint_age)),
        })
    }),
    ("ADMIN", None, |member| {
        of(member, |state| state.admin.clone().unwrap_or_else(|| "-".to_owned()))
    }),
    ("ID", None, |member| member.id.clone()),
];

/// A silent member's state is not known.
fn of(member: &MemberReport, show: fn(&MemberState) -> String) -> String {
    or_unknown(member.state.as_ref().map(show))
}

/// A member's role, and whether it is silent.
pub(super) fn role(member: &MemberReport) -> String {
    match member.is_silent {
        true => format!("{}, silent", member.role),
        false => member.role.to_string(),
    }
}

pub(super) fn or_unknown(value: Option<String>) -> String {
    value.unwrap_or_else(|| "?".to_owned())
}

/// A duration as text, to about two digits.
pub(super) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..10 => format!("{:.1} s", time.as_secs_f64()),
        10..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// The median and the 99th percentile as text; `-` if there was no operation recently.
fn latency(of: Option<Latency>) -> String {
    of.map_or_else(|| "-".to_owned(), |of| format!("{}/{}", short(of.p50), short(of.p99)))
}

/// A duration, which may be below a second, as text.
pub(super) fn short(time: Duration) -> String {
    match time.as_micros() {
        us @ 0..1000 => format!("{us} µs"),
        1000..10_000 => format!("{:.1} ms", time.as_secs_f64() * 1000.0),
        _ => duration(time),
    }
}

/// A number of bytes as text.
pub(super) fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (count.max(1).ilog2() / 10).min(4);
    match power {
        0 => format!("{count} B"),
        _ => format!(
            "{:.1} {}",
            count as f64 / f64::from(1_u32 << 10).powi(power as i32),
            units[power as usize]
        ),
    }
}

/// A table with columns as wide as their widest cells. Commas separate the titles.
pub(super) fn table(titles: &str, rows: impl Iterator<Item = impl AsRef<[String]>>) -> String {
    let titles: Vec<String> = titles.split(", ").map(str::to_owned).collect();
    let columns = titles.len();
    let cells = |row: &[String]| row.iter().map(|cell| line(cell).into_owned()).collect();
    let rows = rows.map(|row| cells(row.as_ref()));
    let rows: Vec<Vec<String>> = std::iter::once(titles).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use quorate::operate::Role;
    use quorate::testing::Cluster;

    use super::*;

    /// In the first second after a voter was killed, `status` said "healthy" beside "1 silent".
    #[test]
    fn a_silent_voter_is_at_risk_before_the_leader_knows() {
        let cluster = Cluster::new(3);
        cluster.node(0).session().sync().wait().expect("it has a quorum");
        let mut members = cluster.node(0).reports().wait().expect("all report");
        let healthy = Availability::Healthy { spare: 1 };
        assert_eq!(with_silent(healthy.clone(), &members), healthy);
        let at = members.iter().position(|member| member.role == Role::Voter).expect("two follow");
        (members[at].is_silent, members[at].state) = (true, None);
        let text = format!(
            "at risk: of 3 voters, these do not report: {}; the loss of one more stops it",
            members[at].address
        );
        assert_eq!(with_silent(healthy, &members).to_string(), text);
    }
}
