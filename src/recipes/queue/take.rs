//! Taking items out of a queue.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Queue;
use super::item::Item;
use super::put::InFlight;
use crate::api::multi::Multi;
use crate::api::watch::Watch;
use crate::recipes::contenders::{Contender, TAKER, predecessor};
use crate::recipes::creating::claimed_in_multi;
use crate::recipes::errors::{children_or_none, gone, inner};
use crate::runtime::either::{Either, either};
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::queue::{CLAIMS, DELAYED, ITEMS, ItemName, TAKEN, split_due};
use crate::types::watch::{EventKind, WatchEvent, WatchMode};
use crate::types::znode::OpResult;

/// The longest time between two reads of the cluster's clock while it seems to stand still, as it
/// does without a leader.
const CLOCK_LOOK_MAX: Duration = Duration::from_secs(1);

/// What this replica shows of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueueHead {
    /// Whether there is an item, or one that no consumer has any more.
    has_item: bool,
    /// When the first delayed item is due, by the cluster's clock.
    due: Option<u64>,
}

/// A way of taking an item.
pub(super) trait TakeMethod {
    type Taken;

    /// Whether the item is claimed, and not deleted.
    const CLAIMS: bool;

    /// Commits the multi, which takes the first item.
    async fn commit(&self, queue: &Queue, multi: Multi<'_>) -> Result<Self::Taken>;
}

/// Takes an item by a claim, an ephemeral znode with the item's name.
pub(super) struct Lease;

/// Takes an item by deleting it at once.
pub(super) struct Removal<'a>(pub(super) &'a InFlight);

impl TakeMethod for Lease {
    type Taken = Item;

    const CLAIMS: bool = true;

    async fn commit(&self, queue: &Queue, multi: Multi<'_>) -> Result<Item> {
        let (path, data, claim) = claimed_in_multi(&queue.session, multi.commit()).await?;
        Item::new(path, data, claim).await
    }
}

impl TakeMethod for Removal<'_> {
    type Taken = Vec<u8>;

    const CLAIMS: bool = false;

    async fn commit(&self, _: &Queue, multi: Multi<'_>) -> Result<Vec<u8>> {
        let removing = multi.commit();
        self.0.store(true, Ordering::Relaxed);
        let removed = removing.await;
        self.0.store(false, Ordering::Relaxed);
        let data = removed?.into_iter().find_map(|result| match result {
            OpResult::Taken { data, .. } => Some(data),
            _ => None,
        });
        data.ok_or_else(|| Error::Stopped { reason: "nothing was taken".to_owned() })
    }
}

impl Queue {
    /// Takes the first item, and deletes the contender in the same write. `None` if there is none now.
    async fn take_first<W: TakeMethod>(
        &self,
        method: &W,
        contender: Option<&Contender>,
    ) -> Result<Option<W::Taken>> {
        let mut multi = self.session.multi().take_item(&self.path, W::CLAIMS);
        if let Some(contender) = contender {
            multi = contender.leave_in(multi);
        }
        match inner(method.commit(self, multi).await).map_err(gone) {
            Err(Error::NoNode { path }) if path == self.path || path == self.part(ITEMS) => {
                Ok(None)
            }
            taken => taken.map(Some),
        }
    }

    pub(super) fn part(&self, name: &str) -> String {
        path::join(&self.path, name)
    }

    /// The numbers of znodes in parts of the queue, all from one state: at once where the session reads its
    /// replica without waiting, and otherwise through the node, requested together.
    pub(super) async fn counts<const N: usize>(&self, parts: [&str; N]) -> Result<[u64; N]> {
        if self.session.reads_at_once() {
            let shown = self.session.snapshot_of(&self.path).await?;
            let mut counts = [0; N];
            for (count, part) in counts.iter_mut().zip(parts) {
                let stat = shown.exists(&self.part(part))?;
                *count = stat.map_or(0, |stat| stat.num_children.into());
            }
            return Ok(counts);
        }
        let calls = &self.session.in_turn();
        let asked = parts.map(|part| calls.exists(&self.part(part)));
        let mut counts = [0; N];
        for (count, stat) in counts.iter_mut().zip(asked) {
            *count = stat.await?.map_or(0, |stat| stat.num_children.into());
        }
        Ok(counts)
    }

    /// Returns what this replica shows.
    async fn look(&self) -> Result<QueueHead> {
        let [items, taken, claims, delayed] = self.counts([ITEMS, TAKEN, CLAIMS, DELAYED]).await?;
        // A claim that has gone leaves its item.
        let has_item = items > 0 || taken > claims || taken > 0 && self.has_unclaimed().await?;
        if delayed == 0 {
            return Ok(QueueHead { has_item, due: None });
        }
        let delayed = self.session.in_turn().children(&self.part(DELAYED)).await;
        let delayed = children_or_none(delayed)?;
        let due = delayed.iter().filter_map(|name| split_due(name)).map(|(due, _)| due).min();
        Ok(QueueHead { has_item, due })
    }

    /// Whether there is an item that no consumer has any more. The numbers do not show it: a claim may be that of an
    /// item that somebody has deleted.
    async fn has_unclaimed(&self) -> Result<bool> {
        let [taken, claims] = if self.session.reads_at_once() {
            let shown = self.session.snapshot_of(&self.path).await?;
            [TAKEN, CLAIMS].map(|part| shown.children(&self.part(part)))
        } else {
            // An item that is done between the two answers seems to have no claim. The take does not find it.
            let calls = &self.session.in_turn();
            let [taken, claims] = [TAKEN, CLAIMS].map(|part| calls.children(&self.part(part)));
            [taken.await, claims.await]
        };
        let (taken, claims) = (children_or_none(taken)?, children_or_none(claims)?);
        // They are sorted, and mostly the same.
        let is_claimed = |name: &String| claims.binary_search(name).is_ok();
        Ok(taken != claims
            && taken.iter().any(|name| !is_claimed(name) && ItemName::parse(name).is_some()))
    }

    /// Takes the first item if there is one now.
    pub(super) async fn take_now<W: TakeMethod>(&self, method: &W) -> Result<Option<W::Taken>> {
        const NOTHING: QueueHead = QueueHead { has_item: false, due: None };
        let mut head = self.look().await?;
        if head == NOTHING && self.session.reads_at_once() {
            // The session may have put one in a call that is not answered yet.
            self.session.in_turn().exists(&self.path).await?;
            head = self.look().await?;
        }
        // Whether a delayed item is due is decided by the cluster's clock.
        match head {
            NOTHING => Ok(None),
            _ => self.take_first(method, None).await,
        }
    }

    /// Takes the first item as soon as there is one.
    pub(super) async fn take_when_there<W: TakeMethod>(&self, method: &W) -> Result<W::Taken> {
        if self.look().await?.has_item
            && let Some(taken) = self.take_first(method, None).await?
        {
            return Ok(taken);
        }
        // Waiters form a queue, and only the first one looks at the items: a new item wakes only
        // that one. It takes the item and leaves the queue of waiters in one write, which wakes the
        // next waiter. If it dies, the end of its session wakes the next waiter, which finds the
        // item.
        let contender = self.takers.join(&TAKER, b"").await?;
        self.takers.wait(&contender, predecessor).await?;
        loop {
            let watch = self.session.watch(&self.path, WatchMode::PersistentRecursive).await?;
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
            let head = self.look().await?;
            if head.has_item
                && let Some(taken) = self.take_first(method, Some(contender)).await?
            {
                return Ok(Some(taken));
            }
            // Another consumer may have been faster. Then this one still waits for the delayed ones.
            let Some(due) = head.due else {
                if !self.changed(watch).await {
                    return Ok(None);
                }
                continue;
            };
            // Replies to writes carry the cluster's time.
            let now = contender.set(b"").await?.mtime;
            let Some(left) = due.checked_sub(now).filter(|left| *left > 0) else {
                if let Some(taken) = self.take_first(method, Some(contender)).await? {
                    return Ok(Some(taken));
                }
                continue;
            };
            let wait = Duration::from_millis(left).max(clock_look);
            let slept = self.session.sleep(wait);
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

    /// Waits until there may be more to take; `false` if the watch is over.
    async fn changed(&self, watch: &Watch) -> bool {
        while let Some(event) = watch.next().await {
            if self.gives(&event).await {
                return true;
            }
        }
        false
    }

    /// Whether there may be more to take after this event.
    async fn gives(&self, event: &WatchEvent) -> bool {
        let is_in = |part| path::is_below(&event.path, &self.part(part));
        match event.kind {
            EventKind::Created => is_in(ITEMS) || is_in(DELAYED),
            EventKind::Deleted if is_in(CLAIMS) => {
                // The claim of an item that is done goes with it.
                let item = path::join(&self.part(TAKEN), path::name(&event.path));
                // An error is found again by whoever looks.
                !matches!(self.session.exists(&item).await, Ok(None))
            }
            EventKind::Deleted | EventKind::DataChanged | EventKind::ChildrenChanged => false,
            _ => true,
        }
    }
}
