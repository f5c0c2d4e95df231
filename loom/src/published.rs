use std::sync::Arc;

use loom::thread;

use crate::every_schedule;
use crate::sync::prim::{Sender, unbounded};
use crate::sync::published::Published;

/// One step of the host.
fn change(published: &Published<u64>, events: &Sender<u64>, number: u64) {
    published.announce();
    events.send(number).unwrap();
    published.publish(Some(number));
}

#[test]
fn a_reader_of_an_event_reads_no_older_value() {
    every_schedule(|| {
        let published = Arc::new(Published::new(0));
        let (sender, events) = unbounded();
        let writes = Arc::clone(&published);
        let node = thread::spawn(move || {
            for number in 1..=2 {
                change(&writes, &sender, number);
            }
            sender
        });
        for _ in 0..2 {
            if let Ok(number) = events.try_recv() {
                let read = **published.read();
                assert!(read >= number, "read {read} after the event of {number}");
            }
        }
        node.join().unwrap();
    });
}

#[test]
fn a_reader_of_a_value_finds_its_event() {
    every_schedule(|| {
        let published = Arc::new(Published::new(0));
        let (sender, events) = unbounded();
        let writes = Arc::clone(&published);
        let node = thread::spawn(move || {
            for number in 1..=2 {
                change(&writes, &sender, number);
            }
            sender
        });
        let read = **published.read();
        for number in 1..=read {
            assert_eq!(events.try_recv(), Ok(number), "having read {read}");
        }
        node.join().unwrap();
    });
}

/// A step without events only publishes. A reader never reads an older value than before.
#[test]
fn values_never_go_back() {
    every_schedule(|| {
        let published = Arc::new(Published::new(0));
        let (sender, _events) = unbounded();
        let writes = Arc::clone(&published);
        let node = thread::spawn(move || {
            writes.publish(Some(1));
            change(&writes, &sender, 2);
            writes.publish(None);
            sender
        });
        let one = **published.read();
        let two = **published.read();
        assert!(two >= one);
        drop(node.join().unwrap());
        assert_eq!(**published.read(), 2);
    });
}
