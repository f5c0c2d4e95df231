//! Worlds of one disk: the store's own code and the state machines of the disk's threads, on a file system that
//! knows what is in the cache and what is on the device, and fails as disks do.
//!
//! There is no node. The world writes a log as a node would, with entries that replace others, votes,
//! checkpoints and states of leaders. Its process ends at any call of the file system, its power is cut, calls
//! fail, and what is on the disk is damaged. After each start, the store must have all that it has confirmed, or
//! refuse a disk that is damaged.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::checks::{Violation, durability, require};
use super::clock::{MILLI, Nanos, SECOND};
use super::disk_spoils::Damage;
use super::disk_threads::DiskThreads;
use super::durable::{DATA, Durable, RecordedStore, started};
use super::random::Random;
use crate::encryption::KeyRing;
use crate::machine::Machine;
use crate::machine::command::{Batch, Command, Request};
use crate::machine::snapshot::ChunkWriter;
use crate::node::bootstrap::genesis::nothing;
use crate::node::io::{DiskOp, Input};
use crate::node::stored::{Boot, EntryKind, HardState, Identity, LogEntry, LogWrite, SnapshotMeta};
use crate::runtime::read_state;
use crate::storage::simulated::{Device, Fault, FaultKind, ProcessFiles};
use crate::storage::{DiskStore, FsPath, LogStore, StorageError, StoreOptions};
use crate::types::version::VERSION;
use crate::types::znode::SessionId;

/// How many starts a world has.
const LIVES: usize = 25;
/// The store of every so many seeds is encrypted, beginning with this one.
const SEALED_EVERY: u64 = 16;
const SEALED_AT: u64 = 13;
/// The log of every so many seeds is in another directory than the data, beginning with this one.
const ELSEWHERE_EVERY: u64 = 16;
const ELSEWHERE_AT: u64 = 11;
const LOGS: &str = "/logs";
/// So many starts in a row may be refused for what happened to the process before, as for a failed write.
const REFUSED_MAX: u32 = 5;
/// The room of a disk that is not full.
pub(super) const ROOM: u64 = 1 << 40;

/// The end of a log: its hard state and its last index.
type End = (HardState, u64);

/// What a world has come to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) violation: Option<Violation>,
    pub(super) trace: u64,
    pub(super) time: Nanos,
    pub(super) starts: u64,
    pub(super) steps: u64,
    pub(super) events: BTreeMap<&'static str, u64>,
    pub(super) story: VecDeque<String>,
}

/// The log as the node writes it.
#[derive(Clone, Debug, Default)]
struct Log {
    hard_state: HardState,
    /// The index of the last checkpoint.
    checkpoint: u64,
    /// The first index and the terms of the entries.
    first: u64,
    terms: VecDeque<u64>,
}

impl Log {
    fn last(&self) -> u64 {
        (self.first + self.terms.len() as u64).saturating_sub(1).max(self.checkpoint)
    }

    fn term_of(&self, index: u64) -> u64 {
        let place = index.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        place.and_then(|place| self.terms.get(place)).copied().unwrap_or(1)
    }
}

pub(super) struct DiskWorld {
    pub(super) random: Random,
    pub(super) device: Device,
    options: StoreOptions,
    split_above: usize,
    durable: Durable,
    pub(super) now: Nanos,
    log: Log,
    machine: Machine,
    /// The digest of each entry ever written, by index and term.
    written: BTreeMap<(u64, u64), u64>,
    /// The end of the log after each write that is not confirmed yet, by its number.
    ends: BTreeMap<u64, End>,
    number: u64,
    sessions: u64,
    pub(super) damage: Option<Damage>,
    /// The bytes that were damaged: the file, the place in it, and what was written there.
    pub(super) flipped: Vec<(PathBuf, u64, u8)>,
    /// Whether a process has ever started from it.
    is_used: bool,
    /// How many starts in a row have failed by an error of the disk that was not injected.
    refused: u32,
    /// Whether the disk gave its node a reason to stop.
    pub(super) may_stop: bool,
    /// Since when this process has had no descriptors, but for moments.
    pub(super) limited_since: Option<Nanos>,
    /// The index of the checkpoint that was asked for and is not written yet.
    checkpoint: Option<u64>,
    outcome: Outcome,
}

/// A process that runs.
pub(super) struct Life {
    pub(super) threads: DiskThreads,
    files: ProcessFiles,
    has_failed: bool,
}

/// Every so often, the store is encrypted.
fn keys(seed: u64) -> Option<Arc<KeyRing>> {
    (seed % SEALED_EVERY == SEALED_AT).then(|| Arc::new(KeyRing::counted("k1")))
}

/// Every so often, the log is in another directory.
fn log_dir(seed: u64) -> Option<PathBuf> {
    (seed % ELSEWHERE_EVERY == ELSEWHERE_AT).then(|| PathBuf::from(LOGS))
}

/// Runs the world of a seed.
pub(super) fn run(seed: u64) -> Outcome {
    let random = Random::new(seed ^ 0xD15C);
    let device = Device::new(random.next());
    device.set_capacity(Some(ROOM));
    let options = StoreOptions {
        delta_bytes_min: 1 << random.within(6..16),
        file_bytes_min: 1 << random.within(12..20),
        deltas_max: *random.pick(&[1, 3, 10, 256]),
        spare_bytes_min: 1,
        segment_bytes: 1 << random.within(11..16),
        keys: keys(seed),
        log_dir: log_dir(seed),
        random: seed,
    };
    let mut world = DiskWorld {
        split_above: 1 << *random.pick(&[8, 10, 14, 20]),
        device,
        options,
        durable: Durable::default(),
        now: SECOND,
        log: Log::default(),
        machine: Machine::new(),
        written: BTreeMap::new(),
        ends: BTreeMap::new(),
        number: 0,
        sessions: 0,
        damage: None,
        flipped: Vec::new(),
        is_used: false,
        refused: 0,
        may_stop: false,
        limited_since: None,
        checkpoint: None,
        outcome: Outcome::default(),
        random,
    };
    let lived = world.live();
    world.outcome.violation = lived.err();
    world.outcome.trace ^= world.device.visible_fingerprint();
    world.outcome.time = world.now;
    world.outcome
}

impl DiskWorld {
    pub(super) fn count(&mut self, what: &'static str) {
        *self.outcome.events.entry(what).or_default() += 1;
        self.tell(what);
    }

    pub(super) fn tell(&mut self, what: impl Into<String>) {
        const TOLD: usize = 200;
        if self.outcome.story.len() >= TOLD {
            self.outcome.story.pop_front();
        }
        let line = format!("|{:>14.6}s  {}", self.now as f64 / 1e9, what.into());
        self.outcome.story.push_back(line);
    }

    pub(super) fn path(&self, files: &ProcessFiles) -> FsPath {
        FsPath::new(Arc::new(files.clone()), Path::new(DATA))
    }

    fn identity(&self, incarnation: u64) -> Identity {
        let address = "here:1".to_owned();
        Identity { cluster: 0, node: incarnation.max(1), incarnation, address, uid: 7 }
    }

    fn live(&mut self) -> Result<(), Violation> {
        for _ in 0..LIVES {
            let Some(mut life) = self.start()? else { continue };
            let steps = self.random.within(5..1 << self.random.within(4..10));
            for _ in 0..steps {
                self.step(&mut life)?;
                if life.has_failed {
                    break;
                }
            }
            self.end(life)?;
        }
        Ok(())
    }

    /// Starts a process. `None` if it does not start this time.
    fn start(&mut self) -> Result<Option<Life>, Violation> {
        self.outcome.starts += 1;
        self.device.set_capacity(Some(ROOM));
        self.device.set_descriptors(None);
        let files = self.device.process();
        let dir = self.path(&files);
        let fails_to_read = self.random.percent(10);
        if fails_to_read {
            let after = self.random.below(30);
            self.device.inject(Fault { kind: FaultKind::FailedRead, after });
        }
        let is_cut = self.random.percent(15);
        if is_cut {
            files.stop_after(self.random.below(*self.random.pick(&[4, 30, 200])));
        }
        let opened = self.open(&dir);
        self.device.disarm();
        if files.has_ended() {
            self.count("starts cut short");
            drop(opened);
            self.cut_power_often();
            return Ok(None);
        }
        files.stop_after(u64::MAX);
        let (store, boot, machine) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                files.end_process();
                if !fails_to_read {
                    self.refused = if is_of_disk(&error) { self.refused + 1 } else { 0 };
                }
                self.refused(&error)?;
                return Ok(None);
            }
        };
        self.tell(format!("starts with {:?} and {}", boot.hard_state, last_of(&boot)));
        self.damage = None;
        self.refused = 0;
        (self.may_stop, self.is_used, self.limited_since) = (false, true, None);
        self.recovered(&boot)?;
        started(&self.device)?;
        durability::has_its_name(&self.device, Path::new(DATA))?;
        self.log = log_of(&boot);
        self.ends.clear();
        self.machine = machine;
        self.checkpoint = None;
        let store = RecordedStore::new(store, self.durable.clone(), self.device.clone());
        let threads = DiskThreads::new(Box::new(store), files.clone(), self.split_above, self.now);
        Ok(Some(Life { threads, files, has_failed: false }))
    }

    fn open(&self, dir: &FsPath) -> Result<(Box<dyn LogStore>, Boot, Machine), StorageError> {
        let mut store = DiskStore::open(dir, self.options.clone())?;
        if store.identity().is_none() {
            if self.is_used {
                let what = "a directory that was in use is blank".to_owned();
                return Err(StorageError::Version { what });
            }
            let (hard_state, meta, state) = nothing();
            let identity = self.identity(self.random.next());
            store.found(&identity, hard_state, &meta, &mut ChunkWriter::full(state))?;
        }
        let (boot, machine) = read_state(VERSION, |sink| store.load(sink))?;
        Ok((Box::new(store), boot, machine))
    }

    /// A start was refused.
    fn refused(&mut self, error: &StorageError) -> Result<(), Violation> {
        self.tell(format!("does not start: {error}"));
        match (error, self.damage) {
            // The disk is replaced.
            (StorageError::Io { .. }, Some(Damage::BadSector)) => {
                self.count("bad disks replaced");
                self.replace_disk();
                Ok(())
            }
            (error, _) if is_of_disk(error) && self.refused <= REFUSED_MAX => Ok(()),
            (StorageError::Corrupt { .. }, Some(_)) | (StorageError::Removed { .. }, _) => {
                self.replace()
            }
            _ => Err(Violation::new("I14 what was written opens", error.to_string())),
        }
    }

    /// A new member takes the place of one whose directory is damaged.
    fn replace(&mut self) -> Result<(), Violation> {
        let files = self.device.process();
        let dir = self.path(&files);
        let is_cut = self.random.percent(50);
        if is_cut {
            files.stop_after(self.random.below(100));
        }
        let (hard_state, meta, state) = nothing();
        let replaced = DiskStore::found_replacement(
            &dir,
            self.random.next(),
            hard_state,
            &meta,
            &mut ChunkWriter::full(state),
            self.options.clone(),
        );
        if files.has_ended() {
            drop(replaced);
            self.count("replacements cut short");
            self.cut_power_often();
            // The next start finds the old directory, or the new one.
            self.durable.condition().attempt_nothing();
            return Ok(());
        }
        let done = replaced.map(drop);
        files.end_process();
        match done {
            Ok(()) => {
                self.count("directories replaced");
                self.forget();
                Ok(())
            }
            // What names the member is damaged.
            Err(StorageError::Io { .. } | StorageError::Corrupt { .. }) => {
                self.count("disks replaced");
                self.replace_disk();
                Ok(())
            }
            Err(error) => Err(Violation::new("I14 what was written opens", error.to_string())),
        }
    }

    /// The disk is an empty one.
    fn replace_disk(&mut self) {
        self.device = Device::new(self.random.next());
        self.is_used = false;
        self.forget();
    }

    /// The member is a new one.
    fn forget(&mut self) {
        self.device.set_capacity(Some(ROOM));
        self.damage = None;
        self.refused = 0;
        self.flipped.clear();
        self.durable = Durable::default();
        self.written.clear();
    }

    /// Checks what a start has read.
    fn recovered(&mut self, boot: &Boot) -> Result<(), Violation> {
        let (hard_state, last) = (boot.hard_state, last_of(boot));
        let known = {
            let mut durable = self.durable.condition();
            let known = (durable.hard_state(), durable.last());
            require(
                durable.started(hard_state, last, None),
                "I14 a start knows what was durable",
                || {
                    format!(
                        "a start finds {hard_state:?} and entry {last}; on the disk are {known:?}"
                    )
                },
            )?;
            known
        };
        for entry in &boot.entries {
            let digest = self.written.get(&(entry.index, entry.term));
            require(digest == Some(&xxh3_64(&entry.data)), "I11 one log", || {
                format!("entry {} of term {} was never written; {known:?}", entry.index, entry.term)
            })?;
        }
        let term = boot.entries.last().map_or(0, |entry| entry.term);
        require(term <= hard_state.term, "I14 a start knows the terms of its entries", || {
            format!("the last entry is of term {term}, and the hard state is {hard_state:?}")
        })
    }

    fn step(&mut self, life: &mut Life) -> Result<(), Violation> {
        self.outcome.steps += 1;
        self.now += self.random.below(*self.random.pick(&[MILLI, MILLI, 20 * MILLI]));
        match self.random.below(100) {
            0..40 => {
                let op = self.next_op();
                life.threads.submit(op);
            }
            40..75 if life.threads.writing_since.is_some() => self.write(life),
            75..90 if life.threads.working_since.is_some() => life.threads.work(),
            90..96 => {
                life.threads.work_beside();
            }
            96..98 => self.fault(life)?,
            _ => {
                if let Some(at) = life.threads.wake_at {
                    self.now = self.now.max(at);
                }
            }
        }
        life.threads.decide(self.now, |_| true);
        self.take_inputs(life)
    }

    fn write(&mut self, life: &mut Life) {
        let fails = self.random.chance(2_000);
        if fails {
            self.count("failed syncs");
            self.may_stop = true;
            self.device.inject(Fault::next(FaultKind::FailedSync));
        }
        life.threads.write();
        self.device.disarm();
    }

    fn take_inputs(&mut self, life: &mut Life) -> Result<(), Violation> {
        let inputs: Vec<Input> = life.threads.inputs().collect();
        for input in inputs {
            match input {
                Input::Written { number } => {
                    let end = self.ends.remove(&number);
                    self.ends.retain(|other, _| *other > number);
                    let durable = self.durable.condition();
                    let known = (durable.hard_state(), durable.last());
                    drop(durable);
                    require(
                        end.is_none_or(|end| end == known),
                        "I13 what is confirmed is durable",
                        || format!("write {number} ends at {end:?}, and {known:?} is on the disk"),
                    )?;
                }
                Input::CheckpointDone { index, .. } => {
                    self.count("checkpoints");
                    self.checkpoint.take_if(|asked| *asked == index);
                    let from = self.log.first;
                    let dropped = index.saturating_sub(from) / 2;
                    for _ in 0..dropped.min(self.log.terms.len() as u64) {
                        self.log.terms.pop_front();
                        self.log.first += 1;
                    }
                    self.log.checkpoint = self.log.checkpoint.max(index);
                }
                Input::Read { from, entries } => {
                    self.count("reads");
                    for (place, entry) in entries.iter().enumerate() {
                        let known = self.written.get(&(entry.index, entry.term));
                        let is_right = entry.index == from + place as u64
                            && known == Some(&xxh3_64(&entry.data));
                        require(is_right, "I16 what is read was written", || {
                            format!("entry {} of term {}, from {from}", entry.index, entry.term)
                        })?;
                    }
                }
                Input::Rotten { what, .. } => {
                    self.count("damage that a read found");
                    let is_damaged = self.damage.is_some() || self.has_flipped();
                    require(is_damaged, "I14 what was written opens", || what)?;
                }
                Input::Failed { reason } => {
                    self.tell(reason.clone());
                    life.has_failed = true;
                    // A change of a frame is tried again for half a minute.
                    let is_limited =
                        self.limited_since.is_some_and(|since| self.now >= since + 15 * SECOND);
                    let is_excused = self.may_stop
                        || is_limited
                        || (self.damage.is_some() && !reason.contains("log"));
                    require(is_excused, "I31 no node stops by itself", || reason)?;
                }
                _ => {}
            }
        }
        let violation = self.durable.condition().take_violation();
        violation.map_or(Ok(()), Err)
    }

    /// What the node writes next.
    fn next_op(&mut self) -> DiskOp {
        self.number += 1;
        let number = self.number;
        match self.random.below(100) {
            0..70 => {
                let write = self.next_write();
                self.ends.insert(number, (self.log.hard_state, self.log.last()));
                DiskOp::Write { number, write }
            }
            70..80 if !self.log.terms.is_empty() => {
                let from = self.log.first + self.random.below(self.log.terms.len() as u64);
                DiskOp::Read { from, bytes: self.random.below(2_000) }
            }
            80..92
                if self.checkpoint.is_none()
                    && self.log.hard_state.commit > self.log.checkpoint =>
            {
                let index = self.log.hard_state.commit;
                self.checkpoint = Some(index);
                let meta = self.next_state(index);
                let keep_from = (index + 1).saturating_sub(self.random.below(5));
                let keep_from = keep_from.max(self.log.first).max(1);
                let dirty = self.machine.take_dirty();
                DiskOp::Checkpoint { meta, state: self.machine.state(), dirty, keep_from }
            }
            92..94 => {
                // A leader's state replaces everything.
                let index = self.log.last() + 1 + self.random.below(20);
                let term = self.log.hard_state.term.max(1);
                let hard_state = HardState { term, commit: index, ..self.log.hard_state };
                let meta = self.next_state(index);
                self.machine.take_dirty();
                self.checkpoint = None;
                self.log =
                    Log { hard_state, checkpoint: index, first: index + 1, terms: VecDeque::new() };
                self.ends.insert(number, (hard_state, index));
                DiskOp::Install { number, hard_state, meta, state: self.machine.state() }
            }
            94..97 => DiskOp::Promise { number, promise: Default::default() },
            _ => {
                let hard_state = &mut self.log.hard_state;
                hard_state.term += 1;
                hard_state.vote = self.random.below(4);
                self.ends.insert(number, (self.log.hard_state, self.log.last()));
                let hard_state = Some(self.log.hard_state);
                DiskOp::Write { number, write: LogWrite { hard_state, entries: Vec::new() } }
            }
        }
    }

    fn next_write(&mut self) -> LogWrite {
        let log = &mut self.log;
        if log.terms.is_empty() {
            log.first = log.checkpoint + 1;
        }
        let mut hard_state = log.hard_state;
        if self.random.percent(15) || hard_state.term == 0 {
            hard_state.term += 1;
            hard_state.vote = self.random.below(4);
        }
        let last = log.last();
        // Entries that are not committed may be replaced, by those of a later term.
        let replaced = match last - hard_state.commit.min(last) {
            0 => 0,
            open if hard_state.term > log.term_of(last) && self.random.percent(50) => {
                self.random.below(open + 1)
            }
            _ => 0,
        };
        let first = last + 1 - replaced;
        let count = self.random.below(5);
        let mut entries = Vec::new();
        for index in first..first + count {
            let bytes = self.random.below(*self.random.pick(&[20, 200, 3_000]));
            let data: Vec<u8> = (0..bytes).map(|_| self.random.next() as u8).collect();
            self.written.insert((index, hard_state.term), xxh3_64(&data));
            let (term, kind) = (hard_state.term, EntryKind::Normal);
            entries.push(LogEntry { index, term, kind, data: Bytes::from(data) });
        }
        if count > 0 {
            let kept = first.saturating_sub(log.first) as usize;
            log.terms.truncate(kept);
            log.terms.extend(entries.iter().map(|entry| entry.term));
        }
        let committed = self.random.below(log.last().saturating_sub(hard_state.commit) + 1);
        if self.random.percent(70) {
            hard_state.commit += committed;
        }
        let changed = hard_state != log.hard_state;
        log.hard_state = hard_state;
        LogWrite { hard_state: changed.then_some(hard_state), entries }
    }

    /// Changes the state, and describes it as that of this index.
    fn next_state(&mut self, index: u64) -> SnapshotMeta {
        for _ in 0..self.random.below(20) {
            self.sessions += 1;
            let session = SessionId(self.sessions);
            let command = Command::Open {
                secret: [0; 16],
                timeout_ms: 1000,
                owner: 1,
                base: self.machine.zxid(),
            };
            let request = Request { session, holder: 1, seq: 0, acked: 0, command };
            let time = self.machine.time() + 1;
            self.machine.apply(1, &Batch { time, requests: vec![request] });
        }
        let (zxid, hash) = (self.machine.zxid(), self.machine.hash());
        let term = self.log.term_of(index).max(1);
        SnapshotMeta { index, term, zxid, hash, voting: Default::default() }
    }

    /// Ends a process, and perhaps the power; then perhaps damages the disk.
    fn end(&mut self, mut life: Life) -> Result<(), Violation> {
        if self.random.percent(30) && !life.has_failed {
            self.rest(&mut life)?;
        }
        let is_resting = life.threads.is_resting() && !life.has_failed;
        if self.random.percent(20) {
            life.threads.close(self.now);
            self.tell("closes");
        } else {
            let torn = self.random.percent(60);
            if life.threads.kill(&self.random, torn) {
                self.count("steps cut short");
            }
            self.tell("is killed");
            self.cut_power_often();
        }
        life.files.end_process();
        let violation = self.durable.condition().take_violation();
        if let Some(violation) = violation {
            return Err(violation);
        }
        if self.random.percent(12) && self.damage.is_none() {
            self.spoil(is_resting);
        }
        Ok(())
    }

    /// Lets the threads write everything, and then the witness.
    fn rest(&mut self, life: &mut Life) -> Result<(), Violation> {
        const STEPS_MAX: usize = 1_000;
        self.device.set_capacity(Some(ROOM));
        self.device.set_descriptors(None);
        for _ in 0..STEPS_MAX {
            if life.has_failed || life.threads.is_resting() {
                break;
            }
            if life.threads.writing_since.is_some() {
                life.threads.write();
            } else if life.threads.working_since.is_some() {
                life.threads.work();
            } else if let Some(at) = life.threads.wake_at {
                self.now = self.now.max(at);
            }
            life.threads.decide(self.now, |_| true);
            self.take_inputs(life)?;
        }
        Ok(())
    }

    fn cut_power_often(&mut self) {
        if self.random.percent(50) {
            self.count("power cuts");
            self.device.cut_power();
        }
    }
}

/// Whether the disk failed, or had no room, without a sign of damage.
fn is_of_disk(error: &StorageError) -> bool {
    matches!(error, StorageError::Io { .. } | StorageError::Again { .. })
}

fn last_of(boot: &Boot) -> u64 {
    boot.entries.last().map_or(boot.checkpoint.index, |last| last.index)
}

fn log_of(boot: &Boot) -> Log {
    let index = boot.checkpoint.index;
    Log {
        hard_state: HardState { commit: boot.hard_state.commit.max(index), ..boot.hard_state },
        checkpoint: index,
        first: boot.entries.first().map_or(index + 1, |first| first.index),
        terms: boot.entries.iter().map(|entry| entry.term).collect(),
    }
}
