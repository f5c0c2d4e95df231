//! What the disk still has to do, in order.

use std::collections::VecDeque;

use super::group_commit::{WRITE_BYTES_MAX, merge, next_part, size};
use super::state_worker::CheckpointOutcome;
use super::writer::StoreCall;
use crate::node::io::DiskOp;
use crate::node::stored::LogWrite;

#[expect(clippy::large_enum_variant, reason = "a box would be one more allocation for each write")]
pub(super) enum DiskJob {
    Op(DiskOp),
    Outcome(CheckpointOutcome),
}

/// The jobs that wait, and which writes of them are written together.
pub(super) struct Jobs {
    waiting: VecDeque<DiskJob>,
    /// The write in progress, or what is left of it.
    merged: Option<Merged>,
    /// Writes are merged up to this size, and a larger one is split.
    write_bytes_max: usize,
}

/// Writes that were merged.
struct Merged {
    number: u64,
    write: LogWrite,
    /// Whether a part is decided, so that no more is merged.
    is_begun: bool,
}

impl Jobs {
    pub(super) fn new() -> Jobs {
        Jobs { waiting: VecDeque::new(), merged: None, write_bytes_max: WRITE_BYTES_MAX }
    }

    /// Splits writes of more bytes than this.
    #[cfg(any(test, feature = "simulator"))]
    pub(super) fn split_above(&mut self, bytes: usize) {
        self.write_bytes_max = bytes;
    }

    #[cfg(any(test, feature = "simulator"))]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.merged.is_none()
    }

    pub(super) fn push(&mut self, job: DiskJob) {
        self.waiting.push_back(job);
    }

    pub(super) fn pop(&mut self) -> Option<DiskJob> {
        self.waiting.pop_front()
    }

    pub(super) fn begin_write(&mut self, number: u64, write: LogWrite) {
        self.merged = Some(Merged { number, write, is_begun: false });
    }

    /// Merges the write in progress with all that wait behind it, and writes the next part of them.
    pub(super) fn go_on_writing(&mut self) -> Option<StoreCall> {
        let mut merged = self.merged.take()?;
        while !merged.is_begun && size(&merged.write) < self.write_bytes_max {
            match self.waiting.pop_front() {
                Some(DiskJob::Op(DiskOp::Write { number, write })) => {
                    merged.number = number;
                    merge(&mut merged.write, write);
                }
                // A read only needs entries that were written earlier.
                Some(DiskJob::Op(DiskOp::Read { from, bytes })) => {
                    self.merged = Some(merged);
                    return Some(StoreCall::Read(from, bytes));
                }
                Some(other) => {
                    self.waiting.push_front(other);
                    break;
                }
                None => break,
            }
        }
        merged.is_begun = true;
        Some(match next_part(&mut merged.write, self.write_bytes_max) {
            Some(part) => {
                self.merged = Some(merged);
                StoreCall::Append(None, part)
            }
            None => StoreCall::Append(Some(merged.number), merged.write),
        })
    }
}
