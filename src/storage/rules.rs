//! The rules for callers of a store, checked before anything is written.
//!
//! After a write that breaks them, the next open would find the store damaged. So such a write
//! fails while the log on disk is still sound. All stores share these checks.

use crate::node::stored::{Boot, EntryKind, HardState, Identity, LogWrite, SnapshotMeta};
use crate::storage::contract::LogAfter;
use crate::storage::error::Result;
use crate::storage::error::refuse;

/// Where the log of a store begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// The index of the checkpoint.
    pub(super) checkpoint: u64,
    /// The index of the first entry; equal to `next` when there is none.
    pub(super) first: u64,
    /// The index after the last entry.
    pub(super) next: u64,
}

impl Bounds {
    /// The bounds of a store that holds a checkpoint and no log.
    pub(super) fn empty(checkpoint: u64) -> Bounds {
        let next = checkpoint.saturating_add(1);
        Bounds { checkpoint, first: next, next }
    }

    /// The last index that the store knows of, in the log or under the checkpoint.
    pub(super) fn last(&self) -> u64 {
        (self.next - 1).max(self.checkpoint)
    }

    /// The bounds after `write`, or why it is refused.
    pub(super) fn after_append(mut self, write: &LogWrite) -> Result<Bounds> {
        if let Some(first) = write.entries.first() {
            if first.index == 0 || first.index > self.next {
                return refuse(format!(
                    "entries from index {} do not follow a log that ends before {}",
                    first.index, self.next
                ));
            }
            let mut index = first.index;
            for entry in &write.entries {
                if entry.index != index || index == u64::MAX {
                    return refuse(format!("entry {} where {index} was due", entry.index));
                }
                index += 1;
            }
            self.first = self.first.min(first.index);
            self.next = index;
        }
        self.check_commit(write.hard_state.as_ref())?;
        Ok(self)
    }

    /// The bounds after the commit of a checkpoint, or why it is refused.
    pub(super) fn after_checkpoint(
        mut self,
        meta: &SnapshotMeta,
        log: LogAfter,
        full: bool,
    ) -> Result<Bounds> {
        if meta.index == u64::MAX {
            return refuse("a checkpoint at the highest possible index".to_owned());
        }
        match log {
            LogAfter::From(from) => {
                if meta.index < self.checkpoint || meta.index > self.last() {
                    return refuse(format!(
                        "a checkpoint at {} in a store from {} to {}",
                        meta.index,
                        self.checkpoint,
                        self.last()
                    ));
                }
                if from > meta.index + 1 {
                    return refuse(format!(
                        "a log from {from} after a checkpoint at {}",
                        meta.index
                    ));
                }
                self.checkpoint = meta.index;
                self.first = self.first.max(from);
                if self.first >= self.next {
                    self = Bounds::empty(meta.index);
                }
                Ok(self)
            }
            LogAfter::Reset(hard_state) => {
                if !full {
                    return refuse("a reset with a delta".to_owned());
                }
                let bounds = Bounds::empty(meta.index);
                bounds.check_commit(Some(&hard_state))?;
                Ok(bounds)
            }
        }
    }

    /// Raft panics on a commit index past the end of the log, so none is ever stored.
    pub(super) fn check_commit(&self, hard_state: Option<&HardState>) -> Result<()> {
        match hard_state {
            Some(state) if state.commit > self.last() => refuse(format!(
                "commit index {} after the last index {}",
                state.commit,
                self.last()
            )),
            _ => Ok(()),
        }
    }
}

/// Whether the earlier former directories can be removed when this directory becomes a former one: its
/// node has been a voter, and as a voter had everything that was acknowledged.
pub(super) fn drops_former(was_voter: bool) -> bool {
    was_voter || planted!(FormerDataDeleted)
}

/// Whether the node of this store is a voter in this checkpoint.
pub(super) fn is_voter(identity: &Identity, meta: &SnapshotMeta) -> bool {
    meta.voting.voters.contains(&identity.node)
}

/// Whether the node is the only member of its cluster.
pub(super) fn is_alone(identity: Option<&Identity>, boot: &Boot) -> bool {
    let voting = &boot.checkpoint.voting;
    let others = [&voting.learners, &voting.voters_outgoing, &voting.learners_next];
    identity.is_some_and(|identity| voting.voters == [identity.node])
        && others.iter().all(|others| others.is_empty())
        && boot.entries.iter().all(|entry| entry.kind != EntryKind::Membership)
}

/// Whether the node has voted in this term. Only voters are asked for votes.
pub(super) fn has_voted(hard_state: Option<&HardState>) -> bool {
    hard_state.is_some_and(|hard_state| hard_state.vote != 0)
}

/// Fails if one identity may not be replaced by the other.
pub(super) fn check_successor(old: &Identity, new: &Identity) -> Result<()> {
    let who = |identity: &Identity| (identity.node, identity.incarnation, identity.uid);
    if who(old) != who(new) {
        return refuse(format!("an identity of {:016x?} for one of {:016x?}", who(new), who(old)));
    }
    if old.cluster != 0 && old.cluster != new.cluster {
        return refuse(format!("cluster {:016x} for cluster {:016x}", new.cluster, old.cluster));
    }
    Ok(())
}
