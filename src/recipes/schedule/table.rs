//! What operators see of a schedule.

use super::timer::NEVER;
use super::{HISTORY, NEXT, Schedule};
use crate::api::session::Session;
use crate::recipes::table::{ColumnKind, RecipeColumn, RecipeTable, cell, column, has_parts};
use crate::types::error::Result;

const COLUMNS: &[RecipeColumn] = &[
    column("timer", ColumnKind::Text),
    column("fires", ColumnKind::Text),
    column("next", ColumnKind::Due),
    column("last", ColumnKind::Since),
    column("session", ColumnKind::Session),
    column("running", ColumnKind::Since),
    column("state", ColumnKind::Text),
    column("wrong", ColumnKind::Wrong),
];

/// Whether a znode with these children is a timer.
pub(in crate::recipes) fn is_timer(children: &[String]) -> bool {
    has_parts(children, &[NEXT, HISTORY])
}

/// The timers of the schedule at this path: when each fires and has fired, and who runs it. One that is paused has no
/// next time. `None` if there are none that this version knows.
pub(in crate::recipes) async fn table(
    session: &Session,
    path: &str,
) -> Result<Option<RecipeTable>> {
    let timers = Schedule::new(session, path)?.all_seen().await?;
    let row = |timer: &super::Seen| {
        let paused = timer.definition.paused;
        let next = u64::try_from(timer.next).ok().filter(|_| timer.next != NEVER && !paused);
        let last = (!timer.history.last.is_empty()).then_some(timer.fired.mtime);
        let runner = timer.runner.as_ref().filter(|_| timer.running.is_some());
        let state = match &timer.asked {
            _ if paused => Some("paused".to_owned()),
            Some(_) => Some("asked to fire".to_owned()),
            None => None,
        };
        let is_left = timer.running.is_some() && timer.runner.is_none();
        let wrong = is_left.then(|| "no instance runs its last fire".to_owned());
        vec![
            cell(Some(timer.name.clone())),
            cell(Some(timer.definition.timer.to_string())),
            cell(next),
            cell(last),
            cell(runner.and_then(|runner| runner.ephemeral_owner)),
            cell(runner.map(|runner| runner.ctime)),
            cell(state),
            cell(wrong),
        ]
    };
    let table = RecipeTable::new(COLUMNS, timers.iter().map(row));
    Ok((!timers.is_empty()).then_some(table))
}
