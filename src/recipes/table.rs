//! What a recipe tells beside its holders and waiters: one table, which the program, `top`, the admin page and the JSON
//! of all of them show as it is.

use std::collections::BTreeMap;

use crate::types::znode::SessionId;

/// The most rows of a table.
const ROWS_MAX: usize = 1000;

type Row = BTreeMap<&'static str, RecipeCell>;

/// The state of partitions, of a schedule's timers or of a queue's items: see [`Contended::table`](super::contended::Contended).
///
/// It says itself how it is shown, so that whoever shows one shows all.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct RecipeTable {
    /// The columns, in order. The first one has the row's name, unless there is only one row.
    pub columns: &'static [RecipeColumn],
    /// The cells by the names of their columns; what does not apply to a row is absent. Those that need attention come
    /// first. At most 1,000.
    pub rows: Vec<BTreeMap<&'static str, RecipeCell>>,
    /// How many further rows there are.
    pub left_out: usize,
}

/// A column of a [`RecipeTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct RecipeColumn {
    /// Its name: one word, or several with `_` between them.
    pub name: &'static str,
    /// What its cells are.
    pub kind: ColumnKind,
}

/// What the cells of a [`RecipeColumn`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ColumnKind {
    /// A text.
    Text,
    /// A number of things.
    Count,
    /// A session.
    Session,
    /// A moment in the past: milliseconds since the Unix epoch, by the log's time.
    Since,
    /// The moment at which something is to happen, in the same way. Once it has passed, that is late.
    Due,
    /// Why the row needs attention, as text. The others have no such cell.
    Wrong,
}

/// A cell of a [`RecipeTable`]. The kind of its column says what it is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum RecipeCell {
    /// A text, or what is wrong.
    Text(String),
    /// A count, or a moment.
    Number(u64),
    /// A session.
    Session(SessionId),
}

impl From<String> for RecipeCell {
    fn from(text: String) -> RecipeCell {
        RecipeCell::Text(text)
    }
}

impl From<u64> for RecipeCell {
    fn from(number: u64) -> RecipeCell {
        RecipeCell::Number(number)
    }
}

impl From<SessionId> for RecipeCell {
    fn from(session: SessionId) -> RecipeCell {
        RecipeCell::Session(session)
    }
}

impl RecipeTable {
    /// A table of these rows, each with a cell or none for each column.
    pub(super) fn new(
        columns: &'static [RecipeColumn],
        rows: impl IntoIterator<Item = Vec<Option<RecipeCell>>>,
    ) -> RecipeTable {
        let named = |cells: Vec<Option<RecipeCell>>| {
            let cells = columns.iter().zip(cells);
            cells.filter_map(|(column, cell)| Some((column.name, cell?))).collect()
        };
        let rows = rows.into_iter().map(named).collect();
        let mut table = RecipeTable { columns, rows, left_out: 0 };
        let wrong = table.wrong_column();
        let is_well = |row: &Row| !wrong.is_some_and(|column| row.contains_key(column));
        table.rows.sort_by_key(is_well);
        table.left_out = table.rows.len().saturating_sub(ROWS_MAX);
        table.rows.truncate(ROWS_MAX);
        table
    }

    fn wrong_column(&self) -> Option<&'static str> {
        let wrong = |column: &&RecipeColumn| column.kind == ColumnKind::Wrong;
        self.columns.iter().find(wrong).map(|column| column.name)
    }

    /// How many rows need attention, of those that are shown.
    pub(super) fn wrong(&self) -> u64 {
        let wrong = self.wrong_column();
        let is_wrong = |row: &&Row| wrong.is_some_and(|column| row.contains_key(column));
        self.rows.iter().filter(is_wrong).count() as u64
    }

    /// The numbers in a column.
    pub(super) fn numbers(&self, column: &str) -> impl Iterator<Item = u64> {
        let number = move |row: &Row| match row.get(column)? {
            RecipeCell::Number(number) => Some(*number),
            _ => None,
        };
        self.rows.iter().filter_map(number)
    }
}

/// A column.
pub(super) const fn column(name: &'static str, kind: ColumnKind) -> RecipeColumn {
    RecipeColumn { name, kind }
}

/// Whether all of these are among a znode's children.
pub(super) fn has_parts(children: &[String], parts: &[&str]) -> bool {
    parts.iter().all(|part| children.iter().any(|child| child == part))
}

/// A cell, if there is a value.
pub(super) fn cell(value: Option<impl Into<RecipeCell>>) -> Option<RecipeCell> {
    value.map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_table_has_first_what_is_wrong() {
        const COLUMNS: &[RecipeColumn] =
            &[column("name", ColumnKind::Text), column("wrong", ColumnKind::Wrong)];
        let row = |at: u64| vec![cell(Some(at)), cell((at == 1500).then(|| "bad".to_owned()))];
        let table = RecipeTable::new(COLUMNS, (0..2000).map(row));
        assert_eq!((table.rows.len(), table.left_out), (1000, 1000));
        assert_eq!(table.rows[0]["name"], RecipeCell::Number(1500));
    }
}
