//! What a change means to one watch: its event, if it has one.

use crate::machine::command::{Change, ChangeKind};
use crate::machine::{Tree, Znode};
use crate::node::replica::net_changes::net_event;
use crate::node::replica::watch_kind::WatchKind;
use crate::types::acl::AccessList;
use crate::types::watch::{EventKind, EventZnode, WatchEvent};
use crate::types::znode::Zxid;

/// The event of a change. Each matching watch gets an event of its own.
#[derive(Clone, Copy)]
pub(super) struct Notification<'a> {
    pub(super) kind: EventKind,
    pub(super) path: &'a str,
    pub(super) zxid: Zxid,
    pub(super) position: u32,
    /// Decides who may receive it.
    pub(super) acl: Option<&'a AccessList>,
}

impl Notification<'_> {
    pub(super) fn event(self) -> WatchEvent {
        let Notification { kind, zxid, position, .. } = self;
        let path = self.path.to_owned();
        WatchEvent { kind, path, zxid, position, net: false, znode: None, before: None }
    }
}

/// The event that a watch that fires once has missed, as far as the tree shows it now (as
/// ZooKeeper's `setWatches` finds it).
#[derive(Clone, Copy)]
pub(crate) struct MissedEvent<'a> {
    pub(crate) tree: &'a Tree,
    /// The watch has reported everything up to here.
    pub(crate) from: Zxid,
    /// Whether the znode was there when the watch was set.
    pub(crate) existed: bool,
}

impl MissedEvent<'_> {
    pub(super) fn net(self, kind: WatchKind, path: &str) -> Option<WatchEvent> {
        let znode = self.tree.get(path).map(Znode::stat);
        let (kind, zxid) = match (kind, znode) {
            (_, None) if self.existed => (EventKind::Deleted, self.tree.zxid()),
            (_, None) => return None,
            (WatchKind::Children, Some(stat)) if stat.pzxid > self.from => {
                (EventKind::ChildrenChanged, stat.pzxid)
            }
            (WatchKind::Children, Some(_)) => return None,
            (_, Some(stat)) if stat.mzxid > self.from && self.existed => {
                (EventKind::DataChanged, stat.mzxid)
            }
            (_, Some(stat)) if stat.mzxid > self.from => (EventKind::Created, stat.mzxid),
            (_, Some(_)) => return None,
        };
        Some(net_event(kind, path, zxid))
    }
}

/// The znode as an event carries it.
pub(super) fn brought(znode: &Znode) -> Box<EventZnode> {
    let data = (znode.data().len() <= WatchEvent::DATA_MAX).then(|| znode.shared_data());
    Box::new(EventZnode { data, stat: znode.stat() })
}

fn event_kind(change: ChangeKind) -> EventKind {
    match change {
        ChangeKind::Created => EventKind::Created,
        ChangeKind::DataChanged => EventKind::DataChanged,
        ChangeKind::Deleted => EventKind::Deleted,
    }
}

/// The event of one watch for a change, if any. `WatchTable::fire` does the same for all watches.
pub(super) fn seen_by<'a>(
    kind: WatchKind,
    watched: &'a str,
    change: &'a Change,
) -> Option<Notification<'a>> {
    let rest = change.path.strip_prefix(watched)?;
    let own = of_znode(change);
    if rest.is_empty() {
        return (kind != WatchKind::Children || change.kind == ChangeKind::Deleted).then_some(own);
    }
    // The root's own path ends in the slash.
    let below = rest.strip_prefix('/').or((watched == "/").then_some(rest))?;
    match kind {
        WatchKind::Recursive => return Some(own),
        WatchKind::Data => return None,
        WatchKind::Children | WatchKind::Persistent => {}
    }
    let child = !below.contains('/') && change.kind != ChangeKind::DataChanged;
    child.then_some(of_parent(change, watched))
}

/// The position of a change's first event among the events of its write. The second event has the
/// next position.
fn position(change: &Change) -> u32 {
    change.position.saturating_mul(2)
}

/// The event of a change for its znode.
pub(super) fn of_znode(change: &Change) -> Notification<'_> {
    let Change { zxid, ref path, ref acl, .. } = *change;
    let position = position(change);
    Notification { kind: event_kind(change.kind), path, zxid, position, acl: acl.as_deref() }
}

/// The event of a change for its znode's parent. Its position follows that of the znode's event.
pub(super) fn of_parent<'a>(change: &'a Change, parent: &'a str) -> Notification<'a> {
    let (kind, zxid) = (EventKind::ChildrenChanged, change.zxid);
    let position = position(change).saturating_add(1);
    Notification { kind, path: parent, zxid, position, acl: change.parent_acl.as_deref() }
}
