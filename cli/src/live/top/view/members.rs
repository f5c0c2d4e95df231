//! Draws the members and, of the selected one, its report and its last minutes.

use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::widgets::{Sparkline, Widget};

use super::super::model::{Clocks, KEPT, Mark, Model};
use super::{Canvas, draw_list, split};

/// The lines of the lower part.
const DETAILS: u16 = 8;

pub(super) fn draw(canvas: &mut Canvas<'_>, model: &Model, now: Clocks, area: Rect) {
    let listing = model.listing(now);
    let is_tall = area.height >= DETAILS + 5;
    let details = if is_tall { DETAILS } else { 0 };
    let (above, below) = split(area, area.height - details);
    draw_list(canvas, &listing, above);
    let Some(row) = listing.rows.get(listing.selected).filter(|_| is_tall) else { return };
    let Some(member) = model.members.value.iter().find(|member| member.id == row.key) else {
        return;
    };
    let (title, body) = split(below, 1);
    let heading = format!("{} (id {})", member.address, member.id);
    canvas.put(title, 0, 0, &heading, canvas.look.title());
    let left_width = body.width.min(38);
    let left = Rect { width: left_width, ..body };
    let right = Rect { x: body.x + left_width, width: body.width - left_width, ..body };
    match &member.state {
        None => {
            canvas.put(left, 0, 0, "it does not report", canvas.look.of(Mark::Bad));
            if let Some(last) = &member.last_report {
                canvas.put(body, 1, 0, &last.to_string(), canvas.look.of(Mark::Bad));
            }
        }
        Some(state) => {
            let facts = [
                ("zxid", state.zxid),
                ("log, last", state.last_index),
                ("on disk", state.durable_index),
                ("committed", state.committed_index),
                ("applied", state.applied_index),
                ("znodes", state.znodes),
            ];
            for (line, (name, value)) in facts.iter().enumerate() {
                let style = canvas.look.of(Mark::Faint);
                canvas.put(left, line, 0, name, style);
                canvas.put(left, line, 11, &value.to_string(), Style::new());
            }
            if !state.unreachable.is_empty() {
                let others: Vec<&str> =
                    state.unreachable.iter().map(|other| other.address.as_str()).collect();
                let text = format!("it cannot reach {}", others.join(", "));
                canvas.put(left, facts.len(), 0, &text, canvas.look.of(Mark::Bad));
            }
        }
    }
    if let Some(history) = model.histories.get(&member.id) {
        let (upper, lower) = split(right, 3);
        draw_plot(canvas, "writes/s", history.writes(), upper);
        draw_plot(canvas, "lag", history.lags(), split(lower, 3).0);
    }
}

/// The last values, the newest at the right.
fn draw_plot<'a>(
    canvas: &mut Canvas<'_>,
    name: &str,
    values: impl DoubleEndedIterator<Item = Option<u64>> + 'a,
    area: Rect,
) {
    let (title, plot) = split(area, 1);
    let room = usize::from(plot.width).min(KEPT);
    let mut last: Vec<Option<u64>> = values.rev().take(room).collect();
    let now = last.first().copied().flatten();
    let most = last.iter().flatten().max();
    let text = |value: Option<u64>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
    let heading = format!("{name} {}, at most {}", text(now), text(most.copied()));
    canvas.put(title, 0, 0, &heading, canvas.look.of(Mark::Faint));
    last.resize(usize::from(plot.width), None);
    last.reverse();
    let style = canvas.look.color(Color::Yellow);
    let plot = plot.intersection(canvas.buffer.area);
    Sparkline::default().data(last).style(style).render(plot, canvas.buffer);
}
