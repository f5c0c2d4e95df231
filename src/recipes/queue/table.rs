//! What operators see of a queue.

use crate::api::session::Session;
use crate::recipes::table::{ColumnKind, RecipeColumn, RecipeTable, cell, column};
use crate::types::error::Result;
use crate::types::path;
use crate::types::queue::{CLAIMS, DELAYED, ITEMS, ItemName, TAKEN, split_due};

const COLUMNS: &[RecipeColumn] = &[
    column("waiting", ColumnKind::Count),
    column("oldest", ColumnKind::Since),
    column("taken", ColumnKind::Count),
    column("delayed", ColumnKind::Count),
];

/// The names in the parts of a queue, as they were found.
#[derive(Debug, Default)]
pub(in crate::recipes) struct QueueParts {
    items: Vec<String>,
    delayed: usize,
    taken: Vec<String>,
    claims: Vec<String>,
}

/// The path of the queue, if this znode with these children is a part of one that has items.
pub(in crate::recipes) fn queue_of<'a>(znode: &'a str, children: &[String]) -> Option<&'a str> {
    let is_item = |name: &String| match path::name(znode) {
        DELAYED => split_due(name).is_some(),
        ITEMS | TAKEN | CLAIMS => ItemName::parse(name).is_some(),
        _ => false,
    };
    let is_part = !children.is_empty() && children.iter().all(is_item);
    path::parent(znode).filter(|_| is_part)
}

impl QueueParts {
    /// Takes the names in one part.
    pub(in crate::recipes) fn take(&mut self, part: &str, names: Vec<String>) {
        match part {
            DELAYED => self.delayed = names.len(),
            ITEMS => self.items = names,
            TAKEN => self.taken = names,
            _ => self.claims = names,
        }
    }

    /// One row: the items that wait for a consumer, those of consumers that are gone among them; since when the oldest
    /// of them is there; and the others.
    pub(in crate::recipes) async fn table(
        mut self,
        session: &Session,
        queue: &str,
    ) -> Result<RecipeTable> {
        self.claims.sort_unstable();
        let is_left = |name: &&String| self.claims.binary_search(name).is_err();
        let items = self.items.iter().map(|name| (ITEMS, name));
        let left = self.taken.iter().filter(is_left).map(|name| (TAKEN, name));
        let waiting: Vec<_> = items.chain(left).collect();
        let number = |name: &str| ItemName::parse(name).map(|name| name.number());
        let oldest = waiting.iter().min_by_key(|(_, name)| number(name));
        let since = match oldest {
            Some((part, name)) => {
                let item = path::join(&path::join(queue, part), name);
                session.in_turn().exists(&item).await?.map(|stat| stat.ctime)
            }
            None => None,
        };
        let count = |number: usize| cell(u64::try_from(number).ok());
        let row =
            vec![count(waiting.len()), cell(since), count(self.claims.len()), count(self.delayed)];
        Ok(RecipeTable::new(COLUMNS, [row]))
    }
}
