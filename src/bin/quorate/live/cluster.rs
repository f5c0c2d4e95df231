//! What the cluster is: `status`, `members`, `locks`.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use clap::Args;
use quorate::recipes::{self, Contending};
use quorate::{Availability, Coordinator, MemberStatus, Result, Session, Status};
use serde_json::json;

use super::{Cluster, Shown, json};
use crate::Exit;

/// The locks to list.
#[derive(Debug, Args)]
pub(crate) struct Locks {
    /// Where to look: this znode and all below it.
    #[arg(default_value = "/")]
    path: String,
}

/// Connects, and shows what there is also if that fails: it is then that somebody asks.
fn look(cluster: &Cluster) -> Result<(Status, Availability, Option<String>)> {
    let coordinator: Coordinator = cluster.coordinator()?;
    let problem = coordinator.wait_ready(cluster.wait()).err().map(|error| error.to_string());
    Ok((coordinator.status(), coordinator.availability(), problem))
}

pub(super) fn status(cluster: &Cluster) -> Result<Exit> {
    let (status, availability, problem) = look(cluster)?;
    let mut text = String::new();
    let leader = status.leader.as_deref().unwrap_or("none that is known");
    let voters = status.members.iter().filter(|member| member.votes).count();
    let unreachable = status.members.iter().filter(|member| member.unreachable.is_some());
    let _ = writeln!(text, "quorum       {availability}");
    let _ = writeln!(text, "leader       {leader}");
    let _ = writeln!(
        text,
        "members      {} ({voters} vote, {} cannot be reached)",
        status.members.len(),
        unreachable.count()
    );
    if let Some(problem) = &problem {
        let _ = writeln!(text, "problem      {problem}");
    }
    let json = json!({
        "availability": json(&availability),
        "problem": problem,
        "leader": status.leader,
        "members": json(&status.members),
    });
    let exit = if problem.is_some() { Exit::Unavailable } else { Exit::Well };
    cluster.print(Shown { exit, ..Shown::new(text, json) })
}

pub(super) fn members(cluster: &Cluster) -> Result<Exit> {
    let (status, _, problem) = look(cluster)?;
    let role = |member: &MemberStatus| match member.votes {
        _ if status.leader.as_ref() == Some(&member.address) => "leader",
        true => "voter",
        false => "learner",
    };
    let row = |member: &MemberStatus| {
        let reached = member.unreachable.as_deref().map(|reason| format!("unreachable: {reason}"));
        [
            member.address.clone(),
            role(member).to_owned(),
            member.zone.clone(),
            reached.unwrap_or_else(|| "ok".to_owned()),
        ]
    };
    let mut rows = vec![["ADDRESS", "ROLE", "ZONE", "STATE"].map(str::to_owned)];
    rows.extend(status.members.iter().map(row));
    let json = json!({ "members": json(&status.members), "leader": status.leader });
    let exit = if problem.is_some() { Exit::Unavailable } else { Exit::Well };
    if let Some(problem) = problem {
        eprintln!("error: {problem}");
    }
    cluster.print(Shown { exit, ..Shown::new(table(&rows), json) })
}

impl Locks {
    pub(super) fn run(&self, session: &Session) -> Result<Shown> {
        let found = recipes::contended(session, &self.path)?;
        let mut text = String::new();
        for of in &found {
            let _ = writeln!(text, "{} ({})", of.path, of.recipe);
            of.holders.iter().for_each(|one| line(&mut text, "holds", one));
            of.waiters.iter().for_each(|one| line(&mut text, "waits", one));
        }
        if found.is_empty() {
            let _ = writeln!(text, "nobody holds or waits for anything below {}", self.path);
        }
        Ok(Shown::new(text, json(&found)))
    }
}

#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
fn line(text: &mut String, what: &str, one: &Contending) {
    let session = one.session.map_or_else(|| "no session".to_owned(), |id| id.to_string());
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(one.since);
    // Clocks differ a little.
    let age = SystemTime::now().duration_since(since).unwrap_or_default().as_secs();
    let label = if one.label.is_empty() { String::new() } else { format!("  {}", one.label) };
    let _ = writeln!(text, "  {what}  {session}  {:<11}  for {age} s{label}", one.kind);
}

/// Columns, each as wide as its widest cell.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
