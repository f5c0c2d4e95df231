//! A second process with a copy of a data directory, and a restart. Both look alike at first.

use std::sync::atomic::Ordering::{Acquire, Release};

use super::*;

/// Node 2 in another run of its process.
fn run(boot: u64) -> Hello {
    let hello = hello(2, 1);
    let run = ProcessRun { boot, ..hello.run.clone() };
    Hello { run, ..hello }
}

fn node(options: &TransportOptions) -> (Node, SocketAddr) {
    let (listener, address) = listen();
    (Node::start(listener, local(1), &[remote(2, "127.0.0.1:1")], options), address)
}

fn with_stall(stall: Duration) -> TransportOptions {
    TransportOptions { stall_timeout: stall, ..quick() }
}

fn send_hello(address: SocketAddr, hello: &Hello) -> RawPeer {
    let mut raw = RawPeer::connect(address);
    raw.send(&frame(|buffer| hello.encode(buffer)));
    raw
}

#[test]
fn a_copy_is_refused_while_the_former_one_is_alive() {
    let (one, address) = node(&with_stall(Duration::from_secs(3)));
    let mut former = RawPeer::connect_as(address, &run(1));
    let mut copy = send_hello(address, &run(2));
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
        Some(HelloReply::Refused(refusal)) => {
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
fn a_copy_that_was_refused_reports_the_reason() {
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
    assert!(reason.contains("two processes run as node 0000000000000002"), "{reason}");
    drop(one);
}

#[test]
fn a_restart_whose_former_connection_is_closed_is_welcomed_at_once() {
    let (_one, address) = node(&with_stall(PATIENCE * 10));
    let former = RawPeer::connect_as(address, &run(1));
    let begin = Instant::now();
    drop(former);
    let mut later = send_hello(address, &run(2));
    assert!(matches!(later.answer(), Some(HelloReply::Welcome(_))));
    // The former connection is closed only after the new hello was sent.
    let mut last = send_hello(address, &run(3));
    drop(later);
    assert!(matches!(last.answer(), Some(HelloReply::Welcome(_))));
    assert!(begin.elapsed() < PATIENCE);
}

#[test]
fn bytes_that_were_in_flight_are_no_sign_of_life() {
    let stall = Duration::from_secs(6);
    let (one, address) = node(&with_stall(stall));
    let mut former = RawPeer::connect_as(address, &run(1));
    let begin = Instant::now();
    let mut superseded = send_hello(address, &run(2));
    let mut later = send_hello(address, &run(2));
    // The node has received the new hello before this message.
    assert_eq!(superseded.frame(), None);
    former.send(&frame(|buffer| numbered(1).encode(buffer)));
    assert_eq!(one.received(), (2, numbered(1)));
    // The former machine is gone: it sends nothing more, and does not close the connection.
    assert!(matches!(later.answer(), Some(HelloReply::Welcome(_))));
    assert!(begin.elapsed() >= stall, "{:?}", begin.elapsed());
    assert_eq!(former.frame(), None);
    later.send(&frame(|buffer| numbered(2).encode(buffer)));
    assert_eq!(one.received(), (2, numbered(2)));
}

#[test]
fn the_former_process_proves_itself_by_a_new_connection() {
    let (one, address) = node(&with_stall(PATIENCE * 10));
    let _former = RawPeer::connect_as(address, &run(1));
    let mut copy = send_hello(address, &run(2));
    // A later attempt of the copy replaces the first one.
    let mut again = send_hello(address, &run(2));
    assert_eq!(copy.frame(), None);
    let mut former = RawPeer::connect_as(address, &run(1));
    assert_eq!(again.refusal(), RefusalCode::Duplicate);
    former.send(&frame(|buffer| numbered(1).encode(buffer)));
    assert_eq!(one.received(), (2, numbered(1)));
}

#[test]
fn the_wait_continues_over_several_attempts() {
    let stall = Duration::from_millis(600);
    let (_one, address) = node(&with_stall(stall));
    let _former = RawPeer::connect_as(address, &run(1));
    let begin = Instant::now();
    let end = begin + PATIENCE;
    // No single attempt is as long as the necessary wait.
    loop {
        let mut raw = send_hello(address, &run(2));
        raw.stream.set_read_timeout(Some(stall / 2)).unwrap();
        let mut first = [0];
        if raw.stream.read(&mut first).is_ok_and(|bytes| bytes == 1) {
            break;
        }
        assert!(Instant::now() < end);
    }
    assert!(begin.elapsed() >= stall, "{:?}", begin.elapsed());
}

#[test]
fn a_waiting_copy_costs_no_turns() {
    let (one, address) = node(&with_stall(Duration::from_secs(100)));
    let _former = RawPeer::connect_as(address, &run(1));
    let mut copy = send_hello(address, &run(2));
    // Bytes that it sends while it waits stay in the socket.
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
