//! Draws a list: as many columns as there is room for, and the rows around the selected one.

use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::super::model::{Column, Listing, Row};
use super::{Canvas, width};

/// The gap between two columns.
const GAP: usize = 2;

pub(super) fn draw_list(canvas: &mut Canvas<'_>, listing: &Listing, area: Rect) {
    let height = usize::from(area.height).saturating_sub(1);
    let first = first_row(listing, height);
    let last = listing.rows.len().min(first + height);
    let rows = &listing.rows[first..last];
    let columns = fit(&listing.header, rows, usize::from(area.width));
    let mut at = 0;
    for &(column, wide) in &columns {
        let title = &listing.header[column];
        put_cell(canvas, (area, 0, at), title.title, title, wide, canvas.look.title());
        at += wide + GAP;
    }
    for (line, row) in rows.iter().enumerate() {
        let style = canvas.look.of(row.mark);
        let mut at = 0;
        // A row of one cell is a title, which spans the columns.
        if let [title] = &row.cells[..] {
            canvas.put(area, line + 1, 0, title, style);
        } else {
            for &(column, wide) in &columns {
                let cell = row.cells.get(column).map_or("", String::as_str);
                let place = (area, line + 1, at);
                put_cell(canvas, place, cell, &listing.header[column], wide, style);
                at += wide + GAP;
            }
        }
        if first + line == listing.selected {
            canvas.style_line(area, line + 1, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
    if listing.rows.is_empty() {
        canvas.put(area, 1, 0, "nothing", canvas.look.of(super::Mark::Faint));
    }
}

/// The first row to show, so that the selected row is visible.
fn first_row(listing: &Listing, height: usize) -> usize {
    let most = listing.rows.len().saturating_sub(height);
    listing.selected.saturating_sub(height / 2).min(most)
}

fn put_cell(
    canvas: &mut Canvas<'_>,
    (area, line, at): (Rect, usize, usize),
    text: &str,
    column: &Column,
    wide: usize,
    style: Style,
) {
    let before = if column.is_right { wide.saturating_sub(width(text)) } else { 0 };
    canvas.put(area, line, at + before, text, style);
}

/// The columns that fit, each with its width.
fn fit(header: &[Column], rows: &[Row], room: usize) -> Vec<(usize, usize)> {
    let wide = |column: usize| {
        let cells = rows.iter().filter(|row| row.cells.len() > 1);
        let cells = cells.filter_map(|row| row.cells.get(column)).map(|cell| width(cell));
        cells.max().unwrap_or(0)
    };
    let empty = |column: usize| wide(column) == 0 && header[column].rank > 0;
    let mut columns: Vec<(usize, usize)> = (0..header.len())
        .filter(|column| !empty(*column))
        .map(|column| (column, wide(column).max(width(header[column].title))))
        .collect();
    let needed = |columns: &[(usize, usize)]| -> usize {
        columns.iter().map(|(_, wide)| wide + GAP).sum::<usize>().saturating_sub(GAP)
    };
    while needed(&columns) > room
        && let Some(rank) = columns.iter().map(|(column, _)| header[*column].rank).max()
        && rank > 0
    {
        columns.retain(|(column, _)| header[*column].rank != rank);
    }
    columns
}
