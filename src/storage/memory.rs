//! A store in memory, for clusters that end with their process.
//!
//! A [`MemoryDisk`] outlives its node: clones are the same disk, and a restarted node finds what it had
//! stored. Only the store that was opened last may write, so that a node that was thought to have
//! stopped cannot interfere with its successor.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::{corrupt, refuse};
use super::log::body::size;
use super::rules::{Bounds, check_successor, has_voted, is_voter};
use crate::node::log_outline::LogOutline;
use crate::node::stored::{Boot, HardState, Identity, LogEntry, LogWrite, SnapshotMeta};
use crate::storage::contract::{
    CheckpointKind, Checkpointer, ChunkSink, LogAfter, LogStore, ReadDone,
};
use crate::storage::error::{Result, StorageError};
use crate::storage::file_system::Space;
use crate::types::membership::Promise;

/// A disk of one node; a clone is the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryDisk {
    shared: Arc<Mutex<Disk>>,
}

#[derive(Debug, Default)]
struct Disk {
    /// Counts the opens: only the store that made the last one may write.
    opened: u64,
    image: Option<DiskImage>,
}

/// What a founded store holds.
#[derive(Clone, Debug)]
struct DiskImage {
    identity: Identity,
    promise: Promise,
    removed: bool,
    /// The node has been a voter.
    voter: bool,
    hard_state: HardState,
    checkpoint: SnapshotMeta,
    /// The chunks of the full checkpoint and of each delta after it.
    checkpoints: Vec<Vec<Vec<u8>>>,
    bounds: Bounds,
    entries: Vec<LogEntry>,
}

impl MemoryDisk {
    /// A blank disk.
    pub(crate) fn new() -> MemoryDisk {
        MemoryDisk::default()
    }

    /// Opens the disk, and shuts out every store opened on it before.
    pub(crate) fn open(&self) -> MemoryStore {
        let mut disk = lock(&self.shared);
        disk.opened += 1;
        let image = disk.image.as_ref();
        MemoryStore {
            shared: Arc::clone(&self.shared),
            opened: disk.opened,
            identity: image.map(|image| image.identity.clone()),
            promise: image.map(|image| image.promise.clone()).unwrap_or_default(),
            pending: Arc::default(),
            failed: None,
        }
    }
}

/// Every change to the disk is a single assignment of a finished value, so the disk is sound even
/// if the lock is poisoned.
fn lock(shared: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node's store on a [`MemoryDisk`].
#[derive(Debug)]
pub(crate) struct MemoryStore {
    shared: Arc<Mutex<Disk>>,
    opened: u64,
    /// Copies of the identity and the promise, to return references without the lock.
    identity: Option<Identity>,
    promise: Promise,
    /// The checkpoint begun and not yet committed.
    pending: Arc<Mutex<Option<Begun>>>,
    failed: Option<String>,
}

/// If there are more images than this, the next checkpoint is full.
const DELTAS_MAX: usize = 16;

impl MemoryStore {
    /// Runs one call on the disk, unless this store has failed or been shut out before.
    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut MemoryStore, &mut Disk) -> Result<T>,
    ) -> Result<T> {
        if let Some(reason) = self.failed.clone() {
            return Err(StorageError::Poisoned { reason });
        }
        let shared = Arc::clone(&self.shared);
        let mut disk = lock(&shared);
        let result = if disk.opened == self.opened {
            call(self, &mut disk)
        } else {
            Err(StorageError::InUse)
        };
        if let Err(error) = &result {
            self.failed = Some(error.to_string());
        }
        result
    }
}

/// The image of a disk that must have been founded.
fn founded(disk: &mut Disk) -> Result<&mut DiskImage> {
    match disk.image.as_mut() {
        Some(image) => Ok(image),
        None => refuse("the store is blank".to_owned()),
    }
}

impl LogStore for MemoryStore {
    fn log_space(&self) -> Option<Space> {
        None
    }

    fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    fn promise(&self) -> &Promise {
        &self.promise
    }

    fn set_identity(&mut self, identity: &Identity) -> Result<()> {
        self.call(|store, disk| {
            let image = founded(disk)?;
            check_successor(&image.identity, identity)?;
            image.identity = identity.clone();
            store.identity = Some(identity.clone());
            Ok(())
        })
    }

    fn set_promise(&mut self, promise: &Promise) -> Result<()> {
        self.call(|store, disk| {
            founded(disk)?.promise = promise.clone();
            store.promise = promise.clone();
            Ok(())
        })
    }

    fn mark_removed(&mut self) -> Result<()> {
        self.call(|_, disk| {
            founded(disk)?.removed = true;
            Ok(())
        })
    }

    fn found(
        &mut self,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<()> {
        // The iterator is the caller's code: it runs without the lock.
        let chunks: Vec<Vec<u8>> = chunks.collect();
        self.call(|store, disk| {
            if disk.image.is_some() {
                return refuse("the store is founded already".to_owned());
            }
            let before = Bounds::empty(meta.index);
            let bounds = before.after_checkpoint(meta, LogAfter::Reset(hard_state), true)?;
            disk.image = Some(DiskImage {
                identity: identity.clone(),
                promise: Promise::default(),
                removed: false,
                voter: is_voter(identity, meta),
                hard_state,
                checkpoint: meta.clone(),
                checkpoints: vec![chunks],
                bounds,
                entries: Vec::new(),
            });
            store.identity = Some(identity.clone());
            Ok(())
        })
    }

    fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot> {
        let image = self.call(|_, disk| {
            let image = founded(disk)?;
            if image.removed {
                let reason = "its disk has the mark".to_owned();
                return Err(StorageError::Removed { reason });
            }
            Ok(image.clone())
        })?;
        let mut chunks = image.checkpoints.iter().flatten();
        if let Err(reason) = chunks.try_for_each(|chunk| sink(chunk)) {
            return self.call(|_, _| corrupt(format!("a chunk of the checkpoint: {reason}")));
        }
        let DiskImage { hard_state, checkpoint, entries, .. } = image;
        let (earlier, entries): (Vec<LogEntry>, _) =
            entries.into_iter().partition(|entry| entry.index <= checkpoint.index);
        let mut outline = LogOutline::default();
        earlier.iter().for_each(|entry| outline.push(entry.index, entry.term, size(entry)));
        let checkpoint_bytes = bytes_of(&image.checkpoints);
        Ok(Boot { hard_state, checkpoint, checkpoint_bytes, outline, entries })
    }

    fn read(&mut self, from: u64, bytes: u64, done: ReadDone) -> Result<()> {
        let entries = self.call(|_, disk| {
            let entries = &founded(disk)?.entries;
            let start = entries.partition_point(|entry| entry.index < from);
            let mut read = 0;
            let within = entries[start..].iter().enumerate().take_while(|(place, entry)| {
                read += size(entry);
                entry.index == from + *place as u64 && (*place == 0 || read <= bytes)
            });
            Ok(within.map(|(_, entry)| entry.clone()).collect())
        })?;
        done(Ok(entries));
        Ok(())
    }

    fn append(&mut self, write: &LogWrite) -> Result<()> {
        self.call(|_, disk| {
            let image = founded(disk)?;
            image.bounds = image.bounds.after_append(write)?;
            if let Some(first) = write.entries.first() {
                let kept = image.entries.partition_point(|entry| entry.index < first.index);
                image.entries.truncate(kept);
                image.entries.extend_from_slice(&write.entries);
            }
            image.voter |= has_voted(write.hard_state.as_ref());
            if let Some(hard_state) = write.hard_state {
                image.hard_state = hard_state;
            }
            Ok(())
        })
    }

    fn checkpointer(&mut self) -> Result<Box<dyn Checkpointer>> {
        self.call(|store, _| -> Result<Box<dyn Checkpointer>> {
            let (disk, pending) = (Arc::clone(&store.shared), Arc::clone(&store.pending));
            Ok(Box::new(MemoryCheckpointer { disk, pending }))
        })
    }

    fn commit_checkpoint(&mut self, meta: &SnapshotMeta, log: LogAfter) -> Result<u64> {
        self.call(|store, disk| {
            let Some(Begun { kind, chunks, is_finished: true }) = pending(&store.pending).take()
            else {
                return refuse("a commit of a checkpoint that is not finished".to_owned());
            };
            let image = founded(disk)?;
            let full = kind == CheckpointKind::Full;
            image.bounds = image.bounds.after_checkpoint(meta, log, full)?;
            if full {
                image.checkpoints.clear();
            }
            image.checkpoints.push(chunks);
            image.checkpoint = meta.clone();
            image.voter |= is_voter(&image.identity, meta);
            match log {
                LogAfter::From(from) => image.entries.retain(|entry| entry.index >= from),
                LogAfter::Reset(hard_state) => {
                    image.entries.clear();
                    image.hard_state = hard_state;
                }
            }
            Ok(bytes_of(&image.checkpoints))
        })
    }
}

fn bytes_of(checkpoints: &[Vec<Vec<u8>>]) -> u64 {
    checkpoints.iter().flatten().map(|chunk| chunk.len() as u64).sum()
}

/// The checkpoint that was begun last.
#[derive(Debug)]
struct Begun {
    kind: CheckpointKind,
    chunks: Vec<Vec<u8>>,
    is_finished: bool,
}

/// Each change is a single assignment, so the value is sound even if the lock is poisoned.
fn pending(pending: &Mutex<Option<Begun>>) -> MutexGuard<'_, Option<Begun>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes checkpoints into memory.
struct MemoryCheckpointer {
    disk: Arc<Mutex<Disk>>,
    pending: Arc<Mutex<Option<Begun>>>,
}

impl MemoryCheckpointer {
    fn change(&self, change: impl FnOnce(&mut Begun)) -> Result<()> {
        let mut pending = pending(&self.pending);
        let Some(begun) = &mut *pending else {
            return refuse("no checkpoint was begun".to_owned());
        };
        change(begun);
        Ok(())
    }
}

impl Checkpointer for MemoryCheckpointer {
    fn begin(&mut self, full: bool, _: u64) -> Result<CheckpointKind> {
        let deltas = founded(&mut lock(&self.disk))?.checkpoints.len();
        let full = full || deltas > DELTAS_MAX;
        let kind = if full { CheckpointKind::Full } else { CheckpointKind::Delta };
        *pending(&self.pending) = Some(Begun { kind, chunks: Vec::new(), is_finished: false });
        Ok(kind)
    }

    fn put_chunk(&mut self, chunk: &[u8]) -> Result<()> {
        self.change(|begun| begun.chunks.push(chunk.to_vec()))
    }

    fn finish(&mut self) -> Result<()> {
        self.change(|begun| begun.is_finished = true)
    }
}
