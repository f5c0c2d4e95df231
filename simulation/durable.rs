//! What a store has said to be durable, and whether it is.
//!
//! [`RecordedStore`] writes down each call that a store confirms. The checks compare that with what the next
//! start reads, with what the node tells others, and with what the device really holds.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::checks::{Violation, durability};
use crate::node::stored::{Boot, HardState, Identity, LogWrite, SnapshotMeta};
use crate::storage::simulated::Device;
use crate::storage::{
    Checkpointer, ChunkSink, FsPath, LogAfter, LogStore, ReadDone, Result, ScrubDone, Space,
    current_name, log_of, witnessed,
};
use crate::types::membership::{NodeId, Promise};

/// Where the data directory of a device is.
pub(crate) const DATA: &str = "/data";

/// What is durable of one node. A clone is the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Durable(Arc<Mutex<Condition>>);

/// See [`Durable`].
#[derive(Debug, Default)]
pub(crate) struct Condition {
    confirmed: Contents,
    /// What may be durable instead: a call that failed, or that the end of the process has cut short.
    attempted: Option<Change>,
    /// The cluster of its identity; 0 if it has none.
    cluster: u64,
    violation: Option<Violation>,
}

/// The contents of a store as the checks need them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Contents {
    hard_state: HardState,
    /// The index of the checkpoint.
    checkpoint: u64,
    /// The index of the first entry of `terms`.
    first: u64,
    terms: VecDeque<u64>,
}

/// How a call changes the contents.
#[derive(Clone, Debug)]
enum Change {
    Nothing,
    /// A new store.
    Anew,
    Append {
        hard_state: Option<HardState>,
        first: u64,
        terms: Vec<u64>,
    },
    Checkpoint {
        index: u64,
        log: LogAfter,
    },
}

impl Durable {
    /// The contents of a store that was just founded.
    pub(crate) fn founded(cluster: u64, index: u64, hard_state: HardState) -> Durable {
        let confirmed =
            Contents { hard_state, checkpoint: index, first: index + 1, ..Contents::default() };
        Durable(Arc::new(Mutex::new(Condition { confirmed, cluster, ..Condition::default() })))
    }

    pub(crate) fn condition(&self) -> MutexGuard<'_, Condition> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Condition {
    /// The hard state that is durable.
    pub(crate) fn hard_state(&self) -> HardState {
        self.confirmed.hard_state
    }

    /// The last index that is durable.
    pub(crate) fn last(&self) -> u64 {
        self.confirmed.last()
    }

    /// The term of the last entry that is durable, if the log has one.
    pub(crate) fn last_term(&self) -> Option<u64> {
        self.confirmed.terms.back().copied()
    }

    /// Whether this entry is durable, itself or as part of the checkpoint.
    pub(crate) fn holds(&self, index: u64, term: u64) -> bool {
        self.confirmed.holds(index, term)
    }

    /// Whether a node that starts from it knows that this entry is committed.
    pub(crate) fn knows_committed(&self, index: u64) -> bool {
        let Contents { checkpoint, hard_state, .. } = self.confirmed;
        index <= checkpoint || index <= hard_state.commit
    }

    pub(crate) fn cluster(&self) -> u64 {
        self.cluster
    }

    /// A start has read this hard state and this last index. Returns whether that is what was durable, or
    /// what a call that was cut short would have made durable. A single member, `alone`, stands for election and
    /// wins as soon as it starts: it has the first entry of its term, too.
    pub(crate) fn started(
        &mut self,
        hard_state: HardState,
        last: u64,
        alone: Option<NodeId>,
    ) -> bool {
        let known = |contents: &Contents| {
            // What a checkpoint has is committed.
            let commit = contents.hard_state.commit.max(contents.checkpoint);
            (HardState { commit, ..contents.hard_state }, contents.last())
        };
        let is = |contents: &Contents| known(contents) == (hard_state, last);
        let has_won = |contents: &Contents| {
            let (known, known_last) = known(contents);
            let won = alone.map(|vote| HardState { term: known.term + 1, vote, ..known });
            won.is_some_and(|won| (won, known_last + 1) == (hard_state, last))
        };
        let mut changed = self.confirmed.clone();
        changed.change(self.attempted.take().unwrap_or(Change::Nothing));
        if is(&self.confirmed) {
            return true;
        }
        // A write of the former process may look like the victory of this one: then it is durable now.
        let is_changed = is(&changed) || !has_won(&self.confirmed) && has_won(&changed);
        if is_changed {
            self.confirmed = changed;
        }
        is_changed || has_won(&self.confirmed)
    }

    /// A member may have taken the place of this one: its store is empty.
    pub(crate) fn attempt_nothing(&mut self) {
        self.attempted = Some(Change::Anew);
    }

    pub(crate) fn take_violation(&mut self) -> Option<Violation> {
        self.violation.take()
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

    fn change(&mut self, change: Change) {
        match change {
            Change::Nothing => {}
            Change::Anew => *self = Contents::default(),
            Change::Append { hard_state, first, terms } => {
                if !terms.is_empty() {
                    if self.terms.is_empty() {
                        self.first = first;
                    }
                    let kept = first.saturating_sub(self.first);
                    self.terms.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
                    self.terms.extend(terms);
                }
                self.hard_state = hard_state.unwrap_or(self.hard_state);
            }
            Change::Checkpoint { index, log } => {
                self.checkpoint = index;
                match log {
                    LogAfter::From(from) => {
                        while self.first < from && self.terms.pop_front().is_some() {
                            self.first += 1;
                        }
                    }
                    LogAfter::Reset(hard_state) => {
                        self.terms.clear();
                        self.first = index + 1;
                        self.hard_state = hard_state;
                    }
                }
            }
        }
    }
}

/// The directory of the current incarnation on a device.
pub(crate) fn current(device: &Device) -> PathBuf {
    let content = device.visible(&Path::new(DATA).join("CURRENT"), 4096);
    Path::new(DATA).join(current_name(&content).unwrap_or_default())
}

/// The directory of the log of the current incarnation on a device, which may be elsewhere.
pub(crate) fn log(device: &Device) -> PathBuf {
    let current = current(device);
    let content = device.visible(&current.join("LOG_DIR"), 4096);
    log_of(&FsPath::system(&current), &content).path().to_owned()
}

/// A name in the directory of the current incarnation, or its log.
fn place(device: &Device, name: &str) -> PathBuf {
    match name {
        "log" => log(device),
        name => current(device).join(name),
    }
}

/// Checks that what a start relies on is on the device.
pub(crate) fn started(device: &Device) -> Result<(), Violation> {
    durability::is_on_device(device, &Path::new(DATA).join("CURRENT"))?;
    ["log", "IDENTITY", "PROMISE"]
        .iter()
        .try_for_each(|name| durability::is_on_device(device, &place(device, name)))
}

/// The store of one start of a node.
pub(crate) struct RecordedStore {
    store: Box<dyn LogStore>,
    durable: Durable,
    device: Device,
}

impl RecordedStore {
    pub(crate) fn new(store: Box<dyn LogStore>, durable: Durable, device: Device) -> RecordedStore {
        RecordedStore { store, durable, device }
    }

    fn witnessed(&self) -> Vec<u64> {
        witnessed(&self.device.visible(&log(&self.device).join("witness"), 8 << 10))
    }

    /// Makes a call that changes the contents when it succeeds. Then what is below these names is durable.
    fn change<T>(
        &mut self,
        below: &[&str],
        change: Change,
        call: impl FnOnce(&mut dyn LogStore) -> Result<T>,
    ) -> Result<T> {
        self.durable.condition().attempted = Some(change);
        let done = call(&mut *self.store)?;
        let mut condition = self.durable.condition();
        if let Some(change) = condition.attempted.take() {
            condition.confirmed.change(change);
        }
        for name in below {
            let checked = durability::is_on_device(&self.device, &place(&self.device, name));
            if let Err(violation) = checked {
                condition.violation.get_or_insert(violation);
            }
        }
        Ok(done)
    }
}

impl LogStore for RecordedStore {
    fn identity(&self) -> Option<&Identity> {
        self.store.identity()
    }

    fn promise(&self) -> &Promise {
        self.store.promise()
    }

    fn set_identity(&mut self, identity: &Identity) -> Result<()> {
        self.change(&["IDENTITY"], Change::Nothing, |store| store.set_identity(identity))?;
        self.durable.condition().cluster = identity.cluster;
        Ok(())
    }

    fn set_promise(&mut self, promise: &Promise) -> Result<()> {
        self.change(&["PROMISE"], Change::Nothing, |store| store.set_promise(promise))
    }

    fn mark_removed(&mut self) -> Result<()> {
        self.change(&["REMOVED"], Change::Nothing, |store| store.mark_removed())
    }

    fn found(
        &mut self,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<()> {
        self.store.found(identity, hard_state, meta, chunks)
    }

    fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot> {
        self.store.load(sink)
    }

    fn append(&mut self, write: &LogWrite) -> Result<()> {
        let change = Change::Append {
            hard_state: write.hard_state,
            first: write.entries.first().map_or(0, |first| first.index),
            terms: write.entries.iter().map(|entry| entry.term).collect(),
        };
        self.change(&["log"], change, |store| store.append(write))
    }

    fn read(&mut self, from: u64, bytes: u64, done: ReadDone) -> Result<()> {
        self.store.read(from, bytes, done)
    }

    fn idle(&mut self) -> Result<()> {
        let before = self.witnessed();
        let done = self.store.idle();
        if done.is_ok()
            && let Err(violation) = durability::is_witnessed(&before, &self.witnessed())
        {
            self.durable.condition().violation.get_or_insert(violation);
        }
        done
    }

    fn scrub(&mut self, done: ScrubDone) -> Result<u64> {
        self.store.scrub(done)
    }

    fn space(&self) -> Option<Space> {
        self.store.space()
    }

    fn log_space(&self) -> Option<Space> {
        self.store.log_space()
    }

    fn work_beside(&mut self) -> bool {
        self.store.work_beside()
    }

    fn checkpointer(&mut self) -> Result<Box<dyn Checkpointer>> {
        self.store.checkpointer()
    }

    fn commit_checkpoint(&mut self, meta: &SnapshotMeta, log: LogAfter) -> Result<u64> {
        let change = Change::Checkpoint { index: meta.index, log };
        // The last generation is the valid one. Those before it may have the chunks of a checkpoint that was
        // given up.
        let files = self.device.process();
        let names =
            FsPath::new(Arc::new(files.clone()), &current(&self.device)).list().unwrap_or_default();
        files.end_process();
        let names = names.iter().filter_map(|name| name.to_str());
        let last = names.filter(|name| name.starts_with("gen-")).max().unwrap_or("gen-");
        self.change(&["log", last], change, |store| store.commit_checkpoint(meta, log))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A single member wrote the first entry of its term and was killed. The next start read it, and did not stand for
    /// election in that term once more.
    #[test]
    fn a_start_goes_on_with_what_was_cut_short() {
        let of_term = |term| HardState { term, vote: 7, commit: 2 };
        let durable = Durable::founded(1, 2, of_term(12));
        let mut condition = durable.condition();
        let change = Change::Append { hard_state: Some(of_term(13)), first: 3, terms: vec![13] };
        condition.attempted = Some(change.clone());
        assert!(condition.started(of_term(13), 3, Some(7)));
        assert!(condition.holds(3, 13));
        // Without such a write it has won this term itself, and has yet to write the entry.
        assert!(condition.started(of_term(14), 4, Some(7)));
        assert!(!condition.holds(4, 14));
        // The write was lost, or another one was read.
        condition.attempted = Some(change.clone());
        assert!(condition.started(of_term(13), 3, None));
        condition.attempted = Some(change);
        assert!(!condition.started(of_term(15), 5, Some(7)));
    }
}
