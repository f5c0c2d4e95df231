//! Draws the model into a buffer of any size.

mod list;
mod members;
mod tree;

#[cfg(test)]
mod tests;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use self::list::draw_list;
use super::super::cluster::{duration, short};
use super::super::leadership::counts;
use super::model::{Clocks, Mark, Model, ScreenView};
use crate::text::line as line_of;

/// Older figures are marked.
const OLD_SECONDS: u64 = 5;

const KEYS: &[(&str, &str)] = &[
    ("1..5 Tab", "members, sessions, locks, tree, log"),
    ("Up Down", "select; also k j, Home, End"),
    ("Right Left", "open and close a znode; also Enter"),
    ("PgUp PgDn", "scroll; in the tree, the data"),
    ("/", "show only rows with some text; Esc: all"),
    ("s", "sort the sessions by their requests, or by their renewal"),
    ("q Ctrl-C", "quit"),
];

/// The styles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) is_colored: bool,
}

impl Look {
    fn color(self, color: Color) -> Style {
        if self.is_colored { Style::new().fg(color) } else { Style::new() }
    }

    fn of(self, mark: Mark) -> Style {
        match mark {
            Mark::Plain => Style::new(),
            Mark::Head => self.color(Color::Green).add_modifier(Modifier::BOLD),
            Mark::Bad => self.color(Color::Red).add_modifier(Modifier::BOLD),
            Mark::Faint => Style::new().add_modifier(Modifier::DIM),
        }
    }

    fn title(self) -> Style {
        self.color(Color::Cyan).add_modifier(Modifier::BOLD)
    }
}

/// A part of the screen, line by line.
struct Canvas<'a> {
    buffer: &'a mut Buffer,
    look: Look,
}

impl Canvas<'_> {
    /// Writes into a line of an area, as far as there is room; returns the number of columns
    /// written. Characters that would not be seen are escaped.
    fn put(&mut self, area: Rect, line: usize, column: usize, text: &str, style: Style) -> usize {
        let area = area.intersection(self.buffer.area);
        let (Ok(line), Ok(column)) = (u16::try_from(line), u16::try_from(column)) else { return 0 };
        if line >= area.height || column >= area.width {
            return 0;
        }
        let (x, y) = (area.x + column, area.y + line);
        let room = usize::from(area.width - column);
        let (end, _) = self.buffer.set_stringn(x, y, line_of(text), room, style);
        usize::from(end - x)
    }

    fn style_line(&mut self, area: Rect, line: usize, style: Style) {
        let area = area.intersection(self.buffer.area);
        if let Ok(line) = u16::try_from(line)
            && line < area.height
        {
            self.buffer.set_style(Rect { y: area.y + line, height: 1, ..area }, style);
        }
    }
}

/// The width of a text on the screen.
fn width(text: &str) -> usize {
    Span::raw(line_of(text)).width()
}

/// The first lines of an area, and the rest.
fn split(area: Rect, lines: u16) -> (Rect, Rect) {
    let lines = lines.min(area.height);
    let rest = Rect { y: area.y + lines, height: area.height - lines, ..area };
    (Rect { height: lines, ..area }, rest)
}

pub(super) fn draw(model: &Model, now: Clocks, look: Look, area: Rect, buffer: &mut Buffer) {
    let mut canvas = Canvas { buffer, look };
    let (tabs, rest) = split(area, 1);
    draw_tabs(&mut canvas, model, tabs);
    // On a small screen, the list matters more.
    let (status, rest) = split(rest, if area.height >= 8 { 1 } else { 0 });
    draw_status(&mut canvas, model, status);
    let (note, rest) = split(rest, 1);
    draw_note(&mut canvas, model, now, note);
    let (body, footer) = split(rest, rest.height.saturating_sub(1).max(1));
    draw_footer(&mut canvas, model, footer);
    if model.is_helping {
        return draw_help(&mut canvas, body);
    }
    match model.view {
        ScreenView::Members => members::draw(&mut canvas, model, now, body),
        ScreenView::Tree => tree::draw(&mut canvas, model, now, body),
        ScreenView::Sessions | ScreenView::Locks | ScreenView::Log => {
            draw_list(&mut canvas, &model.listing(now), body);
        }
    }
}

fn draw_tabs(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let is_wide = area.width >= 60;
    let mut column = 0;
    if is_wide {
        column += canvas.put(area, 0, 0, "quorate top   ", canvas.look.title());
    }
    for (place, view) in ScreenView::ALL.into_iter().enumerate() {
        let is_shown = view == model.view;
        let number = place + 1;
        let tab = match is_wide || is_shown {
            true => format!(" {number} {view:?} "),
            false => format!(" {number} "),
        };
        let style = match is_shown {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        column += canvas.put(area, 0, column, &tab, style);
    }
}

fn draw_status(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let members = &model.members.value;
    if members.is_empty() {
        return;
    }
    let leader = model.leader();
    let (text, mark) = match leader {
        Some(leader) => (format!("leader {}", leader.address), Mark::Head),
        None => ("no leader".to_owned(), Mark::Bad),
    };
    let mut column = canvas.put(area, 0, 0, &text, canvas.look.of(mark));
    let (voters, silent) = counts(members);
    let counted = format!("   {} members ({voters} vote", members.len());
    column += canvas.put(area, 0, column, &counted, Style::new());
    let style = canvas.look.of(Mark::Bad);
    if silent > 0 {
        column += canvas.put(area, 0, column, &format!(", {silent} silent"), style);
    }
    let mut rest = ")".to_owned();
    if let Some(writes) = model.writes() {
        rest.push_str(&format!("   {writes} writes/s"));
    }
    if let Some(state) = leader.and_then(|leader| leader.state.as_ref()) {
        if let Some(commit) = state.commit {
            let (half, most) = (short(commit.p50), short(commit.p99));
            rest.push_str(&format!("   commits {half}/{most}"));
        }
        rest.push_str(&format!("   term {}", state.term));
    }
    canvas.put(area, 0, column, &rest, Style::new());
}

/// Draws the age of the figures, and the error of the last read.
fn draw_note(canvas: &mut Canvas<'_>, model: &Model, now: Clocks, area: Rect) {
    let selected = || model.selected(now).map(|row| row.key).unwrap_or_default();
    let (what, (age, error)) = match model.view {
        ScreenView::Members => ("members", model.members.condition(now)),
        ScreenView::Sessions => ("sessions", model.sessions.condition(now)),
        ScreenView::Locks => ("locks", model.locks.condition(now)),
        ScreenView::Tree => {
            let znode = model.tree.znode(&selected());
            ("the znode", znode.map_or((None, None), |znode| znode.condition(now)))
        }
        ScreenView::Log => {
            let style = canvas.look.of(Mark::Faint);
            canvas.put(area, 0, 0, "what changed since this began, newest first", style);
            return;
        }
    };
    let needs_quorum = matches!(model.view, ScreenView::Locks | ScreenView::Tree);
    let without = needs_quorum && model.leader().is_none() && !model.members.value.is_empty();
    let error = match without {
        true => Some("no quorum, so nothing can be read here".to_owned()),
        false => error,
    };
    let mut note = match age {
        Some(age) => format!("{what} as of {} ago", duration(age)),
        None => format!("{what}: not read yet"),
    };
    if model.view == ScreenView::Tree {
        note.push_str(&format!("   {}", selected()));
    }
    let is_old = age.is_some_and(|age| age.as_secs() >= OLD_SECONDS);
    let mark = if is_old || error.is_some() { Mark::Bad } else { Mark::Faint };
    if let Some(error) = error {
        note = format!("{error} ({note})");
    }
    canvas.put(area, 0, 0, &note, canvas.look.of(mark));
}

fn draw_footer(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let (text, style) = match (model.is_typing, model.filter()) {
        (true, filter) => (format!("/{filter}_"), Style::new()),
        (false, "") => {
            let keys = match model.view {
                ScreenView::Members | ScreenView::Log => "q quit  ? keys  / filter",
                ScreenView::Sessions => "q quit  ? keys  / filter  s sort",
                ScreenView::Locks => "q quit  ? keys  / filter",
                ScreenView::Tree => "q quit  ? keys  / filter  arrows walk  PgDn data",
            };
            (keys.to_owned(), canvas.look.of(Mark::Faint))
        }
        (false, filter) => (format!("only with {filter:?} (Esc: all)"), canvas.look.title()),
    };
    canvas.put(area, 0, 0, &text, style);
}

fn draw_help(canvas: &mut Canvas<'_>, area: Rect) {
    for (line, (keys, what)) in KEYS.iter().enumerate() {
        canvas.put(area, line, 0, keys, canvas.look.title());
        canvas.put(area, line, 12, what, Style::new());
    }
}
