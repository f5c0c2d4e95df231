//! A consumer that stores how far it has come, as `docs/watches.md` says, misses nothing (W1, W6, W9):
//! each change up to the stored zxid was told, or a gap stood for it, after which everything was read.

use std::collections::{BTreeMap, BTreeSet};

use super::watches::{Kind, hears, position, told};
use super::{Violation, require};
use crate::simulation::oracle::Oracle;
use crate::types::watch::{EventKind, WatchEvent};
use crate::types::znode::Zxid;

/// What the consumers of all places have stored.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    stored: BTreeMap<usize, Stored>,
}

#[derive(Debug, Default)]
struct Stored {
    /// Everything up to here was taken in. `None`: nothing was ever read.
    upto: Option<Zxid>,
    /// Which events of later writes were taken already, by their positions.
    early: BTreeSet<(Zxid, u32)>,
}

/// What a consumer saw when it looked: first the tree, and then the channel.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) upto: Zxid,
    pub(crate) events: Vec<WatchEvent>,
    /// If there was a gap: what everything was read at, after that.
    pub(crate) read: Option<Zxid>,
}

impl Consumers {
    /// From where the consumer of a place resumes; what it has not stored is lost.
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

    /// What the consumer of a place has seen. If its replica `has_jumped` by a snapshot meanwhile, only
    /// the net changes were reported.
    pub(crate) fn looked(
        &mut self,
        oracle: &Oracle,
        (place, has_jumped): (usize, bool),
        look: Look,
    ) -> Result<(), Violation> {
        let stored = self.stored.entry(place).or_default();
        let from = stored.upto.unwrap_or(0);
        let mut gap = Zxid::MAX;
        for event in &look.events {
            match event.kind {
                EventKind::Gap => gap = gap.min(event.zxid),
                _ => {
                    stored.early.insert((event.zxid, event.position));
                }
            }
        }
        let changes = &oracle.changes()[oracle.first_after(from)..];
        let missed = changes.iter().take_while(|change| change.zxid <= look.upto).find(|change| {
            told(Kind::Recursive, "/", change).is_some_and(|(kind, _)| {
                let taken = stored.early.contains(&(change.zxid, position(change, kind)));
                hears(&[], change, kind) && !taken && change.zxid < gap
            })
        });
        require(missed.is_none() || has_jumped, "W9 nothing is lost for ever", || {
            let kinds: Vec<_> = look.events.iter().map(|event| (event.kind, event.zxid)).collect();
            format!(
                "the consumer at {place} has come from {from} to {} without {missed:?}: it took {kinds:?}",
                look.upto
            )
        })?;
        let upto = Some(look.upto).max(look.read).max(stored.upto);
        stored.upto = upto;
        stored.early.retain(|(zxid, _)| Some(*zxid) > upto);
        Ok(())
    }
}
