//! `locks`: who holds what, who waits for it, and the state of work that is shared.

use std::cmp::Reverse;
use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use quorate::operate::{self, Contended, Contending, RecipeCell};
use quorate::session::SessionId;
use quorate::{Coordinator, Result, Session};
use serde_json::Value;

use super::cluster::duration;
use super::sessions::Holders;
use super::tables::{lines, now};
use super::{Shown, json};
use crate::text::line;

/// How many lines of a table are shown beside other things.
const ROWS: usize = 20;

/// The locks to list.
#[derive(Debug, Args)]
pub(crate) struct LocksArgs {
    /// Where to look: this znode and all below it.
    #[arg(default_value = "/")]
    path: String,
    /// Only those that somebody waits for; not the takers of empty queues.
    #[arg(long)]
    waiting: bool,
    /// Lists the takers of empty queues, too.
    #[arg(long, conflicts_with = "waiting")]
    takers: bool,
}

/// Puts what most wait for first, and then what comes first by its path. Takers of a queue wait for items, not for
/// each other: they come last.
pub(super) fn sort(found: &mut [Contended]) {
    found.sort_by(|one, other| {
        let order = |of: &Contended| (is_idle(of), Reverse(of.waiters.len()));
        (order(one), &one.path, one.recipe).cmp(&(order(other), &other.path, other.recipe))
    });
}

/// Whether these are takers that wait for items of an empty queue.
pub(super) fn is_idle(of: &Contended) -> bool {
    of.recipe == "queue of takers" && of.holders.is_empty()
}

impl LocksArgs {
    pub(super) fn run(&self, coordinator: &Coordinator, session: &Session) -> Result<Shown> {
        let mut found = operate::contended(session, &self.path).wait()?;
        sort(&mut found);
        if self.waiting {
            found.retain(|of| !of.waiters.is_empty() && !is_idle(of));
        }
        let (mut queues, mut takers) = (0, 0);
        let is_asked_for =
            |of: &Contended| ["", "/takers"].map(Some).contains(&of.path.strip_prefix(&self.path));
        let mut shown = shown(coordinator, &found, |of| {
            let is_counted = is_idle(of) && !self.takers && !is_asked_for(of);
            if is_counted {
                queues += 1;
                takers += of.waiters.len();
            }
            match (is_counted, &of.table) {
                (true, _) => 0,
                (_, Some(_)) if !is_asked_for(of) => ROWS,
                _ => usize::MAX,
            }
        });
        let mut text = String::new();
        if found.is_empty() {
            let what = if self.waiting { "waits" } else { "holds or waits" };
            let _ = writeln!(text, "nobody {what} for anything below {}", line(&self.path));
        }
        if queues > 0 {
            let _ = writeln!(
                text,
                "{takers} {} for items of {queues} empty {} (--takers lists them)",
                if takers == 1 { "taker waits" } else { "takers wait" },
                if queues == 1 { "queue" } else { "queues" },
            );
        }
        shown.add(&text);
        Ok(shown)
    }
}

/// What was found, each with as many of its lines as `most` says.
pub(super) fn shown(
    coordinator: &Coordinator,
    found: &[Contended],
    mut most: impl FnMut(&Contended) -> usize,
) -> Shown {
    let holders = match found.is_empty() {
        true => None,
        false => Some(Holders::read(coordinator)),
    };
    let holder = |session: SessionId| holders.as_ref()?.get(session).map(str::to_owned);
    let mut text = String::new();
    for of in found {
        let most = most(of);
        if most == 0 {
            continue;
        }
        let _ = writeln!(text, "{} ({})", line(&of.path), of.recipe);
        for (what, list) in [("holds", &of.holders), ("waits", &of.waiters)] {
            list.iter().for_each(|one| {
                contending(&mut text, what, one, one.session.and_then(holder));
            });
        }
        let lines = of.table.as_ref().map(|table| lines(table, now(), holder)).unwrap_or_default();
        for (line, _) in lines.iter().take(most) {
            let _ = writeln!(text, "  {line}");
        }
        if lines.len() > most {
            let _ = writeln!(text, "  and more: quorate locks {}", line(&of.path));
        }
    }
    Shown::new(text, found.iter().map(|of| with_holders(of, holder)).collect())
}

/// The JSON of the library, with `held_by` beside each session.
fn with_holders(of: &Contended, holder: impl Fn(SessionId) -> Option<String>) -> Value {
    let mut value = json(of);
    for (name, list) in [("holders", &of.holders), ("waiters", &of.waiters)] {
        for (at, one) in list.iter().enumerate() {
            value[name][at]["held_by"] = json(one.session.and_then(&holder));
        }
    }
    for (at, row) in of.table.iter().flat_map(|table| &table.rows).enumerate() {
        if let Some(RecipeCell::Session(session)) = row.get("session") {
            value["table"]["rows"][at]["held_by"] = json(holder(*session));
        }
    }
    value
}

fn contending(text: &mut String, what: &str, one: &Contending, holder: Option<String>) {
    let session = one.session.map_or_else(|| "no session".to_owned(), |id| id.to_string());
    // The clocks of two machines differ a little.
    let age = duration(now().saturating_sub(Duration::from_millis(one.since)));
    let holder = holder.unwrap_or_else(|| "?".to_owned());
    let label =
        if one.label.is_empty() { String::new() } else { format!("  {}", line(&one.label)) };
    let _ = writeln!(
        text,
        "  {what}  {session}  {:<11}  for {age:<7}  {}{label}",
        one.kind,
        line(&holder)
    );
}
