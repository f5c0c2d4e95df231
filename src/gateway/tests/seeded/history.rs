//! What has happened below the root of the test, as a persistent recursive watch of the first member's node saw it:
//! without a gateway.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::gateway::tests::model::Change;
use crate::types::watch::{EventKind, WatchEvent};

/// The changes of each write, by its zxid.
#[derive(Debug, Default)]
pub(super) struct History(pub(super) BTreeMap<i64, Vec<Change>>);

impl History {
    pub(super) fn note(&mut self, event: &WatchEvent) {
        assert!(!event.net, "no replica is rebuilt");
        let path = event.path.clone();
        let data = event.data().map(Bytes::copy_from_slice);
        let change = match event.kind {
            EventKind::Created => {
                // Without a stat, the same write has deleted it again.
                let owner = event.stat().and_then(|stat| stat.ephemeral_owner);
                let owner = owner.map_or(0, |session| session.0.cast_signed());
                Change::Created { path, data, owner }
            }
            EventKind::DataChanged => Change::Set { path, data },
            EventKind::Deleted => Change::Deleted { path },
            other => panic!("{other:?} at {path}"),
        };
        self.0.entry(event.zxid.cast_signed()).or_default().push(change);
    }

    /// Whether something has changed after a zxid, up to another one.
    pub(super) fn has_changes(&self, after: i64, until: i64) -> bool {
        until > after && self.0.range(after + 1..=until).next().is_some()
    }
}
