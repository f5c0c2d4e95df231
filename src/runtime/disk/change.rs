//! Changes that are tried again while they fail without having changed anything.

use std::time::Duration;

use crate::machine::State;
use crate::machine::snapshot::ChunkWriter;
use crate::node::io::Time;
use crate::node::stored::{HardState, Identity, SnapshotMeta};
use crate::storage::{Checkpointer, LogAfter, LogStore, StorageError};
use crate::types::membership::Promise;

/// The pause before a change is tried again, and how often it is.
pub(super) const AGAIN_PAUSE: Duration = Duration::from_millis(500);
pub(super) const AGAIN_MAX: usize = 60;

/// An operation that the node waits for, other than a write to the log.
pub(super) struct DiskChange {
    number: u64,
    kind: DiskChangeKind,
    failures: usize,
    /// The last failure, if it was not tried again yet.
    failed: Option<StorageError>,
    /// When it is tried again. `None`: the pause begins.
    again_at: Option<Time>,
}

enum DiskChangeKind {
    Identity(Identity),
    Promise(Promise),
    Removed,
    Install(Box<Install>),
}

/// The replacement of everything by a state.
struct Install {
    hard_state: HardState,
    meta: SnapshotMeta,
    state: State,
    copying: Copying,
}

/// How far the chunks of a state are written.
enum Copying {
    Not,
    Begun(Box<dyn Checkpointer>, Box<ChunkWriter>),
    Finished,
}

/// One call of the store for a change.
pub(super) enum ChangeCall {
    Mark,
    Begin,
    Chunk(Vec<u8>),
    Finish,
    Replace,
}

/// What such a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeStep {
    /// Replaces the identity or the promise, or marks the member as removed.
    Mark,
    /// Begins to write a state that replaces everything.
    Begin,
    /// Writes a chunk of it, of so many bytes.
    Chunk { bytes: usize },
    /// Makes all chunks durable.
    Finish,
    /// Replaces everything by the state.
    Replace,
}

impl DiskChange {
    pub(super) fn identity(number: u64, identity: Identity) -> DiskChange {
        DiskChange::new(number, DiskChangeKind::Identity(identity))
    }

    pub(super) fn promise(number: u64, promise: Promise) -> DiskChange {
        DiskChange::new(number, DiskChangeKind::Promise(promise))
    }

    pub(super) fn removed(number: u64) -> DiskChange {
        DiskChange::new(number, DiskChangeKind::Removed)
    }

    pub(super) fn install(
        number: u64,
        hard_state: HardState,
        meta: SnapshotMeta,
        state: State,
    ) -> DiskChange {
        let install = Install { hard_state, meta, state, copying: Copying::Not };
        DiskChange::new(number, DiskChangeKind::Install(Box::new(install)))
    }

    fn new(number: u64, kind: DiskChangeKind) -> DiskChange {
        DiskChange { number, kind, failures: 0, failed: None, again_at: None }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// When it is tried again; `None` if its next call is due. Nothing is tried again while the node closes.
    pub(super) fn pauses_until(
        &mut self,
        now: Time,
        is_closing: bool,
    ) -> Result<Option<Time>, StorageError> {
        let Some(error) = self.failed.take() else { return Ok(None) };
        if is_closing {
            return Err(error);
        }
        let again_at = *self.again_at.get_or_insert(now + AGAIN_PAUSE);
        if now >= again_at {
            return Ok(None);
        }
        self.failed = Some(error);
        Ok(Some(again_at))
    }

    pub(super) fn next_call(&mut self) -> ChangeCall {
        match &mut self.kind {
            DiskChangeKind::Identity(_) | DiskChangeKind::Promise(_) | DiskChangeKind::Removed => {
                ChangeCall::Mark
            }
            DiskChangeKind::Install(install) => match &mut install.copying {
                Copying::Not => ChangeCall::Begin,
                Copying::Begun(_, chunks) => {
                    chunks.next().map_or(ChangeCall::Finish, ChangeCall::Chunk)
                }
                Copying::Finished => ChangeCall::Replace,
            },
        }
    }

    /// Performs its next call. Returns whether the change is complete. Fails if there is no point in trying
    /// it again.
    pub(super) fn perform(
        &mut self,
        call: ChangeCall,
        store: &mut dyn LogStore,
        is_closing: bool,
    ) -> Result<bool, StorageError> {
        let made = match &mut self.kind {
            DiskChangeKind::Identity(identity) => store.set_identity(identity).map(|()| true),
            DiskChangeKind::Promise(promise) => store.set_promise(promise).map(|()| true),
            DiskChangeKind::Removed => store.mark_removed().map(|()| true),
            DiskChangeKind::Install(install) => install.perform(call, store),
        };
        let error = match made {
            Err(error @ StorageError::Again { .. }) => error,
            other => return other,
        };
        self.failures += 1;
        if is_closing || self.failures > AGAIN_MAX {
            return Err(error);
        }
        if self.failures == 1 {
            tracing::warn!(%error, "cannot write to the data directory; trying again");
        }
        if let DiskChangeKind::Install(install) = &mut self.kind {
            install.copying = Copying::Not;
        }
        (self.failed, self.again_at) = (Some(error), None);
        Ok(false)
    }
}

impl Install {
    fn perform(
        &mut self,
        call: ChangeCall,
        store: &mut dyn LogStore,
    ) -> Result<bool, StorageError> {
        match (call, &mut self.copying) {
            (ChangeCall::Chunk(chunk), Copying::Begun(checkpointer, _)) => {
                checkpointer.put_chunk(&chunk)?;
            }
            (ChangeCall::Finish, Copying::Begun(checkpointer, _)) => {
                checkpointer.finish()?;
                self.copying = Copying::Finished;
            }
            (ChangeCall::Replace, Copying::Finished) => {
                store.commit_checkpoint(&self.meta, LogAfter::Reset(self.hard_state))?;
                return Ok(true);
            }
            (_, copying) => {
                let mut checkpointer = store.checkpointer()?;
                checkpointer.begin(true, self.state.bytes())?;
                let chunks = Box::new(ChunkWriter::full(self.state.clone()));
                *copying = Copying::Begun(checkpointer, chunks);
            }
        }
        Ok(false)
    }
}

impl ChangeCall {
    pub(super) fn step(&self) -> ChangeStep {
        match self {
            ChangeCall::Mark => ChangeStep::Mark,
            ChangeCall::Begin => ChangeStep::Begin,
            ChangeCall::Chunk(chunk) => ChangeStep::Chunk { bytes: chunk.len() },
            ChangeCall::Finish => ChangeStep::Finish,
            ChangeCall::Replace => ChangeStep::Replace,
        }
    }
}
