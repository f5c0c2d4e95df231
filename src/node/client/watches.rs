//! The watches of a client's users.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::node::client_message::HeldWatch;
use crate::node::io::{SessionHolder, WatchId};
use crate::node::replica::server::{CLAIMS_BYTES_MAX, WATCHES_MAX};
use crate::types::watch::WatchInfo;
use crate::types::znode::Zxid;

/// Which watches are set, or may be once their calls are answered. It takes no more than fit into the messages of
/// a move to another member.
#[derive(Debug, Default)]
pub(super) struct Watches {
    /// Those whose calls are not answered yet.
    asked: BTreeMap<WatchId, HeldWatch>,
    /// Some of these that are over already.
    over: BTreeSet<WatchId>,
    set: BTreeMap<WatchId, HeldWatch>,
    /// The bytes of the paths of all.
    bytes: usize,
}

impl Watches {
    /// Whether another watch has room, whose call has this size.
    pub(super) fn has_room(&self, size: usize) -> bool {
        // The longest average path with which all watches fit into the messages of a move.
        let count = self.set.len() + self.asked.len();
        count < WATCHES_MAX && self.bytes + size < CLAIMS_BYTES_MAX / 2
    }

    pub(super) fn ask(&mut self, watch: HeldWatch) {
        self.bytes += watch.path.len();
        self.asked.insert(WatchId(watch.watch), watch);
    }

    /// The call of this watch is over. The watch is set if it was answered with whether the znode exists.
    pub(super) fn answered(&mut self, id: WatchId, existed: Option<bool>) {
        let is_over = self.over.remove(&id);
        let Some(watch) = self.asked.remove(&id) else { return };
        match existed.filter(|_| !is_over) {
            Some(existed) => {
                self.set.insert(id, HeldWatch { existed, ..watch });
            }
            None => self.bytes -= watch.path.len(),
        }
    }

    /// Whether the watch was set.
    pub(super) fn remove(&mut self, id: WatchId) -> bool {
        let watch = self.set.remove(&id);
        self.bytes -= watch.as_ref().map_or(0, |watch| watch.path.len());
        watch.is_some()
    }

    /// The watch has fired for the last time, perhaps before the answer to the call that set it.
    pub(super) fn end(&mut self, id: WatchId) {
        if !self.remove(id) && self.asked.contains_key(&id) {
            self.over.insert(id);
        }
    }

    /// All that are set, to be set again from this zxid on.
    pub(super) fn from(&self, from: Zxid) -> impl Iterator<Item = HeldWatch> {
        debug_assert!(self.bytes <= CLAIMS_BYTES_MAX, "calls are refused before");
        self.set.values().map(move |watch| HeldWatch { from, ..watch.clone() })
    }

    /// Those that are set for these holders.
    pub(super) fn of(&self, is_of: impl Fn(SessionHolder) -> bool) -> Vec<WatchId> {
        let of = self.set.iter().filter(|(_, watch)| is_of(watch.session_holder));
        of.map(|(id, _)| *id).collect()
    }

    /// Those that are set after this one, by their numbers.
    pub(super) fn after(
        &self,
        after: Option<WatchId>,
    ) -> impl Iterator<Item = (WatchId, WatchInfo)> {
        let after = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.set.range(after).map(|(id, watch)| {
            let (path, session) = ((*watch.path).to_owned(), watch.session_holder.session);
            (*id, WatchInfo { path, kind: watch.kind.of_type(), session })
        })
    }

    pub(super) fn len(&self) -> usize {
        self.set.len()
    }
}
