//! `top`: a live view of a cluster in a terminal.
//!
//! Threads read from the cluster ([`readers`]), and the main thread shows what they have read: it takes keys
//! ([`input`]) and updates, changes the [`model`], and draws it ([`view`]). Only this file touches the terminal.

mod input;
mod model;
mod readers;
mod view;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use quorate::{Error, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use self::model::{Model, Now};
use self::readers::Readers;
use self::view::Look;
use super::{Cluster, system};
use crate::Exit;

/// A key is waited for so long before updates are shown.
const TICK: Duration = Duration::from_millis(100);
/// Ages are drawn anew after so long.
const REDRAW: Duration = Duration::from_millis(500);

pub(super) fn run(cluster: Cluster) -> Result<Exit> {
    let refused = |reason: &str| {
        Err(Error::InvalidSetting { setting: "quorate top", reason: reason.to_owned() })
    };
    if cluster.json {
        return refused("it has no JSON: `members`, `sessions`, `locks` and `tree` have");
    }
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return refused("it needs a terminal; without one, use `members`, `sessions` and `locks`");
    }
    let cluster = Arc::new(cluster);
    let coordinator = Arc::new(cluster.coordinator()?);
    let readers = Readers::start(&cluster, &coordinator)?;
    let is_over = super::interrupted()?;
    // This also restores the terminal in a panic.
    let shown = ratatui::try_init()
        .map_err(system("preparing the terminal"))
        .and_then(|mut terminal| show(&mut terminal, &readers, &is_over));
    let restored = ratatui::try_restore().map_err(system("restoring the terminal"));
    coordinator.close();
    shown.and(restored).map(|()| Exit::Well)
}

#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
/// Shows the cluster until the user has seen enough, or the program is to end.
fn show(terminal: &mut DefaultTerminal, readers: &Readers, is_over: &AtomicBool) -> Result<()> {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let look = Look { is_colored: !no_color };
    let begun = Instant::now();
    let now = || Now {
        since: begun.elapsed(),
        unix: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
    };
    let mut model = Model::new();
    let mut drawn: Option<Duration> = None;
    while !model.is_over && !is_over.load(Ordering::Relaxed) {
        let mut is_new = drawn.is_none_or(|at| begun.elapsed().saturating_sub(at) >= REDRAW);
        while let Ok((at, update)) = readers.updates.try_recv() {
            let since = at.saturating_duration_since(begun);
            model.update(update, Now { since, ..now() });
            is_new = true;
        }
        if !readers.are_well() {
            let reason = "a thread that reads from it has ended".to_owned();
            return Err(Error::System { what: "watching the cluster", reason });
        }
        if let Some(ask) = model.asks(now()) {
            readers.ask(ask);
        }
        if is_new {
            let draw = |frame: &mut ratatui::Frame<'_>| {
                view::draw(&model, now(), look, frame.area(), frame.buffer_mut());
            };
            terminal.draw(draw).map_err(system("drawing in the terminal"))?;
            drawn = Some(begun.elapsed());
        }
        let mut wait = TICK;
        while event::poll(wait).map_err(system("reading from the terminal"))? {
            let event = event::read().map_err(system("reading from the terminal"))?;
            if let Event::Key(key) = event
                && let Some(action) = input::action(key, model.is_typing)
            {
                model.act(action, now());
            }
            // It may also have a new size.
            drawn = None;
            wait = Duration::ZERO;
        }
    }
    Ok(())
}
