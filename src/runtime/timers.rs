//! Timers.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::machine::command::Reply;
use crate::node::io::Time;
use crate::node::query::Answer;
use crate::runtime::end::CLOSED;
use crate::runtime::pending::Slot;
use crate::types::error::Error;

/// From this many timers on, abandoned ones are removed.
const CLEAN_FROM: usize = 64;

/// The wait of a caller until some moment.
#[derive(Debug)]
pub(crate) struct CallerTimer {
    pub(crate) at: Time,
    slot: Option<Arc<Slot>>,
}

impl CallerTimer {
    pub(crate) fn new(at: Time, slot: Arc<Slot>) -> CallerTimer {
        CallerTimer { at, slot: Some(slot) }
    }

    fn is_waited_for(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| Arc::strong_count(slot) > 1)
    }

    /// Answers the caller.
    pub(super) fn fire(mut self) {
        if let Some(slot) = self.slot.take() {
            slot.complete(Ok(Answer::Reply(Reply::Done)));
        }
    }
}

impl Drop for CallerTimer {
    fn drop(&mut self) {
        // The timer has not fired: the host is gone.
        if let Some(slot) = self.slot.take() {
            slot.complete(Err(Error::Stopped { reason: CLOSED.to_owned() }));
        }
    }
}

#[derive(Debug)]
pub(crate) struct CallerTimers {
    waiting: BTreeMap<(Time, u64), CallerTimer>,
    next: u64,
    clean_at: usize,
}

impl CallerTimers {
    pub(crate) fn new() -> CallerTimers {
        CallerTimers { waiting: BTreeMap::new(), next: 0, clean_at: CLEAN_FROM }
    }

    pub(crate) fn add(&mut self, timer: CallerTimer) {
        if self.waiting.len() >= self.clean_at {
            self.waiting.retain(|_, timer| timer.is_waited_for());
            self.clean_at = CLEAN_FROM.max(self.waiting.len() * 2);
        }
        self.next += 1;
        self.waiting.insert((timer.at, self.next), timer);
    }

    /// Fires all timers that are due.
    pub(crate) fn fire(&mut self, now: Time) {
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= now) {
            first.remove().fire();
        }
    }

    /// The time at which the next timer is due.
    pub(crate) fn next(&self) -> Option<Time> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Fails all timers: the host is gone.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Time = Time::from_secs(1);

    fn timer(timers: &mut CallerTimers, at: Time) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        timers.add(CallerTimer::new(at, Arc::clone(&slot)));
        slot
    }

    fn taken(slot: &Slot) -> Option<crate::types::error::Result<Answer>> {
        slot.poll(std::task::Waker::noop())
    }

    #[test]
    fn each_fires_when_it_is_due_and_not_before() {
        let mut timers = CallerTimers::new();
        let slots = [3, 1, 2, 1].map(|at| timer(&mut timers, at * S));
        let rung = || slots.each_ref().map(|slot| taken(slot).is_some_and(|ok| ok.is_ok()));
        assert_eq!(timers.next(), Some(S));
        timers.fire(S / 2);
        assert_eq!(rung(), [false; 4]);
        timers.fire(S);
        assert_eq!(rung(), [false, true, false, true]);
        timers.fire(10 * S);
        assert_eq!(rung(), [true, false, true, false]);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn abandoned_timers_do_not_accumulate() {
        let mut timers = CallerTimers::new();
        let kept: Vec<_> = (0..10).map(|_| timer(&mut timers, S)).collect();
        for _ in 0..10_000 {
            drop(timer(&mut timers, S));
            assert!(timers.waiting.len() <= CLEAN_FROM);
        }
        timers.clear();
        assert!(kept.iter().all(|slot| taken(slot).is_some_and(|answer| answer.is_err())));
    }
}
