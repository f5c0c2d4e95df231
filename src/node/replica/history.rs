//! The latest changes of the tree, for watches that begin in the past.
//!
//! Every replica retains the changes that it has applied one by one: since its start, from the
//! checkpoint and the log after it, or since it installed a snapshot, of which only the result is
//! known. The number of changes and their bytes are bounded.
//!
//! Invariant: every change after `oldest` is here, in order, and no earlier one.

use std::collections::VecDeque;

use crate::machine::command::Change;
use crate::types::znode::Zxid;

#[derive(Debug)]
pub(crate) struct History {
    changes: VecDeque<Change>,
    bytes: usize,
    oldest: Zxid,
    changes_max: usize,
    bytes_max: usize,
}

fn size(change: &Change) -> usize {
    let lists = [&change.acl, &change.parent_acl].into_iter().flatten();
    // The access lists may belong to no znode any more.
    let lists: usize = lists.map(|list| list.bytes()).sum();
    // A shared path has two counters.
    size_of::<Change>() + change.path.len() + 2 * size_of::<usize>() + lists
}

impl History {
    /// A history that begins after this zxid.
    pub(crate) fn new(oldest: Zxid, changes_max: usize, bytes_max: usize) -> History {
        History { changes: VecDeque::new(), bytes: 0, oldest, changes_max, bytes_max }
    }

    /// Adds the changes of applied writes.
    pub(crate) fn note(&mut self, changes: Vec<Change>) {
        let changes_max = unless!(HistoryShort, self.changes_max, self.changes_max / 2);
        for change in changes {
            self.bytes += size(&change);
            self.changes.push_back(change);
            // One change at a time, so that it never holds much more than the bounds, however large
            // a write is.
            while self.changes.len() > changes_max || self.bytes > self.bytes_max {
                let Some(first) = self.changes.pop_front() else { break };
                self.bytes -= size(&first);
                self.oldest = first.zxid;
            }
        }
    }

    /// The changes up to this zxid are not known: the history begins after it.
    pub(crate) fn begin_after(&mut self, zxid: Zxid) {
        self.changes.clear();
        (self.bytes, self.oldest) = (0, unless!(HistoryKeptAtSnapshot, zxid, self.oldest));
    }

    /// All changes after a zxid, oldest first. If some are no longer known, returns the oldest zxid
    /// after which all are.
    pub(crate) fn after(&self, zxid: Zxid) -> Result<impl ExactSizeIterator<Item = &Change>, Zxid> {
        if zxid < self.oldest {
            return Err(self.oldest);
        }
        let zxid = if planted!(SeamTwice) { zxid.saturating_sub(1) } else { zxid };
        let first = self.changes.partition_point(|change| change.zxid <= zxid);
        Ok(self.changes.range(first..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::command::ChangeKind;

    fn change(zxid: Zxid) -> Change {
        let (kind, path) = (ChangeKind::Created, format!("/{zxid}"));
        Change { zxid, kind, path: path.into(), position: 0, acl: None, parent_acl: None }
    }

    fn after(history: &History, zxid: Zxid) -> Result<Vec<Zxid>, Zxid> {
        Ok(history.after(zxid)?.map(|change| change.zxid).collect())
    }

    #[test]
    fn it_returns_all_changes_after_a_zxid_or_the_oldest_known_one() {
        let mut history = History::new(10, 4, 1 << 20);
        assert_eq!(after(&history, 10), Ok(vec![]));
        assert_eq!(after(&history, 9), Err(10));
        // 12 was a write of a session that changed no znode.
        history.note(vec![change(11), change(13)]);
        assert_eq!(after(&history, 10), Ok(vec![11, 13]));
        assert_eq!(after(&history, 12), Ok(vec![13]));
        assert_eq!(after(&history, 13), Ok(vec![]));
        history.note(vec![change(14), change(15), change(16)]);
        assert_eq!(after(&history, 10), Err(11));
        assert_eq!(after(&history, 11), Ok(vec![13, 14, 15, 16]));
    }

    /// The history never returns only a part of a multi.
    #[test]
    fn a_write_is_known_as_a_whole_or_not_at_all() {
        let mut history = History::new(0, 3, 1 << 20);
        history.note(vec![change(1), change(2), change(2), change(2)]);
        assert_eq!(after(&history, 1), Ok(vec![2, 2, 2]));
        history.note(vec![change(3)]);
        assert_eq!(after(&history, 1), Err(2));
        assert_eq!(after(&history, 2), Ok(vec![3]));
    }

    #[test]
    fn it_is_bounded_by_bytes_too() {
        let one = size(&change(1));
        let mut history = History::new(0, 1000, 10 * one);
        history.note((1..=1_000).map(|_| change(1)).collect());
        assert_eq!(history.changes.len(), 10);
        assert!(history.changes.capacity() < 100, "{}", history.changes.capacity());
        assert_eq!((history.bytes, history.oldest), (10 * one, 1));
        let long = Change { path: "x".repeat(11 * one).into(), ..change(2) };
        history.note(vec![long]);
        assert_eq!((history.changes.len(), history.bytes), (0, 0));
        assert_eq!(after(&history, 1), Err(2));
        assert_eq!(after(&history, 2), Ok(vec![]));
    }

    #[test]
    fn changes_within_a_snapshot_are_not_known() {
        let mut history = History::new(0, 100, 1 << 20);
        history.note(vec![change(1), change(2)]);
        history.begin_after(9);
        assert_eq!(after(&history, 1), Err(9));
        assert_eq!(after(&history, 8), Err(9), "not even the last one");
        history.note(vec![change(10)]);
        assert_eq!(after(&history, 9), Ok(vec![10]));
    }
}
