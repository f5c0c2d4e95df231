//! `top`: a live view of a cluster in a terminal.
//!
//! Threads read from the cluster ([`readers`]) and from the keyboard. The main thread takes their keys
//! ([`input`]) and updates, changes the [`model`], and draws it ([`view`]). Only this file touches the
//! terminal.

mod input;
mod model;
mod readers;
mod view;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Select, TryRecvError, unbounded};
use quorate::{Error, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use self::model::{Clocks, Model};
use self::readers::ReaderThreads;
use self::view::Look;
use super::{ClusterArgs, system};
use crate::Exit;

/// How often the program checks whether it is to end.
const TICK: Duration = Duration::from_millis(100);
/// How often ages are drawn again.
const REDRAW: Duration = Duration::from_millis(500);

pub(super) fn run(cluster: ClusterArgs) -> Result<Exit> {
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
    let readers = ReaderThreads::start(&cluster, &coordinator)?;
    let is_over = super::interrupted()?;
    // This also restores the terminal in a panic.
    let shown = ratatui::try_init()
        .map_err(system("preparing the terminal"))
        .and_then(|mut terminal| show(&mut terminal, &readers, &is_over));
    let restored = ratatui::try_restore().map_err(system("restoring the terminal"));
    coordinator.close().wait()?;
    shown.and(restored).map(|()| Exit::Well)
}

/// The events of the terminal. A thread of its own reads them, because reading does not end when the terminal
/// is gone: crossterm tries again for ever. (Drawing fails in that case.)
fn terminal_events() -> Result<Receiver<io::Result<Event>>> {
    let (sender, events) = unbounded();
    let read = move || {
        loop {
            let event = event::read();
            let has_failed = event.is_err();
            if sender.send(event).is_err() || has_failed {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("top-keys".to_owned()).spawn(read);
    thread.map_err(system("starting a thread"))?;
    Ok(events)
}

#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
/// Shows the cluster until the user quits, or the program is to end.
fn show(
    terminal: &mut DefaultTerminal,
    readers: &ReaderThreads,
    is_over: &AtomicBool,
) -> Result<()> {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let look = Look { is_colored: !no_color };
    let begun = Instant::now();
    let now = || Clocks {
        since: begun.elapsed(),
        unix: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
    };
    let ended = || {
        let reason = "a thread that reads has ended".to_owned();
        Error::System { what: "watching the cluster", reason }
    };
    let events = terminal_events()?;
    let mut model = Model::default();
    let mut drawn: Option<Duration> = None;
    while !model.is_over && !is_over.load(Ordering::Relaxed) {
        while let Ok((at, update)) = readers.updates.try_recv() {
            let since = at.saturating_duration_since(begun);
            model.update(update, Clocks { since, ..now() });
            drawn = None;
        }
        loop {
            match events.try_recv() {
                Ok(event) => {
                    let event = event.map_err(system("reading from the terminal"))?;
                    if let Event::Key(key) = event
                        && let Some(action) = input::action(key, model.is_typing)
                    {
                        model.act(action, now());
                    }
                    // The terminal may also have a new size.
                    drawn = None;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(ended()),
            }
        }
        if !readers.are_well() {
            return Err(ended());
        }
        if let Some(ask) = model.asks(now()) {
            readers.ask(ask);
        }
        if drawn.is_none_or(|at| begun.elapsed().saturating_sub(at) >= REDRAW) {
            let draw = |frame: &mut ratatui::Frame<'_>| {
                view::draw(&model, now(), look, frame.area(), frame.buffer_mut());
            };
            terminal.draw(draw).map_err(system("drawing in the terminal"))?;
            drawn = Some(begun.elapsed());
        }
        let mut next = Select::new();
        next.recv(&events);
        next.recv(&readers.updates);
        // Waits until any channel is ready; the loop then checks all of them.
        let _ = next.ready_timeout(TICK);
    }
    Ok(())
}
