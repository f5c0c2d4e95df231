//! Outgoing connections: to peers that restart, move, refuse, stall or send wrong answers.

use super::*;
use crate::transport::tcp::context::{NetworkContext, NetworkTimer, Target};
use crate::transport::tcp::failure::Failure;
use crate::transport::tcp::outgoing_connection::{OutgoingConnection, OutgoingState};
use crate::transport::tcp::peer::DialledPeer;
use crate::transport::tcp::sockets::SystemSockets;

/// A build that could read no message was connected and lost eight times a second: it connected itself each time, so it
/// was dialled at once.
#[test]
fn a_peer_that_hangs_up_each_time_is_dialled_less_and_less() {
    let (_listener, address) = listen();
    let TcpTransport { poll, shared } = TcpTransport::new().unwrap();
    let sockets = Box::new(SystemSockets::new(poll.registry().try_clone().unwrap()));
    let (options, now) = (TransportOptions::default(), Instant::now());
    let mut context = NetworkContext::new(sockets, local(1), options, shared, unbounded().0, now);
    let target = Target::Node(2);
    let mut peer = DialledPeer::new(target, address.to_string(), now);
    let mut hang_up = || {
        let mut connection = OutgoingConnection::begin(&mut context, address).unwrap();
        connection.phase = OutgoingState::Up { since: now };
        peer.adopt(&mut context, Box::new(connection), VERSION);
        peer.fail(&mut context, &Failure::passing("it hung up"));
        assert!(peer.nudge(&mut context).is_ok());
        (context.timers.at(NetworkTimer::Peer(target)).unwrap() - now).as_millis()
    };
    assert_eq!([(); 7].map(|()| hang_up()), [50, 100, 200, 400, 800, 1600, 2000]);
}

#[test]
fn peer_that_restarts_on_its_port_is_reached_again() {
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut two = Node::start(listener_2, local(2), &[remote(1, address_1)], &quick());
    for attempt in 0..5 {
        one.await_connected(2);
        two.await_connected(1);
        one.transport.send(vec![(2, numbered(attempt))]);
        assert_eq!(two.received(), (1, numbered(attempt)));
        two.transport.close();
        let (peer, _, permanent) = one.unreachable();
        assert_eq!((peer, permanent), (2, false));
        // A message sent while the peer is away must not arrive late.
        one.transport.send(vec![(2, numbered(99))]);
        let dropped = &one.transport.counters().messages_dropped;
        let end = Instant::now() + PATIENCE;
        while dropped.load(Relaxed) == attempt {
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
    // Not for good: a new instance takes the place of the former one.
    let text = "the peer refused: this is node 0000000000000003, and 0000000000000002 is not here any more";
    let refused = (2, text.into(), false);
    assert_eq!(one.unreachable(), refused);
    // It is accepted under its own id.
    three.await_connected(1);
    one.await_connected(3);
}

#[test]
fn answer_of_another_version_is_understood() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut raw = RawPeer::new(listener_2.accept().unwrap().0);
    let hello = raw.frame().unwrap();
    let refusal = Hello::decode(&hello, 7..=9).unwrap_err();
    raw.send(&frame(|buffer| HelloReply::Refused(refusal).encode(9, buffer)));
    let (peer, reason, permanent) = one.unreachable();
    assert_eq!((peer, permanent), (2, true));
    let expected = format!("the peer refused: this node can do versions 7 to 9, not {VERSION}");
    assert_eq!(reason, expected);
}

#[test]
fn nodes_of_two_versions_use_the_lower_and_report_their_own() {
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
    // The older node refused the newer one's first hello, and accepted the second.
    assert_eq!(old.transport.counters().connections_refused.load(Relaxed), 1);
    assert_eq!(new.transport.counters().connections_refused.load(Relaxed), 0);
}

/// The peer answers first as a build of the older version, and then as one of the newer.
#[test]
fn a_connection_to_an_upgraded_peer_uses_the_higher_version() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let new = LocalPeer { version: INVENTED, ..local(1) };
    let one = Node::start(listener_1, new, &[remote(2, address_2)], &quick());
    for version in [VERSION, INVENTED] {
        let mut proposed = Vec::new();
        let _welcomed = loop {
            let mut raw = RawPeer::new(listener_2.accept().unwrap().0);
            let hello = raw.frame().unwrap();
            proposed.push(u16::from_le_bytes([hello[10], hello[11]]));
            match Hello::decode(&hello, version..=version) {
                Ok(_) => {
                    raw.send(&frame(|buffer| welcome(2).encode(version, buffer)));
                    break raw;
                }
                Err(refusal) => {
                    raw.send(&frame(|buffer| HelloReply::Refused(refusal).encode(version, buffer)));
                }
            }
        };
        // First the node's highest version, and after a refusal the peer's.
        let expected = if version == INVENTED { vec![INVENTED] } else { vec![INVENTED, version] };
        assert_eq!(proposed, expected);
        assert_eq!(one.await_connected(2), version);
    }
}

#[test]
fn a_peer_that_is_too_old_is_reported() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut raw = RawPeer::new(listener_2.accept().unwrap().0);
    let hello = raw.frame().unwrap();
    let refusal = Hello::decode(&hello, 0..=0).unwrap_err();
    raw.send(&frame(|buffer| HelloReply::Refused(refusal).encode(0, buffer)));
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
    let mut raw = RawPeer::accept(&listener_2);
    one.await_connected(2);
    let counters = one.transport.counters();
    let end = Instant::now() + PATIENCE;
    let mut number = 0;
    while counters.messages_dropped.load(Relaxed) < 1000 {
        assert!(Instant::now() < end, "{counters:?}");
        one.transport.send(vec![(2, large(number, 10_000))]);
        number += 1;
    }
    let reason = "the peer neither takes bytes nor answers";
    assert_eq!(one.unreachable(), (2, reason.into(), false));
    // The messages that do arrive are whole and in order.
    let mut last = None;
    while let Some(bytes) = raw.frame() {
        let Ok(PeerMessage::SnapshotChunk { number, .. }) = PeerMessage::decode(&bytes) else {
            assert!(bytes.is_empty(), "neither a message nor a ping");
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
    let mut raw = RawPeer::accept(&listener_2);
    one.await_connected(2);
    one.transport.send(vec![(2, numbered(1))]);
    assert_eq!(PeerMessage::decode(&raw.frame().unwrap()), Ok(numbered(1)));
    assert_eq!(raw.frame(), Some(Vec::new()));
    let reason = "the peer neither takes bytes nor answers";
    assert_eq!(one.unreachable(), (2, reason.into(), false));
    assert_eq!(raw.frame(), None);
}

#[test]
fn peer_that_answers_is_kept_however_quiet() {
    let options = TransportOptions { stall_timeout: Duration::from_secs(1), ..quick() };
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &options);
    let mut raw = RawPeer::accept(&listener_2);
    one.await_connected(2);
    one.transport.send(vec![(2, numbered(2))]);
    assert!(raw.frame().is_some());
    assert_eq!(raw.frame(), Some(Vec::new()));
    raw.send(&frame(|buffer| buffer));
    let quiet = one.events.recv_timeout(options.stall_timeout * 3 / 2);
    assert!(quiet.is_err(), "{quiet:?}");
}

#[test]
fn peer_that_sends_messages_on_our_connection_is_disconnected() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut raw = RawPeer::accept(&listener_2);
    raw.send(&frame(|buffer| numbered(1).encode(buffer)));
    let (_, reason, _) = one.unreachable();
    assert!(reason.contains("the peer sent a frame of"), "{reason}");
    let mut raw = RawPeer::new(listener_2.accept().unwrap().0);
    assert!(raw.frame().is_some());
    raw.send(&frame(|buffer| buffer));
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
    let _raw = RawPeer::accept(&listener_2);
    one.await_connected(2);
    drop(silent);
}

#[test]
fn same_failure_is_reported_once() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    for _ in 0..10 {
        let mut raw = RawPeer::new(listener_2.accept().unwrap().0);
        assert!(raw.frame().is_some());
    }
    let _raw = RawPeer::accept(&listener_2);
    let reason = "the peer closed the connection instead of answering";
    assert!(matches!(
        one.event(),
        TransportEvent::Unreachable { peer: 2, reason: reported, permanent: false } if reported == reason
    ));
    assert!(matches!(one.event(), TransportEvent::Connected { peer: 2, .. }));
}

#[test]
fn names_are_looked_up() {
    let options = TransportOptions { connect_timeout: Duration::from_millis(500), ..quick() };
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    // The name may also stand for an IPv6 address, at which nobody listens.
    let name = format!("localhost:{}", address_2.port());
    let one = Node::start(listener_1, local(1), &[remote(2, name)], &options);
    let _raw = RawPeer::accept(&listener_2);
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
    let mut out_2 = RawPeer::accept(&listener_2);
    one.await_connected(2);
    let mut in_2 = RawPeer::connect_as(address_1, &hello(2, 1));

    // The node's own address in the list is not a peer's. A connected peer that is no longer in the
    // list becomes an unlisted peer.
    let list = vec![remote(1, address_1), remote(3, address_3)];
    one.transport.set_peers(list.clone());
    let mut out_3 = RawPeer::accept(&listener_3);
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
    let _raw = RawPeer::accept(&listener_2);
    one.await_connected(3);
}
