//! The permits of one znode: what callers wait for, and the requests to the cluster.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::agreement::Agreement;
use super::blocks::{Block, CallerStep, Grant, LimiterState, NoPermits, RESERVED_MAX, RETRY_MIN};
use super::limit::Limit;
use crate::api::session::Session;
use crate::recipes::errors::{inner, missing_nanos};
use crate::recipes::parents::{create_unless_there, shows_missing};
use crate::runtime::either::{Either, either};
use crate::sync::wakers::{Place, Wakers};
use crate::types::error::{Error, Result};
use crate::types::znode::OpResult;

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    pub(super) session: Session,
    /// The path of the znode that holds the time.
    pub(super) path: String,
    pub(super) limit: Limit,
    /// The limit of all keys, if this is one of them.
    agreement: Option<Arc<Agreement>>,
    shared: Arc<SharedBucket>,
}

#[derive(Debug, Default)]
struct SharedBucket {
    state: Mutex<LimiterState>,
    /// The callers that wait for the answer to a request.
    waiting: Arc<Wakers>,
}

impl Bucket {
    pub(super) fn new(session: &Session, path: &str, limit: Limit) -> Bucket {
        let (session, path) = (session.clone(), path.to_owned());
        Bucket { session, path, limit, agreement: None, shared: Arc::default() }
    }

    /// The permits of a key, whose znode has this name.
    pub(super) fn of_key(session: &Session, name: &str, agreement: &Arc<Agreement>) -> Bucket {
        let bucket = Bucket::new(session, &agreement.path_of(name), agreement.limit);
        Bucket { agreement: Some(Arc::clone(agreement)), ..bucket }
    }

    pub(super) async fn trying(&self, permits: u32) -> Result<bool> {
        Ok(self.counted(self.take(permits, Some(self.now())).await?))
    }

    pub(super) async fn acquiring(&self, permits: u32) -> Result<()> {
        self.take(permits, None).await.map(drop)
    }

    pub(super) async fn acquiring_within(&self, permits: u32, time: Duration) -> Result<bool> {
        let taking = self.take(permits, Some(self.now().saturating_add(time)));
        Ok(self.counted(match either(taking, self.session.sleep(time)).await {
            Either::One(granted) => granted?,
            Either::Other(slept) => slept.map(|()| None)?,
        }))
    }

    /// Whether there are permits; if not, the metrics count that.
    fn counted(&self, granted: Option<Grant>) -> bool {
        if granted.is_none() {
            self.session.shared().figures.permits_refused.fetch_add(1, Ordering::Relaxed);
        }
        granted.is_some()
    }

    fn now(&self) -> Duration {
        self.session.shared().clock.now()
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses permits as soon as they are there; `None` if they are not by this time of the clock.
    pub(super) async fn take(&self, permits: u32, by: Option<Duration>) -> Result<Option<Grant>> {
        self.limit.check(permits)?;
        if let Some(agreement) = self.agreement.as_ref().filter(|agreement| !agreement.is_made()) {
            agreement.make(&self.session).await?;
        }
        let mut creates = false;
        loop {
            let next = self.lock().next(permits, (self.now(), by), self.limit.block_max());
            let refused = match next {
                CallerStep::Use(grant) => return Ok(Some(grant)),
                CallerStep::TooLate => return Ok(None),
                CallerStep::Wait(until) => {
                    if !self.sleep(until, by).await? {
                        return Ok(None);
                    }
                    continue;
                }
                CallerStep::Join => {
                    let _joined = Joined::new(self, permits);
                    if !self.answered(None, by).await? {
                        return Ok(None);
                    }
                    continue;
                }
                CallerStep::Ask { number, permits: asked } => {
                    self.ask(asked, by, creates);
                    if !self.answered(Some(number), by).await? {
                        return Ok(None);
                    }
                    let mut state = self.lock();
                    let own = state.asked == number;
                    state.refusal.take_if(|_| own).map(|refusal| (refusal, asked))
                }
            };
            match refused {
                None => {}
                Some((NoPermits::Failed(error), _)) => creates = self.mend(error).await?,
                Some((NoPermits::TooLate(late), asked)) => {
                    let fits =
                        asked - late.div_ceil(self.limit.interval).min(u64::from(asked)) as u32;
                    self.lock().most = Some(fits.max(permits));
                    let early = late.saturating_sub(self.limit.time_of(asked - permits));
                    let wait = Duration::from_nanos(early).max(RETRY_MIN);
                    if fits < permits && !self.sleep(self.now().saturating_add(wait), by).await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Makes the next request possible, and returns whether that has to create the key's znode; or returns the error.
    async fn mend(&self, error: Error) -> Result<bool> {
        let error = self.session.root.error(error);
        match (&self.agreement, &error) {
            (None, Error::NoNode { .. }) => create_unless_there(&self.session, &self.path).await?,
            (Some(_), Error::NoNode { path }) if *path == self.path => return Ok(true),
            (Some(_), Error::NodeExists { .. }) => {}
            (Some(agreement), Error::NoNode { .. } | Error::Unmet { .. }) => {
                agreement.make(&self.session).await?;
            }
            _ => return Err(error),
        }
        Ok(false)
    }

    /// Waits until then; not at all, and returns `false`, if that is too late.
    async fn sleep(&self, until: Duration, by: Option<Duration>) -> Result<bool> {
        if by.is_some_and(|by| until > by) {
            return Ok(false);
        }
        self.session.sleep(until.saturating_sub(self.now())).await?;
        Ok(true)
    }

    /// Waits for the answer to the request with this number, or to any; `false` if it is not there in time. Whoever
    /// wants the permits only now waits for it.
    async fn answered(&self, number: Option<u64>, by: Option<Duration>) -> Result<bool> {
        let mut place = Place::new(Arc::clone(&self.shared.waiting));
        let is_answered = || {
            let state = self.lock();
            !state.asks || number.is_some_and(|number| number != state.asked)
        };
        let answered =
            std::future::poll_fn(|task| place.poll(task.waker(), || is_answered().then_some(())));
        let left = by.map(|by| by.saturating_sub(self.now())).filter(|left| !left.is_zero());
        let Some(left) = left else {
            answered.await;
            return Ok(true);
        };
        match either(answered, self.session.sleep(left)).await {
            Either::One(()) => Ok(true),
            Either::Other(slept) => slept.map(|()| false),
        }
    }

    /// Asks the cluster for a block. The answer stays for all callers of this instance.
    fn ask(&self, permits: u32, by: Option<Duration>, creates: bool) {
        let sent = self.now();
        let waits = by.map_or(RESERVED_MAX, |by| by.saturating_sub(sent).min(RESERVED_MAX));
        let burst = self.limit.time_of(self.limit.burst);
        let within = burst.saturating_add(nanos(waits));
        let by = i64::try_from(self.limit.time_of(permits)).unwrap_or(i64::MAX);
        let after_first = self.limit.time_of(permits - 1);
        let mut multi = self.session.multi();
        if let Some(agreement) = &self.agreement
            && (creates || shows_missing(&self.session, &self.path))
        {
            multi = agreement.create(multi, &self.path);
        }
        let moved = multi.move_time(&self.path, by, within).commit();
        let (shared, clock) = (Arc::clone(&self.shared), self.session.shared().clock.clone());
        moved.then(move |answer| {
            let block = granted(answer).map(|(after, time)| {
                let wait = after.saturating_sub(time).saturating_sub(burst);
                Block::of(permits, (time, wait), (sent, clock.now()))
            });
            let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.asks = false;
            state.refusal = match block {
                Ok(block) => {
                    state.blocks.extend(block);
                    state.most = None;
                    None
                }
                Err(error) => Some(match missing_nanos(&error).map(i64::unsigned_abs) {
                    Some(late) => {
                        state.refused(sent, waits, late.saturating_sub(after_first));
                        NoPermits::TooLate(late)
                    }
                    None => NoPermits::Failed(error),
                }),
            };
            drop(state);
            shared.waiting.wake();
        });
    }
}

/// The time in the znode after a request, and the log's time, in nanoseconds.
fn granted(answer: Result<Vec<OpResult>>) -> Result<(u64, u64)> {
    let moved = inner(answer)?.into_iter().find_map(|result| match result {
        OpResult::Added { after, stat } => Some((u64::try_from(after).ok()?, stat)),
        _ => None,
    });
    // The answer fits the request, and no time is negative: it is not before the log's.
    let none = || Error::Stopped { reason: "nothing was granted".to_owned() };
    let (after, stat) = moved.ok_or_else(none)?;
    Ok((after, stat.mtime.saturating_mul(1_000_000)))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A caller that waits for another one's request: the next block has its permits, too.
struct Joined<'a> {
    bucket: &'a Bucket,
    permits: u32,
}

impl<'a> Joined<'a> {
    fn new(bucket: &'a Bucket, permits: u32) -> Joined<'a> {
        let mut state = bucket.lock();
        state.wanted = state.wanted.saturating_add(permits);
        Joined { bucket, permits }
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        let mut state = self.bucket.lock();
        state.wanted = state.wanted.saturating_sub(self.permits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::RateLimiter;
    use crate::testing::Cluster;

    #[test]
    fn who_no_longer_waits_is_not_asked_for() {
        let session = Cluster::new(1).node(0).session();
        let limiter = RateLimiter::new(&session, "/limit", 5, Duration::from_secs(1)).unwrap();
        let bucket = &limiter.bucket;
        let (stays, goes) = (Joined::new(bucket, 2), Joined::new(bucket, 3));
        assert_eq!(bucket.lock().wanted, 5);
        drop(goes);
        assert_eq!(bucket.lock().wanted, 2);
        drop(stays);
        assert_eq!(bucket.lock().wanted, 0);
    }
}
