//! The kinds of watches, and the events of each.

use serde::{Deserialize, Serialize};

use crate::types::watch::{EventKind, WatcherType};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum WatchKind {
    /// Of get and exists.
    Data,
    /// Of children.
    Children,
    Persistent,
    Recursive,
}

/// Which states of the znode the events of a watch bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum EventData {
    None,
    /// As the write has left it.
    After,
    /// Also as it was before the write.
    Both,
}

impl WatchKind {
    pub(crate) fn fires_once(self) -> bool {
        matches!(self, WatchKind::Data | WatchKind::Children)
    }

    pub(in crate::node) fn is_data(self) -> bool {
        matches!(self, WatchKind::Data | WatchKind::Persistent)
    }

    pub(in crate::node) fn is_child(self) -> bool {
        matches!(self, WatchKind::Children | WatchKind::Persistent)
    }

    pub(crate) fn is(self, which: WatcherType) -> bool {
        which == WatcherType::Any || which == self.of_type()
    }

    pub(in crate::node) fn of_type(self) -> WatcherType {
        match self {
            WatchKind::Data => WatcherType::Data,
            WatchKind::Children => WatcherType::Children,
            WatchKind::Persistent => WatcherType::Persistent,
            WatchKind::Recursive => WatcherType::PersistentRecursive,
        }
    }

    /// The last event of one that is removed.
    pub(in crate::node) fn removed(self) -> EventKind {
        match self {
            WatchKind::Data => EventKind::DataWatchRemoved,
            WatchKind::Children => EventKind::ChildWatchRemoved,
            WatchKind::Persistent | WatchKind::Recursive => EventKind::PersistentWatchRemoved,
        }
    }
}
