//! Sets the log's time back, in the state of a cluster that is to be founded again. A cluster that runs never does that.
//!
//! Everything that the state measures keeps what is left of its time: what was written later than the new time counts as
//! written now, and what is due later than the former time is due by as much later than the new one. What the data of
//! znodes says of times stays as it is: only the recipes that wrote it know it.

use std::sync::Arc;

use super::ops::WriteInProgress;
use super::{Applied, Machine};
use crate::types::path;
use crate::types::queue::{DELAYED, due_name, split_due};
use crate::types::znode::SessionId;

impl Machine {
    /// Sets the log's time to this one, if it is later.
    pub(crate) fn set_time_back(&mut self, now: u64) {
        let former = self.state.time;
        if former <= now {
            return;
        }
        let moved = |time: u64| match time.checked_sub(former) {
            Some(left) => now.saturating_add(left),
            None => time.min(now),
        };
        self.state.time = now;
        let paths: Vec<Arc<str>> =
            self.state.tree.below("/").map(|(path, _)| path.into()).collect();
        for path in &paths {
            self.state.tree.move_times(path, moved);
        }
        let sessions: Vec<SessionId> = self.sessions().map(|(id, _)| id).collect();
        for id in sessions {
            self.state.sessions.update(id, |record| record.opened = moved(record.opened));
        }
        let mut write = WriteInProgress::new(SessionId(0), self.next_zxid(), now, &[]);
        for from in &paths {
            let parent = path::parent(from).unwrap_or_default();
            if path::name(parent) != DELAYED {
                continue;
            }
            if let Some((due, name)) = split_due(path::name(from)) {
                let to: Arc<str> = path::join(parent, &due_name(moved(due), name)).into();
                // Only a znode without children is an item.
                if to != *from && self.state.tree.get(from).is_some_and(|item| !item.has_children())
                {
                    let _ = write.rename(&mut self.state.tree, from, &to);
                }
            }
        }
        if !write.changes.is_empty() {
            self.commit(write, &mut Applied::default());
        }
    }
}
