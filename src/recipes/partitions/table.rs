//! What operators see of partitions: a table of them, and one of the members.

use super::partitions_status;
use std::collections::BTreeMap;

use super::{OWNERS, PLAN, POSITIONS, PartitionsStatus};
use crate::api::session::Session;
use crate::recipes::table::{ColumnKind, RecipeColumn, RecipeTable, cell, column, has_parts};
use crate::types::error::{Error, Result};

const PARTITIONS: &[RecipeColumn] = &[
    column("partition", ColumnKind::Text),
    column("owner", ColumnKind::Text),
    column("session", ColumnKind::Session),
    column("since", ColumnKind::Since),
    column("moves_to", ColumnKind::Text),
    column("wrong", ColumnKind::Wrong),
];

const MEMBERS: &[RecipeColumn] = &[
    column("member", ColumnKind::Text),
    column("partitions", ColumnKind::Count),
    column("weight", ColumnKind::Count),
    column("zone", ColumnKind::Text),
    column("session", ColumnKind::Session),
    column("since", ColumnKind::Since),
    column("silent", ColumnKind::Since),
    column("wrong", ColumnKind::Wrong),
];

/// Whether a znode with these children may be that of partitions.
pub(in crate::recipes) fn is_root(children: &[String]) -> bool {
    has_parts(children, &[OWNERS, PLAN, POSITIONS])
}

/// The partitions, and the members. `None` if these are no partitions that this version knows.
pub(in crate::recipes) async fn tables(
    session: &Session,
    path: &str,
) -> Result<Option<[RecipeTable; 2]>> {
    let status = match partitions_status(session, path).await {
        Err(Error::InvalidData { .. }) => return Ok(None),
        status => status?,
    };
    Ok(Some([partitions(&status), members(&status)]))
}

fn partitions(status: &PartitionsStatus) -> RecipeTable {
    let sessions: BTreeMap<&str, _> =
        status.members.iter().map(|member| (&*member.name, member.session)).collect();
    let rows = status.partitions.iter().map(|of| {
        let (owner, planned) = (of.owner.as_deref(), of.planned.as_deref());
        let wrong = owner.is_none().then(|| match planned {
            Some(member) if sessions.contains_key(member) => {
                format!("no owner; it is planned for {member}")
            }
            Some(member) => format!("no owner; it waits for {member}, which is not there"),
            None => "no owner; it is planned for nobody".to_owned(),
        });
        vec![
            cell(Some(of.name.clone())),
            cell(of.owner.clone()),
            cell(owner.and_then(|owner| *sessions.get(owner)?)),
            cell(of.since),
            cell(of.is_draining().then(|| planned.unwrap_or("nobody").to_owned())),
            cell(wrong),
        ]
    });
    RecipeTable::new(PARTITIONS, rows)
}

fn members(status: &PartitionsStatus) -> RecipeTable {
    let mut owned: BTreeMap<&str, u64> = BTreeMap::new();
    let owners = status.partitions.iter().filter_map(|of| of.owner.as_deref());
    owners.for_each(|owner| *owned.entry(owner).or_default() += 1);
    let rows = status.members.iter().map(|of| {
        let wrong = "it lives, and is in no call of its share".to_owned();
        vec![
            cell(Some(of.name.clone())),
            cell(Some(owned.get(&*of.name).copied().unwrap_or(0))),
            cell(Some(u64::from(of.weight))),
            cell(Some(of.zone.clone()).filter(|zone| !zone.is_empty())),
            cell(of.session),
            cell(Some(of.since)),
            cell(of.silent_since),
            cell(of.silent_since.map(|_| wrong)),
        ]
    });
    RecipeTable::new(MEMBERS, rows)
}
