//! The connections that we make: to peers that restart, move, refuse, stall or lie.

use super::*;

#[test]
fn peer_that_restarts_on_its_port_is_reached_again() {
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut two = Node::start(listener_2, local(2), &[remote(1, address_1)], &quick());
    for round in 0..5 {
        one.await_connected(2);
        two.await_connected(1);
        one.transport.send(vec![(2, numbered(round))]);
        assert_eq!(two.received(), (1, numbered(round)));
        two.transport.close();
        let (peer, _, permanent) = one.unreachable();
        assert_eq!((peer, permanent), (2, false));
        // Nothing sent meanwhile may arrive late.
        one.transport.send(vec![(2, numbered(99))]);
        let dropped = &one.transport.counters().messages_dropped;
        let end = Instant::now() + PATIENCE;
        while dropped.load(Relaxed) == round {
            assert!(Instant::now() < end, "nothing was dropped");
            std::thread::yield_now();
        }
        two = Node::start(listen_again(address_2), local(2), &[remote(1, address_1)], &quick());
    }
}

#[test]
fn restarted_peer_is_dialled_before_the_pause_is_over() {
    let patient =
        TransportOptions { retry_min: PATIENCE * 10, retry_max: PATIENCE * 10, ..quick() };
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    drop(listener_2);
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &patient);
    assert_eq!(one.unreachable(), (2, "connection refused".into(), false));
    let peers = [remote(1, address_1)];
    let two = Node::start(listen_again(address_2), local(2), &peers, &quick());
    two.await_connected(1);
    one.await_connected(2);
}

#[test]
fn nodes_of_different_clusters_refuse_each_other() {
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let other = LocalPeer { cluster: 0xBAD, ..local(2) };
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let two = Node::start(listener_2, other, &[remote(1, address_1)], &quick());
    let (peer, reason, permanent) = one.unreachable();
    assert_eq!((peer, permanent), (2, true));
    assert!(reason.contains("another cluster (0000000000000bad"), "{reason}");
    let (peer, reason, permanent) = two.unreachable();
    assert_eq!((peer, permanent), (1, true));
    assert!(reason.contains("another cluster"), "{reason}");
    one.await_refused(1);
    two.await_refused(1);
}

#[test]
fn node_under_the_address_of_another_is_refused() {
    let (listener_1, address_1) = listen();
    let (listener_3, address_3) = listen();
    let three = Node::start(listener_3, local(3), &[remote(1, address_1)], &quick());
    let one = Node::start(listener_1, local(1), &[remote(2, address_3)], &quick());
    let refused = (2, "the peer refused: this is node 3, not 2".into(), true);
    assert_eq!(one.unreachable(), refused);
    // It may introduce itself as what it is.
    three.await_connected(1);
    one.await_connected(3);
}

#[test]
fn answer_of_another_version_is_understood() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut hand = Hand::new(listener_2.accept().unwrap().0);
    let hello = hand.frame().unwrap();
    let refusal = Hello::decode(&hello, 7..=9).unwrap_err();
    hand.send(&frame(|buffer| Answer::Refused(refusal).encode(9, buffer)));
    let (peer, reason, permanent) = one.unreachable();
    assert_eq!((peer, permanent), (2, true));
    let expected = format!("the peer refused: this node can do versions 7 to 9, not {VERSION}");
    assert_eq!(reason, expected);
}

#[test]
fn nodes_of_two_versions_talk_in_the_lower_and_tell_their_own() {
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let old = LocalPeer { version: 1, ..local(1) };
    let new = LocalPeer { version: 3, ..local(2) };
    let old = Node::start(listener_1, old, &[remote(2, address_2)], &quick());
    let new = Node::start(listener_2, new, &[remote(1, address_1)], &quick());
    assert_eq!(new.await_connected(1), 1);
    assert_eq!(old.await_connected(2), 3);
    old.transport.send(vec![(2, numbered(1))]);
    new.transport.send(vec![(1, numbered(2))]);
    assert_eq!(new.received(), (1, numbered(1)));
    assert_eq!(old.received(), (2, numbered(2)));
    // The newer one was told that it is too new, once for each connection, and asked again.
    assert_eq!(old.transport.counters().connections_refused.load(Relaxed), 1);
    assert_eq!(new.transport.counters().connections_refused.load(Relaxed), 0);
}

/// As a build of the older version answers, and then one of the newer.
#[test]
fn a_peer_that_was_upgraded_is_talked_to_in_the_higher_version() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let new = LocalPeer { version: INVENTED, ..local(1) };
    let one = Node::start(listener_1, new, &[remote(2, address_2)], &quick());
    for version in [VERSION, INVENTED] {
        let mut said = Vec::new();
        let _welcomed = loop {
            let mut hand = Hand::new(listener_2.accept().unwrap().0);
            let hello = hand.frame().unwrap();
            said.push(u16::from_le_bytes([hello[8], hello[9]]));
            match Hello::decode(&hello, version..=version) {
                Ok(_) => {
                    hand.send(&frame(|buffer| welcome(2).encode(version, buffer)));
                    break hand;
                }
                Err(refusal) => {
                    hand.send(&frame(|buffer| Answer::Refused(refusal).encode(version, buffer)));
                }
            }
        };
        // The highest that it can do, and then what it has been told.
        let asked = if version == INVENTED { vec![INVENTED] } else { vec![INVENTED, version] };
        assert_eq!(said, asked);
        assert_eq!(one.await_connected(2), version);
    }
}

#[test]
fn a_peer_that_is_too_old_is_named() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut hand = Hand::new(listener_2.accept().unwrap().0);
    let hello = hand.frame().unwrap();
    let refusal = Hello::decode(&hello, 0..=0).unwrap_err();
    hand.send(&frame(|buffer| Answer::Refused(refusal).encode(0, buffer)));
    let (peer, reason, permanent) = one.unreachable();
    assert_eq!((peer, permanent), (2, true));
    let expected = format!(
        "the peer can do version 0 at most, and this node versions 1 to {VERSION}: upgrade the peer"
    );
    assert_eq!(reason, expected);
}

#[test]
fn peer_that_reads_nothing_costs_bounded_memory_and_is_given_up() {
    let options = TransportOptions {
        queue_bytes_max: 1 << 20,
        stall_timeout: Duration::from_millis(300),
        ..quick()
    };
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &options);
    let mut hand = Hand::welcome(&listener_2);
    one.await_connected(2);
    let counters = one.transport.counters();
    let end = Instant::now() + PATIENCE;
    let mut number = 0;
    while counters.messages_dropped.load(Relaxed) < 1000 {
        assert!(Instant::now() < end, "{counters:?}");
        one.transport.send(vec![(2, large(number, 10_000))]);
        number += 1;
    }
    let reason = "the peer takes or answers nothing";
    assert_eq!(one.unreachable(), (2, reason.into(), false));
    // What does arrive is whole and in order.
    let mut last = None;
    while let Some(bytes) = hand.frame() {
        let Ok(PeerMessage::SnapshotChunk { number, .. }) = PeerMessage::decode(&bytes) else {
            assert!(bytes.is_empty(), "neither a message nor a question");
            continue;
        };
        assert!(last < Some(number));
        last = Some(number);
    }
    assert!(last.is_some());
}

#[test]
fn peer_that_answers_nothing_is_given_up() {
    let options = TransportOptions { stall_timeout: Duration::from_millis(200), ..quick() };
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &options);
    let mut hand = Hand::welcome(&listener_2);
    one.await_connected(2);
    one.transport.send(vec![(2, numbered(1))]);
    assert_eq!(PeerMessage::decode(&hand.frame().unwrap()), Ok(numbered(1)));
    assert_eq!(hand.frame(), Some(Vec::new()));
    let reason = "the peer takes or answers nothing";
    assert_eq!(one.unreachable(), (2, reason.into(), false));
    assert_eq!(hand.frame(), None);
}

#[test]
fn peer_that_answers_is_kept_however_quiet() {
    let options = TransportOptions { stall_timeout: Duration::from_secs(1), ..quick() };
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &options);
    let mut hand = Hand::welcome(&listener_2);
    one.await_connected(2);
    one.transport.send(vec![(2, numbered(2))]);
    assert!(hand.frame().is_some());
    assert_eq!(hand.frame(), Some(Vec::new()));
    hand.send(&frame(|buffer| buffer));
    let quiet = one.events.recv_timeout(options.stall_timeout * 3 / 2);
    assert!(quiet.is_err(), "{quiet:?}");
}

#[test]
fn peer_that_sends_on_our_connection_is_hung_up_on() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut hand = Hand::welcome(&listener_2);
    hand.send(&frame(|buffer| numbered(1).encode(buffer)));
    let (_, reason, _) = one.unreachable();
    assert!(reason.contains("the peer sent a frame of"), "{reason}");
    let mut hand = Hand::new(listener_2.accept().unwrap().0);
    assert!(hand.frame().is_some());
    hand.send(&frame(|buffer| buffer));
    assert_eq!(one.unreachable().1, "the peer is not a quorate node");
}

#[test]
fn peer_that_never_answers_the_handshake_is_tried_again() {
    let options = TransportOptions { handshake_timeout: Duration::from_millis(50), ..quick() };
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &options);
    let silent = listener_2.accept().unwrap();
    assert_eq!(one.unreachable().1, "the peer did not answer the handshake");
    let _hand = Hand::welcome(&listener_2);
    one.await_connected(2);
    drop(silent);
}

#[test]
fn same_failure_is_reported_once() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    for _ in 0..10 {
        let mut hand = Hand::new(listener_2.accept().unwrap().0);
        assert!(hand.frame().is_some());
    }
    let _hand = Hand::welcome(&listener_2);
    let reason = "the peer closed the connection instead of answering";
    assert!(matches!(
        one.event(),
        TransportEvent::Unreachable { peer: 2, reason: told, permanent: false } if told == reason
    ));
    assert!(matches!(one.event(), TransportEvent::Connected { peer: 2, .. }));
}

#[test]
fn names_are_looked_up() {
    let options = TransportOptions { connect_timeout: Duration::from_millis(500), ..quick() };
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    // It may stand for an IPv6 address, too, where nobody listens.
    let name = format!("localhost:{}", address_2.port());
    let one = Node::start(listener_1, local(1), &[remote(2, name)], &options);
    let _hand = Hand::welcome(&listener_2);
    one.await_connected(2);

    one.transport.set_peers(vec![remote(3, "no port given")]);
    let (peer, reason, permanent) = one.unreachable();
    assert_eq!((peer, permanent), (3, false));
    assert!(reason.starts_with("cannot look up \"no port given\""), "{reason}");
}

#[test]
fn list_of_peers_can_change() {
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let (listener_3, address_3) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut out_2 = Hand::welcome(&listener_2);
    one.await_connected(2);
    let mut in_2 = Hand::introduced(address_1, &hello(2, 1));

    // The own address in the list is not a peer's. A peer that is connected and not in the list any
    // more is unlisted.
    let list = vec![remote(1, address_1), remote(3, address_3)];
    one.transport.set_peers(list.clone());
    let mut out_3 = Hand::welcome(&listener_3);
    one.await_connected(3);
    in_2.send(&frame(|buffer| numbered(7).encode(buffer)));
    assert_eq!(one.received(), (2, numbered(7)));
    one.transport.send(vec![(2, numbered(8))]);
    assert_eq!(PeerMessage::decode(&out_2.frame().unwrap()), Ok(numbered(8)));

    // The same list changes nothing; another address does.
    one.transport.set_peers(list);
    one.transport.send(vec![(3, numbered(1))]);
    assert_eq!(PeerMessage::decode(&out_3.frame().unwrap()), Ok(numbered(1)));
    one.transport.set_peers(vec![remote(3, address_2)]);
    let _hand = Hand::welcome(&listener_2);
    one.await_connected(3);
}
