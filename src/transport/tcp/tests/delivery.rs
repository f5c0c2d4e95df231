//! Messages arrive once and in order, and the network thread sleeps and ends as it should.

use super::*;

#[test]
fn messages_arrive_in_order_both_ways() {
    let (one, two) = pair(&quick());
    for number in 0..100 {
        one.transport.send(vec![(2, numbered(number))]);
        two.transport.send(vec![(1, numbered(1000 + number)), (9, numbered(0))]);
    }
    for number in 0..100 {
        assert_eq!(two.received(), (1, numbered(number)));
        assert_eq!(one.received(), (2, numbered(1000 + number)));
    }
    let counters = two.transport.counters();
    assert_eq!(counters.messages_sent.load(Relaxed), 100);
    assert_eq!(counters.messages_dropped.load(Relaxed), 100, "there is no node 9");
}

#[test]
fn large_messages_arrive_whole_and_too_large_ones_are_dropped() {
    let (one, two) = pair(&quick());
    for number in 0..8 {
        one.transport.send(vec![
            (2, large(number, 2 << 20)),
            (2, large(99, MESSAGE_BYTES_MAX)),
            (2, numbered(u64::from(number))),
        ]);
    }
    for number in 0..8 {
        assert_eq!(two.received(), (1, large(number, 2 << 20)));
        assert_eq!(two.received(), (1, numbered(u64::from(number))));
    }
    let dropped = &one.transport.counters().messages_dropped;
    assert_eq!(dropped.load(Relaxed), 8);
}

#[test]
fn many_small_messages_all_arrive() {
    const COUNT: u64 = 100_000;
    let (one, two) = pair(&quick());
    let begin = Instant::now();
    for number in 0..COUNT {
        one.transport.send(vec![(2, numbered(number))]);
    }
    for number in 0..COUNT {
        assert_eq!(two.received(), (1, numbered(number)));
    }
    eprintln!("{COUNT} messages in {:?}", begin.elapsed());
}

#[test]
fn answers_are_not_delayed_for_batching() {
    const COUNT: u64 = 5_000;
    let (one, two) = pair(&quick());
    let begin = Instant::now();
    for number in 0..COUNT {
        one.transport.send(vec![(2, numbered(number))]);
        assert_eq!(two.received(), (1, numbered(number)));
        two.transport.send(vec![(1, numbered(number))]);
        assert_eq!(one.received(), (2, numbered(number)));
    }
    eprintln!("{COUNT} round trips in {:?}", begin.elapsed());
}

#[test]
fn idle_node_sleeps() {
    let (one, two) = pair(&quick());
    one.transport.send(vec![(2, numbered(1))]);
    assert_eq!(two.received(), (1, numbered(1)));
    // The last event of the start, whichever of the two has connected first.
    two.transport.send(vec![(1, numbered(2))]);
    assert_eq!(one.received(), (2, numbered(2)));
    let end = Instant::now() + PATIENCE;
    loop {
        let turns = || one.transport.shared.turns.load(Relaxed);
        let before = turns();
        let quiet = one.events.recv_timeout(Duration::from_millis(300));
        assert!(quiet.is_err(), "{quiet:?}");
        if turns() == before {
            break;
        }
        assert!(Instant::now() < end, "still busy after {} turns", turns());
    }
}

#[test]
fn slow_receiver_slows_the_sender_and_nothing_is_reordered() {
    const COUNT: u64 = 20_000;
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let (events_tx, events) = bounded(1);
    // On a busy machine the receiver may be so slow that it would count as dead otherwise.
    let patient = TransportOptions { stall_timeout: PATIENCE * 10, ..quick() };
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &patient);
    let two = Transport::start(
        listener_2,
        at(2, address_2),
        vec![remote(1, address_1)],
        Vec::new(),
        quick(),
        move |event| events_tx.send(event).is_ok(),
    )
    .unwrap();
    one.await_connected(2);
    for number in 0..COUNT {
        one.transport.send(vec![(2, numbered(number))]);
    }
    let mut next = 0;
    while next < COUNT {
        if let TransportEvent::Received { message, .. } = events.recv_timeout(PATIENCE).unwrap() {
            assert_eq!(message, numbered(next));
            next += 1;
        }
    }
    drop(events);
    two.close();
}

#[test]
fn close_ends_the_thread_and_frees_the_port() {
    let (one, two) = pair(&quick());
    let (events_1, events_2) = (one.events, two.events);
    one.transport.send(vec![(2, numbered(7))]);
    let begin = Instant::now();
    one.transport.close();
    two.transport.close();
    assert!(begin.elapsed() < PATIENCE);
    // The threads are gone, and with them the senders.
    assert!(events_1.iter().count() < 10);
    assert!(events_2.iter().count() < 10);

    let (listener, address) = listen();
    Node::start(listener, local(1), &[], &quick()).transport.close();
    drop(listen_again(address));
}

#[test]
fn messages_sent_just_before_close_arrive() {
    let (one, two) = pair(&quick());
    one.transport.send(vec![(2, numbered(7))]);
    one.transport.close();
    assert_eq!(two.received(), (1, numbered(7)));
}

#[test]
fn transport_ends_when_its_events_have_no_receiver() {
    let (one, two) = pair(&quick());
    drop(one.events);
    two.transport.send(vec![(1, numbered(1))]);
    let end = Instant::now() + PATIENCE;
    while !one.transport.thread.as_ref().unwrap().is_finished() {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    // Sending after the end does no harm.
    one.transport.send(vec![(2, numbered(1))]);
    one.transport.close();
}
