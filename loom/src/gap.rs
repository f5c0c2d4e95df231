use std::sync::Arc;

use loom::future::block_on;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::every_schedule;
use crate::sync::gap::{EventReceiver, EventSender, channel};
use crate::sync::prim::TryRecvError;
use crate::sync::published::Published;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Changed(u64),
    Gap(u64),
}

/// One step of the host, in which the value changes once for each number.
fn change(
    published: &Published<u64>,
    sender: &mut EventSender<Event>,
    numbers: std::ops::RangeInclusive<u64>,
) {
    let last = *numbers.end();
    let mut wakes = false;
    published.announce();
    for number in numbers {
        wakes |= deliver(sender, number);
    }
    published.publish(Some(last));
    if wakes {
        sender.wake();
    }
}

fn deliver(sender: &mut EventSender<Event>, number: u64) -> bool {
    sender.deliver(Event::Changed(number), |_| Event::Gap(number))
}

/// The model of a reader. It knows the number of the last event, or at a gap the value that it reads.
struct Reader {
    published: Arc<Published<u64>>,
    known: u64,
}

impl Reader {
    fn take(&mut self, event: Event) {
        let read = **self.published.read();
        match event {
            Event::Changed(number) => {
                assert!(read >= number, "read {read} after the event of {number}");
                // The value read at a gap may be ahead of the events that follow the gap.
                assert!(number <= self.known + 1, "{} then {number}, and no gap", self.known);
                self.known = self.known.max(number);
            }
            Event::Gap(number) => {
                assert!(read >= number, "read {read} after a gap of {number}");
                assert!(number <= self.known + 1, "{} then a gap of {number}", self.known);
                self.known = read;
            }
        }
    }

    fn drain(&mut self, events: &EventReceiver<Event>) {
        while let Ok(event) = events.events().try_recv() {
            self.take(event);
        }
    }
}

fn start(
    capacity: usize,
) -> (Arc<Published<u64>>, EventSender<Event>, EventReceiver<Event>, Reader) {
    let published = Arc::new(Published::new(0));
    let (sender, events) = channel(capacity);
    let reader = Reader { published: Arc::clone(&published), known: 0 };
    (published, sender, events, reader)
}

#[test]
fn no_event_is_dropped_without_a_gap() {
    every_schedule(|| {
        let (published, mut sender, events, mut reader) = start(1);
        let node = thread::spawn(move || {
            for numbers in [1..=1, 2..=3, 4..=4] {
                change(&published, &mut sender, numbers);
            }
            sender
        });
        for _ in 0..3 {
            if let Ok(event) = events.events().try_recv() {
                reader.take(event);
            }
        }
        let sender = node.join().unwrap();
        reader.drain(&events);
        assert_eq!(reader.known, 4, "the reader has the last value in the end");
        drop(sender);
    });
}

/// The order that `docs/watches.md` asks of a consumer: the value first, then all events in the
/// channel.
#[test]
fn a_reader_of_the_value_and_then_the_channel_misses_no_event_up_to_it() {
    every_schedule(|| {
        let (published, mut sender, events, mut reader) = start(1);
        let node = thread::spawn(move || {
            for numbers in [1..=1, 2..=2, 3..=4] {
                change(&published, &mut sender, numbers);
            }
            sender
        });
        for _ in 0..2 {
            let upto = **reader.published.read();
            reader.drain(&events);
            assert!(reader.known >= upto, "{} of {upto}, and no gap", reader.known);
        }
        drop(node.join().unwrap());
    });
}

/// A reader that takes no events in between finds as many as fit, and one gap.
#[test]
fn a_reader_that_sleeps_finds_one_gap() {
    every_schedule(|| {
        let (published, mut sender, events, _) = start(2);
        for number in 1..=6 {
            change(&published, &mut sender, number..=number);
        }
        let mut seen = Vec::new();
        while let Ok(event) = events.events().try_recv() {
            seen.push(event);
        }
        assert_eq!(seen, [Event::Changed(1), Event::Changed(2), Event::Gap(3)]);
    });
}

#[test]
fn a_waiting_task_is_woken_for_each_event_and_for_the_end() {
    every_schedule(|| {
        let (published, mut sender, events, mut reader) = start(1);
        let node = thread::spawn(move || {
            for number in 1..=2 {
                change(&published, &mut sender, number..=number);
            }
        });
        while let Some(event) = block_on(events.next()) {
            reader.take(event);
        }
        assert_eq!(reader.known, 2);
        node.join().unwrap();
    });
}

/// The task must be woken after the gap was sent, or it does not find the gap.
#[test]
fn a_waiting_task_is_woken_for_a_gap() {
    every_schedule(|| {
        let (published, mut sender, events, mut reader) = start(1);
        let node = thread::spawn(move || {
            for number in 1..=3 {
                change(&published, &mut sender, number..=number);
            }
            sender
        });
        while reader.known < 3 {
            let event = block_on(events.next());
            reader.take(event.unwrap());
        }
        drop(node.join().unwrap());
    });
}

/// Either end may create the channel, with or without an event before the end.
#[test]
fn both_ends_use_one_channel_and_the_reader_sees_its_end() {
    for sends in 0..=1 {
        every_schedule(move || {
            let (published, mut sender, events, mut reader) = start(1);
            let node = thread::spawn(move || {
                for number in 1..=sends {
                    change(&published, &mut sender, number..=number);
                }
            });
            if let Ok(event) = events.events().try_recv() {
                reader.take(event);
            }
            node.join().unwrap();
            reader.drain(&events);
            assert_eq!(reader.known, sends);
            assert_eq!(events.events().try_recv(), Err(TryRecvError::Disconnected));
        });
    }
}

#[test]
fn a_last_event_has_a_place_behind_the_gap() {
    every_schedule(|| {
        let (published, mut sender, events, _) = start(1);
        for number in 1..=2 {
            change(&published, &mut sender, number..=number);
        }
        deliver(&mut sender, 3);
        sender.deliver_last(Event::Changed(4));
        drop(sender);
        let mut seen = Vec::new();
        while let Ok(event) = events.events().try_recv() {
            seen.push(event);
        }
        assert_eq!(seen, [Event::Changed(1), Event::Gap(2), Event::Changed(4)]);
    });
    every_schedule(|| {
        let (_, mut sender, events, _) = start(1);
        deliver(&mut sender, 1);
        deliver(&mut sender, 2);
        sender.deliver_last(Event::Changed(3));
        let seen = std::iter::from_fn(|| events.events().try_recv().ok());
        assert_eq!(seen.collect::<Vec<_>>(), [Event::Changed(1), Event::Gap(2), Event::Changed(3)]);
    });
}

/// There is one event for two tasks. Each takes it or not, and both see the end.
#[test]
fn all_waiting_tasks_are_woken_by_the_end() {
    every_schedule(|| {
        let (published, mut sender, events, _) = start(1);
        let events = Arc::new(events);
        let other = {
            let events = Arc::clone(&events);
            thread::spawn(move || {
                let read = block_on(events.until(|is_over| is_over.then_some(())));
                (read, block_on(events.next()).is_some())
            })
        };
        change(&published, &mut sender, 1..=1);
        drop(sender);
        let first = block_on(events.next()).is_some();
        let ((), second) = other.join().unwrap();
        assert!(first != second, "one of them has the event");
    });
}

/// Both tasks wait for the same value, and neither takes the event that reports it. A third thread
/// sends the event, so that both may be waiting.
#[test]
fn all_tasks_that_wait_for_a_value_are_woken_once_it_is_published() {
    every_schedule(|| {
        let (sender, events) = channel(1);
        let (mut sender, events): (EventSender<Event>, Arc<EventReceiver<Event>>) =
            (sender, Arc::new(events));
        let value = Arc::new(AtomicBool::new(false));
        let until = |events: &EventReceiver<Event>, value: &AtomicBool| {
            block_on(events.until(|_| value.load(Ordering::SeqCst).then_some(())));
        };
        let other = {
            let (events, value) = (Arc::clone(&events), Arc::clone(&value));
            thread::spawn(move || until(&events, &value))
        };
        let node = {
            let value = Arc::clone(&value);
            thread::spawn(move || {
                deliver(&mut sender, 1);
                value.store(true, Ordering::SeqCst);
                sender.wake();
                sender
            })
        };
        until(&events, &value);
        other.join().unwrap();
        drop(node.join().unwrap());
    });
}
