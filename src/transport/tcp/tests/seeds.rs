//! Seeds: addresses whose node is not known.

use super::*;

fn seeking(seeds: &[&dyn std::fmt::Display], options: &TransportOptions) -> Node {
    let (listener, address) = listen();
    seeking_from(listener, at(1, address), seeds, options)
}

fn seeking_from(
    listener: TcpListener,
    local: LocalPeer,
    seeds: &[&dyn std::fmt::Display],
    options: &TransportOptions,
) -> Node {
    let seeds: Vec<String> = seeds.iter().map(|seed| (*seed).to_string()).collect();
    Node::with_seeds(listener, local, &[], &seeds, options)
}

fn seed_unreachable(node: &Node) -> (String, String, bool) {
    loop {
        if let TransportEvent::SeedUnreachable { address, reason, permanent } = node.event() {
            return (address, reason, permanent);
        }
    }
}

fn await_sleep(node: &Node) {
    let end = Instant::now() + PATIENCE;
    loop {
        let before = node.transport.shared.turns.load(Relaxed);
        let _ = node.events.recv_timeout(Duration::from_millis(200));
        if node.transport.shared.turns.load(Relaxed) == before {
            return;
        }
        assert!(Instant::now() < end, "still busy");
    }
}

#[test]
fn the_node_that_answers_at_a_seed_is_a_peer() {
    let (listener_2, address_2) = listen();
    let two = Node::start(listener_2, at(2, address_2), &[], &quick());
    let one = seeking(&[&address_2], &quick());
    assert_eq!(one.await_connected(2), VERSION);
    two.await_connected(1);
    one.transport.send(vec![(2, numbered(1))]);
    assert_eq!(two.received(), (1, numbered(1)));
    two.transport.send(vec![(1, numbered(2))]);
    assert_eq!(one.received(), (2, numbered(2)));
}

#[test]
fn a_seed_is_found_with_the_secret_and_reported_without_it() {
    let secret = "8c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9350";
    let secret: crate::security::Security = crate::security::Secret::new(secret).unwrap().into();
    let secure = TransportOptions { security: secret, ..quick() };
    let (listener_2, address_2) = listen();
    let two = Node::start(listener_2, at(2, address_2), &[], &secure);
    let one = seeking(&[&address_2], &secure);
    one.await_connected(2);
    two.await_connected(1);
    one.transport.send(vec![(2, numbered(1))]);
    assert_eq!(two.received(), (1, numbered(1)));
    two.transport.send(vec![(1, numbered(2))]);
    assert_eq!(one.received(), (2, numbered(2)));
    let stranger = seeking(&[&address_2], &quick());
    let (address, reason, permanent) = seed_unreachable(&stranger);
    assert_eq!((address, permanent), (address_2.to_string(), true));
    assert!(reason.contains("with a shared secret"), "{reason}");
}

#[test]
fn a_seed_is_dialled_until_a_node_is_there() {
    let (listener_2, address_2) = listen();
    drop(listener_2);
    let one = seeking(&[&address_2, &"no-such-host.invalid:1"], &quick());
    let mut reported: Vec<_> = (0..2).map(|_| seed_unreachable(&one)).collect();
    reported.sort();
    assert_eq!(reported[0], (address_2.to_string(), "connection refused".into(), false));
    assert!(reported[1].1.contains("cannot look up"), "{reported:?}");
    let listener_2 = listen_again(address_2);
    let (raw, hello) = RawPeer::accept_as(&listener_2, &at(2, address_2));
    assert_eq!((hello.from, hello.to), (1, 0));
    one.await_connected(2);
    // Another node is at the address next.
    drop(raw);
    assert_eq!(one.unreachable(), (2, "the peer closed the connection".into(), false));
    let (mut raw, hello) = RawPeer::accept_as(&listener_2, &at(3, address_2));
    assert_eq!(hello.to, 0);
    one.await_connected(3);
    one.transport.send(vec![(2, numbered(1)), (3, numbered(2))]);
    assert_eq!(PeerMessage::decode(&raw.frame().unwrap()), Ok(numbered(2)));
}

#[test]
fn the_own_address_as_a_seed_is_ignored() {
    let (listener, address) = listen();
    let name = format!("localhost:{}", address.port());
    let slow = TransportOptions { retry_max: PATIENCE, ..quick() };
    let one = seeking_from(listener, at(1, address), &[&address, &name], &slow);
    await_sleep(&one);
    let events: Vec<TransportEvent> = one.events.try_iter().collect();
    assert!(events.iter().all(|event| !matches!(event, TransportEvent::Connected { .. })));
    assert!(!events.iter().any(|event| matches!(
        event,
        TransportEvent::SeedUnreachable { address: reported, .. } if *reported == address.to_string()
    )));
    assert_eq!(one.transport.counters().connections_refused.load(Relaxed), 0);
}

#[test]
fn a_copy_of_this_node_at_a_seed_is_reported() {
    let (listener_2, address_2) = listen();
    let _copy = Node::start(listener_2, LocalPeer { boot: 7, ..at(1, address_2) }, &[], &quick());
    let one = seeking(&[&address_2], &quick());
    let (_, reason, permanent) = seed_unreachable(&one);
    assert!(reason.contains("copies of one data directory"), "{reason}");
    assert!(permanent);
}

#[test]
fn one_connection_is_kept_to_a_node_of_many_addresses() {
    let (listener_2, address_2) = listen();
    let name = format!("localhost:{}", address_2.port());
    let two = Node::start(listener_2, at(2, address_2), &[], &quick());
    let one = seeking(&[&address_2, &name, &address_2], &quick());
    one.await_connected(2);
    await_sleep(&one);
    assert_eq!(one.transport.shared.counters.messages_dropped.load(Relaxed), 0);
    let arrives = |number| {
        one.transport.send(vec![(2, numbered(number))]);
        let until = Instant::now() + Duration::from_secs(2);
        let events = std::iter::from_fn(|| two.events.recv_deadline(until).ok());
        let is_it = |event| matches!(event, TransportEvent::Received { message, .. } if message == numbered(number));
        events.into_iter().any(is_it)
    };
    // The name may be looked up late. Messages in flight on a connection that is replaced are lost.
    let lost = (0..20).filter(|number| !arrives(*number)).count();
    assert!(lost <= 2, "{lost} of 20 messages were lost: connections are replaced again and again");
}

#[test]
fn a_seed_that_is_a_members_address_is_not_dialled_beside_it() {
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let (peers, seeds) = ([remote(2, address_2)], [address_2.to_string()]);
    let one = Node::with_seeds(listener_1, at(1, address_1), &peers, &seeds, &quick());
    let (raw, hello) = RawPeer::accept_as(&listener_2, &at(2, address_2));
    assert_eq!(hello.to, 2);
    one.await_connected(2);
    await_sleep(&one);
    listener_2.set_nonblocking(true).unwrap();
    assert_eq!(listener_2.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    listener_2.set_nonblocking(false).unwrap();
    // Another node is there now.
    raw.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let mut raw = RawPeer::new(listener_2.accept().unwrap().0);
    let hello = Hello::decode(&raw.frame().unwrap(), OLDEST..=VERSION).unwrap();
    let refusal = crate::transport::handshake::check(&at(3, address_2), &hello).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::NotAddressed);
    raw.send(&frame(|buffer| HelloReply::Refused(refusal).encode(VERSION, buffer)));
    let (_raw, hello) = RawPeer::accept_as(&listener_2, &at(3, address_2));
    assert_eq!(hello.to, 0);
    one.await_connected(3);
}

#[test]
fn a_seed_that_does_not_answer_wakes_the_node_at_its_backoff_only() {
    let (listener_2, address_2) = listen();
    drop(listener_2);
    let slow = TransportOptions { retry_min: PATIENCE * 10, retry_max: PATIENCE * 10, ..quick() };
    let one = seeking(&[&address_2], &slow);
    seed_unreachable(&one);
    await_sleep(&one);
}
