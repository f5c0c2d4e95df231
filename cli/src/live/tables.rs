//! The tables of recipes that share work: `partitions` and `timers`, the lines of `locks` and `top`, and the findings of
//! `doctor`. What a table has comes from the library; here is only how its cells look.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use crossbeam_channel::bounded;
use quorate::operate::{ColumnKind, Contended, RecipeCell, RecipeColumn, RecipeTable, contended};
use quorate::recipes::Schedule;
use quorate::session::SessionId;
use quorate::{Coordinator, Error, Result, Session};

use super::cluster::{duration, table};
use super::findings::Finding;
use super::locks;
use super::when::utc;
use super::{ClusterArgs, Shown};
use crate::system;
use crate::text::line;

/// What is so much too late needs attention. The clocks of machines differ by less, or `doctor` says that they do not.
const LATE: Duration = Duration::from_secs(60);
/// How many rows a finding names.
const NAMED_MAX: usize = 5;

/// The partitions to list.
#[derive(Debug, Args)]
pub(crate) struct PartitionsArgs {
    /// Where to look: this znode and all below it.
    #[arg(default_value = "/")]
    path: String,
}

/// The timers to list, and what to do with one of them.
#[derive(Debug, Args)]
pub(crate) struct TimersArgs {
    /// The schedule; without a change, this znode and all below it.
    #[arg(default_value = "/")]
    path: String,
    /// Lets this timer of the schedule not fire until it is resumed.
    #[arg(long, value_name = "TIMER", conflicts_with_all = ["resume", "fire"])]
    pause: Option<String>,
    /// Lets it fire again.
    #[arg(long, value_name = "TIMER", conflicts_with = "fire")]
    resume: Option<String>,
    /// Lets it fire once, now, beside its own times.
    #[arg(long, value_name = "TIMER")]
    fire: Option<String>,
}

impl PartitionsArgs {
    pub(super) fn run(&self, coordinator: &Coordinator, session: &Session) -> Result<Shown> {
        list(coordinator, session, &self.path, &["partitions", "members of partitions"])
    }
}

impl TimersArgs {
    pub(super) fn run(&self, coordinator: &Coordinator, session: &Session) -> Result<Shown> {
        let schedule = Schedule::new(session, &self.path)?;
        self.pause.as_ref().map_or(Ok(()), |timer| schedule.pause(timer).wait())?;
        self.resume.as_ref().map_or(Ok(()), |timer| schedule.resume(timer).wait())?;
        self.fire.as_ref().map_or(Ok(()), |timer| schedule.fire_now(timer).wait())?;
        list(coordinator, session, &self.path, &["schedule"])
    }
}

fn list(
    coordinator: &Coordinator,
    session: &Session,
    path: &str,
    recipes: &[&str],
) -> Result<Shown> {
    let mut found = contended(session, path).wait()?;
    found.retain(|of| recipes.contains(&of.recipe));
    let mut shown = locks::shown(coordinator, &found, |_| usize::MAX);
    if found.is_empty() {
        shown.add(&format!("there is no {} below {}\n", recipes[0], line(path)));
    }
    Ok(shown)
}

/// The time, for ages and for what is late.
#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The lines of a table, that of the titles first, and whether each needs attention.
pub(super) fn lines(
    of: &RecipeTable,
    now: Duration,
    holder: impl Fn(SessionId) -> Option<String>,
) -> Vec<(String, bool)> {
    // A column in which nothing stands is left out.
    let has = |column: &&RecipeColumn| of.rows.iter().any(|row| row.contains_key(column.name));
    let columns: Vec<_> = of.columns.iter().filter(has).collect();
    let titles: Vec<_> =
        columns.iter().map(|column| column.name.to_uppercase().replace('_', " ")).collect();
    let cell = |row: &BTreeMap<_, RecipeCell>, column: &RecipeColumn| {
        row.get(column.name).map_or_else(String::new, |cell| text(column.kind, cell, now, &holder))
    };
    let cells = |row| columns.iter().map(|column| cell(row, column)).collect::<Vec<_>>();
    let text = table(&titles.join(", "), of.rows.iter().map(cells));
    let wrong = of.rows.iter().map(|row| wrong(of, row, now).is_some());
    let mut lines: Vec<_> =
        text.lines().map(str::to_owned).zip(std::iter::once(false).chain(wrong)).collect();
    if of.left_out > 0 {
        lines.push((format!("and {} more", of.left_out), false));
    }
    lines
}

fn text(
    kind: ColumnKind,
    cell: &RecipeCell,
    now: Duration,
    holder: &impl Fn(SessionId) -> Option<String>,
) -> String {
    match (kind, cell) {
        (ColumnKind::Since, RecipeCell::Number(since)) => {
            // The clocks of two machines differ a little.
            duration(now.saturating_sub(Duration::from_millis(*since)))
        }
        (ColumnKind::Due, RecipeCell::Number(due)) => {
            let due = Duration::from_millis(*due);
            match (due.checked_sub(now), now.saturating_sub(due)) {
                (Some(left), _) => format!("{}, in {}", utc(due), duration(left)),
                (None, late) => format!("{}, late by {}", utc(due), duration(late)),
            }
        }
        (_, RecipeCell::Session(session)) => match holder(*session) {
            Some(holder) => format!("{session} {holder}"),
            None => session.to_string(),
        },
        (_, RecipeCell::Text(text)) => text.clone(),
        (_, RecipeCell::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// Why a row needs attention.
fn wrong(of: &RecipeTable, row: &BTreeMap<&str, RecipeCell>, now: Duration) -> Option<String> {
    of.columns.iter().find_map(|column| match (column.kind, row.get(column.name)?) {
        (ColumnKind::Wrong, RecipeCell::Text(wrong)) => Some(wrong.clone()),
        (ColumnKind::Due, RecipeCell::Number(due)) => {
            let late = now.saturating_sub(Duration::from_millis(*due));
            (late >= LATE).then(|| format!("late by {}", duration(late)))
        }
        _ => None,
    })
}

/// What needs attention. That it is not known is a finding, too.
pub(super) fn find(cluster: &ClusterArgs, coordinator: &Coordinator) -> Vec<Finding> {
    let (done, found) = bounded(1);
    let session = cluster.session(coordinator);
    let looked = session.and_then(|session| {
        let look = move || drop(done.send(contended(&session, "/").wait()));
        let thread = std::thread::Builder::new().name("doctor-look".to_owned());
        thread.spawn(look).map_err(system("starting a thread"))?;
        let late = |_| {
            let (operation, waited) = ("looking at all znodes".to_owned(), cluster.wait());
            Err(Error::Timeout { operation, waited, reason: "the members answer late".to_owned() })
        };
        found.recv_timeout(cluster.wait()).unwrap_or_else(late)
    });
    match looked {
        Ok(found) => examine(&found, now()),
        Err(error) => vec![Finding::new(
            "recipes",
            format!("The recipes cannot be looked at: {error}."),
            "Look again with a longer --timeout.",
        )],
    }
}

/// What needs attention: one finding for each table.
fn examine(found: &[Contended], now: Duration) -> Vec<Finding> {
    let finding = |of: &Contended| {
        let table = of.table.as_ref()?;
        let first = table.columns.first()?.name;
        let name = |row: &BTreeMap<_, RecipeCell>| match row.get(first) {
            Some(RecipeCell::Text(name)) => name.clone(),
            _ => String::new(),
        };
        let rows = table.rows.iter();
        let wrong: Vec<_> = rows
            .filter_map(|row| Some(format!("{} ({})", name(row), wrong(table, row, now)?)))
            .collect();
        let named = wrong.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        let more = match wrong.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let (Contended { path, recipe, .. }, count) = (of, wrong.len());
        let all = table.rows.len() + table.left_out;
        let advice = match *recipe {
            "schedule" => {
                "Is an instance in Schedule::fire or Schedule::take, and does its last run end? `quorate timers` shows who \
                 runs what."
            }
            _ => {
                "Is each member in the calls of its share? `quorate partitions` shows who has what. Restart a member that \
                 hangs, or expire its session."
            }
        };
        (count > 0).then(|| {
            let wrong = format!(
                "Of the {recipe} of {path}, {count} of {all} need attention: {named}{more}."
            );
            Finding::new(format!("{recipe} {path}"), wrong, advice)
        })
    };
    found.iter().filter_map(finding).collect()
}
