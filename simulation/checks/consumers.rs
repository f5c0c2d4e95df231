//! A consumer that stores its position as `docs/watches.md` describes misses nothing (W1, W6, W9).
//! Each change up to the stored zxid was reported to it, or a gap was, after which it read
//! everything.

use std::collections::{BTreeMap, BTreeSet};

use super::watches::{Kind, event_of, may_receive, position};
use super::{Violation, require};
use crate::simulation::oracle::Oracle;
use crate::types::watch::{EventKind, WatchEvent};
use crate::types::znode::Zxid;

/// The stored positions of the consumers of all places.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    stored: BTreeMap<usize, Stored>,
}

#[derive(Debug, Default)]
struct Stored {
    /// Every change up to this zxid was processed. `None`: nothing was ever read.
    upto: Option<Zxid>,
    /// The positions of events of later writes that were processed already.
    early: BTreeSet<(Zxid, u32)>,
}

/// What a consumer saw: the tree's zxid, and then the events in the channel.
#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) upto: Zxid,
    pub(crate) events: Vec<WatchEvent>,
    /// After a gap, the zxid at which the consumer read everything.
    pub(crate) read: Option<Zxid>,
}

impl Consumers {
    /// Where the consumer of a place resumes. Whatever it has not stored is lost.
    pub(crate) fn resume(&mut self, place: usize) -> Option<Zxid> {
        let stored = self.stored.entry(place).or_default();
        stored.early.clear();
        stored.upto
    }

    /// The consumer has read everything.
    pub(crate) fn read(&mut self, place: usize, upto: Zxid) {
        let stored = self.stored.entry(place).or_default();
        stored.upto = stored.upto.max(Some(upto));
    }

    /// Checks what the consumer of a place has seen. If its replica `has_jumped` because of a
    /// snapshot, only the net changes were reported.
    pub(crate) fn observed(
        &mut self,
        oracle: &Oracle,
        (place, has_jumped): (usize, bool),
        observation: Observation,
    ) -> Result<(), Violation> {
        let stored = self.stored.entry(place).or_default();
        let from = stored.upto.unwrap_or(0);
        let mut gap = Zxid::MAX;
        for event in &observation.events {
            match event.kind {
                EventKind::Gap => gap = gap.min(event.zxid),
                _ => {
                    stored.early.insert((event.zxid, event.position));
                }
            }
        }
        let changes = &oracle.changes()[oracle.first_after(from)..];
        let missed =
            changes.iter().take_while(|change| change.zxid <= observation.upto).find(|change| {
                event_of(Kind::Recursive, "/", change).is_some_and(|(kind, _)| {
                    let taken = stored.early.contains(&(change.zxid, position(change, kind)));
                    may_receive(&[], change, kind) && !taken && change.zxid < gap
                })
            });
        require(missed.is_none() || has_jumped, "W9 nothing is lost for ever", || {
            let kinds: Vec<_> =
                observation.events.iter().map(|event| (event.kind, event.zxid)).collect();
            format!(
                "the consumer at {place} has come from {from} to {} without {missed:?}: it took {kinds:?}",
                observation.upto
            )
        })?;
        let upto = Some(observation.upto).max(observation.read).max(stored.upto);
        stored.upto = upto;
        stored.early.retain(|(zxid, _)| Some(*zxid) > upto);
        Ok(())
    }
}
