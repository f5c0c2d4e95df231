//! When a node's ticks are due: once a heartbeat.

use std::time::Duration;

use crate::node::io::Time;

/// A follower's tick may come this much earlier, together with a message of its leader, so that one
/// wake-up serves both. (In parts of a heartbeat.)
const EARLY: u32 = 8;
/// A follower whose last tick came with a message waits this much longer for the next one, and at most
/// [`SLACK_SPREAD`] more. Each node draws its own wait, so that the ticks of two followers are not at the same
/// time when their leader falls silent. (In parts of a heartbeat.)
const SLACK_MIN: u32 = 8;
const SLACK_SPREAD: u32 = 2;

#[derive(Debug)]
pub(in crate::node) struct Ticks {
    heartbeat: Duration,
    slack: Duration,
    next: Time,
    /// Whether the leader's messages have come at the time of ticks.
    along: bool,
}

impl Ticks {
    pub(in crate::node) fn new(heartbeat: Duration, seed: u64, now: Time) -> Ticks {
        let drawn = heartbeat / SLACK_SPREAD * (seed % 64) as u32 / 64;
        let slack = heartbeat / SLACK_MIN + drawn;
        Ticks { heartbeat, slack, next: now + heartbeat, along: false }
    }

    /// Whether there is a tick in this step. `from_leader`: the step has a message of the leader. A
    /// late tick is one tick: ticks missed in a pause must not start an election before the waiting
    /// messages are read.
    pub(in crate::node) fn take(&mut self, now: Time, from_leader: bool) -> bool {
        if !from_leader {
            let is_due = now >= self.next;
            if is_due {
                (self.next, self.along) = (now + self.heartbeat, false);
            }
            return is_due;
        }
        let early = self.heartbeat / EARLY;
        let is_due = now + early >= self.next;
        if is_due {
            self.next += self.heartbeat;
        }
        if is_due || !self.along {
            // The tick will be due when the next message comes, even if that is a bit early.
            self.next = self.next.max(now + self.heartbeat - early);
        }
        self.along = true;
        is_due
    }

    /// When the node must be woken for a tick.
    pub(in crate::node) fn wake_at(&self, follows: bool) -> Time {
        match follows && self.along {
            true => self.next + self.slack,
            false => self.next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: Duration = Duration::from_millis(40);

    fn ms(ms: u64) -> Time {
        Duration::from_millis(ms)
    }

    /// Runs until `end` with messages at these times; returns how many ticks and how many wake-ups
    /// for a tick alone there were.
    fn run(messages: impl IntoIterator<Item = u64>, end: u64) -> (usize, usize) {
        run_with(16, messages, end)
    }

    fn run_with(seed: u64, messages: impl IntoIterator<Item = u64>, end: u64) -> (usize, usize) {
        let mut ticks = Ticks::new(HEARTBEAT, seed, ms(0));
        let (mut count, mut alone) = (0, 0);
        let mut wake_until = |ticks: &mut Ticks, count: &mut usize, until: Time| {
            while ticks.wake_at(true) < until {
                let now = ticks.wake_at(true);
                assert!(ticks.take(now, false), "it was woken for nothing");
                *count += 1;
                alone += 1;
            }
        };
        for message in messages {
            wake_until(&mut ticks, &mut count, ms(message));
            count += usize::from(ticks.take(ms(message), true));
        }
        wake_until(&mut ticks, &mut count, ms(end));
        (count, alone)
    }

    #[test]
    fn ticks_come_with_heartbeats_whatever_their_phase() {
        for phase in 0..40 {
            for period in [39, 40, 41, 42] {
                let beats = (0..1000).map(|beat| 100 + phase + beat * period);
                let (count, alone) = run(beats, 100 + 1000 * period);
                // If the leader's clock runs faster than this node's, its messages get ahead now
                // and then.
                let most = if period < 40 { count / 8 } else { 6 };
                assert!(alone <= most, "{alone} of {count} alone: phase {phase}, period {period}");
                let expected = usize::try_from(1000 * period / 40).unwrap();
                assert!(count.abs_diff(expected) <= expected / 10, "{count}, period {period}");
            }
        }
    }

    #[test]
    fn ticks_come_with_heartbeats_however_long_a_follower_waits() {
        for seed in 0..64 {
            let beats = (0..1000).map(|beat| 100 + beat * 40);
            let (count, alone) = run_with(seed, beats, 100 + 1000 * 40);
            assert!(alone <= 6 && count.abs_diff(1000) <= 100, "{alone} of {count}, seed {seed}");
        }
    }

    #[test]
    fn many_messages_make_no_more_ticks_and_no_fewer() {
        let (count, alone) = run(1..40_000, 40_000);
        assert!((950..=1000).contains(&count), "{count}");
        assert_eq!(alone, 0);
    }

    #[test]
    fn silence_is_measured_in_heartbeats() {
        let silent_from = 100 * 40;
        let (before, _) = run((1..=100).map(|beat| beat * 40), silent_from + 1);
        let (count, _) = run((1..=100).map(|beat| beat * 40), silent_from + 10 * 40 + 11);
        assert_eq!(count - before, 10);
    }

    #[test]
    fn a_pause_makes_one_tick() {
        let mut ticks = Ticks::new(HEARTBEAT, 16, ms(0));
        for from_leader in [false, true] {
            let now = ticks.next + ms(10_000);
            assert!(ticks.take(now, from_leader));
            assert!(!ticks.take(now + ms(1), from_leader));
        }
    }
}
