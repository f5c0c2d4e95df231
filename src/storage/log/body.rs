//! The bodies of the log's records.
//!
//! | kind | body |
//! |------|------|
//! | `W`  | [`LogBody`]: one append |
//! | `C`  | [`CheckpointBody`]: the checkpoint that is valid from here on |
//! | `E`  | nothing |

use serde::{Deserialize, Serialize};

use crate::node::stored::{HardState, LogEntry, SnapshotMeta};
use crate::storage::checkpoint::part::CheckpointPart;

/// How many bytes an entry takes, about.
pub(in crate::storage) fn size(entry: &LogEntry) -> u64 {
    entry.data.len() as u64 + 64
}

/// One append.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::storage) struct LogBody {
    /// The hard state after the write, whether the write changed it or not.
    pub(in crate::storage) hard_state: HardState,
    pub(in crate::storage) entries: Vec<LogEntry>,
}

/// A borrowed [`LogBody`], for writing.
#[derive(Debug, Serialize)]
pub(in crate::storage) struct LogBodyRef<'a> {
    pub(in crate::storage) hard_state: HardState,
    pub(in crate::storage) entries: &'a [LogEntry],
}

/// A valid checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::storage) struct CheckpointBody {
    /// The generation that has its chunks.
    pub(in crate::storage) generation: u64,
    /// The full image, and the deltas behind it.
    pub(in crate::storage) parts: Vec<CheckpointPart>,
    pub(in crate::storage) meta: SnapshotMeta,
    /// The hard state at the commit.
    pub(in crate::storage) hard_state: HardState,
    /// Entries below this index are dropped.
    pub(in crate::storage) log_from: u64,
    /// Every record from this sequence number on is kept.
    pub(in crate::storage) kept_from: u64,
}

impl CheckpointBody {
    /// How many bytes its chunks take.
    pub(in crate::storage) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

/// Decodes arbitrary bytes as each of the bodies.
#[cfg(any(test, fuzzing))]
pub(in crate::storage) fn fuzz(bytes: &[u8]) {
    let _ = postcard::take_from_bytes::<LogBody>(bytes);
    let _ = postcard::take_from_bytes::<CheckpointBody>(bytes);
}
