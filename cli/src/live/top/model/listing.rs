//! The rows of members, sessions and locks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use quorate::operate::{Contending, SessionInfo};
use quorate::session::SessionId;

use super::super::super::cluster::{MEMBER, duration, or_unknown};
use super::super::super::sessions::{self, holder};
use super::super::super::tables;
use super::{Clocks, Model, SessionOrder};

/// A column of a list.
#[derive(Clone, Debug)]
pub(in super::super) struct Column {
    pub(in super::super) title: &'static str,
    /// If there is not enough room, columns with the highest rank are left out first; rank 0 always
    /// stays.
    pub(in super::super) rank: u8,
    pub(in super::super) is_right: bool,
}

impl Column {
    pub(super) fn left(title: &'static str, rank: u8) -> Column {
        Column { title, rank, is_right: false }
    }

    fn right(title: &'static str, rank: u8) -> Column {
        Column { title, rank, is_right: true }
    }
}

/// How a row is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Mark {
    Plain,
    /// The leader, or the head of a group.
    Head,
    /// Something that needs attention.
    Bad,
    /// Something less important.
    Faint,
}

#[derive(Clone, Debug)]
pub(in super::super) struct Row {
    /// The identity of the row, which stays the same when it is read again.
    pub(in super::super) key: String,
    pub(in super::super) cells: Vec<String>,
    pub(in super::super) mark: Mark,
}

#[derive(Clone, Debug)]
pub(in super::super) struct Listing {
    pub(in super::super) header: Vec<Column>,
    pub(in super::super) rows: Vec<Row>,
    /// The index of the selected row; 0 if there is none.
    pub(in super::super) selected: usize,
}

impl Listing {
    pub(super) fn new(header: Vec<Column>, rows: Vec<Row>) -> Listing {
        Listing { header, rows, selected: 0 }
    }
}

fn has(cells: &[String], filter: &str) -> bool {
    cells.iter().any(|cell| cell.contains(filter))
}

impl Model {
    pub(super) fn list_members(&self) -> Listing {
        let shown =
            || MEMBER.iter().filter_map(|(title, rank, cell)| Some((title, (*rank)?, cell)));
        let column = |(title, rank, _): (&&'static str, u8, _)| match *title {
            "ADDRESS" | "ROLE" | "ZONE" => Column::left(title, rank),
            _ => Column::right(title, rank),
        };
        let header = shown().map(column).collect();
        let leader = self.leader().map(|leader| &leader.id);
        let rows = self.members.value.iter().map(|member| {
            let mark = match () {
                () if member.is_silent => Mark::Bad,
                () if leader == Some(&member.id) => Mark::Head,
                () => Mark::Plain,
            };
            Row {
                key: member.id.clone(),
                cells: shown().map(|(.., cell)| cell(member)).collect(),
                mark,
            }
        });
        let rows = rows.filter(|row| has(&row.cells, self.filter()));
        Listing::new(header, rows.collect())
    }

    pub(super) fn list_sessions(&self) -> Listing {
        let columns = sessions::columns(holder);
        let column = |(title, rank, _): (&'static str, u8, _)| match (title, self.order) {
            ("ID" | "HELD BY", _) => Column::left(title, rank),
            ("REQUESTS/S", SessionOrder::Requests) => Column::right("REQUESTS/S v", rank),
            ("RENEWED", SessionOrder::Renewal) => Column::right("RENEWED v", rank),
            _ => Column::right(title, rank),
        };
        let header = columns.map(column).to_vec();
        let mut sessions: Vec<&SessionInfo> = self.sessions.value.iter().collect();
        match self.order {
            SessionOrder::Id => {}
            SessionOrder::Requests => {
                sessions.sort_by_key(|session| Reverse(session.requests_per_second));
            }
            SessionOrder::Renewal => sessions.sort_by_key(|session| Reverse(session.renewed)),
        }
        let rows = sessions.into_iter().map(|session| {
            let is_late = session.renewed.is_some_and(|ago| ago > session.timeout * 2 / 3);
            let cells = columns.map(|(.., cell)| cell(session)).to_vec();
            let mark = if is_late { Mark::Bad } else { Mark::Plain };
            Row { key: session.id.to_string(), cells, mark }
        });
        Listing::new(header, rows.filter(|row| has(&row.cells, self.filter())).collect())
    }

    pub(super) fn list_locks(&self, now: Clocks) -> Listing {
        let header = vec![
            Column::left("LOCK", 0),
            Column::left("SESSION", 0),
            Column::right("FOR", 0),
            Column::left("KIND", 3),
            Column::left("HELD BY", 1),
            Column::left("LABEL", 2),
        ];
        let held = |of: &SessionInfo| (of.id.to_string(), holder(of));
        let sessions: BTreeMap<String, String> = self.sessions.value.iter().map(held).collect();
        let row = |what: &str, one: &Contending, mark: Mark| {
            let session = one.session.map(|id| id.to_string());
            let holder = session.as_ref().and_then(|id| sessions.get(id).cloned());
            // The clocks of two machines differ a little.
            let age = now.unix.saturating_sub(Duration::from_millis(one.since));
            let cells = vec![
                format!("  {what}"),
                session.unwrap_or_else(|| "no session".to_owned()),
                duration(age),
                one.kind.to_owned(),
                or_unknown(holder),
                one.label.clone(),
            ];
            Row { key: one.path.clone(), cells, mark }
        };
        let mut rows = Vec::new();
        for of in &self.locks.value {
            let title = Row {
                key: format!("{} {}", of.path, of.recipe),
                cells: vec![format!("{} ({})", of.path, of.recipe)],
                mark: Mark::Head,
            };
            let holders = of.holders.iter().map(|one| row("holds", one, Mark::Plain));
            let waiters = of.waiters.iter().map(|one| row("waits", one, Mark::Faint));
            let holder = |session: SessionId| sessions.get(&session.to_string()).cloned();
            let lines = of.table.as_ref().map(|table| tables::lines(table, now.unix, holder));
            let lines = lines.unwrap_or_default().into_iter().enumerate();
            let lines = lines.map(|(at, (line, is_wrong))| {
                let mark = match () {
                    () if is_wrong => Mark::Bad,
                    () if at == 0 => Mark::Faint,
                    () => Mark::Plain,
                };
                let key = format!("{} {} {at}", of.path, of.recipe);
                Row { key, cells: vec![format!("  {line}")], mark }
            });
            let group: Vec<Row> =
                [title].into_iter().chain(holders).chain(waiters).chain(lines).collect();
            // A waiter is shown only together with its holder.
            if group.iter().any(|row| has(&row.cells, self.filter())) {
                rows.extend(group);
            }
        }
        Listing::new(header, rows)
    }
}
