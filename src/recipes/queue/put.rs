//! Putting items into a queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::take::until_event;
use super::{NewItem, Queue, name};
use crate::planted::{Bug, unless};
use crate::recipes::contenders::{PUTTER, predecessor};
use crate::recipes::errors::inner;
use crate::recipes::parents::Parents;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::watch::{EventKind, WatchMode};
use crate::types::znode::{Condition, CreateMode, OpResult, TTL_MAX};

/// The resource in the error of a full queue, which distinguishes it from the error of a quota.
const ITEMS: &str = "items";

/// Set while a write is in flight whose outcome is not known yet.
pub(super) type InFlight = AtomicBool;

impl Queue {
    /// Puts all items in one write, as soon as there is room.
    pub(super) async fn put_when_room(&self, items: &[NewItem], busy: &InFlight) -> Result<()> {
        match self.put_now(items, busy).await {
            Err(Error::QuotaExceeded { resource: ITEMS, limit, .. })
                if items.len() as u64 <= limit => {}
            other => return other,
        }
        // Waiters form a queue, and only the first one looks at the items.
        let contender = self.putters.join(&PUTTER, b"").await?;
        self.putters.wait(&contender, predecessor).await?;
        loop {
            let watch = self.session.nonblocking();
            let watch = watch.watch(&self.items, WatchMode::PersistentRecursive).await?;
            loop {
                match self.put_now(items, busy).await {
                    Err(Error::QuotaExceeded { resource: ITEMS, .. }) => {}
                    other => return other,
                }
                // An event of a new item does not make room.
                let makes_room = |kind| matches!(kind, EventKind::Deleted | EventKind::Gap);
                if !until_event(&watch, |event| makes_room(event.kind)).await {
                    // The watch was removed, or the session is over.
                    break;
                }
            }
        }
    }

    /// Puts all items in one write, or fails if there is no room now.
    pub(super) async fn put_now(&self, items: &[NewItem], busy: &InFlight) -> Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        let delays = items.iter().map(|item| self.delay_ms(item)).collect::<Result<Vec<u64>>>()?;
        let mut parents = Parents::of(&self.session, &self.items);
        loop {
            parents.make().await?;
            let mut multi = self.session.multi();
            if let Some(max) = self.max {
                let snapshot = self.session.nonblocking().snapshot_of(&self.path).await?;
                let Some(stat) = snapshot.exists(&self.items)? else { continue };
                let (limit, needed) = (max as u64, u64::from(stat.num_children));
                let needed = needed.saturating_add(items.len() as u64);
                if needed > limit {
                    let (path, resource) = (self.path.clone(), ITEMS);
                    return Err(Error::QuotaExceeded { path, resource, limit, needed });
                }
                // Every put with a maximum sets this znode. So if it is unchanged, only consumers have
                // come in between, and there is at least as much room as was seen.
                let seen = Condition::Mzxid(stat.mzxid);
                let seen = unless(Bug::QueueOverfills, seen, Condition::Exists);
                multi = multi.require(&self.items, seen).set(&self.items, b"");
            }
            for (item, delay_ms) in items.iter().zip(&delays) {
                let name = name::prefix(item.priority, *delay_ms, item.id.as_deref());
                let path = path::join(&self.items, &name);
                multi = multi.create(&path, &item.data, CreateMode::PersistentSequential);
            }
            let put = multi.submit();
            busy.store(true, Ordering::Relaxed);
            let put = put.await;
            busy.store(false, Ordering::Relaxed);
            match inner(put) {
                Ok(results) => {
                    for result in results {
                        if let OpResult::Created(created) = result {
                            self.learn_time(created.stat.ctime);
                        }
                    }
                    return Ok(());
                }
                // Another put came first, or the parent is missing.
                Err(Error::Unmet { .. } | Error::NoNode { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The delay of an item in milliseconds, rounded up.
    fn delay_ms(&self, item: &NewItem) -> Result<u64> {
        let delay_ms = item.delay.as_nanos().div_ceil(1_000_000);
        match u64::try_from(delay_ms) {
            Ok(delay_ms) if item.delay <= TTL_MAX => Ok(delay_ms),
            _ => Err(Error::InvalidSetting {
                setting: "delay",
                reason: format!(
                    "an item of {} would be due in {:?}; the most is 2^40 - 1 ms, which is 34 years",
                    self.path, item.delay
                ),
            }),
        }
    }

    /// The result of a blocking call with a deadline.
    pub(super) fn in_time<T>(
        &self,
        operation: &str,
        waited: Duration,
        done: Option<T>,
        busy: &InFlight,
    ) -> Result<Option<T>> {
        if done.is_none() && busy.load(Ordering::Relaxed) {
            let operation = format!("{operation} {}", self.path);
            let reason = self.session.shared().waiting_for();
            return Err(Error::Timeout { operation, waited, reason });
        }
        Ok(done)
    }
}
