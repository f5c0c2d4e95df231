//! Putting items into a queue.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{NewItem, Queue};
use crate::api::multi::Multi;
use crate::api::watch::Watch;
use crate::recipes::contenders::{PUTTER, predecessor};
use crate::recipes::errors::inner;
use crate::recipes::parents::Parents;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::queue::{COUNTED, QueueOrder, written};
use crate::types::watch::{EventKind, WatchEvent, WatchMode};
use crate::types::znode::CreateMode;

/// The resource in the error of a full queue, which distinguishes it from the error of a quota.
const FULL: &str = "items";

/// The parent of the ids of items that are unique, each for as long as its znode exists.
const IDS: &str = "ids";

/// Set while a write is in flight whose outcome is not known yet.
pub(super) type InFlight = AtomicBool;

impl Queue {
    /// Puts all items in one write, as soon as there is room.
    pub(super) async fn put_when_room(&self, items: &[NewItem], busy: &InFlight) -> Result<()> {
        let never_fits = self.max.is_some_and(|max| items.len() > max);
        if never_fits || self.has_room(items.len()).await? {
            match self.put_now(items, busy).await {
                Err(Error::QuotaExceeded { resource: FULL, .. }) if !never_fits => {}
                other => return other,
            }
        }
        // Waiters form a queue, and only the first one looks at the items.
        let contender = self.putters.join(&PUTTER, b"").await?;
        self.putters.wait(&contender, predecessor).await?;
        loop {
            let watch = self.session.watch(&self.path, WatchMode::PersistentRecursive).await?;
            loop {
                if self.has_room(items.len()).await? {
                    match self.put_now(items, busy).await {
                        Err(Error::QuotaExceeded { resource: FULL, .. }) => {}
                        other => return other,
                    }
                }
                if !until_event(&watch, |event| self.may_make_room(event)).await {
                    // The watch was removed, or the session is over.
                    break;
                }
            }
        }
    }

    /// Whether there may be room after this event. A new item makes none.
    fn may_make_room(&self, event: &WatchEvent) -> bool {
        let is_in = |part| path::is_below(&event.path, &self.part(part));
        match event.kind {
            EventKind::Deleted => COUNTED.into_iter().any(is_in),
            kind => kind == EventKind::Gap,
        }
    }

    /// Whether there is room for so many items, as this replica shows it.
    async fn has_room(&self, more: usize) -> Result<bool> {
        let Some(max) = self.max else { return Ok(true) };
        let there: u64 = self.counts(COUNTED).await?.into_iter().sum();
        Ok(there + more as u64 <= max as u64)
    }

    /// Puts all items in one write, or fails if there is no room now.
    pub(super) async fn put_now(&self, items: &[NewItem], busy: &InFlight) -> Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        let mut parents = Parents::of(&self.session, &self.path);
        loop {
            parents.make().await?;
            let put = self.put_multi(items)?.commit();
            busy.store(true, Ordering::Relaxed);
            let put = put.await;
            busy.store(false, Ordering::Relaxed);
            match inner(put) {
                // The queue does not exist yet, or was unused and is deleted; or it had no ids yet.
                Err(Error::NoNode { .. }) => {
                    if items.iter().any(|item| item.unique.is_some()) {
                        self.preparing().await?;
                    }
                }
                done => return done.map(drop),
            }
        }
    }

    /// The write that puts all items.
    pub(super) fn put_multi(&self, items: &[NewItem]) -> Result<Multi<'_>> {
        items.iter().try_fold(self.session.multi(), |multi, item| {
            let order = self.order(item)?;
            let multi = match item.unique {
                Some(time) => {
                    let id = path::join(&self.ids(), &order.id);
                    multi.create(&id, b"", CreateMode::PersistentWithTtl(time))
                }
                None => multi,
            };
            Ok(multi.put_item(&self.path, &item.data, order))
        })
    }

    /// The path of the ids that are in use.
    pub(super) fn ids(&self) -> String {
        self.part(IDS)
    }

    fn order(&self, item: &NewItem) -> Result<QueueOrder> {
        let delay_ms = self.delay_ms(item)?;
        let (priority, id) = (item.priority, written(item.id.as_deref()));
        Ok(QueueOrder { priority, delay_ms, id, max: self.max.map(|max| max as u64) })
    }

    /// The delay of an item in milliseconds, rounded up.
    fn delay_ms(&self, item: &NewItem) -> Result<u64> {
        let delay_ms = item.delay.as_nanos().div_ceil(1_000_000);
        match u64::try_from(delay_ms) {
            Ok(delay_ms) if item.delay <= CreateMode::TTL_MAX => Ok(delay_ms),
            _ => Err(Error::InvalidSetting {
                setting: "delay",
                reason: format!(
                    "an item of {} would be due in {:?}; the most is 2^40 - 1 ms, about 35 years",
                    self.path, item.delay
                ),
            }),
        }
    }
}

/// Waits for an event of this kind; `false` if the watch is over.
async fn until_event(watch: &Watch, is_it: impl Fn(&WatchEvent) -> bool) -> bool {
    while let Some(event) = watch.next().await {
        if is_it(&event) {
            return true;
        }
    }
    false
}
