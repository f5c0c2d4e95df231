//! `locks`: who holds what, and who waits for it.

use std::cmp::Reverse;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use clap::Args;
use quorate::recipes::{self, Contended, Contending};
use quorate::{Coordinator, Result, Session};
use serde_json::Value;

use super::cluster::duration;
use super::sessions::Holders;
use super::{Shown, json};
use crate::text::line;

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
        let mut found = recipes::contended(session, &self.path)?;
        sort(&mut found);
        if self.waiting {
            found.retain(|of| !of.waiters.is_empty() && !is_idle(of));
        }
        let holders = match found.is_empty() {
            true => None,
            false => Some(Holders::read(coordinator)),
        };
        let holders = |one: &Contending| holders.as_ref()?.get(one.session?).map(str::to_owned);
        let (mut text, mut queues, mut takers) = (String::new(), 0, 0);
        for of in &found {
            let is_asked_for =
                ["", "/takers"].map(Some).contains(&of.path.strip_prefix(&self.path));
            if is_idle(of) && !self.takers && !is_asked_for {
                queues += 1;
                takers += of.waiters.len();
                continue;
            }
            let _ = writeln!(text, "{} ({})", line(&of.path), of.recipe);
            of.holders.iter().for_each(|one| contending(&mut text, "holds", one, holders(one)));
            of.waiters.iter().for_each(|one| contending(&mut text, "waits", one, holders(one)));
        }
        if text.is_empty() && queues == 0 {
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
        Ok(Shown::new(text, found.iter().map(|of| with_holders(of, holders)).collect()))
    }
}

/// The JSON of the library, with `held_by` beside each session.
fn with_holders(of: &Contended, holders: impl Fn(&Contending) -> Option<String>) -> Value {
    let mut value = json(of);
    for (name, list) in [("holders", &of.holders), ("waiters", &of.waiters)] {
        for (at, one) in list.iter().enumerate() {
            value[name][at]["held_by"] = json(holders(one));
        }
    }
    value
}

#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
fn contending(text: &mut String, what: &str, one: &Contending, holder: Option<String>) {
    let session = one.session.map_or_else(|| "no session".to_owned(), |id| id.to_string());
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(one.since);
    // The clocks of two machines differ a little.
    let age = duration(SystemTime::now().duration_since(since).unwrap_or_default());
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
