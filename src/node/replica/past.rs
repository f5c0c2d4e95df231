//! How the latest changes are undone, for snapshots of the past.
//!
//! It is this replica's own memory since its start, or since the last snapshot that it has installed. The bytes
//! and the number of changes are bounded.
//!
//! Invariants: every change of a write after `oldest` is here, in order; and it never holds more than its bounds.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::machine::{PastTree, Tree, Undo};
use crate::types::znode::Zxid;

/// How many changes are kept at most, so that showing the oldest state takes a bounded time.
const CHANGES_MAX: usize = 1 << 16;
/// How many changes share a chunk, and how many bytes close one early. Readers share chunks.
const CHUNK_CHANGES: usize = 128;
const CHUNK_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct PastStates {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    changes: usize,
    /// The oldest state that can be shown.
    oldest: Zxid,
    /// 0: it is off.
    bytes_max: usize,
}

#[derive(Debug)]
struct Chunk {
    undos: Arc<Vec<Undo>>,
    bytes: usize,
}

impl PastStates {
    /// A past that begins with this state.
    pub(crate) fn new(oldest: Zxid, bytes_max: usize) -> PastStates {
        PastStates { chunks: VecDeque::new(), bytes: 0, changes: 0, oldest, bytes_max }
    }

    /// The most bytes that one write may add.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Adds the changes of writes that were applied.
    pub(crate) fn note(&mut self, undos: impl Iterator<Item = Undo>) {
        for undo in undos {
            if !undo.is_possible() {
                self.begin_with(undo.zxid);
                continue;
            }
            self.add(undo);
            while self.bytes > self.bytes_max || self.changes > CHANGES_MAX {
                let Some(first) = self.chunks.pop_front() else { break };
                self.bytes -= first.bytes;
                self.changes -= first.undos.len();
                // The rest of this write may be in the next chunk. Only later ones have to be undone.
                self.oldest = first.undos.last().map_or(self.oldest, |last| last.zxid);
            }
        }
    }

    fn add(&mut self, undo: Undo) {
        let bytes = undo.bytes();
        let is_open =
            |last: &Chunk| last.undos.len() < CHUNK_CHANGES && last.bytes + bytes <= CHUNK_BYTES;
        if !self.chunks.back().is_some_and(is_open) {
            let undos = Arc::new(Vec::with_capacity(CHUNK_CHANGES));
            self.chunks.push_back(Chunk { undos, bytes: 0 });
        }
        if let Some(last) = self.chunks.back_mut() {
            self.changes += 1;
            self.bytes += bytes;
            last.bytes += bytes;
            Arc::make_mut(&mut last.undos).push(undo);
        }
    }

    /// Forgets all: the state after this write is the oldest that is known.
    pub(crate) fn begin_with(&mut self, zxid: Zxid) {
        *self = PastStates::new(zxid, self.bytes_max);
    }

    /// The state after the write `zxid`, which this tree has. If it is no longer known, returns the oldest one
    /// that is.
    pub(crate) fn at(&self, zxid: Zxid, present: &Tree) -> Result<PastTree, Zxid> {
        let oldest = if self.bytes_max == 0 { present.zxid() } else { self.oldest };
        if zxid < oldest {
            return Err(oldest);
        }
        let is_before = |chunk: &Chunk| chunk.undos.last().is_none_or(|last| last.zxid <= zxid);
        let first = self.chunks.partition_point(is_before);
        let chunks = self.chunks.range(first..).map(|chunk| Arc::clone(&chunk.undos)).collect();
        Ok(PastTree { present: present.clone(), zxid, chunks })
    }
}

#[cfg(test)]
mod tests;
