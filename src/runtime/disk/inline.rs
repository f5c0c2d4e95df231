//! The disk of a node without threads, for a store that never makes its node wait.

#[cfg(any(test, feature = "simulator"))]
use crossbeam_channel::bounded;
use crossbeam_channel::{Receiver, unbounded};

#[cfg(any(test, feature = "simulator"))]
use super::group_commit::{WRITE_BYTES_MAX, next_part};
use super::reports::Reports;
use super::state_worker::StateWorker;
use super::writer::{Next, Writer};
#[cfg(any(test, feature = "simulator"))]
use crate::machine::snapshot::ChunkWriter;
use crate::node::io::{DiskOp, Input, Time};
use crate::storage::LogStore;
#[cfg(any(test, feature = "simulator"))]
use crate::storage::{CheckpointKind, LogAfter, Rot, StorageError};

/// Performs each operation at once.
pub(crate) struct InlineDisk {
    writer: Writer,
    worker: StateWorker,
    inputs: Receiver<Input>,
}

impl InlineDisk {
    pub(crate) fn new(store: Box<dyn LogStore>, now: Time) -> InlineDisk {
        let (sender, inputs) = unbounded();
        // The receiver exists as long as there is anything to report.
        let reports = Reports::new(move |input| drop(sender.send(input)));
        let worker = StateWorker::new(reports.clone());
        InlineDisk { writer: Writer::new(store, reports, now), worker, inputs }
    }

    /// Performs an operation, and returns its results.
    pub(crate) fn perform(&mut self, op: DiskOp, now: Time) -> impl Iterator<Item = Input> + '_ {
        self.writer.submit(op);
        loop {
            match self.writer.next(now) {
                Next::Perform(_) => self.writer.perform(),
                Next::Send(order) => self.worker.take(order),
                Next::Wait(_) | Next::End => match self.worker.next(now) {
                    Next::Perform(_) => self.worker.perform(),
                    Next::Send(outcome) => self.writer.checkpoint_ended(outcome),
                    Next::Wait(_) | Next::End => break,
                },
            }
        }
        self.inputs.try_iter()
    }
}

/// Performs one operation at once, in a simulated disk.
#[cfg(any(test, feature = "simulator"))]
pub(crate) fn perform_now(store: &mut dyn LogStore, op: DiskOp) -> Result<Input, StorageError> {
    let (number, done) = match op {
        DiskOp::Write { number, mut write } => {
            while let Some(part) = next_part(&mut write, WRITE_BYTES_MAX) {
                store.append(&part)?;
            }
            (number, store.append(&write))
        }
        DiskOp::Install { number, hard_state, meta, state } => {
            let mut checkpointer = store.checkpointer()?;
            checkpointer.begin(true, state.bytes())?;
            for chunk in ChunkWriter::full(state) {
                checkpointer.put_chunk(&chunk)?;
            }
            checkpointer.finish()?;
            let done = store.commit_checkpoint(&meta, LogAfter::Reset(hard_state));
            (number, done.map(|_| ()))
        }
        DiskOp::Identify { number, identity } => (number, store.set_identity(&identity)),
        DiskOp::Promise { number, promise } => (number, store.set_promise(&promise)),
        DiskOp::Removed { number } => (number, store.mark_removed()),
        // Needs no answer: number 0 counts as a write that was done before.
        DiskOp::Drop { .. } => (0, Ok(())),
        DiskOp::Build { transfer, reader, zxid, hash } => {
            let machine = reader.finish(zxid, hash).map(Box::new);
            return Ok(Input::Built { transfer, machine });
        }
        DiskOp::Read { from, bytes } => {
            let (done, read) = bounded(1);
            // The receiver still exists.
            store.read(from, bytes, Box::new(move |entries| drop(done.send(entries))))?;
            return Ok(match read.recv().unwrap_or_else(|_| Ok(Vec::new())) {
                Ok(entries) => Input::Read { from, entries },
                Err(Rot { what, below }) => Input::Rotten { what, below },
            });
        }
        DiskOp::Checkpoint { meta, state, dirty, keep_from } => {
            let mut checkpointer = store.checkpointer()?;
            let chunks = match checkpointer.begin(false, state.bytes())? {
                CheckpointKind::Full => ChunkWriter::full(state),
                CheckpointKind::Delta => ChunkWriter::delta(state, dirty),
            };
            for chunk in chunks {
                checkpointer.put_chunk(&chunk)?;
            }
            checkpointer.finish()?;
            let bytes = store.commit_checkpoint(&meta, LogAfter::From(keep_from))?;
            return Ok(Input::CheckpointDone { index: meta.index, bytes });
        }
    };
    done.map(|()| Input::Written { number })
}
