//! Group commit: how writes to the log are merged into one, and large ones are split.

use crate::node::stored::{HardState, LogWrite};

/// Writes are merged up to this size, and a larger one is split.
pub(crate) const WRITE_BYTES_MAX: usize = 1 << 20;

/// The approximate size of a write in bytes.
pub(super) fn size(write: &LogWrite) -> usize {
    const OVERHEAD: usize = 32;
    write.entries.iter().map(|entry| entry.data.len() + OVERHEAD).sum()
}

/// Appends a later write to an earlier one: its entries replace those from its first index on.
pub(super) fn merge(write: &mut LogWrite, more: LogWrite) {
    if more.hard_state.is_some() && !planted!(MergeForgetsHardState) {
        write.hard_state = more.hard_state;
    }
    if let Some(first) = more.entries.first() {
        write.entries.retain(|entry| entry.index < first.index);
        write.entries.extend(more.entries);
    }
}

/// Takes the next part of a write of more than this; `None` if the whole write is small enough. The store wants no
/// more than a few megabytes between two syncs. After a crash in between, only the first parts are there,
/// as if fewer entries had arrived.
pub(super) fn next_part(write: &mut LogWrite, most: usize) -> Option<LogWrite> {
    if size(write) <= most || write.entries.len() <= 1 {
        return None;
    }
    let mut bytes = 0;
    let fits = write.entries.iter().take_while(|entry| {
        bytes += entry.data.len();
        bytes <= most / 2
    });
    let first = fits.count().max(1);
    Some(take_part(write, first))
}

/// Takes the first entries of a write, as a write of its own that a crash may come after.
///
/// Its hard state has the term of the entries, and so their voters: without it, a node would start with
/// entries of a term that it does not know of. The commit index may be in a later part. It is never before
/// the first entry, since committed entries are not replaced.
pub(crate) fn take_part(write: &mut LogWrite, entries: usize) -> LogWrite {
    let rest = write.entries.split_off(entries);
    let entries = std::mem::replace(&mut write.entries, rest);
    let last = entries.last().map_or(0, |entry| entry.index);
    let hard_state = write
        .hard_state
        .map(|hard_state| HardState { commit: hard_state.commit.min(last), ..hard_state });
    LogWrite { hard_state: hard_state.filter(|_| !planted!(PartOfNoTerm)), entries }
}
