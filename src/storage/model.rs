//! A simple model of a store's contents, and a generator of random operations.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::error::refuse;
use crate::node::stored::{
    Boot, EntryKind, HardState, Identity, LogEntry, LogWrite, SnapshotMeta, Voting,
};
use crate::storage::contract::{CheckpointKind, LogAfter, LogStore, Rot};
use crate::storage::error::{Result, StorageError};
use crate::types::membership::{Ballot, Genesis, Member, Pledge, Promise};

/// One change to a store, as its caller sees it.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Append(LogWrite),
    Checkpoint {
        full: bool,
        chunks: Vec<Vec<u8>>,
        /// Appended after the first chunk was put.
        between: Option<LogWrite>,
        meta: SnapshotMeta,
        log: LogAfter,
    },
    Identify(Identity),
    Promise(Promise),
    /// A checkpoint that is begun and abandoned.
    Abandon {
        full: bool,
        chunks: Vec<Vec<u8>>,
    },
}

/// The contents of a store.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) identity: Identity,
    pub(super) promise: Promise,
    pub(super) hard_state: HardState,
    pub(super) checkpoint: SnapshotMeta,
    /// All entries that the store keeps, including those before the checkpoint.
    pub(super) entries: Vec<LogEntry>,
    pub(super) chunks: Vec<Vec<u8>>,
}

/// Short: every piece of data by its length and hash.
impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Model { hard_state, checkpoint, entries, .. } = self;
        write!(f, "{:?} {:?} ", self.identity, self.promise)?;
        write!(f, "{hard_state:?} checkpoint {checkpoint:?} entries")?;
        for entry in entries {
            let hash = xxh3_64(&entry.data) as u16;
            write!(f, " {}/{}:{}#{hash:x}", entry.index, entry.term, entry.data.len())?;
        }
        write!(f, " chunks")?;
        for chunk in &self.chunks {
            write!(f, " {}#{:x}", chunk.len(), xxh3_64(chunk))?;
        }
        Ok(())
    }
}

impl Model {
    pub(super) fn founded(hard_state: HardState, meta: &SnapshotMeta, chunks: &[Vec<u8>]) -> Model {
        Model {
            identity: identity(),
            promise: Promise::default(),
            hard_state,
            checkpoint: meta.clone(),
            entries: Vec::new(),
            chunks: chunks.to_vec(),
        }
    }

    /// Loads a store.
    pub(super) fn of(store: &mut dyn LogStore) -> Result<Model> {
        let Some(identity) = store.identity().cloned() else {
            return refuse("the store is blank".to_owned());
        };
        let promise = store.promise().clone();
        let mut chunks = Vec::new();
        let boot = store.load(&mut |chunk| {
            chunks.push(chunk.to_vec());
            Ok(())
        })?;
        let Boot { hard_state, checkpoint, checkpoint_bytes, outline, entries: after } = boot;
        let bytes: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        assert!(checkpoint_bytes >= bytes, "{checkpoint_bytes} for {bytes}");
        let mut entries = Vec::new();
        if let (Some(first), Some((last, _))) = (outline.first(), outline.last()) {
            let terms = |entries: &[LogEntry]| {
                entries.iter().all(|entry| outline.term_at(entry.index) == Some(entry.term))
            };
            entries = read_from(store, first)?;
            entries.retain(|entry| entry.index <= last);
            assert!(terms(&entries), "{outline:?} {entries:?}");
        }
        entries.extend(after);
        Ok(Model { identity, promise, hard_state, checkpoint, entries, chunks })
    }

    pub(super) fn last(&self) -> u64 {
        let last = self.entries.last().map_or(0, |entry| entry.index);
        last.max(self.checkpoint.index)
    }

    /// A hash of the contents, to compare them.
    pub(super) fn digest(&self) -> u64 {
        xxh3_64(format!("{self:?}").as_bytes())
    }

    pub(super) fn append(&mut self, write: &LogWrite) {
        if let Some(first) = write.entries.first() {
            self.entries.retain(|entry| entry.index < first.index);
            self.entries.extend(write.entries.iter().cloned());
        }
        if let Some(hard_state) = write.hard_state {
            self.hard_state = hard_state;
        }
    }

    /// Changes the model as `apply` changes a store that chooses `kind` for a checkpoint.
    pub(super) fn apply(&mut self, op: &Op, kind: CheckpointKind) {
        match op {
            Op::Append(write) => self.append(write),
            Op::Identify(identity) => self.identity = identity.clone(),
            Op::Promise(promise) => self.promise = promise.clone(),
            Op::Abandon { .. } => {}
            Op::Checkpoint { chunks, between, meta, log, .. } => {
                if let Some(write) = between {
                    self.append(write);
                }
                if kind == CheckpointKind::Full {
                    self.chunks.clear();
                }
                self.chunks.extend(chunks.iter().cloned());
                self.checkpoint = meta.clone();
                match log {
                    LogAfter::From(from) => self.entries.retain(|entry| entry.index >= *from),
                    LogAfter::Reset(hard_state) => {
                        self.entries.clear();
                        self.hard_state = *hard_state;
                    }
                }
            }
        }
    }
}

/// All entries from an index on, read piece by piece.
fn read_from(store: &mut dyn LogStore, mut from: u64) -> Result<Vec<LogEntry>> {
    let mut entries = Vec::new();
    loop {
        let (done, read) = crossbeam_channel::bounded(1);
        store.read(from, 100, Box::new(move |read| done.send(read).unwrap()))?;
        let read = read.recv().unwrap();
        let read = read.map_err(|Rot { what, .. }| StorageError::Corrupt { what })?;
        let Some(last) = read.last() else { return Ok(entries) };
        assert_eq!(read[0].index, from);
        from = last.index + 1;
        entries.extend(read);
    }
}

/// Performs an operation on a store. Returns the kind of the checkpoint.
pub(super) fn apply(store: &mut dyn LogStore, op: &Op) -> Result<CheckpointKind> {
    match op {
        Op::Append(write) => store.append(write).map(|()| CheckpointKind::Delta),
        Op::Identify(identity) => store.set_identity(identity).map(|()| CheckpointKind::Delta),
        Op::Promise(promise) => store.set_promise(promise).map(|()| CheckpointKind::Delta),
        Op::Abandon { full, chunks } => {
            let mut writer = store.checkpointer()?;
            let kind = writer.begin(*full, 0)?;
            for chunk in chunks {
                writer.put_chunk(chunk)?;
            }
            Ok(kind)
        }
        Op::Checkpoint { full, chunks, between, meta, log } => {
            let mut writer = store.checkpointer()?;
            let kind = writer.begin(*full, 0)?;
            let mut between = between.as_ref();
            for chunk in chunks {
                writer.put_chunk(chunk)?;
                if let Some(write) = between.take() {
                    store.append(write)?;
                }
            }
            if let Some(write) = between {
                store.append(write)?;
            }
            writer.finish()?;
            store.commit_checkpoint(meta, *log)?;
            Ok(kind)
        }
    }
}

/// A small generator of numbers (splitmix64): the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

pub(super) fn identity() -> Identity {
    let address = "10.0.0.2:7000".to_owned();
    Identity { cluster: 11, node: 2, incarnation: 33, address, uid: 44 }
}

pub(super) fn promise(round: u64) -> Promise {
    let ballot = Ballot { round, proposer: 3 };
    let members = (1..=round % 4).map(|node| Member::new(node, format!("10.0.0.{node}:7000")));
    let genesis = Genesis { cluster: round, members: members.collect() };
    Promise { ballot, pledge: round.is_multiple_of(2).then_some(Pledge { ballot, genesis }) }
}

pub(super) fn meta(index: u64) -> SnapshotMeta {
    SnapshotMeta {
        index,
        term: 1,
        zxid: index,
        hash: index.wrapping_mul(77),
        voting: Voting { voters: vec![1, 2, 3], ..Voting::default() },
    }
}

pub(super) fn entry(index: u64, term: u64, data: &[u8]) -> LogEntry {
    LogEntry { index, term, kind: EntryKind::Normal, data: Bytes::copy_from_slice(data) }
}

pub(super) fn hard_state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term, vote, commit }
}

/// Founds a store with the contents that every test begins with.
pub(super) fn found(store: &mut dyn LogStore) -> Result<Model> {
    let chunks = vec![b"genesis".to_vec(), Vec::new(), vec![7; 100_000]];
    let state = hard_state(1, 0, 0);
    store.found(&identity(), state, &meta(0), &mut chunks.clone().into_iter())?;
    Ok(Model::founded(state, &meta(0), &chunks))
}

/// Draws the next operation that the model's contents allow.
pub(super) fn draw(random: &mut Random, model: &Model, checkpoint_percent: u64) -> Op {
    if random.chance(5) {
        return match random.below(2) {
            0 => Op::Identify(Identity {
                address: format!("10.0.0.{}:7000", random.below(99)),
                ..model.identity.clone()
            }),
            _ => Op::Promise(promise(random.below(1000))),
        };
    }
    if !random.chance(checkpoint_percent) {
        return Op::Append(draw_write(random, model));
    }
    let full = random.chance(40);
    let chunks: Vec<Vec<u8>> = (0..random.below(4))
        .map(|_| {
            let length = if random.chance(15) { 150_000 } else { 3_000 };
            let length = random.below(length) as usize;
            random.bytes(length)
        })
        .collect();
    match random.below(10) {
        0 => Op::Abandon { full, chunks },
        1 | 2 => {
            let index = model.last() + random.below(20);
            let term = model.hard_state.term;
            Op::Checkpoint {
                full: true,
                chunks,
                between: None,
                meta: meta(index),
                log: LogAfter::Reset(hard_state(term, 1, index)),
            }
        }
        _ => {
            let between = random.chance(50).then(|| draw_write(random, model));
            // The append in the middle must not replace entries that the checkpoint covers.
            let first = between.as_ref().and_then(|write| write.entries.first());
            let last = first.map_or(model.last(), |entry| entry.index - 1);
            let covered = model.checkpoint.index;
            let index = covered + random.below(last.saturating_sub(covered) + 1);
            Op::Checkpoint {
                full,
                chunks,
                between,
                meta: meta(index),
                log: LogAfter::From((index + 1).saturating_sub(random.below(5))),
            }
        }
    }
}

fn draw_write(random: &mut Random, model: &Model) -> LogWrite {
    let last = model.last();
    // Raft never overwrites what is applied.
    let overwritable = last - model.checkpoint.index;
    let overwritten = if random.chance(20) { random.below(overwritable + 1) } else { 0 };
    let first = last + 1 - overwritten;
    let term = model.hard_state.term + u64::from(overwritten > 0);
    let count = random.below(6);
    let entries: Vec<LogEntry> = (first..first + count)
        .map(|index| {
            let length = if random.chance(2) { 200_000 } else { 400 };
            let length = random.below(length) as usize;
            entry(index, term, &random.bytes(length))
        })
        .collect();
    let end = entries.last().map_or(last, |entry| entry.index);
    // If an overwrite leaves the commit index after the end, it needs a new hard state.
    let commit_is_out = model.hard_state.commit > end;
    let hard_state = (commit_is_out || random.chance(40)).then(|| {
        let commit = model.checkpoint.index.min(end);
        hard_state(term, random.below(4), commit + random.below(end - commit + 1))
    });
    LogWrite { hard_state, entries }
}
