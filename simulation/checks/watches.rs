//! Watches report everything once, in order and in time (W1 to W8).
//!
//! The reports that are due follow from the oracle's list of changes and from the zxid at which the
//! watch was set. That zxid is known only within bounds, narrowed by the read that came with the
//! watch. So several positions in the list are candidates, and each event rules some of them out. A
//! watch that begins after a given zxid has one candidate from the start.

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use crossbeam_channel::{Receiver, TryRecvError};

use super::{Violation, require};
use crate::machine::command::{Change, ChangeKind};
use crate::simulation::client::Handle;
use crate::simulation::oracle::{Oracle, ZnodeState, gives};
use crate::types::acl::{AccessList, Id, Permissions};
use crate::types::path;
use crate::types::watch::{EventKind, WatchEvent, WatcherType};
use crate::types::znode::Zxid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of get and exists. One-shot.
    Data,
    /// Of children. One-shot.
    Children,
    Persistent,
    Recursive,
}

impl Kind {
    fn fires_once(self) -> bool {
        matches!(self, Kind::Data | Kind::Children)
    }

    fn is(self, which: WatcherType) -> bool {
        match which {
            WatcherType::Children => self == Kind::Children,
            WatcherType::Data => self == Kind::Data,
            WatcherType::Any => true,
            WatcherType::Persistent => self == Kind::Persistent,
            WatcherType::PersistentRecursive => self == Kind::Recursive,
        }
    }

    fn removed(self) -> EventKind {
        match self {
            Kind::Data => EventKind::DataWatchRemoved,
            Kind::Children => EventKind::ChildWatchRemoved,
            Kind::Persistent | Kind::Recursive => EventKind::PersistentWatchRemoved,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) place: usize,
    pub(crate) path: String,
    /// The chroot of its handle, if there is one.
    pub(crate) root: String,
    pub(crate) kind: Kind,
    /// Whether its events carry the znode's data.
    pub(crate) data: bool,
    /// Whether they also carry the znode as it was before.
    pub(crate) before: bool,
    /// The ids of its session.
    pub(crate) ids: Vec<Id>,
    pub(crate) events: Receiver<WatchEvent>,
    pub(crate) handle: Weak<Handle>,
}

#[derive(Debug)]
struct Record {
    watched: Watched,
    /// The capacity of its channel.
    capacity: usize,
    /// Positions in the list of changes at which the watch may have been set.
    candidates: Vec<usize>,
    fired: bool,
    /// It is one-shot, and a change that its session may not read has ended it.
    used_up: bool,
    seen: u64,
    /// Its removal was requested.
    removing: bool,
    removed: bool,
}

#[derive(Debug)]
pub(crate) struct Watches {
    records: BTreeMap<u64, Record>,
    next: u64,
    /// The capacity of a channel.
    capacity: usize,
    /// The number of events compared.
    pub(crate) events: u64,
}

/// How a replica has moved in a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) place: usize,
    /// The zxid before the step, and after it.
    pub(crate) from: Zxid,
    pub(crate) to: Zxid,
    /// The zxid of the snapshot that was installed in the step.
    pub(crate) installed: Option<Zxid>,
    /// For a client without a replica that has attached to a member in the step: the last zxid
    /// whose changes may be missing from the member's history.
    pub(crate) attached: Option<Zxid>,
}

impl Moved {
    fn at(place: usize, zxid: Zxid) -> Moved {
        Moved { place, from: zxid, to: zxid, installed: None, attached: None }
    }

    /// Whether the history of the member may lack some of the changes that the client has missed.
    fn is_forgotten(&self) -> bool {
        self.attached.is_some_and(|forgotten| self.from < forgotten)
    }
}

/// The event that a watch reports for a change, if any.
pub(super) fn event_of<'a>(
    kind: Kind,
    watched: &'a str,
    change: &'a Change,
) -> Option<(EventKind, &'a str)> {
    let own = *change.path == *watched;
    let child =
        || change.kind != ChangeKind::DataChanged && path::parent(&change.path) == Some(watched);
    let data = match change.kind {
        ChangeKind::Created => EventKind::Created,
        ChangeKind::DataChanged => EventKind::DataChanged,
        ChangeKind::Deleted => EventKind::Deleted,
    };
    match kind {
        Kind::Data => own.then_some((data, watched)),
        Kind::Children if own && change.kind == ChangeKind::Deleted => {
            Some((EventKind::Deleted, watched))
        }
        Kind::Children => child().then_some((EventKind::ChildrenChanged, watched)),
        Kind::Persistent if own => Some((data, watched)),
        Kind::Persistent => child().then_some((EventKind::ChildrenChanged, watched)),
        Kind::Recursive => path::is_below(&change.path, watched).then_some((data, &change.path)),
    }
}

/// W7: whether a session with these ids may receive this event of a change.
pub(super) fn may_receive(ids: &[Id], change: &Change, reported: EventKind) -> bool {
    let acl = if reported == EventKind::ChildrenChanged { &change.parent_acl } else { &change.acl };
    acl.as_deref().map(AccessList::entries).is_none_or(|acl| gives(acl, ids, Permissions::READ))
}

/// W5: the position of this event of a change among the events of its write.
pub(super) fn position(change: &Change, reported: EventKind) -> u32 {
    change.position * 2 + u32::from(reported == EventKind::ChildrenChanged)
}

impl Watches {
    pub(crate) fn new(capacity: usize) -> Watches {
        Watches { records: BTreeMap::new(), next: 0, capacity, events: 0 }
    }

    /// Adds a watch that was set while its replica was between two zxids, with a read of its path
    /// that `fits`.
    pub(crate) fn set(
        &mut self,
        oracle: &Oracle,
        watched: Watched,
        (from, to): (Zxid, Zxid),
        fits: impl Fn(Option<&ZnodeState>) -> bool,
    ) -> Result<u64, Violation> {
        let mut zxids = oracle.versions(&watched.path, from, to);
        let between = oracle.first_after(from)..oracle.first_after(to);
        let matching = oracle.changes()[between]
            .iter()
            .filter(|change| event_of(watched.kind, &watched.path, change).is_some());
        zxids.extend(matching.map(|change| change.zxid));
        zxids.sort_unstable();
        zxids.dedup();
        zxids.retain(|zxid| fits(oracle.at(&watched.path, *zxid)));
        require(!zxids.is_empty(), "W4 set with the read", || {
            format!("the read of {} shows no state from {from} to {to}", watched.path)
        })?;
        let candidates = zxids.into_iter().map(|zxid| oracle.first_after(zxid)).collect();
        self.add(oracle, watched, candidates, to)
    }

    /// Adds a watch that reports every change after `from`. Its replica shows `to`.
    pub(crate) fn set_from(
        &mut self,
        oracle: &Oracle,
        watched: Watched,
        (from, to): (Zxid, Zxid),
    ) -> Result<u64, Violation> {
        require(from <= to, "W6 a replica comes to the zxid first", || {
            format!("a watch of {} from zxid {from} is set at {to}", watched.path)
        })?;
        self.add(oracle, watched, vec![oracle.first_after(from)], to)
    }

    fn add(
        &mut self,
        oracle: &Oracle,
        watched: Watched,
        candidates: Vec<usize>,
        to: Zxid,
    ) -> Result<u64, Violation> {
        let place = watched.place;
        // The watches of one place get adjacent ids.
        let id = ((place as u64) << 40) + self.next;
        self.next += 1;
        let (capacity, fired, seen, removing, removed) = (self.capacity, false, 0, false, false);
        let mut record = Record {
            watched,
            capacity,
            candidates,
            fired,
            used_up: false,
            seen,
            removing,
            removed,
        };
        self.events += record.check(oracle, Moved::at(place, to))?;
        self.records.insert(id, record);
        Ok(id)
    }

    fn of<'a>(&'a mut self, handle: &'a Rc<Handle>) -> impl Iterator<Item = &'a mut Record> {
        let ours =
            |record: &Record| std::ptr::eq(record.watched.handle.as_ptr(), Rc::as_ptr(handle));
        self.records.values_mut().filter(move |record| ours(record))
    }

    /// From now on, the watches of this type at a path may be removed.
    pub(crate) fn removing(&mut self, handle: &Rc<Handle>, path: &str, which: WatcherType) {
        for record in self.of(handle) {
            let watched = &record.watched;
            record.removing = watched.path == path && watched.kind.is(which) && !record.removed;
        }
    }

    /// No watch was removed.
    pub(crate) fn none_removed(&mut self, handle: &Rc<Handle>) {
        self.of(handle).for_each(|record| record.removing = false);
    }

    /// The watches were removed, or there were none. A client has one such request at a time.
    pub(crate) fn removed(
        &mut self,
        oracle: &Oracle,
        handle: &Rc<Handle>,
        (path, which): (&str, WatcherType),
        there_were_some: bool,
        shown: Zxid,
    ) -> Result<(), Violation> {
        let mut removed = 0;
        for record in self.of(handle).filter(|record| record.removing) {
            let place = record.watched.place;
            record.check(oracle, Moved::at(place, shown))?;
            record.removing = false;
            removed += u64::from(record.removed);
            let fires_once = record.watched.kind.fires_once();
            let over = record.removed || (fires_once && (record.fired || record.used_up));
            require(over, "W4 what was removed is over", || {
                format!("{which:?} watches of {path} were removed, and one is not")
            })?;
        }
        require((removed > 0) == there_were_some, "W4 what is there is removed", || {
            format!("{removed} watches of {path} were removed; some: {there_were_some}")
        })
    }

    /// Forgets a watch that its client has dropped. Returns whether it has fired.
    pub(crate) fn forget(&mut self, id: u64) -> bool {
        self.records.remove(&id).is_some_and(|record| record.seen > 0)
    }

    /// Whether a one-shot watch has fired.
    pub(crate) fn has_fired(&self, id: u64) -> bool {
        self.records.get(&id).is_none_or(|record| record.fired || record.removed)
    }

    /// The process is gone, and its watches with it.
    pub(crate) fn crashed(&mut self, place: usize) {
        self.records.retain(|_, record| record.watched.place != place);
    }

    /// W1: the events of everything that a replica shows after a step are in the channels.
    pub(crate) fn stepped(&mut self, oracle: &Oracle, moved: Moved) -> Result<(), Violation> {
        let mut events = 0;
        let place = moved.place as u64;
        for (_, record) in self.records.range_mut(place << 40..(place + 1) << 40) {
            events += record.check(oracle, moved)?;
        }
        self.events += events;
        Ok(())
    }
}

impl Record {
    fn check(&mut self, oracle: &Oracle, moved: Moved) -> Result<u64, Violation> {
        let (kind, path) = (self.watched.kind, self.watched.path.clone());
        let mut events = 0;
        let mut net = Vec::new();
        // The changes of a snapshot come before those that were applied after it.
        let over = kind.fires_once() && self.fired;
        let mut net_is_due = moved.installed.is_some() && !over && !self.removed;
        let closed = loop {
            let mut event = match self.watched.events.try_recv() {
                Ok(event) => event,
                Err(error) => break error == TryRecvError::Disconnected,
            };
            events += 1;
            if !self.watched.root.is_empty() {
                let below = if event.path == "/" { "" } else { event.path.as_str() };
                event.path = format!("{}{below}", self.watched.root);
            }
            self.check_data(oracle, moved, &event)?;
            require(!(kind.fires_once() && self.fired), "W3 once", || {
                format!("a second event for a watch of {path} that fires once: {event:?}")
            })?;
            require(!self.removed, "W3 nothing after the last", || {
                format!("a watch of {path} was removed, and then got {event:?}")
            })?;
            if event.kind == kind.removed() {
                // The removal may have come before the snapshot of the same step.
                net_is_due &= moved.installed.is_some_and(|installed| event.zxid >= installed);
                if std::mem::take(&mut net_is_due) || !net.is_empty() {
                    self.check_net(oracle, moved, &std::mem::take(&mut net))?;
                }
                self.check_removed(oracle, moved, &event)?;
                continue;
            }
            if event.kind == EventKind::Gap {
                let is_full = events > self.capacity as u64;
                // Some of the net changes may have found no room.
                let of_net = net_is_due || !net.is_empty();
                if is_full {
                    net_is_due = false;
                    net.clear();
                }
                self.check_gap(oracle, moved, &event, (is_full, of_net))?;
                continue;
            }
            self.fired = true;
            if event.net && moved.is_forgotten() {
                self.check_net_of_client(oracle, moved, &event)?;
                continue;
            }
            if event.net {
                net.push(event);
                continue;
            }
            if std::mem::take(&mut net_is_due) || !net.is_empty() {
                self.check_net(oracle, moved, &std::mem::take(&mut net))?;
            }
            let before = self.candidates.clone();
            self.candidates.retain_mut(|place| {
                let next = next_event(oracle, *place, moved.to, &self.watched);
                let Some((at, reported)) = next else { return false };
                *place = at + 1;
                let change = &oracle.changes()[at];
                reported == (event.kind, event.path.as_str())
                    && change.zxid == event.zxid
                    && position(change, reported.0) == event.position
            });
            require(!self.candidates.is_empty(), "W2 W3 the event that is due", || {
                let due: Vec<_> = before
                    .iter()
                    .filter_map(|place| next_event(oracle, *place, moved.to, &self.watched))
                    .map(|(at, reported)| (reported, &oracle.changes()[at]))
                    .map(|(reported, change)| (reported, change.zxid, position(change, reported.0)))
                    .collect();
                format!("a {kind:?} watch of {path} got {event:?}, and due was {due:?}")
            })?;
        };
        self.seen += events;
        let ended = self.watched.handle.upgrade().is_none_or(|handle| handle.is_over());
        // A change that the session may not read also ends a one-shot watch.
        self.used_up |= closed && kind.fires_once() && self.hidden(oracle, moved);
        if closed && (ended || self.used_up) && net.is_empty() {
            // The watch may have ended before the snapshot.
            return Ok(events);
        }
        if net_is_due || !net.is_empty() {
            self.check_net(oracle, moved, &net)?;
        }
        if self.removed {
            require(closed, "W3 a watch that was removed is over", || {
                format!("the channel of a watch of {path} is open after it was removed")
            })?;
            return Ok(events);
        }
        if kind.fires_once() && self.fired {
            require(closed, "W3 a watch that has fired is over", || {
                format!("the channel of a watch of {path} is open after it has fired")
            })?;
            return Ok(events);
        }
        if closed {
            let alive = self.watched.handle.upgrade().filter(|handle| !handle.is_over());
            require(alive.is_none(), "W4 no watch ends silently", || {
                format!("a {kind:?} watch of {path} is over, and its session is not")
            })?;
            return Ok(events);
        }
        if moved.is_forgotten() && kind.fires_once() {
            // The member does not know of znodes that came and went while the client was away.
            self.candidates = vec![oracle.first_after(moved.to)];
        }
        let watched = &self.watched;
        let missed: Vec<_> = self
            .candidates
            .extract_if(.., |place| next_event(oracle, *place, moved.to, watched).is_some())
            .collect();
        require(!self.candidates.is_empty(), "W1 the event comes before the data", || {
            let next =
                missed.first().and_then(|place| next_event(oracle, *place, moved.to, watched));
            format!(
                "node {} shows zxid {}; its watch of {path} lacks {next:?}",
                moved.place, moved.to
            )
        })?;
        self.candidates = vec![oracle.first_after(moved.to)];
        Ok(events)
    }

    /// A gap follows as many events as the channel holds. Other gaps occur only for a client
    /// without a replica after it has attached to a member: if the watch carries data, which is not
    /// known of former writes, or if the member's history does not reach back.
    fn check_gap(
        &mut self,
        oracle: &Oracle,
        moved: Moved,
        event: &WatchEvent,
        (is_full, of_net): (bool, bool),
    ) -> Result<(), Violation> {
        let Watched { kind, path, data, .. } = &self.watched;
        let from = self.candidates.iter().copied().min().unwrap_or(0);
        let mut missed = oracle.changes()[from..].iter();
        // Access lists do not matter: a gap only says that something was missed.
        let first_missed = missed
            .find(|change| event_of(*kind, path, change).is_some())
            .is_some_and(|change| change.zxid == event.zxid);
        let known = moved.attached.is_some() && *data && first_missed;
        let is_next = |place: &usize| {
            let next = next_event(oracle, *place, moved.to, &self.watched);
            next.is_some_and(|(at, (reported, _))| {
                let change = &oracle.changes()[at];
                (change.zxid, position(change, reported)) == (event.zxid, event.position)
            })
        };
        let left_out = is_full && (of_net || self.candidates.iter().any(is_next));
        let is_due = moved.is_forgotten() || known || left_out;
        let range = event.zxid <= moved.to && event.path == *path;
        require(is_due && range && !kind.fires_once(), "W6 gaps", || {
            format!("a {kind:?} watch of {path} got {event:?}, at {moved:?}")
        })?;
        let end = oracle.first_after(moved.to);
        self.candidates = vec![end];
        if !is_full {
            // The gap stands for what the member did not know. Later changes follow as events.
            let begin = oracle.first_after(event.zxid.saturating_sub(1)).max(from);
            self.candidates.extend(begin..end);
        }
        Ok(())
    }

    /// A one-shot watch fires if its znode has changed, as far as the new member can tell from its
    /// tree.
    fn check_net_of_client(
        &self,
        oracle: &Oracle,
        moved: Moved,
        event: &WatchEvent,
    ) -> Result<(), Violation> {
        let Watched { kind, path, .. } = &self.watched;
        let mut missed = oracle.changes()[oracle.first_after(moved.from)..].iter();
        let changed =
            missed.any(|change| change.zxid <= moved.to && event_of(*kind, path, change).is_some());
        require(changed && kind.fires_once(), "W6 net changes after a move", || {
            format!("a {kind:?} watch of {path} got {event:?}, at {moved:?}")
        })
    }

    /// An event carries the znode as its write has left it, and as it was before.
    fn check_data(
        &self,
        oracle: &Oracle,
        moved: Moved,
        event: &WatchEvent,
    ) -> Result<(), Violation> {
        let zxid = if event.net { moved.installed.unwrap_or(moved.to) } else { event.zxid };
        let brings = event.kind != EventKind::Gap && !event.kind.is_removal();
        let at = |zxid| {
            let known = oracle.at(&event.path, zxid);
            known.filter(|known| known.permits(&self.watched.ids, Permissions::READ))
        };
        let data = |known: Option<&ZnodeState>| {
            let data = known.map(|known| known.data.clone());
            data.filter(|data| data.len() <= WatchEvent::DATA_MAX)
        };
        let known = at(zxid).filter(|_| self.watched.data && brings);
        let right =
            event.stat() == known.map(|known| known.stat) && event.data() == data(known).as_deref();
        require(right, "W8 an event brings its znode", || {
            format!("{event:?}, and at zxid {zxid} it was {known:?}")
        })?;
        // The net changes of a snapshot are those since the tree that it has replaced.
        let zxid = if event.net { moved.from } else { event.zxid.saturating_sub(1) };
        let brings = brings && event.kind != EventKind::Created;
        let known = at(zxid).filter(|_| self.watched.before && brings);
        let right = event.stat_before() == known.map(|known| known.stat)
            && event.data_before() == data(known).as_deref();
        require(right, "W8 an event brings its znode as it was before", || {
            format!("{event:?}, and at zxid {zxid} it was {known:?}")
        })
    }

    /// Whether the missed changes include, or a snapshot may hide, one that the session may not
    /// read.
    fn hidden(&self, oracle: &Oracle, moved: Moved) -> bool {
        let Watched { kind, path, ids, .. } = &self.watched;
        // For net changes, the znode's final state decides. That also holds if the member compares
        // on behalf of a client.
        let compared = moved.installed.or(moved.is_forgotten().then_some(moved.to));
        let in_the_end = compared
            .and_then(|compared| oracle.at(path, compared).or_else(|| oracle.at(path, moved.from)));
        if in_the_end.is_some_and(|known| !known.permits(ids, Permissions::READ)) {
            return true;
        }
        self.candidates.iter().any(|place| {
            let mut changes = oracle.changes()[*place..].iter();
            changes.any(|change| {
                let hidden = |(event, _)| !may_receive(ids, change, event);
                change.zxid <= moved.to && event_of(*kind, path, change).is_some_and(hidden)
            })
        })
    }

    /// Checks the last event of a watch that was removed. Everything before it was reported.
    fn check_removed(
        &mut self,
        oracle: &Oracle,
        moved: Moved,
        event: &WatchEvent,
    ) -> Result<(), Violation> {
        let (kind, path) = (self.watched.kind, self.watched.path.as_str());
        require(self.removing && event.path == path, "W4 no watch ends by itself", || {
            format!("a {kind:?} watch of {path} got {event:?}")
        })?;
        let lacks = |place: &usize| next_event(oracle, *place, event.zxid, &self.watched).is_some();
        let complete = event.zxid <= moved.to && !self.candidates.iter().all(lacks);
        require(complete, "W4 all events come before the last", || {
            format!("a {kind:?} watch of {path} got {event:?} at zxid {}", moved.to)
        })?;
        self.removed = true;
        Ok(())
    }

    /// After a snapshot, the watch has fired if and only if something is different.
    fn check_net(
        &mut self,
        oracle: &Oracle,
        moved: Moved,
        net: &[WatchEvent],
    ) -> Result<(), Violation> {
        let (kind, path) = (self.watched.kind, &self.watched.path);
        let Some(installed) = moved.installed else {
            return Err(Violation::new(
                "W6 net changes come with a snapshot",
                format!("a watch of {path} got {net:?}"),
            ));
        };
        let differs = |path: &str, children: bool| {
            let one = oracle.at(path, moved.from);
            let two = oracle.at(path, installed);
            let readable = |known: &ZnodeState| known.permits(&self.watched.ids, Permissions::READ);
            if !two.or(one).is_none_or(readable) {
                return false;
            }
            match (one.map(|known| known.stat), two.map(|known| known.stat)) {
                (None, None) => false,
                (Some(one), Some(two)) if children => one.pzxid != two.pzxid,
                (Some(one), Some(two)) => (one.czxid, one.mzxid) != (two.czxid, two.mzxid),
                _ => true,
            }
        };
        let right = match kind {
            Kind::Data => differs(path, false) != net.is_empty(),
            Kind::Children => differs(path, true) != net.is_empty(),
            Kind::Persistent => (differs(path, false) || differs(path, true)) != net.is_empty(),
            Kind::Recursive => {
                let mut below = oracle.paths_below(path).filter(|path| differs(path, false));
                below.all(|path| net.iter().any(|event| event.path == path))
                    && net.iter().all(|event| differs(&event.path, false))
            }
        };
        let in_range = net.iter().all(|event| event.zxid > moved.from && event.zxid <= installed);
        let sorted = net.is_sorted_by_key(|event| (event.zxid, event.position));
        require(right && in_range && sorted, "W6 net changes after a snapshot", || {
            format!(
                "a {kind:?} watch of {path} got {net:?} from zxid {} to {installed}",
                moved.from
            )
        })?;
        self.candidates = vec![oracle.first_after(installed)];
        Ok(())
    }
}

/// The next change up to a zxid that the watch reports, with its event.
fn next_event<'a>(
    oracle: &'a Oracle,
    from: usize,
    to: Zxid,
    watched: &'a Watched,
) -> Option<(usize, (EventKind, &'a str))> {
    let changes = &oracle.changes()[from.min(oracle.changes().len())..];
    let upto = changes.iter().take_while(|change| change.zxid <= to);
    upto.enumerate().find_map(|(at, change)| {
        let reported = event_of(watched.kind, &watched.path, change)?;
        may_receive(&watched.ids, change, reported.0).then_some((from + at, reported))
    })
}
