//! Tombstones of closed sessions, which prevent that such a session is opened again.
//!
//! A request to open a session may arrive a second time: resent after a change of leader, or delayed.
//! If the session has ended in between and the request were run again, the session's other requests
//! would run again too. So the ids of the last closed sessions are kept. Of the earlier ones, only the
//! zxid of the last end is kept. This suffices: a request contains the zxid that its node had seen when
//! it first requested the session, which is smaller than that of the session's end.
//!
//! Invariants: every tombstone is newer than `forgotten`, and there are at most [`TOMBSTONES_MAX`].

use rpds::RedBlackTreeMapSync;

use super::command::OpError;
use super::tree::hash_words;
use crate::types::znode::{SessionId, Zxid};

/// How many closed sessions are kept by id. A node that has missed more ends than this can open a
/// session only once it has caught up.
pub(super) const TOMBSTONES_MAX: usize = if cfg!(feature = "simulator") {
    // Few, so that the small worlds of the simulator reach the limit.
    8
} else {
    10_000
};

#[derive(Clone, Debug, Default)]
pub(super) struct Tombstones {
    by_zxid: RedBlackTreeMapSync<Zxid, SessionId>,
    by_id: RedBlackTreeMapSync<SessionId, Zxid>,
    forgotten: Zxid,
    hash: u64,
}

fn hash(zxid: Zxid, id: SessionId) -> u64 {
    hash_words(&[zxid, id.number()])
}

impl Tombstones {
    pub(super) fn len(&self) -> usize {
        self.by_zxid.size()
    }

    /// The zxid of the last end of a session whose id is not kept.
    pub(super) fn forgotten(&self) -> Zxid {
        self.forgotten
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash.wrapping_add(hash_words(&[self.forgotten]))
    }

    /// The zxid at which the session ended, if it is known.
    pub(super) fn get(&self, id: SessionId) -> Option<Zxid> {
        self.by_id.get(&id).copied()
    }

    /// The first tombstone after this zxid, or the first of all.
    pub(super) fn after(&self, zxid: Option<Zxid>) -> Option<(Zxid, SessionId)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let range = (zxid.map_or(Unbounded, Excluded), Unbounded);
        self.by_zxid.range(range).next().map(|(zxid, id)| (*zxid, *id))
    }

    /// Decides whether a session may be opened that did not exist when its node had seen `base`.
    ///
    /// # Errors
    /// [`OpError::SessionExpired`] if it has ended; [`OpError::StaleOpen`] if it may have.
    pub(super) fn admit(&self, id: SessionId, base: Zxid) -> Result<(), OpError> {
        if self.by_id.contains_key(&id) {
            Err(OpError::SessionExpired)
        } else if base < self.forgotten {
            Err(OpError::StaleOpen)
        } else {
            Ok(())
        }
    }

    /// Adds a session that has ended at this zxid, after all others.
    pub(super) fn add(&mut self, id: SessionId, zxid: Zxid) {
        self.put(id, zxid);
        while self.len() > TOMBSTONES_MAX
            && let Some((first, _)) = self.after(None)
        {
            self.forget(first);
        }
    }

    /// Adds a tombstone of a snapshot.
    pub(super) fn put(&mut self, id: SessionId, zxid: Zxid) {
        if let Some(known) = self.get(id) {
            self.remove(known, id);
        }
        if let Some(other) = self.by_zxid.get(&zxid).copied() {
            self.remove(zxid, other);
        }
        self.hash = self.hash.wrapping_add(hash(zxid, id));
        self.by_zxid.insert_mut(zxid, id);
        self.by_id.insert_mut(id, zxid);
    }

    /// Forgets the tombstones up to this zxid.
    pub(super) fn forget(&mut self, upto: Zxid) {
        while let Some((zxid, id)) = self.after(None).filter(|(zxid, _)| *zxid <= upto) {
            self.remove(zxid, id);
        }
        self.forgotten = self.forgotten.max(upto);
    }

    fn remove(&mut self, zxid: Zxid, id: SessionId) {
        self.hash = self.hash.wrapping_sub(hash(zxid, id));
        self.by_zxid.remove_mut(&zxid);
        self.by_id.remove_mut(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_session_never_opens_again() {
        let mut tombstones = Tombstones::default();
        let ended = TOMBSTONES_MAX as u64 + 100;
        for n in 1..=ended {
            assert_eq!(tombstones.admit(SessionId(n), n - 1), Ok(()), "the first time");
            tombstones.add(SessionId(n), n);
        }
        assert_eq!((tombstones.len(), tombstones.forgotten()), (TOMBSTONES_MAX, 100));
        for n in 1..=ended {
            let error = if n <= 100 { OpError::StaleOpen } else { OpError::SessionExpired };
            assert_eq!(tombstones.admit(SessionId(n), n - 1), Err(error), "session {n}");
        }
        assert_eq!(tombstones.admit(SessionId(ended + 1), ended), Ok(()));
    }

    #[test]
    fn tombstones_from_a_snapshot_have_the_same_hash() {
        let mut one = Tombstones::default();
        for n in 1..=TOMBSTONES_MAX as u64 + 5 {
            one.add(SessionId(n * 7), n);
        }
        let mut two = Tombstones::default();
        let mut at = None;
        while let Some((zxid, id)) = one.after(at) {
            two.put(id, zxid);
            at = Some(zxid);
        }
        two.forget(one.forgotten());
        assert_eq!((one.hash(), one.len()), (two.hash(), two.len()));
    }
}
