//! A node's disk: its durable contents and its faults.
//!
//! A write is durable when its sync is complete, which is an event of its own. Until then, a power cut
//! loses it, keeps it, or keeps a part of it. The end of a process leaves it, or a part of it, where the
//! next start reads it, though it is not durable. So does a failed sync, and then no later sync writes it.
//! The store below is [`MemoryDisk`], which holds what can be read.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::machine::snapshot::ChunkWriter;
use crate::machine::{Machine, State};
use crate::node::stored::{Boot, HardState, Identity, LogWrite, SnapshotMeta, Voting};
use crate::planted::{Bug, planted};
use crate::storage::{
    Checkpointer, ChunkSink, LogAfter, LogStore, MemoryDisk, MemoryStore, ReadDone, SavedLog,
    StorageError,
};
use crate::types::membership::{Genesis, Member, Promise};

/// A disk. It outlives its node. A clone is the same disk.
#[derive(Clone, Debug)]
pub(crate) struct SimDisk {
    disk: MemoryDisk,
    shared: Arc<Mutex<Condition>>,
}

/// The contents of a disk as the checks need them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Contents {
    hard_state: HardState,
    /// The index of the checkpoint.
    checkpoint: u64,
    /// The index of the first entry of `terms`.
    first: u64,
    terms: VecDeque<u64>,
}

/// What can be read and is not durable.
#[derive(Debug)]
struct Unsynced {
    /// What can be read.
    visible: Contents,
    /// What is durable.
    durable: SavedLog,
    /// No later sync writes it: its own sync has failed.
    lost: bool,
}

/// What is durable on the disk, and its faults.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    durable: Contents,
    unsynced: Option<Unsynced>,
    /// What is written now is not synced.
    ending: bool,
    /// Whether writes fail because it is full.
    pub(crate) full: bool,
    /// Whether the next sync fails.
    pub(crate) fails: bool,
    /// Whether the next load fails, once.
    pub(crate) unreadable: bool,
    /// How it is damaged, until it is repaired.
    pub(crate) damaged: Option<&'static str>,
    /// Whether a start has found the damage.
    marked: bool,
}

impl Condition {
    /// The hard state that is durable.
    pub(crate) fn hard_state(&self) -> HardState {
        self.durable.hard_state
    }

    /// The last index that is durable.
    pub(crate) fn last(&self) -> u64 {
        self.durable.last()
    }

    /// Whether this entry is durable, itself or as part of the checkpoint.
    pub(crate) fn holds(&self, index: u64, term: u64) -> bool {
        self.durable.holds(index, term)
    }

    /// Whether a node that starts from it knows that this entry is committed.
    pub(crate) fn knows_committed(&self, index: u64) -> bool {
        let Contents { checkpoint, hard_state, .. } = self.durable;
        index <= checkpoint || index <= hard_state.commit
    }

    /// The store has written this, and synced it unless the process ends in the middle.
    fn change(&mut self, change: impl Fn(&mut Contents)) {
        let Some(unsynced) = &mut self.unsynced else { return change(&mut self.durable) };
        change(&mut unsynced.visible);
        if !self.ending && !unsynced.lost {
            // The sync has written all that waited in the same file.
            self.settle();
        }
    }

    /// Makes durable what can be read.
    fn settle(&mut self) {
        if let Some(unsynced) = self.unsynced.take() {
            self.durable = unsynced.visible;
        }
    }
}

impl Contents {
    fn last(&self) -> u64 {
        (self.first + self.terms.len() as u64).saturating_sub(1).max(self.checkpoint)
    }

    fn holds(&self, index: u64, term: u64) -> bool {
        if index <= self.checkpoint {
            return true;
        }
        let place = index.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        place.and_then(|place| self.terms.get(place)) == Some(&term)
    }

    fn append(&mut self, write: &LogWrite) {
        if let Some(first) = write.entries.first() {
            if self.terms.is_empty() {
                self.first = first.index;
            }
            let kept = first.index.saturating_sub(self.first);
            self.terms.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
            self.terms.extend(write.entries.iter().map(|entry| entry.term));
        }
        if let Some(hard_state) = write.hard_state {
            self.hard_state = hard_state;
        }
    }

    fn checkpoint(&mut self, meta: &SnapshotMeta, log: LogAfter) {
        self.checkpoint = meta.index;
        match log {
            LogAfter::From(from) => {
                while self.first < from && self.terms.pop_front().is_some() {
                    self.first += 1;
                }
            }
            LogAfter::Reset(hard_state) => {
                self.terms.clear();
                self.first = meta.index + 1;
                self.hard_state = hard_state;
            }
        }
    }
}

impl SimDisk {
    /// A disk that holds the founding state of a cluster.
    pub(crate) fn founded(founding: &Genesis, member: &Member, incarnation: u64) -> SimDisk {
        let (hard_state, meta, state) = founding.start();
        SimDisk::with(founding.cluster, member, incarnation, hard_state, &meta, state)
    }

    /// A disk that holds only an identity, with the cluster to which it belonged before if it was
    /// begun again.
    pub(crate) fn blank(cluster: u64, member: &Member, incarnation: u64) -> SimDisk {
        let machine = Machine::new();
        let (zxid, hash) = (machine.zxid(), machine.hash());
        let meta = SnapshotMeta { index: 0, term: 0, zxid, hash, voting: Voting::default() };
        let hard_state = HardState::default();
        SimDisk::with(cluster, member, incarnation, hard_state, &meta, machine.state())
    }

    fn with(
        cluster: u64,
        member: &Member,
        incarnation: u64,
        hard_state: HardState,
        meta: &SnapshotMeta,
        state: State,
    ) -> SimDisk {
        let Member { node, uid, address, .. } = member.clone();
        let identity = Identity { cluster, node, incarnation, address, uid };
        let disk = SimDisk { disk: MemoryDisk::new(), shared: Arc::default() };
        disk.open()
            .found(&identity, hard_state, meta, &mut ChunkWriter::full(state))
            .expect("a new store in memory takes its first state");
        disk
    }

    /// Whether the disks that were put aside earlier are deleted when this one is put aside.
    pub(crate) fn drops_former(&self) -> bool {
        self.disk.drops_former()
    }

    /// The identity on the disk. No damage affects it.
    pub(crate) fn identity(&self) -> Identity {
        self.disk.identity().expect("every disk begins with one")
    }

    pub(crate) fn open(&self) -> SimStore {
        SimStore { store: self.disk.open(), disk: self.clone() }
    }

    /// A process ends in the middle of these writes: they can be read afterwards, and are not durable.
    pub(crate) fn end_process<T>(&self, writes: impl FnOnce() -> T) -> T {
        self.write_unsynced(false);
        self.condition().ending = true;
        let done = writes();
        let mut condition = self.condition();
        condition.ending = false;
        let Condition { durable, unsynced, .. } = &mut *condition;
        unsynced.take_if(|unsynced| unsynced.visible == *durable);
        done
    }

    /// The power is cut: only what is durable can still be read.
    pub(crate) fn cut_power(&self) {
        if let Some(unsynced) = self.condition().unsynced.take() {
            self.disk.go_back(unsynced.durable);
        }
    }

    /// From now on, writes can be read and are not durable.
    fn write_unsynced(&self, lost: bool) {
        let mut condition = self.condition();
        let Condition { durable, unsynced, .. } = &mut *condition;
        if let Some(unsynced) = unsynced {
            unsynced.lost |= lost;
        } else if let Some(saved) = self.disk.log() {
            *unsynced = Some(Unsynced { visible: durable.clone(), durable: saved, lost });
        }
    }

    /// What a start does before it believes anything: it reads from the device, where a failed sync has
    /// left nothing, and makes durable what it reads.
    fn make_durable(&self) {
        if planted(Bug::StartTrustsRead) {
            return;
        }
        let lost = self.condition().unsynced.as_ref().is_some_and(|unsynced| unsynced.lost);
        if lost {
            self.cut_power();
        }
        self.condition().settle();
    }

    pub(crate) fn condition(&self) -> MutexGuard<'_, Condition> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store of one start of a node.
#[derive(Debug)]
pub(crate) struct SimStore {
    store: MemoryStore,
    disk: SimDisk,
}

impl SimStore {
    fn condition(&self) -> MutexGuard<'_, Condition> {
        self.disk.condition()
    }

    fn check(&self, what: &str) -> Result<(), StorageError> {
        let mut condition = self.condition();
        let what = what.to_owned();
        if condition.full {
            Err(StorageError::NoSpace { what })
        } else if std::mem::take(&mut condition.fails) {
            Err(StorageError::Io { what, reason: "the sync failed".to_owned() })
        } else {
            Ok(())
        }
    }
}

impl LogStore for SimStore {
    fn identity(&self) -> Option<&Identity> {
        self.store.identity()
    }

    fn promise(&self) -> &Promise {
        self.store.promise()
    }

    fn set_identity(&mut self, identity: &Identity) -> Result<(), StorageError> {
        self.check("the identity")?;
        if planted(Bug::ClusterForgotten) {
            return Ok(());
        }
        self.store.set_identity(identity)
    }

    fn set_promise(&mut self, promise: &Promise) -> Result<(), StorageError> {
        self.check("the promise")?;
        self.store.set_promise(promise)
    }

    fn mark_removed(&mut self) -> Result<(), StorageError> {
        self.check("the mark")?;
        self.store.mark_removed()
    }

    fn found(
        &mut self,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<(), StorageError> {
        self.store.found(identity, hard_state, meta, chunks)?;
        self.condition().change(|contents| contents.checkpoint(meta, LogAfter::Reset(hard_state)));
        Ok(())
    }

    fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot, StorageError> {
        {
            let mut condition = self.condition();
            if let Some(what) = condition.damaged
                && !planted(Bug::RotAccepted)
            {
                condition.marked = true;
                return Err(StorageError::Corrupt { what: what.to_owned() });
            }
            if std::mem::take(&mut condition.unreadable) {
                let reason = "read error".to_owned();
                return Err(StorageError::Io { what: "the log".to_owned(), reason });
            }
        }
        if self.condition().marked && planted(Bug::MarkBelieved) {
            return Err(StorageError::Corrupt { what: "it was damaged before".to_owned() });
        }
        self.disk.make_durable();
        let mut boot = self.store.load(sink)?;
        if self.condition().damaged.is_some()
            && let Some(rotten) = boot.entries.last_mut().filter(|entry| !entry.data.is_empty())
        {
            // Reached only with `RotAccepted`.
            let mut data = rotten.data.to_vec();
            if let Some(byte) = data.last_mut() {
                *byte ^= 1;
            }
            rotten.data = data.into();
        }
        super::surroundings::forget(&mut boot);
        Ok(boot)
    }

    fn read(&mut self, from: u64, bytes: u64, done: ReadDone) -> Result<(), StorageError> {
        self.store.read(from, bytes, done)
    }

    fn append(&mut self, write: &LogWrite) -> Result<(), StorageError> {
        let checked = self.check("the log");
        if matches!(checked, Err(StorageError::Io { .. })) {
            self.disk.write_unsynced(true);
        } else if checked.is_err() {
            return checked;
        }
        self.store.append(write)?;
        self.condition().change(|contents| contents.append(write));
        checked
    }

    fn checkpointer(&mut self) -> Result<Box<dyn Checkpointer>, StorageError> {
        self.store.checkpointer()
    }

    fn commit_checkpoint(
        &mut self,
        meta: &SnapshotMeta,
        log: LogAfter,
    ) -> Result<u64, StorageError> {
        self.check("a checkpoint")?;
        let bytes = self.store.commit_checkpoint(meta, log)?;
        self.condition().change(|contents| contents.checkpoint(meta, log));
        Ok(bytes)
    }
}
