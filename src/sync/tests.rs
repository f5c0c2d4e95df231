//! Tests of the parts on one thread. `loom/` tests them on several.

use SessionState::{Connected, Connecting, Expired, Suspended};
use crossbeam_channel::Receiver;

use super::gap::{EventSender, channel};
use super::states::States;
use crate::types::session::SessionState;

const CAPACITY: usize = 100;
const UNREAD_MAX: usize = 64;

/// An event reports a number, and so does a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Changed(u64),
    Gap(u64),
}

fn ends() -> (EventSender<Event>, Receiver<Event>) {
    let (sender, receiver) = channel(CAPACITY);
    (sender, receiver.events().clone())
}

impl EventSender<Event> {
    fn change(&mut self, number: u64) -> bool {
        self.deliver(Event::Changed(number), |_| Event::Gap(number))
    }
}

#[test]
fn a_slow_reader_gets_a_gap_in_place_of_dropped_events() {
    let (mut sender, events) = ends();
    for number in 0..CAPACITY as u64 + 50 {
        sender.change(number);
    }
    let seen: Vec<Event> = events.try_iter().collect();
    let (last, seen) = seen.split_last().unwrap();
    assert_eq!(seen, (0..CAPACITY as u64).map(Event::Changed).collect::<Vec<_>>());
    assert_eq!(*last, Event::Gap(CAPACITY as u64));
    sender.change(9999);
    assert_eq!(events.try_recv(), Ok(Event::Changed(9999)), "it goes on after the gap");
}

#[test]
fn only_the_first_change_since_wake_asks_for_a_wake() {
    let (mut sender, _events) = ends();
    for step in 0..CAPACITY as u64 {
        assert!(sender.change(step * 3));
        assert!(!sender.change(step * 3 + 1));
        assert!(!sender.deliver_last(Event::Changed(step * 3 + 2)));
        sender.wake();
    }
}

/// After any interleaving of a writer and a reader, the reader has the last value. The model of a
/// reader notes each event's number, and at a gap reads the published value.
#[test]
fn a_reader_that_reads_the_value_at_each_gap_ends_at_the_latest() {
    let mut random = 1_u64;
    let (mut sender, events) = ends();
    let (mut published, mut known) = (0, 0);
    let mut gaps = 0;
    let mut note = |event, published, known: &mut u64| match event {
        Event::Changed(number) => *known = number,
        Event::Gap(_) => (*known, gaps) = (published, gaps + 1),
    };
    for number in 1..200_000 {
        sender.change(number);
        published = number;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let burst = if (random >> 40).is_multiple_of(256) { 300 } else { (random >> 33) % 2 };
        for event in events.try_iter().take(burst as usize) {
            note(event, published, &mut known);
        }
    }
    for event in events.try_iter() {
        note(event, published, &mut known);
    }
    assert_eq!(known, published);
    assert!(gaps > 100, "{gaps}");
}

#[test]
fn the_channel_closes_with_the_sender() {
    let (mut sender, events) = ends();
    sender.change(1);
    drop(sender);
    assert_eq!(events.iter().count(), 1);
}

/// Regression: each call of `Session::states` left a channel behind until the session ended.
#[test]
fn channels_whose_readers_are_gone_are_not_kept() {
    let mut states = States::new(Connected, 64);
    let kept: Vec<_> = (0..10).map(|_| states.subscribe()).collect();
    for n in 0..10_000 {
        let read = states.subscribe();
        if n % 2 == 0 {
            assert_eq!(read.recv(), Ok(Connected));
        }
    }
    assert!(states.readers() < 50, "{}", states.readers());
    states.set(Suspended);
    assert_eq!(states.readers(), kept.len());
    for reader in kept {
        let mut seen: Vec<_> = reader.try_iter().collect();
        seen.dedup();
        assert_eq!(seen, [Connected, Suspended]);
    }
}

#[test]
fn a_reader_that_is_behind_gets_the_latest_state_once_it_has_made_room() {
    let mut states = States::new(Connecting, UNREAD_MAX);
    let (slow, gone) = (states.subscribe(), states.subscribe());
    let flap = |states: &mut States| {
        let mut behind = false;
        for _ in 0..100 {
            states.set(Connected);
            behind = states.set(Suspended);
        }
        behind
    };
    assert!(flap(&mut states));
    drop(gone);
    assert!(states.catch_up(), "nobody has read anything");
    assert_eq!((states.readers(), slow.len()), (1, UNREAD_MAX));
    states.set(Connected);
    assert_eq!(slow.try_iter().count(), UNREAD_MAX);
    assert!(!states.catch_up());
    assert_eq!(slow.try_iter().collect::<Vec<_>>(), [Connected]);
    assert!(!states.catch_up(), "once is enough");
    assert!(slow.is_empty());

    flap(&mut states);
    assert!(!states.set(Expired));
    let seen: Vec<_> = slow.iter().collect();
    assert_eq!((seen.len(), seen.last()), (UNREAD_MAX + 1, Some(&Expired)));
    assert_eq!(states.subscribe().iter().collect::<Vec<_>>(), [Expired]);
}
