//! The permits that an instance has, and what a caller does next: no message and no clock.

use std::time::Duration;

use crate::types::error::Error;

/// For so long a permit may be used after its moment, by this instance's clock.
const USABLE: Duration = Duration::from_millis(800);
/// Permits are reserved at most for so much later: the longer, the less exact is their moment here. With two seconds, no
/// permit is used more than 1.7 s after its moment, nor more than 0.2 s before it, while clocks differ by a tenth.
pub(super) const RESERVED_MAX: Duration = Duration::from_secs(2);
/// A block that is used up within this time was too small.
const QUICK: Duration = Duration::from_millis(100);
/// A caller that was refused asks again after this time at the earliest.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(1);

/// What an instance has of one limit.
#[derive(Debug, Default)]
pub(super) struct LimiterState {
    /// The oldest first.
    pub(super) blocks: Vec<Block>,
    /// How many permits the next block has at least.
    next: u32,
    /// How many it has at most, if more were just refused.
    pub(super) most: Option<u32>,
    /// No permit is for a moment before this time of the clock: the cluster has refused those.
    nothing_before: Duration,
    /// The number of requests made; one at a time.
    pub(super) asked: u64,
    pub(super) asks: bool,
    /// How many permits the callers need that wait for another one's request.
    pub(super) wanted: u32,
    /// Why the last request got nothing, if so.
    pub(super) refusal: Option<NoPermits>,
}

/// Permits that were granted together.
#[derive(Clone, Debug)]
pub(super) struct Block {
    left: u32,
    size: u32,
    /// In the log's time, in nanoseconds.
    granted: u64,
    /// When they may be used, by this instance's clock.
    from: Duration,
    until: Duration,
}

#[derive(Clone, Debug)]
pub(super) enum NoPermits {
    /// The last one of the permits would come so many nanoseconds too late.
    TooLate(u64),
    Failed(Error),
}

/// What a caller does next.
pub(super) enum CallerStep {
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

impl Block {
    /// The permits that were granted at a time of the log and for a moment so much later, both in nanoseconds, by a
    /// request of these times of the clock. `None` if the answer came too late.
    pub(super) fn of(
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
    pub(super) fn refused(&mut self, sent: Duration, waits: Duration, late: u64) {
        if late > 0 {
            let late = Duration::from_nanos(late).max(RETRY_MIN);
            self.nothing_before = sent.saturating_add(waits).saturating_add(late);
        }
    }

    pub(super) fn next(
        &mut self,
        permits: u32,
        (now, by): (Duration, Option<Duration>),
        block_max: u32,
    ) -> CallerStep {
        let next = &mut self.next;
        self.blocks.retain(|block| {
            let is_void = now > block.until;
            if is_void {
                // It was too large: the next one has as many as were used.
                *next = block.size - block.left;
            }
            !is_void
        });
        let enough = self.blocks.iter_mut().find(|block| block.left >= permits);
        if let Some(block) = enough {
            if now < block.from {
                return CallerStep::Wait(block.from);
            }
            let grant = Grant { at: block.granted };
            block.left -= permits;
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
