//! The session table: the holder of each session, the requests that were run, and the ephemerals.
//!
//! **Exactly once.** The requests of a holder are numbered 1, 2, 3, ... and are run only in that
//! order. Each result is kept until the holder acknowledges it, so that a request that arrives
//! again gets the same result and is not run again. A new holder starts at 1, without results.
//!
//! Invariants ([`Sessions::check`], and the machine's for the ephemerals):
//! - The results that are kept end with that of `last_seq`, and have no gap.
//! - `ephemerals` has exactly the znodes that the session owns. It follows from the tree, and so is
//!   neither hashed nor part of snapshots.
//! - `hash` is the wrapping sum of the records' hashes.
//!
//! Caveat: the number of results of one session is bounded only by the number of requests that its node
//! accepts at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::tree::hash_words;
use crate::machine::command::{OpError, Reply};
use crate::types::acl::{ID_BYTES_MAX, Id, SESSION_IDS_MAX};
use crate::types::encoding;
use crate::types::membership::NodeId;
use crate::types::znode::SessionId;

/// How many former holders a session remembers: see [`SessionRecord::former`].
pub(super) const FORMER_MAX: usize = 8;

/// One session. A snapshot has the first fields, in this order; the skipped ones are restored separately.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    pub(crate) secret: [u8; 16],
    pub(crate) timeout_ms: u32,
    /// The time of the entry that opened it.
    pub(crate) opened: u64,
    /// The node that the holder is on.
    pub(crate) owner: NodeId,
    pub(crate) holder: u64,
    /// The last few former holders, oldest first. A late duplicate of the request by which one of them
    /// resumed the session must not take it from the present holder.
    pub(super) former: Vec<u64>,
    /// The last request of this holder that was run.
    pub(crate) last_seq: u64,
    /// The ids that its holder has authenticated as.
    #[serde(skip)]
    pub(crate) ids: Arc<Vec<Id>>,
    /// The session's ephemerals, sorted.
    #[serde(skip)]
    pub(crate) ephemerals: RedBlackTreeSetSync<Arc<str>>,
    #[serde(skip)]
    results: VecDeque<Remembered>,
    #[serde(skip)]
    results_hash: u64,
    #[serde(skip)]
    hash: u64,
}

/// The result of a request, kept until the holder acknowledges it.
#[derive(Clone, Debug)]
struct Remembered {
    result: Result<Reply, OpError>,
    hash: u64,
}

/// What to do with a numbered request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DuplicateCheck {
    /// It is the next one: run it, then [`SessionRecord::remember`] the result.
    Run,
    /// It was run before, with this result.
    Known(Result<Reply, OpError>),
    /// An earlier request is missing, or the result of this one was acknowledged long ago.
    OutOfOrder,
}

impl SessionRecord {
    pub(super) fn new(
        secret: [u8; 16],
        timeout_ms: u32,
        opened: u64,
        owner: NodeId,
        holder: u64,
    ) -> SessionRecord {
        SessionRecord { secret, timeout_ms, opened, owner, holder, ..SessionRecord::default() }
    }

    /// Whether this is the session's secret, in constant time.
    pub(super) fn secret_is(&self, secret: &[u8; 16]) -> bool {
        let mut difference = 0;
        for (ours, theirs) in self.secret.iter().zip(secret) {
            difference |= std::hint::black_box(ours ^ theirs);
        }
        std::hint::black_box(difference) == 0
    }

    /// Whether this is a former holder.
    pub(crate) fn was_held_by(&self, holder: u64) -> bool {
        self.former.contains(&holder)
    }

    /// Gives the session to another holder.
    pub(super) fn hold(&mut self, timeout_ms: u32, owner: NodeId, holder: u64) {
        if self.former.len() == FORMER_MAX {
            self.former.remove(0);
        }
        self.former.push(self.holder);
        self.timeout_ms = timeout_ms;
        self.owner = owner;
        self.holder = holder;
        self.last_seq = 0;
        self.ids = Arc::default();
        self.results.clear();
        self.results_hash = 0;
    }

    /// Adds ids of its holder.
    pub(super) fn authenticate(&mut self, ids: &[Id]) -> Result<Reply, OpError> {
        let mut all = (*self.ids).clone();
        for id in ids {
            let failed = |reason| OpError::AuthFailed { scheme: id.scheme.clone(), reason };
            if id.is_too_long() {
                return Err(failed(format!("an id of more than {ID_BYTES_MAX} bytes")));
            }
            if !all.contains(id) {
                all.push(id.clone());
            }
            if all.len() > SESSION_IDS_MAX {
                return Err(failed(format!("more than {SESSION_IDS_MAX} ids in one session")));
            }
        }
        self.ids = Arc::new(all);
        Ok(Reply::Ids((*self.ids).clone()))
    }

    /// Decides what to do with a request. If the request is out of order, its `acked` has no effect either.
    pub(super) fn admit(&mut self, seq: u64, acked: u64) -> DuplicateCheck {
        if seq > self.last_seq && seq - self.last_seq > 1 {
            return DuplicateCheck::OutOfOrder;
        }
        while !self.results.is_empty() && self.first_kept() < acked {
            if let Some(forgotten) = self.results.pop_front() {
                self.results_hash = self.results_hash.wrapping_sub(forgotten.hash);
            }
        }
        if seq > self.last_seq {
            return DuplicateCheck::Run;
        }
        seq.checked_sub(self.first_kept())
            .and_then(|place| self.results.get(usize::try_from(place).ok()?))
            .map_or(DuplicateCheck::OutOfOrder, |kept| DuplicateCheck::Known(kept.result.clone()))
    }

    /// Keeps the result of the request that was run.
    pub(super) fn remember(&mut self, result: Result<Reply, OpError>) {
        // `last_seq` is the number before this request's, so it cannot overflow.
        self.last_seq = self.last_seq.wrapping_add(1);
        self.push(self.last_seq, result);
    }

    /// Appends the next result; the last one is that of `last_seq`.
    pub(super) fn push(&mut self, seq: u64, result: Result<Reply, OpError>) {
        let hash = hash_result(seq, &result);
        self.results_hash = self.results_hash.wrapping_add(hash);
        self.results.push_back(Remembered { result, hash });
    }

    /// The number of the first result; `last_seq` plus one if there is none.
    pub(super) fn first_kept(&self) -> u64 {
        // There are never more results than numbers up to `last_seq`.
        self.last_seq.wrapping_sub(self.results.len() as u64).wrapping_add(1)
    }

    pub(crate) fn result_count(&self) -> usize {
        self.results.len()
    }

    pub(super) fn result(&self, place: usize) -> Option<&Result<Reply, OpError>> {
        self.results.get(place).map(|kept| &kept.result)
    }

    /// The result of a request, unless the holder has acknowledged it.
    pub(crate) fn result_of(&self, seq: u64) -> Option<&Result<Reply, OpError>> {
        self.result(usize::try_from(seq.checked_sub(self.first_kept())?).ok()?)
    }

    fn compute_hash(&self, id: SessionId) -> u64 {
        let (low, high) = self.secret.split_at(8);
        let half = |bytes| xxh3_64_with_seed(bytes, 1);
        let former = self
            .former
            .iter()
            .fold(self.former.len() as u64, |hash, holder| hash_words(&[hash, *holder]));
        let hash = hash_words(&[
            id.number(),
            half(low),
            half(high),
            u64::from(self.timeout_ms),
            self.opened,
            self.owner,
            self.holder,
            former,
            self.last_seq,
            self.results.len() as u64,
            self.results_hash,
        ]);
        self.ids.iter().fold(hash, |hash, id| {
            hash_words(&[hash, xxh3_64(id.scheme.as_bytes()), xxh3_64(id.id.as_bytes())])
        })
    }
}

fn hash_result(seq: u64, result: &Result<Reply, OpError>) -> u64 {
    // Most results are short. It is done for every write, so it allocates nothing.
    let mut short = [0; 128];
    let hash = match postcard::to_slice(result, &mut short) {
        Ok(bytes) => xxh3_64(bytes),
        Err(_) => xxh3_64(&encode_result(result)),
    };
    hash_words(&[seq, hash])
}

pub(super) fn encode_result(result: &Result<Reply, OpError>) -> Vec<u8> {
    encoding::append(result, Vec::with_capacity(128))
}

/// All sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions {
    records: RedBlackTreeMapSync<SessionId, SessionRecord>,
    hash: u64,
}

impl Sessions {
    pub(super) fn get(&self, id: SessionId) -> Option<&SessionRecord> {
        self.records.get(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.records.size()
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Replaces the secret and the holders of each session by hashes that do not show them.
    pub(super) fn hide_credentials(&mut self) {
        let all: Vec<(SessionId, SessionRecord)> =
            self.records.iter().map(|(id, record)| (*id, record.clone())).collect();
        for (id, mut record) in all {
            let hash = Sha1::new().chain_update("quorate hidden").chain_update(record.secret);
            let hash = hash.chain_update(record.holder.to_le_bytes()).finalize();
            record.secret.copy_from_slice(&hash[..16]);
            record.holder =
                hash[12..].iter().fold(0, |holder, byte| holder << 8 | u64::from(*byte));
            record.former.clear();
            self.insert(id, record);
        }
    }

    /// In the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        self.records.iter().map(|(id, record)| (*id, record))
    }

    /// The sessions with an id after this one, or all, in the order of their ids.
    pub(super) fn after(
        &self,
        id: Option<SessionId>,
    ) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let range = (id.map_or(Unbounded, Excluded), Unbounded);
        self.records.range(range).map(|(id, record)| (*id, record))
    }

    /// Adds a session, or replaces it.
    pub(super) fn insert(&mut self, id: SessionId, mut record: SessionRecord) {
        self.remove(id);
        record.hash = record.compute_hash(id);
        self.hash = self.hash.wrapping_add(record.hash);
        self.records.insert_mut(id, record);
    }

    pub(super) fn remove(&mut self, id: SessionId) {
        if let Some(record) = self.records.get(&id) {
            self.hash = self.hash.wrapping_sub(record.hash);
            self.records.remove_mut(&id);
        }
    }

    /// Changes a session and keeps the hash right; `None` if there is no such session.
    pub(super) fn update<T>(
        &mut self,
        id: SessionId,
        change: impl FnOnce(&mut SessionRecord) -> T,
    ) -> Option<T> {
        let record = self.records.get_mut(&id)?;
        let before = record.hash;
        let value = change(record);
        record.hash = record.compute_hash(id);
        self.hash = self.hash.wrapping_sub(before).wrapping_add(record.hash);
        Some(value)
    }

    /// Adds or removes an ephemeral. Returns whether the session exists.
    pub(super) fn set_ephemeral(&mut self, id: SessionId, path: &Arc<str>, exists: bool) -> bool {
        let Some(record) = self.records.get_mut(&id) else {
            return false;
        };
        if exists {
            record.ephemerals.insert_mut(Arc::clone(path));
        } else {
            record.ephemerals.remove_mut(&**path);
        }
        true
    }

    /// Checks the invariants of the sessions alone.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut hash = 0u64;
        for (id, record) in self.iter() {
            hash = hash.wrapping_add(record.hash);
            let kept = record.results.len() as u64;
            if kept > record.last_seq {
                let last = record.last_seq;
                return Err(format!("session {id}: {kept} results of {last} requests"));
            }
            let mut results_hash = 0u64;
            for (seq, kept) in (record.first_kept()..).zip(&record.results) {
                if kept.hash != hash_result(seq, &kept.result) {
                    return Err(format!("session {id}: result {seq} is not what was hashed"));
                }
                results_hash = results_hash.wrapping_add(kept.hash);
            }
            if results_hash != record.results_hash || record.hash != record.compute_hash(id) {
                return Err(format!("session {id}: its hash is not the hash of its contents"));
            }
        }
        if hash != self.hash {
            return Err("the hash is not the sum of the sessions' hashes".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SessionRecord {
        SessionRecord::new([7; 16], 1000, 0, 1, 10)
    }

    fn error(path: &str) -> Result<Reply, OpError> {
        Err(OpError::NoNode { path: path.to_owned() })
    }

    #[test]
    fn compares_secrets_in_full() {
        let record = record();
        assert!(record.secret_is(&[7; 16]));
        for place in 0..16 {
            let mut secret = [7; 16];
            secret[place] ^= 0x80;
            assert!(!record.secret_is(&secret));
        }
    }

    #[test]
    fn requests_run_once_and_in_order() {
        let mut record = record();
        assert_eq!(record.admit(0, 0), DuplicateCheck::OutOfOrder);
        assert_eq!(record.admit(2, 0), DuplicateCheck::OutOfOrder);
        assert_eq!(record.admit(u64::MAX, 0), DuplicateCheck::OutOfOrder);
        assert_eq!(record.admit(1, 0), DuplicateCheck::Run);
        record.remember(Ok(Reply::Done));
        assert_eq!(record.admit(1, 0), DuplicateCheck::Known(Ok(Reply::Done)));
        assert_eq!(record.admit(2, 1), DuplicateCheck::Run);
        record.remember(error("/a"));
        assert_eq!(record.admit(1, 1), DuplicateCheck::Known(Ok(Reply::Done)));
        assert_eq!(record.admit(2, 1), DuplicateCheck::Known(error("/a")));
    }

    #[test]
    fn acknowledged_results_are_forgotten_except_by_requests_out_of_order() {
        let mut record = record();
        for seq in 1..=3 {
            assert_eq!(record.admit(seq, 0), DuplicateCheck::Run);
            record.remember(error(&seq.to_string()));
        }
        assert_eq!(record.admit(5, 4), DuplicateCheck::OutOfOrder);
        assert_eq!(record.result_count(), 3);
        assert_eq!(record.admit(3, 3), DuplicateCheck::Known(error("3")));
        assert_eq!(record.result_count(), 1);
        assert_eq!(record.admit(2, 3), DuplicateCheck::OutOfOrder);
        assert_eq!(record.admit(3, u64::MAX), DuplicateCheck::OutOfOrder);
        assert_eq!((record.result_count(), record.results_hash), (0, 0));
        assert_eq!(record.admit(4, 4), DuplicateCheck::Run);
    }

    #[test]
    fn the_table_keeps_its_hash() {
        let mut sessions = Sessions::default();
        let (a, b) = (SessionId(1), SessionId(2));
        sessions.insert(a, record());
        let one = sessions.hash();
        sessions.insert(b, record());
        sessions.update(b, |record| {
            record.admit(1, 0);
            record.remember(Ok(Reply::Done));
        });
        sessions.check().unwrap();
        let ids = |from| sessions.after(from).next().map(|(id, _)| id);
        assert_eq!([ids(None), ids(Some(a)), ids(Some(b))], [Some(a), Some(b), None]);
        sessions.remove(b);
        sessions.remove(b);
        assert_eq!(sessions.hash(), one);
        sessions.check().unwrap();
    }

    #[test]
    fn only_so_many_former_holders_are_known() {
        let mut record = record();
        for holder in 11..=30 {
            record.hold(1000, 1, holder);
        }
        assert_eq!(record.former, (22..=29).collect::<Vec<u64>>());
    }
}
