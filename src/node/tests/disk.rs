//! A disk of plain values, since these tests do not test the disk.

use crate::machine::snapshot::ChunkWriter;
use crate::node::io::{DiskOp, Input};
use crate::node::message::{PeerMessage, RaftBody};
use crate::node::stored::{HardState, Identity, LogEntry, SnapshotMeta};
use crate::types::membership::{NodeId, Promise};

/// The content of a disk.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(super) hard_state: HardState,
    pub(super) entries: Vec<LogEntry>,
    pub(super) meta: SnapshotMeta,
    pub(super) chunks: Vec<Vec<u8>>,
    /// Since it was changed.
    pub(crate) identity: Option<Identity>,
    pub(crate) promise: Promise,
    pub(crate) removed: bool,
    /// A read of an entry before this one finds damage.
    pub(crate) rotten_below: u64,
}

impl Disk {
    pub(super) fn new(hard_state: HardState, meta: SnapshotMeta, chunks: Vec<Vec<u8>>) -> Disk {
        let (entries, promise) = (Vec::new(), Promise::default());
        let (identity, removed, rotten_below) = (None, false, 0);
        Disk { hard_state, entries, meta, chunks, identity, promise, removed, rotten_below }
    }

    /// The index of the first entry on it; 0: it has none.
    pub(crate) fn first_index(&self) -> u64 {
        self.entries.first().map_or(0, |entry| entry.index)
    }

    /// The bytes of the entries on it.
    pub(crate) fn log_bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.data.len()).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }

    /// The index of the last entry on it.
    fn last_index(&self) -> u64 {
        self.entries.last().map_or(0, |entry| entry.index).max(self.meta.index)
    }

    /// Checks as a store does: after each write the log has no gap, and committed entries are there.
    fn check(&self) {
        let indexes: Vec<u64> = self.entries.iter().map(|entry| entry.index).collect();
        let from = indexes.first().copied().unwrap_or(0);
        assert!(from <= self.meta.index + 1, "entry {from} after the state of {}", self.meta.index);
        assert!(indexes.is_sorted_by(|one, next| next - one == 1), "{indexes:?} has a gap");
        let (last, commit) = (self.last_index(), self.hard_state.commit);
        assert!(commit <= last, "commit index {commit} after {last}");
    }

    /// Checks a message of the node: a transport takes it, and what it promises is on this disk.
    pub(super) fn sent(&self, to: NodeId, message: &PeerMessage) {
        assert!(!message.is_too_long(), "a transport drops it");
        let PeerMessage::Raft { term, body } = message else { return };
        let HardState { term: on_disk, vote, .. } = self.hard_state;
        let holds = match body {
            // It waited for the disk, and a later term has come meanwhile.
            _ if *term < on_disk => true,
            RaftBody::AppendResponse { index, reject: false, .. } => {
                *term == on_disk && *index <= self.last_index()
            }
            RaftBody::VoteResponse { pre: false, reject: false, .. } => {
                (*term, to) == (on_disk, vote)
            }
            _ => true,
        };
        let last = self.last_index();
        assert!(holds, "{message:?} with entry {last} and {:?} on its disk", self.hard_state);
    }

    pub(super) fn write(&mut self, op: DiskOp) -> Input {
        match op {
            DiskOp::Write { number, write } => {
                if let Some(hard_state) = write.hard_state {
                    self.hard_state = hard_state;
                }
                if let Some(first) = write.entries.first() {
                    self.entries.retain(|entry| entry.index < first.index);
                    self.entries.extend(write.entries);
                }
                self.check();
                Input::Written { number }
            }
            DiskOp::Install { number, hard_state, meta, state } => {
                self.chunks = ChunkWriter::full(state).collect();
                (self.hard_state, self.meta) = (hard_state, meta);
                self.entries.clear();
                self.check();
                Input::Written { number }
            }
            DiskOp::Build { transfer, reader, zxid, hash } => {
                Input::Built { transfer, machine: reader.finish(zxid, hash).map(Box::new) }
            }
            // This has no effect, as for a disk that has written nothing new.
            DiskOp::Drop { .. } => Input::Written { number: 0 },
            DiskOp::Read { from, .. } if from < self.rotten_below => {
                Input::Rotten { what: "a segment".to_owned(), below: self.rotten_below }
            }
            DiskOp::Read { from, bytes } => {
                let mut left = bytes as usize;
                let from_there = self.entries.iter().skip_while(|entry| entry.index < from);
                let within = from_there.take_while(|entry| {
                    let goes = left > 0;
                    left = left.saturating_sub(entry.data.len());
                    goes
                });
                let entries: Vec<LogEntry> = within.cloned().collect();
                assert!(entries.first().is_none_or(|first| first.index == from));
                Input::Read { from, entries }
            }
            DiskOp::Identify { number, identity } => {
                self.identity = Some(identity);
                Input::Written { number }
            }
            DiskOp::Promise { number, promise } => {
                self.promise = promise;
                Input::Written { number }
            }
            DiskOp::Removed { number } => {
                self.removed = true;
                Input::Written { number }
            }
            DiskOp::Checkpoint { meta, state, dirty, keep_from } => {
                self.chunks.extend(ChunkWriter::delta(state, dirty));
                self.entries.retain(|entry| entry.index >= keep_from);
                self.meta = meta;
                Input::CheckpointDone { index: self.meta.index, bytes: self.bytes() }
            }
        }
    }
}
