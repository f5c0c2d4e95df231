//! A rate that all instances share.
//!
//! The znode holds one time, as a leaky bucket does (the generic cell rate algorithm of ITU-T I.371): the moment at
//! which all permits granted so far would be used up at the rate. Granting permits moves it on by one interval each,
//! from the log's time on if that is later, and at most to a burst after the log's time. That is one operation of the
//! cluster, applied at its place in the log, so instances do not conflict. Permits that are granted for a later moment
//! are a reservation, in the order of the log.
//!
//! Permits are granted in blocks and used without messages. A block is as large as the last ones were used up quickly,
//! and its permits are void soon after their moment. So what an instance does not use, or takes with it when it dies,
//! is lost for the others for one block at most, and a partition cannot save permits up.
//!
//! Durations on this instance's clock are those of the log's time with a margin: that runs at nine to eleven tenths of
//! the rate of a monotonic clock (see `docs/limits.md#the-clusters-time`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::api::session::Session;
use crate::node::query::Answer;
use crate::recipes::blocking::{self, both_forms};
use crate::recipes::errors::{inner, missing_nanos};
use crate::recipes::parents::create_unless_there;
use crate::runtime::either::{Either, either};
use crate::sync::wakers::{Place, Wakers};
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::OpResult;

/// For so long a permit may be used after its moment, by this instance's clock.
const USABLE: Duration = Duration::from_millis(800);
/// Permits are reserved at most for so much later: the longer, the less exact is their moment here. With two seconds, no
/// permit is used more than 1.7 s after its moment, nor more than 0.2 s before it, while clocks differ by a tenth.
const RESERVED_MAX: Duration = Duration::from_secs(2);
/// A block that is used up within this time was too small.
const QUICK: Duration = Duration::from_millis(100);
/// For so long one block may keep the others waiting, at the whole rate.
const BLOCK_NANOS: u64 = 100_000_000;
/// A caller that was refused asks again after this time at the earliest.
const RETRY_MIN: Duration = Duration::from_millis(1);

/// A limit for what all instances do together: at most so many permits in a time, with a burst.
///
/// Instances take permits from the cluster in blocks, by one write each, and use them without messages. An instance
/// that needs few takes one at a time; a busy one takes up to a tenth of a second's. Handles are clones and share their
/// permits.
///
/// **What is promised.** In any span of the log's time, at most `burst + rate × span` permits are granted, whatever
/// fails: instances, leaders, networks. Each is used near its moment or not at all, so that at most
/// `burst + rate × (span + 2 s)` are used, as long as the rates of clocks differ by less than a tenth. A new leader whose wall clock is ahead may grant one burst more
/// ([the cluster's time](https://github.com/quorate/quorate/blob/main/docs/limits.md#the-clusters-time)).
///
/// **Turns.** Instances get permits in the order in which they ask the cluster, up to two seconds ahead; who would have
/// to wait for longer asks again later. Each asks once at a time, for the permits of a tenth of a second at most, so a
/// busy one does not keep others waiting for longer. Callers of one instance have no order.
///
/// Permits that are not used within that time, or whose instance dies, are lost: up to one block for each instance.
/// All users of a path need the same rate and burst. If the cluster takes more than 0.8 s for an answer, its permits are
/// lost, too.
///
/// ```
/// use std::time::Duration;
///
/// use quorate::{recipes::RateLimiter, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let second = Duration::from_secs(1);
/// let here = RateLimiter::new(&cluster.node(0).session(), "/limits/mail", 2, second)?;
/// let there = RateLimiter::new(&cluster.node(1).session(), "/limits/mail", 2, second)?;
/// assert!(here.try_acquire(1)? && there.try_acquire(1)?);
/// assert!(!here.try_acquire(1)?, "two a second, on all instances together");
/// assert!(here.acquire_timeout(1, second)?, "waits for half a second");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RateLimiter {
    session: Session,
    path: String,
    /// In nanoseconds.
    interval: u64,
    burst: u32,
    shared: Arc<SharedLimiter>,
}

#[derive(Debug, Default)]
struct SharedLimiter {
    state: Mutex<LimiterState>,
    /// The callers that wait for the answer to a request.
    waiting: Arc<Wakers>,
}

#[derive(Debug, Default)]
struct LimiterState {
    /// The oldest first.
    blocks: Vec<Block>,
    /// How many permits the next block has at least.
    next: u32,
    /// How many it has at most, if more were just refused.
    most: Option<u32>,
    /// No permit is for a moment before this time of the clock: the cluster has refused those.
    nothing_before: Duration,
    /// The number of requests made; one at a time.
    asked: u64,
    asks: bool,
    /// How many permits the callers need that wait for another one's request.
    wanted: u32,
    /// Why the last request got nothing, if so.
    refusal: Option<NoPermits>,
}

/// Permits that were granted together.
#[derive(Clone, Debug)]
struct Block {
    left: u32,
    size: u32,
    /// In the log's time, in nanoseconds.
    granted: u64,
    /// When they may be used, by this instance's clock.
    from: Duration,
    until: Duration,
}

#[derive(Clone, Debug)]
enum NoPermits {
    /// The last one of the permits would come so many nanoseconds too late.
    TooLate(u64),
    Failed(Error),
}

/// What a caller does next.
enum CallerStep {
    Use(Grant),
    /// Permits are there, from this time of the instance's clock on.
    Wait(Duration),
    /// Waits for the answer to another caller's request.
    Join,
    /// Makes the request with this number, for so many permits.
    Ask {
        number: u64,
        permits: u32,
    },
    /// Nothing is to be had in time.
    TooLate,
}

/// Permits that are used, and the moment for which they were granted, in nanoseconds of the log's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    #[cfg_attr(not(any(test, feature = "simulator")), allow(dead_code, reason = "only checks"))]
    pub(crate) at: u64,
}

impl RateLimiter {
    /// Returns the limit at this path: `permits` in each `per`, and a burst of as many. The time of one permit is rounded
    /// up to whole nanoseconds. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`]; [`Error::InvalidSetting`] if there are no permits, or more than one in a nanosecond, or
    /// if one takes more than a year.
    pub fn new(session: &Session, path: &str, permits: u32, per: Duration) -> Result<RateLimiter> {
        path::validate(path)?;
        const YEAR: u128 = 365 * 24 * 3600 * 1_000_000_000;
        let (time, count) = (per.as_nanos(), u128::from(permits));
        let interval = (count > 0 && time >= count).then(|| time.div_ceil(count));
        let interval = interval.filter(|interval| *interval <= YEAR);
        let Some(interval) = interval.and_then(|interval| u64::try_from(interval).ok()) else {
            let reason =
                format!("{permits} in {per:?} is no rate between one a nanosecond and one a year");
            return Err(Error::InvalidSetting { setting: "permits", reason });
        };
        let (session, path, burst) = (session.for_recipe(), path.to_owned(), permits);
        Ok(RateLimiter { session, path, interval, burst, shared: Arc::default() })
    }

    /// The same limit with another burst: as many permits may be used at once after a time without any.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if it is 0, or if its permits take more than a hundred years.
    pub fn with_burst(mut self, burst: u32) -> Result<RateLimiter> {
        const CENTURY: u64 = 100 * 365 * 24 * 3600 * 1_000_000_000;
        self.burst = burst;
        if burst == 0 || self.time_of(burst) > CENTURY {
            let reason = format!("{burst} is not between 1 and a hundred years of permits");
            return Err(Error::InvalidSetting { setting: "burst", reason });
        }
        self.shared = Arc::default();
        Ok(self)
    }

    /// The path of the znode that holds the time.
    pub fn path(&self) -> &str {
        &self.path
    }

    both_forms! {
        /// Uses permits if they are there now; otherwise returns `false`. Sends nothing while a block has enough, nor
        /// while the cluster has said that nothing is to be had; otherwise asks, and blocks for the request timeout at
        /// most.
        ///
        /// # Errors
        /// [`Error::InvalidSetting`] if it is none, or more than the burst; [`Error::InvalidData`] if the znode does
        /// not hold a time; otherwise as [`Session::set`].
        pub fn try_acquire / try_acquire_async(&self, permits: u32) -> Result<bool> = request(self.trying(permits));

        /// Uses permits as soon as they are there. Blocks until then, for as long as the session lives.
        ///
        /// # Errors
        /// As [`RateLimiter::try_acquire`].
        pub fn acquire / acquire_async(&self, permits: u32) -> Result<()> = forever(self.acquiring(permits));
    }

    async fn trying(&self, permits: u32) -> Result<bool> {
        Ok(self.take(permits, Some(self.now())).await?.is_some())
    }

    async fn acquiring(&self, permits: u32) -> Result<()> {
        self.take(permits, None).await.map(drop)
    }

    /// [`RateLimiter::acquire`], at most for `timeout`: `false` if the permits do not come by then, at once if that is
    /// known. None are used then; a block that was asked for stays for the other callers of this instance.
    ///
    /// # Errors
    /// As [`RateLimiter::try_acquire`].
    pub fn acquire_timeout(&self, permits: u32, timeout: Duration) -> Result<bool> {
        let taking = self.take(permits, Some(self.now().saturating_add(timeout)));
        Ok(blocking::within(&self.session, timeout, taking)?.flatten().is_some())
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    fn now(&self) -> Duration {
        self.session.shared().clock.now()
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time_of(&self, permits: u32) -> u64 {
        self.interval.saturating_mul(u64::from(permits))
    }

    /// Uses permits as soon as they are there; `None` if they are not by this time of the clock.
    pub(crate) async fn take(&self, permits: u32, by: Option<Duration>) -> Result<Option<Grant>> {
        if permits == 0 || permits > self.burst {
            let reason = format!("{permits} is not between 1 and the burst, {}", self.burst);
            return Err(Error::InvalidSetting { setting: "permits", reason });
        }
        loop {
            let next = self.lock().next(permits, (self.now(), by), self.block_max());
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
                    self.ask(asked, by);
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
                Some((NoPermits::Failed(Error::NoNode { .. }), _)) => {
                    create_unless_there(&self.session, &self.path).await?;
                }
                Some((NoPermits::Failed(error), _)) => return Err(self.session.root.error(error)),
                Some((NoPermits::TooLate(late), asked)) => {
                    let fits = asked - late.div_ceil(self.interval).min(u64::from(asked)) as u32;
                    self.lock().most = Some(fits.max(permits));
                    let early = late.saturating_sub(self.time_of(asked - permits));
                    let wait = Duration::from_nanos(early).max(RETRY_MIN);
                    if fits < permits && !self.sleep(self.now().saturating_add(wait), by).await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Waits until then; not at all, and returns `false`, if that is too late.
    async fn sleep(&self, until: Duration, by: Option<Duration>) -> Result<bool> {
        if by.is_some_and(|by| until > by) {
            return Ok(false);
        }
        self.session.nonblocking().sleep(until.saturating_sub(self.now())).await?;
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
        match either(answered, self.session.nonblocking().sleep(left)).await {
            Either::One(()) => Ok(true),
            Either::Other(slept) => slept.map(|()| false),
        }
    }

    /// The permits of the longest time for which one instance may keep others waiting, at least one.
    fn block_max(&self) -> u32 {
        let max = BLOCK_NANOS / self.interval;
        u32::try_from(max).unwrap_or(u32::MAX).clamp(1, self.burst)
    }

    /// Asks the cluster for a block. The answer stays for all callers of this instance.
    fn ask(&self, permits: u32, by: Option<Duration>) {
        let sent = self.now();
        let waits = by.map_or(RESERVED_MAX, |by| by.saturating_sub(sent).min(RESERVED_MAX));
        let burst = self.time_of(self.burst);
        let within = burst.saturating_add(nanos(waits));
        let by = i64::try_from(self.time_of(permits)).unwrap_or(i64::MAX);
        let after_first = self.time_of(permits - 1);
        let moved = self.session.multi().move_time(&self.path, by, within).submit();
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
fn granted(answer: Result<Answer>) -> Result<(u64, u64)> {
    let results = inner(answer)?.multi().unwrap_or_default();
    let moved = results.into_iter().find_map(|result| match result {
        OpResult::Added { after, stat } => Some((u64::try_from(after).ok()?, stat)),
        _ => None,
    });
    // The answer fits the request, and no time is negative: it is not before the log's.
    let none = || Error::Stopped { reason: "nothing was granted".to_owned() };
    let (after, stat) = moved.ok_or_else(none)?;
    Ok((after, stat.mtime.saturating_mul(1_000_000)))
}

impl Block {
    /// The permits that were granted at a time of the log and for a moment so much later, both in nanoseconds, by a
    /// request of these times of the clock. `None` if the answer came too late.
    fn of(
        permits: u32,
        (time, wait): (u64, u64),
        (sent, received): (Duration, Duration),
    ) -> Option<Block> {
        // The log's time may run slower than this clock. It was that time between sending and receiving: nothing is
        // used before the moment, nor long after it.
        let later = Duration::from_nanos(wait) * 10 / 9;
        let from = if wait == 0 { sent } else { received.saturating_add(later) };
        let until = sent.saturating_add(later).saturating_add(USABLE);
        let granted = time.saturating_add(wait);
        let block = Block { left: permits, size: permits, granted, from, until };
        (from.max(received) <= until).then_some(block)
    }
}

impl LimiterState {
    /// Takes note of a request that was made at this time, for permits that come within `waits`: the first of them would
    /// have come so many nanoseconds later. Those who wait for it must not ask one after the other.
    fn refused(&mut self, sent: Duration, waits: Duration, late: u64) {
        if late > 0 {
            let late = Duration::from_nanos(late).max(RETRY_MIN);
            self.nothing_before = sent.saturating_add(waits).saturating_add(late);
        }
    }

    fn next(
        &mut self,
        permits: u32,
        (now, by): (Duration, Option<Duration>),
        block_max: u32,
    ) -> CallerStep {
        if !planted!(PermitsKept) {
            let next = &mut self.next;
            self.blocks.retain(|block| {
                let is_void = now > block.until;
                if is_void {
                    // It was too large: the next one has as many as were used.
                    *next = block.size - block.left;
                }
                !is_void
            });
        }
        let enough = self.blocks.iter_mut().find(|block| block.left >= permits);
        if let Some(block) = enough {
            if now < block.from {
                return CallerStep::Wait(block.from);
            }
            let grant = Grant { at: block.granted };
            let twice = planted!(PermitTwice) && block.left == permits && block.size > 1;
            block.size = if twice { 1 } else { block.size };
            block.left -= if twice { 0 } else { permits };
            if block.left == 0 {
                let quick = now < block.from + QUICK;
                let size = block.size;
                self.next = if quick { size.saturating_mul(2) } else { size };
                self.blocks.retain(|block| block.left > 0);
            }
            return CallerStep::Use(grant);
        }
        if by.is_some_and(|by| by < self.nothing_before) {
            return CallerStep::TooLate;
        }
        if self.asks {
            return CallerStep::Join;
        }
        let reserves_from = self.nothing_before.saturating_sub(RESERVED_MAX);
        if now < reserves_from {
            return CallerStep::Wait(reserves_from);
        }
        self.asks = true;
        self.asked += 1;
        let wanted = permits.saturating_add(self.wanted);
        let most = block_max.min(self.most.unwrap_or(block_max));
        let permits = self.next.max(wanted).min(most).max(permits);
        CallerStep::Ask { number: self.asked, permits }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A caller that waits for another one's request: the next block has its permits, too.
struct Joined<'a> {
    limiter: &'a RateLimiter,
    permits: u32,
}

impl<'a> Joined<'a> {
    fn new(limiter: &'a RateLimiter, permits: u32) -> Joined<'a> {
        let mut state = limiter.lock();
        state.wanted = state.wanted.saturating_add(permits);
        Joined { limiter, permits }
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        let mut state = self.limiter.lock();
        state.wanted = state.wanted.saturating_sub(self.permits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::types::znode::CreateMode;

    const MS: Duration = Duration::from_millis(1);

    fn block(left: u32, from: Duration) -> Block {
        Block { left, size: left, granted: 7, from, until: from + USABLE }
    }

    fn asked(state: &mut LimiterState, permits: u32, now: Duration) -> Option<u32> {
        match state.next(permits, (now, None), 100) {
            CallerStep::Ask { permits, .. } => Some(permits),
            _ => None,
        }
    }

    #[test]
    fn a_block_is_used_in_its_time_only() {
        let mut state =
            LimiterState { blocks: vec![block(3, 100 * MS)], ..LimiterState::default() };
        let early = state.next(1, (99 * MS, None), 100);
        assert!(matches!(early, CallerStep::Wait(until) if until == 100 * MS));
        assert!(matches!(state.next(1, (100 * MS, None), 100), CallerStep::Use(Grant { at: 7 })));
        assert!(matches!(state.next(1, (900 * MS, None), 100), CallerStep::Use(_)));
        assert_eq!(asked(&mut state, 1, 901 * MS), Some(2), "two of three were used");
        assert!(state.blocks.is_empty());
        // Others wait for that answer, and the next block has their permits, too.
        assert!(matches!(state.next(1, (901 * MS, None), 100), CallerStep::Join));
        (state.asks, state.wanted) = (false, 5);
        assert_eq!(asked(&mut state, 2, 901 * MS), Some(7));
    }

    #[test]
    fn an_answer_that_comes_late_grants_nothing() {
        let second = 1_000_000_000;
        let of = |wait, received| Block::of(3, (7 * second, wait), (1000 * MS, received));
        let at_once = of(0, 1800 * MS).unwrap();
        assert_eq!((at_once.from, at_once.until), (1000 * MS, 1800 * MS));
        assert!(of(0, 1801 * MS).is_none());
        // A second of the log's time may last ten ninths here.
        let reserved = of(9 * second / 10, 1100 * MS).unwrap();
        assert_eq!((reserved.from, reserved.until), (2100 * MS, 2800 * MS));
        assert_eq!(reserved.granted, 7 * second + 9 * second / 10);
        assert!(of(9 * second / 10, 1801 * MS).is_none(), "it could be used long after its moment");
    }

    #[test]
    fn blocks_grow_while_they_are_used_quickly() {
        let mut state = LimiterState::default();
        let (mut sizes, mut now) = (Vec::new(), Duration::ZERO);
        for _ in 0..10 {
            let size = asked(&mut state, 1, now).unwrap();
            sizes.push(size);
            state.asks = false;
            state.blocks.push(block(size, now));
            for _ in 0..size {
                assert!(matches!(state.next(1, (now, None), 100), CallerStep::Use(_)));
            }
            now += MS;
        }
        assert_eq!(sizes, [1, 2, 4, 8, 16, 32, 64, 100, 100, 100]);
    }

    #[test]
    fn who_wants_it_now_does_not_ask_for_what_was_refused() {
        let mut state = LimiterState { nothing_before: 50 * MS, ..LimiterState::default() };
        assert!(matches!(state.next(1, (49 * MS, Some(49 * MS)), 100), CallerStep::TooLate));
        assert!(matches!(state.next(1, (49 * MS, Some(60 * MS)), 100), CallerStep::Ask { .. }));
    }

    #[test]
    fn who_waits_does_not_ask_for_what_was_refused() {
        let mut state = LimiterState::default();
        // At 1 s, permits within 2 s: the first would come at 8 s, and may be reserved at 6 s.
        state.refused(1000 * MS, RESERVED_MAX, 5_000_000_000);
        let until = |step| match step {
            CallerStep::Wait(until) => until,
            _ => Duration::ZERO,
        };
        for by in [None, Some(9000 * MS)] {
            assert_eq!(until(state.next(1, (1001 * MS, by), 100)), 6000 * MS, "{by:?}");
        }
        assert!(matches!(state.next(1, (5999 * MS, Some(7999 * MS)), 100), CallerStep::TooLate));
        assert_eq!(asked(&mut state, 1, 6000 * MS), Some(1));
        // In part: one of five would have come in time.
        let mut state = LimiterState::default();
        state.refused(1000 * MS, RESERVED_MAX, 0);
        assert_eq!(asked(&mut state, 1, 1001 * MS), Some(1));
    }

    #[test]
    fn a_rate_and_a_burst_have_bounds() {
        let session = Cluster::new(1).node(0).session();
        let second = Duration::from_secs(1);
        let of = |permits, per| RateLimiter::new(&session, "/limit", permits, per);
        for (permits, per) in [(0, second), (1, Duration::MAX), (3, Duration::from_nanos(2))] {
            assert!(matches!(of(permits, per), Err(Error::InvalidSetting { .. })), "{per:?}");
        }
        assert_eq!(of(3, second).unwrap().interval, 333_333_334, "at most three a second");
        let limiter = of(1, Duration::from_nanos(1)).unwrap();
        assert!(matches!(limiter.clone().with_burst(0), Err(Error::InvalidSetting { .. })));
        let limiter = limiter.with_burst(u32::MAX).unwrap();
        assert!(matches!(limiter.try_acquire(0), Err(Error::InvalidSetting { .. })));
        assert_eq!(limiter.try_acquire(u32::MAX), Ok(true));
        let daily = of(1, Duration::from_secs(86_400)).unwrap();
        assert!(matches!(daily.try_acquire(2), Err(Error::InvalidSetting { .. })));
    }

    #[test]
    fn data_that_are_no_time_are_left_alone() {
        let session = Cluster::new(1).node(0).session();
        session.create("/limit", b"abc", CreateMode::Persistent).unwrap();
        let limiter = RateLimiter::new(&session, "/limit", 5, Duration::from_secs(1)).unwrap();
        assert!(matches!(limiter.try_acquire(1), Err(Error::InvalidData { .. })));
        assert_eq!(&session.get("/limit").unwrap().0[..], b"abc");
    }
}
