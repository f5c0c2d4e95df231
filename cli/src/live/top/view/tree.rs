//! Draws the tree, and beside or below it the selected znode.

use std::time::Duration;

use quorate::Stat;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::model::{Clocks, Mark, Model, ShownZnode};
use super::{Canvas, draw_list, duration, split, width};

/// From this width on, the two are side by side.
const WIDE: u16 = 70;

pub(super) fn draw(canvas: &mut Canvas<'_>, model: &Model, now: Clocks, area: Rect) {
    let listing = model.listing(now);
    let (list, details) = match area.width >= WIDE {
        true => {
            let left = area.width * 2 / 5;
            let right = Rect { x: area.x + left + 1, width: area.width - left - 1, ..area };
            (Rect { width: left, ..area }, right)
        }
        false => split(area, area.height.div_ceil(2)),
    };
    draw_list(canvas, &listing, list);
    let Some(row) = listing.rows.get(listing.selected) else { return };
    let znode = model.tree.znode(&row.key).and_then(|znode| znode.value.as_ref());
    if let Some(znode) = znode {
        draw_znode(canvas, model, znode, now, details);
    }
}

fn draw_znode(canvas: &mut Canvas<'_>, model: &Model, znode: &ShownZnode, now: Clocks, area: Rect) {
    let (kind, lines) = &model.tree.data;
    let stat = facts(&znode.stat, now);
    let acl = znode.acl.iter().map(|acl| format!("acl {}={}", acl.permissions, acl.id));
    let about: Vec<String> = stat.into_iter().chain(acl).collect();
    let size = format!("{kind}, {} B", znode.stat.data_length);
    // The data is what matters most.
    let least = area.height.saturating_sub(3).min(4);
    let about_height = u16::try_from(about.len()).unwrap_or(u16::MAX);
    let (upper, lower) = split(area, about_height.min(area.height.saturating_sub(least + 1)));
    for (line, fact) in about.iter().enumerate() {
        canvas.put(upper, line, 0, fact, canvas.look.of(Mark::Faint));
    }
    let scrolled = model.tree.scrolled;
    let size = match scrolled {
        0 => size,
        _ => format!("{size}, from line {} of {}", scrolled + 1, lines.len()),
    };
    let (title, data) = split(lower, 1);
    canvas.put(title, 0, 0, &size, canvas.look.title());
    let wrapped = lines.iter().skip(scrolled).flat_map(|line| wrap(line, usize::from(data.width)));
    for (line, text) in wrapped.take(usize::from(data.height)).enumerate() {
        canvas.put(data, line, 0, &text, Style::new());
    }
}

fn facts(stat: &Stat, now: Clocks) -> Vec<String> {
    // The znodes that a cluster begins with have no moment.
    let ago = |at: u64| match at {
        0 => "with the cluster".to_owned(),
        at => format!("{} ago", duration(now.unix.saturating_sub(Duration::from_millis(at)))),
    };
    let mut facts = vec![
        format!("version {}, {} children", stat.version, stat.num_children),
        format!("cversion {}, aversion {}", stat.cversion, stat.aversion),
        format!("czxid {}, mzxid {}, pzxid {}", stat.czxid, stat.mzxid, stat.pzxid),
        format!("created {}, set {}", ago(stat.ctime), ago(stat.mtime)),
    ];
    if let Some(owner) = stat.ephemeral_owner {
        facts.push(format!("ephemeral of {owner}"));
    }
    if stat.is_container {
        facts.push("container".to_owned());
    }
    if let Some(ttl) = stat.ttl {
        facts.push(format!("lives {} without a change", duration(ttl)));
    }
    facts
}

/// A line as the lines that it needs at this width.
fn wrap(line: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for letter in line.chars() {
        let wide = width(letter.encode_utf8(&mut [0; 4]));
        if used + wide > room && used > 0 {
            lines.push(String::new());
            used = 0;
        }
        // The list is never empty.
        if let Some(last) = lines.last_mut() {
            last.push(letter);
        }
        used += wide;
    }
    lines
}
