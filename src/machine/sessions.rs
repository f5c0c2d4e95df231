//! The sessions of the cluster: who holds each, and what it was last answered.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use rpds::RedBlackTreeMapSync;
use xxhash_rust::xxh3::xxh3_64;

use crate::machine::command::{NodeId, OpError, Reply};
use crate::znode::SessionId;

pub(crate) type Answer = Result<Reply, OpError>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionRecord {
    pub(crate) secret: [u8; 16],
    pub(crate) timeout_ms: u32,
    pub(crate) owner: NodeId,
    pub(crate) holder: u64,
    /// The last request executed.
    pub(crate) last_seq: u64,
    /// The answers to the requests up to `last_seq`, as far as they are not known to have arrived.
    pub(crate) results: VecDeque<Answer>,
    pub(crate) ephemerals: BTreeSet<String>,
}

impl SessionRecord {
    /// The number drawn by whoever holds the session now.
    pub(crate) fn holder(&self) -> u64 {
        self.holder
    }

    /// The node that the holder is at: it keeps the session alive.
    pub(crate) fn owner(&self) -> NodeId {
        self.owner
    }

    pub(crate) fn last_seq(&self) -> u64 {
        self.last_seq
    }

    pub(crate) fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    /// The answer to an executed request, unless it is known to have arrived.
    pub(crate) fn result(&self, seq: u64) -> Option<&Answer> {
        let back = usize::try_from(self.last_seq.checked_sub(seq)?).ok()?;
        let place = self.results.len().checked_sub(back + 1)?;
        self.results.get(place)
    }

    pub(crate) fn remember(&mut self, result: Answer) {
        self.last_seq += 1;
        self.results.push_back(result);
    }

    /// The answers to the requests below `acked` have arrived.
    pub(crate) fn acknowledge(&mut self, acked: u64) {
        let first = self.last_seq + 1 - self.results.len() as u64;
        let arrived = usize::try_from(acked.saturating_sub(first)).unwrap_or(usize::MAX);
        self.results.drain(..arrived.min(self.results.len()));
    }

    fn hash(&self, id: SessionId) -> u64 {
        let mut bytes = [0; 64];
        let fields = [
            id.number(),
            u64::from(self.timeout_ms),
            self.owner,
            self.holder,
            self.last_seq,
            self.results.len() as u64,
        ];
        bytes[..16].copy_from_slice(&self.secret);
        for (place, field) in bytes[16..].chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        xxh3_64(&bytes)
    }
}

/// Compares two secrets in a time that does not tell where they differ.
pub(crate) fn same_secret(ours: &[u8; 16], theirs: &[u8; 16]) -> bool {
    ours.iter()
        .zip(theirs)
        .fold(0, |differs, (a, b)| differs | (a ^ b))
        == 0
}

/// All sessions, in an immutable map as the tree's. Their ephemerals are in the tree's hash.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    records: RedBlackTreeMapSync<SessionId, Arc<SessionRecord>>,
    hash: u64,
}

impl Sessions {
    pub(crate) fn new() -> Sessions {
        Sessions {
            records: RedBlackTreeMapSync::new_sync(),
            hash: 0,
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&SessionRecord> {
        self.records.get(&id).map(|record| &**record)
    }

    pub(crate) fn len(&self) -> usize {
        self.records.size()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        self.records.iter().map(|(id, record)| (*id, &**record))
    }

    /// The session with the next higher id; after `None`, the first.
    pub(crate) fn next_after(&self, id: Option<SessionId>) -> Option<(SessionId, &SessionRecord)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let after = (id.map_or(Unbounded, Excluded), Unbounded);
        self.records
            .range(after)
            .next()
            .map(|(id, record)| (*id, &**record))
    }

    pub(crate) fn insert(&mut self, id: SessionId, record: SessionRecord) {
        self.remove(id);
        self.hash = self.hash.wrapping_add(record.hash(id));
        self.records.insert_mut(id, Arc::new(record));
    }

    pub(crate) fn remove(&mut self, id: SessionId) {
        if let Some(record) = self.records.get(&id) {
            self.hash = self.hash.wrapping_sub(record.hash(id));
            self.records.remove_mut(&id);
        }
    }

    /// Changes a record, if there is one.
    pub(crate) fn change(&mut self, id: SessionId, change: impl FnOnce(&mut SessionRecord)) {
        if let Some(record) = self.records.get_mut(&id) {
            let record = Arc::make_mut(record);
            let before = record.hash(id);
            change(record);
            self.hash = self.hash.wrapping_sub(before).wrapping_add(record.hash(id));
        }
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn computed_hash(&self) -> u64 {
        self.iter()
            .fold(0, |sum, (id, record)| sum.wrapping_add(record.hash(id)))
    }
}
