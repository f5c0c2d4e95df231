//! The bodies of the log's records.
//!
//! | kind | body |
//! |------|------|
//! | `W`  | [`LogBody`]: one append |
//! | `C`  | [`CheckpointBody`]: the checkpoint that is valid from here on |
//! | `E`  | nothing |

use serde::{Deserialize, Serialize};

use super::part::CheckpointPart;
use crate::node::stored::{HardState, LogEntry, SnapshotMeta};

/// How many bytes an entry takes, about.
pub(super) fn size(entry: &LogEntry) -> u64 {
    entry.data.len() as u64 + 64
}

/// One append.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogBody {
    /// The hard state after the write, whether the write changed it or not.
    pub(super) hard_state: HardState,
    pub(super) entries: Vec<LogEntry>,
}

/// A borrowed [`LogBody`], for writing.
#[derive(Debug, Serialize)]
pub(super) struct LogBodyRef<'a> {
    pub(super) hard_state: HardState,
    pub(super) entries: &'a [LogEntry],
}

/// A valid checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckpointBody {
    /// The generation that has its chunks.
    pub(super) generation: u64,
    /// The full image, and the deltas behind it.
    pub(super) parts: Vec<CheckpointPart>,
    pub(super) meta: SnapshotMeta,
    /// The hard state at the commit.
    pub(super) hard_state: HardState,
    /// Entries below this index are dropped.
    pub(super) log_from: u64,
    /// Every record from this sequence number on is kept.
    pub(super) kept_from: u64,
}

impl CheckpointBody {
    /// How many bytes its chunks take.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

/// Decodes arbitrary bytes as each of the bodies.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = postcard::take_from_bytes::<LogBody>(bytes);
    let _ = postcard::take_from_bytes::<CheckpointBody>(bytes);
}
