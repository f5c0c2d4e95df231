//! Taking items out of a queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Queue;
use super::item::Item;
use super::name::Name;
use super::put::InFlight;
use crate::api::snapshot::Snapshot;
use crate::api::watch::Watch;
use crate::planted::{Bug, if_planted, planted};
use crate::recipes::contenders::{Contender, TAKER, predecessor};
use crate::recipes::creating::created_in_multi;
use crate::recipes::errors::{children_or_none, gone, inner};
use crate::recipes::parents::Parents;
use crate::recipes::waiting::{Either, either};
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::watch::{EventKind, WatchEvent, WatchMode};
use crate::types::znode::{Condition, CreateMode, Zxid};

/// The longest time between two reads of the cluster's clock while it seems to stand still, as it
/// does without a leader.
const CLOCK_LOOK_MAX: Duration = Duration::from_secs(1);

/// The head of the queue.
pub(super) enum Head {
    /// This item is the first that may be taken.
    Item(FoundItem),
    /// All items without a consumer are delayed; the first is due at this time of the cluster.
    DueAt(u64),
    Nothing,
}

/// An item that was found in a snapshot.
pub(super) struct FoundItem {
    pub(super) name: Name,
    pub(super) data: Arc<[u8]>,
    mzxid: Zxid,
}

/// A way of taking an item.
pub(super) trait TakeMethod {
    type Taken;

    /// Takes an item that was free in a snapshot, and deletes the contender in the same write;
    /// `None` if another consumer was faster.
    async fn take(
        &self,
        queue: &Queue,
        found: FoundItem,
        contender: Option<&Contender>,
    ) -> Result<Option<Self::Taken>>;
}

/// Takes an item by a claim, an ephemeral znode with the item's name.
pub(super) struct Lease;

/// Takes an item by deleting it at once.
pub(super) struct Removal<'a>(pub(super) &'a InFlight);

impl TakeMethod for Lease {
    type Taken = Item;

    async fn take(
        &self,
        queue: &Queue,
        found: FoundItem,
        contender: Option<&Contender>,
    ) -> Result<Option<Item>> {
        let item = path::join(&queue.items, &found.name.name);
        let mut claim = path::join(&queue.claims, &found.name.name);
        if_planted(Bug::QueueItemTwice, || claim = format!("{claim}-{}", queue.session.id()));
        let mut parents = Parents::of(&queue.session, &queue.claims);
        loop {
            parents.make().await?;
            let seen = Condition::Mzxid(found.mzxid);
            let multi = queue.session.multi().require(&item, seen);
            let mut multi = multi.create(&claim, b"", CreateMode::Ephemeral);
            if let Some(contender) = contender {
                multi = contender.leave_in(multi);
            }
            multi = if planted(Bug::QueueItemLost) { multi.delete(&item) } else { multi };
            let claimed = created_in_multi(&queue.session, multi.submit()).await;
            if matches!(&claimed, Err(Error::Multi { index: 1, error })
                if matches!(**error, Error::NoNode { .. }))
            {
                // The parent of the claim is missing.
                continue;
            }
            let Some(claim) = overtaken(claimed, contender)? else { return Ok(None) };
            queue.learn_time(claim.ctime());
            return Item::new(item, claim, found).await.map(Some);
        }
    }
}

impl TakeMethod for Removal<'_> {
    type Taken = Vec<u8>;

    async fn take(
        &self,
        queue: &Queue,
        found: FoundItem,
        contender: Option<&Contender>,
    ) -> Result<Option<Vec<u8>>> {
        let item = path::join(&queue.items, &found.name.name);
        let mut multi = queue
            .session
            .multi()
            .require(&item, Condition::Mzxid(found.mzxid))
            .require(&path::join(&queue.claims, &found.name.name), Condition::Absent)
            .delete(&item);
        if let Some(contender) = contender {
            multi = contender.leave_in(multi);
        }
        let removing = multi.submit();
        self.0.store(true, Ordering::Relaxed);
        let removed = removing.await;
        self.0.store(false, Ordering::Relaxed);
        let removed = overtaken(removed, contender)?.is_some();
        Ok((removed || planted(Bug::QueueItemTwice)).then(|| found.data.to_vec()))
    }
}

/// `None` if the multi failed because the item was taken. An error if the contender is gone.
fn overtaken<T>(done: Result<T>, contender: Option<&Contender>) -> Result<Option<T>> {
    match inner(done).map_err(gone) {
        Ok(done) => Ok(Some(done)),
        Err(Error::NoNode { path })
            if contender.is_some_and(|contender| contender.path() == path) =>
        {
            Err(Error::NoNode { path })
        }
        Err(Error::NoNode { .. } | Error::NodeExists { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Queue {
    /// Returns the first item that may be taken, in a snapshot.
    pub(super) fn head(&self, snapshot: &Snapshot) -> Result<Head> {
        let mut due = None;
        let now = self.time.load(Ordering::Relaxed);
        for name in self.names(snapshot)? {
            if snapshot.exists(&path::join(&self.claims, &name.name))?.is_some() {
                continue;
            }
            let (data, stat) = snapshot.get(&path::join(&self.items, &name.name))?;
            let due_at = stat.ctime.saturating_add(name.delay_ms);
            if name.delay_ms == 0 || due_at <= now || planted(Bug::QueueDelayIgnored) {
                return Ok(Head::Item(FoundItem { name, data, mzxid: stat.mzxid }));
            }
            due = Some(due.map_or(due_at, |due: u64| due.min(due_at)));
        }
        Ok(due.map_or(Head::Nothing, Head::DueAt))
    }

    /// As [`Queue::head`], in a snapshot that shows the session's earlier calls.
    async fn look(&self) -> Result<Head> {
        self.head(&self.session.nonblocking().snapshot_of(&self.path).await?)
    }

    /// All items in order.
    pub(super) fn names(&self, snapshot: &Snapshot) -> Result<Vec<Name>> {
        let children = children_or_none(snapshot.children(&self.items))?;
        let mut names: Vec<Name> = children.into_iter().filter_map(Name::parse).collect();
        names.sort_by(Name::order);
        Ok(names)
    }

    /// Takes the first item if there is one now.
    pub(super) async fn take_now<W: TakeMethod>(&self, method: &W) -> Result<Option<W::Taken>> {
        let mut time_known = false;
        loop {
            match self.look().await? {
                Head::Item(found) => {
                    if let Some(taken) = method.take(self, found, None).await? {
                        return Ok(Some(taken));
                    }
                }
                Head::DueAt(_) if !time_known => {
                    // Replies to writes carry the cluster's time; any write would do.
                    self.learn_time(self.takers.join(&TAKER, b"").await?.ctime());
                    time_known = true;
                }
                Head::DueAt(_) | Head::Nothing => return Ok(None),
            }
        }
    }

    /// Takes the first item as soon as there is one.
    pub(super) async fn take_when_there<W: TakeMethod>(&self, method: &W) -> Result<W::Taken> {
        if let Head::Item(found) = self.look().await?
            && let Some(taken) = method.take(self, found, None).await?
        {
            return Ok(taken);
        }
        // Waiters form a queue, and only the first one looks at the items: a new item wakes only
        // that one. It takes the item and leaves the queue of waiters in one write, which wakes the
        // next waiter. If it dies, the end of its session wakes the next waiter, which finds the
        // item.
        let contender = self.takers.join(&TAKER, b"").await?;
        self.learn_time(contender.ctime());
        self.takers.wait(&contender, predecessor).await?;
        loop {
            let watch = self.session.nonblocking();
            let watch = watch.watch(&self.path, WatchMode::PersistentRecursive).await?;
            if let Some(taken) = self.take_watching(method, &contender, &watch).await? {
                contender.forget();
                return Ok(taken);
            }
        }
    }

    /// `None` if the watch is over: somebody has removed it, or the session is over.
    async fn take_watching<W: TakeMethod>(
        &self,
        method: &W,
        contender: &Contender,
        watch: &Watch,
    ) -> Result<Option<W::Taken>> {
        let mut clock_look = Duration::from_millis(1);
        loop {
            match self.look().await? {
                Head::Item(found) => {
                    if let Some(taken) = method.take(self, found, Some(contender)).await? {
                        return Ok(Some(taken));
                    }
                }
                Head::Nothing => {
                    if !self.changed(watch).await {
                        return Ok(None);
                    }
                }
                Head::DueAt(due) => {
                    let set = contender.set(b"").await?;
                    self.learn_time(set.mtime);
                    let Some(left) = due.checked_sub(set.mtime).filter(|left| *left > 0) else {
                        continue;
                    };
                    let wait = Duration::from_millis(left).max(clock_look);
                    let slept = self.session.nonblocking().sleep(wait);
                    match either(self.changed(watch), slept).await {
                        Either::One(true) => {}
                        Either::One(false) => return Ok(None),
                        // The cluster's clock may run more slowly than this one, and stands still
                        // without a leader.
                        Either::Other(slept) => {
                            slept?;
                            clock_look = (clock_look * 2).min(CLOCK_LOOK_MAX);
                        }
                    }
                }
            }
        }
    }

    /// Waits until there may be more to take; `false` if the watch is over.
    async fn changed(&self, watch: &Watch) -> bool {
        until_event(watch, |event| self.gives(event)).await
    }

    /// Whether there may be more to take after this event.
    fn gives(&self, event: &WatchEvent) -> bool {
        match event.kind {
            EventKind::Created => path::is_below(&event.path, &self.items),
            EventKind::Deleted if planted(Bug::QueueReturnUnnoticed) => false,
            EventKind::Deleted => path::is_below(&event.path, &self.claims),
            EventKind::DataChanged | EventKind::ChildrenChanged => false,
            _ => true,
        }
    }
}

/// Waits for an event of this kind; `false` if the watch is over.
pub(super) async fn until_event(watch: &Watch, is_it: impl Fn(&WatchEvent) -> bool) -> bool {
    while let Some(event) = watch.next().await {
        if is_it(&event) {
            return true;
        }
    }
    false
}
