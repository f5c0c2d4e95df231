//! skeleton: to be completed by the handles
use crate::znode::Zxid;

/// Which changes a persistent watch tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WatchMode {
    /// Every change of the znode itself and of the set of its children.
    Persistent,
    /// Every creation, change and deletion of the znode and of all znodes below it.
    PersistentRecursive,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchEvent {
    /// What happened.
    pub kind: EventKind,
    /// To which znode.
    pub path: String,
    /// By which write. For [`EventKind::Gap`]: the last write whose event was left out so far.
    pub zxid: Zxid,
    /// Whether this is a net change, found by comparing the trees after this replica was brought
    /// up to date by a snapshot: several changes of the znode may have become one.
    pub net: bool,
}

/// What happened to a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// It was created.
    Created,
    /// It was deleted.
    Deleted,
    /// Its data was set.
    DataChanged,
    /// One of its children was created or deleted.
    ChildrenChanged,
    /// The watch's channel was full, and events were left out: read again what you watch.
    Gap,
}
