//! What operators see of a limit for each of many keys.

use std::time::Duration;

use super::agreement::Agreement;
use crate::recipes::table::{ColumnKind, RecipeColumn, RecipeTable, cell, column};
use crate::types::znode::Stat;

const COLUMNS: &[RecipeColumn] = &[
    column("keys", ColumnKind::Count),
    column("burst", ColumnKind::Count),
    column("one_permit_in", ColumnKind::Text),
];

/// Whether the data of a znode may be such a limit that is in use.
pub(in crate::recipes) fn may_be_limit(stat: &Stat) -> bool {
    stat.num_children > 0 && Agreement::LENGTHS.contains(&stat.data_length)
}

/// One row: how many keys cannot use their whole burst now, and the limit. `None` if this is none.
pub(in crate::recipes) fn table(data: &[u8], stat: &Stat) -> Option<RecipeTable> {
    let (interval, burst) = Agreement::parse(data)?;
    let interval = format!("{:?}", Duration::from_nanos(interval));
    let keys = u64::from(stat.num_children);
    Some(RecipeTable::new(
        COLUMNS,
        [vec![cell(Some(keys)), cell(Some(burst)), cell(Some(interval))]],
    ))
}
