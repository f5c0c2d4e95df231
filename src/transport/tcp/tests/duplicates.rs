//! A copied data directory that is started twice, and restarts, which look the same at first.

use std::sync::atomic::Ordering::{Acquire, Release};

use super::*;

/// Node 2 in another run of its process.
fn run(boot: u64) -> Hello {
    let hello = hello(2, 1);
    let run = hello.run.clone().map(|run| Run { boot, ..run });
    Hello { run, ..hello }
}

fn node(options: &TransportOptions) -> (Node, SocketAddr) {
    let (listener, address) = listen();
    (Node::start(listener, local(1), &[remote(2, "127.0.0.1:1")], options), address)
}

fn with_stall(stall: Duration) -> TransportOptions {
    TransportOptions { stall_timeout: stall, ..quick() }
}

fn ask(address: SocketAddr, hello: &Hello) -> Hand {
    let mut hand = Hand::connect(address);
    hand.send(&frame(|buffer| hello.encode(buffer)));
    hand
}

#[test]
fn a_copy_is_refused_while_the_former_one_is_alive() {
    let (one, address) = node(&with_stall(Duration::from_secs(3)));
    let mut former = Hand::introduced(address, &run(1));
    let mut copy = ask(address, &run(2));
    let answered = AtomicBool::new(false);
    let answer = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !answered.load(Acquire) {
                former.send(&frame(|buffer| numbered(1).encode(buffer)));
                assert_eq!(one.received(), (2, numbered(1)));
            }
        });
        let answer = copy.answer();
        answered.store(true, Release);
        answer
    });
    match answer {
        Some(Answer::Refused(refusal)) => {
            assert_eq!(refusal.code, RefusalCode::Duplicate);
            assert!(refusal.code.is_permanent());
            assert!(refusal.text.contains("copies of one data directory"), "{}", refusal.text);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(copy.frame(), None);
    one.await_refused(1);
    former.send(&frame(|buffer| numbered(2).encode(buffer)));
    assert_eq!(one.received(), (2, numbered(2)));
}

#[test]
fn a_refused_copy_reports_it() {
    let stall = Duration::from_secs(2);
    let (one, address) = node(&with_stall(stall));
    let to_one = [remote(1, address)];
    let start = |boot| {
        let local = LocalPeer { boot, ..local(2) };
        Node::start(listen().0, local, &to_one, &quick())
    };
    let former = start(1);
    former.await_connected(1);
    let copy = start(2);
    let end = Instant::now() + PATIENCE;
    let (peer, reason, permanent) = loop {
        former.transport.send(vec![(1, numbered(1))]);
        if let Ok(TransportEvent::Unreachable { peer, reason, permanent }) =
            copy.events.recv_timeout(Duration::from_millis(50))
        {
            break (peer, reason, permanent);
        }
        assert!(Instant::now() < end);
    };
    assert_eq!((peer, permanent), (1, true));
    assert!(reason.contains("two processes run as node 2"), "{reason}");
    drop(one);
}

#[test]
fn a_restart_whose_former_connection_is_closed_is_not_slowed() {
    let (_one, address) = node(&with_stall(PATIENCE * 10));
    let former = Hand::introduced(address, &run(1));
    let begin = Instant::now();
    drop(former);
    let mut later = ask(address, &run(2));
    assert!(matches!(later.answer(), Some(Answer::Welcome(_))));
    // It is closed only after the new hello has arrived.
    let mut last = ask(address, &run(3));
    drop(later);
    assert!(matches!(last.answer(), Some(Answer::Welcome(_))));
    assert!(begin.elapsed() < PATIENCE);
}

#[test]
fn bytes_in_flight_are_no_sign_of_life() {
    let stall = Duration::from_secs(6);
    let (one, address) = node(&with_stall(stall));
    let mut former = Hand::introduced(address, &run(1));
    let begin = Instant::now();
    let mut superseded = ask(address, &run(2));
    let mut later = ask(address, &run(2));
    // The new hello arrives before this.
    assert_eq!(superseded.frame(), None);
    former.send(&frame(|buffer| numbered(1).encode(buffer)));
    assert_eq!(one.received(), (2, numbered(1)));
    // Its machine is gone: nothing more arrives, and no end of the stream.
    assert!(matches!(later.answer(), Some(Answer::Welcome(_))));
    assert!(begin.elapsed() >= stall, "{:?}", begin.elapsed());
    assert_eq!(former.frame(), None);
    later.send(&frame(|buffer| numbered(2).encode(buffer)));
    assert_eq!(one.received(), (2, numbered(2)));
}

#[test]
fn the_former_process_proves_itself_by_a_new_connection() {
    let (one, address) = node(&with_stall(PATIENCE * 10));
    let _former = Hand::introduced(address, &run(1));
    let mut copy = ask(address, &run(2));
    // A later attempt replaces the first.
    let mut again = ask(address, &run(2));
    assert_eq!(copy.frame(), None);
    let mut former = Hand::introduced(address, &run(1));
    assert_eq!(again.refusal(), RefusalCode::Duplicate);
    former.send(&frame(|buffer| numbered(1).encode(buffer)));
    assert_eq!(one.received(), (2, numbered(1)));
}

#[test]
fn the_wait_of_an_earlier_attempt_counts() {
    let stall = Duration::from_millis(600);
    let (_one, address) = node(&with_stall(stall));
    let _former = Hand::introduced(address, &run(1));
    let begin = Instant::now();
    let end = begin + PATIENCE;
    // No single attempt lasts as long as the necessary wait.
    loop {
        let mut hand = ask(address, &run(2));
        hand.stream.set_read_timeout(Some(stall / 2)).unwrap();
        let mut first = [0];
        if hand.stream.read(&mut first).is_ok_and(|bytes| bytes == 1) {
            break;
        }
        assert!(Instant::now() < end);
    }
    assert!(begin.elapsed() >= stall, "{:?}", begin.elapsed());
}

#[test]
fn a_waiting_copy_costs_no_turns() {
    let (one, address) = node(&with_stall(Duration::from_secs(100)));
    let _former = Hand::introduced(address, &run(1));
    let mut copy = ask(address, &run(2));
    // What it sends meanwhile waits with it.
    copy.send(&frame(|buffer| numbered(1).encode(buffer)));
    let end = Instant::now() + PATIENCE;
    let turns = || one.transport.shared.turns.load(Relaxed);
    loop {
        let before = turns();
        let quiet = one.events.recv_timeout(Duration::from_millis(300));
        assert!(!matches!(quiet, Ok(TransportEvent::Received { .. })), "{quiet:?}");
        if quiet.is_err() && turns() <= before + 40 {
            return;
        }
        assert!(Instant::now() < end);
    }
}
